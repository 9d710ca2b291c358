//! An array for a benchmark, and a load on it or on its members.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use raidus_assembly::Options;
use raidus_assembly::create::{BitmapWish, CreateDevice, CreateParams, NewMember, plan};
use raidus_engine::Tunables;
use raidus_engine::control::Counters;
use raidus_format::MetadataVersion;
use raidus_layout::Geometry;
use raidus_runtime::members::{MemberDevice, OpenMode};
use raidus_runtime::{ArrayHandle, BareLayout, LocalClient, OpenOptions, RunOptions, Tally, run_bare};
use raidus_units::{Level, Sector, Sectors};

use super::beside::Beside;
use super::load::{Done, Job, Length, Plan};
use super::members::{self, Member};
use crate::error::Failure;
use crate::host::{now, random_uuid};

/// The array to make; without one, the members are an array already, which is only read.
#[derive(Clone, Debug)]
pub struct Make {
    pub level: Level,
    pub layout: Option<u32>,
    pub chunk: Option<Sectors>,
    pub bitmap: BitmapWish,
    pub run: bool,
}

/// What a benchmark runs on.
#[derive(Debug)]
pub struct Session {
    pub members: Vec<Member>,
    pub make: Option<Make>,
    pub threads: u16,
    pub beside: Option<Beside>,
    pub speed_min: Option<u64>,
    pub sleep_in_poll: bool,
}

/// A running array and what is known of it.
pub struct Running {
    pub handle: ArrayHandle,
    pub geometry: Geometry,
    /// First device sector of the data, and how much there is, of every member the smallest.
    pub data: (Sector, Sectors),
}

/// A load's outcome.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub done: Done,
    pub tally: Tally,
    pub control: Counters,
}

impl Session {
    /// Makes the array, if one is to be made. What the members hold is lost.
    pub fn prepare(&self) -> Result<(), Failure> {
        let Some(make) = &self.make else { return Ok(()) };
        let devices = members::open(&self.members, OpenMode { direct: false, ..OpenMode::READ_WRITE })?;
        members::refuse_content(&self.members, &devices, make.run)?;
        let params = self.params(make, &devices)?;
        let plan = plan(&params)?;
        let mut devices: Vec<Option<MemberDevice>> = devices.into_iter().map(Some).collect();
        if self.is_rebuilt() {
            // The last slot is empty, and its member a spare.
            devices.insert(devices.len() - 1, None);
        }
        Ok(raidus_runtime::create_array(&plan, &devices)?)
    }

    fn is_rebuilt(&self) -> bool {
        self.beside == Some(Beside::Recovery)
    }

    fn params(&self, make: &Make, devices: &[MemberDevice]) -> Result<CreateParams, Failure> {
        let mut places = Vec::new();
        for device in devices {
            places.push(CreateDevice::Present(NewMember {
                name: device.name().display().to_string(),
                size: device.size(),
                uuid: random_uuid()?,
                write_mostly: false,
                failfast: false,
                data_offset: None,
                old_superblocks: Vec::new(),
            }));
        }
        if self.is_rebuilt() {
            places.insert(devices.len() - 1, CreateDevice::Missing);
        }
        Ok(CreateParams {
            metadata: MetadataVersion::V1_2,
            level: make.level,
            raid_disks: devices.len() as u16,
            spares: u16::from(self.is_rebuilt()),
            devices: places,
            chunk: make.chunk.filter(|_| make.level != Level::Raid1),
            layout: make.layout,
            size: None,
            data_offset: None,
            bitmap: make.bitmap,
            policy: None,
            write_behind: None,
            assume_clean: self.beside != Some(Beside::Resync),
            force: true,
            name: Some("bench".to_owned()),
            homehost: None,
            uuid: random_uuid()?,
            now: now(),
            preferred_minor: 0,
        })
    }

    /// Starts the array. Syncs wait until they are told to begin.
    pub fn start(&self, pool_bytes: usize) -> Result<Running, Failure> {
        let readonly = self.make.is_none();
        let mode = if readonly { OpenMode::READ_ONLY } else { OpenMode::READ_WRITE };
        let devices = members::open(&self.members, mode)?;
        let assembly = Options { run: true, readonly, ..Options::default() };
        let mut tunables = Tunables { shards: self.threads, sync_frozen: true, ..Tunables::default() };
        tunables.sync_speed_min = self.speed_min.unwrap_or(tunables.sync_speed_min);
        let options = OpenOptions { assembly, tunables, ..OpenOptions::default() };
        let opened = raidus_runtime::open_devices(devices, &options)?;
        let geometry = opened.config.geometry.clone();
        let start = opened.config.map.members.iter().map(|m| m.data_offset).max().unwrap_or(Sector::ZERO);
        let end = opened.members.iter().map(|m| m.size().0).min().unwrap_or(0);
        let data = (start, Sectors(end.saturating_sub(start.0)));
        let run = RunOptions { pool_bytes, sleep_in_poll: self.sleep_in_poll, ..RunOptions::default() };
        let handle = raidus_runtime::start(opened.config, opened.members, run)?;
        Ok(Running { handle, geometry, data })
    }

