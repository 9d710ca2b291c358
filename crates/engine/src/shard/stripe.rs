//! Stripe operations of parity levels: who does them, when they may start, how they end. The I/O and the arithmetic of one are
//! in `stripe_io`.
//!
//! A stripe operation covers the same sectors of a run of data chunks of one stripe (a *band*), at most one segment long. It
//! belongs to the shard that owns the stripe's zone, so that writes of one stripe and reconstruction of it take turns
//! without locks between cores.

use raidus_layout::{Geometry, ParityGeometry};
use raidus_units::{Nanos, Sector, Sectors};

use super::arena::Run;
use super::pieces::RETRY;
use super::record::{FailedWrite, Verdict};
use super::{OpRef, Origin, Parent, Shard, Turn, WriteKind, segment_max};
use crate::io::{MemAddr, Output, Request, RequestError};
use crate::msg::{Message, Peer, Region, StripeJob, StripeKind, zone_owner};
use crate::plan::{DataSet, Recovery, WritePlan};

/// Sectors `lo..hi` of the data chunks `first .. first + disks` of stripe `row`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    pub row: u64,
    pub lo: Sectors,
    pub hi: Sectors,
    pub first: u16,
    pub disks: u16,
}

impl Band {
    pub fn len(&self) -> Sectors {
        self.hi - self.lo
    }
}

/// A stripe operation under way.
#[derive(Debug)]
pub struct StripeOp {
    pub parent: usize,
    pub kind: StripeKind,
    pub band: Band,
    /// Memory of sector `lo` of the first data chunk; the next one's is a chunk further.
    pub buf: MemAddr,
    /// Component address of `lo`.
    pub start: Sector,
    pub regions: (Region, Region),
    /// Blocks whose read failed in this operation.
    pub avoid: DataSet,
    pub avoid_p: bool,
    pub avoid_q: bool,
    pub phase: Phase,
    pub run: Option<Run>,
    pub pending: u32,
    pub read_failed: bool,
    /// Control keeps a log of it.
    pub logged: bool,
    pub failed: Vec<FailedWrite>,
    /// Blocks that no member took, by missing members.
    pub unwritten: u16,
    pub epoch: u64,
}

/// Where a stripe operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waits for lock, lease or scratch.
    Gate,
    /// Reads what it needs.
    Reading(Job),
    /// Waits until it is logged.
    Logging(Job),
    /// Writes its blocks.
    Writing,
}

/// What it is going to do with what it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Give back data that cannot be read.
    Recover(Recovery),
    /// Write, after recovering what the plan needs.
    Write(WritePlan, Recovery),
}

impl StripeOp {
    pub fn is_read(&self) -> bool {
        self.kind == StripeKind::Read
    }
}

impl Shard {
    /// Splits a write into bands and hands each to its owner.
    pub(super) fn begin_stripes(&mut self, now: Nanos, parent: usize, request: &Request, kind: WriteKind) {
        let Geometry::Parity(geometry) = &self.geometry else { return };
        let geometry = geometry.clone();
        let kind = match kind {
            WriteKind::Data { fua } => StripeKind::Write { fua },
            WriteKind::Zero { fua, unmap } => StripeKind::Zero { fua, unmap },
        };
        let end = request.sector + request.len;
        let stripe = geometry.stripe_data_sectors();
        let mut at = request.sector;
        while at < end {
            let row = at.0 / stripe.0;
            let row_end = end.min(Sector((row + 1) * stripe.0));
            for band in bands(&geometry, at, row_end).into_iter().flatten() {
                let buf = band_memory(&geometry, request, &band);
                self.dispatch_segments(now, parent, kind, band, buf);
            }
            at = row_end;
        }
    }

    /// Reads part of one data chunk from the rest of its stripe.
    pub(super) fn reconstruct(&mut self, now: Nanos, parent: usize, band: Band, buf: MemAddr) {
        self.dispatch_segments(now, parent, StripeKind::Read, band, buf);
    }

