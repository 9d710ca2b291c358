//! What RAID metadata a device carries.
//!
//! Reading is the caller's: ask [`probe_areas`] what to read, hand the bytes to [`probe`].

use crate::foreign::{self, Foreign};
use crate::{Concern, MetadataVersion, RawSuperblock, SUPERBLOCK_BYTES, SUPERBLOCK_SECTORS, SbError, Superblock};
use raidus_units::{SECTOR_BYTES, Sector, Sectors};

/// Superblocks and anchors begin and end on 4 KiB boundaries, or at the end of the device.
const ALIGNMENT: Sectors = SUPERBLOCK_SECTORS;

/// Bytes read from a device.
#[derive(Clone, Copy, Debug)]
pub struct ProbeRead<'a> {
    /// Where.
    pub at: Sector,
    /// What was there; may be shorter than asked for.
    pub bytes: &'a [u8],
}

/// Everything found on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probe {
    /// md superblocks, usable or not, in the order of [`MetadataVersion::ALL`].
    pub md: Vec<Found>,
    /// Other formats.
    pub foreign: Vec<Foreign>,
}

/// One md superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The version that keeps its superblock there.
    pub version: MetadataVersion,
    /// Where.
    pub at: Sector,
    /// For showing it, even if it cannot be used.
    pub raw: Option<RawSuperblock>,
    /// For using it, or why not.
    pub superblock: Result<Superblock, SbError>,
    /// What the caller must weigh against the device.
    pub concerns: Vec<Concern>,
}

/// What to read of a device of this size: ascending ranges that do not overlap, none of them long.
pub fn probe_areas(device: Sectors) -> Vec<(Sector, Sectors)> {
    let superblocks = MetadataVersion::ALL.into_iter().filter_map(|v| v.superblock_at(device));
    let places = superblocks.map(|at| (at, SUPERBLOCK_SECTORS));
    let anchors = foreign::anchors(device).map(|(_, at)| (at, Sectors(1)));
    let mut areas: Vec<(Sector, Sector)> = places
        .chain(anchors)
        .map(|(at, len)| {
            let start = at.from_start().round_down(ALIGNMENT);
            let end = Sectors(at.0.saturating_add(len.0)).0.next_multiple_of(ALIGNMENT.0).min(device.0);
            (Sector(start.0), Sector(end))
        })
        .collect();
    areas.sort_unstable();
    let mut merged: Vec<(Sector, Sector)> = Vec::with_capacity(areas.len());
    for (start, end) in areas {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged.into_iter().map(|(start, end)| (start, end - start)).collect()
}

/// Looks for metadata in what was read of a device of this size.
pub fn probe(device: Sectors, reads: &[ProbeRead<'_>]) -> Probe {
    let md = MetadataVersion::ALL.into_iter().filter_map(|version| find(version, device, reads)).collect();
    let mut foreign: Vec<Foreign> = foreign::anchors(device)
        .filter(|(kind, at)| slice(reads, *at, SECTOR_BYTES as usize).is_some_and(|b| foreign::is_anchor(*kind, b)))
        .map(|(kind, _)| kind)
        .collect();
    foreign.dedup();
    Probe { md, foreign }
}

fn find(version: MetadataVersion, device: Sectors, reads: &[ProbeRead<'_>]) -> Option<Found> {
    let at = version.superblock_at(device)?;
    let block = slice(reads, at, SUPERBLOCK_BYTES)?;
    Some(match RawSuperblock::recognise(block, version, at) {
        Err(SbError::NoMagic { .. }) => return None,
        Err(error) => Found { version, at, raw: None, superblock: Err(error), concerns: Vec::new() },
        Ok(raw) => {
            let concerns = raw.concerns(device);
            Found { version, at, superblock: raw.clone().check(), raw: Some(raw), concerns }
        }
    })
}

/// `len` bytes at device sector `at`, if one of the reads has them.
fn slice<'a>(reads: &[ProbeRead<'a>], at: Sector, len: usize) -> Option<&'a [u8]> {
    reads.iter().find_map(|read| {
        let skip = at.0.checked_sub(read.at.0)?.checked_mul(SECTOR_BYTES)?;
        read.bytes.get(usize::try_from(skip).ok()?..)?.get(..len)
    })
}

impl Probe {
    /// The usable superblock that mdadm would take: of several the one of the array created last.
    pub fn newest(&self) -> Option<&Superblock> {
        let usable = self.md.iter().filter_map(|found| found.superblock.as_ref().ok());
        // Of equal ones the first, so the comparison must not prefer later ones.
        usable.reduce(|best, sb| if sb.array().ctime > best.array().ctime { sb } else { best })
    }

    /// Whether there is nothing at all.
    pub fn is_empty(&self) -> bool {
        self.md.is_empty() && self.foreign.is_empty()
    }
}
