//! From paths to an array that can be started, and from a plan to members on disk.
//!
//! Everything is read and decided before anything is written. Opening an array writes only what a log holds that the members lack,
//! and that in a step of its own ([`Prepared::finish`]), for those who have more to settle first.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use raidus_assembly::create::{CreatePlan, MemberPlan, Written};
use raidus_assembly::{Assembled, Candidate, Decision, Found, Options, Verdict, decide};
use raidus_engine::{ArrayConfig, Tunables};
use raidus_format::{Probe, ProbeRead, probe, probe_areas};
use raidus_units::{Sector, Sectors};

use crate::members::{Access, MemberDevice, MemberOpenError, OpenMode, OverlayStore, check_distinct};
use crate::memory::usize_of;
use crate::replay::{self, ReplayFailed};

/// How to open an array.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// What assembly may do.
    pub assembly: Options,
    /// Keep every write in overlays; the members are only read.
    pub overlay: Option<OverlayStore>,
    /// Go through the page cache instead of past it.
    pub cached: bool,
    /// Run read-only on members that something else uses, whose content may change under the array. Ignored unless
    /// [`Options::readonly`] is set or there is an overlay.
    pub ignore_use: bool,
    /// Settings of the engine.
    pub tunables: Tunables,
}

/// An array ready to be started: `crate::start(opened.config, opened.members, …)`.
#[derive(Debug)]
pub struct Opened {
    /// What was decided and why.
    pub decision: Decision,
    /// What to start the engine with.
    pub config: ArrayConfig,
    /// The members, by member id.
    pub members: Vec<MemberDevice>,
}

/// Why an array is not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A device cannot be opened.
    #[error(transparent)]
    Member(#[from] MemberOpenError),
    /// The devices make no array that may be started. The decision has every reason.
    #[error("the array cannot be started: {}", reasons(.0))]
    Refused(Box<Decision>),
    /// A log was not replayed to its end.
    #[error(transparent)]
    Replay(#[from] ReplayFailed),
}

/// Devices that make an array, decided on; nothing was written.
#[derive(Debug)]
pub struct Prepared {
    /// What was decided and why.
    pub decision: Decision,
    devices: Vec<MemberDevice>,
    options: OpenOptions,
}

fn reasons(decision: &Decision) -> String {
    match &decision.verdict {
        Verdict::Start(_) => String::new(),
        Verdict::Refuse(reasons) => reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
    }
}

/// [`prepare`] and [`Prepared::finish`].
pub fn open_array(paths: &[PathBuf], options: &OpenOptions) -> Result<Opened, OpenError> {
    prepare(paths, options)?.finish()
}

/// [`open_array`] of devices that are open.
pub fn open_devices(devices: Vec<MemberDevice>, options: &OpenOptions) -> Result<Opened, OpenError> {
    Prepared::decide(devices, options)?.finish()
}

/// Opens the devices at `paths` and decides how they start as an array.
pub fn prepare(paths: &[PathBuf], options: &OpenOptions) -> Result<Prepared, OpenError> {
    let looking = options.assembly.readonly || options.overlay.is_some();
    let mode = OpenMode {
        access: if looking { Access::ReadOnly } else { Access::ReadWrite },
        direct: !options.cached,
        ignore_use: looking && options.ignore_use,
    };
    let mut devices = Vec::new();
    for path in paths {
        refuse_second_opening(path, &devices)?;
        let device = MemberDevice::open(path, mode)?;
        devices.push(match &options.overlay {
            Some(store) => device.with_overlay(store)?,
            None => device,
        });
    }
    check_distinct(&devices)?;
    Prepared::decide(devices, options)
}

/// A device given twice would meet its own lock; say what it is instead.
fn refuse_second_opening(path: &Path, devices: &[MemberDevice]) -> Result<(), MemberOpenError> {
    match devices.iter().find(|d| d.is_at(path)) {
        Some(first) => Err(MemberOpenError::GivenTwice { path: path.to_owned(), first: first.name().to_owned() }),
        None => Ok(()),
    }
}

impl Prepared {
    fn decide(devices: Vec<MemberDevice>, options: &OpenOptions) -> Result<Prepared, OpenError> {
        let candidates: Vec<Candidate> = devices.iter().map(candidate).collect();
        let decision = decide(&candidates, &options.assembly);
        match decision.verdict {
            Verdict::Start(_) => Ok(Prepared { decision, devices, options: options.clone() }),
            Verdict::Refuse(_) => Err(OpenError::Refused(Box::new(decision))),
        }
    }

    /// Replays what a log holds, if there is one that holds something; then the array is decided on again, and is ready to be
    /// started. Where the members may not be written, memory takes what is replayed.
    pub fn finish(self) -> Result<Opened, OpenError> {
        let Prepared { decision, devices, options } = self;
        let Some(assembled) = decision.start() else { return Err(OpenError::Refused(Box::new(decision))) };
        if assembled.replay.is_none() {
            let config = raidus_engine::open(assembled, options.tunables, unix_time());
            let members = seated(assembled, devices);
            return Ok(Opened { decision, config, members });
        }
        let devices = replay::writable(devices, options.assembly.readonly)?;
        replay::carry_out(assembled, &devices, unix_time())?;
        let again = Prepared::decide(devices, &options)?;
        match again.decision.start().and_then(|assembled| assembled.replay.as_ref()) {
            None => again.finish(),
            Some(replay) => Err(ReplayFailed::Left { what: replay.to_string() }.into()),
        }
    }
}

/// The devices that take part, by member id.
fn seated(assembled: &Assembled, devices: Vec<MemberDevice>) -> Vec<MemberDevice> {
    let mut devices: Vec<Option<MemberDevice>> = devices.into_iter().map(Some).collect();
    // Each candidate is seated at most once.
    assembled.members.iter().filter_map(|seated| devices.get_mut(seated.candidate)?.take()).collect()
}

fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Reads everything that a decision about a device needs.
pub fn candidate(device: &MemberDevice) -> Candidate {
    let found = match probe_device(device) {
        Ok(probe) => Found::from(probe),
        Err(error) => Found::Unreadable(error.to_string()),
    };
    let mut candidate = Candidate::new(device.name().display().to_string(), device.size(), found);
    loop {
        let needs = candidate.needs();
        if needs.is_empty() {
            return candidate;
        }
        for need in needs {
            let bytes = read(device, need.at, need.len);
            candidate.supply(need, bytes.map_err(|e| e.to_string()));
        }
    }
}

/// Looks for metadata on a device. Fails if a place where some would be cannot be read and nothing was found elsewhere.
pub fn probe_device(device: &MemberDevice) -> io::Result<Probe> {
    let mut reads = Vec::new();
    let mut failed = None;
    for (at, len) in probe_areas(device.size()) {
        match read(device, at, len) {
            Ok(bytes) => reads.push((at, bytes)),
            Err(error) => failed = Some(error),
        }
    }
    let reads: Vec<ProbeRead<'_>> = reads.iter().map(|(at, bytes)| ProbeRead { at: *at, bytes }).collect();
    let probe = probe(device.size(), &reads);
    match failed {
        Some(error) if probe.newest().is_none() => Err(error),
        _ => Ok(probe),
    }
}

fn read(device: &MemberDevice, at: Sector, len: Sectors) -> io::Result<Vec<u8>> {
    // The areas that metadata points to are bounded by their formats; a length beyond the device is refused by `read_at`.
    let len = if len > device.size() { return Err(io::ErrorKind::UnexpectedEof.into()) } else { len.bytes() };
    let mut bytes = vec![0; usize_of(len)];
    device.read_at(at.bytes(), &mut bytes)?;
    Ok(bytes)
}

/// Why an array was not created.
#[derive(Debug, thiserror::Error)]
pub enum CreateFailed {
    /// A device of the plan was not given.
    #[error("{device} is in the plan, but was not opened")]
    NotGiven {
        /// The device.
        device: String,
    },
    /// A device could not be written. Superblocks written before were removed again.
    #[error("{device}: {source}; no array was created")]
    Write {
        /// The device.
        device: String,
        /// What it said.
        source: io::Error,
    },
    /// A device could not be written, and then neither could a superblock be removed.
    #[error(
        "{device}: {source}; the superblock of {left} could not be removed again, do that with `raidus zero-superblock`"
    )]
    HalfDone {
        /// The device.
        device: String,
        /// What it said.
        source: io::Error,
        /// The device that kept its superblock.
        left: String,
    },
}

