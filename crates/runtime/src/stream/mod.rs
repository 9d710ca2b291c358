//! Client connections served inside a reactor: the reactor owns the sockets, a [`Connection`] owns the protocol.
//!
//! # How bytes come in
//! The reactor receives into a small buffer of its own and calls [`Connection::receive`] with every byte not yet consumed. The
//! connection parses as many whole messages as it can and answers with [`Receive`]: how many bytes it took, and how to
//! [go on](Then). For a request with a payload it takes a [`Buffer`] from [`Context::buffer`] and answers
//! [`Then::Payload`]: the reactor fills the buffer — first with what it already received, then straight from the socket,
//! without a copy — and calls [`Connection::payload`].
//!
//! # Back-pressure
//! [`Context::buffer`] gives `None` when the connection's bytes in flight are at their limit or the reactor's pool is empty.
//! The connection then leaves the message unconsumed and answers [`Then::Wait`]. The reactor stops receiving and calls `receive`
//! *again with the same bytes* as soon as memory was given back or a request ended. So a connection needs no state for waiting.
//! Bytes are in flight from `Context::buffer` until the `Buffer` is dropped (after it was sent, for reads).
//!
//! # How bytes go out
//! [`Context::send`] copies a few bytes (headers), [`Context::send_buffer`] queues part of a buffer, which is kept until the
//! socket took it. Everything queued during a turn leaves in one vectored send, in order.
//!
//! # Requests
//! [`Context::submit`] passes a request to the engine. Its end comes back through [`Connection::reply`], with the cookie and the
//! buffer. Any number may be under way; they end in any order.
//!
//! # The end
//! A connection ends by [`Then::Close`], by the client closing its side, by a socket error, or by the array stopping. Receiving
//! stops at once. Requests under way run to their end and are replied to (unless the socket failed), queued bytes are
//! sent, then the socket is closed and the connection dropped.

mod socket;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use raidus_engine::{RequestError, RequestOp};
use raidus_units::{Sector, Sectors};

use crate::memory::{Buffer, BufferPool};

/// Makes the protocol state of new connections. One service is shared by all reactors; a connection lives on one of them.
pub trait Service: Send + Sync {
    /// A client connected.
    fn connect(&self, peer: &PeerAddress) -> Box<dyn Connection>;
}

/// A service as the reactors share it.
pub(crate) type SharedService = Arc<dyn Service>;

pub(crate) use socket::Streams;

/// A listening socket being served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServiceId(pub(crate) u64);

/// Who connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAddress {
    /// Over a Unix socket.
    Unix,
    /// Over TCP.
    Tcp(SocketAddr),
}

