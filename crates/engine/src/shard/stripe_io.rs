//! One stripe operation's I/O: plan, read, compute, write.
//!
//! Scratch blocks, in pages of the operation's run: one per data block that is read, then P, then Q or partial parity.

use raidus_layout::{Geometry, ParityGeometry, Row};
use raidus_parity::recovery;
use raidus_units::{MemberId, Nanos, Sectors, Slot};

use super::arena::PAGE;
use super::record::FailedWrite;
use super::stripe::{Job, Phase, StripeOp};
use super::{Needy, Shard, TokenKind, WriteKind, token};
use crate::io::{Compute, MemAddr, MemberError, MemberOp, Output, RequestError};
use crate::map::MemberMap;
use crate::msg::{Message, Peer, StripeKind};
use crate::plan::{Access, DataSet, Recovery, StripeView, WritePlan, plan_write, recovery as plan_recovery};

/// A block of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    Data(u16),
    P,
    /// Second parity; in memory also what is logged of P, since only arrays without Q log it.
    Q,
}

const PART_P: u16 = 0xfffe;
const PART_Q: u16 = 0xffff;

impl Block {
    fn part(self) -> u16 {
        match self {
            Block::Data(i) => i,
            Block::P => PART_P,
            Block::Q => PART_Q,
        }
    }

    fn from_part(part: u16) -> Block {
        match part {
            PART_P => Block::P,
            PART_Q => Block::Q,
            i => Block::Data(i),
        }
    }
}

impl Shard {
    /// Plans by the newest map, takes scratch and starts reading (or writing at once). Returns false, with nothing held, if there
    /// is not enough scratch memory now.
    pub(super) fn start_io(&mut self, now: Nanos, id: usize) -> bool {
        let Geometry::Parity(geometry) = &self.geometry else { return true };
        let op = &self.stripes[id];
        let view = view(geometry, &self.map, op);
        // In a broken array some write failed half way through its stripe: what would be reconstructed there is garbage.
        let job = match decide(&view, op) {
            Some(job) if !self.map.broken => job,
            _ => {
                self.end_stripe(now, id, Err(RequestError::Io), true);
                return true;
            }
        };
        if let Some(lost) = self.to_be_split(&view, op) {
            self.split_around(now, id, lost);
            return true;
        }
        let blocks = scratch_blocks(&view, op, job, self.logged);
        if blocks > 0 {
            let pages = u32::from(blocks) * pages_per_block(op);
            match self.arena.take(pages) {
                Some(run) => self.stripes[id].run = Some(run),
                None => return false,
            }
        }
        let op = &mut self.stripes[id];
        op.phase = Phase::Reading(job);
        op.read_failed = false;
        self.read_blocks(id, &view, job);
        if self.stripes[id].pending == 0 {
            self.after_reads(now, id, job);
        }
        true
    }

    fn read_blocks(&mut self, id: usize, view: &StripeView, job: Job) {
        let Geometry::Parity(geometry) = &self.geometry else { return };
        let op = &self.stripes[id];
        let row = geometry.row(op.band.row);
        for block in reads(view, op, job) {
            let Some((member, m)) = slot_of(&row, block).and_then(|slot| self.map.member_at(slot)) else { continue };
            let sector = m.data_offset + self.stripes[id].start.from_start();
            let len = self.stripes[id].band.len();
            let buf = self.block_memory(id, job, block);
            self.stripes[id].pending += 1;
            if matches!(job, Job::Write(..)) {
                self.prereads.count += 1;
                self.prereads.sectors += len;
            }
            self.io(token(TokenKind::Stripe, id, block.part()), member, MemberOp::Read { sector, len, buf });
        }
    }

