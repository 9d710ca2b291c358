//! Writing 0.90 superblocks: md's rules for each field.

use super::*;
use crate::{ArrayUpdate, Edit, Geometry, MemberUpdate, NewSuperblock};

const VERSION: MetadataVersion = MetadataVersion::V0_90;

/// One superblock round.
pub(crate) fn update(sb: &mut Raw, array: &ArrayUpdate, member: &MemberUpdate) -> Result<(), SbError> {
    refuse_unstorable(array, member)?;
    // On a copy, so that an error leaves the superblock as it was.
    let mut next = sb.clone();
    write_geometry(&mut next.words, &array.geometry)?;
    write_state(&mut next, array);
    write_reshape(&mut next, array.reshape.as_ref())?;
    write_devices(&mut next, &array.devices, member.dev_number)?;
    next.words[CHECKSUM] = next.checksum().computed;
    *sb = next;
    Ok(())
}

/// A member's first superblock, little-endian.
pub(crate) fn create(new: &NewSuperblock) -> Result<Raw, SbError> {
    if new.data_offset != Sector::ZERO {
        return Err(not_storable("a data offset"));
    }
    if new.bad_block_log.is_some() {
        return Err(not_storable("a bad-block log"));
    }
    let mut words = Words::zeroed();
    words[MAGIC] = MD_MAGIC;
    words[MINOR] = 90;
    write_uuid(&mut words, new.uuid);
    words[CTIME] = seconds(new.ctime);
    words[PREFERRED_MINOR] = new.preferred_minor;
    let mut sb = Raw { at: new.super_offset, order: ByteOrder::Little, words };
    update(&mut sb, &new.array, &new.member)?;
    sb.check()?;
    Ok(sb)
}

/// One change outside a round.
pub(crate) fn edit(sb: &mut Raw, edit: &Edit) -> Result<(), SbError> {
    match edit {
        Edit::Uuid(uuid) => write_uuid(&mut sb.words, *uuid),
        Edit::PreferredMinor(minor) => sb.words[PREFERRED_MINOR] = *minor,
        Edit::Name(_) => return Err(not_storable("a name")),
        Edit::DeviceUuid(_) => return Err(not_storable("an identity of the member")),
        Edit::BadBlockLog(_) => return Err(not_storable("a bad-block log")),
        Edit::DataArea { .. } => return Err(not_storable("a data area")),
    }
    sb.words[CHECKSUM] = sb.checksum().computed;
    Ok(())
}

fn write_uuid(words: &mut Words, uuid: MdUuid) {
    [words[UUID_FIRST], words[UUID_REST], words[UUID_REST + 1], words[UUID_REST + 2]] = uuid.words();
}

fn refuse_unstorable(array: &ArrayUpdate, member: &MemberUpdate) -> Result<(), SbError> {
    let what = match array {
        _ if array.ppl.is_some() => "a partial parity log",
        _ if array.journal => "a journal",
        _ if array.bitmap.is_some_and(|offset| offset != BITMAP_OFFSET) => "this bitmap place",
        _ if array.reshape.is_some_and(|r| r.delta_disks == 0 && r.backwards) => "a backwards reshape of equal size",
        _ if member.replacement => "a replacement",
        _ if member.has_bad_blocks => "bad blocks",
        _ if member.new_offset.is_some() => "a change of data offset",
        _ => return Ok(()),
    };
    Err(not_storable(what))
}

fn write_geometry(words: &mut Words, geometry: &Geometry) -> Result<(), SbError> {
    words[LEVEL] = geometry.level.cast_unsigned();
    words[LAYOUT] = geometry.layout;
    words[SIZE] = u32::try_from(geometry.size.kib()).map_err(|_| not_storable("members this large"))?;
    words[CHUNK] = chunk_bytes(geometry.chunk)?;
    words[RAID_DISKS] = geometry.raid_disks;
    Ok(())
}

fn write_state(sb: &mut Raw, array: &ArrayUpdate) {
    let words = &mut sb.words;
    words.set_u64(EVENTS, array.events, sb.order);
    words[UTIME] = seconds(array.utime);
    words[STATE] = if array.bitmap.is_some() { STATE_BITMAP } else { 0 };
    let (checkpoint, cp_events) = match array.resync {
        ResyncMark::Clean { good_to: None } => {
            words[STATE] |= STATE_CLEAN;
            (u32::MAX, array.events)
        }
        // A checkpoint past what the word holds: an earlier one is as true.
        ResyncMark::Clean { good_to: Some(p) } => {
            (u32::try_from(p.0).unwrap_or(u32::MAX).min(u32::MAX - 1), array.events)
        }
        ResyncMark::Dirty | ResyncMark::DirtyJournalled => (0, 0),
    };
    words[RECOVERY_CP] = checkpoint;
    words.set_u64(CP_EVENTS, cp_events, sb.order);
}

