//! Settings that are changed while an array runs: the bitmap comes and goes, requests wait, writes are refused and accepted again,
//! members get flags.

mod common;

use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Place, Said, tool};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// A running array that stops at the end of the test.
struct Array {
    place: Place,
    disks: Vec<String>,
    uri: String,
}

impl Array {
    /// Of new images of 32 MiB: `d0`, `d1` …
    fn new(create: &[&str], disks: usize) -> Array {
        let place = Place::new();
        let disks = place.images(disks, 32 * MIB);
        let mut words = vec!["create", "--assume-clean"];
        words.extend(create);
        if !create.contains(&"-l1") {
            words.push("--chunk=64");
        }
        place.ok_on(&words, &disks);
        let mut array = Array { place, disks, uri: String::new() };
        array.start();
        array
    }

    fn start(&mut self) {
        let started = self.place.ok_on(&["assemble", "--threads=2", "--as=md0"], &self.disks);
        self.uri = started.out.trim().to_owned();
    }

    fn ok(&self, words: &[&str]) -> Said {
        self.place.ok(words)
    }

    fn refused(&self, words: &[&str], parts: &[&str]) {
        self.place.refused(1, words, parts);
    }

    fn get(&self, attribute: &str) -> String {
        self.ok(&["get", "md0", attribute]).out.trim_end().to_owned()
    }

    fn set(&self, attribute: &str, value: &str) {
        self.ok(&["set", "md0", attribute, value]);
    }

    fn words<'a>(&'a self, commands: &[&'a str]) -> Vec<&'a str> {
        let commands = commands.iter().flat_map(|c| ["-c", c]);
        ["-f", "raw"].into_iter().chain(commands).chain([self.uri.as_str()]).collect()
    }

    fn try_io(&self, commands: &[&str]) -> bool {
        let done = tool("qemu-io", &self.words(commands));
        done.code == Some(0) && !done.out.contains("failed") && !done.err.contains("failed")
    }

    fn io(&self, commands: &[&str]) {
        assert!(self.try_io(commands), "{commands:?}");
    }

    /// A client that goes on by itself.
    fn begin_io(&self, commands: &[&str]) -> Child {
        let mut client = std::process::Command::new("qemu-io");
        client.args(self.words(commands)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Does something while clients write without a pause. Every write must succeed.
    fn under_load(&self, work: impl FnOnce()) {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut rounds = 0;
                while !over.load(Ordering::Relaxed) || rounds == 0 {
                    let writes: Vec<String> =
                        (0..64).map(|n| format!("aio_write -P {} {} 8k", 1 + n % 200, (n * 37 % 256) * 8192)).collect();
                    let writes: Vec<&str> = writes.iter().map(String::as_str).chain(["aio_flush", "flush"]).collect();
                    self.io(&writes);
                    rounds += 1;
                }
            });
            work();
            over.store(true, Ordering::Relaxed);
            writer.join().unwrap();
        });
    }

    /// What a check finds.
    fn mismatches(&self) -> u64 {
        self.place.json(&["scrub", "md0", "check", "--wait", "--json"])["mismatch_sectors"].as_u64().unwrap()
    }

    fn status(&self) -> Value {
        self.place.json(&["status", "--json", "md0"])[0].clone()
    }

    fn events(&self) -> Vec<Value> {
        let lines = self.ok(&["events", "--json", "md0"]).out;
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn event_names(&self) -> Vec<String> {
        self.events().iter().map(|event| event["event"].as_str().unwrap().to_owned()).collect()
    }
}

fn is_over(client: &mut Child) -> bool {
    client.try_wait().unwrap().is_some()
}

