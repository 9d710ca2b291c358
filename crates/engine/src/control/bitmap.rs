//! The write-intent bitmap in memory, and what of it is on the members.
//!
//! A bit says "members may differ in this chunk". It is set, durably on every member in use, before a lease is granted, and
//! cleared lazily once the data written there is durable everywhere. Three views are kept: what the bits are, which of
//! them are certainly set on *every* member, and which must stay because a resync has to visit them.

use std::collections::{BTreeMap, BTreeSet};

use raidus_units::{Nanos, Sectors};

use super::provisional::BitmapSuperblock;
use super::status::BitmapStatus;
use crate::config::BitmapSetup;
use crate::msg::Region;

/// The bitmap area is written in these pieces.
pub(super) const PAGE_BYTES: usize = 4096;
/// Bits start behind the bitmap superblock.
const HEADER_BYTES: usize = 256;
/// Counters on one page of the kernel's: mdstat counts in them.
const COUNTERS_PER_PAGE: u64 = 2048;

#[derive(Debug)]
pub(super) struct Bitmap {
    superblock: BitmapSuperblock,
    bits: Bits,
    /// Certainly set on every member in use.
    durable: Bits,
    /// To be kept until a resync has visited them.
    needed: Bits,
    /// Pages with bits that have to reach the members before leases are granted.
    to_write: BTreeSet<usize>,
    /// Page writes under way: what was written.
    in_flight: BTreeMap<usize, Vec<u8>>,
    /// What was loaded differs, or may differ, from what is on the members: nothing may declare the bitmap fresh before
    /// these pages are there.
    unseeded: bool,
    /// Bits that could be cleared: set, not needed, held by nobody, since when.
    idle: BTreeMap<Region, Nanos>,
    /// Those being cleared, while the members are flushed.
    clearing: BTreeSet<Region>,
    last_clearing: Nanos,
}

/// A bitmap file's bits, in its own layout: page 0 begins with the space of the superblock.
#[derive(Clone, Debug)]
struct Bits {
    bytes: Vec<u8>,
    count: u64,
}

impl Bitmap {
    /// `keep_from`: bits whose chunk reaches beyond this region must be visited by a resync.
    pub fn new(setup: &BitmapSetup, keep_from: Option<Region>) -> Bitmap {
        let count = setup.superblock.bits();
        let bits = Bits::from_stream(&setup.bits, count);
        let mut needed = Bits::zero(count);
        if let Some(from) = keep_from {
            bits.ones().filter(|bit| *bit >= from.0).for_each(|bit| needed.set(bit, true));
        }
        let unseeded = !needed.is_empty();
        Bitmap {
            superblock: setup.superblock.clone(),
            durable: Bits::zero(count),
            needed,
            to_write: BTreeSet::new(),
            in_flight: BTreeMap::new(),
            unseeded,
            idle: BTreeMap::new(),
            clearing: BTreeSet::new(),
            last_clearing: Nanos(0),
            bits,
        }
    }

    pub fn contains(&self, region: Region) -> bool {
        region.0 < self.bits.count
    }

    /// Sets a region's bit. It counts once [`Bitmap::is_durable`].
    pub fn set(&mut self, region: Region) {
        if !self.contains(region) {
            return;
        }
        self.hold(region);
        self.bits.set(region.0, true);
        let page = Bits::page_of(region.0);
        let under_way = self.in_flight.get(&page).is_some_and(|data| Bits::bit_in_page(data, region.0));
        if !self.durable.is_set(region.0) && !under_way {
            self.to_write.insert(page);
        }
    }

    pub fn is_durable(&self, region: Region) -> bool {
        self.durable.is_set(region.0)
    }

    /// A lease on the region is out or wanted: its bit stays.
    pub fn hold(&mut self, region: Region) {
        self.idle.remove(&region);
        self.clearing.remove(&region);
    }

    /// Nobody holds the region any more. With `keep`, a member has missed what was written there.
    pub fn on_idle(&mut self, region: Region, now: Nanos, keep: bool) {
        if !self.bits.is_set(region.0) {
            return;
        }
        if keep {
            self.needed.set(region.0, true);
        }
        if !self.needed.is_set(region.0) {
            self.idle.insert(region, now);
        }
    }

    /// Bits that were set when the array was started whole and clean mean nothing; they are cleared with the others.
    pub fn adopt_strays(&mut self, now: Nanos) {
        let strays: Vec<u64> = self.bits.ones().filter(|bit| !self.needed.is_set(*bit)).collect();
        for bit in strays {
            self.idle.entry(Region(bit)).or_insert(now);
        }
    }

