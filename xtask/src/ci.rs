//! `cargo xtask ci`: all that must hold before a change lands, on a machine that has nothing but Rust.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args as ClapArgs;

use crate::shell;

/// What `ci` runs.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Only these steps, by name (see `--list`).
    steps: Vec<String>,
    /// List the steps and stop.
    #[arg(long)]
    list: bool,
    /// Do not install missing Debian packages.
    #[arg(long)]
    no_install: bool,
}

/// A step: its name, what it shows, and the commands, each a program with its arguments.
struct Step {
    name: &'static str,
    shows: &'static str,
    commands: &'static [&'static [&'static str]],
}

const STEPS: &[Step] = &[
    Step { name: "fmt", shows: "one format", commands: &[&["cargo", "fmt", "--all", "--check"]] },
    Step {
        name: "clippy",
        shows: "no warning, and pure crates stay pure",
        commands: &[&["cargo", "clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]],
    },
    Step { name: "tidy", shows: "layers, sizes, reasons", commands: &[&["cargo", "xtask", "tidy"]] },
    Step {
        name: "test",
        shows: "unit, exhaustive, property, golden, protocol and command-line tests",
        commands: &[&[
            "cargo",
            "test",
            "--workspace",
            "--exclude",
            "interop",
            "--no-fail-fast",
            "--lib",
            "--bins",
            "--tests",
        ]],
    },
    Step { name: "interop", shows: "the real kernel agrees", commands: &[&["cargo", "xtask", "interop"]] },
    Step {
        name: "sim",
        shows: "simulated crashes and failures",
        commands: &[&["cargo", "xtask", "sim", "--seeds", "3000", "--jobs", "2"]],
    },
    // Nothing is timed: only what can be counted.
    Step {
        name: "bench",
        shows: "what requests cost, counted",
        commands: &[&["cargo", "xtask", "bench", "--quick", "--no-valgrind"]],
    },
    // A fixed walk: whether a change passes must not be a matter of luck. Searches are made by hand (`--seconds`).
    Step { name: "fuzz", shows: "no parser panics", commands: &[&["cargo", "xtask", "fuzz", "--runs", "200000"]] },
    Step { name: "deny", shows: "licences and sources", commands: &[&["cargo", "xtask", "deny"]] },
];

/// Runs the steps; the first that fails ends it.
pub fn run(args: &Args) -> Result<()> {
    let known: BTreeSet<&str> = STEPS.iter().map(|s| s.name).collect();
    if let Some(unknown) = args.steps.iter().find(|s| !known.contains(s.as_str())) {
        bail!("no step is called '{unknown}'; there are {}", known.into_iter().collect::<Vec<_>>().join(", "));
    }
    if args.list {
        STEPS.iter().for_each(|s| println!("{:8} {}", s.name, s.shows));
        return Ok(());
    }
    if !args.no_install {
        shell::install_packages()?;
    }
    let mut times = Vec::new();
    for step in STEPS.iter().filter(|s| args.steps.is_empty() || args.steps.iter().any(|a| a == s.name)) {
        println!("==> {}: {}", step.name, step.shows);
        let start = Instant::now();
        for command in step.commands {
            shell::call(command)
                .with_context(|| format!("step '{}' failed; repeat it with: cargo xtask ci {0}", step.name))?;
        }
        times.push((step.name, start.elapsed()));
    }
    println!("==> all steps passed");
    times.iter().for_each(|(name, time)| println!("{name:8} {:6.1} s", time.as_secs_f64()));
    Ok(())
}
