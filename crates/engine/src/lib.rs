//! The raidus engine: a running md array as state machines without I/O.
//!
//! An array is run by N [`Shard`]s, which carry requests, and one [`Control`], which owns what there is only one of:
//! superblocks, event count, bitmap, member map. None of them does I/O, reads a clock, or shares memory with another.
//! A driver feeds them [`Input`]s and carries out their [`Output`]s; there are two drivers, the io_uring runtime and the
//! simulator, and both run this same code.
//!
//! One *turn* of a driver: feed every input that is there, call `end_turn`, then take outputs until there are none. Outputs
//! are carried out in the order they are given; a [`Compute`] is finished before the next output is looked at.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod config;
pub mod control;
mod io;
mod map;
mod msg;
mod open;
mod plan;
pub mod shard;
mod sync;

pub use config::{ArrayConfig, MemberSetup, Scratch, Tunables};
pub use control::Control;
pub use io::{
    Blocks, Compare, Compute, Input, IoToken, LogEntry, LogUnit, MemAddr, MemberError, MemberIo, MemberOp, Output,
    Reply, Request, RequestError, RequestId, RequestOp,
};
pub use map::{Member, MemberMap, MemberState, SlotEntry};
pub use msg::{LogWant, Message, Peer, Region, ShardId, StripeJob, StripeKind, Suspension};
pub use open::{REGION_DEFAULT, open};
pub use shard::Shard;
pub use sync::{Healed, Mismatch, Ranges, SyncAction, SyncJob, SyncOutcome, SyncWork};
