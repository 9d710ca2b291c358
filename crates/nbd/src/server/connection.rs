//! One client: the session's commands become requests to the array, their ends become replies.
//!
//! Invariants: a request header is consumed only once everything its command needs is at hand, so waiting needs no state but
//! the command itself; a client that sends without reading replies is stopped by the bounds on requests and on bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use raidus_engine::{RequestError, RequestOp};
use raidus_runtime::memory::Buffer;
use raidus_runtime::stream::{Connection, Context, PeerAddress, Receive, StreamRequest, Then};
use raidus_units::{SECTOR_BYTES, Sector, Sectors};
use slab::Slab;

use crate::Export;
use crate::codec::{Command, ErrorCode, Need, Op, Session, wire};

/// Requests of one client under way at once. Clients queue 16 to 128; the bound is for those that never stop.
const REQUESTS_MAX: usize = 1024;

/// Reply bytes of one client waiting to be sent, contents of reads apart, before its next message is looked at. Between any two
/// messages the session writes far less than this.
const QUEUED_MAX: usize = 64 << 10;

pub(super) struct NbdConnection {
    peer: PeerAddress,
    session: Session,
    stopping: Arc<AtomicBool>,
    /// Commands at the array, by the cookie of their request.
    under_way: Slab<Command>,
    /// The command whose header is the next to be consumed, parsed already, waiting for memory.
    stalled: Option<Command>,
    /// The write whose payload is being received.
    receiving: Option<Command>,
    /// Reply bytes on their way to the socket's queue.
    out: Vec<u8>,
}

/// What came of a command.
enum Started {
    /// The array has it.
    Yes,
    /// Its payload has to be received first.
    Payload(Buffer),
    /// Not now.
    Stalled,
}

impl NbdConnection {
    pub(super) fn new(peer: &PeerAddress, export: &Arc<Export>, stopping: &Arc<AtomicBool>) -> NbdConnection {
        let mut out = Vec::new();
        let session = Session::new(Arc::clone(export), &mut out);
        NbdConnection {
            peer: peer.clone(),
            session,
            stopping: Arc::clone(stopping),
            under_way: Slab::new(),
            stalled: None,
            receiving: None,
            out,
        }
    }

    fn advance(&mut self, rest: &mut &[u8], cx: &mut Context<'_>) -> Then {
        loop {
            if let Some(command) = self.stalled.take() {
                let Some(after) = rest.get(wire::REQUEST_BYTES..) else {
                    self.stalled = Some(command);
                    return Then::More;
                };
                match self.start(command, cx) {
                    Started::Yes => *rest = after,
                    Started::Payload(buffer) => {
                        *rest = after;
                        self.receiving = Some(command);
                        return Then::Payload { buffer, range: 0..command.len as usize };
                    }
                    Started::Stalled => {
                        self.stalled = Some(command);
                        return Then::Wait;
                    }
                }
            }
            if cx.bytes_queued() + self.out.len() > QUEUED_MAX {
                return Then::Wait;
            }
            match self.session.need() {
                Need::Message(n) => {
                    let Some((message, after)) = rest.split_at_checked(n) else { return Then::More };
                    match self.session.message(message, &mut self.out) {
                        Ok(None) => *rest = after,
                        // Consumed above, once it is started.
                        Ok(Some(command)) => self.stalled = Some(command),
                        Err(violation) => {
                            tracing::warn!(peer = ?self.peer, "{violation}; closing the connection");
                            return Then::Close;
                        }
                    }
                }
                Need::Skip(_) if rest.is_empty() => return Then::More,
                Need::Skip(n) => {
                    let n = rest.len().min(n as usize);
                    *rest = &rest[n..];
                    self.session.consumed(n as u32, &mut self.out);
                }
                // A write is asked for its payload as soon as it is started, so it never gets here.
                Need::Payload(_) | Need::Close => return Then::Close,
            }
        }
    }

    fn start(&mut self, command: Command, cx: &mut Context<'_>) -> Started {
        if self.under_way.len() >= REQUESTS_MAX {
            return Started::Stalled;
        }
        match command.op {
            Op::Read | Op::Write { .. } => {
                let Some(buffer) = cx.buffer(command.len as usize) else { return Started::Stalled };
                if command.op != Op::Read {
                    return Started::Payload(buffer);
                }
                self.submit(command, Some(buffer), cx);
            }
            Op::Flush | Op::Trim { .. } | Op::WriteZeroes { .. } => self.submit(command, None, cx),
        }
        Started::Yes
    }

    fn submit(&mut self, command: Command, buffer: Option<Buffer>, cx: &mut Context<'_>) {
        let cookie = self.under_way.insert(command) as u64;
        cx.submit(StreamRequest {
            cookie,
            op: request_op(command.op),
            sector: Sector(command.offset / SECTOR_BYTES),
            len: Sectors::from_bytes_floor(command.len.into()),
            buffer,
        });
    }

    fn send_out(&mut self, cx: &mut Context<'_>) {
        if !self.out.is_empty() {
            cx.send(&self.out);
            self.out.clear();
        }
    }
}

impl Connection for NbdConnection {
    fn opened(&mut self, cx: &mut Context<'_>) {
        self.session.limit_payload(u32::try_from(cx.buffer_max()).unwrap_or(u32::MAX));
        self.send_out(cx);
    }

    fn receive(&mut self, bytes: &[u8], cx: &mut Context<'_>) -> Receive {
        if self.stopping.load(Ordering::Relaxed) {
            self.session.stop();
        }
        let mut rest = bytes;
        let then = self.advance(&mut rest, cx);
        self.send_out(cx);
        Receive { consumed: bytes.len() - rest.len(), then }
    }

    fn payload(&mut self, buffer: Buffer, cx: &mut Context<'_>) {
        if let Some(command) = self.receiving.take() {
            self.session.consumed(command.len, &mut self.out);
            self.submit(command, Some(buffer), cx);
        }
    }

    fn reply(&mut self, cookie: u64, result: Result<(), RequestError>, buffer: Option<Buffer>, cx: &mut Context<'_>) {
        let Some(command) = self.under_way.try_remove(cookie as usize) else { return };
        let result = result.map_err(|error| error_code(error, command.op));
        self.session.reply(&command, result, &mut self.out);
        self.send_out(cx);
        if let (Op::Read, Ok(()), Some(buffer)) = (command.op, result, buffer) {
            cx.send_buffer(buffer, 0..command.len as usize);
        }
    }
}

fn request_op(op: Op) -> RequestOp {
    match op {
        Op::Read => RequestOp::Read,
        Op::Write { fua } => RequestOp::Write { fua },
        Op::Flush => RequestOp::Flush,
        Op::Trim { fua: false } => RequestOp::Discard,
        // The array's discard leaves zeroes, so zeroing that may give space back is the same, and knows FUA.
        Op::Trim { fua: true } => RequestOp::WriteZeroes { fua: true, unmap: true },
        Op::WriteZeroes { fua, no_hole } => RequestOp::WriteZeroes { fua, unmap: !no_hole },
    }
}

fn error_code(error: RequestError, op: Op) -> ErrorCode {
    match error {
        RequestError::Io => ErrorCode::Io,
        RequestError::Range if matches!(op, Op::Write { .. } | Op::WriteZeroes { .. }) => ErrorCode::NoSpace,
        RequestError::Range => ErrorCode::Inval,
        RequestError::ReadOnly => ErrorCode::Perm,
        RequestError::Stopped => ErrorCode::Shutdown,
    }
}
