//! Any bytes at all are read without a panic, and any facts that can be stored come back as they were.

use proptest::collection::vec;
use proptest::prelude::*;
use raidus_format::bitmap::{BitArray, BitmapSuper, LoadContext, LoadedBitmap, NewBitmap};
use raidus_format::journal::{LogScan, MetaBlock, Payload};
use raidus_format::ppl::{self, PplEntry, PplHeader};
use raidus_format::{
    ArrayUpdate, BadBlockArea, DeviceState, Edit, Geometry, MdUuid, MemberUpdate, MetadataVersion, NewSuperblock,
    PplArea, ProbeRead, RawSuperblock, Recovery, Reshape, ResyncMark, Role, SUPERBLOCK_BYTES, SbError, Superblock,
    Timestamp, badblocks, journal, probe, probe_areas, v1,
};
use raidus_units::{Sector, Sectors, Slot};

const MAGIC: [u8; 4] = raidus_format::MD_MAGIC.to_le_bytes();

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![
        4 => (0..8_u16).prop_map(|slot| Role::Slot(Slot(slot))),
        1 => Just(Role::Spare),
        1 => Just(Role::Faulty),
        1 => Just(Role::Journal),
    ]
}

fn devices() -> impl Strategy<Value = Vec<Option<DeviceState>>> {
    let device = (role(), any::<bool>(), any::<bool>()).prop_map(|(role, write_mostly, failfast)| DeviceState {
        write_mostly,
        failfast,
        ..DeviceState::new(role)
    });
    vec(prop::option::weighted(0.8, device), 1..20)
}

prop_compose! {
    fn reshape()(
        position: u64, new_level: i32, new_layout: u32, new_chunk: u32, delta_disks in -4..4_i32, backwards: bool,
    ) -> Reshape {
        Reshape {
            position: Sector(position),
            new_level,
            new_layout,
            new_chunk: Sectors(new_chunk.into()),
            delta_disks,
            backwards: if delta_disks == 0 { backwards } else { delta_disks < 0 },
        }
    }
}

prop_compose! {
    fn array()(
        events: u64, secs in 0..1_u64 << 40, micros in 0..1_u32 << 24, resync: Option<u32>, devices in devices(),
        log in 0..4, offset in any::<i16>(), ppl_size: u16, reshape in prop::option::of(reshape()),
        level in prop::sample::select(&[-1, 0, 1, 4, 5, 6, 10][..]), layout: u32, size: u64, chunk: u32, raid_disks: u32,
        raid0_layout: bool,
    ) -> ArrayUpdate {
        let size_of_log = Sectors(ppl_size.into());
        ArrayUpdate {
            events,
            utime: Timestamp { secs, micros },
            resync: ResyncMark::Clean { good_to: resync.map(|p| Sector(p.into())) },
            devices,
            bitmap: (log == 1).then_some(offset.into()),
            ppl: (log == 2).then_some(PplArea { offset: offset.into(), size: size_of_log, multiple: layout & 1 == 0 }),
            journal: log == 3,
            reshape,
            geometry: Geometry {
                level,
                layout,
                raid0_layout_known: level == 0 && raid0_layout,
                size: Sectors(size),
                chunk: Sectors(chunk.into()),
                raid_disks,
            },
        }
    }
}

