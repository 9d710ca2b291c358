//! What one seed plays: the array, the clients, and how much may go wrong.

use core::fmt;

use raidus_engine::Tunables;
use raidus_format::MetadataVersion;
use raidus_layout::{Geometry, GeometryParams, Raid0Layout};
use raidus_units::{Level, Nanos, Sectors, Slot};

use crate::rng::Rng;

/// An array and its circumstances, drawn from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub level: Level,
    pub layout: u32,
    pub raid_disks: u16,
    pub chunk: Sectors,
    /// Component size; unused by linear and raid0.
    pub size: Sectors,
    /// Data size of each member.
    pub data_sizes: Vec<Sectors>,
    pub metadata: MetadataVersion,
    /// Bytes per bit of the write-intent bitmap.
    pub bitmap_chunk: Option<u32>,
    /// Length of each member's partial parity log.
    pub log: Option<Sectors>,
    pub bad_block_log: bool,
    /// Slots that are empty from the start.
    pub missing: Vec<Slot>,
    /// Devices beside those of the slots.
    pub spares: u16,
    /// A slot being rebuilt, and how far it is.
    pub rebuilding: Option<(Slot, Sectors)>,
    pub tunables: Tunables,
    /// Lease region of arrays without bitmap (smaller than md's, so that a small array has several).
    pub region: Sectors,
    pub clients: Vec<ClientPlan>,
    /// Requests per round.
    pub requests: u64,
    pub rounds: u32,
    /// More may fail than the level survives: requests may then fail, but what succeeds must be right.
    pub lossy: bool,
    pub pace: Pace,
}

/// How a client behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientPlan {
    pub shard: u16,
    pub depth: usize,
    /// Largest request.
    pub len_max: u64,
    /// The part of the array it uses, as first sector and length.
    pub first: u64,
    pub span: u64,
    pub sequential: bool,
    /// Weights of read, write, FUA write, flush, discard, write-zeroes.
    pub mix: [u64; 6],
    /// Aligns requests to this many sectors.
    pub align: u64,
}

/// The scheduler's inclinations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Weights of: a machine's turn, a disk's I/O, a client's request.
    pub weights: [u64; 3],
    /// Most inputs of one turn.
    pub turn_max: u64,
    /// Usual time of a member I/O.
    pub io_time: Nanos,
    /// Percent of replies after which all clients pause.
    pub pause_percent: u64,
}

const KIB: u64 = 2;

impl Scenario {
    /// The scenario of a seed.
    pub(crate) fn draw(rng: &mut Rng) -> Scenario {
        let level = rng.pick(&[
            Level::Linear,
            Level::Raid0,
            Level::Raid1,
            Level::Raid1,
            Level::Raid4,
            Level::Raid5,
            Level::Raid5,
            Level::Raid5,
            Level::Raid6,
            Level::Raid6,
            Level::Raid6,
            Level::Raid10,
            Level::Raid10,
        ]);
        loop {
            let mut scenario = Scenario::draw_level(level, rng);
            // Some raid10 layouts do not go with some numbers of members.
            if scenario.geometry().is_some() {
                // From a stream of its own: what others draw does not depend on it.
                scenario.draw_log(&mut Rng::new(rng.clone().next() ^ 0x70_706c));
                return scenario;
            }
        }
    }

