//! Dirty and clean: the order of writes, and the event count.

use raidus_format::MetadataVersion;
use raidus_units::{Level, Sector};

use super::rig::{RAID1, Rig, Setup, give_back, want};
use crate::control::{ArrayState, Event};

const BITMAP: Setup = Setup { bitmap: Some(0), ..RAID1 };

/// Writes once and goes idle; what was written for it.
fn dirty_and_clean(rig: &mut Rig) -> Vec<String> {
    rig.turn(vec![want(0, &[3])]);
    rig.settle();
    assert_eq!(rig.take_grants(), [(0, 3)]);
    rig.turn(vec![give_back(0, &[3])]);
    rig.settle();
    rig.take_log()
}

#[test]
fn nothing_is_written_before_somebody_writes() {
    let mut rig = Rig::new(BITMAP);
    rig.end_turn();
    rig.sleep(60_000);
    assert!(rig.log.is_empty());
    assert_eq!(rig.control.status().array_state, ArrayState::Clean);
}

#[test]
fn a_lease_waits_for_every_superblock() {
    let mut rig = Rig::new(RAID1);
    rig.turn(vec![want(0, &[3])]);
    assert_eq!(rig.take_log(), ["m0 sb 19 resync 0 0 1", "m1 sb 19 resync 0 0 1"]);
    assert_eq!(rig.control.status().array_state, ArrayState::WritePending);
    rig.complete_one(0);
    assert!(rig.take_grants().is_empty(), "one member does not say dirty yet");
    rig.complete_one(0);
    assert_eq!(rig.take_grants(), [(0, 3)]);
    assert_eq!(rig.control.status().array_state, ArrayState::Active);
}

#[test]
fn with_a_bitmap_each_step_is_durable_before_the_next() {
    let mut rig = Rig::new(BITMAP);
    rig.turn(vec![want(0, &[3])]);
    assert_eq!(rig.take_log(), ["m0 bitmap 19 cleared 18 [3]", "m1 bitmap 19 cleared 18 [3]"]);
    rig.complete_one(1);
    assert!(rig.take_log().is_empty());
    rig.complete_one(0);
    assert_eq!(rig.take_log(), ["m0 sb 19 resync 0 0 1", "m1 sb 19 resync 0 0 1"]);
    rig.complete();
    assert_eq!(rig.take_log(), ["m0 bitmap 19 cleared 18 [3]", "m1 bitmap 19 cleared 18 [3]"]);
    rig.complete_one(0);
    assert!(rig.take_grants().is_empty());
    rig.complete_one(0);
    assert_eq!(rig.take_grants(), [(0, 3)]);
}

#[test]
fn further_regions_need_their_bits_only() {
    let mut rig = Rig::new(BITMAP);
    rig.turn(vec![want(0, &[3])]);
    rig.settle();
    rig.take_log();
    rig.take_sent();
    rig.turn(vec![want(1, &[3]), want(1, &[4])]);
    assert_eq!(rig.take_grants(), [(1, 3)], "the bit is there already");
    assert_eq!(rig.take_log(), ["m0 bitmap 19 cleared 18 [3, 4]", "m1 bitmap 19 cleared 18 [3, 4]"]);
    rig.settle();
    assert_eq!(rig.take_grants(), [(1, 4)]);
}

#[test]
fn what_comes_in_one_turn_goes_in_one_round() {
    let mut rig = Rig::new(BITMAP);
    rig.turn(vec![want(0, &[1, 2]), want(1, &[2, 9])]);
    rig.settle();
    assert_eq!(rig.take_grants(), [(0, 1), (0, 2), (1, 2), (1, 9)]);
    assert_eq!(rig.take_log().len(), 3 * 2);
    let counters = rig.control.status().counters;
    assert_eq!((counters.superblock_rounds, counters.bitmap_pages), (1, 2));
}

