//! A power cut at any write to a member, for judges from outside: what is then on the disks, and what may be read from the array.
//!
//! A case is an array with a short life: clients write, flush and pause (so that the array is marked clean and dirty again), a member
//! may vanish, a spare may take its place. The same case is played to any of its writes.

use core::fmt;
use std::collections::BTreeSet;

use raidus_assembly::{Assembled, Seat};
use raidus_engine::Tunables;
use raidus_format::MetadataVersion;
use raidus_units::{Level, Nanos, Sectors};

use crate::assemble::{assemble, log_place, started};
use crate::create;
use crate::disk::Disk;
use crate::faults::FaultPlan;
use crate::oracle::Oracle;
use crate::plant::Plant;
use crate::rng::Rng;
use crate::scenario::{ClientPlan, Pace, Scenario};
use crate::stamp::{SECTOR, ZERO};
use crate::trace::Trace;
use crate::world::{Cut, Ground, MemberPlace, RoundEnd, RoundPlan, Unflushed, World};

/// What happens to members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// One vanishes.
    Fails,
    /// One vanishes, and a spare is rebuilt in its place.
    Rebuilds,
}

/// An array and its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// RAID level.
    pub level: Level,
    /// md's number.
    pub layout: u32,
    /// Slots.
    pub raid_disks: u16,
    /// Format.
    pub metadata: MetadataVersion,
    /// With a write-intent bitmap.
    pub bitmap: bool,
    /// What happens to members.
    pub trouble: Trouble,
}

/// What a power cut left.
#[derive(Clone, Debug)]
pub struct Aftermath {
    /// The content of each disk.
    pub disks: Vec<Vec<u8>>,
    /// The array was without a member, and dirty, and has parity: nobody can tell what was on that member where a write was cut short,
    /// so that md refuses to start it.
    pub may_be_refused: bool,
    oracle: Oracle,
}

/// A whole run, without a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Writes to members, of all kinds.
    pub writes: u64,
    /// Members that failed.
    pub failures: u64,
    /// Members that were rebuilt.
    pub rebuilt: usize,
}

/// The redundant levels, with and without a bitmap, in each trouble; metadata versions take turns.
pub fn cases() -> Vec<Case> {
    let shapes = [(Level::Raid1, 0, 3), (Level::Raid5, 2, 4), (Level::Raid6, 2, 5), (Level::Raid10, 0x102, 4)];
    let versions = [MetadataVersion::V1_2, MetadataVersion::V1_0, MetadataVersion::V0_90, MetadataVersion::V1_1];
    let mut cases = Vec::new();
    for (level, layout, raid_disks) in shapes {
        for trouble in [Trouble::None, Trouble::Fails, Trouble::Rebuilds] {
            for bitmap in [false, true] {
                // Five is prime to four: every level meets every version.
                let metadata = versions[cases.len() * 5 / 4 % 4];
                cases.push(Case { level, layout, raid_disks, metadata, bitmap, trouble });
            }
        }
    }
    cases
}

impl Case {
    /// Plays it to its end.
    ///
    /// # Errors
    /// If the array broke a promise.
    pub fn live(&self) -> Result<Life, String> {
        let (end, _, _) = self.play(None)?;
        Ok(Life { writes: end.writes, failures: end.failures, rebuilt: end.arrived.len() })
    }

    /// Plays it up to this write to a member (from 0), when the power goes.
    ///
    /// # Errors
    /// If the array broke a promise before that, or there is no such write.
    pub fn cut(&self, at: u64, unflushed: Unflushed) -> Result<Aftermath, String> {
        let (end, disks, oracle) = self.play(Some(Cut { at, unflushed }))?;
        if !end.power_cut {
            return Err(format!("there are only {} writes", end.writes));
        }
        Ok(Aftermath {
            disks: disks.iter().map(|disk| disk.peek(0, disk.sectors())).collect(),
            may_be_refused: self.level.parities() > 0 && self.trouble != Trouble::None,
            oracle,
        })
    }

