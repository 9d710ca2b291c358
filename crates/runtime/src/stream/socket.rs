//! The sockets of one reactor: accepting, receiving into connections, sending what they queued.
//!
//! A connection has at most one receive and one send under way. It is dropped only when neither is and none of its
//! requests is with the engine, so the memory the kernel was given outlives the operation.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::opcode;
use io_uring::types::Fd;
use raidus_engine::RequestError;
use raidus_units::Nanos;
use slab::Slab;

use super::{Connection, Context, Effects, PeerAddress, Piece, RECEIVE_BYTES, Service, ServiceId, StreamRequest, Then};
use crate::counters::Tally;
use crate::memory::{Buffer, BufferPool};
use crate::ring::Ring;

/// Pieces of one vectored send.
const PIECES_MAX: usize = 128;
/// Pause after an accept that failed (out of descriptors, mostly).
const ACCEPT_PAUSE: Nanos = Nanos::from_millis(100);

const OP_RECEIVE: u64 = 0;
const OP_SEND: u64 = 1;
const OP_ACCEPT: u64 = 2;
const OP_CANCEL: u64 = 3;

/// The sockets of a reactor.
pub(crate) struct Streams {
    class: u64,
    pool: BufferPool,
    in_flight_max: usize,
    connections: Slab<Conversation>,
    listeners: Slab<Listening>,
    /// Connections that answered `Wait`, in that order.
    waiting: VecDeque<usize>,
    /// One of the waiting finds the pool empty: those who come later get nothing from it before.
    pool_short: bool,
    pool_seen: u64,
    /// Connections with something to send, or perhaps at their end.
    touched: Vec<usize>,
    /// Requests the connections made.
    requests: Vec<(usize, StreamRequest)>,
    /// New connections, for the reactor to distribute.
    accepted: Vec<(OwnedFd, PeerAddress, Arc<dyn Service>)>,
    closing: bool,
}

struct Listening {
    id: ServiceId,
    socket: OwnedFd,
    service: Arc<dyn Service>,
    armed: bool,
    resume_at: Option<Nanos>,
    /// Stopping; whoever asked learns it by the drop.
    stopping: Option<std::sync::mpsc::Sender<()>>,
}

/// A connection with its socket.
struct Conversation {
    socket: OwnedFd,
    protocol: Box<dyn Connection>,
    effects: Effects,
    inbox: Box<[u8]>,
    /// The unconsumed part of the inbox.
    unread: Range<usize>,
    receiving: Receiving,
    sending: Option<Box<Sending>>,
    /// Something happened that may let a waiting connection go on.
    retry: bool,
    waiting: bool,
    touched: bool,
    ending: bool,
    failed: bool,
}

enum Receiving {
    /// Nothing under way.
    Idle,
    /// Bytes for the inbox.
    Inbox,
    /// Payload: the rest of the range is under way.
    Payload(Buffer, Range<usize>),
}

/// A send under way. Boxed: the kernel reads the header and vector where they are.
struct Sending {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are gone already.
    gone: usize,
    vector: Vec<libc::iovec>,
    header: libc::msghdr,
}

impl Streams {
    pub(crate) fn new(pool: BufferPool, in_flight_max: usize, class: u64) -> Streams {
        let pool_seen = pool.given_back();
        Streams {
            class,
            pool,
            in_flight_max,
            connections: Slab::new(),
            listeners: Slab::new(),
            waiting: VecDeque::new(),
            pool_short: false,
            pool_seen,
            touched: Vec::new(),
            requests: Vec::new(),
            accepted: Vec::new(),
            closing: false,
        }
    }

