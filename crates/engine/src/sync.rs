//! Resync, recovery, check and repair: what Control asks of shards, and what they answer.

use std::sync::Arc;

use raidus_units::{MemberId, Sector, Sectors};

/// Ranges, ascending and without overlap. On parity levels component addresses, on mirrored levels array addresses.
pub type Ranges = Arc<[(Sector, Sectors)]>;

/// What a sync does, in md's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncAction {
    /// Makes members agree that may not, after an unclean stop.
    Resync,
    /// Gives members that lack it their data.
    Recover,
    /// Looks for disagreement.
    Check,
    /// Looks for disagreement and ends it.
    Repair,
}

impl SyncAction {
    /// md's word, as `sync_action` has it.
    pub const fn name(self) -> &'static str {
        match self {
            SyncAction::Resync => "resync",
            SyncAction::Recover => "recover",
            SyncAction::Check => "check",
            SyncAction::Repair => "repair",
        }
    }

    /// md's word, as `last_sync_action` and `/proc/mdstat` have it.
    pub const fn process_name(self) -> &'static str {
        match self {
            SyncAction::Recover => "recovery",
            other => other.name(),
        }
    }

    pub(crate) const fn work(self) -> SyncWork {
        match self {
            SyncAction::Recover => SyncWork::Recover,
            SyncAction::Resync => SyncWork::Agree,
            SyncAction::Check => SyncWork::Look,
            SyncAction::Repair => SyncWork::Mend,
        }
    }
}

/// What to do with the ranges of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncWork {
    /// Write the members that are being rebuilt.
    Recover,
    /// Compare; where blocks disagree, parity follows the data, and copies follow the one that is read meanwhile.
    Agree,
    /// Compare.
    Look,
    /// Compare; where one block is known to be wrong, that one is written, otherwise as `Agree`.
    Mend,
}

/// A window of a sync for one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncJob {
    /// Its number.
    pub window: u64,
    /// What to do.
    pub work: SyncWork,
    /// Where.
    pub ranges: Ranges,
}

/// What came of a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncOutcome {
    /// Where blocks disagreed.
    pub mismatches: Vec<Mismatch>,
    /// Blocks that could not be read and were written anew.
    pub healed: Vec<Healed>,
    /// Ranges (as in the job) that could not be done: what they need cannot be read.
    pub unreadable: Vec<(Sector, Sectors)>,
    /// Writes that failed, as (member, device sector, length); the failures are reported on their own.
    pub failed_writes: Vec<(MemberId, Sector, Sectors)>,
}

/// A run of sectors in which blocks disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Start: component address on parity levels, array address on mirrored ones.
    pub start: Sector,
    /// Length.
    pub len: Sectors,
    /// The wrong member and the device sector there, if the evidence names one.
    pub culprit: Option<(MemberId, Sector)>,
    /// The blocks agree now.
    pub mended: bool,
}

/// A block that could not be read, found elsewhere and written anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Healed {
    /// The member.
    pub member: MemberId,
    /// Device sector.
    pub start: Sector,
    /// Length.
    pub len: Sectors,
}
