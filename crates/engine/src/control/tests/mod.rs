//! Scripted scenarios: what is written, in which order, and what shards are told when.

mod badblocks;
mod broken;
mod dirty;
mod failures;
mod lazy;
mod level;
mod life;
mod logs;
mod pause;
mod rig;
mod sync;
mod walk;
