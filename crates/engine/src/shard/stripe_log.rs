//! Stripe writes of arrays with a partial parity log.
//!
//! Before anything of such a write goes to any member, the log of the member that takes the parity says what parity is without the
//! chunks that are written. So after a power cut parity can be made to fit whatever became of these chunks, and a chunk that was
//! not written can be had from it though its member is gone. Control keeps the logs; this is the asking.
//!
//! A chunk that *is* written is not protected by that if its member is gone: parity and the other chunks may be of before and after.
//! So a write that includes a chunk nobody can read is done in steps, the lost chunk by itself: then what it becomes is
//! parity's alone, sector by sector old or new. (md writes the stripe at once, and may leave garbage in that chunk.)

use raidus_layout::{Geometry, ParityGeometry};
use raidus_units::{Nanos, Sectors};

use super::Shard;
use super::stripe::{Band, Job, Phase, StripeOp};
use super::stripe_io::{Block, slot_writable};
use crate::io::{Compute, LogEntry, MemAddr, Output};
use crate::msg::LogWant;
use crate::plan::{StripeView, WritePlan};

impl Shard {
    /// Whether the write has to wait for its log: if somebody takes its parity, up to date there or not.
    pub(super) fn is_to_be_logged(&self, id: usize, plan: WritePlan) -> bool {
        let Geometry::Parity(geometry) = &self.geometry else { return false };
        let row = geometry.row(self.stripes[id].band.row);
        self.logged && plan != WritePlan::DataOnly && slot_writable(&self.map, row.p())
    }

    /// Computes partial parity and parity, and has the write logged.
    pub(super) fn ask_for_log(&mut self, id: usize, job: Job, plan: WritePlan) {
        let Geometry::Parity(geometry) = &self.geometry else { return };
        let geometry = geometry.clone();
        let op = &self.stripes[id];
        let (band, len) = (op.band, op.band.len());
        let mut partial = None;
        if band.disks == geometry.data_disks() {
            self.compute_parity(id, job, plan);
        } else {
            let sources = self.partial_sources(&geometry, id, job, plan);
            // One block alone is what it is.
            let at = match sources[..] {
                [only] => only,
                _ => {
                    let dst = self.block_memory(id, job, Block::Q);
                    self.out.push_back(Output::Compute(Compute::Xor { dst, srcs: sources, len }));
                    dst
                }
            };
            let op = &self.stripes[id];
            let written = (band.first..band.first + band.disks).map(|i| self.new_data(&geometry, op, i));
            let srcs = std::iter::once(at).chain(written).collect();
            let dst = self.block_memory(id, job, Block::P);
            self.out.push_back(Output::Compute(Compute::Xor { dst, srcs, len }));
            partial = Some((at, len));
        }
        let entry = LogEntry {
            data_sector: geometry.array(band.row, band.first, band.lo),
            data_bytes: len.bytes() as u32 * u32::from(band.disks),
            parity_slot: geometry.row(band.row).p(),
            partial,
        };
        let op = &mut self.stripes[id];
        op.phase = Phase::Logging(job);
        op.logged = true;
        self.log_wants.push(LogWant { op: id as u64, entry });
    }

    /// What partial parity is the sum of.
    fn partial_sources(&self, geometry: &ParityGeometry, id: usize, job: Job, plan: WritePlan) -> Vec<MemAddr> {
        let band = self.stripes[id].band;
        let written = band.first..band.first + band.disks;
        let data = |i| self.block_memory(id, job, Block::Data(i));
        if plan == WritePlan::Modify {
            return std::iter::once(self.block_memory(id, job, Block::P)).chain(written.map(data)).collect();
        }
        (0..geometry.data_disks()).filter(|i| !written.contains(i)).map(data).collect()
    }

    /// The write is logged: it may begin.
    pub(super) fn on_logged(&mut self, now: Nanos, id: usize) {
        let Some(op) = self.stripes.get(id) else { return };
        match op.phase {
            Phase::Logging(job @ Job::Write(plan, _)) => self.write_blocks(now, id, job, plan),
            _ => debug_assert!(false, "a log was granted that nobody waits for"),
        }
    }

    /// The lost chunk of a write that must not be done at once.
    pub(super) fn to_be_split(&self, view: &StripeView, op: &StripeOp) -> Option<u16> {
        // Where parity is no help, the chunk's old content is gone anyway.
        let by_parity = view.p.readable && view.p.writable && view.in_sync && view.unreadable.len() == 1;
        if op.is_read() || !self.logged || op.band.disks == 1 || !by_parity {
            return None;
        }
        view.unreadable.iter().find(|i| (op.band.first..op.band.first + op.band.disks).contains(i))
    }

    /// Does a write in steps: what is before the lost chunk, that chunk alone, what is behind it.
    pub(super) fn split_around(&mut self, now: Nanos, id: usize, lost: u16) {
        let Geometry::Parity(geometry) = &self.geometry else { return };
        let chunk = geometry.chunk();
        let op = &self.stripes[id];
        let (parent, kind, band, buf) = (op.parent, op.kind, op.band, op.buf);
        let end = band.first + band.disks;
        let steps = [(band.first, lost), (lost, lost + 1), (lost + 1, end)];
        let steps: Vec<(u16, u16)> = steps.into_iter().filter(|(from, to)| from < to).collect();
        self.requests[parent].remaining += steps.len() as u32;
        self.end_stripe(now, id, Ok(()), true);
        for (first, to) in steps {
            let at =
                if buf == MemAddr::NONE { buf } else { buf.plus(Sectors(chunk.0 * u64::from(first - band.first))) };
            // They queue up for the same range, so they take turns.
            self.start_stripe(now, parent, kind, Band { first, disks: to - first, ..band }, at);
        }
    }
}
