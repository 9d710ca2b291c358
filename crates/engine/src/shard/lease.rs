//! The shard's side of write leases: which regions it holds, how many writes are under way in each.

use raidus_units::Nanos;

use crate::msg::Region;

#[derive(Clone, Copy, Debug, Default)]
struct Lease {
    state: State,
    /// Used since the last scan for idle regions.
    used: bool,
    /// Control wants it back.
    revoked: bool,
    writes: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    None,
    Wanted,
    Held,
}

/// What is known of every region of the array.
#[derive(Debug)]
pub struct LeaseTable {
    table: Vec<Lease>,
    held: Vec<Region>,
    writes: u64,
    /// Asked for in this turn.
    wants: Vec<Region>,
    /// To be given back at the end of this turn.
    returns: Vec<Region>,
    last_write: Nanos,
    next_scan: Nanos,
    /// No lease may be asked for.
    on_hold: bool,
}

/// A region without a write for this long is given back even while others are busy.
const SCAN: Nanos = Nanos::from_millis(5000);

impl LeaseTable {
    pub fn new(regions: u64) -> LeaseTable {
        LeaseTable {
            table: vec![Lease::default(); regions as usize],
            held: Vec::new(),
            writes: 0,
            wants: Vec::new(),
            returns: Vec::new(),
            last_write: Nanos(0),
            next_scan: Nanos(0),
            on_hold: false,
        }
    }

    /// Starts a write in the regions `first..=last` if all leases are held; otherwise asks for those that are not.
    pub fn begin(&mut self, now: Nanos, first: Region, last: Region) -> bool {
        let mut all = true;
        for r in first.0..=last.0 {
            let lease = &mut self.table[r as usize];
            if lease.state == State::None && !self.on_hold {
                lease.state = State::Wanted;
                self.wants.push(Region(r));
            }
            all &= lease.state == State::Held && !lease.revoked;
        }
        if all {
            for r in first.0..=last.0 {
                let lease = &mut self.table[r as usize];
                lease.writes += 1;
                lease.used = true;
            }
            self.writes += 1;
            self.last_write = now;
        }
        all
    }

    /// Ends a write. Returns whether a lease went back because of it, so that those who wait for it must ask anew.
    pub fn end(&mut self, now: Nanos, first: Region, last: Region) -> bool {
        let mut returned = false;
        for r in first.0..=last.0 {
            let lease = &mut self.table[r as usize];
            lease.writes -= 1;
            if lease.writes == 0 && lease.revoked {
                self.give_back(Region(r));
                returned = true;
            }
        }
        self.writes -= 1;
        self.last_write = now;
        returned
    }

    pub fn granted(&mut self, now: Nanos, region: Region) {
        let Some(lease) = self.table.get_mut(region.0 as usize) else { return };
        if lease.state != State::Held {
            *lease = Lease { state: State::Held, used: true, ..Lease::default() };
            if self.held.is_empty() {
                self.next_scan = now.plus(SCAN);
            }
            self.held.push(region);
            self.last_write = now;
        }
    }

    /// The region cannot be had.
    pub fn refused(&mut self, region: Region) {
        if let Some(lease) = self.table.get_mut(region.0 as usize)
            && lease.state == State::Wanted
        {
            lease.state = State::None;
        }
    }

    /// Control wants the region back. Returns whether it went back at once.
    pub fn revoke(&mut self, region: Region) -> bool {
        let Some(lease) = self.table.get_mut(region.0 as usize) else { return false };
        if lease.state != State::Held {
            return false;
        }
        lease.revoked = true;
        let idle = lease.writes == 0;
        if idle {
            self.give_back(region);
        }
        idle
    }

    /// Everything goes back as writes end, and nothing more is asked for.
    pub fn hold(&mut self) {
        self.on_hold = true;
        for region in self.held.clone() {
            self.revoke(region);
        }
    }

    /// Leases may be asked for again.
    pub fn resume(&mut self) {
        self.on_hold = false;
    }

    /// Whether nothing is held, as [`LeaseTable::hold`] demands.
    pub fn is_on_hold(&self) -> bool {
        self.on_hold && self.held.is_empty() && self.writes == 0
    }

    /// Gives back every lease without a write under way.
    pub fn return_idle(&mut self) {
        self.return_where(|_| true);
    }

    /// When to look again: at the end of the idle delay, or at the next scan.
    pub fn timeout(&self, idle: Nanos) -> Option<Nanos> {
        if self.held.is_empty() {
            return None;
        }
        let scan = self.next_scan;
        Some(if self.writes == 0 { scan.min(self.last_write.plus(idle)) } else { scan })
    }

