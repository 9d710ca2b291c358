//! Clients on bare members, with no array between: what members, ring and threads can do by themselves. Benchmarks compare with it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use raidus_engine::{IoToken, MemAddr, MemberIo, MemberOp, RequestError, RequestOp};
use raidus_units::{MemberId, Sector, Sectors};
use slab::Slab;

use crate::array::{StartError, pin_to};
use crate::counters::Tally;
use crate::local::{LocalClient, Locals};
use crate::member_io::{Done, MemberIos, Owner};
use crate::members::{MemberDevice, check_distinct};
use crate::memory::{Buffer, BufferPool, Region};
use crate::reactor::CLASS_MEMBER;
use crate::ring::{Ring, may_lock};
use crate::stream::StreamRequest;

/// How requests are spread over the members: as raid0 does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BareLayout {
    /// Where the part of a member begins that is used.
    pub start: Sector,
    /// What goes to one member before the next has its turn.
    pub chunk: Sectors,
}

/// Runs clients to their end, each on a thread of its own, and tells what was done. Everything else about the threads is as for
/// an array with as many. Writes destroy what is on the members.
///
/// # Errors
/// [`StartError`]: nothing was begun.
pub fn run_bare(
    members: Vec<MemberDevice>,
    layout: BareLayout,
    clients: Vec<Box<dyn LocalClient>>,
    pool_bytes: usize,
) -> Result<Tally, StartError> {
    check_distinct(&members)?;
    let members: Vec<Arc<MemberDevice>> = members.into_iter().map(Arc::new).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(clients)
            .map(|(n, client)| {
                let members = members.clone();
                scope.spawn(move || {
                    pin_to(n);
                    Ok(Bare::new(&members, layout, pool_bytes)?.run(client))
                })
            })
            .collect();
        let died = || StartError::Thread { source: std::io::Error::other("it ended while it ran") };
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(died())))
            .try_fold(Tally::default(), |sum, tally: Result<Tally, StartError>| Ok(sum.plus(tally?)))
    })
}

/// One thread of it. What the kernel works on goes last.
struct Bare {
    ring: Ring,
    ios: MemberIos,
    locals: Locals,
    requests: Slab<Pending>,
    layout: BareLayout,
    members: u64,
    tally: Tally,
    pool: BufferPool,
    _zeroes: Region,
}

struct Pending {
    client: usize,
    cookie: u64,
    buffer: Option<Buffer>,
    remaining: u32,
    result: Result<(), RequestError>,
}

impl Bare {
    fn new(members: &[Arc<MemberDevice>], layout: BareLayout, pool_bytes: usize) -> Result<Bare, StartError> {
        let memory = |source| StartError::Memory { source };
        let zeroes = Region::map(1 << 20, true).map_err(memory)?;
        let pool = BufferPool::new(pool_bytes).map_err(memory)?;
        let ios = MemberIos::new(members, (zeroes.addr().0, zeroes.len() as u64), CLASS_MEMBER).map_err(memory)?;
        let mut ring = Ring::new()?;
        ring.register_files(&ios.fixed_files());
        let region = (pool.region().addr().0, pool.region().len());
        if may_lock(region.1 as u64) {
            // SAFETY: the pool is dropped after the ring, and buffers keep the pool.
            unsafe { ring.register_memory(&[region]) };
        }
        Ok(Bare {
            ring,
            ios,
            locals: Locals::default(),
            requests: Slab::new(),
            layout,
            members: members.len() as u64,
            tally: Tally::default(),
            pool,
            _zeroes: zeroes,
        })
    }

    fn run(mut self, client: Box<dyn LocalClient>) -> Tally {
        self.locals.attach(client, &self.pool);
        let mut begun = Vec::new();
        let mut spare = Vec::new();
        let mut done = Vec::new();
        let mut completions = Vec::new();
        while !self.locals.is_empty() || !self.requests.is_empty() {
            self.tally.turns += 1;
            self.take_completions(&mut completions, &mut done);
            self.locals.take_requests(&mut begun, &mut spare);
            for (client, request) in begun.drain(..) {
                self.begin(client, request);
            }
            self.ring.flush(&mut self.tally);
            if !self.ios.has_done() && !self.locals.has_work() && !self.requests.is_empty() {
                self.sleep();
            }
        }
        self.ring.unregister_files();
        self.tally
    }