#[test]
fn what_comes_during_a_round_joins_it_where_it_can() {
    let mut rig = Rig::new(BITMAP);
    rig.turn(vec![want(0, &[1])]);
    rig.turn(vec![want(1, &[2])]);
    rig.complete();
    rig.complete();
    assert_eq!(rig.take_log()[4..], ["m0 bitmap 19 cleared 18 [1, 2]", "m1 bitmap 19 cleared 18 [1, 2]"]);
    rig.turn(vec![want(1, &[5])]);
    rig.complete();
    assert_eq!(rig.take_grants(), [(0, 1), (1, 2)]);
    assert_eq!(rig.take_log(), ["m0 bitmap 19 cleared 18 [1, 2, 5]", "m1 bitmap 19 cleared 18 [1, 2, 5]"]);
    rig.complete();
    assert_eq!(rig.take_grants(), [(1, 5)]);
}

#[test]
fn idle_toggles_give_their_event_back() {
    let mut rig = Rig::new(RAID1);
    for _ in 0..3 {
        let log = dirty_and_clean(&mut rig);
        assert_eq!(log[..2], ["m0 sb 19 resync 0 0 1", "m1 sb 19 resync 0 0 1"]);
        assert_eq!(log[2..4], ["m0 flush", "m1 flush"]);
        assert_eq!(log[4..], ["m0 sb 18 clean 0 1", "m1 sb 18 clean 0 1"]);
    }
    assert_eq!(rig.control.status().array_state, ArrayState::Clean);
    let states = [ArrayState::WritePending, ArrayState::Active, ArrayState::ActiveIdle, ArrayState::Clean];
    assert_eq!(rig.events[..4], states.map(Event::StateChanged));
}

#[test]
fn events_of_a_new_array_never_fall_below_one() {
    let mut rig = Rig::new(Setup { events: 0, ..RAID1 });
    assert_eq!(dirty_and_clean(&mut rig)[4], "m0 sb 2 clean 0 1");
    assert_eq!(dirty_and_clean(&mut rig)[4], "m0 sb 2 clean 0 1");
}

#[test]
fn a_degraded_array_only_counts_up_and_writes_its_spares() {
    let mut rig = Rig::new(Setup { level: Level::Raid5, disks: 3, missing: 1, spares: 1, events: 41, ..RAID1 });
    let log = dirty_and_clean(&mut rig);
    let sb = |m, text: &str| format!("m{m} sb {text} 0 1");
    assert_eq!(log[..3], [0, 1, 2].map(|m| sb(m, "42 resync 0")));
    assert_eq!(log[5..], [0, 1, 2].map(|m| sb(m, "43 clean")));
}

#[test]
fn toggles_of_a_whole_array_let_spares_sleep() {
    let mut rig = Rig::new(Setup { spares: 1, ..RAID1 });
    let log = dirty_and_clean(&mut rig);
    assert!(log.iter().all(|line| !line.starts_with("m2")), "{log:?}");
    assert_eq!(log.last().unwrap(), "m1 sb 18 clean 0 1");
}

#[test]
fn with_a_bitmap_the_clean_mark_comes_after_flush_and_bitmap_superblock() {
    let mut rig = Rig::new(BITMAP);
    let log = dirty_and_clean(&mut rig);
    let clean = [
        ["m0 flush", "m1 flush"],
        ["m0 bitmap 18 cleared 18 [3]", "m1 bitmap 18 cleared 18 [3]"],
        ["m0 sb 18 clean 0 1", "m1 sb 18 clean 0 1"],
    ];
    assert_eq!(log[6..], clean.concat());
}

#[test]
fn the_clean_mark_waits_for_every_lease_and_every_flush() {
    let mut rig = Rig::new(RAID1);
    rig.turn(vec![want(0, &[1]), want(1, &[1])]);
    rig.settle();
    rig.take_log();
    rig.turn(vec![give_back(0, &[1])]);
    assert!(rig.take_log().is_empty());
    rig.turn(vec![give_back(1, &[1])]);
    assert_eq!(rig.take_log(), ["m0 flush", "m1 flush"]);
    rig.complete_one(0);
    assert!(rig.take_log().is_empty());
    rig.complete_one(0);
    assert_eq!(rig.take_log(), ["m0 sb 18 clean 0 1", "m1 sb 18 clean 0 1"]);
}

