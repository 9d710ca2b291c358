//! The FUSE front end: an array as a file, with md's texts beside it.
//!
//! ```text
//! DIR/md0              the array; read, write, fsync, punch holes; what `losetup --direct-io=on` and QEMU take
//! DIR/mdstat           as /proc/mdstat
//! DIR/md/array_state   as /sys/block/md0/md/array_state; and the other attributes, which are set by writing to them
//! ```
//!
//! - [`mount`] shows a running array at a directory; [`Mount`] takes it away again.
//! - Requests go to the reactors as they come and are replied to from there, so any number is under way at once. The kernel
//!   caches nothing of the array: what was replied to is what the array has.
//! - The array takes whole blocks. Anything else is done by reading what is around it first, while no other write is under way.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod data;
mod filesystem;
mod gate;
mod mount;
mod place;
mod tree;

pub use mount::{Mount, MountError, MountOptions, UnmountError, check, mount};
pub use place::User;
pub use tree::{AttributeFile, Texts, WriteError};