fn until_over(mut client: Child) {
    let start = Instant::now();
    while !is_over(&mut client) {
        assert!(start.elapsed() < Duration::from_secs(60), "it goes on waiting");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_bitmap_comes_and_goes_while_clients_write() {
    for (level, disks) in [("-l1", 2), ("-l5", 3), ("-l10", 4)] {
        let number = format!("-n{disks}");
        let array = Array::new(&[level, &number, "--bitmap=none"], disks);
        assert_eq!((array.get("bitmap/location"), array.get("consistency_policy")), ("none".into(), "resync".into()));
        array.under_load(|| {
            for _ in 0..3 {
                let said = array.ok(&["grow", "md0", "--bitmap=internal", "--bitmap-chunk=64K"]).err;
                assert!(said.contains("write-intent bitmap added to md0, with 64 KiB per bit"), "{said}");
                assert_eq!(
                    (array.get("bitmap/location"), array.get("bitmap/chunksize")),
                    ("+8".into(), "65536".into())
                );
                let said = array.ok(&["grow", "md0", "--bitmap=none"]).err;
                assert!(said.contains("removed from md0"), "{said}");
            }
            array.ok(&["grow", "md0", "--bitmap=internal", "--bitmap-chunk=64K"]);
        });
        let said = array.ok(&["grow", "md0", "--bitmap=internal"]).err;
        assert!(said.contains("md0 has a write-intent bitmap already, with 64 KiB per bit"), "{said}");
        array.refused(&["grow", "md0", "--bitmap=internal", "--bitmap-chunk=1M"], &["another chunk"]);
        assert!(array.ok(&["status"]).out.contains("bitmap: "));
        assert_eq!(array.get("consistency_policy"), "bitmap");
        // It does its work: what was missed is all that is copied.
        array.ok(&["fail", "md0", "d1"]);
        array.ok(&["remove", "md0", "d1"]);
        array.io(&["write -P 99 1M 64k", "flush"]);
        array.ok(&["re-add", "md0", "d1"]);
        array.ok(&["wait", "md0"]);
        assert_eq!((array.mismatches(), array.status()["degraded"].as_u64()), (0, Some(0)));
        array.io(&["read -P 99 1M 64k"]);
        let names = array.event_names();
        assert_eq!(names.iter().filter(|name| *name == "bitmap-added").count(), 4);
        assert_eq!(names.iter().filter(|name| *name == "bitmap-removed").count(), 3);
        array.ok(&["stop", "md0"]);
        let examined = array.ok(&["examine", "d0"]).out;
        assert!(examined.contains("Internal Bitmap : 8 sectors from superblock"), "{examined}");
    }
}

#[test]
fn devices_that_join_after_the_bitmap_have_it_too() {
    let array = Array::new(&["-l5", "-n3", "--bitmap=none"], 3);
    array.ok(&["grow", "md0", "--bitmap=internal", "--bitmap-chunk=1M"]);
    let spare = array.place.image("x0", 32 * MIB);
    array.ok(&["add", "md0", &spare]);
    array.ok(&["fail", "md0", "d0"]);
    array.ok(&["wait", "md0"]);
    assert_eq!(array.mismatches(), 0);
    array.ok(&["stop", "md0"]);
    let examined = array.ok(&["examine", "x0"]).out;
    assert!(examined.contains("Internal Bitmap : 8 sectors from superblock"), "{examined}");
    array.place.ok_on(&["assemble", "--as=md0"], &["x0".into(), "d1".into(), "d2".into()]);
    assert_eq!(array.get("bitmap/chunksize"), "1048576");
}

#[test]
fn bitmaps_that_make_no_sense_are_refused() {
    let array = Array::new(&["-l1", "-n2", "--bitmap=none"], 2);
    array.place.refused(2, &["grow", "md0", "--bitmap=internal", "--bitmap-chunk=100"], &["not a power of two"]);
    array.place.refused(2, &["grow", "md0", "--bitmap=none", "--bitmap-chunk=1M"], &["needs --bitmap=internal"]);
    array.refused(&["grow", "md0", "--bitmap=internal", "--bitmap-chunk=2"], &["at least 4K"]);
    let said = array.ok(&["grow", "md0", "--bitmap=none"]).err;
    assert!(said.contains("md0 has no write-intent bitmap"), "{said}");
    array.set("array_state", "readonly");
    array.refused(&["grow", "md0", "--bitmap=internal"], &["read-only"]);
    let striped = Array::new(&["-l0", "-n2"], 2);
    striped.refused(&["grow", "md0", "--bitmap=internal"], &["no redundancy"]);
}

#[test]
fn suspended_writes_wait_and_others_go_on() {
    let array = Array::new(&["-l5", "-n3"], 3);
    array.set("suspend_lo", "2048");
    array.set("suspend_hi", "4096");
    assert_eq!((array.get("suspend_lo"), array.get("suspend_hi")), ("2048".into(), "4096".into()));
    let mut waiting = array.begin_io(&["write -P 7 1M 4k", "flush"]);
    array.io(&["write -P 8 0 64k", "write -P 9 2M 64k", "read 1M 64k", "flush"]);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!is_over(&mut waiting));
    array.set("suspend_hi", "0");
    until_over(waiting);
    array.io(&["read -P 7 1M 4k"]);

    array.set("array_state", "suspended");
    assert_eq!(array.get("array_state"), "suspended");
    let mut waiting = array.begin_io(&["read -P 7 1M 4k"]);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!is_over(&mut waiting));
    array.set("array_state", "active");
    until_over(waiting);
    let names = array.event_names();
    let suspends: Vec<_> =
        names.iter().filter(|n| ["suspended", "resumed", "state-changed"].contains(&n.as_str())).collect();
    assert_eq!(suspends, ["suspended", "resumed", "state-changed", "suspended", "resumed", "state-changed"]);
    // Stopping carries out what waits.
    array.set("array_state", "suspended");
    let waiting = array.begin_io(&["write -P 5 3M 4k", "flush"]);
    std::thread::sleep(Duration::from_millis(300));
    array.ok(&["stop", "md0"]);
    until_over(waiting);
    array.refused(&["set", "md0", "array_state", "active"], &["no array named 'md0'"]);
}

