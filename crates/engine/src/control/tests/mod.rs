//! Scripted scenarios: what is written, in which order, and what shards are told when.

mod broken;
mod dirty;
mod failures;
mod lazy;
mod life;
mod rig;
mod walk;
