//! Changes for which writes come to a halt, and what is kept back on command.

use raidus_format::MdUuid;
use raidus_format::bitmap::{BitmapSuper, NewBitmap};
use raidus_units::{Level, MemberId, Nanos, Sector, Sectors};

use super::rig::{RAID1, Rig, Setup, failed, give_back, want};
use crate::control::{ArrayState, BitmapAddition, Command, CommandError, Event};
use crate::msg::{Message, Suspension};

const BITMAP: Setup = Setup { bitmap: Some(0), ..RAID1 };

/// A bitmap of 1 MiB per bit where the rig's arrays have theirs.
fn add() -> Command {
    let new = NewBitmap {
        uuid: MdUuid([7; 16]),
        events: 0,
        sync_size: Sectors(64 * 2048),
        chunk: 2 << 20,
        daemon_sleep: 5,
        write_behind: 0,
    };
    Command::AddBitmap(Box::new(BitmapAddition { superblock: BitmapSuper::create(&new).unwrap(), offset: 8 }))
}

fn held() -> Vec<(u16, Message)> {
    vec![(0, Message::LeaseHeld), (1, Message::LeaseHeld)]
}

/// The size of regions that shards were told last.
fn released(rig: &mut Rig) -> Option<Sectors> {
    let region = |(_, m)| match m {
        Message::LeaseRelease { anew } => anew,
        _ => None,
    };
    rig.take_sent().into_iter().filter_map(region).next_back()
}

#[test]
fn a_bitmap_comes_when_nobody_writes_and_all_is_flushed() {
    let mut rig = Rig::new(RAID1);
    rig.turn(vec![want(0, &[1])]);
    rig.settle();
    rig.take_log();
    rig.command(add());
    let sent = rig.take_sent();
    assert_eq!(sent.iter().filter(|(_, m)| matches!(m, Message::LeaseHold)).count(), 2);
    // What is wanted meanwhile is not given.
    rig.turn(vec![want(1, &[2]), (1, Message::LeaseHeld)]);
    rig.turn(vec![give_back(0, &[1])]);
    assert_eq!(rig.take_log(), ["m0 flush", "m1 flush"]);
    rig.settle();
    assert!(rig.take_grants().is_empty() && rig.control.status().changing, "shard 0 has not said that it holds");
    rig.turn(vec![(0, Message::LeaseHeld)]);
    rig.settle();
    let both = |text: &str| [0, 1].map(|m| format!("m{m} {text}"));
    // Events 19 were taken back to 18: up again first.
    let order = ["sb 18 clean 0 1", "bitmap 18 cleared 18 []", "bitmap 19 cleared 18 []", "sb 19 clean 0 1"];
    let beyond = ["bitmap 20 cleared 18 []", "sb 20 clean 0 1"];
    assert_eq!(rig.take_log(), [order.map(both).concat(), beyond.map(both).concat()].concat());
    assert_eq!(rig.on_disk(1).unwrap().array().bitmap, Some(8));
    assert_eq!(released(&mut rig), Some(Sectors(2 * 2048)));
    assert!(rig.events.contains(&Event::BitmapAdded) && !rig.control.status().changing);
    rig.turn(vec![want(0, &[3])]);
    rig.settle();
    assert_eq!(rig.take_grants(), [(0, 3)]);
    assert!(rig.bit_on_disk(0, 3) && rig.bit_on_disk(1, 3) && !rig.bit_on_disk(0, 2));
}

#[test]
fn what_is_not_in_sync_is_marked_in_a_new_bitmap() {
    let half = Sector(32 * 2048);
    let mut rig = Rig::new(Setup { unsynced_from: Some(half), ..RAID1 });
    rig.command(add());
    rig.turn(held());
    rig.settle();
    assert!(!rig.bit_on_disk(0, 15) && rig.bit_on_disk(0, 16) && rig.bit_on_disk(1, 31));
    assert_eq!(rig.on_disk(0).unwrap().array().resync, Some(half));
}