    pub(super) fn on_stripe_io(&mut self, now: Nanos, id: usize, part: u16, result: Result<(), MemberError>) {
        let op = &mut self.stripes[id];
        op.pending -= 1;
        match op.phase {
            Phase::Gate | Phase::Logging(_) => debug_assert!(false, "an I/O ended that nobody started"),
            Phase::Reading(job) => {
                if result.is_err() {
                    op.read_failed = true;
                    let (start, len) = (op.start, op.band.len());
                    self.out.push_back(Output::Send { to: Peer::Control, message: Message::ReadError { start, len } });
                    let op = &mut self.stripes[id];
                    match Block::from_part(part) {
                        Block::Data(i) => op.avoid.insert(i),
                        Block::P => op.avoid_p = true,
                        Block::Q => op.avoid_q = true,
                    }
                }
                if self.stripes[id].pending == 0 {
                    self.after_reads(now, id, job);
                }
            }
            Phase::Writing => {
                let member = MemberId(part);
                let settled = op.pending == 0;
                let (start, len) = (op.start, op.band.len());
                let sector = self.map.members[member.index()].data_offset + start.from_start();
                if let Err(error) = result {
                    let failed = FailedWrite { member, sector, len, gone: error == MemberError::Gone };
                    self.stripes[id].failed.push(failed);
                    self.report_failure(failed);
                } else {
                    self.note_written(member, sector, len);
                }
                if settled {
                    self.settle_stripe(now, id);
                }
            }
        }
    }

    /// Everything asked for was read, or could not be.
    fn after_reads(&mut self, now: Nanos, id: usize, job: Job) {
        if self.stripes[id].read_failed {
            // Plan again without what could not be read. The scratch goes back first: nobody waits holding some.
            self.stripes[id].phase = Phase::Gate;
            self.give_scratch_back(id);
            return self.wait_for_scratch(now, Needy::Stripe(id));
        }
        match job {
            Job::Recover(recovery) => {
                let first = self.stripes[id].band.first;
                self.recover(id, job, recovery, Some(first));
                self.end_stripe(now, id, Ok(()), true);
            }
            Job::Write(plan, recovery) => {
                self.recover(id, job, recovery, None);
                if self.is_to_be_logged(id, plan) {
                    self.ask_for_log(id, job, plan);
                } else {
                    self.compute_parity(id, job, plan);
                    self.write_blocks(now, id, job, plan);
                }
            }
        }
    }

    /// Recovers unreadable data blocks: only `only` into the request's memory, or all into their scratch blocks.
    fn recover(&mut self, id: usize, job: Job, how: Recovery, only: Option<u16>) {
        let Geometry::Parity(geometry) = &self.geometry else { return };
        let op = &self.stripes[id];
        let row = geometry.row(op.band.row);
        let block = |i: u16| if only == Some(i) { op.buf } else { self.block_memory(id, job, Block::Data(i)) };
        let parity = |q: bool| self.block_memory(id, job, if q { Block::Q } else { Block::P });
        let len = op.band.len();
        let compute = recover_data(&row, geometry.data_disks(), how, &block, &parity, only, len);
        self.out.extend(compute.map(Output::Compute));
    }

    pub(super) fn compute_parity(&mut self, id: usize, job: Job, plan: WritePlan) {
        let Geometry::Parity(geometry) = &self.geometry else { return };
        let op = &self.stripes[id];
        if plan == WritePlan::DataOnly || zeroes_whole_stripe(geometry, op) {
            return;
        }
        let row = geometry.row(op.band.row);
        let (p, q) = parities_kept(&row, &self.map);
        let p = p.then(|| self.block_memory(id, job, Block::P));
        let q = q.then(|| self.block_memory(id, job, Block::Q));
        let len = op.band.len();
        let written = op.band.first..op.band.first + op.band.disks;
        let compute = if plan == WritePlan::Modify {
            let delta =
                |i| (self.block_memory(id, job, Block::Data(i)), self.new_data(geometry, op, i), row.coefficient(i));
            Compute::PqUpdate { p, q, deltas: written.map(delta).collect(), len }
        } else {
            let block = |i| {
                let new = written.contains(&i);
                if new { self.new_data(geometry, op, i) } else { self.block_memory(id, job, Block::Data(i)) }
            };
            match (p, q) {
                (Some(dst), None) => Compute::Xor { dst, srcs: (0..geometry.data_disks()).map(block).collect(), len },
                _ => {
                    let mut data: Vec<(MemAddr, u8)> =
                        (0..geometry.data_disks()).map(|i| (block(i), row.coefficient(i))).collect();
                    data.sort_unstable_by_key(|d| d.1);
                    Compute::Pq { p, q, data, len }
                }
            }
        };
        self.out.push_back(Output::Compute(compute));
    }

