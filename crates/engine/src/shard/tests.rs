//! Shards against a byte-array oracle: a small driver with memory, disks and a Control that says yes.

mod logged;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use raidus_layout::{Geometry, GeometryParams, Raid0Layout};
use raidus_parity::gf;
use raidus_units::{Level, MemberId, Nanos, Sector, Sectors, Slot};

use super::*;
use crate::config::Tunables;
use crate::io::{Compute, LogEntry, MemAddr};
use crate::map::{Member, MemberState, SlotEntry};
use crate::msg::Suspension;

const DATA_OFFSET: u64 = 16;
const SCRATCH_BASE: u64 = 1 << 40;
const ZEROES: u64 = 1 << 50;

struct Lcg(u64);

impl Lcg {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % below.max(1)
    }
}

/// Request memory by address, scratch memory per shard.
struct Memory {
    requests: BTreeMap<u64, Vec<u8>>,
    scratch: Vec<Vec<u8>>,
    next: u64,
}

impl Memory {
    fn alloc(&mut self, bytes: Vec<u8>) -> MemAddr {
        let at = self.next;
        self.next += bytes.len() as u64 + 4096;
        self.requests.insert(at, bytes);
        MemAddr(at)
    }

    fn get(&self, at: MemAddr, len: Sectors) -> Vec<u8> {
        let n = len.bytes() as usize;
        if at.0 >= ZEROES {
            return vec![0; n];
        }
        if at.0 >= SCRATCH_BASE {
            let (shard, offset) = ((at.0 - SCRATCH_BASE) >> 32, (at.0 & 0xffff_ffff) as usize);
            return self.scratch[shard as usize][offset..offset + n].to_vec();
        }
        let (base, bytes) = self.requests.range(..=at.0).next_back().unwrap();
        bytes[(at.0 - base) as usize..][..n].to_vec()
    }

    fn put(&mut self, at: MemAddr, data: &[u8]) {
        assert!(at.0 < ZEROES && at != MemAddr::NONE, "the engine wrote to {at:?}");
        if at.0 >= SCRATCH_BASE {
            let (shard, offset) = ((at.0 - SCRATCH_BASE) >> 32, (at.0 & 0xffff_ffff) as usize);
            self.scratch[shard as usize][offset..offset + data.len()].copy_from_slice(data);
            return;
        }
        let (base, bytes) = self.requests.range_mut(..=at.0).next_back().unwrap();
        bytes[(at.0 - base) as usize..][..data.len()].copy_from_slice(data);
    }

    fn linear(&self, terms: &[(MemAddr, u8)], len: Sectors) -> Vec<u8> {
        let mut out = vec![0u8; len.bytes() as usize];
        for (at, c) in terms {
            for (o, s) in out.iter_mut().zip(self.get(*at, len)) {
                *o ^= gf::mul(*c, s);
            }
        }
        out
    }

    fn run(&mut self, job: Compute) {
        match job {
            Compute::Xor { dst, srcs, len } => {
                let v = self.linear(&srcs.iter().map(|s| (*s, 1)).collect::<Vec<_>>(), len);
                self.put(dst, &v);
            }
            Compute::Pq { p, q, data, len } => {
                let vp = self.linear(&data.iter().map(|d| (d.0, 1)).collect::<Vec<_>>(), len);
                let vq = self.linear(&data.iter().map(|d| (d.0, gf::exp(d.1))).collect::<Vec<_>>(), len);
                p.into_iter().for_each(|at| self.put(at, &vp));
                q.into_iter().for_each(|at| self.put(at, &vq));
            }
            Compute::PqUpdate { p, q, deltas, len } => {
                for (parity, is_q) in [(p, false), (q, true)] {
                    let Some(at) = parity else { continue };
                    let mut terms = vec![(at, 1)];
                    for (old, new, k) in &deltas {
                        let c = if is_q { gf::exp(*k) } else { 1 };
                        terms.extend([(*old, c), (*new, c)]);
                    }
                    let v = self.linear(&terms, len);
                    self.put(at, &v);
                }
            }
            Compute::Combine { outs, srcs, len } => {
                for (dst, coefficients) in outs {
                    assert_eq!(coefficients.len(), srcs.len());
                    let terms: Vec<_> = srcs.iter().copied().zip(coefficients).collect();
                    let v = self.linear(&terms, len);
                    self.put(dst, &v);
                }
            }
            Compute::Copy { dst, src, len } => {
                let v = self.get(src, len);
                self.put(dst, &v);
            }
            Compute::Zero { dst, len } => self.put(dst, &vec![0; len.bytes() as usize]),
        }
    }
}

