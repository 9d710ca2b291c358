//! Syncs: what is on record before members are written to, when a checkpoint counts, and how a replacement ends.

use raidus_format::{MetadataVersion, Role};
use raidus_units::{Level, MemberId, Nanos, Sector, Slot};

use super::rig::{RAID1, Rig, Setup, failed};
use crate::control::{Command, CommandError, Event, SyncRequest};
use crate::io::Input;
use crate::map::MemberState;
use crate::msg::{Message, Peer, ShardId};
use crate::sync::{SyncAction, SyncJob, SyncWork};

const RAID5: Setup = Setup { level: Level::Raid5, disks: 3, shards: 1, ..RAID1 };

/// Lets syncs begin, and takes what is written for that.
fn unfreeze(rig: &mut Rig) -> Vec<String> {
    rig.command(Command::Sync(SyncRequest::Idle));
    rig.settle();
    rig.take_log()
}

fn jobs(rig: &mut Rig) -> Vec<SyncJob> {
    let job = |(_, message)| match message {
        Message::Sync(job) => Some(job),
        _ => None,
    };
    rig.take_sent().into_iter().filter_map(job).collect()
}

fn done(window: u64) -> (u16, Message) {
    (0, Message::SyncDone { window, outcome: Box::default() })
}

/// Has every window done until there are no more; gives the ranges in order.
fn run_windows(rig: &mut Rig, mut open: Vec<SyncJob>) -> Vec<(u64, u64)> {
    let mut ranges = Vec::new();
    while !open.is_empty() {
        for job in std::mem::take(&mut open) {
            ranges.extend(job.ranges.iter().map(|(start, len)| (start.0, start.0 + len.0)));
            rig.turn(vec![done(job.window)]);
            rig.settle();
            open.extend(jobs(rig));
        }
    }
    ranges
}

#[test]
fn a_spare_is_on_record_before_it_is_written_to() {
    let mut rig = Rig::new(Setup { missing: 1, spares: 1, ..RAID5 });
    rig.command(Command::Sync(SyncRequest::Idle));
    assert!(jobs(&mut rig).is_empty(), "the superblocks do not say yet whose slot it is");
    assert_eq!(rig.take_log(), ["m2 sb 17 clean 0 1 2"], "first the one that gets the slot, behind the others");
    rig.complete();
    assert_eq!(rig.take_log(), ["m0 sb 19 clean 0 1 2", "m1 sb 19 clean 0 1 2"]);
    rig.complete();
    assert_eq!(rig.take_log(), ["m2 sb 19 clean 0 1 2"], "it speaks for the array when the others list it");
    rig.settle();
    let sb = rig.on_disk(2).unwrap();
    assert_eq!(sb.member().role, Role::Slot(Slot(2)));
    assert_eq!(sb.member().recovery.map(|r| r.offset), Some(Sector::ZERO));
    let jobs = jobs(&mut rig);
    assert!(!jobs.is_empty() && jobs.iter().all(|job| job.work == SyncWork::Recover), "{jobs:?}");
    assert!(rig.events.contains(&Event::SyncStarted { action: SyncAction::Recover }));
}

