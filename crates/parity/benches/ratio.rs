//! How we compare with Intel's ISA-L: medians of ratios from interleaved rounds, as tables.
//!
//! `cargo bench -p raidus-parity --bench ratio [-- BACKEND…]`. A ratio above 1 means that we are faster; behind it stand
//! our GB/s of data read. *Warm*: the same row again and again, in cache if it fits. *Cold*: rows in turn from more memory
//! than caches hold, and we are told so ([`Backend::cold`]), as the engine tells it of rebuilds. In each round both sides do the same amount of work, one right after the other, in alternating order,
//! so that a noisy machine disturbs both alike.

mod common;

use std::time::{Duration, Instant};

use common::{Op, RIVAL, Work};
use raidus_parity::Backend;

const LENGTHS: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const MEMBERS: [usize; 6] = [3, 4, 6, 8, 12, 16];
const ROUNDS: usize = 31;
const ROUND_TIME: Duration = Duration::from_micros(300);
/// More than the last-level cache of most machines.
const COLD_BYTES: usize = 160 << 20;

fn main() {
    let named: Vec<Backend> = std::env::args().filter_map(|name| Backend::named(&name)).collect();
    let backends = if named.is_empty() { vec![Backend::detect()] } else { named };
    for backend in backends {
        println!("{} against {RIVAL}: ratio (GB/s)\n", backend.name());
        for op in Op::ALL {
            for cold in [false, true] {
                print_table(backend, op, cold);
            }
        }
    }
}

fn print_table(backend: Backend, op: Op, cold: bool) {
    let title = format!("{op:?} {}", if cold { "cold" } else { "warm" });
    println!("| {title:16} | {} |", MEMBERS.map(|members| format!("{members:2} members")).join(" | "));
    println!("|---|{}", "---|".repeat(MEMBERS.len()));
    for len in LENGTHS {
        let cells = MEMBERS.map(|members| {
            // An array of three with two parities is a mirror: nothing to compute.
            if matches!(op, Op::Pq | Op::RecoverTwo) && members < 4 {
                return format!("{:10}", "");
            }
            let backend = if cold { backend.cold() } else { backend };
            let (ratio, speed) = measure(backend, op, members, len, cold);
            format!("{ratio:.2} ({speed:3.0})")
        });
        println!("| {:12} KiB | {} |", len >> 10, cells.join(" | "));
    }
    println!();
}

/// The median of their time over ours, and our median speed in GB/s of sources.
fn measure(backend: Backend, op: Op, members: usize, len: usize, cold: bool) -> (f64, f64) {
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
    let (mut ratios, mut times) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let first = run(round % 2 == 0);
        let second = run(round % 2 != 0);
        let (ours, theirs) = if round % 2 == 0 { (first, second) } else { (second, first) };
        ratios.push(theirs / ours);
        times.push(ours);
    }
    let bytes = (count * op.sources(members) * len) as f64;
    (median(ratios), bytes / median(times) / 1e9)
}

/// Speed means nothing unless both give the same.
fn check(row: &mut Work, backend: Backend) {
    row.rivals();
    let theirs = row.results();
    row.ours(backend);
    assert!(row.results() == theirs, "results differ");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
