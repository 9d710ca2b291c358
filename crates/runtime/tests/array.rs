//! Whole arrays on memory members, against a byte array.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{Disks, Rng, Shape, shape};
use raidus_assembly::Options;
use raidus_engine::control::{ArrayState, Event};
use raidus_engine::{MemberError, RequestError, RequestOp};
use raidus_runtime::members::MemoryOp;
use raidus_runtime::memory::Buffer;
use raidus_runtime::{ArrayHandle, ArrayRequest, OpenError, StopFailed};
use raidus_units::{Level, Sector, Sectors};

const MEMBER: Sectors = Sectors::from_kib(6 << 10);
/// The piece of the array one client owns before the next client's begins: small, so that clients meet in stripes.
const OWNED: u64 = 20 << 10;

/// Several clients at once, each with its own pieces all over the array. Gives what the array must hold.
fn exercise(array: &ArrayHandle, clients: u64, rounds: u64, seed: u64, before: &[u8]) -> Vec<u8> {
    let size = array.size().bytes();
    let models: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients)
            .map(|c| scope.spawn(move || one_client(array, (c, clients), rounds, Rng(seed + c), before.to_vec())))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let mut whole = Vec::with_capacity(before.len());
    for at in (0..size).step_by(OWNED as usize) {
        let owner = (at / OWNED % clients) as usize;
        whole.extend_from_slice(&models[owner][at as usize..(at + OWNED).min(size) as usize]);
    }
    whole
}

fn one_client(array: &ArrayHandle, (me, of): (u64, u64), rounds: u64, mut rng: Rng, mut model: Vec<u8>) -> Vec<u8> {
    let client = array.client();
    let pieces = array.size().bytes() / OWNED / of;
    for _ in 0..rounds {
        let start = (rng.below(pieces) * of + me) * OWNED;
        let from = rng.below(OWNED / 512);
        let len = 1 + rng.below(OWNED / 512 - from);
        let (offset, len) = (start + from * 512, len * 512);
        let range = offset as usize..(offset + len) as usize;
        match rng.below(12) {
            0..5 => {
                rng.fill(&mut model[range.clone()]);
                client.write_at(offset, &model[range], rng.below(4) == 0).unwrap();
            }
            5..10 => {
                let mut back = vec![0; range.len()];
                client.read_at(offset, &mut back).unwrap();
                assert!(back == model[range], "client {me} reads {len} bytes at {offset}");
            }
            10 if rng.below(2) == 0 => client.flush().unwrap(),
            10 => {
                model[range].fill(0);
                client.discard(offset, len).unwrap();
            }
            _ => {
                model[range].fill(0);
                client.write_zeroes(offset, len, rng.below(2) == 0, rng.below(4) == 0).unwrap();
            }
        }
    }
    model
}

fn contents(array: &ArrayHandle) -> Vec<u8> {
    let mut bytes = vec![0; array.size().bytes() as usize];
    array.client().read_at(0, &mut bytes).unwrap();
    bytes
}

/// Runs clients, stops, starts again without each set of members, and finds everything.
fn round_trip(shape: Shape, threads: u16, losses: &[&[usize]], seed: u64) {
    let disks = Disks::create(shape, MEMBER);
    let array = disks.start(&[], threads);
    let zeroes = vec![0; array.size().bytes() as usize];
    // Both halves of a large write at once, too.
    let mut large = vec![0; (3 << 20).min(zeroes.len() / 2)];
    Rng(seed).fill(&mut large);
    array.client().write_at(0, &large, false).unwrap();
    let mut model = zeroes;
    model[..large.len()].copy_from_slice(&large);
    let model = exercise(&array, 6, 150, seed, &model);
    assert!(contents(&array) == model);
    let tally = array.tally();
    assert!(tally.member_writes > 0 && tally.requests > 900, "{tally:?}");
    array.stop().unwrap();
    assert!(matches!(array.stop(), Err(StopFailed::AlreadyStopped)));
    assert_eq!(array.client().flush(), Err(RequestError::Stopped));
    for without in losses {
        let array = disks.start(without, threads);
        assert!(contents(&array) == model, "without {without:?}");
        array.abandon();
    }
}

#[test]
fn raid0() {
    let original = Some(2);
    for (threads, seed) in [(1, 1), (2, 2), (4, 3)] {
        round_trip(Shape { layout: original, ..shape(Level::Raid0, 3) }, threads, &[&[]], seed);
    }
}

#[test]
fn raid1() {
    for (threads, seed) in [(1, 11), (2, 12), (4, 13)] {
        round_trip(Shape { bitmap: seed == 12, ..shape(Level::Raid1, 2) }, threads, &[&[], &[0], &[1]], seed);
    }
}

