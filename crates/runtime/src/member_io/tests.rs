//! Every kind of member against a byte array, through a real ring.

use std::path::Path;

use raidus_engine::MemAddr;
use raidus_units::{MemberId, Sector, Sectors};

use super::*;
use crate::members::{OpenMode, OverlayStore};
use crate::memory::Region;

const SECTORS: u64 = 4096;
const CLASS: u64 = 3 << 56;

struct Bench {
    ring: Ring,
    ios: MemberIos,
    tally: Tally,
    _zeroes: Region,
    tokens: u64,
}

impl Bench {
    fn new(device: MemberDevice) -> Bench {
        let zeroes = Region::map(64 << 10, true).unwrap();
        let ios = MemberIos::new(&[Arc::new(device)], (zeroes.addr().0, zeroes.len() as u64), CLASS).unwrap();
        let mut ring = Ring::new().unwrap();
        ring.register_files(&ios.fixed_files());
        Bench { ring, ios, tally: Tally::default(), _zeroes: zeroes, tokens: 0 }
    }

    fn begin(&mut self, op: MemberOp) -> IoToken {
        self.tokens += 1;
        let io = MemberIo { token: IoToken(self.tokens), member: MemberId(0), op };
        self.ios.start(Owner::Shard, io, &mut self.ring, &mut self.tally);
        IoToken(self.tokens)
    }

    fn settle(&mut self) -> Vec<Done> {
        let mut done = Vec::new();
        let mut completions = Vec::new();
        loop {
            self.ios.take_done(&mut done);
            if self.ios.idle() {
                return done;
            }
            self.ring.wait(None, &mut self.tally);
            self.ring.completions(&mut completions);
            for (user_data, result, _) in completions.drain(..) {
                assert_eq!(user_data & CLASS, CLASS);
                self.ios.complete((user_data & !CLASS) as usize, result, &mut self.ring, &mut self.tally);
            }
        }
    }

    fn run(&mut self, op: MemberOp) -> Result<(), MemberError> {
        let token = self.begin(op);
        let done = self.settle();
        assert_eq!((done.len(), done[0].token), (1, token));
        done[0].result
    }
}

fn image(dir: &Path, name: &str) -> std::path::PathBuf {
    let path = dir.join(name);
    std::fs::File::create(&path).unwrap().set_len(SECTORS * 512).unwrap();
    path
}

/// Random operations, some of them unaligned in memory, against a byte array.
fn exercise(device: MemberDevice, seed: u64) {
    let mut seed = seed;
    let mut next = |below: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % below
    };
    let mut bench = Bench::new(device);
    let mut model = vec![0u8; (SECTORS * 512) as usize];
    let mut buffer = Buffer::alone((1 << 20) + 512).unwrap();
    for round in 0..150u64 {
        let longest = if next(4) == 0 { 2000 } else { 16 };
        let len = 1 + next(longest);
        let sector = next(SECTORS - len);
        let range = (sector * 512) as usize..((sector + len) * 512) as usize;
        let shift = if next(4) == 0 { 8 } else { 0 };
        let buf = MemAddr(buffer.addr().0 + shift as u64);
        let bytes = shift..shift + range.len();
        let (sector, len) = (Sector(sector), Sectors(len));
        match next(6) {
            0 | 1 => {
                buffer[bytes].fill(round as u8 + 1);
                model[range].fill(round as u8 + 1);
                bench.run(MemberOp::Write { sector, len, buf, fua: next(2) == 0 }).unwrap();
            }
            2 => {
                model[range.clone()].fill(200 + (round % 50) as u8);
                bench.run(MemberOp::WriteMeta { sector, data: model[range].into() }).unwrap();
            }
            3 => {
                model[range].fill(0);
                let (unmap, fua) = (next(2) == 0, next(2) == 0);
                bench.run(MemberOp::WriteZeroes { sector, len, unmap, fua }).unwrap();
            }
            4 => bench.run(MemberOp::Flush).unwrap(),
            _ => {
                bench.run(MemberOp::Read { sector, len, buf }).unwrap();
                assert!(buffer[bytes] == model[range], "round {round}");
            }
        }
    }
    let mut back = vec![0; model.len()];
    bench.ios.members[0].as_ref().unwrap().device.read_at(0, &mut back).unwrap();
    assert!(back == model);
    let past = MemberOp::Read { sector: Sector(SECTORS - 1), len: Sectors(2), buf: buffer.addr() };
    assert_eq!(bench.run(past), Err(MemberError::Io));
}

#[test]
fn files_do_as_a_byte_array_does() {
    let dir = tempfile::tempdir().unwrap();
    let direct = OpenMode::READ_WRITE;
    exercise(MemberDevice::open(&image(dir.path(), "direct"), direct).unwrap(), 1);
    let cached = OpenMode { direct: false, ..direct };
    exercise(MemberDevice::open(&image(dir.path(), "cached"), cached).unwrap(), 2);
}

