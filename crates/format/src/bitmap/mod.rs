//! The write-intent bitmap: one bit per chunk says that members may differ there.
//!
//! A bitmap is a 256-byte superblock followed by the bits, chunk 0 in the lowest bit of the first byte. Each active
//! member has its own copy of an internal bitmap.

mod bits;
mod load;
mod lockless;

pub use bits::BitArray;
pub use load::{LoadContext, LoadedBitmap, Stale};
pub use lockless::{ChunkState, ChunkStates, STATES_AT};

use crate::v090::ByteOrder;
use crate::{MdUuid, MetadataVersion};
use core::mem::{offset_of, size_of};
use raidus_units::{SECTOR_BYTES, Sectors};
use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The bytes "bitm".
pub const BITMAP_MAGIC: u32 = 0x6d74_6962;
/// Bytes before the first bit.
pub const BITMAP_SUPER_BYTES: usize = size_of::<BitmapHeader>();
/// Bitmaps are read and written in pages of this size.
pub const BITMAP_PAGE: usize = 4096;
/// mdadm's and the kernel's smallest chunk when they choose one.
pub const CHUNK_MIN_CHOSEN: u64 = 4096;

/// Smallest chunk md accepts.
const CHUNK_MIN: u64 = 512;
/// Most write-behind requests md accepts: its per-chunk counter has 14 bits.
const WRITE_BEHIND_MAX: u32 = (1 << 14) - 1;

const STATE_STALE: u32 = 0x2;
const STATE_WRITE_ERROR: u32 = 0x4;
const STATE_HOST_ENDIAN: u32 = 0x8000;
const VERSION_NORMAL: u32 = 4;

/// The superblock of a bitmap, byte for byte.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BitmapHeader {
    pub magic: U32,
    pub version: U32,
    pub uuid: [u8; 16],
    pub events: U64,
    pub events_cleared: U64,
    pub sync_size: U64,
    pub state: U32,
    /// Bytes; in version 6 sectors.
    pub chunk: U32,
    pub daemon_sleep: U32,
    pub write_behind: U32,
    pub sectors_reserved: U32,
    pub nodes: U32,
    pub cluster_name: [u8; 64],
    pub pad: [u8; 120],
}

const _: () = {
    assert!(size_of::<BitmapHeader>() == 256);
    assert!(offset_of!(BitmapHeader, events) == 24);
    assert!(offset_of!(BitmapHeader, state) == 48);
    assert!(offset_of!(BitmapHeader, cluster_name) == 72);
    assert!(offset_of!(BitmapHeader, pad) == 136);
};

/// What a bitmap's version says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitmapVersion {
    /// 3: bits in the order of the host that made it. Little-endian hosts wrote what version 4 says.
    HostEndian,
    /// 4: the usual one.
    Normal,
    /// 5: one bitmap for each node of a cluster.
    Clustered,
    /// 6: a byte with a state per chunk instead of a bit.
    Lockless,
}

/// A checked bitmap superblock. Bytes without meaning are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitmapSuper {
    header: BitmapHeader,
    version: BitmapVersion,
}

/// What a new bitmap starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBitmap {
    /// Identity of the array, as [`uuid_in_bitmap`] gives it.
    pub uuid: MdUuid,
    /// Events of the array.
    pub events: u64,
    /// What is covered: the component size; on raid10 the array size.
    pub sync_size: Sectors,
    /// Bytes per bit.
    pub chunk: u64,
    /// Seconds between clearing rounds.
    pub daemon_sleep: u32,
    /// Most outstanding write-behind requests; 0 for none.
    pub write_behind: u32,
}

/// Why a bitmap cannot be used. The kernel does not start an array for any of these.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BitmapError {
    /// Fewer bytes than the bitmap has.
    #[error("bitmap cut short: {have} of {need} bytes")]
    Truncated {
        /// Bytes given.
        have: u64,
        /// Bytes needed.
        need: u64,
    },
    /// Not a bitmap.
    #[error("no bitmap where the superblock says there is one (magic number {found:#010x})")]
    NoMagic {
        /// What stands in its place.
        found: u32,
    },
    /// A version nobody knows, or one whose bits this library cannot use.
    #[error("bitmap of unsupported version {0}")]
    UnsupportedVersion(
        /// The stored version.
        u32,
    ),
    /// The bitmap of another array.
    #[error("bitmap belongs to array {found}, not to {expected}")]
    WrongArray {
        /// In the bitmap.
        found: MdUuid,
        /// Of the array.
        expected: MdUuid,
    },
    /// Not a power of two, or too small or large.
    #[error("bitmap with chunks of {0} bytes")]
    BadChunk(
        /// Bytes.
        u64,
    ),
    /// A write-behind limit or clearing interval outside md's range.
    #[error("bitmap with {what} {value}")]
    BadSetting {
        /// Which.
        what: &'static str,
        /// Its value.
        value: u32,
    },
}

