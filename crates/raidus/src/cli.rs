//! The command line: what all commands have in common.

use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::daemon::{Overlay, Request};
use crate::error::Failure;

/// Linux md arrays in user space.
///
/// raidus reads and writes the arrays of Linux md and mdadm — the same bytes on the members — without the kernel's help: on disks,
/// partitions and image files, as an ordinary process. An array is served over NBD, so that virtual machines, `nbd-client`,
/// `qemu-nbd` or libnbd programs can use it, and shown as a file where that is wanted.
#[derive(Parser, Debug)]
#[command(name = "raidus", version, max_term_width = 100, after_long_help = AFTER)]
pub struct Cli {
    /// Log more: once what happens to arrays, twice every detail.
    ///
    /// RAIDUS_LOG in the environment says it finer, per module: RAIDUS_LOG=info,raidus_nbd=debug.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER: &str = "\
Environment:
  RAIDUS_RUN_DIR  directory for the sockets of running arrays; default: /run/raidus for root,
                  $XDG_RUNTIME_DIR/raidus for others
  RAIDUS_STATE_DIR  directory for reports of checks, kept from run to run; default: /var/lib/raidus for root,
                  $XDG_STATE_HOME/raidus or ~/.local/state/raidus for others
  RAIDUS_LOG      what to log: error, warn, info, debug, trace, also per module

Exit status:
  0  done
  1  not done; standard error says why and what to do next
  2  the command line makes no sense

Examples:
  A raid6 on six new images, and a file system on it in a virtual machine:
    raidus create --level=6 --raid-devices=6 --image-size=1G d0 d1 d2 d3 d4 d5
    raidus assemble d0 d1 d2 d3 d4 d5
    qemu-system-x86_64 … -drive file=nbd+unix:///?socket=/run/raidus/md0.nbd,format=raw
    raidus stop md0

  What is wrong with these disks?
    raidus assemble --explain /dev/sd[b-e]

  A disk failed: another one takes its place.
    raidus remove md0 failed
    raidus add md0 /dev/sdg && raidus wait md0

  Try a risky assembly without writing to the disks:
    raidus serve --force --overlay=/var/tmp /dev/sd[b-e]

`raidus help COMMAND` says more about a command.";

/// The commands. What each says of itself in the help stands with its arguments: words here would replace all of that.
#[derive(Subcommand, Debug)]
pub enum Command {
    Create(crate::create::CreateArgs),
    Assemble(crate::assemble::AssembleArgs),
    Mount(crate::mount::MountArgs),
    Serve(crate::serve::ServeArgs),
    Examine(crate::examine::ExamineArgs),
    Detail(crate::detail::DetailArgs),
    Query(crate::query::QueryArgs),
    Status(crate::status::StatusArgs),
    Stop(crate::stop::StopArgs),
    Add(crate::manage::AddArgs),
    ReAdd(crate::manage::ReAddArgs),
    Fail(crate::manage::FailArgs),
    Remove(crate::manage::RemoveArgs),
    Replace(crate::manage::ReplaceArgs),
    Grow(crate::grow::GrowArgs),
    Scrub(crate::scrub::ScrubArgs),
    Wait(crate::settle::WaitArgs),
    Events(crate::events::EventsArgs),
    Get(crate::attribute::GetArgs),
    Set(crate::attribute::SetArgs),
    Map(crate::map::MapArgs),
    Bench(Box<crate::bench::BenchArgs>),
    ZeroSuperblock(crate::zero::ZeroArgs),
    /// Run an array in the background; used by assemble.
    #[command(name = crate::detach::COMMAND, hide = true)]
    Hold,
}

/// The command line of this process.
pub fn parse() -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches()?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    if let (Command::Create(args), Some((_, matches))) = (&mut cli.command, matches.subcommand()) {
        args.note_order(matches);
    }
    Ok(cli)
}

impl Command {
    /// Whether this process will hold an array, whose log is of interest.
    pub fn runs_an_array(&self) -> bool {
        matches!(self, Command::Serve(_) | Command::Hold)
    }
}

