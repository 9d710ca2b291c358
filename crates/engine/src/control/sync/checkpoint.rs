//! Checkpoints, and the end of an action.

use std::sync::Arc;

use raidus_units::{MemberId, Nanos, Sector};

use super::run::Stop;
use super::{Control, RETRY};
use crate::control::flush::Caller;
use crate::control::status::Event;
use crate::map::MemberState;
use crate::sync::SyncAction;

/// Checkpoints are at most this far apart in time, and a sixteenth of the way (md's figures are the same and five minutes).
const CHECKPOINT_TIME: Nanos = Nanos::from_millis(60_000);
const CHECKPOINT_PARTS: u64 = 16;

impl Control {
    /// Flushes the members when it is time for a checkpoint, and ends the action when all is done.
    pub(super) fn take_checkpoint(&mut self, now: Nanos) {
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
    pub(in crate::control) fn on_sync_flushed(&mut self, now: Nanos, succeeded: bool) {
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

    pub(super) fn record_checkpoint(&mut self, action: SyncAction, watermark: Sector, now: Nanos) {
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
    pub(super) fn conclude(&mut self, now: Nanos) {
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

    pub(super) fn end_sync(&mut self, now: Nanos) {
        let Some(run) = self.sync.running.take() else { return };
        let complete = run.watermark == run.end && run.stop.is_none();
        let report = Arc::new(run.report(now, complete));
        match run.action {
            SyncAction::Recover if complete => self.finish_recovery(now, &run.targets),
            SyncAction::Resync if complete => self.finish_resync(now),
            _ => {}
        }
        if run.stop == Some(Stop::Failed) {
            self.sync.retry_at = now.plus(RETRY);
            self.sync.stuck = !run.unreadable.is_empty();
        }
        self.sync.last = Some(Arc::clone(&report));
        self.events.push_back(Event::SyncEnded { action: run.action, complete, report });
    }

    /// Members that were being rebuilt hold their data now; those they replace are done.
    pub(super) fn finish_recovery(&mut self, now: Nanos, targets: &[MemberId]) {
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

    pub(super) fn finish_resync(&mut self, now: Nanos) {
        let epoch = self.change_map(|map| map.unsynced_from = None);
        self.failures.on_change(epoch);
        if !self.degraded() {
            self.release_bits(now, None);
        }
    }

    /// Bits that were kept for a sync may go: all, or those of regions below `to`.
    pub(super) fn release_bits(&mut self, now: Nanos, to: Option<Sector>) {
        let Some(bitmap) = &mut self.bitmap else { return };
        let leases = &self.leases;
        let region = self.region;
        let covered = |r: crate::msg::Region| to.is_none_or(|to| (r.0 + 1).saturating_mul(region.0) <= to.0);
        bitmap.release(now, covered, |r| leases.is_held(r));
    }
}
