//! What the array may contain: for each of its sectors, the writes whose content a read may find there now, and after
//! a power cut.
//!
//! A sector's entry is a write with the moments at which it was asked for and answered. Write Y *supersedes* X if Y was asked
//! for after X was answered. Then:
//! - a read may find any write that no answered write supersedes;
//! - a power cut may leave any write that no *durable* write supersedes, where durable means answered before a
//!   successful flush was asked for, or answered with FUA.
//!
//! So the entries of a sector are what a power cut may leave; answers only move what reads may find, flushes drop entries.

use crate::stamp::{ANYTHING, SECTOR, WriteId, ZERO, recognise};

/// A moment: the simulator's event counter.
pub(crate) type Moment = u64;

/// Not answered yet, or answered with an error: may or may not have happened, and may yet happen.
const NEVER: Moment = Moment::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    id: WriteId,
    /// What the content says: `id`, or [`ZERO`].
    content: WriteId,
    asked: Moment,
    answered: Moment,
}

/// The allowed contents of a whole array.
#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    sectors: Vec<Vec<Entry>>,
    /// Sectors with more than one entry since the last flush; the others need no work at a flush.
    touched: Vec<u64>,
}

/// What each sector of one read may hold, kept while the read is under way.
#[derive(Clone, Debug)]
pub(crate) struct Expectation {
    first: u64,
    sectors: Vec<Vec<WriteId>>,
}

impl Oracle {
    /// An array of zeroes.
    pub(crate) fn new(sectors: u64) -> Oracle {
        let zero = Entry { id: ZERO, content: ZERO, asked: 0, answered: 0 };
        Oracle { sectors: vec![vec![zero]; sectors as usize], touched: Vec::new() }
    }

    pub(crate) fn len(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// A write was handed to the array.
    pub(crate) fn asked(&mut self, first: u64, len: u64, id: WriteId, zeroes: bool, now: Moment) {
        let content = if zeroes { ZERO } else { id };
        for s in first..first + len {
            self.sectors[s as usize].push(Entry { id, content, asked: now, answered: NEVER });
            self.touched.push(s);
        }
    }

    /// The write succeeded.
    pub(crate) fn answered(&mut self, first: u64, len: u64, id: WriteId, fua: bool, now: Moment) {
        for s in first..first + len {
            let entries = &mut self.sectors[s as usize];
            let Some(entry) = entries.iter_mut().find(|e| e.id == id && e.answered == NEVER) else { continue };
            entry.answered = now;
            let asked = entry.asked;
            if fua {
                entries.retain(|e| e.answered >= asked);
            }
        }
    }

    /// A flush asked for at `asked` succeeded.
    pub(crate) fn flushed(&mut self, asked: Moment) {
        let touched = std::mem::take(&mut self.touched);
        for s in touched {
            let entries = &mut self.sectors[s as usize];
            drop_superseded(entries, asked);
            if entries.len() > 1 {
                self.touched.push(s);
            }
        }
        self.touched.dedup();
    }

    /// What a read that begins now may find.
    pub(crate) fn expect(&self, first: u64, len: u64) -> Expectation {
        let live = |s: u64| {
            let mut entries = self.sectors[s as usize].clone();
            drop_superseded(&mut entries, NEVER);
            entries.iter().map(|e| e.content).collect()
        };
        Expectation { first, sectors: (first..first + len).map(live).collect() }
    }

    /// Whether a power cut may have left this in the sector; says what else if not.
    pub(crate) fn check_survivor(&self, sector: u64, content: &[u8]) -> Result<WriteId, String> {
        let allowed: Vec<WriteId> = self.sectors[sector as usize].iter().map(|e| e.content).collect();
        check(sector, content, &allowed)
    }

    /// Whether a power cut may have left more than one thing in the sector.
    pub(crate) fn is_undecided(&self, sector: u64) -> bool {
        self.sectors[sector as usize].len() > 1
    }

    /// After a power cut: these are what the sector's copies hold, and no cut can bring back anything else.
    pub(crate) fn settle(&mut self, sector: u64, found: &[WriteId]) {
        let entries = &mut self.sectors[sector as usize];
        let mut kept: Vec<WriteId> = found.to_vec();
        kept.sort_unstable();
        kept.dedup();
        entries.clear();
        entries.extend(kept.into_iter().map(|content| Entry { id: content, content, asked: 0, answered: 0 }));
        // Copies that differ are one undecided write.
        if entries.len() > 1 {
            self.touched.push(sector);
        }
    }
}

/// Drops the entries superseded by one that was answered before `before` (any answered one, for [`NEVER`]).
fn drop_superseded(entries: &mut Vec<Entry>, before: Moment) {
    let newest = entries.iter().filter(|e| e.answered < before).map(|e| e.asked).max();
    if let Some(newest) = newest {
        entries.retain(|e| e.answered >= newest);
    }
}

impl Expectation {
    /// A write was handed to the array while the read is under way.
    pub(crate) fn widen(&mut self, first: u64, len: u64, content: WriteId) {
        let end = self.first + self.sectors.len() as u64;
        for s in first.max(self.first)..(first + len).min(end) {
            self.sectors[(s - self.first) as usize].push(content);
        }
    }

