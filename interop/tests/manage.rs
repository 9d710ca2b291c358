//! Arrays whose bitmap came or went, and whose members got flags, while raidus ran them: stopped in order or killed in the middle, the
//! real kernel assembles them, and finds what raidus says. What mdadm's --grow does to a twin is found by raidus.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use interop::program::{Daemon, program};
use interop::{Content, Exhibit, Guest, judge, said, sum};

/// An array that is to change.
#[derive(Clone, Copy)]
struct Array {
    level: &'static str,
    slots: usize,
    metadata: &'static str,
    /// It begins with a bitmap, and is to lose it.
    bitmap: bool,
}

const ARRAYS: [Array; 8] = [
    Array { level: "1", slots: 2, metadata: "1.2", bitmap: false },
    Array { level: "5", slots: 3, metadata: "1.1", bitmap: false },
    Array { level: "6", slots: 4, metadata: "1.0", bitmap: false },
    Array { level: "10", slots: 4, metadata: "1.2", bitmap: false },
    Array { level: "1", slots: 2, metadata: "0.90", bitmap: false },
    Array { level: "5", slots: 3, metadata: "1.2", bitmap: true },
    Array { level: "10", slots: 4, metadata: "1.0", bitmap: true },
    Array { level: "6", slots: 4, metadata: "0.90", bitmap: true },
];

#[test]
fn the_kernel_takes_arrays_whose_bitmap_changed_under_raidus() {
    let dir = tempfile::tempdir().expect("a directory");
    let exhibits = ARRAYS.iter().zip(1..).map(|(array, seed)| {
        let home = Home::new(dir.path(), seed).expect("a place");
        array.change_in_order(&home, seed).unwrap_or_else(|e| panic!("{}: {e:#}", array.name()))
    });
    let exhibits: Vec<Exhibit> = exhibits.collect();
    for judgement in judge(&exhibits).unwrap_or_else(|e| panic!("{e:#}")) {
        let found = (judgement.degraded.as_str(), judgement.sync_action.as_str());
        assert_eq!(found, ("0", "idle"), "{}: the kernel still has something to do", judgement.name);
    }
}

#[test]
fn the_kernel_takes_arrays_killed_while_their_bitmap_changed() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut exhibits = Vec::new();
    for (array, seed) in ARRAYS.iter().zip(100..) {
        let home = Home::new(dir.path(), seed).expect("a place");
        exhibits.push(array.change_and_die(&home, seed).unwrap_or_else(|e| panic!("{}: {e:#}", array.name())));
    }
    judge(&exhibits).unwrap_or_else(|e| panic!("{e:#}"));
}

#[test]
fn raidus_and_mdadm_put_a_bitmap_in_the_same_place() {
    let dir = tempfile::tempdir().expect("a directory");
    for (array, seed) in ARRAYS.iter().filter(|array| !array.bitmap).zip(200..) {
        let home = Home::new(dir.path(), seed).expect("a place");
        array.compare_with_mdadm(&home).unwrap_or_else(|e| panic!("{}: {e:#}", array.name()));
    }
}

impl Array {
    fn name(&self) -> String {
        format!("raid{}-{}-n{}-{}", self.level, self.metadata, self.slots, self.bitmap)
    }

    fn create(&self, home: &Home) -> Result<Vec<PathBuf>> {
        let names: Vec<String> = (0..self.slots).map(|i| format!("d{i}")).collect();
        let slots = self.slots.to_string();
        let mut words =
            vec!["create", "--assume-clean", "--image-size=32M", "-l", self.level, "-e", self.metadata, "-n", &slots];
        words.extend(if self.bitmap { vec!["--bitmap=internal", "--bitmap-chunk=64"] } else { vec!["--bitmap=none"] });
        if self.level != "1" {
            words.push("--chunk=64");
        }
        words.extend(names.iter().map(String::as_str));
        home.ok(&words)?;
        Ok(names.iter().map(|name| home.dir.join(name)).collect())
    }

