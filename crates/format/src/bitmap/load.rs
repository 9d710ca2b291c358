//! What to make of a bitmap when an array starts.

use super::{BitArray, BitmapError, BitmapSuper, BitmapVersion};
use crate::MdUuid;
use crate::v090::ByteOrder;
use raidus_units::{SECTOR_BYTES, Sector, Sectors};

/// Most bits this library loads: as many as fit a 64 MiB area. md's own limit is the room between superblock and data.
const BITS_MAX: u64 = 64 * 1024 * 1024 * 8;

/// What the array says, of which its bitmap must be a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadContext {
    /// The array's uuid as it stands in bitmaps ([`super::uuid_in_bitmap`]).
    pub uuid: MdUuid,
    /// Events of the freshest superblock.
    pub events: u64,
    /// What the bitmap must cover: the component size; on raid10 the array size.
    pub sync_size: Sectors,
    /// `None`: the array was clean. `Some(p)`: good below `p` only.
    pub resync: Option<Sector>,
    /// No slot is empty or being rebuilt.
    pub is_whole: bool,
    /// The order of the hosts that use the array, if that is known ([`Superblock::host_order`](crate::Superblock::host_order)).
    pub host: Option<ByteOrder>,
}

/// Why the bits cannot be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// The array was written without its bitmap being kept: its events are ahead of the bitmap's.
    Events {
        /// Of the bitmap.
        bitmap: u64,
        /// Of the array.
        array: u64,
    },
    /// It is marked so.
    Marked,
    /// Its bits are in the order of a host that was, or may have been, big-endian. On such hosts the order also depends on the
    /// length of their words, of which nothing is stored.
    ByteOrder,
    /// It covers another size.
    Size {
        /// Of the bitmap.
        bitmap: Sectors,
        /// Of the array.
        array: Sectors,
    },
}

/// A bitmap to start an array with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedBitmap {
    /// The superblock, with what staleness changes already changed.
    pub superblock: BitmapSuper,
    /// The bits; all 1 if they were stale.
    pub bits: BitArray,
    /// Why the stored bits are not used, if they are not.
    pub stale: Option<Stale>,
    /// Marked chunks that end at or after this must be resynced before they can be trusted; `Sector::MAX` if none must.
    pub needed_from: Sector,
}

impl LoadedBitmap {
    /// Reads a bitmap area or file, superblock first.
    ///
    /// # Errors
    /// Where the kernel does not start the array: see [`BitmapError`]. Clustered and lockless bitmaps are
    /// [`BitmapError::UnsupportedVersion`].
    pub fn load(file: &[u8], array: &LoadContext) -> Result<LoadedBitmap, BitmapError> {
        let mut superblock = BitmapSuper::parse(file)?;
        if matches!(superblock.version(), BitmapVersion::Clustered | BitmapVersion::Lockless) {
            return Err(BitmapError::UnsupportedVersion(superblock.header().version.get()));
        }
        if superblock.uuid() != array.uuid {
            return Err(BitmapError::WrongArray { found: superblock.uuid(), expected: array.uuid });
        }
        let stale = stale(&superblock, array);
        superblock.set_sync_size(array.sync_size);
        let len = superblock.bits();
        if len > BITS_MAX {
            return Err(BitmapError::BadChunk(superblock.chunk()));
        }
        let bits = if stale.is_some() {
            superblock.set_events_cleared(array.events);
            superblock.set_stale(false);
            superblock.set_normal();
            BitArray::ones(len)
        } else {
            BitArray::from_file(file, len)?
        };
        let needed_from = needed_from(&superblock, array);
        Ok(LoadedBitmap { superblock, bits, stale, needed_from })
    }

    /// Whether chunk `i` must be resynced before it can be trusted.
    pub fn is_needed(&self, i: u64) -> bool {
        let chunk = self.superblock.chunk() / SECTOR_BYTES;
        let end = i.saturating_add(1).saturating_mul(chunk);
        self.needed_from != Sector::MAX && end >= self.needed_from.0 && self.bits.get(i)
    }
}

/// A bitmap is written before the superblocks of a round, so it may be one ahead, never behind.
fn stale(superblock: &BitmapSuper, array: &LoadContext) -> Option<Stale> {
    if superblock.events() < array.events {
        Some(Stale::Events { bitmap: superblock.events(), array: array.events })
    } else if superblock.is_host_endian() && array.host != Some(ByteOrder::Little) {
        Some(Stale::ByteOrder)
    } else if superblock.is_stale() {
        Some(Stale::Marked)
    } else if superblock.sync_size() != array.sync_size {
        Some(Stale::Size { bitmap: superblock.sync_size(), array: array.sync_size })
    } else {
        None
    }
}

/// In a whole array, or one that lost nothing since bits were last cleared, the resync position counts. Otherwise the
/// bits are all that a returning member has missed, and all of them are kept.
fn needed_from(superblock: &BitmapSuper, array: &LoadContext) -> Sector {
    if array.is_whole || superblock.events_cleared() == array.events {
        array.resync.unwrap_or(Sector::MAX)
    } else {
        Sector::ZERO
    }
}
