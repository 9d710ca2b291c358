//! What a benchmark found, as a table and as JSON.

use std::fmt::Write;

use hdrhistogram::Histogram;
use raidus_runtime::Tally;
use serde::Serialize;

use super::beside;
use super::load::Done;
use super::session::Outcome;

/// Everything.
#[derive(Debug, Serialize)]
pub struct Report {
    pub array: ArrayFacts,
    pub load: LoadFacts,
    /// The load on the array.
    pub result: Measured,
    pub counters: Counted,
    /// The same load on the bare members.
    pub bare: Option<Measured>,
    /// Array ÷ bare members.
    pub ratio: Option<Ratio>,
    pub beside: Option<beside::Report>,
    /// Most memory of the process so far.
    pub resident_bytes: u64,
    pub helpers: Helpers,
}

#[derive(Debug, Serialize)]
pub struct ArrayFacts {
    pub level: String,
    pub members: Vec<String>,
    pub chunk_bytes: u64,
    pub bytes: u64,
    pub threads: u16,
    pub bitmap: bool,
    /// Made for this benchmark; otherwise it was there, and was only read.
    pub made: bool,
}

#[derive(Debug, Serialize)]
pub struct LoadFacts {
    pub pattern: String,
    pub block_bytes: u64,
    pub depth: usize,
    pub jobs: usize,
    pub read_percent: u8,
    pub flush_every: Option<u64>,
    pub fua: bool,
    pub seed: u64,
    pub span_bytes: u64,
    /// Depth on the bare members: as many member I/Os as the array has under way at once.
    pub bare_depth: usize,
}

/// A run of a load.
#[derive(Debug, Serialize)]
pub struct Measured {
    pub seconds: f64,
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub requests_per_second: f64,
    pub bytes_per_second: f64,
    pub member_ios_per_second: f64,
    pub member_bytes_per_second: f64,
    pub latency: Option<Latency>,
    pub read_latency: Option<Latency>,
    pub write_latency: Option<Latency>,
    pub flush_latency: Option<Latency>,
}

/// In microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    pub min: f64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// What had to be done for the load.
#[derive(Debug, Serialize)]
pub struct Counted {
    pub member_reads_per_request: f64,
    pub member_writes_per_request: f64,
    /// Bytes moved by members per byte of the array.
    pub member_bytes_per_byte: f64,
    pub prereads_per_write: f64,
    pub copied_bytes_per_byte: f64,
    pub messages_per_request: f64,
    pub syscalls_per_request: f64,
    /// Of all threads: everything that was counted, by name.
    pub totals: serde_json::Map<String, serde_json::Value>,
    pub superblock_rounds: u64,
    pub bitmap_pages: u64,
    pub flush_rounds: u64,
    pub flushes_asked_for: u64,
}

#[derive(Debug, Serialize)]
pub struct Ratio {
    pub requests_per_second: f64,
    pub member_ios_per_second: f64,
    pub member_bytes_per_second: f64,
    pub p99: Option<f64>,
}

/// Threads that the kernel makes for io_uring where an operation would block.
#[derive(Debug, Serialize)]
pub struct Helpers {
    pub threads: u64,
    /// How often they were given a processor; how much they were given to do, the kernel does not tell.
    pub times_run: u64,
}

impl Measured {
    pub fn of(outcome: &Outcome, block_bytes: u64) -> Measured {
        let done = &outcome.done;
        Measured {
            seconds: outcome.seconds(),
            reads: done.reads.len(),
            writes: done.writes.len(),
            flushes: done.flushes.len(),
            requests_per_second: outcome.requests_per_second(),
            bytes_per_second: outcome.requests_per_second() * block_bytes as f64,
            member_ios_per_second: outcome.member_ios_per_second(),
            member_bytes_per_second: outcome.member_bytes_per_second(),
            latency: latency(&transfers(done)),
            read_latency: latency(&done.reads),
            write_latency: latency(&done.writes),
            flush_latency: latency(&done.flushes),
        }
    }
}

/// Reads and writes together.
pub fn transfers(done: &Done) -> Histogram<u64> {
    let mut all = done.reads.clone();
    // Both have the same bounds.
    let _ = all.add(&done.writes);
    all
}

fn latency(of: &Histogram<u64>) -> Option<Latency> {
    let us = |ns: u64| ns as f64 / 1e3;
    let at = |quantile| us(of.value_at_quantile(quantile));
    (!of.is_empty()).then(|| Latency {
        min: us(of.min()),
        mean: of.mean() / 1e3,
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        p999: at(0.999),
        max: us(of.max()),
    })
}

impl Counted {
    pub fn of(outcome: &Outcome, block_bytes: u64) -> Counted {
        let Outcome { done, tally, control } = outcome;
        let per = |n: u64, of: u64| n as f64 / of.max(1) as f64;
        let requests = done.transfers();
        let totals =
            Tally::NAMES.iter().zip(tally.to_array()).map(|(name, n)| ((*name).to_owned(), n.into())).collect();
        Counted {
            member_reads_per_request: per(tally.member_reads, requests),
            member_writes_per_request: per(tally.member_writes, requests),
            member_bytes_per_byte: per(tally.member_read_bytes + tally.member_write_bytes, requests * block_bytes),
            prereads_per_write: per(tally.prereads, done.writes.len()),
            copied_bytes_per_byte: per(tally.copied_bytes, requests * block_bytes),
            messages_per_request: per(tally.messages, requests),
            syscalls_per_request: per(tally.syscalls, requests),
            totals,
            superblock_rounds: control.superblock_rounds,
            bitmap_pages: control.bitmap_pages,
            flush_rounds: control.flush_rounds,
            flushes_asked_for: control.flushes,
        }
    }
}