    fn grow(&self) -> Vec<&'static str> {
        if self.bitmap {
            vec!["grow", "md0", "--bitmap=none"]
        } else {
            vec!["grow", "md0", "--bitmap=internal", "--bitmap-chunk=64K"]
        }
    }

    /// Clients write before, meanwhile and afterwards.
    fn change_in_order(&self, home: &Home, seed: u64) -> Result<Exhibit> {
        let images = self.create(home)?;
        let daemon = Daemon::serve(&home.run, ["--as=md0".into()].into_iter().chain(images.clone()))?;
        let mut content = Content::zeroes(&daemon, seed)?;
        content.write_some(16)?;
        let mut change = Command::new(program()?);
        let change = change.args(self.grow()).current_dir(&home.dir).env("RAIDUS_RUN_DIR", &home.run).spawn()?;
        content.write_some(32)?;
        let status = change.wait_with_output()?.status;
        ensure!(status.success(), "grow ended with {status}");
        content.write_some(16)?;
        let place = home.ok(&["get", "md0", "bitmap/location"])?.trim().to_owned();
        ensure!((place == "none") == self.bitmap, "the bitmap is at {place}");
        home.ok(&["set", "md0", "dev-d1/state", "writemostly"])?;
        daemon.stop()?;
        // What differs from what raidus says spoils the judgement.
        let then = format!(
            r#"[ "$(cat /sys/block/$md/md/bitmap/location)" = "{place}" ] || {{ echo "the bitmap is elsewhere"; exit 1; }}
  grep -q write_mostly /sys/block/$md/md/dev-*/state || {{ echo "no member is write-mostly"; exit 1; }}"#
        );
        Ok(Exhibit { then, ..self.exhibit(images, &content, true) })
    }

    /// Nobody writes any more when the program is killed, at some moment of the change.
    fn change_and_die(&self, home: &Home, seed: u64) -> Result<Exhibit> {
        let images = self.create(home)?;
        let daemon = Daemon::serve(&home.run, ["--as=md0".into()].into_iter().chain(images.clone()))?;
        let mut content = Content::zeroes(&daemon, seed)?;
        content.write_some(16)?;
        let mut change = Command::new(program()?);
        let mut change = change.args(self.grow()).current_dir(&home.dir).env("RAIDUS_RUN_DIR", &home.run).spawn()?;
        std::thread::sleep(Duration::from_micros(content.rng.below(40_000)));
        drop(daemon);
        change.wait()?;
        Ok(self.exhibit(images, &content, false))
    }

    fn exhibit(&self, images: Vec<PathBuf>, content: &Content, clean: bool) -> Exhibit {
        let (name, sum) = (self.name(), sum(&content.bytes));
        Exhibit { name, images, sum, clean, then: String::new(), assemble: String::new() }
    }

    /// mdadm grows one twin, raidus the other.
    fn compare_with_mdadm(&self, home: &Home) -> Result<()> {
        let images = self.create(home)?;
        let twins: Vec<PathBuf> = images.iter().map(|image| image.with_extension("twin")).collect();
        for (image, twin) in images.iter().zip(&twins) {
            std::fs::copy(image, twin)?;
        }
        let disks: Vec<String> = (0..twins.len()).map(|n| format!("/dev/disk{n}")).collect();
        let disks = disks.join(" ");
        let outcome = Guest::new(&twins).run(&format!(
            "mdadm --assemble /dev/md0 --run {disks} || exit 1\n\
             mdadm --grow /dev/md0 --bitmap=internal || exit 1\n\
             report location $(cat /sys/block/md0/md/bitmap/location)\n\
             report chunksize $(cat /sys/block/md0/md/bitmap/chunksize)\n\
             mdadm --stop /dev/md0\n"
        ))?;
        let outcome = outcome.expect_success()?;
        let mdadms = (outcome.report("location")?.to_owned(), outcome.report("chunksize")?.to_owned());
        for (images, grown) in [(images, true), (twins, false)] {
            let daemon = Daemon::serve(&home.run, ["--as=md0".into()].into_iter().chain(images))?;
            if grown {
                home.ok(&["grow", "md0", "--bitmap=internal"])?;
            }
            let get = |name| home.ok(&["get", "md0", name]).map(|value| value.trim().to_owned());
            let ours = (get("bitmap/location")?, get("bitmap/chunksize")?);
            ensure!(ours == mdadms, "raidus (grown by it: {grown}) has {ours:?}, mdadm {mdadms:?}");
            daemon.stop()?;
        }
        Ok(())
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
        let (images, run) = (dir.join(format!("i{seed}")), dir.join(format!("r{seed}")));
        std::fs::create_dir_all(&images)?;
        std::fs::create_dir_all(&run)?;
        Ok(Home { dir: images, run })
    }

    /// Runs the program in the directory of the images; gives what it printed.
    fn ok(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(program()?);
        said(command.args(words).current_dir(&self.dir).env("RAIDUS_RUN_DIR", &self.run))
    }
}