    fn draw_level(level: Level, rng: &mut Rng) -> Scenario {
        let raid_disks = draw_disks(level, rng);
        let chunk = Sectors(rng.pick(&[4, 4, 8, 16, 32, 64]) * KIB);
        // Zones of stripes are 1 MiB high: a few arrays have more than one.
        let chunks = if rng.percent(4) { rng.range(20, 40) * 64 * KIB / chunk.0 } else { rng.range(3, 12) };
        let size = if level == Level::Raid1 { Sectors(rng.range(16, 160) * 8) } else { Sectors(chunk.0 * chunks) };
        let metadata = rng.pick(&[
            MetadataVersion::V1_2,
            MetadataVersion::V1_2,
            MetadataVersion::V1_0,
            MetadataVersion::V1_1,
            MetadataVersion::V0_90,
        ]);
        let mut scenario = Scenario {
            level,
            layout: draw_layout(level, raid_disks, rng),
            raid_disks,
            chunk: if level == Level::Raid1 { Sectors::ZERO } else { chunk },
            size,
            data_sizes: (0..raid_disks).map(|_| draw_data_size(level, chunk, size, metadata, rng)).collect(),
            metadata,
            bitmap_chunk: (level.is_redundant() && rng.percent(50)).then(|| 4096 << rng.below(5)),
            log: None,
            bad_block_log: metadata.is_v1() && rng.percent(50),
            missing: Vec::new(),
            spares: if level.is_redundant() && rng.percent(40) { rng.range(1, 2) as u16 } else { 0 },
            rebuilding: None,
            tunables: draw_tunables(rng),
            region: Sectors(rng.pick(&[8, 16, 64, 256, 1 << 17])),
            clients: Vec::new(),
            requests: rng.pick(&[20, 60, 150, 400]),
            rounds: rng.range(1, 4) as u32,
            lossy: rng.percent(5),
            pace: draw_pace(rng),
        };
        scenario.draw_absences(rng);
        scenario.draw_clients(rng);
        scenario
    }

    /// The array's shape; `None` if there is no such array.
    pub(crate) fn geometry(&self) -> Option<Geometry> {
        Geometry::new(&GeometryParams {
            level: self.level,
            layout: self.layout,
            raid_disks: self.raid_disks,
            chunk: self.chunk,
            size: self.size,
            data_sizes: &self.data_sizes,
            raid0_layout: Raid0Layout::from_superblock(self.layout, self.raid0_layout_known()),
        })
        .ok()
    }

    /// Whether the superblock says which raid0 layout it is.
    pub(crate) fn raid0_layout_known(&self) -> bool {
        self.level == Level::Raid0 && self.metadata.is_v1()
    }

    /// Whether the array still has all data without these slots.
    pub(crate) fn survives_without(&self, lost: &[Slot]) -> bool {
        let gone = |s: Slot| {
            lost.contains(&s) || self.missing.contains(&s) || self.rebuilding.is_some_and(|(slot, _)| slot == s)
        };
        self.geometry().is_some_and(|g| g.enough(&|s| !gone(s)))
    }

    fn draw_absences(&mut self, rng: &mut Rng) {
        if !self.level.is_redundant() {
            return;
        }
        while rng.percent(15) {
            let slot = Slot(rng.below(u64::from(self.raid_disks)) as u16);
            if !self.missing.contains(&slot) && self.survives_without(&[slot]) {
                self.missing.push(slot);
            }
        }
        if self.metadata.is_v1() && rng.percent(10) {
            let slot = Slot(rng.below(u64::from(self.raid_disks)) as u16);
            let component = self.geometry().map_or(Sectors::ZERO, |g| g.component_sectors());
            if !self.missing.contains(&slot) && self.survives_without(&[slot]) {
                self.rebuilding = Some((slot, Sectors(rng.below(component.0 / 8 + 1) * 8)));
            }
        }
    }

    /// Partial parity logs, which exclude a bitmap.
    fn draw_log(&mut self, rng: &mut Rng) {
        if self.level == Level::Raid5 && self.metadata.is_v1() && rng.percent(50) {
            self.bitmap_chunk = None;
            // A ring from 528 sectors on.
            self.log = Some(Sectors(rng.pick(&[16, 24, 100, 264, 528, 600, 1024])));
        }
    }

    fn draw_clients(&mut self, rng: &mut Rng) {
        let Some(geometry) = self.geometry() else { return };
        let array = geometry.array_sectors().0;
        let stripe = geometry.io_opt().0.max(8);
        for _ in 0..rng.range(1, 4) {
            let span = if rng.percent(50) { array } else { rng.range(1, array.min(4 * stripe)) };
            self.clients.push(ClientPlan {
                shard: rng.below(u64::from(self.tunables.shards)) as u16,
                depth: rng.pick(&[1, 2, 4, 8, 16]),
                len_max: rng.pick(&[1, 8, 8, 32, stripe, 3 * stripe]),
                first: rng.below(array - span + 1),
                span,
                sequential: rng.percent(25),
                mix: rng.pick(&[
                    [40, 40, 8, 8, 2, 2],
                    [10, 80, 5, 5, 0, 0],
                    [0, 100, 0, 3, 0, 0],
                    [30, 30, 20, 10, 5, 5],
                    [80, 15, 1, 3, 1, 0],
                ]),
                align: rng.pick(&[1, 1, 8, 8, stripe]),
            });
        }
    }
}

