//! What Control can be asked and what it tells of itself.

use std::sync::Arc;

use raidus_format::bitmap::BitmapSuper;
use raidus_units::{MemberId, Nanos, Sector, Sectors};

use crate::config::MemberSetup;
use crate::map::MemberMap;
use crate::sync::{Mismatch, SyncAction};

/// What the operator asks of an array.
#[derive(Clone, Debug)]
pub enum Command {
    /// Finish what is under way, mark the array clean, say [`Event::Stopped`].
    Stop,
    /// Refuse writes and mark the array clean (`true`), or accept them again.
    SetReadOnly(bool),
    /// A device joins. Its member id is the next one; the driver knows it already.
    Add(Box<Addition>),
    /// Treat this member as failed.
    Fail(MemberId),
    /// Take a failed member or a spare out of the array.
    Remove(MemberId),
    /// Rebuild this member's data onto a spare, then retire it. It goes on serving meanwhile.
    Replace(MemberId),
    /// What is written to md's `sync_action`.
    Sync(SyncRequest),
    /// md's `sync_speed_min` and `sync_speed_max`, in KiB per second and member; `None` leaves one as it is.
    SetSyncSpeed {
        /// At least, though clients are busy.
        min: Option<u64>,
        /// At most.
        max: Option<u64>,
    },
    /// md's `max_read_errors`: a member on which more blocks than this had to be written anew, halved with every hour, is
    /// failed.
    SetMaxReadErrors(u32),
    /// Keep what the members have missed, or may differ in, in a write-intent bitmap from now on. Told by [`Event::BitmapAdded`] when it is
    /// in force; writes wait for a moment.
    AddBitmap(Box<BitmapAddition>),
    /// Have no bitmap any more. Told by [`Event::BitmapRemoved`].
    RemoveBitmap,
    /// Go to rest, and be ready to be written by the first write (md's `read-auto`).
    SetReadAuto,
    /// Keep back writes to these array sectors until told otherwise (md's `suspend_lo` and `suspend_hi`). `None` leaves one as it is.
    SetSuspended {
        /// Start.
        lo: Option<Sector>,
        /// End; nothing waits if it is not after `lo`.
        hi: Option<Sector>,
        /// Keep back every request, reads too.
        all: Option<bool>,
    },
    /// md's `safe_mode_delay`; `None`: once dirty, stay so until the array stops.
    SetSafeModeDelay(Option<Nanos>),
    /// Prefer others for reading, or not (md's `writemostly`).
    SetWriteMostly(MemberId, bool),
    /// A mirror's last copy fails like any other member (md's `fail_last_dev`).
    SetFailLast(bool),
    /// Sectors that were read wrong and written anew since the member was added (md's `errors`).
    SetReadErrors(MemberId, u32),
    /// Note blocks of a member as bad: nobody reads them there until they have been written.
    AddBadBlocks {
        /// The member.
        member: MemberId,
        /// Device sector.
        start: Sector,
        /// Length.
        len: Sectors,
    },
    /// md's `sync_min` and `sync_max`: where a check or repair begins and ends.
    SetSyncRange {
        /// First sector.
        min: Sector,
        /// End; `None` for the end of the members.
        max: Option<Sector>,
    },
}

/// A bitmap for an array that runs without one.
#[derive(Clone, Debug)]
pub struct BitmapAddition {
    /// Its superblock: what it covers and how finely. The events in it do not matter.
    pub superblock: BitmapSuper,
    /// Sectors from each member's superblock to its place.
    pub offset: i64,
}

/// A device that joins a running array.
#[derive(Clone, Debug)]
pub struct Addition {
    /// Its superblock, of this array, with a device number that is free. For a former member: as it was found.
    pub setup: MemberSetup,
    /// Device sector of component address 0.
    pub data_offset: Sector,
    /// Known bad ranges, as (device sector, length).
    pub bad_blocks: Vec<(Sector, Sectors)>,
    /// Take it back into the slot its superblock says, and rebuild only what the bitmap says (md's re-add). Otherwise it is
    /// a spare.
    pub former: bool,
}

