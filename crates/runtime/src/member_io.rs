//! Member I/O of one reactor: turns the engine's [`MemberOp`]s into ring operations and their completions into results.
//!
//! An operation is a sequence of [`Step`]s, done one after the other; most have one. What memory members do is done at once,
//! its result handed on with the next turn's; what modelled ones do, when their model says that it ends.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Instant;

use raidus_engine::{IoToken, MemAddr, MemberError, MemberIo, MemberOp};
use raidus_units::{SECTOR_BYTES, Sectors};
use slab::Slab;

use crate::counters::Tally;
use crate::members::{Backend, MemberDevice, MemoryDevice, MemoryOp, ModelledDevice};
use crate::memory::{Buffer, BufferPool, pointer, usize_of};
use crate::ring::{Ring, Target, Transfer};

/// Which of a reactor's machines asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Shard,
    Control,
}

/// The end of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) owner: Owner,
    pub(crate) token: IoToken,
    pub(crate) result: Result<(), MemberError>,
}

/// Descriptors per member in the table of fixed files: direct, cached, overlay store.
const FIXED_PER_MEMBER: u32 = 3;
/// Devices that may be in an array beyond those it was started with: room for them in the table.
const JOINING_MAX: usize = 64;
/// Longest single transfer; the kernel's own limit is just below 2 GiB.
const TRANSFER_MAX: u64 = 1 << 30;
const METADATA_POOL_BYTES: usize = 1 << 20;

/// The operations under way.
pub(crate) struct MemberIos {
    /// By member id; `None` once a device was removed.
    members: Vec<Option<Member>>,
    /// Places in the table of fixed files that nobody has: the first of each three.
    free: Vec<u32>,
    /// Removed, but I/O is still under way.
    retiring: Vec<usize>,
    ops: Slab<Op>,
    done: Vec<Done>,
    /// Steps of modelled members, by when they end.
    delayed: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Memory for metadata, which arrives unaligned.
    metadata: BufferPool,
    /// Address and length of zeroes that nobody writes.
    zeroes: (u64, u64),
    /// Set above the key in user data, to route completions.
    class: u64,
}

struct Op {
    owner: Owner,
    token: IoToken,
    member: usize,
    step: Step,
    /// What follows, last first.
    rest: Vec<Step>,
    /// Metadata being written.
    _data: Option<Buffer>,
    /// The direct descriptor refused this I/O.
    cached: bool,
}

struct Member {
    device: Arc<MemberDevice>,
    /// Its first place in the table of fixed files.
    first: u32,
}

/// Which of a member's places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Base,
    Store,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Make the base durable.
    Flush,
    /// Move bytes.
    Transfer { place: Place, write: bool, offset: u64, addr: u64, len: u64, sync: bool },
    /// Zero by fallocate.
    Zero { place: Place, offset: u64, len: u64, unmap: bool },
    /// Zero by writing.
    Zeroes { place: Place, offset: u64, len: u64 },
    /// The store holds this range now.
    Mark { offset: u64, len: u64 },
}

/// Where a step stands.
enum Progress {
    Submitted,
    /// It will have ended then.
    Later(Instant),
    Ended(Result<(), MemberError>),
}

impl MemberIos {
    pub(crate) fn new(devices: &[Arc<MemberDevice>], zeroes: (u64, u64), class: u64) -> std::io::Result<MemberIos> {
        let metadata = BufferPool::new(METADATA_POOL_BYTES)?;
        let mut firsts = (0..devices.len() + JOINING_MAX).map(|n| n as u32 * FIXED_PER_MEMBER);
        let members = devices.iter().cloned().zip(&mut firsts);
        Ok(MemberIos {
            members: members.map(|(device, first)| Some(Member { device, first })).collect(),
            free: firsts.rev().collect(),
            retiring: Vec::new(),
            ops: Slab::new(),
            done: Vec::new(),
            delayed: BinaryHeap::new(),
            metadata,
            zeroes,
            class,
        })
    }

