//! Partial parity logs: what is written before a write may begin, and before a log is written over.

use raidus_units::{Level, Sector, Sectors, Slot};

use super::rig::{RAID1, Rig, Setup, failed, want};
use crate::io::{LogEntry, MemAddr, MemberOp};
use crate::msg::{LogWant, Message};

const RAID5: Setup = Setup { level: Level::Raid5, disks: 3, log: Some(600), ..RAID1 };

/// A write whose parity is in `slot`, with this much partial parity; named by its sector.
fn write(shard: u16, op: u64, slot: u16, sectors: u64) -> (u16, Message) {
    let partial = (sectors > 0).then_some((MemAddr(4096), Sectors(sectors)));
    let entry = LogEntry { data_sector: Sector(op), data_bytes: 4096, parity_slot: Slot(slot), partial };
    (shard, Message::LogWant(vec![LogWant { op, entry }]))
}

fn ended(shard: u16, op: u64) -> (u16, Message) {
    (shard, Message::LogDone(vec![op]))
}

/// Writes that may begin, by shard.
fn granted(rig: &mut Rig) -> Vec<(u16, u64)> {
    let grants = rig.take_sent().into_iter().filter_map(|(shard, m)| match m {
        Message::LogGranted(ops) => Some(ops.into_iter().map(move |op| (shard, op))),
        _ => None,
    });
    grants.flatten().collect()
}

/// With a lease out and all logs emptied.
fn writing(setup: Setup) -> Rig {
    let mut rig = Rig::new(setup);
    rig.turn(vec![want(0, &[1])]);
    rig.settle();
    rig.take_log();
    rig.take_sent();
    rig
}

#[test]
fn logs_are_emptied_before_anything_says_dirty() {
    for (unsynced_from, said) in [(None, ""), (Some(Sector(4096)), " untrusted")] {
        let mut rig = Rig::new(Setup { unsynced_from, ..RAID5 });
        rig.turn(vec![want(0, &[1])]);
        let emptied = [0, 1, 2].map(|m| [format!("m{m} zero 24+592"), format!("m{m} empty 16{said}")]);
        assert_eq!(rig.take_log(), emptied.concat());
        rig.complete();
        let dirty = [0, 1, 2].map(|m| format!("m{m} sb 19 resync 0 0 1 2"));
        assert_eq!(rig.take_log(), dirty);
        rig.complete();
        assert_eq!(rig.take_grants(), [(0, 1)]);
        // A ring from now on.
        assert!(rig.on_disk(0).unwrap().array().ppl.unwrap().multiple);
    }
}

#[test]
fn a_write_begins_when_it_is_logged_with_its_parity() {
    let mut rig = writing(RAID5);
    rig.turn(vec![write(0, 7, 2, 8), write(1, 8, 2, 8), write(1, 9, 0, 0)]);
    assert_eq!(rig.take_log(), ["m0 log 16 #1 [9]", "m2 log 16 #2 [7, 8]"]);
    assert!(granted(&mut rig).is_empty());
    rig.complete();
    assert_eq!(granted(&mut rig), [(0, 7), (1, 8), (1, 9)]);
}

#[test]
fn the_next_unit_waits_for_a_flush_that_began_after_the_last_write_ended() {
    let mut rig = writing(RAID5);
    rig.turn(vec![write(0, 1, 2, 8), write(0, 2, 2, 8)]);
    rig.complete();
    rig.take_log();
    rig.turn(vec![write(1, 3, 2, 8), ended(0, 1)]);
    assert!(rig.take_log().is_empty(), "a write of the unit has not ended");
    // One that began too early does not count.
    rig.turn(vec![(1, Message::Flush { token: 5 })]);
    assert_eq!(rig.take_log(), ["m0 flush", "m1 flush", "m2 flush"]);
    rig.turn(vec![ended(0, 2)]);
    assert!(rig.take_log().is_empty(), "one flush at a time");
    rig.complete();
    assert_eq!(rig.take_log(), ["m0 flush", "m1 flush", "m2 flush"]);
    rig.complete();
    // Behind the last one: 8 sectors of header, 16 of parity.
    assert_eq!(rig.take_log(), ["m2 log 40 #2 [3]"]);
    rig.complete();
    assert_eq!(granted(&mut rig), [(0, 1), (0, 2), (1, 3)]);
}

