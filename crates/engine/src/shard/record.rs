//! When a write may be acknowledged although members failed: only once the failure is on record.

use std::sync::Arc;

use raidus_units::{MemberId, Nanos};

use super::{OpRef, Shard};
use crate::io::Output;
use crate::map::{MemberMap, MemberState};
use crate::msg::{Message, Peer};

/// What this shard knows about recorded failures.
#[derive(Debug)]
pub struct Record {
    /// Newest epoch that is durable and in force on every shard.
    durable: u64,
    /// Per member: reported by this shard, not yet answered.
    reported: Vec<bool>,
    /// Per member: the epoch that first showed it failed.
    failed_in: Vec<Option<u64>>,
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
        Record {
            durable: map.epoch,
            reported: vec![false; map.members.len()],
            failed_in: map.members.iter().map(failed).collect(),
        }
    }

    fn is_recorded(&self, member: MemberId) -> bool {
        self.failed_in[member.index()].is_some_and(|epoch| epoch <= self.durable)
    }

    /// Judges a write planned by the map of `epoch` that failed on `failed`.
    pub fn verdict(&self, epoch: u64, failed: &[MemberId]) -> Verdict {
        if epoch <= self.durable && failed.iter().all(|m| self.is_recorded(*m)) {
            Verdict::Recorded
        } else {
            Verdict::Pending
        }
    }
}

impl Shard {
    /// A write (not a read) failed on a member.
    pub(super) fn report_failure(&mut self, member: MemberId) {
        let known = self.record.failed_in[member.index()].is_some();
        if !known && !self.record.reported[member.index()] {
            self.record.reported[member.index()] = true;
            let message = Message::MemberFailed { member, epoch: self.map.epoch };
            self.out.push_back(Output::Send { to: Peer::Control, message });
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
        failed.into_iter().for_each(|member| self.report_failure(member));
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
        self.record.reported.resize(map.members.len(), false);
        self.record.failed_in.resize(map.members.len(), None);
        self.reads_out.resize(map.members.len(), 0);
        for (i, member) in map.members.iter().enumerate() {
            match member.state {
                MemberState::Faulty | MemberState::Removed => {
                    self.record.failed_in[i].get_or_insert(map.epoch);
                    self.record.reported[i] = false;
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
        self.record.reported[member.index()] = false;
        for op in std::mem::take(&mut self.record_waiters) {
            let failed = match op {
                OpRef::Mirror(i) => &self.mirrors[i].failed,
                OpRef::Stripe(i) => &self.stripes[i].failed,
            };
            if failed.contains(&member) {
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