#[test]
fn a_bitmap_goes_and_no_lease_is_given_before_that_is_on_record() {
    let mut rig = Rig::new(BITMAP);
    rig.turn(vec![want(0, &[1])]);
    rig.settle();
    rig.command(Command::RemoveBitmap);
    rig.take_log();
    rig.turn([vec![give_back(0, &[1])], held()].concat());
    while released(&mut rig).is_none() {
        rig.complete();
    }
    rig.take_log();
    rig.turn(vec![want(1, &[0])]);
    assert!(rig.take_grants().is_empty(), "the members still say that there is a bitmap");
    rig.settle();
    assert_eq!(rig.take_grants(), [(1, 0)]);
    assert!(rig.take_log().iter().all(|line| !line.contains("bitmap")));
    assert_eq!(rig.on_disk(0).unwrap().array().bitmap, None);
    assert!(rig.events.contains(&Event::BitmapRemoved));
}

#[test]
fn a_member_that_fails_meanwhile_does_not_keep_the_bitmap_away() {
    let mut rig = Rig::new(RAID1);
    rig.command(add());
    rig.failing.insert(1);
    rig.turn(held());
    rig.settle();
    assert!(rig.events.contains(&Event::MemberFailed { member: MemberId(1) }));
    assert!(rig.events.contains(&Event::BitmapAdded));
    assert_eq!(rig.on_disk(0).unwrap().array().bitmap, Some(8));
    assert!(rig.on_disk(1).is_none());
}

#[test]
fn changes_of_the_bitmap_that_make_no_sense_are_refused() {
    let refused = |setup: Setup, command: Command| {
        let mut rig = Rig::new(setup);
        rig.control.command(rig.now, command).expect_err("refused")
    };
    assert_eq!(refused(BITMAP, add()), CommandError::HasBitmap);
    assert_eq!(refused(RAID1, Command::RemoveBitmap), CommandError::NoBitmap);
    assert_eq!(refused(Setup { level: Level::Raid0, ..RAID1 }, add()), CommandError::NoRedundancy);
    assert_eq!(refused(Setup { read_only: true, ..RAID1 }, add()), CommandError::ReadOnly);
    let Command::AddBitmap(mut far) = add() else { panic!("a bitmap") };
    far.offset = 2040;
    assert_eq!(refused(RAID1, Command::AddBitmap(far)), CommandError::NoRoom);
    let mut rig = Rig::new(RAID1);
    rig.command(add());
    assert_eq!(rig.control.command(rig.now, add()), Err(CommandError::Busy));
}

#[test]
fn stopping_lets_go_of_a_change_that_has_not_been_made() {
    let mut rig = Rig::new(RAID1);
    rig.command(add());
    rig.take_sent();
    rig.command(Command::Stop);
    let sent = rig.take_sent();
    let at = |is: fn(&Message) -> bool| sent.iter().position(|(_, m)| is(m)).unwrap();
    assert!(at(|m| matches!(m, Message::LeaseRelease { .. })) < at(|m| matches!(m, Message::Drain)));
    rig.turn(vec![(0, Message::Drained), (1, Message::Drained)]);
    assert!(rig.events.contains(&Event::Stopped { result: Ok(()) }) && rig.log.is_empty());
}

#[test]
fn read_auto_ends_with_the_first_write() {
    let mut rig = Rig::new(RAID1);
    rig.turn(vec![want(0, &[1])]);
    rig.settle();
    rig.command(Command::SetReadAuto);
    rig.turn([vec![give_back(0, &[1])], held()].concat());
    rig.settle();
    assert_eq!(rig.control.status().array_state, ArrayState::ReadAuto);
    rig.take_log();
    rig.turn(vec![(0, Message::Flush { token: 1 }), failed(0, 1)]);
    assert!(rig.take_log().is_empty(), "nothing is written before the first write");
    rig.take_sent();
    rig.turn(vec![want(1, &[4])]);
    rig.settle();
    assert_eq!(rig.take_grants(), [(1, 4)]);
    assert_eq!(rig.take_log(), ["m0 sb 19 resync 0 0 1", "m1 sb 19 resync 0 0 1"]);
    assert_eq!(rig.control.status().array_state, ArrayState::Active);
}