    /// A device joins; its member id is the next. `false` if there is no room for it.
    pub(crate) fn join(&mut self, device: Arc<MemberDevice>, ring: &mut Ring) -> bool {
        let Some(first) = self.free.pop() else { return false };
        if !ring.update_files(first, &descriptors(&device)) {
            self.free.push(first);
            return false;
        }
        self.members.push(Some(Member { device, first }));
        true
    }

    /// Takes back the last [`join`](Self::join): the engine did not want it.
    pub(crate) fn unjoin(&mut self, ring: &mut Ring) {
        if let Some(member) = self.members.pop().flatten() {
            ring.update_files(member.first, &[-1; FIXED_PER_MEMBER as usize]);
            self.free.push(member.first);
        }
    }

    /// A device has been removed: it is closed as soon as no I/O is under way on it.
    pub(crate) fn retire(&mut self, member: usize, ring: &mut Ring) {
        self.retiring.push(member);
        self.close_retired(ring);
    }

    /// Closes removed devices on which nothing is under way any more.
    pub(crate) fn close_retired(&mut self, ring: &mut Ring) {
        let MemberIos { members, retiring, ops, free, .. } = self;
        retiring.retain(|member| {
            let busy = ops.iter().any(|(_, op)| op.member == *member);
            if let Some(gone) = members[*member].take_if(|_| !busy) {
                ring.update_files(gone.first, &[-1; FIXED_PER_MEMBER as usize]);
                free.push(gone.first);
            }
            busy
        });
    }

    /// Whether [`close_retired`](Self::close_retired) may have something to do.
    pub(crate) fn has_retiring(&self) -> bool {
        !self.retiring.is_empty()
    }

    fn member(&self, member: usize) -> Option<&Member> {
        self.members.get(member)?.as_ref()
    }

    /// The table of fixed files for the ring.
    pub(crate) fn fixed_files(&self) -> Vec<i32> {
        let mut files: Vec<i32> = self.members.iter().flatten().flat_map(|m| descriptors(&m.device)).collect();
        files.resize(files.len() + self.free.len() * FIXED_PER_MEMBER as usize, -1);
        files
    }

    /// Whether nothing is under way and nothing waits to be taken.
    pub(crate) fn idle(&self) -> bool {
        self.ops.is_empty() && self.done.is_empty()
    }

    /// Results that were had without the ring.
    pub(crate) fn take_done(&mut self, into: &mut Vec<Done>) {
        into.append(&mut self.done);
    }

    /// Whether [`take_done`](Self::take_done) has something.
    pub(crate) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Starts an operation. Its memory is the engine's, which keeps it until the result.
    pub(crate) fn start(&mut self, owner: Owner, io: MemberIo, ring: &mut Ring, tally: &mut Tally) {
        let MemberIo { token, member, op } = io;
        let member = member.index();
        count(&op, tally);
        let Some(device) = self.member(member).map(|m| &*m.device) else {
            return self.done.push(Done { owner, token, result: Err(MemberError::Gone) });
        };
        if !device.writable() && !matches!(op, MemberOp::Read { .. } | MemberOp::Flush) {
            return self.done.push(Done { owner, token, result: Err(MemberError::Io) });
        }
        let (step, rest, data) = match only_step(device, &op) {
            Some(step) => (step, Vec::new(), None),
            None => {
                let Some((mut steps, data)) = self.steps(device, op) else {
                    return self.done.push(Done { owner, token, result: Err(MemberError::Io) });
                };
                let Some(step) = steps.pop() else {
                    return self.done.push(Done { owner, token, result: Ok(()) });
                };
                (step, steps, data)
            }
        };
        let key = self.ops.insert(Op { owner, token, member, step, rest, _data: data, cached: false });
        self.run(key, ring, tally);
    }

