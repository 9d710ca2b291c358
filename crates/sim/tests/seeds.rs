//! Seeds that must pass: a few hundred of the plain sequence, and those that once found something.

use raidus_sim::{Options, Stats, run_seed};

/// Seeds that failed before a fault was mended, with what they found. A change in what scenarios draw gives every seed another
/// life; then these are merely more seeds, and the fault's own test stands beside the code that had it.
const REGRESSIONS: &[(u64, &str)] = &[
    (986, "reading a mirror's only copy after a power cut promised more than the absent copy keeps"),
    (1817, "a member that failed while an event was taken back looked as fresh as its survivors"),
    (2038, "a second power cut while members were uneven by one event made a good member stale"),
    (2153, "levelling did without a member that was away; back again, as fresh as the others, it spoke for the array"),
    (3729, "as 1817, on raid10: the failed member spoke for the array"),
    (767, "a member that joined while others were being rebuilt got their checkpoint"),
    (
        61_745,
        "the event of a round that failed at the bitmap was skipped, and members were two behind after a power cut",
    ),
    (22_481, "two devices of a 0.90 array got one number"),
    (21_444, "a replacement differed from the member it replaced in writes that a power cut had cut short"),
    (7, "what a repair wrote was not flushed at its end"),
    (6683, "the partial parity log of a member whose superblock still said clean was not read, and the array refused"),
    (309_707, "a lease was granted before it was on record that a member without its bit had failed"),
    (
        310_446,
        "a device that joined was given the number of one that was away; when that was back, both were written as one",
    ),
    (860, "two attempts at a replay that were both cut short left good members two events behind"),
    (500_094, "a write's memory was used again while the log of a member that was out still read it"),
    (25_755, "a note of bad blocks went before what was written there was durable"),
    (46_508, "a replacement was trusted after a power cut because a partial parity log had put parity right"),
    (46_790, "as 46508"),
];

fn play(seeds: impl Iterator<Item = u64>) -> Stats {
    let mut total = Stats::default();
    for seed in seeds {
        match run_seed(seed, &Options::default()) {
            Ok(stats) => total.add(&stats),
            Err(failure) => {
                let tail = failure.trace.len().saturating_sub(60);
                panic!(
                    "seed {seed}: {}\n{}\n{}\nagain: cargo xtask sim --seed {seed} -v",
                    failure.what,
                    failure.scenario,
                    failure.trace[tail..].join("\n"),
                );
            }
        }
    }
    total
}

#[test]
fn plain_seeds() {
    let stats = play(0..200);
    // The sequence must reach what it is there for.
    assert!(stats.crashes > 40, "{stats}");
    assert!(stats.failures > 15, "{stats}");
    assert!(stats.stale_offered > 10, "{stats}");
    assert!(stats.sectors_checked > 100_000, "{stats}");
    assert!(stats.syncs > 80 && stats.rebuilt > 30 && stats.scrubs > 15, "{stats}");
    assert!(stats.healed > 50, "{stats}");
    assert!(stats.replays > 5, "{stats}");
    assert!(stats.clones > 50, "{stats}");
}

#[test]
fn regressions() {
    for (seed, found) in REGRESSIONS {
        println!("seed {seed}: {found}");
        play([*seed].into_iter());
    }
}

#[test]
fn a_seed_replays_a_run() {
    for seed in [1, 7, 23] {
        assert_eq!(run_seed(seed, &Options::default()).ok(), run_seed(seed, &Options::default()).ok());
    }
}
