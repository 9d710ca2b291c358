//! What was decided, and why.

use raidus_format::bitmap::LoadedBitmap;
use raidus_format::{ArrayFacts, Concern, MdUuid, Role, SbError, Superblock};
use raidus_layout::{Geometry, GeometryError, Raid0Layout};
use raidus_units::{Level, Sector, Sectors, Slot};
use thiserror::Error;

use crate::replay::Replay;

/// What the user asked for.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Take members that missed writes, and start a dirty array without all its redundancy. What that changes is listed
    /// in [`Assembled::forced`].
    pub force: bool,
    /// Start although members are missing that the superblocks expect (mdadm's `--run`, and what `--scan` does).
    pub run: bool,
    /// Write nothing to the members.
    pub readonly: bool,
    /// Only members of this array.
    pub uuid: Option<MdUuid>,
    /// Only members of an array of this name, with or without its `host:` prefix.
    pub name: Option<String>,
    /// The layout of a raid0 array whose superblocks do not tell it.
    pub raid0_layout: Option<Raid0Layout>,
}

/// The outcome of looking at a set of devices. Nothing has been written.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Whether the array starts.
    pub verdict: Verdict,
    /// What each candidate is, in the order they were given.
    pub members: Vec<MemberVerdict>,
    /// The array according to its freshest superblock.
    pub array: Option<ArrayFacts>,
    /// The candidate with the freshest superblock.
    pub freshest: Option<usize>,
    /// What `--force` would do to make it start; empty if it would not help or is not needed.
    pub force_would: Vec<Forced>,
    /// What the user should know, whatever the verdict.
    pub notes: Vec<String>,
}

/// Start, or not.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It starts like this.
    Start(Box<Assembled>),
    /// It does not, for all of these reasons.
    Refuse(Vec<Reason>),
}

/// An array that can be started.
#[derive(Clone, Debug)]
pub struct Assembled {
    /// The mapping.
    pub geometry: Geometry,
    /// The array as agreed on: the freshest superblock's facts, with what was forced.
    pub array: ArrayFacts,
    /// The members that take part, by member id.
    pub members: Vec<Seated>,
    /// From here on redundancy may be wrong and needs a resync (component sectors; raid10: array sectors). With a
    /// bitmap, the start of the first chunk that needs one. `None`: in sync.
    pub unsynced_from: Option<Sector>,
    /// The write-intent bitmap: set bits need a resync, or a recovery once the missing member is back.
    pub bitmap: Option<LoadedBitmap>,
    /// No member may be written.
    pub read_only: bool,
    /// What a log holds that the members may lack. Until [that is replayed](Assembled::carry_out_replay) and the array decided
    /// on again, its content is not what is described here, and it must not be run.
    pub replay: Option<Replay>,
    /// What `--force` changed against what the superblocks say; on the members with the first superblock write.
    pub forced: Vec<Forced>,
}

/// A member that takes part.
#[derive(Clone, Debug)]
pub struct Seated {
    /// Index of the candidate.
    pub candidate: usize,
    /// What it does in the array.
    pub seat: Seat,
    /// Its superblock, restated in memory as the freshest sees the array: what the next write starts from. Only the event count
    /// is the one on disk.
    pub superblock: Superblock,
    /// Known bad ranges, ascending, as (device sector, length).
    pub bad_blocks: Vec<(Sector, Sectors)>,
}

/// What a member does in the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seat {
    /// Holds its slot's data.
    InSync(Slot),
    /// Holds its slot's data below `valid_to` (component address); is rebuilt from there.
    Rebuilding {
        /// The slot.
        slot: Slot,
        /// Component address.
        valid_to: Sector,
        /// Only chunks marked in the bitmap are stale.
        by_bitmap: bool,
    },
    /// Becomes the slot's holder beside the present one.
    Replacing {
        /// The slot.
        slot: Slot,
        /// Component address up to which it is a copy.
        valid_to: Sector,
    },
    /// Waits to be used.
    Spare,
    /// Is the array's write journal.
    Journal,
}

