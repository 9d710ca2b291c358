//! Planning a write-intent bitmap for an array that has none, where mdadm --grow would put it.

use raidus_format::bitmap::{self, BitmapError, BitmapSuper};
use raidus_format::{MetadataVersion, Superblock};
use raidus_layout::Geometry;
use raidus_units::{SECTOR_BYTES, Sectors};

use super::place::{self, BAD_BLOCK_LOG};

/// The array that is to get a bitmap.
#[derive(Clone, Copy, Debug)]
pub struct BitmapGrowth<'a> {
    /// Superblocks of its members and spares.
    pub members: &'a [Superblock],
    /// Its shape.
    pub geometry: &'a Geometry,
    /// Bytes per bit; `None` for mdadm's choice.
    pub chunk: Option<u64>,
}

/// A bitmap, and where it goes on every member.
#[derive(Clone, Debug)]
pub struct GrownBitmap {
    /// Its superblock.
    pub superblock: BitmapSuper,
    /// Sectors from each member's superblock.
    pub offset: i64,
}

/// Why there can be no bitmap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrowError {
    /// linear and raid0.
    #[error("the level has no redundancy: there is nothing that a bitmap could tell")]
    NoRedundancy,
    /// A log does its work.
    #[error("the array has a partial parity log or a write journal, which take the place of a bitmap")]
    OtherPolicy,
    /// No room between metadata and data.
    #[error("a member has no room for a bitmap between its metadata and its data")]
    NoRoom,
    /// Too many bits.
    #[error(
        "chunks of {given} KiB make more bits than there is room for on the members; --bitmap-chunk must be at least {min}K"
    )]
    ChunkTooSmall {
        /// KiB.
        given: u64,
        /// KiB.
        min: u64,
    },
    /// Not a chunk at all.
    #[error(transparent)]
    Bitmap(#[from] BitmapError),
}

/// Plans it. Each bit says nothing yet: which are to be set is known when nobody writes.
///
/// # Errors
/// If the members have no room for it, or the array has no use for one.
pub fn grow_bitmap(growth: &BitmapGrowth<'_>) -> Result<GrownBitmap, GrowError> {
    let like = growth.members.first().ok_or(GrowError::NoRoom)?;
    let array = like.array();
    if !growth.geometry.level().is_redundant() {
        return Err(GrowError::NoRedundancy);
    }
    if array.ppl.is_some() || array.journal {
        return Err(GrowError::OtherPolicy);
    }
    let room = growth.members.iter().map(room).min().unwrap_or(Sectors::ZERO);
    let covered = crate::bitmap::covers(growth.geometry);
    let min = bitmap::smallest_chunk(covered, room, bitmap::CHUNK_MIN_CHOSEN).ok_or(GrowError::NoRoom)?;
    let chunk = growth.chunk.unwrap_or_else(|| min.max(place::BITMAP_CHUNK_DEFAULT));
    if chunk < min {
        return Err(GrowError::ChunkTooSmall { given: chunk / 1024, min: min / 1024 });
    }
    let uuid = bitmap::uuid_in_bitmap(array.metadata, like.host_order(), array.uuid);
    let superblock = BitmapSuper::create(&crate::bitmap::new_bitmap(uuid, covered, chunk, 0))?;
    let offset = place::bitmap_offset(array.metadata, bitmap::area(superblock.bits()));
    Ok(GrownBitmap { superblock, offset })
}

/// Room for a bitmap on a member.
fn room(superblock: &Superblock) -> Sectors {
    let (array, member) = (superblock.array(), superblock.member());
    let at = member.super_offset.0;
    let room = match array.metadata {
        MetadataVersion::V0_90 => place::BITMAP_ROOM_V090,
        MetadataVersion::V1_0 => {
            let end = member.data_offset.0.saturating_add(member.data_size.0);
            at.saturating_sub(BAD_BLOCK_LOG).saturating_sub(end)
        }
        MetadataVersion::V1_1 | MetadataVersion::V1_2 => {
            let start = at + 4096 / SECTOR_BYTES;
            let log = member.bad_block_log.and_then(|log| at.checked_add_signed(log.offset));
            let next = [log, Some(member.data_offset.0)].into_iter().flatten().filter(|sector| *sector >= start).min();
            next.map_or(0, |next| next - start)
        }
    };
    Sectors(room.min(place::BITMAP_ROOM_MAX))
}
