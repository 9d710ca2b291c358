//! Writing 1.x superblocks: md's rules for each field.

use super::*;
use crate::{ArrayUpdate, DeviceState, Edit, MemberUpdate, NewSuperblock, ResyncMark};
use zerocopy::FromZeros;

/// mdadm fills the device table up to the next multiple of this.
const TABLE_ROUNDING: usize = 512;

/// One superblock round.
pub(crate) fn update(sb: &mut Raw, array: &ArrayUpdate, member: &MemberUpdate) -> Result<(), SbError> {
    // On a copy, so that an error leaves the superblock as it was.
    let mut next = sb.clone();
    write_array(&mut next, array)?;
    write_member(&mut next, array, member)?;
    write_roles(&mut next, &array.devices)?;
    next.seal();
    *sb = next;
    Ok(())
}

/// A member's first superblock.
pub(crate) fn create(new: &NewSuperblock) -> Result<Raw, SbError> {
    let not_storable = |what| SbError::NotStorable { version: new.metadata, what };
    let mut header = Header::new_zeroed();
    header.magic.set(MD_MAGIC);
    header.major_version.set(1);
    header.set_uuid = new.uuid.0;
    header.set_name = name_field(&new.name).ok_or(not_storable("a name longer than 32 bytes"))?;
    header.ctime.set(new.ctime.packed());
    header.device_uuid = new.device_uuid.0;
    header.super_offset.set(new.super_offset.0);
    header.data_offset.set(new.data_offset.0);
    header.data_size.set(new.data_size.0);
    write_bad_block_log(&mut header, new.bad_block_log).map_err(not_storable)?;
    let table = (HEADER_BYTES + 2 * new.array.devices.len()).next_multiple_of(TABLE_ROUNDING) - HEADER_BYTES;
    if table > 2 * MAX_DEV as usize {
        return Err(too_many_devices(new.array.devices.len()));
    }
    header.max_dev.set((table / 2) as u32);
    let roles = vec![ROLE_SPARE; table / 2];
    let tail = vec![0; SUPERBLOCK_BYTES - HEADER_BYTES - table];
    let mut sb = Raw { version: new.metadata, at: new.super_offset, header, roles, tail };
    update(&mut sb, &new.array, &new.member)?;
    sb.check()?;
    Ok(sb)
}

/// One change outside a round.
pub(crate) fn edit(sb: &mut Raw, edit: &Edit) -> Result<(), SbError> {
    let version = sb.version;
    let not_storable = |what| SbError::NotStorable { version, what };
    let h = &mut sb.header;
    match edit {
        Edit::Name(name) => h.set_name = name_field(name).ok_or(not_storable("a name longer than 32 bytes"))?,
        Edit::Uuid(uuid) => h.set_uuid = uuid.0,
        Edit::DeviceUuid(uuid) => h.device_uuid = uuid.0,
        Edit::BadBlockLog(log) => write_bad_block_log(h, *log).map_err(not_storable)?,
        Edit::DataArea { offset, size } => {
            h.data_offset.set(offset.0);
            h.data_size.set(size.0);
        }
        Edit::PreferredMinor(_) => return Err(not_storable("a preferred minor number")),
    }
    sb.seal();
    Ok(())
}

/// NUL-padded.
fn name_field(name: &str) -> Option<[u8; 32]> {
    let mut field = [0; 32];
    field.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    Some(field)
}

/// Without a log there can be no entries.
fn write_bad_block_log(h: &mut Header, log: Option<BadBlockArea>) -> Result<(), &'static str> {
    if log.is_none() {
        h.feature_map &= !BAD_BLOCKS;
    }
    let log = log.unwrap_or(BadBlockArea { offset: 0, size: Sectors::ZERO, shift: 0 });
    h.bad_block_offset.set(i32::try_from(log.offset).map_err(|_| "this bad-block log place")?);
    h.bad_block_size.set(u16::try_from(log.size.0).map_err(|_| "this bad-block log size")?);
    h.bad_block_shift = log.shift;
    Ok(())
}

impl Raw {
    /// Puts the right checksum in.
    pub(crate) fn seal(&mut self) {
        let right = self.checksum().computed;
        self.header.checksum.set(right);
    }
}