impl BitmapSuper {
    /// Reads and checks a bitmap's first 256 bytes.
    ///
    /// # Errors
    /// Every variant but [`BitmapError::WrongArray`], which [`LoadedBitmap::load`] finds.
    pub fn parse(bytes: &[u8]) -> Result<BitmapSuper, BitmapError> {
        let (header, _) = BitmapHeader::read_from_prefix(bytes)
            .map_err(|_| BitmapError::Truncated { have: bytes.len() as u64, need: BITMAP_SUPER_BYTES as u64 })?;
        if header.magic.get() != BITMAP_MAGIC {
            return Err(BitmapError::NoMagic { found: header.magic.get() });
        }
        let version = match header.version.get() {
            3 => BitmapVersion::HostEndian,
            VERSION_NORMAL => BitmapVersion::Normal,
            5 => BitmapVersion::Clustered,
            6 => BitmapVersion::Lockless,
            unknown => return Err(BitmapError::UnsupportedVersion(unknown)),
        };
        let bitmap = BitmapSuper { header, version };
        bitmap.check()?;
        Ok(bitmap)
    }

    fn check(&self) -> Result<(), BitmapError> {
        if !self.chunk().is_power_of_two() || self.chunk() < CHUNK_MIN {
            return Err(BitmapError::BadChunk(self.chunk()));
        }
        let (sleep, behind) = (self.daemon_sleep(), self.write_behind());
        if sleep == 0 || sleep > i32::MAX.cast_unsigned() {
            return Err(BitmapError::BadSetting { what: "a clearing interval of", value: sleep });
        }
        if behind > WRITE_BEHIND_MAX {
            return Err(BitmapError::BadSetting { what: "a write-behind limit of", value: behind });
        }
        Ok(())
    }

    /// A new bitmap of version 4.
    ///
    /// # Errors
    /// [`BitmapError::BadChunk`], [`BitmapError::BadSetting`].
    pub fn create(new: &NewBitmap) -> Result<BitmapSuper, BitmapError> {
        let mut header = BitmapHeader::new_zeroed();
        header.magic.set(BITMAP_MAGIC);
        header.version.set(VERSION_NORMAL);
        header.uuid = new.uuid.0;
        header.events.set(new.events);
        header.events_cleared.set(new.events);
        header.sync_size.set(new.sync_size.0);
        header.chunk.set(u32::try_from(new.chunk).map_err(|_| BitmapError::BadChunk(new.chunk))?);
        header.daemon_sleep.set(new.daemon_sleep);
        header.write_behind.set(new.write_behind);
        let bitmap = BitmapSuper { header, version: BitmapVersion::Normal };
        bitmap.check()?;
        Ok(bitmap)
    }

