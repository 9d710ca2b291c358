//! The clients: which request comes next, and what its answer must be.

use std::collections::BTreeMap;

use raidus_engine::{MemAddr, Reply, Request, RequestError, RequestId, RequestOp};
use raidus_units::{Sector, Sectors};

use crate::memory::{Memory, Use};
use crate::oracle::{Expectation, Moment, Oracle};
use crate::rng::Rng;
use crate::scenario::ClientPlan;
use crate::stamp::{SECTOR, WriteId, ZERO, fill};

/// A request under way.
#[derive(Debug)]
struct Pending {
    client: usize,
    shard: u16,
    request: Request,
    asked: Moment,
    /// Reads only.
    expectation: Option<Expectation>,
}

/// All clients of a round.
#[derive(Debug)]
pub(crate) struct Workload {
    clients: Vec<Client>,
    pending: BTreeMap<u64, Pending>,
    next_id: u64,
    rng: Rng,
    /// Errors are acceptable answers.
    lossy: bool,
    /// Writes under way on one shard may overlap.
    overlapping: bool,
    stopping: bool,
    pub(crate) counts: Counts,
}

/// What the clients have seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub replies: u64,
    pub errors: u64,
    pub sectors_checked: u64,
}

#[derive(Debug)]
struct Client {
    plan: ClientPlan,
    under_way: usize,
    position: u64,
}

impl Workload {
    /// Clients by these plans; request numbers start at `next_id`, which is never zero.
    pub(crate) fn new(plans: &[ClientPlan], next_id: u64, lossy: bool, mut rng: Rng) -> Workload {
        let client = |plan: &ClientPlan| Client { plan: *plan, under_way: 0, position: 0 };
        let clients = plans.iter().map(client).collect();
        let overlapping = rng.percent(30);
        Workload {
            clients,
            pending: BTreeMap::new(),
            next_id,
            rng,
            lossy,
            overlapping,
            stopping: false,
            counts: Counts::default(),
        }
    }

