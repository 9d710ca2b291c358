//! A mounted array of members in memory.
#![allow(dead_code, unused_imports, reason = "each test binary uses its part")]

mod tools;

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use raidus_engine::Tunables;
use raidus_format::{
    ArrayUpdate, DeviceState, Geometry as StoredGeometry, MdUuid, MemberUpdate, MetadataVersion, NewSuperblock,
    ResyncMark, Role, Superblock, Timestamp,
};
use raidus_fuse::{AttributeFile, Mount, MountError, MountOptions, Texts, WriteError, mount};
use raidus_runtime::members::{MemberDevice, MemoryDevice, MemoryOp};
use raidus_runtime::{ArrayHandle, RunOptions, open_devices, start};
use raidus_units::{Level, Sector, Sectors, Slot};

pub use tools::{Loop, can_mount, run, tool};

const SUPERBLOCK: Sector = Sector(8);
const DATA: Sector = Sector(2048);
const CHUNK: Sectors = Sectors::from_kib(64);

/// An array that is mounted.
pub struct Mounted {
    pub array: Arc<ArrayHandle>,
    pub mount: Mount,
    flushes: Arc<AtomicU64>,
    devices: Vec<Arc<MemoryDevice>>,
    block: u32,
    dir: tempfile::TempDir,
}

/// Members, which outlive the array that runs on them.
pub struct Members {
    devices: Vec<Arc<MemoryDevice>>,
    flushes: Arc<AtomicU64>,
    /// Their logical block size.
    pub block: u32,
}

