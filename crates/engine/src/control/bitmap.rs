//! The write-intent bitmap in memory, and what of it is on the members.
//!
//! A bit says "members may differ in this chunk". It is set, durably on every member in use, before a lease is granted, and
//! cleared lazily once the data written there is durable everywhere. Three views are kept: what the bits are, which of
//! them are certainly set on *every* member, and which must stay because a resync has to visit them.

use std::collections::{BTreeMap, BTreeSet};

use raidus_format::bitmap::{BITMAP_PAGE, BITMAP_SUPER_BYTES, BitArray, BitmapSuper, LoadedBitmap, file_bytes};
use raidus_units::{Nanos, Sectors};

use super::status::BitmapStatus;
use crate::msg::Region;

/// Counters on one page of the kernel's: mdstat counts in them.
const COUNTERS_PER_PAGE: u64 = 2048;

/// A page of the bitmap to be written, and its number.
pub(super) type Page = (u64, Vec<u8>);

#[derive(Debug)]
pub(super) struct Bitmap {
    superblock: BitmapSuper,
    bits: BitArray,
    /// Per page: what is certainly set on every member in use.
    durable: Vec<Vec<u8>>,
    /// To be kept until a resync has visited them.
    needed: BitArray,
    /// Pages with bits that have to reach the members before leases are granted.
    to_write: BTreeSet<u64>,
    /// Page writes under way: what was written.
    in_flight: BTreeMap<u64, Vec<u8>>,
    /// What was loaded differs, or may differ, from what is on the members: nothing may declare the bitmap fresh before
    /// these pages are there.
    unseeded: bool,
    /// A member has nothing of the bitmap yet: every page has to be written.
    seed_all: bool,
    /// Bits that could be cleared: set, not needed, held by nobody, since when.
    idle: BTreeMap<Region, Nanos>,
    /// Those being cleared, while the members are flushed.
    clearing: BTreeSet<Region>,
    last_clearing: Nanos,
}

impl Bitmap {
    /// With `keep_all`, a member is missing: the bits say what it has missed.
    pub fn new(loaded: LoadedBitmap, keep_all: bool) -> Bitmap {
        let mut needed = BitArray::zeros(loaded.bits.len());
        for bit in loaded.bits.iter_ones().filter(|bit| keep_all || loaded.is_needed(*bit)) {
            needed.set(bit);
        }
        let mut superblock = loaded.superblock;
        // Until the bits that replace the stale ones are on the members.
        superblock.set_stale(loaded.stale.is_some());
        Bitmap {
            superblock,
            durable: vec![vec![0; BITMAP_PAGE]; loaded.bits.pages() as usize],
            bits: loaded.bits,
            unseeded: needed.next_one(0).is_some(),
            seed_all: false,
            needed,
            to_write: BTreeSet::new(),
            in_flight: BTreeMap::new(),
            idle: BTreeMap::new(),
            clearing: BTreeSet::new(),
            last_clearing: Nanos(0),
        }
    }

    pub fn contains(&self, region: Region) -> bool {
        region.0 < self.bits.len()
    }

    /// Sets a region's bit. It counts once [`Bitmap::is_durable`].
    pub fn set(&mut self, region: Region) {
        if !self.contains(region) {
            return;
        }
        self.hold(region);
        self.bits.set(region.0);
        let page = BitArray::page_of(region.0);
        let under_way = self.in_flight.get(&page).is_some_and(|data| bit_in_page(data, region.0));
        if !self.is_durable(region) && !under_way {
            self.to_write.insert(page);
        }
    }

    pub fn is_durable(&self, region: Region) -> bool {
        self.contains(region) && bit_in_page(&self.durable[BitArray::page_of(region.0) as usize], region.0)
    }

    /// A lease on the region is out or wanted: its bit stays.
    pub fn hold(&mut self, region: Region) {
        self.idle.remove(&region);
        self.clearing.remove(&region);
    }

    /// Nobody holds the region any more. With `keep`, a member has missed what was written there.
    pub fn on_idle(&mut self, region: Region, now: Nanos, keep: bool) {
        if !self.bits.get(region.0) {
            return;
        }
        if keep {
            self.needed.set(region.0);
        }
        if !self.needed.get(region.0) {
            self.idle.insert(region, now);
        }
    }

    /// Bits that were set when the array was started whole and clean mean nothing; they are cleared with the others.
    pub fn adopt_strays(&mut self, now: Nanos) {
        for bit in self.bits.iter_ones().filter(|bit| !self.needed.get(*bit)) {
            self.idle.entry(Region(bit)).or_insert(now);
        }
    }

    /// A member left: every bit set says what it may miss, and stays.
    pub fn keep_all(&mut self) {
        self.needed.merge(&self.bits);
        self.idle.clear();
        self.clearing.clear();
    }

    /// Events when a bit was last cleared: a member whose superblock is at least as new has missed nothing but what bits say.
    pub fn events_cleared(&self) -> u64 {
        self.superblock.events_cleared()
    }

    /// A member joined that has nothing of the bitmap: all of it goes to the members with the next superblock round.
    pub fn reseed(&mut self) {
        self.unseeded = true;
        self.seed_all = true;
    }

    /// The first region from `from` on that a resync has to visit.
    pub fn next_needed(&self, from: Region) -> Option<Region> {
        self.needed.next_one(from.0).map(Region)
    }

    /// The first region from `from` on whose bit is set.
    pub fn next_set(&self, from: Region) -> Option<Region> {
        self.bits.next_one(from.0).map(Region)
    }

