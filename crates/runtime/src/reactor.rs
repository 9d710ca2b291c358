//! A reactor: one thread, one ring, one shard; reactor 0 also hosts Control.
//!
//! One pass of its loop is one turn of the engine: take in all that is there (messages, mail, completions, what clients sent),
//! end the turn, carry out the outputs in order, submit. It sleeps only when nothing is left and after looking at its mailbox
//! once more.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use io_uring::opcode;
use io_uring::types::Fd;
use raidus_engine::control::{Event, StopError};
use raidus_engine::{
    Compute, Control, Input, MemAddr, Output, Peer, Reply, Request, RequestError, RequestId, RequestOp, Shard, ShardId,
};
use raidus_parity::Backend;
use raidus_units::Nanos;
use slab::Slab;

use crate::client::{ArrayRequest, ClientRequest, Completion, Permit};
use crate::compute;
use crate::counters::{Published, Tally};
use crate::local::Locals;
use crate::mailbox::{Envelope, Mail, Mailbox};
use crate::member_io::{Done, MemberIos, Owner};
use crate::memory::{Buffer, BufferPool};
use crate::ring::Ring;
use crate::stream::{PeerAddress, SharedService, StreamRequest, Streams};

const CLASS_SHIFT: u32 = 56;
const CLASS_WAKE: u64 = 0;
/// User data of member I/O.
pub(crate) const CLASS_MEMBER: u64 = 1 << CLASS_SHIFT;
/// User data of sockets.
pub(crate) const CLASS_STREAM: u64 = 2 << CLASS_SHIFT;

/// Messages and mail taken in per turn, so that completions are not kept waiting.
const INTAKE_MAX: usize = 1024;

/// How long the end of a reactor waits before it looks again.
const WIND_UP_STEP: Duration = Duration::from_millis(100);
/// How much too late a sleep may end.
pub(crate) const TIMERS_LATE: Duration = Duration::from_micros(120);

/// What the reactors of an array share.
pub(crate) struct Shared {
    pub(crate) mailboxes: Arc<[Arc<Mailbox>]>,
    pub(crate) published: Box<[Published]>,
    /// Time zero.
    pub(crate) start: Instant,
    /// A reactor panicked: the others end without writing.
    pub(crate) crashed: AtomicBool,
}

/// See the module's documentation.
pub(crate) struct Reactor {
    pub(crate) id: ShardId,
    pub(crate) shared: Arc<Shared>,
    pub(crate) shard: Shard,
    pub(crate) control: Option<Control>,
    pub(crate) ring: Ring,
    pub(crate) ios: MemberIos,
    pub(crate) streams: Streams,
    locals: Locals,
    /// Memory for the requests of clients on this thread.
    pool: BufferPool,
    state: State,
}

/// The part of a reactor that starts empty.
struct State {
    backend: Backend,
    tally: Tally,
    /// Messages between Control and the shard beside it.
    local: VecDeque<Envelope>,
    /// Comparisons made, for the shard.
    compared: Vec<Input>,
    /// Messages that found a peer's mailbox full, by peer.
    kept: Vec<VecDeque<Envelope>>,
    /// Peers to be woken at the end of the turn.
    to_wake: Vec<bool>,
    requests: Slab<Pending>,
    /// Requests whose memory was missing.
    refused: Vec<Pending>,
    events: Vec<Sender<Event>>,
    stop: Option<Sender<Result<(), StopError>>>,
    closing: Option<Sender<()>>,
    next_connection: usize,
    exit: bool,
    wake_buffer: Box<[u8; 8]>,
    completions: Vec<(u64, i32, bool)>,
    done: Vec<Done>,
    stream_requests: Vec<(usize, StreamRequest)>,
    local_requests: Vec<StreamRequest>,
}

/// A request in the shard: whose it is.
enum Pending {
    Client { done: Completion, buffer: Option<Buffer>, _permit: Option<Permit> },
    Stream { connection: usize, cookie: u64, buffer: Option<Buffer> },
    Local { client: usize, cookie: u64, buffer: Option<Buffer> },
}

impl Reactor {
    pub(crate) fn new(
        id: ShardId,
        shared: Arc<Shared>,
        machines: (Shard, Option<Control>),
        ring: Ring,
        ios: MemberIos,
        streams: Streams,
        pool: BufferPool,
    ) -> Reactor {
        let peers = shared.mailboxes.len();
        let state = State {
            backend: Backend::detect(),
            tally: Tally::default(),
            local: VecDeque::new(),
            compared: Vec::new(),
            kept: (0..peers).map(|_| VecDeque::new()).collect(),
            to_wake: vec![false; peers],
            requests: Slab::new(),
            refused: Vec::new(),
            events: Vec::new(),
            stop: None,
            closing: None,
            next_connection: 0,
            exit: false,
            wake_buffer: Box::new([0; 8]),
            completions: Vec::new(),
            done: Vec::new(),
            stream_requests: Vec::new(),
            local_requests: Vec::new(),
        };
        let (shard, control) = machines;
        Reactor { id, shared, shard, control, ring, ios, streams, locals: Locals::default(), pool, state }
    }

