//! A shard: carries requests from arrival to reply.
//!
//! It owns the requests that arrived at it, its scratch memory, its side of the write leases, and (for parity levels) the
//! stripes of its zones. A request becomes *pieces*: member I/Os that go out directly (healthy reads, everything on striped
//! levels), mirror writes, or stripe operations; the request ends when its last piece has.
//!
//! Every write passes the same gates in the same order: range lock, lease, scratch, I/O, record. Whoever waits at a
//! gate holds nothing that an earlier gate's holder needs to finish, so bounded memory cannot deadlock.
//!
//! A write is acknowledged only when every member it was written to has answered, every failure among them is durable on the survivors, and
//! the map it was planned by is durable and in force on every shard (see `record`).

mod arena;
mod lease;
mod mirror;
mod pieces;
mod ranges;
mod record;
mod stripe;
mod stripe_io;
mod stripe_log;
mod suspend;
mod sync;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use raidus_layout::Geometry;
use raidus_units::{MemberId, Nanos, Sector, Sectors};
use slab::Slab;

use crate::config::{ArrayConfig, Scratch, Tunables};
use crate::io::{
    Input, IoToken, MemberError, MemberIo, MemberOp, Output, Reply, Request, RequestError, RequestId, RequestOp,
};
use crate::map::MemberMap;
use crate::msg::{LogWant, Message, Peer, Region, ShardId};

use arena::Arena;
use lease::LeaseTable;
use mirror::MirrorWrite;
use pieces::Piece;
use ranges::RangeLocks;
use record::Record;
use stripe::StripeOp;
use suspend::Suspended;
use sync::Syncs;

/// One of the machines that carry requests. See the module's documentation.
#[derive(Debug)]
pub struct Shard {
    id: ShardId,
    geometry: Geometry,
    tunables: Tunables,
    region: Sectors,
    array_sectors: Sectors,
    scratch: Scratch,
    /// Writes that change parity are logged first.
    logged: bool,
    map: Arc<MemberMap>,
    record: Record,

    requests: Slab<Parent>,
    pieces: Slab<Piece>,
    mirrors: Slab<MirrorWrite>,
    stripes: Slab<StripeOp>,
    /// When a client last asked for something.
    last_request_at: Option<Nanos>,
    /// Requests that arrived while `requests_max` were under way.
    queued: VecDeque<Request>,

    syncs: Syncs,

    locks: RangeLocks<Turn>,
    leases: LeaseTable,
    lease_waiters: VecDeque<OpRef>,
    arena: Arena,
    scratch_waiters: VecDeque<Needy>,
    record_waiters: Vec<OpRef>,
    /// Writes to be logged, and logged ones that have ended, of this turn.
    log_wants: Vec<LogWant>,
    log_dones: Vec<u64>,
    /// Reads under way per member, for balancing mirrors.
    reads_out: Vec<u32>,

    /// Whose range lock was just granted.
    ready: VecDeque<Turn>,
    /// A lease went back: those who wait for leases must ask again.
    leases_moved: bool,
    /// Scratch came back: those who wait for it may have their turn.
    scratch_freed: bool,

    suspended: Suspended,
    /// Control has been told that no lease is held.
    held: bool,
    draining: bool,
    drained: bool,
    prereads: Prereads,
    out: VecDeque<Output>,
}

/// Reads from members that a write needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prereads {
    /// How many.
    pub count: u64,
    /// Of how much.
    pub sectors: Sectors,
}

/// Who a request came from.
#[derive(Clone, Copy, Debug)]
enum Origin {
    Client(RequestId),
    Peer { shard: ShardId, job: u64 },
}

/// A request under way.
#[derive(Debug)]
struct Parent {
    origin: Origin,
    /// Pieces not yet ended.
    remaining: u32,
    /// The suspension in force when it began.
    era: u64,
    error: Option<RequestError>,
}

