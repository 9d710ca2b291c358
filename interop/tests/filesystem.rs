//! Real file systems live on a raidus RAID6, through FUSE and a loop device: they survive the loss of two members, and the
//! death of the process in the midst of writing, and, once that is resynced, the loss of two members again.
//!
//! The process dies here, not the machine: what it had written is there, in whatever order it wrote it. What is asked is that
//! nothing was acknowledged that it only meant to write, and that members and file system are found in a state that md and the
//! file system know how to deal with.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};

use anyhow::{Context, Result, ensure};
use interop::Rng;
use interop::program::{self, Daemon};
use tempfile::TempDir;

const MEMBERS: usize = 6;
const MEMBER_SIZE: &str = "144M";

/// Set to skip, with a word, what this machine cannot do.
const NO_TOOLS: &str = "RAIDUS_TEST_NO_TOOLS";

/// A kind of file system.
struct Kind {
    name: &'static str,
    package: &'static str,
    make: &'static [&'static str],
    /// Looks at all of it, changes nothing, and fails if anything is wrong.
    check: &'static [&'static str],
    /// Reads only, not even the journal is replayed.
    look: &'static str,
}

const EXT4: Kind = Kind {
    name: "ext4",
    package: "e2fsprogs",
    make: &["mkfs.ext4", "-q", "-F"],
    check: &["fsck.ext4", "-f", "-n"],
    look: "ro,noload",
};

const XFS: Kind = Kind {
    name: "xfs",
    package: "xfsprogs",
    make: &["mkfs.xfs", "-q", "-f"],
    check: &["xfs_repair", "-n"],
    look: "ro,norecovery",
};

#[test]
fn ext4_lives_on_a_raid6() {
    if can_run(&EXT4) {
        live(&EXT4).unwrap_or_else(|e| panic!("{e:#}"));
    }
}

#[test]
fn xfs_lives_on_a_raid6() {
    if can_run(&XFS) {
        live(&XFS).unwrap_or_else(|e| panic!("{e:#}"));
    }
}

/// Whether the machine has what is needed.
///
/// # Panics
/// If not, unless the environment says that this is fine: a test that silently tests nothing is worse than none.
fn can_run(kind: &Kind) -> bool {
    let open = |device: &str| File::options().read(true).write(true).open(device).is_ok();
    let program =
        |name: &str| ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].iter().any(|p| Path::new(p).join(name).is_file());
    let missing = if !open("/dev/fuse") {
        "/dev/fuse cannot be opened: load the module fuse, or give the container the device".to_owned()
    } else if !open("/dev/loop-control") {
        "/dev/loop-control cannot be opened: loop devices need root and the module loop".to_owned()
    } else if let Some(name) = [kind.make[0], kind.check[0]].into_iter().find(|name| !program(name)) {
        format!("{name} is not installed: install the package {}", kind.package)
    } else if let Err(error) = take_own_mounts() {
        format!("mounts of one's own are not permitted ({error}): they need root")
    } else {
        return true;
    };
    assert!(std::env::var_os(NO_TOOLS).is_some(), "{missing}; set {NO_TOOLS} to skip what needs it");
    eprintln!("skipped: {missing}");
    false
}

/// Gives this test's thread, and all that it starts, mounts of their own: whoever copies the system's mounts meanwhile (a container
/// that is started) would keep ours in use, and a test that fails cannot leave any behind.
fn take_own_mounts() -> nix::Result<()> {
    let flags = nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE;
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
    nix::mount::mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)
}

/// Where everything is.
struct Place {
    dir: TempDir,
}

/// A served, mounted, looped array, and the file system on it. Taken down in this order, also when a test fails.
struct Disk<'a> {
    kind: &'a Kind,
    files: Option<Mounted>,
    device: Option<Loop>,
    array: Mounted,
    daemon: Option<Daemon>,
}

struct Mounted(PathBuf);

struct Loop(PathBuf);

fn live(kind: &Kind) -> Result<()> {
    let place = Place::new()?;
    place.create()?;
    let tree = place.tree()?;

    let mut disk = place.disk(kind, &[], &[])?;
    disk.make()?;
    unpack(&tree, &disk.mount("rw")?).context("unpacking")?;
    let sums = sums_of(&tree)?;
    disk.stop()?;

    for lost in [[0, 1], [2, 5], [3, 4]] {
        let mut disk = place.disk(kind, &lost, &["--run", "--readonly"])?;
        ensure!(sums_of(&disk.mount(kind.look)?)? == sums, "without {lost:?} files read differently");
        disk.check()?;
        disk.stop()?;
    }

    let disk = place.disk(kind, &[], &[])?;
    let synced = disk.killed_while_writing(&place.dir("files"))?;
    ensure!(synced >= ENOUGH, "writing failed after {synced} files, before the process was killed");
    println!("{}: {synced} files were synced when the process was killed", kind.name);

    let refused =
        place.disk(kind, &[1, 4], &["--run"]).err().context("a dirty array without two members was started")?;
    let told = format!("{refused:#}");
    ensure!(told.contains("not started") && told.contains("--force"), "the refusal says: {told}");

    let mut disk = place.disk(kind, &[], &[])?;
    // Mounting replays the journal.
    let files = disk.mount("rw")?;
    check_synced(&files, synced)?;
    fs::remove_dir_all(files.join(WRITTEN))?;
    ensure!(sums_of(&files)? == sums, "after the process was killed, files read differently");
    disk.unmount()?;
    disk.check()?;
    let synced = program::run(&place.dir("run"), ["wait", "md0"])?;
    ensure!(synced.status.success(), "raidus wait: {}", String::from_utf8_lossy(&synced.stderr));
    disk.stop()?;

    // The resync is done: now two members may be lost.
    let mut disk = place.disk(kind, &[1, 4], &["--run", "--readonly"])?;
    ensure!(sums_of(&disk.mount(kind.look)?)? == sums, "after the resync, files read differently without two members");
    disk.check()?;
    disk.stop()
}

