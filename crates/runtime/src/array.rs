//! A running array: its reactors, its memory, and the handle through which everyone else speaks with it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use raidus_engine::control::{Addition, Command, CommandError, Event, Status, StopError};
use raidus_engine::{ArrayConfig, Control, Scratch, Shard, ShardId};
use raidus_units::{MemberId, Sectors};

use crate::client::{ArrayRequest, Client, Completion, Permits, Submitter};
use crate::counters::{Published, Tally};
use crate::local::LocalClient;
use crate::mailbox::{MAIL_MAX, Mail, Mailbox};
use crate::member_io::MemberIos;
use crate::members::{MemberDevice, MemberOpenError, check_distinct};
use crate::memory::{BufferPool, Region, usize_of};
use crate::reactor::{CLASS_MEMBER, CLASS_STREAM, Reactor, Shared};
use crate::ring::{Ring, RingError, may_lock};
use crate::stream::{Service, ServiceId, Streams};

/// How an array is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// Memory for the requests of one reactor's connections, in bytes.
    pub pool_bytes: usize,
    /// Most bytes of one connection's requests under way. A single longer request is still served.
    pub connection_bytes: usize,
    /// Tie each reactor to a core, if there are enough.
    pub pin: bool,
    /// Most requests of other threads under way.
    pub clients_max: usize,
    /// How long clients may take to receive what they are owed when the array stops.
    pub stop_grace: Duration,
    /// Sleep in poll(2) instead of io_uring_enter(2): costs a system call more, but debuggers and profilers that halt all threads of a process
    /// while one is in a system call know the former, not always the latter.
    pub sleep_in_poll: bool,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        RunOptions {
            pool_bytes: 64 << 20,
            connection_bytes: 32 << 20,
            pin: true,
            clients_max: 1024,
            stop_grace: Duration::from_secs(5),
            sleep_in_poll: false,
        }
    }
}

/// Why an array does not start. Nothing has been written.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No io_uring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// Two members are one device.
    #[error(transparent)]
    Member(#[from] MemberOpenError),
    /// Not as many devices as members.
    #[error("the array has {wanted} members, but {given} devices were given")]
    MemberCount {
        /// Members of the configuration.
        wanted: usize,
        /// Devices.
        given: usize,
    },
    /// No memory for pools and scratch.
    #[error("not enough memory for the array's buffers ({source}); use fewer threads or smaller pools")]
    Memory {
        /// What the system said.
        source: io::Error,
    },
    /// No thread.
    #[error("cannot start a thread: {source}")]
    Thread {
        /// What the system said.
        source: io::Error,
    },
}

/// How stopping went wrong.
#[derive(Debug, thiserror::Error)]
pub enum StopFailed {
    /// The array was left as it is.
    #[error(transparent)]
    Array(#[from] StopError),
    /// A reactor panicked: a bug. The members are as after a crash.
    #[error(
        "raidus ran into an internal error and ended the array as if the power had failed; it will be resynced when it is started"
    )]
    Crashed,
    /// It was stopped or abandoned before.
    #[error("the array is stopped already")]
    AlreadyStopped,
}

/// A running array. Any thread may use it. Dropped without [`stop`](Self::stop), it ends as [`abandon`](Self::abandon) does.
pub struct ArrayHandle {
    submitter: Submitter,
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    options: RunOptions,
    sectors: Sectors,
    block: u32,
    services: AtomicU64,
    ended: AtomicBool,
    /// By member id; `None` once removed.
    devices: Mutex<Vec<Option<Arc<MemberDevice>>>>,
}

/// Why a device did not join an array.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// The engine refused it.
    #[error(transparent)]
    Refused(#[from] CommandError),
    /// The device's blocks are larger than the array promises.
    #[error("its logical blocks are {device} bytes long, those of the array {array}")]
    Block {
        /// Of the device.
        device: u32,
        /// Of the array.
        array: u32,
    },
    /// No room.
    #[error("the array has as many devices as it can hold while it runs; remove failed ones first")]
    TooMany,
}

/// Memory of an array; outlives its reactors.
struct Memory {
    pools: Vec<BufferPool>,
    scratch: Vec<Region>,
    zeroes: Region,
}