/// A write that may wait at a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpRef {
    Mirror(usize),
    Stripe(usize),
}

/// Who may hold a range lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Op(OpRef),
    Sync(usize),
    /// A range that Control keeps for a sync window.
    Bar(u64),
}

/// Who may wait for scratch memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needy {
    Stripe(usize),
    Sync(usize),
}

/// What kind of operation a member I/O belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenKind {
    Piece = 0,
    Mirror = 1,
    Stripe = 2,
    Sync = 3,
}

fn token(kind: TokenKind, op: usize, part: u16) -> IoToken {
    IoToken((kind as u64) << 56 | (op as u64) << 16 | u64::from(part))
}

fn untoken(token: IoToken) -> (TokenKind, usize, u16) {
    let kind = match token.0 >> 56 {
        0 => TokenKind::Piece,
        1 => TokenKind::Mirror,
        2 => TokenKind::Stripe,
        _ => TokenKind::Sync,
    };
    (kind, (token.0 >> 16 & 0xff_ffff_ffff) as usize, token.0 as u16)
}

impl Shard {
    /// A shard of the array in `config`, with scratch memory of its own.
    ///
    /// # Panics
    /// If the scratch memory is too small for one operation ([`Shard::scratch_min`]): a driver's mistake.
    pub fn new(id: ShardId, config: &ArrayConfig, scratch: Scratch) -> Shard {
        Shard::with_setup(id, &ShardSetup::of(config), scratch)
    }

    /// The least scratch memory a shard of this array can work with, in bytes: one operation of the longest piece.
    pub fn scratch_min(config: &ArrayConfig) -> u64 {
        ShardSetup::of(config).scratch_min()
    }

    fn with_setup(id: ShardId, setup: &ShardSetup, scratch: Scratch) -> Shard {
        assert!(scratch.bytes >= setup.scratch_min(), "scratch memory is smaller than one operation needs");
        let ShardSetup { geometry, map, region, tunables, logged } = setup.clone();
        let array_sectors = geometry.array_sectors();
        Shard {
            id,
            tunables,
            region,
            array_sectors,
            scratch,
            logged,
            record: Record::new(&map),
            last_request_at: None,
            requests: Slab::new(),
            pieces: Slab::new(),
            mirrors: Slab::new(),
            stripes: Slab::new(),
            syncs: Syncs::default(),
            queued: VecDeque::new(),
            locks: RangeLocks::new(),
            leases: LeaseTable::new(leased(&geometry).0.div_ceil(region.0.max(1))),
            lease_waiters: VecDeque::new(),
            arena: Arena::new(&scratch),
            scratch_waiters: VecDeque::new(),
            record_waiters: Vec::new(),
            log_wants: Vec::new(),
            log_dones: Vec::new(),
            reads_out: vec![0; map.members.len()],
            ready: VecDeque::new(),
            leases_moved: false,
            scratch_freed: false,
            suspended: Suspended::default(),
            held: false,
            draining: false,
            drained: false,
            prereads: Prereads::default(),
            out: VecDeque::new(),
            geometry,
            map,
        }
    }

    /// Takes one input. Outputs may follow, here or at [`Shard::end_turn`].
    pub fn handle(&mut self, now: Nanos, input: Input) {
        match input {
            Input::Request(request) => self.on_request(now, request),
            Input::MemberDone { token, result } => self.on_member_done(now, token, result),
            Input::Compared { token, differences } => self.on_compared(now, token, differences),
            Input::Message { from, message } => self.on_message(now, from, message),
            Input::Timeout => self.leases.on_timeout(now, self.tunables.safe_mode_delay),
        }
        self.run_ready(now);
    }

    /// Moves on whatever the last step set free. A loop, not a recursion: one end may set free any number of others.
    fn run_ready(&mut self, now: Nanos) {
        loop {
            if let Some(turn) = self.ready.pop_front() {
                self.pass_lock_gate(now, turn);
            } else if std::mem::take(&mut self.scratch_freed) {
                self.start_scratch_waiters(now);
            } else if std::mem::take(&mut self.leases_moved) {
                self.retry_lease_waiters(now);
            } else {
                return;
            }
        }
    }