prop_compose! {
    fn new_v1()(
        metadata in prop::sample::select(&MetadataVersion::ALL[1..]), uuid: [u8; 16], device_uuid: [u8; 16],
        name in "[a-z]{0,12}:[a-z0-9]{0,19}", data_offset in 2048..1_u64 << 40, data_size in 10..1_u64 << 40,
        array in array(), own in any::<prop::sample::Index>(), recovered: u64, by_bitmap: bool, replacement: bool,
        has_bad_blocks: bool, corrected_reads: u32, new_offset in prop::option::of(0..1000_i64),
    ) -> NewSuperblock {
        let mut array = array;
        let dev_number = own.index(array.devices.len());
        let role = array.devices[dev_number].get_or_insert(DeviceState::new(Role::Spare)).role;
        let recovery = Recovery { offset: Sector(recovered), by_bitmap };
        NewSuperblock {
            metadata,
            uuid: MdUuid(uuid),
            name,
            ctime: Timestamp::from_secs(1),
            device_uuid: MdUuid(device_uuid),
            super_offset: metadata.superblock_at(Sectors(1 << 20)).unwrap(),
            data_offset: Sector(data_offset),
            data_size: Sectors(data_size),
            bad_block_log: Some(BadBlockArea { offset: 16, size: Sectors(8), shift: 0 }),
            preferred_minor: 0,
            array,
            member: MemberUpdate {
                dev_number: dev_number as u32,
                recovery: (role.slot().is_some() && recovered & 1 == 0).then_some(recovery),
                replacement,
                has_bad_blocks,
                corrected_reads,
                journal_tail: (role == Role::Journal).then_some(Sector(recovered)),
                new_offset,
            },
        }
    }
}

/// Bytes that are almost a superblock: the checks behind the magic number are reached.
fn near_superblock() -> impl Strategy<Value = Vec<u8>> {
    (vec(any::<u8>(), SUPERBLOCK_BYTES), 0..4_u8, any::<bool>()).prop_map(|(mut block, kind, big)| {
        block[..4].copy_from_slice(&MAGIC);
        block[4..8].copy_from_slice(&u32::from(kind == 1).to_le_bytes());
        if kind == 1 {
            block[222..224].fill(0);
        } else {
            block[8..12].copy_from_slice(&[90 + kind % 2, 0, 0, 0]);
        }
        if big {
            block[..12].chunks_exact_mut(4).for_each(<[u8]>::reverse);
        }
        block
    })
}

/// Every accessor there is.
fn look_at(sb: &RawSuperblock) {
    let (_, _, _, _) = (sb.array(), sb.member(), sb.roles(), sb.checksum());
    sb.concerns(Sectors(1000));
    if let Ok(mut sb) = sb.clone().check() {
        let (array, member) = (sb.array_update(), sb.member_update());
        let _ = sb.update(&array, &member);
        let _ = sb.edit(&Edit::DataArea { offset: Sector(0), size: Sectors(0) });
    }
}

/// A 0.90 table has one place per slot: were one of two devices dropped from it, the next write would change more than was asked.
#[test]
fn v090_has_no_place_for_two_devices_in_one_slot() {
    let devices =
        |slots: &[u16]| slots.iter().map(|s| Some(DeviceState::new(Role::Slot(Slot(*s))))).collect::<Vec<_>>();
    let new = v090(devices(&[0, 1, 2]), 3);
    let mut sb = Superblock::create(&new).unwrap();
    let before = sb.clone();
    for slots in [[0, 1, 1], [0, 0, 1]] {
        let update = ArrayUpdate { devices: devices(&slots), ..sb.array_update() };
        assert!(matches!(sb.update(&update, &new.member), Err(SbError::NotStorable { .. })), "{slots:?}");
        assert_eq!(sb, before, "refused, and left as it was");
    }
    // A device with a slot beyond the array would take the place of a spare.
    let mut update = sb.array_update();
    update.devices = devices(&[0, 1, 3]);
    update.devices.push(Some(DeviceState::new(Role::Spare)));
    assert!(matches!(sb.update(&update, &new.member), Err(SbError::NotStorable { .. })));
}

/// A new raid5 superblock of device 0.
fn v090(devices: Vec<Option<DeviceState>>, raid_disks: u32) -> NewSuperblock {
    NewSuperblock {
        metadata: MetadataVersion::V0_90,
        uuid: MdUuid([7; 16]),
        name: String::new(),
        ctime: Timestamp::from_secs(1),
        device_uuid: MdUuid::default(),
        super_offset: Sector(1 << 20),
        data_offset: Sector(0),
        data_size: Sectors(1 << 20),
        bad_block_log: None,
        preferred_minor: 3,
        array: ArrayUpdate {
            events: 1,
            utime: Timestamp::from_secs(1),
            resync: ResyncMark::Clean { good_to: None },
            devices,
            bitmap: Some(8),
            ppl: None,
            journal: false,
            reshape: None,
            geometry: Geometry {
                level: 5,
                layout: 2,
                raid0_layout_known: false,
                size: Sectors::from_kib(1 << 16),
                chunk: Sectors(128),
                raid_disks,
            },
        },
        member: MemberUpdate::new(0),
    }
}

