//! Members that fail, join, are rebuilt and replaced while an array runs; checks and repairs; attributes and events.

mod common;

use std::time::{Duration, Instant};

use common::{Place, Said, tool};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// A running array that stops at the end of the test.
struct Array {
    place: Place,
    uri: String,
}

impl Array {
    /// Of new images of 64 MiB: `d0`, `d1` …
    fn new(create: &[&str], disks: usize) -> Array {
        let place = Place::new();
        let disks = place.images(disks, 64 * MIB);
        let mut words = vec!["create"];
        words.extend(create);
        if !create.contains(&"-l1") {
            words.push("--chunk=64");
        }
        place.ok_on(&words, &disks);
        Array::start(place, &disks)
    }

    fn start(place: Place, disks: &[String]) -> Array {
        let started = place.ok_on(&["assemble", "--threads=1", "--as=md0"], disks);
        Array { uri: started.out.trim().to_owned(), place }
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

    fn status(&self) -> Value {
        self.place.json(&["status", "--json", "md0"])[0].clone()
    }

    /// Fills bytes with a pattern.
    fn write(&self, byte: u8, at: u64, len: u64) {
        let (write, read) = (format!("write -P {byte} {at} {len}"), format!("read -P {byte} {at} {len}"));
        self.io(&[&write, "flush", &read]);
    }

    fn io(&self, commands: &[&str]) {
        let args: Vec<&str> = ["-f", "raw"]
            .into_iter()
            .chain(commands.iter().flat_map(|c| ["-c", c]))
            .chain([self.uri.as_str()])
            .collect();
        let done = tool("qemu-io", &args);
        assert!(done.code == Some(0) && !done.out.contains("failed"), "{done:?}");
    }

    fn content(&self) -> Vec<u8> {
        let copy = self.place.file("copy");
        let _ = std::fs::remove_file(&copy);
        let copied = tool("nbdcopy", &[&self.uri, copy.to_str().unwrap()]);
        assert_eq!(copied.code, Some(0), "{copied:?}");
        self.place.content("copy")
    }

    /// Waits for what comes by itself.
    fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(60), "{what}: {}", self.ok(&["status"]).out);
        }
    }

    /// What a check finds.
    fn check(&self) -> Value {
        self.place.json(&["scrub", "md0", "check", "--wait", "--json"])
    }

    /// `[UUU]`
    fn is_whole(&self) -> bool {
        self.status()["degraded"] == 0
    }

    fn event_names(&self) -> Vec<String> {
        let lines = self.ok(&["events", "--json", "md0"]).out;
        let name = |line: &str| serde_json::from_str::<Value>(line).unwrap()["event"].as_str().unwrap().to_owned();
        lines.lines().map(name).collect()
    }
}