    /// Ends a turn: what was collected over the turn's inputs goes out together.
    pub fn end_turn(&mut self, now: Nanos) {
        while self.requests.len() < self.tunables.requests_max {
            let Some(request) = self.queued.pop_front() else { break };
            self.admit(now, request);
            self.run_ready(now);
        }
        if self.draining && self.requests.is_empty() && self.queued.is_empty() {
            self.leases.return_idle();
        }
        let returns = self.leases.take_returns();
        if !returns.is_empty() {
            self.tell_control(Message::LeaseReturned(returns));
        }
        let wants = self.leases.take_wants();
        if !wants.is_empty() {
            self.tell_control(Message::LeaseWant(wants));
        }
        // Names of writes are used again: the old one's end comes first.
        let dones = std::mem::take(&mut self.log_dones);
        if !dones.is_empty() {
            self.tell_control(Message::LogDone(dones));
        }
        let wants = std::mem::take(&mut self.log_wants);
        if !wants.is_empty() {
            self.tell_control(Message::LogWant(wants));
        }
        if !self.held && self.leases.is_on_hold() {
            self.held = true;
            self.tell_control(Message::LeaseHeld);
        }
        let idle = self.requests.is_empty() && self.syncs.is_idle() && !self.leases.holds_any();
        if self.draining && !self.drained && idle {
            self.drained = true;
            self.tell_control(Message::Drained);
        }
    }

