//! One round: an array is started, used, and stopped or cut off from power. The scheduler chooses what happens next; nothing
//! else does.

use std::collections::{BTreeMap, BTreeSet};

use raidus_engine::control::{Command, Event, StopError, SyncEnd, SyncRequest};
use raidus_engine::{ArrayConfig, Input, MemberError, MemberIo, MemberOp, Output, Reply};
use raidus_format::{MetadataVersion, Superblock};
use raidus_units::{Nanos, Sector, Sectors, Slot};

use crate::disk::{Disk, Store};
use crate::faults::FaultPlan;
use crate::machines::Machines;
use crate::memory::Memory;
use crate::oracle::Oracle;
use crate::plant::{Deed, Plant};
use crate::rng::Rng;
use crate::scenario::{Pace, Scenario};
use crate::stamp::SECTOR;
use crate::trace::Trace;
use crate::workload::{Counts, Workload};

/// A member as this round knows it.
pub(crate) struct MemberPlace {
    /// Index of the disk.
    pub disk: usize,
    pub superblock: Sector,
    /// Device sectors the engine may write data to: first and end.
    pub data: (u64, u64),
    /// Device sectors of its partial parity log: first and end.
    pub log: Option<(u64, u64)>,
    /// Superblocks are kept or lost as a whole (0.90).
    pub atomic_superblock: bool,
}

/// What a round works on and leaves behind.
pub(crate) struct Ground<'a> {
    pub disks: &'a mut [Disk],
    pub oracle: &'a mut Oracle,
    pub trace: &'a mut Trace,
}

/// What a round is to do.
pub(crate) struct RoundPlan {
    /// By member id.
    pub places: Vec<MemberPlace>,
    pub faults: Vec<FaultPlan>,
    /// Cut the power about when this many requests have been answered.
    pub cut_after: Option<u64>,
    pub requests: u64,
    /// Stop while requests are under way.
    pub stop_early: bool,
    /// Percent of replies after which the operator does something.
    pub operator_percent: u64,
    /// Disks that may fail; the operator fails only these.
    pub doomed: BTreeSet<usize>,
    /// What the operator asks for at the start.
    pub scrub: Option<SyncRequest>,
    /// Stop only when nothing is being synced.
    pub let_sync_end: bool,
    pub first_request: u64,
    /// Read the whole array first.
    pub read_all: bool,
    pub lossy: bool,
    pub plant: Plant,
}

/// How a round ended.
#[derive(Debug)]
pub(crate) struct RoundEnd {
    pub power_cut: bool,
    /// Disks of members the engine gave up, and that have not come back.
    pub failed: BTreeSet<usize>,
    /// How many members failed in all.
    pub failures: u64,
    /// Disks of members that have been rebuilt, and their slots.
    pub arrived: BTreeMap<usize, Slot>,
    /// What the last sync found.
    pub last_sync: Option<SyncEnd>,
    /// Syncs that came to their end.
    pub syncs: u64,
    /// Sectors that could not be read and were written anew.
    pub healed: u64,
    /// Disks on which writes failed in places.
    pub flawed: BTreeSet<usize>,
    /// Redundancy may be wrong somewhere, by what the engine says.
    pub unsynced: bool,
    pub next_request: u64,
    pub counts: Counts,
    pub steps: u64,
    /// Writes of all kinds that members were given.
    pub writes: u64,
}

/// The power goes at a certain write to a member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// Number of the write, from 0.
    pub at: u64,
    pub unflushed: Unflushed,
}

/// What becomes of what members had completed, but not flushed, and of the write at which the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unflushed {
    /// All is lost.
    Lost,
    /// All is kept, and so is the write at which the power goes.
    Kept,
    /// Sector by sector, by chance.
    Torn,
}

/// A member I/O under way.
struct Flight {
    machine: usize,
    io: MemberIo,
    /// Payload when it was handed over.
    payload: Vec<u8>,
    watermark: u64,
    ready_at: Nanos,
    number: u64,
}