/// One thing `--force` does.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Forced {
    /// A member that missed updates is taken as if it had not.
    #[error(
        "{member} (slot {slot}) would be used although it stopped at event {events} and the array went on to {array}: \
         blocks written in between come out old or mixed"
    )]
    Stale {
        /// The member.
        member: String,
        /// Its slot.
        slot: Slot,
        /// Its event count.
        events: u64,
        /// The array's.
        array: u64,
    },
    /// A dirty array is declared clean.
    #[error(
        "the array would be marked clean although writes were under way when it stopped and {slots} missing: \
         blocks that were there near those writes may come out wrong",
        slots = slots_are(.missing)
    )]
    MarkedClean {
        /// Slots without their data.
        missing: Vec<Slot>,
    },
    /// A bitmap that cannot be used is replaced by one that marks everything.
    #[error("the write-intent bitmap would be taken as all dirty, so the whole array is resynced")]
    BitmapDiscarded,
    /// The array is read without what its journal may hold.
    #[error(
        "the array would be read without its write journal ({why}): data that was acknowledged may be missing, and blocks of \
         missing slots may come out wrong. Nothing would be written"
    )]
    JournalIgnored {
        /// What is wrong with it.
        why: String,
    },
}

/// What became of a candidate.
#[derive(Clone, Debug)]
pub struct MemberVerdict {
    /// How the user calls it.
    pub name: String,
    /// In or out, and why.
    pub standing: Standing,
    /// What its superblock says, if it has one.
    pub says: Option<MemberSays>,
}

/// The figures of a member's own superblock that a decision turns on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberSays {
    /// Identity of its array.
    pub uuid: MdUuid,
    /// Identity of the member.
    pub device_uuid: Option<MdUuid>,
    /// Device number.
    pub dev_number: u32,
    /// Its own idea of its role.
    pub role: Role,
    /// Update counter.
    pub events: u64,
    /// When it was last updated, seconds since 1970.
    pub updated: u64,
    /// Redundancy is good below this; `None`: everywhere.
    pub resync: Option<Sector>,
}

/// In or out, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Takes part.
    In(Seat),
    /// Takes part only because of `--force`.
    Forced(Slot),
    /// Left out.
    Out(Out),
}

/// Why a candidate is left out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Out {
    /// Cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// No metadata.
    #[error("has no md superblock")]
    NoSuperblock,
    /// Metadata of another RAID system.
    #[error("carries {0} metadata, which raidus does not use")]
    Foreign(String),
    /// A superblock that must not be used.
    #[error("{0}")]
    Unusable(SbError),
    /// Not of the array asked for.
    #[error("belongs to array {0}, which was not asked for")]
    NotWanted(String),
    /// The same path was given twice.
    #[error("was named twice")]
    NamedTwice,
    /// Missed updates.
    #[error("is stale: at event {events}, the array is at {array}")]
    Stale {
        /// Its event count.
        events: u64,
        /// The array's.
        array: u64,
    },
    /// The freshest superblock reports it failed.
    #[error("has failed, says {by}")]
    Failed {
        /// Whose superblock.
        by: String,
    },
    /// The freshest superblock no longer lists it.
    #[error("is no longer part of the array, says {by}")]
    Removed {
        /// Whose superblock.
        by: String,
    },
    /// Just as fresh as the freshest, which it reports as failed: the two were used apart.
    #[error("ignored: it reports {freshest} as failed, so the two were written apart from each other")]
    ReportsFailed {
        /// The freshest member.
        freshest: String,
    },
    /// Its superblock describes another array shape than the freshest.
    #[error("disagrees with the freshest superblock on the array's {0}")]
    Differs(&'static str),
    /// The superblock does not fit the device.
    #[error("{0}: the device or image is cut short")]
    Truncated(Concern),
    /// Its data area is smaller than what the array uses of each member.
    #[error("has room for {has} sectors, the array uses {needs} of each member")]
    TooSmall {
        /// Data area.
        has: Sectors,
        /// Needed.
        needs: Sectors,
    },
    /// A fresher member holds its slot.
    #[error("is older than {by}, which holds the same slot")]
    SlotTaken {
        /// The holder.
        by: String,
    },
    /// A fresher member has its device number.
    #[error("was away when {by} joined and was given its device number, {number}")]
    NumberTaken {
        /// The number.
        number: u32,
        /// Who has it.
        by: String,
    },
    /// The freshest superblock gives it another slot than its own.
    #[error("claims slot {own}, but the freshest superblock gives it {other}")]
    RoleConflict {
        /// Its own idea.
        own: Slot,
        /// The freshest's.
        other: Role,
    },
    /// A write journal, which the array no longer has.
    #[error("is a write journal, but the array has none any more")]
    Journal,
    /// Only looked at until an array-wide reason ended the decision.
    #[error("not looked at any further")]
    Undecided,
}