struct Rig {
    shards: Vec<Shard>,
    geometry: Geometry,
    map: Arc<MemberMap>,
    memory: Memory,
    disks: Vec<Vec<u8>>,
    /// Members whose writes fail.
    broken_writes: Vec<bool>,
    /// (member, device sector) that cannot be read.
    latent: Vec<(u16, u64)>,
    ios: Vec<(usize, MemberIo)>,
    messages: VecDeque<(Peer, usize, Message)>,
    applied: usize,
    map_awaited: Option<u64>,
    replies: BTreeMap<u64, Result<(), RequestError>>,
    rng: Lcg,
    member_reads: u64,
    member_writes: u64,
    /// Writes that are logged and have not ended, by shard and name; on arrays with partial parity logs.
    logged: Option<BTreeMap<(usize, u64), LogEntry>>,
}

impl Rig {
    fn new(level: Level, layout: u32, n: u16, shards: u16, seed: u64, change: impl FnOnce(&mut MemberMap)) -> Rig {
        Rig::with_logs(level, layout, n, shards, seed, false, change)
    }

    fn with_logs(
        level: Level,
        layout: u32,
        n: u16,
        shards: u16,
        seed: u64,
        logged: bool,
        change: impl FnOnce(&mut MemberMap),
    ) -> Rig {
        let size = Sectors(512);
        let sizes = vec![size; usize::from(n)];
        let chunk = if level == Level::Raid1 { Sectors(0) } else { Sectors(16) };
        let params = GeometryParams {
            level,
            layout,
            raid_disks: n,
            chunk,
            size,
            data_sizes: &sizes,
            raid0_layout: Raid0Layout::Original,
        };
        let geometry = Geometry::new(&params).unwrap();
        let member = |i: u16| Member {
            state: MemberState::InSync(Slot(i)),
            data_offset: Sector(DATA_OFFSET),
            write_mostly: false,
            bad_blocks: vec![],
        };
        let mut map = MemberMap {
            epoch: 1,
            slots: (0..n).map(|i| SlotEntry { member: Some(MemberId(i)), replacement: None }).collect(),
            members: (0..n).map(member).collect(),
            unsynced_from: None,
            broken: false,
            read_only: false,
        };
        change(&mut map);
        let map = Arc::new(map);
        let tunables = Tunables {
            shards,
            segment_max: Sectors(16),
            scratch_bytes: 160 << 10,
            requests_max: 8,
            ..Tunables::default()
        };
        let setup = ShardSetup { geometry: geometry.clone(), map: map.clone(), region: Sectors(32), tunables, logged };
        let scratch = |i: u16| Scratch {
            base: MemAddr(SCRATCH_BASE + (u64::from(i) << 32)),
            bytes: tunables.scratch_bytes,
            zeroes: MemAddr(ZEROES),
        };
        Rig {
            shards: (0..shards).map(|i| Shard::with_setup(ShardId(i), &setup, scratch(i))).collect(),
            geometry,
            memory: Memory {
                requests: BTreeMap::new(),
                scratch: vec![vec![0xcc; tunables.scratch_bytes as usize]; usize::from(shards)],
                next: 4096,
            },
            disks: vec![vec![0; ((DATA_OFFSET + size.0) * 512) as usize]; usize::from(n)],
            broken_writes: vec![false; usize::from(n)],
            latent: vec![],
            ios: vec![],
            messages: VecDeque::new(),
            applied: 0,
            map_awaited: None,
            replies: BTreeMap::new(),
            rng: Lcg(seed),
            member_reads: 0,
            member_writes: 0,
            logged: logged.then(BTreeMap::new),
            map,
        }
    }

