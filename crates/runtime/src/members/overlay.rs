//! Copy-on-write: writes go to a store of the same size, reads take written ranges from there and the rest from the member.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use raidus_units::Sectors;

use super::{Backend, FileDevice, MemberOpenError, MemoryDevice, OverlayStore};

/// What was written over a member.
#[derive(Debug)]
pub(crate) struct Overlay {
    /// Holds written bytes at their own offsets.
    pub(crate) store: Backend,
    written: Mutex<Ranges>,
}

/// A piece of a range that comes from one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) in_store: bool,
}

impl Overlay {
    pub(crate) fn new(name: &Path, size: Sectors, store: &OverlayStore) -> Result<Overlay, MemberOpenError> {
        let store = match store {
            OverlayStore::Memory => Backend::Memory(Arc::new(
                MemoryDevice::new(size).map_err(|source| MemberOpenError::Io { path: name.to_owned(), source })?,
            )),
            OverlayStore::Directory(directory) => Backend::File(FileDevice::nameless(directory, size)?),
        };
        Ok(Overlay { store, written: Mutex::new(Ranges::default()) })
    }

    /// The range is in the store from now on. To be called when the write to the store has ended.
    pub(crate) fn mark(&self, offset: u64, len: u64) {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).insert(offset, offset + len);
    }

    /// The range cut where it changes places, ascending.
    pub(crate) fn runs(&self, offset: u64, len: u64) -> Vec<Run> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).runs(offset, offset + len)
    }
}

/// Disjoint ranges that do not touch, by start.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn insert(&mut self, mut start: u64, mut end: u64) {
        // Swallow every range that overlaps or touches.
        while let Some((&s, &e)) = self.0.range(..=end).next_back().filter(|(_, e)| **e >= start) {
            self.0.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        if start < end {
            self.0.insert(start, end);
        }
    }

    fn runs(&self, start: u64, end: u64) -> Vec<Run> {
        let first = self.0.range(..=start).next_back().map_or(start, |(s, _)| *s);
        let mut runs = Vec::new();
        let mut at = start;
        for (&s, &e) in self.0.range(first..end) {
            let (s, e) = (s.max(at), e.min(end));
            if e <= s {
                continue;
            }
            if s > at {
                runs.push(Run { offset: at, len: s - at, in_store: false });
            }
            runs.push(Run { offset: s, len: e - s, in_store: true });
            at = e;
        }
        if at < end {
            runs.push(Run { offset: at, len: end - at, in_store: false });
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_follow_what_was_inserted() {
        let mut seed = 7u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        let mut ranges = Ranges::default();
        let mut model = [false; 200];
        for _ in 0..400 {
            let (start, end) = (next(200), next(200));
            if start < end && next(3) == 0 {
                ranges.insert(start, end);
                model[start as usize..end as usize].fill(true);
            }
            let (start, end) = (next(200), next(200));
            let runs = ranges.runs(start, end.max(start));
            let flat: Vec<bool> = runs.iter().flat_map(|r| std::iter::repeat_n(r.in_store, r.len as usize)).collect();
            assert_eq!(flat, model[start as usize..end.max(start) as usize]);
            assert!(runs.windows(2).all(|w| w[0].offset + w[0].len == w[1].offset && w[0].in_store != w[1].in_store));
            if model.iter().all(|b| *b) {
                ranges = Ranges::default();
                model = [false; 200];
            }
        }
    }
}