    fn sleep(&mut self) {
        let due = self.ios.next_due();
        let timeout =
            due.map(|due| due.saturating_duration_since(Instant::now()).saturating_sub(crate::reactor::TIMERS_LATE));
        if timeout != Some(Duration::ZERO) {
            self.tally.sleeps += 1;
            self.ring.wait(timeout, &mut self.tally);
        }
    }

    fn take_completions(&mut self, completions: &mut Vec<(u64, i32, bool)>, done: &mut Vec<Done>) {
        self.ring.completions(completions);
        for (user_data, result, _) in completions.drain(..) {
            self.ios.complete((user_data & !CLASS_MEMBER) as usize, result, &mut self.ring, &mut self.tally);
        }
        self.ios.take_due(&mut self.ring, &mut self.tally);
        self.ios.take_done(done);
        for Done { token, result, .. } in done.drain(..) {
            self.part_done(token.0 as usize, result.map_err(|_| RequestError::Io));
        }
    }

    fn part_done(&mut self, request: usize, result: Result<(), RequestError>) {
        let pending = &mut self.requests[request];
        pending.remaining -= 1;
        pending.result = pending.result.and(result);
        if pending.remaining == 0 {
            let Pending { client, cookie, buffer, result, .. } = self.requests.remove(request);
            self.locals.reply(client, cookie, result, buffer);
        }
    }

    fn begin(&mut self, client: usize, request: StreamRequest) {
        self.tally.requests += 1;
        let StreamRequest { cookie, op, sector, len, buffer } = request;
        let addr = buffer.as_ref().map_or(MemAddr::NONE, Buffer::addr);
        let token = self.requests.insert(Pending { client, cookie, buffer, remaining: 1, result: Ok(()) });
        let mut done = Sectors::ZERO;
        if op == RequestOp::Flush {
            (0..self.members).for_each(|member| self.start(token, member, MemberOp::Flush));
        }
        while done < len {
            let (member, at, run) = self.layout.map(self.members, sector + done, len - done);
            let buf = if addr == MemAddr::NONE { addr } else { addr.plus(done) };
            self.start(token, member, member_op(op, at, run, buf));
            done += run;
        }
        self.part_done(token, Ok(()));
    }

    fn start(&mut self, token: usize, member: u64, op: MemberOp) {
        self.requests[token].remaining += 1;
        let io = MemberIo { token: IoToken(token as u64), member: MemberId(member as u16), op };
        self.ios.start(Owner::Shard, io, &mut self.ring, &mut self.tally);
    }
}

fn member_op(op: RequestOp, sector: Sector, len: Sectors, buf: MemAddr) -> MemberOp {
    match op {
        RequestOp::Read => MemberOp::Read { sector, len, buf },
        RequestOp::Write { fua } => MemberOp::Write { sector, len, buf, fua },
        RequestOp::Flush => MemberOp::Flush,
        RequestOp::Discard => MemberOp::WriteZeroes { sector, len, unmap: true, fua: false },
        RequestOp::WriteZeroes { fua, unmap } => MemberOp::WriteZeroes { sector, len, unmap, fua },
    }
}

impl BareLayout {
    /// Member, device sector and length of the first run of a range.
    fn map(self, members: u64, sector: Sector, len: Sectors) -> (u64, Sector, Sectors) {
        let chunk = self.chunk.0.max(1);
        let (number, inside) = (sector.0 / chunk, sector.0 % chunk);
        let at = self.start + Sectors(number / members * chunk + inside);
        (number % members, at, len.min(Sectors(chunk - inside)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_go_round_the_members() {
        let layout = BareLayout { start: Sector(2048), chunk: Sectors(8) };
        assert_eq!(layout.map(3, Sector(0), Sectors(100)), (0, Sector(2048), Sectors(8)));
        assert_eq!(layout.map(3, Sector(10), Sectors(2)), (1, Sector(2050), Sectors(2)));
        assert_eq!(layout.map(3, Sector(31), Sectors(9)), (0, Sector(2063), Sectors(1)));
    }
}