    fn submit(&mut self, shard: usize, id: u64, op: RequestOp, sector: u64, len: u64, buf: MemAddr) {
        let request = Request { id: RequestId(id), op, sector: Sector(sector), len: Sectors(len), buf };
        self.shards[shard].handle(Nanos(0), Input::Request(request));
        self.turn(shard);
    }

    fn turn(&mut self, shard: usize) {
        self.shards[shard].end_turn(Nanos(0));
        while let Some(out) = self.shards[shard].poll_output() {
            match out {
                Output::Io(io) => self.ios.push((shard, io)),
                Output::Compute(job) | Output::ComputeCold(job) => self.memory.run(job),
                Output::Compare(job) => panic!("nothing is synced here: {job:?}"),
                Output::Reply(reply) => {
                    assert!(self.replies.insert(reply.id.0, reply.result).is_none(), "two replies to {:?}", reply.id);
                }
                Output::Send { to: Peer::Control, message } => self.control(shard, message),
                Output::Send { to: Peer::Shard(s), message } => {
                    self.messages.push_back((Peer::Shard(ShardId(shard as u16)), usize::from(s.0), message));
                }
            }
        }
    }

    fn control(&mut self, from: usize, message: Message) {
        match message {
            Message::LeaseWant(regions) => self.tell(from, Message::LeaseGranted(regions)),
            Message::Flush { token } => self.tell(from, Message::FlushDone { token, result: Ok(()) }),
            Message::LogWant(wants) => self.on_log_wanted(from, &wants),
            Message::LogDone(ops) => self.on_log_done(from, &ops),
            Message::MemberFailed { member, .. } => self.on_failed(from, member),
            Message::MapApplied { epoch } => {
                self.applied += 1;
                if self.map_awaited == Some(epoch) && self.applied == self.shards.len() {
                    (0..self.shards.len()).for_each(|s| self.tell(s, Message::MapDurable { epoch }));
                }
            }
            _ => {}
        }
    }

    fn on_failed(&mut self, from: usize, member: MemberId) {
        let mut map = (*self.map).clone();
        if map.members[member.index()].state == MemberState::Faulty {
            return;
        }
        let slot = map.slots.iter().position(|s| s.member == Some(member)).unwrap();
        map.slots[slot].member = None;
        map.members[member.index()].state = MemberState::Faulty;
        let alive = |s: Slot| map.slots[s.index()].member.is_some();
        if !self.geometry.enough(&alive) {
            let epoch = self.map.epoch;
            return self.tell(from, Message::FailureRefused { member, epoch });
        }
        map.epoch += 1;
        self.map = Arc::new(map);
        self.applied = 0;
        self.map_awaited = Some(self.map.epoch);
        for s in 0..self.shards.len() {
            let map = self.map.clone();
            self.tell(s, Message::Map(map));
        }
    }

    fn tell(&mut self, shard: usize, message: Message) {
        self.messages.push_back((Peer::Control, shard, message));
    }

    fn step(&mut self) -> bool {
        let pick_io = !self.ios.is_empty() && (self.messages.is_empty() || self.rng.next(2) == 0);
        if pick_io {
            let at = self.rng.next(self.ios.len() as u64) as usize;
            let (shard, io) = self.ios.swap_remove(at);
            let result = self.member_io(&io);
            self.shards[shard].handle(Nanos(0), Input::MemberDone { token: io.token, result });
            self.turn(shard);
        } else if let Some((from, to, message)) = self.messages.pop_front() {
            self.shards[to].handle(Nanos(0), Input::Message { from, message });
            self.turn(to);
        } else {
            return false;
        }
        true
    }

