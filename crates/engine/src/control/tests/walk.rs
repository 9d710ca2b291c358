//! Random walks: whatever the order of messages, completions and failures, what was promised is on the disks.

use std::collections::{BTreeMap, BTreeSet};

use raidus_format::Role;
use raidus_units::Level;

use super::rig::{RAID1, Rig, Setup, failed, give_back, want};
use crate::control::{Command, Event};
use crate::map::MemberState;
use crate::msg::Message;

/// A small generator of test choices; any will do.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// What the shards of a walk know.
#[derive(Default)]
struct Shards {
    held: BTreeMap<u16, BTreeSet<u64>>,
    wanted: BTreeMap<u16, BTreeSet<u64>>,
    /// Per shard: maps it has not said `MapApplied` for.
    unapplied: BTreeMap<u16, Vec<u64>>,
    applied: BTreeMap<u16, u64>,
    flushes: BTreeSet<(u16, u64)>,
    broken: bool,
}

impl Shards {
    /// Takes what Control said and checks it against the disks.
    fn hear(&mut self, rig: &mut Rig) {
        for (shard, message) in rig.take_sent() {
            match message {
                Message::LeaseGranted(regions) => {
                    for region in regions {
                        assert!(self.wanted.entry(shard).or_default().remove(&region.0), "granted but not wanted");
                        self.held.entry(shard).or_default().insert(region.0);
                    }
                }
                Message::LeaseRefused { regions, .. } => {
                    assert!(self.broken);
                    for region in regions {
                        self.wanted.entry(shard).or_default().remove(&region.0);
                    }
                }
                Message::Map(map) => {
                    self.broken |= map.broken;
                    self.unapplied.entry(shard).or_default().push(map.epoch);
                }
                Message::MapDurable { epoch } => self.check_durable(rig, epoch),
                Message::FlushDone { token, .. } => assert!(self.flushes.remove(&(shard, token))),
                Message::FailureRefused { .. } => {}
                other => panic!("unexpected {other:?}"),
            }
        }
        self.check_leases(rig);
    }

    /// Every member in use says dirty, and has the bits of all leases that are out.
    fn check_leases(&self, rig: &Rig) {
        let map = rig.control.status().map;
        let regions: BTreeSet<u64> = self.held.values().flatten().copied().collect();
        if regions.is_empty() || map.broken {
            return;
        }
        for (id, _) in map.members.iter().enumerate().filter(|(_, m)| m.writable()) {
            let sb = rig.on_disk(id as u16).expect("marked dirty before the lease");
            assert_eq!(sb.array().resync, Some(raidus_units::Sector::ZERO), "member {id} does not say dirty");
            for region in &regions {
                assert!(rig.bit_on_disk(id as u16, *region), "bit {region} is not set on member {id}");
            }
        }
    }

    /// Survivors say who failed, and every shard plans by it.
    fn check_durable(&self, rig: &Rig, epoch: u64) {
        for shard in 0..rig.shards() {
            assert!(self.applied.get(&shard).is_some_and(|e| *e >= epoch), "shard {shard} plans by an older map");
        }
        let map = rig.control.status().map;
        if map.epoch != epoch {
            return;
        }
        let faulty = |m: &crate::map::Member| m.state == MemberState::Faulty;
        for (id, _) in map.members.iter().enumerate().filter(|(_, m)| !faulty(m)) {
            let sb = rig.on_disk(id as u16).expect("the failure is recorded");
            for (other, _) in map.members.iter().enumerate().filter(|(_, m)| faulty(m)) {
                assert_eq!(sb.role_of(other as u32), Role::Faulty, "member {id} does not know that {other} failed");
            }
        }
    }
}