fn write_array(sb: &mut Raw, array: &ArrayUpdate) -> Result<(), SbError> {
    let not_storable = |what| SbError::NotStorable { version: sb.version, what };
    let h = &mut sb.header;
    let clustered = h.feature_map.get() & CLUSTERED;
    h.feature_map.set(clustered);
    let g = &array.geometry;
    h.level.set(g.level);
    h.layout.set(g.layout);
    h.size.set(g.size.0);
    h.chunk.set(u32::try_from(g.chunk.0).map_err(|_| not_storable("this chunk size"))?);
    h.raid_disks.set(g.raid_disks);
    if g.level == 0 && g.raid0_layout_known {
        h.feature_map |= RAID0_LAYOUT;
    }
    h.events.set(array.events);
    h.utime.set(array.utime.packed());
    h.resync_offset.set(match array.resync {
        ResyncMark::Clean { good_to } => good_to.unwrap_or(Sector::MAX).0,
        ResyncMark::Dirty => 0,
        ResyncMark::DirtyJournalled => NO_POSITION,
    });
    if array.journal {
        h.feature_map |= JOURNAL;
    }
    if let Some(offset) = array.bitmap {
        h.feature_map |= BITMAP;
        let offset = i32::try_from(offset).map_err(|_| not_storable("this bitmap place"))?;
        h.bitmap_or_ppl = offset.to_le_bytes();
    }
    if let Some(ppl) = array.ppl {
        h.feature_map |= if ppl.multiple { MULTIPLE_PPLS } else { PPL };
        let offset = i16::try_from(ppl.offset).map_err(|_| not_storable("this PPL place"))?;
        let size = u16::try_from(ppl.size.0).map_err(|_| not_storable("this PPL size"))?;
        h.bitmap_or_ppl[..2].copy_from_slice(&offset.to_le_bytes());
        h.bitmap_or_ppl[2..].copy_from_slice(&size.to_le_bytes());
    }
    if let Some(reshape) = array.reshape {
        h.feature_map |= RESHAPE;
        if reshape.delta_disks == 0 && reshape.backwards {
            h.feature_map |= RESHAPE_BACKWARDS;
        }
        h.reshape_position.set(reshape.position.0);
        h.new_level.set(reshape.new_level);
        h.new_layout.set(reshape.new_layout);
        h.new_chunk.set(u32::try_from(reshape.new_chunk.0).map_err(|_| not_storable("this chunk size"))?);
        h.delta_disks.set(reshape.delta_disks);
    }
    Ok(())
}

fn write_member(sb: &mut Raw, array: &ArrayUpdate, member: &MemberUpdate) -> Result<(), SbError> {
    let version = sb.version;
    let h = &mut sb.header;
    let own = array.devices.get(member.dev_number as usize).copied().flatten();
    let own = own.ok_or(SbError::NotStorable { version, what: "a device that is not in its own device table" })?;
    h.dev_number.set(member.dev_number);
    h.dev_flags &= !(WRITE_MOSTLY | FAILFAST);
    h.dev_flags |= if own.write_mostly { WRITE_MOSTLY } else { 0 } | if own.failfast { FAILFAST } else { 0 };
    h.corrected_reads.set(member.corrected_reads);
    h.recovery_offset.set(0);
    if let Some(recovery) = member.recovery {
        h.feature_map |= RECOVERY_OFFSET | if recovery.by_bitmap { RECOVERY_BITMAP } else { 0 };
        h.recovery_offset.set(recovery.offset.0);
    }
    if let Some(tail) = member.journal_tail {
        h.recovery_offset.set(tail.0);
    }
    if member.replacement {
        h.feature_map |= REPLACEMENT;
    }
    if member.has_bad_blocks {
        h.feature_map |= BAD_BLOCKS;
    }
    if let Some(offset) = member.new_offset {
        h.feature_map |= NEW_OFFSET;
        let what = "this change of data offset";
        h.new_offset.set(i32::try_from(offset).map_err(|_| SbError::NotStorable { version, what })?);
    }
    Ok(())
}

fn write_roles(sb: &mut Raw, devices: &[Option<DeviceState>]) -> Result<(), SbError> {
    if devices.len() > MAX_DEV as usize {
        return Err(too_many_devices(devices.len()));
    }
    // The table only ever grows; what it grows over was past the checksummed part.
    if devices.len() > sb.roles.len() {
        let more = 2 * (devices.len() - sb.roles.len());
        sb.tail.drain(..more.min(sb.tail.len()));
        sb.header.max_dev.set(devices.len() as u32);
        sb.roles.resize(devices.len(), ROLE_SPARE);
    }
    sb.roles.fill(ROLE_SPARE);
    for (value, device) in sb.roles.iter_mut().zip(devices) {
        let Some(device) = device else { continue };
        *value = match device.role {
            Role::Slot(slot) if slot.0 <= SLOT_MAX => slot.0,
            Role::Slot(_) => return Err(SbError::NotStorable { version: sb.version, what: "a slot above 65279" }),
            Role::Spare => ROLE_SPARE,
            Role::Faulty => ROLE_FAULTY,
            Role::Journal => ROLE_JOURNAL,
        };
    }
    Ok(())
}

fn too_many_devices(found: usize) -> SbError {
    SbError::MaxDev { found: u32::try_from(found).unwrap_or(u32::MAX), max: MAX_DEV }
}