pub(crate) struct World<'a> {
    pub(crate) ground: Ground<'a>,
    pub(crate) plan: RoundPlan,
    pace: Pace,
    memory: Memory,
    pub(crate) machines: Machines,
    workload: Workload,
    flights: Vec<Flight>,
    pub(crate) now: Nanos,
    /// Counts events; the oracle's clock.
    pub(crate) moment: u64,
    asked: u64,
    paused_until: Nanos,
    stopping: bool,
    stopped: bool,
    pub(crate) failed: BTreeSet<usize>,
    failures: u64,
    arrived: BTreeMap<usize, Slot>,
    syncs: u64,
    healed: u64,
    flawed: BTreeSet<usize>,
    operator_due: bool,
    /// Settings that are changed beside: choices of their own, so that seeds whose rounds have none play as they are.
    pub(crate) manager: Option<Rng>,
    /// Writes are suspended until this moment.
    pub(crate) resume_at: Option<u64>,
    /// A superblock of the array, for disks that join.
    pub(crate) superblock: Superblock,
    pub(crate) scenario: Scenario,
    io_count: u64,
    writes: u64,
    cut: Option<Cut>,
    last_progress: u64,
    pub(crate) rng: Rng,
}

/// Steps without an answer after which the array is taken to hang.
const STUCK_STEPS: u64 = 300_000;
/// Virtual time after which a round is taken to hang.
const STUCK_TIME: Nanos = Nanos(24 * 3600 * 1_000_000_000);

impl<'a> World<'a> {
    pub(crate) fn new(
        ground: Ground<'a>,
        scenario: &Scenario,
        config: &ArrayConfig,
        plan: RoundPlan,
        rng: &mut Rng,
    ) -> Self {
        let mut memory = Memory::default();
        let machines = Machines::new(config, &mut memory);
        let workload = Workload::new(&scenario.clients, plan.first_request, plan.lossy, rng.fork());
        World {
            ground,
            pace: scenario.pace,
            memory,
            machines,
            workload,
            flights: Vec::new(),
            now: Nanos(0),
            moment: 1,
            asked: 0,
            paused_until: Nanos(0),
            stopping: false,
            stopped: false,
            failed: BTreeSet::new(),
            failures: 0,
            arrived: BTreeMap::new(),
            syncs: 0,
            healed: 0,
            flawed: BTreeSet::new(),
            operator_due: false,
            manager: crate::manager::draw(config, &plan),
            resume_at: None,
            superblock: config.members[0].superblock.clone(),
            scenario: scenario.clone(),
            io_count: 0,
            writes: 0,
            cut: None,
            last_progress: 0,
            rng: rng.fork(),
            plan,
        }
    }

    /// Has the power go at this write.
    pub(crate) fn cut_at(mut self, cut: Cut) -> Self {
        self.cut = Some(cut);
        self
    }

    /// Plays the round to its end.
    pub(crate) fn play(mut self) -> Result<RoundEnd, String> {
        if self.plan.read_all {
            self.ask_for_everything();
        }
        if let Some(request) = self.plan.scrub {
            self.machines.command(self.now, Command::Sync(request)).map_err(|e| format!("{request:?} refused: {e}"))?;
            self.turn(0)?;
        }
        let cut_steps = self.rng.below(60);
        let mut steps_to_cut = None;
        // Requests that come when all is over are still answered.
        while !self.stopped || self.workload.under_way() > 0 {
            if steps_to_cut.is_none() && self.plan.cut_after.is_some_and(|n| self.workload.counts.replies >= n) {
                steps_to_cut = Some(cut_steps);
            }
            match &mut steps_to_cut {
                Some(0) => return Ok(self.cut_power()),
                Some(n) => *n -= 1,
                None => {}
            }
            self.step()?;
            if self.cut.is_some_and(|cut| self.writes > cut.at) {
                return self.cut_power_at_write();
            }
        }
        if !self.flights.is_empty() {
            return Err(format!(
                "the array says it has stopped while {} member I/Os are under way",
                self.flights.len()
            ));
        }
        Ok(self.end(false))
    }

    fn end(self, power_cut: bool) -> RoundEnd {
        let status = self.machines.status();
        RoundEnd {
            power_cut,
            failed: self.failed,
            failures: self.failures,
            arrived: self.arrived,
            syncs: self.syncs,
            healed: self.healed,
            flawed: self.flawed,
            unsynced: status.map.unsynced_from.is_some(),
            last_sync: status.sync.last.map(|end| (*end).clone()),
            next_request: self.workload.next_id(),
            counts: self.workload.counts,
            steps: self.moment,
            writes: self.writes,
        }
    }

