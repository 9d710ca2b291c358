//! Requests from other threads: by callback, or blocking.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use raidus_engine::{RequestError, RequestOp};
use raidus_units::{SECTOR_BYTES, Sector, Sectors};

use crate::mailbox::{Mail, Mailbox};
use crate::memory::Buffer;

/// A request to the array.
#[derive(Debug)]
pub struct ArrayRequest {
    /// What to do.
    pub op: RequestOp,
    /// Where, in the array.
    pub sector: Sector,
    /// How much.
    pub len: Sectors,
    /// For reads and writes: at least `len` bytes, used from its start.
    pub buffer: Option<Buffer>,
}

/// Called when a request ended, with its buffer: on a reactor's thread, or at once if it cannot be passed on. Must not block.
pub type Completion = Box<dyn FnOnce(Result<(), RequestError>, Option<Buffer>) + Send>;

impl ArrayRequest {
    /// Whether a read or write brings the memory it needs.
    pub(crate) fn has_its_memory(&self) -> bool {
        match self.op {
            RequestOp::Read | RequestOp::Write { .. } => {
                let bytes = self.len.0.checked_mul(SECTOR_BYTES);
                bytes.is_some_and(|n| self.buffer.as_ref().is_some_and(|b| b.len() as u64 >= n))
            }
            _ => true,
        }
    }
}

/// A request with what has to happen at its end.
pub(crate) struct ClientRequest {
    pub(crate) request: ArrayRequest,
    pub(crate) done: Completion,
    /// Given back at the end.
    pub(crate) permit: Option<Permit>,
}

impl ClientRequest {
    /// Ends it without the array.
    pub(crate) fn refuse(self, why: RequestError) {
        (self.done)(Err(why), self.request.buffer);
    }
}

/// Bounds the requests that other threads have under way.
#[derive(Debug)]
pub(crate) struct Permits {
    free: Mutex<usize>,
    freed: Condvar,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Permits>);

impl Permits {
    pub(crate) fn new(free: usize) -> Arc<Permits> {
        Arc::new(Permits { free: Mutex::new(free), freed: Condvar::new() })
    }

    /// Waits for one.
    pub(crate) fn take(self: &Arc<Permits>) -> Permit {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            free = self.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        Permit(Arc::clone(self))
    }

