//! One seed from its first round to its last.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use raidus_assembly::{Assembled, Seat};
use raidus_engine::ArrayConfig;
use raidus_format::MetadataVersion;
use raidus_units::{Sector, Slot};

use crate::assemble::{assemble, log_place, replay, started};
use crate::clones::Clones;
use crate::create;
use crate::disk::Disk;
use crate::faults::FaultPlan;
use crate::inspect::{Contents, Inspection, Leg};
use crate::oracle::Oracle;
use crate::plant::Plant;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::stamp::{WriteId, ZERO};
use crate::trace::Trace;
use crate::world::{Ground, MemberPlace, RoundEnd, RoundPlan, World};

/// How to run seeds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// A mistake to pretend.
    pub plant: Plant,
    /// Print every event of the run.
    pub verbose: bool,
}

/// What runs have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Seeds.
    pub seeds: u64,
    /// Rounds: starts of an array.
    pub rounds: u64,
    /// Scheduler steps.
    pub steps: u64,
    /// Requests answered.
    pub requests: u64,
    /// Requests answered with an error, where that was in order.
    pub errors: u64,
    /// Sectors read through the engine and compared.
    pub sectors_checked: u64,
    /// Power cuts.
    pub crashes: u64,
    /// Members that the engine gave up.
    pub failures: u64,
    /// Assemblies that were refused, where that was in order.
    pub refusals: u64,
    /// Members that were offered though they had missed writes.
    pub stale_offered: u64,
    /// Logs replayed.
    pub replays: u64,
    /// Resyncs and recoveries that came to their end.
    pub syncs: u64,
    /// Members that were rebuilt.
    pub rebuilt: u64,
    /// Sectors that could not be read and were written anew.
    pub healed: u64,
    /// Rounds in which a member got bad blocks on its list.
    pub flawed: u64,
    /// Checks and repairs that had silent corruption to find.
    pub scrubs: u64,
    /// Starts at which a copy of a member was offered beside it.
    pub clones: u64,
}

impl Stats {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Stats) {
        self.seeds += other.seeds;
        self.rounds += other.rounds;
        self.steps += other.steps;
        self.requests += other.requests;
        self.errors += other.errors;
        self.sectors_checked += other.sectors_checked;
        self.crashes += other.crashes;
        self.failures += other.failures;
        self.refusals += other.refusals;
        self.stale_offered += other.stale_offered;
        self.replays += other.replays;
        self.syncs += other.syncs;
        self.rebuilt += other.rebuilt;
        self.scrubs += other.scrubs;
        self.clones += other.clones;
        self.healed += other.healed;
        self.flawed += other.flawed;
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds, {} rounds, {} steps; {} requests ({} rightly failed), {} sectors read and checked; {} power cuts, {} members \
             failed, {} stale members and {} copies offered, {} starts rightly refused, {} logs replayed; {} syncs ended, {} members rebuilt, {} \
             corruptions scrubbed, {} sectors healed, {} \
             rounds with bad blocks",
            self.seeds,
            self.rounds,
            self.steps,
            self.requests,
            self.errors,
            self.sectors_checked,
            self.crashes,
            self.failures,
            self.stale_offered,
            self.clones,
            self.refusals,
            self.replays,
            self.syncs,
            self.rebuilt,
            self.scrubs,
            self.healed,
            self.flawed,
        )
    }
}

/// A seed that went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What was wrong.
    pub what: String,
    /// The array and its circumstances.
    pub scenario: String,
    /// The last events, oldest first.
    pub trace: Vec<String>,
}

/// Plays a seed. A failing one is played again to record its last events.
///
/// # Errors
/// If the array broke a promise.
pub fn run_seed(seed: u64, options: &Options) -> Result<Stats, Box<Failure>> {
    let mut trace = if options.verbose { Trace::on(true) } else { Trace::off() };
    let outcome = guarded(seed, options, &mut trace);
    let Err(what) = outcome else { return outcome.map_err(|_| unreachable!("not an error")) };
    if !options.verbose {
        trace = Trace::on(false);
        let again = guarded(seed, options, &mut trace);
        if again.as_ref().err() != Some(&what) {
            return Err(Box::new(Failure {
                seed,
                what: format!("not deterministic: first '{what}', then {again:?}"),
                scenario: Scenario::draw(&mut Rng::new(seed)).to_string(),
                trace: trace.into_lines(),
            }));
        }
    }
    let scenario = Scenario::draw(&mut Rng::new(seed)).to_string();
    Err(Box::new(Failure { seed, what, scenario, trace: trace.into_lines() }))
}

