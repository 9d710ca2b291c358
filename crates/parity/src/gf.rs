//! The field GF(2⁸) with the polynomial x⁸+x⁴+x³+x²+1 and the generator g = 2, which md's Q parity is defined over.
//!
//! Addition is XOR. All tables are built at compile time from [`double`], so there is one definition of the field.

/// The polynomial without its x⁸ term: what a byte that overflows on doubling is corrected by.
pub const POLY: u8 = 0x1d;

/// The number of distinct powers of the generator: `exp(k + ORDER) == exp(k)`.
pub const ORDER: u8 = 255;

/// `EXP[k]` = gᵏ, twice over so that the sum of two logarithms needs no reduction.
pub const EXP: [u8; 512] = {
    let mut table = [0; 512];
    let (mut k, mut x) = (0, 1);
    while k < 512 {
        table[k] = x;
        x = double(x);
        k += 1;
    }
    table
};

/// `LOG[x]` = the k in `0..255` with gᵏ = x. `LOG[0]` has no meaning.
pub const LOG: [u8; 256] = {
    let mut table = [0; 256];
    let mut k = 0;
    while k < ORDER as usize {
        table[EXP[k] as usize] = k as u8;
        k += 1;
    }
    table
};

/// x·g.
pub const fn double(x: u8) -> u8 {
    (x << 1) ^ if x & 0x80 == 0 { 0 } else { POLY }
}

/// gᵏ.
pub const fn exp(k: u8) -> u8 {
    EXP[k as usize]
}

/// The k in `0..255` with gᵏ = `x`; none for zero.
pub const fn log(x: u8) -> Option<u8> {
    if x == 0 { None } else { Some(LOG[x as usize]) }
}

/// a·b.
pub const fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 { 0 } else { EXP[LOG[a as usize] as usize + LOG[b as usize] as usize] }
}

/// The x with a·x = 1; none for zero.
pub const fn inv(a: u8) -> Option<u8> {
    if a == 0 { None } else { Some(EXP[(ORDER - LOG[a as usize]) as usize]) }
}

/// `NIBBLES[c]`: c·n for n in 0..16, then c·(16·n): c·x is the XOR of one entry of each half. Byte shuffles look up
/// sixteen or more of them at a time.
pub(crate) static NIBBLES: [[u8; 32]; 256] = {
    let mut table = [[0; 32]; 256];
    let mut c = 0;
    while c < 256 {
        let mut n = 0;
        while n < 16 {
            table[c][n] = mul(c as u8, n as u8);
            table[c][16 + n] = mul(c as u8, (n as u8) << 4);
            n += 1;
        }
        c += 1;
    }
    table
};

/// `MATRICES[c]`: multiplication by c as the 8×8 bit matrix that `gf2p8affineqb` takes. (`gf2p8mulb` has another
/// polynomial built in and is of no use here.) Byte 7−i of the matrix selects the input bits that sum to output bit i.
#[cfg(any(target_arch = "x86_64", test))]
pub(crate) static MATRICES: [u64; 256] = {
    let mut table = [0; 256];
    let mut c = 0;
    while c < 256 {
        table[c] = matrix(c as u8);
        c += 1;
    }
    table
};

#[cfg(any(target_arch = "x86_64", test))]
pub(crate) const fn matrix(c: u8) -> u64 {
    let mut rows = [0u8; 8];
    let mut bit = 0;
    while bit < 8 {
        let product = mul(c, 1 << bit);
        let mut i = 0;
        while i < 8 {
            rows[7 - i] |= ((product >> i) & 1) << bit;
            i += 1;
        }
        bit += 1;
    }
    u64::from_le_bytes(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplication by the schoolbook rule, sharing nothing with the tables but [`double`].
    fn slow_mul(mut a: u8, mut b: u8) -> u8 {
        let mut sum = 0;
        while b != 0 {
            if b & 1 != 0 {
                sum ^= a;
            }
            a = double(a);
            b >>= 1;
        }
        sum
    }

    #[test]
    fn multiplication_is_the_schoolbooks() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(mul(a, b), slow_mul(a, b), "{a} * {b}");
            }
        }
    }

    #[test]
    fn every_element_but_zero_has_an_inverse_and_a_logarithm() {
        assert_eq!((inv(0), log(0)), (None, None));
        for a in 1..=255 {
            assert_eq!(mul(a, inv(a).unwrap()), 1);
            assert_eq!(exp(log(a).unwrap()), a);
        }
        assert_eq!(exp(8), POLY);
        assert_eq!(exp(ORDER), 1);
    }

    #[test]
    fn nibble_tables_multiply() {
        for c in 0..=255u8 {
            for x in 0..=255u8 {
                let table = &NIBBLES[usize::from(c)];
                assert_eq!(table[usize::from(x & 15)] ^ table[16 + usize::from(x >> 4)], mul(c, x));
            }
        }
    }

    /// `gf2p8affineqb` as its manual defines it, so that the matrices are checked on processors without it too.
    #[test]
    fn affine_matrices_multiply() {
        for c in 0..=255u8 {
            let rows = MATRICES[usize::from(c)].to_le_bytes();
            for x in 0..=255u8 {
                let product = (0..8).fold(0, |out, i| out | ((((rows[7 - i] & x).count_ones() & 1) as u8) << i));
                assert_eq!(product, mul(c, x));
            }
        }
    }
}
