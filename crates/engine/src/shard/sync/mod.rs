//! A shard's part in resync, recovery, check and repair.
//!
//! Control hands out *windows*. A window's work is cut into operations, each a range of the members (parity levels) or of the array
//! (mirrored levels) that fits into a segment. An operation reads what is there, computes what should be, compares or
//! writes. No write of a client is under way in its range meanwhile: on parity levels it holds the range lock of the stripes, which
//! only this shard writes; on mirrored levels every shard keeps the window's ranges locked (a *bar*) until Control lifts it.
//!
//! What cannot be read is found from the rest and written anew, in steps of 4 KiB, so that two members with different bad sectors
//! still give everything.

mod copies;
mod stripes;

use std::collections::BTreeMap;

use raidus_layout::Geometry;
use raidus_parity::Difference;
use raidus_units::{MemberId, Nanos, Sector, Sectors};
use slab::Slab;

use super::arena::{PAGE, Run};
use super::pieces::RETRY;
use super::record::FailedWrite;
use super::{Needy, Shard, TokenKind, Turn, segment_max, token, untoken};
use crate::io::{Blocks, Compare, IoToken, MemAddr, MemberError, MemberOp, Output};
use crate::msg::Message;
use crate::sync::{Healed, Ranges, SyncJob, SyncOutcome, SyncWork};

/// A client that asked for something within this time counts as there: it may be thinking of its next request.
const LINGER: Nanos = Nanos::from_millis(200);

/// The sync work of a shard.
#[derive(Debug, Default)]
pub(super) struct Syncs {
    windows: Slab<Window>,
    ops: Slab<SyncOp>,
    bars: BTreeMap<u64, Bar>,
}

impl Syncs {
    pub fn is_idle(&self) -> bool {
        self.windows.is_empty()
    }
}

/// A window this shard works on.
#[derive(Debug)]
struct Window {
    job: SyncJob,
    /// Operations that have not ended.
    ops: u32,
    outcome: SyncOutcome,
}

/// Ranges kept free of writes.
#[derive(Debug)]
struct Bar {
    ranges: Ranges,
    /// Range locks not yet granted.
    waiting: usize,
}

/// One operation: a range that is done in one go.
#[derive(Debug)]
struct SyncOp {
    window: usize,
    start: Sector,
    len: Sectors,
    phase: Phase,
    run: Option<Run>,
    pending: u32,
    /// Slots (parity levels) or copies (mirrored levels) that were read, or whose read failed.
    read: Vec<u16>,
    bad: Vec<u16>,
    /// Per stripe of the range: whether P and Q were compared.
    compared: Vec<(bool, bool)>,
    /// What the comparisons found, with their part numbers.
    found: Vec<(u16, Vec<Difference>)>,
    /// The writes, by part number.
    written: Vec<SyncWrite>,
}

/// A write of an operation.
#[derive(Clone, Copy, Debug)]
struct SyncWrite {
    member: MemberId,
    sector: Sector,
    len: Sectors,
    /// The block could not be read before.
    heals: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Gate,
    Reading,
    Comparing,
    Writing,
}

impl Shard {
    pub(super) fn on_sync_bar(&mut self, window: u64, ranges: &Ranges) {
        self.syncs.bars.insert(window, Bar { ranges: ranges.clone(), waiting: ranges.len() });
        for (start, len) in ranges.iter() {
            if self.locks.acquire(start.0, start.0 + len.0, Turn::Bar(window)) {
                self.on_barred(window);
            }
        }
    }

    /// One of a bar's ranges is free of writes.
    pub(super) fn on_barred(&mut self, window: u64) {
        let Some(bar) = self.syncs.bars.get_mut(&window) else { return };
        bar.waiting -= 1;
        if bar.waiting == 0 {
            self.tell_control(Message::SyncBarred { window });
        }
    }

    pub(super) fn on_sync_unbar(&mut self, window: u64) {
        let Some(bar) = self.syncs.bars.remove(&window) else { return };
        for (start, _) in bar.ranges.iter() {
            self.unlock(start.0);
        }
    }

    pub(super) fn on_sync_load_ask(&mut self, now: Nanos) {
        let lately = self.last_request_at.is_some_and(|at| now.since(at) < LINGER);
        self.tell_control(Message::SyncLoad { busy: lately || self.outstanding() > 0 });
    }

