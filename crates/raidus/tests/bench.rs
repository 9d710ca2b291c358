//! `raidus bench`: what it counts, what it refuses, and what it leaves alone.

mod common;

use common::Place;
use serde_json::Value;

fn bench(place: &Place, words: &[&str]) -> Value {
    let mut all = vec!["bench", "--json"];
    all.extend(words);
    let said = place.run(&all);
    assert_eq!(said.code, Some(0), "{words:?}: {}", said.err);
    serde_json::from_str(&said.out).unwrap()
}

fn number(report: &Value, pointer: &str) -> f64 {
    report.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {pointer} in {report:#}"))
}

const COUNTED: [&str; 4] = ["--length=2000", "--warmup=100", "--chunk=64K", "--no-bare"];

#[test]
fn every_write_is_counted_as_what_it_costs() {
    let place = Place::new();
    // Level, members, block: reads and writes of members per request, and how many of the reads the write needed.
    let cases = [
        ("0", "4*null", "4K", [0.0, 1.0, 0.0]),
        ("1", "2*null", "4K", [0.0, 2.0, 0.0]),
        ("10", "4*null", "4K", [0.0, 2.0, 0.0]),
        ("5", "5*null", "4K", [2.0, 2.0, 2.0]),
        ("6", "8*null", "4K", [3.0, 3.0, 3.0]),
        ("5", "5*null", "256K", [0.0, 5.0, 0.0]),
    ];
    for (level, members, block, expected) in cases {
        let block = format!("--block={block}");
        let mut words = vec!["--level", level, "--members", members, "--reads=0", &block];
        words.extend(COUNTED);
        let report = bench(&place, &words);
        let counted = |name: &str| number(&report, &format!("/counters/{name}"));
        let is = ["member_reads_per_request", "member_writes_per_request", "prereads_per_write"].map(counted);
        assert_eq!(is, expected, "level {level} of {members}, {block}");
        assert_eq!(counted("copied_bytes_per_byte"), 0.0);
        assert_eq!(number(&report, "/result/writes"), 2000.0);
    }
}

#[test]
fn an_array_is_compared_with_its_bare_members_and_flushes_are_shared() {
    let place = Place::new();
    let words = [
        "--level=10",
        "--members",
        "4*model:latency=50us,flush=1ms,size=64M",
        "--bitmap=internal",
        "--jobs=16",
        "--depth=1",
        "--reads=0",
        "--flush-every=1",
        "--length=20",
        "--warmup=2",
    ];
    let report = bench(&place, &words);
    let asked = number(&report, "/counters/flushes_asked_for");
    let rounds = number(&report, "/counters/flush_rounds");
    assert!(asked >= 300.0 && rounds * 3.0 < asked, "{asked} flushes in {rounds} rounds");
    assert!(number(&report, "/result/flush_latency/min") >= 1000.0, "a flush takes at least what the model says");
    assert!(number(&report, "/result/latency/min") >= 50.0);
    assert!(number(&report, "/ratio/requests_per_second") > 0.0);
    assert_eq!(report["array"]["bitmap"], true);
}

#[test]
fn beside_a_sync_both_are_measured() {
    let place = Place::new();
    for sync in ["recovery", "check", "resync"] {
        let words = [
            "--level=5",
            "--members",
            "4*model:latency=20us,bandwidth=1GiB/s,size=256M",
            "--length=100ms",
            "--warmup=50",
            "--rounds=1",
            "--no-bare",
            "--beside",
            sync,
        ];
        let report = bench(&place, &words);
        assert!(number(&report, "/beside/p99_ratio") > 0.0, "{report:#}");
        assert!(number(&report, "/beside/loaded_kib_per_second") > 0.0, "{report:#}");
        assert_eq!(report["beside"]["sync"], sync);
    }
}

#[test]
fn what_members_hold_is_not_overwritten_unasked() {
    let place = Place::new();
    let disks = place.images(3, 32 << 20);
    place.poke(&disks[1], 16 << 20, b"somebody's data");
    let before: Vec<_> = disks.iter().map(|d| place.content(d)).collect();
    let mut words = vec!["bench", "--level=5", "--length=10", "--warmup=1", "--members"];
    words.extend(disks.iter().map(String::as_str));
    let said = place.run(&words);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("d1: holds data"), "{}", said.err);
    assert_eq!(disks.iter().map(|d| place.content(d)).collect::<Vec<_>>(), before);
    words.push("--run");
    assert_eq!(place.run(&words).code, Some(0), "consent was given");
    let left = place.run(&["examine", &disks[0]]);
    assert!(left.err.contains("No md superblock"), "a benchmark leaves no array behind: {}{}", left.out, left.err);
}

#[test]
fn an_array_that_is_there_is_only_read() {
    let (place, disks) = Place::golden("raid5-1.2-n3-64k");
    let before: Vec<_> = disks.iter().map(|d| place.content(d)).collect();
    let mut words = vec!["--length=500", "--warmup=10", "--members"];
    words.extend(disks.iter().map(String::as_str));
    let report = bench(&place, &words);
    assert_eq!((number(&report, "/result/reads"), number(&report, "/result/writes")), (500.0, 0.0));
    assert!(number(&report, "/bare/requests_per_second") > 0.0);
    assert_eq!(disks.iter().map(|d| place.content(d)).collect::<Vec<_>>(), before);
    let mut words = vec!["bench", "--reads=50", "--members"];
    words.extend(disks.iter().map(String::as_str));
    let said = place.run(&words);
    assert_eq!(said.code, Some(2), "{}", said.err);
}