    /// A member left: every bit set says what it may miss, and stays.
    pub fn keep_all(&mut self) {
        for bit in self.bits.ones().collect::<Vec<_>>() {
            self.needed.set(bit, true);
        }
        self.idle.clear();
        self.clearing.clear();
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
    pub fn begin_seed(&mut self) -> Vec<(usize, Vec<u8>)> {
        for bit in self.needed.ones().collect::<Vec<_>>() {
            self.to_write.insert(Bits::page_of(bit));
        }
        self.begin_pages()
    }

    pub fn end_seed(&mut self) {
        self.unseeded = false;
        self.end_pages();
    }

    /// The page with the superblock, saying that the bitmap is as new as `events`.
    pub fn superblock_page(&mut self, events: u64, clears: bool) -> Vec<u8> {
        let cleared = if clears { events } else { self.superblock.events_cleared().min(events) };
        self.superblock.mark(events, cleared);
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
            self.bits.set(region.0, false);
            self.to_write.insert(Bits::page_of(region.0));
        }
    }

    /// Takes the pages to write. Until they are written, only what was set before *and* is set now is certain.
    pub fn begin_pages(&mut self) -> Vec<(usize, Vec<u8>)> {
        let pages: Vec<_> =
            std::mem::take(&mut self.to_write).into_iter().map(|page| (page, self.page(page))).collect();
        for (page, data) in &pages {
            self.durable.page_mut(*page).iter_mut().zip(data).for_each(|(durable, new)| *durable &= new);
            self.in_flight.insert(*page, data.clone());
        }
        pages
    }

    /// The pages are on every member.
    pub fn end_pages(&mut self) {
        for (page, data) in std::mem::take(&mut self.in_flight) {
            self.durable.page_mut(page).copy_from_slice(&data);
        }
    }

    /// The pages did not reach every member.
    pub fn abort_pages(&mut self) {
        self.to_write.extend(std::mem::take(&mut self.in_flight).into_keys());
    }

    fn page(&self, page: usize) -> Vec<u8> {
        let mut data = self.bits.page(page).to_vec();
        if page == 0 {
            data[..HEADER_BYTES].copy_from_slice(&self.superblock.encode());
        }
        data
    }

    /// Bytes of a page that must be written; the rest of it is padding, written where there is room.
    pub fn page_bytes_min(&self, page: usize) -> usize {
        let end = HEADER_BYTES + (self.bits.count.div_ceil(8)) as usize;
        end.saturating_sub(page * PAGE_BYTES).min(PAGE_BYTES).next_multiple_of(512)
    }

    pub fn status(&self) -> BitmapStatus {
        let mut dirty = 0;
        let mut pages = BTreeSet::new();
        for bit in self.bits.ones() {
            dirty += 1;
            pages.insert(bit / COUNTERS_PER_PAGE);
        }
        BitmapStatus {
            pages: self.bits.count.div_ceil(COUNTERS_PER_PAGE),
            pages_used: pages.len() as u64,
            bits: self.bits.count,
            dirty,
            chunk: Sectors::from_bytes_floor(self.superblock.chunk_bytes()),
            events_cleared: self.superblock.events_cleared(),
        }
    }
}

impl Bits {
    fn zero(count: u64) -> Bits {
        let bytes = (HEADER_BYTES + count.div_ceil(8) as usize).next_multiple_of(PAGE_BYTES);
        Bits { bytes: vec![0; bytes], count }
    }

    /// From the bytes that follow the superblock. Missing ones count as set: such chunks may differ.
    fn from_stream(stream: &[u8], count: u64) -> Bits {
        let mut bits = Bits::zero(count);
        let room = &mut bits.bytes[HEADER_BYTES..];
        room.fill(0xff);
        let known = stream.len().min(room.len());
        room[..known].copy_from_slice(&stream[..known]);
        bits
    }

    /// Where a bit is: its byte in the file and its mask there.
    fn place(bit: u64) -> (usize, u8) {
        (HEADER_BYTES + (bit / 8) as usize, 1 << (bit % 8))
    }

    fn page_of(bit: u64) -> usize {
        Bits::place(bit).0 / PAGE_BYTES
    }

    fn bit_in_page(page: &[u8], bit: u64) -> bool {
        let (byte, mask) = Bits::place(bit);
        page[byte % PAGE_BYTES] & mask != 0
    }

    fn is_set(&self, bit: u64) -> bool {
        let (byte, mask) = Bits::place(bit);
        bit < self.count && self.bytes[byte] & mask != 0
    }

    fn set(&mut self, bit: u64, on: bool) {
        let (byte, mask) = Bits::place(bit);
        if on {
            self.bytes[byte] |= mask;
        } else {
            self.bytes[byte] &= !mask;
        }
    }

    fn page(&self, page: usize) -> &[u8] {
        &self.bytes[page * PAGE_BYTES..][..PAGE_BYTES]
    }

    fn page_mut(&mut self, page: usize) -> &mut [u8] {
        &mut self.bytes[page * PAGE_BYTES..][..PAGE_BYTES]
    }

    fn is_empty(&self) -> bool {
        self.ones().next().is_none()
    }

    fn ones(&self) -> impl Iterator<Item = u64> + '_ {
        let bytes = self.bytes[HEADER_BYTES..].iter().enumerate().filter(|(_, byte)| **byte != 0);
        bytes
            .flat_map(|(i, byte)| (0..8).filter(move |bit| byte >> bit & 1 != 0).map(move |bit| i as u64 * 8 + bit))
            .take_while(|bit| *bit < self.count)
    }
}
