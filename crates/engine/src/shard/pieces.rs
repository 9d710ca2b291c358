//! Pieces that are one member I/O: healthy reads of every level, and everything on striped levels.

use raidus_layout::{Extent, Geometry};
use raidus_units::{MemberId, Nanos, Sector, Sectors, Slot};

use super::{Shard, TokenKind, WriteKind, token};
use crate::io::{MemAddr, MemberError, MemberOp, Request, RequestError};
use crate::map::MemberMap;
use crate::msg::Message;
use crate::shard::stripe::Band;

/// What to do when the member cannot.
#[derive(Clone, Copy, Debug)]
pub enum Fallback {
    /// Striped levels: nothing.
    None,
    /// Mirrors: another copy; bit n stands for copy n, set once tried.
    Copies { tried: u64 },
    /// Parity levels: reconstruct.
    Stripe { row: u64, index: u16, lo: Sectors },
}

/// One member I/O for a request.
#[derive(Debug)]
pub struct Piece {
    pub parent: usize,
    pub array: Sector,
    pub len: Sectors,
    pub buf: MemAddr,
    pub member: MemberId,
    pub read: bool,
    pub fallback: Fallback,
}

/// Reads are retried in pieces of this size to find what can still be read.
pub const RETRY: Sectors = Sectors(8);

impl Shard {
    pub(super) fn begin_striped_read(&mut self, parent: usize, request: &Request) {
        self.for_each_extent(request, |shard, extent, array, buf| {
            let Some((member, data_offset)) = shard.readable_member(&extent) else {
                return shard.child_failed(parent);
            };
            let piece = Piece { parent, array, len: extent.len, buf, member, read: true, fallback: Fallback::None };
            shard.read_piece(piece, data_offset + extent.component.from_start());
        });
    }

    pub(super) fn begin_striped_write(&mut self, parent: usize, request: &Request, kind: WriteKind) {
        self.for_each_extent(request, |shard, extent, array, buf| {
            let Some((member, data_offset)) = writable_member(&shard.map, extent.slot) else {
                return shard.child_failed(parent);
            };
            let piece = Piece { parent, array, len: extent.len, buf, member, read: false, fallback: Fallback::None };
            shard.requests[parent].remaining += 1;
            let op = kind.member_op(data_offset + extent.component.from_start(), extent.len, buf);
            let id = shard.pieces.insert(piece);
            shard.io(token(TokenKind::Piece, id, 0), member, op);
        });
    }

    /// Sends a read to its member.
    pub(super) fn read_piece(&mut self, piece: Piece, sector: Sector) {
        self.requests[piece.parent].remaining += 1;
        self.reads_out[piece.member.index()] += 1;
        let (member, len, buf) = (piece.member, piece.len, piece.buf);
        let id = self.pieces.insert(piece);
        self.io(token(TokenKind::Piece, id, 0), member, MemberOp::Read { sector, len, buf });
    }

    /// A piece that cannot even be started.
    pub(super) fn child_failed(&mut self, parent: usize) {
        self.requests[parent].error.get_or_insert(RequestError::Io);
    }

    pub(super) fn on_piece_io(&mut self, now: Nanos, id: usize, result: Result<(), MemberError>) {
        let piece = self.pieces.remove(id);
        if piece.read {
            self.reads_out[piece.member.index()] -= 1;
        }
        let parent = piece.parent;
        if result.is_err() {
            match piece.fallback {
                Fallback::None => {
                    if !piece.read {
                        // There is no redundancy that a log of bad blocks could point to.
                        self.tell_control(Message::MemberFailed { member: piece.member, range: None });
                    }
                    self.child_failed(parent);
                }
                Fallback::Copies { tried } => {
                    self.tell_control(Message::ReadError { start: piece.array, len: piece.len });
                    self.read_copy(parent, piece.array, piece.len, piece.buf, tried);
                }
                Fallback::Stripe { row, index, lo } => {
                    let start = Sector(row * self.geometry.chunk().0) + lo;
                    self.tell_control(Message::ReadError { start, len: piece.len });
                    let band = Band { row, lo, hi: lo + piece.len, first: index, disks: 1 };
                    self.reconstruct(now, parent, band, piece.buf);
                }
            }
        }
        self.piece_done(parent, Ok(()));
    }

    pub(super) fn begin_parity_read(&mut self, now: Nanos, parent: usize, array: Sector, len: Sectors, buf: MemAddr) {
        let Geometry::Parity(geometry) = &self.geometry else { return };
        let geometry = geometry.clone();
        let mut done = Sectors::ZERO;
        while done < len {
            let at = array + done;
            let (row_number, index, lo) = geometry.map(at);
            let run = (geometry.chunk() - lo).min(len - done);
            let slot = geometry.row(row_number).data(index);
            let band = Band { row: row_number, lo, hi: lo + run, first: index, disks: 1 };
            self.read_chunk_part(now, parent, slot, band, at, buf.plus(done));
            done += run;
        }
    }

    /// Reads part of one data chunk: directly where the member has it, by reconstruction where not.
    fn read_chunk_part(&mut self, now: Nanos, parent: usize, slot: Slot, band: Band, array: Sector, buf: MemAddr) {
        let Geometry::Parity(geometry) = &self.geometry else { return };
        let component = Sector(band.row * geometry.chunk().0) + band.lo;
        let len = band.hi - band.lo;
        let Some((member, m)) = self.map.member_at(slot) else {
            return self.reconstruct(now, parent, band, buf);
        };
        if m.readable(component, len) {
            let sector = m.data_offset + component.from_start();
            let fallback = Fallback::Stripe { row: band.row, index: band.first, lo: band.lo };
            return self.read_piece(Piece { parent, array, len, buf, member, read: true, fallback }, sector);
        }
        if len <= RETRY {
            return self.reconstruct(now, parent, band, buf);
        }
        // Only part of it is bad or not yet rebuilt: go in small steps, so that no more than needed is reconstructed.
        let mut lo = band.lo;
        while lo < band.hi {
            let hi = (lo + Sectors(1)).round_up(RETRY).min(band.hi);
            let skip = lo - band.lo;
            self.read_chunk_part(now, parent, slot, Band { lo, hi, ..band }, array + skip, buf.plus(skip));
            lo = hi;
        }
    }

    fn readable_member(&self, extent: &Extent) -> Option<(MemberId, Sector)> {
        let (id, m) = self.map.member_at(extent.slot)?;
        m.readable(extent.component, extent.len).then_some((id, m.data_offset))
    }

    fn for_each_extent(&mut self, request: &Request, mut each: impl FnMut(&mut Shard, Extent, Sector, MemAddr)) {
        let mut done = Sectors::ZERO;
        while done < request.len {
            let at = request.sector + done;
            let extent = match &self.geometry {
                Geometry::Linear(g) => g.map(at, request.len - done),
                Geometry::Raid0(g) => g.map(at, request.len - done),
                _ => return,
            };
            let buf = if request.buf == MemAddr::NONE { MemAddr::NONE } else { request.buf.plus(done) };
            done += extent.len;
            each(self, extent, at, buf);
        }
    }
}

fn writable_member(map: &MemberMap, slot: Slot) -> Option<(MemberId, Sector)> {
    let (id, m) = map.member_at(slot)?;
    (m.writable() && !map.broken).then_some((id, m.data_offset))
}
