//! What the options alone, or a device alone, make impossible.

use raidus_format::MetadataVersion;
use raidus_layout::Geometry;
use raidus_units::{Level, Sectors, Slot};

use super::params::{BitmapWish, CreateDevice, CreateError, CreateParams, NewMember, Policy};
use super::place::Placement;

const NAME_MAX: usize = 32;
const DEVICES_MAX_V090: usize = 27;
const CHUNK_MIN: Sectors = Sectors::from_kib(4);
/// The most members of an array with a partial parity log.
const PPL_SLOTS_MAX: u16 = 64;

/// First sector after a superblock and the room in front of it.
const SUPERBLOCK: Sectors = Sectors(8);

/// Everything that does not depend on sizes.
pub(super) fn check(p: &CreateParams) -> Result<(), CreateError> {
    counts(p)?;
    for (i, device) in p.devices.iter().enumerate() {
        let CreateDevice::Present(device) = device else { continue };
        let again = |d: &CreateDevice| matches!(d, CreateDevice::Present(other) if other.name == device.name);
        if p.devices[i + 1..].iter().any(again) {
            return Err(CreateError::SameDevice(device.name.clone()));
        }
    }
    chunk_and_layout(p)?;
    bitmap_options(p)?;
    metadata(p)
}

fn counts(p: &CreateParams) -> Result<(), CreateError> {
    let (level, got) = (p.level, p.raid_disks);
    let min = match level {
        Level::Raid6 => 4,
        Level::Raid4 | Level::Raid5 | Level::Raid10 => 2,
        Level::Linear | Level::Raid0 | Level::Raid1 => 1,
    };
    if got < min {
        return Err(CreateError::TooFewDevices { level, min, got });
    }
    if got == 1 && !p.force {
        return Err(CreateError::SingleDevice);
    }
    if p.spares > 0 && !level.is_redundant() {
        return Err(CreateError::NoSpares(level));
    }
    let (raid_disks, spares) = (p.raid_disks, p.spares);
    let wanted = usize::from(raid_disks) + usize::from(spares);
    match p.devices.len() {
        n if n < wanted => Err(CreateError::DevicesMissing { raid_disks, spares, got: n }),
        n if n > wanted => Err(CreateError::DevicesTooMany { raid_disks, spares, got: n }),
        _ if p.devices[usize::from(raid_disks)..].iter().any(|d| matches!(d, CreateDevice::Missing)) => {
            Err(CreateError::MissingSpare)
        }
        _ => Ok(()),
    }
}

/// Whether the slots left empty can be done without.
pub(super) fn missing(p: &CreateParams, geometry: &Geometry) -> Result<(), CreateError> {
    let there = |slot: Slot| matches!(p.devices.get(slot.index()), Some(CreateDevice::Present(_)));
    let missing = (0..p.raid_disks).filter(|s| !there(Slot(*s))).count();
    if geometry.enough(&there) { Ok(()) } else { Err(CreateError::MissingTooMany { level: p.level, missing }) }
}

fn chunk_and_layout(p: &CreateParams) -> Result<(), CreateError> {
    let level = p.level;
    if matches!(level, Level::Linear | Level::Raid1 | Level::Raid4) && p.layout.is_some_and(|l| l != 0) {
        return Err(CreateError::NotForLevel { option: "--layout", level });
    }
    let chunk = p.chunk.unwrap_or(CHUNK_MIN);
    if level == Level::Raid1 && p.chunk.is_some() {
        return Err(CreateError::NotForLevel { option: "--chunk", level });
    }
    let needs_power = level != Level::Raid0 || p.metadata == MetadataVersion::V0_90;
    let rule = if needs_power { "a power of two of at least 4 KiB" } else { "a multiple of 4 KiB" };
    let fits = if needs_power { chunk.0.is_power_of_two() } else { chunk.0.is_multiple_of(CHUNK_MIN.0) };
    if !fits || chunk < CHUNK_MIN {
        return Err(CreateError::Chunk { level, chunk: chunk.kib(), rule });
    }
    Ok(())
}

fn bitmap_options(p: &CreateParams) -> Result<(), CreateError> {
    let level = p.level;
    let wanted = matches!(p.bitmap, BitmapWish::Internal { .. });
    if !level.is_redundant() {
        let option = match () {
            _ if wanted => "--bitmap",
            _ if p.policy.is_some() => "--consistency-policy",
            _ if p.write_behind.is_some() => "--write-behind",
            _ if p.size.is_some() => "--size",
            _ => return Ok(()),
        };
        return Err(CreateError::NotForLevel { option, level });
    }
    if p.write_behind.is_some() && level != Level::Raid1 {
        return Err(CreateError::NotForLevel { option: "--write-behind", level });
    }
    if p.policy == Some(Policy::Ppl) {
        return partial_parity(p);
    }
    match (p.bitmap, p.policy) {
        (BitmapWish::Internal { .. }, Some(Policy::Resync)) => Err(CreateError::Contradiction(
            "--consistency-policy=resync and --bitmap=internal exclude each other; leave one out",
        )),
        (BitmapWish::None, Some(Policy::Bitmap)) => Err(CreateError::Contradiction(
            "--consistency-policy=bitmap and --bitmap=none exclude each other; leave one out",
        )),
        (BitmapWish::None, _) if p.write_behind.is_some() => {
            Err(CreateError::Contradiction("--write-behind needs a bitmap; leave --bitmap=none out"))
        }
        _ => Ok(()),
    }
}

