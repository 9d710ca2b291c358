//! Scratch memory of a shard, handed out in runs of 4 KiB pages.
//!
//! An operation takes all it needs in one piece or nothing, and never asks for more while it holds some. So whoever holds
//! scratch can finish, and whoever waits holds none.

use raidus_units::Sectors;

use crate::config::Scratch;
use crate::io::MemAddr;

/// Sectors in a page.
pub const PAGE: Sectors = Sectors(8);

/// A contiguous run of scratch pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    first: u32,
    pages: u32,
}

#[derive(Debug)]
pub struct Arena {
    base: MemAddr,
    used: Vec<bool>,
    next: usize,
}

impl Arena {
    pub fn new(scratch: &Scratch) -> Arena {
        let pages = (scratch.bytes / PAGE.bytes()) as usize;
        Arena { base: scratch.base, used: vec![false; pages], next: 0 }
    }

    /// Takes `pages` pages in a row (at least one), if there are.
    pub fn take(&mut self, pages: u32) -> Option<Run> {
        let want = pages.max(1) as usize;
        let first = self.find(self.next, want).or_else(|| self.find(0, want))?;
        self.used[first..first + want].fill(true);
        self.next = first + want;
        Some(Run { first: first as u32, pages: want as u32 })
    }

    pub fn give_back(&mut self, run: Run) {
        let first = run.first as usize;
        self.used[first..first + run.pages as usize].fill(false);
        if self.next == first + run.pages as usize {
            self.next = first;
        }
    }

    /// The address of page `page` of a run.
    pub fn addr(&self, run: Run, page: u32) -> MemAddr {
        debug_assert!(page < run.pages);
        self.base.plus(Sectors(u64::from(run.first + page) * PAGE.0))
    }

    fn find(&self, from: usize, want: usize) -> Option<usize> {
        let mut start = from;
        let mut at = from;
        while at < self.used.len() {
            if self.used[at] {
                start = at + 1;
            } else if at + 1 - start == want {
                return Some(start);
            }
            at += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_do_not_overlap_and_come_back() {
        let scratch = Scratch { base: MemAddr(1 << 20), bytes: 8 * 4096, zeroes: MemAddr(0) };
        let mut arena = Arena::new(&scratch);
        let a = arena.take(3).unwrap();
        let b = arena.take(5).unwrap();
        assert_eq!(arena.take(1), None);
        assert_eq!(arena.addr(b, 0).0, (1 << 20) + 3 * 4096);
        arena.give_back(a);
        assert_eq!(arena.take(4), None, "only three in a row");
        let c = arena.take(3).unwrap();
        arena.give_back(b);
        arena.give_back(c);
        assert!(arena.take(8).is_some());
    }
}