    fn step(&mut self) -> Result<(), String> {
        self.moment += 1;
        self.now = self.now.plus(Nanos(self.rng.below(20_000)));
        self.check_progress()?;
        if self.plan.stop_early && !self.stopping && self.asked >= self.plan.requests {
            return self.stop();
        }
        if self.resume_at.is_some_and(|at| self.moment >= at) {
            return self.resume();
        }
        if std::mem::take(&mut self.operator_due) && !self.stopping {
            return self.operate();
        }
        let machines: Vec<usize> = (0..self.machines.len()).filter(|m| self.machines.is_ready(*m, self.now)).collect();
        let flights: Vec<usize> = (0..self.flights.len()).filter(|f| self.flights[*f].ready_at <= self.now).collect();
        let clients = self.ready_clients();
        let mut weights = self.pace.weights;
        for (weight, none) in weights.iter_mut().zip([machines.is_empty(), flights.is_empty(), clients.is_empty()]) {
            if none {
                *weight = 0;
            }
        }
        let total = weights.iter().sum();
        if total == 0 {
            return self.idle();
        }
        let ticket = self.rng.below(total);
        if ticket < weights[0] {
            let machine = self.rng.pick(&machines);
            self.turn(machine)
        } else if ticket < weights[0] + weights[1] {
            let flight = self.rng.pick(&flights);
            self.land(flight)
        } else {
            let client = self.rng.pick(&clients);
            self.ask(client);
            Ok(())
        }
    }

    /// Nothing can happen now: stop when all is done, else let time pass.
    fn idle(&mut self) -> Result<(), String> {
        if self.resume_at.is_some() {
            return self.resume();
        }
        let over = self.asked >= self.plan.requests && self.workload.under_way() == 0;
        let syncing = self.plan.let_sync_end && self.machines.status().sync.action.is_some();
        if over && !self.stopping && !syncing && self.now >= self.paused_until {
            return self.stop();
        }
        let mut wake: Vec<Nanos> = self.flights.iter().map(|f| f.ready_at).collect();
        wake.extend(self.machines.next_timeout());
        if self.now < self.paused_until && !self.stopping {
            wake.push(self.paused_until);
        }
        let Some(next) = wake.into_iter().min() else {
            let waiting = if self.stopping { "the array never stops" } else { "deadlock: nothing is left to happen" };
            return Err(format!("{waiting}; requests without an answer:{}", self.workload.describe()));
        };
        self.now = self.now.max(next);
        Ok(())
    }

    fn stop(&mut self) -> Result<(), String> {
        if self.resume_at.is_some() {
            self.resume()?;
        }
        self.stopping = true;
        self.workload.stopping();
        self.ground.trace.note(self.now, || "stop".to_owned());
        self.machines.command(self.now, Command::Stop).map_err(|e| e.to_string())?;
        self.turn(0)
    }

    /// Whether I/O is under way on a disk.
    pub(crate) fn is_busy(&self, disk: usize) -> bool {
        self.flights.iter().any(|f| self.plan.places[f.io.member.index()].disk == disk)
    }

    fn check_progress(&self) -> Result<(), String> {
        if self.moment - self.last_progress > STUCK_STEPS || self.now > STUCK_TIME {
            return Err(format!(
                "livelock: no answer in {} steps; requests without an answer:{}",
                self.moment - self.last_progress,
                self.workload.describe()
            ));
        }
        Ok(())
    }

    fn ready_clients(&self) -> Vec<usize> {
        if self.stopping || self.asked >= self.plan.requests || self.now < self.paused_until {
            return Vec::new();
        }
        self.workload.ready()
    }

    fn ask(&mut self, client: usize) {
        let next = self.workload.next(client, &mut self.memory, self.ground.oracle, self.moment);
        self.asked += 1;
        let Some((shard, request)) = next else { return };
        self.ground.trace.note(self.now, || format!("client {client} asks shard {shard}: {request:?}"));
        self.machines.request(shard, request);
    }

    fn ask_for_everything(&mut self) {
        let requests = self.workload.read_all(&mut self.memory, self.ground.oracle, self.moment);
        for (shard, request) in requests {
            self.machines.request(shard, request);
        }
    }