    /// The steps of an operation, last first, and the metadata they write; `None` if it reaches past the end of the device.
    fn steps(&self, device: &MemberDevice, op: MemberOp) -> Option<(Vec<Step>, Option<Buffer>)> {
        let inside = |sector, len| is_inside(device, sector, len);
        let overlaid = device.overlay.is_some();
        let place = if overlaid { Place::Store } else { Place::Base };
        let mut data = None;
        let mut steps = match op {
            MemberOp::Flush if overlaid || !device.writable() => Vec::new(),
            MemberOp::Flush => vec![Step::Flush],
            MemberOp::Read { sector, len, buf } => {
                inside(sector.0, len.0).then_some(())?;
                read_steps(device, sector.bytes(), buf.0, len.bytes())
            }
            MemberOp::Write { sector, len, buf, fua } => {
                inside(sector.0, len.0).then_some(())?;
                let (offset, len) = (sector.bytes(), len.bytes());
                let transfer = Step::Transfer { place, write: true, offset, addr: buf.0, len, sync: fua };
                marked(overlaid, offset, len, transfer)
            }
            MemberOp::WriteMeta { sector, data: bytes } => {
                let (mut steps, buffer) = self.durable(device, sector.0, &bytes)?;
                data = Some(buffer);
                if !overlaid {
                    steps.push(Step::Flush);
                }
                steps
            }
            MemberOp::WriteLog { sector, unit } => {
                let bytes = unit.encode(|at, len| memory(at, len).ok_or(())).ok()?;
                let (steps, buffer) = self.durable(device, sector.0, &bytes)?;
                data = Some(buffer);
                steps
            }
            MemberOp::WriteZeroes { sector, len, unmap, fua } => {
                inside(sector.0, len.0).then_some(())?;
                let (offset, len) = (sector.bytes(), len.bytes());
                let mut steps = marked(overlaid, offset, len, Step::Zero { place, offset, len, unmap });
                if fua && !overlaid {
                    steps.insert(0, Step::Flush);
                }
                steps
            }
        };
        steps.retain(|s| !matches!(s, Step::Transfer { len: 0, .. } | Step::Zero { len: 0, .. }));
        Some((steps, data))
    }

    /// The steps of a durable write of these bytes, last first, and a copy of them to write from.
    fn durable(&self, device: &MemberDevice, sector: u64, bytes: &[u8]) -> Option<(Vec<Step>, Buffer)> {
        let len = bytes.len() as u64;
        let whole = is_inside(device, sector, len.div_ceil(SECTOR_BYTES)) && len.is_multiple_of(SECTOR_BYTES);
        whole.then_some(())?;
        let mut buffer = self.metadata.take(bytes.len()).or_else(|| Buffer::alone(bytes.len()).ok())?;
        buffer.copy_from_slice(bytes);
        let overlaid = device.overlay.is_some();
        let place = if overlaid { Place::Store } else { Place::Base };
        let (offset, addr) = (sector * SECTOR_BYTES, buffer.addr().0);
        let transfer = Step::Transfer { place, write: true, offset, addr, len, sync: true };
        Some((marked(overlaid, offset, len, transfer), buffer))
    }

    /// Takes a completion of the ring.
    pub(crate) fn complete(&mut self, key: usize, result: i32, ring: &mut Ring, tally: &mut Tally) {
        let Some(op) = self.ops.get_mut(key) else {
            debug_assert!(false, "a completion for nothing under way");
            return;
        };
        let device = self.members[op.member].as_ref().map(|m| &m.device.base);
        let direct = matches!(device, Some(Backend::File(f)) if f.direct_fd().is_some());
        match op.after(result, direct) {
            Some(Ok(())) => self.next(key, ring, tally),
            Some(Err(error)) => self.finish(key, Err(error)),
            None => self.run(key, ring, tally),
        }
    }

    fn next(&mut self, key: usize, ring: &mut Ring, tally: &mut Tally) {
        let op = &mut self.ops[key];
        match op.rest.pop() {
            Some(step) => {
                op.step = step;
                self.run(key, ring, tally);
            }
            None => self.finish(key, Ok(())),
        }
    }

    fn finish(&mut self, key: usize, result: Result<(), MemberError>) {
        let op = self.ops.remove(key);
        self.done.push(Done { owner: op.owner, token: op.token, result });
    }

    /// When the next step of a modelled member ends.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.delayed.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes the steps of modelled members that have ended by now.
    pub(crate) fn take_due(&mut self, ring: &mut Ring, tally: &mut Tally) {
        if self.delayed.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(Reverse((at, key))) = self.delayed.peek().copied() {
            if at > now {
                return;
            }
            self.delayed.pop();
            match self.carry_out(key) {
                Ok(()) => self.next(key, ring, tally),
                Err(error) => self.finish(key, Err(error)),
            }
        }
    }

