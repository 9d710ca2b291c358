//! A running array and everything around it: sockets, signals, log, end.
//!
//! One thread owns the array and takes [`Order`]s; signals, events and the control socket each have a thread that only passes
//! things on to it.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use raidus_assembly::{Assembled, Decision, Options, Out, Seat, Standing};
use raidus_engine::Tunables;
use raidus_engine::control::{ArrayState, Command, Event};
use raidus_fuse::{Mount, MountOptions, UnmountError};
use raidus_layout::Raid0Layout;
use raidus_nbd::{Address, BindError, BlockSizes, Endpoint, Export, NbdService, listen};
use raidus_runtime::members::OverlayStore;
use raidus_runtime::{ArrayHandle, OpenError, OpenOptions, Prepared, RunOptions, StopFailed};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::sync::oneshot;

use crate::control::client::running;
use crate::control::server::{Server, Shared, serve as serve_control};
use crate::error::Failure;
use crate::live::Live;
use crate::live::feed::What;
use crate::live::scrub::Scrubs;
use crate::mounted;
use crate::output::say;
use crate::portrait::Portrait;
use crate::rundir::{RunDir, check_name, running_name};
use crate::statedir::scrub_file;

/// An array to run. A background process is given this as JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Request {
    /// Member devices.
    pub devices: Vec<PathBuf>,
    /// The name to run under.
    pub name: Option<String>,
    /// Take what assembly doubts.
    pub force: bool,
    /// Start although members are missing.
    pub run: bool,
    /// Write nothing.
    pub readonly: bool,
    /// Only members of the array with this UUID.
    pub uuid: Option<String>,
    /// Only members of the array of this name.
    pub array_name: Option<String>,
    /// Layout of a raid0 that does not tell.
    pub raid0_layout: Option<u32>,
    /// Where to keep what is written, instead of on the members.
    pub overlay: Option<Overlay>,
    /// Where to listen for NBD clients, beside the run directory.
    pub listen: Option<String>,
    /// Threads.
    pub threads: u16,
    /// Where to mount it.
    pub mount: Option<PathBuf>,
    /// Let others use the mount.
    pub allow_other: bool,
}

/// Where an overlay keeps what is written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Overlay {
    /// In memory.
    Memory,
    /// In files without names in this directory.
    Directory(PathBuf),
}

/// What a user needs to know of an array that has just started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ready {
    /// The name it runs under.
    pub name: String,
    /// `NAME has been started with 3 drives.`
    pub message: String,
    /// NBD URIs.
    pub nbd: Vec<String>,
    /// The NBD socket's path, if it is a Unix socket.
    pub socket: Option<PathBuf>,
    /// The array as a file, if it is mounted.
    pub file: Option<PathBuf>,
    /// The process.
    pub pid: u32,
}

/// What the thread that owns the array is told.
pub enum Order {
    /// Stop, and tell the control socket's client how that went.
    Stop(oneshot::Sender<Result<(), String>>),
    /// A signal that means stop.
    Signal(i32),
    /// Something happened.
    Event(Event),
    /// Nothing will happen any more: the array ended.
    Ended,
}

/// Runs an array until it is stopped. `ready` is called once clients can connect.
pub fn run(request: &Request, ready: impl FnOnce(&Ready) -> Result<(), Failure>) -> Result<(), Failure> {
    let dir = RunDir::find()?;
    dir.make()?;
    let (orders, inbox) = channel();
    let stopping = Arc::new(AtomicBool::new(false));
    watch_signals(orders.clone(), Arc::clone(&stopping))?;
    let prepared = prepare(request)?;
    let decision = prepared.decision.clone();
    let Some(assembled) = decision.start() else {
        return Err(OpenError::Refused(Box::new(decision)).into());
    };
    tell_decision(&decision);
    let claim = Claim::take(&dir, request, assembled)?;
    // May write to the members: a log is replayed.
    let opened = prepared.finish()?;
    let Some(assembled) = opened.decision.start().cloned() else {
        return Err(OpenError::Refused(Box::new(opened.decision)).into());
    };
    let portrait =
        Portrait::new(&claim.name, dir.nbd(&claim.name), assembled, &opened.members, request.overlay.is_some());
    let options = RunOptions { pin: false, ..RunOptions::default() };
    let array = Arc::new(raidus_runtime::start(opened.config, opened.members, options)?);
    let uuid = portrait.assembled.array.uuid.to_string();
    let kept = request.overlay.is_none().then(|| scrub_file(&uuid)).flatten();
    let live = Live::new(array, portrait, request.overlay_store(), Scrubs::load(kept));
    let mut running = Running::begin(claim, live, orders, stopping)?;
    if let Err(failure) = running.mount(request) {
        // What was to be served only beside a mount must not go on without it.
        return running.stop(None).and(Err(failure));
    }
    let outcome = match ready(&running.ready()) {
        Ok(()) => running.until_stopped(&inbox),
        Err(nobody) => running.stop(None).and(Err(nobody)),
    };
    tracing::debug!("ended");
    outcome
}