impl Place {
    fn new() -> Result<Place> {
        let dir = tempfile::Builder::new().prefix("raidus-filesystem").tempdir()?;
        for name in ["run", "array", "files", "tree"] {
            fs::create_dir(dir.path().join(name))?;
        }
        Ok(Place { dir })
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn members(&self, without: &[usize]) -> Vec<PathBuf> {
        (0..MEMBERS).filter(|n| !without.contains(n)).map(|n| self.dir(&format!("member{n}"))).collect()
    }

    fn create(&self) -> Result<()> {
        let count = format!("--raid-devices={MEMBERS}");
        let size = format!("--image-size={MEMBER_SIZE}");
        let words = ["create", "--level=6", "--chunk=64", "--assume-clean", &count, &size].map(OsStr::new);
        let members = self.members(&[]);
        let words = words.into_iter().chain(members.iter().map(|m| m.as_os_str()));
        let made = program::run(&self.dir("run"), words)?;
        ensure!(made.status.success(), "raidus create: {}", String::from_utf8_lossy(&made.stderr));
        Ok(())
    }

    /// Files as they are found on machines: the C headers, and some with content that cannot be mistaken for other content.
    fn tree(&self) -> Result<PathBuf> {
        let tree = self.dir("tree");
        let mut rng = Rng(6);
        for n in 0..400 {
            let dir = tree.join(format!("{}/{}", n % 7, n % 31));
            fs::create_dir_all(&dir)?;
            let mut bytes = vec![0; 1 + rng.below([100, 5000, 60_000, 400_000][n % 4]) as usize];
            rng.fill(&mut bytes);
            fs::write(dir.join(format!("file {n}")), &bytes)?;
            if n % 10 == 0 {
                std::os::unix::fs::symlink(format!("file {n}"), dir.join(format!("link {n}")))?;
                fs::hard_link(dir.join(format!("file {n}")), dir.join(format!("also {n}")))?;
            }
        }
        if Path::new("/usr/include").is_dir() {
            run(Command::new("cp").args(["-a", "/usr/include"]).arg(&tree))?;
        }
        Ok(tree)
    }

    /// Runs the array without some members, in a process of its own, and gives it a loop device.
    fn disk<'a>(&self, kind: &'a Kind, without: &[usize], words: &[&str]) -> Result<Disk<'a>> {
        let array = Mounted(self.dir("array"));
        let mut mount = std::ffi::OsString::from("--mount=");
        mount.push(&array.0);
        let words = [OsStr::new("--as=md0"), &mount].into_iter().chain(words.iter().map(OsStr::new));
        let members = self.members(without);
        let daemon = Daemon::serve(&self.dir("run"), words.chain(members.iter().map(|m| m.as_os_str())))?;
        let mut disk = Disk { kind, files: None, device: None, array, daemon: Some(daemon) };
        let args = ["--direct-io=on", "--find", "--show"].map(OsStr::new);
        let file = disk.array.0.join("md0");
        let name = run(Command::new("losetup").args(args).arg(file))?;
        disk.device = Some(Loop(name.trim_end().into()));
        Ok(disk)
    }
}

/// Where files are written while the process is killed.
const WRITTEN: &str = "written";