/// Writes a new array to `devices`, which are in the order of the devices the plan was made for.
///
/// Bitmaps, logs and zeroes over old superblocks are durable everywhere before the first superblock is written, so a crash
/// leaves either no superblock, or superblocks of a complete array of which some members are missing.
pub fn create_array(plan: &CreatePlan, devices: &[Option<MemberDevice>]) -> Result<(), CreateFailed> {
    let members: Vec<(&MemberPlan, &MemberDevice)> = plan
        .members
        .iter()
        .map(|member| match devices.get(member.device) {
            Some(Some(device)) => Ok((member, device)),
            _ => Err(CreateFailed::NotGiven { device: member.name.clone() }),
        })
        .collect::<Result<_, _>>()?;
    let failed = |member: &MemberPlan, source| CreateFailed::Write { device: member.name.clone(), source };
    for (member, device) in &members {
        write(member, device, |what| what != Written::Superblock).map_err(|e| failed(member, e))?;
    }
    for (i, (member, device)) in members.iter().enumerate() {
        if let Err(source) = write(member, device, |what| what == Written::Superblock) {
            let device = member.name.clone();
            return Err(match undo(&members[..=i]) {
                None => CreateFailed::Write { device, source },
                Some(left) => CreateFailed::HalfDone { device, source, left },
            });
        }
    }
    Ok(())
}

fn write(member: &MemberPlan, device: &MemberDevice, which: impl Fn(Written) -> bool) -> io::Result<()> {
    for write in member.writes.iter().filter(|w| which(w.what)) {
        device.write_at(write.at.bytes(), &write.bytes)?;
    }
    device.sync()
}

/// Zeroes the superblocks written; gives the name of a device where that failed. The last one failed to be written, and may
/// have failed for good: it has no superblock to leave.
fn undo(members: &[(&MemberPlan, &MemberDevice)]) -> Option<String> {
    let mut left = None;
    for (i, (member, device)) in members.iter().enumerate() {
        let mut superblocks = member.writes.iter().filter(|w| w.what == Written::Superblock);
        let zeroed = superblocks.try_for_each(|w| device.write_at(w.at.bytes(), &vec![0; w.bytes.len()]));
        if zeroed.and_then(|()| device.sync()).is_err() && i + 1 < members.len() {
            left = Some(member.name.clone());
        }
    }
    left
}
