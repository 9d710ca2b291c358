//! A deterministic simulator for the raidus engine.
//!
//! One thread plays an array's life: the same state machines that the runtime drives, on virtual disks with a volatile cache, with
//! members that fail, slow down and vanish, power cuts at any step, and assembly from what is left on the disks. A seed decides
//! everything, so a failure is replayed by its number. An oracle knows for every sector what may be read from it; a
//! checker looks at the members behind the engine's back.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod assemble;
mod clones;
mod create;
pub mod cut;
mod disk;
mod faults;
mod inspect;
mod machines;
mod manager;
mod memory;
mod operator;
mod oracle;
mod plant;
mod rng;
mod run;
mod scenario;
mod scrub;
mod stamp;
mod trace;
mod workload;
mod world;

pub use plant::Plant;
pub use run::{Failure, Options, Stats, run_seed};
pub use world::Unflushed;
