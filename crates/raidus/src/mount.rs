//! `raidus mount`: an array in the background, as a file.

use std::path::PathBuf;

use clap::Args;

use crate::assemble::in_background;
use crate::cli::{self, AssemblyArgs, RunArgs};
use crate::error::Failure;
use crate::{output, serve};

/// Start an array in the background and show it as a file.
///
/// The same as `raidus assemble --mount=DIR DEVICE...`: DIR then holds the array as one file, named as the array runs; beside it
/// mdstat, and in md/ the attributes that Linux has in /sys/block/mdN/md, which are set by writing to them (see `raidus help set`).
/// `raidus stop` unmounts it and stops the array; it
/// refuses while anybody uses the mount.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER)]
pub struct MountArgs {
    /// Where to mount: an empty directory.
    dir: PathBuf,
    #[command(flatten)]
    assembly: AssemblyArgs,
    #[command(flatten)]
    run: RunArgs,
    /// Let root use the mount too; by default only the user who mounts it can.
    #[arg(long)]
    allow_other: bool,
    /// Print how to reach the array as JSON.
    #[arg(long)]
    json: bool,
}

const AFTER: &str = "\
Examples:
  raidus mount /mnt/array /dev/sd[b-e]
  cat /mnt/array/mdstat /mnt/array/md/array_state
  echo check > /mnt/array/md/sync_action
  losetup --direct-io=on --find --show /mnt/array/md0
  raidus stop md0";

/// The command.
pub fn run(args: MountArgs) -> Result<(), Failure> {
    let mount = cli::MountArgs { mount: Some(args.dir), allow_other: args.allow_other };
    let ready = in_background(mount.add_to(args.assembly.request(&args.run)?))?;
    if args.json {
        return serve::json_line(&ready);
    }
    output::say(&ready.message);
    output::text(ready.file.iter().map(|file| format!("{}\n", file.display())).collect::<String>())
}