/// A panic of the engine is a failure like others.
fn guarded(seed: u64, options: &Options, trace: &mut Trace) -> Result<Stats, String> {
    let play = AssertUnwindSafe(|| Seed::new(seed, options)?.play(trace));
    catch_unwind(play).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(format!("panic: {text}"))
    })
}

/// A seed under way.
pub(crate) struct Seed {
    pub(crate) scenario: Scenario,
    pub(crate) rng: Rng,
    plant: Plant,
    pub(crate) disks: Vec<Disk>,
    oracle: Oracle,
    /// Disks that hold all that was acknowledged.
    fresh: BTreeSet<usize>,
    /// Disks with known bad blocks, which are no source there.
    flawed: BTreeSet<usize>,
    /// The slots of disks.
    homes: BTreeMap<usize, Slot>,
    /// Disks that were drawn to fail in the last round, whether or not they did.
    doomed: BTreeSet<usize>,
    /// Slots whose member was there when the last round began, or was rebuilt in it.
    held: BTreeSet<Slot>,
    /// Partial parity logs protect what a power cut interrupts: redundancy was good from the start of the last round to its end.
    logged: bool,
    /// Writes are in doubt: the power was cut, and nobody has resynced the array since.
    pub(crate) in_doubt: bool,
    next_request: u64,
    clones: Clones,
    pub(crate) stats: Stats,
}

impl Seed {
    fn new(seed: u64, options: &Options) -> Result<Seed, String> {
        let mut rng = Rng::new(seed);
        let scenario = Scenario::draw(&mut rng);
        let geometry = scenario.geometry().ok_or("no geometry")?;
        let sectors = geometry.array_sectors().0;
        let disks = create::members(&scenario, &vec![ZERO; sectors as usize], &mut rng)?;
        let fresh = present(&scenario);
        Ok(Seed {
            clones: Clones::new(Rng::new(seed ^ 0x636c_6f6e_6573)),
            oracle: Oracle::new(sectors),
            flawed: BTreeSet::new(),
            homes: homes(&scenario),
            scenario,
            rng,
            plant: options.plant,
            disks,
            fresh,
            doomed: BTreeSet::new(),
            held: BTreeSet::new(),
            logged: false,
            in_doubt: false,
            next_request: 1,
            stats: Stats { seeds: 1, ..Stats::default() },
        })
    }

    fn play(mut self, trace: &mut Trace) -> Result<Stats, String> {
        for round in 0..self.scenario.rounds {
            let last = round + 1 == self.scenario.rounds;
            if !self.round(round, last, trace).map_err(|e| format!("round {round}: {e}"))? || self.scenario.lossy {
                return Ok(self.stats);
            }
            if self.rng.percent(20) {
                self.scrub(trace).map_err(|e| format!("scrub after round {round}: {e}"))?;
            }
        }
        // What is on the disks in the end must be the array, too.
        let offered: Vec<usize> = (0..self.disks.len()).collect();
        if let Some(assembled) = self.assemble(&offered).map_err(|e| format!("in the end: {e}"))? {
            self.inspect(&assembled, &offered).map_err(|e| format!("in the end: {e}"))?;
        }
        Ok(self.stats)
    }

    /// One start of the array. `false`: it rightly refused, and the seed is over.
    fn round(&mut self, round: u32, last: bool, trace: &mut Trace) -> Result<bool, String> {
        let offered = self.offer(round);
        trace.note(Default::default(), || format!("round {round}: assembling from {offered:?}"));
        let Some(assembled) = self.assemble(&offered)? else { return Ok(false) };
        let mut contents = self.inspect(&assembled, &offered)?;
        self.add_absent(&mut contents, &offered)?;
        for (s, found) in (0..).zip(&contents) {
            self.oracle.settle(s, found);
        }
        if round > 0 && self.rng.percent(if assembled.unsynced_from.is_some() { 60 } else { 20 }) {
            trace.note(Default::default(), || "resync and rebuild from outside".to_owned());
            self.resync(&contents)?;
            return self.round(0, last, trace);
        }
        let mut config = raidus_engine::open(&assembled, self.scenario.tunables, 1_700_000_100);
        if config.bitmap.is_none() {
            config.region = self.scenario.region;
        }
        let doomed = self.doom(&assembled, last);
        let flawed = assembled.members.iter().filter(|m| !m.bad_blocks.is_empty()).map(|m| offered[m.candidate]);
        self.flawed = flawed.collect();
        let plan = self.plan(&assembled, &offered, &doomed, round > 0);
        let in_sync = in_sync(&assembled, &offered);
        let end = self.run(&config, plan, trace)?;
        let holds = |slot: &Slot| assembled.members.iter().any(|m| m.seat == Seat::InSync(*slot));
        self.held = (0..self.scenario.raid_disks).map(Slot).filter(holds).collect();
        self.held.extend(end.arrived.values());
        self.logged = self.scenario.log.is_some() && assembled.unsynced_from.is_none() && !end.unsynced;
        self.flawed.extend(&end.flawed);
        self.fresh = in_sync;
        for (disk, slot) in &end.arrived {
            self.fresh.insert(*disk);
            self.homes.insert(*disk, *slot);
        }
        self.doomed = doomed.iter().map(|m| offered[assembled.members[*m].candidate]).collect();
        for disk in &end.failed {
            self.fresh.remove(disk);
        }
        self.in_doubt = end.power_cut || end.unsynced;
        self.after(&end);
        Ok(true)
    }

