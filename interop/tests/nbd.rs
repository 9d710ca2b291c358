//! The kernel's own NBD client uses arrays that raidus serves: a file system is made, filled, checked and read back through
//! `/dev/nbd0`; afterwards the kernel's md assembles the members and finds the same files, and redundancy right.
//!
//! The client's requests are not those of any test suite: long writes in several pieces, flushes, FUA from the journal, discards
//! from mkfs, several connections at once.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use interop::Guest;
use interop::program::{self, Daemon};

/// Set to skip, with a word, what this machine cannot do.
const NO_TOOLS: &str = "RAIDUS_TEST_NO_TOOLS";

/// Programs the guest's network needs, with their packages.
const NEEDS: [(&str, &str); 4] = [
    ("/usr/sbin/nbd-client", "nbd-client"),
    ("/usr/bin/socat", "socat"),
    ("/usr/sbin/ip", "iproute2"),
    ("/usr/sbin/mkfs.ext4", "e2fsprogs"),
];

/// Makes a file system on `$dev` and fills it; all sums go to `/sums` on it.
const FILL: &str = r#"
set -e
mkfs.ext4 -q -E discard $dev
mount -o discard $dev /mnt
mkdir /mnt/files
cd /mnt/files
dd if=/dev/urandom of=large bs=1M count=12 status=none
dd if=large of=direct bs=64K count=40 skip=5 oflag=direct status=none
dd if=large of=synced bs=3000 count=20 oflag=dsync status=none
for n in $(seq 40); do head -c $((n * n * 97)) large > small$n; done
dd if=/dev/zero of=gone bs=1M count=8 status=none; sync; rm gone; fstrim /mnt
sha256sum * > ../sums
cd /
umount /mnt
"#;

/// Reads all of it.
const VERIFY: &str = r#"
set -e
fsck.ext4 -f -n $dev
mount -o ro $dev /mnt
(cd /mnt/files && sha256sum --quiet -c ../sums)
report files "$(ls /mnt/files | wc -l)"
umount /mnt
"#;

#[test]
fn the_kernels_client_uses_a_raid5_over_a_unix_socket() {
    exercise(&Setup { level: 5, members: 4, without: &[], serve: &[], attach: "-N md0" });
}

#[test]
fn the_kernels_client_uses_a_degraded_raid6_over_tcp_and_several_connections() {
    exercise(&Setup {
        level: 6,
        members: 5,
        without: &[3],
        serve: &["--run", "--tcp=127.0.0.1:0"],
        attach: "-N md0 -C 3 -b 4096",
    });
}

struct Setup<'a> {
    level: u32,
    members: usize,
    without: &'a [usize],
    serve: &'a [&'a str],
    attach: &'a str,
}

fn exercise(setup: &Setup<'_>) {
    let missing = NEEDS.iter().find(|(path, _)| !Path::new(path).exists());
    let tun = std::fs::File::options().read(true).write(true).open("/dev/net/tun");
    let why = match (missing, tun) {
        (Some((path, package)), _) => format!("{path} is not there: install the package {package}"),
        (None, Err(e)) => {
            format!("/dev/net/tun cannot be opened ({e}): the guest's network needs root and the module tun")
        }
        (None, Ok(_)) => return run(setup).unwrap_or_else(|e| panic!("{e:#}")),
    };
    assert!(std::env::var_os(NO_TOOLS).is_some(), "{why}; set {NO_TOOLS} to skip what needs it");
    eprintln!("skipped: {why}");
}

fn run(setup: &Setup<'_>) -> Result<()> {
    let dir = tempfile::Builder::new().prefix("raidus-nbd").tempdir()?;
    let run_dir = dir.path().join("run");
    std::fs::create_dir(&run_dir)?;
    let all: Vec<PathBuf> = (0..setup.members).map(|n| dir.path().join(format!("member{n}"))).collect();
    create(setup, &run_dir, &all)?;
    let members: Vec<&PathBuf> = (0..).zip(&all).filter(|(n, _)| !setup.without.contains(n)).map(|(_, m)| m).collect();

    let words = ["--as=md0"].iter().chain(setup.serve).map(OsStr::new);
    let daemon = Daemon::serve(&run_dir, words.chain(members.iter().map(|m| m.as_os_str())))?;
    let address = format!("0={}", daemon.nbd()?);
    let attach = setup.attach;
    let client = Guest::new::<PathBuf>(&[]).option("--nbd").option(&address);
    let script = format!("dev=/dev/nbd0\nnbd-attach 0 {attach} || exit 1\n{FILL}{VERIFY}nbd-client -d /dev/nbd0\n");
    client.run(&script)?.expect_success().context("over NBD")?;
    daemon.stop()?;

    let assemble = "dev=/dev/md0\nmdadm --assemble $dev --run $DISKS || exit 1\n";
    let check = format!("{assemble}{VERIFY}check md0\nmdadm --stop $dev\n");
    let judged = Guest::new(&members).run(&check)?.expect_success().context("on the members")?;
    ensure!(judged.report("files")? == "43", "files are missing:\n{}", judged.output);
    ensure!(judged.report("md0.mismatch_cnt")? == "0", "redundancy is wrong:\n{}", judged.output);
    Ok(())
}

fn create(setup: &Setup<'_>, run_dir: &Path, members: &[PathBuf]) -> Result<()> {
    let (level, count) = (format!("--level={}", setup.level), format!("--raid-devices={}", setup.members));
    let words = ["create", "--chunk=64", "--assume-clean", "--image-size=64M", &level, &count].map(OsStr::new);
    let made = program::run(run_dir, words.into_iter().chain(members.iter().map(|m| m.as_os_str())))?;
    ensure!(made.status.success(), "raidus create: {}", String::from_utf8_lossy(&made.stderr));
    Ok(())
}
