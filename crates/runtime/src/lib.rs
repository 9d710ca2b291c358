//! The runtime: runs the engine's state machines on io_uring, one reactor per core.
#![deny(missing_docs)]

mod array;
mod bare;
mod client;
mod compute;
mod counters;
mod local;
mod mailbox;
mod member_io;
pub mod members;
pub mod memory;
mod open;
mod reactor;
mod replay;
mod ring;
pub mod stream;

pub use array::{AddError, ArrayHandle, RunOptions, StartError, StopFailed, start};
pub use bare::{BareLayout, run_bare};
pub use client::{ArrayRequest, Client, Completion};
pub use counters::Tally;
pub use local::LocalClient;
pub use open::{
    CreateFailed, OpenError, OpenOptions, Opened, Prepared, candidate, create_array, open_array, open_devices, prepare,
    probe_device,
};
pub use replay::ReplayFailed;
pub use ring::RingError;