    fn member_io(&mut self, io: &MemberIo) -> Result<(), MemberError> {
        let m = io.member.0;
        let disk = usize::from(m);
        match &io.op {
            MemberOp::Read { sector, len, buf } => {
                self.member_reads += 1;
                assert_ne!(self.map.members[disk].state, MemberState::Spare);
                if self.latent.iter().any(|(d, s)| *d == m && (sector.0..sector.0 + len.0).contains(s)) {
                    return Err(MemberError::Io);
                }
                let data = self.disks[disk][sector.bytes() as usize..][..len.bytes() as usize].to_vec();
                self.memory.put(*buf, &data);
            }
            MemberOp::Write { sector, len, buf, .. } => {
                self.member_writes += 1;
                assert!(sector.0 >= DATA_OFFSET);
                self.check_logged(*sector, *len);
                if self.broken_writes[disk] {
                    return Err(MemberError::Io);
                }
                let data = self.memory.get(*buf, *len);
                self.disks[disk][sector.bytes() as usize..][..data.len()].copy_from_slice(&data);
            }
            MemberOp::WriteZeroes { sector, len, .. } => {
                self.check_logged(*sector, *len);
                if self.broken_writes[disk] {
                    return Err(MemberError::Io);
                }
                self.disks[disk][sector.bytes() as usize..][..len.bytes() as usize].fill(0);
            }
            MemberOp::WriteMeta { .. } | MemberOp::WriteLog { .. } | MemberOp::Flush => panic!("a shard did {io:?}"),
        }
        Ok(())
    }

    fn finish(&mut self) {
        while self.step() {}
        assert!(self.shards.iter().all(|s| s.outstanding() == 0), "requests never ended");
    }

    /// Writes, zeroes and reads at random, several at a time without overlap, and compares with the oracle.
    fn exercise(&mut self, rounds: u64, oracle: &mut [u8]) {
        let sectors = self.geometry.array_sectors().0;
        let mut id = 0;
        for _ in 0..rounds {
            self.replies.clear();
            let mut reads = Vec::new();
            let lanes = 4;
            for lane in 0..lanes {
                let (lo, hi) = (sectors * lane / lanes, sectors * (lane + 1) / lanes);
                let sector = lo + self.rng.next(hi - lo);
                let longest = [1, 9, 40, 120][self.rng.next(4) as usize].min(hi - sector);
                let len = 1 + self.rng.next(longest);
                let shard = self.rng.next(self.shards.len() as u64) as usize;
                let range = (sector * 512) as usize..((sector + len) * 512) as usize;
                id += 1;
                match self.rng.next(5) {
                    0 | 1 => {
                        let data: Vec<u8> = (0..len * 512).map(|_| self.rng.next(256) as u8).collect();
                        oracle[range].copy_from_slice(&data);
                        let buf = self.memory.alloc(data);
                        self.submit(shard, id, RequestOp::Write { fua: false }, sector, len, buf);
                    }
                    2 => {
                        oracle[range].fill(0);
                        let op = RequestOp::WriteZeroes { fua: true, unmap: false };
                        self.submit(shard, id, op, sector, len, MemAddr::NONE);
                    }
                    _ => {
                        let buf = self.memory.alloc(vec![0xee; (len * 512) as usize]);
                        reads.push((buf, len, oracle[range].to_vec(), sector));
                        self.submit(shard, id, RequestOp::Read, sector, len, buf);
                    }
                }
            }
            self.finish();
            assert_eq!(self.replies.len(), lanes as usize);
            assert!(self.replies.values().all(Result::is_ok), "{:?}", self.replies);
            for (buf, len, expected, sector) in reads {
                assert!(self.memory.get(buf, Sectors(len)) == expected, "wrong data at sector {sector}");
            }
            self.memory.requests.clear();
        }
    }

    fn oracle(&self) -> Vec<u8> {
        vec![0; self.geometry.array_sectors().bytes() as usize]
    }