/// Why a command was not carried out. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The array is stopping.
    #[error("the array is stopping")]
    Stopping,
    /// The array is read-only.
    #[error("the array is read-only; make it writable first")]
    ReadOnly,
    /// Too many members failed.
    #[error("the array has lost too many members; stop it, then assemble it with --force")]
    Broken,
    /// Linear and raid0 have no redundancy.
    #[error("the level has no redundancy")]
    NoRedundancy,
    /// No such member.
    #[error("it is not a member of the array")]
    NotAMember,
    /// A member in use cannot be removed.
    #[error("it is in use; fail or replace it first")]
    InUse,
    /// Without this member, data would be lost.
    #[error("the array would lose data without it")]
    Needed,
    /// The superblock is not of this array, or its device number is taken.
    #[error("its superblock does not fit into the array")]
    Foreign,
    /// The device is too small.
    #[error("it is smaller than the members of the array")]
    TooSmall,
    /// A former member has missed more than the bitmap tells.
    #[error(
        "it has missed more than the bitmap tells, or its slot is taken: add it as a new device to rebuild it in full"
    )]
    MissedTooMuch,
    /// No spare to rebuild onto.
    #[error("there is no spare to rebuild onto; add one first")]
    NoSpare,
    /// The member is not one that can be replaced now.
    #[error("only a member with whole data can be replaced, one at a time")]
    NotReplaceable,
    /// The metadata format has no word for it.
    #[error("metadata 0.90 cannot describe a replacement")]
    NotStorable,
    /// There is one already.
    #[error("the array has a write-intent bitmap already")]
    HasBitmap,
    /// There is none.
    #[error("the array has no write-intent bitmap")]
    NoBitmap,
    /// Something else does the bitmap's work.
    #[error("the array has a partial parity log or a write journal, which take the place of a bitmap")]
    OtherPolicy,
    /// A member has no room where the bitmap would be, or its format cannot say so.
    #[error("a member has no room for the bitmap")]
    NoRoom,
    /// Nowhere to note bad blocks.
    #[error("it has no bad-block log, or no room left in it")]
    NoBadBlockLog,
    /// Another change of this kind is under way.
    #[error("another change is under way; try again in a moment")]
    Busy,
    /// Blocks that are not where the member has data.
    #[error("that is not within the data of the member")]
    OutOfRange,
    /// Resync or recovery runs, or is needed, and comes first.
    #[error("members are being synced; that comes first")]
    Syncing,
}

/// What is written to md's `sync_action`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncRequest {
    /// Look for disagreement.
    Check,
    /// Look for disagreement and end it.
    Repair,
    /// Interrupt what runs; what the members need begins again by itself.
    Idle,
    /// Interrupt what runs, and begin nothing.
    Freeze,
}

/// Something happened that people or monitors want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// This member failed and is not used any more.
    MemberFailed {
        /// The member.
        member: MemberId,
    },
    /// More members failed than the level bears: writes fail from now on, and superblocks stay as they are.
    Broken,
    /// `array_state` changed.
    StateChanged(ArrayState),
    /// This member holds its slot's data now.
    MemberInSync {
        /// The member.
        member: MemberId,
    },
    /// This member has been replaced and is not used any more.
    MemberReplaced {
        /// The member.
        member: MemberId,
    },
    /// A block that could not be read was found elsewhere and written anew.
    ReadErrorCorrected {
        /// The member.
        member: MemberId,
        /// Device sector.
        start: Sector,
        /// Length.
        len: Sectors,
    },
    /// A write failed there; the member stays, and the range is on its list of bad blocks.
    BadBlocks {
        /// The member.
        member: MemberId,
        /// Device sector.
        start: Sector,
        /// Length.
        len: Sectors,
    },
    /// A sync began.
    SyncStarted {
        /// Which.
        action: SyncAction,
    },
    /// A sync ended.
    SyncEnded {
        /// Which.
        action: SyncAction,
        /// It came to its end; otherwise it goes on later from its checkpoint.
        complete: bool,
        /// What came of it.
        report: Arc<SyncEnd>,
    },
    /// The array has a write-intent bitmap now.
    BitmapAdded,
    /// The array has no write-intent bitmap any more.
    BitmapRemoved,
    /// Requests are kept back, and those of before have ended.
    Suspended {
        /// Writes to array sectors from here on.
        lo: Sector,
        /// To here.
        hi: Sector,
        /// All requests.
        all: bool,
    },
    /// Nothing is kept back any more.
    Resumed,
    /// Reads avoid this member from now on, or do so no more.
    WriteMostly {
        /// The member.
        member: MemberId,
        /// They do.
        on: bool,
    },
    /// Answer to [`Command::Stop`]. Nothing is sent or written after it.
    Stopped {
        /// Whether members and superblocks are in order.
        result: Result<(), StopError>,
    },
}

/// Why an array could not be left in order. Its superblocks say so: it will be resynced, or assembled degraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// Too many members failed.
    #[error("the array has lost too many members and was left as it is; check the members, then assemble with --force")]
    Broken,
    /// A member could not make its data durable and has no replacement.
    #[error(
        "a member could not make its data durable; the array stays marked dirty and will be resynced when it is started"
    )]
    FlushFailed,
}

/// md's `array_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayState {
    /// No write is under way and the superblocks say so.
    Clean,
    /// Writes may be under way.
    Active,
    /// Marked dirty, but nobody is writing.
    ActiveIdle,
    /// A write waits for the dirty mark.
    WritePending,
    /// Nobody has written yet; the first write makes the array active.
    ReadAuto,
    /// Every request waits.
    Suspended,
    /// Writes are refused.
    ReadOnly,
    /// Too many members failed.
    Broken,
    /// Stopped.
    Clear,
}

