//! Why a block is not a usable superblock, and what to think about one that is.

use crate::{Checksum, MetadataVersion};
use raidus_units::{Sector, Sectors};
use thiserror::Error;

/// Why a superblock cannot be used. Each variant is a decision a caller can take.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SbError {
    /// The block does not begin with md's magic number: nothing of md's is here.
    #[error("no md superblock (magic number {found:#010x})")]
    NoMagic {
        /// What stands in its place.
        found: u32,
    },
    /// Fewer bytes than a superblock has.
    #[error("superblock cut short: {have} of {need} bytes")]
    Truncated {
        /// Bytes given.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// md's magic number with a version this library does not know.
    #[error("md superblock of unsupported version {major}.{minor}")]
    UnsupportedVersion {
        /// The stored major version.
        major: u32,
        /// The stored minor version; 1.x does not store one, so 0 there.
        minor: u32,
    },
    /// The device table does not fit the 4096 bytes a superblock may have.
    #[error("superblock with a table of {found} devices, at most {max} are possible")]
    MaxDev {
        /// The stored table length.
        found: u32,
        /// The largest length that fits.
        max: u32,
    },
    /// The superblock says it belongs elsewhere: it is that of a partition inside this device, or of the disk around
    /// it, or a copy.
    #[error("superblock is at sector {found} but says it belongs at sector {stored}: not of this device")]
    WrongPosition {
        /// The position stored in the superblock.
        stored: Sector,
        /// Where it was found.
        found: Sector,
    },
    /// The checksum does not fit the content.
    #[error("superblock checksum is {:08x}, its content gives {:08x}", .0.stored, .0.computed)]
    BadChecksum(
        /// Both values.
        Checksum,
    ),
    /// Feature bits this library does not know. Writing to such an array could destroy it.
    #[error("superblock uses unknown features {0:#x}: made by a newer md, refusing to touch it")]
    UnknownFeatures(
        /// The unknown bits alone.
        u32,
    ),
    /// Feature bits that exclude each other.
    #[error("superblock has features that exclude each other: {0:#x}")]
    FeatureConflict(
        /// The conflicting bits.
        u32,
    ),
    /// Bytes that must be zero are not.
    #[error("superblock has data in bytes that must be zero (offset {offset})")]
    ReservedNotZero {
        /// Where the reserved range begins.
        offset: usize,
    },
    /// The data area is smaller than anything md accepts.
    #[error("superblock gives a data area of only {0} sectors")]
    DataTooSmall(
        /// The stored size.
        Sectors,
    ),
    /// The data area, now or after the running reshape, covers the superblock.
    #[error("superblock places the data area at sector {data}, over itself (it ends at sector {end})")]
    DataOverlapsSuperblock {
        /// Start of the data area.
        data: i128,
        /// First sector behind the superblock.
        end: Sector,
    },
    /// An array without any slot.
    #[error("superblock of an array of 0 devices")]
    NoSlots,
    /// This device's entry in the device table has a value that means nothing.
    #[error("superblock gives this device the unknown role {0:#06x}")]
    BadRole(
        /// The stored value.
        u16,
    ),
    /// The device is too small to hold a superblock of this version.
    #[error("a device of {device} sectors is too small for metadata {version}")]
    DeviceTooSmall {
        /// Size of the device.
        device: Sectors,
        /// The version asked for.
        version: MetadataVersion,
    },
    /// Something to be written has no place in this format.
    #[error("metadata {version} cannot store {what}")]
    NotStorable {
        /// The version asked for.
        version: MetadataVersion,
        /// What does not fit.
        what: &'static str,
    },
}

/// Something about a valid superblock that a caller must weigh against the device it stands on. The kernel refuses the
/// device for each of these; someone who wants the data off may not want to.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Concern {
    /// The data area reaches past the end of the device: the device shrank, or the copy is cut short.
    #[error("the data area ends at sector {end} but only sectors below {limit} are there")]
    DataBeyondDevice {
        /// First sector behind the data area as stored.
        end: Sector,
        /// First sector that is not there, or that the superblock occupies.
        limit: Sector,
    },
    /// The superblock says bad blocks are recorded but not where.
    #[error("bad blocks are said to be recorded, but there is no bad-block log")]
    BadBlockLogMissing,
    /// The bad-block log is larger than md reads.
    #[error("the bad-block log has {0} sectors, md reads at most 8")]
    BadBlockLogTooLarge(
        /// The stored size.
        Sectors,
    ),
}
