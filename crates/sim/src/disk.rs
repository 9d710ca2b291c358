//! Virtual member devices: content, a volatile write cache, and the faults drawn for them.
//!
//! The cache is as unkind as the standards allow. A completed write that no flush covered may at power loss be there, be
//! missing, or be there in part, sector by sector, and independently of older and newer writes. A write under way may have
//! taken effect in the same ways. Only a superblock's own write is taken to be atomic in 4 KiB where its format needs
//! that (0.90 has a checksum over 4096 bytes and no second copy).

use std::collections::{BTreeMap, BTreeSet};

use raidus_engine::MemberError;

use crate::rng::Rng;
use crate::stamp::SECTOR;

type Block = Box<[u8; SECTOR]>;

/// Sectors of a page of durable content, which is allocated when first written.
const PAGE: u64 = 64;

/// One version of a sector in the cache.
#[derive(Clone, Debug)]
struct Version {
    /// Number of the write, ascending.
    write: u64,
    /// Kept or lost together with the rest of its write.
    atomic: bool,
    data: Block,
}

/// A device.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    sectors: u64,
    durable: Vec<Option<Box<[u8]>>>,
    /// Completed, not flushed; oldest first.
    cache: BTreeMap<u64, Vec<Version>>,
    writes: u64,
    /// Sectors that cannot be read until they are written.
    unreadable: BTreeSet<u64>,
}

/// How a write is to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// In the cache.
    Volatile,
    /// In the cache, and kept or lost as a whole.
    VolatileAtomic,
    /// On the medium.
    Durable,
}

impl Disk {
    pub(crate) fn new(sectors: u64) -> Disk {
        Disk {
            sectors,
            durable: vec![None; sectors.div_ceil(PAGE) as usize],
            cache: BTreeMap::new(),
            writes: 0,
            unreadable: BTreeSet::new(),
        }
    }

    pub(crate) fn sectors(&self) -> u64 {
        self.sectors
    }

    /// What a flush issued now has to cover.
    pub(crate) fn watermark(&self) -> u64 {
        self.writes
    }

    /// Reads as a client of the device would.
    pub(crate) fn read(&self, sector: u64, out: &mut [u8]) -> Result<(), MemberError> {
        let end = self.end(sector, out.len())?;
        if self.unreadable.range(sector..end).next().is_some() {
            return Err(MemberError::Io);
        }
        self.peek_into(sector, out);
        Ok(())
    }

    /// The content whatever the medium's state, for the checker.
    pub(crate) fn peek(&self, sector: u64, sectors: u64) -> Vec<u8> {
        let mut out = vec![0; sectors as usize * SECTOR];
        self.peek_into(sector, &mut out);
        out
    }

    /// Whether the sector cannot be read.
    pub(crate) fn is_unreadable(&self, sector: u64) -> bool {
        self.unreadable.contains(&sector)
    }

    fn peek_into(&self, sector: u64, out: &mut [u8]) {
        for (s, block) in (sector..).zip(out.chunks_exact_mut(SECTOR)) {
            match self.cache.get(&s).and_then(|v| v.last()) {
                Some(version) => block.copy_from_slice(&version.data[..]),
                None => self.durable_into(s, block),
            }
        }
    }

    fn durable_into(&self, sector: u64, block: &mut [u8]) {
        match self.durable.get((sector / PAGE) as usize) {
            Some(Some(page)) => {
                let at = (sector % PAGE) as usize * SECTOR;
                block.copy_from_slice(&page[at..at + SECTOR]);
            }
            _ => block.fill(0),
        }
    }

    /// Writes; `data` is a whole number of sectors.
    pub(crate) fn write(&mut self, sector: u64, data: &[u8], store: Store) -> Result<(), MemberError> {
        self.end(sector, data.len())?;
        self.writes += 1;
        for (s, block) in (sector..).zip(data.chunks_exact(SECTOR)) {
            self.unreadable.remove(&s);
            self.put(s, block, store);
        }
        Ok(())
    }

    /// A write that ended somewhere in the middle: each sector may have been stored or not.
    pub(crate) fn write_partly(&mut self, sector: u64, data: &[u8], atomic: bool, rng: &mut Rng) {
        if self.end(sector, data.len()).is_err() {
            return;
        }
        self.writes += 1;
        if atomic {
            if rng.percent(50) {
                data.chunks_exact(SECTOR).zip(sector..).for_each(|(b, s)| self.put(s, b, Store::VolatileAtomic));
            }
            return;
        }
        let share = rng.pick(&[0, 20, 50, 80, 100]);
        for (s, block) in (sector..).zip(data.chunks_exact(SECTOR)) {
            if rng.percent(share) {
                self.unreadable.remove(&s);
                self.put(s, block, Store::Volatile);
            }
        }
    }

