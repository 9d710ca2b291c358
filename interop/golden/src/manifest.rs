//! `manifest.json`: how an array was made, what the kernel said about it, and what it contains.

use serde::{Deserialize, Deserializer, de};

/// One array. Values the kernel gave as text (sysfs) are kept as text.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Manifest {
    /// Name of the array.
    pub name: String,
    /// What was done to it after creation: `plain`, `dirty`, `degraded`, …
    pub scenario: String,
    /// Kernel that made it.
    pub kernel: String,
    /// mdadm that made it.
    pub mdadm: String,
    /// The command it was created with.
    pub create: String,
    /// `raid5`, `linear`, …
    pub level: String,
    /// Layout number; −1 where the kernel shows none.
    pub layout: i64,
    /// Chunk in bytes.
    pub chunk_bytes: u64,
    /// Number of slots.
    pub raid_disks: u32,
    /// `1.2`; `0.91` for 0.90 while reshaping.
    pub metadata: String,
    /// Size of the array in bytes.
    pub size_bytes: u64,
    /// Component size in KiB.
    pub component_size_kib: u64,
    /// Identity, as mdadm shows it.
    pub uuid: String,
    /// sysfs `array_state`.
    pub array_state: String,
    /// sysfs `degraded`; `None` for levels without redundancy.
    pub degraded: Option<u32>,
    /// sysfs `sync_action`; empty for levels without redundancy.
    pub sync_action: String,
    /// sysfs `sync_completed`.
    pub sync_completed: String,
    /// sysfs `resync_start` in sectors; `None` if it says `none`.
    #[serde(deserialize_with = "position")]
    pub resync_start: Option<u64>,
    /// sysfs `reshape_position` in sectors; `None` if it says `none`.
    #[serde(deserialize_with = "position")]
    pub reshape_position: Option<u64>,
    /// sysfs `consistency_policy`.
    pub consistency_policy: String,
    /// sysfs `bitmap/`.
    pub bitmap: Bitmap,
    /// sysfs `mismatch_cnt` after a check, where one was made.
    pub mismatch_cnt: Option<u64>,
    /// What the array contains; `None` where that is not known.
    pub pattern: Option<Vec<PatternRange>>,
    /// SHA-256 of the whole array as the kernel read it.
    pub kernel_read_sha256: Option<String>,
    /// The disks, in the order of their images.
    pub members: Vec<Member>,
    /// Arrays whose machine was killed: what the kernel made of them afterwards.
    pub after_crash: Option<AfterCrash>,
}

/// sysfs `bitmap/`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Bitmap {
    /// `none`, or the distance from the superblock: `+8`.
    pub location: String,
    /// Bytes per bit.
    pub chunk_bytes: u64,
    /// Room in sectors.
    pub space_sectors: u64,
}

/// Bytes `start` … `end` of the array: every sector has the pattern of one of these generations.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PatternRange(
    /// First byte.
    pub u64,
    /// Behind the last byte.
    pub u64,
    /// The generations.
    pub Vec<u8>,
);

/// One disk.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Member {
    /// Name of its image.
    pub image: String,
    /// Size of the image.
    pub bytes: u64,
    /// Slot number, `"none"`, `"journal"`, or null for a disk that is not in the array.
    pub slot: serde_json::Value,
    /// sysfs `state`, or `not in the array`.
    pub state: String,
    /// Where its data area begins; absent for a disk that is not in the array, like all that follows.
    pub data_offset_sectors: Option<u64>,
    /// Sectors used, in KiB.
    pub size_kib: Option<u64>,
    /// Sectors that are rebuilt; `None` if the disk is in sync.
    #[serde(default, deserialize_with = "position")]
    pub recovery_start: Option<u64>,
    /// Bad blocks: device sector and length.
    #[serde(default)]
    pub bad_blocks: Vec<(u64, u64)>,
    /// Device sector of the partial parity log.
    pub ppl_sector: Option<u64>,
    /// Its length in sectors.
    pub ppl_size: Option<u64>,
}

/// What the kernel made of the images of a killed machine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct AfterCrash {
    /// Whether mdadm assembled them.
    pub assembled: bool,
    /// Whether it needed `--force`.
    pub needed_force: bool,
    /// SHA-256 of the array then.
    pub kernel_read_sha256: Option<String>,
    /// How many sectors had which generation of the pattern.
    pub sectors: serde_json::Value,
}

impl Member {
    /// The slot, if the disk holds one.
    pub fn slot_number(&self) -> Option<u16> {
        self.slot.as_u64().and_then(|slot| slot.try_into().ok())
    }

    /// Whether the array was using the disk, in whatever role.
    pub fn is_in_array(&self) -> bool {
        !self.slot.is_null()
    }
}

/// A number, or the word `none`.
fn position<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    match value.as_u64() {
        Some(number) => Ok(Some(number)),
        None if value == "none" => Ok(None),
        None => Err(de::Error::custom(format!("neither a number nor 'none': {value}"))),
    }
}
