//! Stopping and read-only.

use raidus_units::Level;

use super::rig::{RAID1, Rig, Setup, give_back, want};
use crate::control::{ArrayState, Command, Event, StopError};
use crate::io::RequestError;
use crate::msg::{Message, Region};

const STOPPED: Event = Event::Stopped { result: Ok(()) };
const BITMAP: Setup = Setup { bitmap: Some(0b1000_0000), ..RAID1 };

fn drained() -> Vec<(u16, Message)> {
    vec![(0, Message::Drained), (1, Message::Drained)]
}

#[test]
fn an_array_nobody_wrote_to_is_left_as_it_was() {
    for setup in [RAID1, BITMAP] {
        let mut rig = Rig::new(setup);
        rig.command(Command::Stop);
        assert!(rig.take_sent().iter().all(|(_, m)| matches!(m, Message::Drain)));
        rig.turn(vec![(0, Message::Drained)]);
        assert!(!rig.events.contains(&STOPPED));
        rig.turn(vec![(1, Message::Drained)]);
        assert!(rig.log.is_empty(), "{:?}", rig.log);
        assert!(rig.events.contains(&STOPPED));
        assert_eq!(rig.control.status().array_state, ArrayState::Clear);
    }
}

#[test]
fn a_dirty_array_is_flushed_and_marked_clean() {
    let mut rig = Rig::new(RAID1);
    rig.turn(vec![want(0, &[1])]);
    rig.settle();
    rig.take_log();
    rig.command(Command::Stop);
    rig.turn(vec![want(1, &[2])]);
    assert_eq!(rig.take_grants(), [(0, 1), (1, 2)], "what is under way may finish");
    rig.turn(vec![give_back(0, &[1]), (0, Message::Drained)]);
    assert!(rig.take_log().is_empty());
    rig.turn(vec![give_back(1, &[2]), (1, Message::Drained)]);
    assert_eq!(rig.take_log(), ["m0 flush", "m1 flush"]);
    rig.complete();
    assert_eq!(rig.take_log(), ["m0 sb 18 clean 0 1", "m1 sb 18 clean 0 1"]);
    assert!(!rig.events.contains(&STOPPED));
    rig.complete();
    assert!(rig.events.contains(&STOPPED));
}

#[test]
fn stopping_clears_all_bits_first_noting_when() {
    let mut rig = Rig::new(BITMAP);
    rig.turn(vec![want(0, &[1])]);
    rig.settle();
    rig.take_log();
    rig.command(Command::Stop);
    rig.turn([vec![give_back(0, &[1])], drained()].concat());
    rig.settle();
    let both = |text: &str| [0, 1].map(|m| format!("m{m} {text}"));
    let order = ["flush", "bitmap 18 cleared 18 [1, 7]", "sb 18 clean 0 1", "bitmap 18 cleared 18 []"];
    assert_eq!(rig.take_log(), order.map(both).concat());
    assert!(rig.events.contains(&STOPPED));
}

#[test]
fn stopping_while_degraded_keeps_the_bits() {
    let mut rig = Rig::new(Setup { missing: 1, ..BITMAP });
    rig.turn(vec![want(0, &[1])]);
    rig.settle();
    rig.command(Command::Stop);
    rig.turn([vec![give_back(0, &[1])], drained()].concat());
    rig.settle();
    assert_eq!(rig.take_log().last().unwrap(), "m0 sb 20 clean 0");
    assert!(rig.bit_on_disk(0, 1) && rig.bit_on_disk(0, 7));
    assert!(rig.events.contains(&STOPPED));
}

#[test]
fn a_member_that_fails_while_stopping_is_recorded() {
    let mut rig = Rig::new(RAID1);
    rig.turn(vec![want(0, &[1])]);
    rig.settle();
    rig.take_log();
    rig.failing.insert(1);
    rig.command(Command::Stop);
    rig.turn([vec![give_back(0, &[1])], drained()].concat());
    rig.settle();
    // The flush counts once its failure is on record.
    assert_eq!(rig.take_log()[2..], ["m0 sb 20 resync 0 0 F", "m0 sb 21 clean 0 F"]);
    assert!(rig.events.contains(&STOPPED));
}