impl Disk<'_> {
    fn device(&self) -> Result<&Path> {
        self.device.as_ref().map(|device| device.0.as_path()).context("no loop device")
    }

    fn make(&self) -> Result<()> {
        run(Command::new(self.kind.make[0]).args(&self.kind.make[1..]).arg(self.device()?)).map(|_| ())
    }

    /// Looks at the file system while it is not mounted for writing.
    fn check(&mut self) -> Result<()> {
        self.unmount()?;
        run(Command::new(self.kind.check[0]).args(&self.kind.check[1..]).arg(self.device()?)).map(|_| ())
    }

    /// Mounts the file system beside the array.
    fn mount(&mut self, options: &str) -> Result<PathBuf> {
        let dir = self.array.0.with_file_name("files");
        run(Command::new("mount").args(["-t", self.kind.name, "-o", options]).arg(self.device()?).arg(&dir))?;
        self.files = Some(Mounted(dir.clone()));
        Ok(dir)
    }

    fn unmount(&mut self) -> Result<()> {
        self.files.take().map_or(Ok(()), Mounted::unmount)
    }

    /// Takes all down in order.
    fn stop(mut self) -> Result<()> {
        self.unmount()?;
        self.device.take().map_or(Ok(()), Loop::detach)?;
        self.daemon.take().map_or(Ok(()), Daemon::stop)?;
        ensure!(!is_mounted(&self.array.0)?, "the array stopped, but is still mounted");
        Ok(())
    }

    /// Writes files and kills the process meanwhile. Returns how many files were synced before.
    fn killed_while_writing(mut self, files: &Path) -> Result<u64> {
        self.mount("rw")?;
        let dir = files.join(WRITTEN);
        fs::create_dir(&dir)?;
        let synced = AtomicU64::new(0);
        let (report, enough) = channel();
        let daemon = self.daemon.take().context("no process")?;
        let written = std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_until_it_fails(&dir, &synced, report));
            // In the background, and never synced: there is always something under way.
            scope.spawn(|| fill_until_it_fails(&files.join("filler")));
            // Or it failed, which shows below.
            let _ = enough.recv();
            let killed = daemon.kill();
            let written = writer.join().expect("the writer does not panic");
            killed.map(|()| written)
        })?;
        println!("writing ended with: {written}");
        self.unmount()?;
        self.device.take().map_or(Ok(()), Loop::detach)?;
        Ok(synced.load(Ordering::Acquire))
    }
}

/// Files that are synced before the process is killed, at least.
const ENOUGH: u64 = 40;

/// Writes and syncs files with known content until the disk is gone. Reports once there are enough of them.
fn write_until_it_fails(dir: &Path, synced: &AtomicU64, enough: Sender<()>) -> std::io::Error {
    for n in 0.. {
        let written = (|| {
            let mut file = File::create(dir.join(n.to_string()))?;
            file.write_all(&content(n))?;
            file.sync_all()?;
            // Its name too.
            File::open(dir)?.sync_all()
        })();
        match written {
            Ok(()) => synced.store(n + 1, Ordering::Release),
            Err(error) => return error,
        }
        if n + 1 == ENOUGH {
            // Nobody listens any more once the process is killed.
            let _ = enough.send(());
        }
    }
    unreachable!("there is no last number")
}

fn fill_until_it_fails(path: &Path) {
    let Ok(mut file) = File::create(path) else { return };
    let mut bytes = vec![0; 256 << 10];
    Rng(1).fill(&mut bytes);
    // Round and round in 64 MiB, so that the disk does not fill up.
    for n in 0u64.. {
        let result = std::io::Seek::seek(&mut file, std::io::SeekFrom::Start((n % 256) << 18))
            .and_then(|_| file.write_all(&bytes))
            .and_then(|()| if n % 16 == 0 { file.sync_data() } else { Ok(()) });
        if result.is_err() {
            return;
        }
    }
}

fn content(n: u64) -> Vec<u8> {
    let mut rng = Rng(n);
    let mut bytes = vec![0; 1 + rng.below(50_000) as usize];
    rng.fill(&mut bytes);
    bytes
}

fn check_synced(files: &Path, synced: u64) -> Result<()> {
    for n in 0..synced {
        let found = fs::read(files.join(WRITTEN).join(n.to_string()));
        ensure!(found.with_context(|| format!("synced file {n} is gone"))? == content(n), "synced file {n} differs");
    }
    // Of these nothing was promised.
    fs::remove_file(files.join("filler")).context("the file that was created first is gone")
}

/// Copies a tree as an archive.
fn unpack(tree: &Path, to: &Path) -> Result<()> {
    run(Command::new("sh").arg("-c").arg("tar -C \"$1\" -cf - . | tar -C \"$2\" -xf -").arg("sh").arg(tree).arg(to))?;
    run(Command::new("sync").arg("--file-system").arg(to)).map(|_| ())
}

/// Digests of all files of a tree, by name, and where its links lead; what the file system itself makes is left out.
fn sums_of(tree: &Path) -> Result<String> {
    const SCRIPT: &str = "find . -name lost+found -prune -o -type f -print0 | sort -z | xargs -0 sha256sum &&
        find . -type l -printf '%p -> %l\\n' | sort";
    run(Command::new("sh").args(["-ec", SCRIPT]).current_dir(tree))
}

fn is_mounted(dir: &Path) -> Result<bool> {
    let dir = fs::canonicalize(dir)?;
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo")?;
    Ok(mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|place| Path::new(place) == dir)))
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{command:?} ended with {}:\n{out}\n{err}", output.status);
    Ok(out.into_owned())
}

impl Mounted {
    fn unmount(self) -> Result<()> {
        run(Command::new("umount").arg(&self.0))?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // It may not be mounted, or the process behind it may be gone.
        let _ = Command::new("umount").args(["--lazy", "--quiet"]).arg(&self.0).output();
    }
}

impl Loop {
    fn detach(self) -> Result<()> {
        run(Command::new("losetup").arg("--detach").arg(&self.0))?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).output();
    }
}
