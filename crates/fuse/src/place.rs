//! The mount point: whether it can be one, and who keeps it from being given up.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::mount::MountError;

/// Who uses a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    /// A loop device is attached to the array's file.
    Loop(PathBuf),
    /// A process has a file open, or is in the directory.
    Process {
        /// Its number.
        pid: u32,
        /// The name of its program.
        name: String,
    },
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            User::Loop(device) => {
                let device = device.display();
                write!(f, "the loop device {device} (unmount what is on it, then: losetup --detach {device})")
            }
            User::Process { pid, name } => write!(f, "{name} (process {pid})"),
        }
    }
}

/// The directory's path without links, if a mount may go there.
pub fn check(dir: &Path) -> Result<PathBuf, MountError> {
    let at = || dir.to_owned();
    let real = dir.canonicalize().map_err(|source| unusable(dir, source))?;
    if !real.is_dir() {
        return Err(MountError::NotADirectory(at()));
    }
    // A mount whose process is gone shows in this.
    let mut entries = fs::read_dir(&real).map_err(|source| unusable(dir, source))?;
    if fuse_mounts().contains(&real) {
        return Err(MountError::AlreadyMounted(at()));
    }
    if entries.next().is_some() { Err(MountError::NotEmpty(at())) } else { Ok(real) }
}

/// Whether the kernel has FUSE for us.
pub fn check_device() -> Result<(), MountError> {
    match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Ok(()),
        Err(source) if source.kind() == ErrorKind::PermissionDenied => Err(MountError::DeviceRefused { source }),
        Err(source) => Err(MountError::NoDevice { source }),
    }
}

/// The file system a path is on.
pub fn device_of(path: &Path) -> io::Result<u64> {
    fs::metadata(path).map(|m| m.dev())
}

fn unusable(dir: &Path, source: io::Error) -> MountError {
    let dir = dir.to_owned();
    match source.kind() {
        ErrorKind::NotFound => MountError::Missing(dir),
        ErrorKind::PermissionDenied => MountError::NotPermitted { dir, why: source.to_string() },
        _ if source.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => MountError::Dead(dir),
        _ => MountError::Place { dir, source },
    }
}

/// Where FUSE file systems are mounted.
fn fuse_mounts() -> Vec<PathBuf> {
    fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default().lines().filter_map(fuse_mount).collect()
}

/// The place of a FUSE mount in a line of mountinfo: the fifth word; the kind follows a lone dash.
fn fuse_mount(line: &str) -> Option<PathBuf> {
    let (before, after) = line.split_once(" - ")?;
    let kind = after.split(' ').next()?;
    let place = before.split(' ').nth(4)?;
    (kind == "fuse" || kind.starts_with("fuse.")).then(|| PathBuf::from(unescape(place)))
}

/// Blanks and backslashes are written as three octal digits there.
fn unescape(word: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(word.to_owned(), |word, (escaped, plain)| word.replace(escaped, plain))
}

/// Who uses files under `dir`, as far as we may see it.
pub fn users(dir: &Path) -> Vec<User> {
    let loops = entries("/sys/block").into_iter().filter_map(|device| {
        let file = fs::read_to_string(device.join("loop/backing_file")).ok()?;
        let name = Path::new("/dev").join(device.file_name()?);
        Path::new(file.trim_end()).starts_with(dir).then_some(User::Loop(name))
    });
    let processes = entries("/proc").into_iter().filter_map(|process| {
        let pid: u32 = process.file_name()?.to_str()?.parse().ok()?;
        let links = entries(process.join("fd")).into_iter().chain([process.join("cwd")]);
        let uses = links.into_iter().any(|link| fs::read_link(link).is_ok_and(|to| to.starts_with(dir)));
        let name = || fs::read_to_string(process.join("comm")).unwrap_or_default().trim_end().to_owned();
        uses.then(|| User::Process { pid, name: name() })
    });
    loops.chain(processes).collect()
}

/// Paths in a directory; none if it cannot be read.
fn entries(dir: impl AsRef<Path>) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuse_mounts_are_told_from_others() {
        let line = |kind: &str| format!("36 35 0:31 / /mnt/a\\040b rw,noatime shared:1 - {kind} raidus rw,user_id=0");
        assert_eq!(fuse_mount(&line("fuse")), Some("/mnt/a b".into()));
        assert_eq!(fuse_mount(&line("fuse.sshfs")), Some("/mnt/a b".into()));
        assert_eq!(fuse_mount(&line("fusectl")), None);
        assert_eq!(fuse_mount(&line("ext4")), None);
        assert_eq!(fuse_mount(""), None);
    }

    #[test]
    fn unusable_places_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        assert!(matches!(check(&file), Err(MountError::Missing(_))));
        fs::write(&file, "").unwrap();
        assert!(matches!(check(&file), Err(MountError::NotADirectory(_))));
        assert!(matches!(check(dir.path()), Err(MountError::NotEmpty(_))));
        fs::remove_file(&file).unwrap();
        assert_eq!(check(dir.path()).unwrap(), dir.path().canonicalize().unwrap());
    }
}