fn draw_disks(level: Level, rng: &mut Rng) -> u16 {
    let (min, max) = match level {
        Level::Linear | Level::Raid0 => (1, 5),
        Level::Raid1 => (2, 4),
        Level::Raid4 | Level::Raid5 => (2, 7),
        Level::Raid6 => (4, 8),
        Level::Raid10 => (2, 6),
    };
    rng.range(min, max) as u16
}

fn draw_layout(level: Level, raid_disks: u16, rng: &mut Rng) -> u32 {
    match level {
        Level::Linear | Level::Raid1 | Level::Raid4 => 0,
        Level::Raid0 => rng.pick(&[1, 2]),
        Level::Raid5 => rng.pick(&[0, 1, 2, 2, 3, 4, 5]),
        Level::Raid6 => rng.pick(&[0, 1, 2, 2, 3, 4, 5, 8, 9, 10, 16, 17, 18, 19, 20]),
        Level::Raid10 => {
            let n3 = if raid_disks >= 3 { 0x103 } else { 0x102 };
            let f3 = if raid_disks >= 3 { 0x301 } else { 0x201 };
            let both = if raid_disks >= 4 { 0x202 } else { 0x102 };
            rng.pick(&[0x102, 0x102, 0x201, 0x1_0201, n3, f3, both])
        }
    }
}

/// Only linear and raid0 use members of different sizes. 0.90 does not store the size: all before the superblock counts.
fn draw_data_size(level: Level, chunk: Sectors, size: Sectors, metadata: MetadataVersion, rng: &mut Rng) -> Sectors {
    match level {
        Level::Linear | Level::Raid0 if metadata == MetadataVersion::V0_90 => Sectors(128 * rng.range(1, 3)),
        Level::Linear | Level::Raid0 => Sectors(chunk.0 * rng.range(2, 10)),
        _ => size,
    }
}

fn draw_tunables(rng: &mut Rng) -> Tunables {
    let segment_max = Sectors(rng.pick(&[8, 8, 16, 64, 512]));
    Tunables {
        shards: rng.pick(&[1, 1, 2, 3, 4]),
        segment_max,
        // Room for a few stripes only, so that admission is at work.
        scratch_bytes: segment_max.bytes() * rng.pick(&[16, 20, 40, 100]),
        requests_max: rng.pick(&[1, 2, 4, 16, 1024]),
        sync_frozen: rng.percent(20),
        sync_window: Sectors(rng.pick(&[8, 16, 64, 512, 2048])),
        sync_speed_min: rng.pick(&[1000, 100, 100_000]),
        ..Tunables::default()
    }
}

fn draw_pace(rng: &mut Rng) -> Pace {
    Pace {
        weights: rng.pick(&[[10, 10, 10], [2, 10, 20], [20, 2, 10], [10, 20, 2], [1, 1, 10]]),
        turn_max: rng.pick(&[1, 3, 10, 100]),
        io_time: Nanos(rng.pick(&[1_000, 100_000, 10_000_000])),
        pause_percent: rng.pick(&[0, 1, 1, 5]),
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} layout {:#x}, {} slots, chunk {}K, size {}K, metadata {}, bitmap {:?}, log {:?}, missing {:?}, {} spares, rebuilding {:?}, \
             {} shards, segment {}, scratch {}, requests_max {}, region {}, {} rounds of {} requests{}\n{:?}\n{:?}",
            self.level,
            self.layout,
            self.raid_disks,
            self.chunk.kib(),
            self.size.kib(),
            self.metadata,
            self.bitmap_chunk,
            self.log,
            self.missing,
            self.spares,
            self.rebuilding,
            self.tunables.shards,
            self.tunables.segment_max,
            self.tunables.scratch_bytes,
            self.tunables.requests_max,
            self.region,
            self.rounds,
            self.requests,
            if self.lossy { ", lossy" } else { "" },
            self.pace,
            self.clients,
        )
    }
}