    pub(super) fn write_blocks(&mut self, now: Nanos, id: usize, job: Job, plan: WritePlan) {
        let Geometry::Parity(geometry) = &self.geometry else { return };
        let geometry = geometry.clone();
        if self.map.broken {
            return self.end_stripe(now, id, Err(RequestError::Io), true);
        }
        let op = &mut self.stripes[id];
        op.phase = Phase::Writing;
        // Members that failed since the plan was made are left out, so it is this map that must be on record.
        op.epoch = self.map.epoch;
        let (band, kind) = (op.band, write_kind(op.kind));
        let row = geometry.row(band.row);
        let zero_parity = zeroes_whole_stripe(&geometry, op);
        op.unwritten = missing_blocks(&geometry, &row, &self.map);
        for i in band.first..band.first + band.disks {
            let buf = self.new_data(&geometry, &self.stripes[id], i);
            self.write_slot(id, row.data(i), kind, buf);
        }
        let parity_kind = if zero_parity { kind } else { WriteKind::Data { fua: kind.fua() } };
        let parities = [(Some(row.p()), Block::P), (row.q(), Block::Q)];
        for (slot, block) in parities.into_iter().filter_map(|(s, b)| Some((s?, b))) {
            let held = zero_parity || plan != WritePlan::DataOnly;
            if held && slot_writable(&self.map, slot) {
                let buf = if zero_parity { MemAddr::NONE } else { self.block_memory(id, job, block) };
                self.write_slot(id, slot, parity_kind, buf);
            }
        }
        if self.stripes[id].pending == 0 {
            self.end_stripe(now, id, Err(RequestError::Io), true);
        }
    }

    /// Writes a block to the member in the slot, and to the one that is replacing it.
    fn write_slot(&mut self, id: usize, slot: Slot, kind: WriteKind, buf: MemAddr) {
        let Some(entry) = self.map.slots.get(slot.index()).copied() else { return };
        for member in [entry.member, entry.replacement].into_iter().flatten() {
            let m = &self.map.members[member.index()];
            if !m.writable() {
                continue;
            }
            let op = &mut self.stripes[id];
            op.pending += 1;
            let sector = m.data_offset + op.start.from_start();
            let io = kind.member_op(sector, op.band.len(), buf);
            self.io(token(TokenKind::Stripe, id, member.0), member, io);
        }
    }

    pub(super) fn new_data(&self, geometry: &ParityGeometry, op: &StripeOp, i: u16) -> MemAddr {
        match op.kind {
            StripeKind::Zero { .. } => self.scratch.zeroes,
            _ => op.buf.plus(Sectors(u64::from(i - op.band.first) * geometry.chunk().0)),
        }
    }

    /// The scratch block of a block that is read (or of a parity that is computed).
    pub(super) fn block_memory(&self, id: usize, job: Job, block: Block) -> MemAddr {
        let op = &self.stripes[id];
        let Some(run) = op.run else { return MemAddr::NONE };
        let Geometry::Parity(geometry) = &self.geometry else { return MemAddr::NONE };
        let data = data_blocks(geometry.data_disks(), op, job);
        let index = match (block, job) {
            (Block::P, _) => data,
            (Block::Q, _) => data + 1,
            (Block::Data(i), Job::Write(WritePlan::Modify, _)) => i - op.band.first,
            (Block::Data(i), Job::Write(WritePlan::Reconstruct, _)) if i >= op.band.first => i - op.band.disks,
            (Block::Data(i), _) => i,
        };
        self.arena.addr(run, u32::from(index) * pages_per_block(op))
    }
}

