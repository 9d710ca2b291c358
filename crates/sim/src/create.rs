//! New members: superblocks, bitmap and data as a freshly created (or just resynced) array has them.

use raidus_format::{
    ArrayUpdate, BadBlockArea, DeviceState, Geometry as StoredGeometry, MdUuid, MemberUpdate, MetadataVersion,
    NewSuperblock, PplArea, Recovery, ResyncMark, Role, Superblock, Timestamp, ppl,
};
use raidus_layout::{Geometry, ParityGeometry};
use raidus_units::{Sector, Sectors, Slot};

use crate::disk::{Disk, Store};
use crate::inspect::{exponent, parities};
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::stamp::{SECTOR, WriteId, fill};

/// Room kept for the bitmap and for the bad-block log, each.
const AREA: u64 = 8;
/// Where data starts on 1.1 and 1.2 members.
const DATA_OFFSET: u64 = 64;

/// Stores a sector at a component address of a slot.
type StoreAt<'a> = dyn FnMut(Slot, u64, &[u8]) -> Result<(), String> + 'a;

/// Where everything is on a member.
#[derive(Clone, Copy, Debug)]
struct Place {
    device: Sectors,
    superblock: Sector,
    data_offset: Sector,
    data_size: Sectors,
    bitmap: i64,
    bad_blocks: i64,
    log: i64,
}

/// Makes the members of a scenario's array. `contents` says which write each array sector comes from. Slots that are missing get
/// a disk without metadata; what a rebuilding member does not hold yet is garbage.
pub(crate) fn members(scenario: &Scenario, contents: &[WriteId], rng: &mut Rng) -> Result<Vec<Disk>, String> {
    let geometry = scenario.geometry().ok_or("the scenario has no geometry")?;
    let uuid = MdUuid([rng.next().to_le_bytes(), rng.next().to_le_bytes()].concat().try_into().expect("16 bytes"));
    let events = rng.range(1, 50);
    let mut disks = Vec::new();
    let mut places = Vec::new();
    for slot in (0..scenario.raid_disks).map(Slot) {
        let place = place(scenario, scenario.data_sizes[slot.index()]);
        let mut disk = Disk::new(place.device.0);
        if !scenario.missing.contains(&slot) {
            write_metadata(&mut disk, scenario, slot, &place, uuid, events, rng)?;
        }
        disks.push(disk);
        places.push(place);
    }
    for number in scenario.raid_disks..scenario.raid_disks + scenario.spares {
        let place = place(scenario, scenario.data_sizes[0]);
        let mut disk = Disk::new(place.device.0);
        write_metadata(&mut disk, scenario, Slot(number), &place, uuid, events, rng)?;
        disks.push(disk);
    }
    write_data(&mut disks, &places, &geometry, contents)?;
    spoil_rebuilding(&mut disks, &places, scenario, &geometry, rng)?;
    Ok(disks)
}

/// Where the bitmap is, or would be, from each superblock.
pub(crate) fn bitmap_offset(scenario: &Scenario) -> i64 {
    place(scenario, scenario.data_sizes[0]).bitmap
}

fn place(scenario: &Scenario, data: Sectors) -> Place {
    let log = scenario.log.unwrap_or(Sectors::ZERO).round_up(Sectors(8)).0;
    let front = |superblock: u64| Place {
        device: Sectors(DATA_OFFSET + log + data.0),
        superblock: Sector(superblock),
        data_offset: Sector(DATA_OFFSET + log),
        data_size: data,
        bitmap: 8,
        bad_blocks: 8 + AREA as i64,
        log: 8 + 2 * AREA as i64,
    };
    match scenario.metadata {
        MetadataVersion::V1_2 => front(8),
        MetadataVersion::V1_1 => front(0),
        MetadataVersion::V1_0 => {
            let superblock = data.round_up(Sectors(8)).0 + log + 2 * AREA;
            Place {
                device: Sectors(superblock + 16),
                superblock: Sector(superblock),
                data_offset: Sector::ZERO,
                data_size: data,
                bitmap: -2 * AREA as i64,
                bad_blocks: -(AREA as i64),
                log: -2 * AREA as i64 - log as i64,
            }
        }
        MetadataVersion::V0_90 => {
            let superblock = data.round_up(Sectors(128)).0.max(128);
            Place {
                device: Sectors(superblock + 128),
                superblock: Sector(superblock),
                data_offset: Sector::ZERO,
                data_size: Sectors(superblock),
                bitmap: 8,
                bad_blocks: 0,
                log: 0,
            }
        }
    }
}