impl ArrayState {
    /// md's word for it.
    pub const fn name(self) -> &'static str {
        match self {
            ArrayState::Clean => "clean",
            ArrayState::Active => "active",
            ArrayState::ActiveIdle => "active-idle",
            ArrayState::WritePending => "write-pending",
            ArrayState::ReadAuto => "read-auto",
            ArrayState::Suspended => "suspended",
            ArrayState::ReadOnly => "readonly",
            ArrayState::Broken => "broken",
            ArrayState::Clear => "clear",
        }
    }
}

/// The array at this moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// In md's words.
    pub array_state: ArrayState,
    /// The newest map.
    pub map: Arc<MemberMap>,
    /// Slots without an in-sync member.
    pub degraded: usize,
    /// Update counter of the newest superblock round.
    pub events: u64,
    /// The write-intent bitmap.
    pub bitmap: Option<BitmapStatus>,
    /// Resync, recovery, check and repair.
    pub sync: SyncStatus,
    /// By member: sectors that could not be read and were written anew since it was added (md's `errors`).
    pub read_errors: Vec<u64>,
    /// What is kept back.
    pub suspended: SuspendStatus,
    /// A bitmap is being added or removed, or a flag written, or the array goes to rest.
    pub changing: bool,
    /// The superblocks say that nobody is writing.
    pub clean: bool,
    /// md's `safe_mode_delay`; `None` for never.
    pub safe_mode_delay: Option<Nanos>,
    /// md's `max_read_errors`.
    pub max_read_errors: u32,
    /// md's `fail_last_dev`.
    pub fail_last: bool,
    /// Work done since the start.
    pub counters: Counters,
}

/// What is kept back at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuspendStatus {
    /// md's `suspend_lo`.
    pub lo: Sector,
    /// md's `suspend_hi`.
    pub hi: Sector,
    /// Everything is.
    pub all: bool,
    /// What came before is still under way.
    pub pending: bool,
}

/// What is being synced at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncStatus {
    /// What runs.
    pub action: Option<SyncAction>,
    /// A check or repair that was asked for and has not begun.
    pub requested: Option<SyncAction>,
    /// md's `sync_min`.
    pub min: Sector,
    /// md's `sync_max`; `None` for the end.
    pub max: Option<Sector>,
    /// Nothing begins until told to.
    pub frozen: bool,
    /// How far it is without a gap, and how far it goes: component sectors, for the resync of raid10 array sectors.
    pub done: Sectors,
    /// See `done`.
    pub total: Sectors,
    /// md's `sync_speed`, in KiB per second and member.
    pub kib_per_second: u64,
    /// md's `mismatch_cnt`: of the action that runs, or else the last one. Counted in pages of 8 sectors.
    pub mismatch_sectors: u64,
    /// The last action that ended.
    pub last: Option<Arc<SyncEnd>>,
    /// md's `sync_speed_min`.
    pub speed_min: u64,
    /// md's `sync_speed_max`.
    pub speed_max: u64,
}

/// What came of a sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncEnd {
    /// Which it was.
    pub action: SyncAction,
    /// It came to its end.
    pub complete: bool,
    /// Where it began.
    pub start: Sector,
    /// How far it got.
    pub end: Sector,
    /// How long it took.
    pub took: Nanos,
    /// Sectors of the pages in which anything disagreed.
    pub mismatch_sectors: u64,
    /// Where, exactly; the first few thousand.
    pub mismatches: Vec<Mismatch>,
    /// Sectors that could not be read and were written anew.
    pub healed_sectors: u64,
    /// What could not be done because what it needs cannot be read; the first few thousand ranges.
    pub unreadable: Vec<(Sector, Sectors)>,
}

/// The bitmap at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitmapStatus {
    /// mdstat's unit: pages of 2048 counters.
    pub pages: u64,
    /// Those with a bit set.
    pub pages_used: u64,
    /// Bits.
    pub bits: u64,
    /// Bits set.
    pub dirty: u64,
    /// What a bit covers.
    pub chunk: Sectors,
    /// Sectors from each member's superblock to its place.
    pub offset: i64,
    /// Events when a bit was last cleared for good.
    pub events_cleared: u64,
}

/// Work done since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Rounds of superblock writes.
    pub superblock_rounds: u64,
    /// Bitmap pages written, each to all members.
    pub bitmap_pages: u64,
    /// Units of partial parity logs written.
    pub log_units: u64,
    /// Rounds of flushes.
    pub flush_rounds: u64,
    /// Flushes asked for by shards.
    pub flushes: u64,
}