/// The arithmetic that recovers the lost data blocks of a row from all others: only `only` of them if it says so. `data` gives
/// the memory of data blocks, `parity` that of Q if asked with `true`, else that of P.
pub(super) fn recover_data(
    row: &Row,
    data_disks: u16,
    how: Recovery,
    data: &dyn Fn(u16) -> MemAddr,
    parity: &dyn Fn(bool) -> MemAddr,
    only: Option<u16>,
    len: Sectors,
) -> Option<Compute> {
    let (lost, rows, with_p, with_q): (Vec<u16>, Vec<recovery::Row>, bool, bool) = match how {
        Recovery::Nothing => return None,
        Recovery::OneWithP(x) => (vec![x], vec![recovery::recover_one_with_p()], true, false),
        Recovery::OneWithQ(x) => (vec![x], vec![recovery::recover_one_with_q(row.coefficient(x))], false, true),
        Recovery::Two(x, y) => {
            let (a, b) = recovery::recover_two(row.coefficient(x), row.coefficient(y))?;
            (vec![x, y], vec![a, b], true, true)
        }
    };
    let alive: Vec<u16> = (0..data_disks).filter(|i| !lost.contains(i)).collect();
    let exponents: Vec<u8> = alive.iter().map(|i| row.coefficient(*i)).collect();
    let mut srcs: Vec<MemAddr> = alive.into_iter().map(data).collect();
    srcs.extend(with_p.then(|| parity(false)));
    srcs.extend(with_q.then(|| parity(true)));
    let wanted = lost.iter().zip(&rows).filter(|(i, _)| only.is_none_or(|o| o == **i));
    let outs: Vec<(MemAddr, Vec<u8>)> =
        wanted.map(|(i, r)| (data(*i), r.coefficients(&exponents, with_p, with_q))).collect();
    Some(match (how, outs.first()) {
        (Recovery::OneWithP(_), Some((dst, _))) => Compute::Xor { dst: *dst, srcs, len },
        _ => Compute::Combine { outs, srcs, len },
    })
}

/// What a stripe looks like to this operation.
fn view(geometry: &ParityGeometry, map: &MemberMap, op: &StripeOp) -> StripeView {
    let row = geometry.row(op.band.row);
    let len = op.band.len();
    let access = |slot: Slot| Access {
        readable: map.member_at(slot).is_some_and(|(_, m)| m.readable(op.start, len)),
        writable: slot_writable(map, slot),
    };
    let mut unreadable = op.avoid;
    let mut unwritable = DataSet::EMPTY;
    for i in 0..geometry.data_disks() {
        let a = access(row.data(i));
        if !a.readable {
            unreadable.insert(i);
        }
        if !a.writable {
            unwritable.insert(i);
        }
    }
    let mut p = access(row.p());
    let mut q = row.q().map_or(Access::NONE, access);
    p.readable &= !op.avoid_p;
    q.readable &= !op.avoid_q;
    let in_sync = map.unsynced_from.is_none_or(|from| op.start + len <= from);
    let (data_disks, parities) = (geometry.data_disks(), geometry.parities());
    StripeView { data_disks, unreadable, unwritable, p, q, parities, in_sync }
}

fn decide(view: &StripeView, op: &StripeOp) -> Option<Job> {
    if op.is_read() {
        return plan_recovery(view, Some(op.band.first)).ok().map(Job::Recover);
    }
    let plan = plan_write(view, op.band.first, op.band.disks).ok()?;
    let recovery = match plan {
        WritePlan::Recover => plan_recovery(view, None).ok()?,
        _ => Recovery::Nothing,
    };
    Some(Job::Write(plan, recovery))
}

