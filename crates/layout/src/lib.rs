//! Where md puts each sector of an array: array addresses to member slots and component addresses, and back, for every
//! level and layout.
//!
//! [`Geometry::new`] checks numbers that came from a disk or a user. What it returns is valid, so the mapping functions
//! neither fail nor allocate: they stand in the path of every request.
//!
//! Addresses: an *array* address counts sectors from the start of the array; a *component* address counts sectors from
//! the start of a member's data area (its device sector minus its data offset).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod error;
mod linear;
mod mirror;
pub mod names;
mod parity;
mod raid0;

pub use error::GeometryError;
pub use linear::LinearGeometry;
pub use mirror::MirrorGeometry;
pub use parity::{ParityGeometry, Row};
pub use raid0::{Raid0Geometry, Raid0Layout};

use raidus_units::{Level, Sector, Sectors, Slot};

/// The largest array and the largest member, in sectors: block devices count bytes in a signed 64-bit offset.
pub const SECTORS_MAX: Sectors = Sectors(1 << 54);

/// The most slots an array can have: what the role table of a version 1 superblock holds.
pub const SLOTS_MAX: u16 = 1920;

/// The most slots of a parity array: the coefficients of Q repeat after 255.
pub const PARITY_SLOTS_MAX: u16 = 255;

/// A page: chunks of striped arrays are multiples of it.
const PAGE: Sectors = Sectors(8);

/// What the superblocks say about the shape of an array. Unchecked.
#[derive(Clone, Debug)]
pub struct GeometryParams<'a> {
    /// RAID level.
    pub level: Level,
    /// md's layout number. Its meaning depends on the level; levels 0, 1, 4 and linear ignore it.
    pub layout: u32,
    /// Number of slots.
    pub raid_disks: u16,
    /// Chunk size. Ignored by raid1; for linear the rounding of member sizes, or zero.
    pub chunk: Sectors,
    /// Component size from the superblock. Ignored by linear and raid0.
    pub size: Sectors,
    /// Size of each slot's data area. Needed by linear and raid0, may be empty for the others.
    pub data_sizes: &'a [Sectors],
    /// Which of the two raid0 layouts the array has. Ignored by other levels.
    pub raid0_layout: Raid0Layout,
}

/// The shape of an array, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Geometry {
    /// Members one after the other.
    Linear(LinearGeometry),
    /// Striping without redundancy.
    Raid0(Raid0Geometry),
    /// Copies: raid1 and raid10.
    Mirror(MirrorGeometry),
    /// Parity: raid4, raid5, raid6.
    Parity(ParityGeometry),
}

/// A run of sectors on one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The member's slot.
    pub slot: Slot,
    /// First component sector.
    pub component: Sector,
    /// Length.
    pub len: Sectors,
}

/// What a sector of a member holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// The only place of an array sector (linear, raid0 and the data of parity levels).
    Data {
        /// The array sector.
        array: Sector,
    },
    /// P (the exclusive or) of a row.
    P {
        /// The row: component address ÷ chunk.
        row: u64,
    },
    /// Q (the second parity) of a row.
    Q {
        /// The row: component address ÷ chunk.
        row: u64,
    },
    /// One of the copies of an array sector (raid1, raid10).
    Copy {
        /// The array sector.
        array: Sector,
        /// Which copy, as [`MirrorGeometry::copy`] counts them.
        copy: usize,
    },
    /// Nothing: past the end of what the array uses.
    Nothing,
}

impl Geometry {
    /// Checks `params` and works out the shape.
    pub fn new(params: &GeometryParams<'_>) -> Result<Geometry, GeometryError> {
        let level = params.level;
        let (min, max) = match level {
            Level::Linear | Level::Raid0 | Level::Raid1 => (1, SLOTS_MAX),
            Level::Raid4 | Level::Raid5 => (2, PARITY_SLOTS_MAX),
            Level::Raid6 => (4, PARITY_SLOTS_MAX),
            Level::Raid10 => (2, SLOTS_MAX),
        };
        let got = params.raid_disks;
        if got < min {
            return Err(GeometryError::TooFewSlots { level, got, min });
        }
        if got > max {
            return Err(GeometryError::TooManySlots { level, got, max });
        }
        Ok(match level {
            Level::Linear => Geometry::Linear(LinearGeometry::new(params)?),
            Level::Raid0 => Geometry::Raid0(Raid0Geometry::new(params)?),
            Level::Raid1 => Geometry::Mirror(MirrorGeometry::new_raid1(params)?),
            Level::Raid10 => Geometry::Mirror(MirrorGeometry::new_raid10(params)?),
            Level::Raid4 | Level::Raid5 | Level::Raid6 => Geometry::Parity(ParityGeometry::new(params)?),
        })
    }

    /// Size of the array.
    pub fn array_sectors(&self) -> Sectors {
        match self {
            Geometry::Linear(g) => g.array_sectors(),
            Geometry::Raid0(g) => g.array_sectors(),
            Geometry::Mirror(g) => g.array_sectors(),
            Geometry::Parity(g) => g.array_sectors(),
        }
    }

    /// Number of slots.
    pub fn raid_disks(&self) -> u16 {
        match self {
            Geometry::Linear(g) => g.raid_disks(),
            Geometry::Raid0(g) => g.raid_disks(),
            Geometry::Mirror(g) => g.raid_disks(),
            Geometry::Parity(g) => g.raid_disks(),
        }
    }