/// Wherever the power goes, in whatever order writes arrive: a member of which others say that it has a slot says itself that it has not
/// been rebuilt. What md takes from others is the slot alone.
#[test]
fn nobody_hears_of_a_slot_before_the_member_itself() {
    for behind in [None, Some(0), Some(1), Some(2)] {
        for first in 0..3 {
            let mut rig = Rig::new(Setup { missing: 1, spares: 1, behind, ..RAID5 });
            rig.command(Command::Sync(SyncRequest::Idle));
            let mut steps = 0;
            while rig.on_disk(0).is_none_or(|sb| sb.role_of(2) == Role::Spare) || !rig.io.is_empty() {
                assert!(steps < 20 && !rig.io.is_empty(), "the others never hear of it");
                rig.complete_one((first + steps) % rig.io.len());
                steps += 1;
                let own = rig.on_disk(2);
                let admits =
                    own.is_some_and(|sb| sb.member().role == Role::Slot(Slot(2)) && sb.member().recovery.is_some());
                let told = [0, 1].into_iter().filter_map(|m| rig.on_disk(m)).any(|sb| sb.role_of(2) != Role::Spare);
                assert!(admits || !told, "{behind:?} was behind, after {steps} writes");
                if steps > 8 {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_spare_that_cannot_be_told_of_its_slot_fails_and_costs_no_event() {
    let mut rig = Rig::new(Setup { missing: 1, spares: 1, ..RAID5 });
    rig.failing.insert(2);
    rig.command(Command::Sync(SyncRequest::Idle));
    rig.settle();
    let sb = rig.on_disk(0).unwrap();
    assert_eq!((sb.role_of(2), sb.events()), (Role::Faulty, 19));
    assert_eq!(rig.control.status().degraded, 1);
}

#[test]
fn a_checkpoint_counts_only_after_a_flush() {
    let mut rig = Rig::new(Setup { missing: 1, spares: 1, ..RAID5 });
    unfreeze(&mut rig);
    let mut open = jobs(&mut rig);
    // A sixteenth of the way is four windows of 1 MiB here. The first ends after the second.
    open.swap(0, 1);
    let mut ended = 0;
    while rig.io.is_empty() {
        let job = open.remove(0);
        rig.turn(vec![done(job.window)]);
        open.extend(jobs(&mut rig));
        ended += 1;
        assert!(ended < 20, "no checkpoint is taken");
    }
    assert_eq!(rig.take_log(), ["m0 flush", "m1 flush", "m2 flush"]);
    let valid_to = |rig: &Rig| match rig.control.status().map.members[2].state {
        MemberState::Rebuilding { valid_to, .. } => valid_to.0,
        other => panic!("{other:?}"),
    };
    assert_eq!(valid_to(&rig), 0, "what is not flushed is not relied upon");
    rig.complete();
    let reached = valid_to(&rig);
    assert!(reached > 0);
    rig.settle();
    assert_eq!(rig.on_disk(2).unwrap().member().recovery.map(|r| r.offset.0), Some(reached));
}

#[test]
fn a_recovery_covers_every_sector_once_and_ends_in_sync() {
    let mut rig = Rig::new(Setup { missing: 1, spares: 1, bitmap: Some(0b1010), ..RAID5 });
    unfreeze(&mut rig);
    let open = jobs(&mut rig);
    let mut ranges = run_windows(&mut rig, open);
    ranges.sort_unstable();
    assert_eq!(ranges.first().map(|r| r.0), Some(0));
    assert_eq!(ranges.last().map(|r| r.1), Some(64 * 2048));
    assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].0), "{ranges:?}");
    let status = rig.control.status();
    assert_eq!((status.degraded, status.sync.action), (0, None));
    assert!(rig.events.contains(&Event::MemberInSync { member: MemberId(2) }));
    assert_eq!(rig.on_disk(2).unwrap().member().recovery, None);
    // It got the bitmap, and what was kept while it was missing may go now.
    assert!(rig.bit_on_disk(2, 1) && rig.bit_on_disk(2, 3));
    rig.sleep(20_000);
    assert_eq!(rig.control.status().bitmap.unwrap().dirty, 0);
}

#[test]
fn a_bitmap_guides_a_resync() {
    let setup = Setup { unsynced_from: Some(Sector::ZERO), bitmap: Some(1 << 5 | 1 << 6 | 1 << 20), ..RAID5 };
    let mut rig = Rig::new(setup);
    unfreeze(&mut rig);
    let open = jobs(&mut rig);
    assert!(open.iter().all(|job| job.work == SyncWork::Agree), "{open:?}");
    let mut ranges = run_windows(&mut rig, open);
    ranges.sort_unstable();
    let sectors: u64 = ranges.iter().map(|(start, end)| end - start).sum();
    assert_eq!(sectors, 3 * 4096, "three chunks of the bitmap: {ranges:?}");
    assert_eq!(ranges[0].0, 5 * 4096);
    assert_eq!(rig.control.status().map.unsynced_from, None);
}

#[test]
fn a_replacement_says_it_is_whole_before_its_predecessor_goes() {
    let mut rig = Rig::new(Setup { spares: 1, ..RAID5 });
    unfreeze(&mut rig);
    rig.command(Command::Replace(MemberId(1)));
    rig.settle();
    let mut open = jobs(&mut rig);
    let mut both = false;
    for _ in 0..1000 {
        if let Some(job) = open.pop() {
            rig.turn(vec![done(job.window)]);
        } else if rig.io.is_empty() {
            break;
        } else {
            rig.complete();
        }
        open.extend(jobs(&mut rig));
        let (old, new) = (rig.on_disk(0).map(|sb| sb.role_of(1)), rig.on_disk(3).map(|sb| sb.member()));
        // At every moment a power cut finds one of the two with all data.
        let whole = new.is_some_and(|m| m.role == Role::Slot(Slot(1)) && m.recovery.is_none());
        assert!(whole || old.is_none_or(|role| role == Role::Slot(Slot(1))));
        both |= whole && old == Some(Role::Slot(Slot(1)));
    }
    assert!(both, "there was no moment at which both were good");
    assert!(rig.events.contains(&Event::MemberReplaced { member: MemberId(1) }));
    assert_eq!(rig.on_disk(0).unwrap().role_of(1), Role::Faulty);
    assert!(!rig.on_disk(3).unwrap().member().replacement);
    assert_eq!(rig.control.status().degraded, 0);
}

#[test]
fn a_failure_interrupts_and_what_was_done_counts() {
    let mut rig = Rig::new(Setup { level: Level::Raid6, disks: 4, missing: 1, spares: 1, ..RAID5 });
    unfreeze(&mut rig);
    let open = jobs(&mut rig);
    let (first, rest) = open.split_first().unwrap();
    rig.turn(vec![done(first.window), failed(0, 0)]);
    rig.settle();
    assert!(jobs(&mut rig).is_empty(), "no new windows by the old map");
    rig.turn(rest.iter().map(|job| done(job.window)).collect());
    rig.settle();
    let cut = |event: &Event| matches!(event, Event::SyncEnded { action: SyncAction::Recover, complete: false, .. });
    assert!(rig.events.iter().any(cut));
    let again = jobs(&mut rig);
    let start = again.iter().flat_map(|job| job.ranges.iter()).map(|(start, _)| start.0).min();
    assert!(start.is_some_and(|start| start > 0), "it begins anew: {again:?}");
}

#[test]
fn clients_keep_a_sync_at_its_floor() {
    let mut rig = Rig::new(Setup { missing: 1, spares: 1, ..RAID5 });
    rig.command(Command::SetSyncSpeed { min: Some(1024), max: None });
    unfreeze(&mut rig);
    let open = jobs(&mut rig);
    assert!(open.len() >= 2, "while nobody is there, several go out at once");
    rig.turn(vec![(0, Message::SyncLoad { busy: true })]);
    for job in open {
        rig.turn(vec![done(job.window)]);
    }
    let next = jobs(&mut rig);
    assert_eq!(next.len(), 1, "one at a time beside clients");
    rig.turn(vec![done(next[0].window)]);
    rig.settle();
    assert!(jobs(&mut rig).is_empty(), "1 MiB was just done");
    // 1 MiB at 1 MiB a second; meanwhile shards are asked whether the clients are still there.
    let (from, mut asked, mut issued) = (rig.now, 0, false);
    while !issued {
        let due = rig.control.poll_timeout().expect("it goes on by itself");
        assert!(due > rig.now, "{due:?} at {:?}", rig.now);
        rig.now = due;
        rig.control.handle(due, Input::Timeout);
        rig.end_turn();
        let sent = rig.take_sent();
        asked += sent.iter().filter(|(_, m)| matches!(m, Message::SyncLoadAsk)).count();
        issued = sent.iter().any(|(_, m)| matches!(m, Message::Sync(_)));
    }
    assert!(asked >= 3, "asked {asked} times");
    let took = rig.now.since(from);
    assert!(took > Nanos::from_millis(950) && took < Nanos::from_millis(1050), "{took:?}");
}

#[test]
fn mirrors_bar_writers_first() {
    let mut rig = Rig::new(Setup { unsynced_from: Some(Sector::ZERO), ..RAID1 });
    unfreeze(&mut rig);
    let sent = rig.take_sent();
    let bars: Vec<(u16, u64)> = sent
        .iter()
        .filter_map(|(shard, m)| if let Message::SyncBar { window, .. } = m { Some((*shard, *window)) } else { None })
        .collect();
    assert!(bars.contains(&(0, 0)) && bars.contains(&(1, 0)), "{sent:?}");
    assert!(!sent.iter().any(|(_, m)| matches!(m, Message::Sync(_))));
    rig.turn(vec![(0, Message::SyncBarred { window: 0 })]);
    assert!(jobs(&mut rig).is_empty(), "shard 1 may still be writing there");
    rig.turn(vec![(1, Message::SyncBarred { window: 0 })]);
    assert_eq!(jobs(&mut rig).iter().map(|job| job.window).collect::<Vec<_>>(), [0]);
    rig.turn(vec![done(0)]);
    let unbarred = |(_, m): &(u16, Message)| matches!(m, Message::SyncUnbar { window: 0 });
    assert_eq!(rig.take_sent().iter().filter(|sent| unbarred(sent)).count(), 2);
}

#[test]
fn commands_that_cannot_be_carried_out_say_why() {
    let mut rig = Rig::new(RAID5);
    let mut ask = |command| rig.control.command(rig.now, command);
    assert_eq!(ask(Command::Remove(MemberId(0))), Err(CommandError::InUse));
    assert_eq!(ask(Command::Replace(MemberId(0))), Err(CommandError::NoSpare));
    assert_eq!(ask(Command::Fail(MemberId(9))), Err(CommandError::NotAMember));
    assert_eq!(ask(Command::Fail(MemberId(0))), Ok(()));
    assert_eq!(ask(Command::Fail(MemberId(1))), Err(CommandError::Needed));
    let mut old = Rig::new(Setup { version: MetadataVersion::V0_90, spares: 1, ..RAID5 });
    assert_eq!(old.control.command(old.now, Command::Replace(MemberId(0))), Err(CommandError::NotStorable));
    let mut plain = Rig::new(Setup { level: Level::Raid0, ..RAID5 });
    let request = Command::Sync(SyncRequest::Check);
    assert_eq!(plain.control.command(plain.now, request), Err(CommandError::NoRedundancy));
}

/// A write that fails in places does not cost the member, if it has a log for that; here it has none.
#[test]
fn without_a_log_a_failed_write_fails_the_member() {
    let mut rig = Rig::new(RAID5);
    let range = Some((Sector(4096), raidus_units::Sectors(8)));
    let message = Message::MemberFailed { member: MemberId(1), range };
    rig.control.handle(rig.now, Input::Message { from: Peer::Shard(ShardId(0)), message });
    rig.end_turn();
    rig.settle();
    assert!(rig.events.contains(&Event::MemberFailed { member: MemberId(1) }));
}