#[test]
fn a_write_during_the_flush_keeps_the_array_dirty() {
    let mut rig = Rig::new(RAID1);
    rig.turn(vec![want(0, &[1])]);
    rig.settle();
    rig.turn(vec![give_back(0, &[1])]);
    rig.take_log();
    rig.take_sent();
    rig.turn(vec![want(0, &[1])]);
    assert_eq!(rig.take_grants(), [(0, 1)]);
    rig.turn(vec![give_back(0, &[1])]);
    rig.complete();
    // That flush began before the last write ended: another one is needed.
    assert_eq!(rig.take_log(), ["m0 flush", "m1 flush"]);
    rig.complete();
    assert_eq!(rig.take_log(), ["m0 sb 18 clean 0 1", "m1 sb 18 clean 0 1"]);
}

#[test]
fn a_write_during_the_clean_round_waits_for_a_new_dirty_mark() {
    let mut rig = Rig::new(RAID1);
    rig.turn(vec![want(0, &[1])]);
    rig.settle();
    rig.turn(vec![give_back(0, &[1])]);
    rig.complete();
    rig.take_log();
    rig.take_sent();
    rig.turn(vec![want(0, &[1])]);
    assert!(rig.take_grants().is_empty());
    rig.complete();
    assert!(rig.take_grants().is_empty());
    assert_eq!(rig.take_log(), ["m0 sb 19 resync 0 0 1", "m1 sb 19 resync 0 0 1"]);
    rig.complete();
    assert_eq!(rig.take_grants(), [(0, 1)]);
}

#[test]
fn an_array_found_dirty_keeps_its_checkpoint() {
    let mut rig = Rig::new(Setup { unsynced_from: Some(Sector(4096)), ..RAID1 });
    let log = dirty_and_clean(&mut rig);
    assert_eq!(log[0], "m0 sb 19 resync 0 0 1", "marked anew although not clean on disk");
    assert_eq!(log[4], "m0 sb 20 resync 4096 0 1");
}

#[test]
fn raid10_and_parity_levels_behave_alike() {
    for level in [Level::Raid10, Level::Raid4, Level::Raid5, Level::Raid6] {
        let mut rig = Rig::new(Setup { level, disks: 4, ..RAID1 });
        let log = dirty_and_clean(&mut rig);
        assert_eq!((log[0].as_str(), log[8].as_str()), ("m0 sb 19 resync 0 0 1 2 3", "m0 sb 18 clean 0 1 2 3"));
    }
}

#[test]
fn every_version_of_the_superblock() {
    for version in [MetadataVersion::V1_0, MetadataVersion::V1_1] {
        let mut rig = Rig::new(Setup { version, ..RAID1 });
        let log = dirty_and_clean(&mut rig);
        assert_eq!((log[0].as_str(), log[4].as_str()), ("m0 sb 19 resync 0 0 1", "m0 sb 18 clean 0 1"));
    }
}

#[test]
fn superblocks_of_the_old_format() {
    let mut rig = Rig::new(Setup { version: MetadataVersion::V0_90, bitmap: Some(0), ..RAID1 });
    let log = dirty_and_clean(&mut rig);
    let member_0: Vec<_> = log.iter().filter(|line| line.starts_with("m0")).collect();
    let order = [
        "m0 bitmap 19 cleared 18 [3]",
        "m0 sb 19 resync 0 0 1",
        "m0 bitmap 19 cleared 18 [3]",
        "m0 flush",
        "m0 bitmap 18 cleared 18 [3]",
        "m0 sb 18 clean 0 1",
    ];
    assert_eq!(member_0, order);
}

#[test]
fn utime_is_the_wall_clock() {
    let mut rig = Rig::new(RAID1);
    rig.sleep(9_500);
    dirty_and_clean(&mut rig);
    assert_eq!(rig.on_disk(0).unwrap().array().utime.secs, 1_700_000_010);
}
