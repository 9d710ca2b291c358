//! `raidus serve`: an array in the foreground.

use clap::Args;

use crate::cli::{AssemblyArgs, MountArgs, RunArgs};
use crate::daemon::{self, Ready};
use crate::error::Failure;
use crate::output::{say, text};

/// Start an array and serve it over NBD until interrupted.
///
/// All superblocks are read and weighed before anything is written; if the devices make no array that can be started safely, the
/// reasons are given and nothing was changed. Then the array is served at an NBD socket. Interrupt (Ctrl-C, SIGTERM) or
/// `raidus stop` ends it in order: requests under way end, the array is marked clean. A second interrupt ends at once, and
/// the array is left as after a power failure.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER)]
pub struct ServeArgs {
    #[command(flatten)]
    assembly: AssemblyArgs,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    mount: MountArgs,
    /// Print how to reach the array as JSON, in one line, once it is ready.
    #[arg(long)]
    json: bool,
}

const AFTER: &str = "\
Examples:
  raidus serve disk0.img disk1.img disk2.img
  raidus serve --readonly --socket=/tmp/old.sock /dev/sd[b-e]
  raidus serve --force --overlay=/var/tmp /dev/sdb /dev/sdc     (nothing is written to sdb and sdc)
  raidus serve --tcp=127.0.0.1:10809 disk*.img
  raidus serve --mount=/mnt/array disk*.img";

/// The command.
pub fn run(args: ServeArgs) -> Result<(), Failure> {
    let request = args.mount.add_to(args.assembly.request(&args.run)?);
    daemon::run(&request, |ready| if args.json { json_line(ready) } else { announce(ready) })
}

/// What `serve --json` and `assemble --json` print.
pub fn json_line(ready: &Ready) -> Result<(), Failure> {
    let line = serde_json::to_string(ready).map_err(|e| Failure::Output(e.into()))?;
    text(format_args!("{line}\n"))
}

/// How to use the array.
pub fn announce(ready: &Ready) -> Result<(), Failure> {
    say(&ready.message);
    let mut lines = String::new();
    for uri in &ready.nbd {
        lines.push_str(&format!("{uri}\n"));
    }
    let uri = ready.nbd.first().map(String::as_str).unwrap_or_default();
    lines.push_str(&format!("  look at it:      nbdinfo '{uri}'\n"));
    lines.push_str(&format!("  copy it:         nbdcopy '{uri}' copy.img\n"));
    lines.push_str(&format!("  in QEMU:         -drive 'file={uri},format=raw,if=virtio'\n"));
    if let Some(socket) = &ready.socket {
        lines.push_str(&format!("  as /dev/nbd0:    nbd-client -unix {} /dev/nbd0\n", socket.display()));
    }
    if let Some(file) = &ready.file {
        lines.push_str(&format!("  as a file:       {}\n", file.display()));
        lines.push_str(&format!("  as /dev/loop0:   losetup --direct-io=on --find --show {}\n", file.display()));
    }
    lines.push_str(&format!("  stop it:         raidus stop {}\n", ready.name));
    text(lines)
}

impl ServeArgs {
    #[cfg(test)]
    fn devices(&self) -> &[std::path::PathBuf] {
        &self.assembly.devices
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::{Cli, Command};

    #[test]
    fn options_are_mdadms() {
        let parsed = Cli::try_parse_from(["raidus", "serve", "-f", "-R", "-o", "-u", "x", "-N", "data", "a", "b"]);
        let Ok(Cli { command: Command::Serve(args), .. }) = parsed else { panic!("{parsed:?}") };
        assert!(args.assembly.force && args.assembly.run && args.assembly.readonly);
        assert_eq!(args.devices().len(), 2);
        assert!(args.assembly.request(&args.run).is_err(), "x is no UUID");
    }
}