    /// Runs until told to exit, after the last preparations.
    ///
    /// A panic (a bug of ours) takes the array down: nothing more is written, and nobody waits for it. The kernel may still use
    /// the reactor's memory then, so all of it is leaked.
    pub(crate) fn run(self, set_up: impl FnOnce(&mut Ring)) {
        let mut reactor = ManuallyDrop::new(self);
        set_up(&mut reactor.ring);
        match catch_unwind(AssertUnwindSafe(|| reactor.serve())) {
            Ok(()) => ManuallyDrop::into_inner(reactor).wind_up(),
            Err(panic) => {
                reactor.crash();
                resume_unwind(panic);
            }
        }
    }

    fn serve(&mut self) {
        self.arm_wake();
        while !self.state.exit {
            let now = self.now();
            self.turn(now);
            if !self.has_work() {
                self.sleep();
            }
            self.state.exit |= self.shared.crashed.load(Ordering::Relaxed);
        }
    }

    fn crash(&mut self) {
        self.shared.crashed.store(true, Ordering::Relaxed);
        self.mailbox().close();
        for mailbox in &*self.shared.mailboxes {
            mailbox.kick();
        }
        self.state.stop = None;
        self.state.closing = None;
        self.state.events.clear();
        for pending in self.state.requests.drain() {
            if let Pending::Client { done, buffer, .. } = pending {
                std::mem::forget(buffer);
                done(Err(RequestError::Stopped), None);
            }
        }
    }

    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.shared.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// What was counted here and in the shard.
    fn tally(&self) -> Tally {
        let reads = self.shard.prereads();
        Tally { prereads: reads.count, preread_bytes: reads.sectors.bytes(), ..self.state.tally }
    }

    fn mailbox(&self) -> &Mailbox {
        &self.shared.mailboxes[usize::from(self.id.0)]
    }

    fn turn(&mut self, now: Nanos) {
        self.state.tally.turns += 1;
        self.take_messages(now);
        self.take_completions(now);
        self.take_mail(now);
        self.take_streams(now);
        self.take_locals(now);
        self.take_timeouts(now);
        self.shard.end_turn(now);
        if let Some(control) = &mut self.control {
            control.end_turn(now);
        }
        self.carry_out();
        self.tell_events();
        self.streams.settle(&mut self.ring, &mut self.state.tally);
        if self.streams.is_empty() {
            self.state.closing = None;
        }
        self.send_kept();
        self.ring.flush(&mut self.state.tally);
    }

    /// Whether the next turn has something to do without waiting.
    fn has_work(&self) -> bool {
        !self.state.local.is_empty()
            || !self.state.compared.is_empty()
            || !self.state.refused.is_empty()
            || self.ios.has_done()
            || self.streams.has_work()
            || self.locals.has_work()
            || self.state.exit
    }

    fn sleep(&mut self) {
        let now = self.now();
        // Messages kept for a peer whose mailbox is full are tried again soon; nothing announces room there.
        let kept = self.state.kept.iter().any(|k| !k.is_empty()).then(|| now.plus(Nanos(50_000)));
        let due = [
            self.shard.poll_timeout(),
            self.control.as_ref().and_then(Control::poll_timeout),
            self.streams.poll_timeout(),
            kept,
        ];
        let mut timeout = due.into_iter().flatten().min().map(|at| Duration::from_nanos(at.since(now).0));
        if let Some(due) = self.ios.next_due() {
            // Timers come late by more than what is modelled: the last stretch is spent awake.
            let left = due.saturating_duration_since(Instant::now()).saturating_sub(TIMERS_LATE);
            timeout = Some(timeout.map_or(left, |timeout| timeout.min(left)));
        }
        if timeout == Some(Duration::ZERO) {
            return;
        }
        self.shared.published[usize::from(self.id.0)].publish(&self.tally());
        if self.mailbox().prepare_to_sleep() {
            self.state.tally.sleeps += 1;
            self.ring.wait(timeout, &mut self.state.tally);
            self.mailbox().awake();
        }
    }

