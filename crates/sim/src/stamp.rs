//! What the simulator's clients write: sectors that say where they belong and by which write they came, every byte of
//! them, so that a misplaced, mixed or torn sector is recognised.

use crate::rng::mix;

/// Bytes of a sector.
pub(crate) const SECTOR: usize = raidus_units::SECTOR_BYTES as usize;

/// A write's number. [`ZERO`] stands for zeroes.
pub(crate) type WriteId = u64;

/// The "write" that leaves zeroes.
pub(crate) const ZERO: WriteId = 0;

/// Content that nobody promised anything about: neither what was before a write nor what it left.
pub(crate) const ANYTHING: WriteId = WriteId::MAX;

/// Fills one sector as write `id` leaves array sector `sector`.
pub(crate) fn fill(out: &mut [u8], sector: u64, id: WriteId) {
    debug_assert_eq!(out.len(), SECTOR);
    if id == ZERO {
        out.fill(0);
        return;
    }
    out[..8].copy_from_slice(&sector.to_le_bytes());
    out[8..16].copy_from_slice(&id.to_le_bytes());
    let seed = mix(sector.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ id.rotate_left(32));
    for (i, word) in out[16..].chunks_exact_mut(8).enumerate() {
        let value = seed.wrapping_add((i as u64).wrapping_mul(0xd134_2543_de82_ef95)).rotate_left(i as u32 & 31);
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// Which write left this content in array sector `sector`, or what it is instead.
pub(crate) fn recognise(content: &[u8], sector: u64) -> Result<WriteId, String> {
    if content.iter().all(|b| *b == 0) {
        return Ok(ZERO);
    }
    let word = |at: usize| u64::from_le_bytes(content[at..at + 8].try_into().expect("eight bytes"));
    let (stamped, id) = (word(0), word(8));
    let mut expected = [0u8; SECTOR];
    fill(&mut expected, stamped, id);
    if id != ZERO && expected[..] == *content {
        return if stamped == sector { Ok(id) } else { Err(format!("the content of sector {stamped} (write {id})")) };
    }
    fill(&mut expected, sector, id);
    let wrong = expected.iter().zip(content).filter(|(a, b)| a != b).count();
    if stamped == sector && id != ZERO && wrong < SECTOR / 2 {
        return Err(format!("write {id} with {wrong} bytes wrong"));
    }
    Err(format!("garbage (starts {:02x?})", &content[..16]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognises_what_it_filled() {
        let mut s = [0u8; SECTOR];
        fill(&mut s, 77, 1234);
        assert_eq!(recognise(&s, 77), Ok(1234));
        assert!(recognise(&s, 78).unwrap_err().contains("sector 77"));
        let mut torn = s;
        fill(&mut s, 77, 1235);
        torn[256..].copy_from_slice(&s[256..]);
        assert!(recognise(&torn, 77).is_err());
        fill(&mut s, 77, ZERO);
        assert_eq!(recognise(&s, 77), Ok(ZERO));
    }
}
