//! Resync, recovery, check and repair as Control runs them.
//!
//! One action at a time goes over the members in windows, ascending, several under way at once. What is done without a gap from
//! the start is the *watermark*. Now and then, at the end, and when the action is interrupted, the members are flushed and the
//! watermark becomes the *checkpoint*: the map says it, so that shards rely on it, and the superblocks say it, so that the
//! next start goes on from there. Nothing ever relies on more than a checkpoint.
//!
//! Which action runs is md's choice: recovery if a member lacks data, or a spare can take an empty slot; else resync if members
//! may disagree; else what was asked for.

mod speed;
pub(super) mod windows;

use std::collections::{BTreeMap, BTreeSet};

use raidus_units::{MemberId, Nanos, Sector, Sectors, Slot};

use super::Control;
use super::flush::Caller;
use super::life::Life;
use super::status::{CommandError, Event, SyncEnd, SyncRequest, SyncStatus};
use crate::config::{MemberSetup, Tunables};
use crate::map::{Member, MemberMap, MemberState};
use crate::msg::{Message, ShardId};
use crate::sync::{Mismatch, SyncAction, SyncOutcome};

use speed::Speed;
use windows::Window;

/// Mismatches kept in a report; more are only counted.
const REPORT_MAX: usize = 4096;
/// Checkpoints are at most this far apart in time, and a sixteenth of the way (md's figures are the same and five minutes).
const CHECKPOINT_TIME: Nanos = Nanos::from_millis(60_000);
const CHECKPOINT_PARTS: u64 = 16;
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
    last: Option<SyncEnd>,
    /// md's `sync_min` and `sync_max`, in sectors of the address space of the action.
    pub(super) min: Sector,
    pub(super) max: Option<Sector>,
}

/// An action under way.
#[derive(Debug)]
struct Run {
    action: SyncAction,
    /// The members that are being rebuilt: those that were when the action began. Others have missed what is done already.
    targets: Vec<MemberId>,
    start: Sector,
    end: Sector,
    /// Where the next window begins.
    next: Sector,
    windows: BTreeMap<u64, Window>,
    /// Windows done beyond the watermark: start and end.
    done: BTreeMap<Sector, Sector>,
    watermark: Sector,
    checkpoint: Sector,
    checkpoint_at: Nanos,
    /// A flush for this watermark has been asked for.
    flushing: Option<Sector>,
    flushed: bool,
    /// The superblocks are told that replacements have all data, before those they replace go.
    replacing: bool,
    /// No new windows: why.
    stop: Option<Stop>,
    began: Nanos,
    mismatch_sectors: u64,
    mismatches: Vec<Mismatch>,
    healed_sectors: u64,
    unreadable: Vec<(Sector, Sectors)>,
}

/// Why an action ends before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The members changed, the operator said so, or the array comes to rest: what is done counts.
    Interrupted,
    /// Something could not be read or written.
    Failed,
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
        let last = self.last.clone();
        let Some(run) = &self.running else {
            let mismatch_sectors = last.as_ref().map_or(0, |end| end.mismatch_sectors);
            return SyncStatus {
                action: None,
                frozen: self.frozen,
                done: Sectors::ZERO,
                total: array_end.from_start(),
                kib_per_second: 0,
                mismatch_sectors,
                last,
                speed_min: self.speed.min,
                speed_max: self.speed.max,
            };
        };
        SyncStatus {
            action: Some(run.action),
            frozen: self.frozen,
            done: run.watermark.from_start(),
            total: run.end.from_start(),
            kib_per_second: self.speed.measured(),
            mismatch_sectors: run.mismatch_sectors,
            last,
            speed_min: self.speed.min,
            speed_max: self.speed.max,
        }
    }
}

