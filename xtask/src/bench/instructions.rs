//! Instructions that a request takes in raidus, above what the bare members' path takes, counted by valgrind.
//!
//! Each load is run twice with different numbers of requests; the difference, by thread, is what the requests took. Which thread ran the array and
//! which the bare members can be seen from the functions in its profile.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::{Raidus, scratch};
use crate::shell;

/// A load, and the most instructions per request.
struct Gate {
    words: &'static str,
    most: f64,
    /// Above what the bare members take.
    above_raw: bool,
}

const fn above_raw(words: &'static str, most: f64) -> Gate {
    Gate { words, most, above_raw: true }
}

const fn in_all(words: &'static str, most: f64) -> Gate {
    Gate { words, most, above_raw: false }
}

const GATES: &[Gate] = &[
    above_raw("--level 0 --members 4*null", 700.0),
    above_raw("--level 1 --members 2*null --reads 0", 1200.0),
    above_raw("--level 1 --members 2*null --reads 0 -b internal", 1400.0),
    above_raw("--level 5 --members 5*null", 750.0),
    in_all("--level 5 --members 5*null --chunk 16K --block 64K --reads 0", 10_000.0),
    in_all("--level 5 --members 5*null --reads 0", 6000.0),
    in_all("--level 6 --members 6*null --reads 0", 9000.0),
];

/// Requests of the shorter and the longer run.
const SHORT: u64 = 1000;
const LONG: u64 = 5000;

/// Instructions of the threads that ran the array and the bare members.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    array: u64,
    bare: u64,
}

/// Counts for all loads; whether all bounds hold.
pub fn check(raidus: &Raidus) -> Result<bool> {
    let mut passed = true;
    for gate in GATES {
        let (short, long) = (count(raidus, gate.words, SHORT)?, count(raidus, gate.words, LONG)?);
        let per = |long: u64, short: u64| long.saturating_sub(short) as f64 / (LONG - SHORT) as f64;
        let (array, bare) = (per(long.array, short.array), per(long.bare, short.bare));
        ensure!(array > 0.0 && bare > 0.0, "valgrind counted no instructions for {}", gate.words);
        let is = if gate.above_raw { array - bare } else { array };
        let holds = is <= gate.most;
        passed &= holds;
        println!(
            "{} {:66} {is:>8.0} instructions {} (at most {}; array {array:.0}, bare {bare:.0})",
            if holds { "ok  " } else { "FAIL" },
            gate.words,
            if gate.above_raw { "above raw" } else { "in all" },
            gate.most,
        );
    }
    Ok(passed)
}

fn count(raidus: &Raidus, words: &str, length: u64) -> Result<Counted> {
    let dir = scratch();
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let counted = count_in(raidus, words, length, &dir);
    fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    counted
}

fn count_in(raidus: &Raidus, words: &str, length: u64, dir: &Path) -> Result<Counted> {
    // Reading what debuggers want to know takes valgrind longer than the load.
    let program = dir.join("raidus");
    let (from, to) = (raidus.path()?, program.to_str().context("the temporary directory's name is not UTF-8")?);
    shell::call(&["objcopy", "--strip-debug", from, to])?;
    let raidus = &Raidus { program };
    let out = format!("--callgrind-out-file={}", dir.join("out").display());
    let valgrind = ["valgrind", "--quiet", "--tool=callgrind", "--separate-threads=yes", &out];
    raidus.bench_under(&valgrind, &format!("{words} --sleep-in-poll --warmup 200 --length {length}"))?;
    let mut counted = Counted::default();
    for file in fs::read_dir(dir)? {
        // The program is there, too, and is no text.
        let Ok(profile) = fs::read_to_string(file?.path()) else { continue };
        let Some(total) = total(&profile) else { continue };
        if profile.contains("raidus_runtime::bare::Bare") {
            counted.bare += total;
        } else if profile.contains("raidus_runtime::reactor::Reactor") {
            counted.array += total;
        }
    }
    Ok(counted)
}

/// The sum at the end of a profile.
fn total(profile: &str) -> Option<u64> {
    let line = profile.lines().rev().find_map(|line| line.strip_prefix("totals:").or(line.strip_prefix("summary:")))?;
    line.trim().parse().ok()
}