    /// The first number no request has had.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id
    }

    /// From now on requests may be refused because the array stops.
    pub(crate) fn stopping(&mut self) {
        self.stopping = true;
    }

    /// Requests without an answer.
    pub(crate) fn under_way(&self) -> usize {
        self.pending.len()
    }

    /// Requests without an answer, for a failure's report.
    pub(crate) fn describe(&self) -> String {
        self.pending.values().map(|p| format!("\n  on shard {}: {:?}", p.shard, p.request)).collect()
    }

    /// Clients that may ask for something.
    pub(crate) fn ready(&self) -> Vec<usize> {
        (0..self.clients.len()).filter(|c| self.clients[*c].under_way < self.clients[*c].plan.depth).collect()
    }

    /// The next request of a client, and the shard it goes to. `None` if what it drew overlaps a write under way on another
    /// shard: the order of overlapping writes is the clients' business, as on any disk, and mirrors need not agree on it.
    pub(crate) fn next(
        &mut self,
        client: usize,
        memory: &mut Memory,
        oracle: &mut Oracle,
        now: Moment,
    ) -> Option<(u16, Request)> {
        let (op, first, len) = self.draw(client);
        if is_write(op) && self.overlaps_foreign_write(self.clients[client].plan.shard, first, len) {
            return None;
        }
        let id = self.next_id;
        self.next_id += 1;
        let buf = match op {
            RequestOp::Write { .. } => payload(memory, first, len, id),
            RequestOp::Read => memory.alloc(len * SECTOR as u64, Use::Destination),
            _ => MemAddr::NONE,
        };
        let expectation = (op == RequestOp::Read).then(|| oracle.expect(first, len));
        if is_write(op) {
            let zeroes = !matches!(op, RequestOp::Write { .. });
            oracle.asked(first, len, id, zeroes, now);
            let content = if zeroes { ZERO } else { id };
            for read in self.pending.values_mut().filter_map(|p| p.expectation.as_mut()) {
                read.widen(first, len, content);
            }
        }
        let request = Request { id: RequestId(id), op, sector: Sector(first), len: Sectors(len), buf };
        let shard = self.clients[client].plan.shard;
        self.clients[client].under_way += 1;
        self.pending.insert(id, Pending { client, shard, request, asked: now, expectation });
        Some((shard, request))
    }

    /// Reads of the whole array, spread over the shards of the clients.
    pub(crate) fn read_all(&mut self, memory: &mut Memory, oracle: &Oracle, now: Moment) -> Vec<(u16, Request)> {
        const PIECE: u64 = 64;
        let mut requests = Vec::new();
        for first in (0..oracle.len()).step_by(PIECE as usize) {
            let client = self.rng.index(self.clients.len());
            let len = PIECE.min(oracle.len() - first);
            let id = self.next_id;
            self.next_id += 1;
            let buf = memory.alloc(len * SECTOR as u64, Use::Destination);
            let (sector, len) = (Sector(first), Sectors(len));
            let request = Request { id: RequestId(id), op: RequestOp::Read, sector, len, buf };
            let expectation = Some(oracle.expect(first, len.0));
            let shard = self.clients[client].plan.shard;
            self.clients[client].under_way += 1;
            self.pending.insert(id, Pending { client, shard, request, asked: now, expectation });
            requests.push((shard, request));
        }
        requests
    }

    /// An answer came from `shard`.
    pub(crate) fn reply(
        &mut self,
        shard: u16,
        reply: Reply,
        memory: &mut Memory,
        oracle: &mut Oracle,
        now: Moment,
    ) -> Result<(), String> {
        let Some(pending) = self.pending.remove(&reply.id.0) else {
            return Err(format!("an answer to request {}, which is not under way", reply.id.0));
        };
        if pending.shard != shard {
            return Err(format!("shard {shard} answers request {} of shard {}", reply.id.0, pending.shard));
        }
        self.clients[pending.client].under_way -= 1;
        self.counts.replies += 1;
        let request = pending.request;
        let (first, len) = (request.sector.0, request.len.0);
        match reply.result {
            Err(error) => {
                self.counts.errors += 1;
                let refused = self.stopping && error == RequestError::Stopped;
                if !self.lossy && !refused {
                    return Err(format!("{request:?} failed though the members suffice: {error}"));
                }
            }
            Ok(()) => match request.op {
                RequestOp::Read => {
                    let expectation = pending.expectation.as_ref().expect("a read");
                    expectation
                        .check(memory.read(request.buf, request.len)?)
                        .map_err(|e| format!("{request:?}: {e}"))?;
                    self.counts.sectors_checked += len;
                }
                RequestOp::Flush => oracle.flushed(pending.asked),
                RequestOp::Write { fua } | RequestOp::WriteZeroes { fua, .. } => {
                    oracle.answered(first, len, reply.id.0, fua, now);
                }
                RequestOp::Discard => oracle.answered(first, len, reply.id.0, false, now),
            },
        }
        memory.release(request.buf);
        Ok(())
    }

    fn draw(&mut self, client: usize) -> (RequestOp, u64, u64) {
        let rng = &mut self.rng;
        let Client { plan, position, .. } = &mut self.clients[client];
        let mut ticket = rng.below(plan.mix.iter().sum());
        let mut kind = 0;
        while ticket >= plan.mix[kind] {
            ticket -= plan.mix[kind];
            kind += 1;
        }
        let op = match kind {
            0 => RequestOp::Read,
            1 => RequestOp::Write { fua: false },
            2 => RequestOp::Write { fua: true },
            3 => return (RequestOp::Flush, 0, 0),
            4 => RequestOp::Discard,
            _ => RequestOp::WriteZeroes { fua: rng.percent(30), unmap: rng.percent(50) },
        };
        let offset = if plan.sequential { *position } else { rng.below(plan.span) / plan.align * plan.align };
        let len = rng.range(1, plan.len_max).next_multiple_of(plan.align).min(plan.span - offset);
        *position = (offset + len) % plan.span;
        let first = plan.first + offset;
        (op, first, len)
    }

    fn overlaps_foreign_write(&self, shard: u16, first: u64, len: u64) -> bool {
        let overlaps = |r: &Request| is_write(r.op) && r.sector.0 < first + len && first < r.sector.0 + r.len.0;
        self.pending.values().any(|p| overlaps(&p.request) && (p.shard != shard || !self.overlapping))
    }
}

fn is_write(op: RequestOp) -> bool {
    !matches!(op, RequestOp::Read | RequestOp::Flush)
}

fn payload(memory: &mut Memory, first: u64, len: u64, id: WriteId) -> MemAddr {
    let buf = memory.alloc(len * SECTOR as u64, Use::Payload);
    for (sector, block) in (first..).zip(memory.own(buf, Sectors(len)).chunks_exact_mut(SECTOR)) {
        fill(block, sector, id);
    }
    buf
}
