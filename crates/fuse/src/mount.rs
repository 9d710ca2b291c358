//! Mounting and unmounting.
//!
//! A [`Mount`] outlives everybody who uses it: it goes only when nobody does, or when it is [detached](Mount::detach).

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fuser::{Config, MountOption, Session, SessionACL};
use raidus_runtime::ArrayHandle;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::data::Data;
use crate::filesystem::ArrayFs;
use crate::place::{self, User};
use crate::tree::{Texts, Tree};

/// How an array is mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// The file cannot be opened for writing.
    pub read_only: bool,
    /// Let root, and whoever else the files' permissions allow, use the mount too, not only the user who mounted it. Users other
    /// than root may ask for that only if `user_allow_other` stands in /etc/fuse.conf.
    pub allow_other: bool,
    /// Threads that take requests from the kernel; `None` for one per core, four at most.
    pub threads: Option<usize>,
}

/// Why an array cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is no such directory.
    #[error("{0}: there is no such directory to mount at; make it first: mkdir {0}")]
    Missing(PathBuf),
    /// Something else is there.
    #[error("{0}: is not a directory; give a directory to mount at")]
    NotADirectory(PathBuf),
    /// Its files would be hidden.
    #[error("{0}: is not empty, and what is in it would be hidden; give an empty directory to mount at")]
    NotEmpty(PathBuf),
    /// A FUSE file system is mounted there.
    #[error("{0}: a FUSE file system is mounted there already; unmount it (umount {0}) or mount elsewhere")]
    AlreadyMounted(PathBuf),
    /// A FUSE file system is mounted there, and its process is gone.
    #[error(
        "{0}: the process that mounted something there has ended without unmounting it; remove what is left with: umount -l {0} \
         (or fusermount3 -u -z {0})"
    )]
    Dead(PathBuf),
    /// The directory cannot be looked at.
    #[error("{dir}: cannot mount there: {source}")]
    Place {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system does not want it.
    #[error(
        "{dir}: not permitted to mount there: {why}; mount at a directory of your own, or as root (in a container, it needs the \
         capability SYS_ADMIN and the device /dev/fuse)"
    )]
    NotPermitted {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        why: String,
    },
    /// No FUSE.
    #[error(
        "/dev/fuse: {source}; FUSE is not available: load the kernel module (modprobe fuse) or, in a container, give it the device \
         (--device /dev/fuse). Without FUSE, the array can be used over NBD"
    )]
    NoDevice {
        /// What the system said.
        source: io::Error,
    },
    /// No access to FUSE.
    #[error("/dev/fuse: {source}; run raidus as a user who may read and write it")]
    DeviceRefused {
        /// What the system said.
        source: io::Error,
    },
    /// Users other than root need a helper program.
    #[error("cannot mount without fusermount3, which is not installed: install the package fuse3, or mount as root")]
    NoHelper,
    /// Not a name for a file.
    #[error("'{0}' cannot be the name of the array's file; choose one other than md and mdstat, without /")]
    Name(String),
    /// No memory, no threads.
    #[error("cannot run a FUSE mount: {source}")]
    System {
        /// What the system said.
        source: io::Error,
    },
}