/// Scratch blocks that hold data.
fn data_blocks(data_disks: u16, op: &StripeOp, job: Job) -> u16 {
    match job {
        Job::Write(WritePlan::DataOnly, _) => 0,
        Job::Write(WritePlan::Reconstruct, _) => data_disks - op.band.disks,
        Job::Write(WritePlan::Modify, _) => op.band.disks,
        Job::Write(WritePlan::Recover, _) | Job::Recover(_) => data_disks,
    }
}

fn scratch_blocks(view: &StripeView, op: &StripeOp, job: Job, logged: bool) -> u16 {
    match job {
        Job::Write(WritePlan::DataOnly, _) => 0,
        Job::Write(..) if logged && op.band.disks < view.data_disks => {
            data_blocks(view.data_disks, op, job) + view.parities + 1
        }
        _ => data_blocks(view.data_disks, op, job) + view.parities,
    }
}

fn pages_per_block(op: &StripeOp) -> u32 {
    op.band.len().0.div_ceil(PAGE.0) as u32
}

/// The blocks to read.
fn reads(view: &StripeView, op: &StripeOp, job: Job) -> Vec<Block> {
    let written = op.band.first..op.band.first + op.band.disks;
    let data = 0..view.data_disks;
    let mut blocks: Vec<Block> = match job {
        Job::Write(WritePlan::DataOnly, _) => Vec::new(),
        Job::Write(WritePlan::Reconstruct, _) => data.filter(|i| !written.contains(i)).map(Block::Data).collect(),
        Job::Write(WritePlan::Modify, _) => written.map(Block::Data).collect(),
        Job::Write(WritePlan::Recover, _) => data.filter(|i| !view.unreadable.contains(*i)).map(Block::Data).collect(),
        Job::Recover(_) => {
            data.filter(|i| *i != op.band.first && !view.unreadable.contains(*i)).map(Block::Data).collect()
        }
    };
    let (p, q) = match job {
        Job::Write(WritePlan::Modify, _) => (view.p.writable, view.q.writable),
        Job::Write(_, how) | Job::Recover(how) => match how {
            Recovery::Nothing => (false, false),
            Recovery::OneWithP(_) => (true, false),
            Recovery::OneWithQ(_) => (false, true),
            Recovery::Two(..) => (true, true),
        },
    };
    blocks.extend(p.then_some(Block::P));
    blocks.extend(q.then_some(Block::Q));
    blocks
}

fn zeroes_whole_stripe(geometry: &ParityGeometry, op: &StripeOp) -> bool {
    matches!(op.kind, StripeKind::Zero { .. }) && op.band.disks == geometry.data_disks()
}

fn write_kind(kind: StripeKind) -> WriteKind {
    match kind {
        StripeKind::Zero { fua, unmap } => WriteKind::Zero { fua, unmap },
        StripeKind::Write { fua } => WriteKind::Data { fua },
        StripeKind::Read => WriteKind::Data { fua: false },
    }
}

fn slot_of(row: &Row, block: Block) -> Option<Slot> {
    match block {
        Block::Data(i) => Some(row.data(i)),
        Block::P => Some(row.p()),
        Block::Q => row.q(),
    }
}

pub(super) fn slot_writable(map: &MemberMap, slot: Slot) -> bool {
    map.member_at(slot).is_some_and(|(_, m)| m.writable())
}

/// Which parities a member takes.
fn parities_kept(row: &Row, map: &MemberMap) -> (bool, bool) {
    (slot_writable(map, row.p()), row.q().is_some_and(|q| slot_writable(map, q)))
}

/// Blocks of the stripe that no member holds.
fn missing_blocks(geometry: &ParityGeometry, row: &Row, map: &MemberMap) -> u16 {
    let slots = (0..geometry.data_disks()).map(|i| row.data(i)).chain([row.p()]).chain(row.q());
    slots.filter(|s| !slot_writable(map, *s)).count() as u16
}
