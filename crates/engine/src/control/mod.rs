//! Control: the one owner of superblocks, events, bitmap, member map, flush rounds and syncs.
//!
//! Inputs only change what Control knows; everything it does, it does at the end of a turn, so that what arrived together
//! is served together. There is one sequence of metadata writes (see `round`): at most one round is under way, and what
//! comes up meanwhile goes into the next. From this follow the orders that md's formats depend on:
//!
//! - before a lease: bitmap superblocks → superblocks (dirty) → bitmap pages, each durable everywhere before the next;
//! - before the clean mark: a flush of all members that began after the last lease came back → bitmap superblocks → superblocks;
//! - before a bit is cleared: such a flush, and `events_cleared` on disk;
//! - before a write that missed a failed member is acknowledged: the survivors' superblocks say that it failed;
//! - with partial parity logs: no superblock says dirty before they are emptied, no write of a stripe begins before it is logged, no log
//!   is written over before the members are flushed (see `ppl`).
//!
//! When more members are lost than the level bears, the array is *broken*: nothing is written any more, so that the superblocks
//! still tell how to put the array together if the members come back. (md records even such failures; after a cable or
//! controller outage its arrays have to be forced.)

mod badblocks;
mod bitmap;
mod failure;
mod flush;
mod heal;
mod leases;
mod life;
mod members;
mod outbox;
mod pause;
mod ppl;
mod round;
mod status;
mod superblock;
mod suspend;
mod sync;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use raidus_layout::Geometry;
use raidus_units::{MemberId, Nanos, Sectors};

use crate::config::{ArrayConfig, Tunables};
use crate::io::{Input, Output};
use crate::map::MemberMap;
use crate::msg::{Message, Peer, ShardId};

use badblocks::Rewritten;
use bitmap::Bitmap;
use failure::Failures;
use flush::{Caller, Flushes};
use heal::Heals;
use leases::Leases;
use life::Life;
use outbox::Outbox;
use pause::Pause;
use ppl::Logs;
use round::Round;
pub use status::{
    Addition, ArrayState, BitmapAddition, BitmapStatus, Command, CommandError, Counters, Event, Status, StopError,
    SuspendStatus, SyncEnd, SyncRequest, SyncStatus,
};
use superblock::Superblocks;
use suspend::Suspends;
use sync::Sync;

/// A `safe_mode_delay` that does not end.
const NEVER: Nanos = Nanos(u64::MAX);

/// The machine that owns what an array has only one of. See the module's documentation.
#[derive(Debug)]
pub struct Control {
    geometry: Geometry,
    tunables: Tunables,
    region: Sectors,
    epoch_seconds: u64,

    map: Arc<MemberMap>,
    /// The map has changed since it was last published.
    map_changed: bool,
    failures: Failures,
    broken: bool,
    /// A member of an array without redundancy failed: its data cannot be had, the rest can.
    impaired: bool,

    superblocks: Superblocks,
    bitmap: Option<Bitmap>,
    /// Partial parity logs, if the array has them.
    logs: Option<Logs>,
    /// Members whose bad-block log on disk is not what the map says.
    bad_logs: BTreeSet<MemberId>,
    rewritten: Rewritten,
    /// Those that are being written.
    logs_written: BTreeSet<MemberId>,
    round: Option<Round>,
    /// The superblocks on all members say dirty since a round of this session; leases may be out.
    marked: bool,
    /// No write has happened since all members were last flushed: superblocks may say clean.
    data_clean: bool,
    /// A superblock round has ended in this session.
    touched: bool,
    /// The members are flushed, so that the bits being cleared may go.
    clear_ready: bool,
    /// The last flush of Control's own failed: not again before `retry_at`.
    clean_failed: bool,
    retry_at: Nanos,

    leases: Leases,
    sync: Sync,
    heals: Heals,
    flushes: Flushes,
    /// Flushes that wait until a member's failure is on record.
    parked: Vec<Caller>,

    life: Life,
    /// Writes are being brought to a halt, for something that needs it.
    pause: Option<Pause>,
    /// What is to be told once an epoch is durable.
    announcements: Vec<(u64, Event)>,
    suspends: Suspends,
    /// A mirror's last copy may fail.
    fail_last: bool,
    /// Nothing may be written.
    sealed: bool,
    state: ArrayState,
    counters: Counters,
    out: Outbox,
    events: VecDeque<Event>,
}