/// Why a mount is still there.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// It is in use.
    #[error("{dir}: still in use{}; end that, then try again", listed(users))]
    Busy {
        /// The mount point.
        dir: PathBuf,
        /// By whom, as far as we may see it.
        users: Vec<User>,
    },
    /// Anything else.
    #[error("{dir}: cannot be unmounted: {source}")]
    System {
        /// The mount point.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// How long a mount may still be in use before that is said.
const PATIENCE: Duration = Duration::from_secs(1);

fn listed(users: &[User]) -> String {
    let users: Vec<String> = users.iter().map(ToString::to_string).collect();
    if users.is_empty() { String::new() } else { format!(" by {}", users.join(", ")) }
}

/// A mounted array. Dropped without [`unmount`](Self::unmount), it goes as with [`detach`](Self::detach).
#[derive(Debug)]
pub struct Mount {
    dir: PathBuf,
    file: PathBuf,
    /// The number of our file system, to know it from whatever may be mounted there later.
    device: u64,
    session: Option<JoinHandle<io::Result<()>>>,
}

/// Whether an array could be mounted at `dir` as the file `name`: for finding out before it is started. Whether the kernel permits
/// it shows only when it is done.
pub fn check(dir: &Path, name: &str) -> Result<(), MountError> {
    prepare(dir, name).map(|_| ())
}

fn prepare(dir: &Path, name: &str) -> Result<PathBuf, MountError> {
    if !Tree::is_usable_name(name) {
        return Err(MountError::Name(name.to_owned()));
    }
    let real = place::check(dir)?;
    place::check_device()?;
    Ok(real)
}

/// Shows a running array at the directory `dir`, as the file `name` with `texts` beside it.
pub fn mount(
    array: Arc<ArrayHandle>,
    dir: &Path,
    name: &str,
    texts: Arc<dyn Texts>,
    options: MountOptions,
) -> Result<Mount, MountError> {
    let real = prepare(dir, name)?;
    let system = |source| MountError::System { source };
    let below = place::device_of(&real).map_err(system)?;
    let data = Data::new(array).map_err(system)?;
    let tree = Tree::new(name, texts, data.size(), data.block(), !options.read_only);
    let session = Session::new(ArrayFs::new(tree, data), &real, &config(&options)).map_err(|e| refused(dir, e))?;
    let thread = std::thread::Builder::new().name("raidus-fuse".to_owned()).spawn(move || session.run());
    let thread = thread.map_err(system)?;
    // Answered by the threads just started, if they could be started.
    match place::device_of(&real) {
        Ok(device) if device != below => Ok(Mount { file: real.join(name), dir: real, device, session: Some(thread) }),
        _ => {
            let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")));
            Err(system(ended.err().unwrap_or_else(|| io::Error::other("it ended at once"))))
        }
    }
}

fn config(options: &MountOptions) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("raidus".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoExec,
        MountOption::NoAtime,
    ];
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    let cores = || std::thread::available_parallelism().map_or(1, |n| n.get().min(4));
    config.n_threads = Some(options.threads.unwrap_or_else(cores).max(1));
    config.clone_fd = true;
    config
}

/// The device is there, so what is missing is the helper; what the helper says is text.
fn refused(dir: &Path, error: io::Error) -> MountError {
    if error.kind() == io::ErrorKind::NotFound {
        return MountError::NoHelper;
    }
    if error.raw_os_error().is_some() {
        return MountError::System { source: error };
    }
    MountError::NotPermitted { dir: dir.to_owned(), why: error.to_string().trim_end().to_owned() }
}

impl Mount {
    /// The mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The array's file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Whether it is still there: anybody with the right to may have unmounted it.
    pub fn is_mounted(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.is_finished())
    }

    /// Unmounts and waits for the end of what is under way. If the mount is in use, and still is a second later, it stays.
    pub fn unmount(&mut self) -> Result<(), UnmountError> {
        let there = self.is_ours();
        if there {
            self.take_away_patiently()?;
        }
        // If somebody else took it away while files were open, it ends when they are closed.
        if let Some(session) = self.session.take_if(|session| there || session.is_finished()) {
            // It has nothing to tell but that the mount is gone.
            let _ = session.join();
        }
        Ok(())
    }

    /// Takes the directory away at once, used or not. Whoever has the file open keeps it until it is closed; the array must be
    /// stopped as if nobody had.
    pub fn detach(mut self) {
        self.let_go();
    }

    fn let_go(&mut self) {
        let there = self.is_ours();
        if self.session.take().is_some() && there {
            // Nobody is left to be told.
            let _ = self.take_away(UnmountFlags::NOFOLLOW | UnmountFlags::DETACH, &["-u", "-z"]);
        }
    }

    /// Whether what is mounted there is this mount. Numbers are used again, but not while the session lasts.
    fn is_ours(&self) -> bool {
        self.is_mounted() && place::device_of(&self.dir).is_ok_and(|device| device == self.device)
    }

    /// A loop device lets go of its file only some time after it was detached.
    fn take_away_patiently(&self) -> Result<(), UnmountError> {
        let start = Instant::now();
        loop {
            match self.take_away(UnmountFlags::NOFOLLOW, &["-u"]) {
                Err(UnmountError::Busy { .. }) if start.elapsed() < PATIENCE => std::thread::sleep(PATIENCE / 20),
                result => return result,
            }
        }
    }

    fn take_away(&self, flags: UnmountFlags, helper: &[&str]) -> Result<(), UnmountError> {
        let system = |source: io::Error| UnmountError::System { dir: self.dir.clone(), source };
        let busy = || UnmountError::Busy { dir: self.dir.clone(), users: place::users(&self.dir) };
        match rustix::mount::unmount(&self.dir, flags) {
            Ok(()) => return Ok(()),
            Err(Errno::BUSY) => return Err(busy()),
            // Users other than root have the helper do it.
            Err(Errno::PERM) => {}
            Err(error) => return Err(system(error.into())),
        }
        let helper = Command::new("fusermount3").args(helper).arg("--").arg(&self.dir).env("LC_ALL", "C").output();
        let output = helper.map_err(system)?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        if text.contains("busy") { Err(busy()) } else { Err(system(io::Error::other(text))) }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.let_go();
    }
}
