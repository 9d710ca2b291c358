//! md's on-disk formats, read and written byte for byte as the Linux kernel and mdadm do.
//!
//! Everything here is pure: bytes in, facts out, and back. Reading goes in two steps. A *raw* superblock has the magic
//! number, a supported version and sizes that keep every accessor in bounds; that is enough to show it. A
//! [`Superblock`] has passed every check a loader must make and may be assembled, updated and written. All bytes are
//! kept, known or not, so that parsing and encoding again gives the same block.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod badblocks;
pub mod bitmap;
mod crc;
mod edit;
mod error;
mod facts;
mod foreign;
pub mod journal;
pub mod ppl;
mod probe;
mod superblock;
mod update;
mod uuid;
pub mod v090;
pub mod v1;
mod version;

pub use edit::Edit;
pub use error::{Concern, SbError};
pub use facts::{
    ArrayFacts, BadBlockArea, Checksum, MemberFacts, NO_POSITION, PplArea, Recovery, Reshape, Role, Timestamp,
};
pub use foreign::Foreign;
pub use probe::{Found, Probe, ProbeRead, probe, probe_areas};
pub use superblock::{RawSuperblock, Superblock};
pub use update::{ArrayUpdate, DeviceState, Geometry, MemberUpdate, NewSuperblock, ResyncMark};
pub use uuid::{MdUuid, UuidError};
pub use version::{MetadataVersion, SUPERBLOCK_BYTES, SUPERBLOCK_SECTORS, UnknownMetadata};

/// The magic number both superblock formats begin with.
pub const MD_MAGIC: u32 = 0xa92b_4efc;
