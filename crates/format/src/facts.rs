//! What a superblock says, in one vocabulary for all versions.

use crate::{MdUuid, MetadataVersion};
use core::fmt;
use raidus_units::{Level, Sector, Sectors, Slot};

/// md's "no position": all ones on disk.
pub const NO_POSITION: u64 = u64::MAX;

/// What the superblock says about the array. Equal on all members, apart from the moments they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayFacts {
    /// Format and place of the superblock.
    pub metadata: MetadataVersion,
    /// Identity of the array.
    pub uuid: MdUuid,
    /// `host:name` or `name`; empty in 0.90. Bytes that are not UTF-8 are replaced.
    pub name: String,
    /// The stored level number, which may be one raidus does not serve.
    pub level_number: i32,
    /// The level, if raidus serves it.
    pub level: Option<Level>,
    /// Placement within the level; its meaning depends on the level.
    pub layout: u32,
    /// Sectors used of each member; 0 for raid0 and linear.
    pub size: Sectors,
    /// Chunk; 0 for raid1, the rounding for linear.
    pub chunk: Sectors,
    /// Number of slots. While reshaping, the new number.
    pub raid_disks: u32,
    /// When the array was created.
    pub ctime: Timestamp,
    /// When this superblock was last written.
    pub utime: Timestamp,
    /// Update counter.
    pub events: u64,
    /// Whether the array was marked clean. 1.x stores this only through `resync`.
    pub clean: bool,
    /// `None`: redundancy is good everywhere. `Some(p)`: below `p` only. Component sectors; array sectors on raid10.
    pub resync: Option<Sector>,
    /// Internal write-intent bitmap: its distance from the superblock in sectors.
    pub bitmap: Option<i64>,
    /// Partial parity log.
    pub ppl: Option<PplArea>,
    /// The array has, or had, a journal device.
    pub journal: bool,
    /// A reshape that is running or was interrupted.
    pub reshape: Option<Reshape>,
    /// Level 0 only: `layout` is meaningful. Without it the layout of a raid0 with unequal members is unknown.
    pub raid0_layout_known: bool,
    /// Made by a cluster: other hosts may be writing to it.
    pub clustered: bool,
    /// The stored feature bits; 0 in 0.90.
    pub features: u32,
    /// 0.90 only: the md minor number the array would like to have.
    pub preferred_minor: Option<u32>,
}

/// What the superblock says about the device it stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberFacts {
    /// This device's role according to its own superblock. After a difference in events the freshest decides.
    pub role: Role,
    /// This device's index in the device table.
    pub dev_number: u32,
    /// Identity of the member; `None` in 0.90.
    pub device_uuid: Option<MdUuid>,
    /// Device sector of component address 0.
    pub data_offset: Sector,
    /// Sectors available from `data_offset`. 0.90 does not store it: what is before the superblock.
    pub data_size: Sectors,
    /// Device sector of this superblock.
    pub super_offset: Sector,
    /// `Some`: the device is being rebuilt. `None`: its data is whole, or it has no slot.
    pub recovery: Option<Recovery>,
    /// The device rebuilds beside the present holder of the same slot.
    pub replacement: bool,
    /// Where the bad-block log is, if there is one.
    pub bad_block_log: Option<BadBlockArea>,
    /// The bad-block log has entries (otherwise its area holds old bytes).
    pub has_bad_blocks: bool,
    /// Read this member only if nothing else can be read.
    pub write_mostly: bool,
    /// Fail this member at the first error while others are in sync.
    pub failfast: bool,
    /// Journal device only: where in the log recovery starts, in sectors from `data_offset`.
    pub journal_tail: Option<Sector>,
    /// Sectors corrected on this device since it was added.
    pub corrected_reads: u32,
    /// While reshaping: sectors to add to `data_offset` for the new geometry.
    pub new_offset: Option<i64>,
    /// Logical block size the array was made for, in bytes; 0 where it is not stored (kernels before 6.19).
    pub logical_block_size: u32,
}

/// What a device is in the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Holds, or is rebuilding, this slot.
    Slot(Slot),
    /// Waiting to be used; in the table also: nobody has this number.
    Spare,
    /// Failed, and not yet removed.
    Faulty,
    /// The journal device.
    Journal,
}

/// How far a device is rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// Component sectors below this are valid.
    pub offset: Sector,
    /// Only the chunks marked in the write-intent bitmap are stale: the device was re-added.
    pub by_bitmap: bool,
}

/// A change of geometry in progress. `data_offset` changes are in [`MemberFacts::new_offset`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reshape {
    /// How far it is, in array sectors.
    pub position: Sector,
    /// Level number afterwards.
    pub new_level: i32,
    /// Layout afterwards.
    pub new_layout: u32,
    /// Chunk afterwards.
    pub new_chunk: Sectors,
    /// New number of slots minus old.
    pub delta_disks: i32,
    /// Moves from high to low addresses: sectors at or above `position` have the new geometry.
    pub backwards: bool,
}

/// Where the partial parity log of a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PplArea {
    /// Sectors from the superblock.
    pub offset: i64,
    /// Length.
    pub size: Sectors,
    /// Used as a ring of several logs.
    pub multiple: bool,
}

/// Where the bad-block log of a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadBlockArea {
    /// Sectors from the superblock.
    pub offset: i64,
    /// Length.
    pub size: Sectors,
    /// An entry's unit is 512 << shift bytes.
    pub shift: u8,
}

/// A stored checksum, and what the content gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// In the block.
    pub stored: u32,
    /// From the content.
    pub computed: u32,
}

/// Seconds since 1970, and microseconds where the format has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Whole seconds; the formats keep 40 bits (1.x) or 32 bits (0.90).
    pub secs: u64,
    /// Microseconds; 0.90 has none.
    pub micros: u32,
}

impl Role {
    /// The slot, if it has one.
    pub const fn slot(self) -> Option<Slot> {
        match self {
            Role::Slot(slot) => Some(slot),
            _ => None,
        }
    }
}

impl Reshape {
    /// Number of slots before the reshape, given the number stored now.
    pub const fn old_raid_disks(&self, raid_disks: u32) -> Option<u32> {
        // Widened: the delta comes from disk and may be anything.
        let old = raid_disks as i64 - self.delta_disks as i64;
        if old < 0 || old > u32::MAX as i64 { None } else { Some(old as u32) }
    }
}

impl Checksum {
    /// Whether they agree.
    pub const fn is_right(self) -> bool {
        self.stored == self.computed
    }
}

impl Timestamp {
    const SECS_BITS: u32 = 40;

    /// `secs` whole seconds.
    pub const fn from_secs(secs: u64) -> Timestamp {
        Timestamp { secs, micros: 0 }
    }

    /// From the packed form of 1.x: 40 bits of seconds, 24 of microseconds above them.
    pub const fn from_packed(packed: u64) -> Timestamp {
        Timestamp { secs: packed & ((1 << Timestamp::SECS_BITS) - 1), micros: (packed >> Timestamp::SECS_BITS) as u32 }
    }

    /// The packed form of 1.x. What does not fit is cut off.
    pub const fn packed(self) -> u64 {
        self.secs & ((1 << Timestamp::SECS_BITS) - 1) | (self.micros as u64) << Timestamp::SECS_BITS
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Slot(slot) => write!(f, "slot {slot}"),
            Role::Spare => f.write_str("spare"),
            Role::Faulty => f.write_str("faulty"),
            Role::Journal => f.write_str("journal"),
        }
    }
}