/// Starts `config` on `members`, which are in the order of its member ids.
pub fn start(
    mut config: ArrayConfig,
    members: Vec<MemberDevice>,
    options: RunOptions,
) -> Result<ArrayHandle, StartError> {
    let (wanted, given) = (config.map.members.len(), members.len());
    if wanted != given {
        return Err(StartError::MemberCount { wanted, given });
    }
    check_distinct(&members)?;
    let members: Vec<Arc<MemberDevice>> = members.into_iter().map(Arc::new).collect();
    config.tunables.shards = config.tunables.shards.max(1);
    config.epoch_seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let block = members.iter().map(|m| m.block()).max().unwrap_or(512).max(512);
    let memory = Arc::new(Memory::new(&config, &options).map_err(|source| StartError::Memory { source })?);
    let shared = Arc::new(shared(config.tunables.shards).map_err(|source| StartError::Memory { source })?);
    let options = RunOptions { clients_max: options.clients_max.clamp(1, MAIL_MAX / 2), ..options };
    let handle = ArrayHandle {
        submitter: Submitter {
            mailboxes: Arc::clone(&shared.mailboxes),
            permits: Permits::new(options.clients_max),
            next: Arc::new(AtomicUsize::new(0)),
            block: Sectors::from_bytes_floor(block.into()),
        },
        shared,
        threads: Mutex::new(Vec::new()),
        options,
        sectors: config.geometry.array_sectors(),
        block,
        services: AtomicU64::new(0),
        ended: AtomicBool::new(false),
        devices: Mutex::new(members.iter().cloned().map(Some).collect()),
    };
    handle.spawn(config, &members, &memory)?;
    Ok(handle)
}

fn shared(reactors: u16) -> io::Result<Shared> {
    let mailboxes: Vec<_> = (0..reactors).map(|_| Mailbox::new()).collect::<io::Result<_>>()?;
    let published = mailboxes.iter().map(|_| Published::default()).collect();
    Ok(Shared { mailboxes: mailboxes.into(), published, start: Instant::now(), crashed: AtomicBool::new(false) })
}

impl ArrayHandle {
    /// Starts the reactors; if one cannot be set up, none runs.
    fn spawn(
        &self,
        config: ArrayConfig,
        members: &[Arc<MemberDevice>],
        memory: &Arc<Memory>,
    ) -> Result<(), StartError> {
        let cores = self.cores(config.tunables.shards);
        let mut outcomes = Vec::new();
        let mut starts = Vec::new();
        for n in 0..config.tunables.shards {
            let (report, outcome) = channel();
            let (start, started) = channel();
            let plan = Plan {
                id: ShardId(n),
                config: config.clone(),
                members: members.to_vec(),
                memory: Arc::clone(memory),
                shared: Arc::clone(&self.shared),
                core: cores.as_ref().map(|c| c[usize::from(n)]),
                connection_bytes: self.options.connection_bytes,
                sleep_in_poll: self.options.sleep_in_poll,
            };
            let thread = std::thread::Builder::new()
                .name(format!("raidus-{n}"))
                .spawn(move || plan.run(&report, &started))
                .map_err(|source| StartError::Thread { source })?;
            self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
            outcomes.push(outcome);
            starts.push(start);
        }
        for outcome in outcomes {
            let died = || StartError::Thread { source: io::Error::other("it ended while it was set up") };
            outcome.recv().map_err(|_| died())??;
        }
        // All rings are there; memory registered before could have left none for the last.
        for start in starts {
            let _ = start.send(());
        }
        Ok(())
    }

    /// A core for each reactor, if they are to be pinned and there are as many.
    fn cores(&self, reactors: u16) -> Option<Vec<usize>> {
        let cores = allowed_cores();
        (self.options.pin && cores.len() >= usize::from(reactors)).then_some(cores)
    }

    /// The array's size.
    pub fn size(&self) -> Sectors {
        self.sectors
    }

    /// The block size in bytes that requests are multiples of: the largest logical block of the members. Other requests are
    /// refused with [`RequestError::Range`](raidus_engine::RequestError::Range).
    pub fn block(&self) -> u32 {
        self.block
    }