fn write_metadata(
    disk: &mut Disk,
    scenario: &Scenario,
    slot: Slot,
    place: &Place,
    uuid: MdUuid,
    events: u64,
    rng: &mut Rng,
) -> Result<(), String> {
    let device_uuid: [u8; 16] =
        [rng.next().to_le_bytes(), rng.next().to_le_bytes()].concat().try_into().expect("16 bytes");
    let mut member = MemberUpdate::new(u32::from(slot.0));
    if let Some((_, valid_to)) = scenario.rebuilding.filter(|(rebuilding, _)| *rebuilding == slot) {
        member.recovery = Some(Recovery { offset: Sector(valid_to.0), by_bitmap: false });
    }
    let superblock = Superblock::create(&NewSuperblock {
        metadata: scenario.metadata,
        uuid,
        name: "sim".to_owned(),
        ctime: Timestamp::from_secs(1_700_000_000),
        device_uuid: MdUuid(device_uuid),
        super_offset: place.superblock,
        data_offset: place.data_offset,
        data_size: place.data_size,
        bad_block_log: scenario.bad_block_log.then_some(BadBlockArea {
            offset: place.bad_blocks,
            size: Sectors(AREA),
            shift: 0,
        }),
        preferred_minor: 0,
        array: array_update(scenario, place, events),
        member,
    })
    .map_err(|e| format!("the scenario's superblock cannot be made: {e}"))?;
    put(disk, place.superblock.0, &superblock.encode())?;
    if let Some(chunk) = scenario.bitmap_chunk {
        let at = place.superblock.0.checked_add_signed(place.bitmap).ok_or("no room for the bitmap")?;
        put(disk, at, &bitmap(scenario, uuid, events, chunk))?;
    }
    if scenario.log.is_some() {
        let at = place.superblock.0.checked_add_signed(place.log).ok_or("no room for the log")?;
        put(disk, at, &ppl::empty(uuid, None))?;
    }
    Ok(())
}

/// The superblock of a disk that joins an array as a new device with this number, and where it stands on the disk.
pub(crate) fn joining(
    scenario: &Scenario,
    of_array: &Superblock,
    number: u32,
    rng: &mut Rng,
) -> Result<(Superblock, Sector), String> {
    let place = place(scenario, scenario.data_sizes[0]);
    let facts = of_array.array();
    let mut array = of_array.array_update();
    array.devices.resize(array.devices.len().max(number as usize + 1), None);
    array.devices[number as usize] = Some(DeviceState::new(Role::Spare));
    let device_uuid: [u8; 16] =
        [rng.next().to_le_bytes(), rng.next().to_le_bytes()].concat().try_into().expect("16 bytes");
    let superblock = Superblock::create(&NewSuperblock {
        metadata: scenario.metadata,
        uuid: facts.uuid,
        name: "sim".to_owned(),
        ctime: facts.ctime,
        device_uuid: MdUuid(device_uuid),
        super_offset: place.superblock,
        data_offset: place.data_offset,
        data_size: place.data_size,
        bad_block_log: None,
        preferred_minor: 0,
        array,
        member: MemberUpdate::new(number),
    });
    superblock.map(|sb| (sb, place.superblock)).map_err(|e| format!("a joining disk's superblock cannot be made: {e}"))
}

fn array_update(scenario: &Scenario, place: &Place, events: u64) -> ArrayUpdate {
    let device = |slot: u16| {
        let slot = Slot(slot);
        (!scenario.missing.contains(&slot)).then(|| {
            let mut state = DeviceState::new(Role::Slot(slot));
            state.in_sync = scenario.rebuilding.is_none_or(|(rebuilding, _)| rebuilding != slot);
            state
        })
    };
    let spares = (0..scenario.spares).map(|_| Some(DeviceState::new(Role::Spare)));
    let striped = scenario.level.is_redundant();
    ArrayUpdate {
        events,
        utime: Timestamp::from_secs(1_700_000_000),
        resync: ResyncMark::Clean { good_to: None },
        devices: (0..scenario.raid_disks).map(device).chain(spares).collect(),
        bitmap: scenario.bitmap_chunk.map(|_| place.bitmap),
        ppl: scenario.log.map(|size| PplArea { offset: place.log, size, multiple: false }),
        journal: false,
        reshape: None,
        geometry: StoredGeometry {
            level: scenario.level.number(),
            layout: scenario.layout,
            raid0_layout_known: scenario.raid0_layout_known(),
            size: if striped { scenario.size } else { Sectors::ZERO },
            chunk: scenario.chunk,
            raid_disks: u32::from(scenario.raid_disks),
        },
    }
}