#[test]
fn raid5() {
    for (threads, seed) in [(1, 21), (2, 22), (4, 23)] {
        let shape = Shape { bitmap: seed != 21, ..shape(Level::Raid5, 4) };
        round_trip(shape, threads, &[&[], &[0], &[3]], seed);
    }
}

#[test]
fn raid6() {
    for (threads, seed) in [(1, 31), (2, 32), (4, 33)] {
        round_trip(shape(Level::Raid6, 5), threads, &[&[], &[0, 1], &[2, 4]], seed);
    }
}

#[test]
fn raid10() {
    for (threads, seed, layout) in [(1, 41, 0x102), (2, 42, 0x201), (4, 43, 0x1_0201)] {
        round_trip(Shape { layout: Some(layout), ..shape(Level::Raid10, 4) }, threads, &[&[], &[1]], seed);
    }
}

#[test]
fn a_failing_member_is_left_out_and_nothing_is_lost() {
    for level in [Level::Raid1, Level::Raid5, Level::Raid6, Level::Raid10] {
        let disks = Disks::create(shape(level, 4), MEMBER);
        let array = disks.start(&[], 2);
        let events = array.events();
        let zeroes = vec![0; array.size().bytes() as usize];
        let model = exercise(&array, 4, 50, 5, &zeroes);
        disks.0[1].on_io(|op| match op {
            MemoryOp::Read(..) => Ok(()),
            _ => Err(MemberError::Io),
        });
        let model = exercise(&array, 4, 100, 6, &model);
        assert!(contents(&array) == model, "{level}");
        assert_eq!(array.status().unwrap().degraded, 1);
        let failed = events.try_iter().any(|e| matches!(e, Event::MemberFailed { member } if member.0 == 1));
        assert!(failed, "{level}: the failure is told");
        array.stop().unwrap();
        disks.0[1].heal();
        // The failed member missed writes; with all four there it must stay out.
        let array = disks.start(&[], 2);
        assert_eq!(array.status().unwrap().degraded, 1, "{level}");
        assert!(contents(&array) == model, "{level}");
        array.stop().unwrap();
    }
}

#[test]
fn reads_that_fail_are_answered_from_the_others() {
    let disks = Disks::create(shape(Level::Raid5, 3), MEMBER);
    let array = disks.start(&[], 2);
    let model = exercise(&array, 4, 60, 9, &vec![0; array.size().bytes() as usize]);
    let gone = Arc::new(AtomicUsize::new(0));
    let count = gone.clone();
    disks.0[2].on_io(move |op| match op {
        MemoryOp::Read(..) => {
            count.fetch_add(1, Ordering::Relaxed);
            Err(MemberError::Io)
        }
        _ => Ok(()),
    });
    assert!(contents(&array) == model);
    assert!(gone.load(Ordering::Relaxed) > 0);
    array.stop().unwrap();
}

#[test]
fn more_failures_than_the_level_bears_end_writes_with_errors() {
    let disks = Disks::create(shape(Level::Raid5, 3), MEMBER);
    let array = disks.start(&[], 2);
    let client = array.client();
    client.write_at(0, &[1; 4096], true).unwrap();
    for disk in &disks.0[..2] {
        disk.on_io(|_| Err(MemberError::Gone));
    }
    assert!(client.write_at(0, &[2; 512 << 10], true).is_err());
    assert_eq!(array.status().unwrap().array_state, ArrayState::Broken);
    assert!(matches!(array.stop(), Err(StopFailed::Array(_))));
}

#[test]
fn abandoning_is_a_crash_and_stopping_is_not() {
    let disks = Disks::create(shape(Level::Raid5, 3), MEMBER);
    let array = disks.start(&[], 2);
    array.client().write_at(0, &[1; 4096], false).unwrap();
    array.abandon();
    drop(array);
    // Dirty: a degraded start would be refused, a whole one is resynced.
    let error = disks.open(&[0], 1, Options { run: true, ..Options::default() }).unwrap_err();
    let OpenError::Refused(decision) = &error else { panic!("{error}") };
    assert!(!decision.members.is_empty() && error.to_string().contains("cannot be started"), "{error}");
    let array = disks.start(&[], 2);
    assert!(array.status().unwrap().map.unsynced_from.is_some());
    array.stop().unwrap();
}