    fn dispatch_segments(&mut self, now: Nanos, parent: usize, kind: StripeKind, band: Band, buf: MemAddr) {
        let segment = segment_max(&self.geometry, &self.tunables);
        let mut lo = band.lo;
        while lo < band.hi {
            let hi = (lo + Sectors(1)).round_up(segment).min(band.hi);
            let part = Band { lo, hi, ..band };
            let at = if buf == MemAddr::NONE { buf } else { buf.plus(lo - band.lo) };
            self.requests[parent].remaining += 1;
            self.dispatch(now, parent, kind, part, at);
            lo = hi;
        }
    }

    fn dispatch(&mut self, now: Nanos, parent: usize, kind: StripeKind, band: Band, buf: MemAddr) {
        let chunk = self.geometry.chunk();
        let owner = zone_owner(Sector(band.row * chunk.0), chunk, self.tunables.shards);
        if owner == self.id {
            return self.start_stripe(now, parent, kind, band, buf);
        }
        let Band { row, lo, hi, first, disks } = band;
        let job = StripeJob { job: parent as u64, kind, row, lo, hi, first, disks, buf };
        self.out.push_back(Output::Send { to: Peer::Shard(owner), message: Message::Stripe(job) });
    }

    pub(super) fn on_stripe_job(&mut self, now: Nanos, from: Peer, job: StripeJob) {
        let Peer::Shard(shard) = from else { return };
        let origin = Origin::Peer { shard, job: job.job };
        let parent = self.requests.insert(Parent { origin, remaining: 1, era: 0, error: None });
        let StripeJob { kind, row, lo, hi, first, disks, buf, .. } = job;
        self.start_stripe(now, parent, kind, Band { row, lo, hi, first, disks }, buf);
    }

    pub(super) fn start_stripe(&mut self, now: Nanos, parent: usize, kind: StripeKind, band: Band, buf: MemAddr) {
        let start = Sector(band.row * self.geometry.chunk().0) + band.lo;
        let id = self.stripes.insert(StripeOp {
            parent,
            kind,
            band,
            buf,
            start,
            regions: self.regions(start, band.len()),
            avoid: DataSet::EMPTY,
            avoid_p: false,
            avoid_q: false,
            phase: Phase::Gate,
            run: None,
            pending: 0,
            read_failed: false,
            logged: false,
            failed: Vec::new(),
            unwritten: 0,
            epoch: 0,
        });
        let turn = Turn::Op(OpRef::Stripe(id));
        if self.locks.acquire(start.0, start.0 + band.len().0, turn) {
            self.pass_lock_gate(now, turn);
        }
    }

    pub(super) fn give_scratch_back(&mut self, id: usize) {
        if let Some(run) = self.stripes[id].run.take() {
            self.arena.give_back(run);
            self.scratch_freed = true;
        }
    }

    /// All blocks have been answered: acknowledge, or wait until the failures are on record.
    pub(super) fn settle_stripe(&mut self, now: Nanos, id: usize) {
        let op = &self.stripes[id];
        match self.verdict(op.epoch, &op.failed) {
            Verdict::Pending => self.await_record(now, OpRef::Stripe(id)),
            Verdict::Recorded => {
                // Who is replacing a member is not needed yet.
                let replacing = |f: &&FailedWrite| self.map.slots.iter().any(|s| s.replacement == Some(f.member));
                let failed = op.failed.iter().filter(|f| !replacing(f)).count() as u16;
                let bearable = match &self.geometry {
                    Geometry::Parity(g) => op.unwritten + failed <= g.parities(),
                    _ => false,
                };
                let result = if bearable { Ok(()) } else { Err(RequestError::Io) };
                self.end_stripe(now, id, result, true);
            }
        }
    }

