//! Resync, recovery, check and repair as Control runs them.
//!
//! One action at a time goes over the members in windows, ascending, several under way at once. What is done without a gap from
//! the start is the *watermark*. Now and then, at the end, and when the action is interrupted, the members are flushed and the
//! watermark becomes the *checkpoint*: the map says it, so that shards rely on it, and the superblocks say it, so that the
//! next start goes on from there. Nothing ever relies on more than a checkpoint.
//!
//! Which action runs is md's choice: recovery if a member lacks data, or a spare can take an empty slot; else resync if members
//! may disagree; else what was asked for.

mod checkpoint;
mod choice;
mod run;
mod speed;
pub(super) mod windows;

use std::collections::BTreeSet;
use std::sync::Arc;

use raidus_units::{MemberId, Nanos, Sector, Sectors, Slot};

use super::Control;
use super::life::Life;
use super::status::{CommandError, Event, SyncEnd, SyncRequest, SyncStatus};
use crate::config::{MemberSetup, Tunables};
use crate::map::{Member, MemberMap, MemberState};
use crate::msg::{Message, ShardId};
use crate::sync::{SyncAction, SyncOutcome};

use run::{Run, Stop};
use speed::Speed;

/// After a sync that could not go on, nothing is tried for this long.
const RETRY: Nanos = Nanos::from_millis(5000);

/// What Control knows of syncs.
#[derive(Debug)]
pub(super) struct Sync {
    running: Option<Run>,
    /// What the operator asked for.
    requested: Option<SyncAction>,
    frozen: bool,
    pub(super) next_window: u64,
    /// Members that lack only what the bitmap says.
    pub(super) by_bitmap: BTreeSet<MemberId>,
    /// Members whose rebuild cannot go on: what they need cannot be read. Until the map changes.
    stuck: bool,
    retry_at: Nanos,
    speed: Speed,
    /// Members that hold their data as of this epoch, to be announced when it is durable.
    arrived: Vec<(MemberId, u64)>,
    last: Option<Arc<SyncEnd>>,
    /// md's `sync_min` and `sync_max`, in sectors of the address space of the action.
    pub(super) min: Sector,
    pub(super) max: Option<Sector>,
}
impl Sync {
    pub fn new(tunables: &Tunables, members: &[MemberSetup]) -> Sync {
        let by_bitmap = |m: &MemberSetup| m.superblock.member_update().recovery.is_some_and(|r| r.by_bitmap);
        let members = (0u16..).zip(members).filter(|(_, m)| by_bitmap(m)).map(|(id, _)| MemberId(id));
        Sync {
            running: None,
            requested: None,
            frozen: tunables.sync_frozen,
            next_window: 0,
            by_bitmap: members.collect(),
            stuck: false,
            retry_at: Nanos(0),
            speed: Speed::new(tunables.sync_speed_min, tunables.sync_speed_max),
            arrived: Vec::new(),
            last: None,
            min: Sector::ZERO,
            max: None,
        }
    }

    pub fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    /// The members are not what they were when the action began.
    pub fn on_members_changed(&mut self) {
        self.stuck = false;
        self.retry_at = Nanos(0);
        self.interrupt();
    }

    fn interrupt(&mut self) {
        if let Some(run) = &mut self.running {
            run.stop.get_or_insert(Stop::Interrupted);
        }
    }

    pub fn set_speed(&mut self, min: Option<u64>, max: Option<u64>) {
        self.speed.set(min, max);
    }

    fn status(&self, array_end: Sector) -> SyncStatus {
        let rest = SyncStatus {
            action: None,
            requested: self.requested,
            min: self.min,
            max: self.max,
            frozen: self.frozen,
            done: Sectors::ZERO,
            total: array_end.from_start(),
            kib_per_second: 0,
            mismatch_sectors: self.last.as_ref().map_or(0, |end| end.mismatch_sectors),
            last: self.last.clone(),
            speed_min: self.speed.min,
            speed_max: self.speed.max,
        };
        let Some(run) = &self.running else { return rest };
        SyncStatus {
            action: Some(run.action),
            done: run.watermark.from_start(),
            total: run.end.from_start(),
            kib_per_second: self.speed.measured(),
            mismatch_sectors: run.mismatch_sectors,
            ..rest
        }
    }
}

impl Control {
    /// Goes on with what is being synced, or begins something. Part of each step.
    ///
    /// Returns whether an action ended, so that another may begin.
    pub(super) fn pursue_sync(&mut self, now: Nanos) -> bool {
        if !self.redundant() {
            return false;
        }
        self.sync.speed.pass(now);
        if self.sync.running.is_none() {
            self.begin_sync(now);
        }
        if self.sync.running.is_none() {
            return false;
        }
        if !self.may_sync() {
            self.sync.interrupt();
        }
        if self.sync.speed.asks(now) {
            self.out.broadcast(self.tunables.shards, &Message::SyncLoadAsk);
        }
        self.issue_windows(now);
        self.take_checkpoint(now);
        self.sync.running.is_none()
    }

    /// Whether syncs may run at all.
    fn may_sync(&self) -> bool {
        self.life == Life::Running && self.pause.is_none() && !self.broken && !self.map.read_only && !self.sync.frozen
    }

