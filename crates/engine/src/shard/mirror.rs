//! Mirrored levels (raid1, raid10): a write goes to every copy, a read to one.

use raidus_layout::Geometry;
use raidus_units::{MemberId, Nanos, Sector, Sectors};

use super::pieces::{Fallback, Piece, RETRY};
use super::record::{FailedWrite, Verdict};
use super::{OpRef, Shard, TokenKind, Turn, WriteKind, token};
use crate::io::{MemAddr, MemberError, Request, RequestError};
use crate::msg::Region;

/// A write of one run of the array to all its copies.
#[derive(Debug)]
pub struct MirrorWrite {
    parent: usize,
    kind: WriteKind,
    array: Sector,
    len: Sectors,
    buf: MemAddr,
    pub regions: (Region, Region),
    pending: u32,
    written: u32,
    /// Members written to, and the device sectors.
    targets: Vec<(MemberId, Sector)>,
    pub failed: Vec<FailedWrite>,
    epoch: u64,
}

impl MirrorWrite {
    /// Array start and length.
    pub fn range(&self) -> (Sector, Sectors) {
        (self.array, self.len)
    }
}

impl Shard {
    pub(super) fn begin_mirror_write(&mut self, now: Nanos, parent: usize, request: &Request, kind: WriteKind) {
        let mut done = Sectors::ZERO;
        while done < request.len {
            let Geometry::Mirror(g) = &self.geometry else { return };
            let array = request.sector + done;
            let len = g.piece(array, request.len - done);
            let buf = if request.buf == MemAddr::NONE { MemAddr::NONE } else { request.buf.plus(done) };
            done += len;
            self.requests[parent].remaining += 1;
            let op = self.mirrors.insert(MirrorWrite {
                parent,
                kind,
                array,
                len,
                buf,
                regions: self.regions(array, len),
                pending: 0,
                written: 0,
                targets: Vec::new(),
                failed: Vec::new(),
                epoch: 0,
            });
            let turn = Turn::Op(OpRef::Mirror(op));
            if self.locks.acquire(array.0, array.0 + len.0, turn) {
                self.pass_lock_gate(now, turn);
            }
        }
    }

    /// Lock and lease are held: write all copies.
    pub(super) fn write_mirrors(&mut self, now: Nanos, id: usize) {
        let Geometry::Mirror(geometry) = &self.geometry else { return };
        if self.map.broken {
            return self.end_mirror_write(now, id, Err(RequestError::Io), true);
        }
        let map = self.map.clone();
        let op = &self.mirrors[id];
        let (kind, array, len, buf) = (op.kind, op.array, op.len, op.buf);
        let mut targets = Vec::with_capacity(geometry.copies());
        for n in 0..geometry.copies() {
            let (slot, component) = geometry.copy(array, n);
            let Some(entry) = map.slots.get(slot.index()) else { continue };
            for member in [entry.member, entry.replacement].into_iter().flatten() {
                let m = &map.members[member.index()];
                if m.writable() {
                    targets.push((member, m.data_offset + component.from_start()));
                }
            }
        }
        let op = &mut self.mirrors[id];
        op.epoch = map.epoch;
        op.pending = targets.len() as u32;
        op.targets.clone_from(&targets);
        if targets.is_empty() {
            return self.end_mirror_write(now, id, Err(RequestError::Io), true);
        }
        for (member, sector) in targets {
            self.io(token(TokenKind::Mirror, id, member.0), member, kind.member_op(sector, len, buf));
        }
    }

    pub(super) fn on_mirror_io(&mut self, now: Nanos, id: usize, member: MemberId, result: Result<(), MemberError>) {
        let op = &mut self.mirrors[id];
        op.pending -= 1;
        let settled = op.pending == 0;
        let target = op.targets.iter().find(|(m, _)| *m == member).copied();
        let Some((_, sector)) = target else { return };
        let len = op.len;
        match result {
            Ok(()) => {
                op.written += 1;
                self.note_written(member, sector, len);
            }
            Err(error) => {
                let failed = FailedWrite { member, sector, len, gone: error == MemberError::Gone };
                op.failed.push(failed);
                self.report_failure(failed);
            }
        }
        if settled {
            self.settle_mirror(now, id);
        }
    }

