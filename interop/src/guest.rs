//! A script run as root on the real kernel, with image files as disks.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// What the guest needs on this machine: a program and the Debian package it comes from.
const NEEDS: [(&str, &str); 3] =
    [("/usr/bin/linux.uml", "user-mode-linux"), ("/sbin/mdadm", "mdadm"), ("/sbin/modprobe", "kmod")];

/// Functions every script may use. `report KEY VALUE` hands a value to the test. Starting a process takes longer here than most of what
/// is to be done, so these start as few as they can.
const PRELUDE: &str = r#"
exec {NAP}<> <(:)
# Runs into its time limit, which is no failure.
nap() { read -rt 0.05 -u $NAP || :; }
report() { echo "@$1=$2"; }
# KEY FILE: the first line of a file, nothing if there is none.
report_file() { local line=; { read -r line < "$2"; } 2>/dev/null; report $1 "$line"; }
# Sums of the array's content, read from its members and not from the page cache.
sum() { dd if="$1" bs=1M iflag=direct status=none | sha256sum | cut -d' ' -f1; }
# KEY DEVICE
report_sum() {
  local line=
  echo 1 > /proc/sys/vm/drop_caches
  sha256sum "$2" > /tmp/sum && read -r line _ < /tmp/sum
  report $1 "$line"
}
settle() {  # MD: waits until nothing is being synced
  local i=0 action=
  [ -e /sys/block/$1/md/sync_action ] || return 0  # levels without redundancy
  while read -r action < /sys/block/$1/md/sync_action && [ "$action" != idle ] && [ $i -lt 1200 ]; do nap; i=$((i+1)); done
}
# MD: runs a check and reports what it found.
check() {
  local level=
  settle $1
  read -r level < /sys/block/$1/md/level
  case $level in raid0|linear) report $1.mismatch_cnt 0; return;; esac
  echo check > /sys/block/$1/md/sync_action || return
  settle $1
  report_file $1.mismatch_cnt /sys/block/$1/md/mismatch_cnt
}
"#;

/// A run of the real kernel.
#[derive(Debug)]
pub struct Guest {
    disks: Vec<PathBuf>,
    options: Vec<String>,
}

/// How a guest's script ended.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status of the script; 137 if the plug was pulled.
    pub status: i32,
    /// What it printed.
    pub output: String,
    /// What it reported, by key.
    pub reports: BTreeMap<String, String>,
}

impl Guest {
    /// A guest with these images as `/dev/disk0`, `/dev/disk1`, … (16 at most).
    pub fn new<P: AsRef<Path>>(disks: &[P]) -> Guest {
        Guest { disks: disks.iter().map(|d| d.as_ref().to_owned()).collect(), options: Vec::new() }
    }

    /// Adds an option of the `real-md` script.
    #[must_use]
    pub fn option(mut self, option: &str) -> Guest {
        self.options.push(option.to_owned());
        self
    }

    /// Boots, runs the script under bash, and waits for its end. An error means that the guest itself did not work.
    pub fn run(&self, script: &str) -> Result<Outcome> {
        for (program, package) in NEEDS {
            if !Path::new(program).exists() {
                bail!("{program} is not there: install the Debian package {package}");
            }
        }
        let harness = Path::new(env!("CARGO_MANIFEST_DIR")).join("real-md");
        let mut child = Command::new(&harness)
            .args(["--merge", "--timeout", "600"])
            .args(&self.options)
            .args(&self.disks)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", harness.display()))?;
        let mut stdin = child.stdin.take().context("no stdin")?;
        stdin.write_all(PRELUDE.as_bytes())?;
        stdin.write_all(script.as_bytes())?;
        drop(stdin);
        let ended = child.wait_with_output()?;
        let status = ended.status.code().unwrap_or(-1);
        let output = String::from_utf8_lossy(&ended.stdout).into_owned();
        if matches!(status, 124..=126) {
            bail!("the guest failed ({status}): {}\n{output}", String::from_utf8_lossy(&ended.stderr));
        }
        let reports = output
            .lines()
            .filter_map(|line| line.trim_end().strip_prefix('@')?.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        Ok(Outcome { status, output, reports })
    }
}

/// Script that makes `/dev/mapper/slowN` of `/dev/diskN`: every write takes so much longer. Needs the module `dm-delay`.
pub fn slow(disk: usize, mib: u64, write_ms: u64) -> String {
    let sectors = mib * 2048;
    format!(
        "dmsetup create --noudevsync --noudevrules slow{disk} --table '0 {sectors} delay /dev/disk{disk} 0 0 /dev/disk{disk} 0 {write_ms}' \
         && dmsetup mknodes slow{disk} || exit 9\n"
    )
}

impl Outcome {
    /// What was reported under a key.
    pub fn report(&self, key: &str) -> Result<&str> {
        let value = self.reports.get(key).map(String::as_str);
        value.with_context(|| format!("the guest reported no '{key}':\n{}", self.output))
    }

    /// Fails with the script's output unless it ended well.
    pub fn expect_success(self) -> Result<Outcome> {
        if self.status != 0 {
            bail!("the guest's script ended with {}:\n{}", self.status, self.output);
        }
        Ok(self)
    }
}