#[test]
fn a_new_raid5_is_rebuilt_by_itself_and_lives_through_failures() {
    let array = Array::new(&["-l5", "-n3", "-x1"], 4);
    array.write(0x11, 0, 8 * MIB);
    array.ok(&["wait", "md0"]);
    assert!(array.is_whole());
    assert_eq!((array.get("sync_action"), array.get("last_sync_action")), ("idle".to_owned(), "recovery".to_owned()));

    // The spare takes the slot of the one that fails.
    let failed = array.ok(&["fail", "md0", "d1"]);
    assert!(failed.err.starts_with("raidus: set /") && failed.err.ends_with("/d1 faulty in md0\n"), "{}", failed.err);
    array.ok(&["wait", "md0"]);
    assert!(array.is_whole());
    let status = array.ok(&["status"]).out;
    assert!(status.contains("d1[1](F)") && status.contains("[3/3] [UUU]"), "{status}");
    array.write(0x22, 3 * MIB, MIB);
    array.refused(&["remove", "md0", "d0"], &["d0: it is in use; fail or replace it first"]);
    let removed = array.ok(&["remove", "md0", "failed"]);
    assert!(removed.err.ends_with("/d1 from md0\n"), "{}", removed.err);
    assert!(!array.ok(&["status"]).out.contains("d1["));

    // It comes back as a spare, for there is no bitmap.
    array.refused(&["re-add", "md0", "d1"], &["d1: cannot be re-added", "is taken", "raidus add"]);
    let added = array.ok(&["add", "md0", "d1"]);
    assert!(added.err.ends_with("d1\n") && added.err.contains("raidus: added "), "{}", added.err);
    assert!(array.ok(&["status"]).out.contains("(S)"));
    array.refused(&["add", "md0", "d1"], &["d1: is a member of the array already"]);

    // One after the other: no redundancy is left in between.
    array.ok(&["fail", "md0", "d0"]);
    array.ok(&["wait", "md0"]);
    array.ok(&["fail", "md0", "d2"]);
    array.refused(&["fail", "md0", "d3"], &["d3: the array would lose data without it"]);
    array.ok(&["remove", "md0", "d0", "d2"]);
    array.ok(&["add", "md0", "d0"]);
    array.ok(&["wait", "md0"]);
    assert!(array.is_whole());
    assert_eq!(array.check()["mismatch_sectors"], 0);
    array.io(&["read -P 0x22 3M 1M", "read -P 0x11 4M 4M", "read -P 0x11 0 3M"]);

    let events = array.event_names();
    for name in ["sync-started", "sync-ended", "member-in-sync", "member-failed", "member-removed", "member-added"] {
        assert!(events.iter().any(|e| e == name), "{name}: {events:?}");
    }
    array.ok(&["stop", "md0"]);
    let again = Array::start(array.place, &["d0", "d1", "d3"].map(str::to_owned));
    assert!(again.is_whole());
    again.io(&["read -P 0x22 3M 1M", "read -P 0x11 4M 4M"]);
}

/// A member leaves, misses writes and comes back; a page that changed on it meanwhile, where the bitmap has no bit, tells whether
/// more than what it missed was copied.
fn re_adding_copies_only_what_was_missed(create: &[&str], disks: usize) {
    let words = [create, &["--bitmap=internal", "--bitmap-chunk=1M", "--assume-clean"]].concat();
    let array = Array::new(&words, disks);
    array.write(0x33, 0, 16 * MIB);
    // A new array's bitmap has every bit set, until they are cleared for the first time.
    array.until("bits are cleared", || array.status()["bitmap"]["dirty"] == 0);
    array.ok(&["fail", "md0", "d1"]);
    array.refused(&["re-add", "md0", "d1"], &["d1: is in the array as a failed member; `raidus remove` it first"]);
    array.ok(&["remove", "md0", "d1"]);
    array.place.poke("d1", 40 * MIB, &[0xee; 4096]);
    array.write(0x44, MIB, MIB);
    let said = array.ok(&["re-add", "md0", "d1"]);
    assert!(said.err.contains("re-added "), "{}", said.err);
    array.ok(&["wait", "md0"]);
    assert!(array.is_whole());
    let report = array.check();
    assert_eq!((&report["mismatch_sectors"], &report["complete"]), (&8.into(), &true.into()), "{report}");
    array.io(&["read -P 0x44 1M 1M", "read -P 0x33 2M 14M"]);
}

#[test]
fn re_adding_to_raid5() {
    re_adding_copies_only_what_was_missed(&["-l5", "-n4"], 4);
}

#[test]
fn re_adding_to_raid1() {
    re_adding_copies_only_what_was_missed(&["-l1", "-n2"], 2);
}

#[test]
fn re_adding_to_raid10() {
    re_adding_copies_only_what_was_missed(&["-l10", "-n4"], 4);
}

#[test]
fn a_member_is_replaced_while_it_serves() {
    let array = Array::new(&["-l6", "-n4", "--assume-clean"], 4);
    array.write(0x55, MIB, 4 * MIB);
    array.refused(&["replace", "md0", "d2"], &["d2: there is no spare to rebuild onto; add one first"]);
    array.place.image("s0", 64 * MIB);
    array.place.image("s1", 64 * MIB);
    array.ok(&["add", "md0", "s0", "s1"]);
    array.refused(&["replace", "md0", "d2", "--with=s1"], &["s1: is not the first spare"]);
    let said = array.ok(&["replace", "md0", "d2", "--with=s0"]);
    assert!(said.err.contains("/d2 (device 2 in md0) for replacement by /"), "{}", said.err);
    array.ok(&["wait", "md0"]);
    let status = array.ok(&["status"]).out;
    assert!(array.is_whole() && status.contains("d2[2](F)") && status.contains("s0[4]"), "{status}");
    assert_eq!((array.get("dev-s0/slot"), array.get("dev-d2/state")), ("2".to_owned(), "faulty".to_owned()));
    array.ok(&["remove", "md0", "d2"]);
    assert_eq!(array.check()["mismatch_sectors"], 0);
    assert!(array.event_names().contains(&"member-replaced".to_owned()));
    array.ok(&["stop", "md0"]);
    let again = Array::start(array.place, &["d0", "d1", "d3", "s0", "s1"].map(str::to_owned));
    again.io(&["read -P 0x55 1M 4M"]);
}

