//! Which failures are in force and on record.
//!
//! A failed member is taken out of the map. The new map's epoch is *durable* once the survivors' superblocks say so and every
//! shard plans by it; only then may a write that missed the member be acknowledged.

use std::collections::BTreeSet;
use std::sync::Arc;

use raidus_layout::Geometry;
use raidus_units::{MemberId, Sector, Sectors, Slot};

use super::Control;
use super::status::Event;
use crate::map::{MemberMap, MemberState};
use crate::msg::{Message, ShardId};

#[derive(Debug)]
pub(super) struct Failures {
    /// Per shard: the epoch it plans by.
    applied: Vec<u64>,
    /// The newest epoch that changed what superblocks say of members.
    changed: u64,
    /// The newest epoch without a member that was in use before.
    lost: u64,
    /// The epoch of the last round of superblocks.
    said: u64,
    /// The newest epoch that the superblocks say, as often as they must.
    recorded: u64,
    /// The newest epoch that is recorded and in force everywhere.
    durable: u64,
    /// Reports that have not been answered.
    reports: BTreeSet<(ShardId, MemberId)>,
}

impl Failures {
    /// Nothing has happened since the map of `epoch`.
    pub fn new(shards: u16, epoch: u64) -> Failures {
        Failures {
            applied: vec![epoch; usize::from(shards)],
            changed: epoch,
            lost: epoch,
            said: epoch,
            recorded: epoch,
            durable: epoch,
            reports: BTreeSet::new(),
        }
    }

    pub fn on_report(&mut self, shard: ShardId, member: MemberId) {
        self.reports.insert((shard, member));
    }

    pub fn on_applied(&mut self, shard: ShardId, epoch: u64) {
        if let Some(applied) = self.applied.get_mut(usize::from(shard.0)) {
            *applied = epoch.max(*applied);
        }
    }

    /// The map of `epoch` says something new about a member.
    pub fn on_change(&mut self, epoch: u64) {
        self.changed = epoch;
    }

    /// The map of `epoch` is without a member.
    fn on_loss(&mut self, epoch: u64) {
        self.on_change(epoch);
        self.lost = epoch;
    }

    /// The superblocks say what the map of `epoch` says. With `twice`, a loss is on record only when they have said it again.
    pub fn on_said(&mut self, epoch: u64, twice: bool) {
        let before = std::mem::replace(&mut self.said, epoch);
        let once = twice && before < self.lost;
        self.recorded = self.recorded.max(if once { before } else { epoch });
    }

    /// Whether superblocks lag behind the map.
    pub fn to_record(&self) -> bool {
        self.changed > self.recorded
    }

    /// Whether every change so far is on record and in force.
    pub fn all_durable(&self) -> bool {
        self.changed <= self.durable
    }

    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// An epoch that has become durable since the last call.
    pub fn newly_durable(&mut self) -> Option<u64> {
        let in_force = self.applied.iter().copied().min().unwrap_or(self.changed);
        let epoch = if self.to_record() { in_force.min(self.recorded) } else { in_force };
        if epoch <= self.durable {
            return None;
        }
        self.durable = epoch;
        if self.all_durable() {
            self.reports.clear();
        }
        Some(epoch)
    }

    /// Whether every shard plans by this map.
    pub fn in_force(&self, epoch: u64) -> bool {
        self.applied.iter().all(|applied| *applied >= epoch)
    }

    /// Gives up: the reports that will never be answered by a durable map.
    pub fn abandon(&mut self) -> BTreeSet<(ShardId, MemberId)> {
        std::mem::take(&mut self.reports)
    }

    /// Forgets a report that was answered otherwise.
    pub fn answered(&mut self, member: MemberId) -> Vec<ShardId> {
        let shards = self.reports.iter().filter(|(_, m)| *m == member).map(|(shard, _)| *shard).collect();
        self.reports.retain(|(_, m)| *m != member);
        shards
    }
}

/// What a member's failure means for the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It is out already.
    Out,
    /// The others hold all data.
    Bearable,
    /// A mirror without another copy: it stays, since a copy with a bad spot is better than none.
    LastCopy,
    /// More are lost than the parity bears.
    TooMany,
    /// No redundancy at all.
    NoRedundancy,
}