/// How an array is put together.
#[derive(Args, Debug)]
pub struct AssemblyArgs {
    /// Member devices: disks, partitions or image files, in any order.
    #[arg(required = true, value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    /// Start in spite of doubts: use members that missed writes, declare a dirty degraded array clean.
    ///
    /// Data may be lost where writes were under way. `raidus assemble --explain` tells beforehand what --force would change; with
    /// --overlay it can be tried without writing to the members.
    #[arg(short, long)]
    pub force: bool,
    /// Start although members are missing that were there when the array was last used.
    #[arg(short = 'R', long)]
    pub run: bool,
    /// Write nothing to the members, and refuse clients' writes.
    #[arg(short = 'o', long)]
    pub readonly: bool,
    /// Use only members of the array with this UUID.
    #[arg(short, long)]
    pub uuid: Option<String>,
    /// Use only members of the array with this name, with or without its HOST: prefix.
    #[arg(short = 'N', long)]
    pub name: Option<String>,
    /// raid0 only: the layout of an array whose superblocks do not tell it (original or alternate).
    ///
    /// Linux 3.14 changed where raid0 puts data on members of different sizes. Arrays made before (original), or made later by an
    /// old mdadm (alternate), do not say which they are; with the wrong one most data reads as garbage.
    #[arg(short = 'p', long, value_name = "LAYOUT")]
    pub layout: Option<String>,
}

/// How a running array is reached.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Name to run under; default: the array's own, as md0 or md_NAME.
    #[arg(long = "as", value_name = "NAME")]
    pub run_name: Option<String>,
    /// Keep everything that is written in DIR instead of on the members ("memory": in memory). Gone when the array stops.
    #[arg(long, value_name = "DIR")]
    pub overlay: Option<PathBuf>,
    /// Serve NBD at this Unix socket instead of the one in the run directory.
    #[arg(long, value_name = "PATH", conflicts_with = "tcp")]
    pub socket: Option<PathBuf>,
    /// Serve NBD over TCP too. Anybody who can connect can read and write: there is no password.
    #[arg(long, value_name = "ADDR:PORT")]
    pub tcp: Option<String>,
    /// Threads to use, each with a core's worth of I/O; default: one per core, at most 4.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
}

/// Where a running array is shown as a file.
#[derive(Args, Debug)]
pub struct MountArgs {
    /// Show the array as a file in this empty directory too, beside mdstat and md's attributes (FUSE).
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// Let root use the mount too; by default only the user who mounts it can.
    ///
    /// Loop devices need it if raidus is not run by root. Users other than root may give it only if /etc/fuse.conf says
    /// user_allow_other.
    #[arg(long, requires = "mount")]
    pub allow_other: bool,
}

impl MountArgs {
    /// The request with it.
    pub fn add_to(&self, request: Request) -> Request {
        Request { mount: self.mount.clone(), allow_other: self.allow_other, ..request }
    }
}

impl AssemblyArgs {
    /// The request for the engine room.
    pub fn request(&self, run: &RunArgs) -> Result<Request, Failure> {
        let raid0_layout = self.layout.as_deref().map(|text| {
            let layout = raidus_layout::names::parse(raidus_units::Level::Raid0, text);
            layout.map_err(|e| Failure::Usage(format!("--layout: {e}")))
        });
        let request = Request {
            devices: self.devices.clone(),
            name: run.run_name.clone(),
            force: self.force,
            run: self.run,
            readonly: self.readonly,
            uuid: self.uuid.clone(),
            array_name: self.name.clone(),
            raid0_layout: raid0_layout.transpose()?,
            overlay: run.overlay.as_ref().map(|dir| match dir.to_str() {
                Some("memory") => Overlay::Memory,
                _ => Overlay::Directory(dir.clone()),
            }),
            listen: run.socket.as_ref().map(|p| format!("unix:{}", p.display())).or_else(|| run.tcp.clone()),
            threads: run.threads.unwrap_or_else(default_threads),
            mount: None,
            allow_other: false,
        };
        // What cannot be understood is refused before a device is touched.
        request.assembly()?;
        if let Some(name) = &request.name {
            crate::rundir::check_name(name).map_err(|e| Failure::Usage(format!("--as: {e}")))?;
        }
        if let Some(tcp) = &run.tcp
            && !matches!(raidus_nbd::Address::parse(tcp), Some(raidus_nbd::Address::Tcp(_)))
        {
            return Err(Failure::Usage(format!("--tcp: '{tcp}' is not ADDRESS:PORT, such as 127.0.0.1:10809")));
        }
        Ok(request)
    }
}

/// Few enough not to hog a large machine, many enough for fast members.
fn default_threads() -> u16 {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(4) as u16)
}