    pub(super) fn on_sync_job(&mut self, now: Nanos, job: SyncJob) {
        let ranges = job.ranges.clone();
        // The window counts as an operation of its own until all are started.
        let window = self.syncs.windows.insert(Window { job, ops: 1, outcome: SyncOutcome::default() });
        let segment = self.sync_segment();
        for (start, len) in ranges.iter() {
            let end = *start + *len;
            let mut at = *start;
            while at < end {
                let next = Sector((at + Sectors(1)).from_start().round_up(segment).0).min(end);
                let piece = self.whole_piece(at, next - at);
                self.begin_sync_op(now, window, at, piece);
                at += piece;
            }
        }
        self.end_window_op(window);
    }

    /// The longest range of one operation. A range may hold several stripes, so that small chunks do not make small I/O.
    fn sync_segment(&self) -> Sectors {
        match &self.geometry {
            Geometry::Parity(g) if g.chunk() < self.tunables.segment_max => {
                self.tunables.segment_max.round_down(g.chunk()).max(g.chunk())
            }
            geometry => segment_max(geometry, &self.tunables),
        }
    }

    /// How much of a range is in one piece on every member.
    fn whole_piece(&self, at: Sector, len: Sectors) -> Sectors {
        match &self.geometry {
            Geometry::Mirror(g) => g.piece(at, len),
            _ => len,
        }
    }

    fn begin_sync_op(&mut self, now: Nanos, window: usize, start: Sector, len: Sectors) {
        self.syncs.windows[window].ops += 1;
        let op = SyncOp {
            window,
            start,
            len,
            phase: Phase::Gate,
            run: None,
            pending: 0,
            read: Vec::new(),
            bad: Vec::new(),
            compared: Vec::new(),
            found: Vec::new(),
            written: Vec::new(),
        };
        let id = self.syncs.ops.insert(op);
        match self.geometry {
            Geometry::Parity(_) => {
                if self.locks.acquire(start.0, start.0 + len.0, Turn::Sync(id)) {
                    self.wait_for_scratch(now, Needy::Sync(id));
                }
            }
            _ => self.wait_for_scratch(now, Needy::Sync(id)),
        }
    }

    /// Plans by the newest map, takes scratch and reads. Returns false, with nothing held, if there is not enough scratch memory now.
    pub(super) fn start_sync_io(&mut self, now: Nanos, id: usize) -> bool {
        if self.map.broken {
            let op = &self.syncs.ops[id];
            let range = (op.start, op.len);
            self.window_of(id).outcome.unreadable.push(range);
            self.end_sync_op(id);
            return true;
        }
        match self.geometry {
            Geometry::Parity(_) => self.start_stripes_sync(now, id),
            Geometry::Mirror(_) => self.start_copies_sync(now, id),
            _ => {
                self.end_sync_op(id);
                true
            }
        }
    }

    pub(super) fn on_sync_io(&mut self, now: Nanos, id: usize, part: u16, result: Result<(), MemberError>) {
        let op = &mut self.syncs.ops[id];
        op.pending -= 1;
        let settled = op.pending == 0;
        match (op.phase, result) {
            (Phase::Reading, Err(_)) => op.bad.push(part),
            (Phase::Writing, result) => {
                let SyncWrite { member, sector, len, heals } = op.written[usize::from(part)];
                let outcome = &mut self.window_of(id).outcome;
                match result {
                    Ok(()) if heals => outcome.healed.push(Healed { member, start: sector, len }),
                    Ok(()) => self.note_written(member, sector, len),
                    Err(error) => {
                        outcome.failed_writes.push((member, sector, len));
                        let gone = error == MemberError::Gone;
                        self.report_failure(FailedWrite { member, sector, len, gone });
                    }
                }
            }
            _ => {}
        }
        if settled {
            self.sync_phase_ended(now, id);
        }
    }

    pub(super) fn on_compared(&mut self, now: Nanos, io: IoToken, differences: Vec<Difference>) {
        let (_, id, part) = untoken(io);
        let op = &mut self.syncs.ops[id];
        op.pending -= 1;
        if !differences.is_empty() {
            op.found.push((part, differences));
        }
        if op.pending == 0 {
            self.sync_phase_ended(now, id);
        }
    }

    fn sync_phase_ended(&mut self, now: Nanos, id: usize) {
        let parity = matches!(self.geometry, Geometry::Parity(_));
        match (self.syncs.ops[id].phase, parity) {
            (Phase::Reading, true) => self.after_stripes_read(now, id),
            (Phase::Reading, false) => self.after_copies_read(now, id),
            (Phase::Comparing, true) => self.write_stripes(id),
            (Phase::Comparing, false) => self.write_copies(id),
            (Phase::Writing, _) => self.end_sync_op(id),
            (Phase::Gate, _) => debug_assert!(false, "an I/O ended that nobody started"),
        }
    }

