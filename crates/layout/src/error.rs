//! Why numbers from a disk or a user do not describe an array.

use raidus_units::{Level, Sectors};

/// Why there is no such array.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// Fewer slots than the level needs.
    #[error("{level} needs at least {min} slots, not {got}")]
    TooFewSlots {
        /// The level.
        level: Level,
        /// Slots given.
        got: u16,
        /// Slots needed.
        min: u16,
    },
    /// More slots than the level can have.
    #[error("{level} can have at most {max} slots, not {got}")]
    TooManySlots {
        /// The level.
        level: Level,
        /// Slots given.
        got: u16,
        /// Slots possible.
        max: u16,
    },
    /// The chunk size is not possible.
    #[error("a chunk of {chunk} sectors is not possible for {level}: it must be {rule}")]
    Chunk {
        /// The level.
        level: Level,
        /// The chunk size given.
        chunk: Sectors,
        /// What it must be.
        rule: &'static str,
    },
    /// raid5 or raid6 with an algorithm number that md does not know.
    #[error("{level} has no layout number {layout}; raidus knows: {known}", known = crate::names::known(*level))]
    UnknownAlgorithm {
        /// The level.
        level: Level,
        /// The layout number.
        layout: u32,
    },
    /// raid0 whose members differ in size, and nothing says which of two layouts it has.
    #[error(
        "the members of this raid0 array differ in size, and no superblock says in which of two ways its later zones \
         are striped. Arrays last written by Linux before 3.14 have the layout 'original', by newer ones 'alternate' \
         (read-only, try which one gives a sound file system: a wrong choice corrupts data when writing). Give \
         --layout=original or --layout=alternate; to store the answer for good, use --update=layout-original or \
         --update=layout-alternate"
    )]
    Raid0LayoutUnknown,
    /// A raid10 layout word with bits that have no meaning, or both kinds of far sets.
    #[error("raid10 layout {layout:#x} has bits that no known layout uses")]
    Raid10Bits {
        /// The layout word.
        layout: u32,
    },
    /// A raid10 layout with too few or too many copies.
    #[error("raid10 layout {layout:#x} makes {copies} copies; it must be 2 to {slots}, the number of slots")]
    Raid10Copies {
        /// The layout word.
        layout: u32,
        /// near × far copies.
        copies: u32,
        /// Slots of the array.
        slots: u16,
    },
    /// A raid10 layout that puts different data in the same place, or two copies on one member.
    #[error(
        "raid10 layout {layout:#x} over {slots} slots puts copies on top of each other (md starts such an array, and \
         loses data in it): refused"
    )]
    Raid10Collision {
        /// The layout word.
        layout: u32,
        /// Slots of the array.
        slots: u16,
    },
    /// The data sizes of all slots are needed and not all are there.
    #[error("{level} needs the sizes of all {need} members, and {got} are known")]
    DataSizes {
        /// The level.
        level: Level,
        /// Slots of the array.
        need: u16,
        /// Sizes given.
        got: usize,
    },
    /// A member of a striped array has less than a chunk of room.
    #[error("the member in slot {slot} is smaller than one chunk ({chunk} sectors)")]
    MemberTooSmall {
        /// The slot.
        slot: u16,
        /// The chunk size.
        chunk: Sectors,
    },
    /// The array would have no sectors.
    #[error("this {level} array would have no room: its members are smaller than one chunk ({chunk} sectors)")]
    Empty {
        /// The level.
        level: Level,
        /// The chunk size.
        chunk: Sectors,
    },
    /// Larger than a block device can be.
    #[error("the array or a member would be larger than 8 EiB, the most a block device can have")]
    TooLarge,
}