    /// What a step of a modelled member does to what is kept.
    fn carry_out(&self, key: usize) -> Result<(), MemberError> {
        let op = &self.ops[key];
        let device = self.member(op.member).map(|m| &m.device.base);
        let Some(Backend::Modelled(model)) = device else { return Err(MemberError::Gone) };
        match op.step {
            Step::Transfer { write, offset, addr, len, .. } => modelled_transfer(model, write, offset, addr, len),
            Step::Zero { offset, len, .. } => model.zero(offset, len).map_err(|_| MemberError::Io),
            Step::Flush | Step::Zeroes { .. } | Step::Mark { .. } => Ok(()),
        }
    }

    /// Does steps until one has to wait for the ring.
    fn run(&mut self, key: usize, ring: &mut Ring, tally: &mut Tally) {
        loop {
            match self.begin(key, ring, tally) {
                Progress::Submitted => return,
                Progress::Later(at) => return self.delayed.push(Reverse((at, key))),
                Progress::Ended(Err(error)) => return self.finish(key, Err(error)),
                Progress::Ended(Ok(())) => match self.ops[key].rest.pop() {
                    Some(step) => self.ops[key].step = step,
                    None => return self.finish(key, Ok(())),
                },
            }
        }
    }

    fn begin(&mut self, key: usize, ring: &mut Ring, tally: &mut Tally) -> Progress {
        let op = &self.ops[key];
        let Some(Member { device, first }) = self.member(op.member) else {
            return Progress::Ended(Err(MemberError::Gone));
        };
        let user_data = self.class | key as u64;
        let backend = |place| match (place, &device.overlay) {
            (Place::Store, Some(overlay)) => &overlay.store,
            _ => &device.base,
        };
        match op.step {
            Step::Mark { offset, len } => {
                if let Some(overlay) = &device.overlay {
                    overlay.mark(offset, len);
                }
                Progress::Ended(Ok(()))
            }
            Step::Flush => match &device.base {
                Backend::Modelled(model) => model.flush_ends().map_or(Progress::Ended(Ok(())), Progress::Later),
                Backend::Memory(memory) => Progress::Ended(memory.verdict(MemoryOp::Flush)),
                Backend::File(_) => {
                    ring.sync(target(device, *first, Place::Base, false), user_data, tally);
                    Progress::Submitted
                }
            },
            Step::Transfer { place, write, offset, addr, len, sync } => match backend(place) {
                Backend::Modelled(model) => match model.transfer_ends(len) {
                    Some(at) => Progress::Later(at),
                    None => Progress::Ended(modelled_transfer(model, write, offset, addr, len)),
                },
                Backend::Memory(memory) => Progress::Ended(memory_transfer(memory, write, offset, addr, len)),
                Backend::File(file) => {
                    let direct = !op.cached && file.takes_direct(write, offset, addr, len);
                    let transfer = Transfer { write, offset, addr, len: len.min(TRANSFER_MAX) as u32, sync };
                    // SAFETY: the engine keeps the memory of an I/O until its result; metadata is kept in the operation.
                    unsafe { ring.transfer(target(device, *first, place, direct), &transfer, user_data, tally) };
                    Progress::Submitted
                }
            },
            Step::Zero { place, offset, len, unmap } => match backend(place) {
                Backend::Modelled(model) => match model.transfer_ends(0) {
                    Some(at) => Progress::Later(at),
                    None => Progress::Ended(model.zero(offset, len).map_err(|_| MemberError::Io)),
                },
                Backend::Memory(memory) => Progress::Ended(memory_zero(memory, offset, len)),
                Backend::File(_) => {
                    let how = if unmap { libc::FALLOC_FL_PUNCH_HOLE } else { libc::FALLOC_FL_ZERO_RANGE };
                    let target = target(device, *first, place, false);
                    ring.allocate(target, how | libc::FALLOC_FL_KEEP_SIZE, (offset, len), user_data, tally);
                    Progress::Submitted
                }
            },
            Step::Zeroes { place, offset, len } => {
                let (addr, available) = self.zeroes;
                let transfer = Transfer {
                    write: true,
                    offset,
                    addr,
                    len: len.min(available).min(TRANSFER_MAX) as u32,
                    sync: false,
                };
                let direct = matches!(backend(place), Backend::File(file)
                    if !op.cached && file.takes_direct(true, offset, addr, u64::from(transfer.len)));
                // SAFETY: the zeroes live as long as the reactor.
                unsafe { ring.transfer(target(device, *first, place, direct), &transfer, user_data, tally) };
                Progress::Submitted
            }
        }
    }
}

