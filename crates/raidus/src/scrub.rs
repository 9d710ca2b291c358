//! `raidus scrub`: checks and repairs, and what they found.

use std::fmt::Write;

use clap::{Args, ValueEnum};

use crate::control::client::{Remote, find};
use crate::error::Failure;
use crate::host::Host;
use crate::live::scrub::{MismatchReport, ScrubReport};
use crate::output;
use crate::output::say;
use crate::rundir::RunDir;
use crate::wait;

/// Compare the members of a running array, and mend what disagrees.
///
/// A check reads everything and writes only what could not be read. A repair ends every disagreement: where the redundancy tells
/// which block is wrong (raid6 with all members, mirrors of three) that one is written, otherwise parity follows the data and
/// copies follow the first. Clients go on meanwhile. The last report is kept, also while the array is stopped.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER)]
pub struct ScrubArgs {
    /// The array: the name it runs under, its own name, or its UUID.
    #[arg(value_name = "NAME")]
    name: String,
    /// What to do.
    #[arg(value_enum, default_value = "check")]
    action: ScrubAction,
    /// Wait for the end of the check or repair, and print what it found.
    #[arg(short, long)]
    wait: bool,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// md's words, and one for the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ScrubAction {
    /// Look for disagreement.
    Check,
    /// Look for disagreement and end it.
    Repair,
    /// Interrupt what runs; what the members need begins again by itself.
    Idle,
    /// Interrupt what runs, and begin nothing until told to.
    #[value(alias = "frozen")]
    Freeze,
    /// Print what the last check or repair found.
    Report,
}

const AFTER: &str = "\
Examples:
  raidus scrub md0 check --wait
  raidus scrub md0 report --json | jq '.mismatches[].culprit'
  raidus set md0 sync_speed_max 20000 && raidus scrub md0 repair";

/// How long one request waits.
const SECONDS: u64 = 30;

/// The command.
pub fn run(args: ScrubArgs) -> Result<(), Failure> {
    let (array, _) = find(&RunDir::find()?, &args.name)?;
    let before = array.scrub(0, 0)?;
    let word = match args.action {
        ScrubAction::Check => "check",
        ScrubAction::Repair => "repair",
        ScrubAction::Idle => "idle",
        ScrubAction::Freeze => "frozen",
        ScrubAction::Report => {
            let report = before.report.ok_or_else(|| Failure::NoReport { name: array.name().to_owned() });
            return show(&report?, args.json);
        }
    };
    array.sync(word)?;
    if !matches!(args.action, ScrubAction::Check | ScrubAction::Repair) {
        return Ok(());
    }
    if !args.wait {
        say(format_args!(
            "{word} of {} started; `raidus scrub {} report` tells what it found",
            array.name(),
            array.name()
        ));
        return Ok(());
    }
    let report = wait::while_doing(format!("{word} of {}", array.name()), || ended(&array, before.finished))?;
    show(&report, args.json)?;
    if report.complete { Ok(()) } else { Err(Failure::Told) }
}

/// Waits for the report after the one numbered `after`.
fn ended(array: &Remote, after: u64) -> Result<ScrubReport, Failure> {
    let mut quiet = false;
    loop {
        // It may have been called off before it began: then nothing comes. Short waits tell that from one under way.
        let answer = array.scrub(after, if quiet { 2 } else { SECONDS })?;
        if let Some(report) = answer.report.filter(|_| answer.finished > after) {
            return Ok(report);
        }
        let idle = matches!(answer.running.as_str(), "idle" | "frozen");
        if idle && quiet {
            return Err(Failure::CalledOff { name: array.name().to_owned() });
        }
        quiet = idle;
    }
}

fn show(report: &ScrubReport, json: bool) -> Result<(), Failure> {
    if json { output::json(report) } else { output::text(text(report)) }
}

fn text(report: &ScrubReport) -> String {
    let mut out = String::new();
    let when = Host::this().with_context(|context| (context.time)(report.ended_seconds));
    let seconds = report.took_milliseconds as f64 / 1000.0;
    let how = if report.complete { "done" } else { "interrupted" };
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{} {how} {when}, after {seconds:.1} s", report.action);
    if !report.complete {
        let _ = writeln!(out, "  only sectors {} to {} were compared", report.start_sector, report.end_sector);
    }
    let _ = writeln!(out, "mismatches: {} sectors", report.mismatch_sectors);
    report.mismatches.iter().for_each(|m| out.push_str(&mismatch(m)));
    if report.more {
        out.push_str("  … more than are listed\n");
    }
    if report.healed_sectors > 0 {
        let _ = writeln!(out, "read errors: {} sectors could not be read and were written anew", report.healed_sectors);
    }
    for (start, len) in &report.unreadable {
        let _ = writeln!(out, "not compared, for it cannot be read: {len} sectors at {start}");
    }
    out
}

fn mismatch(m: &MismatchReport) -> String {
    let mended = if m.mended { "mended" } else { "left as it is" };
    let mut out = String::new();
    match &m.culprit {
        Some(place) => {
            let _ = writeln!(out, "  {} sectors, wrong on {} ({mended})", m.sectors, place.text());
        }
        None => {
            let _ = writeln!(out, "  {} sectors, one of these is wrong ({mended}):", m.sectors);
            m.places.iter().for_each(|place| {
                let _ = writeln!(out, "    {}", place.text());
            });
        }
    }
    out
}
