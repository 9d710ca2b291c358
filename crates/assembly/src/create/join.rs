//! Planning a device that joins an array as a new spare: the member that mdadm --add would make of it.

use raidus_format::{
    BadBlockArea, DeviceState, MemberUpdate, MetadataVersion, NewSuperblock, Role, SUPERBLOCK_BYTES, SbError,
    Superblock, bitmap, ppl, v1, v090,
};
use raidus_layout::Geometry;
use raidus_units::{Sector, Sectors};

use super::params::{NewMember, PlannedWrite, Written};
use super::place::{self, BAD_BLOCK_LOG, Placement};
use super::{BitmapPlan, check};

/// A device, and the array it is to join.
#[derive(Clone, Copy, Debug)]
pub struct JoinParams<'a> {
    /// Superblock of a member in use; what it says about the array holds for the new one, too.
    pub like: &'a Superblock,
    /// The array's shape.
    pub geometry: &'a Geometry,
    /// Bytes per bit, if the array has an internal bitmap.
    pub bitmap_chunk: Option<u64>,
    /// Device numbers in use.
    pub taken: &'a [u32],
    /// The device.
    pub device: &'a NewMember,
}

/// What makes a device a spare.
#[derive(Clone, Debug)]
pub struct JoinPlan {
    /// Its superblock, which comes last, with the next round of the running array.
    pub superblock: Superblock,
    /// To be written before, in this order.
    pub writes: Vec<PlannedWrite>,
}

/// Why a device cannot join.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// It has no room for what the members hold.
    #[error(
        "{device} is too small: the array uses {needed} KiB of each member, and {usable} KiB are left beside the metadata"
    )]
    TooSmall {
        /// The device.
        device: String,
        /// KiB usable.
        usable: u64,
        /// KiB needed.
        needed: u64,
    },
    /// All device numbers are in use.
    #[error("the array has as many devices as metadata {metadata} can list; remove failed ones or spares first")]
    Full {
        /// The format.
        metadata: MetadataVersion,
    },
    /// The bitmap cannot be made.
    #[error(transparent)]
    Bitmap(#[from] bitmap::BitmapError),
    /// The superblock cannot be made.
    #[error("{device}: {source}")]
    Superblock {
        /// The device.
        device: String,
        /// Why.
        source: SbError,
    },
}

/// Plans it. The device's data begins where that of `like` does, or where it would on a new array if there is no room for that.
///
/// # Errors
/// If the device cannot hold what a member holds.
pub fn join(params: &JoinParams<'_>) -> Result<JoinPlan, JoinError> {
    let array = params.like.array();
    let number = free_number(params).ok_or(JoinError::Full { metadata: array.metadata })?;
    let bitmap = bitmap(params)?;
    let at = place(params, bitmap.as_ref())?;
    let device = params.device;
    let mut update = params.like.array_update();
    let index = number as usize;
    update.devices.resize(update.devices.len().max(index + 1), None);
    update.devices[index] = Some(DeviceState {
        write_mostly: device.write_mostly,
        failfast: device.failfast,
        ..DeviceState::new(Role::Spare)
    });
    let log = array.ppl.map(|log| (log.offset, ppl::empty(array.uuid, None)));
    let superblock = Superblock::create(&NewSuperblock {
        metadata: array.metadata,
        uuid: array.uuid,
        name: array.name,
        ctime: array.ctime,
        device_uuid: device.uuid,
        super_offset: at.super_offset,
        data_offset: at.data_offset,
        data_size: at.data_size,
        bad_block_log: at.bad_block_log.map(|offset| BadBlockArea { offset, size: Sectors(BAD_BLOCK_LOG), shift: 0 }),
        preferred_minor: array.preferred_minor.unwrap_or(0),
        array: update,
        member: MemberUpdate::new(number),
    })
    .map_err(|source| JoinError::Superblock { device: device.name.clone(), source })?;
    Ok(JoinPlan { superblock, writes: writes(device, &at, bitmap.as_ref(), log) })
}

/// mdadm gives the first number that is free and no slot's.
fn free_number(params: &JoinParams<'_>) -> Option<u32> {
    let array = params.like.array();
    let end = if array.metadata.is_v1() { v1::MAX_DEV } else { v090::DEVICES_MAX };
    let free = |number: &u32| !params.taken.contains(number);
    (array.raid_disks..end).find(free).or_else(|| (0..array.raid_disks.min(end)).find(free))
}

fn bitmap(params: &JoinParams<'_>) -> Result<Option<BitmapPlan>, JoinError> {
    let array = params.like.array();
    let (Some(offset), Some(chunk)) = (array.bitmap, params.bitmap_chunk) else { return Ok(None) };
    let covered = crate::bitmap::covers(params.geometry);
    let uuid = bitmap::uuid_in_bitmap(array.metadata, params.like.host_order(), array.uuid);
    let bytes = crate::bitmap::new_area(&crate::bitmap::new_bitmap(uuid, covered, chunk, 0))?;
    Ok(Some(BitmapPlan { chunk, offset, sectors: bitmap::area(bitmap::bits(covered, chunk)), bytes }))
}

fn place(params: &JoinParams<'_>, bitmap: Option<&BitmapPlan>) -> Result<Placement, JoinError> {
    let (array, device) = (params.like.array(), params.device);
    let of_others = params.like.member().data_offset.from_start();
    let own = place::data_offset(array.metadata, device.size, array.chunk, array.ppl.map(|log| log.size));
    let area = bitmap.map(|b| (b.offset, b.sectors)).or(array.ppl.map(|log| (log.offset, log.size)));
    let fits = |offset: Sectors| {
        let at = place::place(array.metadata, device.size, offset, array.size, area.map(|(_, sectors)| sectors))?;
        (at.data_size >= array.size && check::bitmap_room(device, &at, area).is_ok()).then_some(at)
    };
    let wanted = device.data_offset.unwrap_or(of_others);
    let usable = place::usable(array.metadata, device.size, wanted.min(own), array.ppl.map(|log| log.size));
    let too_small = JoinError::TooSmall { device: device.name.clone(), usable: usable.kib(), needed: array.size.kib() };
    fits(wanted).or_else(|| fits(own)).ok_or(too_small)
}

/// Superblocks of before go first, so that a crash leaves none that points to metadata which is not its own.
fn writes(
    device: &NewMember,
    at: &Placement,
    bitmap: Option<&BitmapPlan>,
    log: Option<(i64, Vec<u8>)>,
) -> Vec<PlannedWrite> {
    let zeroes =
        |old: &Sector| PlannedWrite { what: Written::OldSuperblock, at: *old, bytes: vec![0; SUPERBLOCK_BYTES] };
    let mut writes: Vec<PlannedWrite> = device.old_superblocks.iter().map(zeroes).collect();
    let near = |offset: i64| Sector(at.super_offset.0.saturating_add_signed(offset));
    writes.extend(at.bad_block_log.map(|offset| PlannedWrite {
        what: Written::BadBlockLog,
        at: near(offset),
        bytes: vec![0xff; Sectors(BAD_BLOCK_LOG).bytes() as usize],
    }));
    writes.extend(bitmap.map(|b| PlannedWrite { what: Written::Bitmap, at: near(b.offset), bytes: b.bytes.clone() }));
    writes.extend(log.map(|(offset, bytes)| PlannedWrite { what: Written::Ppl, at: near(offset), bytes }));
    writes
}