    fn begin_sync(&mut self, now: Nanos) {
        if !self.may_sync() || !self.settled() || now < self.sync.retry_at {
            return;
        }
        let pairs = self.spares_to_seat();
        if !pairs.is_empty() {
            pairs.into_iter().for_each(|(slot, member)| self.seat(member, slot, false));
            return;
        }
        let Some((action, start, end)) = self.choose() else { return };
        if matches!(action, SyncAction::Check | SyncAction::Repair) {
            self.sync.requested = None;
        }
        self.sync.speed.begin(now);
        let rebuilding = |m: &Member| matches!(m.state, MemberState::Rebuilding { .. });
        let targets = (0u16..).zip(&self.map.members).filter(|(_, m)| rebuilding(m)).map(|(id, _)| MemberId(id));
        self.sync.running = Some(Run::new(action, targets.collect(), (start, end), now));
        self.events.push_back(Event::SyncStarted { action });
    }

    /// Whether what was decided about members is on record and in force. Before that, nothing is written to them.
    pub(super) fn settled(&self) -> bool {
        self.failures.all_durable() && !self.map_changed && self.round.is_none()
    }

    /// Makes a spare the (future) holder of a slot.
    pub(super) fn seat(&mut self, member: MemberId, slot: Slot, replaces: bool) {
        let epoch = self.change_map(|map: &mut MemberMap| {
            map.members[member.index()].state = MemberState::Rebuilding { slot, valid_to: Sector::ZERO };
            let entry = &mut map.slots[slot.index()];
            if replaces { entry.replacement = Some(member) } else { entry.member = Some(member) }
        });
        self.failures.on_change(epoch);
        // Its bitmap is older than anything.
        self.bitmap.iter_mut().for_each(|b| b.reseed());
        self.sync.on_members_changed();
    }

    pub(super) fn on_sync_done(&mut self, now: Nanos, window: u64, outcome: SyncOutcome) {
        let barred = matches!(self.geometry, raidus_layout::Geometry::Mirror(_));
        self.count_healed(now, &outcome.healed);
        if self.heals.on_done(window) {
            if barred {
                self.out.broadcast(self.tunables.shards, &Message::SyncUnbar { window });
            }
            return;
        }
        let Some(run) = &mut self.sync.running else { return };
        let Some(done) = run.windows.remove(&window) else { return };
        if barred {
            self.out.broadcast(self.tunables.shards, &Message::SyncUnbar { window });
        }
        self.sync.speed.on_done(now, done.hi - done.lo);
        run.note(&outcome);
        let map = &self.map;
        let recorded = |(member, sector, len): &(MemberId, Sector, Sectors)| {
            map.members.get(member.index()).is_some_and(|m| m.is_all_bad(*sector, *len))
        };
        if !outcome.failed_writes.iter().all(recorded) {
            run.stop.get_or_insert(Stop::Failed);
        } else if !outcome.unreadable.is_empty() && (run.action == SyncAction::Recover || self.broken) {
            run.stop = Some(Stop::Failed);
        } else {
            run.on_done(done.lo, done.hi);
        }
    }

    pub(super) fn on_sync_load(&mut self, now: Nanos, shard: ShardId, busy: bool) {
        self.sync.speed.on_load(now, shard, busy);
    }

    pub(super) fn on_sync_barred(&mut self, shard: ShardId, window: u64) {
        self.heals.on_barred(shard, window);
        let Some(window) = self.sync.running.as_mut().and_then(|run| run.windows.get_mut(&window)) else { return };
        window.barring.remove(&shard);
    }

    /// Says what has changed, and which members have become good, once that is on record.
    pub(super) fn announce_arrivals(&mut self) {
        let durable = self.failures.durable();
        let (told, rest) = std::mem::take(&mut self.sync.arrived).into_iter().partition(|(_, epoch)| *epoch <= durable);
        self.sync.arrived = rest;
        let told: Vec<(MemberId, u64)> = told;
        for (member, _) in told {
            self.events.push_back(Event::MemberInSync { member });
        }
        let (told, rest) =
            std::mem::take(&mut self.announcements).into_iter().partition(|(epoch, _)| *epoch <= durable);
        self.announcements = rest;
        let told: Vec<(u64, Event)> = told;
        self.events.extend(told.into_iter().map(|(_, event)| event));
    }

    pub(super) fn sync_status(&self) -> SyncStatus {
        self.sync.status(self.agreement_end())
    }

    /// When the sync wants to be looked at again.
    pub(super) fn sync_timeout(&self) -> Option<Nanos> {
        if !self.redundant() || !self.may_sync() || !self.settled() {
            return None;
        }
        match &self.sync.running {
            Some(run) if run.stop.is_none() && run.next < run.end && self.has_room(run) => {
                Some(self.sync.speed.timeout())
            }
            Some(_) => None,
            None if self.choose().is_some() || !self.spares_to_seat().is_empty() => Some(self.sync.retry_at),
            None => None,
        }
    }

    /// What the operator asks for.
    pub(super) fn on_sync_command(&mut self, request: SyncRequest) -> Result<(), CommandError> {
        match request {
            SyncRequest::Freeze => {
                self.sync.frozen = true;
                self.sync.interrupt();
            }
            SyncRequest::Idle => {
                self.sync.frozen = false;
                self.sync.requested = None;
                self.sync.stuck = false;
                self.sync.interrupt();
            }
            SyncRequest::Check | SyncRequest::Repair => {
                let busy = self.sync.running.is_some() || self.map.unsynced_from.is_some();
                if busy || self.rebuild_from().is_some() {
                    return Err(CommandError::Syncing);
                }
                self.sync.frozen = false;
                let check = request == SyncRequest::Check;
                self.sync.requested = Some(if check { SyncAction::Check } else { SyncAction::Repair });
            }
        }
        Ok(())
    }
}
