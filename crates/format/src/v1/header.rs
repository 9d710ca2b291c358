//! The fixed part of a 1.x superblock, byte for byte, and its feature bits.

use core::mem::{offset_of, size_of};
use zerocopy::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Internal bitmap present; `bitmap_offset` is valid.
pub const BITMAP: u32 = 0x1;
/// The device is being rebuilt; `recovery_offset` is valid.
pub const RECOVERY_OFFSET: u32 = 0x2;
/// A reshape is running; the reshape group is valid.
pub const RESHAPE: u32 = 0x4;
/// The bad-block log has entries.
pub const BAD_BLOCKS: u32 = 0x8;
/// The device rebuilds beside the present holder of its slot.
pub const REPLACEMENT: u32 = 0x10;
/// A reshape that does not change the number of slots moves from high to low addresses.
pub const RESHAPE_BACKWARDS: u32 = 0x20;
/// The reshape moves the data area; `new_offset` is valid.
pub const NEW_OFFSET: u32 = 0x40;
/// With `RECOVERY_OFFSET`: only the chunks marked in the bitmap are stale.
pub const RECOVERY_BITMAP: u32 = 0x80;
/// Cluster md.
pub const CLUSTERED: u32 = 0x100;
/// The array has a journal device.
pub const JOURNAL: u32 = 0x200;
/// Partial parity log, one at a time.
pub const PPL: u32 = 0x400;
/// Partial parity log, used as a ring.
pub const MULTIPLE_PPLS: u32 = 0x800;
/// Level 0 with a meaningful layout.
pub const RAID0_LAYOUT: u32 = 0x1000;
/// All of them.
pub const ALL: u32 = 0x1fff;

/// `dev_flags`: read only if nothing else can be read.
pub const WRITE_MOSTLY: u8 = 1;
/// `dev_flags`: fail at the first error.
pub const FAILFAST: u8 = 2;

/// The first 256 bytes. Field meanings are in `docs/on-disk.md`.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    pub magic: U32,
    pub major_version: U32,
    pub feature_map: U32,
    pub pad0: U32,
    pub set_uuid: [u8; 16],
    pub set_name: [u8; 32],
    pub ctime: U64,
    pub level: I32,
    pub layout: U32,
    pub size: U64,
    pub chunk: U32,
    pub raid_disks: U32,
    /// Signed bitmap offset; or, with a PPL, its offset (i16) and size (u16).
    pub bitmap_or_ppl: [u8; 4],
    pub new_level: I32,
    pub reshape_position: U64,
    pub delta_disks: I32,
    pub new_layout: U32,
    pub new_chunk: U32,
    pub new_offset: I32,
    pub data_offset: U64,
    pub data_size: U64,
    pub super_offset: U64,
    /// Journal device: `journal_tail`.
    pub recovery_offset: U64,
    pub dev_number: U32,
    pub corrected_reads: U32,
    pub device_uuid: [u8; 16],
    pub dev_flags: u8,
    pub bad_block_shift: u8,
    pub bad_block_size: U16,
    pub bad_block_offset: I32,
    pub utime: U64,
    pub events: U64,
    pub resync_offset: U64,
    pub checksum: U32,
    pub max_dev: U32,
    pub logical_block_size: U32,
    pub pad3: [u8; 28],
}

/// Bytes before the device table.
pub const HEADER_BYTES: usize = size_of::<Header>();

/// Where the checksum stands.
pub const CHECKSUM_AT: usize = offset_of!(Header, checksum);

const _: () = {
    assert!(HEADER_BYTES == 256);
    assert!(offset_of!(Header, ctime) == 64);
    assert!(offset_of!(Header, bitmap_or_ppl) == 96);
    assert!(offset_of!(Header, data_offset) == 128);
    assert!(offset_of!(Header, device_uuid) == 168);
    assert!(offset_of!(Header, dev_flags) == 184);
    assert!(offset_of!(Header, utime) == 192);
    assert!(CHECKSUM_AT == 216);
    assert!(offset_of!(Header, logical_block_size) == 224);
};

impl Header {
    /// Whether all these bits are set.
    pub const fn has(&self, features: u32) -> bool {
        self.feature_map.get() & features == features
    }
}
