//! The load: a client on a reactor's thread that keeps a number of requests under way, and times them.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use raidus_engine::{RequestError, RequestOp};
use raidus_runtime::LocalClient;
use raidus_runtime::memory::{Buffer, BufferPool};
use raidus_runtime::stream::StreamRequest;
use raidus_units::{Sector, Sectors};

/// Where requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Pattern {
    /// One after the other; each job in a part of its own.
    #[value(alias = "seq")]
    Sequential,
    /// Anywhere, in whole blocks.
    #[value(alias = "rand")]
    Random,
}

/// How long a load goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// For this long.
    Time(Duration),
    /// For so many requests of each job.
    Count(u64),
}

/// A load.
#[derive(Clone, Debug)]
pub struct Plan {
    pub pattern: Pattern,
    pub block: Sectors,
    pub depth: usize,
    /// Of a hundred requests, how many read.
    pub reads: u8,
    /// A flush after so many writes of a job.
    pub flush_every: Option<u64>,
    pub fua: bool,
    pub seed: u64,
    pub jobs: usize,
    /// Sectors from the start that requests go to.
    pub span: Sectors,
    pub length: Length,
}

/// What a job has done.
#[derive(Clone, Debug)]
pub struct Done {
    pub reads: Histogram<u64>,
    pub writes: Histogram<u64>,
    pub flushes: Histogram<u64>,
    pub took: Duration,
    /// The first error, if requests failed.
    pub error: Option<RequestError>,
}

/// Latencies are kept to three digits, up to a minute.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

impl Done {
    fn new() -> Done {
        let histogram = || Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("the bounds make sense");
        Done { reads: histogram(), writes: histogram(), flushes: histogram(), took: Duration::ZERO, error: None }
    }

    /// What several jobs have done.
    pub fn sum(jobs: impl IntoIterator<Item = Done>) -> Done {
        jobs.into_iter().fold(Done::new(), |mut sum, job| {
            // All have the same bounds.
            let _ = sum.reads.add(&job.reads);
            let _ = sum.writes.add(&job.writes);
            let _ = sum.flushes.add(&job.flushes);
            sum.took = sum.took.max(job.took);
            sum.error = sum.error.or(job.error);
            sum
        })
    }

    /// Reads and writes.
    pub fn transfers(&self) -> u64 {
        self.reads.len() + self.writes.len()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Flush,
}

/// A place for a request.
struct Slot {
    buffer: Option<Buffer>,
    kind: Kind,
    begun: Instant,
}

/// One job.
pub struct Job {
    plan: Arc<Plan>,
    rng: fastrand::Rng,
    slots: Vec<Slot>,
    /// Those without a request.
    free: Vec<usize>,
    /// The blocks it goes to: the first, and how many.
    first: u64,
    blocks: u64,
    next: u64,
    begun: u64,
    writes_since_flush: u64,
    start: Option<Instant>,
    over: bool,
    done: Done,
    report: Option<Sender<Done>>,
}

impl Job {
    /// Job `number` of a plan. What it has done goes to `report` at its end.
    pub fn new(plan: &Arc<Plan>, number: usize, report: Sender<Done>) -> Job {
        let all = plan.span.0 / plan.block.0;
        let (first, blocks) = match plan.pattern {
            Pattern::Random => (0, all),
            Pattern::Sequential => {
                let part = all / plan.jobs as u64;
                (part * number as u64, part)
            }
        };
        Job {
            plan: Arc::clone(plan),
            rng: fastrand::Rng::with_seed(plan.seed.wrapping_add(number as u64)),
            slots: Vec::new(),
            free: (0..plan.depth).rev().collect(),
            first,
            blocks: blocks.max(1),
            next: 0,
            begun: 0,
            writes_since_flush: 0,
            start: None,
            over: false,
            done: Done::new(),
            report: Some(report),
        }
    }

    fn next_request(&mut self, now: Instant) -> Option<StreamRequest> {
        let slot = self.free.pop()?;
        let kind = self.next_kind();
        let cookie = slot as u64;
        let place = &mut self.slots[slot];
        (place.kind, place.begun) = (kind, now);
        let op = match kind {
            Kind::Flush => {
                let op = RequestOp::Flush;
                return Some(StreamRequest { cookie, op, sector: Sector::ZERO, len: Sectors::ZERO, buffer: None });
            }
            Kind::Read => RequestOp::Read,
            Kind::Write => RequestOp::Write { fua: self.plan.fua },
        };
        let block = match self.plan.pattern {
            Pattern::Random => self.rng.u64(0..self.blocks),
            Pattern::Sequential => {
                let block = self.next;
                self.next = if block + 1 == self.blocks { 0 } else { block + 1 };
                block
            }
        };
        let sector = Sector((self.first + block) * self.plan.block.0);
        self.begun += 1;
        let buffer = self.slots[slot].buffer.take();
        Some(StreamRequest { cookie, op, sector, len: self.plan.block, buffer })
    }

    fn next_kind(&mut self) -> Kind {
        if self.plan.flush_every.is_some_and(|every| self.writes_since_flush >= every) {
            self.writes_since_flush = 0;
            return Kind::Flush;
        }
        let reads = match self.plan.reads {
            0 => false,
            100 => true,
            part => self.rng.u8(0..100) < part,
        };
        if reads {
            return Kind::Read;
        }
        self.writes_since_flush += 1;
        Kind::Write
    }

    /// Reports if nothing is under way and nothing comes any more.
    fn finish(&mut self, now: Instant) {
        if self.is_finished()
            && let Some(report) = self.report.take()
        {
            self.done.took = self.start.map_or(Duration::ZERO, |start| now.duration_since(start));
            // Whoever asked may be gone.
            let _ = report.send(self.done.clone());
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        match self.plan.length {
            Length::Count(count) => self.begun >= count,
            Length::Time(time) => self.start.is_some_and(|start| now.duration_since(start) >= time),
        }
    }
}

impl LocalClient for Job {
    fn attached(&mut self, pool: &BufferPool) {
        let bytes = self.plan.block.bytes() as usize;
        let now = Instant::now();
        for _ in 0..self.plan.depth {
            let buffer = pool.take(bytes).or_else(|| Buffer::alone(bytes).ok()).map(|mut buffer| {
                self.rng.fill(&mut buffer);
                buffer
            });
            self.slots.push(Slot { buffer, kind: Kind::Read, begun: now });
        }
    }

    fn poll(&mut self, requests: &mut Vec<StreamRequest>) {
        let now = Instant::now();
        self.start.get_or_insert(now);
        while !self.over && !self.free.is_empty() {
            self.over = self.is_over(now);
            if !self.over {
                requests.extend(self.next_request(now));
            }
        }
        self.finish(now);
    }

    fn is_ready(&self) -> bool {
        !self.over && !self.free.is_empty()
    }

    fn reply(&mut self, cookie: u64, result: Result<(), RequestError>, buffer: Option<Buffer>) {
        let slot = &mut self.slots[cookie as usize];
        let now = Instant::now();
        let took = now.duration_since(slot.begun).as_nanos() as u64;
        let histogram = match slot.kind {
            Kind::Read => &mut self.done.reads,
            Kind::Write => &mut self.done.writes,
            Kind::Flush => &mut self.done.flushes,
        };
        histogram.saturating_record(took);
        if slot.kind != Kind::Flush {
            slot.buffer = buffer;
        }
        self.free.push(cookie as usize);
        if let Err(error) = result {
            self.done.error.get_or_insert(error);
            self.over = true;
        }
        self.finish(now);
    }

    fn is_finished(&self) -> bool {
        self.over && self.free.len() == self.plan.depth
    }
}
