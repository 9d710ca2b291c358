//! crc32c without the usual final inversion, which is how md's logs use it.

/// The plain table loop: no inversion before or after.
pub(crate) fn raw(seed: u32, bytes: &[u8]) -> u32 {
    // The library inverts on the way in and on the way out.
    !crc32c::crc32c_append(!seed, bytes)
}

/// Without inversion, over a block whose four bytes at `hole` count as zero.
pub(crate) fn raw_with_hole(seed: u32, block: &[u8], hole: usize) -> u32 {
    let (before, rest) = block.split_at(hole.min(block.len()));
    let after = rest.get(4..).unwrap_or_default();
    raw(raw(raw(seed, before), &[0; 4]), after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_check_value() {
        assert_eq!(!raw(u32::MAX, b"123456789"), 0xe306_9283);
        assert_eq!(raw_with_hole(1, b"ab\x01\x02\x03\x04c", 2), raw(1, b"ab\0\0\0\0c"));
    }
}
