//! The units every raidus crate speaks in: sectors, bytes, slots, members, time.
//!
//! Positions and lengths are different types, so that adding two positions does not compile. A sector is always
//! 512 bytes, whatever the logical block size of the device.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod level;
mod sector;

pub use level::{Level, UnknownLevel};
pub use sector::{ByteLen, SECTOR_BYTES, Sector, Sectors};

use core::fmt;

/// A position in the array: 0 … raid_disks − 1. Not the same as md's device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u16);

/// A member device of one running array, in the order the array was assembled from. A member may hold a slot, be a
/// spare, or be faulty; two members may share a slot while one replaces the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u16);

/// Time in nanoseconds since an arbitrary start. The pure crates are told the time, they never ask for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Slot {
    /// The slot as an index into per-slot tables.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl MemberId {
    /// The member as an index into per-member tables.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Nanos {
    /// `ms` milliseconds.
    pub const fn from_millis(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }

    /// This time plus a duration; saturates at the end of time.
    #[must_use]
    pub const fn plus(self, duration: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(duration.0))
    }

    /// The time that passed since `earlier`; zero if it is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