    /// The next thing to do, in order.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// When to call [`Shard::handle`] with [`Input::Timeout`], if nothing else comes before.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.leases.timeout(self.tunables.safe_mode_delay)
    }

    /// Requests that have not been replied to.
    pub fn outstanding(&self) -> usize {
        self.requests.len() + self.queued.len() + self.suspended.waiting.len()
    }

    /// What writes had to read from members so far.
    pub fn prereads(&self) -> Prereads {
        self.prereads
    }

    fn on_request(&mut self, now: Nanos, request: Request) {
        self.last_request_at = Some(now);
        if let Err(error) = self.admissible(&request) {
            self.out.push_back(Output::Reply(Reply { id: request.id, result: Err(error) }));
        } else if self.requests.len() >= self.tunables.requests_max || !self.queued.is_empty() {
            self.queued.push_back(request);
        } else {
            self.admit(now, request);
        }
    }

    fn admissible(&self, request: &Request) -> Result<(), RequestError> {
        if self.draining {
            return Err(RequestError::Stopped);
        }
        if request.op == RequestOp::Flush {
            return Ok(());
        }
        let end = request.sector.checked_add(request.len).ok_or(RequestError::Range)?;
        if request.len.is_zero() || end.from_start() > self.array_sectors {
            return Err(RequestError::Range);
        }
        if request.op != RequestOp::Read && self.map.read_only {
            return Err(RequestError::ReadOnly);
        }
        Ok(())
    }

    /// Splits a request into pieces and starts them. The request itself counts as one piece until all are started.
    fn begin(&mut self, now: Nanos, request: Request) {
        let (origin, era) = (Origin::Client(request.id), self.suspended.number);
        let parent = self.requests.insert(Parent { origin, remaining: 1, era, error: None });
        let kind = match request.op {
            RequestOp::Flush => {
                return self.tell_control(Message::Flush { token: parent as u64 });
            }
            RequestOp::Read => return self.begin_read(now, parent, &request),
            RequestOp::Write { fua } => WriteKind::Data { fua },
            RequestOp::Discard => WriteKind::Zero { fua: false, unmap: true },
            RequestOp::WriteZeroes { fua, unmap } => WriteKind::Zero { fua, unmap },
        };
        match self.geometry {
            Geometry::Linear(_) | Geometry::Raid0(_) => self.begin_striped_write(parent, &request, kind),
            Geometry::Mirror(_) => self.begin_mirror_write(now, parent, &request, kind),
            Geometry::Parity(_) => self.begin_stripes(now, parent, &request, kind),
        }
        self.piece_done(parent, Ok(()));
    }

    fn begin_read(&mut self, now: Nanos, parent: usize, request: &Request) {
        match self.geometry {
            Geometry::Linear(_) | Geometry::Raid0(_) => self.begin_striped_read(parent, request),
            Geometry::Mirror(_) => self.begin_mirror_read(parent, request.sector, request.len, request.buf),
            Geometry::Parity(_) => self.begin_parity_read(now, parent, request.sector, request.len, request.buf),
        }
        self.piece_done(parent, Ok(()));
    }

    /// One piece of a request ended; with the last one the request ends.
    fn piece_done(&mut self, parent: usize, result: Result<(), RequestError>) {
        let p = &mut self.requests[parent];
        p.remaining -= 1;
        if let Err(e) = result {
            p.error.get_or_insert(e);
        }
        if p.remaining > 0 {
            return;
        }
        let done = self.requests.remove(parent);
        let result = done.error.map_or(Ok(()), Err);
        if matches!(done.origin, Origin::Client(_)) {
            self.on_request_ended(done.era);
        }
        self.out.push_back(match done.origin {
            Origin::Client(id) => Output::Reply(Reply { id, result }),
            Origin::Peer { shard, job } => {
                Output::Send { to: Peer::Shard(shard), message: Message::StripeDone { job, result } }
            }
        });
    }

    fn on_member_done(&mut self, now: Nanos, io: IoToken, result: Result<(), MemberError>) {
        let (kind, op, part) = untoken(io);
        match kind {
            TokenKind::Piece => self.on_piece_io(now, op, result),
            TokenKind::Mirror => self.on_mirror_io(now, op, MemberId(part), result),
            TokenKind::Stripe => self.on_stripe_io(now, op, part, result),
            TokenKind::Sync => self.on_sync_io(now, op, part, result),
        }
    }

    fn on_message(&mut self, now: Nanos, from: Peer, message: Message) {
        match message {
            Message::LeaseGranted(regions) => {
                regions.iter().for_each(|r| self.leases.granted(now, *r));
                self.retry_lease_waiters(now);
            }
            Message::LeaseRefused { regions, error } => self.on_lease_refused(now, &regions, error),
            Message::LeaseRevoke(regions) => {
                for r in regions {
                    self.leases_moved |= self.leases.revoke(r);
                }
            }
            Message::LogGranted(ops) => ops.into_iter().for_each(|op| self.on_logged(now, op as usize)),
            Message::Map(map) => self.on_map(now, map),
            Message::MapDurable { epoch } => self.on_map_durable(now, epoch),
            Message::FailureRefused { member, epoch } => self.on_failure_refused(now, member, epoch),
            Message::FlushDone { token, result } => self.piece_done(token as usize, result),
            Message::SyncBar { window, ranges } => self.on_sync_bar(window, &ranges),
            Message::SyncUnbar { window } => self.on_sync_unbar(window),
            Message::SyncLoadAsk => self.on_sync_load_ask(now),
            Message::Sync(job) => self.on_sync_job(now, job),
            Message::LeaseHold => self.leases.hold(),
            Message::LeaseRelease { anew } => self.on_release(anew),
            Message::Suspend { number, what } => self.on_suspend(now, number, what),
            Message::SafeModeDelay(delay) => self.tunables.safe_mode_delay = delay,
            Message::Drain => {
                self.draining = true;
                self.refuse_suspended();
            }
            Message::Stripe(job) => self.on_stripe_job(now, from, job),
            Message::StripeDone { job, result } => self.piece_done(job as usize, result),
            Message::LeaseWant(_)
            | Message::LeaseReturned(_)
            | Message::MemberFailed { .. }
            | Message::MapApplied { .. }
            | Message::Flush { .. }
            | Message::LogWant(_)
            | Message::LogDone(_)
            | Message::Drained
            | Message::LeaseHeld
            | Message::Suspended { .. }
            | Message::ReadError { .. }
            | Message::BadBlocksWritten { .. }
            | Message::SyncBarred { .. }
            | Message::SyncLoad { .. }
            | Message::SyncDone { .. } => debug_assert!(false, "a message for Control came to a shard"),
        }
    }

    /// Lets everyone who waits for a lease try again, in order.
    fn retry_lease_waiters(&mut self, now: Nanos) {
        for _ in 0..self.lease_waiters.len() {
            let Some(op) = self.lease_waiters.pop_front() else { break };
            self.pass_lease_gate(now, op);
        }
    }

    fn on_lease_refused(&mut self, now: Nanos, regions: &[Region], error: RequestError) {
        regions.iter().for_each(|r| self.leases.refused(*r));
        let hit = |(first, last): (Region, Region)| regions.iter().any(|r| (first..=last).contains(r));
        for _ in 0..self.lease_waiters.len() {
            let Some(op) = self.lease_waiters.pop_front() else { break };
            if hit(self.regions_of(op)) {
                self.end_before_lease(now, op, error);
            } else {
                self.lease_waiters.push_back(op);
            }
        }
    }

    /// Leases may be asked for again. If anew, nobody holds one, so whatever writes there are have yet to begin.
    fn on_release(&mut self, anew: Option<Sectors>) {
        self.held = false;
        self.leases.resume();
        self.leases_moved = true;
        let Some(region) = anew else { return };
        self.region = region;
        self.leases = LeaseTable::new(leased(&self.geometry).0.div_ceil(region.0.max(1)));
        let regions = |(start, len): (Sector, Sectors)| regions(region, start, len);
        self.mirrors.iter_mut().for_each(|(_, op)| op.regions = regions(op.range()));
        self.stripes.iter_mut().for_each(|(_, op)| op.regions = regions((op.start, op.band.len())));
    }

    fn regions_of(&self, op: OpRef) -> (Region, Region) {
        match op {
            OpRef::Mirror(i) => self.mirrors[i].regions,
            OpRef::Stripe(i) => self.stripes[i].regions,
        }
    }

    /// The range lock is held: go on to the lease.
    fn pass_lock_gate(&mut self, now: Nanos, turn: Turn) {
        match turn {
            Turn::Op(OpRef::Stripe(i)) if self.stripes[i].is_read() => self.wait_for_scratch(now, Needy::Stripe(i)),
            Turn::Op(op) => self.pass_lease_gate(now, op),
            Turn::Sync(i) => self.wait_for_scratch(now, Needy::Sync(i)),
            Turn::Bar(window) => self.on_barred(window),
        }
    }

    /// All gates before are passed: start as soon as there is scratch memory.
    fn wait_for_scratch(&mut self, now: Nanos, needy: Needy) {
        if !self.scratch_waiters.is_empty() || !self.start_needy(now, needy) {
            self.scratch_waiters.push_back(needy);
        }
    }

    fn start_needy(&mut self, now: Nanos, needy: Needy) -> bool {
        match needy {
            Needy::Stripe(i) => self.start_io(now, i),
            Needy::Sync(i) => self.start_sync_io(now, i),
        }
    }

    fn start_scratch_waiters(&mut self, now: Nanos) {
        while let Some(needy) = self.scratch_waiters.pop_front() {
            if !self.start_needy(now, needy) {
                self.scratch_waiters.push_front(needy);
                return;
            }
        }
    }

    fn pass_lease_gate(&mut self, now: Nanos, op: OpRef) {
        let (first, last) = self.regions_of(op);
        if !self.leases.begin(now, first, last) {
            self.lease_waiters.push_back(op);
            return;
        }
        match op {
            OpRef::Mirror(i) => self.write_mirrors(now, i),
            OpRef::Stripe(i) => self.wait_for_scratch(now, Needy::Stripe(i)),
        }
    }

    fn end_before_lease(&mut self, now: Nanos, op: OpRef, error: RequestError) {
        match op {
            OpRef::Mirror(i) => self.end_mirror_write(now, i, Err(error), false),
            OpRef::Stripe(i) => self.end_stripe(now, i, Err(error), false),
        }
    }

    /// Gives a range lock back; those whose turn it is are made ready.
    fn unlock(&mut self, start: u64) {
        self.locks.release(start, &mut self.ready);
    }

    fn regions(&self, start: Sector, len: Sectors) -> (Region, Region) {
        regions(self.region, start, len)
    }

    fn io(&mut self, token: IoToken, member: MemberId, op: MemberOp) {
        self.out.push_back(Output::Io(MemberIo { token, member, op }));
    }

    fn tell_control(&mut self, message: Message) {
        self.out.push_back(Output::Send { to: Peer::Control, message });
    }
}