    /// Every copy and every parity in order, on the members that are in sync.
    fn assert_consistent(&self) {
        let block = |slot: Slot, component: u64| {
            let (id, m) = self.map.member_at(slot)?;
            let at = ((DATA_OFFSET + component) * 512) as usize;
            matches!(m.state, MemberState::InSync(_)).then(|| &self.disks[id.index()][at..at + 512])
        };
        match &self.geometry {
            Geometry::Mirror(g) => {
                for s in 0..g.array_sectors().0 {
                    let mut copies = (0..g.copies())
                        .map(|n| g.copy(Sector(s), n))
                        .filter_map(|(slot, component)| block(slot, component.0));
                    let first = copies.next().unwrap();
                    assert!(copies.all(|c| c == first), "copies of sector {s} differ");
                }
            }
            Geometry::Parity(g) => {
                for component in 0..g.component_sectors().0 {
                    let row = g.row(component / g.chunk().0);
                    let data: Vec<_> = (0..g.data_disks()).map(|i| block(row.data(i), component)).collect();
                    if data.iter().any(Option::is_none) {
                        continue;
                    }
                    for (slot, q) in [(Some(row.p()), false), (row.q(), true)] {
                        let Some(parity) = slot.and_then(|s| block(s, component)) else { continue };
                        let mut sum = vec![0; 512];
                        for (i, d) in data.iter().enumerate() {
                            let c = if q { gf::exp(row.coefficient(i as u16)) } else { 1 };
                            let bytes = d.unwrap();
                            sum.iter_mut().zip(bytes).for_each(|(s, b)| *s ^= gf::mul(c, *b));
                        }
                        assert!(sum == parity, "parity (q: {q}) of component sector {component} is wrong");
                    }
                }
            }
            _ => {}
        }
    }
}

fn configurations() -> Vec<(Level, u32, u16, usize)> {
    let mut all = vec![
        (Level::Linear, 0, 3, 0),
        (Level::Raid0, 0, 3, 0),
        (Level::Raid1, 0, 2, 1),
        (Level::Raid1, 0, 3, 2),
        (Level::Raid10, 0x102, 4, 1),
        (Level::Raid10, 0x102, 3, 1),
        (Level::Raid10, 0x201, 4, 1),
        (Level::Raid10, 0x10201, 4, 1),
        (Level::Raid10, 0x103, 3, 2),
        (Level::Raid4, 0, 4, 1),
    ];
    all.extend((0..=5).map(|layout| (Level::Raid5, layout, 5, 1)));
    all.extend([2, 3].map(|n| (Level::Raid5, 2, n, 1)));
    all.extend([0, 1, 2, 3, 4, 5, 8, 9, 10, 16, 17, 18, 19, 20].map(|layout| (Level::Raid6, layout, 5, 2)));
    all.extend([4, 7].map(|n| (Level::Raid6, 2, n, 2)));
    all
}

fn lose(map: &mut MemberMap, slot: usize) {
    map.slots[slot].member = None;
    map.members[slot].state = MemberState::Faulty;
}

#[test]
fn healthy_arrays_of_every_level() {
    for (level, layout, n, _) in configurations() {
        for shards in [1, 3] {
            let mut rig = Rig::new(level, layout, n, shards, u64::from(layout) + 1, |_| {});
            let mut oracle = rig.oracle();
            rig.exercise(40, &mut oracle);
            rig.assert_consistent();
        }
    }
}

#[test]
fn degraded_arrays_of_every_level() {
    for (level, layout, n, bearable) in configurations() {
        for lost in 1..=bearable {
            for first in 0..usize::from(n) {
                let second = (first + 1) % usize::from(n);
                let mut rig = Rig::new(level, layout, n, 2, first as u64 + 7, |map| {
                    lose(map, first);
                    if lost == 2 {
                        lose(map, second);
                    }
                });
                let mut oracle = rig.oracle();
                rig.exercise(20, &mut oracle);
                rig.assert_consistent();
            }
        }
    }
}

