//! What a request over NBD takes of the server, beside other servers: time of its processors, and system calls.
//!
//! The same client (fio) asks each server in turn, so that what it takes itself does not matter. The other servers keep their data in
//! memory, or none at all, where they can.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::Raidus;
use super::cases::Target;
use super::table::median;

/// What both servers of a pair are asked for, and what is to be reached.
struct Pair {
    name: &'static str,
    /// fio's word for the pattern.
    rw: &'static str,
    /// Members of our array, as `raidus bench` takes them.
    ours: &'static str,
    theirs: Rival,
    /// Processor time per request, ours ÷ theirs.
    time: f64,
    /// System calls per request, the same; where it matters.
    calls: Option<f64>,
}

#[derive(Clone, Copy)]
enum Rival {
    Nbdkit,
    QemuOne,
    QemuQuorum,
}

const PAIRS: &[Pair] = &[
    Pair {
        name: "NBD, raid0(2) random read ÷ nbdkit memory",
        rw: "randread",
        ours: "--level 0 --members 2*memory",
        theirs: Rival::Nbdkit,
        time: 0.4,
        calls: Some(0.5),
    },
    Pair {
        name: "NBD, raid0(2) random write ÷ nbdkit memory",
        rw: "randwrite",
        ours: "--level 0 --members 2*memory",
        theirs: Rival::Nbdkit,
        time: 0.4,
        calls: Some(0.5),
    },
    Pair {
        name: "NBD, raid0(2) random read ÷ qemu-storage-daemon null",
        rw: "randread",
        ours: "--level 0 --members 2*memory",
        theirs: Rival::QemuOne,
        time: 0.4,
        calls: Some(0.5),
    },
    Pair {
        name: "NBD, raid1(2) random write ÷ qemu quorum of two null",
        rw: "randwrite",
        ours: "--level 1 --members 2*memory",
        theirs: Rival::QemuQuorum,
        time: 0.2,
        calls: None,
    },
];

/// 4 KiB requests at depth 32.
const REQUESTS: u64 = 200_000;
/// Linux counts a hundred ticks a second towards programs, whatever it was built with.
const MILLIS_PER_TICK: u64 = 10;
/// What both serve.
const SIZE: &str = "268435456";

/// Measures all pairs and prints them. Where a server is not installed, its pairs are left out, and it says so.
pub fn measure(raidus: &Raidus, rounds: usize, only: Option<&str>) -> Result<()> {
    let place = Place::new()?;
    println!("| over NBD, 4 KiB, depth 32 | what | ours | theirs | ratio | to reach |");
    println!("|---|---|---|---|---|---|");
    for pair in PAIRS.iter().filter(|pair| only.is_none_or(|only| pair.name.contains(only))) {
        if let Err(missing) = pair.theirs.is_installed() {
            println!("| {} | left out: {missing} |", pair.name);
            continue;
        }
        let mut costs = Vec::new();
        for _ in 0..rounds {
            let ours = cost(&mut Server::ours(raidus, pair, &place.socket)?, pair, &place.socket)?;
            costs.push((ours, cost(&mut Server::theirs(pair, &place.socket)?, pair, &place.socket)?));
        }
        let line = |what: &str, of: fn(&Cost) -> f64, target: f64| {
            let of = |side: fn(&(Cost, Cost)) -> &Cost| median(costs.iter().map(|pair| of(side(pair))).collect());
            let (ours, theirs) = (of(|pair| &pair.0), of(|pair| &pair.1));
            let target = Target::AtMost(target);
            let mark = if target.is_met(ours / theirs) { "" } else { " (missed)" };
            println!("| {} | {what} | {ours:.2} | {theirs:.2} | {:.2} | {target}{mark} |", pair.name, ours / theirs);
        };
        line("processor time, µs per request", |cost| cost.micros, pair.time);
        if let Some(calls) = pair.calls {
            line("system calls per request", |cost| cost.calls, calls);
        }
    }
    Ok(())
}

/// What a request takes of a server.
struct Cost {
    micros: f64,
    calls: f64,
}

fn cost(server: &mut Server, pair: &Pair, socket: &str) -> Result<Cost> {
    // Memory is touched, and the connection's buffers are there.
    load(pair, socket, REQUESTS / 10)?;
    let before = server.processor_time()?;
    load(pair, socket, REQUESTS)?;
    let micros = (server.processor_time()? - before).as_secs_f64() * 1e6 / REQUESTS as f64;
    let calls = server.calls_while(|| load(pair, socket, REQUESTS))? as f64 / REQUESTS as f64;
    Ok(Cost { micros, calls })
}

