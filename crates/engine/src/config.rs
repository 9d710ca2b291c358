//! What an array is started from: the outcome of assembly.

use std::sync::Arc;

use raidus_format::bitmap::LoadedBitmap;
use raidus_layout::Geometry;
use raidus_units::{Level, Nanos, Sector, Sectors};

use crate::io::MemAddr;
use crate::map::MemberMap;

/// An array that has been decided on: every superblock read and judged, nothing written yet.
#[derive(Clone, Debug)]
pub struct ArrayConfig {
    /// The mapping.
    pub geometry: Geometry,
    /// The first member map.
    pub map: Arc<MemberMap>,
    /// Superblock and its place per member, by member id. Those of faulty members are never written.
    pub members: Vec<MemberSetup>,
    /// The internal write-intent bitmap, if the array has one.
    pub bitmap: Option<LoadedBitmap>,
    /// Size of a lease region: the bitmap chunk, or 64 MiB.
    pub region: Sectors,
    /// Settings.
    pub tunables: Tunables,
    /// Wall clock seconds at `Nanos(0)`, for utime.
    pub epoch_seconds: u64,
}

impl ArrayConfig {
    /// The most partial parity that a unit of a member's log takes, if the array has partial parity logs.
    pub(crate) fn log_room(&self) -> Option<Sectors> {
        let area = self.members.first()?.superblock.array().ppl?;
        (self.geometry.level() == Level::Raid5).then(|| area.unit_room())
    }
}

/// A member's metadata as read.
#[derive(Clone, Debug)]
pub struct MemberSetup {
    /// Its superblock, as it will be updated and written back.
    pub superblock: raidus_format::Superblock,
    /// Device sector of the superblock.
    pub super_sector: Sector,
}

/// Settings of a running array, md's names where md has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunables {
    /// Number of shards.
    pub shards: u16,
    /// Idle time after which a dirty array is marked clean (md: 200 ms).
    pub safe_mode_delay: Nanos,
    /// Longest piece of a chunk that is worked on at once.
    pub segment_max: Sectors,
    /// Scratch memory of a shard, in bytes.
    pub scratch_bytes: u64,
    /// Requests a shard works on at once; the others wait in arrival order.
    pub requests_max: usize,
    /// Nothing is resynced or rebuilt until told to (md's `sync_action` is `frozen`).
    pub sync_frozen: bool,
    /// Sectors of each member that are synced in one go, at most; writes there wait meanwhile.
    pub sync_window: Sectors,
    /// KiB per second and member that a sync does at least, though clients are busy.
    pub sync_speed_min: u64,
    /// KiB per second and member that a sync does at most.
    pub sync_speed_max: u64,
}

impl Default for Tunables {
    fn default() -> Tunables {
        Tunables {
            shards: 1,
            safe_mode_delay: Nanos::from_millis(200),
            segment_max: Sectors(512),
            scratch_bytes: 32 << 20,
            requests_max: 1024,
            sync_frozen: false,
            sync_window: Sectors(2048),
            sync_speed_min: 1000,
            sync_speed_max: u64::MAX,
        }
    }
}

/// Scratch memory a driver gives a shard: contiguous, aligned to 4096 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scratch {
    /// Start.
    pub base: MemAddr,
    /// Length in bytes.
    pub bytes: u64,
    /// `Tunables::segment_max` of zeroes that nobody writes.
    pub zeroes: MemAddr,
}
