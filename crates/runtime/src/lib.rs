//! The runtime: runs the engine's state machines on io_uring, one reactor per core.
#![deny(missing_docs)]

pub mod members;
pub mod memory;
pub mod stream;