/// A check of a raid6 names what is wrong, to the sector, and a repair changes only that.
#[test]
fn silent_corruption_is_named_and_mended() {
    let array = Array::new(&["-l6", "-n5", "--assume-clean"], 5);
    array.write(0x66, 0, 24 * MIB);
    array.ok(&["stop", "md0"]);
    let place = array.place;
    let disks: Vec<String> = (0..5).map(|i| format!("d{i}")).collect();
    let whole: Vec<Vec<u8>> = disks.iter().map(|d| place.content(d)).collect();
    let data = place.json(&["examine", "--json", "d0"])[0]["superblock"]["data_offset_bytes"].as_u64();
    let data = data.unwrap_or(MIB);
    // A sector in one row, two in another.
    let planted: [(&str, u64, usize); 2] = [("d3", data + 5 * 65536 + 512, 512), ("d1", data + 100 * 65536, 1024)];
    for (disk, at, len) in planted {
        place.poke(disk, at, &vec![0x99; len]);
    }
    let array = Array::start(place, &disks);
    let report = array.check();
    assert_eq!((&report["mismatch_sectors"], &report["action"]), (&16.into(), &"check".into()), "{report}");
    let found = report["mismatches"].as_array().unwrap();
    assert_eq!(found.len(), 2, "{report}");
    for (mismatch, (disk, at, len)) in found.iter().zip(planted) {
        let culprit = &mismatch["culprit"];
        assert!(is_disk(&culprit["device"], disk), "{report}");
        assert_eq!(culprit["sector"], at / 512, "{report}");
        assert_eq!((&mismatch["sectors"], &mismatch["mended"]), (&(len / 512).into(), &false.into()));
        // The way back leads to the same place.
        let sector = (at / 512).to_string();
        let there = array.place.json(&["map", "md0", "--member", disk, &sector, "--json"]);
        assert_eq!(there["places"][0]["array_offset"], culprit["array_offset"], "{there}");
        if let Some(offset) = culprit["array_offset"].as_u64() {
            let back = array.place.json(&["map", "md0", "--array", &offset.to_string(), "--json"]);
            assert!(is_disk(&back[0]["device"], disk) && back[0]["sector"] == at / 512, "{back}");
            assert_eq!(mismatch["array"], serde_json::json!([[offset, len]]));
        }
    }
    let text = array.ok(&["scrub", "md0", "report"]).out;
    assert!(text.contains("mismatches: 16 sectors\n") && text.contains("wrong on slot 3: /"), "{text}");
    assert_eq!(array.get("mismatch_cnt"), "16");

    let repaired = array.place.json(&["scrub", "md0", "repair", "--wait", "--json"]);
    assert_eq!((&repaired["mismatch_sectors"], &repaired["mismatches"][0]["mended"]), (&16.into(), &true.into()));
    assert_eq!(array.check()["mismatch_sectors"], 0);
    array.ok(&["stop", "md0"]);
    let from = data as usize;
    for (disk, before) in disks.iter().zip(&whole) {
        assert!(array.place.content(disk)[from..] == before[from..], "{disk} is not what it was");
    }
}

/// A path, however it is written, of a disk in the test's directory.
fn is_disk(path: &Value, disk: &str) -> bool {
    path.as_str().unwrap().ends_with(&format!("/{disk}"))
}