#[test]
fn writes_are_refused_and_accepted_again() {
    let array = Array::new(&["-l5", "-n3"], 3);
    let mut client = array.begin_io(&["write -P 3 0 24M", "write -P 3 24M 24M", "flush"]);
    array.set("array_state", "readonly");
    assert_eq!(array.get("array_state"), "readonly");
    let _ = client.wait();
    assert!(!array.try_io(&["write 0 4k"]));
    let mdstat = array.ok(&["status"]).out;
    assert!(mdstat.contains("md0 : active (read-only) raid5"), "{mdstat}");
    for disk in &array.disks {
        let examined = array.ok(&["examine", disk]).out;
        assert!(examined.contains("State : clean"), "{examined}");
    }
    array.set("array_state", "active");
    array.io(&["write -P 4 0 4k", "flush"]);

    array.set("array_state", "read-auto");
    assert_eq!(array.get("array_state"), "read-auto");
    assert!(array.ok(&["status"]).out.contains("md0 : active (auto-read-only) raid5"));
    array.io(&["read -P 4 0 4k"]);
    assert_eq!(array.get("array_state"), "read-auto");
    array.io(&["write -P 6 0 4k", "flush", "read -P 6 0 4k"]);
    assert!(["active", "active-idle", "clean", "write-pending"].contains(&array.get("array_state").as_str()));
    array.under_load(|| array.set("array_state", "read-auto"));
    array.refused(&["set", "md0", "array_state", "broken"], &["readonly, read-auto, clean, active and suspended"]);
    array.refused(&["set", "md0", "array_state", "clear"], &["raidus stop"]);
    assert_eq!(array.mismatches(), 0);
}

#[test]
fn an_array_stays_dirty_as_long_as_it_is_told() {
    let array = Array::new(&["-l1", "-n2"], 2);
    assert_eq!(array.get("safe_mode_delay"), "0.200");
    array.set("safe_mode_delay", "0");
    array.io(&["write 0 4k", "flush"]);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(array.get("safe_mode_delay"), "0.000");
    assert!(array.get("array_state").starts_with("active"));
    array.set("safe_mode_delay", "0.05");
    assert_eq!(array.get("safe_mode_delay"), "0.050");
    let start = Instant::now();
    while array.get("array_state") != "clean" {
        assert!(start.elapsed() < Duration::from_secs(30));
    }
    array.refused(&["set", "md0", "safe_mode_delay", "soon"], &["seconds are needed"]);
    let set: Vec<_> = array.events().into_iter().filter(|e| e["event"] == "attribute-set").collect();
    assert_eq!(set[0]["attribute"], "safe_mode_delay");
    assert_eq!(set[1]["value"], "0.05");
}