    fn put(&mut self, sector: u64, block: &[u8], store: Store) {
        if store == Store::Durable {
            self.cache.remove(&sector);
            self.durable_page(sector).copy_from_slice(block);
            return;
        }
        let data: Block = Box::new(block.try_into().expect("a sector"));
        let version = Version { write: self.writes, atomic: store == Store::VolatileAtomic, data };
        self.cache.entry(sector).or_default().push(version);
    }

    fn durable_page(&mut self, sector: u64) -> &mut [u8] {
        let page = self.durable[(sector / PAGE) as usize]
            .get_or_insert_with(|| vec![0; PAGE as usize * SECTOR].into_boxed_slice());
        let at = (sector % PAGE) as usize * SECTOR;
        &mut page[at..at + SECTOR]
    }

    /// Makes durable what was written up to `watermark`; later writes stay volatile.
    pub(crate) fn flush(&mut self, watermark: u64) {
        let sectors: Vec<u64> = self.cache.keys().copied().collect();
        for sector in sectors {
            let versions = self.cache.get_mut(&sector).expect("listed above");
            let covered = versions.iter().rposition(|v| v.write <= watermark);
            let Some(last) = covered else { continue };
            let data = versions[last].data.clone();
            versions.drain(..=last);
            if versions.is_empty() {
                self.cache.remove(&sector);
            }
            self.durable_page(sector).copy_from_slice(&data[..]);
        }
    }

    /// The power goes: of every cached sector some version survives.
    pub(crate) fn power_loss(&mut self, rng: &mut Rng) {
        let kept_share = rng.pick(&[0, 10, 50, 50, 90, 100]);
        let whole_writes = rng.percent(30);
        let salt = rng.next();
        let cache = std::mem::take(&mut self.cache);
        for (sector, versions) in cache {
            let survivor = versions.into_iter().rev().find(|v| {
                if v.atomic || whole_writes {
                    Rng::new(v.write ^ salt).percent(kept_share)
                } else {
                    rng.percent(kept_share)
                }
            });
            if let Some(version) = survivor {
                self.durable_page(sector).copy_from_slice(&version.data[..]);
            }
        }
    }

    /// The power goes, and takes everything that was not flushed with it.
    pub(crate) fn lose(&mut self) {
        self.cache.clear();
    }

    /// Makes sectors unreadable until they are written.
    pub(crate) fn spoil(&mut self, sector: u64, sectors: u64) {
        self.unreadable.extend((sector..sector + sectors).filter(|s| *s < self.sectors));
    }

    /// A new medium in the same place: readable everywhere, nothing volatile.
    pub(crate) fn heal(&mut self) {
        self.unreadable.clear();
        self.flush(u64::MAX);
    }

    fn end(&self, sector: u64, bytes: usize) -> Result<u64, MemberError> {
        sector.checked_add((bytes / SECTOR) as u64).filter(|end| *end <= self.sectors).ok_or(MemberError::Io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(b: u8) -> Vec<u8> {
        vec![b; SECTOR]
    }

    #[test]
    fn unflushed_writes_may_be_lost_and_flushed_ones_not() {
        let mut outcomes = BTreeSet::new();
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut disk = Disk::new(16);
            disk.write(3, &block(1), Store::Volatile).unwrap();
            disk.flush(disk.watermark());
            disk.write(3, &block(2), Store::Volatile).unwrap();
            let early = disk.watermark();
            disk.write(3, &block(3), Store::Volatile).unwrap();
            disk.write(4, &block(9), Store::Durable).unwrap();
            if seed % 2 == 0 {
                disk.flush(early);
            }
            assert_eq!(disk.peek(3, 1), block(3));
            disk.power_loss(&mut rng);
            assert_eq!(disk.peek(4, 1), block(9));
            outcomes.insert((seed % 2, disk.peek(3, 1)[0]));
        }
        let all: Vec<(u64, u8)> = outcomes.into_iter().collect();
        assert_eq!(all, [(0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]);
    }

    #[test]
    fn unreadable_until_written() {
        let mut disk = Disk::new(16);
        let mut out = block(0);
        disk.spoil(5, 1);
        assert_eq!(disk.read(5, &mut out), Err(MemberError::Io));
        disk.write(5, &block(7), Store::Volatile).unwrap();
        assert_eq!(disk.read(5, &mut out), Ok(()));
        assert_eq!(out, block(7));
        assert_eq!(disk.read(16, &mut out), Err(MemberError::Io));
    }
}
