//! The bad-block log: ranges of a member that cannot be read or written.
//!
//! Addresses are device addresses: they include the data offset. The log is valid only if the superblock says that it
//! has entries; otherwise its area holds old bytes.

use crate::BadBlockArea;
use raidus_units::{SECTOR_BYTES, Sector, Sectors};
use thiserror::Error;

/// Longest entry, in units of the log.
pub const ENTRY_UNITS_MAX: u64 = 512;

const ENTRY_BYTES: usize = 8;
const LENGTH_BITS: u32 = 10;
const START_MAX: u64 = u64::MAX >> LENGTH_BITS;
/// Ends the list, and fills what follows.
const END: u64 = u64::MAX;
/// Units above 2^41 sectors cannot mean anything.
const SHIFT_MAX: u8 = 32;

/// A range that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BadRange {
    /// Device sector it begins at.
    pub start: Sector,
    /// Its length.
    pub len: Sectors,
}

/// Why a log cannot be used as it is. Some kernels have left the feature set with a log of zeros or of other bytes
/// behind it: such a member holds good data, but which of it is bad is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BadBlocksError {
    /// Nothing but zeros: the log was never written.
    #[error("the bad-block log was never written (all zero)")]
    NeverWritten,
    /// An entry that cannot be one.
    #[error("the bad-block log is garbage from entry {index} on")]
    Garbage {
        /// The first such entry.
        index: usize,
    },
    /// Too many ranges for the log.
    #[error("{need} bad-block entries are needed, the log has room for {room}")]
    Full {
        /// Entries needed.
        need: usize,
        /// Entries there are.
        room: usize,
    },
    /// A unit no log can have.
    #[error("the bad-block log has units of 2^{0} sectors")]
    BadShift(
        /// The stored shift.
        u8,
    ),
}

/// Reads a log, the bytes of the whole area, of a device of this size.
///
/// # Errors
/// [`BadBlocksError::NeverWritten`], [`BadBlocksError::Garbage`] and [`BadBlocksError::BadShift`]; a caller may open
/// the member all the same, with a note and an empty list.
pub fn parse(log: &[u8], shift: u8, device: Sectors) -> Result<Vec<BadRange>, BadBlocksError> {
    if shift > SHIFT_MAX {
        return Err(BadBlocksError::BadShift(shift));
    }
    if !log.is_empty() && log.iter().all(|b| *b == 0) {
        return Err(BadBlocksError::NeverWritten);
    }
    let (entries, _) = log.as_chunks::<ENTRY_BYTES>();
    let entries = entries.iter().map(|e| u64::from_le_bytes(*e)).take_while(|e| *e != END);
    entries
        .enumerate()
        .map(|(index, entry)| decode(entry, shift, device).ok_or(BadBlocksError::Garbage { index }))
        .collect()
}

fn decode(entry: u64, shift: u8, device: Sectors) -> Option<BadRange> {
    let start = (entry >> LENGTH_BITS).checked_mul(1 << shift)?;
    let len = (entry & ((1 << LENGTH_BITS) - 1)).checked_mul(1 << shift)?;
    let is_inside = len != 0 && start.checked_add(len)? <= device.0.checked_next_multiple_of(1 << shift)?;
    is_inside.then_some(BadRange { start: Sector(start), len: Sectors(len) })
}

/// The whole area for these ranges, in any order: merged, split at [`ENTRY_UNITS_MAX`] units and filled as the kernel
/// does. Ranges are widened to whole units.
///
/// # Errors
/// [`BadBlocksError::Full`]: the member can no longer be kept. [`BadBlocksError::BadShift`].
pub fn encode(ranges: &[BadRange], area: &BadBlockArea) -> Result<Vec<u8>, BadBlocksError> {
    if area.shift > SHIFT_MAX {
        return Err(BadBlocksError::BadShift(area.shift));
    }
    let bytes = usize::try_from(area.size.0.saturating_mul(SECTOR_BYTES)).unwrap_or(usize::MAX);
    let room = bytes / ENTRY_BYTES;
    let merged = merge(ranges, area.shift);
    // Counted before it is split: one range may be as long as a device.
    let need = merged.iter().map(|(start, end)| (end - start).div_ceil(ENTRY_UNITS_MAX)).sum::<u64>();
    let need = usize::try_from(need).unwrap_or(usize::MAX);
    if need > room {
        return Err(BadBlocksError::Full { need, room });
    }
    let mut log: Vec<u8> = merged.into_iter().flat_map(split).flat_map(u64::to_le_bytes).collect();
    log.resize(bytes, END as u8);
    Ok(log)
}

