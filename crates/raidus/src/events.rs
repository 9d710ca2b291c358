//! `raidus events`: what happened to a running array.

use clap::Args;

use crate::control::client::find;
use crate::error::Failure;
use crate::host::Host;
use crate::live::feed::{Batch, Entry};
use crate::output;
use crate::rundir::RunDir;

/// Show what happened to a running array.
///
/// That is failures, devices that joined or left, syncs, read errors that were corrected. The last thousand events are kept. A line "missed N" stands where there were more than that since the last look.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER)]
pub struct EventsArgs {
    /// The array: the name it runs under, its own name, or its UUID.
    #[arg(value_name = "NAME")]
    name: String,
    /// Go on until the array stops.
    #[arg(short, long)]
    follow: bool,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
}

const AFTER: &str = "\
Examples:
  raidus events md0
  raidus events --follow --json md0 | jq -r 'select(.event == \"member-failed\").device'";

/// How long one request waits.
const SECONDS: u64 = 50;

/// The command.
pub fn run(args: EventsArgs) -> Result<(), Failure> {
    let (array, _) = find(&RunDir::find()?, &args.name)?;
    let mut batch = array.events(0, 0)?;
    print(&batch, args.json)?;
    while args.follow && !batch.ended {
        batch = match array.events(batch.last, SECONDS) {
            Ok(batch) => batch,
            // Nobody was left to say so.
            Err(error) if error.is_absence() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        print(&batch, args.json)?;
    }
    Ok(())
}

fn print(batch: &Batch, json: bool) -> Result<(), Failure> {
    let mut lines = String::new();
    if batch.missed > 0 {
        let note = serde_json::json!({ "event": "missed", "missed": batch.missed });
        lines.push_str(&if json { format!("{note}\n") } else { format!("missed {} events\n", batch.missed) });
    }
    for entry in &batch.events {
        lines.push_str(&if json { json_line(entry)? } else { line(entry) });
    }
    if lines.is_empty() { Ok(()) } else { output::text(lines) }
}

fn json_line(entry: &Entry) -> Result<String, Failure> {
    let line = serde_json::to_string(entry).map_err(|e| Failure::Output(e.into()))?;
    Ok(line + "\n")
}

fn line(entry: &Entry) -> String {
    let when = Host::this().with_context(|context| (context.time)(entry.seconds));
    format!("{when}  {}\n", entry.what)
}