    fn play(&self, cut: Option<Cut>) -> Result<(RoundEnd, Vec<Disk>, Oracle), String> {
        let mut rng = Rng::new(u64::from(self.raid_disks) + 100 * u64::from(self.bitmap));
        let scenario = self.scenario();
        let sectors = scenario.geometry().ok_or("no geometry")?.array_sectors().0;
        let mut disks = create::members(&scenario, &vec![ZERO; sectors as usize], &mut rng)?;
        let mut oracle = Oracle::new(sectors);
        let offered: Vec<usize> = (0..disks.len()).collect();
        let assembled = started(assemble(&disks, &offered))?;
        let mut config = raidus_engine::open(&assembled, scenario.tunables, 1_700_000_100);
        if config.bitmap.is_none() {
            config.region = scenario.region;
        }
        let plan = self.plan(&scenario, &assembled);
        let ground = Ground { disks: &mut disks, oracle: &mut oracle, trace: &mut Trace::off() };
        let mut world = World::new(ground, &scenario, &config, plan, &mut rng);
        if let Some(cut) = cut {
            world = world.cut_at(cut);
        }
        let end = world.play()?;
        Ok((end, disks, oracle))
    }

    fn scenario(&self) -> Scenario {
        let mirror = self.level == Level::Raid1;
        let size = Sectors(128);
        let spares = u16::from(self.trouble == Trouble::Rebuilds);
        let mut scenario = Scenario {
            level: self.level,
            layout: self.layout,
            raid_disks: self.raid_disks,
            chunk: if mirror { Sectors::ZERO } else { Sectors(16) },
            size,
            data_sizes: vec![size; usize::from(self.raid_disks)],
            metadata: self.metadata,
            bitmap_chunk: self.bitmap.then_some(8192),
            log: None,
            bad_block_log: false,
            missing: Vec::new(),
            spares,
            rebuilding: None,
            tunables: Tunables { shards: 2, sync_window: Sectors(16), ..Tunables::default() },
            region: Sectors(32),
            clients: Vec::new(),
            requests: 24,
            rounds: 1,
            lossy: false,
            pace: Pace { weights: [10, 10, 10], turn_max: 3, io_time: Nanos(100_000), pause_percent: 20 },
        };
        let array = scenario.geometry().map_or(0, |g| g.array_sectors().0);
        // One writes a few sectors here and there, one whole stripes; each keeps to its half.
        let client = |shard: u16, len_max| ClientPlan {
            shard,
            depth: 2,
            len_max,
            first: array / 2 * u64::from(shard),
            span: array / 2,
            sequential: false,
            mix: [0, 60, 10, 15, 2, 5],
            align: 1,
        };
        scenario.clients = vec![client(0, 8), client(1, 64)];
        scenario
    }

    fn plan(&self, scenario: &Scenario, assembled: &Assembled) -> RoundPlan {
        let mut plan = RoundPlan {
            places: Vec::new(),
            faults: Vec::new(),
            cut_after: None,
            requests: scenario.requests,
            stop_early: false,
            let_sync_end: true,
            operator_percent: 0,
            doomed: BTreeSet::new(),
            scrub: None,
            first_request: 1,
            read_all: false,
            lossy: false,
            plant: Plant::Honest,
        };
        for seated in &assembled.members {
            let member = seated.superblock.member();
            let first = member.data_offset.0;
            plan.places.push(MemberPlace {
                disk: seated.candidate,
                superblock: member.super_offset,
                data: (first, first + member.data_size.0),
                log: log_place(&seated.superblock),
                atomic_superblock: self.metadata == MetadataVersion::V0_90,
            });
            let fails = self.trouble != Trouble::None && matches!(seated.seat, Seat::InSync(slot) if slot.0 == 1);
            plan.faults.push(if fails { FaultPlan::vanishing(12) } else { FaultPlan::default() });
        }
        plan
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { level, raid_disks, metadata, bitmap, trouble, .. } = self;
        let bitmap = if *bitmap { "with" } else { "without" };
        write!(f, "{level} of {raid_disks}, {metadata}, {bitmap} bitmap, trouble: {trouble:?}")
    }
}

impl Aftermath {
    /// Whether the array may have this content: what was acknowledged and flushed is there, the rest is old or new in each sector.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn check(&self, content: &[u8]) -> Result<(), String> {
        if content.len() as u64 != self.oracle.len() * SECTOR as u64 {
            return Err(format!("{} bytes instead of {} sectors", content.len(), self.oracle.len()));
        }
        for (sector, found) in (0..).zip(content.chunks_exact(SECTOR)) {
            self.oracle.check_survivor(sector, found)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
