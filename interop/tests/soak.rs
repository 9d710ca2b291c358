//! Clients write and verify over NBD while members fail, are removed, come back, are replaced and scrubbed, on every redundant
//! level; then the kernel finds the array in order. Longer runs: `RAIDUS_SOAK_SECONDS=120`, for each level; `RAIDUS_SOAK_LEVELS=raid6,raid10` for
//! those only.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use interop::program::{self, Daemon};
use interop::{Exhibit, New, Raidus, Rng, judge, new_arrays};
use raidus_units::Level;

const NAME: &str = "soak";

/// How long clients write to each array.
fn seconds() -> u64 {
    std::env::var("RAIDUS_SOAK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(6)
}

/// Those that were asked for.
fn wanted() -> Vec<New> {
    let Ok(levels) = std::env::var("RAIDUS_SOAK_LEVELS") else { return arrays().to_vec() };
    let levels: Vec<&str> = levels.split(',').collect();
    arrays().into_iter().filter(|new| levels.contains(&new.level.to_string().as_str())).collect()
}

fn arrays() -> [New; 5] {
    let base = New { bitmap: true, assume_clean: false, mib: 24, ..new_arrays()[1] };
    [
        New { level: Level::Raid1, n: 3, ..base },
        New { level: Level::Raid4, n: 4, bitmap: false, ..base },
        New { level: Level::Raid5, n: 4, ..base },
        New { level: Level::Raid6, n: 5, ..base },
        New { level: Level::Raid10, n: 4, bitmap: false, ..base },
    ]
}

#[test]
fn members_come_and_go_under_load() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut exhibits = Vec::new();
    assert!(!wanted().is_empty(), "none of the levels in RAIDUS_SOAK_LEVELS is one that soaks");
    for (n, new) in wanted().iter().enumerate() {
        let soaked = soak(new, &dir.path().join(new.name()), n as u64).with_context(|| new.name());
        exhibits.push(soaked.unwrap_or_else(|e| panic!("{e:#}")));
    }
    for judgement in judge(&exhibits).unwrap_or_else(|e| panic!("{e:#}")) {
        assert_eq!(judgement.degraded, "0", "{}", judgement.name);
    }
}

struct Soak {
    dir: PathBuf,
    members: Vec<PathBuf>,
    rng: Rng,
    /// What was done.
    lives: [u32; 4],
}

fn soak(new: &New, dir: &Path, seed: u64) -> Result<Exhibit> {
    let mut rng = Rng(seed + 400);
    let members = new.create(dir, &mut rng)?;
    let mut words: Vec<PathBuf> = ["--as", NAME, "--threads", "2"].iter().map(PathBuf::from).collect();
    words.extend(members.clone());
    let daemon = Daemon::serve(dir, words)?;
    let uri = daemon.nbd()?.replace("unix:", "nbd+unix:///?socket=");
    let mut fio = fio(dir, &uri)?;
    let mut soak = Soak { dir: dir.to_owned(), members, rng, lives: [0; 4] };
    // Clients never pause here; at md's floor of 1 MB/s nothing would come to its end.
    soak.say(&["set", NAME, "sync_speed_min", "200000"])?;
    while fio.try_wait()?.is_none() {
        soak.live()?;
    }
    let out = fio.wait_with_output()?;
    ensure!(out.status.success(), "fio: {}{}", text(&out.stdout), text(&out.stderr));
    soak.say(&["wait", NAME])?;
    println!(
        "{}: fail and add {}, fail and re-add {}, replace {}, scrub {}",
        new.name(),
        soak.lives[0],
        soak.lives[1],
        soak.lives[2],
        soak.lives[3]
    );
    ensure!(soak.lives.iter().any(|n| *n > 0), "nothing happened to any member");
    daemon.stop()?;
    let sum = Raidus::look(&soak.members)?.sum();
    let (name, images) = (new.name(), soak.members);
    Ok(Exhibit { name, images, sum, clean: true, then: String::new(), assemble: String::new() })
}

impl Soak {
    /// One thing that happens to members.
    fn live(&mut self) -> Result<()> {
        self.say(&["wait", NAME])?;
        let which = self.rng.below(self.members.len() as u64) as usize;
        let member = self.members[which].display().to_string();
        let what = self.rng.below(4) as usize;
        match what {
            0 => {
                self.say(&["fail", NAME, &member])?;
                self.say(&["remove", NAME, &member])?;
                let new = self.blank()?;
                self.say(&["add", NAME, &new.display().to_string()])?;
                std::fs::remove_file(&self.members[which])?;
                self.members[which] = new;
            }
            1 => {
                self.say(&["fail", NAME, &member])?;
                std::thread::sleep(std::time::Duration::from_millis(300));
                self.say(&["remove", NAME, &member])?;
                self.say(&["add", NAME, &member])?;
            }
            2 => {
                let new = self.blank()?;
                self.say(&["add", NAME, &new.display().to_string()])?;
                self.say(&["replace", NAME, &member])?;
                self.say(&["wait", NAME])?;
                self.say(&["remove", NAME, &member])?;
                std::fs::remove_file(&self.members[which])?;
                self.members[which] = new;
            }
            _ => {
                self.say(&["scrub", NAME, "check", "--wait"])?;
                let found = self.say(&["get", NAME, "mismatch_cnt"])?;
                ensure!(found.trim() == "0", "a check found {found}");
            }
        }
        self.lives[what] += 1;
        Ok(())
    }

    /// A new device of the members' size.
    fn blank(&mut self) -> Result<PathBuf> {
        let path = self.dir.join(format!("new{}", self.rng.bits()));
        let size = std::fs::metadata(&self.members[0])?.len();
        std::fs::File::create(&path)?.set_len(size)?;
        Ok(path)
    }

    fn say(&self, words: &[&str]) -> Result<String> {
        let out = program::run(&self.dir, words)?;
        ensure!(out.status.success(), "raidus {}: {}", words.join(" "), text(&out.stderr));
        Ok(text(&out.stdout))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Random writes of many sizes, each read back and compared.
fn fio(dir: &Path, uri: &str) -> Result<Child> {
    let child = Command::new("fio")
        // It leaves files where it runs.
        .current_dir(dir)
        .args(["--name=soak", "--ioengine=nbd", "--rw=randrw", "--rwmixread=30", "--bsrange=4k-96k", "--iodepth=8"])
        .args(["--verify=crc32c", "--verify_backlog=256", "--verify_fatal=1", "--time_based", "--size=24m"])
        .arg(format!("--runtime={}", seconds()))
        .arg(format!("--uri={uri}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    child.context("cannot run fio: install the package fio")
}
