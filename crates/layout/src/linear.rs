//! Linear: members one after the other, in slot order.

use crate::{Extent, GeometryError, GeometryParams, Holds, array_size, data_sizes};
use raidus_units::{Level, Sector, Sectors, Slot};

/// The shape of a linear array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearGeometry {
    rounding: Sectors,
    /// Array address where each slot starts, and at the end the size of the array.
    starts: Box<[u64]>,
}

impl LinearGeometry {
    pub(crate) fn new(params: &GeometryParams<'_>) -> Result<LinearGeometry, GeometryError> {
        let rounding = params.chunk;
        let mut starts = vec![0];
        let mut end = 0u64;
        for size in data_sizes(params)? {
            // At most 1920 · 2⁵⁴, which does not fit: checked.
            end = end.checked_add(size.round_down(rounding).0).ok_or(GeometryError::TooLarge)?;
            starts.push(end);
        }
        array_size(Level::Linear, end, Sectors(1))?;
        Ok(LinearGeometry { rounding, starts: starts.into() })
    }

    /// Size of the array.
    pub fn array_sectors(&self) -> Sectors {
        Sectors(self.starts[self.starts.len() - 1])
    }

    /// Number of slots.
    pub fn raid_disks(&self) -> u16 {
        (self.starts.len() - 1) as u16
    }

    /// What member sizes are rounded down to; zero if they are not.
    pub fn rounding(&self) -> Sectors {
        self.rounding
    }

    /// Sectors in use on the member in `slot`; zero if there is no such slot.
    pub fn member_sectors(&self, slot: Slot) -> Sectors {
        match self.starts.get(slot.index()..slot.index() + 2) {
            Some(bounds) => Sectors(bounds[1] - bounds[0]),
            None => Sectors::ZERO,
        }
    }

    /// The first extent of the range of `max` sectors from `array`, which must be inside the array.
    pub fn map(&self, array: Sector, max: Sectors) -> Extent {
        debug_assert!(array.0 < self.array_sectors().0, "{array} is past the end");
        // Slots without room start where the next one starts; this finds the last of those.
        let slot = self.starts.partition_point(|start| *start <= array.0) - 1;
        Extent {
            slot: Slot(slot as u16),
            component: Sector(array.0 - self.starts[slot]),
            len: max.min(Sectors(self.starts[slot + 1] - array.0)),
        }
    }

    /// What component sector `component` of the member in `slot` holds.
    pub fn locate(&self, slot: Slot, component: Sector) -> Holds {
        if component.0 < self.member_sectors(slot).0 {
            Holds::Data { array: Sector(self.starts[slot.index()] + component.0) }
        } else {
            Holds::Nothing
        }
    }
}