    /// Ends a stripe operation. A longer read that failed is tried again in small steps, which may find their blocks elsewhere.
    pub(super) fn end_stripe(&mut self, now: Nanos, id: usize, result: Result<(), RequestError>, leased: bool) {
        self.give_scratch_back(id);
        let op = self.stripes.remove(id);
        if op.logged {
            self.log_dones.push(id as u64);
        }
        if leased && !op.is_read() {
            self.leases_moved |= self.leases.end(now, op.regions.0, op.regions.1);
        }
        self.unlock(op.start.0);
        let retry = op.is_read() && result.is_err() && op.band.len() > RETRY;
        if retry {
            self.retry_in_steps(now, &op);
        }
        self.piece_done(op.parent, if retry { Ok(()) } else { result });
    }

    fn retry_in_steps(&mut self, now: Nanos, op: &StripeOp) {
        let mut lo = op.band.lo;
        while lo < op.band.hi {
            let hi = (lo + Sectors(1)).round_up(RETRY).min(op.band.hi);
            self.requests[op.parent].remaining += 1;
            let buf = op.buf.plus(lo - op.band.lo);
            self.start_stripe(now, op.parent, StripeKind::Read, Band { lo, hi, ..op.band }, buf);
            lo = hi;
        }
    }
}

/// Cuts `at..end` (inside one stripe) into bands: at most three runs of sectors, each covering the same data chunks.
fn bands(geometry: &ParityGeometry, at: Sector, end: Sector) -> [Option<Band>; 3] {
    let chunk = geometry.chunk();
    let (row, first, a) = geometry.map(at);
    let (_, last, b) = geometry.map(Sector(end.0 - 1));
    let b = b + Sectors(1);
    let band = |lo: Sectors, hi: Sectors, first: u16, end: u16| {
        (lo < hi && first < end).then_some(Band { row, lo, hi, first, disks: end.saturating_sub(first) })
    };
    if first == last {
        return [band(a, b, first, first + 1), None, None];
    }
    // Sectors below `a` miss the first chunk, sectors from `b` on miss the last.
    let (near, far) = (a.min(b), a.max(b));
    let middle = if a < b { (first, last + 1) } else { (first + 1, last) };
    [band(Sectors::ZERO, near, first + 1, last + 1), band(near, far, middle.0, middle.1), band(far, chunk, first, last)]
}

/// Where a band's first block is in the request's memory.
fn band_memory(geometry: &ParityGeometry, request: &Request, band: &Band) -> MemAddr {
    if request.buf == MemAddr::NONE {
        return MemAddr::NONE;
    }
    request.buf.plus(geometry.array(band.row, band.first, band.lo) - request.sector)
}

#[cfg(test)]
mod tests {
    use super::*;
    use raidus_layout::{GeometryParams, Raid0Layout};
    use raidus_units::Level;

    fn geometry() -> ParityGeometry {
        let params = GeometryParams {
            level: Level::Raid5,
            layout: 2,
            raid_disks: 5,
            chunk: Sectors(8),
            size: Sectors(64),
            data_sizes: &[],
            raid0_layout: Raid0Layout::Original,
        };
        match Geometry::new(&params) {
            Ok(Geometry::Parity(g)) => g,
            other => panic!("{other:?}"),
        }
    }

    /// Every range inside one stripe is covered exactly once.
    #[test]
    fn bands_cover_each_sector_once() {
        let g = geometry();
        let stripe = 32u64;
        for start in 0..stripe {
            for end in start + 1..=stripe {
                let mut seen = vec![0; stripe as usize];
                for band in bands(&g, Sector(stripe + start), Sector(stripe + end)).into_iter().flatten() {
                    assert_eq!(band.row, 1);
                    for disk in band.first..band.first + band.disks {
                        (band.lo.0..band.hi.0).for_each(|s| seen[(u64::from(disk) * 8 + s) as usize] += 1);
                    }
                }
                let expected: Vec<i32> = (0..stripe).map(|s| i32::from(s >= start && s < end)).collect();
                assert_eq!(seen, expected, "{start}..{end}");
            }
        }
    }
}