    fn take_messages(&mut self, now: Nanos) {
        for compared in std::mem::take(&mut self.state.compared) {
            self.shard.handle(now, compared);
        }
        let mut local = std::mem::take(&mut self.state.local);
        for envelope in local.drain(..) {
            self.deliver(now, envelope);
        }
        for _ in 0..INTAKE_MAX {
            let Some(envelope) = self.mailbox().pop_message() else { return };
            self.deliver(now, envelope);
        }
    }

    fn deliver(&mut self, now: Nanos, Envelope { from, to, message }: Envelope) {
        let input = Input::Message { from, message };
        match (to, &mut self.control) {
            (Peer::Shard(_), _) => self.shard.handle(now, input),
            (Peer::Control, Some(control)) => control.handle(now, input),
            (Peer::Control, None) => debug_assert!(false, "Control lives on reactor 0"),
        }
    }

    fn take_completions(&mut self, now: Nanos) {
        let mut completions = std::mem::take(&mut self.state.completions);
        self.ring.completions(&mut completions);
        for (user_data, result, _) in completions.drain(..) {
            let key = user_data & ((1 << CLASS_SHIFT) - 1);
            match user_data & !((1 << CLASS_SHIFT) - 1) {
                CLASS_MEMBER => self.ios.complete(key as usize, result, &mut self.ring, &mut self.state.tally),
                CLASS_STREAM => self.streams.complete(key, result, now, &mut self.ring, &mut self.state.tally),
                _ => self.arm_wake(),
            }
        }
        self.state.completions = completions;
        if self.ios.has_retiring() {
            self.ios.close_retired(&mut self.ring);
        }
        self.ios.take_due(&mut self.ring, &mut self.state.tally);
        let mut done = std::mem::take(&mut self.state.done);
        self.ios.take_done(&mut done);
        for Done { owner, token, result } in done.drain(..) {
            let input = Input::MemberDone { token, result };
            match (owner, &mut self.control) {
                (Owner::Control, Some(control)) => control.handle(now, input),
                _ => self.shard.handle(now, input),
            }
        }
        self.state.done = done;
    }

    fn take_mail(&mut self, now: Nanos) {
        for _ in 0..INTAKE_MAX {
            let Some(mail) = self.mailbox().pop_mail() else { return };
            self.on_mail(now, mail);
        }
    }

    fn on_mail(&mut self, now: Nanos, mail: Mail) {
        let Reactor { streams, ring, state, .. } = self;
        match mail {
            Mail::Request(request) => self.begin_client_request(now, request),
            Mail::Connection(socket, peer, service) => {
                streams.adopt(socket, &peer, &*service, ring, &mut state.tally);
            }
            Mail::Listen(id, socket, service) => streams.listen(id, socket, service),
            Mail::StopListening(id, done) => streams.stop_listening(id, done, ring, &mut state.tally),
            Mail::CloseStreams(done) => {
                state.closing = Some(done);
                streams.close_all(ring, &mut state.tally);
            }
            Mail::SeverStreams => streams.sever_all(),
            Mail::Exit => state.exit = true,
            Mail::Command(command, to) => {
                if let Some(control) = &mut self.control {
                    let _ = to.send(control.command(now, *command));
                }
            }
            Mail::Join(device, to) => {
                let _ = to.send(self.ios.join(device, ring));
            }
            Mail::Unjoin => self.ios.unjoin(ring),
            Mail::Retire(member) => self.ios.retire(member.index(), ring),
            Mail::Status(to) => {
                if let Some(control) = &self.control {
                    let _ = to.send(control.status());
                }
            }
            Mail::Tally(to) => {
                let _ = to.send(self.tally());
            }
            Mail::Attach(client) => self.locals.attach(client, &self.pool),
            Mail::Subscribe(to) => state.events.push(to),
            Mail::Stop(to) => {
                if let Some(control) = &mut self.control {
                    state.stop = Some(to);
                    // Stopping what stops already is no error.
                    let _ = control.command(now, raidus_engine::control::Command::Stop);
                }
            }
        }
    }

    fn begin_client_request(&mut self, now: Nanos, ClientRequest { request, done, permit }: ClientRequest) {
        let whole = request.has_its_memory();
        let ArrayRequest { op, sector, len, buffer } = request;
        let addr = address(op, buffer.as_ref());
        let pending = Pending::Client { done, buffer, _permit: permit };
        if !whole {
            return self.state.refused.push(pending);
        }
        let id = RequestId(self.state.requests.insert(pending) as u64);
        self.begin(now, Request { id, op, sector, len, buf: addr });
    }

    fn begin(&mut self, now: Nanos, request: Request) {
        self.state.tally.requests += 1;
        self.shard.handle(now, Input::Request(request));
    }

