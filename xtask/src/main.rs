//! Project tasks, run as `cargo xtask TASK`.

mod sim;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Project tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Check what the compiler does not: layers, crate attributes, file sizes, dependency reasons, forbidden words.
    Tidy,
    /// Play arrays in the deterministic simulator.
    Sim(sim::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().task {
        Task::Tidy => tidy::run(),
        Task::Sim(args) => sim::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
