//! `raidus status`: all running arrays.

use clap::Args;

use crate::control::client::{Remote, find, running};
use crate::error::Failure;
use crate::output;
use crate::portrait::ArrayReport;
use crate::rundir::RunDir;

/// Show running arrays, in the form of /proc/mdstat.
///
/// The arrays are those of the run directory; what reads /proc/mdstat can read this. Sizes are in KiB, as there.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER)]
pub struct StatusArgs {
    /// Only these arrays: the name they run under, their own name, or their UUID.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print JSON: a list with one object per array. Sizes are in bytes.
    #[arg(long)]
    json: bool,
}

const AFTER: &str = "\
Examples:
  raidus status
  raidus status --json md0 | jq '.[0].degraded'
  watch raidus status";

/// The command.
pub fn run(args: StatusArgs) -> Result<(), Failure> {
    let dir = RunDir::find()?;
    let arrays: Vec<(Remote, ArrayReport)> = if args.names.is_empty() {
        running(&dir)?
    } else {
        args.names.iter().map(|name| find(&dir, name)).collect::<Result<_, _>>()?
    };
    if args.json {
        return output::json(&arrays.iter().map(|(_, report)| report).collect::<Vec<_>>());
    }
    let mut lines = String::new();
    for (remote, _) in &arrays {
        match remote.mdstat() {
            Ok(text) => lines.push_str(&text),
            // Stopped since it was listed.
            Err(e) if e.is_absence() => {}
            Err(e) => return Err(e.into()),
        }
    }
    output::text(format_args!("{}\n{lines}unused devices: <none>\n", raidus_text::PERSONALITIES))
}