impl Op {
    /// Where the step stands after a result from the ring: ended, or (`None`) to be submitted again as it is now. `direct`: the
    /// member has a descriptor past the page cache.
    fn after(&mut self, result: i32, direct: bool) -> Option<Result<(), MemberError>> {
        let errno = -result;
        if matches!(errno, libc::EAGAIN | libc::EINTR) {
            return None;
        }
        let refused_alignment = errno == libc::EINVAL && direct && !self.cached;
        match &mut self.step {
            Step::Flush | Step::Mark { .. } => return Some(check(result)),
            Step::Zero { place, offset, len, .. } => {
                if matches!(errno, libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS | libc::ENOTTY) {
                    self.step = Step::Zeroes { place: *place, offset: *offset, len: *len };
                    return None;
                }
                return Some(check(result));
            }
            Step::Transfer { .. } | Step::Zeroes { .. } if refused_alignment => {
                self.cached = true;
                return None;
            }
            Step::Transfer { offset, len, addr, .. } => match moved(result, offset, len) {
                Ok(done) => *addr += done,
                Err(error) => return Some(Err(error)),
            },
            Step::Zeroes { offset, len, .. } => {
                if let Err(error) = moved(result, offset, len) {
                    return Some(Err(error));
                }
            }
        }
        match self.step {
            Step::Transfer { len: 1.., .. } | Step::Zeroes { len: 1.., .. } => None,
            _ => Some(Ok(())),
        }
    }
}

/// Advances a range by what was transferred. Nothing transferred is an error: the end of a file, or a full disk.
fn moved(result: i32, offset: &mut u64, len: &mut u64) -> Result<u64, MemberError> {
    check(result)?;
    let done = u64::from(result.unsigned_abs()).min(*len);
    if done == 0 {
        return Err(MemberError::Io);
    }
    *offset += done;
    *len -= done;
    Ok(done)
}

fn check(result: i32) -> Result<(), MemberError> {
    match -result {
        libc::ENODEV | libc::ENXIO | libc::ESHUTDOWN | libc::ENOMEDIUM => Err(MemberError::Gone),
        errno if errno > 0 => Err(MemberError::Io),
        _ => Ok(()),
    }
}

fn is_inside(device: &MemberDevice, sector: u64, len: u64) -> bool {
    sector.checked_add(len).is_some_and(|end| end <= device.size().0)
}

/// The step of a plain read or write, which is most of them, without a list.
fn only_step(device: &MemberDevice, op: &MemberOp) -> Option<Step> {
    let (write, sector, len, buf, sync) = match *op {
        MemberOp::Read { sector, len, buf } => (false, sector, len, buf, false),
        MemberOp::Write { sector, len, buf, fua } => (true, sector, len, buf, fua),
        _ => return None,
    };
    let plain = device.overlay.is_none() && len.0 > 0 && is_inside(device, sector.0, len.0);
    plain.then_some(Step::Transfer {
        place: Place::Base,
        write,
        offset: sector.bytes(),
        addr: buf.0,
        len: len.bytes(),
        sync,
    })
}

fn read_steps(device: &MemberDevice, offset: u64, addr: u64, len: u64) -> Vec<Step> {
    let step = |place, at: u64, len| Step::Transfer {
        place,
        write: false,
        offset: at,
        addr: addr + (at - offset),
        len,
        sync: false,
    };
    match &device.overlay {
        None => vec![step(Place::Base, offset, len)],
        Some(overlay) => {
            let place = |in_store| if in_store { Place::Store } else { Place::Base };
            overlay.runs(offset, len).iter().rev().map(|r| step(place(r.in_store), r.offset, r.len)).collect()
        }
    }
}

