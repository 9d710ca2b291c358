//! Parity: raid4, raid5, raid6 and their algorithms.
//!
//! An algorithm is a rule for three things, each of which has few variants: how P moves from row to row, where Q is
//! relative to P, and in which order the data chunks take the slots that are left. A fourth, the order of the
//! coefficients of Q, is not always the order of the data.

use crate::{GeometryError, GeometryParams, Holds, array_size, device_size, power_of_two};
use raidus_units::{Level, Sector, Sectors, Slot};

/// "No Q" in a [`Row`].
const NONE: u16 = u16::MAX;

/// The shape of a raid4, raid5 or raid6 array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParityGeometry {
    level: Level,
    layout: u32,
    algorithm: Algorithm,
    raid_disks: u16,
    data_disks: u16,
    chunk_shift: u32,
    rows: u64,
}

/// Which slot has which part in one row of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    p: u16,
    /// `NONE` if there is none.
    q: u16,
    /// Data chunk `i` is on slot `i + low` if `i < split`, else on `i + high` (wrapping). This covers both orders of
    /// data: those that skip the parities and those that start behind them and wrap.
    split: u16,
    low: u16,
    high: u16,
    raid_disks: u16,
    data_disks: u16,
    coefficients: Coefficients,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Algorithm {
    p: PMoves,
    q: QPlace,
    data: DataOrder,
    coefficients: Coefficients,
}

/// How P moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PMoves {
    /// On slot 0 in every row.
    First,
    /// On the last slot (the last but one if Q is behind it) in every row.
    Last,
    /// From the first slot up.
    Up,
    /// From the last slot down.
    Down,
    /// From the last slot but one down.
    DownFromSecondLast,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QPlace {
    /// No Q: raid4, raid5.
    None,
    /// On the slot after P, wrapping.
    AfterP,
    /// On the slot before P, wrapping.
    BeforeP,
    /// On the last slot in every row; the rest is a raid5 over the other slots.
    Last,
}

/// Order of the data chunks of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DataOrder {
    /// Slots upward, skipping the parities ("asymmetric").
    Skip,
    /// From the slot behind the parities, wrapping ("symmetric").
    Follow,
}

/// Which power of the generator a data chunk has in Q.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coefficients {
    /// Data chunks are counted by slot, from the slot after Q on, wrapping.
    FromQ,
    /// The slot's number. The parities use up theirs too (the DDF layouts).
    SlotNumber,
}

impl ParityGeometry {
    pub(crate) fn new(params: &GeometryParams<'_>) -> Result<ParityGeometry, GeometryError> {
        let (level, layout) = (params.level, params.layout);
        let algorithm = algorithm(level, layout).ok_or(GeometryError::UnknownAlgorithm { level, layout })?;
        let chunk_shift = power_of_two(level, params.chunk)?;
        let rows = device_size(params.size)?.0 >> chunk_shift;
        let data_disks = params.raid_disks - level.parities();
        // Fits: at most 2⁵¹ rows of 254 chunks.
        array_size(level, rows * u64::from(data_disks), params.chunk)?;
        Ok(ParityGeometry { level, layout, algorithm, raid_disks: params.raid_disks, data_disks, chunk_shift, rows })
    }

    /// RAID level: 4, 5 or 6.
    pub fn level(&self) -> Level {
        self.level
    }

    /// md's number of the algorithm, as it was given.
    pub fn layout(&self) -> u32 {
        self.layout
    }

    /// Number of slots.
    pub fn raid_disks(&self) -> u16 {
        self.raid_disks
    }

    /// Data chunks in a row.
    pub fn data_disks(&self) -> u16 {
        self.data_disks
    }

    /// Parity chunks in a row: 1 or 2.
    pub fn parities(&self) -> u16 {
        self.raid_disks - self.data_disks
    }

