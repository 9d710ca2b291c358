//! How we compare with Intel's ISA-L: medians of ratios from interleaved rounds, as tables.
//!
//! `cargo bench -p raidus-parity --bench ratio [-- BACKEND… OPERATION… --check]`. A ratio above 1 means that we are faster. *Warm*:
//! the same row again and again, in cache if it fits. *Cold*: rows in turn from more memory than caches hold, and we are told so
//! ([`Backend::cold`]), as the engine tells it of rebuilds. In each round both sides do the same amount of work, one right after the
//! other, in alternating order, so that a noisy machine disturbs both alike. The whole table is swept several times, each time in
//! other memory, since luck with its placement lasts as long as a block does; a cell is the median of its sweeps, in brackets the
//! least and the greatest. With `--check`, XOR and P+Q are *level* or the run fails: no cell's median is below [`LEVEL`].

mod common;

use std::time::{Duration, Instant};

use common::{Op, RIVAL, Work};
use raidus_parity::Backend;

const LENGTHS: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const MEMBERS: [usize; 6] = [3, 4, 6, 8, 12, 16];
const SWEEPS: usize = 9;
const ROUNDS: usize = 15;
/// Both sides are bound by memory in most cells, where repeats on a quiet machine differ by a few in a hundred.
const LEVEL: f64 = 0.95;
const ROUND_TIME: Duration = Duration::from_micros(300);
/// More than the last-level cache of most machines.
const COLD_BYTES: usize = 160 << 20;

fn main() {
    let only: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let named: Vec<Backend> = only.iter().filter_map(|name| Backend::named(name)).collect();
    let backends = if named.is_empty() { vec![Backend::detect()] } else { named };
    let ops: Vec<Op> = Op::ALL.into_iter().filter(|op| only.contains(&format!("{op:?}").to_lowercase())).collect();
    let ops = if ops.is_empty() { Op::ALL.to_vec() } else { ops };
    let mut behind = Vec::new();
    for backend in backends {
        println!("{} against {RIVAL}\n", backend.name());
        for &op in &ops {
            for cold in [false, true] {
                let table = sweep(backend, op, cold);
                print_table(op, cold, &table);
                if matches!(op, Op::Xor | Op::Pq) {
                    let cells = LENGTHS
                        .iter()
                        .zip(&table)
                        .flat_map(|(len, row)| MEMBERS.iter().zip(row).map(move |cell| (len, cell)));
                    let low = cells.filter(|(_, (_, cell))| !cell.is_empty() && median(cell) < LEVEL);
                    behind.extend(low.map(|(len, (members, cell))| {
                        let temperature = if cold { "cold" } else { "warm" };
                        format!("{op:?} {temperature}, {} KiB, {members} members: {:.2}", len >> 10, median(cell))
                    }));
                }
            }
        }
    }
    println!("XOR and P+Q below {LEVEL}: {}", if behind.is_empty() { "none".into() } else { behind.join("; ") });
    if std::env::args().any(|arg| arg == "--check") && !behind.is_empty() {
        std::process::exit(1);
    }
}

/// The ratios of each cell, one per sweep, by length and members; none where there is nothing to compute.
type Table = [[Vec<f64>; MEMBERS.len()]; LENGTHS.len()];

fn sweep(backend: Backend, op: Op, cold: bool) -> Table {
    let backend = if cold { backend.cold() } else { backend };
    let mut table = Table::default();
    for _ in 0..SWEEPS {
        for (row, len) in table.iter_mut().zip(LENGTHS) {
            for (cell, members) in row.iter_mut().zip(MEMBERS) {
                // An array of three with two parities is a mirror.
                if !(matches!(op, Op::Pq | Op::RecoverTwo) && members < 4) {
                    cell.push(measure(backend, op, members, len, cold));
                }
            }
        }
    }
    table
}

fn print_table(op: Op, cold: bool, table: &Table) {
    let title = format!("{op:?} {}", if cold { "cold" } else { "warm" });
    println!("| {title:16} | {} |", MEMBERS.map(|members| format!("{members:2} members      ")).join(" | "));
    println!("|---|{}", "---|".repeat(MEMBERS.len()));
    for (len, row) in LENGTHS.iter().zip(table) {
        let cells: Vec<String> = row.iter().map(|cell| describe(cell)).collect();
        println!("| {:12} KiB | {} |", len >> 10, cells.join(" | "));
    }
    println!();
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
