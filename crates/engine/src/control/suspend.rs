//! Keeping requests back on the operator's behalf.

use std::collections::BTreeSet;

use raidus_units::Sector;

use super::Control;
use super::status::{Event, SuspendStatus};
use crate::msg::{Message, ShardId, Suspension};

/// What is kept back, and which shards have come to that.
#[derive(Debug, Default)]
pub(super) struct Suspends {
    lo: Sector,
    hi: Sector,
    all: bool,
    /// What shards were told last, and its number.
    told: Suspension,
    number: u64,
    /// Shards on which something of before may be under way.
    busy: BTreeSet<ShardId>,
}

impl Suspends {
    pub fn status(&self) -> SuspendStatus {
        SuspendStatus { lo: self.lo, hi: self.hi, all: self.all, pending: !self.busy.is_empty() }
    }

    fn what(&self) -> Suspension {
        match (self.all, self.lo, self.hi) {
            (true, ..) => Suspension::Everything,
            (false, lo, hi) if lo < hi => Suspension::Writes { lo, hi },
            _ => Suspension::Nothing,
        }
    }
}

impl Control {
    pub(super) fn suspend(&mut self, lo: Option<Sector>, hi: Option<Sector>, all: Option<bool>) {
        let s = &mut self.suspends;
        (s.lo, s.hi, s.all) = (lo.unwrap_or(s.lo), hi.unwrap_or(s.hi), all.unwrap_or(s.all));
        let what = s.what();
        if what == s.told {
            return;
        }
        if what == Suspension::Nothing {
            self.events.push_back(Event::Resumed);
        }
        s.told = what;
        s.number += 1;
        let shards = self.tunables.shards;
        s.busy = (0..shards).map(ShardId).collect();
        self.out.broadcast(shards, &Message::Suspend { number: s.number, what });
    }

    pub(super) fn on_suspended(&mut self, shard: ShardId, number: u64) {
        let s = &mut self.suspends;
        if number != s.number || !s.busy.remove(&shard) || !s.busy.is_empty() || s.told == Suspension::Nothing {
            return;
        }
        self.events.push_back(Event::Suspended { lo: s.lo, hi: s.hi, all: s.all });
    }
}
