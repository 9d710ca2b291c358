//! `cargo xtask bench`: what raidus costs, measured in pairs, and counted.
//!
//! Times depend on the machine and on who else uses it, so nothing fails because of them: pairs are measured in turn, several times,
//! and the median of their ratios is written down. What can be counted (I/Os, reads, copies, instructions) does not depend on anything, so
//! `--quick`, which counts, is a test.

mod cases;
mod counted;
mod instructions;
mod peers;
mod table;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args as ClapArgs;
use serde_json::Value;

use crate::shell;
use cases::{CASES, Case};
use table::Row;

/// What to measure.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Only count: I/Os, reads, copies, messages, and instructions under valgrind; an error if a bound is passed.
    #[arg(long)]
    quick: bool,
    /// With --quick: leave the instructions out.
    #[arg(long, requires = "quick")]
    no_valgrind: bool,
    /// Compare the NBD server with nbdkit and QEMU: processor time and system calls per request.
    #[arg(long, conflicts_with_all = ["quick", "docs"])]
    peers: bool,
    /// How often each pair is measured.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long each side of a pair runs.
    #[arg(long, default_value = "1s")]
    length: String,
    /// Only pairs with this in their name.
    #[arg(long)]
    only: Option<String>,
    /// Where the table goes (between its two marks in performance.md), and the plot.
    #[arg(long, value_name = "DIR")]
    docs: Option<PathBuf>,
}

/// Measures or counts.
pub fn run(args: &Args) -> Result<()> {
    shell::call(&["cargo", "build", "--release", "--package", "raidus"])?;
    let raidus = Raidus { program: shell::release_program("raidus")? };
    if args.quick {
        return quick(&raidus, args);
    }
    if args.peers {
        return peers::measure(&raidus, args.rounds, args.only.as_deref());
    }
    let chosen: Vec<&Case> = CASES.iter().filter(|c| args.only.as_ref().is_none_or(|o| c.name.contains(o))).collect();
    let mut ratios = vec![Vec::new(); chosen.len()];
    for round in 1..=args.rounds {
        println!("==> round {round} of {}", args.rounds);
        for (case, ratios) in chosen.iter().zip(&mut ratios) {
            let ratio = case.measure(&raidus, &args.length).with_context(|| case.name.to_owned())?;
            println!("{:60} {ratio:.3}", case.name);
            ratios.push(ratio);
        }
    }
    let rows: Vec<Row> = chosen.iter().zip(ratios).map(|(case, ratios)| Row::new(case, ratios)).collect();
    println!("\n{}", table::markdown(&rows));
    if let Some(docs) = &args.docs {
        table::insert(&docs.join("performance.md"), &rows)?;
        table::plot(&docs.join("performance.svg"), &rows)?;
    }
    Ok(())
}

fn quick(raidus: &Raidus, args: &Args) -> Result<()> {
    let mut passed = counted::check(raidus)?;
    if !args.no_valgrind {
        passed &= instructions::check(raidus)?;
    }
    if passed { Ok(()) } else { bail!("a bound is passed; see above") }
}

/// The program under test.
pub struct Raidus {
    program: PathBuf,
}

impl Raidus {
    fn path(&self) -> Result<&str> {
        self.program.to_str().context("the target directory's name is not UTF-8")
    }

    /// Runs `raidus bench` with these words and gives what it found.
    fn bench(&self, words: &str) -> Result<Value> {
        self.bench_under(&[], words)
    }

    /// The same under another program.
    fn bench_under(&self, wrapper: &[&str], words: &str) -> Result<Value> {
        let mut all: Vec<&str> = wrapper.to_vec();
        all.extend([self.path()?, "bench", "--json"]);
        all.extend(words.split_whitespace());
        let output = Command::new(all[0]).args(&all[1..]).output().with_context(|| format!("cannot run {}", all[0]))?;
        if !output.status.success() {
            bail!("`{}` ended with {}: {}", all.join(" "), output.status, String::from_utf8_lossy(&output.stderr));
        }
        serde_json::from_slice(&output.stdout).context("raidus bench printed no JSON")
    }
}

/// A number in what was found.
fn number(report: &Value, pointer: &str) -> Result<f64> {
    report.pointer(pointer).and_then(Value::as_f64).with_context(|| format!("raidus bench says nothing of {pointer}"))
}

/// Where a scratch file of this process may be.
fn scratch() -> PathBuf {
    Path::new(&std::env::temp_dir()).join(format!("raidus-bench-{}", std::process::id()))
}