    /// A turn of a machine: some of what waits for it, then its outputs.
    pub(crate) fn turn(&mut self, machine: usize) -> Result<(), String> {
        let inputs = self.rng.range(1, self.pace.turn_max);
        for _ in 0..inputs {
            let Some(input) = self.machines.draw(machine, &mut self.rng) else { break };
            self.ground.trace.note(self.now, || format!("-> {}: {input:?}", name(machine)));
            self.machines.handle(machine, self.now, input);
        }
        if self.machines.is_timeout_due(machine, self.now) {
            self.ground.trace.note(self.now, || format!("-> {}: Timeout", name(machine)));
            self.machines.handle(machine, self.now, Input::Timeout);
        }
        self.machines.end_turn(machine, self.now);
        while let Some(output) = self.machines.poll_output(machine) {
            self.ground.trace.note(self.now, || format!("<- {}: {}", name(machine), brief(&output)));
            self.carry_out(machine, output)?;
        }
        while let Some(event) = self.machines.poll_event() {
            self.ground.trace.note(self.now, || format!("event: {event:?}"));
            match event {
                Event::MemberFailed { member } | Event::MemberReplaced { member } => {
                    let disk = self.plan.places[member.index()].disk;
                    self.failures += 1;
                    self.failed.insert(disk);
                    self.arrived.remove(&disk);
                }
                Event::MemberInSync { member } => {
                    let disk = self.plan.places[member.index()].disk;
                    // It may have failed again since.
                    if let Some(slot) = self.machines.status().map.slot_of(member) {
                        self.failed.remove(&disk);
                        self.arrived.insert(disk, slot);
                    }
                }
                Event::ReadErrorCorrected { len, .. } => self.healed += len.0,
                Event::BadBlocks { member, .. } => {
                    self.flawed.insert(self.plan.places[member.index()].disk);
                }
                Event::SyncEnded { complete, .. } => {
                    self.syncs += u64::from(complete);
                    self.last_progress = self.moment;
                }
                Event::Stopped { result } => self.on_stopped(result)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn on_stopped(&mut self, result: Result<(), StopError>) -> Result<(), String> {
        self.stopped = true;
        match result {
            Err(error) if !self.plan.lossy => Err(format!("the array was not left in order: {error}")),
            _ => Ok(()),
        }
    }

    fn carry_out(&mut self, machine: usize, output: Output) -> Result<(), String> {
        match output {
            Output::Io(io) => self.launch(machine, io),
            Output::Compute(job) | Output::ComputeCold(job) => self.memory.compute(&job),
            Output::Compare(job) => {
                let differences = self.memory.compare(&job)?;
                self.machines.compared(machine, job.token, differences);
                Ok(())
            }
            Output::Reply(reply) => self.reply(machine, reply),
            Output::Send { to, message } => self.machines.send(machine, to, message),
        }
    }

    fn reply(&mut self, machine: usize, reply: Reply) -> Result<(), String> {
        let shard = machine.checked_sub(1).ok_or("Control answers a request")? as u16;
        self.last_progress = self.moment;
        self.moment += 1;
        self.workload.reply(shard, reply, &mut self.memory, self.ground.oracle, self.moment)?;
        self.operator_due |= self.rng.percent(self.plan.operator_percent);
        if self.rng.percent(self.pace.pause_percent) {
            let pause = Nanos::from_millis(self.rng.pick(&[10, 300, 1000, 6_000, 20_000]));
            self.paused_until = self.now.plus(pause);
        }
        Ok(())
    }

    /// A member I/O is handed to its device.
    fn launch(&mut self, machine: usize, io: MemberIo) -> Result<(), String> {
        if self.flights.iter().any(|f| f.machine == machine && f.io.token == io.token) {
            return Err(format!("{} uses the token of an I/O under way: {io:?}", name(machine)));
        }
        let Some(place) = self.plan.places.get(io.member.index()) else {
            return Err(format!("an I/O on member {}, which does not exist", io.member));
        };
        check_place(place, self.ground.disks[place.disk].sectors(), &io)?;
        let payload = match &io.op {
            MemberOp::Write { len, buf, .. } => self.memory.read(*buf, *len)?.to_vec(),
            MemberOp::WriteLog { unit, .. } => unit.encode(|at, len| self.memory.read(at, len))?,
            MemberOp::Read { len, buf, .. } => {
                // Whoever looks before the read has ended finds this.
                self.memory.write(*buf, *len)?.fill(0x5a);
                Vec::new()
            }
            _ => Vec::new(),
        };
        let slow = self.plan.faults[io.member.index()].slow;
        let usual = self.rng.below(self.pace.io_time.0);
        let extra = slow.map_or(0, |most| if self.rng.percent(20) { self.rng.below(most.0) } else { 0 });
        self.io_count += 1;
        self.flights.push(Flight {
            machine,
            payload,
            watermark: self.ground.disks[place.disk].watermark(),
            ready_at: self.now.plus(Nanos(usual + extra)),
            number: self.io_count,
            io,
        });
        Ok(())
    }

    /// A member I/O takes effect and ends.
    fn land(&mut self, flight: usize) -> Result<(), String> {
        let flight = self.flights.swap_remove(flight);
        let member = flight.io.member;
        if !matches!(flight.io.op, MemberOp::Read { .. } | MemberOp::Flush) {
            self.writes += 1;
            if self.cut.is_some_and(|cut| self.writes > cut.at) {
                // The last of those under way.
                self.flights.push(flight);
                return Ok(());
            }
        }
        let verdict = self.plan.faults[member.index()].verdict(&flight.io.op);
        let result = match verdict {
            Ok(()) => self.effect(&flight)?,
            Err(error) => {
                if error == MemberError::Io {
                    self.partial_effect(&flight);
                }
                Err(error)
            }
        };
        self.ground.trace.note(self.now, || format!("member {member}: {:?}: {result:?}", brief_op(&flight.io.op)));
        self.machines.done(flight.machine, flight.io.token, result);
        Ok(())
    }

    fn effect(&mut self, flight: &Flight) -> Result<Result<(), MemberError>, String> {
        let place = &self.plan.places[flight.io.member.index()];
        let failed = !self.failed.is_empty();
        let deed = self.plan.plant.deed(&flight.io.op, place.superblock, failed, flight.number);
        let disk = &mut self.ground.disks[place.disk];
        let shift = match deed {
            Deed::Nothing => return Ok(Ok(())),
            Deed::Shifted(n) => n,
            _ => 0,
        };
        let store = |durable: bool| if durable && deed != Deed::Volatile { Store::Durable } else { Store::Volatile };
        Ok(match &flight.io.op {
            MemberOp::Read { sector, len, buf } => disk.read(sector.0, self.memory.write(*buf, *len)?),
            MemberOp::Write { sector, len, buf, fua } => {
                if self.memory.read(*buf, *len)? != &flight.payload[..] {
                    return Err(format!("the payload changed while {:?} was under way", flight.io));
                }
                disk.write(sector.0 + shift, &flight.payload, store(*fua))
            }
            MemberOp::WriteMeta { sector, data } => {
                let atomic = place.atomic_superblock && *sector == place.superblock;
                if deed == Deed::Volatile {
                    disk.write(sector.0, data, if atomic { Store::VolatileAtomic } else { Store::Volatile })
                } else {
                    disk.flush(flight.watermark);
                    disk.write(sector.0, data, Store::Durable)
                }
            }
            MemberOp::WriteLog { sector, unit } => {
                if unit.encode(|at, len| self.memory.read(at, len))? != flight.payload {
                    return Err(format!("the payload changed while {:?} was under way", flight.io));
                }
                disk.write(sector.0, &flight.payload, store(true))
            }
            MemberOp::Flush => {
                disk.flush(flight.watermark);
                Ok(())
            }
            MemberOp::WriteZeroes { sector, len, fua, .. } => {
                disk.write(sector.0, &vec![0; len.0 as usize * SECTOR], store(*fua))
            }
        })
    }

    /// The I/O ends in the middle: an error, or the power went.
    fn partial_effect(&mut self, flight: &Flight) {
        let place = &self.plan.places[flight.io.member.index()];
        let disk = &mut self.ground.disks[place.disk];
        match &flight.io.op {
            MemberOp::Write { sector, .. } | MemberOp::WriteLog { sector, .. } => {
                disk.write_partly(sector.0, &flight.payload, false, &mut self.rng)
            }
            MemberOp::WriteMeta { sector, data } => {
                let atomic = place.atomic_superblock && *sector == place.superblock;
                disk.write_partly(sector.0, data, atomic, &mut self.rng);
            }
            MemberOp::WriteZeroes { sector, len, .. } => {
                disk.write_partly(sector.0, &vec![0; len.0 as usize * SECTOR], false, &mut self.rng);
            }
            MemberOp::Read { .. } | MemberOp::Flush => {}
        }
    }

    fn cut_power_at_write(mut self) -> Result<RoundEnd, String> {
        let Some(unflushed) = self.cut.map(|cut| cut.unflushed).filter(|u| *u != Unflushed::Torn) else {
            return Ok(self.cut_power());
        };
        let kept = unflushed == Unflushed::Kept;
        if let Some(last) = self.flights.pop().filter(|_| kept)
            && self.plan.faults[last.io.member.index()].verdict(&last.io.op).is_ok()
        {
            self.effect(&last)?.map_err(|e| format!("{:?}: {e:?}", last.io))?;
        }
        for disk in self.ground.disks.iter_mut() {
            if kept { disk.flush(u64::MAX) } else { disk.lose() }
        }
        Ok(self.end(true))
    }

    fn cut_power(mut self) -> RoundEnd {
        self.ground.trace.note(self.now, || "the power goes".to_owned());
        let mut flights = std::mem::take(&mut self.flights);
        while !flights.is_empty() {
            let flight = flights.swap_remove(self.rng.index(flights.len()));
            if self.plan.faults[flight.io.member.index()].verdict(&flight.io.op).is_ok() {
                self.partial_effect(&flight);
            }
        }
        for disk in self.ground.disks.iter_mut() {
            disk.power_loss(&mut self.rng);
        }
        self.end(true)
    }
}

/// Whether an I/O is inside the area of its kind.
fn check_place(place: &MemberPlace, device: u64, io: &MemberIo) -> Result<(), String> {
    let (first, len, data) = match &io.op {
        MemberOp::Read { sector, len, .. } | MemberOp::Write { sector, len, .. } => (*sector, *len, true),
        // Logs are zeroed, too.
        MemberOp::WriteZeroes { sector, len, .. } => {
            (*sector, *len, !place.log.is_some_and(|(first, end)| first <= sector.0 && sector.0 < end))
        }
        MemberOp::WriteMeta { sector, data } => (*sector, Sectors(data.len() as u64 / SECTOR as u64), false),
        MemberOp::WriteLog { sector, unit } => (*sector, unit.sectors(), false),
        MemberOp::Flush => return Ok(()),
    };
    let end = first.0 + len.0;
    let inside_data = first.0 >= place.data.0 && end <= place.data.1;
    let outside_data = end <= place.data.0 || first.0 >= place.data.1;
    let right = end <= device && !len.is_zero() && if data { inside_data } else { outside_data };
    if right { Ok(()) } else { Err(format!("an I/O outside its area {:?}: {io:?}", place.data)) }
}

fn name(machine: usize) -> String {
    if machine == 0 { "control".to_owned() } else { format!("shard {}", machine - 1) }
}

/// Outputs without the bytes they carry.
fn brief(output: &Output) -> String {
    match output {
        Output::Io(io) => format!("member {} token {:#x} {}", io.member, io.token.0, brief_op(&io.op)),
        other => format!("{other:?}"),
    }
}

fn brief_op(op: &MemberOp) -> String {
    match op {
        MemberOp::WriteMeta { sector, data } => {
            format!("WriteMeta {} bytes at {sector}{}", data.len(), says(data, *sector))
        }
        MemberOp::WriteLog { sector, unit } => format!("WriteLog at {sector}: {unit:?}"),
        other => format!("{other:?}"),
    }
}

/// What a superblock says of the array's state, if it is one.
fn says(block: &[u8], at: Sector) -> String {
    let parsed = MetadataVersion::ALL.into_iter().find_map(|v| Superblock::parse(block, v, at).ok());
    let Some(superblock) = parsed else { return String::new() };
    let facts = superblock.array();
    format!(": events {}, utime {:?}, clean {}, resync {:?}", facts.events, facts.utime, facts.clean, facts.resync)
}
