//! What Control can be asked and what it tells of itself.

use std::sync::Arc;

use raidus_units::{MemberId, Sectors};

use crate::map::MemberMap;

/// What the operator asks of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Finish what is under way, mark the array clean, say [`Event::Stopped`].
    Stop,
    /// Refuse writes and mark the array clean (`true`), or accept them again.
    SetReadOnly(bool),
}

/// Something happened that people or monitors want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Work done since the start.
    pub counters: Counters,
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
    /// Rounds of flushes.
    pub flush_rounds: u64,
    /// Flushes asked for by shards.
    pub flushes: u64,
}