    /// Whether there is no socket left.
    pub(crate) fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.listeners.is_empty()
    }

    /// Whether there is work that no completion will announce.
    pub(crate) fn has_work(&self) -> bool {
        !self.requests.is_empty()
            || !self.accepted.is_empty()
            || !self.touched.is_empty()
            || (!self.waiting.is_empty() && self.may_retry())
    }

    fn may_retry(&self) -> bool {
        self.pool.given_back() != self.pool_seen || self.waiting.iter().any(|k| self.connections[*k].retry)
    }

    /// Requests made since the last call.
    pub(crate) fn take_requests(&mut self, into: &mut Vec<(usize, StreamRequest)>) {
        into.append(&mut self.requests);
    }

    /// Connections accepted since the last call.
    pub(crate) fn take_accepted(&mut self) -> Vec<(OwnedFd, PeerAddress, Arc<dyn Service>)> {
        std::mem::take(&mut self.accepted)
    }

    /// When a listener that paused goes on.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.listeners.iter().filter_map(|(_, l)| l.resume_at).min()
    }

    /// Serves a connected socket.
    pub(crate) fn adopt(
        &mut self,
        socket: OwnedFd,
        peer: &PeerAddress,
        service: &dyn Service,
        ring: &mut Ring,
        tally: &mut Tally,
    ) {
        if self.closing {
            return;
        }
        let conversation = Conversation {
            socket,
            protocol: service.connect(peer),
            effects: Effects::new(self.in_flight_max),
            inbox: vec![0; RECEIVE_BYTES].into(),
            unread: 0..0,
            receiving: Receiving::Idle,
            sending: None,
            retry: false,
            waiting: false,
            touched: false,
            ending: false,
            failed: false,
        };
        let key = self.connections.insert(conversation);
        self.call(key, |protocol, cx| protocol.opened(cx));
        self.pump(key, ring, tally);
    }

    /// A connection's request ended.
    pub(crate) fn reply(&mut self, key: usize, cookie: u64, result: Result<(), RequestError>, buffer: Option<Buffer>) {
        let Some(c) = self.connections.get_mut(key) else { return };
        c.effects.requests_under_way -= 1;
        c.retry = true;
        if c.failed {
            drop(buffer);
            self.touch(key);
        } else {
            self.call(key, |protocol, cx| protocol.reply(cookie, result, buffer, cx));
        }
    }

    /// Calls a connection and takes what it did.
    fn call<R>(&mut self, key: usize, f: impl FnOnce(&mut dyn Connection, &mut Context<'_>) -> R) -> R {
        let c = &mut self.connections[key];
        c.effects.pool_short = false;
        let mut cx = Context { pool: &self.pool, effects: &mut c.effects, pool_taken: self.pool_short };
        let result = f(&mut *c.protocol, &mut cx);
        self.requests.extend(c.effects.requests.drain(..).map(|r| (key, r)));
        c.ending |= c.effects.close;
        self.touch(key);
        result
    }

    fn touch(&mut self, key: usize) {
        let c = &mut self.connections[key];
        if !std::mem::replace(&mut c.touched, true) {
            self.touched.push(key);
        }
    }

    /// Lets the connection read what is in its inbox, until it wants more or has to wait.
    fn pump(&mut self, key: usize, ring: &mut Ring, tally: &mut Tally) {
        loop {
            let c = &mut self.connections[key];
            if c.ending || c.failed || !matches!(c.receiving, Receiving::Idle) {
                return self.touch(key);
            }
            if c.unread.is_empty() {
                return self.arm_inbox(key, ring, tally);
            }
            let inbox = std::mem::take(&mut c.inbox);
            let unread = c.unread.clone();
            let answer = self.call(key, |protocol, cx| protocol.receive(&inbox[unread], cx));
            let c = &mut self.connections[key];
            c.inbox = inbox;
            c.unread.start = c.unread.end.min(c.unread.start.saturating_add(answer.consumed));
            match answer.then {
                Then::More if c.unread.len() == RECEIVE_BYTES => c.ending = true,
                Then::More => return self.arm_inbox(key, ring, tally),
                Then::Payload { buffer, range } => self.begin_payload(key, buffer, range, ring, tally),
                Then::Wait => return self.wait(key),
                Then::Close => c.ending = true,
            }
        }
    }

    fn wait(&mut self, key: usize) {
        let c = &mut self.connections[key];
        c.retry = false;
        if !std::mem::replace(&mut c.waiting, true) {
            self.waiting.push_back(key);
        }
        if c.effects.pool_short {
            self.pool_short = true;
        }
    }

    /// Lets waiting connections try again if something changed for them.
    pub(crate) fn retry_waiting(&mut self, ring: &mut Ring, tally: &mut Tally) {
        if self.waiting.is_empty() || !self.may_retry() {
            return;
        }
        self.pool_seen = self.pool.given_back();
        // In order, and each that finds the pool short keeps it closed for those behind.
        self.pool_short = false;
        for key in std::mem::take(&mut self.waiting) {
            self.connections[key].waiting = false;
            self.pump(key, ring, tally);
        }
    }

    /// Receives more bytes into the inbox.
    fn arm_inbox(&mut self, key: usize, ring: &mut Ring, tally: &mut Tally) {
        let c = &mut self.connections[key];
        if c.unread.start > 0 {
            c.inbox.copy_within(c.unread.clone(), 0);
            c.unread = 0..c.unread.len();
        }
        let space = &mut c.inbox[c.unread.end..];
        let entry = opcode::Recv::new(Fd(c.socket.as_raw_fd()), space.as_mut_ptr(), space.len() as u32).build();
        c.receiving = Receiving::Inbox;
        // SAFETY: the inbox is not touched and not dropped before the receive has ended.
        unsafe { ring.push(entry.user_data(self.class | (key as u64) << 2 | OP_RECEIVE), tally) };
    }

    /// Fills a payload from the inbox and the rest straight from the socket.
    fn begin_payload(
        &mut self,
        key: usize,
        mut buffer: Buffer,
        mut range: Range<usize>,
        ring: &mut Ring,
        tally: &mut Tally,
    ) {
        let c = &mut self.connections[key];
        if range.end > buffer.len() || range.is_empty() {
            debug_assert!(false, "a payload that does not fit its buffer");
            c.ending = true;
            return;
        }
        let here = c.unread.len().min(range.len());
        buffer[range.start..range.start + here].copy_from_slice(&c.inbox[c.unread.start..c.unread.start + here]);
        c.unread.start += here;
        range.start += here;
        if range.is_empty() {
            self.call(key, |protocol, cx| protocol.payload(buffer, cx));
        } else {
            self.arm_payload(key, buffer, range, ring, tally);
        }
    }

    fn arm_payload(&mut self, key: usize, mut buffer: Buffer, range: Range<usize>, ring: &mut Ring, tally: &mut Tally) {
        let c = &mut self.connections[key];
        let space = &mut buffer[range.clone()];
        let len = space.len().min(1 << 30) as u32;
        let entry =
            opcode::Recv::new(Fd(c.socket.as_raw_fd()), space.as_mut_ptr(), len).flags(libc::MSG_WAITALL).build();
        c.receiving = Receiving::Payload(buffer, range);
        // SAFETY: the buffer stays in `receiving`, untouched, until the receive has ended; moving a Buffer does not move its memory.
        unsafe { ring.push(entry.user_data(self.class | (key as u64) << 2 | OP_RECEIVE), tally) };
    }

    /// Takes a completion of the ring; `key` is what follows the class in its user data.
    pub(crate) fn complete(&mut self, key: u64, result: i32, now: Nanos, ring: &mut Ring, tally: &mut Tally) {
        let slot = (key >> 2) as usize;
        match key & 3 {
            OP_RECEIVE => self.received(slot, result, ring, tally),
            OP_SEND => self.sent(slot, result, ring, tally),
            OP_ACCEPT => self.accepted(slot, result, now),
            _ => {}
        }
    }

    fn received(&mut self, key: usize, result: i32, ring: &mut Ring, tally: &mut Tally) {
        let Some(c) = self.connections.get_mut(key) else { return };
        let receiving = std::mem::replace(&mut c.receiving, Receiving::Idle);
        let again = matches!(-result, libc::EINTR | libc::EAGAIN);
        if result < 0 && !again {
            c.failed = true;
        } else if result == 0 {
            // The client closed its side. Half a message is none.
            c.ending = true;
        }
        let n = result.max(0) as usize;
        tally.received_bytes += n as u64;
        match receiving {
            _ if c.ending || c.failed => {}
            Receiving::Idle => debug_assert!(false, "a receive that was not under way"),
            Receiving::Inbox => c.unread.end = (c.unread.end + n).min(RECEIVE_BYTES),
            Receiving::Payload(buffer, range) => {
                let range = (range.start + n).min(range.end)..range.end;
                if range.is_empty() {
                    self.call(key, |protocol, cx| protocol.payload(buffer, cx));
                } else {
                    return self.arm_payload(key, buffer, range, ring, tally);
                }
            }
        }
        self.pump(key, ring, tally);
    }

    /// Starts sends and closes what has come to its end. To be called at the end of a turn.
    pub(crate) fn settle(&mut self, ring: &mut Ring, tally: &mut Tally) {
        for key in std::mem::take(&mut self.touched) {
            let Some(c) = self.connections.get_mut(key) else { continue };
            c.touched = false;
            if c.failed {
                c.effects.sends.clear();
            }
            if c.sending.is_none() && !c.effects.sends.is_empty() {
                let count = c.effects.sends.len().min(PIECES_MAX);
                let pieces = c.effects.sends.drain(..count).collect();
                self.begin_send(key, pieces, 0, ring, tally);
            } else if c.over() {
                self.waiting.retain(|k| *k != key);
                self.connections.remove(key);
            } else if (c.ending || c.failed)
                && c.sending.is_none()
                && matches!(c.receiving, Receiving::Inbox | Receiving::Payload(..))
            {
                // Ended by us while a receive waits for the client: that one has to end first.
                let how = if c.failed { rustix::net::Shutdown::Both } else { rustix::net::Shutdown::Read };
                let _ = rustix::net::shutdown(&c.socket, how);
            }
        }
    }

    fn begin_send(&mut self, key: usize, pieces: VecDeque<Piece>, gone: usize, ring: &mut Ring, tally: &mut Tally) {
        let c = &mut self.connections[key];
        // SAFETY: `msghdr` is plain data, for which all zeroes is a valid value.
        let header: libc::msghdr = unsafe { std::mem::zeroed() };
        let mut sending = Box::new(Sending { vector: vector(&pieces, gone), pieces, gone, header });
        sending.header.msg_iov = sending.vector.as_mut_ptr();
        sending.header.msg_iovlen = sending.vector.len() as _;
        let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
        let entry = opcode::SendMsg::new(Fd(c.socket.as_raw_fd()), &raw const sending.header).flags(flags).build();
        c.sending = Some(sending);
        // SAFETY: header, vector and pieces stay in the box, untouched, until the send has ended.
        unsafe { ring.push(entry.user_data(self.class | (key as u64) << 2 | OP_SEND), tally) };
    }

    fn sent(&mut self, key: usize, result: i32, ring: &mut Ring, tally: &mut Tally) {
        let Some(c) = self.connections.get_mut(key) else { return };
        let Some(sending) = c.sending.take() else { return };
        let Sending { mut pieces, mut gone, .. } = *sending;
        if result < 0 && !matches!(-result, libc::EINTR | libc::EAGAIN) {
            c.failed = true;
        }
        tally.sent_bytes += result.max(0) as u64;
        gone += result.max(0) as usize;
        while pieces.front().is_some_and(|p| p.len() <= gone) {
            gone -= pieces.pop_front().map_or(0, |p| p.len());
        }
        c.retry = true;
        if pieces.is_empty() || c.failed {
            self.touch(key);
        } else {
            self.begin_send(key, pieces, gone, ring, tally);
        }
    }

    /// Accepts on a listening socket from now on.
    pub(crate) fn listen(&mut self, id: ServiceId, socket: OwnedFd, service: Arc<dyn Service>) {
        self.listeners.insert(Listening { id, socket, service, armed: false, resume_at: None, stopping: None });
    }

    /// Arms listeners that are neither armed nor pausing.
    pub(crate) fn arm_listeners(&mut self, now: Nanos, ring: &mut Ring, tally: &mut Tally) {
        for (slot, l) in &mut self.listeners {
            if l.armed || l.stopping.is_some() || l.resume_at.is_some_and(|at| at > now) {
                continue;
            }
            (l.armed, l.resume_at) = (true, None);
            let fd = Fd(l.socket.as_raw_fd());
            let accept = opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut()).flags(libc::SOCK_CLOEXEC);
            // SAFETY: the operation names no memory.
            unsafe { ring.push(accept.build().user_data(self.class | (slot as u64) << 2 | OP_ACCEPT), tally) };
        }
    }

    /// Stops accepting; `done` is dropped when that is so.
    pub(crate) fn stop_listening(
        &mut self,
        id: ServiceId,
        done: std::sync::mpsc::Sender<()>,
        ring: &mut Ring,
        tally: &mut Tally,
    ) {
        let slots: Vec<usize> = self.listeners.iter().filter(|(_, l)| l.id == id).map(|(slot, _)| slot).collect();
        for slot in slots {
            self.cancel(slot, Some(done.clone()), ring, tally);
        }
    }

    fn cancel(&mut self, slot: usize, done: Option<std::sync::mpsc::Sender<()>>, ring: &mut Ring, tally: &mut Tally) {
        let l = &mut self.listeners[slot];
        if !l.armed {
            self.listeners.remove(slot);
            return;
        }
        l.stopping = Some(done.unwrap_or_else(|| std::sync::mpsc::channel().0));
        let accept = self.class | (slot as u64) << 2 | OP_ACCEPT;
        let entry = opcode::AsyncCancel::new(accept).build();
        // SAFETY: the operation names no memory.
        unsafe { ring.push(entry.user_data(self.class | (slot as u64) << 2 | OP_CANCEL), tally) };
    }

    fn accepted(&mut self, slot: usize, result: i32, now: Nanos) {
        let Some(l) = self.listeners.get_mut(slot) else { return };
        l.armed = false;
        if result >= 0 {
            // SAFETY: the kernel just made the descriptor for us, and nobody else knows it.
            let socket = unsafe { OwnedFd::from_raw_fd(result) };
            let peer = peer_of(&socket);
            if matches!(peer, PeerAddress::Tcp(_)) {
                let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
            }
            self.accepted.push((socket, peer, Arc::clone(&l.service)));
        } else if !matches!(-result, libc::EINTR | libc::EAGAIN | libc::ECONNABORTED) {
            l.resume_at = Some(now.plus(ACCEPT_PAUSE));
        }
        if l.stopping.is_some() {
            self.listeners.remove(slot);
        }
    }

    /// Ends all connections in order, and all listeners.
    pub(crate) fn close_all(&mut self, ring: &mut Ring, tally: &mut Tally) {
        self.closing = true;
        let listeners: Vec<usize> = self.listeners.iter().map(|(slot, _)| slot).collect();
        for slot in listeners {
            self.cancel(slot, None, ring, tally);
        }
        let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.connections[key].ending = true;
            self.touch(key);
        }
    }

    /// Breaks all connections.
    pub(crate) fn sever_all(&mut self) {
        let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
        for key in keys {
            let c = &mut self.connections[key];
            (c.ending, c.failed) = (true, true);
            let _ = rustix::net::shutdown(&c.socket, rustix::net::Shutdown::Both);
            self.touch(key);
        }
    }

    /// Forgets the requests of all connections: the engine will not reply to them any more.
    pub(crate) fn forget_requests(&mut self) {
        self.requests.clear();
        for (_, c) in &mut self.connections {
            c.effects.requests_under_way = 0;
        }
    }
}

impl Conversation {
    /// Nothing is under way and nothing will be.
    fn over(&self) -> bool {
        (self.ending || self.failed)
            && self.effects.requests_under_way == 0
            && self.effects.sends.is_empty()
            && self.sending.is_none()
            && matches!(self.receiving, Receiving::Idle)
    }
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Buffer(_, range) => range.len(),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Bytes(bytes) => bytes,
            Piece::Buffer(buffer, range) => &buffer[range.clone()],
        }
    }
}

fn vector(pieces: &VecDeque<Piece>, gone: usize) -> Vec<libc::iovec> {
    let mut skip = gone;
    pieces
        .iter()
        .map(|piece| {
            let bytes = &piece.bytes()[skip..];
            skip = 0;
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
        })
        .collect()
}

fn peer_of(socket: &OwnedFd) -> PeerAddress {
    match rustix::net::getpeername(socket).ok().flatten().map(SocketAddr::try_from) {
        Some(Ok(address)) => PeerAddress::Tcp(address),
        _ => PeerAddress::Unix,
    }
}
