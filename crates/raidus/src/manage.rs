//! `raidus add`, `re-add`, `fail`, `remove`, `replace`: members of a running array.

use std::path::PathBuf;

use clap::Args;

use crate::control::client::{ControlError, Remote, find};
use crate::control::{ActRequest, AddRequest, ReplaceRequest};
use crate::error::Failure;
use crate::live::members::{Action, Join, Named};
use crate::output::say;
use crate::rundir::RunDir;

/// Add devices to a running array.
///
/// A former member of the array takes its slot back if the write-intent bitmap tells what it missed, and only that is rebuilt.
/// Any other device becomes a spare: it gets a superblock, what was on it is lost, and if a slot is empty, it is rebuilt at
/// once. Devices that hold a file system, a partition table or RAID metadata of something else are refused unless --force is given.
#[derive(Args, Debug)]
#[command(after_long_help = ADD_AFTER)]
pub struct AddArgs {
    /// The array: the name it runs under, its own name, or its UUID.
    #[arg(value_name = "NAME")]
    name: String,
    /// Disks, partitions or image files.
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// Go ahead although devices hold something; it is lost.
    #[arg(short, long)]
    force: bool,
}

const ADD_AFTER: &str = "\
Examples:
  raidus add md0 /dev/sdf
  raidus add md0 spare.img && raidus wait md0";

/// Take former members of a running array back.
///
/// The write-intent bitmap has to tell what a device missed since it left; only that is rebuilt. Otherwise it is refused, with
/// the reason, and nothing is written to it; `raidus add` makes it a new member that is rebuilt in full.
#[derive(Args, Debug)]
pub struct ReAddArgs {
    /// The array: the name it runs under, its own name, or its UUID.
    #[arg(value_name = "NAME")]
    name: String,
    /// Former members.
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

/// Treat members of a running array as failed.
///
/// Nothing is read from them or written to them any more; the other members' superblocks say so. A member without which data
/// would be lost is refused.
#[derive(Args, Debug)]
pub struct FailArgs {
    /// The array: the name it runs under, its own name, or its UUID.
    #[arg(value_name = "NAME")]
    name: String,
    /// Members, by path or by their name in mdstat; "detached": those whose device is gone.
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

/// Take failed members and spares out of a running array.
///
/// Then they are free for other uses. A member that is in use has to be failed or replaced first.
#[derive(Args, Debug)]
#[command(after_long_help = REMOVE_AFTER)]
pub struct RemoveArgs {
    /// The array: the name it runs under, its own name, or its UUID.
    #[arg(value_name = "NAME")]
    name: String,
    /// Members, by path or by their name in mdstat; "failed": those that failed; "detached": those whose device is gone.
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

const REMOVE_AFTER: &str = "\
Examples:
  raidus remove md0 /dev/sdc
  raidus remove md0 failed";

/// Rebuild a member's data onto a spare, then retire it.
///
/// Until that is done the member goes on serving, so the array stays redundant. Needs a spare; 1.x metadata only.
#[derive(Args, Debug)]
#[command(after_long_help = REPLACE_AFTER)]
pub struct ReplaceArgs {
    /// The array: the name it runs under, its own name, or its UUID.
    #[arg(value_name = "NAME")]
    name: String,
    /// The member to retire, by path or by its name in mdstat.
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// Only if this is the spare that would be taken: the first that is large enough.
    #[arg(long, value_name = "SPARE")]
    with: Option<PathBuf>,
}

const REPLACE_AFTER: &str = "\
Examples:
  raidus add md0 /dev/sdf && raidus replace md0 /dev/sdc && raidus wait md0 && raidus remove md0 /dev/sdc";

/// `raidus add`.
pub fn add(args: AddArgs) -> Result<(), Failure> {
    join(&args.name, &args.devices, Join::Add { force: args.force })
}

/// `raidus re-add`.
pub fn re_add(args: ReAddArgs) -> Result<(), Failure> {
    join(&args.name, &args.devices, Join::ReAdd)
}

/// `raidus fail`.
pub fn fail(args: FailArgs) -> Result<(), Failure> {
    act(&args.name, &args.devices, Action::Fail)
}

/// `raidus remove`.
pub fn remove(args: RemoveArgs) -> Result<(), Failure> {
    act(&args.name, &args.devices, Action::Remove)
}

/// `raidus replace`.
pub fn replace(args: ReplaceArgs) -> Result<(), Failure> {
    let (array, _) = find(&RunDir::find()?, &args.name)?;
    let request = ReplaceRequest { device: Named::here(&args.device), with: args.with.as_deref().map(Named::here) };
    let done = array.replace(&request)?;
    let name = array.name();
    say(format_args!("Marked {} (device {} in {name}) for replacement by {}", done.device, done.number, done.spare));
    Ok(())
}

fn join(name: &str, devices: &[PathBuf], how: Join) -> Result<(), Failure> {
    each(name, devices, |array, device| {
        let joined = array.add(&AddRequest { device, how })?;
        if let Some(why) = &joined.note {
            say(format_args!("{}: not taken back as the member it was: {why}", joined.device));
        }
        say(format_args!("{} {}", if joined.former { "re-added" } else { "added" }, joined.device));
        Ok(())
    })
}

fn act(name: &str, devices: &[PathBuf], action: Action) -> Result<(), Failure> {
    each(name, devices, |array, device| {
        for path in array.act(&ActRequest { action, device })? {
            match action {
                Action::Fail => say(format_args!("set {path} faulty in {}", array.name())),
                Action::Remove => say(format_args!("hot removed {path} from {}", array.name())),
            }
        }
        Ok(())
    })
}

/// One device after the other. What is wrong with one does not keep the others waiting.
fn each(
    name: &str,
    devices: &[PathBuf],
    act: impl Fn(&Remote, Named) -> Result<(), ControlError>,
) -> Result<(), Failure> {
    let (array, _) = find(&RunDir::find()?, name)?;
    let mut failed = false;
    for device in devices {
        if let Err(error) = act(&array, Named::here(device)) {
            say(error);
            failed = true;
        }
    }
    if failed { Err(Failure::Told) } else { Ok(()) }
}