impl Members {
    /// A clean array with this much of each member used.
    pub fn new(level: Level, count: u16, component: Sectors) -> Members {
        let flushes = Arc::new(AtomicU64::new(0));
        let device = |n: u16| {
            let device = MemoryDevice::new(DATA + component - Sector::ZERO).unwrap();
            device.write(SUPERBLOCK.bytes(), &superblock(level, count, n, component).encode()).unwrap();
            let flushes = Arc::clone(&flushes);
            device.on_io(move |op| {
                if matches!(op, MemoryOp::Flush) {
                    flushes.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            });
            Arc::new(device)
        };
        Members { devices: (0..count).map(device).collect(), flushes, block: 512 }
    }

    /// Runs the array without some members.
    pub fn start(&self, without: &[usize]) -> Arc<ArrayHandle> {
        let devices = self.devices.iter().enumerate().filter(|(n, _)| !without.contains(n));
        let device =
            |(n, device)| MemberDevice::memory(&format!("memory{n}"), Arc::clone(device)).with_block(self.block);
        let devices = devices.map(device);
        let tunables = Tunables { shards: 2, scratch_bytes: 8 << 20, ..Tunables::default() };
        let assembly = raidus_assembly::Options { run: true, ..raidus_assembly::Options::default() };
        let options = raidus_runtime::OpenOptions { tunables, assembly, ..raidus_runtime::OpenOptions::default() };
        let opened = open_devices(devices.collect(), &options).unwrap();
        let run = RunOptions { pool_bytes: 4 << 20, pin: false, ..RunOptions::default() };
        Arc::new(start(opened.config, opened.members, run).unwrap())
    }

    pub fn mount(self, options: MountOptions) -> Mounted {
        let array = self.start(&[]);
        let dir = tempfile::tempdir().unwrap();
        let mount = mount(Arc::clone(&array), dir.path(), "md0", files(&array), options).unwrap();
        Mounted { array, mount, flushes: self.flushes, devices: self.devices, block: self.block, dir }
    }
}

fn files(array: &Arc<ArrayHandle>) -> Arc<dyn Texts> {
    Arc::new(Shown { array: Arc::clone(array), opened: AtomicU64::new(0), limit: Mutex::new("max".to_owned()) })
}

/// A few texts, and a value that can be set.
struct Shown {
    array: Arc<ArrayHandle>,
    opened: AtomicU64,
    limit: Mutex<String>,
}

impl Texts for Shown {
    fn mdstat(&self) -> String {
        format!("opened {} times\n", self.opened.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn attributes(&self) -> Vec<AttributeFile> {
        let all = [("array_state", false), ("level", false), ("sync_max", true), ("dev-a/state", true)];
        let file = |(path, writable): (&str, bool)| AttributeFile { path: path.to_owned(), writable };
        // A member that leaves when the limit is 0.
        let gone = *self.limit.lock().unwrap() == "0";
        all.into_iter().filter(|(path, _)| !gone || !path.contains('/')).map(file).collect()
    }

    fn read(&self, path: &str) -> Option<String> {
        Some(match path {
            "array_state" => {
                self.array.status().map_or("inactive\n".to_owned(), |s| format!("{}\n", s.array_state.name()))
            }
            "sync_max" => format!("{}\n", self.limit.lock().unwrap()),
            "dev-a/state" => "in_sync\n".to_owned(),
            _ => "raid6\n".to_owned(),
        })
    }

    fn write(&self, path: &str, value: &str) -> Result<(), WriteError> {
        match (path, value.trim()) {
            ("sync_max", number) if number.parse::<u64>().is_ok() => *self.limit.lock().unwrap() = number.to_owned(),
            ("sync_max", _) => return Err(WriteError::Invalid),
            _ => return Err(WriteError::Busy),
        }
        Ok(())
    }
}

impl Mounted {
    pub fn new(level: Level, count: u16, component: Sectors) -> Mounted {
        Members::new(level, count, component).mount(MountOptions::default())
    }

    /// The array's file.
    pub fn path(&self) -> PathBuf {
        self.mount.file().to_owned()
    }

    pub fn open(&self) -> File {
        OpenOptions::new().read(true).write(true).open(self.path()).unwrap()
    }

    pub fn size(&self) -> u64 {
        self.array.size().bytes()
    }

    /// Flushes the members got so far.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// A second mount at the same place.
    pub fn mount_again(&self) -> Result<Mount, MountError> {
        mount(Arc::clone(&self.array), self.dir.path(), "md0", files(&self.array), MountOptions::default())
    }

    /// What the array holds, asked from the array itself.
    pub fn contents(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size() as usize];
        self.array.client().read_at(0, &mut bytes).unwrap();
        bytes
    }

    /// Unmounts and stops in order.
    pub fn stop(self) -> Members {
        let array = Arc::clone(&self.array);
        let members = self.unmounted();
        array.stop().unwrap();
        members
    }

    /// Unmounts what serves nobody any more.
    pub fn unmounted(mut self) -> Members {
        self.mount.unmount().unwrap();
        Members { devices: self.devices, flushes: self.flushes, block: self.block }
    }
}

fn superblock(level: Level, count: u16, n: u16, component: Sectors) -> Superblock {
    let device = |slot: u16| {
        let mut state = DeviceState::new(Role::Slot(Slot(slot)));
        state.in_sync = true;
        Some(state)
    };
    Superblock::create(&NewSuperblock {
        metadata: MetadataVersion::V1_2,
        uuid: MdUuid([7; 16]),
        name: "fuse".to_owned(),
        ctime: Timestamp::from_secs(1_700_000_000),
        device_uuid: MdUuid([n as u8; 16]),
        super_offset: SUPERBLOCK,
        data_offset: DATA,
        data_size: component,
        bad_block_log: None,
        preferred_minor: 0,
        array: ArrayUpdate {
            events: 1,
            utime: Timestamp::from_secs(1_700_000_000),
            resync: ResyncMark::Clean { good_to: None },
            devices: (0..count).map(device).collect(),
            bitmap: None,
            ppl: None,
            journal: false,
            reshape: None,
            geometry: StoredGeometry {
                level: level.number(),
                layout: if level == Level::Raid1 { 0 } else { 2 },
                raid0_layout_known: false,
                size: component,
                chunk: if level == Level::Raid1 { Sectors::ZERO } else { CHUNK },
                raid_disks: count.into(),
            },
        },
        member: MemberUpdate::new(n.into()),
    })
    .unwrap()
}

/// A small generator of numbers; the same seed gives the same ones.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            chunk.copy_from_slice(&(self.0 ^ self.0 >> 29).to_le_bytes()[..chunk.len()]);
        }
    }
}