#[test]
fn members_fail_under_writes() {
    for (level, layout, n, bearable) in configurations().into_iter().filter(|c| c.3 > 0) {
        let mut rig = Rig::new(level, layout, n, 3, u64::from(n) * 31, |_| {});
        let mut oracle = rig.oracle();
        rig.exercise(5, &mut oracle);
        for victim in 0..bearable {
            rig.broken_writes[victim] = true;
            rig.exercise(15, &mut oracle);
        }
        assert!(rig.map.degraded() > 0, "{level} never noticed");
        rig.assert_consistent();
    }
}

#[test]
fn unreadable_sectors_are_found_elsewhere() {
    for (level, layout, n, _) in configurations().into_iter().filter(|c| c.3 > 0) {
        let mut rig = Rig::new(level, layout, n, 2, 5, |_| {});
        let mut oracle = rig.oracle();
        rig.exercise(10, &mut oracle);
        // One bad sector per member, never two in the same 4 KiB of components.
        rig.latent = (0..n).map(|d| (d, DATA_OFFSET + 40 + 24 * u64::from(d))).collect();
        rig.exercise(40, &mut oracle);
        assert_eq!(rig.map.degraded(), 0, "a read error alone fails nobody");
    }
}

#[test]
fn known_bad_blocks_and_rebuild_position_are_never_read() {
    for (level, layout, n, _) in configurations().into_iter().filter(|c| c.3 > 0) {
        let mut rig = Rig::new(level, layout, n, 2, 6, |map| {
            map.members[0].state = MemberState::Rebuilding { slot: Slot(0), valid_to: Sector(120) };
            map.members[1].bad_blocks = vec![(Sector(DATA_OFFSET + 16), Sectors(3))];
        });
        let mut oracle = rig.oracle();
        // What must not be read is garbage.
        rig.disks[0][(DATA_OFFSET as usize + 120) * 512..].fill(0x66);
        rig.disks[1][(DATA_OFFSET as usize + 16) * 512..][..3 * 512].fill(0x77);
        rig.exercise(40, &mut oracle);
    }
}

#[test]
fn rows_out_of_sync_are_not_modified_in_place() {
    for n in [5, 7] {
        let mut rig = Rig::new(Level::Raid6, 2, n, 1, 3, |map| map.unsynced_from = Some(Sector(0)));
        // Parity is garbage everywhere; whatever is written must come out with right parity.
        let g = rig.geometry.clone();
        let Geometry::Parity(g) = &g else { unreachable!() };
        for row in 0..g.rows() {
            let p = g.row(row).p().index();
            rig.disks[p][((DATA_OFFSET + row * 16) * 512) as usize..][..16 * 512].fill(0x55);
        }
        let buf = rig.memory.alloc(vec![0x11; 8 * 512]);
        rig.submit(0, 1, RequestOp::Write { fua: false }, 0, 8, buf);
        rig.finish();
        assert_eq!(rig.replies[&1], Ok(()));
        let row = g.row(0);
        let mut p = vec![0u8; 8 * 512];
        for i in 0..g.data_disks() {
            let disk = &rig.disks[row.data(i).index()][(DATA_OFFSET * 512) as usize..][..p.len()];
            p.iter_mut().zip(disk).for_each(|(a, b)| *a ^= b);
        }
        assert!(p == rig.disks[row.p().index()][(DATA_OFFSET * 512) as usize..][..p.len()]);
    }
}

#[test]
fn a_full_stripe_is_written_without_reading() {
    let mut rig = Rig::new(Level::Raid6, 2, 6, 1, 3, |_| {});
    let buf = rig.memory.alloc(vec![0x11; 64 * 512]);
    rig.submit(0, 1, RequestOp::Write { fua: false }, 64, 64, buf);
    rig.finish();
    assert_eq!((rig.member_reads, rig.member_writes), (0, 6));
}