#[test]
fn suspensions_are_told_when_every_shard_has_come_to_them() {
    let mut rig = Rig::new(RAID1);
    let told = |rig: &mut Rig| {
        let what = |(_, m)| match m {
            Message::Suspend { number, what } => Some((number, what)),
            _ => None,
        };
        rig.take_sent().into_iter().filter_map(what).next_back()
    };
    let (lo, hi) = (Sector(100), Sector(200));
    rig.command(Command::SetSuspended { lo: Some(lo), hi: None, all: None });
    assert_eq!(told(&mut rig), None, "nothing lies before its end");
    rig.command(Command::SetSuspended { lo: None, hi: Some(hi), all: None });
    assert_eq!(told(&mut rig), Some((1, Suspension::Writes { lo, hi })));
    rig.turn(vec![(0, Message::Suspended { number: 1 })]);
    assert!(rig.control.status().suspended.pending && rig.events.is_empty());
    rig.turn(vec![(1, Message::Suspended { number: 1 })]);
    assert!(!rig.control.status().suspended.pending);
    assert_eq!(rig.events, [Event::Suspended { lo, hi, all: false }]);
    rig.command(Command::SetSuspended { lo: None, hi: None, all: Some(true) });
    assert_eq!(rig.control.status().array_state, ArrayState::Suspended);
    rig.command(Command::SetSuspended { lo: None, hi: Some(lo), all: Some(false) });
    assert_eq!(told(&mut rig), Some((3, Suspension::Nothing)));
    assert_eq!(rig.events.last(), Some(&Event::StateChanged(ArrayState::Clean)));
    assert!(rig.events.contains(&Event::Resumed));
}

#[test]
fn without_a_safe_mode_delay_the_array_stays_dirty_until_it_stops() {
    let mut rig = Rig::new(RAID1);
    rig.command(Command::SetSafeModeDelay(None));
    assert!(rig.take_sent().iter().all(|(_, m)| matches!(m, Message::SafeModeDelay(Nanos(u64::MAX)))));
    rig.turn(vec![want(0, &[1])]);
    rig.settle();
    rig.turn(vec![give_back(0, &[1])]);
    rig.take_log();
    rig.sleep(60_000);
    assert!(rig.take_log().is_empty());
    rig.command(Command::Stop);
    rig.turn(vec![(0, Message::Drained), (1, Message::Drained)]);
    rig.settle();
    assert_eq!(rig.take_log(), ["m0 flush", "m1 flush", "m0 sb 18 clean 0 1", "m1 sb 18 clean 0 1"]);
}

#[test]
fn flags_and_counts_of_members_are_written() {
    let mut rig = Rig::new(RAID1);
    rig.command(Command::SetReadErrors(MemberId(0), 24));
    rig.command(Command::SetWriteMostly(MemberId(1), true));
    assert!(rig.events.is_empty());
    rig.settle();
    let written = rig.on_disk(1).unwrap();
    assert!(written.member().write_mostly && !rig.on_disk(0).unwrap().member().write_mostly);
    assert_eq!(rig.on_disk(0).unwrap().member().corrected_reads, 24);
    assert_eq!(rig.events, [Event::WriteMostly { member: MemberId(1), on: true }]);
}

#[test]
fn a_mirrors_last_copy_may_be_made_to_fail() {
    let mut rig = Rig::new(Setup { missing: 1, ..RAID1 });
    rig.turn(vec![failed(0, 0)]);
    assert_eq!(rig.control.status().array_state, ArrayState::Clean, "it stays");
    rig.command(Command::SetFailLast(true));
    rig.turn(vec![failed(0, 0)]);
    assert_eq!(rig.control.status().array_state, ArrayState::Broken);
}