impl Ratio {
    pub fn of(array: &Measured, bare: &Measured) -> Ratio {
        let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        Ratio {
            requests_per_second: ratio(array.requests_per_second, bare.requests_per_second),
            member_ios_per_second: ratio(array.member_ios_per_second, bare.member_ios_per_second),
            member_bytes_per_second: ratio(array.member_bytes_per_second, bare.member_bytes_per_second),
            p99: array.latency.zip(bare.latency).map(|(a, b)| ratio(a.p99, b.p99)),
        }
    }
}

/// The middle one.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Most resident memory of this process.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

/// The threads that io_uring has made for this process so far.
pub fn helpers() -> Helpers {
    let mut helpers = Helpers { threads: 0, times_run: 0 };
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if !name.starts_with("iou-wrk") {
            continue;
        }
        let times = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        helpers.threads += 1;
        helpers.times_run += times.split_whitespace().nth(2).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    }
    helpers
}

/// Picks a number.
type Figure<T> = fn(&T) -> f64;

/// The table.
pub fn table(report: &Report) -> String {
    let mut out = String::new();
    let Report { array, load, result, counters, bare, ratio, beside, .. } = report;
    let made = if array.made { "made for this" } else { "only read" };
    let bitmap = if array.bitmap { ", bitmap" } else { "" };
    let _ = writeln!(
        out,
        "{} of {} members, chunk {}K{bitmap}, {} threads ({made})",
        array.level,
        array.members.len(),
        array.chunk_bytes >> 10,
        array.threads
    );
    let flush = load.flush_every.map_or(String::new(), |n| format!(", flush every {n} writes"));
    let fua = if load.fua { ", fua" } else { "" };
    let _ = writeln!(
        out,
        "{} {}K, {}% reads, {} jobs of depth {}{flush}{fua}\n",
        load.pattern,
        load.block_bytes >> 10,
        load.read_percent,
        load.jobs,
        load.depth
    );
    let _ = writeln!(out, "{:26}{:>14}{:>14}{:>9}", "", "array", "bare", "ratio");
    let mut row = |name: &str, a: f64, b: Option<f64>, digits: usize| {
        let bare = b.map_or("-".to_owned(), |b| format!("{b:.digits$}"));
        let ratio = b.filter(|b| *b > 0.0).map_or("-".to_owned(), |b| format!("{:.3}", a / b));
        let _ = writeln!(out, "{name:26}{:>14}{bare:>14}{ratio:>9}", format!("{a:.digits$}"));
    };
    let of = |f: fn(&Measured) -> f64| (f(result), bare.as_ref().map(f));
    let rows: [(&str, Figure<Measured>, usize); 4] = [
        ("requests/s", |m| m.requests_per_second, 0),
        ("MiB/s", |m| m.bytes_per_second / 1048576.0, 1),
        ("member I/Os/s", |m| m.member_ios_per_second, 0),
        ("member MiB/s", |m| m.member_bytes_per_second / 1048576.0, 1),
    ];
    for (name, f, digits) in rows {
        let (a, b) = of(f);
        row(name, a, b, digits);
    }
    let quantiles: [(&str, Figure<Latency>); 6] = [
        ("latency p50 (us)", |l| l.p50),
        ("latency p90 (us)", |l| l.p90),
        ("latency p99 (us)", |l| l.p99),
        ("latency p99.9 (us)", |l| l.p999),
        ("latency mean (us)", |l| l.mean),
        ("latency max (us)", |l| l.max),
    ];
    for (name, f) in quantiles {
        let Some(a) = &result.latency else { continue };
        row(name, f(a), bare.as_ref().and_then(|b| b.latency.as_ref().map(f)), 1);
    }
    if let Some(flush) = &result.flush_latency {
        row("flush p99 (us)", flush.p99, bare.as_ref().and_then(|b| b.flush_latency.map(|f| f.p99)), 1);
    }
    let _ = writeln!(out);
    for (name, value) in [
        ("member reads/request", counters.member_reads_per_request),
        ("member writes/request", counters.member_writes_per_request),
        ("member bytes/byte", counters.member_bytes_per_byte),
        ("reads needed/write", counters.prereads_per_write),
        ("bytes copied/byte", counters.copied_bytes_per_byte),
        ("messages/request", counters.messages_per_request),
        ("system calls/request", counters.syscalls_per_request),
    ] {
        let _ = writeln!(out, "{name:26}{value:>14.3}");
    }
    for (name, value) in [
        ("superblock rounds", counters.superblock_rounds),
        ("bitmap pages written", counters.bitmap_pages),
        ("flush rounds", counters.flush_rounds),
        ("io_uring helper threads", report.helpers.threads),
        ("resident MiB (most)", report.resident_bytes >> 20),
    ] {
        let _ = writeln!(out, "{name:26}{value:>14}");
    }
    if let Some(ratio) = ratio {
        let (requests, ios) = (100.0 * ratio.requests_per_second, 100.0 * ratio.member_ios_per_second);
        let _ = writeln!(
            out,
            "\nThe array serves {requests:.1} % of the requests that its members would without it, doing {ios:.1} % of their I/Os."
        );
    }
    if let Some(b) = beside {
        let _ = writeln!(
            out,
            "\nBeside a {:?}: p99 × {:.2}; the sync does {:.0} KiB/s per member idle, {:.0} under load (floor {})",
            b.sync, b.p99_ratio, b.idle_kib_per_second, b.loaded_kib_per_second, b.speed_min
        );
    }
    out
}