#[test]
fn block_devices_do_as_a_byte_array_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), "below");
    let Some(device) = crate::members::tests::Loop::over(&path) else {
        return eprintln!("no loop devices here: nothing checked");
    };
    exercise(MemberDevice::open(&device.0, OpenMode::READ_WRITE).unwrap(), 8);
}

#[test]
fn files_without_fallocate_are_zeroed_by_writing() {
    // tmpfs knows no ZERO_RANGE.
    let shm = Path::new("/dev/shm");
    if let Ok(dir) = tempfile::tempdir_in(shm) {
        exercise(MemberDevice::open(&image(dir.path(), "tmpfs"), OpenMode::READ_WRITE).unwrap(), 3);
    }
    let mut step = Op {
        owner: Owner::Shard,
        token: IoToken(0),
        member: 0,
        step: Step::Zero { place: Place::Base, offset: 512, len: 1024, unmap: false },
        rest: Vec::new(),
        _data: None,
        cached: false,
    };
    assert!(step.after(-libc::EOPNOTSUPP, false).is_none());
    assert!(matches!(step.step, Step::Zeroes { offset: 512, len: 1024, .. }));
}

#[test]
fn memory_and_overlays_do_as_a_byte_array_does() {
    let memory = || MemberDevice::memory("m", Arc::new(MemoryDevice::new(Sectors(SECTORS)).unwrap()));
    exercise(memory(), 4);
    exercise(memory().with_overlay(&OverlayStore::Memory).unwrap(), 5);
    let dir = tempfile::tempdir().unwrap();
    let store = OverlayStore::Directory(dir.path().to_owned());
    exercise(memory().with_overlay(&store).unwrap(), 6);
    let path = image(dir.path(), "base");
    let base = MemberDevice::open(&path, OpenMode::READ_ONLY).unwrap();
    exercise(base.with_overlay(&store).unwrap(), 7);
    assert!(std::fs::read(&path).unwrap().iter().all(|b| *b == 0));
}

#[test]
fn more_operations_than_the_queue_holds() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(MemberDevice::open(&image(dir.path(), "a"), OpenMode::READ_WRITE).unwrap());
    let buffer = Buffer::alone(4096).unwrap();
    for i in 0..3000 {
        let sector = Sector(i % (SECTORS / 8) * 8);
        bench.begin(MemberOp::Read { sector, len: Sectors(8), buf: buffer.addr() });
    }
    let done = bench.settle();
    assert_eq!(done.len(), 3000);
    assert!(done.iter().all(|d| d.result.is_ok()));
    assert_eq!(bench.tally.member_reads, 3000);
    assert_eq!(bench.ring.in_flight, 0);
}

#[test]
fn failures_reach_the_engine() {
    let memory = Arc::new(MemoryDevice::new(Sectors(SECTORS)).unwrap());
    let mut bench = Bench::new(MemberDevice::memory("m", memory.clone()));
    memory.on_io(|op| match op {
        MemoryOp::Write(Sector(8), _) => Err(MemberError::Io),
        MemoryOp::Flush => Err(MemberError::Gone),
        _ => Ok(()),
    });
    let data: Box<[u8]> = vec![0; 512].into();
    assert_eq!(bench.run(MemberOp::WriteMeta { sector: Sector(0), data }), Err(MemberError::Gone));
    let zeroes = |s| MemberOp::WriteZeroes { sector: Sector(s), len: Sectors(8), unmap: true, fua: false };
    assert_eq!(bench.run(zeroes(8)), Err(MemberError::Io));
    assert_eq!(bench.run(zeroes(16)), Ok(()));
    memory.heal();
    assert_eq!(bench.run(MemberOp::Flush), Ok(()));
    assert_eq!(check(-libc::ENODEV), Err(MemberError::Gone));
    assert_eq!(check(-libc::ENOSPC), Err(MemberError::Io));
}

#[test]
fn a_short_transfer_goes_on_where_it_stopped() {
    let mut op = Op {
        owner: Owner::Shard,
        token: IoToken(0),
        member: 0,
        step: Step::Transfer { place: Place::Base, write: false, offset: 0, addr: 4096, len: 4096, sync: false },
        rest: Vec::new(),
        _data: None,
        cached: false,
    };
    assert!(op.after(1000, false).is_none());
    assert!(op.after(-libc::EAGAIN, false).is_none());
    assert!(op.after(-libc::EINVAL, true).is_none() && op.cached, "once more through the page cache");
    assert!(matches!(op.step, Step::Transfer { offset: 1000, addr: 5096, len: 3096, .. }));
    assert!(matches!(op.after(0, false), Some(Err(MemberError::Io))));
    assert!(matches!(op.after(3096, false), Some(Ok(()))));
}