#[test]
fn devices_that_must_not_join() {
    let array = Array::new(&["-l1", "-n2", "--assume-clean"], 2);
    let place = &array.place;
    place.image("small", 8 * MIB);
    let untouched = place.content("small");
    array.refused(&["add", "md0", "small"], &["small is too small: the array uses "]);
    assert!(place.content("small") == untouched);
    array.refused(&["add", "md0", "nowhere"], &["nowhere: no such file or device"]);

    // Somebody's data, and another array's member.
    place.image("fs", 64 * MIB);
    place.poke("fs", 0, b"XFSB");
    place.image("x0", 64 * MIB);
    place.image("x1", 64 * MIB);
    place.ok(&["create", "-l1", "-n2", "x0", "x1"]);
    let before = (place.content("fs"), place.content("x0"));
    array.refused(
        &["add", "md0", "fs", "x0"],
        &["holds an XFS file system", "--force", "an md superblock 1.2 (member of array"],
    );
    assert!((place.content("fs"), place.content("x0")) == before, "refused devices are not written");
    array.ok(&["add", "md0", "--force", "fs"]);
    assert!(array.ok(&["status"]).out.contains("fs[2](S)"));

    // One that another array uses.
    let served = place.serve(&["--as=other"], &["x0".to_owned(), "x1".to_owned()]);
    array.refused(&["add", "md0", "--force", "x1"], &["x1 is in use by"]);
    assert_eq!(served.end("TERM").code, Some(0));

    array.refused(&["fail", "md0", "x0"], &["x0 is not a member of the array; its members are /"]);
    place.refused(1, &["add", "md7", "x0"], &["no array named 'md7' is running"]);

    let striped = Array::new(&["-l0", "-n2"], 2);
    striped.place.image("more", 64 * MIB);
    striped.refused(&["add", "md0", "more"], &["the level has no redundancy"]);
    striped.refused(&["scrub", "md0"], &["the level has no redundancy"]);
    striped.refused(&["set", "md0", "sync_action", "check"], &["there is no attribute 'sync_action'"]);
    striped.ok(&["wait", "md0"]);
}

#[test]
fn attributes_are_mds() {
    let array = Array::new(&["-l5", "-n3", "--assume-clean", "--bitmap=internal"], 3);
    for (name, value) in [
        ("level", "raid5"),
        ("layout", "2"),
        ("raid_disks", "3"),
        ("chunk_size", "65536"),
        ("metadata_version", "1.2"),
        ("array_size", "default"),
        ("degraded", "0"),
        ("resync_start", "none"),
        ("consistency_policy", "bitmap"),
        ("safe_mode_delay", "0.200"),
        ("sync_action", "idle"),
        ("last_sync_action", "none"),
        ("sync_completed", "none"),
        ("sync_speed", "none"),
        ("sync_min", "0"),
        ("sync_max", "max"),
        ("sync_speed_min", "1000 (system)"),
        ("mismatch_cnt", "0"),
        ("dev-d1/state", "in_sync"),
        ("dev-d1/slot", "1"),
        ("dev-d1/recovery_start", "none"),
        ("dev-d1/errors", "0"),
    ] {
        assert_eq!(array.get(name), value, "{name}");
    }
    let all = array.ok(&["get", "md0"]).out;
    assert!(all.contains("\nlevel: raid5\n") && all.contains("\ndev-d2/state: in_sync\n"), "{all}");
    array.refused(&["get", "md0", "nonsense"], &["there is no attribute 'nonsense'"]);
    array.refused(&["set", "md0", "level", "raid6"], &["level cannot be set"]);
    array.refused(&["set", "md0", "sync_action", "dance"], &["sync_action cannot be 'dance': check, repair, idle"]);
    array.refused(&["set", "md0", "sync_max", "100"], &["a multiple of 128 sectors is needed"]);

    array.ok(&["set", "md0", "sync_speed_min", "500"]);
    assert_eq!(array.get("sync_speed_min"), "500 (local)");
    array.ok(&["set", "md0", "sync_speed_min", "system"]);
    array.ok(&["set", "md0", "sync_max", "12800"]);
    let part = array.check();
    assert_eq!((&part["end_sector"], &part["complete"]), (&12800.into(), &true.into()), "{part}");
    array.ok(&["set", "md0", "sync_max", "max"]);

    array.ok(&["set", "md0", "array_state", "readonly"]);
    let status = array.ok(&["status"]).out;
    assert!(status.contains("md0 : active (read-only) raid5"), "{status}");
    array.place.image("spare", 64 * MIB);
    array.refused(&["add", "md0", "spare"], &["the array is read-only; make it writable first"]);
    array.ok(&["set", "md0", "array_state", "active"]);
    array.write(0x77, 0, MIB);

    // While it is frozen, nothing is rebuilt, and nobody waits for it.
    array.ok(&["scrub", "md0", "freeze"]);
    array.ok(&["set", "md0", "dev-d1/state", "faulty"]);
    assert_eq!((array.get("dev-d1/state"), array.get("degraded")), ("faulty".to_owned(), "1".to_owned()));
    array.ok(&["add", "md0", "spare"]);
    assert_eq!(array.get("sync_action"), "frozen");
    array.refused(&["wait", "md0"], &["a recovery is needed, but syncs are frozen"]);
    array.ok(&["set", "md0", "dev-d1/state", "remove"]);
    array.ok(&["set", "md0", "sync_action", "idle"]);
    array.ok(&["wait", "md0"]);
    assert!(array.is_whole());
}

