//! Project tasks, run as `cargo xtask TASK`.

mod bench;
mod ci;
mod demo;
mod fuzz;
mod interop;
mod shell;
mod sim;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Project tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// All that must hold before a change lands.
    Ci(ci::Args),
    /// Ask the real kernel: arrays one side wrote are read and judged by the other.
    Interop(interop::Args),
    /// Feed every parser with hostile input for a bounded time.
    Fuzz(fuzz::Args),
    /// Make a RAID6 on image files and serve it.
    Demo(demo::Args),
    /// Check the licences and sources of all dependencies.
    Deny,
    /// Check what the compiler does not: layers, crate attributes, file sizes, dependency reasons, forbidden words.
    Tidy,
    /// Play arrays in the deterministic simulator.
    Sim(sim::Args),
    /// Measure arrays against their bare members, or count what they do.
    Bench(bench::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().task {
        Task::Ci(args) => ci::run(&args),
        Task::Interop(args) => interop::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Demo(args) => demo::run(&args),
        Task::Deny => deny(),
        Task::Tidy => tidy::run(),
        Task::Sim(args) => sim::run(&args),
        Task::Bench(args) => bench::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Advisories need a database from the network; they are checked where there is one, by `cargo deny check`.
fn deny() -> anyhow::Result<()> {
    shell::install_cargo_tool("cargo-deny")?;
    shell::call(&["cargo", "deny", "check", "licenses", "bans", "sources"])
}
