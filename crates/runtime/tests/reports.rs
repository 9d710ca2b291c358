//! Small arrays in states that people have reported, and what must become of them.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Disks, Rng, shape};
use raidus_assembly::Options;
use raidus_engine::control::{Addition, Command, Event, SyncEnd, SyncRequest};
use raidus_engine::{MemberError, MemberSetup, MemberState, SyncAction};
use raidus_runtime::members::{MemberDevice, MemoryOp};
use raidus_runtime::{ArrayHandle, OpenError, probe_device};
use raidus_units::{Level, MemberId, Sector, Sectors};

const MEMBER: Sectors = Sectors::from_kib(6 << 10);
/// Where data begins on members made here.
const DATA: u64 = 2048 * 512;

fn fill(array: &ArrayHandle, seed: u64) -> Vec<u8> {
    let mut content = vec![0; array.size().bytes() as usize];
    Rng(seed).fill(&mut content);
    array.client().write_at(0, &content, false).unwrap();
    content
}

fn content(array: &ArrayHandle) -> Vec<u8> {
    let mut content = vec![0; array.size().bytes() as usize];
    array.client().read_at(0, &mut content).unwrap();
    content
}

/// Waits until a sync has ended, and gives what came of it.
fn ended(array: &ArrayHandle, action: SyncAction) -> Arc<SyncEnd> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline {
        let status = array.status().unwrap();
        if let (None, Some(last)) = (status.sync.action, status.sync.last)
            && last.action == action
        {
            return last;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("no {} has ended: {:?}", action.name(), array.status());
}

fn bytes(disks: &Disks) -> Vec<Vec<u8>> {
    let read = |i: usize| {
        let mut bytes = vec![0; MEMBER.bytes() as usize];
        disks.0[i].read(0, &mut bytes).unwrap();
        bytes
    };
    (0..disks.0.len()).map(read).collect()
}

/// A RAID6 of six: five blocks of 4 KiB on one member went bad without a word. md's `repair` would make parity fit them.
#[test]
fn five_silently_wrong_blocks_are_named_and_repaired() {
    let disks = Disks::create(shape(Level::Raid6, 6), MEMBER);
    let array = disks.start(&[], 2);
    let expected = fill(&array, 1);
    array.stop().unwrap();
    let before = bytes(&disks);
    let spots: Vec<u64> = [3u64, 40, 41, 300, 777].map(|block| DATA + block * 4096).to_vec();
    for at in &spots {
        let mut junk = vec![0; 4096];
        Rng(*at).fill(&mut junk);
        disks.0[4].write(*at, &junk).unwrap();
    }

    let array = disks.start(&[], 2);
    array.command(Command::Sync(SyncRequest::Check)).unwrap();
    let check = ended(&array, SyncAction::Check);
    let named: Vec<(Option<(MemberId, Sector)>, u64)> = check.mismatches.iter().map(|m| (m.culprit, m.len.0)).collect();
    let at = |block: u64| Some((MemberId(4), Sector(DATA / 512 + block * 8)));
    // Blocks side by side may be one report or two, by where a window ends.
    let sectors: u64 = named.iter().map(|(_, len)| len).sum();
    assert_eq!(sectors, 40, "{named:?}");
    assert!(named.iter().all(|(culprit, _)| culprit.is_some_and(|(member, _)| member == MemberId(4))), "{named:?}");
    assert!([3, 40, 300, 777].iter().all(|b| named.iter().any(|(c, _)| *c == at(*b))), "{named:?}");
    assert_eq!(check.mismatch_sectors, 40, "md counts pages of 8 sectors");

    array.command(Command::Sync(SyncRequest::Repair)).unwrap();
    let repair = ended(&array, SyncAction::Repair);
    assert!(repair.mismatches.iter().all(|m| m.mended), "{repair:?}");
    assert!(content(&array) == expected, "the content changed");
    array.command(Command::Sync(SyncRequest::Check)).unwrap();
    assert_eq!(ended(&array, SyncAction::Check).mismatches, []);
    array.stop().unwrap();
    let after = bytes(&disks);
    for (n, (before, after)) in before.iter().zip(&after).enumerate() {
        assert!(before[DATA as usize..] == after[DATA as usize..], "member {n} is not what it was");
    }
}

/// A RAID1 of two whose first leg fails data and superblock writes at once: success may be reported only because the second leg
/// says that the first is gone.
#[test]
fn a_mirror_leg_that_takes_neither_data_nor_superblocks() {
    let disks = Disks::create(shape(Level::Raid1, 2), MEMBER);
    let array = disks.start(&[], 1);
    let events = array.events();
    disks.0[0].on_io(|op| if matches!(op, MemoryOp::Write(..)) { Err(MemberError::Io) } else { Ok(()) });
    array.client().write_at(8192, &[7; 4096], true).unwrap();
    assert!(events.try_iter().any(|e| matches!(e, Event::MemberFailed { member: MemberId(0) })));
    // As after a crash: the second leg alone decides, and the first is stale.
    array.abandon();
    disks.0[0].heal();
    let array = disks.start(&[], 1);
    let status = array.status().unwrap();
    assert_eq!(status.degraded, 1, "the leg that missed the write was taken as good: {:?}", status.map);
    let mut back = [0; 4096];
    array.client().read_at(8192, &mut back).unwrap();
    assert_eq!(back, [7; 4096]);
    array.stop().unwrap();
}

/// The same, and then the other leg fails its superblock as well: nothing can be recorded, so nothing is acknowledged.
#[test]
fn a_mirror_on_which_no_superblock_can_be_written() {
    let disks = Disks::create(shape(Level::Raid1, 2), MEMBER);
    let array = disks.start(&[], 1);
    for disk in &disks.0 {
        let meta = |op: MemoryOp| matches!(op, MemoryOp::Write(at, _) if at.0 < 2048);
        disk.on_io(move |op| if meta(op) { Err(MemberError::Io) } else { Ok(()) });
    }
    let result = array.client().write_at(8192, &[7; 4096], true);
    assert!(result.is_err(), "acknowledged though no member could be marked dirty");
    assert!(array.stop().is_err(), "the array was not left in order");
}

/// A RAID5 whose rebuild was interrupted, and one of whose old members has unreadable sectors: everything that can be had is
/// had, the rebuild says where it cannot go on, and nothing is made up.
#[test]
fn an_interrupted_rebuild_with_unreadable_sectors_beside_it() {
    let disks = Disks::create(shape(Level::Raid5, 4), MEMBER);
    let array = disks.start(&[], 2);
    let expected = fill(&array, 3);
    array.stop().unwrap();
    // The member in slot 3 is lost, and a blank one takes its place.
    let array = disks.start(&[3], 2);
    let number = 4;
    // One window of 1 MiB, and then nothing for a second.
    array.command(Command::SetSyncSpeed { min: Some(1000), max: Some(1000) }).unwrap();
    add_blank(&array, &disks, 3, number);
    std::thread::sleep(Duration::from_millis(100));
    array.stop().unwrap();

    // Sectors of another member cannot be read any more, beyond where the rebuild has come.
    let bad = Sector(DATA / 512 + 5000);
    disks.0[1].on_io(move |op| match op {
        MemoryOp::Read(at, len) if at <= bad && bad < at + len => Err(MemberError::Io),
        _ => Ok(()),
    });
    let array = disks.start(&[], 2);
    let end = ended(&array, SyncAction::Recover);
    assert!(!end.complete && !end.unreadable.is_empty(), "{end:?}");
    let block = |(start, len): &(Sector, Sectors)| (*start..*start + *len).contains(&Sector(5000));
    assert!(end.unreadable.iter().any(block), "{end:?}");
    let status = array.status().unwrap();
    assert_eq!(status.degraded, 1);
    assert!(status.map.members.iter().any(|m| matches!(m.state, MemberState::Rebuilding { .. })), "{:?}", status.map);
    // All but the two blocks that needed the unreadable sector is there, and right.
    let mut lost = 0;
    for (n, right) in expected.chunks(4096).enumerate() {
        let mut back = vec![0; right.len()];
        match array.client().read_at(n as u64 * 4096, &mut back) {
            Ok(()) => assert!(back == right, "block {n}"),
            Err(_) => lost += 1,
        }
    }
    assert!((1..=2).contains(&lost), "{lost} blocks cannot be read");
    array.stop().unwrap();

    // The sectors can be read again (the disk remapped them): the rebuild goes on to its end.
    disks.0[1].heal();
    let array = disks.start(&[], 2);
    assert!(ended(&array, SyncAction::Recover).complete);
    assert!(content(&array) == expected);
    array.stop().unwrap();
    let opened: Result<_, OpenError> = disks.open(&[0], 1, Options { run: true, ..Options::default() });
    assert!(opened.is_ok(), "the rebuilt member does not count");
}

/// Adds disk `n`, wiped, as a new member.
fn add_blank(array: &ArrayHandle, disks: &Disks, n: usize, number: u32) {
    use raidus_assembly::create::{JoinParams, NewMember, join};
    let like = MemberDevice::memory("like", disks.0[0].clone());
    let like = probe_device(&like).unwrap().newest().unwrap().clone();
    disks.0[n].write(0, &vec![0; MEMBER.bytes() as usize]).unwrap();
    let device = MemberDevice::memory("blank", disks.0[n].clone());
    let new = NewMember {
        name: "blank".into(),
        size: MEMBER,
        uuid: raidus_format::MdUuid([77; 16]),
        write_mostly: false,
        failfast: false,
        data_offset: Some(Sectors(2048)),
        old_superblocks: Vec::new(),
    };
    let status = array.status().unwrap();
    let geometry = &disks.open(&[n], 1, Options { run: true, ..Options::default() }).unwrap().config.geometry;
    let taken: Vec<u32> = (0..number).collect();
    let params = JoinParams { like: &like, geometry, bitmap_chunk: None, taken: &taken, device: &new };
    let plan = join(&params).unwrap();
    for write in &plan.writes {
        device.write_at(write.at.bytes(), &write.bytes).unwrap();
    }
    let facts = plan.superblock.member();
    let setup = MemberSetup { superblock: plan.superblock, super_sector: facts.super_offset };
    let addition = Addition { setup, data_offset: facts.data_offset, bad_blocks: Vec::new(), former: false };
    let member = array.add(device, addition).unwrap();
    assert_eq!(member.index(), status.map.members.len());
}