/// What a partial parity log asks for.
fn partial_parity(p: &CreateParams) -> Result<(), CreateError> {
    if p.level != Level::Raid5 {
        return Err(CreateError::NotForLevel { option: "--consistency-policy=ppl", level: p.level });
    }
    if !p.metadata.is_v1() {
        return Err(CreateError::NotForMetadata { metadata: p.metadata, what: "a partial parity log" });
    }
    if matches!(p.bitmap, BitmapWish::Internal { .. }) {
        return Err(CreateError::Contradiction(
            "--consistency-policy=ppl and --bitmap=internal exclude each other; leave one out",
        ));
    }
    if p.raid_disks > PPL_SLOTS_MAX {
        return Err(CreateError::Contradiction("Linux md keeps partial parity logs for 64 members at most"));
    }
    Ok(())
}

fn metadata(p: &CreateParams) -> Result<(), CreateError> {
    let metadata = p.metadata;
    if p.name.as_ref().is_some_and(|n| n.len() > NAME_MAX) {
        return Err(CreateError::NameTooLong(p.name.clone().unwrap_or_default()));
    }
    let (max, got) = match metadata {
        MetadataVersion::V0_90 => (DEVICES_MAX_V090, p.devices.len()),
        _ => (usize::from(raidus_layout::SLOTS_MAX), p.devices.len() + 1),
    };
    if got > max {
        return Err(CreateError::DevicesBeyondMetadata { metadata, max, got });
    }
    if metadata != MetadataVersion::V0_90 {
        return Ok(());
    }
    let what = match () {
        // It has no field for the layout that raid0 needs since there are two.
        _ if p.level == Level::Raid0 => "level raid0",
        _ if p.name.is_some() => "a name",
        _ if has_data_offset(p) => "a data offset",
        _ => return Ok(()),
    };
    Err(CreateError::NotForMetadata { metadata, what })
}

fn has_data_offset(p: &CreateParams) -> bool {
    let own = |d: &CreateDevice| matches!(d, CreateDevice::Present(m) if m.data_offset.is_some());
    p.data_offset.is_some() || p.devices.iter().any(own)
}

/// Whether the superblock fits before the data (1.1, 1.2).
pub(super) fn data_offset(
    metadata: MetadataVersion,
    device: &NewMember,
    data_offset: Sectors,
) -> Result<(), CreateError> {
    let min = match metadata {
        MetadataVersion::V0_90 | MetadataVersion::V1_0 => Sectors::ZERO,
        MetadataVersion::V1_1 => SUPERBLOCK,
        MetadataVersion::V1_2 => Sectors(8) + SUPERBLOCK,
    };
    if data_offset >= min {
        return Ok(());
    }
    Err(CreateError::DataOffsetTooSmall { device: device.name.clone(), given: data_offset.kib(), min: min.kib() })
}

/// Whether the bitmap fits between the superblock and the data.
pub(super) fn bitmap_room(
    device: &NewMember,
    at: &Placement,
    bitmap: Option<(i64, Sectors)>,
) -> Result<(), CreateError> {
    let Some((offset, sectors)) = bitmap else { return Ok(()) };
    if offset < 0 {
        let start = at.super_offset.0.checked_add_signed(offset);
        let data_end = at.data_offset.0 + at.data_size.0;
        return if start.is_some_and(|s| s >= data_end) { Ok(()) } else { Err(CreateError::NoRoomForBitmap) };
    }
    let end = at.super_offset.0.saturating_add_signed(offset).saturating_add(sectors.0);
    if at.data_offset.0 == 0 || end <= at.data_offset.0 {
        return Ok(());
    }
    let (given, min) = (at.data_offset.from_start().kib(), Sectors(end).kib());
    Err(CreateError::DataOffsetTooSmall { device: device.name.clone(), given, min })
}

/// A device without room for its metadata.
pub(super) fn too_small(device: &NewMember, chunk: Sectors) -> CreateError {
    CreateError::DeviceTooSmall { device: device.name.clone(), usable: 0, needed: chunk.kib().max(64) }
}