/// Opens the devices and decides; tells the user why not if not.
fn prepare(request: &Request) -> Result<Prepared, Failure> {
    let options = OpenOptions {
        assembly: request.assembly()?,
        overlay: request.overlay_store(),
        tunables: Tunables {
            shards: request.threads,
            // An overlay is for looking: a rebuild would fill it with a whole member.
            sync_frozen: request.overlay.is_some(),
            ..Tunables::default()
        },
        ..OpenOptions::default()
    };
    match raidus_runtime::prepare(&request.devices, &options) {
        Ok(prepared) => Ok(prepared),
        Err(OpenError::Refused(decision)) => {
            tell_refusal(&decision);
            Err(Failure::Told)
        }
        Err(error) => Err(error.into()),
    }
}

impl Request {
    fn overlay_store(&self) -> Option<OverlayStore> {
        self.overlay.clone().map(|overlay| match overlay {
            Overlay::Memory => OverlayStore::Memory,
            // Members that join later find it, too.
            Overlay::Directory(dir) => OverlayStore::Directory(std::path::absolute(&dir).unwrap_or(dir)),
        })
    }

    /// What assembly may do.
    pub fn assembly(&self) -> Result<Options, Failure> {
        let uuid = self.uuid.as_ref().map(|u| u.parse()).transpose();
        Ok(Options {
            force: self.force,
            run: self.run,
            readonly: self.readonly,
            uuid: uuid.map_err(|e: raidus_format::UuidError| Failure::Usage(format!("--uuid: {e}")))?,
            name: self.array_name.clone(),
            raid0_layout: self.raid0_layout.map(|layout| Raid0Layout::from_superblock(layout, true)),
        })
    }
}

/// Devices left out, and what was forced.
fn tell_decision(decision: &Decision) {
    tell_left_out(decision);
    for note in &decision.notes {
        say(format_args!("note: {note}"));
    }
    for forced in decision.start().map_or(&[][..], |a| &a.forced) {
        say(format_args!("forced: {forced}"));
    }
    if let Some(replay) = decision.start().and_then(|a| a.replay.as_ref()) {
        say(format_args!("replaying {replay}"));
    }
}

fn tell_refusal(decision: &Decision) {
    tell_left_out(decision);
    for note in &decision.notes {
        say(format_args!("note: {note}"));
    }
    for reason in decision.reasons() {
        say(format_args!("not started: {reason}"));
    }
    for forced in &decision.force_would {
        say(format_args!("with --force: {forced}"));
    }
}

fn tell_left_out(decision: &Decision) {
    for member in &decision.members {
        match &member.standing {
            Standing::Out(Out::Undecided) | Standing::In(_) | Standing::Forced(_) => {}
            Standing::Out(out) => say(format_args!("{}: {out}", member.name)),
        }
    }
}

/// The name and the sockets of an array, taken before anything is written.
struct Claim {
    name: String,
    control: Socket,
    nbd: Vec<Socket>,
}

/// A listening socket, and its file.
type Socket = (OwnedFd, Endpoint);

