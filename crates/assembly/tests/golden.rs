//! Decisions on arrays made by the real kernel: what it started, and how, must start here the same way.

mod common;

use common::{candidates, probe_all};
use raidus_assembly::{Decision, Forced, Options, Out, Reason, Seat, Standing, decide};
use raidus_golden::Case;
use raidus_units::Slot;

/// What raidus makes of a golden array, given what it cannot serve yet.
enum Expected {
    Start,
    Refuse(&'static str),
}

fn expected(case: &Case) -> Expected {
    let name = case.name.as_str();
    if name.starts_with("reshape-") {
        return Expected::Refuse("reshape-in-progress");
    }
    // The kernel refused these, too.
    if case.manifest.after_crash.as_ref().is_some_and(|a| a.needed_force) {
        return Expected::Refuse("dirty-degraded");
    }
    Expected::Start
}

#[test]
fn every_golden_array_is_decided_as_the_kernel_did() {
    for case in raidus_golden::cases() {
        let decision = decide(&probe_all(case), &Options::default());
        let text = raidus_assembly::explain(&decision);
        match expected(case) {
            Expected::Refuse(code) => {
                assert!(decision.start().is_none(), "{}:\n{text}", case.name);
                assert!(decision.reasons().iter().any(|r| r.code() == code), "{}:\n{text}", case.name);
            }
            Expected::Start => same_members(case, &decision),
        }
    }
}

/// Compares seats, degraded count, size and resync with what the kernel said when it ran the array.
fn same_members(case: &Case, decision: &Decision) {
    let text = raidus_assembly::explain(decision);
    let name = &case.name;
    let assembled = decision.start().unwrap_or_else(|| panic!("{name} does not start:\n{text}"));
    assert!(!assembled.read_only, "{name}");
    let manifest = &case.manifest;
    assert_eq!(assembled.geometry.array_sectors().bytes(), manifest.size_bytes, "{name}");
    for (verdict, member) in decision.members.iter().zip(&manifest.members) {
        let words: Vec<&str> = member.state.split(',').collect();
        let slot = member.slot.as_u64().map(|s| Slot(s as u16));
        let same = match (&verdict.standing, slot) {
            (Standing::In(Seat::InSync(s)), Some(slot)) => *s == slot && words.contains(&"in_sync"),
            (Standing::In(Seat::Rebuilding { slot: s, .. }), Some(slot)) => *s == slot && words.contains(&"spare"),
            (Standing::In(Seat::Replacing { slot: s, .. }), Some(slot)) => *s == slot && words.contains(&"replacement"),
            (Standing::In(Seat::Spare), _) => words.contains(&"spare"),
            (Standing::In(Seat::Journal), _) => words.contains(&"journal"),
            (Standing::Out(_), _) => words.contains(&"faulty") || member.state == "not in the array",
            _ => false,
        };
        assert!(same, "{name}: {} is {:?}, the kernel said {:?}\n{text}", verdict.name, verdict.standing, member);
    }
    let crashed = manifest.after_crash.is_some();
    let whole_again = manifest.resync_start.is_none() && !crashed;
    assert!(!whole_again || assembled.unsynced_from.is_none(), "{name}:\n{text}");
    if manifest.level == "raid0" || manifest.level == "linear" {
        assert_eq!(assembled.unsynced_from, None, "{name}");
    }
    let had_bitmap = manifest.bitmap.location.starts_with(['+', '-']);
    assert_eq!(assembled.bitmap.is_some(), had_bitmap, "{name}:\n{text}");
    for seated in &assembled.members {
        let found: Vec<String> = seated.bad_blocks.iter().map(|(at, len)| format!("{at} for {len} sectors")).collect();
        let listed = case.text_of_disk("badblocks.txt", seated.candidate).lines();
        let listed: Vec<&str> = listed.filter(|l| l.starts_with(' ')).map(str::trim).collect();
        assert_eq!(found, listed, "{name}: disk{}", seated.candidate);
    }
}

#[test]
fn a_crashed_array_is_resynced_where_its_bitmap_says() {
    let resync = |name: &str| {
        let decision = decide(&probe_all(raidus_golden::case(name)), &Options::default());
        let assembled = decision.start().unwrap_or_else(|| panic!("{name}")).clone();
        (assembled.unsynced_from.map(|s| s.0), assembled.bitmap.map(|b| b.bits.count_ones()))
    };
    assert_eq!(resync("dirty-raid5-1.2"), (Some(0), None));
    assert_eq!(resync("dirty-raid5-0.90"), (Some(0), None));
    assert_eq!(resync("dirty-raid0-1.2"), (None, None));
    let (from, bits) = resync("dirty-raid5-1.2-bitmap");
    assert!(from.is_some() && bits.is_some_and(|b| b > 0));
}

#[test]
fn interrupted_syncs_continue_where_they_stopped() {
    for case in raidus_golden::cases().iter().filter(|c| c.manifest.scenario == "resync") {
        let decision = decide(&probe_all(case), &Options::default());
        let assembled = decision.start().unwrap_or_else(|| panic!("{}", case.name));
        let from = assembled.unsynced_from.unwrap_or_else(|| panic!("{}", case.name));
        // With a bitmap the bits guide, from the start.
        if assembled.bitmap.is_none() {
            assert!(from.0 > 0 && from.0 < assembled.geometry.array_sectors().0, "{}: {from}", case.name);
        }
    }
    for case in raidus_golden::cases().iter().filter(|c| matches!(c.manifest.scenario.as_str(), "recovery" | "replace"))
    {
        let decision = decide(&probe_all(case), &Options::default());
        let assembled = decision.start().unwrap_or_else(|| panic!("{}", case.name));
        let valid_to = assembled.members.iter().find_map(|m| match m.seat {
            Seat::Rebuilding { valid_to, .. } | Seat::Replacing { valid_to, .. } => Some(valid_to),
            _ => None,
        });
        // 0.90 cannot store it: the member comes back as a spare.
        let stored = case.manifest.metadata != "0.90";
        assert_eq!(valid_to.is_some_and(|s| s.0 > 0), stored, "{}", case.name);
    }
}

#[test]
fn force_declares_a_dirty_degraded_array_clean() {
    let members = probe_all(raidus_golden::case("dirty-degraded-raid5-1.2"));
    let refused = decide(&members, &Options::default());
    assert_eq!(refused.reasons(), [Reason::DirtyDegraded { missing: vec![Slot(1)] }]);
    assert_eq!(refused.force_would, [Forced::MarkedClean { missing: vec![Slot(1)] }]);
    let forced = decide(&members, &Options { force: true, ..Options::default() });
    let assembled = forced.start().expect("starts");
    assert_eq!((assembled.unsynced_from, assembled.array.resync), (None, None));
    assert!(assembled.members.iter().all(|m| m.superblock.array().resync.is_none()));
}

#[test]
fn stale_members_stay_out_and_force_takes_the_newest_of_them() {
    let case = raidus_golden::case("degraded-raid5-1.2");
    let all = probe_all(case);
    let decision = decide(&all, &Options::default());
    assert!(matches!(decision.members[1].standing, Standing::Out(Out::Stale { .. } | Out::Removed { .. })));
    // Without another of the current members only the stale one could complete the array.
    let rest = candidates(case, &[0, 1]);
    let decision = decide(&rest, &Options { run: true, ..Options::default() });
    assert!(matches!(decision.reasons(), [Reason::NotEnough { force_helps: true, .. }]), "{:?}", decision.reasons());
    assert!(matches!(decision.force_would.as_slice(), [Forced::Stale { slot: Slot(1), .. }]));
    let forced = decide(&rest, &Options { force: true, ..Options::default() });
    let assembled = forced.start().expect("starts");
    assert_eq!(forced.members[1].standing, Standing::Forced(Slot(1)));
    // Restated but for the event count, by which whoever runs the array sees that the members are not level.
    let events: Vec<u64> = assembled.members.iter().map(|m| m.superblock.events()).collect();
    assert!(events[1] < events[0], "{events:?}");
    let facts = |m: usize| assembled.members[m].superblock.array();
    assert_eq!(facts(1), raidus_format::ArrayFacts { events: events[1], ..facts(0) });
}

#[test]
fn a_missing_member_that_was_there_needs_run() {
    let case = raidus_golden::case("raid6-1.2-n4-64k");
    let three = candidates(case, &[0, 1, 3]);
    let decision = decide(&three, &Options::default());
    assert_eq!(decision.reasons(), [Reason::Degraded { missing: vec![Slot(2)] }]);
    let decision = decide(&three, &Options { run: true, ..Options::default() });
    assert_eq!(decision.start().map(|a| a.members.len()), Some(3));
}
