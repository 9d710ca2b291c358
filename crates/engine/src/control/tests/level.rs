//! Members that a power cut left uneven by one event: they are made level before anything else is written.

use raidus_units::{Level, Sector};

use super::rig::{RAID1, Rig, Setup, give_back, want};

const UNEVEN: Setup = Setup { behind: Some(1), ..RAID1 };

fn want_one(rig: &mut Rig) {
    rig.turn(vec![want(0, &[3])]);
}

#[test]
fn uneven_members_are_made_level_before_the_array_goes_dirty() {
    let mut rig = Rig::new(UNEVEN);
    want_one(&mut rig);
    assert_eq!(rig.take_log(), ["m0 sb 18 clean 0 1", "m1 sb 18 clean 0 1"]);
    rig.complete_one(1);
    assert!(rig.take_log().is_empty(), "one member may still be behind");
    rig.complete_one(0);
    assert_eq!(rig.take_log(), ["m0 sb 19 resync 0 0 1", "m1 sb 19 resync 0 0 1"]);
    assert!(rig.take_grants().is_empty());
    rig.settle();
    assert_eq!(rig.take_grants(), [(0, 3)]);
}

#[test]
fn once_level_rounds_are_as_ever() {
    let mut rig = Rig::new(UNEVEN);
    want_one(&mut rig);
    rig.settle();
    rig.take_log();
    rig.turn(vec![give_back(0, &[3])]);
    rig.settle();
    let clean = ["m0 flush", "m1 flush", "m0 sb 18 clean 0 1", "m1 sb 18 clean 0 1"];
    assert_eq!(rig.take_log(), clean, "going clean takes its event back, as ever");
}

/// Whenever the power goes, no member is more than the one event behind that assembly forgives.
#[test]
fn members_are_never_two_events_apart() {
    for behind in 0..3 {
        for first in 0..3 {
            let mut rig = Rig::new(Setup { level: Level::Raid5, disks: 3, behind: Some(behind), ..RAID1 });
            let found = |member| 18 - u64::from(member == behind);
            want_one(&mut rig);
            let mut steps = 0;
            while !rig.io.is_empty() {
                // The writes of a round arrive in any order; a member that has none on disk has what it was found with.
                let next = (first + steps) % rig.io.len();
                rig.complete_one(next);
                steps += 1;
                let events: Vec<u64> =
                    (0..3).map(|m| rig.on_disk(m).map_or_else(|| found(m), |sb| sb.events())).collect();
                let (low, high) = (events.iter().min().unwrap(), events.iter().max().unwrap());
                assert!(high - low <= 1, "{events:?} after {steps} writes, {behind} was behind");
            }
            assert_eq!(steps, 6, "a round to be level and one to be dirty");
            assert_eq!(rig.take_grants(), [(0, 3)]);
        }
    }
}

#[test]
fn being_level_says_nothing_new() {
    let mut rig = Rig::new(Setup { unsynced_from: Some(Sector(4096)), ..UNEVEN });
    want_one(&mut rig);
    assert_eq!(rig.take_log(), ["m0 sb 18 resync 4096 0 1", "m1 sb 18 resync 4096 0 1"]);
    rig.settle();
    assert_eq!(rig.take_grants(), [(0, 3)]);
}

#[test]
fn a_member_that_fails_while_it_is_made_level_ends_up_behind_the_others() {
    let mut rig = Rig::new(Setup { level: Level::Raid5, disks: 3, ..UNEVEN });
    rig.failing.insert(1);
    want_one(&mut rig);
    rig.settle();
    assert_eq!(rig.take_grants(), [(0, 3)]);
    assert!(rig.on_disk(1).is_none(), "nothing reached it");
    for survivor in [0, 2] {
        let sb = rig.on_disk(survivor).unwrap();
        assert!(sb.events() > 18, "at event {} the failed one, which may hold event 18, looks fresh", sb.events());
        assert_eq!(sb.role_of(1), raidus_format::Role::Faulty);
    }
}

#[test]
fn a_spare_that_lags_behind_is_not_uneven() {
    let mut rig = Rig::new(Setup { spares: 1, behind: Some(2), ..RAID1 });
    want_one(&mut rig);
    assert_eq!(rig.take_log(), ["m0 sb 19 resync 0 0 1", "m1 sb 19 resync 0 0 1"]);
    rig.settle();
    assert_eq!(rig.take_grants(), [(0, 3)]);
}
