//! `raidus stop`: ends running arrays.

use clap::Args;

use crate::control::client::{Remote, find, running};
use crate::error::Failure;
use crate::output::say;
use crate::rundir::RunDir;
use crate::wait;

/// Stop running arrays in order.
///
/// Clients are disconnected, requests under way end, and the superblocks are marked clean; then the members are free. Returns
/// when that is done.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER)]
pub struct StopArgs {
    /// Arrays: the name they run under, their own name, or their UUID.
    #[arg(value_name = "NAME", required_unless_present = "all")]
    names: Vec<String>,
    /// Stop all arrays of the run directory.
    #[arg(short, long, visible_alias = "scan", short_alias = 's', conflicts_with = "names")]
    all: bool,
}

const AFTER: &str = "\
Examples:
  raidus stop md0
  raidus stop --all";

/// The command.
pub fn run(args: StopArgs) -> Result<(), Failure> {
    let dir = RunDir::find()?;
    let arrays: Vec<Remote> = if args.all {
        running(&dir)?.into_iter().map(|(remote, _)| remote).collect()
    } else {
        let found: Result<Vec<_>, _> = args.names.iter().map(|name| find(&dir, name)).collect();
        found?.into_iter().map(|(remote, _)| remote).collect()
    };
    let mut failed = false;
    for array in arrays {
        match wait::while_doing(format!("stopping {}", array.name()), || array.stop()) {
            Ok(()) => say(format_args!("stopped {}", array.name())),
            Err(error) => {
                say(error);
                failed = true;
            }
        }
    }
    if failed { Err(Failure::Told) } else { Ok(()) }
}