#[test]
fn a_slow_rebuild_shows_how_far_it_is() {
    let array = Array::new(&["-l5", "-n3", "--assume-clean"], 3);
    array.ok(&["set", "md0", "sync_speed_max", "2000"]);
    array.place.image("spare", 64 * MIB);
    array.ok(&["fail", "md0", "d0"]);
    array.ok(&["add", "md0", "spare"]);
    array.until("it begins", || array.get("sync_action") == "recover");
    let status = array.ok(&["status"]).out;
    let line = status.lines().find(|l| l.contains("recovery")).unwrap_or_else(|| panic!("no recovery in {status}"));
    assert!(line.starts_with("      [") && line.contains("recovery = ") && line.contains("/64512) finish="), "{line}");
    let detail = array.ok(&["detail", "md0"]).out;
    assert!(detail.contains("State : clean, degraded, recovering") && detail.contains("Rebuild Status : "), "{detail}");
    assert!(detail.contains("spare rebuilding"), "{detail}");
    assert_eq!((array.get("sync_action"), array.get("dev-spare/state")), ("recover".to_owned(), "spare".to_owned()));
    assert!(array.get("sync_completed").ends_with(" / 129024"));
    array.refused(&["scrub", "md0"], &["members are being synced; that comes first"]);

    // Stopped in the middle, it goes on when it is started again.
    array.ok(&["stop", "md0"]);
    let again = Array::start(array.place, &["d1", "d2", "spare"].map(str::to_owned));
    again.ok(&["wait", "md0"]);
    assert!(again.is_whole());
    assert_eq!(again.check()["mismatch_sectors"], 0);
}

#[test]
fn events_are_followed_to_the_end() {
    let array = Array::new(&["-l1", "-n2", "--assume-clean"], 2);
    let follower =
        array.place.command(&["events", "--follow", "md0"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    array.ok(&["scrub", "md0", "--wait"]);
    array.ok(&["stop", "md0"]);
    let said = common::said(follower.wait_with_output().unwrap());
    assert_eq!(said.code, Some(0));
    let ends: Vec<&str> = said.out.lines().map(|line| line.rsplit_once("  ").unwrap().1).collect();
    assert_eq!(ends, ["check started", "check done", "stopped"]);
}

/// Under an overlay, what joins is not written either.
#[test]
fn devices_join_under_an_overlay() {
    let place = Place::new();
    let disks = place.images(3, 64 * MIB);
    place.ok_on(&["create", "-l5", "-n3", "--assume-clean"], &disks);
    place.image("spare", 64 * MIB);
    let before = place.content("spare");
    let started = place.ok_on(&["assemble", "--threads=1", "--overlay=memory"], &disks);
    let array = Array { uri: started.out.trim().to_owned(), place };
    array.ok(&["fail", "md0", "d2"]);
    array.ok(&["add", "md0", "spare"]);
    // Nothing is rebuilt there unasked.
    array.ok(&["scrub", "md0", "idle"]);
    array.ok(&["wait", "md0"]);
    assert!(array.is_whole());
    let content = array.content();
    array.ok(&["stop", "md0"]);
    assert!(content.iter().all(|b| *b == 0) && array.place.content("spare") == before);
}