#[test]
fn members_have_flags_and_counts() {
    let array = Array::new(&["-l1", "-n2", "--bitmap=internal"], 2);
    // Written with the flag, which waits until it is on record.
    array.set("dev-d0/errors", "24");
    array.set("dev-d1/state", "writemostly");
    assert_eq!(array.get("dev-d1/state"), "in_sync,write_mostly");
    assert!(array.ok(&["status"]).out.contains("d1[1](W)"));
    array.set("max_read_errors", "30");
    array.set("fail_last_dev", "1");
    assert_eq!((array.get("max_read_errors"), array.get("fail_last_dev")), ("30".into(), "1".into()));
    array.set("fail_last_dev", "0");
    array.set("dev-d0/bad_blocks", "4096 8");
    assert_eq!(array.get("dev-d0/bad_blocks"), "4096 8");
    array.refused(&["set", "md0", "dev-d0/bad_blocks", "8 8"], &["not within the data"]);
    array.refused(&["set", "md0", "dev-d1/bad_blocks", "4096 8"], &["lose data"]);
    array.set("dev-d1/state", "in_sync");
    array.set("dev-d0/state", "faulty");
    array.refused(&["set", "md0", "dev-d0/state", "in_sync"], &["being rebuilt"]);
    array.set("dev-d0/state", "re-add");
    array.ok(&["wait", "md0"]);
    assert_eq!(array.get("dev-d0/state"), "in_sync");
    array.refused(&["set", "md0", "dev-d0/state", "happy"], &["faulty, remove, re-add"]);
    array.refused(&["set", "md0", "dev-d0/slot", "1"], &["cannot be set"]);
    array.refused(&["set", "md0", "dev-d7/state", "faulty"], &["not a member"]);
    array.ok(&["stop", "md0"]);
    assert!(array.ok(&["examine", "d1"]).out.contains("Flags : write-mostly"));
    let again = array.place.ok_on(&["assemble", "--as=md0"], &array.disks);
    assert!(again.out.contains("nbd"), "{again:?}");
    assert_eq!((array.get("dev-d1/state"), array.get("dev-d0/errors")), ("in_sync,write_mostly".into(), "24".into()));
    array.set("dev-d1/state", "-writemostly");
    assert_eq!(array.get("dev-d1/state"), "in_sync");
}

#[test]
fn reports_are_kept_from_run_to_run() {
    let mut array = Array::new(&["-l5", "-n3"], 3);
    array.refused(&["scrub", "md0", "report"], &["nothing has been checked yet"]);
    array.ok(&["stop", "md0"]);
    array.place.poke("d2", 8 * MIB, b"wrong");
    array.start();
    assert_eq!(array.mismatches(), 8);
    array.ok(&["stop", "md0"]);
    array.start();
    let report = array.place.json(&["scrub", "md0", "report", "--json"]);
    assert_eq!((report["mismatch_sectors"].as_u64(), report["number"].as_u64()), (Some(8), Some(0)));
    assert!(report["ended_seconds"].as_u64().unwrap() > 1_700_000_000);
    // A new one takes its place.
    array.ok(&["scrub", "md0", "repair", "--wait"]);
    assert_eq!(array.mismatches(), 0);
    assert_eq!(array.place.json(&["scrub", "md0", "report", "--json"])["number"], 2);
}

#[test]
fn attributes_are_files_that_can_be_written() {
    let mut array = Array::new(&["-l5", "-n3"], 3);
    array.ok(&["stop", "md0"]);
    std::fs::create_dir(array.place.file("mnt")).unwrap();
    array.uri = array.place.ok_on(&["mount", "--as=md0", "mnt"], &array.disks).out.trim().to_owned();
    let md = array.place.file("mnt/md");
    let read = |name: &str| std::fs::read_to_string(md.join(name)).unwrap();
    assert_eq!((read("array_state").as_str(), read("dev-d0/state").as_str()), ("clean\n", "in_sync\n"));
    std::fs::write(md.join("sync_action"), "check\n").unwrap();
    array.ok(&["wait", "md0"]);
    assert_eq!(read("last_sync_action"), "check\n");
    let errno = |name: &str, value: &str| std::fs::write(md.join(name), value).unwrap_err().raw_os_error();
    let raw = |errno: rustix::io::Errno| Some(errno.raw_os_error());
    assert_eq!(errno("sync_action", "dance\n"), raw(rustix::io::Errno::INVAL));
    assert_eq!(errno("level", "raid6\n"), raw(rustix::io::Errno::ACCESS));
    std::fs::write(md.join("dev-d1/state"), "faulty\n").unwrap();
    assert_eq!((read("degraded").as_str(), read("dev-d1/state").as_str()), ("1\n", "faulty\n"));
    assert_eq!(errno("dev-d0/state", "faulty\n"), raw(rustix::io::Errno::BUSY));
    std::fs::write(md.join("dev-d1/state"), "remove\n").unwrap();
    assert!(!md.join("dev-d1").exists() && md.join("dev-d0").exists());
    std::fs::write(md.join("bitmap/location"), "internal\n").unwrap();
    assert_eq!(read("bitmap/location"), "+8\n");
    array.ok(&["stop", "md0"]);
}
