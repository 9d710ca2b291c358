//! More members lost than the level bears.

use raidus_units::{Level, MemberId};

use super::rig::{RAID1, Rig, Setup, failed, give_back, want};
use crate::control::{ArrayState, Command, Event, StopError};
use crate::io::RequestError;
use crate::msg::Message;

const RAID5: Setup = Setup { level: Level::Raid5, disks: 3, ..RAID1 };

fn refusals(sent: &[(u16, Message)]) -> Vec<(u16, u16)> {
    let refusal = |(shard, m): &(u16, Message)| match m {
        Message::FailureRefused { member, .. } => Some((*shard, member.0)),
        _ => None,
    };
    sent.iter().filter_map(refusal).collect()
}

fn told_broken(sent: &[(u16, Message)]) -> bool {
    sent.iter().any(|(_, m)| matches!(m, Message::Map(map) if map.broken))
}

#[test]
fn the_last_copy_of_a_mirror_stays() {
    let mut rig = Rig::new(Setup { missing: 1, ..RAID1 });
    rig.turn(vec![failed(1, 0)]);
    assert_eq!(refusals(&rig.take_sent()), [(1, 0)]);
    assert!(rig.log.is_empty());
    let status = rig.control.status();
    assert!(!status.map.broken && status.map.slots[0].member == Some(MemberId(0)));
    // Raid10: only a partner's loss counts.
    let mut rig = Rig::new(Setup { level: Level::Raid10, disks: 4, ..RAID1 });
    rig.turn(vec![failed(0, 0)]);
    rig.turn(vec![failed(0, 2)]);
    rig.turn(vec![failed(0, 1), failed(0, 3)]);
    rig.settle();
    assert_eq!(refusals(&rig.take_sent()), [(0, 1), (0, 3)]);
    assert_eq!(rig.on_disk(1).unwrap().array_update().devices.len(), 4);
    assert_eq!(rig.control.status().degraded, 2);
}

#[test]
fn a_mirror_that_cannot_record_a_failure_never_says_it_is_durable() {
    let mut rig = Rig::new(RAID1);
    rig.turn(vec![want(0, &[1])]);
    rig.settle();
    rig.take_sent();
    rig.failing.insert(0);
    rig.turn(vec![failed(0, 1)]);
    rig.settle();
    assert!(rig.durable().is_empty());
    let sent = rig.take_sent();
    assert!(told_broken(&sent));
    assert_eq!(refusals(&sent), [(0, 1)]);
    assert!(rig.events.contains(&Event::Broken));
}

#[test]
fn when_no_mirror_can_be_marked_dirty_nobody_may_write() {
    let mut rig = Rig::new(RAID1);
    rig.failing.extend([0, 1]);
    rig.turn(vec![want(0, &[1])]);
    rig.settle();
    let sent = rig.take_sent();
    assert!(told_broken(&sent));
    let refused = |(_, m): &(u16, Message)| matches!(m, Message::LeaseRefused { error: RequestError::Io, .. });
    assert!(sent.iter().any(refused));
    assert!(!sent.iter().any(|(_, m)| matches!(m, Message::LeaseGranted(_))));
    assert_eq!(rig.take_log().len(), 2, "nothing is written after that");
    rig.turn(vec![want(1, &[4]), (1, Message::Flush { token: 0 })]);
    assert!(rig.log.is_empty());
    assert!(rig.take_sent().iter().any(refused));
}

#[test]
fn losses_beyond_the_parity_are_not_recorded() {
    let mut rig = Rig::new(RAID5);
    rig.turn(vec![want(0, &[1])]);
    rig.settle();
    rig.turn(vec![failed(0, 1)]);
    rig.settle();
    rig.take_log();
    rig.take_sent();
    rig.turn(vec![failed(0, 2), failed(1, 2)]);
    rig.settle();
    let sent = rig.take_sent();
    assert!(told_broken(&sent));
    assert_eq!(refusals(&sent), [(0, 2), (1, 2)]);
    rig.turn(vec![failed(0, 0), give_back(0, &[1])]);
    rig.sleep(60_000);
    assert_eq!(refusals(&rig.take_sent()), [(0, 0)]);
    assert!(rig.log.is_empty(), "superblocks stay as they are");
    assert_eq!(rig.control.status().array_state, ArrayState::Broken);
}

#[test]
fn members_that_vanish_together_leave_no_trace() {
    let mut rig = Rig::new(RAID5);
    rig.turn(vec![want(0, &[1])]);
    rig.settle();
    rig.take_log();
    rig.take_sent();
    rig.turn(vec![failed(0, 0), failed(0, 1), failed(1, 2)]);
    rig.settle();
    assert!(rig.log.is_empty());
    let mut refused = refusals(&rig.take_sent());
    refused.sort_unstable();
    assert_eq!(refused, [(0, 0), (0, 1), (1, 2)]);
}

#[test]
fn survivors_that_fail_while_recording_break_the_array() {
    let mut rig = Rig::new(Setup { level: Level::Raid6, disks: 5, ..RAID1 });
    rig.turn(vec![want(0, &[1])]);
    rig.settle();
    rig.take_sent();
    rig.turn(vec![failed(0, 0)]);
    rig.failing.extend([1, 2]);
    rig.take_log();
    rig.settle();
    assert!(rig.log.is_empty() && rig.durable().is_empty());
    assert!(told_broken(&rig.take_sent()));
}

#[test]
fn without_redundancy_nothing_is_ever_recorded() {
    for level in [Level::Raid0, Level::Linear] {
        let mut rig = Rig::new(Setup { level, ..RAID1 });
        rig.turn(vec![want(0, &[1])]);
        assert_eq!(rig.take_grants(), [(0, 1)], "never dirty");
        rig.turn(vec![give_back(0, &[1]), failed(0, 1), failed(1, 1)]);
        rig.settle();
        assert_eq!(refusals(&rig.take_sent()), [(0, 1), (1, 1)]);
        assert!(rig.log.is_empty());
        assert_eq!(rig.control.status().array_state, ArrayState::Broken);
        assert!(!rig.control.status().map.broken, "what is on the other member can be had");
        rig.failing.insert(1);
        rig.turn(vec![(0, Message::Flush { token: 0 })]);
        rig.settle();
        let errors = |(_, m): &(u16, Message)| matches!(m, Message::FlushDone { result: Err(_), .. });
        assert!(rig.take_sent().iter().any(errors));
    }
}

#[test]
fn a_broken_array_can_be_stopped() {
    let mut rig = Rig::new(RAID5);
    rig.turn(vec![want(0, &[1])]);
    rig.settle();
    rig.turn(vec![failed(0, 0), failed(0, 1)]);
    rig.take_log();
    rig.command(Command::Stop);
    rig.turn(vec![give_back(0, &[1]), (0, Message::Drained), (1, Message::Drained)]);
    rig.settle();
    assert!(rig.log.is_empty());
    assert!(rig.events.contains(&Event::Stopped { result: Err(StopError::Broken) }));
}
