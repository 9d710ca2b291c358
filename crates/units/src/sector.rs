//! Positions and lengths in 512-byte sectors, and lengths in bytes.

use core::fmt;
use core::ops::{Add, AddAssign, Sub, SubAssign};

/// Bytes in a sector.
pub const SECTOR_BYTES: u64 = 512;

/// A position, in sectors from some start (array, component or device; the context names it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sector(pub u64);

/// A length in sectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sectors(pub u64);

/// A length in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteLen(pub u64);

impl Sector {
    /// The start.
    pub const ZERO: Sector = Sector(0);
    /// md's "none": all ones on disk.
    pub const MAX: Sector = Sector(u64::MAX);

    /// The length from the start to here.
    pub const fn from_start(self) -> Sectors {
        Sectors(self.0)
    }

    /// The position in bytes. Only for positions that a device can have (below 2⁵⁵ sectors).
    pub const fn bytes(self) -> u64 {
        self.0 * SECTOR_BYTES
    }

    /// The position `n` further, or `None` if there is no such position.
    pub const fn checked_add(self, n: Sectors) -> Option<Sector> {
        match self.0.checked_add(n.0) {
            Some(s) => Some(Sector(s)),
            None => None,
        }
    }
}

impl Sectors {
    /// No sectors.
    pub const ZERO: Sectors = Sectors(0);

    /// `kib` KiB as sectors.
    pub const fn from_kib(kib: u64) -> Sectors {
        Sectors(kib * 2)
    }

    /// Whole sectors in `bytes`, rounded down.
    pub const fn from_bytes_floor(bytes: u64) -> Sectors {
        Sectors(bytes / SECTOR_BYTES)
    }

    /// Sectors needed to hold `bytes`.
    pub const fn from_bytes_ceil(bytes: u64) -> Sectors {
        Sectors(bytes.div_ceil(SECTOR_BYTES))
    }

    /// The length in bytes. Only for lengths that a device can have (below 2⁵⁵ sectors).
    pub const fn bytes(self) -> u64 {
        self.0 * SECTOR_BYTES
    }

    /// The length in KiB, rounded down.
    pub const fn kib(self) -> u64 {
        self.0 / 2
    }

    /// Whether there are none.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Rounded down to a multiple of `unit`; unchanged if `unit` is zero.
    #[must_use]
    pub const fn round_down(self, unit: Sectors) -> Sectors {
        if unit.0 == 0 { self } else { Sectors(self.0 - self.0 % unit.0) }
    }

    /// Rounded up to a multiple of `unit`; unchanged if `unit` is zero.
    #[must_use]
    pub const fn round_up(self, unit: Sectors) -> Sectors {
        if unit.0 == 0 { self } else { Sectors(self.0.div_ceil(unit.0) * unit.0) }
    }

    /// The difference, or zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Sectors) -> Sectors {
        Sectors(self.0.saturating_sub(other.0))
    }
}

impl From<Sectors> for ByteLen {
    fn from(s: Sectors) -> ByteLen {
        ByteLen(s.bytes())
    }
}

impl Add<Sectors> for Sector {
    type Output = Sector;
    fn add(self, n: Sectors) -> Sector {
        Sector(self.0 + n.0)
    }
}

impl AddAssign<Sectors> for Sector {
    fn add_assign(&mut self, n: Sectors) {
        self.0 += n.0;
    }
}

impl Sub<Sectors> for Sector {
    type Output = Sector;
    fn sub(self, n: Sectors) -> Sector {
        Sector(self.0 - n.0)
    }
}

impl Sub for Sector {
    type Output = Sectors;
    fn sub(self, earlier: Sector) -> Sectors {
        Sectors(self.0 - earlier.0)
    }
}

impl Add for Sectors {
    type Output = Sectors;
    fn add(self, n: Sectors) -> Sectors {
        Sectors(self.0 + n.0)
    }
}

impl AddAssign for Sectors {
    fn add_assign(&mut self, n: Sectors) {
        self.0 += n.0;
    }
}

impl Sub for Sectors {
    type Output = Sectors;
    fn sub(self, n: Sectors) -> Sectors {
        Sectors(self.0 - n.0)
    }
}

impl SubAssign for Sectors {
    fn sub_assign(&mut self, n: Sectors) {
        self.0 -= n.0;
    }
}

impl fmt::Display for Sector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Sectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding() {
        assert_eq!(Sectors(1001).round_down(Sectors(8)), Sectors(1000));
        assert_eq!(Sectors(1001).round_up(Sectors(8)), Sectors(1008));
        assert_eq!(Sectors(1001).round_down(Sectors(0)), Sectors(1001));
        assert_eq!(Sectors::from_bytes_ceil(513), Sectors(2));
        assert_eq!(Sectors::from_bytes_floor(1023), Sectors(1));
    }
}