#[test]
fn requests_from_callbacks_and_their_memory() {
    let disks = Disks::create(shape(Level::Raid1, 2), MEMBER);
    let array = disks.start(&[], 2);
    let (sender, receiver) = std::sync::mpsc::channel();
    for i in 0..500u64 {
        let mut buffer = Buffer::alone(4096).unwrap();
        buffer.fill(i as u8);
        let request = ArrayRequest {
            op: RequestOp::Write { fua: false },
            sector: Sector(i * 8),
            len: Sectors(8),
            buffer: Some(buffer),
        };
        let sender = sender.clone();
        array.submit(request, Box::new(move |result, buffer| sender.send((i, result, buffer)).unwrap()));
    }
    for _ in 0..500 {
        let (i, result, buffer) = receiver.recv().unwrap();
        assert_eq!((result, buffer.unwrap()[0]), (Ok(()), i as u8));
    }
    let read =
        |sector, len, buffer| ArrayRequest { op: RequestOp::Read, sector: Sector(sector), len: Sectors(len), buffer };
    let client = array.client();
    let short = read(0, 9, Buffer::alone(4096).ok());
    assert_eq!(client.run(short).unwrap_err(), RequestError::Range);
    assert_eq!(client.run(read(0, 8, None)).unwrap_err(), RequestError::Range);
    let past = read(array.size().0, 8, Buffer::alone(4096).ok());
    assert_eq!(client.run(past).unwrap_err(), RequestError::Range);
    assert_eq!(client.run(read(u64::MAX, u64::MAX, Buffer::alone(4096).ok())).unwrap_err(), RequestError::Range);
    assert_eq!(client.read_at(100, &mut [0; 512]), Err(RequestError::Range));
    array.stop().unwrap();
}

#[test]
fn requests_keep_to_the_largest_block_of_the_members() {
    let disks = Disks::create(shape(Level::Raid1, 2), MEMBER);
    let raidus_runtime::Opened { config, mut members, .. } = disks.open(&[], 1, Options::default()).unwrap();
    let last = members.pop().unwrap().with_block(4096);
    members.push(last);
    let array = raidus_runtime::start(config, members, raidus_runtime::RunOptions::default()).unwrap();
    assert_eq!(array.block(), 4096);
    let client = array.client();
    for (offset, len) in [(512, 4096), (0, 512), (4096, 4608), (3584, 512)] {
        let mut bytes = vec![1; len];
        assert_eq!(client.read_at(offset, &mut bytes), Err(RequestError::Range), "{len} at {offset}");
        assert_eq!(client.write_at(offset, &bytes, false), Err(RequestError::Range));
        assert_eq!(client.write_zeroes(offset, len as u64, true, false), Err(RequestError::Range));
        assert_eq!(client.discard(offset, len as u64), Err(RequestError::Range));
    }
    client.write_at(4096, &[1; 8192], false).unwrap();
    client.flush().unwrap();
    array.stop().unwrap();
}

#[test]
fn a_bounded_number_of_requests_is_under_way() {
    let disks = Disks::create(shape(Level::Raid1, 2), MEMBER);
    let raidus_runtime::Opened { config, members, .. } = disks.open(&[], 1, Options::default()).unwrap();
    let options = raidus_runtime::RunOptions { clients_max: 2, ..Default::default() };
    let array = raidus_runtime::start(config, members, options).unwrap();
    // The first request's callback holds the reactor until the gate opens, so none of the three can end.
    let gate = Arc::new(AtomicBool::new(false));
    let flush = || ArrayRequest { op: RequestOp::Flush, sector: Sector(0), len: Sectors(0), buffer: None };
    let held = gate.clone();
    array.submit(
        flush(),
        Box::new(move |_, _| {
            while !held.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        }),
    );
    array.try_submit(flush(), Box::new(|_, _| {})).unwrap_or_else(|_| panic!("the second has room"));
    assert!(array.try_submit(flush(), Box::new(|_, _| {})).is_err(), "the third has none");
    gate.store(true, Ordering::Release);
    array.client().flush().unwrap();
    array.stop().unwrap();
}

#[test]
fn a_bug_ends_the_array_and_nobody_waits_for_it() {
    let disks = Disks::create(shape(Level::Raid1, 2), MEMBER);
    let array = disks.start(&[], 2);
    let events = array.events();
    let flush = ArrayRequest { op: RequestOp::Flush, sector: Sector(0), len: Sectors(0), buffer: None };
    array.submit(flush, Box::new(|_, _| panic!("on purpose")));
    while array.client().flush().is_ok() {}
    assert_eq!(array.client().flush(), Err(RequestError::Stopped));
    assert!(matches!(array.stop(), Err(StopFailed::Crashed)));
    assert!(events.iter().count() < 10, "the channel closes");
    assert!(array.status().is_none());
}
