//! What goes into the state machines and what comes out of them.

use raidus_format::MdUuid;
use raidus_format::ppl::{HEADER_BYTES, PplUnit};
use raidus_parity::Difference;
use raidus_units::{MemberId, Sector, Sectors, Slot};

use crate::msg::{Message, Peer};

/// An address in the driver's memory. The engine adds byte offsets to it and compares it, and never looks behind it: for
/// the runtime it is a pointer, for the simulator an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemAddr(pub u64);

impl MemAddr {
    /// Stands for "no memory" in requests that carry none (flush, discard).
    pub const NONE: MemAddr = MemAddr(0);

    /// The address `n` sectors further.
    #[must_use]
    pub const fn plus(self, n: Sectors) -> MemAddr {
        MemAddr(self.0 + n.bytes())
    }
}

/// A request's name, chosen by the driver; unique among the requests under way in one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What a client asks of the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Comes back in the [`Reply`].
    pub id: RequestId,
    /// What to do.
    pub op: RequestOp,
    /// Where, in the array.
    pub sector: Sector,
    /// How much; zero for a flush.
    pub len: Sectors,
    /// `len` bytes of stable memory: the driver promises not to change it before the reply, so it is written and
    /// XORed in place, never copied. [`MemAddr::NONE`] for flush, discard and write-zeroes.
    pub buf: MemAddr,
}

/// The operations of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOp {
    /// Read into the buffer.
    Read,
    /// Write from the buffer; with `fua`, durable before the reply.
    Write {
        /// Durable on every member written before the reply.
        fua: bool,
    },
    /// Make every write that was replied to before this request arrived durable on every member.
    Flush,
    /// The content is no longer needed. Reads zeroes afterwards (md promises less; a fixed content keeps members equal).
    Discard,
    /// Becomes zeroes.
    WriteZeroes {
        /// Durable before the reply.
        fua: bool,
        /// The members may give their space back.
        unmap: bool,
    },
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The request.
    pub id: RequestId,
    /// How it ended.
    pub result: Result<(), RequestError>,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The members could not do it, even with redundancy (EIO).
    #[error("input/output error: too many members failed or hold bad blocks there")]
    Io,
    /// Past the end of the array or an empty or unaligned range (EINVAL; ENOSPC for writes, as front ends see fit).
    #[error("the range is not inside the array")]
    Range,
    /// The array is read-only (EROFS / EPERM).
    #[error("the array is read-only")]
    ReadOnly,
    /// The array is stopping or has lost too many members (ESHUTDOWN / EIO).
    #[error("the array has stopped serving")]
    Stopped,
}

/// A member I/O's name, unique among the I/Os under way of one state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoToken(pub u64);

/// An I/O on one member device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberIo {
    /// Comes back in [`Input::MemberDone`].
    pub token: IoToken,
    /// The device.
    pub member: MemberId,
    /// What to do.
    pub op: MemberOp,
}

/// The operations of a member device. Positions are *device* sectors (data offset included).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberOp {
    /// Read `len` into memory.
    Read {
        /// Device sector.
        sector: Sector,
        /// Length.
        len: Sectors,
        /// Where to.
        buf: MemAddr,
    },
    /// Write `len` from memory.
    Write {
        /// Device sector.
        sector: Sector,
        /// Length.
        len: Sectors,
        /// Where from.
        buf: MemAddr,
        /// Durable before completion.
        fua: bool,
    },
    /// Write metadata, durable before completion. All writes that completed earlier on this member must be durable too
    /// (pre-flush), since metadata makes statements about them.
    WriteMeta {
        /// Device sector.
        sector: Sector,
        /// A whole number of sectors; 4096-byte multiples wherever the format has room.
        data: Box<[u8]>,
    },
    /// Write a unit of a partial parity log, durable before completion. What was written before need not be.
    WriteLog {
        /// Device sector.
        sector: Sector,
        /// What to write; the driver puts in the checksums.
        unit: Box<LogUnit>,
    },
    /// Make completed writes durable.
    Flush,
    /// Make the range read as zeroes.
    WriteZeroes {
        /// Device sector.
        sector: Sector,
        /// Length.
        len: Sectors,
        /// May give the space back.
        unmap: bool,
        /// Durable before completion.
        fua: bool,
    },
}

/// A unit of a partial parity log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogUnit {
    /// The array.
    pub array: MdUuid,
    /// Counts the array's units.
    pub generation: u64,
    /// The writes that follow once it is durable.
    pub entries: Vec<LogEntry>,
    /// Says that parity is not to be trusted everywhere ([`PplEntry::untrusted`](raidus_format::ppl::PplEntry::untrusted)).
    pub untrusted: bool,
}

/// A write to part of a stripe, as its log has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Array sector of the first data written.
    pub data_sector: Sector,
    /// Bytes of data written.
    pub data_bytes: u32,
    /// Slot of the parity.
    pub parity_slot: Slot,
    /// Parity without the chunks that are written, which does not change before the unit is durable; `None` if all are.
    pub partial: Option<(MemAddr, Sectors)>,
}

impl LogUnit {
    /// Its length.
    pub fn sectors(&self) -> Sectors {
        let partial = self.entries.iter().filter_map(|e| e.partial).map(|(_, len)| len.0).sum::<u64>();
        Sectors::from_bytes_floor(HEADER_BYTES as u64) + Sectors(partial)
    }