    /// RAID level.
    pub fn level(&self) -> Level {
        match self {
            Geometry::Linear(_) => Level::Linear,
            Geometry::Raid0(_) => Level::Raid0,
            Geometry::Mirror(g) if g.is_raid1() => Level::Raid1,
            Geometry::Mirror(_) => Level::Raid10,
            Geometry::Parity(g) => g.level(),
        }
    }

    /// Chunk size; zero for raid1, the rounding of member sizes for linear.
    pub fn chunk(&self) -> Sectors {
        match self {
            Geometry::Linear(g) => g.rounding(),
            Geometry::Raid0(g) => g.chunk(),
            Geometry::Mirror(g) => g.chunk(),
            Geometry::Parity(g) => g.chunk(),
        }
    }

    /// Component sectors in use on a member. The same on every slot but for linear and raid0, where it is the largest.
    pub fn component_sectors(&self) -> Sectors {
        match self {
            Geometry::Linear(g) => (0..g.raid_disks()).map(|s| g.member_sectors(Slot(s))).max().unwrap_or_default(),
            Geometry::Raid0(g) => (0..g.raid_disks()).map(|s| g.member_sectors(Slot(s))).max().unwrap_or_default(),
            Geometry::Mirror(g) => g.component_sectors(),
            Geometry::Parity(g) => g.component_sectors(),
        }
    }

    /// Component sectors in use on the member in `slot`.
    pub fn member_sectors(&self, slot: Slot) -> Sectors {
        match self {
            Geometry::Linear(g) => g.member_sectors(slot),
            Geometry::Raid0(g) => g.member_sectors(slot),
            Geometry::Mirror(g) => g.component_sectors(),
            Geometry::Parity(g) => g.component_sectors(),
        }
    }

    /// What component sector `component` of the member in `slot` holds.
    pub fn locate(&self, slot: Slot, component: Sector) -> Holds {
        match self {
            Geometry::Linear(g) => g.locate(slot, component),
            Geometry::Raid0(g) => g.locate(slot, component),
            Geometry::Mirror(g) => g.locate(slot, component),
            Geometry::Parity(g) => g.locate(slot, component),
        }
    }

    /// Array sectors in one full stripe, which is the best size and alignment for I/O (`optimal_io_size`); zero where
    /// there is no such size (linear, raid1).
    pub fn io_opt(&self) -> Sectors {
        match self {
            Geometry::Linear(_) => Sectors::ZERO,
            Geometry::Raid0(g) => Sectors(g.chunk().0 * u64::from(g.raid_disks())),
            Geometry::Mirror(g) => g.io_opt(),
            Geometry::Parity(g) => g.stripe_data_sectors(),
        }
    }

    /// Whether the array's content is complete when only the slots for which `in_sync` says so are there.
    pub fn enough(&self, in_sync: &dyn Fn(Slot) -> bool) -> bool {
        match self {
            Geometry::Linear(_) | Geometry::Raid0(_) => (0..self.raid_disks()).all(|s| in_sync(Slot(s))),
            Geometry::Mirror(g) => g.enough(in_sync),
            Geometry::Parity(g) => g.enough(in_sync),
        }
    }
}

/// `chunk` if striping over it is possible: a multiple of a page, no larger than an array can be.
fn page_multiple(level: Level, chunk: Sectors) -> Result<Sectors, GeometryError> {
    if chunk.is_zero() || !chunk.0.is_multiple_of(PAGE.0) || chunk > SECTORS_MAX {
        return Err(GeometryError::Chunk { level, chunk, rule: "a multiple of 4 KiB" });
    }
    Ok(chunk)
}

/// `log2` of `chunk` if it is a power of two of at least a page.
fn power_of_two(level: Level, chunk: Sectors) -> Result<u32, GeometryError> {
    if !chunk.0.is_power_of_two() || chunk < PAGE || chunk > SECTORS_MAX {
        return Err(GeometryError::Chunk { level, chunk, rule: "a power of two of at least 4 KiB" });
    }
    Ok(chunk.0.trailing_zeros())
}

/// `size` if a device can have it.
fn device_size(size: Sectors) -> Result<Sectors, GeometryError> {
    if size > SECTORS_MAX { Err(GeometryError::TooLarge) } else { Ok(size) }
}

/// The data sizes of all slots, each one a device can have.
fn data_sizes<'a>(params: &GeometryParams<'a>) -> Result<&'a [Sectors], GeometryError> {
    let sizes = params.data_sizes;
    if sizes.len() != usize::from(params.raid_disks) {
        return Err(GeometryError::DataSizes { level: params.level, need: params.raid_disks, got: sizes.len() });
    }
    for size in sizes {
        device_size(*size)?;
    }
    Ok(sizes)
}

/// Array size from `units` of `unit` sectors: not nothing, not more than a block device can have.
fn array_size(level: Level, units: u64, unit: Sectors) -> Result<Sectors, GeometryError> {
    match units.checked_mul(unit.0).map(Sectors) {
        Some(Sectors::ZERO) => Err(GeometryError::Empty { level, chunk: unit }),
        Some(size) => device_size(size),
        None => Err(GeometryError::TooLarge),
    }
}