fn write_reshape(sb: &mut Raw, reshape: Option<&Reshape>) -> Result<(), SbError> {
    let words = &mut sb.words;
    let Some(reshape) = reshape else {
        words[MINOR] = 90;
        for i in RESHAPE_POSITION..=NEW_CHUNK {
            words[i] = 0;
        }
        return Ok(());
    };
    words[MINOR] = MINOR_RESHAPING;
    words.set_u64(RESHAPE_POSITION, reshape.position.0, sb.order);
    words[NEW_LEVEL] = reshape.new_level.cast_unsigned();
    words[DELTA_DISKS] = reshape.delta_disks.cast_unsigned();
    words[NEW_LAYOUT] = reshape.new_layout;
    words[NEW_CHUNK] = chunk_bytes(reshape.new_chunk)?;
    Ok(())
}

/// Renumbers all devices, as md does at each write: a device that is active gets the number of its slot, all others
/// the numbers behind the slots, in their order.
fn write_devices(sb: &mut Raw, devices: &[Option<DeviceState>], this: u32) -> Result<(), SbError> {
    let raid_disks = sb.words[RAID_DISKS];
    let reshaping = sb.words[MINOR] == MINOR_RESHAPING;
    let mut table = [Descriptor::default(); DEVICES_MAX as usize];
    // md marks the first descriptor like this beforehand, so that slot 0 without device never counts as failed.
    table[0].state = DISK_REMOVED;
    let mut filled = [false; DEVICES_MAX as usize];
    let mut counts = Counts { total: 0, active: 0, working: 0, failed: 0, spare: 0 };
    let mut next_other = raid_disks;
    let mut own = None;
    for (index, device) in devices.iter().enumerate() {
        let Some(device) = device else { continue };
        // Reshaping members count as active: how far they are is the reshape position.
        let slot = device.role.slot().filter(|_| device.in_sync || reshaping);
        let number = slot.map_or(next_other, |slot| slot.0.into());
        next_other += u32::from(slot.is_none());
        let disk = describe(device, number, slot.is_some());
        counts.total += 1;
        counts.active += u32::from(slot.is_some());
        counts.working += u32::from(device.role != Role::Faulty);
        counts.spare += u32::from(device.role != Role::Faulty && slot.is_none());
        *table.get_mut(number as usize).ok_or(SbError::MaxDev { found: number, max: DEVICES_MAX })? = disk;
        // A device's number is its slot here: one of the two would vanish from the table.
        if core::mem::replace(&mut filled[number as usize], true) {
            return Err(not_storable("two devices in one slot"));
        }
        if index == this as usize {
            own = Some(disk);
        }
    }
    for (number, disk) in (0..raid_disks).zip(&mut table) {
        if *disk == Descriptor::default() {
            *disk = Descriptor { number, raid_disk: number, state: DISK_REMOVED | DISK_FAULTY, ..*disk };
            counts.failed += 1;
        }
    }
    let own = own.ok_or(not_storable("a device that is not in its own device table"))?;
    write_table(&mut sb.words, &table, own, counts);
    Ok(())
}

fn describe(device: &DeviceState, number: u32, active: bool) -> Descriptor {
    let state = match device.role {
        Role::Faulty => DISK_FAULTY,
        _ if active && device.in_sync => DISK_ACTIVE | DISK_SYNC,
        _ if active => DISK_ACTIVE,
        _ => 0,
    };
    let write_mostly = if device.write_mostly { DISK_WRITE_MOSTLY } else { 0 };
    let failfast = if device.failfast { DISK_FAILFAST } else { 0 };
    let (major, minor) = device.node;
    Descriptor { number, major, minor, raid_disk: number, state: state | write_mostly | failfast }
}

fn write_table(words: &mut Words, table: &[Descriptor], own: Descriptor, counts: Counts) {
    for (i, disk) in table.iter().enumerate() {
        disk.write(words, DISKS + DESCRIPTOR * i);
    }
    own.write(words, THIS_DISK);
    words[NR_DISKS] = counts.total;
    for (i, count) in [counts.active, counts.working, counts.failed, counts.spare].into_iter().enumerate() {
        words[ACTIVE + i] = count;
    }
}

fn chunk_bytes(chunk: Sectors) -> Result<u32, SbError> {
    let bytes = chunk.0.checked_mul(raidus_units::SECTOR_BYTES).and_then(|bytes| u32::try_from(bytes).ok());
    bytes.ok_or(not_storable("this chunk size"))
}

fn seconds(time: Timestamp) -> u32 {
    u32::try_from(time.secs).unwrap_or(u32::MAX)
}

const fn not_storable(what: &'static str) -> SbError {
    SbError::NotStorable { version: VERSION, what }
}
