//! Clients on reactor threads, on an array and on bare members, over members that take their time.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use common::{CHUNK, Disks, shape};
use raidus_engine::{RequestError, RequestOp};
use raidus_runtime::members::{Kept, MemberDevice, ModelledDevice, Timing};
use raidus_runtime::memory::{Buffer, BufferPool};
use raidus_runtime::stream::StreamRequest;
use raidus_runtime::{BareLayout, LocalClient, run_bare};
use raidus_units::{Level, Sector, Sectors};

const BLOCK: Sectors = Sectors(8);

/// Writes blocks, then reads each back, `DEPTH` at a time, and reports what differs.
struct WriteThenRead {
    blocks: u64,
    begun: u64,
    under_way: BTreeMap<u64, ()>,
    free: Vec<Buffer>,
    wrong: Vec<String>,
    report: Sender<Vec<String>>,
}

const DEPTH: usize = 8;

impl WriteThenRead {
    fn new(blocks: u64, report: Sender<Vec<String>>) -> Box<WriteThenRead> {
        let (under_way, free, wrong) = (BTreeMap::new(), Vec::new(), Vec::new());
        Box::new(WriteThenRead { blocks, begun: 0, under_way, free, wrong, report })
    }

    fn byte(block: u64) -> u8 {
        (block * 37 + 1) as u8
    }
}

impl LocalClient for WriteThenRead {
    fn attached(&mut self, pool: &BufferPool) {
        self.free.extend((0..DEPTH).map(|_| pool.take(BLOCK.bytes() as usize).unwrap()));
    }

    fn poll(&mut self, requests: &mut Vec<StreamRequest>) {
        while self.is_ready() {
            let cookie = self.begun;
            let (reads, block) = (cookie >= self.blocks, cookie % self.blocks);
            let mut buffer = self.free.pop().unwrap();
            buffer.fill(if reads { 0 } else { Self::byte(block) });
            let op = if reads { RequestOp::Read } else { RequestOp::Write { fua: false } };
            let sector = Sector(block * BLOCK.0);
            requests.push(StreamRequest { cookie, op, sector, len: BLOCK, buffer: Some(buffer) });
            self.begun += 1;
            self.under_way.insert(cookie, ());
        }
    }

    fn is_ready(&self) -> bool {
        // A block is read only after all were written.
        let reading = self.begun >= self.blocks;
        let writes_end = self.under_way.keys().all(|c| *c >= self.blocks);
        !self.free.is_empty() && self.begun < 2 * self.blocks && (!reading || writes_end)
    }

    fn reply(&mut self, cookie: u64, result: Result<(), RequestError>, buffer: Option<Buffer>) {
        let buffer = buffer.expect("the buffer comes back");
        self.under_way.remove(&cookie);
        if let Err(error) = result {
            self.wrong.push(format!("{cookie}: {error}"));
        } else if cookie >= self.blocks && buffer.iter().any(|b| *b != Self::byte(cookie % self.blocks)) {
            self.wrong.push(format!("{cookie}: wrong content"));
        }
        self.free.push(buffer);
        if self.is_finished() {
            self.report.send(std::mem::take(&mut self.wrong)).unwrap();
        }
    }

    fn is_finished(&self) -> bool {
        self.begun == 2 * self.blocks && self.under_way.is_empty()
    }
}

#[test]
fn local_clients_read_what_they_wrote_and_go() {
    for level in [Level::Raid0, Level::Raid10, Level::Raid6] {
        let disks = Disks::create(shape(level, 4), Sectors(32 << 10));
        let array = disks.start(&[], 2);
        let (report, reports) = channel();
        // The second goes where the first went, so it comes after it.
        for reactor in [0, 1] {
            assert!(array.attach(reactor, WriteThenRead::new(300, report.clone())).is_ok());
            assert_eq!(reports.recv_timeout(Duration::from_secs(60)).unwrap(), Vec::<String>::new());
        }
        let tally = array.tally();
        assert_eq!(tally.requests, 1200);
        assert_eq!(tally.copied_bytes, 0);
        if level == Level::Raid6 {
            assert!(tally.prereads > 0 && tally.prereads < tally.member_reads);
            assert!(tally.messages > 0, "stripes of the other reactor");
        } else {
            assert_eq!(tally.prereads, 0);
        }
        array.stop().unwrap();
        assert!(array.attach(0, WriteThenRead::new(1, report)).is_err());
        assert_eq!(array.tally().requests, 1200, "what was counted stays known");
    }
}

#[test]
fn bare_members_take_as_long_as_their_model_says() {
    let latency = Duration::from_millis(2);
    let timing = Timing { latency, ..Timing::default() };
    let size = Sectors(16 << 10);
    let devices: Vec<_> =
        (0..3).map(|_| Arc::new(ModelledDevice::new(size, Kept::Everything, Some(timing)).unwrap())).collect();
    let members = devices.iter().map(|d| MemberDevice::modelled("model", Arc::clone(d))).collect();
    let (report, reports) = channel();
    let start = Instant::now();
    let layout = BareLayout { start: Sector(64), chunk: CHUNK };
    let tally = run_bare(members, layout, vec![WriteThenRead::new(64, report)], 1 << 20).unwrap();
    assert_eq!(reports.recv().unwrap(), Vec::<String>::new());
    assert_eq!((tally.member_writes, tally.member_reads), (64, 64));
    assert!(start.elapsed() >= latency * (128 / DEPTH as u32), "{:?}", start.elapsed());
}