/// A write's step, followed by the note in the overlay, if there is one. Last first.
fn marked(overlaid: bool, offset: u64, len: u64, step: Step) -> Vec<Step> {
    if overlaid { vec![Step::Mark { offset, len }, step] } else { vec![step] }
}

/// A device's descriptors, in the order of its places in the table.
fn descriptors(device: &MemberDevice) -> [i32; FIXED_PER_MEMBER as usize] {
    let of = |backend: &Backend| match backend {
        Backend::File(f) => (f.direct_fd().unwrap_or(-1), f.cached_fd()),
        _ => (-1, -1),
    };
    let (direct, cached) = of(&device.base);
    [direct, cached, device.overlay.as_ref().map_or(-1, |o| of(&o.store).1)]
}

fn target(device: &MemberDevice, first: u32, place: Place, direct: bool) -> Target {
    let cached = |backend: &Backend| match backend {
        Backend::File(f) => f.cached_fd(),
        _ => -1,
    };
    match (place, &device.overlay, &device.base) {
        (Place::Store, Some(overlay), _) => Target { fd: cached(&overlay.store), fixed: first + 2 },
        (_, _, Backend::File(f)) if direct => Target { fd: f.direct_fd().unwrap_or(-1), fixed: first },
        (_, _, base) => Target { fd: cached(base), fixed: first + 1 },
    }
}

fn memory_transfer(memory: &MemoryDevice, write: bool, offset: u64, addr: u64, len: u64) -> Result<(), MemberError> {
    memory.verdict_of_transfer(write, offset, len)?;
    let at = pointer(raidus_engine::MemAddr(addr)).ok_or(MemberError::Io)?;
    let result = if write {
        // SAFETY: the engine gives `len` readable bytes for a write.
        memory.write(offset, unsafe { std::slice::from_raw_parts(at.as_ptr(), usize_of(len)) })
    } else {
        // SAFETY: the engine gives `len` writable bytes for a read, which nobody else uses meanwhile.
        memory.read(offset, unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), usize_of(len)) })
    };
    result.map_err(|_| MemberError::Io)
}

/// What the engine keeps at an address.
fn memory<'m>(at: MemAddr, len: Sectors) -> Option<&'m [u8]> {
    let start = pointer(at)?;
    // SAFETY: the engine gives `len` readable bytes, and does not change them before the I/O has ended.
    Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), usize_of(len.bytes())) })
}

fn memory_zero(memory: &MemoryDevice, offset: u64, len: u64) -> Result<(), MemberError> {
    memory.verdict_of_transfer(true, offset, len)?;
    memory.zero(offset, len).map_err(|_| MemberError::Io)
}

fn modelled_transfer(model: &ModelledDevice, write: bool, offset: u64, addr: u64, len: u64) -> Result<(), MemberError> {
    let at = pointer(raidus_engine::MemAddr(addr)).ok_or(MemberError::Io)?;
    let result = if write {
        // SAFETY: as for memory members.
        model.write(offset, unsafe { std::slice::from_raw_parts(at.as_ptr(), usize_of(len)) })
    } else {
        // SAFETY: as for memory members.
        model.read(offset, unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), usize_of(len)) })
    };
    result.map_err(|_| MemberError::Io)
}

fn count(op: &MemberOp, tally: &mut Tally) {
    match op {
        MemberOp::Read { len, .. } => {
            tally.member_reads += 1;
            tally.member_read_bytes += len.bytes();
        }
        MemberOp::Write { len, .. } => {
            tally.member_writes += 1;
            tally.member_write_bytes += len.bytes();
        }
        MemberOp::WriteMeta { .. } | MemberOp::WriteLog { .. } => tally.metadata_writes += 1,
        MemberOp::Flush => tally.member_flushes += 1,
        MemberOp::WriteZeroes { len, .. } => tally.member_zeroed_bytes += len.bytes(),
    }
}

#[cfg(test)]
mod tests;
