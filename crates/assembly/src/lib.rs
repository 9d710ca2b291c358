//! Assembly: which devices make an array, how a new one is laid out, and the reasons for both in words.
//!
//! [`decide`] applies md's rules to what stands on a set of devices: the freshest superblock speaks for the array,
//! members that missed updates stay out, doubtful sets are refused with the reason and what to do about it.
//! [`create::plan`] works out every byte to be written for a new array. Both are pure: no device is touched, the same
//! input gives the same answer. Neither panics on what it finds on a disk.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod bitmap;
mod candidate;
pub mod create;
mod decide;
mod decision;
mod explain;
mod replay;
mod screen;
mod seats;

pub use candidate::{Area, AreaKind, Candidate, Found, JournalLog, Need};
pub use decide::decide;
pub use decision::{
    Assembled, Decision, Forced, Group, MemberSays, MemberVerdict, Options, Out, Reason, Seat, Seated, Standing,
    Verdict,
};
pub use explain::{ArrayReport, MemberReport, ReasonReport, Report, explain, report};
pub use replay::{Disks, JournalReplay, PplReplay, Replay, ReplayError};