    /// Does the operation again in steps of 4 KiB, since part of its range has to go another way. Returns false if it is one already.
    fn split_sync_op(&mut self, now: Nanos, id: usize) -> bool {
        let op = &self.syncs.ops[id];
        let (window, start, len) = (op.window, op.start, op.len);
        if len <= RETRY {
            return false;
        }
        self.syncs.windows[window].ops += 1;
        self.end_sync_op(id);
        let end = start + len;
        let mut at = start;
        while at < end {
            let next = Sector((at + Sectors(1)).from_start().round_up(RETRY).0).min(end);
            self.begin_sync_op(now, window, at, next - at);
            at = next;
        }
        self.end_window_op(window);
        true
    }

    fn end_sync_op(&mut self, id: usize) {
        let op = self.syncs.ops.remove(id);
        if let Some(run) = op.run {
            self.arena.give_back(run);
            self.scratch_freed = true;
        }
        if matches!(self.geometry, Geometry::Parity(_)) {
            self.unlock(op.start.0);
        }
        self.end_window_op(op.window);
    }

    fn end_window_op(&mut self, window: usize) {
        let w = &mut self.syncs.windows[window];
        w.ops -= 1;
        if w.ops > 0 {
            return;
        }
        let mut done = self.syncs.windows.remove(window);
        done.outcome.mismatches.sort_unstable_by_key(|m| m.start);
        self.tell_control(Message::SyncDone { window: done.job.window, outcome: Box::new(done.outcome) });
    }

    fn window_of(&mut self, id: usize) -> &mut Window {
        let window = self.syncs.ops[id].window;
        &mut self.syncs.windows[window]
    }

    fn work_of(&self, id: usize) -> SyncWork {
        self.syncs.windows[self.syncs.ops[id].window].job.work
    }

    /// Takes scratch for `blocks` blocks of the operation's length.
    fn take_sync_scratch(&mut self, id: usize, blocks: usize) -> bool {
        let pages = blocks as u32 * self.syncs.ops[id].len.0.div_ceil(PAGE.0) as u32;
        let run = self.arena.take(pages);
        self.syncs.ops[id].run = run;
        run.is_some()
    }

    /// Memory of a block of the operation.
    fn sync_block(&self, id: usize, block: usize) -> MemAddr {
        let op = &self.syncs.ops[id];
        let Some(run) = op.run else { return MemAddr::NONE };
        self.arena.addr(run, block as u32 * op.len.0.div_ceil(PAGE.0) as u32)
    }

    fn sync_read(&mut self, id: usize, part: u16, member: MemberId, sector: Sector, buf: MemAddr) {
        let op = &mut self.syncs.ops[id];
        op.pending += 1;
        op.read.push(part);
        let len = op.len;
        self.io(token(TokenKind::Sync, id, part), member, MemberOp::Read { sector, len, buf });
    }

    /// Writes to a member; and what mends it also to the member that is replacing it, which may have been given the old content
    /// already.
    fn sync_write(&mut self, id: usize, write: SyncWrite, buf: MemAddr) {
        let mends = self.work_of(id) != SyncWork::Recover;
        if let Some((member, sector)) = self.successor(&write).filter(|_| mends) {
            self.write_one(id, SyncWrite { member, sector, heals: false, ..write }, buf);
        }
        self.write_one(id, write, buf);
    }

    /// The member that is replacing the one written to, and the device sector of the same component address.
    fn successor(&self, write: &SyncWrite) -> Option<(MemberId, Sector)> {
        let slot = self.map.slot_of(write.member)?;
        let entry = self.map.slots.get(slot.index()).filter(|entry| entry.member == Some(write.member))?;
        let (member, old) = (entry.replacement?, self.map.members.get(write.member.index())?);
        let new = self.map.members.get(member.index()).filter(|m| m.writable())?;
        Some((member, new.data_offset + (write.sector - old.data_offset)))
    }

    fn write_one(&mut self, id: usize, write: SyncWrite, buf: MemAddr) {
        let op = &mut self.syncs.ops[id];
        op.pending += 1;
        // At most one write per sector and member of a segment.
        let part = op.written.len() as u16;
        op.written.push(write);
        let SyncWrite { member, sector, len, .. } = write;
        self.io(token(TokenKind::Sync, id, part), member, MemberOp::Write { sector, len, buf, fua: false });
    }

    fn sync_compare(&mut self, id: usize, part: u16, blocks: Blocks, len: Sectors) {
        self.syncs.ops[id].pending += 1;
        self.out.push_back(Output::Compare(Compare { token: token(TokenKind::Sync, id, part), blocks, len }));
    }
}
