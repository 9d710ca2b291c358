//! Planted bugs: lies told between the engine and its disks, to show that the simulator finds what it is for.
//!
//! Each lie stands for a mistake an engine could make. They are told outside the engine, so the engine under test
//! carries no switches for them.

use raidus_engine::MemberOp;
use raidus_units::Sector;

/// A mistake to pretend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plant {
    /// None: everything is done as asked.
    #[default]
    Honest,
    /// Data goes out before the bitmap bit is durable: bitmap writes stay volatile.
    BitmapNotAwaited,
    /// Data goes out before the dirty mark is durable: superblock writes stay volatile.
    DirtyMarkNotAwaited,
    /// Data goes out before it is logged: partial parity logs stay volatile.
    LogNotAwaited,
    /// Writes are acknowledged before the failure of a member is recorded: superblocks are not written after a failure.
    FailureNotRecorded,
    /// Flushes do nothing.
    FlushSkipped,
    /// FUA is forgotten.
    FuaForgotten,
    /// Now and then one of the writes of a stripe or of a mirror is forgotten.
    WriteForgotten,
    /// Now and then a write goes one sector further than it should.
    WriteMisplaced,
}

/// What is really done with an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    AsAsked,
    /// Success is reported, nothing done.
    Nothing,
    /// Done, but only in the cache, without the flush it implies.
    Volatile,
    /// Done this many sectors further.
    Shifted(u64),
}

impl Plant {
    /// All mistakes.
    pub const ALL: [Plant; 8] = [
        Plant::BitmapNotAwaited,
        Plant::DirtyMarkNotAwaited,
        Plant::LogNotAwaited,
        Plant::FailureNotRecorded,
        Plant::FlushSkipped,
        Plant::FuaForgotten,
        Plant::WriteForgotten,
        Plant::WriteMisplaced,
    ];

    /// What happens to `op`, the `count`th I/O of the round, on a member with its superblock at `superblock`;
    /// `failed` says whether a member has failed in this round.
    pub(crate) fn deed(self, op: &MemberOp, superblock: Sector, failed: bool, count: u64) -> Deed {
        let is_superblock = |s: &Sector| *s == superblock;
        match (self, op) {
            (Plant::BitmapNotAwaited, MemberOp::WriteMeta { sector, .. }) if !is_superblock(sector) => Deed::Volatile,
            (Plant::DirtyMarkNotAwaited, MemberOp::WriteMeta { sector, .. }) if is_superblock(sector) => Deed::Volatile,
            (Plant::LogNotAwaited, MemberOp::WriteLog { .. }) => Deed::Volatile,
            (Plant::FailureNotRecorded, MemberOp::WriteMeta { sector, .. }) if failed && is_superblock(sector) => {
                Deed::Nothing
            }
            (Plant::FlushSkipped, MemberOp::Flush) => Deed::Nothing,
            (Plant::FuaForgotten, MemberOp::Write { fua: true, .. } | MemberOp::WriteZeroes { fua: true, .. }) => {
                Deed::Volatile
            }
            (Plant::WriteForgotten, MemberOp::Write { .. }) if count % 61 == 60 => Deed::Nothing,
            (Plant::WriteMisplaced, MemberOp::Write { .. }) if count % 61 == 60 => Deed::Shifted(1),
            _ => Deed::AsAsked,
        }
    }
}
