//! A life of an array under the raidus program: members fail, leave, join, come back and are replaced while clients write. In the
//! end the real kernel assembles it, has nothing to do, finds the content right and no mismatch.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use interop::program::{Daemon, program};
use interop::{Content, Exhibit, judge, said, scratch, sum};

/// An array to live.
struct Life {
    level: &'static str,
    slots: usize,
    metadata: &'static str,
    bitmap: bool,
}

const LIVES: [Life; 7] = [
    Life { level: "5", slots: 3, metadata: "1.2", bitmap: true },
    Life { level: "5", slots: 4, metadata: "0.90", bitmap: false },
    Life { level: "6", slots: 5, metadata: "1.0", bitmap: true },
    Life { level: "1", slots: 2, metadata: "0.90", bitmap: true },
    Life { level: "1", slots: 3, metadata: "1.1", bitmap: false },
    Life { level: "10", slots: 4, metadata: "1.1", bitmap: true },
    Life { level: "10", slots: 3, metadata: "1.0", bitmap: false },
];

#[test]
fn the_kernel_takes_arrays_that_lived_under_raidus() {
    let dir = scratch();
    let mut exhibits = Vec::new();
    for (seed, life) in (1..).zip(&LIVES) {
        let dir = dir.path().join(life.name());
        exhibits.push(life.live(&dir, seed).unwrap_or_else(|e| panic!("{}: {e:#}", life.name())));
    }
    for judgement in judge(&exhibits).unwrap_or_else(|e| panic!("{e:#}")) {
        let found = (judgement.degraded.as_str(), judgement.sync_action.as_str());
        assert_eq!(found, ("0", "idle"), "{}: the kernel still has something to do", judgement.name);
    }
}

impl Life {
    fn name(&self) -> String {
        format!("raid{}-{}-n{}-{}", self.level, self.metadata, self.slots, self.bitmap)
    }

    fn live(&self, dir: &Path, seed: u64) -> Result<Exhibit> {
        let home = Home::new(dir, seed)?;
        let mut members: Vec<String> = (0..self.slots).map(|i| format!("d{i}")).collect();
        let mut words = vec!["create", "--image-size=32M", "-l", self.level, "-e", self.metadata];
        let slots = self.slots.to_string();
        words.extend(["-n", &slots, if self.bitmap { "--bitmap=internal" } else { "--bitmap=none" }]);
        if self.bitmap {
            words.push("--bitmap-chunk=64");
        }
        if self.level != "1" {
            words.push("--chunk=64");
        }
        words.extend(members.iter().map(String::as_str));
        home.ok(&words)?;
        for spare in ["x0", "x1"] {
            std::fs::File::create(dir.join(spare))?.set_len(32 << 20)?;
        }

        let paths: Vec<PathBuf> = members.iter().map(|m| dir.join(m)).collect();
        let daemon = Daemon::serve(&home.run, ["--as=md0".into()].into_iter().chain(paths))?;
        let mut content = Content::random(&daemon, seed)?;
        content.write_all(dir)?;
        home.ok(&["wait", "md0"])?;

        // One fails, and another device takes its place.
        home.ok(&["fail", "md0", "d1"])?;
        content.write_some(8)?;
        home.ok(&["remove", "md0", "d1"])?;
        home.ok(&["add", "md0", "x0"])?;
        content.write_some(8)?;
        home.ok(&["wait", "md0"])?;
        members[1] = "x0".to_owned();

        // One is away for a while.
        home.ok(&["fail", "md0", "d0"])?;
        home.ok(&["remove", "md0", "d0"])?;
        content.write_some(8)?;
        home.ok(&[if self.bitmap { "re-add" } else { "add" }, "md0", "d0"])?;
        content.write_some(8)?;
        home.ok(&["wait", "md0"])?;

        // One is replaced; 0.90 cannot say so.
        if self.metadata != "0.90" {
            home.ok(&["add", "md0", "x1"])?;
            home.ok(&["replace", "md0", "d0"])?;
            content.write_some(8)?;
            home.ok(&["wait", "md0"])?;
            home.ok(&["remove", "md0", "failed"])?;
            members[0] = "x1".to_owned();
        }
        let report = home.ok(&["scrub", "md0", "check", "--wait"])?;
        ensure!(report.contains("mismatches: 0 sectors"), "{report}");
        daemon.stop()?;
        Ok(Exhibit {
            name: self.name(),
            images: members.iter().map(|m| dir.join(m)).collect(),
            sum: sum(&content.bytes),
            clean: true,
            then: String::new(),
            assemble: String::new(),
        })
    }
}

/// Where an array lives.
struct Home {
    dir: PathBuf,
    run: PathBuf,
}

impl Home {
    fn new(dir: &Path, seed: u64) -> Result<Home> {
        // Paths of sockets are short.
        let run = dir.parent().context("a place")?.join(format!("r{seed}"));
        std::fs::create_dir_all(dir)?;
        std::fs::create_dir_all(&run)?;
        Ok(Home { dir: dir.to_owned(), run })
    }

    /// Runs the program in the directory of the images; gives what it printed.
    fn ok(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(program()?);
        said(command.args(words).current_dir(&self.dir).env("RAIDUS_RUN_DIR", &self.run))
    }
}
