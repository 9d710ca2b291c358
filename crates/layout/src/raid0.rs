//! raid0: striping. Members of different sizes make *zones*: in each further zone the members that are full drop out.

use crate::{Extent, GeometryError, GeometryParams, Holds, array_size, data_sizes, page_multiple};
use raidus_units::{Level, Sector, Sectors, Slot};

/// How the zones past the first of a raid0 array are striped. Linux 3.14 changed it by accident, so there are two
/// ways; the superblock names the way only in arrays made since 2019.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Raid0Layout {
    /// The first member of a row follows from the chunk number in the whole array (before 3.14).
    Original,
    /// The first member of a row follows from the chunk number in the zone (since 3.14).
    Alternate,
    /// Nobody knows.
    #[default]
    Unknown,
}

/// The shape of a raid0 array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raid0Geometry {
    chunk: u64,
    array_sectors: Sectors,
    raid_disks: u16,
    /// Ascending, without gaps in the array.
    zones: Box<[Zone]>,
    /// The slots of each zone in slot order, zone after zone.
    slots: Box<[Slot]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Zone {
    array_start: u64,
    array_end: u64,
    component_start: u64,
    component_end: u64,
    /// Where the zone's slots begin in the list of slots.
    first: usize,
    /// Number of slots, at least 1.
    width: u64,
    /// Which of the zone's slots the zone's first chunk is on.
    phase: u64,
}

impl Raid0Layout {
    /// The layout from the superblock's `layout` field, which counts only when the superblock's feature bit for it is
    /// set (`marked`; there is no such bit in version 0.90).
    pub const fn from_superblock(layout: u32, marked: bool) -> Raid0Layout {
        match (layout, marked) {
            (1, true) => Raid0Layout::Original,
            (2, true) => Raid0Layout::Alternate,
            _ => Raid0Layout::Unknown,
        }
    }
}

impl Raid0Geometry {
    pub(crate) fn new(params: &GeometryParams<'_>) -> Result<Raid0Geometry, GeometryError> {
        let chunk = page_multiple(Level::Raid0, params.chunk)?;
        let sizes: Vec<u64> = data_sizes(params)?.iter().map(|s| s.round_down(chunk).0).collect();
        if let Some(slot) = sizes.iter().position(|s| *s == 0) {
            return Err(GeometryError::MemberTooSmall { slot: slot as u16, chunk });
        }
        let total = sizes.iter().try_fold(0u64, |sum, s| sum.checked_add(*s)).ok_or(GeometryError::TooLarge)?;
        array_size(Level::Raid0, total, Sectors(1))?;
        let (zones, slots) = zones(&sizes, chunk.0, params.raid0_layout)?;
        // md rounds each member down with a bit mask, which for a chunk that is no power of two takes away more than
        // the zones do. The array must have md's size.
        let array_sectors = Sectors(sizes.iter().map(|s| s & !(chunk.0 - 1)).sum());
        if array_sectors.is_zero() {
            return Err(GeometryError::Empty { level: Level::Raid0, chunk });
        }
        let (zones, slots) = (zones.into(), slots.into());
        Ok(Raid0Geometry { chunk: chunk.0, array_sectors, raid_disks: params.raid_disks, zones, slots })
    }

    /// Size of the array.
    pub fn array_sectors(&self) -> Sectors {
        self.array_sectors
    }

    /// Number of slots.
    pub fn raid_disks(&self) -> u16 {
        self.raid_disks
    }

    /// Chunk size.
    pub fn chunk(&self) -> Sectors {
        Sectors(self.chunk)
    }

    /// Number of zones: one more than the number of times a member fills up before another.
    pub fn zones(&self) -> usize {
        self.zones.len()
    }

    /// Sectors in use on the member in `slot`; zero if there is no such slot.
    pub fn member_sectors(&self, slot: Slot) -> Sectors {
        let last = self.zones.iter().rfind(|zone| self.zone_slots(zone).contains(&slot));
        last.map_or(Sectors::ZERO, |zone| Sectors(zone.component_end))
    }

    /// The first extent of the range of `max` sectors from `array`, which must be inside the array.
    pub fn map(&self, array: Sector, max: Sectors) -> Extent {
        debug_assert!(array.0 < self.array_sectors.0, "{array} is past the end");
        let zone = &self.zones[self.zones.partition_point(|zone| zone.array_end <= array.0)];
        let end = self.array_sectors.0.min(zone.array_end);
        let offset = array.0 - zone.array_start;
        if zone.width == 1 {
            return Extent {
                slot: self.slots[zone.first],
                component: Sector(zone.component_start + offset),
                len: max.min(Sectors(end - array.0)),
            };
        }
        let (chunk, in_chunk) = (offset / self.chunk, offset % self.chunk);
        let row = chunk / zone.width;
        let index = (chunk + zone.phase) % zone.width;
        Extent {
            slot: self.slots[zone.first + index as usize],
            component: Sector(zone.component_start + row * self.chunk + in_chunk),
            len: max.min(Sectors((self.chunk - in_chunk).min(end - array.0))),
        }
    }

    /// What component sector `component` of the member in `slot` holds.
    pub fn locate(&self, slot: Slot, component: Sector) -> Holds {
        let zone = self.zones.partition_point(|zone| zone.component_end <= component.0);
        let Some(zone) = self.zones.get(zone) else { return Holds::Nothing };
        let Ok(index) = self.zone_slots(zone).binary_search(&slot) else { return Holds::Nothing };
        let offset = component.0 - zone.component_start;
        let (row, in_chunk) = (offset / self.chunk, offset % self.chunk);
        let in_row = (index as u64 + zone.width - zone.phase) % zone.width;
        let array = zone.array_start + (row * zone.width + in_row) * self.chunk + in_chunk;
        if array < self.array_sectors.0 { Holds::Data { array: Sector(array) } } else { Holds::Nothing }
    }

    fn zone_slots(&self, zone: &Zone) -> &[Slot] {
        &self.slots[zone.first..zone.first + zone.width as usize]
    }
}

/// The zones of members with `sizes` (whole chunks, none zero), and their slots.
fn zones(sizes: &[u64], chunk: u64, layout: Raid0Layout) -> Result<(Vec<Zone>, Vec<Slot>), GeometryError> {
    let mut ends = sizes.to_vec();
    ends.sort_unstable();
    ends.dedup();
    let (mut zones, mut slots) = (Vec::new(), Vec::new());
    let (mut array_start, mut component_start) = (0, 0);
    for component_end in ends {
        let first = slots.len();
        slots.extend((0u16..).zip(sizes).filter(|(_, size)| **size > component_start).map(|(slot, _)| Slot(slot)));
        let width = (slots.len() - first) as u64;
        let original = (array_start / chunk) % width;
        let phase = match layout {
            Raid0Layout::Original => original,
            Raid0Layout::Alternate => 0,
            // Both ways give the same: in the first zone, with one member, or where the rows happen to begin alike.
            Raid0Layout::Unknown if original == 0 => 0,
            Raid0Layout::Unknown => return Err(GeometryError::Raid0LayoutUnknown),
        };
        let array_end = array_start + (component_end - component_start) * width;
        zones.push(Zone { array_start, array_end, component_start, component_end, first, width, phase });
        (array_start, component_start) = (array_end, component_end);
    }
    Ok((zones, slots))
}
