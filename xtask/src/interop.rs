//! `cargo xtask interop`: raidus against the real kernel, mdadm and file systems.

use anyhow::Result;
use clap::Args as ClapArgs;

use crate::shell;

/// What `interop` runs.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Only tests whose name contains this.
    filter: Option<String>,
    /// Every array instead of a sample with each kind once.
    #[arg(long)]
    full: bool,
}

/// Runs the tests of the `interop` package, one after the other: each starts as many guests of the kernel as there are processors.
pub fn run(args: &Args) -> Result<()> {
    shell::install_packages()?;
    // The tests that kill a daemon need its binary.
    shell::call(&["cargo", "build", "--package", "raidus"])?;
    let mut command = vec!["cargo", "test", "--package", "interop", "--no-fail-fast", "--"];
    command.extend(args.filter.as_deref());
    command.extend(["--test-threads", "1"]);
    shell::call_with(&command, if args.full { &[("RAIDUS_INTEROP_FULL", "1")] } else { &[] })
}
