//! Image files as disks with sectors of 4096 bytes ("4Kn"), for which loop devices stand.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::{said, scratch};

/// Set to skip, with a word, what this machine cannot do.
const NO_TOOLS: &str = "RAIDUS_TEST_NO_TOOLS";

/// Disks with large sectors; the devices go when it is dropped, the images stay.
pub struct LargeSectors {
    /// The files.
    pub images: Vec<PathBuf>,
    /// The devices.
    pub loops: Vec<PathBuf>,
}

impl LargeSectors {
    /// Bytes of a sector.
    pub const BLOCK: u32 = 4096;

    /// Makes `count` images of this size.
    pub fn new(dir: &Path, count: usize, mib: u64) -> Result<LargeSectors> {
        let images: Vec<PathBuf> = (0..count).map(|n| dir.join(format!("disk{n}"))).collect();
        for image in &images {
            File::create(image)?.set_len(mib << 20)?;
        }
        LargeSectors::of(images)
    }

    /// Of images that are there.
    pub fn of(images: Vec<PathBuf>) -> Result<LargeSectors> {
        let mut disks = LargeSectors { images, loops: Vec::new() };
        for image in &disks.images {
            let size = format!("--sector-size={}", LargeSectors::BLOCK);
            let name = said(Command::new("losetup").args(["--find", "--show", &size]).arg(image))?;
            disks.loops.push(name.trim_end().into());
        }
        Ok(disks)
    }

    /// Whether this machine can have such devices; says why not.
    ///
    /// # Panics
    /// If it cannot, unless the user said that it need not.
    pub fn possible() -> bool {
        let dir = scratch();
        let Err(why) = LargeSectors::new(dir.path(), 1, 1) else { return true };
        assert!(
            std::env::var_os(NO_TOOLS).is_some(),
            "no loop devices: {why:#}; set {NO_TOOLS} to skip what needs them"
        );
        eprintln!("skipped, no loop devices: {why:#}");
        false
    }
}

impl Drop for LargeSectors {
    fn drop(&mut self) {
        for device in &self.loops {
            let _ = Command::new("losetup").arg("--detach").arg(device).status();
        }
    }
}