    /// All copies have answered: acknowledge, or wait until the failures are on record.
    pub(super) fn settle_mirror(&mut self, now: Nanos, id: usize) {
        let op = &self.mirrors[id];
        match self.verdict(op.epoch, &op.failed) {
            Verdict::Pending => self.await_record(now, OpRef::Mirror(id)),
            Verdict::Recorded => {
                let result = if op.written > 0 { Ok(()) } else { Err(RequestError::Io) };
                self.end_mirror_write(now, id, result, true);
            }
        }
    }

    pub(super) fn end_mirror_write(&mut self, now: Nanos, id: usize, result: Result<(), RequestError>, leased: bool) {
        let op = self.mirrors.remove(id);
        if leased {
            self.leases_moved |= self.leases.end(now, op.regions.0, op.regions.1);
        }
        self.unlock(op.array.0);
        self.piece_done(op.parent, result);
    }

    pub(super) fn begin_mirror_read(&mut self, parent: usize, array: Sector, len: Sectors, buf: MemAddr) {
        let mut done = Sectors::ZERO;
        while done < len {
            let Geometry::Mirror(g) = &self.geometry else { return };
            let run = g.piece(array + done, len - done);
            self.read_copy(parent, array + done, run, buf.plus(done), 0);
            done += run;
        }
    }

    /// Reads a run (inside one chunk) from the best copy not yet tried. When no copy has all of it, smaller runs are tried,
    /// each from whichever copy has it.
    pub(super) fn read_copy(&mut self, parent: usize, array: Sector, len: Sectors, buf: MemAddr, tried: u64) {
        if let Some((n, member, sector)) = self.best_copy(array, len, tried) {
            let fallback = Fallback::Copies { tried: tried | 1 << n };
            return self.read_piece(Piece { parent, array, len, buf, member, read: true, fallback }, sector);
        }
        if len <= RETRY {
            return self.child_failed(parent);
        }
        let end = array + len;
        let mut at = array;
        while at < end {
            let next = Sector((at + Sectors(1)).from_start().round_up(RETRY).0).min(end);
            self.read_copy(parent, at, next - at, buf.plus(at - array), 0);
            at = next;
        }
    }

    /// The copy to read: where copies may differ, always the same one (the first that is not write-mostly); otherwise the
    /// member with the fewest reads under way.
    fn best_copy(&self, array: Sector, len: Sectors, tried: u64) -> Option<(usize, MemberId, Sector)> {
        let Geometry::Mirror(geometry) = &self.geometry else { return None };
        let unsynced = self.map.unsynced_from.is_some_and(|from| array + len > from);
        let mut best: Option<((bool, u32, usize), MemberId, Sector)> = None;
        for n in (0..geometry.copies().min(64)).filter(|n| tried >> n & 1 == 0) {
            let (slot, component) = geometry.copy(array, n);
            let Some((member, m)) = self.map.member_at(slot) else { continue };
            if !m.readable(component, len) {
                continue;
            }
            let load = if unsynced { 0 } else { self.reads_out[member.index()] };
            let order = if unsynced { n } else { n ^ (array.0 >> 11 & 1) as usize };
            let rank = (m.write_mostly, load, order);
            if best.as_ref().is_none_or(|(r, ..)| rank < *r) {
                best = Some((rank, member, m.data_offset + component.from_start()));
            }
        }
        best.map(|((_, _, order), member, sector)| {
            let n = if unsynced { order } else { order ^ (array.0 >> 11 & 1) as usize };
            (n, member, sector)
        })
    }
}