impl Claim {
    fn take(dir: &RunDir, request: &Request, assembled: &Assembled) -> Result<Claim, Failure> {
        let uuid = assembled.array.uuid.to_string();
        // Two processes with copies of the members would serve two different arrays under one identity.
        if let Some((_, report)) = running(dir)?.into_iter().find(|(_, report)| report.uuid == uuid) {
            return Err(Failure::Running { name: report.name, pid: report.pid });
        }
        let (name, control) = match &request.name {
            Some(name) => (name.to_owned(), bind_control(dir, check_name(name)?)?),
            None => Claim::free_name(dir, assembled)?,
        };
        let mut nbd = Vec::new();
        if let Some(text) = &request.listen {
            let address = Address::parse(text).ok_or_else(|| bad_address(text))?;
            nbd.push(listen(&address)?);
        }
        let own = Address::Unix(dir.nbd(&name));
        // With --socket the user has a place of his own for it; TCP clients are elsewhere, those here keep theirs.
        if let Some(dir) = &request.mount {
            raidus_fuse::check(dir, &name)?;
        }
        if !nbd.iter().any(|(_, endpoint)| matches!(endpoint.address(), Address::Unix(_))) {
            nbd.push(listen(&own)?);
        }
        Ok(Claim { name, control, nbd })
    }