#[test]
fn data_that_cannot_be_flushed_leaves_the_array_dirty() {
    let mut rig = Rig::new(Setup { missing: 1, ..RAID1 });
    rig.turn(vec![want(0, &[1])]);
    rig.settle();
    rig.take_log();
    rig.failing.insert(0);
    rig.command(Command::Stop);
    rig.turn([vec![give_back(0, &[1])], drained()].concat());
    rig.settle();
    assert_eq!(rig.take_log(), ["m0 flush"]);
    assert!(rig.events.contains(&Event::Stopped { result: Err(StopError::FlushFailed) }));
}

#[test]
fn a_failed_flush_is_tried_again_later_but_not_at_once() {
    let mut rig = Rig::new(Setup { missing: 1, ..RAID1 });
    rig.turn(vec![want(0, &[1])]);
    rig.settle();
    rig.take_log();
    rig.failing.insert(0);
    rig.turn(vec![give_back(0, &[1])]);
    rig.settle();
    rig.sleep(4_000);
    assert_eq!(rig.take_log(), ["m0 flush"]);
    rig.failing.clear();
    rig.sleep(2_000);
    assert_eq!(rig.take_log(), ["m0 flush", "m0 sb 20 clean 0"]);
}

#[test]
fn stopping_without_redundancy_flushes() {
    let mut rig = Rig::new(Setup { level: Level::Raid0, ..RAID1 });
    rig.command(Command::Stop);
    rig.turn(drained());
    rig.settle();
    assert_eq!(rig.take_log(), ["m0 flush", "m1 flush"]);
    assert!(rig.events.contains(&STOPPED));
}

#[test]
fn a_read_only_array_is_never_written() {
    let mut rig = Rig::new(Setup { read_only: true, ..BITMAP });
    rig.turn(vec![want(0, &[1]), (0, Message::Flush { token: 4 })]);
    let sent = rig.take_sent();
    let refused = |(_, m): &(u16, Message)| matches!(m, Message::LeaseRefused { error: RequestError::ReadOnly, .. });
    let flushed = |(_, m): &(u16, Message)| matches!(m, Message::FlushDone { token: 4, result: Ok(()) });
    assert!(sent.iter().any(refused) && sent.iter().any(flushed) && sent.len() == 2);
    rig.sleep(60_000);
    rig.command(Command::Stop);
    rig.turn(drained());
    assert!(rig.log.is_empty());
    assert!(rig.events.contains(&STOPPED));
}

#[test]
fn going_read_only_takes_leases_back_and_marks_clean() {
    let mut rig = Rig::new(RAID1);
    rig.turn(vec![want(0, &[1]), want(1, &[2])]);
    rig.settle();
    rig.take_log();
    rig.take_sent();
    rig.command(Command::SetReadOnly(true));
    let sent = rig.take_sent();
    let revoked = |shard, region| {
        sent.iter().any(|(s, m)| *s == shard && matches!(m, Message::LeaseRevoke(r) if r[..] == [Region(region)]))
    };
    assert!(revoked(0, 1) && revoked(1, 2));
    rig.turn(vec![give_back(0, &[1])]);
    assert!(rig.log.is_empty());
    rig.turn(vec![give_back(1, &[2])]);
    rig.settle();
    assert_eq!(rig.take_log()[2..], ["m0 sb 18 clean 0 1", "m1 sb 18 clean 0 1"]);
    assert_eq!(rig.control.status().array_state, ArrayState::ReadOnly);
    rig.turn(vec![want(0, &[1])]);
    assert!(rig.log.is_empty());

    rig.command(Command::SetReadOnly(false));
    rig.turn(vec![want(0, &[1])]);
    rig.settle();
    assert_eq!(rig.take_grants(), [(0, 1)]);
}