    /// The same load on the members alone: those of an array that is being made, or only read.
    pub fn bare(&self, plan: &Plan, data: (Sector, Sectors), pool_bytes: usize) -> Result<Outcome, Failure> {
        let readonly = self.make.is_none();
        let mode = if readonly { OpenMode::READ_ONLY } else { OpenMode::READ_WRITE };
        let chunk = plan.block.max(Sectors::from_kib(64));
        let whole = Sectors(data.1.0 / chunk.0 * chunk.0 * self.members.len() as u64);
        let plan = Plan { span: plan.span.min(whole), ..plan.clone() };
        let layout = BareLayout { start: data.0, chunk };
        let devices = members::open(&self.members, mode)?;
        let plan = Arc::new(plan);
        let (report, reports) = channel();
        let job = |n| Box::new(Job::new(&plan, n, report.clone())) as Box<dyn LocalClient>;
        let jobs = (0..plan.jobs).map(job).collect();
        let tally = run_bare(devices, layout, jobs, pool_bytes)?;
        drop(report);
        let done = Done::sum(reports);
        Ok(Outcome { done, tally, control: Counters::default() })
    }
}

impl Running {
    /// Puts a load on the array and waits for its end. What it left behind (superblocks, bitmaps) is counted with it only as far
    /// as it was written by then.
    pub fn load(&self, plan: &Plan) -> Result<Outcome, Failure> {
        let plan = Arc::new(plan.clone());
        let (report, reports) = channel();
        let (tally, control) = (self.handle.tally(), self.control());
        for number in 0..plan.jobs {
            let job = Box::new(Job::new(&plan, number, report.clone()));
            if self.handle.attach(number, job).is_err() {
                return Err(stopped());
            }
        }
        drop(report);
        let done: Vec<Done> = reports.iter().collect();
        if done.len() < plan.jobs {
            return Err(stopped());
        }
        let now = self.control();
        let control = Counters {
            superblock_rounds: now.superblock_rounds - control.superblock_rounds,
            bitmap_pages: now.bitmap_pages - control.bitmap_pages,
            flush_rounds: now.flush_rounds - control.flush_rounds,
            flushes: now.flushes - control.flushes,
            log_units: now.log_units - control.log_units,
        };
        Ok(Outcome { done: Done::sum(done), tally: self.handle.tally().since(tally), control })
    }

    fn control(&self) -> Counters {
        self.handle.status().map_or_else(Counters::default, |status| status.counters)
    }

    /// Ends the array in order.
    pub fn stop(self) -> Result<(), Failure> {
        self.handle.stop().map_err(|source| Failure::Stop { name: "bench".to_owned(), source })
    }
}

fn stopped() -> Failure {
    Failure::Bench("the array ended while the load ran".to_owned())
}

impl Outcome {
    /// Of the slowest job.
    pub fn seconds(&self) -> f64 {
        self.done.took.max(Duration::from_nanos(1)).as_secs_f64()
    }

    /// Reads and writes of clients, per second.
    pub fn requests_per_second(&self) -> f64 {
        self.done.transfers() as f64 / self.seconds()
    }

    /// Reads and writes of members, per second.
    pub fn member_ios_per_second(&self) -> f64 {
        (self.tally.member_reads + self.tally.member_writes) as f64 / self.seconds()
    }

    /// Bytes that members moved, per second.
    pub fn member_bytes_per_second(&self) -> f64 {
        (self.tally.member_read_bytes + self.tally.member_write_bytes) as f64 / self.seconds()
    }
}

/// Waits for something, at most for a while.
pub fn wait_for(longest: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > longest {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Memory for the requests of one thread, each in a block of a power of two.
pub fn pool_bytes(plan: &Plan, threads: usize) -> usize {
    let jobs = plan.jobs.div_ceil(threads.max(1));
    let each = (plan.block.bytes() as usize).next_power_of_two();
    (2 * jobs * plan.depth * each).max(1 << 20)
}

/// The warm-up of a load.
pub fn warm_up(plan: &Plan, length: Length) -> Plan {
    Plan { length, seed: plan.seed.wrapping_add(0x9e37_79b9), ..plan.clone() }
}