    pub(crate) fn run(&mut self, config: &ArrayConfig, plan: RoundPlan, trace: &mut Trace) -> Result<RoundEnd, String> {
        let ground = Ground { disks: &mut self.disks, oracle: &mut self.oracle, trace };
        World::new(ground, &self.scenario, config, plan, &mut self.rng).play()
    }

    pub(crate) fn after(&mut self, end: &RoundEnd) {
        self.clones.take(&self.disks);
        self.next_request = end.next_request;
        self.stats.rounds += 1;
        self.stats.steps += end.steps;
        self.stats.requests += end.counts.replies;
        self.stats.errors += end.counts.errors;
        self.stats.sectors_checked += end.counts.sectors_checked;
        self.stats.crashes += u64::from(end.power_cut);
        self.stats.failures += end.failures;
        self.stats.syncs += end.syncs;
        self.stats.healed += end.healed;
        self.stats.flawed += u64::from(!end.flawed.is_empty());
        self.stats.rebuilt += end.arrived.len() as u64;
        let powered_off = end.power_cut || self.rng.percent(50);
        for disk in &mut self.disks {
            if powered_off && !end.power_cut {
                // The machine is switched off; what a clean stop left volatile may go.
                disk.power_loss(&mut self.rng);
            }
            disk.heal();
        }
        if !powered_off {
            self.oracle.flushed(u64::MAX);
        }
    }

    /// Which disks are looked at for the next start, in which order. What was acknowledged is on some of them.
    fn offer(&mut self, round: u32) -> Vec<usize> {
        let mut offered: Vec<usize> = (0..self.disks.len()).collect();
        for i in (1..offered.len()).rev() {
            offered.swap(i, self.rng.index(i + 1));
        }
        let leave_out = if self.in_doubt && self.scenario.level.parities() > 0 && !self.logged { 5 } else { 25 };
        if round == 0 || !self.scenario.level.is_redundant() || !self.rng.percent(leave_out) {
            return offered;
        }
        for _ in 0..self.rng.range(1, 2) {
            let mut fewer = offered.clone();
            fewer.remove(self.rng.index(fewer.len()));
            if self.is_enough(|disk| fewer.contains(&disk) && !self.flawed.contains(&disk)) {
                offered = fewer;
            }
        }
        offered
    }

    /// Whether the fresh ones among these disks hold everything.
    fn is_enough(&self, has: impl Fn(usize) -> bool) -> bool {
        let geometry = self.scenario.geometry().expect("checked when drawn");
        let holds = |disk: &usize, slot: Slot| has(*disk) && self.homes.get(disk) == Some(&slot);
        geometry.enough(&|slot| self.fresh.iter().any(|disk| holds(disk, slot)))
    }

    /// The decision on these disks; `None` if it rightly refused.
    pub(crate) fn assemble(&mut self, offered: &[usize]) -> Result<Option<Assembled>, String> {
        self.stats.stale_offered += offered.iter().filter(|d| !self.fresh.contains(d)).count() as u64;
        self.stats.clones += u64::from(self.clones.check(&self.disks, offered)?);
        let outcome = started(assemble(&self.disks, offered));
        let sound = |d: &usize| offered.contains(d) && !self.doomed.contains(d);
        let whole = (0..self.scenario.raid_disks)
            .map(Slot)
            .all(|slot| self.fresh.iter().any(|d| sound(d) && self.homes.get(d) == Some(&slot)));
        // Writes in doubt on a degraded parity array: nobody can tell what the missing data was.
        let may_refuse = self.in_doubt && self.scenario.level.parities() > 0 && !whole && !self.logged;
        match outcome {
            Ok(assembled) if assembled.replay.is_some() => {
                self.stats.replays += 1;
                let cut = self.rng.percent(30).then(|| self.rng.below(30));
                if !replay(&mut self.disks, offered, &assembled, cut)? {
                    self.disks.iter_mut().for_each(|disk| disk.power_loss(&mut self.rng));
                }
                self.assemble(offered)
            }
            Ok(assembled) => Ok(Some(assembled)),
            Err(_) if may_refuse => {
                self.stats.refusals += 1;
                Ok(None)
            }
            Err(why) => Err(format!("the array does not start from disks {offered:?} though it should: {why}")),
        }
    }