fn walk(seed: u64, setup: Setup) {
    let mut dice = Dice(seed);
    let mut rig = Rig::new(setup);
    rig.obedient = false;
    let mut shards = Shards::default();
    let mut token = 0;
    for _ in 0..300 {
        let shard = dice.roll(setup.shards.into()) as u16;
        // With few regions the array often goes idle.
        let region = dice.roll(1 + seed % 6);
        match dice.roll(16) {
            0..=2 => {
                let unknown = !shards.held.entry(shard).or_default().contains(&region);
                if unknown && shards.wanted.entry(shard).or_default().insert(region) {
                    rig.turn(vec![want(shard, &[region])]);
                }
            }
            3..=4 if shards.held.entry(shard).or_default().remove(&region) => {
                rig.turn(vec![give_back(shard, &[region])]);
            }
            5 => {
                token += 1;
                shards.flushes.insert((shard, token));
                rig.turn(vec![(shard, Message::Flush { token })]);
            }
            6 if dice.roll(6) == 0 => {
                let member = dice.roll(setup.disks.into()) as u16;
                rig.failing.insert(member);
                rig.turn(vec![failed(shard, member)]);
            }
            7..=8 => {
                let maps = std::mem::take(shards.unapplied.entry(shard).or_default());
                if let Some(epoch) = maps.last() {
                    shards.applied.insert(shard, *epoch);
                    rig.turn(vec![(shard, Message::MapApplied { epoch: *epoch })]);
                }
            }
            9 => {
                let jump = dice.roll(7_000);
                rig.now = rig.now.plus(raidus_units::Nanos::from_millis(jump));
                rig.turn(Vec::new());
            }
            10 if !rig.io.is_empty() => {
                let io = rig.io[dice.roll(rig.io.len() as u64) as usize].clone();
                rig.land(&io);
            }
            _ if !rig.io.is_empty() => {
                let index = dice.roll(rig.io.len() as u64) as usize;
                rig.complete_one(index);
            }
            _ => {}
        }
        shards.hear(&mut rig);
    }
    come_to_rest(&mut rig, &mut shards);
}

/// Everything that was asked for is answered, and an idle array becomes clean.
fn come_to_rest(rig: &mut Rig, shards: &mut Shards) {
    rig.obedient = true;
    for shard in 0..rig.shards() {
        if let Some(epoch) = shards.unapplied.entry(shard).or_default().pop() {
            shards.applied.insert(shard, epoch);
            rig.turn(vec![(shard, Message::MapApplied { epoch })]);
        }
    }
    rig.settle();
    rig.sent.retain(|(_, m)| !matches!(m, Message::MapDurable { .. }));
    shards.hear(rig);
    assert!(shards.flushes.is_empty() && shards.wanted.values().all(BTreeSet::is_empty), "left waiting");
    for (shard, held) in std::mem::take(&mut shards.held) {
        let regions: Vec<u64> = held.into_iter().collect();
        rig.turn(vec![give_back(shard, &regions)]);
    }
    rig.settle();
    let status = rig.control.status();
    let in_use = |(id, m): (usize, &crate::map::Member)| m.writable().then_some(id as u16);
    let in_use: Vec<u16> = status.map.members.iter().enumerate().filter_map(in_use).collect();
    // A last copy that cannot be flushed keeps its array dirty.
    let hopeless = rig.events.contains(&Event::Broken) || in_use.iter().any(|id| rig.failing.contains(id));
    for id in in_use.into_iter().filter(|_| !hopeless && status.counters.superblock_rounds > 0) {
        let sb = rig.on_disk(id).expect("written to");
        assert_eq!((sb.array().resync, sb.events()), (None, status.events), "member {id}");
    }
    stop(rig, hopeless);
}

fn stop(rig: &mut Rig, hopeless: bool) {
    rig.command(Command::Stop);
    let drained = (0..rig.shards()).map(|shard| (shard, Message::Drained)).collect();
    rig.turn(drained);
    rig.settle();
    let stopped = rig.events.iter().find_map(|e| match e {
        Event::Stopped { result } => Some(*result),
        _ => None,
    });
    let result = stopped.expect("stops");
    assert!(result.is_ok() || hopeless, "{result:?}");
    let set = |id| (0..32).any(|bit| rig.bit_on_disk(id, bit));
    if rig.control.status().degraded == 0 && !hopeless {
        assert!(!(0..4).any(set), "bits are left");
    }
}

#[test]
fn promises_are_kept_whatever_the_order() {
    for seed in 0..400 {
        for level in [Level::Raid1, Level::Raid10, Level::Raid5, Level::Raid6] {
            let setup = Setup { level, disks: 4, shards: 3, bitmap: Some(0), ..RAID1 };
            let result = std::panic::catch_unwind(|| walk(seed, setup));
            assert!(result.is_ok(), "{level}: seed {seed}");
        }
    }
}
