//! How we compare with Intel's ISA-L: medians of ratios from interleaved rounds, as tables.
//!
//! `cargo bench -p raidus-parity --bench ratio [-- BACKEND… OPERATION… --check]`. A ratio above 1 means that we are faster. *Warm*:
//! the same row again and again, in cache if it fits. *Cold*: rows in turn from more memory than caches hold, and we are told so
//! ([`Backend::cold`]), as the engine tells it of rebuilds. In each round both sides do the same amount of work, one right after the
//! other, in alternating order, so that a noisy machine disturbs both alike. Where a process's memory lies decides a few in a hundred
//! for as long as it lives, so several processes sweep the whole table, each several times; a cell is the median of all its sweeps, in
//! brackets the least and the greatest. With `--check`, XOR and P+Q are *level* or the run fails: no cell's median is below [`LEVEL`].

mod common;

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Op, RIVAL, Work};
use raidus_parity::Backend;

const LENGTHS: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const MEMBERS: [usize; 6] = [3, 4, 6, 8, 12, 16];
const PROCESSES: usize = 7;
/// Of each process.
const SWEEPS: usize = 3;
const ROUNDS: usize = 15;
/// Both sides are bound by memory in most cells, where repeats on a quiet machine differ by a few in a hundred.
const LEVEL: f64 = 0.95;
const ROUND_TIME: Duration = Duration::from_micros(300);
/// More than the last-level cache of most machines.
const COLD_BYTES: usize = 160 << 20;

/// Given to the processes that measure; they print a line per ratio.
const SWEEP: &str = "--sweep";

/// What a cell measures: backend, operation, cold or warm, length, members.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Cell {
    backend: &'static str,
    op: Op,
    cold: bool,
    len: usize,
    members: usize,
}

impl Cell {
    /// All that the arguments name, in the order in which they are printed.
    fn named(args: &[String]) -> Vec<Cell> {
        let backends: Vec<Backend> = args.iter().filter_map(|name| Backend::named(name)).collect();
        let backends = if backends.is_empty() { vec![Backend::detect()] } else { backends };
        let ops: Vec<Op> = Op::ALL.into_iter().filter(|op| args.contains(&format!("{op:?}").to_lowercase())).collect();
        let ops = if ops.is_empty() { Op::ALL.to_vec() } else { ops };
        let mut cells = Vec::new();
        for (backend, op) in backends.iter().flat_map(|backend| ops.iter().map(move |op| (backend.name(), *op))) {
            for (cold, len) in [false, true].into_iter().flat_map(|cold| LENGTHS.map(|len| (cold, len))) {
                // An array of three with two parities is a mirror.
                let wide = MEMBERS.into_iter().filter(|n| !(matches!(op, Op::Pq | Op::RecoverTwo) && *n < 4));
                cells.extend(wide.map(|members| Cell { backend, op, cold, len, members }));
            }
        }
        cells
    }

    fn title(&self) -> String {
        format!("{:?} {}", self.op, if self.cold { "cold" } else { "warm" })
    }

    /// The median of their time over ours.
    fn measure(&self) -> f64 {
        let backend = Backend::named(self.backend).expect("it was chosen by its name or is the best");
        let backend = if self.cold { backend.cold() } else { backend };
        measure(backend, self.op, self.members, self.len, self.cold)
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let cells = Cell::named(&args);
    if args.iter().any(|arg| arg == SWEEP) {
        (0..SWEEPS).for_each(|_| cells.iter().for_each(|cell| println!("{}", cell.measure())));
        return;
    }
    let mut ratios: BTreeMap<Cell, Vec<f64>> = BTreeMap::new();
    for _ in 0..PROCESSES {
        for (cell, ratio) in cells.iter().cycle().zip(swept(&args)) {
            ratios.entry(*cell).or_default().push(ratio);
        }
    }
    print_tables(&cells, &ratios);
    let gated = |cell: &&Cell| matches!(cell.op, Op::Xor | Op::Pq) && median(&ratios[cell]) < LEVEL;
    let say =
        |c: &Cell| format!("{}, {} KiB, {} members: {:.2}", c.title(), c.len >> 10, c.members, median(&ratios[c]));
    let behind: Vec<String> = cells.iter().filter(gated).map(say).collect();
    println!("XOR and P+Q below {LEVEL}: {}", if behind.is_empty() { "none".into() } else { behind.join("; ") });
    if args.iter().any(|arg| arg == "--check") && !behind.is_empty() {
        std::process::exit(1);
    }
}

/// The ratios that a new process measures: of each cell, in order, again and again.
fn swept(args: &[String]) -> Vec<f64> {
    let this = std::env::current_exe().expect("a path of this program");
    let output = Command::new(this).args(args).arg(SWEEP).output().expect("this program can be run again");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(|line| line.parse().expect("a ratio")).collect()
}

/// A table per backend, operation and temperature: lengths down, members across.
fn print_tables(cells: &[Cell], ratios: &BTreeMap<Cell, Vec<f64>>) {
    for table in cells.chunk_by(|a, b| (a.backend, a.op, a.cold) == (b.backend, b.op, b.cold)) {
        println!("{} against {RIVAL}\n", table[0].backend);
        println!("| {:16} | {} |", table[0].title(), MEMBERS.map(|n| format!("{n:2} members      ")).join(" | "));
        println!("|---|{}", "---|".repeat(MEMBERS.len()));
        for row in table.chunk_by(|a, b| a.len == b.len) {
            let cells =
                MEMBERS.map(|n| row.iter().find(|cell| cell.members == n).map_or(&[][..], |cell| &ratios[cell]));
            println!("| {:12} KiB | {} |", row[0].len >> 10, cells.map(describe).join(" | "));
        }
        println!();
    }
}

fn describe(cell: &[f64]) -> String {
    let (low, high) = cell.iter().fold((f64::MAX, 0f64), |(low, high), ratio| (low.min(*ratio), high.max(*ratio)));
    if cell.is_empty() { format!("{:16}", "") } else { format!("{:.2} [{low:.2}-{high:.2}]", median(cell)) }
}

/// The median of their time over ours.
fn measure(backend: Backend, op: Op, members: usize, len: usize, cold: bool) -> f64 {
    let rows = if cold { COLD_BYTES.div_ceil(members * len) } else { 1 };
    let mut rows: Vec<Work> = (0..rows).map(|_| Work::new(op, members, len)).collect();
    check(&mut rows[0], backend);

    let started = Instant::now();
    rows.iter_mut().for_each(|row| row.ours(backend));
    let each = started.elapsed() / rows.len() as u32;
    let count = (ROUND_TIME.as_nanos() / each.as_nanos().max(1)).clamp(1, 10_000) as usize;

    let mut next = 0;
    let mut run = |ours: bool| {
        let started = Instant::now();
        for _ in 0..count {
            let row = &mut rows[next];
            if ours {
                row.ours(backend)
            } else {
                row.rivals()
            }
            next = if next + 1 == rows.len() { 0 } else { next + 1 };
        }
        started.elapsed().as_secs_f64()
    };
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        let first = run(round % 2 == 0);
        let second = run(round % 2 != 0);
        let (ours, theirs) = if round % 2 == 0 { (first, second) } else { (second, first) };
        ratios.push(theirs / ours);
    }
    median(&ratios)
}

/// Speed means nothing unless both give the same.
fn check(row: &mut Work, backend: Backend) {
    row.rivals();
    let theirs = row.results();
    row.ours(backend);
    assert!(row.results() == theirs, "results differ");
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