impl Control {
    /// Control of the array in `config`. Writes nothing until the first lease is asked for or a member fails.
    pub fn new(config: ArrayConfig) -> Control {
        let ArrayConfig { geometry, map, members, bitmap, region, tunables, epoch_seconds } = config;
        let sync = Sync::new(&tunables, &members);
        let superblocks = Superblocks::new(members, &map, bitmap.is_some());
        let bitmap = bitmap.map(|loaded| Bitmap::new(loaded, map.degraded() > 0));
        let sealed = map.read_only;
        let mut control = Control {
            failures: Failures::new(tunables.shards, map.epoch),
            broken: map.broken,
            impaired: false,
            map_changed: false,
            logs: superblocks.log_area().map(|(array, area)| Logs::new(array, area)),
            superblocks,
            bitmap,
            bad_logs: BTreeSet::new(),
            rewritten: Rewritten::default(),
            logs_written: BTreeSet::new(),
            round: None,
            marked: false,
            data_clean: true,
            touched: false,
            clear_ready: false,
            clean_failed: false,
            retry_at: Nanos(0),
            leases: Leases::default(),
            sync,
            heals: Heals::new(&map),
            region,
            flushes: Flushes::default(),
            parked: Vec::new(),
            pause: None,
            announcements: Vec::new(),
            suspends: Suspends::default(),
            fail_last: false,
            life: if sealed { Life::ReadOnly } else { Life::Running },
            sealed,
            state: ArrayState::Clean,
            counters: Counters::default(),
            out: Outbox::default(),
            events: VecDeque::new(),
            geometry,
            tunables,
            epoch_seconds,
            map,
        };
        control.state = control.array_state();
        control
    }

    /// Takes one input. Outputs follow at [`Control::end_turn`].
    pub fn handle(&mut self, now: Nanos, input: Input) {
        match input {
            Input::MemberDone { token, result } => {
                self.out.on_io_done();
                let is_log = self.logs.as_mut().is_some_and(|logs| logs.done(token, result));
                if !is_log && !self.flushes.done(token, result) {
                    self.on_round_io(token, result);
                }
            }
            Input::Message { from: Peer::Shard(shard), message } => self.on_message(now, shard, message),
            // What is due is looked at when the turn ends.
            Input::Timeout => {}
            Input::Request(_) | Input::Compared { .. } | Input::Message { from: Peer::Control, .. } => {
                debug_assert!(false, "an input for shards came to Control");
            }
        }
    }

    /// Does what the turn's inputs ask for.
    pub fn end_turn(&mut self, now: Nanos) {
        // Again while something ended at once: nobody would start another turn for it.
        while self.step(now) {}
        self.note_state();
    }

    /// Does what can be done now. Returns whether that made more possible.
    fn step(&mut self, now: Nanos) -> bool {
        if self.life == Life::Stopped {
            return false;
        }
        self.advance_round(now);
        self.settle_flushes(now);
        self.fail_logs();
        self.publish_map();
        self.announce_durable();
        self.announce_arrivals();
        self.settle_parked(now);
        self.wake();
        self.settle_logs();
        self.settle_wants();
        self.issue_heals();
        let sync_ended = self.pursue_sync(now);
        self.pursue_life(now);
        let paused = self.pursue_pause(now);
        self.begin_clearing(now);
        self.begin_clean(now);
        self.start_flush();
        let ended = self.start_round(now);
        ended
            || paused
            || sync_ended
            || self.map_changed
            || self.flushes.has_finished()
            || self.closing() && self.at_rest()
    }

