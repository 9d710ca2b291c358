//! The simulator finds mistakes: each lie told between the engine and its disks is caught within a bounded number of seeds.

use raidus_sim::{Options, Plant, run_seed};

/// Seeds within which each mistake must show.
const SEEDS: u64 = 200;

#[test]
fn every_planted_mistake_is_found() {
    for plant in Plant::ALL {
        let options = Options { plant, verbose: false };
        let found = (0..SEEDS).find_map(|seed| run_seed(seed, &options).err());
        let found = found.unwrap_or_else(|| panic!("{plant:?} went unnoticed for {SEEDS} seeds"));
        println!("{plant:?}: seed {}: {}", found.seed, found.what);
    }
}