/// A version 4 bitmap without a bit set, written out by hand: the format crate reads it, so it does not write it.
fn bitmap(scenario: &Scenario, uuid: MdUuid, events: u64, chunk: u32) -> Vec<u8> {
    let geometry = scenario.geometry().expect("checked when drawn");
    let covered = match &geometry {
        Geometry::Mirror(g) if !g.is_raid1() => g.array_sectors(),
        _ => scenario.size,
    };
    let uuid = if scenario.metadata == MetadataVersion::V0_90 { uuid.word_swapped() } else { uuid };
    let mut area = vec![0; (AREA * SECTOR as u64) as usize];
    let mut put = |at: usize, bytes: &[u8]| area[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &0x6d74_6962u32.to_le_bytes());
    put(4, &4u32.to_le_bytes());
    put(8, &uuid.0);
    put(24, &events.to_le_bytes());
    put(32, &events.to_le_bytes());
    put(40, &covered.0.to_le_bytes());
    put(52, &chunk.to_le_bytes());
    put(56, &5u32.to_le_bytes());
    area
}

fn put(disk: &mut Disk, sector: u64, bytes: &[u8]) -> Result<(), String> {
    disk.write(sector, bytes, Store::Durable).map_err(|_| format!("the scenario's metadata at {sector} does not fit"))
}

fn write_data(disks: &mut [Disk], places: &[Place], geometry: &Geometry, contents: &[WriteId]) -> Result<(), String> {
    let mut store = |slot: Slot, component: u64, block: &[u8]| {
        put(&mut disks[slot.index()], places[slot.index()].data_offset.0 + component, block)
    };
    let content = |s: u64| {
        let mut block = vec![0; SECTOR];
        fill(&mut block, s, contents[s as usize]);
        block
    };
    match geometry {
        Geometry::Parity(g) => return write_rows(g, &content, &mut store),
        Geometry::Mirror(g) => {
            for s in 0..g.array_sectors().0 {
                for n in 0..g.copies() {
                    let (slot, component) = g.copy(Sector(s), n);
                    store(slot, component.0, &content(s))?;
                }
            }
        }
        Geometry::Linear(g) => {
            for s in 0..g.array_sectors().0 {
                let e = g.map(Sector(s), Sectors(1));
                store(e.slot, e.component.0, &content(s))?;
            }
        }
        Geometry::Raid0(g) => {
            for s in 0..g.array_sectors().0 {
                let e = g.map(Sector(s), Sectors(1));
                store(e.slot, e.component.0, &content(s))?;
            }
        }
    }
    Ok(())
}

fn write_rows(g: &ParityGeometry, content: &dyn Fn(u64) -> Vec<u8>, store: &mut StoreAt<'_>) -> Result<(), String> {
    for number in 0..g.rows() {
        let row = g.row(number);
        let exponents: Vec<u8> = (0..g.data_disks()).map(|i| exponent(g, &row, row.data(i))).collect();
        for offset in (0..g.chunk().0).map(Sectors) {
            let component = g.component(number, offset).0;
            let data: Vec<Vec<u8>> = (0..g.data_disks()).map(|i| content(g.array(number, i, offset).0)).collect();
            for (i, block) in (0..).zip(&data) {
                store(row.data(i), component, block)?;
            }
            let (p, q) = parities(&data, &exponents);
            store(row.p(), component, &p)?;
            if let Some(slot) = row.q() {
                store(slot, component, &q)?;
            }
        }
    }
    Ok(())
}

fn spoil_rebuilding(
    disks: &mut [Disk],
    places: &[Place],
    scenario: &Scenario,
    geometry: &Geometry,
    rng: &mut Rng,
) -> Result<(), String> {
    let Some((slot, valid_to)) = scenario.rebuilding else { return Ok(()) };
    for component in valid_to.0..geometry.component_sectors().0 {
        let garbage: Vec<u8> = (0..SECTOR / 8).flat_map(|_| rng.next().to_le_bytes()).collect();
        put(&mut disks[slot.index()], places[slot.index()].data_offset.0 + component, &garbage)?;
    }
    Ok(())
}