    /// The array's own name, or one that nobody has, counted down from md127 as Linux does.
    fn free_name(dir: &RunDir, assembled: &Assembled) -> Result<(String, Socket), Failure> {
        let facts = &assembled.array;
        let own = running_name(&facts.name, facts.preferred_minor).into_iter();
        let others = (0..128).rev().map(|n| format!("md{n}"));
        let mut taken = None;
        for name in own.chain(others) {
            match bind_control(dir, &name) {
                Ok(socket) => return Ok((name, socket)),
                Err(error @ Failure::NameTaken { .. }) => taken = taken.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        Err(taken.unwrap_or(Failure::NameTaken { name: "md0".to_owned() }))
    }
}

fn bind_control(dir: &RunDir, name: &str) -> Result<Socket, Failure> {
    match listen(&Address::Unix(dir.control(name))) {
        Err(BindError::InUse(_)) => Err(Failure::NameTaken { name: name.to_owned() }),
        other => Ok(other?),
    }
}

fn bad_address(text: &str) -> Failure {
    Failure::Usage(format!(
        "'{text}' is not an address to listen on: ADDRESS:PORT for TCP, or the path of a Unix socket"
    ))
}

/// An array in operation.
struct Running {
    name: String,
    live: Arc<Live>,
    service: Arc<NbdService>,
    nbd: Vec<Endpoint>,
    mount: Option<Mount>,
    control: Server,
    /// Stopping in order is under way: another signal ends it.
    stopping: Arc<AtomicBool>,
}

impl Running {
    fn begin(claim: Claim, live: Live, orders: Sender<Order>, stopping: Arc<AtomicBool>) -> Result<Running, Failure> {
        let Claim { name, control, nbd } = claim;
        let live = Arc::new(live);
        watch_events(&live.array, orders.clone())?;
        let service = Arc::new(NbdService::new(export(&name, &live.array, &live.portrait)?));
        let mut endpoints = Vec::new();
        for (socket, endpoint) in nbd {
            live.array.serve(socket, Arc::clone(&service) as _);
            endpoints.push(endpoint);
        }
        let shared = Shared { live: Arc::clone(&live), nbd: endpoints.iter().map(|e| e.uri("")).collect(), orders };
        let control = serve_control(control, shared)
            .map_err(|source| Failure::System { what: "cannot serve the control socket", source })?;
        Ok(Running { name, live, service, nbd: endpoints, mount: None, control, stopping })
    }

    /// Shows the array as a file, if that is wanted.
    fn mount(&mut self, request: &Request) -> Result<(), Failure> {
        let Some(dir) = &request.mount else { return Ok(()) };
        let options = MountOptions {
            read_only: self.live.portrait.assembled.read_only,
            allow_other: request.allow_other,
            ..MountOptions::default()
        };
        let texts = mounted::texts(&self.live);
        self.mount = Some(raidus_fuse::mount(Arc::clone(&self.live.array), dir, &self.name, texts, options)?);
        Ok(())
    }

    /// Users of the mount keep the array: they may have a file system on it.
    fn unmount(&mut self) -> Result<(), UnmountError> {
        self.mount.as_mut().map_or(Ok(()), Mount::unmount)
    }

    fn ready(&self) -> Ready {
        let socket = self.nbd.iter().find_map(|l| match l.address() {
            Address::Unix(path) => Some(path.clone()),
            Address::Tcp(_) => None,
        });
        Ready {
            name: self.name.clone(),
            message: started_message(&self.name, &self.live.portrait.assembled),
            nbd: self.nbd.iter().map(|l| l.uri("")).collect(),
            socket,
            file: self.mount.as_ref().map(|mount| mount.file().to_owned()),
            pid: std::process::id(),
        }
    }

    fn until_stopped(mut self, inbox: &Receiver<Order>) -> Result<(), Failure> {
        loop {
            match inbox.recv() {
                Ok(Order::Stop(reply)) => match self.unmount() {
                    Ok(()) => return self.stop(Some(reply)),
                    Err(error) => {
                        let _ = reply.send(Err(error.to_string()));
                    }
                },
                Ok(Order::Signal(number)) => {
                    tracing::info!(array = self.name, signal = number, "stopping");
                    match self.unmount() {
                        Ok(()) => return self.stop(None),
                        Err(error) => {
                            say(format_args!("not stopped: {error}"));
                            self.stopping.store(false, Ordering::Relaxed);
                        }
                    }
                }
                Ok(Order::Event(event)) => self.on_event(event),
                Ok(Order::Ended) | Err(_) => return self.stop(None),
            }
        }
    }

    fn on_event(&self, event: Event) {
        let array = &self.name;
        match event {
            Event::MemberFailed { member } => {
                let device = self.live.portrait.member(member);
                let device = device.display();
                tracing::error!(array, %device, "member failed; the array goes on without it");
                self.live.portrait.set_updated(crate::host::now().secs);
            }
            Event::Broken => tracing::error!(
                array,
                "too many members failed: writes are refused, superblocks stay as they are; stop the array, check the members, \
                 then `raidus assemble --explain` tells what is left"
            ),
            Event::StateChanged(state) => {
                tracing::debug!(array, state = state.name(), "state");
                // Both come with a round of superblock writes.
                if matches!(state, ArrayState::Clean | ArrayState::Active) {
                    self.live.portrait.set_updated(crate::host::now().secs);
                }
            }
            Event::MemberInSync { member } => {
                let device = self.live.portrait.member(member);
                tracing::info!(array, device = %device.display(), "member is in sync");
            }
            Event::MemberReplaced { member } => {
                let device = self.live.portrait.member(member);
                tracing::info!(array, device = %device.display(), "member has been replaced; it can be removed");
            }
            Event::ReadErrorCorrected { member, start, len } => {
                let device = self.live.portrait.member(member);
                let (sector, sectors) = (start.0, len.0);
                tracing::warn!(array, device = %device.display(), sector, sectors, "read error corrected");
            }
            Event::BadBlocks { member, start, len } => {
                let device = self.live.portrait.member(member);
                let (sector, sectors) = (start.0, len.0);
                tracing::warn!(array, device = %device.display(), sector, sectors, "blocks are noted as bad");
            }
            Event::SyncStarted { action } => tracing::info!(array, action = action.process_name(), "sync started"),
            Event::SyncEnded { action, complete, .. } => {
                tracing::info!(array, action = action.process_name(), complete, "sync ended");
                self.live.portrait.set_updated(crate::host::now().secs);
            }
            Event::BitmapAdded => tracing::info!(array, "write-intent bitmap added"),
            Event::BitmapRemoved => tracing::info!(array, "write-intent bitmap removed"),
            Event::Suspended { lo, hi, all } => {
                tracing::info!(array, lo = lo.0, hi = hi.0, all, "requests are suspended");
            }
            Event::Resumed => tracing::info!(array, "requests go on"),
            Event::WriteMostly { member, on } => {
                let device = self.live.portrait.member(member);
                tracing::info!(array, device = %device.display(), on, "write-mostly");
            }
            Event::Stopped { .. } => {}
        }
        self.live.note(event);
    }

    /// Clients are told, what is under way ends, superblocks are marked clean, and only then anybody is told that it is done.
    fn stop(self, reply: Option<oneshot::Sender<Result<(), String>>>) -> Result<(), Failure> {
        if let Some(mount) = self.mount {
            // Gone already, unless the array ended by itself.
            mount.detach();
        }
        // What was suspended is carried out: clients get what they are owed.
        let (none, all) = (Some(raidus_units::Sector::ZERO), Some(false));
        let _ = self.live.array.command(Command::SetSuspended { lo: none, hi: none, all });
        self.service.stop();
        let result = self.live.array.stop();
        match &result {
            Ok(()) => tracing::info!(array = self.name, "stopped"),
            Err(error) => tracing::error!(array = self.name, %error, "not stopped in order"),
        }
        // Those who wait for something are told that it will not come.
        self.live.feed.push(What::Stopped, crate::host::now().secs);
        // Nobody must find sockets of an array that is gone.
        drop(self.nbd);
        if let Some(reply) = reply {
            let _ = reply.send(result.as_ref().map(|_| ()).map_err(ToString::to_string));
        }
        self.control.end();
        result.map_err(|source: StopFailed| Failure::Stop { name: self.name, source })
    }
}

fn export(name: &str, array: &ArrayHandle, portrait: &Portrait) -> Result<Export, Failure> {
    let assembled = &portrait.assembled;
    let description = format!("{} array {}", assembled.geometry.level(), assembled.array.uuid);
    let export = Export::new(name, array.size().bytes(), BlockSizes::for_logical_block(array.block()))?;
    Ok(export.with_description(&description).read_only(assembled.read_only))
}

/// In mdadm's words.
fn started_message(name: &str, assembled: &Assembled) -> String {
    let count = |pick: fn(&Seat) -> bool| assembled.members.iter().filter(|m| pick(&m.seat)).count();
    let plural = |n: usize| if n == 1 { "" } else { "s" };
    let slots = usize::from(assembled.geometry.raid_disks());
    let working = count(|s| matches!(s, Seat::InSync(_)));
    let rebuilding = count(|s| matches!(s, Seat::Rebuilding { .. } | Seat::Replacing { .. }));
    let spares = count(|s| matches!(s, Seat::Spare));
    let mut text = format!("{name} has been started with {working} drive{}", plural(working));
    if working < slots {
        text.push_str(&format!(" (out of {slots})"));
    }
    if rebuilding > 0 {
        text.push_str(&format!("{} {rebuilding} rebuilding", if spares > 0 { "," } else { " and" }));
    }
    if spares > 0 {
        text.push_str(&format!(" and {spares} spare{}", plural(spares)));
    }
    if count(|s| matches!(s, Seat::Journal)) > 0 {
        text.push_str(" and 1 journal");
    }
    text + "."
}

/// Passes on what happens to the array.
fn watch_events(array: &Arc<ArrayHandle>, orders: Sender<Order>) -> Result<(), Failure> {
    let events = array.events();
    spawn("raidus-events", move || {
        for event in events {
            if orders.send(Order::Event(event)).is_err() {
                return;
            }
        }
        let _ = orders.send(Order::Ended);
    })
}

/// The first signal stops the array in order; another one, while that takes its time, ends the process as a crash would.
fn watch_signals(orders: Sender<Order>, stopping: Arc<AtomicBool>) -> Result<(), Failure> {
    let failed = |source| Failure::System { what: "cannot handle signals", source };
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    spawn("raidus-signals", move || {
        for signal in signals.forever() {
            if stopping.swap(true, Ordering::Relaxed) || orders.send(Order::Signal(signal)).is_err() {
                say("ended without waiting; the array stays as it is, as after a crash");
                std::process::exit(1);
            }
            say("stopping; once more to end without waiting");
        }
    })
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    thread.map(|_| ()).map_err(|source| Failure::System { what: "cannot start a thread", source })
}
