//! When a write may be acknowledged although members failed: only once the failure is on record.

use std::sync::Arc;

use raidus_units::{MemberId, Nanos, Sector, Sectors};

use super::{OpRef, Shard};
use crate::map::{MemberMap, MemberState};
use crate::msg::Message;

/// What this shard knows about recorded failures.
#[derive(Debug)]
pub struct Record {
    /// Newest epoch that is durable and in force on every shard.
    durable: u64,
    /// Per member: the epoch that first showed it failed.
    failed_in: Vec<Option<u64>>,
}

/// A write that failed on a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedWrite {
    pub member: MemberId,
    /// Device sector.
    pub sector: Sector,
    pub len: Sectors,
    /// The device is gone; otherwise it may be only these blocks.
    pub gone: bool,
}

/// Where a failed write stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Wait for Control.
    Pending,
    /// All failures are on record, and so is the map the write was planned by.
    Recorded,
}

impl Record {
    pub fn new(map: &MemberMap) -> Record {
        let failed = |m: &crate::map::Member| m.state.is_out().then_some(map.epoch);
        Record { durable: map.epoch, failed_in: map.members.iter().map(failed).collect() }
    }

    fn is_recorded(&self, member: MemberId) -> bool {
        self.failed_in[member.index()].is_some_and(|epoch| epoch <= self.durable)
    }
}

impl Shard {
    /// A write (not a read) failed on a member.
    pub(super) fn report_failure(&mut self, failed: FailedWrite) {
        let FailedWrite { member, sector, len, gone } = failed;
        let known = self.record.failed_in[member.index()].is_some() || self.is_known_bad(&failed);
        if !known {
            let range = (!gone).then_some((sector, len));
            self.tell_control(Message::MemberFailed { member, range });
        }
    }

    fn is_known_bad(&self, failed: &FailedWrite) -> bool {
        self.map.members.get(failed.member.index()).is_some_and(|m| m.is_all_bad(failed.sector, failed.len))
    }

    /// Judges a write planned by the map of `epoch`.
    pub(super) fn verdict(&self, epoch: u64, failed: &[FailedWrite]) -> Verdict {
        let map_is_durable = self.map.epoch <= self.record.durable;
        let recorded = |f: &FailedWrite| self.record.is_recorded(f.member) || map_is_durable && self.is_known_bad(f);
        if epoch <= self.record.durable && failed.iter().all(recorded) { Verdict::Recorded } else { Verdict::Pending }
    }

    /// A write reached blocks that were known as bad: they may be good again.
    pub(super) fn note_written(&mut self, member: MemberId, sector: Sector, len: Sectors) {
        if self.map.members.get(member.index()).is_some_and(|m| m.overlaps_bad(sector, len)) {
            self.tell_control(Message::BadBlocksWritten { member, start: sector, len });
        }
    }

    /// Lets a write wait until its failures are on record. They are reported again: Control may have answered the first
    /// report, for another write, while this one was still under way.
    pub(super) fn await_record(&mut self, now: Nanos, op: OpRef) {
        if self.map.broken {
            return self.fail_written(now, op);
        }
        let failed = match op {
            OpRef::Mirror(i) => self.mirrors[i].failed.clone(),
            OpRef::Stripe(i) => self.stripes[i].failed.clone(),
        };
        failed.into_iter().for_each(|failed| self.report_failure(failed));
        self.record_waiters.push(op);
    }

    /// The array has lost too much: nothing will be recorded any more, so what waits for a record has failed.
    fn fail_record_waiters(&mut self, now: Nanos) {
        for op in std::mem::take(&mut self.record_waiters) {
            self.fail_written(now, op);
        }
    }

    pub(super) fn on_map(&mut self, now: Nanos, map: Arc<MemberMap>) {
        // Devices may have joined.
        self.record.failed_in.resize(map.members.len(), None);
        self.reads_out.resize(map.members.len(), 0);
        for (i, member) in map.members.iter().enumerate() {
            match member.state {
                MemberState::Faulty | MemberState::Removed => {
                    self.record.failed_in[i].get_or_insert(map.epoch);
                }
                _ => self.record.failed_in[i] = None,
            }
        }
        self.tell_control(Message::MapApplied { epoch: map.epoch });
        self.map = map;
        if self.map.broken {
            self.fail_record_waiters(now);
        }
    }

    pub(super) fn on_map_durable(&mut self, now: Nanos, epoch: u64) {
        self.record.durable = self.record.durable.max(epoch);
        for op in std::mem::take(&mut self.record_waiters) {
            self.settle(now, op);
        }
    }

    /// The member is the last that holds the data and stays; what failed on it has failed.
    pub(super) fn on_failure_refused(&mut self, now: Nanos, member: MemberId, _epoch: u64) {
        for op in std::mem::take(&mut self.record_waiters) {
            let failed = match op {
                OpRef::Mirror(i) => &self.mirrors[i].failed,
                OpRef::Stripe(i) => &self.stripes[i].failed,
            };
            if failed.iter().any(|f| f.member == member) {
                self.fail_written(now, op);
            } else {
                self.record_waiters.push(op);
            }
        }
    }

    fn settle(&mut self, now: Nanos, op: OpRef) {
        match op {
            OpRef::Mirror(i) => self.settle_mirror(now, i),
            OpRef::Stripe(i) => self.settle_stripe(now, i),
        }
    }

    fn fail_written(&mut self, now: Nanos, op: OpRef) {
        let error = Err(crate::io::RequestError::Io);
        match op {
            OpRef::Mirror(i) => self.end_mirror_write(now, i, error, true),
            OpRef::Stripe(i) => self.end_stripe(now, i, error, true),
        }
    }
}
