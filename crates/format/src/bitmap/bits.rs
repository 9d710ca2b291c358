//! The bits themselves.

use super::{BITMAP_PAGE, BITMAP_SUPER_BYTES, BitmapError, BitmapSuper, area, file_bytes};

/// The bits of one bitmap, with what fills their last page. Bits past the end do not count and are kept as found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitArray {
    bytes: Vec<u8>,
    len: u64,
}

impl BitArray {
    /// `len` bits, all 0. The caller bounds `len`: an eighth of it is allocated.
    pub fn zeros(len: u64) -> BitArray {
        BitArray { bytes: vec![0; area(len).bytes() as usize - BITMAP_SUPER_BYTES], len }
    }

    /// `len` bits, all 1, and the rest of the last page too, as mdadm fills it.
    pub fn ones(len: u64) -> BitArray {
        let mut bits = BitArray::zeros(len);
        bits.bytes.fill(0xff);
        bits
    }

    /// `len` bits from a bitmap area or file, superblock included. What is missing of the last page reads as 0.
    ///
    /// # Errors
    /// [`BitmapError::Truncated`].
    pub fn from_file(file: &[u8], len: u64) -> Result<BitArray, BitmapError> {
        let (have, need) = (file.len() as u64, file_bytes(len));
        if have < need {
            return Err(BitmapError::Truncated { have, need });
        }
        let mut bits = BitArray::zeros(len);
        let stored = &file[BITMAP_SUPER_BYTES..];
        let n = stored.len().min(bits.bytes.len());
        bits.bytes[..n].copy_from_slice(&stored[..n]);
        Ok(bits)
    }

    /// Number of bits.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bit `i`; 0 past the end.
    pub fn get(&self, i: u64) -> bool {
        i < self.len && self.bytes[(i / 8) as usize] & 1 << (i % 8) != 0
    }

    /// Sets bit `i` and says whether it was 0. Nothing happens past the end.
    pub fn set(&mut self, i: u64) -> bool {
        let was_clear = i < self.len && !self.get(i);
        if was_clear {
            self.bytes[(i / 8) as usize] |= 1 << (i % 8);
        }
        was_clear
    }

    /// Clears bit `i` and says whether it was 1. Nothing happens past the end.
    pub fn clear(&mut self, i: u64) -> bool {
        let was_set = self.get(i);
        if was_set {
            self.bytes[(i / 8) as usize] &= !(1 << (i % 8));
        }
        was_set
    }

    /// Sets every bit that is set in `other`.
    pub fn merge(&mut self, other: &BitArray) {
        for i in other.iter_ones() {
            self.set(i);
        }
    }

    /// Number of bits that are 1.
    pub fn count_ones(&self) -> u64 {
        let whole = (self.len / 8) as usize;
        let in_bytes: u64 = self.bytes[..whole].iter().map(|b| u64::from(b.count_ones())).sum();
        in_bytes + (whole as u64 * 8..self.len).filter(|i| self.get(*i)).count() as u64
    }

    /// The first 1 at or after `from`.
    pub fn next_one(&self, from: u64) -> Option<u64> {
        let mut i = from;
        while i < self.len {
            let rest = self.bytes[(i / 8) as usize] >> (i % 8);
            if rest != 0 {
                let found = i + u64::from(rest.trailing_zeros());
                return (found < self.len).then_some(found);
            }
            i = (i / 8 + 1) * 8;
        }
        None
    }

    /// All bits that are 1, ascending.
    pub fn iter_ones(&self) -> impl Iterator<Item = u64> + '_ {
        core::iter::successors(self.next_one(0), |i| self.next_one(i + 1))
    }

    /// Number of 4096-byte pages of the bitmap, superblock included.
    pub fn pages(&self) -> u64 {
        area(self.len).bytes() / BITMAP_PAGE as u64
    }

    /// The page of the bitmap that has bit `i`. The first page has fewer bits, since the superblock is in it.
    pub const fn page_of(i: u64) -> u64 {
        (BITMAP_SUPER_BYTES as u64 + i / 8) / BITMAP_PAGE as u64
    }

    /// Page `page` as it is to be written: 4096 bytes. Empty if there is no such page.
    pub fn page(&self, superblock: &BitmapSuper, page: u64) -> Vec<u8> {
        if page == 0 {
            let mut first = superblock.encode();
            first.extend_from_slice(&self.bytes[..BITMAP_PAGE - BITMAP_SUPER_BYTES]);
            return first;
        }
        let start = page.saturating_mul(BITMAP_PAGE as u64) - BITMAP_SUPER_BYTES as u64;
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        self.bytes.get(start..).and_then(|rest| rest.get(..BITMAP_PAGE)).unwrap_or_default().to_vec()
    }

    /// The whole area as it is to be written, superblock first.
    pub fn encode(&self, superblock: &BitmapSuper) -> Vec<u8> {
        let mut file = superblock.encode();
        file.extend_from_slice(&self.bytes);
        file
    }
}
