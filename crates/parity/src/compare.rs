//! Where redundant blocks disagree, sector by sector, and which block is wrong where the evidence tells.

use crate::recovery::{Located, locate_error};

/// Bytes of a sector: what a member writes whole, and the unit of a verdict.
pub const SECTOR: usize = 512;

/// A run of sectors that disagree, all with the same verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// First sector of the run, counted from the start of the blocks.
    pub at: u64,
    /// Sectors.
    pub len: u64,
    /// The one wrong block, if every byte of each sector says so.
    pub culprit: Option<Culprit>,
}

/// A block of a row, or a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Culprit {
    /// The data block with this exponent.
    Data(u8),
    /// P.
    P,
    /// Q.
    Q,
    /// The copy at this place in the list compared.
    Copy(usize),
}

/// Compares stored with computed parities, given as (stored, computed). With both, the wrong block can be told: at most one of
/// `exponents`, those of the row's data blocks, or a parity. With one, only that something is wrong.
///
/// # Panics
/// If the blocks are not equally long.
pub fn compare_parities(p: Option<(&[u8], &[u8])>, q: Option<(&[u8], &[u8])>, exponents: &[u8]) -> Vec<Difference> {
    let len = p.or(q).map_or(0, |(stored, _)| stored.len());
    let mut runs = Runs::default();
    for (sector, range) in sectors(len) {
        let differs = |pair: Option<(&[u8], &[u8])>| pair.is_some_and(|(a, b)| a[range.clone()] != b[range.clone()]);
        if !differs(p) && !differs(q) {
            continue;
        }
        let culprit = match (p, q) {
            (Some(p), Some(q)) => {
                let (p, q) = (syndrome(p, range.clone()), syndrome(q, range));
                match locate_error(&p, &q, exponents) {
                    Located::Data(k) => Some(Culprit::Data(k)),
                    Located::P => Some(Culprit::P),
                    Located::Q => Some(Culprit::Q),
                    Located::Several | Located::Consistent => None,
                }
            }
            _ => None,
        };
        runs.push(sector, culprit);
    }
    runs.list
}

/// Compares copies. One that differs where at least two others, and all of them, agree is the wrong one.
///
/// # Panics
/// If the copies are not equally long.
pub fn compare_copies(copies: &[&[u8]]) -> Vec<Difference> {
    let len = copies.first().map_or(0, |copy| copy.len());
    let mut runs = Runs::default();
    for (sector, range) in sectors(len) {
        let first = &copies[0][range.clone()];
        if copies.iter().any(|copy| &copy[range.clone()] != first) {
            runs.push(sector, odd_one(copies, &range).map(Culprit::Copy));
        }
    }
    runs.list
}

/// The only copy that differs from all others, if these agree and are at least two.
fn odd_one(copies: &[&[u8]], range: &core::ops::Range<usize>) -> Option<usize> {
    if copies.len() < 3 {
        return None;
    }
    let content = |i: usize| &copies[i][range.clone()];
    // Whatever most copies hold, two of the first three hold it, if but one copy is odd.
    let common = if content(0) == content(1) || content(0) == content(2) { content(0) } else { content(1) };
    let mut odd = (0..copies.len()).filter(|i| content(*i) != common);
    odd.next().filter(|_| odd.next().is_none())
}

fn sectors(len: usize) -> impl Iterator<Item = (u64, core::ops::Range<usize>)> {
    (0u64..).zip((0..len).step_by(SECTOR)).map(move |(n, at)| (n, at..len.min(at + SECTOR)))
}

fn syndrome((stored, computed): (&[u8], &[u8]), range: core::ops::Range<usize>) -> Vec<u8> {
    stored[range.clone()].iter().zip(&computed[range]).map(|(a, b)| a ^ b).collect()
}

#[derive(Default)]
struct Runs {
    list: Vec<Difference>,
}

impl Runs {
    fn push(&mut self, sector: u64, culprit: Option<Culprit>) {
        match self.list.last_mut() {
            Some(last) if last.at + last.len == sector && last.culprit == culprit => last.len += 1,
            _ => self.list.push(Difference { at: sector, len: 1, culprit }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(blocks: usize, len: usize) -> (Vec<Vec<u8>>, Vec<u8>, Vec<u8>) {
        let data: Vec<Vec<u8>> =
            (0..blocks).map(|b| (0..len).map(|i| (i * 7 + b * 31 + i / 512) as u8).collect()).collect();
        let (p, q) = parities(&data);
        (data, p, q)
    }

    fn parities(data: &[Vec<u8>]) -> (Vec<u8>, Vec<u8>) {
        let (mut p, mut q) = (vec![0; data[0].len()], vec![0; data[0].len()]);
        let blocks: Vec<(&[u8], u8)> = (0u8..).zip(data).map(|(k, d)| (&d[..], k)).collect();
        crate::pq(Some(&mut p), Some(&mut q), &blocks);
        (p, q)
    }

    #[test]
    fn the_wrong_block_is_named_sector_by_sector() {
        let (mut data, mut p, mut q) = row(4, 8 * 512);
        data[2][512 + 3] ^= 0x10;
        data[2][512 + 4] ^= 0x77;
        data[2][2 * 512] ^= 1;
        p[4 * 512] ^= 9;
        q[6 * 512 + 511] ^= 9;
        data[0][7 * 512] ^= 1;
        data[1][7 * 512 + 1] ^= 1;
        let (now_p, now_q) = parities(&data);
        let found = compare_parities(Some((&p, &now_p)), Some((&q, &now_q)), &[0, 1, 2, 3]);
        let expected =
            [(1, 2, Some(Culprit::Data(2))), (4, 1, Some(Culprit::P)), (6, 1, Some(Culprit::Q)), (7, 1, None)];
        assert_eq!(found, expected.map(|(at, len, culprit)| Difference { at, len, culprit }));
        // With one parity there is a difference, but no name for it.
        let found = compare_parities(Some((&p, &now_p)), None, &[0, 1, 2, 3]);
        let expected = [(1, 2), (4, 1), (7, 1)].map(|(at, len)| Difference { at, len, culprit: None });
        assert_eq!(found, expected);
    }

    #[test]
    fn consistent_rows_have_no_differences() {
        let (_, p, q) = row(5, 4096);
        assert_eq!(compare_parities(Some((&p, &p)), Some((&q, &q)), &[0, 1, 2, 3, 4]), []);
        assert_eq!(compare_parities(None, None, &[]), []);
        assert_eq!(compare_copies(&[]), []);
        assert_eq!(compare_copies(&[&p, &p]), []);
    }

    #[test]
    fn of_three_copies_the_odd_one_is_wrong() {
        for copies in 3..6 {
            for odd in 0..copies {
                let mut blocks = vec![vec![7u8; 3 * 512]; copies];
                blocks[odd][600] = 8;
                let blocks: Vec<&[u8]> = blocks.iter().map(|b| &b[..]).collect();
                let culprit = Some(Culprit::Copy(odd));
                assert_eq!(compare_copies(&blocks), [Difference { at: 1, len: 1, culprit }]);
            }
        }
        // Two against two, three different ones, and two alone: nobody can tell.
        let (a, b, c) = ([1u8; 512], [2u8; 512], [3u8; 512]);
        for blocks in [&[&a, &a, &b, &b][..], &[&a, &b, &c], &[&a, &b], &[&a, &b, &c, &c]] {
            let blocks: Vec<&[u8]> = blocks.iter().map(|b| &b[..]).collect();
            assert_eq!(compare_copies(&blocks), [Difference { at: 0, len: 1, culprit: None }]);
        }
    }
}
