//! Copies: raid1, and raid10 with near, far and offset copies.
//!
//! raid10 in one picture: array chunks are laid over the slots row by row, each `near` times in a row; this whole band
//! is then repeated `far` times down the members, moved up `near` slots each time, so that no two copies share a
//! member. With the *offset* flag the bands are one row high and interleaved, without it they are as high as possible.
//! Slots may be divided into *far sets*; then the repetition moves only inside its set.

use crate::{GeometryError, GeometryParams, Holds, array_size, device_size, power_of_two};
use raidus_units::{Level, Sector, Sectors, Slot};

const OFFSET: u32 = 1 << 16;
/// raid_disks ÷ far slots in a set: leads to sets smaller than the copies need, so it was replaced.
const FAR_SETS_HISTORIC: u32 = 1 << 17;
/// near · far slots in a set.
const FAR_SETS: u32 = 1 << 18;

/// The shape of a raid1 or raid10 array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorGeometry {
    raid1: bool,
    raid_disks: u16,
    near: u16,
    far: u16,
    offset: bool,
    /// Slots in a far set, and the first slot of the last set, which also has what is left over.
    set: u16,
    last_set: u16,
    /// raid10 only.
    chunk_shift: u32,
    /// Array chunks; raid10 only.
    chunks: u64,
    /// Height of a band in chunks, and of a step down to the next far copy; raid10 only.
    band: u64,
    stride: u64,
    array_sectors: Sectors,
    component_sectors: Sectors,
}

impl MirrorGeometry {
    pub(crate) fn new_raid1(params: &GeometryParams<'_>) -> Result<MirrorGeometry, GeometryError> {
        let size = array_size(Level::Raid1, params.size.0, Sectors(1))?;
        Ok(MirrorGeometry {
            raid1: true,
            raid_disks: params.raid_disks,
            near: params.raid_disks,
            far: 1,
            offset: false,
            set: params.raid_disks,
            last_set: 0,
            chunk_shift: 0,
            chunks: 0,
            band: 0,
            stride: 0,
            array_sectors: size,
            component_sectors: size,
        })
    }

    pub(crate) fn new_raid10(params: &GeometryParams<'_>) -> Result<MirrorGeometry, GeometryError> {
        let chunk_shift = power_of_two(Level::Raid10, params.chunk)?;
        let size = device_size(params.size)?;
        let (layout, n) = (params.layout, params.raid_disks);
        let (near, far, offset) = copies_of(layout, n)?;
        let set = far_set(layout, n, near, far)?;
        // Fits: at most 2⁵¹ chunks in a member, 1920 members.
        let chunks = (size.0 >> chunk_shift) / u64::from(far) * u64::from(n) / u64::from(near);
        let array_sectors = array_size(Level::Raid10, chunks, params.chunk)?;
        let used = (chunks * u64::from(near) * u64::from(far)).div_ceil(u64::from(n));
        let band = if offset { 1 } else { used / u64::from(far) };
        Ok(MirrorGeometry {
            raid1: false,
            raid_disks: n,
            near,
            far,
            offset,
            set,
            last_set: (n / set - 1) * set,
            chunk_shift,
            chunks,
            band,
            stride: band,
            array_sectors,
            component_sectors: Sectors(used << chunk_shift),
        })
    }

    /// Whether this is raid1: every member is the array.
    pub fn is_raid1(&self) -> bool {
        self.raid1
    }

    /// Size of the array.
    pub fn array_sectors(&self) -> Sectors {
        self.array_sectors
    }

    /// Component sectors in use on every member.
    pub fn component_sectors(&self) -> Sectors {
        self.component_sectors
    }

    /// Number of slots.
    pub fn raid_disks(&self) -> u16 {
        self.raid_disks
    }

    /// Chunk size; zero for raid1.
    pub fn chunk(&self) -> Sectors {
        if self.raid1 { Sectors::ZERO } else { Sectors(1 << self.chunk_shift) }
    }

    /// Copies of each sector.
    pub fn copies(&self) -> usize {
        usize::from(self.near) * usize::from(self.far)
    }

    /// How many of `max` sectors from `array` on are in one piece in every copy. Not more than the rest of the chunk,
    /// except where every member is a plain image of the array (raid1, and raid10 with a near copy on each slot).
    pub fn piece(&self, array: Sector, max: Sectors) -> Sectors {
        if self.near == self.raid_disks {
            return max;
        }
        let chunk = 1u64 << self.chunk_shift;
        max.min(Sectors(chunk - (array.0 & (chunk - 1))))
    }

    /// Where copy `n` (less than [`copies`](Self::copies)) of `array` is, which must be inside the array. The near
    /// copies are the outer loop, so copy 0 is in the first band, followed by its far copies.
    pub fn copy(&self, array: Sector, n: usize) -> (Slot, Sector) {
        debug_assert!(n < self.copies() && array.0 < self.array_sectors.0, "copy {n} of {array}");
        if self.raid1 {
            return (Slot(n as u16), array);
        }
        let (near, far, disks) = (u64::from(self.near), n as u64 % u64::from(self.far), u64::from(self.raid_disks));
        // Chunk places of the first band, counted row by row; near copies follow each other.
        let place = (array.0 >> self.chunk_shift) * near + n as u64 / u64::from(self.far);
        let band_row = place / disks;
        let band_slot = (place % disks) as u16;
        let row = if self.offset { band_row * u64::from(self.far) } else { band_row } + far * self.stride;
        let in_chunk = array.0 & ((1 << self.chunk_shift) - 1);
        (Slot(self.step_up(band_slot, far as u16)), Sector((row << self.chunk_shift) + in_chunk))
    }

