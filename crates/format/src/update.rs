//! What is written into superblocks: each round of updates, and a new array's first.
//!
//! One round describes the array once ([`ArrayUpdate`]) and each member by what differs on it ([`MemberUpdate`]).
//! Start from [`crate::Superblock::array_update`] and [`crate::Superblock::member_update`], which restate what a
//! superblock says, and change what happened.

use crate::{BadBlockArea, MdUuid, MetadataVersion, PplArea, Recovery, Reshape, Role, Timestamp};
use raidus_units::{Sector, Sectors};

/// The array-wide part of a superblock round; the same for every member written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayUpdate {
    /// Update counter.
    pub events: u64,
    /// When.
    pub utime: Timestamp,
    /// Clean or dirty, and how far redundancy is good.
    pub resync: ResyncMark,
    /// All known devices, by device number; `None` for a number nobody has. 0.90 renumbers them itself when writing:
    /// keep indexing by the numbers found at assembly.
    pub devices: Vec<Option<DeviceState>>,
    /// The active internal bitmap: its distance from the superblock. `None` leaves the stored distance and only drops
    /// the feature, as md does.
    pub bitmap: Option<i64>,
    /// The active partial parity log.
    pub ppl: Option<PplArea>,
    /// The array has a journal device, even if it is missing now.
    pub journal: bool,
    /// The reshape in progress. `None` leaves stale values and only drops the feature, as md does.
    pub reshape: Option<Reshape>,
    /// Level, layout and sizes; always written.
    pub geometry: Geometry,
}

/// Whether the array is marked clean, and how far its redundancy is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResyncMark {
    /// No write in flight. `None`: good everywhere; `Some(p)`: below `p`.
    Clean {
        /// The checkpoint.
        good_to: Option<Sector>,
    },
    /// Writes may be in flight: after a crash everything (or what the bitmap says) must be resynced.
    Dirty,
    /// Writes may be in flight, but a healthy journal replays them: stays marked as good everywhere.
    DirtyJournalled,
}

/// One device of the array, as every member's superblock records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceState {
    /// What it is.
    pub role: Role,
    /// It holds its slot with whole data. 0.90 has no other way to tell a rebuilding device: it is recorded as spare.
    pub in_sync: bool,
    /// Read only if nothing else can be read.
    pub write_mostly: bool,
    /// Fail at the first error.
    pub failfast: bool,
    /// Device number (major, minor), which 0.90 records and nobody relies on.
    pub node: (u32, u32),
}

/// Level, placement and sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Level number.
    pub level: i32,
    /// Placement within the level.
    pub layout: u32,
    /// Level 0 only: whether `layout` is meaningful.
    pub raid0_layout_known: bool,
    /// Sectors used of each member.
    pub size: Sectors,
    /// Chunk.
    pub chunk: Sectors,
    /// Number of slots.
    pub raid_disks: u32,
}

/// The part of a superblock round that differs between members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberUpdate {
    /// This device's index in [`ArrayUpdate::devices`].
    pub dev_number: u32,
    /// How far it is rebuilt; `None` if in sync or without slot.
    pub recovery: Option<Recovery>,
    /// It rebuilds beside the present holder of its slot.
    pub replacement: bool,
    /// Its bad-block log has entries.
    pub has_bad_blocks: bool,
    /// Sectors corrected on it since it was added.
    pub corrected_reads: u32,
    /// Journal device only: where recovery starts.
    pub journal_tail: Option<Sector>,
    /// While reshaping: sectors to add to the data offset for the new geometry.
    pub new_offset: Option<i64>,
}

/// Everything in the first superblock of a member. What good values are is for the caller to decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSuperblock {
    /// Format and place.
    pub metadata: MetadataVersion,
    /// Identity of the array.
    pub uuid: MdUuid,
    /// `host:name` or `name`, at most 32 bytes; not stored in 0.90.
    pub name: String,
    /// When the array was created.
    pub ctime: Timestamp,
    /// Identity of the member; not stored in 0.90.
    pub device_uuid: MdUuid,
    /// Device sector of the superblock.
    pub super_offset: Sector,
    /// Device sector of component address 0; 0 in 0.90.
    pub data_offset: Sector,
    /// Sectors available from there.
    pub data_size: Sectors,
    /// Where the bad-block log is to be; `None` for none, and in 0.90.
    pub bad_block_log: Option<BadBlockArea>,
    /// 0.90 only: the md minor number the array would like to have.
    pub preferred_minor: u32,
    /// The array-wide part.
    pub array: ArrayUpdate,
    /// The part that differs between members.
    pub member: MemberUpdate,
}

impl DeviceState {
    /// A device with this role; in sync if it has a slot.
    pub const fn new(role: Role) -> DeviceState {
        DeviceState { role, in_sync: matches!(role, Role::Slot(_)), write_mostly: false, failfast: false, node: (0, 0) }
    }
}

impl MemberUpdate {
    /// A member without anything special.
    pub const fn new(dev_number: u32) -> MemberUpdate {
        MemberUpdate {
            dev_number,
            recovery: None,
            replacement: false,
            has_bad_blocks: false,
            corrected_reads: 0,
            journal_tail: None,
            new_offset: None,
        }
    }
}