/// The ranges in units, start and end, ascending and apart.
fn merge(ranges: &[BadRange], shift: u8) -> Vec<(u64, u64)> {
    let unit = 1_u64 << shift;
    let mut units: Vec<(u64, u64)> = ranges
        .iter()
        .filter(|r| !r.len.is_zero() && r.start.0 / unit < START_MAX)
        .map(|r| (r.start.0 / unit, r.start.0.saturating_add(r.len.0).div_ceil(unit).min(START_MAX)))
        .collect();
    units.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(units.len());
    for (start, end) in units {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

fn split((start, end): (u64, u64)) -> impl Iterator<Item = u64> {
    let starts = (start..end).step_by(ENTRY_UNITS_MAX as usize);
    starts.map(move |s| s << LENGTH_BITS | (end - s).min(ENTRY_UNITS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: BadBlockArea = BadBlockArea { offset: 16, size: Sectors(8), shift: 0 };
    const DEVICE: Sectors = Sectors(1 << 20);

    fn range(start: u64, len: u64) -> BadRange {
        BadRange { start: Sector(start), len: Sectors(len) }
    }

    #[test]
    fn an_entry_is_start_and_length() {
        let log = encode(&[range(6144, 16)], &AREA).unwrap();
        assert_eq!(log.len(), 4096);
        assert_eq!(log[..8], (6144_u64 << 10 | 16).to_le_bytes());
        assert!(log[8..].iter().all(|b| *b == 0xff));
        assert_eq!(parse(&log, 0, DEVICE), Ok(vec![range(6144, 16)]));
    }

    #[test]
    fn ranges_are_merged_and_long_ones_split() {
        let log = encode(&[range(100, 8), range(8, 8), range(16, 4), range(1000, 1100)], &AREA).unwrap();
        let expected = [range(8, 12), range(100, 8), range(1000, 512), range(1512, 512), range(2024, 76)];
        assert_eq!(parse(&log, 0, DEVICE), Ok(expected.to_vec()));
    }

    #[test]
    fn units_larger_than_a_sector() {
        let area = BadBlockArea { shift: 3, ..AREA };
        let log = encode(&[range(9, 1)], &area).unwrap();
        assert_eq!(parse(&log, 3, DEVICE), Ok(vec![range(8, 8)]));
    }

    #[test]
    fn a_log_that_is_none_is_told_apart() {
        assert_eq!(parse(&[0; 4096], 0, DEVICE), Err(BadBlocksError::NeverWritten));
        assert_eq!(parse(&[0xff; 4096], 0, DEVICE), Ok(vec![]));
        let mut log = encode(&[range(8, 8)], &AREA).unwrap();
        log[8..16].copy_from_slice(b"garbage!");
        assert_eq!(parse(&log, 0, DEVICE), Err(BadBlocksError::Garbage { index: 1 }));
        assert_eq!(parse(&log, 60, DEVICE), Err(BadBlocksError::BadShift(60)));
    }

    #[test]
    fn a_full_log_is_an_error() {
        let ranges: Vec<_> = (0..513).map(|i| range(i * 16, 8)).collect();
        assert_eq!(encode(&ranges, &AREA), Err(BadBlocksError::Full { need: 513, room: 512 }));
        assert!(encode(&ranges[..512], &AREA).is_ok());
    }
}