    /// The 256 bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.header.as_bytes().to_vec()
    }

    /// The stored fields.
    pub const fn header(&self) -> &BitmapHeader {
        &self.header
    }

    /// What kind of bitmap it is.
    pub const fn version(&self) -> BitmapVersion {
        self.version
    }

    /// Identity of the array; see [`uuid_in_bitmap`].
    pub const fn uuid(&self) -> MdUuid {
        MdUuid(self.header.uuid)
    }

    /// Events of the array when this superblock was last written.
    pub fn events(&self) -> u64 {
        self.header.events.get()
    }

    /// Events of the array when a bit could last be cleared: a member at least this fresh needs only the marked chunks.
    pub fn events_cleared(&self) -> u64 {
        self.header.events_cleared.get()
    }

    /// What is covered.
    pub fn sync_size(&self) -> Sectors {
        Sectors(self.header.sync_size.get())
    }

    /// Bytes per bit (version 6: per state byte).
    pub fn chunk(&self) -> u64 {
        let stored = u64::from(self.header.chunk.get());
        if self.version == BitmapVersion::Lockless { stored * SECTOR_BYTES } else { stored }
    }

    /// Seconds between clearing rounds.
    pub fn daemon_sleep(&self) -> u32 {
        self.header.daemon_sleep.get()
    }

    /// Most outstanding write-behind requests; 0 for none.
    pub fn write_behind(&self) -> u32 {
        self.header.write_behind.get()
    }

    /// Room for the bitmap as stored; 0 where nobody stored it.
    pub fn sectors_reserved(&self) -> Sectors {
        Sectors(self.header.sectors_reserved.get().into())
    }

    /// Marked as not describing the array any more.
    pub fn is_stale(&self) -> bool {
        self.header.state.get() & STATE_STALE != 0
    }

    /// Writing it has failed once.
    pub fn has_write_error(&self) -> bool {
        self.header.state.get() & STATE_WRITE_ERROR != 0
    }

    /// The bits are in the order of the host that made them.
    pub fn is_host_endian(&self) -> bool {
        self.version == BitmapVersion::HostEndian || self.header.state.get() & STATE_HOST_ENDIAN != 0
    }

    /// Number of bits in use; in version 6, of states.
    pub fn bits(&self) -> u64 {
        bits(self.sync_size(), self.chunk())
    }

    /// Bytes of the bitmap, superblock included.
    pub fn bytes(&self) -> u64 {
        match self.version {
            BitmapVersion::Lockless => self.bits().saturating_add(STATES_AT as u64),
            _ => file_bytes(self.bits()),
        }
    }

    /// Sectors it takes: whole pages.
    pub fn area(&self) -> Sectors {
        pages(self.bytes())
    }

    /// Sets the events of the array.
    pub fn set_events(&mut self, events: u64) {
        self.header.events.set(events);
    }

    /// Sets the events at which a bit could last be cleared.
    pub fn set_events_cleared(&mut self, events: u64) {
        self.header.events_cleared.set(events);
    }

    /// Sets or drops the mark that the bits describe nothing.
    pub fn set_stale(&mut self, stale: bool) {
        let state = self.header.state.get();
        self.header.state.set(if stale { state | STATE_STALE } else { state & !STATE_STALE });
    }

    /// Says that the bits are in the usual order, whoever made the bitmap: for bits that are written anew.
    pub fn set_normal(&mut self) {
        self.header.state.set(self.header.state.get() & !STATE_HOST_ENDIAN);
        if self.version == BitmapVersion::HostEndian {
            self.header.version.set(VERSION_NORMAL);
            self.version = BitmapVersion::Normal;
        }
    }

    /// Sets the covered size, after the array was resized.
    pub fn set_sync_size(&mut self, size: Sectors) {
        self.header.sync_size.set(size.0);
    }

    /// Sets the array it belongs to, after its uuid was changed.
    pub fn set_uuid(&mut self, uuid: MdUuid) {
        self.header.uuid = uuid.0;
    }

    /// Sets the write-behind limit.
    pub fn set_write_behind(&mut self, limit: u32) {
        self.header.write_behind.set(limit.min(WRITE_BEHIND_MAX));
    }
}

/// How an array's uuid stands in its bitmap: 0.90 stores words, which hosts copied as bytes in their own order.
pub fn uuid_in_bitmap(metadata: MetadataVersion, host: Option<ByteOrder>, uuid: MdUuid) -> MdUuid {
    if metadata.is_v1() || host == Some(ByteOrder::Big) { uuid } else { uuid.word_swapped() }
}

/// Bits needed to cover `sync_size` with `chunk` bytes per bit; 0 if `chunk` is less than a sector.
pub const fn bits(sync_size: Sectors, chunk: u64) -> u64 {
    let sectors = chunk / SECTOR_BYTES;
    if sectors == 0 { 0 } else { sync_size.0.div_ceil(sectors) }
}

/// Bytes of a bitmap with this many bits, superblock included: the length of an external bitmap file.
pub const fn file_bytes(bits: u64) -> u64 {
    BITMAP_SUPER_BYTES as u64 + bits.div_ceil(8)
}

/// Sectors an internal bitmap with this many bits takes: whole pages.
pub const fn area(bits: u64) -> Sectors {
    pages(file_bytes(bits))
}

const fn pages(bytes: u64) -> Sectors {
    Sectors(bytes.div_ceil(BITMAP_PAGE as u64) * (BITMAP_PAGE as u64 / SECTOR_BYTES))
}

/// The smallest chunk, a power of two of at least `min` bytes, whose bits fit into `room`. `None` if none does.
pub fn smallest_chunk(sync_size: Sectors, room: Sectors, min: u64) -> Option<u64> {
    let bytes = room.0.checked_mul(SECTOR_BYTES)?.checked_sub(BITMAP_SUPER_BYTES as u64)?;
    let bits_max = bytes.checked_mul(8)?;
    let first = min.max(CHUNK_MIN).checked_next_power_of_two()?;
    // The chunk is stored in 32 bits.
    (first.trailing_zeros()..32).map(|shift| 1 << shift).find(|chunk| sync_size.0 / (chunk / SECTOR_BYTES) < bits_max)
}

#[cfg(test)]
mod tests;