impl Run {
    fn new(action: SyncAction, targets: Vec<MemberId>, (start, end): (Sector, Sector), now: Nanos) -> Run {
        Run {
            action,
            targets,
            start,
            end,
            next: start,
            windows: BTreeMap::new(),
            done: BTreeMap::new(),
            watermark: start,
            checkpoint: start,
            checkpoint_at: now,
            flushing: None,
            flushed: false,
            replacing: false,
            stop: None,
            began: now,
            mismatch_sectors: 0,
            mismatches: Vec::new(),
            healed_sectors: 0,
            unreadable: Vec::new(),
        }
    }

    /// Whether superblocks say how far it is.
    fn records(&self) -> bool {
        matches!(self.action, SyncAction::Recover | SyncAction::Resync)
    }

    /// Counts a window that needs no more work.
    fn on_done(&mut self, lo: Sector, hi: Sector) {
        self.done.insert(lo, hi);
        while let Some(hi) = self.done.remove(&self.watermark) {
            self.watermark = hi;
        }
    }

    fn report(&self, now: Nanos, complete: bool) -> SyncEnd {
        SyncEnd {
            action: self.action,
            complete,
            start: self.start,
            end: self.watermark,
            took: now.since(self.began),
            mismatch_sectors: self.mismatch_sectors,
            mismatches: self.mismatches.clone(),
            healed_sectors: self.healed_sectors,
            unreadable: self.unreadable.clone(),
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
        if self.sync.running.is_none() {
            self.begin_sync(now);
        }
        if self.sync.running.is_none() {
            return false;
        }
        if !self.may_sync() {
            self.sync.interrupt();
        }
        self.issue_windows(now);
        self.take_checkpoint(now);
        self.sync.running.is_none()
    }

    /// Whether syncs may run at all.
    fn may_sync(&self) -> bool {
        self.life == Life::Running && !self.broken && !self.map.read_only && !self.sync.frozen
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

    /// What to do next, and where.
    fn choose(&self) -> Option<(SyncAction, Sector, Sector)> {
        let component = Sector(self.geometry.component_sectors().0);
        if let Some(from) = self.rebuild_from().filter(|_| !self.sync.stuck) {
            return Some((SyncAction::Recover, from, component));
        }
        let end = self.agreement_end();
        if let Some(from) = self.map.unsynced_from.filter(|_| self.can_resync()) {
            return Some((SyncAction::Resync, from.min(end), end));
        }
        let action = self.sync.requested.filter(|_| self.map.unsynced_from.is_none())?;
        let max = self.sync.max.unwrap_or(end).min(end);
        Some((action, self.sync.min.min(max), max))
    }

    /// The end of the address space in which members are compared: component addresses, for raid10 array addresses.
    pub(super) fn agreement_end(&self) -> Sector {
        match &self.geometry {
            raidus_layout::Geometry::Mirror(g) => Sector(g.array_sectors().0),
            geometry => Sector(geometry.component_sectors().0),
        }
    }

    /// A parity array without redundancy left cannot be resynced; it waits for a recovery.
    fn can_resync(&self) -> bool {
        match &self.geometry {
            raidus_layout::Geometry::Parity(g) => self.map.degraded() < usize::from(g.parities()),
            _ => true,
        }
    }

    /// How far all members that are being rebuilt have got.
    fn rebuild_from(&self) -> Option<Sector> {
        let valid = |m: &Member| match m.state {
            MemberState::Rebuilding { valid_to, .. } => Some(valid_to),
            _ => None,
        };
        self.map.members.iter().filter_map(valid).min()
    }

    /// Empty slots, and the spares that can take them.
    fn spares_to_seat(&self) -> Vec<(Slot, MemberId)> {
        let slots = (0u16..).zip(&self.map.slots);
        let empty: Vec<Slot> = slots.filter(|(_, e)| e.member.is_none()).map(|(slot, _)| Slot(slot)).collect();
        if empty.is_empty() {
            return Vec::new();
        }
        let members = (0u16..).zip(&self.map.members);
        let spares = members.filter(|(_, m)| m.state == MemberState::Spare).map(|(id, _)| MemberId(id));
        let size = self.geometry.component_sectors();
        empty.into_iter().zip(spares.filter(|id| self.superblocks.can_take_slot(*id, size))).collect()
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
        self.sync.speed.on_done(now, done.hi - done.lo, outcome.busy);
        run.mismatch_sectors += mismatch_sectors(&outcome.mismatches);
        let room = REPORT_MAX.saturating_sub(run.mismatches.len());
        run.mismatches.extend(outcome.mismatches.iter().take(room));
        run.healed_sectors += outcome.healed.iter().map(|h| h.len.0).sum::<u64>();
        let room = REPORT_MAX.saturating_sub(run.unreadable.len());
        run.unreadable.extend(outcome.unreadable.iter().take(room));
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

    pub(super) fn on_sync_barred(&mut self, shard: ShardId, window: u64) {
        self.heals.on_barred(shard, window);
        let Some(window) = self.sync.running.as_mut().and_then(|run| run.windows.get_mut(&window)) else { return };
        window.barring.remove(&shard);
    }

    /// Flushes the members when it is time for a checkpoint, and ends the action when all is done.
    fn take_checkpoint(&mut self, now: Nanos) {
        let broken = self.broken;
        let Some(run) = &mut self.sync.running else { return };
        if run.flushing.is_some() {
            return;
        }
        let over = run.windows.is_empty() && (run.stop.is_some() || run.next == run.end);
        // Nothing new was done, or all of it is flushed: what a repair wrote is to last, too.
        let settled = run.checkpoint == run.watermark && (run.flushed || run.watermark < run.end);
        if over && (broken || settled) {
            return self.conclude(now);
        }
        let far = run.watermark.0.saturating_sub(run.checkpoint.0) >= (run.end.0 / CHECKPOINT_PARTS).max(1);
        let late = run.watermark > run.checkpoint && now >= run.checkpoint_at.plus(CHECKPOINT_TIME);
        if over || run.records() && run.stop.is_none() && (far || late) && run.watermark < run.end {
            run.flushing = Some(run.watermark);
            self.flushes.request(Caller::Sync);
        }
    }

    /// The members are flushed: what was done before is durable.
    pub(super) fn on_sync_flushed(&mut self, now: Nanos, succeeded: bool) {
        let Some(run) = &mut self.sync.running else { return };
        let Some(watermark) = run.flushing.take() else { return };
        if !succeeded {
            run.stop = Some(Stop::Failed);
            run.flushed = true;
            run.watermark = run.checkpoint;
            return;
        }
        run.flushed = run.watermark == watermark;
        if run.checkpoint == watermark {
            return;
        }
        run.checkpoint = watermark;
        run.checkpoint_at = now;
        let (action, complete) = (run.action, watermark == run.end && run.stop.is_none());
        if run.records() && !complete {
            self.record_checkpoint(action, watermark, now);
        }
    }

    fn record_checkpoint(&mut self, action: SyncAction, watermark: Sector, now: Nanos) {
        let targets = self.sync.running.as_ref().map_or(Vec::new(), |run| run.targets.clone());
        let epoch = self.change_map(|map| match action {
            SyncAction::Recover => {
                for target in targets {
                    let member = &mut map.members[target.index()];
                    if let MemberState::Rebuilding { valid_to, .. } = &mut member.state {
                        *valid_to = watermark.max(*valid_to);
                    }
                }
            }
            _ => map.unsynced_from = map.unsynced_from.map(|from| from.max(watermark)),
        });
        self.failures.on_change(epoch);
        if action == SyncAction::Resync && !self.degraded() {
            self.release_bits(now, Some(watermark));
        }
    }

    /// Ends the action. If a member is to be replaced, its successor first says on disk that it has all data: were both
    /// said in one round, a power cut in the middle could leave neither in the slot.
    fn conclude(&mut self, now: Nanos) {
        let replaces = self.map.slots.iter().any(|entry| entry.replacement.is_some());
        let Some(run) = &mut self.sync.running else { return };
        let reached = run.watermark == run.end && run.stop.is_none();
        if replaces && reached && run.action == SyncAction::Recover && !self.broken {
            if !std::mem::replace(&mut run.replacing, true) {
                let end = run.end;
                return self.record_checkpoint(SyncAction::Recover, end, now);
            }
            if !self.settled() {
                return;
            }
        }
        self.end_sync(now);
    }

    fn end_sync(&mut self, now: Nanos) {
        let Some(run) = self.sync.running.take() else { return };
        let complete = run.watermark == run.end && run.stop.is_none();
        let end = run.report(now, complete);
        match run.action {
            SyncAction::Recover if complete => self.finish_recovery(now, &run.targets),
            SyncAction::Resync if complete => self.finish_resync(now),
            _ => {}
        }
        if run.stop == Some(Stop::Failed) {
            self.sync.retry_at = now.plus(RETRY);
            self.sync.stuck = !run.unreadable.is_empty();
        }
        self.events.push_back(Event::SyncEnded { action: run.action, complete });
        self.sync.last = Some(end);
    }

    /// Members that were being rebuilt hold their data now; those they replace are done.
    fn finish_recovery(&mut self, now: Nanos, targets: &[MemberId]) {
        let mut arrived = Vec::new();
        let mut replaced = Vec::new();
        let epoch = self.change_map(|map| {
            for entry in &mut map.slots {
                if let Some(member) = entry.replacement.take_if(|member| targets.contains(member)) {
                    replaced.extend(entry.member);
                    entry.member = Some(member);
                }
            }
            for id in targets {
                let member = &mut map.members[id.index()];
                if let MemberState::Rebuilding { slot, .. } = member.state {
                    member.state = MemberState::InSync(slot);
                    arrived.push(*id);
                }
            }
            for member in &replaced {
                map.members[member.index()].state = MemberState::Faulty;
            }
        });
        self.failures.on_change(epoch);
        for member in replaced {
            self.events.push_back(Event::MemberReplaced { member });
        }
        for member in arrived {
            self.sync.by_bitmap.remove(&member);
            self.sync.arrived.push((member, epoch));
        }
        if !self.degraded() && self.map.unsynced_from.is_none() {
            self.release_bits(now, None);
        }
    }

    fn finish_resync(&mut self, now: Nanos) {
        let epoch = self.change_map(|map| map.unsynced_from = None);
        self.failures.on_change(epoch);
        if !self.degraded() {
            self.release_bits(now, None);
        }
    }

    /// Bits that were kept for a sync may go: all, or those of regions below `to`.
    fn release_bits(&mut self, now: Nanos, to: Option<Sector>) {
        let Some(bitmap) = &mut self.bitmap else { return };
        let leases = &self.leases;
        let region = self.region;
        let covered = |r: crate::msg::Region| to.is_none_or(|to| (r.0 + 1).saturating_mul(region.0) <= to.0);
        bitmap.release(now, covered, |r| leases.is_held(r));
    }

    /// Says which members have become good, once that is on record.
    pub(super) fn announce_arrivals(&mut self) {
        let durable = self.failures.durable();
        let (told, rest) = std::mem::take(&mut self.sync.arrived).into_iter().partition(|(_, epoch)| *epoch <= durable);
        self.sync.arrived = rest;
        let told: Vec<(MemberId, u64)> = told;
        for (member, _) in told {
            self.events.push_back(Event::MemberInSync { member });
        }
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
                Some(self.sync.speed.next_at())
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

/// md counts whole pages in which anything differs.
fn mismatch_sectors(mismatches: &[Mismatch]) -> u64 {
    const PAGE: u64 = 8;
    let mut counted = 0;
    let mut last = None;
    for m in mismatches {
        for page in m.start.0 / PAGE..(m.start.0 + m.len.0).div_ceil(PAGE) {
            if last != Some(page) {
                counted += PAGE;
                last = Some(page);
            }
        }
    }
    counted
}
