//! What the tests need of the machine: FUSE, loop devices, other people's programs.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set to skip, with a word, tests that this machine cannot run.
const NO_TOOLS: &str = "RAIDUS_TEST_NO_TOOLS";

/// Whether the test may go on.
///
/// # Panics
/// If it may not, and nothing says that this is fine: a test that silently tests nothing is worse than none.
pub fn can_use(usable: bool, what: &str) -> bool {
    assert!(usable || std::env::var_os(NO_TOOLS).is_some(), "{what}; set {NO_TOOLS} to skip what needs it");
    if !usable {
        eprintln!("skipped: {what}");
    }
    usable
}

/// Gives the test's thread, and all that it starts, mounts of their own: whoever copies the system's mounts meanwhile (a container
/// that is started) would keep ours in use, and a test that fails cannot leave any behind. For root only.
fn with_own_mounts() {
    if nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).is_ok() {
        let flags = nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE;
        nix::mount::mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).unwrap();
    }
}

/// Whether file systems can be mounted with FUSE.
pub fn can_mount() -> bool {
    with_own_mounts();
    let device = File::options().read(true).write(true).open("/dev/fuse");
    can_use(device.is_ok(), "/dev/fuse cannot be opened: load the module fuse, or give the container the device")
}

/// The program `name`, or `None` if it is missing and the environment says that is fine.
pub fn tool(name: &str, package: &str) -> Option<Command> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    let found = places.map(|place| place.join(name)).find(|file| file.is_file());
    can_use(found.is_some(), &format!("{name} is not installed: install the package {package}"));
    found.map(Command::new)
}

/// Runs a program to its end and returns what it printed.
///
/// # Panics
/// If it fails.
#[track_caller]
pub fn run<S: AsRef<OsStr>>(command: &mut Command, args: impl IntoIterator<Item = S>) -> String {
    let output = command.args(args).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} failed: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// A loop device on a file, which must hold when it is detached that nobody uses it.
pub struct Loop(PathBuf);

impl Loop {
    /// Around the page cache of the file. `None` if this machine has none and that is fine.
    pub fn attach(file: &Path) -> Option<Loop> {
        let control = File::options().read(true).write(true).open("/dev/loop-control");
        if !can_use(control.is_ok(), "/dev/loop-control cannot be opened: loop devices need root and the module loop") {
            return None;
        }
        let mut losetup = tool("losetup", "util-linux")?;
        let args = ["--direct-io=on", "--find", "--show"].map(OsStr::new);
        let name = run(&mut losetup, args.into_iter().chain([file.as_os_str()]));
        Some(Loop(name.trim_end().into()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Whether it goes around the page cache.
    pub fn is_direct(&self) -> bool {
        let name = self.0.file_name().unwrap();
        let file = Path::new("/sys/block").join(name).join("loop/dio");
        std::fs::read_to_string(file).unwrap().trim() == "1"
    }

    pub fn detach(self) {
        drop(self);
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("--detach").arg(&self.0).status();
        if !std::thread::panicking() {
            assert!(detached.unwrap().success());
        }
    }
}
