//! How fast a sync goes: as fast as it can while nobody else is there, at a floor while clients are busy.

use raidus_units::{Nanos, Sectors};

/// md's `sync_speed_min` and `sync_speed_max`, in KiB per second and member, and what was measured.
#[derive(Debug)]
pub(super) struct Speed {
    pub min: u64,
    pub max: u64,
    busy: bool,
    /// Not before this the next window.
    next_at: Nanos,
    /// The last seconds: when they began, and what has been done since.
    mark: Nanos,
    since: Sectors,
    measured: u64,
}

/// How long a measurement lasts.
const MEASURE: Nanos = Nanos::from_millis(3000);

impl Speed {
    pub fn new(min: u64, max: u64) -> Speed {
        Speed {
            min: min.max(1),
            max: max.max(1),
            busy: false,
            next_at: Nanos(0),
            mark: Nanos(0),
            since: Sectors::ZERO,
            measured: 0,
        }
    }

    pub fn set(&mut self, min: Option<u64>, max: Option<u64>) {
        self.min = min.unwrap_or(self.min).max(1);
        self.max = max.unwrap_or(self.max).max(1);
        self.next_at = Nanos(0);
    }

    pub fn begin(&mut self, now: Nanos) {
        (self.next_at, self.mark, self.since, self.measured) = (now, now, Sectors::ZERO, 0);
    }

    pub fn on_done(&mut self, now: Nanos, len: Sectors, busy: bool) {
        self.busy = busy;
        self.since += len;
        let took = now.since(self.mark);
        if took >= MEASURE || self.measured == 0 && took > Nanos(0) {
            self.measured = (u128::from(self.since.kib()) * 1_000_000_000 / u128::from(took.0)) as u64;
        }
        if took >= MEASURE {
            (self.mark, self.since) = (now, Sectors::ZERO);
        }
    }

    /// A window of this length goes out: how long until the next.
    pub fn on_issued(&mut self, now: Nanos, len: Sectors) {
        let speed = if self.busy { self.min.min(self.max) } else { self.max };
        let cost = (u128::from(len.0) * 1_000_000_000 / 2).div_ceil(u128::from(speed));
        self.next_at = self.next_at.max(now).plus(Nanos(u64::try_from(cost).unwrap_or(u64::MAX)));
        if speed == u64::MAX {
            self.next_at = now;
        }
    }

    pub fn next_at(&self) -> Nanos {
        self.next_at
    }

    /// Windows under way at once: few while clients are busy, so that they wait little.
    pub fn depth(&self, shards: u16) -> usize {
        if self.busy { 1 } else { 2 * usize::from(shards.max(1)) }
    }

    pub fn measured(&self) -> u64 {
        self.measured
    }
}