    /// The number of reactors.
    pub fn threads(&self) -> usize {
        self.submitter.mailboxes.len()
    }

    /// What all reactors did so far.
    pub fn tally(&self) -> Tally {
        self.tallies().into_iter().fold(Tally::default(), Tally::plus)
    }

    /// What each reactor did so far. Of an array that has ended, what it did.
    pub fn tallies(&self) -> Vec<Tally> {
        let count = |(mailbox, published): (&Arc<Mailbox>, &Published)| {
            let (to, tally) = channel();
            let asked = mailbox.post(Mail::Tally(to)).is_ok();
            asked.then(|| tally.recv().ok()).flatten().unwrap_or_else(|| published.load())
        };
        self.submitter.mailboxes.iter().zip(&self.shared.published).map(count).collect()
    }

    /// Runs a client on the thread of a reactor. Gives it back if the array has ended.
    pub fn attach(&self, reactor: usize, client: Box<dyn LocalClient>) -> Result<(), Box<dyn LocalClient>> {
        let mailbox = &self.submitter.mailboxes[reactor % self.submitter.mailboxes.len()];
        match mailbox.post(Mail::Attach(client)) {
            Err(Mail::Attach(client)) => Err(client),
            _ => Ok(()),
        }
    }

    /// Blocking access, by the reactor whose turn it is.
    pub fn client(&self) -> Client {
        Client { submitter: self.submitter.clone(), reactor: self.submitter.choose() }
    }

    /// Passes a request to the reactor whose turn it is, and calls `done` on its thread at the end. Waits while too many requests
    /// are under way, so it must not be called from a [`Completion`].
    pub fn submit(&self, request: ArrayRequest, done: Completion) {
        self.submitter.submit(self.submitter.choose(), request, done);
    }

    /// As [`submit`](Self::submit), but gives the request back if too many are under way.
    pub fn try_submit(&self, request: ArrayRequest, done: Completion) -> Result<(), (ArrayRequest, Completion)> {
        self.submitter.try_submit(self.submitter.choose(), request, done)
    }

    /// Serves clients that connect to a listening socket (Unix or TCP). Connections are spread over the reactors.
    pub fn serve(&self, listener: OwnedFd, service: Arc<dyn Service>) -> ServiceId {
        let id = ServiceId(self.services.fetch_add(1, Ordering::Relaxed));
        let _ = self.submitter.mailboxes[0].post(Mail::Listen(id, listener, service));
        id
    }

    /// Accepts no more clients on a socket, and closes it; those connected stay. Returns when that is so.
    pub fn stop_serving(&self, id: ServiceId) {
        let (done, closed) = channel();
        if self.submitter.mailboxes[0].post(Mail::StopListening(id, done)).is_ok() {
            let _ = closed.recv();
        }
    }

    /// Asks something of Control. What follows from it comes as [events](Self::events). To stop, use [`stop`](Self::stop); to
    /// add a device, [`add`](Self::add). A member that was removed is closed when this returns, unless it hangs.
    ///
    /// # Errors
    /// [`CommandError`]: it cannot be done, and nothing has changed.
    pub fn command(&self, command: Command) -> Result<(), CommandError> {
        let removed = match &command {
            Command::Remove(member) => Some(*member),
            _ => None,
        };
        self.ask(command)?;
        if let Some(member) = removed {
            self.post_all(|| Mail::Retire(member));
            let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
            let device = devices.get_mut(member.index()).and_then(Option::take);
            drop(devices);
            device.into_iter().for_each(close);
        }
        Ok(())
    }

    fn ask(&self, command: Command) -> Result<(), CommandError> {
        let (to, answer) = channel();
        let posted = self.submitter.mailboxes[0].post(Mail::Command(Box::new(command), to));
        // An array that has ended is as one that is stopping.
        posted.ok().and_then(|()| answer.recv().ok()).unwrap_or(Err(CommandError::Stopping))
    }

