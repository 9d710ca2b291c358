//! Arrays made by raidus for tests.

use std::path::{Path, PathBuf};

use anyhow::Result;
use raidus_assembly::create::{BitmapWish, CreateDevice, CreateParams, NewMember, Policy, plan};
use raidus_format::{MdUuid, MetadataVersion, Timestamp};
use raidus_runtime::create_array;
use raidus_runtime::members::{MemberDevice, OpenMode};
use raidus_units::{Level, Sectors};

use crate::Rng;

/// An array to be made by raidus.
#[derive(Clone, Copy, Debug)]
pub struct New {
    /// RAID level.
    pub level: Level,
    /// md's number; `None` for mdadm's default.
    pub layout: Option<u32>,
    /// Slots.
    pub n: u16,
    /// Format.
    pub metadata: MetadataVersion,
    /// Chunk; raid1 has none.
    pub chunk_kib: u64,
    /// With a write-intent bitmap.
    pub bitmap: bool,
    /// With a partial parity log on each member.
    pub ppl: bool,
    /// Nothing is resynced; the images begin with zeroes.
    pub assume_clean: bool,
    /// Devices beside the slots.
    pub spares: u16,
    /// Slots without a device, from the first.
    pub missing: usize,
    /// Size of each image.
    pub mib: u64,
}

impl New {
    /// Tells it from the others.
    pub fn name(&self) -> String {
        let New { level, layout, n, metadata, chunk_kib, bitmap, assume_clean, spares, missing, .. } = self;
        format!("{level}-{layout:?}-{metadata}-n{n}-{chunk_kib}k-{bitmap}-{assume_clean}-x{spares}-m{missing}")
    }

    /// How many images it has.
    pub fn disks(&self) -> usize {
        usize::from(self.n + self.spares) - self.missing
    }

    /// Makes it on new images, which begin with garbage unless they are assumed clean.
    pub fn create(&self, dir: &Path, rng: &mut Rng) -> Result<Vec<PathBuf>> {
        std::fs::create_dir_all(dir)?;
        let mut images = Vec::new();
        let mut devices = Vec::new();
        let mut members = Vec::new();
        let mut random = || -> MdUuid {
            let mut bytes = [0; 16];
            rng.fill(&mut bytes);
            MdUuid(bytes)
        };
        let uuid = random();
        for i in 0..usize::from(self.n + self.spares) {
            if i < self.missing {
                devices.push(None);
                members.push(CreateDevice::Missing);
                continue;
            }
            let path = dir.join(format!("disk{i}"));
            let content = if self.assume_clean { Vec::new() } else { garbage(i as u64) };
            std::fs::write(&path, content)?;
            std::fs::File::options().write(true).open(&path)?.set_len(self.mib << 20)?;
            let device = MemberDevice::open(&path, OpenMode::READ_WRITE)?;
            members.push(CreateDevice::Present(NewMember {
                name: path.display().to_string(),
                size: device.size(),
                uuid: random(),
                write_mostly: false,
                failfast: false,
                data_offset: None,
                old_superblocks: vec![],
            }));
            images.push(path);
            devices.push(Some(device));
        }
        let plan = plan(&CreateParams {
            metadata: self.metadata,
            level: self.level,
            raid_disks: self.n,
            spares: self.spares,
            devices: members,
            chunk: (self.level != Level::Raid1).then(|| Sectors::from_kib(self.chunk_kib)),
            layout: self.layout,
            size: None,
            data_offset: None,
            bitmap: if self.bitmap { BitmapWish::Internal { chunk: Some(65536) } } else { BitmapWish::None },
            policy: self.ppl.then_some(Policy::Ppl),
            write_behind: None,
            assume_clean: self.assume_clean,
            force: false,
            name: (self.metadata != MetadataVersion::V0_90).then(|| "made".into()),
            homehost: Some("raidus".into()),
            uuid,
            now: Timestamp { secs: 1_800_000_000, micros: 0 },
            preferred_minor: 0,
        })?;
        create_array(&plan, &devices)?;
        Ok(images)
    }
}

fn garbage(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; 8 << 20];
    Rng(seed + 99).fill(&mut bytes);
    bytes
}

/// Every level and layout, in many states.
pub fn new_arrays() -> Vec<New> {
    use Level::{Linear, Raid0, Raid1, Raid4, Raid5, Raid6, Raid10};
    let base = New {
        level: Raid5,
        layout: None,
        n: 4,
        metadata: MetadataVersion::V1_2,
        chunk_kib: 64,
        bitmap: false,
        ppl: false,
        assume_clean: true,
        spares: 0,
        missing: 0,
        mib: 8,
    };
    let mut all = vec![
        New { level: Linear, n: 3, ..base },
        New { level: Raid0, n: 3, ..base },
        New { level: Raid1, n: 2, ..base },
        New { level: Raid1, n: 3, bitmap: true, ..base },
        New { level: Raid1, n: 2, assume_clean: false, ..base },
        New { level: Raid1, n: 2, assume_clean: false, bitmap: true, ..base },
        New { level: Raid1, n: 2, missing: 1, ..base },
        New { level: Raid4, ..base },
        New { level: Raid6, n: 5, ..base },
        New { level: Raid6, n: 5, assume_clean: false, ..base },
        New { level: Raid6, n: 5, missing: 2, ..base },
        New { level: Raid6, n: 6, chunk_kib: 4, bitmap: true, assume_clean: false, ..base },
        New { level: Raid5, chunk_kib: 512, n: 3, ..base },
        New { assume_clean: false, ..base },
        New { assume_clean: false, bitmap: true, ..base },
        New { missing: 1, ..base },
        New { spares: 1, bitmap: true, ..base },
        New { level: Raid10, layout: Some(0x102), ..base },
        New { level: Raid10, layout: Some(0x102), n: 3, assume_clean: false, ..base },
        New { level: Raid10, layout: Some(0x201), bitmap: true, ..base },
        New { level: Raid10, layout: Some(0x10201), n: 5, assume_clean: false, ..base },
    ];
    for metadata in [MetadataVersion::V0_90, MetadataVersion::V1_0, MetadataVersion::V1_1] {
        all.push(New { metadata, ..base });
        all.push(New { metadata, bitmap: true, assume_clean: false, level: Raid6, ..base });
        all.push(New { metadata, bitmap: true, level: Raid1, n: 2, ..base });
        all.push(New { metadata, level: Raid10, assume_clean: false, ..base });
    }
    all.extend((0..=5).map(|layout| New { layout: Some(layout), ..base }));
    all.extend([0, 1, 3, 4, 5, 8, 9, 10, 16, 17, 18, 19, 20].map(|layout| New {
        level: Raid6,
        layout: Some(layout),
        n: 5,
        ..base
    }));
    all
}
