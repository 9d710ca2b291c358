//! What can go wrong, in words for the user, and the exit status that goes with it.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use raidus_assembly::create::CreateError;
use raidus_format::SbError;
use raidus_format::bitmap::BitmapError;
use raidus_runtime::members::MemberOpenError;
use raidus_runtime::{CreateFailed, OpenError, StartError, StopFailed};

use crate::control::client::ControlError;
use crate::rundir::RunDirError;

/// Why a command did not do what it was asked to. Each message names what is wrong and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(String),
    /// The user was told already, in more words than fit here.
    #[error("")]
    Told,
    /// Standard output could not be written.
    #[error("cannot write the output: {0}")]
    Output(#[source] io::Error),
    /// A member cannot be opened.
    #[error(transparent)]
    Member(#[from] MemberOpenError),
    /// A device cannot be read or written.
    #[error("{}: {doing}: {source}", path.display())]
    Device {
        /// The device.
        path: PathBuf,
        /// "cannot be read".
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// There is no room to write.
    #[error("{}: no space left on the file system; free some, or put the image elsewhere", path.display())]
    FullDisk {
        /// The device.
        path: PathBuf,
    },
    /// A file is larger than this process may make it.
    #[error("{}: larger than this process may write (ulimit -f); raise the limit, or make a smaller image", path.display())]
    FileTooLarge {
        /// The image.
        path: PathBuf,
    },
    /// An image that is to be made exists.
    #[error("{}: exists already, and --image-size makes new images only; remove it, or leave --image-size out to use it as it is", path.display())]
    ImageExists {
        /// The image.
        path: PathBuf,
    },
    /// Something on a device would be lost.
    #[error("{}: holds {}; check that this is the right device, then wipe it or add --run", path.display(), .found.join(" and "))]
    HoldsData {
        /// The device.
        path: PathBuf,
        /// What was found.
        found: Vec<String>,
    },
    /// There is no md superblock where one is needed.
    #[error("No md superblock detected on {}.", path.display())]
    NoSuperblock {
        /// The device.
        path: PathBuf,
    },
    /// Metadata of another RAID system.
    #[error("{}: carries {kind} metadata, which raidus does not use", path.display())]
    ForeignMetadata {
        /// The device.
        path: PathBuf,
        /// Whose.
        kind: String,
    },
    /// A superblock that cannot even be shown.
    #[error("{}: {why}", path.display())]
    Unusable {
        /// The device.
        path: PathBuf,
        /// Why.
        why: SbError,
    },
    /// No write-intent bitmap.
    #[error("{}: the array has no internal bitmap", path.display())]
    NoBitmap {
        /// The device.
        path: PathBuf,
    },
    /// A bitmap that cannot be shown.
    #[error("{}: {why}", path.display())]
    BitmapUnreadable {
        /// The device.
        path: PathBuf,
        /// Why.
        why: BitmapError,
    },
    /// A bad-block log that cannot be shown.
    #[error("{}: the bad-block log cannot be read: {why}", path.display())]
    BadBlocksUnreadable {
        /// The device.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A level raidus does not know.
    #[error(
        "the array has level number {level}, which raidus does not serve (it serves linear and raid0, 1, 4, 5, 6, 10)"
    )]
    UnknownLevel {
        /// The number.
        level: i32,
    },
    /// An array cannot be made like that.
    #[error("{0}")]
    Create(#[from] CreateError),
    /// A new array could not be written.
    #[error(transparent)]
    Write(#[from] CreateFailed),
    /// The devices make no array that may be started.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// An array does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The array runs already.
    #[error("{name}: runs already (process {pid}); stop it first: raidus stop {name}")]
    Running {
        /// Its name.
        name: String,
        /// The process.
        pid: u32,
    },
    /// Another array has the name.
    #[error(
        "the name {name} is taken by another running array; choose another one with --as=NAME, or stop that one: raidus stop {name}"
    )]
    NameTaken {
        /// The name.
        name: String,
    },
    /// An array did not stop in order.
    #[error("{name}: {source}")]
    Stop {
        /// The array.
        name: String,
        /// Why.
        source: StopFailed,
    },
    /// The run directory.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// A running array cannot be spoken with.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A sync that an array needs will not happen.
    #[error("{name}: {why}")]
    Stuck {
        /// The array.
        name: String,
        /// Why.
        why: String,
    },
    /// A check did not happen.
    #[error("{name}: called off before it began; what the members need comes first, see `raidus events {name}`")]
    CalledOff {
        /// The array.
        name: String,
    },
    /// Nothing was checked.
    #[error("{name}: nothing has been checked yet; `raidus scrub {name} check --wait` does it")]
    NoReport {
        /// The array.
        name: String,
    },
    /// No such attribute.
    #[error("{name}: there is no attribute '{attribute}'; `raidus get {name}` lists all")]
    NoAttribute {
        /// The array.
        name: String,
        /// The word.
        attribute: String,
    },
    /// A place that is not in the array.
    #[error("{0}")]
    NoPlace(String),
    /// A benchmark did not come to its end.
    #[error("{0}")]
    Bench(String),
    /// NBD clients cannot be served.
    #[error(transparent)]
    Bind(#[from] raidus_nbd::BindError),
    /// The array cannot be exported.
    #[error(transparent)]
    Export(#[from] raidus_nbd::ExportError),
    /// The array cannot be shown as a file.
    #[error(transparent)]
    Mount(#[from] raidus_fuse::MountError),
    /// The system refuses something basic.
    #[error("{what}: {source}")]
    System {
        /// What was wanted.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl Failure {
    /// The error of writing to a device.
    pub fn write(path: PathBuf, source: io::Error) -> Failure {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Failure::FullDisk { path },
            io::ErrorKind::FileTooLarge => Failure::FileTooLarge { path },
            _ => Failure::Device { path, doing: "cannot be written", source },
        }
    }

    /// The error of reading from a device.
    pub fn read(path: PathBuf, source: io::Error) -> Failure {
        Failure::Device { path, doing: "cannot be read", source }
    }

    /// 2 for a command line that makes no sense, else 1. A reader of the output that had enough is no failure.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Usage(_) => ExitCode::from(2),
            Failure::Output(e) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    }

    /// Whether there is something to say.
    pub fn is_worth_saying(&self) -> bool {
        !matches!(self, Failure::Told) && !matches!(self, Failure::Output(e) if e.kind() == io::ErrorKind::BrokenPipe)
    }
}
