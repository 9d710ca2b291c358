//! raidus against the real kernel: what one side wrote, the other reads, and finds consistent.
//!
//! The kernel runs as User Mode Linux with image files as its disks ([`Guest`]); raidus runs in this process on the same
//! files ([`Raidus`]), or as a [process](program) of its own that can be killed. Only what mounts a raidus array on this machine
//! needs root; the rest runs as any user.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod content;
mod guest;
mod judge;
mod ledger;
mod loops;
mod nbd;
mod new;
mod parts;
pub mod program;
mod raidus;
mod work;

pub use content::{Content, said};
pub use guest::{Guest, Outcome, slow};
pub use judge::{Exhibit, Judgement, judge};
pub use ledger::{Found, Ledger, Write, Writer, stamped, writers};
pub use loops::LargeSectors;
pub use nbd::NbdClient;
pub use new::{New, new_arrays};
pub use parts::{PARTS_MAX, partition};
pub use raidus::{Raidus, Rng, sum};
pub use work::{by_boots, in_parallel, scratch};
