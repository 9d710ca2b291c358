//! Range locks: overlapping writes of one shard, and reconstruction next to writes of the same stripe, take turns in arrival order.

use std::collections::{BTreeMap, VecDeque};

/// Exclusive half-open ranges of one address space, with a queue of those who wait.
#[derive(Debug)]
pub struct RangeLocks<T> {
    held: BTreeMap<u64, u64>,
    waiting: VecDeque<(u64, u64, T)>,
}

impl<T> RangeLocks<T> {
    pub fn new() -> RangeLocks<T> {
        RangeLocks { held: BTreeMap::new(), waiting: VecDeque::new() }
    }

    /// Takes `start..end`, or queues `who` behind everyone it overlaps. Returns whether it was taken.
    pub fn acquire(&mut self, start: u64, end: u64, who: T) -> bool {
        let blocked = self.overlaps_held(start, end) || self.waiting.iter().any(|w| w.0 < end && start < w.1);
        if blocked {
            self.waiting.push_back((start, end, who));
        } else {
            self.held.insert(start, end);
        }
        !blocked
    }

    /// Gives the range that starts at `start` back; those whose turn it is now are handed to `granted`.
    pub fn release(&mut self, start: u64, granted: &mut VecDeque<T>) {
        self.held.remove(&start);
        let mut i = 0;
        while i < self.waiting.len() {
            let (s, e, _) = self.waiting[i];
            let blocked = self.overlaps_held(s, e) || self.waiting.iter().take(i).any(|w| w.0 < e && s < w.1);
            if blocked {
                i += 1;
            } else if let Some((s, e, who)) = self.waiting.remove(i) {
                self.held.insert(s, e);
                granted.push_back(who);
            }
        }
    }

    fn overlaps_held(&self, start: u64, end: u64) -> bool {
        self.held.range(..end).next_back().is_some_and(|(_, e)| *e > start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_ranges_take_turns_in_order() {
        let mut locks = RangeLocks::new();
        assert!(locks.acquire(0, 10, 'a'));
        assert!(locks.acquire(10, 20, 'b'));
        assert!(!locks.acquire(5, 15, 'c'), "waits for a and b");
        assert!(!locks.acquire(14, 30, 'd'), "waits for b, and for c who came first");
        assert!(locks.acquire(30, 40, 'e'));
        let mut granted = VecDeque::new();
        locks.release(10, &mut granted);
        assert!(granted.is_empty(), "c still waits for a, d for c");
        locks.release(0, &mut granted);
        assert_eq!(granted, ['c']);
        granted.clear();
        locks.release(5, &mut granted);
        assert_eq!(granted, ['d']);
    }
}