    /// The bytes to write. `memory` gives what is at an address.
    ///
    /// # Errors
    /// That of `memory`.
    pub fn encode<'m, E>(&self, mut memory: impl FnMut(MemAddr, Sectors) -> Result<&'m [u8], E>) -> Result<Vec<u8>, E> {
        let mut unit = PplUnit::with_room(self.sectors().bytes() as usize);
        for entry in &self.entries {
            let partial = entry.partial.map_or(Ok(&[][..]), |(at, len)| memory(at, len))?;
            unit.push(entry.data_sector, entry.data_bytes, entry.parity_slot, partial);
        }
        if let Some(entry) = self.entries.first().filter(|_| self.untrusted) {
            unit.push_untrusted(entry.parity_slot);
        }
        Ok(unit.finish(self.array, self.generation))
    }
}

/// Why a member I/O failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberError {
    /// The device could not do this I/O (EIO and the like); others may work.
    Io,
    /// The device is gone: nothing will work (ENODEV, ENXIO).
    Gone,
}

/// Arithmetic on memory, done by the driver at once and in order with the outputs around it. All ranges of one job are `len` long;
/// a destination overlaps no source except where it is exactly that source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compute {
    /// `dst` = XOR of `srcs`; `dst` may be one of them.
    Xor {
        /// Result.
        dst: MemAddr,
        /// Operands.
        srcs: Vec<MemAddr>,
        /// Length of each.
        len: Sectors,
    },
    /// `p` = Σ D, `q` = Σ gᵏ·D over `data` = (block, k), k ascending, gaps allowed.
    Pq {
        /// XOR parity, if wanted.
        p: Option<MemAddr>,
        /// Second parity, if wanted.
        q: Option<MemAddr>,
        /// Blocks and their exponents.
        data: Vec<(MemAddr, u8)>,
        /// Length of each.
        len: Sectors,
    },
    /// In place: `p` ^= old ^ new, `q` ^= gᵏ·(old ^ new), over (old, new, k).
    PqUpdate {
        /// XOR parity, if held.
        p: Option<MemAddr>,
        /// Second parity, if held.
        q: Option<MemAddr>,
        /// Old block, new block, exponent.
        deltas: Vec<(MemAddr, MemAddr, u8)>,
        /// Length of each.
        len: Sectors,
    },
    /// Each destination = Σ coefficient·source, coefficients in the order of `srcs`. Destinations are not sources.
    Combine {
        /// Results with their coefficients.
        outs: Vec<(MemAddr, Vec<u8>)>,
        /// Operands.
        srcs: Vec<MemAddr>,
        /// Length of each.
        len: Sectors,
    },
    /// Copy; the ranges do not overlap.
    Copy {
        /// To.
        dst: MemAddr,
        /// From.
        src: MemAddr,
        /// Length.
        len: Sectors,
    },
    /// Fill with zeroes.
    Zero {
        /// Where.
        dst: MemAddr,
        /// Length.
        len: Sectors,
    },
}

/// A comparison, done by the driver at once and in order with the outputs around it; what it found comes back in
/// [`Input::Compared`]. All blocks are `len` long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// Comes back with the answer.
    pub token: IoToken,
    /// What to compare.
    pub blocks: Blocks,
    /// Length of each.
    pub len: Sectors,
}

/// What a [`Compare`] compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Stored with computed parities, each as (stored, computed): `raidus_parity::compare_parities`.
    Parities {
        /// XOR parity.
        p: Option<(MemAddr, MemAddr)>,
        /// Second parity.
        q: Option<(MemAddr, MemAddr)>,
        /// Exponents of the row's data blocks.
        exponents: Vec<u8>,
    },
    /// Copies: `raidus_parity::compare_copies`.
    Copies(Vec<MemAddr>),
}

/// What a driver tells a state machine.
#[derive(Clone, Debug)]
pub enum Input {
    /// A client's request (shards only).
    Request(Request),
    /// A member I/O ended.
    MemberDone {
        /// Which.
        token: IoToken,
        /// How.
        result: Result<(), MemberError>,
    },
    /// A comparison was made.
    Compared {
        /// Which.
        token: IoToken,
        /// Where the blocks differ, ascending; empty if they do not.
        differences: Vec<Difference>,
    },
    /// Another state machine of this array speaks. Messages between two machines arrive in the order they were sent.
    Message {
        /// Who.
        from: Peer,
        /// What.
        message: Message,
    },
    /// The time asked for by `poll_timeout` has come.
    Timeout,
}

/// What a state machine asks of its driver.
#[derive(Clone, Debug)]
pub enum Output {
    /// Do this I/O and say when it ended.
    Io(MemberIo),
    /// Do this arithmetic now.
    Compute(Compute),
    /// Do this arithmetic now; its operands have just come from members, and nobody looks at the results before they go to members.
    ComputeCold(Compute),
    /// Make this comparison now, and say what was found before anything else that comes of later outputs.
    Compare(Compare),
    /// A request ended.
    Reply(Reply),
    /// Take this to another state machine of the array.
    Send {
        /// To whom.
        to: Peer,
        /// What.
        message: Message,
    },
}