#[test]
fn too_many_failures_are_an_error_not_silence() {
    for (level, layout, n, bearable) in configurations() {
        let mut rig = Rig::new(level, layout, n, 1, 9, |_| {});
        (0..=bearable).for_each(|d| rig.broken_writes[d] = true);
        let len = rig.geometry.array_sectors();
        let buf = rig.memory.alloc(vec![0x11; len.bytes() as usize]);
        rig.submit(0, 1, RequestOp::Write { fua: false }, 0, len.0, buf);
        rig.finish();
        assert_eq!(rig.replies[&1], Err(RequestError::Io), "{level}");
    }
}

#[test]
fn bad_requests_are_refused() {
    let mut rig = Rig::new(Level::Raid5, 2, 3, 1, 9, |map| map.read_only = true);
    let end = rig.geometry.array_sectors().0;
    let buf = rig.memory.alloc(vec![0; 512]);
    rig.submit(0, 1, RequestOp::Read, end, 1, buf);
    rig.submit(0, 2, RequestOp::Read, u64::MAX, 2, buf);
    rig.submit(0, 3, RequestOp::Read, 0, 0, buf);
    rig.submit(0, 4, RequestOp::Write { fua: false }, 0, 1, buf);
    rig.submit(0, 5, RequestOp::Discard, 0, 1, MemAddr::NONE);
    let errors: Vec<_> = rig.replies.values().map(|r| r.unwrap_err()).collect();
    let (range, read_only) = (RequestError::Range, RequestError::ReadOnly);
    assert_eq!(errors, [range, range, range, read_only, read_only]);
}

#[test]
fn suspended_writes_wait_and_nothing_else() {
    let mut rig = Rig::new(Level::Raid5, 2, 3, 1, 7, |_| {});
    let (lo, hi) = (Sector(64), Sector(128));
    let suspend = |rig: &mut Rig, number, what| {
        rig.shards[0]
            .handle(Nanos(0), Input::Message { from: Peer::Control, message: Message::Suspend { number, what } });
        rig.shards[0].end_turn(Nanos(0));
        let mut said = Vec::new();
        while let Some(out) = rig.shards[0].poll_output() {
            match out {
                Output::Send { message: Message::Suspended { number }, .. } => said.push(number),
                Output::Send { to: Peer::Control, message } => rig.control(0, message),
                Output::Io(io) => rig.ios.push((0, io)),
                other => panic!("{other:?}"),
            }
        }
        said
    };
    let write = |rig: &mut Rig, id, sector| {
        let buf = rig.memory.alloc(vec![id as u8; 8 * 512]);
        rig.submit(0, id, RequestOp::Write { fua: false }, sector, 8, buf);
    };
    write(&mut rig, 1, 60);
    assert!(suspend(&mut rig, 1, Suspension::Writes { lo, hi }).is_empty(), "the first write is under way");
    write(&mut rig, 2, 120);
    write(&mut rig, 3, 128);
    let buf = rig.memory.alloc(vec![0; 8 * 512]);
    rig.submit(0, 4, RequestOp::Read, 64, 8, buf);
    while rig.step() {}
    assert_eq!(rig.replies.keys().copied().collect::<Vec<_>>(), [1, 3, 4]);
    assert_eq!(suspend(&mut rig, 2, Suspension::Everything), [2]);
    rig.submit(0, 5, RequestOp::Read, 0, 8, buf);
    while rig.step() {}
    assert_eq!((rig.replies.len(), rig.shards[0].outstanding()), (3, 2));
    suspend(&mut rig, 3, Suspension::Writes { lo, hi });
    while rig.step() {}
    assert_eq!(rig.replies.keys().copied().collect::<Vec<_>>(), [1, 3, 4, 5]);
    rig.shards[0].handle(Nanos(0), Input::Message { from: Peer::Control, message: Message::Drain });
    rig.turn(0);
    assert_eq!(rig.replies[&2], Err(RequestError::Stopped));
}