    /// The next thing to do, in order.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.out.pop()
    }

    /// When to call [`Control::handle`] with [`Input::Timeout`], if nothing else comes before.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let clearing = self.may_clear().then(|| self.bitmap.as_ref()?.clearing_due()).flatten();
        let retry = self.wants_clean_flush().then_some(self.retry_at);
        [clearing, retry, self.sync_timeout()].into_iter().flatten().min()
    }

    /// What happened since the last call, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The array at this moment.
    pub fn status(&self) -> Status {
        Status {
            array_state: self.array_state(),
            map: self.map.clone(),
            degraded: self.map.degraded(),
            events: self.superblocks.events(),
            bitmap: self.bitmap.as_ref().map(|b| b.status(self.superblocks.bitmap_offset())),
            sync: self.sync_status(),
            read_errors: self.read_errors(),
            suspended: self.suspends.status(),
            changing: self.is_changing(),
            clean: !self.marked,
            safe_mode_delay: Some(self.tunables.safe_mode_delay).filter(|delay| *delay != NEVER),
            max_read_errors: self.max_read_errors(),
            fail_last: self.fail_last,
            counters: Counters { flush_rounds: self.flushes.rounds(), ..self.counters },
        }
    }

    fn on_message(&mut self, now: Nanos, shard: ShardId, message: Message) {
        match message {
            Message::LeaseWant(regions) => self.leases.want(shard, regions),
            Message::LeaseReturned(regions) => self.on_returned(now, shard, regions),
            Message::MemberFailed { member, range } => self.on_member_failed(shard, member, range),
            Message::BadBlocksWritten { member, start, len } => self.on_bad_blocks_written(member, start, len),
            Message::MapApplied { epoch } => self.failures.on_applied(shard, epoch),
            Message::Flush { token } => {
                self.counters.flushes += 1;
                self.flushes.request(Caller::Shard(shard, token));
            }
            Message::LogWant(wants) => self.on_log_wanted(shard, wants),
            Message::LogDone(ops) => self.on_logged_ended(shard, &ops),
            Message::Drained => self.on_drained(shard),
            Message::LeaseHeld => self.on_lease_held(shard),
            Message::Suspended { number } => self.on_suspended(shard, number),
            Message::ReadError { start, len } => self.on_read_error(start, len),
            Message::SyncBarred { window } => self.on_sync_barred(shard, window),
            Message::SyncLoad { busy } => self.on_sync_load(now, shard, busy),
            Message::SyncDone { window, outcome } => self.on_sync_done(now, window, *outcome),
            Message::LeaseGranted(_)
            | Message::LeaseRefused { .. }
            | Message::LeaseRevoke(_)
            | Message::LeaseHold
            | Message::LeaseRelease { .. }
            | Message::Suspend { .. }
            | Message::SafeModeDelay(_)
            | Message::LogGranted(_)
            | Message::Map(_)
            | Message::MapDurable { .. }
            | Message::FailureRefused { .. }
            | Message::FlushDone { .. }
            | Message::SyncBar { .. }
            | Message::SyncUnbar { .. }
            | Message::SyncLoadAsk
            | Message::Sync(_)
            | Message::Drain
            | Message::Stripe(_)
            | Message::StripeDone { .. } => debug_assert!(false, "a message for shards came to Control"),
        }
    }

    fn array_state(&self) -> ArrayState {
        match self.life {
            Life::Stopped => ArrayState::Clear,
            _ if self.broken || self.impaired => ArrayState::Broken,
            _ if self.suspends.status().all => ArrayState::Suspended,
            _ if self.map.read_only => ArrayState::ReadOnly,
            Life::ReadAuto => ArrayState::ReadAuto,
            _ if self.wanted() && !self.marked => ArrayState::WritePending,
            _ if self.marked && self.leases.none_held() => ArrayState::ActiveIdle,
            _ if self.marked => ArrayState::Active,
            _ => ArrayState::Clean,
        }
    }

    fn note_state(&mut self) {
        let state = self.array_state();
        if state != self.state {
            self.state = state;
            self.events.push_back(Event::StateChanged(state));
        }
    }

    fn is_changing(&self) -> bool {
        self.pause.is_some() || !self.announcements.is_empty() || matches!(self.life, Life::Sealing { .. })
    }

    /// Whether the array is to be marked clean as soon as nobody writes.
    fn likes_clean(&self) -> bool {
        self.tunables.safe_mode_delay != NEVER || self.closing() || self.pause.is_some()
    }

    fn redundant(&self) -> bool {
        self.geometry.level().is_redundant()
    }

    fn degraded(&self) -> bool {
        self.map.degraded() > 0
    }

    fn wall_seconds(&self, now: Nanos) -> u64 {
        self.epoch_seconds.saturating_add(now.0 / 1_000_000_000)
    }
}