    /// The regions for which `covered` says so have been synced, and no member is missing: their bits may go once nobody holds
    /// them.
    pub fn release(&mut self, now: Nanos, covered: impl Fn(Region) -> bool, held: impl Fn(Region) -> bool) {
        let regions: Vec<Region> = self.needed.iter_ones().map(Region).filter(|r| covered(*r)).collect();
        for region in regions {
            self.needed.clear(region.0);
            if !held(region) {
                self.idle.insert(region, now);
            }
        }
    }

    /// When bits may be cleared next, if there are any. Passes are a daemon period apart, so that a steady trickle of
    /// idle regions does not become a steady trickle of flushes.
    pub fn clearing_due(&self) -> Option<Nanos> {
        if self.is_clearing() {
            return None;
        }
        let oldest = self.idle.values().min()?;
        Some(oldest.plus(self.period()).max(self.last_clearing.plus(self.period())))
    }

    /// Begins to clear the bits idle for a daemon period; all idle ones if `all`. The caller flushes the members next.
    pub fn begin_clearing(&mut self, now: Nanos, all: bool) -> bool {
        let period = self.period();
        let old = self.idle.iter().filter(|(_, since)| all || since.plus(period) <= now).map(|(region, _)| *region);
        self.clearing = old.collect();
        self.last_clearing = now;
        self.is_clearing()
    }

    pub fn cancel_clearing(&mut self) {
        self.clearing.clear();
    }

    pub fn is_clearing(&self) -> bool {
        !self.clearing.is_empty()
    }

    pub fn has_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(u64::from(self.superblock.daemon_sleep().max(1)) * 1000)
    }

    /// Whether pages have to be written before the superblock.
    pub fn unseeded(&self) -> bool {
        self.unseeded
    }

    /// Page writes that bring what was loaded to every member.
    pub fn begin_seed(&mut self) -> Vec<Page> {
        if self.seed_all {
            self.to_write.extend(0..self.bits.pages());
        }
        self.to_write.extend(self.needed.iter_ones().map(BitArray::page_of));
        self.begin_pages()
    }

    pub fn end_seed(&mut self) {
        self.unseeded = false;
        self.seed_all = false;
        self.end_pages();
    }

    /// The page with the superblock, saying that the bitmap is as new as `events`.
    pub fn superblock_page(&mut self, events: u64, clears: bool) -> Vec<u8> {
        let cleared = if clears { events } else { self.superblock.events_cleared().min(events) };
        self.superblock.set_events(events);
        self.superblock.set_events_cleared(cleared);
        self.superblock.set_stale(false);
        self.page(0)
    }

    /// Whether `events_cleared` has to move before bits can be cleared.
    pub fn needs_superblock(&self, events: u64) -> bool {
        self.superblock.events_cleared() != events
    }

    /// Whether there are pages to write; with `clear` also those whose bits are being cleared.
    pub fn has_pages(&self, clear: bool) -> bool {
        !self.to_write.is_empty() || clear && self.is_clearing()
    }

    /// Drops the bits being cleared, which [`Bitmap::begin_pages`] then writes.
    pub fn clear(&mut self) {
        for region in std::mem::take(&mut self.clearing) {
            self.idle.remove(&region);
            self.bits.clear(region.0);
            self.to_write.insert(BitArray::page_of(region.0));
        }
    }

    /// Takes the pages to write. Until they are written, only what was set before *and* is set now is certain.
    pub fn begin_pages(&mut self) -> Vec<Page> {
        let pages: Vec<_> =
            std::mem::take(&mut self.to_write).into_iter().map(|page| (page, self.page(page))).collect();
        for (page, data) in &pages {
            self.durable[*page as usize].iter_mut().zip(data).for_each(|(durable, new)| *durable &= new);
            self.in_flight.insert(*page, data.clone());
        }
        pages
    }

    /// The pages are on every member.
    pub fn end_pages(&mut self) {
        for (page, data) in std::mem::take(&mut self.in_flight) {
            self.durable[page as usize] = data;
        }
    }

    /// The pages did not reach every member.
    pub fn abort_pages(&mut self) {
        self.to_write.extend(std::mem::take(&mut self.in_flight).into_keys());
    }

    fn page(&self, page: u64) -> Vec<u8> {
        self.bits.page(&self.superblock, page)
    }

    /// Sectors of a page that must be written; the rest of it is padding, written where there is room.
    pub fn page_sectors_min(&self, page: u64) -> Sectors {
        let before = page * BITMAP_PAGE as u64;
        let bytes = file_bytes(self.bits.len()).saturating_sub(before).min(BITMAP_PAGE as u64);
        Sectors::from_bytes_ceil(bytes)
    }

    pub fn status(&self, offset: i64) -> BitmapStatus {
        let mut dirty = 0;
        let mut pages = BTreeSet::new();
        for bit in self.bits.iter_ones() {
            dirty += 1;
            pages.insert(bit / COUNTERS_PER_PAGE);
        }
        BitmapStatus {
            pages: self.bits.len().div_ceil(COUNTERS_PER_PAGE),
            pages_used: pages.len() as u64,
            bits: self.bits.len(),
            dirty,
            chunk: Sectors::from_bytes_floor(self.superblock.chunk()),
            events_cleared: self.superblock.events_cleared(),
            offset,
        }
    }
}

fn bit_in_page(page: &[u8], bit: u64) -> bool {
    let byte = (BITMAP_SUPER_BYTES as u64 + bit / 8) as usize % BITMAP_PAGE;
    page[byte] & 1 << (bit % 8) != 0
}
