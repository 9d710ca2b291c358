//! Who uses a device: the kernel's own users from /sys and /proc, and processes that have it open. Only for error messages and
//! for refusing what would do harm; what cannot be found out is left out.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Access, Identity};

/// Users inside the kernel that conflict with `access`, in words.
pub(crate) fn kernel_users(identity: Identity, access: Access) -> Vec<String> {
    match identity {
        Identity::Device(major, minor) => {
            let mut users = block_users(Path::new("/sys/dev/block").join(format!("{major}:{minor}")), "");
            users.extend(partition_users(major, minor));
            users
        }
        Identity::Inode(..) => loop_users(identity, access),
    }
}

/// Everyone who uses it, or `otherwise` if nobody can be named.
pub(crate) fn describe(identity: Identity, otherwise: &str) -> String {
    let mut users = kernel_users(identity, Access::ReadWrite);
    users.extend(processes(identity));
    if users.is_empty() { otherwise.to_owned() } else { users.join(", ") }
}

/// Devices stacked on it, mounts and swap.
fn block_users(sys: PathBuf, prefix: &str) -> Vec<String> {
    let mut users: Vec<String> = names_in(&sys.join("holders"))
        .into_iter()
        .map(|holder| {
            let kind = if holder.starts_with("md") { "array" } else { "device" };
            format!("{prefix}{kind} {holder}")
        })
        .collect();
    let Ok(number) = fs::read_to_string(sys.join("dev")) else { return users };
    let number = number.trim();
    users.extend(mounts(number).into_iter().map(|at| format!("{prefix}the file system mounted on {at}")));
    users.extend(swaps(number).into_iter().map(|_| format!("{prefix}swap")));
    users
}

fn partition_users(major: u32, minor: u32) -> Vec<String> {
    let sys = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
    names_in(&sys)
        .into_iter()
        .filter(|name| sys.join(name).join("partition").exists())
        .flat_map(|name| block_users(sys.join(&name), &format!("(partition {name}) ")))
        .collect()
}

/// Mount points of the device with this `major:minor`.
fn mounts(number: &str) -> Vec<String> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let device = fields.nth(2)?;
            (device == number).then(|| fields.nth(1).map(str::to_owned))?
        })
        .collect()
}

fn swaps(number: &str) -> Vec<String> {
    let text = fs::read_to_string("/proc/swaps").unwrap_or_default();
    text.lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .filter(|path| fs::metadata(path).is_ok_and(|m| number_of(m.rdev()) == number))
        .map(str::to_owned)
        .collect()
}

fn number_of(device: u64) -> String {
    format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
}

/// Loop devices over the file. A read-only one does not disturb a reader.
fn loop_users(identity: Identity, access: Access) -> Vec<String> {
    names_in(Path::new("/sys/block"))
        .into_iter()
        .filter(|name| name.starts_with("loop"))
        .filter(|name| {
            let sys = Path::new("/sys/block").join(name);
            let Ok(backing) = fs::read_to_string(sys.join("loop/backing_file")) else { return false };
            let read_only = fs::read_to_string(sys.join("ro")).is_ok_and(|ro| ro.trim() == "1");
            same_file(Path::new(backing.trim_end_matches('\n')), identity)
                && (access == Access::ReadWrite || !read_only)
        })
        .map(|name| format!("loop device /dev/{name}"))
        .collect()
}

fn same_file(path: &Path, identity: Identity) -> bool {
    fs::metadata(path).is_ok_and(|m| match identity {
        Identity::Inode(device, inode) => m.dev() == device && m.ino() == inode,
        Identity::Device(major, minor) => {
            use std::os::unix::fs::FileTypeExt;
            m.file_type().is_block_device()
                && (rustix::fs::major(m.rdev()), rustix::fs::minor(m.rdev())) == (major, minor)
        }
    })
}

/// Whether anybody has it open beside the caller, who has it open once.
pub(crate) fn others_have_it_open(identity: Identity) -> bool {
    let own = std::process::id().to_string();
    let mut times = pids().into_iter().map(|pid| (times_open(&pid, identity), pid == own));
    times.any(|(times, own)| times > usize::from(own))
}

/// Processes that have it open, as far as this user may see.
fn processes(identity: Identity) -> Vec<String> {
    let own = std::process::id().to_string();
    let mut users = Vec::new();
    for pid in pids() {
        let process = Path::new("/proc").join(&pid);
        // This process looks at what it has just opened; it is a user if it did so twice.
        if times_open(&pid, identity) > usize::from(pid == own) {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            users.push(format!("process {pid} ({})", name.trim()));
        }
    }
    users
}

/// The numbers of all processes.
fn pids() -> Vec<String> {
    names_in(Path::new("/proc")).into_iter().filter(|n| n.bytes().all(|b| b.is_ascii_digit())).collect()
}

fn times_open(pid: &str, identity: Identity) -> usize {
    let descriptors = Path::new("/proc").join(pid).join("fd");
    names_in(&descriptors).iter().filter(|fd| same_file(&descriptors.join(fd), identity)).count()
}

/// Names in a directory, sorted; none if it cannot be read.
fn names_in(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<String> = entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}