    /// A device joins the array: as a spare, or as the former member it is. Gives its member id.
    ///
    /// # Errors
    /// [`AddError`]: the device stays out, and nothing was written to it.
    pub fn add(&self, device: MemberDevice, addition: Addition) -> Result<MemberId, AddError> {
        if device.block() > self.block {
            return Err(AddError::Block { device: device.block(), array: self.block });
        }
        // Held to the end: reactors and Control must count members alike.
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let device = Arc::new(device);
        let (to, answers) = channel();
        self.post_all(|| Mail::Join(Arc::clone(&device), to.clone()));
        drop(to);
        let joined: Vec<bool> = answers.iter().collect();
        let whole = joined.len() == self.threads() && joined.iter().all(|ok| *ok);
        let result = if whole {
            self.ask(Command::Add(Box::new(addition))).map_err(AddError::from)
        } else {
            Err(AddError::TooMany)
        };
        if let Err(error) = result {
            // Some may have had no room. Arrays with so many members are beyond repair by adding more.
            if whole {
                self.post_all(|| Mail::Unjoin);
            }
            close(device);
            return Err(error);
        }
        devices.push(Some(device));
        Ok(MemberId((devices.len() - 1) as u16))
    }

    /// The array at this moment; `None` once it has ended.
    pub fn status(&self) -> Option<Status> {
        let (to, status) = channel();
        self.submitter.mailboxes[0].post(Mail::Status(to)).ok()?;
        status.recv().ok()
    }

    /// Everything that happens from now on. The channel closes when the array has ended.
    pub fn events(&self) -> Receiver<Event> {
        let (to, events) = channel();
        let _ = self.submitter.mailboxes[0].post(Mail::Subscribe(to));
        events
    }

    /// Stops in order: clients get what they are owed and are disconnected, requests end, the superblocks are marked clean.
    pub fn stop(&self) -> Result<(), StopFailed> {
        if self.ended.swap(true, Ordering::AcqRel) {
            return Err(StopFailed::AlreadyStopped);
        }
        self.close_streams();
        let (to, stopped) = channel();
        let posted = self.submitter.mailboxes[0].post(Mail::Stop(to)).is_ok();
        let result = if posted { stopped.recv().ok() } else { None };
        self.join();
        match result {
            Some(result) => Ok(result?),
            None => Err(StopFailed::Crashed),
        }
    }

    /// Ends at once without writing anything more, as a crash would: for tests, and when the members must not be touched.
    pub fn abandon(&self) {
        self.ended.store(true, Ordering::Release);
        self.join();
    }

    fn close_streams(&self) {
        let (done, closed) = channel::<()>();
        self.post_all(|| Mail::CloseStreams(Sender::clone(&done)));
        drop(done);
        if closed.recv_timeout(self.options.stop_grace) == Err(RecvTimeoutError::Timeout) {
            self.post_all(|| Mail::SeverStreams);
            let _ = closed.recv_timeout(self.options.stop_grace);
        }
    }

    fn post_all(&self, mail: impl Fn() -> Mail) {
        for mailbox in &*self.submitter.mailboxes {
            let mut mail = mail();
            // Full of requests: they are being worked on.
            while let Err(back) = mailbox.post(mail) {
                if self.shared.crashed.load(Ordering::Relaxed) || mailbox.is_closed() {
                    break;
                }
                mail = back;
                std::thread::yield_now();
            }
        }
    }

    fn join(&self) {
        self.post_all(|| Mail::Exit);
        for thread in std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner)) {
            // A panic was reported by the thread itself and shows in the outcome of `stop`.
            let _ = thread.join();
        }
        // With the reactors' the last: closes the devices, and so gives back their locks.
        self.devices.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// The cores this process may use.
fn allowed_cores() -> Vec<usize> {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|c| allowed.is_set(*c)).collect()
}

/// Ties this thread to the n-th core this process may use, if there are as many.
pub(crate) fn pin_to(n: usize) {
    if let Some(core) = allowed_cores().get(n) {
        run_on(*core);
    }
}

