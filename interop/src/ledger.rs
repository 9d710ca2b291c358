//! Writes whose content says where it belongs and by which write it came, and a ledger of which of them were acknowledged.
//!
//! A writer chooses its writes by a rule, one after the other. So the number of writes that were acknowledged tells which they were, and that
//! at most one more was under way when the writer, or the array below it, was killed.

use anyhow::{Result, ensure};

const SECTOR: usize = 512;

/// One writer's place and rule. Writers in one array share no sector; they may share stripes, chunks and pages.
#[derive(Clone, Copy, Debug)]
pub struct Writer {
    /// First sector of its first cell.
    pub first: u64,
    /// Sectors from one cell to the next.
    pub stride: u64,
    /// Sectors of a cell. A write keeps inside one.
    pub cell: u64,
    /// How many there are.
    pub cells: u64,
    /// Sectors of a block: writes are of whole ones.
    pub block: u64,
    /// Numbers of its writes begin after this.
    pub number: u64,
    /// Where its choices begin.
    pub seed: u64,
}

/// One write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Its number, from 1.
    pub number: u64,
    /// First sector.
    pub sector: u64,
    /// How many.
    pub sectors: u64,
}

impl Writer {
    /// All that it will ever write.
    pub fn writes(self) -> impl Iterator<Item = Write> {
        let mut x = self.seed;
        let mut next = move |below: u64| {
            x = (x * 1_103_515_245 + 12345) & 0x7fff_ffff;
            (x >> 8) % below
        };
        (self.number + 1..).map(move |number| {
            let start = self.first + next(self.cells) * self.stride;
            let blocks = self.cell / self.block;
            let at = next(blocks);
            let len = 1 + next(blocks - at);
            Write { number, sector: start + at * self.block, sectors: len * self.block }
        })
    }

    /// For `writers.pl`.
    pub fn words(&self) -> String {
        let Writer { first, stride, cell, cells, block, number, seed } = self;
        format!("{first},{stride},{cell},{cells},{block},{number},{seed}")
    }
}

/// Several that meet in stripes: small writes to the same sectors again and again from sector `first` on, and one of long ones behind.
pub fn writers(first: u64, block: u64, number: u64, seed: u64) -> Vec<Writer> {
    const SMALL: u64 = 5;
    // Three pages, so that cells share chunks of any size, and stripes.
    let cell = 24;
    let base = Writer { first, stride: cell * SMALL, cell, cells: 8, block, number, seed };
    let mut all: Vec<Writer> =
        (0..SMALL).map(|n| Writer { first: first + n * cell, seed: seed * 16 + n, ..base }).collect();
    let behind = first + base.stride * base.cells;
    all.push(Writer { first: behind, stride: 1024, cell: 1024, cells: 2, seed: seed * 16 + SMALL, ..base });
    all
}

/// What a write puts into its sectors.
pub fn stamped(write: &Write) -> Vec<u8> {
    (write.sector..write.sector + write.sectors).flat_map(|sector| stamp(sector, write.number)).collect()
}

/// A sector as a write leaves it; zeroes if there was none.
fn stamp(sector: u64, number: u64) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    if number > 0 {
        for piece in bytes.chunks_exact_mut(16) {
            piece[..8].copy_from_slice(&sector.to_le_bytes());
            piece[8..].copy_from_slice(&number.to_le_bytes());
        }
    }
    bytes
}

/// What is known about the sectors of an array.
#[derive(Clone, Debug)]
pub struct Ledger {
    sectors: Vec<Entry>,
    /// What nobody has written is zeroes.
    zeroed: bool,
}

/// Numbers of writes; 0 for none.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    acknowledged: u64,
    under_way: u64,
}

/// How many sectors of writes that were under way were found old, and how many new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Of the last acknowledged write.
    pub acknowledged: usize,
    /// Of a write that was under way.
    pub under_way: usize,
    /// Of neither, where that is allowed.
    pub neither: usize,
}

impl Ledger {
    /// Of an array that nobody has written to.
    pub fn new(bytes: usize, zeroed: bool) -> Ledger {
        Ledger { sectors: vec![Entry::default(); bytes / SECTOR], zeroed }
    }

    /// Notes that so many of a writer's writes were acknowledged, and that the next one may have been under way if `killed`.
    pub fn note(&mut self, writer: Writer, acknowledged: u64, killed: bool) {
        for write in writer.writes().take(acknowledged as usize + usize::from(killed)) {
            let range = write.sector as usize..(write.sector + write.sectors) as usize;
            for entry in &mut self.sectors[range] {
                if write.number <= writer.number + acknowledged {
                    entry.acknowledged = write.number;
                } else {
                    entry.under_way = write.number;
                }
            }
        }
    }

    /// Whether each sector is of the last write to it that was acknowledged, or of one that was under way. If a member was lost with the
    /// crash, what was under way may be neither, and so may what is in one block of so many sectors with it (`lost`; 0: no member was lost). md
    /// promises no more than that, for pages of 8 sectors.
    pub fn check(&self, content: &[u8], lost: u64) -> Result<Found> {
        ensure!(content.len() == self.sectors.len() * SECTOR, "{} bytes", content.len());
        let mut found = Found::default();
        for ((sector, entry), is) in (0..).zip(&self.sectors).zip(content.chunks(SECTOR)) {
            if entry.acknowledged == 0 && entry.under_way == 0 && !self.zeroed {
                continue;
            }
            if is == stamp(sector, entry.acknowledged) || (entry.acknowledged == 0 && !self.zeroed) {
                found.acknowledged += usize::from(entry.acknowledged > 0);
            } else if entry.under_way > 0 && is == stamp(sector, entry.under_way) {
                found.under_way += 1;
            } else {
                let word = |at: usize| is[at..at + 8].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
                let text = format!("sector {sector} says sector {} of write {}: {entry:?}", word(0), word(8));
                let start = sector - sector.checked_rem(lost).unwrap_or(0);
                ensure!((start..start + lost).any(|s| self.under_way(s)), "{text}");
                found.neither += 1;
            }
        }
        Ok(found)
    }

    fn under_way(&self, sector: u64) -> bool {
        self.sectors.get(sector as usize).is_some_and(|entry| entry.under_way > 0)
    }

    /// Takes what an array contains now for what it has to contain from now on: writes that were under way are old or new for good.
    pub fn settle(&mut self, content: &[u8]) {
        for ((sector, entry), is) in (0..).zip(&mut self.sectors).zip(content.chunks(SECTOR)) {
            if entry.under_way > 0 && is == stamp(sector, entry.under_way) {
                entry.acknowledged = entry.under_way;
            }
            entry.under_way = 0;
        }
    }
}
