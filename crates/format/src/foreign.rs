//! Metadata of other RAID formats: recognised so that nobody writes over it, and nothing more.

use core::fmt;
use raidus_units::{SECTOR_BYTES, Sector, Sectors};

/// RAID metadata that is not md's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Foreign {
    /// Intel Matrix Storage (firmware RAID, VROC).
    Imsm,
    /// SNIA Disk Data Format (hardware RAID controllers).
    Ddf,
}

const IMSM_SIGNATURE: &[u8] = b"Intel Raid ISM Cfg Sig. ";
const DDF_MAGIC: &[u8] = &[0xde, 0x11, 0xde, 0x11];

/// Where the anchors of foreign formats are on a device of this size, in logical blocks of 512 or 4096 bytes.
pub(crate) fn anchors(device: Sectors) -> impl Iterator<Item = (Foreign, Sector)> {
    let blocks = [1, 4096 / SECTOR_BYTES];
    let places = blocks.into_iter().flat_map(|block| [(Foreign::Imsm, 2 * block), (Foreign::Ddf, block)]);
    places.filter_map(move |(kind, from_end)| Some((kind, Sector(device.0.checked_sub(from_end)?))))
}

/// Whether the bytes of an anchor's place begin with that anchor.
pub(crate) fn is_anchor(kind: Foreign, bytes: &[u8]) -> bool {
    bytes.starts_with(match kind {
        Foreign::Imsm => IMSM_SIGNATURE,
        Foreign::Ddf => DDF_MAGIC,
    })
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Foreign::Imsm => "Intel IMSM",
            Foreign::Ddf => "DDF",
        })
    }
}