fn run_on(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    // A wish only.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// How long a member that left may take to be closed: as long as I/O is under way on it.
const CLOSING_MAX: Duration = Duration::from_secs(5);

/// Closes a device that reactors are giving up, so that it is free when its user is told so. One that hangs is not waited for.
fn close(device: Arc<MemberDevice>) {
    let start = Instant::now();
    while Arc::strong_count(&device) > 1 && start.elapsed() < CLOSING_MAX {
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Drop for ArrayHandle {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl Memory {
    fn new(config: &ArrayConfig, options: &RunOptions) -> io::Result<Memory> {
        let shards = config.tunables.shards;
        let scratch_bytes = usize_of(config.tunables.scratch_bytes.max(Shard::scratch_min(config)));
        Ok(Memory {
            pools: (0..shards).map(|_| BufferPool::new(options.pool_bytes)).collect::<io::Result<_>>()?,
            scratch: (0..shards).map(|_| Region::map(scratch_bytes, true)).collect::<io::Result<_>>()?,
            zeroes: Region::map(usize_of(config.tunables.segment_max.bytes().max(1 << 20)), true)?,
        })
    }

    /// Everything that members read and write, as (start, length).
    fn ranges(&self) -> Vec<(u64, usize)> {
        let regions = self.pools.iter().map(BufferPool::region).chain(&self.scratch).chain([&self.zeroes]);
        regions.map(|r| (r.addr().0, r.len())).collect()
    }
}

/// What a reactor's thread needs to set itself up. The ring must be made on the thread that uses it.
struct Plan {
    id: ShardId,
    config: ArrayConfig,
    members: Vec<Arc<MemberDevice>>,
    memory: Arc<Memory>,
    shared: Arc<Shared>,
    core: Option<usize>,
    connection_bytes: usize,
    sleep_in_poll: bool,
}

impl Plan {
    fn run(self, report: &Sender<Result<(), StartError>>, start: &Receiver<()>) {
        let memory = Arc::clone(&self.memory);
        let reactor = match self.set_up() {
            Ok(reactor) => reactor,
            Err(error) => {
                let _ = report.send(Err(error));
                return;
            }
        };
        let _ = report.send(Ok(()));
        if start.recv().is_ok() {
            let _keep = Keep(Some(Arc::clone(&memory)));
            // SAFETY: `_keep` holds the memory until after the reactor, and with it the ring, is gone.
            reactor.run(|ring| unsafe { register(ring, &memory) });
        }
    }

    fn set_up(self) -> Result<Reactor, StartError> {
        let Plan { id, config, members, memory, shared, core, connection_bytes, sleep_in_poll } = self;
        if let Some(core) = core {
            run_on(core);
        }
        let n = usize::from(id.0);
        let region = &memory.scratch[n];
        let scratch = Scratch { base: region.addr(), bytes: region.len() as u64, zeroes: memory.zeroes.addr() };
        let shard = Shard::new(id, &config, scratch);
        let control = (n == 0).then(|| Control::new(config));
        let zeroes = (memory.zeroes.addr().0, memory.zeroes.len() as u64);
        let ios = MemberIos::new(&members, zeroes, CLASS_MEMBER).map_err(|source| StartError::Memory { source })?;
        let streams = Streams::new(memory.pools[n].clone(), connection_bytes, CLASS_STREAM);
        let mut ring = if sleep_in_poll { Ring::polled()? } else { Ring::new()? };
        ring.register_files(&ios.fixed_files());
        let pool = memory.pools[n].clone();
        Ok(Reactor::new(id, shared, (shard, control), ring, ios, streams, pool))
    }
}

/// Registers an array's memory with a ring, if the limits allow all its rings to.
///
/// # Safety
/// The memory stays mapped until the ring is dropped.
unsafe fn register(ring: &mut Ring, memory: &Memory) {
    let ranges = memory.ranges();
    let bytes: u64 = ranges.iter().map(|(_, len)| *len as u64).sum();
    if may_lock(bytes * memory.pools.len() as u64) {
        // SAFETY: the caller's promise.
        unsafe { ring.register_memory(&ranges) };
    }
}

/// Holds memory that the kernel may still use. After a panic nobody waited for the kernel, so the memory is never given back.
struct Keep(Option<Arc<Memory>>);

impl Drop for Keep {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::mem::forget(self.0.take());
        }
    }
}