/// fio's requests, all of them.
fn load(pair: &Pair, socket: &str, requests: u64) -> Result<()> {
    let uri = format!("--uri=nbd+unix:///?socket={socket}");
    let (rw, ios) = (format!("--rw={}", pair.rw), format!("--number_ios={requests}"));
    let words = ["--name=load", "--ioengine=nbd", "--bs=4k", "--iodepth=32", "--size=128M", "--io_size=100G"];
    let output = Command::new("fio").args(words).args([&uri, &rw, &ios]).output().context("cannot run fio")?;
    ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

struct Server {
    process: Child,
}

impl Server {
    fn ours(raidus: &Raidus, pair: &Pair, socket: &str) -> Result<Server> {
        let words = pair.ours.split_whitespace();
        let mut command = Command::new(raidus.path()?);
        command.arg("bench").args(words).args(["--chunk", "64K", "--serve", socket]);
        Server::start(command, socket)
    }

    fn theirs(pair: &Pair, socket: &str) -> Result<Server> {
        Server::start(pair.theirs.command(socket), socket)
    }

    fn start(mut command: Command, socket: &str) -> Result<Server> {
        let socket = Path::new(socket);
        if socket.exists() {
            std::fs::remove_file(socket)?;
        }
        let mut server = Server { process: command.stdout(Stdio::null()).spawn().context("cannot start a server")? };
        let start = Instant::now();
        while !socket.exists() {
            if let Some(status) = server.process.try_wait()? {
                bail!("a server ended with {status}: {command:?}");
            }
            ensure!(start.elapsed() < Duration::from_secs(20), "a server does not listen: {command:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// What all its threads, also those that have ended, have taken of processors so far.
    fn processor_time(&self) -> Result<Duration> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        // After the name, which is in brackets: state, ten numbers, then user and system time in ticks.
        let numbers: Vec<&str> = text.rsplit(") ").next().unwrap_or_default().split_whitespace().collect();
        let ticks = |n: usize| numbers.get(n).and_then(|t| t.parse::<u64>().ok()).context("an odd /proc/PID/stat");
        Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * MILLIS_PER_TICK))
    }

    /// Its system calls while something is done, counted by perf.
    fn calls_while(&self, what: impl FnOnce() -> Result<()>) -> Result<u64> {
        let pid = self.process.id().to_string();
        let words = ["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-p", &pid];
        let perf = Command::new("perf").args(words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let perf = perf.context("cannot run perf")?;
        // It has to find the threads first.
        std::thread::sleep(Duration::from_millis(300));
        what()?;
        Command::new("kill").args(["-INT", &perf.id().to_string()]).status()?;
        let text = perf.wait_with_output()?.stderr;
        let text = String::from_utf8_lossy(&text).into_owned();
        let count = text.lines().find(|line| line.contains("raw_syscalls")).and_then(|line| line.split(',').next());
        count.and_then(|count| count.trim().parse().ok()).with_context(|| format!("perf counted nothing: {text}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Rival {
    fn program(self) -> &'static str {
        match self {
            Rival::Nbdkit => "nbdkit",
            Rival::QemuOne | Rival::QemuQuorum => "qemu-storage-daemon",
        }
    }

    fn is_installed(self) -> Result<(), String> {
        let missing = |program: &str| Command::new(program).arg("--version").output().is_err();
        match [self.program(), "fio", "perf"].into_iter().find(|program| missing(program)) {
            Some(program) => Err(format!("{program} is not installed")),
            None => Ok(()),
        }
    }

    fn command(self, socket: &str) -> Command {
        let mut command = Command::new(self.program());
        let null = |name: &str| format!("driver=null-co,size={SIZE},read-zeroes=on,node-name={name}");
        let mut nodes = vec![null("a")];
        match self {
            Rival::Nbdkit => {
                command.args(["--foreground", "--unix", socket, "memory", SIZE]);
                return command;
            }
            Rival::QemuOne => {}
            Rival::QemuQuorum => {
                nodes.push(null("b"));
                nodes.push("driver=quorum,children.0=a,children.1=b,vote-threshold=2,node-name=both".to_owned());
            }
        }
        let exported = if nodes.len() > 1 { "both" } else { "a" };
        command.args(nodes.iter().flat_map(|node| ["--blockdev", node]));
        command.args(["--nbd-server", &format!("addr.type=unix,addr.path={socket}")]);
        command.args(["--export", &format!("type=nbd,id=export,node-name={exported},name=,writable=on")]);
        command
    }
}

/// Where the servers listen, one after the other; it goes with this.
struct Place {
    dir: PathBuf,
    socket: String,
}

impl Place {
    fn new() -> Result<Place> {
        let dir = std::env::temp_dir().join(format!("raidus-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let socket = dir.join("socket").to_str().context("the temporary directory's name is not UTF-8")?.to_owned();
        Ok(Place { dir, socket })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
