//! How fast a sync goes: as fast as it can while nobody else is there, at a floor while clients are busy.

use std::collections::{BTreeSet, VecDeque};

use raidus_units::{Nanos, Sectors};

use crate::msg::ShardId;

/// md's `sync_speed_min` and `sync_speed_max`, in KiB per second and member, and what was measured.
#[derive(Debug)]
pub(super) struct Speed {
    pub min: u64,
    pub max: u64,
    /// Shards that have clients, as they said last.
    busy: BTreeSet<ShardId>,
    /// Shards are asked again then.
    ask_at: Nanos,
    /// Not before this the next window.
    next_at: Nanos,
    /// Where the sync was at moments of the last half minute, oldest first.
    marks: VecDeque<Mark>,
    done: Sectors,
    /// The newest moment that is known of.
    now: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Nanos,
    done: Sectors,
}

/// md's: the speed is that of the last ten marks, which are three seconds apart.
const MARKS: usize = 10;
const MARK_EVERY: Nanos = Nanos::from_millis(3000);
/// Shards are asked whether they have clients: as often as this while none has any, so that a client that comes does not wait
/// behind many windows.
const ASK_IDLE: Nanos = Nanos::from_millis(5);
/// As often as this while clients are there, when their end is all that can change anything.
const ASK_BUSY: Nanos = Nanos::from_millis(250);
/// What is measured over less says little.
const MEASURED_MIN: Nanos = Nanos::from_millis(1000);

impl Speed {
    pub fn new(min: u64, max: u64) -> Speed {
        Speed {
            min: min.max(1),
            max: max.max(1),
            busy: BTreeSet::new(),
            ask_at: Nanos(0),
            next_at: Nanos(0),
            marks: VecDeque::new(),
            done: Sectors::ZERO,
            now: Nanos(0),
        }
    }

    pub fn set(&mut self, min: Option<u64>, max: Option<u64>) {
        self.min = min.unwrap_or(self.min).max(1);
        self.max = max.unwrap_or(self.max).max(1);
        self.next_at = Nanos(0);
    }

    pub fn begin(&mut self, now: Nanos) {
        (self.next_at, self.ask_at, self.now, self.done) = (now, now, now, Sectors::ZERO);
        self.marks.clear();
        self.marks.push_back(Mark { at: now, done: Sectors::ZERO });
    }

    /// Whether shards are to be asked now whether they have clients.
    pub fn asks(&mut self, now: Nanos) -> bool {
        let due = now >= self.ask_at;
        if due {
            self.ask_at = now.plus(if self.busy.is_empty() { ASK_IDLE } else { ASK_BUSY });
        }
        due
    }

    pub fn on_load(&mut self, now: Nanos, shard: ShardId, busy: bool) {
        if busy {
            self.busy.insert(shard);
        } else if self.busy.remove(&shard) && self.busy.is_empty() {
            self.next_at = self.next_at.min(now);
        }
    }

    pub fn on_done(&mut self, now: Nanos, len: Sectors) {
        self.done += len;
        self.pass(now);
    }

    /// Time passes, whether or not anything is done in it.
    pub fn pass(&mut self, now: Nanos) {
        self.now = now;
        if self.marks.back().is_some_and(|mark| now >= mark.at.plus(MARK_EVERY)) {
            self.marks.push_back(Mark { at: now, done: self.done });
            if self.marks.len() > MARKS {
                self.marks.pop_front();
            }
        }
    }

    /// A window of this length goes out: how long until the next.
    pub fn on_issued(&mut self, now: Nanos, len: Sectors) {
        let speed = if self.busy.is_empty() { self.max } else { self.min.min(self.max) };
        let cost = (u128::from(len.0) * 1_000_000_000 / 2).div_ceil(u128::from(speed));
        self.next_at = self.next_at.max(now).plus(Nanos(u64::try_from(cost).unwrap_or(u64::MAX)));
        if speed == u64::MAX {
            self.next_at = now;
        }
    }

    /// When the next window may go out.
    pub fn next_at(&self) -> Nanos {
        self.next_at
    }

    /// When there is something to do for a sync that has room for a window.
    pub fn timeout(&self) -> Nanos {
        if self.busy.is_empty() { self.next_at } else { self.next_at.min(self.ask_at) }
    }

    /// Windows under way at once: few while clients are busy, so that they wait little.
    pub fn depth(&self, shards: u16) -> usize {
        if self.busy.is_empty() { 2 * usize::from(shards.max(1)) } else { 1 }
    }

    /// KiB per second since the oldest mark.
    pub fn measured(&self) -> u64 {
        let Some(mark) = self.marks.front() else { return 0 };
        let took = self.now.since(mark.at).max(MEASURED_MIN);
        let done = (self.done - mark.done).kib();
        (u128::from(done) * 1_000_000_000 / u128::from(took.0)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_is_that_of_the_last_half_minute() {
        let mut speed = Speed::new(1000, u64::MAX);
        let second = |n: u64| Nanos::from_millis(n * 1000);
        speed.begin(second(100));
        // 1024 KiB in the first second is not known to be more before it is over.
        speed.on_done(Nanos::from_millis(100_250), Sectors(2048));
        assert_eq!(speed.measured(), 1024);
        for n in 101..=160 {
            speed.on_done(second(n), Sectors(2048));
        }
        assert!((1000..1100).contains(&speed.measured()), "{}", speed.measured());
        // What went fast before is forgotten, and standing still counts.
        for n in 161..=200 {
            speed.pass(second(n));
        }
        assert_eq!(speed.measured(), 0);
    }

    #[test]
    fn any_shard_with_clients_slows_and_the_last_that_has_none_lets_go() {
        let mut speed = Speed::new(1024, 1024 * 1024);
        let ms = Nanos::from_millis;
        speed.begin(ms(0));
        assert!(speed.asks(ms(0)) && !speed.asks(ms(1)));
        for shard in 0..2 {
            speed.on_load(ms(1), ShardId(shard), true);
        }
        speed.on_issued(ms(1), Sectors(2048));
        // A window of 1 MiB at 1 MiB/s.
        assert_eq!((speed.next_at(), speed.depth(2)), (ms(1001), 1));
        assert!(speed.asks(ms(5)) && !speed.asks(ms(6)));
        assert_eq!(speed.timeout(), ms(255));
        speed.on_load(ms(255), ShardId(0), false);
        assert_eq!((speed.next_at(), speed.depth(2)), (ms(1001), 1));
        speed.on_load(ms(256), ShardId(1), false);
        assert_eq!((speed.next_at(), speed.depth(2)), (ms(256), 4));
    }
}