    /// Takes one if there is one.
    pub(crate) fn try_take(self: &Arc<Permits>) -> Option<Permit> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        *free = free.checked_sub(1)?;
        Some(Permit(Arc::clone(self)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}

/// Passes requests from any thread to the reactors.
#[derive(Clone)]
pub(crate) struct Submitter {
    pub(crate) mailboxes: Arc<[Arc<Mailbox>]>,
    pub(crate) permits: Arc<Permits>,
    pub(crate) next: Arc<AtomicUsize>,
    /// What requests are multiples of.
    pub(crate) block: Sectors,
}

impl Submitter {
    /// The reactor whose turn it is.
    pub(crate) fn choose(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % self.mailboxes.len()
    }

    /// Passes a request to a reactor; waits while too many are under way.
    pub(crate) fn submit(&self, reactor: usize, request: ArrayRequest, done: Completion) {
        let permit = Some(self.permits.take());
        self.post(reactor, ClientRequest { request, done, permit });
    }

    /// Passes a request to a reactor, or gives it back if too many are under way.
    pub(crate) fn try_submit(
        &self,
        reactor: usize,
        request: ArrayRequest,
        done: Completion,
    ) -> Result<(), (ArrayRequest, Completion)> {
        let Some(permit) = self.permits.try_take() else { return Err((request, done)) };
        self.post(reactor, ClientRequest { request, done, permit: Some(permit) });
        Ok(())
    }

    fn post(&self, reactor: usize, request: ClientRequest) {
        let ArrayRequest { sector, len, .. } = request.request;
        if !(sector.0 | len.0).is_multiple_of(self.block.0) {
            return request.refuse(RequestError::Range);
        }
        // Permits leave room in the mailbox, so what comes back comes from a reactor that has ended.
        if let Err(Mail::Request(request)) = self.mailboxes[reactor].post(Mail::Request(request)) {
            request.refuse(RequestError::Stopped);
        }
    }
}

/// Blocking access to the array in bytes, in whole blocks ([`ArrayHandle::block`](crate::ArrayHandle::block)). Each client's requests go to one reactor; clones share it. For threads of their own (FUSE,
/// tests); the reactors' threads must not use it.
#[derive(Clone)]
pub struct Client {
    pub(crate) submitter: Submitter,
    pub(crate) reactor: usize,
}

/// Longest piece of one request.
const PIECE_BYTES: usize = 4 << 20;

impl Client {
    /// Fills `buf` from byte `offset` on.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), RequestError> {
        let start = sector(offset, buf.len() as u64)?;
        let mut at = start;
        for piece in buf.chunks_mut(PIECE_BYTES) {
            let len = Sectors::from_bytes_floor(piece.len() as u64);
            let buffer = Buffer::alone(piece.len()).map_err(|_| RequestError::Io)?;
            let filled = self.run(ArrayRequest { op: RequestOp::Read, sector: at, len, buffer: Some(buffer) })?;
            piece.copy_from_slice(&filled.ok_or(RequestError::Io)?[..piece.len()]);
            at += len;
        }
        Ok(())
    }

    /// Writes `buf` at byte `offset`; with `fua` it is durable on return.
    pub fn write_at(&self, offset: u64, buf: &[u8], fua: bool) -> Result<(), RequestError> {
        let mut at = sector(offset, buf.len() as u64)?;
        for piece in buf.chunks(PIECE_BYTES) {
            let len = Sectors::from_bytes_floor(piece.len() as u64);
            let mut buffer = Buffer::alone(piece.len()).map_err(|_| RequestError::Io)?;
            buffer.copy_from_slice(piece);
            self.run(ArrayRequest { op: RequestOp::Write { fua }, sector: at, len, buffer: Some(buffer) })?;
            at += len;
        }
        Ok(())
    }

    /// Makes every write that has returned durable.
    pub fn flush(&self) -> Result<(), RequestError> {
        let flush = ArrayRequest { op: RequestOp::Flush, sector: Sector::ZERO, len: Sectors::ZERO, buffer: None };
        self.run(flush).map(|_| ())
    }

    /// Says that the content of a byte range is not needed any more.
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), RequestError> {
        self.ranged(RequestOp::Discard, offset, len)
    }

    /// Zeroes a byte range. With `unmap`, members may give its space back.
    pub fn write_zeroes(&self, offset: u64, len: u64, unmap: bool, fua: bool) -> Result<(), RequestError> {
        self.ranged(RequestOp::WriteZeroes { fua, unmap }, offset, len)
    }

    fn ranged(&self, op: RequestOp, offset: u64, len: u64) -> Result<(), RequestError> {
        let sector = sector(offset, len)?;
        self.run(ArrayRequest { op, sector, len: Sectors::from_bytes_floor(len), buffer: None }).map(|_| ())
    }

    /// Passes one request and waits for its end. Gives its buffer back.
    pub fn run(&self, request: ArrayRequest) -> Result<Option<Buffer>, RequestError> {
        let (sender, receiver) = sync_channel(1);
        self.submitter.submit(self.reactor, request, answer(sender));
        let (result, buffer) = receiver.recv().unwrap_or((Err(RequestError::Stopped), None));
        result.map(|()| buffer)
    }
}

type Answer = (Result<(), RequestError>, Option<Buffer>);

fn answer(sender: SyncSender<Answer>) -> Completion {
    Box::new(move |result, buffer| {
        // Whoever waited may be gone.
        let _ = sender.send((result, buffer));
    })
}

fn sector(offset: u64, len: u64) -> Result<Sector, RequestError> {
    if (offset | len).is_multiple_of(SECTOR_BYTES) && offset.checked_add(len).is_some() {
        Ok(Sector(offset / SECTOR_BYTES))
    } else {
        Err(RequestError::Range)
    }
}