#[test]
fn a_flush_of_clients_makes_room_too() {
    let mut rig = writing(RAID5);
    rig.turn(vec![write(0, 1, 2, 8)]);
    rig.complete();
    rig.turn(vec![ended(0, 1), (0, Message::Flush { token: 5 })]);
    rig.settle();
    rig.take_log();
    rig.turn(vec![write(0, 2, 2, 8)]);
    assert_eq!(rig.take_log(), ["m2 log 32 #2 [2]"]);
}

#[test]
fn a_unit_holds_what_fits_and_the_ring_goes_round() {
    let mut rig = writing(RAID5);
    rig.turn((0..5).map(|op| write(0, op, 1, 100)).collect());
    let mut seen = Vec::new();
    let mut next = 0;
    while !rig.io.is_empty() {
        rig.complete();
        let grants = granted(&mut rig);
        rig.turn(grants.into_iter().map(|(shard, op)| ended(shard, op)).collect());
        seen.extend(rig.take_log().into_iter().filter(|line| line.contains("log")));
        next += 1;
        assert!(next < 20, "{seen:?}");
    }
    assert_eq!(seen, ["m1 log 16 #1 [0, 1]", "m1 log 224 #2 [2, 3]", "m1 log 432 #3 [4]"]);
    rig.turn(vec![write(0, 9, 1, 100)]);
    rig.settle();
    assert_eq!(rig.take_log().last().unwrap(), "m1 log 16 #4 [9]", "no room for it behind the last");
    // A log that is no ring has one place.
    let mut rig = writing(Setup { log: Some(100), ..RAID5 });
    rig.turn(vec![write(0, 1, 1, 8)]);
    rig.complete();
    rig.turn(vec![ended(0, 1), write(0, 2, 1, 8)]);
    rig.settle();
    assert_eq!(rig.take_log().last().unwrap(), "m1 log 16 #2 [2]");
}

#[test]
fn a_member_whose_log_cannot_be_written_fails_and_that_is_recorded_before_the_write_begins() {
    let mut rig = writing(RAID5);
    rig.turn(vec![write(0, 1, 2, 8)]);
    rig.failing.insert(2);
    rig.take_log();
    rig.complete();
    assert_eq!(rig.take_log(), [0, 1].map(|m| format!("m{m} sb 20 resync 0 0 1 F")));
    assert!(granted(&mut rig).is_empty());
    rig.complete();
    assert_eq!(granted(&mut rig), [(0, 1)]);
    // Nobody takes the parity any more.
    rig.turn(vec![ended(0, 1), write(0, 2, 2, 8)]);
    assert!(rig.take_log().is_empty());
    assert_eq!(granted(&mut rig), [(0, 2)]);
}

#[test]
fn a_write_waits_for_the_end_of_its_unit_though_the_member_is_out() {
    for missing in [0, 1] {
        let mut rig = writing(Setup { missing, ..RAID5 });
        rig.turn(vec![write(0, 1, 1, 8)]);
        let unit = rig.io.iter().position(|io| matches!(io.op, MemberOp::WriteLog { .. })).expect("a unit");
        let unit = rig.io.remove(unit);
        rig.turn(vec![failed(0, 1)]);
        rig.settle();
        assert!(granted(&mut rig).is_empty(), "the unit reads the write's memory");
        rig.io.push(unit);
        rig.complete();
        assert_eq!(granted(&mut rig), [(0, 1)]);
    }
}

#[test]
fn a_broken_array_keeps_no_write_waiting() {
    let mut rig = writing(Setup { missing: 1, ..RAID5 });
    rig.turn(vec![write(0, 1, 1, 8), write(0, 2, 1, 8)]);
    rig.failing.insert(1);
    rig.complete();
    let sent = rig.take_sent();
    let map = sent.iter().position(|(_, m)| matches!(m, Message::Map(map) if map.broken)).expect("a map");
    let grant = sent.iter().position(|(_, m)| matches!(m, Message::LogGranted(_))).expect("an answer");
    assert!(map < grant, "the writes must find the array broken");
}

#[test]
fn units_say_that_parity_is_not_to_be_trusted_while_a_resync_is_to_come() {
    let mut rig = writing(Setup { unsynced_from: Some(Sector(4096)), ..RAID5 });
    rig.turn(vec![write(0, 1, 2, 8)]);
    assert_eq!(rig.take_log(), ["m2 log 16 #1 [1] untrusted"]);
}
