//! Bits: when they go, and when they stay.

use raidus_units::{Level, Sector};

use super::rig::{RAID1, Rig, Setup, failed, give_back, want};

const BITMAP: Setup = Setup { bitmap: Some(0), ..RAID1 };

/// Region 3 was written and given back; the array is clean.
fn written(setup: Setup) -> Rig {
    let mut rig = Rig::new(setup);
    rig.turn(vec![want(0, &[3])]);
    rig.settle();
    rig.turn(vec![give_back(0, &[3])]);
    rig.settle();
    rig.take_log();
    rig
}

#[test]
fn an_idle_bit_goes_after_a_daemon_period() {
    let mut rig = written(BITMAP);
    rig.sleep(4_900);
    assert!(rig.log.is_empty());
    rig.sleep(200);
    // Flushed already, for the clean mark; events_cleared is right.
    assert_eq!(rig.take_log(), ["m0 bitmap 18 cleared 18 []", "m1 bitmap 18 cleared 18 []"]);
    rig.sleep(60_000);
    assert!(rig.log.is_empty());
}

#[test]
fn while_others_are_busy_it_takes_a_flush_and_events_cleared() {
    let mut rig = Rig::new(BITMAP);
    rig.turn(vec![want(0, &[3]), want(1, &[4])]);
    rig.settle();
    rig.turn(vec![give_back(0, &[3])]);
    rig.take_log();
    rig.sleep(5_000);
    let both = |text: &str| [0, 1].map(|m| format!("m{m} {text}"));
    let order = ["flush", "bitmap 19 cleared 19 [3, 4]", "bitmap 19 cleared 19 [4]"];
    assert_eq!(rig.take_log(), order.map(both).concat());
    // The array goes clean: events fall back, and events_cleared with them.
    rig.turn(vec![give_back(1, &[4])]);
    rig.settle();
    assert_eq!(rig.take_log()[2], "m0 bitmap 18 cleared 18 [4]");
}

#[test]
fn a_region_taken_again_during_the_flush_keeps_its_bit() {
    let mut rig = Rig::new(BITMAP);
    rig.turn(vec![want(0, &[3, 4, 5])]);
    rig.settle();
    rig.turn(vec![give_back(0, &[3, 4])]);
    rig.take_log();
    rig.take_sent();
    rig.now = rig.now.plus(raidus_units::Nanos::from_millis(6_000));
    rig.end_turn();
    assert_eq!(rig.take_log(), ["m0 flush", "m1 flush"]);
    rig.turn(vec![want(1, &[3])]);
    assert_eq!(rig.take_grants(), [(1, 3)]);
    rig.settle();
    assert_eq!(rig.take_log().last().unwrap(), "m1 bitmap 19 cleared 19 [3, 5]");
}

#[test]
fn a_region_taken_while_its_bit_goes_gets_it_back_first() {
    let mut rig = Rig::new(BITMAP);
    rig.turn(vec![want(0, &[3, 4])]);
    rig.settle();
    rig.turn(vec![give_back(0, &[3])]);
    rig.take_log();
    rig.take_sent();
    rig.now = rig.now.plus(raidus_units::Nanos::from_millis(6_000));
    rig.end_turn();
    rig.complete();
    rig.complete();
    assert_eq!(rig.take_log().last().unwrap(), "m1 bitmap 19 cleared 19 [4]", "under way");
    rig.turn(vec![want(1, &[3])]);
    assert!(rig.take_grants().is_empty());
    rig.complete();
    assert!(rig.take_grants().is_empty());
    assert_eq!(rig.take_log(), ["m0 bitmap 19 cleared 19 [3, 4]", "m1 bitmap 19 cleared 19 [3, 4]"]);
    rig.complete();
    assert_eq!(rig.take_grants(), [(1, 3)]);
}

#[test]
fn while_a_member_is_missing_no_bit_goes() {
    let mut rig = written(Setup { missing: 1, ..BITMAP });
    rig.sleep(60_000);
    assert!(rig.log.is_empty());
    // Nor those that were set when it left.
    let mut rig = Rig::new(BITMAP);
    rig.turn(vec![want(0, &[3, 4])]);
    rig.settle();
    rig.turn(vec![give_back(0, &[3])]);
    rig.turn(vec![failed(0, 1)]);
    rig.settle();
    rig.turn(vec![give_back(0, &[4])]);
    rig.settle();
    rig.take_log();
    rig.sleep(60_000);
    assert!(rig.log.is_empty());
    assert!(rig.bit_on_disk(0, 3) && rig.bit_on_disk(0, 4));
    assert_eq!(rig.control.status().bitmap.unwrap().events_cleared, 18);
}

#[test]
fn bits_found_set_reach_every_member_before_the_bitmap_is_called_fresh() {
    let mut rig = Rig::new(Setup { bitmap: Some(0b110), unsynced_from: Some(Sector::ZERO), ..RAID1 });
    rig.turn(vec![want(0, &[3])]);
    rig.settle();
    let seed = rig.take_log();
    assert_eq!(seed[0], "m0 bitmap 18 cleared 18 [1, 2, 3]", "with the events as found");
    assert_eq!(seed[2], "m0 bitmap 19 cleared 18 [1, 2, 3]");
    assert_eq!(rig.take_grants(), [(0, 3)]);
    // A resync has to visit them; they do not go by themselves.
    rig.turn(vec![give_back(0, &[3])]);
    rig.settle();
    rig.sleep(60_000);
    assert_eq!(rig.take_log().last().unwrap(), "m1 bitmap 20 cleared 20 [1, 2]");
}

#[test]
fn stray_bits_of_a_clean_array_go_with_the_others() {
    let mut rig = Rig::new(Setup { bitmap: Some(0b110), ..RAID1 });
    rig.sleep(60_000);
    assert!(rig.log.is_empty(), "nobody has written yet");
    rig.turn(vec![want(0, &[3])]);
    rig.settle();
    rig.turn(vec![give_back(0, &[3])]);
    rig.settle();
    rig.sleep(10_000);
    assert_eq!(rig.take_log().last().unwrap(), "m1 bitmap 18 cleared 18 []");
}

#[test]
fn raid10_bits_are_array_regions_and_mdstat_counts_pages() {
    let mut rig = Rig::new(Setup { level: Level::Raid10, disks: 4, ..BITMAP });
    rig.turn(vec![want(0, &[31])]);
    rig.settle();
    let status = rig.control.status().bitmap.unwrap();
    assert_eq!((status.pages, status.pages_used, status.dirty, status.bits), (1, 1, 1, 32));
    assert!((0..4).all(|m| rig.bit_on_disk(m, 31)));
    rig.take_sent();
    rig.turn(vec![want(0, &[32])]);
    assert!(rig.take_grants().is_empty(), "there is no such region");
}

#[test]
fn bits_that_replace_stale_ones_count_once_all_are_there() {
    let mut rig = Rig::new(Setup { bitmap: Some(u32::MAX), stale: true, unsynced_from: Some(Sector::ZERO), ..RAID1 });
    rig.turn(vec![want(0, &[3])]);
    rig.settle();
    let log = rig.take_log();
    assert!(log[0].starts_with("m0 bitmap 18 cleared 18 stale ["), "{}", log[0]);
    assert!(log[2].starts_with("m0 bitmap 19 cleared 18 ["), "{}", log[2]);
    assert_eq!(log[4], "m0 sb 19 resync 0 0 1");
    assert_eq!(rig.take_grants(), [(0, 3)], "the seed has put the bit there");
}
