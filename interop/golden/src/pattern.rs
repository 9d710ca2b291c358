//! The content of the arrays: every sector says which sector it is and which generation of writing it belongs to.
//!
//! All words are little-endian u64. Word 0 of sector `s` is `s | g << 56`; words 1 … 63 are
//! `mix((s >> 3) | g << 56)`, the same for the eight sectors of a 4 KiB block.

use crate::PatternRange;
use std::fmt;

/// Bytes per sector.
pub const SECTOR: usize = 512;

/// The content of sector `s` of the array in generation `g`.
pub fn sector(g: u8, s: u64) -> [u8; SECTOR] {
    let high = u64::from(g) << 56;
    let mut content = [0; SECTOR];
    let rest = mix((s >> 3) | high).to_le_bytes();
    for word in content.chunks_exact_mut(8) {
        word.copy_from_slice(&rest);
    }
    content[..8].copy_from_slice(&(s | high).to_le_bytes());
    content
}

/// Fills `bytes` with what the array has from sector `first` on, in generation `g`. A last partial sector is left as
/// it was.
pub fn fill(g: u8, first: u64, bytes: &mut [u8]) {
    for (s, content) in (first..).zip(bytes.chunks_exact_mut(SECTOR)) {
        content.copy_from_slice(&sector(g, s));
    }
}

/// Which generation of sector `s` this is, if it is sector `s` of any.
pub fn generation(s: u64, content: &[u8]) -> Option<u8> {
    let g = *content.get(7)?;
    (content == sector(g, s)).then_some(g)
}

/// A sector that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The array sector.
    pub sector: u64,
    /// The generations it may have.
    pub expected: Vec<u8>,
    /// The generation it has, if it is that sector at all.
    pub found: Option<u8>,
    /// Its first word.
    pub first_word: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { sector, expected, found, first_word } = self;
        write!(f, "array sector {sector}: expected generation {expected:?}, ")?;
        match found {
            Some(g) => write!(f, "found {g}"),
            None => write!(f, "found something else (first word {first_word:#x})"),
        }
    }
}

impl std::error::Error for Mismatch {}

/// Compares `bytes`, read from the array at sector `first`, with a manifest's pattern. What the pattern says nothing
/// about may be anything.
///
/// # Errors
/// The first sector that is wrong.
pub fn check(pattern: &[PatternRange], first: u64, bytes: &[u8]) -> Result<(), Mismatch> {
    for (s, content) in (first..).zip(bytes.chunks_exact(SECTOR)) {
        let at = s * SECTOR as u64;
        let Some(PatternRange(_, _, expected)) = pattern.iter().find(|r| r.0 <= at && at < r.1) else { continue };
        let found = generation(s, content);
        if !found.is_some_and(|g| expected.contains(&g)) {
            let mut word = [0; 8];
            word.copy_from_slice(&content[..8]);
            return Err(Mismatch {
                sector: s,
                expected: expected.clone(),
                found,
                first_word: u64::from_le_bytes(word),
            });
        }
    }
    Ok(())
}

/// splitmix64.
fn mix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_is_recognised_and_no_other() {
        let mut bytes = vec![0; 16 * SECTOR];
        fill(1, 100, &mut bytes);
        let ok = [PatternRange(100 * 512, 116 * 512, vec![0, 1])];
        assert_eq!(check(&ok, 100, &bytes), Ok(()));
        let old = [PatternRange(103 * 512, 116 * 512, vec![0])];
        assert_eq!(check(&old, 100, &bytes).unwrap_err().sector, 103);
        bytes[5 * SECTOR + 511] ^= 1;
        assert_eq!(check(&ok, 100, &bytes).unwrap_err().sector, 105);
        assert_eq!(generation(101, &bytes[..SECTOR]), None);
    }

    /// A raid1's data area is the array, so its image must carry the pattern as it is.
    #[test]
    fn the_kernel_wrote_this_pattern() {
        let case = crate::case("raid1-1.2-n2");
        let image = case.image(1);
        let start = case.manifest.members[1].data_offset_sectors.unwrap() as usize * SECTOR;
        let data = &image[start..start + case.manifest.size_bytes as usize];
        let pattern = case.manifest.pattern.as_deref().unwrap();
        assert_eq!(pattern.iter().map(|r| r.1 - r.0).sum::<u64>(), case.manifest.size_bytes);
        assert_eq!(check(pattern, 0, data), Ok(()));
    }
}