/// Why an array is not started.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Reason {
    /// No candidate has a usable superblock.
    #[error(
        "none of the devices given is a usable member: check the paths (partition or whole disk?), `raidus examine DEVICE` \
         shows what is on one"
    )]
    NoMembers,
    /// All members are spares.
    #[error("only spares are here: add the devices that hold the array's data")]
    OnlySpares,
    /// Members of several arrays.
    #[error("these devices belong to {} different arrays; name the members of one, or choose with --uuid:{}",
        .groups.len(), group_lines(.groups))]
    Mixed {
        /// The arrays.
        groups: Vec<Group>,
    },
    /// The same member twice: a copy of an image, or one disk seen through two paths.
    #[error(
        "{a} and {b} are the same member (device UUID and slot are equal): one is a copy of the other, or both are paths to \
         one disk. Leave one out{}", older_hint(.older)
    )]
    SameMember {
        /// One.
        a: String,
        /// The other.
        b: String,
        /// The one with the lower event count, if they differ.
        older: Option<String>,
    },
    /// Two members hold the same slot, equally fresh.
    #[error("{a} and {b} both claim slot {slot} and are equally fresh: leave out the wrong one")]
    SlotTwice {
        /// The slot.
        slot: Slot,
        /// One.
        a: String,
        /// The other.
        b: String,
    },
    /// A level raidus does not serve.
    #[error("the array has level number {0}, which raidus does not serve (it serves linear and raid0, 1, 4, 5, 6, 10)")]
    Level(i32),
    /// A clustered array.
    #[error("the array belongs to a cluster: other hosts may be writing to it, and raidus cannot coordinate with them")]
    Clustered,
    /// The write journal is not here.
    #[error(
        "the array has a write journal, which is missing or stale: it may hold data that is not on the members. Find it, or read \
         what the members have: --force"
    )]
    JournalMissing,
    /// The write journal cannot be replayed.
    #[error(
        "the write journal {member} cannot be replayed ({why}), and may hold data that is not on the members. Let Linux md try, \
         or read what the members have: --force"
    )]
    JournalUnusable {
        /// The journal device.
        member: String,
        /// What is wrong.
        why: String,
    },
    /// A reshape in progress.
    #[error(
        "a reshape of the array was interrupted (at array sector {position}): raidus does not read half-reshaped arrays. \
         Let Linux md finish it (mdadm --assemble, with --backup-file if one was used)"
    )]
    Reshaping {
        /// How far it is.
        position: Sector,
    },
    /// The numbers in the superblock make no array.
    #[error("{0}")]
    Geometry(GeometryError),
    /// Not enough members for the data.
    #[error(
        "not enough members: {} of {slots} slots of this {level} array have their data, {} missing. Find the \
         missing members{}", .slots - .missing.len(), slots_are(.missing), force_hint(.force_helps)
    )]
    NotEnough {
        /// The level.
        level: Level,
        /// Number of slots.
        slots: usize,
        /// Slots without data.
        missing: Vec<Slot>,
        /// Whether `--force` would find enough.
        force_helps: bool,
    },
    /// Members are missing that were there when the array was last used.
    #[error(
        "{} missing, but had {} when the array was last used. Find what is missing, or start without it: --run",
        slots_are(.missing), if .missing.len() == 1 { "a member" } else { "members" }
    )]
    Degraded {
        /// The slots.
        missing: Vec<Slot>,
    },
    /// A parity array that is dirty and incomplete.
    #[error(
        "the array stopped while being written and {} missing: what was there cannot be reconstructed with \
         certainty where writes were under way. Find the missing members; or accept some wrong blocks: --force",
        slots_are(.missing)
    )]
    DirtyDegraded {
        /// Slots without data.
        missing: Vec<Slot>,
    },
    /// A write-intent bitmap that cannot be used.
    #[error(
        "the write-intent bitmap cannot be used ({why}, on {member}). Start with --readonly, or replace it and resync \
         everything: --force"
    )]
    Bitmap {
        /// Where it was read.
        member: String,
        /// What is wrong.
        why: String,
    },
}

