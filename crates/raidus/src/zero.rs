//! `raidus zero-superblock`: removes md's metadata.

use std::path::{Path, PathBuf};

use clap::Args;
use raidus_format::{Found, SUPERBLOCK_BYTES, SbError};
use raidus_runtime::members::{MemberDevice, OpenMode};

use crate::error::Failure;
use crate::output::say;

/// Remove md's metadata from devices.
///
/// Every md superblock found on a device is overwritten with zeroes; nothing else is. The data of an array without superblocks
/// is still there, but nothing says any more how to put it together: keep the output of `raidus examine` if in doubt.
///
/// Devices that a running array or anything else uses are refused.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER)]
pub struct ZeroArgs {
    /// Disks, partitions or image files.
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// Also remove superblocks that say they belong elsewhere: to a partition of the device, or to the disk around it.
    #[arg(short, long)]
    force: bool,
}

const AFTER: &str = "\
Examples:
  raidus zero-superblock /dev/sdb1
  raidus zero-superblock disk*.img";

/// The command.
pub fn run(args: ZeroArgs) -> Result<(), Failure> {
    let mut failed = false;
    for path in &args.devices {
        if let Err(failure) = zero(path, args.force) {
            say(&failure);
            failed = true;
        }
    }
    if failed { Err(Failure::Told) } else { Ok(()) }
}

fn zero(path: &Path, force: bool) -> Result<(), Failure> {
    let device = MemberDevice::open(path, OpenMode { direct: false, ..OpenMode::READ_WRITE })?;
    let probe = raidus_runtime::probe_device(&device).map_err(|source| Failure::read(path.to_owned(), source))?;
    if probe.md.is_empty() {
        return Err(Failure::NoSuperblock { path: path.to_owned() });
    }
    let (ours, elsewhere): (Vec<&Found>, Vec<&Found>) =
        probe.md.iter().partition(|found| force || !is_elsewheres(found));
    for found in elsewhere {
        if let Err(why) = &found.superblock {
            say(format_args!("{}: left alone: {why} (--force removes it)", path.display()));
        }
    }
    for found in &ours {
        let failed = |source| Failure::write(path.to_owned(), source);
        device.write_at(found.at.bytes(), &[0; SUPERBLOCK_BYTES]).map_err(failed)?;
        device.sync().map_err(failed)?;
        say(format_args!("{}: removed {}", path.display(), describe(found)));
    }
    if ours.is_empty() { Err(Failure::Told) } else { Ok(()) }
}

fn is_elsewheres(found: &Found) -> bool {
    matches!(found.superblock, Err(SbError::WrongPosition { .. }))
}

fn describe(found: &Found) -> String {
    let of = found.raw.as_ref().map(|raw| raw.array()).map_or_else(String::new, |array| {
        let name = if array.name.is_empty() { String::new() } else { format!(" '{}'", array.name) };
        format!(" of array {}{name}", array.uuid)
    });
    format!("the {} superblock{of} at sector {}", found.version, found.at)
}