    /// Gives back what is idle by now.
    pub fn on_timeout(&mut self, now: Nanos, idle: Nanos) {
        if self.writes == 0 && now >= self.last_write.plus(idle) {
            self.return_idle();
        } else if now >= self.next_scan {
            self.return_where(|lease| !lease.used);
            for r in &self.held {
                self.table[r.0 as usize].used = false;
            }
            // Whoever wants the array to stay dirty for longer wants its leases out for longer.
            let never = idle == Nanos(u64::MAX);
            self.next_scan = now.plus(if never { SCAN } else { SCAN.max(idle) });
        }
    }

    pub fn take_wants(&mut self) -> Vec<Region> {
        std::mem::take(&mut self.wants)
    }

    pub fn take_returns(&mut self) -> Vec<Region> {
        std::mem::take(&mut self.returns)
    }

    pub fn holds_any(&self) -> bool {
        !self.held.is_empty()
    }

    fn return_where(&mut self, idle: impl Fn(&Lease) -> bool) {
        let table = &self.table;
        let going: Vec<Region> = self
            .held
            .iter()
            .copied()
            .filter(|r| {
                let lease = &table[r.0 as usize];
                lease.writes == 0 && idle(lease)
            })
            .collect();
        for r in &going {
            self.table[r.0 as usize] = Lease::default();
        }
        let table = &self.table;
        self.held.retain(|r| table[r.0 as usize].state == State::Held);
        self.returns.extend(going);
    }

    fn give_back(&mut self, region: Region) {
        self.table[region.0 as usize] = Lease::default();
        self.held.retain(|r| *r != region);
        self.returns.push(region);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Nanos = Nanos::from_millis(200);

    #[test]
    fn a_lease_is_asked_for_once_and_used_freely() {
        let mut t = LeaseTable::new(4);
        assert!(!t.begin(Nanos(0), Region(1), Region(2)));
        assert!(!t.begin(Nanos(0), Region(1), Region(1)));
        assert_eq!(t.take_wants(), [Region(1), Region(2)]);
        t.granted(Nanos(0), Region(1));
        assert!(!t.begin(Nanos(0), Region(1), Region(2)), "2 is not there yet");
        assert!(t.begin(Nanos(0), Region(1), Region(1)));
        assert!(t.take_wants().is_empty());
    }

    #[test]
    fn a_revoked_lease_goes_back_after_its_writes() {
        let mut t = LeaseTable::new(4);
        t.granted(Nanos(0), Region(0));
        assert!(t.begin(Nanos(0), Region(0), Region(0)));
        assert!(!t.revoke(Region(0)));
        assert!(!t.begin(Nanos(1), Region(0), Region(0)), "no new write in a revoked region");
        assert!(t.end(Nanos(2), Region(0), Region(0)));
        assert_eq!(t.take_returns(), [Region(0)]);
        assert!(!t.begin(Nanos(3), Region(0), Region(0)));
        assert_eq!(t.take_wants(), [Region(0)]);
    }

    #[test]
    fn on_hold_everything_goes_back_and_nothing_is_asked_for() {
        let mut t = LeaseTable::new(4);
        t.granted(Nanos(0), Region(0));
        t.granted(Nanos(0), Region(1));
        assert!(t.begin(Nanos(0), Region(0), Region(0)));
        assert!(!t.begin(Nanos(0), Region(2), Region(2)));
        t.hold();
        assert!(!t.is_on_hold());
        assert!(!t.begin(Nanos(0), Region(3), Region(3)));
        assert!(t.end(Nanos(1), Region(0), Region(0)));
        assert!(t.is_on_hold());
        assert_eq!((t.take_wants(), t.take_returns()), (vec![Region(2)], vec![Region(1), Region(0)]));
        t.resume();
        assert!(!t.begin(Nanos(0), Region(2), Region(3)));
        assert_eq!(t.take_wants(), [Region(3)], "2 has been asked for");
    }

    #[test]
    fn idle_leases_go_back_by_themselves() {
        let mut t = LeaseTable::new(4);
        t.granted(Nanos(0), Region(0));
        t.granted(Nanos(0), Region(3));
        assert!(t.begin(Nanos(5), Region(3), Region(3)));
        let scan = t.timeout(IDLE).unwrap();
        assert_eq!(scan, SCAN);
        t.on_timeout(scan, IDLE);
        assert!(t.take_returns().is_empty(), "both were used since the grant");
        t.on_timeout(scan.plus(SCAN), IDLE);
        assert_eq!(t.take_returns(), [Region(0)], "3 has a write under way");
        t.end(Nanos(100), Region(3), Region(3));
        assert_eq!(t.timeout(IDLE), Some(Nanos(100).plus(IDLE)));
        t.on_timeout(Nanos(100).plus(IDLE), IDLE);
        assert_eq!(t.take_returns(), [Region(3)]);
        assert_eq!(t.timeout(IDLE), None);
    }
}