    fn take_streams(&mut self, now: Nanos) {
        self.streams.arm_listeners(now, &mut self.ring, &mut self.state.tally);
        for (socket, peer, service) in self.streams.take_accepted() {
            self.distribute(socket, peer, service);
        }
        self.streams.retry_waiting(&mut self.ring, &mut self.state.tally);
        let mut requests = std::mem::take(&mut self.state.stream_requests);
        self.streams.take_requests(&mut requests);
        for (connection, request) in requests.drain(..) {
            self.begin_own(now, request, |cookie, buffer| Pending::Stream { connection, cookie, buffer });
        }
        self.state.stream_requests = requests;
        for pending in std::mem::take(&mut self.state.refused) {
            self.end(pending, Err(RequestError::Range));
        }
    }

    fn take_locals(&mut self, now: Nanos) {
        let mut requests = std::mem::take(&mut self.state.stream_requests);
        self.locals.take_requests(&mut requests, &mut self.state.local_requests);
        for (client, request) in requests.drain(..) {
            self.begin_own(now, request, |cookie, buffer| Pending::Local { client, cookie, buffer });
        }
        self.state.stream_requests = requests;
    }

    /// Begins a request of a client on this thread.
    fn begin_own(&mut self, now: Nanos, request: StreamRequest, whose: impl FnOnce(u64, Option<Buffer>) -> Pending) {
        let StreamRequest { cookie, op, sector, len, buffer } = request;
        let request = ArrayRequest { op, sector, len, buffer };
        let whole = request.has_its_memory();
        let addr = address(op, request.buffer.as_ref());
        let pending = whose(cookie, request.buffer);
        if whole {
            let id = RequestId(self.state.requests.insert(pending) as u64);
            self.begin(now, Request { id, op, sector, len, buf: addr });
        } else {
            self.state.refused.push(pending);
        }
    }

    /// Hands a new connection to the reactor whose turn it is.
    fn distribute(&mut self, socket: OwnedFd, peer: PeerAddress, service: SharedService) {
        let to = self.state.next_connection % self.shared.mailboxes.len();
        self.state.next_connection += 1;
        if to == usize::from(self.id.0) {
            self.streams.adopt(socket, &peer, &*service, &mut self.ring, &mut self.state.tally);
        } else {
            // A mailbox too full for it drops the socket, which closes the connection.
            let _ = self.shared.mailboxes[to].post(Mail::Connection(socket, peer, service));
        }
    }

    fn take_timeouts(&mut self, now: Nanos) {
        if self.shard.poll_timeout().is_some_and(|at| at <= now) {
            self.shard.handle(now, Input::Timeout);
        }
        if let Some(control) = &mut self.control
            && control.poll_timeout().is_some_and(|at| at <= now)
        {
            control.handle(now, Input::Timeout);
        }
    }

    fn carry_out(&mut self) {
        while let Some(output) = self.shard.poll_output() {
            self.on_output(Owner::Shard, output);
        }
        while let Some(output) = self.control.as_mut().and_then(Control::poll_output) {
            self.on_output(Owner::Control, output);
        }
    }

    fn on_output(&mut self, owner: Owner, output: Output) {
        match output {
            Output::Io(io) => self.ios.start(owner, io, &mut self.ring, &mut self.state.tally),
            Output::Compute(job) => {
                if let Compute::Copy { len, .. } = &job {
                    self.state.tally.copied_bytes += len.bytes();
                }
                // SAFETY: the engine computes on scratch memory and on buffers of requests under way, which nobody else uses:
                // the reactor holds them in `requests` and the members' I/O on them has ended or only reads.
                self.state.tally.computed_bytes += unsafe { compute::run(self.state.backend, &job) };
            }
            Output::ComputeCold(job) => {
                // SAFETY: as above.
                self.state.tally.computed_bytes += unsafe { compute::run(self.state.backend.cold(), &job) };
                self.state.backend.fence();
            }
            Output::Compare(job) => {
                // SAFETY: as above.
                let differences = unsafe { compute::compare(&job) };
                // Told in the next turn, so that what it leads to has a turn's end like everything else.
                self.state.compared.push(Input::Compared { token: job.token, differences });
            }
            Output::Reply(Reply { id, result }) => match self.state.requests.try_remove(id.0 as usize) {
                Some(pending) => self.end(pending, result),
                None => debug_assert!(false, "a reply to no request"),
            },
            Output::Send { to, message } => {
                let from = match owner {
                    Owner::Shard => Peer::Shard(self.id),
                    Owner::Control => Peer::Control,
                };
                self.send(Envelope { from, to, message });
            }
        }
    }

