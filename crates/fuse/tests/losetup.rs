//! A file system on a loop device on an array's file.

mod common;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use common::{Loop, Mounted, Rng, can_mount, run, tool};
use raidus_fuse::{UnmountError, User};
use raidus_units::{Level, Sectors};

/// Some files, small and large.
fn write_files(dir: &Path, seed: u64) {
    let mut rng = Rng(seed);
    for n in 0..60 {
        let place = dir.join(format!("d{}", n % 7));
        fs::create_dir_all(&place).unwrap();
        let mut bytes = vec![0; 1 + rng.below(200_000) as usize];
        rng.fill(&mut bytes);
        fs::File::create(place.join(format!("f{n}"))).unwrap().write_all(&bytes).unwrap();
    }
}

fn sums(dir: &Path) -> String {
    run(Command::new("sh").current_dir(dir).arg("-c"), ["find . -type f -print0 | sort -z | xargs -0 sha256sum"])
}

fn mount_disk(device: &Path, dir: &Path) {
    run(&mut Command::new("mount"), [device, dir]);
}

fn unmount_disk(dir: &Path) {
    run(&mut Command::new("umount"), [dir]);
}

#[test]
fn ext4_lives_on_a_loop_device() {
    let programs = ["mkfs.ext4", "fsck.ext4"].map(|name| tool(name, "e2fsprogs"));
    let [Some(mut mkfs), Some(mut fsck)] = programs else { return };
    if !can_mount() {
        return;
    }
    let mut mounted = Mounted::new(Level::Raid6, 5, Sectors::from_kib(16 << 10));
    let Some(device) = Loop::attach(mounted.mount.file()) else { return };
    assert!(device.is_direct(), "the loop device goes through the page cache");
    run(mkfs.args(["-q", "-F"]), [device.path()]);
    let disk = tempfile::tempdir().unwrap();
    mount_disk(device.path(), disk.path());
    write_files(disk.path(), 1);
    let written = sums(disk.path());
    run(&mut Command::new("fstrim"), [disk.path()]);

    let error = mounted.mount.unmount().unwrap_err();
    let UnmountError::Busy { users, .. } = &error else { panic!("{error:?}") };
    assert_eq!(users, &[User::Loop(device.path().to_owned())]);

    unmount_disk(disk.path());
    run(fsck.args(["-f", "-n"]), [device.path()]);
    mount_disk(device.path(), disk.path());
    assert_eq!(sums(disk.path()), written);
    unmount_disk(disk.path());
    device.detach();
    mounted.stop();
}