/// The protocol state of one connection. All calls come from one reactor's thread; none may block.
pub trait Connection {
    /// The connection is open; a protocol in which the server speaks first sends its greeting here.
    fn opened(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// `bytes` are all bytes received and not yet consumed; never empty. Parse what is whole; say how much was taken and what is
    /// wanted next.
    ///
    /// A message must fit into [`RECEIVE_BYTES`] apart from its payload: if nothing was consumed, the reactor's buffer is
    /// full, and more is asked for, the connection is closed.
    fn receive(&mut self, bytes: &[u8], cx: &mut Context<'_>) -> Receive;

    /// The payload asked for by [`Then::Payload`] is in `buffer`. `receive` goes on afterwards.
    fn payload(&mut self, buffer: Buffer, cx: &mut Context<'_>);

    /// A request ended. `buffer` is the one it was submitted with.
    fn reply(&mut self, cookie: u64, result: Result<(), RequestError>, buffer: Option<Buffer>, cx: &mut Context<'_>);
}

/// Answer of [`Connection::receive`].
#[derive(Debug)]
pub struct Receive {
    /// Bytes done with, from the front.
    pub consumed: usize,
    /// What next.
    pub then: Then,
}

/// How receiving goes on.
#[derive(Debug)]
pub enum Then {
    /// More bytes are needed: call `receive` with the unconsumed ones and at least one new byte.
    More,
    /// The next `range.len()` bytes of the stream belong into `buffer[range]`. The range must not be empty.
    Payload {
        /// Where they go.
        buffer: Buffer,
        /// Which part of it.
        range: Range<usize>,
    },
    /// Nothing can be done until memory is given back or a request ended: call `receive` again then, with the same bytes.
    Wait,
    /// Receive nothing more; close when everything under way has ended and been sent.
    Close,
}

/// Size of the reactor's receive buffer per connection: the longest message, payload excluded.
pub const RECEIVE_BYTES: usize = 16 << 10;

/// A request of a connection.
#[derive(Debug)]
pub struct StreamRequest {
    /// Comes back with the reply; need not be unique.
    pub cookie: u64,
    /// What to do.
    pub op: RequestOp,
    /// Where, in the array.
    pub sector: Sector,
    /// How much.
    pub len: Sectors,
    /// For reads and writes: at least `len` bytes, used from its start.
    pub buffer: Option<Buffer>,
}

/// What a connection can do while it is called.
#[derive(Debug)]
pub struct Context<'a> {
    pub(crate) pool: &'a BufferPool,
    pub(crate) effects: &'a mut Effects,
    /// Others wait for the pool already, so it is not this connection's turn.
    pub(crate) pool_taken: bool,
}

/// What a connection did during a call. The reactor carries it out; tests can look at it.
#[derive(Debug)]
pub struct Effects {
    /// To be sent, in order.
    pub sends: VecDeque<Piece>,
    /// To be passed to the engine, in order.
    pub requests: Vec<StreamRequest>,
    /// Close as after [`Then::Close`].
    pub close: bool,
    /// A buffer was refused because the pool had none.
    pub(crate) pool_short: bool,
    /// Bytes of live buffers taken through [`Context::buffer`].
    pub(crate) in_flight: Arc<AtomicUsize>,
    /// The most of them.
    pub(crate) in_flight_max: usize,
    /// Requests submitted and not yet replied to.
    pub(crate) requests_under_way: usize,
}

/// A part of the outgoing stream.
#[derive(Debug)]
pub enum Piece {
    /// Copied bytes.
    Bytes(Vec<u8>),
    /// Part of a buffer, sent from where it is.
    Buffer(Buffer, Range<usize>),
}

impl Effects {
    /// Nothing done yet, by a connection that may have `in_flight_max` bytes of buffers.
    pub fn new(in_flight_max: usize) -> Effects {
        Effects {
            sends: VecDeque::new(),
            requests: Vec::new(),
            close: false,
            pool_short: false,
            in_flight: Arc::new(AtomicUsize::new(0)),
            in_flight_max,
            requests_under_way: 0,
        }
    }
}

impl<'a> Context<'a> {
    /// A context over a pool, for testing a protocol without a reactor.
    pub fn new(pool: &'a BufferPool, effects: &'a mut Effects) -> Context<'a> {
        Context { pool, effects, pool_taken: false }
    }

    /// A buffer of `len` bytes (content: anything), or `None` while there is none to be had: answer [`Then::Wait`]. A connection
    /// without any buffer in flight gets one of any length up to [`buffer_max`](Self::buffer_max) sooner or later.
    pub fn buffer(&mut self, len: usize) -> Option<Buffer> {
        let in_flight = self.effects.in_flight.load(Ordering::Relaxed);
        if in_flight > 0 && in_flight.saturating_add(len) > self.effects.in_flight_max {
            return None;
        }
        let buffer = if self.pool_taken { None } else { self.pool.take(len) };
        let Some(mut buffer) = buffer else {
            self.effects.pool_short = true;
            return None;
        };
        buffer.charge(&self.effects.in_flight);
        Some(buffer)
    }

    /// The longest buffer there is; longer requests must be refused.
    pub fn buffer_max(&self) -> usize {
        self.pool.buffer_max()
    }

    /// Passes a request to the engine.
    pub fn submit(&mut self, request: StreamRequest) {
        self.effects.requests_under_way += 1;
        self.effects.requests.push(request);
    }

    /// Requests submitted and not yet replied to.
    pub fn requests_under_way(&self) -> usize {
        self.effects.requests_under_way
    }

    /// Copied bytes queued for sending that the socket has not begun to take. A client that sends without reading the replies
    /// makes them pile up: answer [`Then::Wait`] when there are too many; `receive` is called again once some were sent.
    pub fn bytes_queued(&self) -> usize {
        self.effects.sends.iter().map(|piece| if let Piece::Bytes(bytes) = piece { bytes.len() } else { 0 }).sum()
    }

    /// Sends a copy of `bytes`.
    pub fn send(&mut self, bytes: &[u8]) {
        if let Some(Piece::Bytes(last)) = self.effects.sends.back_mut() {
            last.extend_from_slice(bytes);
        } else {
            self.effects.sends.push_back(Piece::Bytes(bytes.to_vec()));
        }
    }

    /// Sends `buffer[range]` from where it is and drops the buffer afterwards.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    pub fn send_buffer(&mut self, buffer: Buffer, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= buffer.len(), "the range lies in the buffer");
        self.effects.sends.push_back(Piece::Buffer(buffer, range));
    }

    /// Closes the connection as [`Then::Close`] does; for use outside `receive`.
    pub fn close(&mut self) {
        self.effects.close = true;
    }
}
