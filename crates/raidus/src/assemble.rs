//! `raidus assemble`: an array in the background, or what would become of it.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::{AssemblyArgs, MountArgs, RunArgs};
use crate::daemon::{Overlay, Ready, Request};
use crate::error::Failure;
use crate::{detach, look, output, serve, wait};

/// Start an array in the background.
///
/// All superblocks are read and weighed before anything is written. If the devices make no array that can be started safely,
/// the reasons are given and nothing was changed. Otherwise a process of its own holds the array until `raidus stop`, and
/// serves it at an NBD socket in the run directory; its log is beside the socket.
///
/// With --explain nothing is started: a table tells for every device whether it takes part and why, and what --force would
/// change. The exit status is then 0 if the array would start, else 1.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER)]
pub struct AssembleArgs {
    #[command(flatten)]
    assembly: AssemblyArgs,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    mount: MountArgs,
    /// Only tell, per device, why it is in or out. Nothing is started or written.
    #[arg(long)]
    explain: bool,
    /// Print the explanation, or how to reach the array, as JSON.
    #[arg(long)]
    json: bool,
}

const AFTER: &str = "\
How devices are chosen:
  The superblock with most events among those with a slot speaks for the array. A member that missed
  more than one update is stale and stays out; so does one that the freshest superblock calls failed.
  An array that stopped in the middle of writing and lacks a member (raid4, 5, 6) is not started: what
  the missing member held cannot be known where writes were under way. --force overrides both.

Examples:
  raidus assemble /dev/sd[b-e]1
  raidus assemble --explain disk*.img
  raidus assemble --explain --json disk*.img | jq .reasons
  raidus assemble --readonly --run /dev/sdb /dev/sdc            (a raid5 that has lost a disk)";

/// The command.
pub fn run(args: AssembleArgs) -> Result<(), Failure> {
    let request = args.mount.add_to(args.assembly.request(&args.run)?);
    if args.explain {
        return explain(&request, args.json);
    }
    let ready = in_background(request)?;
    if args.json {
        return serve::json_line(&ready);
    }
    output::say(&ready.message);
    let file = ready.file.iter().map(|file| format!("{}\n", file.display()));
    output::text(ready.nbd.iter().map(|uri| format!("{uri}\n")).chain(file).collect::<String>())
}

/// Starts the array in a process of its own.
pub fn in_background(request: Request) -> Result<Ready, Failure> {
    let request = with_absolute_paths(request)?;
    wait::while_doing("starting the array".to_owned(), || detach::start(&request))
}

fn explain(request: &Request, as_json: bool) -> Result<(), Failure> {
    let decision = raidus_assembly::decide(&look::candidates(&request.devices), &request.assembly()?);
    if as_json {
        output::json(&raidus_assembly::report(&decision))?;
    } else {
        output::text(raidus_assembly::explain(&decision))?;
    }
    if decision.start().is_some() { Ok(()) } else { Err(Failure::Told) }
}

/// The background process lives elsewhere.
fn with_absolute_paths(mut request: Request) -> Result<Request, Failure> {
    for device in &mut request.devices {
        *device = absolute(device)?;
    }
    if let Some(Overlay::Directory(dir)) = &mut request.overlay {
        *dir = absolute(dir)?;
    }
    if let Some(dir) = &mut request.mount {
        *dir = absolute(dir)?;
    }
    if let Some(path) = request.listen.as_deref().and_then(|l| l.strip_prefix("unix:")) {
        request.listen = Some(format!("unix:{}", absolute(Path::new(path))?.display()));
    }
    Ok(request)
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|source| Failure::read(path.to_owned(), source))
}