    /// Chunk size, a power of two.
    pub fn chunk(&self) -> Sectors {
        Sectors(1 << self.chunk_shift)
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Size of the array.
    pub fn array_sectors(&self) -> Sectors {
        Sectors((self.rows * u64::from(self.data_disks)) << self.chunk_shift)
    }

    /// Component sectors in use on every member.
    pub fn component_sectors(&self) -> Sectors {
        Sectors(self.rows << self.chunk_shift)
    }

    /// Array sectors in one row.
    pub fn stripe_data_sectors(&self) -> Sectors {
        Sectors(u64::from(self.data_disks) << self.chunk_shift)
    }

    /// Row, data index in the row, and offset in the chunk of an array sector. The component sector is
    /// [`component`](Self::component) of row and offset, the slot [`Row::data`] of the index.
    pub fn map(&self, array: Sector) -> (u64, u16, Sectors) {
        let chunk = array.0 >> self.chunk_shift;
        let data_disks = u64::from(self.data_disks);
        (chunk / data_disks, (chunk % data_disks) as u16, Sectors(array.0 & self.chunk_mask()))
    }

    /// The array sector at `offset` in data chunk `i` of `row`: the inverse of [`map`](Self::map).
    pub fn array(&self, row: u64, i: u16, offset: Sectors) -> Sector {
        Sector(((row * u64::from(self.data_disks) + u64::from(i)) << self.chunk_shift) + offset.0)
    }

    /// The component sector at `offset` in the chunks of `row`.
    pub fn component(&self, row: u64, offset: Sectors) -> Sector {
        Sector((row << self.chunk_shift) + offset.0)
    }

    /// Row and offset in the chunk of a component sector: the inverse of [`component`](Self::component).
    pub fn row_at(&self, component: Sector) -> (u64, Sectors) {
        (component.0 >> self.chunk_shift, Sectors(component.0 & self.chunk_mask()))
    }

    /// Who has which part in `row`.
    pub fn row(&self, row: u64) -> Row {
        let n = self.raid_disks;
        // P and data move over all slots, but leave the last alone if it is kept for Q.
        let cycle = if self.algorithm.q == QPlace::Last { n - 1 } else { n };
        let turn = || (row % u64::from(cycle)) as u16;
        let p = match self.algorithm.p {
            PMoves::First => 0,
            PMoves::Last => self.data_disks,
            PMoves::Up => turn(),
            PMoves::Down => cycle - 1 - turn(),
            PMoves::DownFromSecondLast => (2 * cycle - 2 - turn()) % cycle,
        };
        let q = match self.algorithm.q {
            QPlace::None => NONE,
            QPlace::AfterP => wrap(p + 1, n),
            QPlace::BeforeP => wrap(p + n - 1, n),
            QPlace::Last => n - 1,
        };
        let (split, low, high) = match self.algorithm.data {
            // P is last and Q wrapped to the first slot: data lies between them.
            DataOrder::Skip if self.algorithm.q == QPlace::AfterP && p == n - 1 => (self.data_disks, 1, 1),
            DataOrder::Skip if self.algorithm.q == QPlace::AfterP => (p, 0, 2),
            DataOrder::Skip => (p, 0, 1),
            DataOrder::Follow => {
                let start = wrap(if self.algorithm.q == QPlace::AfterP { p + 2 } else { p + 1 }, cycle);
                (cycle - start, start, start.wrapping_sub(cycle))
            }
        };
        let (raid_disks, data_disks) = (n, self.data_disks);
        Row { p, q, split, low, high, raid_disks, data_disks, coefficients: self.algorithm.coefficients }
    }

    /// What component sector `component` of the member in `slot` holds.
    pub fn locate(&self, slot: Slot, component: Sector) -> Holds {
        let (number, offset) = self.row_at(component);
        if number >= self.rows || slot.0 >= self.raid_disks {
            return Holds::Nothing;
        }
        let row = self.row(number);
        match row.index_of(slot) {
            Some(i) => Holds::Data { array: self.array(number, i, offset) },
            None if slot == row.p() => Holds::P { row: number },
            None => Holds::Q { row: number },
        }
    }

    /// Whether `slot` holds parity in every row and never data. Such a slot can be missing from a dirty array without
    /// putting data in doubt.
    pub fn holds_only_parity(&self, slot: Slot) -> bool {
        let p_stays = matches!(self.algorithm.p, PMoves::First | PMoves::Last);
        let q_stays = self.algorithm.q == QPlace::Last || p_stays;
        let row = self.row(0);
        p_stays && slot == row.p() || q_stays && row.q() == Some(slot)
    }

    /// Whether no more slots are missing than there are parities, when those are there for which `in_sync` says so.
    pub fn enough(&self, in_sync: &dyn Fn(Slot) -> bool) -> bool {
        (0..self.raid_disks).filter(|slot| !in_sync(Slot(*slot))).count() <= usize::from(self.parities())
    }

    fn chunk_mask(&self) -> u64 {
        (1 << self.chunk_shift) - 1
    }
}

impl Row {
    /// The slot with P.
    pub fn p(&self) -> Slot {
        Slot(self.p)
    }