    /// Checks the members' bytes.
    fn inspect(&self, assembled: &Assembled, offered: &[usize]) -> Result<Contents, String> {
        self.inspect_disks(&self.disks, assembled, offered)
    }

    fn inspect_disks(&self, disks: &[Disk], assembled: &Assembled, offered: &[usize]) -> Result<Contents, String> {
        let mut legs: Vec<Option<Leg<'_>>> = (0..self.scenario.raid_disks).map(|_| None).collect();
        for seated in &assembled.members {
            let (slot, valid_to) = match seated.seat {
                Seat::InSync(slot) => (slot, u64::MAX),
                Seat::Rebuilding { slot, valid_to, .. } => (slot, valid_to.0),
                Seat::Replacing { .. } | Seat::Spare | Seat::Journal => continue,
            };
            legs[slot.index()] = Some(Leg {
                disk: &disks[offered[seated.candidate]],
                data_offset: seated.superblock.member().data_offset.0,
                valid_to,
                bad: seated.bad_blocks.iter().map(|(s, n)| (s.0, n.0)).collect(),
            });
        }
        let suspect = |address: u64| suspect(assembled, address);
        let gone =
            |slot: &&Slot| self.in_doubt && legs[slot.index()].as_ref().is_none_or(|leg| leg.valid_to != u64::MAX);
        let lost = self.held.iter().filter(gone).copied().collect();
        Inspection { geometry: &assembled.geometry, legs, suspect: &suspect, oracle: &self.oracle, lost: &lost }
            .run()
            .map_err(|e| format!("on the disks {offered:?}: {e}"))
    }

    /// Mirrors may differ in what was not flushed before a power cut. A copy that is left out now is back as an equal if the array
    /// is not written meanwhile (as with md: reading leaves no mark), so what it holds stays possible.
    fn add_absent(&self, contents: &mut Contents, offered: &[usize]) -> Result<(), String> {
        let absent = self.fresh.iter().any(|disk| !offered.contains(disk));
        if !self.in_doubt || !absent || self.scenario.level.parities() > 0 && !self.logged {
            return Ok(());
        }
        let all: Vec<usize> = (0..self.disks.len()).collect();
        let mut disks = self.disks.clone();
        let mut assembled = started(assemble(&disks, &all))?;
        if assembled.replay.is_some() {
            replay(&mut disks, &all, &assembled, None)?;
            assembled = started(assemble(&disks, &all))?;
        }
        for (mine, others) in contents.iter_mut().zip(self.inspect_disks(&disks, &assembled, &all)?) {
            mine.extend(others);
        }
        Ok(())
    }

    /// The kernel's part, done from outside: all members whole and equal again, some time or other.
    fn resync(&mut self, contents: &Contents) -> Result<(), String> {
        let settled: Vec<WriteId> = contents.iter().map(|found| found[0]).collect();
        for (s, id) in (0..).zip(&settled) {
            self.oracle.settle(s, &[*id]);
        }
        if self.rng.percent(70) {
            self.scenario.missing.clear();
        }
        if self.rng.percent(70) {
            self.scenario.rebuilding = None;
        }
        self.disks = create::members(&self.scenario, &settled, &mut self.rng)?;
        self.fresh = present(&self.scenario);
        self.homes = homes(&self.scenario);
        self.flawed.clear();
        self.doomed.clear();
        self.in_doubt = false;
        Ok(())
    }

    /// Members that will fail, as member numbers: no more than the array survives, unless the scenario is a lossy one.
    fn doom(&mut self, assembled: &Assembled, last: bool) -> BTreeSet<usize> {
        let mut doomed = BTreeSet::new();
        let parity_in_doubt = assembled.unsynced_from.is_some() && self.scenario.level.parities() > 0;
        if !self.scenario.lossy && (parity_in_doubt || last && self.rng.percent(50)) {
            return doomed;
        }
        let lossy = self.scenario.lossy;
        while self.rng.percent(if lossy { 70 } else { 40 }) && doomed.len() < assembled.members.len() {
            let member = self.rng.index(assembled.members.len());
            // The operator may put a spare in any slot: it must not fail beside others that do.
            if matches!(assembled.members[member].seat, Seat::Spare | Seat::Replacing { .. }) {
                break;
            }
            let holds = |slot: Slot, without: usize| {
                let held = |(m, seated): (usize, &raidus_assembly::Seated)| {
                    let sound = seated.bad_blocks.is_empty() && !doomed.contains(&m);
                    seated.seat == Seat::InSync(slot) && sound && m != without
                };
                assembled.members.iter().enumerate().any(held)
            };
            if lossy || assembled.geometry.enough(&|slot| holds(slot, member)) {
                doomed.insert(member);
            }
        }
        doomed
    }

