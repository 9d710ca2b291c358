//! Why a member cannot be opened, in terms a caller can act on and a user can follow.

use std::io;
use std::path::{Path, PathBuf};

use super::MemberDevice;

/// A member that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum MemberOpenError {
    /// There is nothing at the path.
    #[error("{}: no such file or device; check the path, or whether the disk is attached", path.display())]
    NoSuchDevice {
        /// The path.
        path: PathBuf,
    },
    /// The user may not.
    #[error("{}: permission denied for {what}; run as a user who may (root, or a member of the device's group)", path.display())]
    PermissionDenied {
        /// The path.
        path: PathBuf,
        /// "reading" or "writing".
        what: &'static str,
    },
    /// Somebody else uses the device.
    #[error("{} is in use by {by}; stop that first", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
        /// Who, as far as can be found out.
        by: String,
    },
    /// Something that cannot hold data at offsets.
    #[error("{} is {what}; a member is a block device or a regular file", path.display())]
    NotADevice {
        /// The path.
        path: PathBuf,
        /// What it is: "a directory".
        what: &'static str,
    },
    /// No room for even a superblock.
    #[error("{} has only {bytes} bytes; a member needs at least {MIN_BYTES}", path.display())]
    TooSmall {
        /// The path.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// Two paths lead to one device.
    #[error("{} and {} are the same device; name each member once", path.display(), first.display())]
    GivenTwice {
        /// The later path.
        path: PathBuf,
        /// The earlier path.
        first: PathBuf,
    },
    /// The device or file system refuses writing.
    #[error("{} is read-only (write-protected, or on a read-only file system); open the array read-only or over an overlay", path.display())]
    WriteProtected {
        /// The path.
        path: PathBuf,
    },
    /// No space for an overlay's store.
    #[error("no space for an overlay in {}; free some, or name another directory", path.display())]
    FullDisk {
        /// The directory.
        path: PathBuf,
    },
    /// Anything else the system said.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

/// The smallest member: the least a superblock of any version needs.
pub(crate) const MIN_BYTES: u64 = 64 << 10;

impl MemberOpenError {
    /// The error of opening `path` for `what` ("reading", "writing").
    pub(crate) fn of_open(path: &Path, what: &'static str, error: rustix::io::Errno) -> MemberOpenError {
        use rustix::io::Errno;
        let path = path.to_owned();
        match error {
            // A device node without a device behind it is as absent as one that was never there.
            Errno::NOENT | Errno::NXIO | Errno::NODEV | Errno::NOTDIR => MemberOpenError::NoSuchDevice { path },
            Errno::NOMEDIUM => MemberOpenError::NoSuchDevice { path },
            Errno::ACCESS | Errno::PERM => MemberOpenError::PermissionDenied { path, what },
            Errno::ROFS => MemberOpenError::WriteProtected { path },
            Errno::ISDIR => MemberOpenError::NotADevice { path, what: "a directory" },
            Errno::NOSPC | Errno::DQUOT => MemberOpenError::FullDisk { path },
            other => MemberOpenError::Io { path, source: other.into() },
        }
    }
}

/// Refuses a list in which two members are one device.
pub fn check_distinct(members: &[MemberDevice]) -> Result<(), MemberOpenError> {
    for (i, member) in members.iter().enumerate() {
        let Some(identity) = member.identity else { continue };
        if let Some(first) = members[..i].iter().find(|m| m.identity == Some(identity)) {
            return Err(MemberOpenError::GivenTwice { path: member.name.clone(), first: first.name.clone() });
        }
    }
    Ok(())
}