/// Members of one array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The array.
    pub uuid: MdUuid,
    /// Its name.
    pub name: String,
    /// Its members among the candidates.
    pub members: Vec<String>,
}

impl Decision {
    /// The array, if it starts.
    pub fn start(&self) -> Option<&Assembled> {
        match &self.verdict {
            Verdict::Start(assembled) => Some(assembled),
            Verdict::Refuse(_) => None,
        }
    }

    /// Why it does not start; empty if it does.
    pub fn reasons(&self) -> &[Reason] {
        match &self.verdict {
            Verdict::Start(_) => &[],
            Verdict::Refuse(reasons) => reasons,
        }
    }
}

impl Seat {
    /// The slot, if it has one.
    pub const fn slot(self) -> Option<Slot> {
        match self {
            Seat::InSync(slot) | Seat::Rebuilding { slot, .. } | Seat::Replacing { slot, .. } => Some(slot),
            Seat::Spare | Seat::Journal => None,
        }
    }
}

impl Reason {
    /// A short constant name, for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Reason::NoMembers => "no-members",
            Reason::OnlySpares => "only-spares",
            Reason::Mixed { .. } => "mixed-arrays",
            Reason::SameMember { .. } => "same-member-twice",
            Reason::SlotTwice { .. } => "slot-twice",
            Reason::Level(_) => "unsupported-level",
            Reason::Clustered => "clustered",
            Reason::JournalMissing => "journal-missing",
            Reason::JournalUnusable { .. } => "journal-unusable",
            Reason::Reshaping { .. } => "reshape-in-progress",
            Reason::Geometry(_) => "impossible-geometry",
            Reason::NotEnough { .. } => "not-enough-members",
            Reason::Degraded { .. } => "degraded",
            Reason::DirtyDegraded { .. } => "dirty-degraded",
            Reason::Bitmap { .. } => "bitmap-unusable",
        }
    }
}

/// `slot 4 is`, `slots 1, 3 and 4 are`.
fn slots_are(slots: &[Slot]) -> String {
    match slots {
        [] => "no slot is".to_owned(),
        [one] => format!("slot {one} is"),
        [head @ .., last] => {
            let head: Vec<_> = head.iter().map(ToString::to_string).collect();
            format!("slots {} and {last} are", head.join(", "))
        }
    }
}

fn group_lines(groups: &[Group]) -> String {
    groups.iter().map(|g| format!("\n  {} '{}': {}", g.uuid, g.name, g.members.join(" "))).collect()
}

fn older_hint(older: &Option<String>) -> String {
    older.as_ref().map_or(String::new(), |name| format!(" ({name} is the older one)"))
}

fn force_hint(helps: &bool) -> &'static str {
    if *helps { "; or use members that missed writes: --force" } else { "" }
}