/// The address space that leases divide.
fn leased(geometry: &Geometry) -> Sectors {
    match geometry {
        Geometry::Parity(_) => geometry.component_sectors(),
        Geometry::Mirror(_) => geometry.array_sectors(),
        _ => Sectors::ZERO,
    }
}

fn regions(region: Sectors, start: Sector, len: Sectors) -> (Region, Region) {
    (Region(start.0 / region.0), Region((start.0 + len.0 - 1) / region.0))
}

/// What a shard needs to know of an array.
#[derive(Clone, Debug)]
struct ShardSetup {
    geometry: Geometry,
    map: Arc<MemberMap>,
    region: Sectors,
    tunables: Tunables,
    logged: bool,
}

impl ShardSetup {
    fn of(config: &ArrayConfig) -> ShardSetup {
        let mut tunables = config.tunables;
        // The partial parity of a piece has to fit into a unit of its log.
        let room = config.log_room();
        if let Some(room) = room {
            tunables.segment_max = tunables.segment_max.min(room);
        }
        ShardSetup {
            geometry: config.geometry.clone(),
            map: config.map.clone(),
            region: config.region,
            tunables,
            logged: room.is_some(),
        }
    }

    fn scratch_min(&self) -> u64 {
        let blocks = match &self.geometry {
            // A check holds the whole stripe and the parities as they should be.
            Geometry::Parity(p) => u64::from(p.data_disks()) + 2 * u64::from(p.parities()),
            Geometry::Mirror(m) => m.copies() as u64,
            _ => 1,
        };
        blocks * segment_max(&self.geometry, &self.tunables).round_up(arena::PAGE).bytes()
    }
}

/// What a write leaves in its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteKind {
    Data { fua: bool },
    Zero { fua: bool, unmap: bool },
}

impl WriteKind {
    fn fua(self) -> bool {
        match self {
            WriteKind::Data { fua } | WriteKind::Zero { fua, .. } => fua,
        }
    }

    /// The member operation that leaves this in `len` sectors at device sector `sector`.
    fn member_op(self, sector: Sector, len: Sectors, buf: crate::io::MemAddr) -> MemberOp {
        match self {
            WriteKind::Data { fua } => MemberOp::Write { sector, len, buf, fua },
            WriteKind::Zero { fua, unmap } => MemberOp::WriteZeroes { sector, len, unmap, fua },
        }
    }
}

/// The longest piece of a chunk worked on at once.
fn segment_max(geometry: &Geometry, tunables: &Tunables) -> Sectors {
    match geometry {
        Geometry::Parity(p) => tunables.segment_max.min(p.chunk()).max(Sectors(1)),
        _ => tunables.segment_max,
    }
}
