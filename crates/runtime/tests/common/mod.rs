//! Arrays on memory members, made by the real planner and opened by the real assembly.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::sync::Arc;

use raidus_assembly::Options;
use raidus_assembly::create::{BitmapWish, CreateDevice, CreateParams, NewMember, plan};
use raidus_engine::Tunables;
use raidus_format::{MdUuid, MetadataVersion, Timestamp};
use raidus_runtime::members::{MemberDevice, MemoryDevice};
use raidus_runtime::{ArrayHandle, OpenError, OpenOptions, Opened, RunOptions, create_array, open_devices, start};
use raidus_units::{Level, Sectors};

/// Members in memory, kept while arrays on them come and go.
pub struct Disks(pub Vec<Arc<MemoryDevice>>);

/// What to make.
#[derive(Clone, Copy)]
pub struct Shape {
    pub level: Level,
    pub disks: u16,
    pub layout: Option<u32>,
    pub bitmap: bool,
}

pub fn shape(level: Level, disks: u16) -> Shape {
    Shape { level, disks, layout: None, bitmap: false }
}

pub const CHUNK: Sectors = Sectors::from_kib(64);

impl Disks {
    /// An array of this shape, in sync from the start.
    pub fn create(shape: Shape, size: Sectors) -> Disks {
        let disks = Disks((0..shape.disks).map(|_| Arc::new(MemoryDevice::new(size).unwrap())).collect());
        let members = disks.members();
        create_array(&plan(&params(shape, &members)).unwrap(), &members.into_iter().map(Some).collect::<Vec<_>>())
            .unwrap();
        disks
    }

    pub fn members(&self) -> Vec<MemberDevice> {
        self.0.iter().enumerate().map(|(i, d)| MemberDevice::memory(&format!("disk{i}"), d.clone())).collect()
    }

    pub fn open(&self, without: &[usize], threads: u16, assembly: Options) -> Result<Opened, OpenError> {
        let members = self.members().into_iter().enumerate();
        let members = members.filter(|(i, _)| !without.contains(i)).map(|(_, m)| m).collect();
        let tunables = Tunables { shards: threads, scratch_bytes: 8 << 20, ..Tunables::default() };
        open_devices(members, &OpenOptions { assembly, tunables, ..OpenOptions::default() })
    }

    pub fn start(&self, without: &[usize], threads: u16) -> ArrayHandle {
        let options = Options { run: true, ..Options::default() };
        let Opened { config, members, .. } = self.open(without, threads, options).unwrap();
        start(config, members, RunOptions { pool_bytes: 4 << 20, ..RunOptions::default() }).unwrap()
    }
}

pub fn params(shape: Shape, members: &[MemberDevice]) -> CreateParams {
    let uuid = |n: u8| MdUuid([n; 16]);
    let devices = (0u8..).zip(members).map(|(i, m)| {
        CreateDevice::Present(NewMember {
            name: m.name().display().to_string(),
            size: m.size(),
            uuid: uuid(i + 1),
            write_mostly: false,
            failfast: false,
            data_offset: None,
            old_superblocks: Vec::new(),
        })
    });
    CreateParams {
        metadata: MetadataVersion::V1_2,
        level: shape.level,
        raid_disks: shape.disks,
        spares: 0,
        devices: devices.collect(),
        chunk: (shape.level != Level::Raid1).then_some(CHUNK),
        layout: shape.layout,
        size: None,
        data_offset: Some(Sectors(2048)),
        bitmap: if shape.bitmap { BitmapWish::Internal { chunk: None } } else { BitmapWish::None },
        policy: None,
        write_behind: None,
        assume_clean: true,
        force: false,
        name: Some("test".into()),
        homehost: None,
        uuid: uuid(100),
        now: Timestamp { secs: 1_700_000_000, ..Timestamp::default() },
        preferred_minor: 0,
    }
}

/// A small generator of numbers; the same seed gives the same ones.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            chunk.copy_from_slice(&(self.0 ^ self.0 >> 29).to_le_bytes()[..chunk.len()]);
        }
    }
}
