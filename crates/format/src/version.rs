//! The metadata versions, and where on a device each of them keeps its superblock.

use core::fmt;
use core::str::FromStr;
use raidus_units::{Sector, Sectors};
use thiserror::Error;

/// Bytes read and written for one superblock, in every version.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// [`SUPERBLOCK_BYTES`] in sectors.
pub const SUPERBLOCK_SECTORS: Sectors = Sectors(SUPERBLOCK_BYTES as u64 / raidus_units::SECTOR_BYTES);

/// Smallest device mdadm looks at for 1.x metadata.
const DEVICE_MIN_V1: Sectors = Sectors(24);
/// 0.90 reserves the last 64 KiB-aligned 64 KiB of the device.
const RESERVED_V090: Sectors = Sectors(128);

/// Where and how the superblock is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MetadataVersion {
    /// The old format, at the end, in the byte order of the host that made it.
    V0_90,
    /// At the end.
    V1_0,
    /// At the start.
    V1_1,
    /// 4 KiB after the start. The default.
    V1_2,
}

/// A metadata name that is not one of `0.90`, `1.0`, `1.1`, `1.2`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown metadata version '{0}' (known: 0.90 1.0 1.1 1.2)")]
pub struct UnknownMetadata(pub String);

impl MetadataVersion {
    /// All versions.
    pub const ALL: [MetadataVersion; 4] =
        [MetadataVersion::V0_90, MetadataVersion::V1_0, MetadataVersion::V1_1, MetadataVersion::V1_2];

    /// md's name: `1.2`.
    pub const fn name(self) -> &'static str {
        match self {
            MetadataVersion::V0_90 => "0.90",
            MetadataVersion::V1_0 => "1.0",
            MetadataVersion::V1_1 => "1.1",
            MetadataVersion::V1_2 => "1.2",
        }
    }

    /// Whether this is one of the 1.x formats.
    pub const fn is_v1(self) -> bool {
        !matches!(self, MetadataVersion::V0_90)
    }

    /// Where the superblock stands on a device of this size; `None` if the device is too small for one.
    pub const fn superblock_at(self, device: Sectors) -> Option<Sector> {
        match self {
            MetadataVersion::V0_90 => {
                let whole = device.round_down(RESERVED_V090);
                // At least as much data as superblock: a block at sector 0 would leave none.
                if whole.0 < 2 * RESERVED_V090.0 { None } else { Some(Sector(whole.0 - RESERVED_V090.0)) }
            }
            _ if device.0 < DEVICE_MIN_V1.0 => None,
            MetadataVersion::V1_0 => Some(Sector((device.0 - 16) & !7)),
            MetadataVersion::V1_1 => Some(Sector::ZERO),
            MetadataVersion::V1_2 => Some(Sector(8)),
        }
    }
}

impl fmt::Display for MetadataVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for MetadataVersion {
    type Err = UnknownMetadata;

    /// mdadm's spellings; `1`, `default` mean 1.2 and `0` means 0.90.
    fn from_str(s: &str) -> Result<MetadataVersion, UnknownMetadata> {
        Ok(match s {
            "0" | "0.9" | "0.90" => MetadataVersion::V0_90,
            "1.0" => MetadataVersion::V1_0,
            "1.1" => MetadataVersion::V1_1,
            "1" | "1.2" | "default" => MetadataVersion::V1_2,
            _ => return Err(UnknownMetadata(s.to_owned())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions() {
        let at = |v: MetadataVersion, n| v.superblock_at(Sectors(n)).map(|s| s.0);
        assert_eq!(at(MetadataVersion::V1_0, 16384), Some(16368));
        assert_eq!(at(MetadataVersion::V1_0, 16391), Some(16368));
        assert_eq!(at(MetadataVersion::V1_0, 16392), Some(16376));
        assert_eq!(at(MetadataVersion::V1_1, 24), Some(0));
        assert_eq!(at(MetadataVersion::V1_2, 24), Some(8));
        assert_eq!(at(MetadataVersion::V1_2, 23), None);
        assert_eq!(at(MetadataVersion::V0_90, 16384), Some(16256));
        assert_eq!(at(MetadataVersion::V0_90, 16383), Some(16128));
        assert_eq!(at(MetadataVersion::V0_90, 255), None);
    }

    #[test]
    fn the_whole_superblock_is_inside_the_device() {
        for device in (0..2000).map(Sectors) {
            for version in MetadataVersion::ALL {
                if let Some(at) = version.superblock_at(device) {
                    assert!(at + SUPERBLOCK_SECTORS <= Sector(device.0), "{version} on {device}");
                }
            }
        }
    }
}