    /// The slot with Q, if there is a Q.
    pub fn q(&self) -> Option<Slot> {
        (self.q != NONE).then_some(Slot(self.q))
    }

    /// The slot with data chunk `i`, which must be less than the number of data disks.
    pub fn data(&self, i: u16) -> Slot {
        debug_assert!(i < self.data_disks, "data chunk {i} of {}", self.data_disks);
        Slot(i.wrapping_add(if i < self.split { self.low } else { self.high }))
    }

    /// Which data chunk `slot` has; `None` if it has a parity or is no slot of the array.
    pub fn index_of(&self, slot: Slot) -> Option<u16> {
        if slot.0 == self.p || slot.0 == self.q || slot.0 >= self.raid_disks {
            return None;
        }
        // Below `low` this wraps to a large number, which is not less than `split`.
        let i = slot.0.wrapping_sub(self.low);
        Some(if i < self.split { i } else { slot.0.wrapping_sub(self.high) })
    }

    /// The coefficient of data chunk `i` in Q, as the exponent k: Q = Σ gᵏ·D. Different for each chunk of a row, and
    /// less than 255. Of no use where there is no Q.
    pub fn coefficient(&self, i: u16) -> u8 {
        let slot = self.data(i).0;
        let k = match self.coefficients {
            Coefficients::SlotNumber => slot,
            Coefficients::FromQ if self.q == NONE => i,
            Coefficients::FromQ => {
                let steps = |to: u16| if to > self.q { to - self.q - 1 } else { to + self.raid_disks - self.q - 1 };
                let walked = steps(slot);
                walked - u16::from(walked > steps(self.p))
            }
        };
        k as u8
    }

    /// The data chunk with coefficient `k` in Q, if there is one. What a wrong block's place is found by.
    pub fn index_of_coefficient(&self, k: u8) -> Option<u16> {
        (0..self.data_disks).find(|i| self.coefficient(*i) == k)
    }
}

/// `slot` modulo `slots`, for `slot` less than twice `slots`.
fn wrap(slot: u16, slots: u16) -> u16 {
    if slot >= slots { slot - slots } else { slot }
}

/// The rule behind md's number. raid4 has but one, and md does not look at its number.
fn algorithm(level: Level, layout: u32) -> Option<Algorithm> {
    use DataOrder::{Follow, Skip};
    use PMoves::{Down, DownFromSecondLast, First, Last, Up};
    let (p, data) = match (level, layout) {
        (Level::Raid4, _) | (Level::Raid5 | Level::Raid6, 5) => (Last, Skip),
        (Level::Raid5 | Level::Raid6, 0) | (Level::Raid6, 16) => (Down, Skip),
        (Level::Raid5 | Level::Raid6, 1) | (Level::Raid6, 8 | 17) => (Up, Skip),
        (Level::Raid5 | Level::Raid6, 2) | (Level::Raid6, 10 | 18) => (Down, Follow),
        (Level::Raid5 | Level::Raid6, 3) | (Level::Raid6, 19) => (Up, Follow),
        (Level::Raid5 | Level::Raid6, 4) | (Level::Raid6, 20) => (First, Skip),
        (Level::Raid6, 9) => (DownFromSecondLast, Skip),
        _ => return None,
    };
    let q = match (level, layout) {
        (Level::Raid6, 10) => QPlace::BeforeP,
        (Level::Raid6, 16..=20) => QPlace::Last,
        (Level::Raid6, _) => QPlace::AfterP,
        _ => QPlace::None,
    };
    let ddf = level == Level::Raid6 && (8..=10).contains(&layout);
    let coefficients = if ddf { Coefficients::SlotNumber } else { Coefficients::FromQ };
    Some(Algorithm { p, q, data, coefficients })
}