    fn end(&mut self, pending: Pending, result: Result<(), RequestError>) {
        match pending {
            Pending::Client { done, buffer, _permit } => done(result, buffer),
            Pending::Stream { connection, cookie, buffer } => self.streams.reply(connection, cookie, result, buffer),
            Pending::Local { client, cookie, buffer } => self.locals.reply(client, cookie, result, buffer),
        }
    }

    fn send(&mut self, envelope: Envelope) {
        let to = match envelope.to {
            Peer::Control => 0,
            Peer::Shard(ShardId(n)) => usize::from(n),
        };
        if to == usize::from(self.id.0) {
            return self.state.local.push_back(envelope);
        }
        self.state.tally.messages += 1;
        let kept = &mut self.state.kept[to];
        if !kept.is_empty() {
            kept.push_back(envelope);
        } else if let Err(envelope) = self.shared.mailboxes[to].push_message(envelope) {
            kept.push_back(envelope);
        }
        self.state.to_wake[to] = true;
    }

    /// Tries messages again that found a mailbox full, and wakes everyone who was sent one.
    fn send_kept(&mut self) {
        let State { kept, to_wake, tally, .. } = &mut self.state;
        for ((kept, wake), mailbox) in kept.iter_mut().zip(to_wake).zip(&*self.shared.mailboxes) {
            while let Some(envelope) = kept.pop_front() {
                *wake = true;
                if let Err(envelope) = mailbox.push_message(envelope) {
                    kept.push_front(envelope);
                    break;
                }
            }
            if std::mem::take(wake) && mailbox.wake() {
                tally.wakes += 1;
                tally.syscalls += 1;
            }
        }
    }

    fn tell_events(&mut self) {
        let Some(control) = &mut self.control else { return };
        while let Some(event) = control.poll_event() {
            if let Event::Stopped { result } = event
                && let Some(stop) = self.state.stop.take()
            {
                let _ = stop.send(result);
            }
            self.state.events.retain(|to| to.send(event.clone()).is_ok());
        }
    }

    fn arm_wake(&mut self) {
        let fd = Fd(self.mailbox().wake_fd());
        let entry = opcode::Read::new(fd, self.state.wake_buffer.as_mut_ptr(), 8).build();
        // SAFETY: the buffer lives as long as the reactor, which ends only when the read has.
        unsafe { self.ring.push(entry.user_data(CLASS_WAKE), &mut self.state.tally) };
    }

    /// Ends everything that is under way in the kernel, so that the memory it uses can go; the machines get to know nothing
    /// of it.
    fn wind_up(mut self) {
        self.mailbox().close();
        self.streams.forget_requests();
        let tally = &mut self.state.tally;
        self.streams.close_all(&mut self.ring, tally);
        self.streams.sever_all();
        while !self.ios.idle() || !self.streams.is_empty() {
            let mut completions = Vec::new();
            self.streams.settle(&mut self.ring, tally);
            self.ios.take_due(&mut self.ring, tally);
            self.ios.take_done(&mut self.state.done);
            if self.ios.idle() && self.streams.is_empty() {
                break;
            }
            let due = self.ios.next_due().map_or(WIND_UP_STEP, |due| due.saturating_duration_since(Instant::now()));
            self.ring.wait(Some(due.min(WIND_UP_STEP)), tally);
            self.ring.completions(&mut completions);
            for (user_data, result, _) in completions {
                let key = user_data & ((1 << CLASS_SHIFT) - 1);
                match user_data & !((1 << CLASS_SHIFT) - 1) {
                    CLASS_MEMBER => self.ios.complete(key as usize, result, &mut self.ring, tally),
                    CLASS_STREAM => self.streams.complete(key, result, Nanos(0), &mut self.ring, tally),
                    _ => {}
                }
            }
        }
        self.shared.published[usize::from(self.id.0)].publish(&self.tally());
        for pending in self.state.requests.drain() {
            if let Pending::Client { done, buffer, .. } = pending {
                done(Err(RequestError::Stopped), buffer);
            }
        }
        while self.ring.in_flight > 0 {
            self.mailbox().kick();
            self.ring.wait(Some(WIND_UP_STEP), &mut self.state.tally);
            self.state.completions.clear();
            self.ring.completions(&mut self.state.completions);
        }
        self.ring.unregister_files();
    }
}

fn address(op: RequestOp, buffer: Option<&Buffer>) -> MemAddr {
    match op {
        RequestOp::Read | RequestOp::Write { .. } => buffer.map_or(MemAddr::NONE, Buffer::addr),
        _ => MemAddr::NONE,
    }
}
