//! The runtime: runs the engine's state machines on io_uring, one reactor per core.
#![deny(missing_docs)]

mod compute;
mod counters;
mod member_io;
pub mod members;
pub mod memory;
mod ring;
pub mod stream;

pub use counters::Tally;
pub use ring::RingError;
