//! raidus against the real kernel: what one side wrote, the other reads, and finds consistent.
//!
//! The kernel runs as User Mode Linux with image files as its disks ([`Guest`]); raidus runs in this process on the same
//! files ([`Raidus`]). Nothing here needs privileges beyond those of an ordinary user.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod guest;
mod judge;
mod raidus;

pub use guest::{Guest, Outcome};
pub use judge::{Exhibit, Judgement, judge};
pub use raidus::{Raidus, Rng, sum};