proptest! {
    #[test]
    fn a_v1_superblock_says_what_was_written(new in new_v1()) {
        let sb = Superblock::create(&new).unwrap();
        let sb = Superblock::parse(&sb.encode(), new.metadata, new.super_offset).unwrap();
        let (facts, own) = (sb.array(), sb.member());
        prop_assert_eq!(facts.uuid, new.uuid);
        prop_assert_eq!(facts.name, new.name);
        prop_assert_eq!(own.device_uuid, Some(new.device_uuid));
        prop_assert_eq!((own.data_offset, own.data_size), (new.data_offset, new.data_size));
        prop_assert_eq!(own.bad_block_log, new.bad_block_log);
        prop_assert_eq!(sb.member_update(), new.member);
        let written = sb.array_update();
        for (i, device) in new.array.devices.iter().enumerate() {
            prop_assert_eq!(sb.role_of(i as u32), device.map_or(Role::Spare, |d| d.role));
        }
        prop_assert_eq!(ArrayUpdate { devices: vec![], ..written }, ArrayUpdate { devices: vec![], ..new.array });
    }

    #[test]
    fn a_v090_superblock_says_what_was_written(
        uuid: [u8; 16], events: u64, secs: u32, good_to in prop::option::of(0..u32::MAX), slots in 1..12_u16,
        lost in prop::collection::btree_set(1..12_u16, 0..3), size: u32, chunk in 0..1_u32 << 20, spares in 0..3_u16,
    ) {
        let slot = |s| (!lost.contains(&s)).then_some(DeviceState::new(Role::Slot(Slot(s))));
        let spare = Some(DeviceState { node: (8, 16), ..DeviceState::new(Role::Spare) });
        let devices: Vec<_> = (0..slots).map(slot).chain((0..spares).map(|_| spare)).collect();
        let events = events.max(1);
        let mut new = v090(devices.clone(), slots.into());
        new.uuid = MdUuid(uuid);
        new.array.events = events;
        new.array.utime = Timestamp::from_secs(secs.into());
        new.array.resync = ResyncMark::Clean { good_to: good_to.map(|p| Sector(p.into())) };
        new.array.geometry.size = Sectors::from_kib(size.into());
        new.array.geometry.chunk = Sectors(chunk.into());
        let sb = Superblock::create(&new).unwrap();
        let sb = Superblock::parse(&sb.encode(), new.metadata, new.super_offset).unwrap();
        prop_assert_eq!((sb.array().uuid, sb.array().preferred_minor), (new.uuid, Some(3)));
        prop_assert_eq!(sb.member_update(), new.member);
        let mut written = sb.array_update();
        written.devices.resize(devices.len(), None);
        prop_assert_eq!(written, new.array);
        // Read by a host of the other byte order.
        let mut swapped = sb.encode();
        swapped.chunks_exact_mut(4).for_each(<[u8]>::reverse);
        for pair in [39, 41, 44] {
            let (low, high) = (pair * 4, pair * 4 + 4);
            (low..high).for_each(|i| swapped.swap(i, i + 4));
        }
        let big = Superblock::parse(&swapped, new.metadata, new.super_offset).unwrap();
        prop_assert_eq!(big.array(), sb.array());
        prop_assert!(big.encode() == swapped);
    }

    #[test]
    fn superblocks_of_any_bytes(block in near_superblock(), at: u64) {
        for version in MetadataVersion::ALL {
            if let Ok(sb) = RawSuperblock::recognise(&block, version, Sector(at)) {
                prop_assert!(sb.encode() == block);
                look_at(&sb);
            }
        }
    }

    #[test]
    fn checked_superblocks_of_any_bytes(block in near_superblock(), max_dev in 0..=v1::MAX_DEV, raid_disks in 1..=27_u32) {
        // With the simple checks satisfied and the checksum made right, everything else may be anything.
        let mut block = block;
        block[..4].copy_from_slice(&MAGIC);
        block[4..16].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        block[128..136].copy_from_slice(&2048_u64.to_le_bytes());
        block[144..152].copy_from_slice(&8_u64.to_le_bytes());
        block[220..224].copy_from_slice(&max_dev.to_le_bytes());
        block[228..256].fill(0);
        let raw = RawSuperblock::recognise(&block, MetadataVersion::V1_2, Sector(8)).unwrap();
        block[216..220].copy_from_slice(&raw.checksum().computed.to_le_bytes());
        let raw = RawSuperblock::recognise(&block, MetadataVersion::V1_2, Sector(8)).unwrap();
        prop_assert!(matches!(raw.clone().check(), Ok(_) | Err(SbError::BadRole(_) | SbError::DataTooSmall(_))));
        look_at(&raw);

        block[4..12].copy_from_slice(&[0, 0, 0, 0, 90, 0, 0, 0]);
        block[40..44].copy_from_slice(&raid_disks.to_le_bytes());
        let raw = RawSuperblock::recognise(&block, MetadataVersion::V0_90, Sector(8)).unwrap();
        block[152..156].copy_from_slice(&raw.checksum().computed.to_le_bytes());
        let raw = RawSuperblock::recognise(&block, MetadataVersion::V0_90, Sector(8)).unwrap();
        prop_assert!(raw.clone().check().is_ok());
        look_at(&raw);
    }

    #[test]
    fn probing_any_bytes(device in 0..5000_u64, block in near_superblock()) {
        let areas = probe_areas(Sectors(device));
        prop_assert!(areas.iter().all(|(at, len)| at.0 + len.0 <= device && len.0 > 0));
        prop_assert!(areas.windows(2).all(|w| w[0].0 + w[0].1 < w[1].0));
        let reads: Vec<_> = areas.iter().map(|(at, _)| ProbeRead { at: *at, bytes: &block }).collect();
        for found in probe(Sectors(device), &reads).md {
            found.raw.iter().for_each(look_at);
        }
    }

    #[test]
    fn bitmaps_of_any_bytes(
        file in vec(any::<u8>(), 0..5000), version in 0..8_u8, shift in 0..32_u32, sync_size: u64, events: u64,
    ) {
        let mut file = file;
        if file.len() >= 256 {
            file[..4].copy_from_slice(b"bitm");
            file[4..8].copy_from_slice(&[version, 0, 0, 0]);
            file[52..56].copy_from_slice(&(1_u32 << shift).to_le_bytes());
            file[56..64].copy_from_slice(&[5, 0, 0, 0, 0, 0, 0, 0]);
        }
        let uuid = MdUuid(file.get(8..24).map_or([0; 16], |u| u.try_into().unwrap()));
        for sync_size in [sync_size, sync_size % 100_000] {
            let array =
                LoadContext { uuid, events, sync_size: Sectors(sync_size), resync: Some(Sector(0)), is_whole: true, host: None };
            if let Ok(loaded) = LoadedBitmap::load(&file, &array) {
                prop_assert_eq!(loaded.bits.iter_ones().count() as u64, loaded.bits.count_ones());
            }
        }
    }

    #[test]
    fn a_bitmap_says_what_was_written(
        ones in prop::collection::btree_set(0..50_000_u64, 0..40), chunk_shift in 12..20_u32, events: u64,
    ) {
        let new = NewBitmap {
            uuid: MdUuid([1; 16]),
            events,
            sync_size: Sectors(50_000 << (chunk_shift - 9)),
            chunk: 1 << chunk_shift,
            daemon_sleep: 5,
            write_behind: 256,
        };
        let superblock = BitmapSuper::create(&new).unwrap();
        let mut bits = BitArray::zeros(superblock.bits());
        prop_assert!(ones.iter().all(|i| bits.set(*i)));
        let file = bits.encode(&superblock);
        prop_assert_eq!(&BitmapSuper::parse(&file).unwrap(), &superblock);
        let read = BitArray::from_file(&file, superblock.bits()).unwrap();
        prop_assert!(read.iter_ones().eq(ones.iter().copied()));
        prop_assert!(ones.iter().all(|i| bits.clear(*i)));
        prop_assert_eq!(bits.count_ones(), 0);
    }

    #[test]
    fn bad_blocks_of_any_bytes(log in vec(any::<u8>(), 0..5000), shift: u8, device: u64) {
        if let Ok(ranges) = badblocks::parse(&log, shift, Sectors(device)) {
            let area = BadBlockArea { offset: 0, size: Sectors(8), shift };
            let _ = badblocks::encode(&ranges, &area);
        }
    }

    #[test]
    fn every_bad_sector_stays_in_the_log(ranges in vec((0..100_000_u64, 1..2000_u64), 0..60), shift in 0..4_u8) {
        let area = BadBlockArea { offset: 0, size: Sectors(8), shift };
        let ranges: Vec<_> =
            ranges.iter().map(|(s, l)| badblocks::BadRange { start: Sector(*s), len: Sectors(*l) }).collect();
        let log = badblocks::encode(&ranges, &area).unwrap();
        let read = badblocks::parse(&log, shift, Sectors(1 << 20)).unwrap();
        prop_assert!(read.windows(2).all(|w| w[0].start + w[0].len <= w[1].start));
        for range in &ranges {
            for sector in [range.start.0, range.start.0 + range.len.0 - 1].map(Sector) {
                prop_assert!(read.iter().any(|r| r.start <= sector && sector < r.start + r.len));
            }
        }
        let covered: u64 = read.iter().map(|r| r.len.0).sum();
        let widened = ranges.iter().map(|r| r.len.0 + (2 << shift)).sum::<u64>();
        prop_assert!(covered <= widened);
    }

    #[test]
    fn logs_of_any_bytes(block in vec(any::<u8>(), 0..9000), uuid: [u8; 16]) {
        let _ = PplHeader::parse(&block, MdUuid(uuid));
        let _ = ppl::newest(&block, MdUuid(uuid), true);
        let _ = MetaBlock::parse(&block, journal::seed(MdUuid(uuid)));
        let mut scan = LogScan::new(MdUuid(uuid), Sectors(block.len() as u64 / 512), Sector(0));
        for _ in 0..4 {
            if let Some((at, len)) = scan.wants() {
                scan.supply(&block[at.bytes() as usize..(at + len).bytes() as usize]);
            }
        }
        prop_assert!(scan.wants().is_none());
    }

    #[test]
    fn a_ppl_header_says_what_was_written(
        generation: u64, uuid: [u8; 16],
        entries in vec((any::<u64>(), any::<u32>(), any::<u32>(), any::<u16>(), any::<u32>()), 0..=ppl::ENTRIES_MAX),
    ) {
        let entry = |(sector, parity_bytes, data_bytes, slot, checksum)| PplEntry {
            data_sector: Sector(sector), parity_bytes, data_bytes, parity_slot: Slot(slot), checksum,
        };
        let header = PplHeader { generation, entries: entries.into_iter().map(entry).collect() };
        prop_assert_eq!(PplHeader::parse(&header.encode(MdUuid(uuid)), MdUuid(uuid)), Ok(header));
    }

    #[test]
    fn a_meta_block_says_what_was_written(
        seq: u64, position: u64, seed: u32,
        payloads in vec((0..3, any::<u64>(), vec(any::<u32>(), 1..=2)), 0..60),
    ) {
        let payload = |(kind, at, checksums): (i32, u64, Vec<u32>)| match kind {
            0 => Payload::Data { location: Sector(at), discard: at & 1 == 1, checksums },
            1 => Payload::Parity { location: Sector(at), checksums },
            _ => Payload::Flush { stripes: checksums.into_iter().map(|s| Sector(s.into())).collect() },
        };
        let payloads = payloads.into_iter().map(payload).collect();
        let meta = MetaBlock { seq, position: Sectors(position), payloads };
        prop_assert_eq!(MetaBlock::parse(&meta.encode(seed).unwrap(), seed), Ok(meta));
    }
}