    /// The read returned this.
    pub(crate) fn check(&self, data: &[u8]) -> Result<(), String> {
        for ((s, content), allowed) in (self.first..).zip(data.chunks_exact(SECTOR)).zip(&self.sectors) {
            check(s, content, allowed)?;
        }
        Ok(())
    }
}

fn check(sector: u64, content: &[u8], allowed: &[WriteId]) -> Result<WriteId, String> {
    let what = |id: WriteId| if id == ZERO { "zeroes".to_owned() } else { format!("write {id}") };
    let may = || allowed.iter().map(|id| what(*id)).collect::<Vec<_>>().join(" or ");
    match recognise(content, sector) {
        _ if allowed.contains(&ANYTHING) => Ok(ANYTHING),
        Ok(id) if allowed.contains(&id) => Ok(id),
        Ok(id) => Err(format!("array sector {sector} holds {}, may hold {}", what(id), may())),
        Err(odd) => Err(format!("array sector {sector} holds {odd}, may hold {}", may())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::fill;

    fn content(sector: u64, id: WriteId) -> Vec<u8> {
        let mut block = vec![0; SECTOR];
        fill(&mut block, sector, id);
        block
    }

    fn survivors(oracle: &Oracle, ids: &[WriteId]) -> Vec<WriteId> {
        ids.iter().copied().filter(|id| oracle.check_survivor(0, &content(0, *id)).is_ok()).collect()
    }

    #[test]
    fn answers_move_reads_and_flushes_move_survivors() {
        let mut o = Oracle::new(1);
        o.asked(0, 1, 1, false, 10);
        assert!(o.expect(0, 1).check(&content(0, 0)).is_ok());
        assert!(o.expect(0, 1).check(&content(0, 1)).is_ok());
        o.answered(0, 1, 1, false, 20);
        assert!(o.expect(0, 1).check(&content(0, 0)).is_err());
        assert_eq!(survivors(&o, &[0, 1]), [0, 1]);
        // A flush asked for before the answer says nothing about the write.
        o.flushed(15);
        assert_eq!(survivors(&o, &[0, 1]), [0, 1]);
        o.flushed(25);
        assert_eq!(survivors(&o, &[0, 1]), [1]);
        o.asked(0, 1, 2, false, 30);
        o.answered(0, 1, 2, true, 40);
        assert_eq!(survivors(&o, &[0, 1, 2]), [2]);
    }

    #[test]
    fn writes_under_way_together_may_end_either_way() {
        let mut o = Oracle::new(1);
        o.asked(0, 1, 1, false, 10);
        o.asked(0, 1, 2, false, 11);
        o.answered(0, 1, 2, false, 12);
        o.answered(0, 1, 1, false, 13);
        o.flushed(20);
        assert_eq!(survivors(&o, &[0, 1, 2]), [1, 2]);
    }

    #[test]
    fn a_failed_write_may_still_happen() {
        let mut o = Oracle::new(1);
        o.asked(0, 1, 1, false, 10);
        o.flushed(20);
        assert_eq!(survivors(&o, &[0, 1]), [0, 1]);
    }
}