    /// What component sector `component` of the member in `slot` holds.
    pub fn locate(&self, slot: Slot, component: Sector) -> Holds {
        if slot.0 >= self.raid_disks || component.0 >= self.component_sectors.0 {
            return Holds::Nothing;
        }
        if self.raid1 {
            return Holds::Copy { array: component, copy: slot.index() };
        }
        let row = component.0 >> self.chunk_shift;
        let far = u64::from(self.far);
        let (band_row, far_copy) =
            if self.offset { (row / far, row % far) } else { (row % self.band, row / self.band) };
        let place = band_row * u64::from(self.raid_disks) + u64::from(self.step_down(slot.0, far_copy as u16));
        let (chunk, near_copy) = (place / u64::from(self.near), place % u64::from(self.near));
        if chunk >= self.chunks {
            return Holds::Nothing;
        }
        let in_chunk = component.0 & ((1 << self.chunk_shift) - 1);
        let copy = (near_copy * far + far_copy) as usize;
        Holds::Copy { array: Sector((chunk << self.chunk_shift) + in_chunk), copy }
    }

    /// Array sectors in one full row; zero for raid1.
    pub fn io_opt(&self) -> Sectors {
        let (disks, near) = (u64::from(self.raid_disks), u64::from(self.near));
        Sectors(self.chunk().0 * if disks.is_multiple_of(near) { disks / near } else { disks })
    }

    /// Whether at least one copy of everything is on the slots for which `in_sync` says so.
    ///
    /// For layouts without far sets this is md's rule: some member is in sync in every run of `copies` slots that
    /// begins at a multiple of `near`. With far sets md's rule misses some losses and sees others that are none; this
    /// looks at the slots that really share data.
    pub fn enough(&self, in_sync: &dyn Fn(Slot) -> bool) -> bool {
        if self.raid1 {
            return (0..self.raid_disks).any(|slot| in_sync(Slot(slot)));
        }
        let mut first = 0;
        loop {
            let copies = (0..self.near).map(|near| (first + near) % self.raid_disks);
            let mut slots = copies.flat_map(|slot| (0..self.far).map(move |far| self.step_up(slot, far)));
            if !slots.any(|slot| in_sync(Slot(slot))) {
                return false;
            }
            first = (first + self.near) % self.raid_disks;
            if first == 0 {
                return true;
            }
        }
    }

    /// The slot of the far copy number `far` of what `slot` holds in the first band.
    fn step_up(&self, slot: u16, far: u16) -> u16 {
        let (start, len) = self.set_of(slot);
        let place = slot - start + far * self.near;
        start + if place >= len { place - len } else { place }
    }

    /// The slot in the first band of which `slot` has the far copy number `far`.
    fn step_down(&self, slot: u16, far: u16) -> u16 {
        let (start, len) = self.set_of(slot);
        let (place, step) = (slot - start, far * self.near);
        start + if place >= step { place - step } else { place + len - step }
    }

    /// First slot and length of the far set of `slot`. Never shorter than the copies.
    fn set_of(&self, slot: u16) -> (u16, u16) {
        if slot >= self.last_set {
            (self.last_set, self.raid_disks - self.last_set)
        } else {
            (slot / self.set * self.set, self.set)
        }
    }
}

/// Near copies, far copies and the offset flag of a raid10 layout word.
fn copies_of(layout: u32, slots: u16) -> Result<(u16, u16, bool), GeometryError> {
    if layout >> 19 != 0 {
        return Err(GeometryError::Raid10Bits { layout });
    }
    let (near, far) = (layout & 0xff, layout >> 8 & 0xff);
    let copies = near * far;
    if copies < 2 || copies > u32::from(slots) {
        return Err(GeometryError::Raid10Copies { layout, copies, slots });
    }
    Ok((near as u16, far as u16, layout & OFFSET != 0))
}

/// Slots in a far set. Refuses the layouts in which md puts different data in the same place, and those in which a
/// set has less slots than copies. Where there are no far copies, sets and the offset flag mean nothing.
fn far_set(layout: u32, slots: u16, near: u16, far: u16) -> Result<u16, GeometryError> {
    let set = match layout & (FAR_SETS_HISTORIC | FAR_SETS) {
        0 => slots,
        FAR_SETS_HISTORIC => slots / far,
        FAR_SETS => near * far,
        _ => return Err(GeometryError::Raid10Bits { layout }),
    };
    if far == 1 {
        return Ok(slots);
    }
    let offset_wraps = near > 1 && layout & OFFSET != 0 && !slots.is_multiple_of(near);
    if set < near * far || offset_wraps || near > 1 && !slots.is_multiple_of(set) {
        return Err(GeometryError::Raid10Collision { layout, slots });
    }
    Ok(set)
}