    pub(crate) fn plan(
        &mut self,
        assembled: &Assembled,
        offered: &[usize],
        doomed: &BTreeSet<usize>,
        read_all: bool,
    ) -> RoundPlan {
        let mut places = Vec::new();
        let mut faults = Vec::new();
        for (number, seated) in assembled.members.iter().enumerate() {
            let member = seated.superblock.member();
            let (first, size) = (member.data_offset.0, member.data_size.0);
            let disk = offered[seated.candidate];
            places.push(MemberPlace {
                disk,
                superblock: member.super_offset,
                data: (first, first + size),
                log: log_place(&seated.superblock),
                atomic_superblock: self.scenario.metadata == MetadataVersion::V0_90,
            });
            let plan = if doomed.contains(&number) {
                FaultPlan::doomed(&mut self.rng)
            } else {
                FaultPlan::sound(&mut self.rng)
            };
            if plan.latent_percent > 0 {
                spoil(&mut self.disks[disk], first, size, plan.latent_percent, &mut self.rng);
            }
            faults.push(plan);
        }
        let requests = self.scenario.requests;
        let parity = self.scenario.level.parities() > 0;
        let degraded = !doomed.is_empty() || in_sync(assembled, offered).len() < usize::from(self.scenario.raid_disks);
        let cut_percent = if parity && degraded && self.scenario.log.is_none() { 15 } else { 50 };
        // What is missing in places may be lost where a write was cut short, as what is missing as a whole.
        let may_miss = !self.flawed.is_empty() || self.scenario.bad_block_log && !doomed.is_empty();
        let cut = !(self.scenario.lossy || parity && may_miss) && self.rng.percent(cut_percent);
        RoundPlan {
            places,
            faults,
            cut_after: cut.then(|| self.rng.below(requests)),
            requests,
            stop_early: self.rng.percent(20),
            let_sync_end: self.rng.percent(50),
            operator_percent: if self.rng.percent(50) { self.rng.pick(&[1, 5, 20]) } else { 0 },
            doomed: doomed.iter().map(|m| offered[assembled.members[*m].candidate]).collect(),
            scrub: None,
            first_request: self.next_request,
            read_all,
            lossy: self.scenario.lossy,
            plant: self.plant,
        }
    }
}

/// Whether the metadata says that redundancy at this address may be wrong.
fn suspect(assembled: &Assembled, address: u64) -> bool {
    assembled.unsynced_from.is_some_and(|from| address >= from.0)
        && assembled.bitmap.as_ref().is_none_or(|b| b.bits.get(Sector(address).bytes() / b.superblock.chunk()))
}

/// Disks of the members that hold their slot's data.
fn in_sync(assembled: &Assembled, offered: &[usize]) -> BTreeSet<usize> {
    let holds = |seated: &&raidus_assembly::Seated| matches!(seated.seat, Seat::InSync(_));
    assembled.members.iter().filter(holds).map(|seated| offered[seated.candidate]).collect()
}

/// Disks that hold their slot's data when the array is new.
fn present(scenario: &Scenario) -> BTreeSet<usize> {
    let holds = |slot: &Slot| {
        !scenario.missing.contains(slot) && scenario.rebuilding.is_none_or(|(rebuilding, _)| rebuilding != *slot)
    };
    (0..scenario.raid_disks).map(Slot).filter(holds).map(Slot::index).collect()
}

/// Latent read errors here and there, each some 4 KiB rows long.
fn spoil(disk: &mut Disk, first: u64, size: u64, percent: u64, rng: &mut Rng) {
    for row in (0..size).step_by(8) {
        if rng.percent(percent) {
            disk.spoil(first + row + rng.below(8), rng.range(1, 8).min(size - row));
        }
    }
}

/// Disk `i` is slot `i`'s when the array is new.
fn homes(scenario: &Scenario) -> BTreeMap<usize, Slot> {
    (0..scenario.raid_disks).map(|slot| (usize::from(slot), Slot(slot))).collect()
}