impl Control {
    pub(super) fn on_member_failed(&mut self, shard: ShardId, member: MemberId, range: Option<(Sector, Sectors)>) {
        let Some(state) = self.map.members.get(member.index()).map(|m| m.state) else { return };
        if state.is_out() && self.failures.all_durable() && !self.broken {
            self.out.send(shard, Message::MapDurable { epoch: self.failures.durable() });
            return;
        }
        self.failures.on_report(shard, member);
        if let Some((start, len)) = range.filter(|_| !self.broken && !self.sealed)
            && self.record_bad_blocks(member, start, len)
        {
            if self.failures.all_durable() {
                self.failures.answered(member);
                self.out.send(shard, Message::MapDurable { epoch: self.failures.durable() });
            }
            return;
        }
        if self.broken || self.sealed || !self.fail(member) {
            self.refuse_failure(member);
        }
    }

    /// Takes a member out if the array can bear it. If not, the member stays, and an array that loses data by it breaks.
    pub(super) fn fail(&mut self, member: MemberId) -> bool {
        match self.judge(member) {
            Verdict::Out => true,
            Verdict::Bearable => {
                self.take_out(member);
                true
            }
            Verdict::LastCopy => false,
            Verdict::TooMany => {
                self.break_array();
                false
            }
            Verdict::NoRedundancy => {
                if !self.impaired {
                    self.impaired = true;
                    self.events.push_back(Event::Broken);
                }
                false
            }
        }
    }

    /// Whether the array can do without the member.
    pub(super) fn can_bear(&self, member: MemberId) -> bool {
        self.judge(member) == Verdict::Bearable
    }

    fn judge(&self, member: MemberId) -> Verdict {
        match self.map.members.get(member.index()).map(|m| m.state) {
            None | Some(MemberState::Faulty | MemberState::Removed) => return Verdict::Out,
            Some(MemberState::Spare | MemberState::Journal | MemberState::Rebuilding { .. }) => {
                return Verdict::Bearable;
            }
            Some(MemberState::InSync(_)) => {}
        }
        let others = |s: Slot| {
            let holder = self.map.member_at(s).filter(|(id, _)| *id != member);
            holder.is_some_and(|(_, m)| matches!(m.state, MemberState::InSync(_)))
        };
        match &self.geometry {
            Geometry::Linear(_) | Geometry::Raid0(_) => Verdict::NoRedundancy,
            geometry if geometry.enough(&others) => Verdict::Bearable,
            Geometry::Mirror(_) if self.fail_last => Verdict::TooMany,
            Geometry::Mirror(_) => Verdict::LastCopy,
            Geometry::Parity(_) => Verdict::TooMany,
        }
    }

    pub(super) fn take_out(&mut self, member: MemberId) {
        let epoch = self.change_map(|map| {
            map.members[member.index()].state = MemberState::Faulty;
            for entry in &mut map.slots {
                if entry.replacement == Some(member) {
                    entry.replacement = None;
                }
                if entry.member == Some(member) {
                    entry.member = entry.replacement.take();
                }
            }
        });
        self.failures.on_loss(epoch);
        self.sync.on_members_changed();
        if self.degraded() {
            self.bitmap.iter_mut().for_each(|b| b.keep_all());
        }
        self.events.push_back(Event::MemberFailed { member });
    }

    /// Stops writing for good: what is on the members is the best there will be.
    pub(super) fn break_array(&mut self) {
        if self.broken {
            return;
        }
        self.broken = true;
        self.round = None;
        self.sync.on_members_changed();
        self.change_map(|map| map.broken = true);
        self.events.push_back(Event::Broken);
    }

    /// Changes the map; it is published at the end of the turn, as one new version.
    pub(super) fn change_map(&mut self, change: impl FnOnce(&mut MemberMap)) -> u64 {
        let map = Arc::make_mut(&mut self.map);
        change(map);
        if !self.map_changed {
            map.epoch += 1;
            self.map_changed = true;
        }
        map.epoch
    }

    pub(super) fn publish_map(&mut self) {
        if !std::mem::take(&mut self.map_changed) {
            return;
        }
        self.out.broadcast(self.tunables.shards, &Message::Map(self.map.clone()));
        if self.broken {
            for (shard, member) in self.failures.abandon() {
                self.out.send(shard, Message::FailureRefused { member, epoch: self.map.epoch });
            }
        }
    }

    pub(super) fn announce_durable(&mut self) {
        if self.broken {
            return;
        }
        if let Some(epoch) = self.failures.newly_durable() {
            self.out.broadcast(self.tunables.shards, &Message::MapDurable { epoch });
        }
    }

    /// Tells everyone who reported the member that it stays. When the array breaks, they hear it after the map.
    fn refuse_failure(&mut self, member: MemberId) {
        if self.broken && self.map_changed {
            return;
        }
        for shard in self.failures.answered(member) {
            self.out.send(shard, Message::FailureRefused { member, epoch: self.map.epoch });
        }
    }
}
