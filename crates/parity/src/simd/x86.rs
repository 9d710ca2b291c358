//! x86-64: SSSE3, AVX2 and AVX-512, the last two with GFNI as well.
//!
//! Doubling without GFNI is a shift (an addition, since there is no byte shift) and the polynomial where the top bit fell
//! out. Multiplication is two table look-ups by nibble, done by the byte shuffle.

use core::arch::x86_64::*;

use crate::gf;

/// The polynomial as a signed lane.
const POLY: i8 = gf::POLY as i8;

pub(crate) mod ssse3 {
    use super::*;
    use crate::simd::{Vector, entry_points};

    entry_points!("ssse3", Sixteen, target_feature(enable = "ssse3"));

    #[derive(Clone, Copy)]
    pub(crate) struct Sixteen(__m128i);

    impl Vector for Sixteen {
        const BYTES: usize = 16;
        const STREAMS: bool = true;
        type Factor = (__m128i, __m128i);
        type Split = (__m128i, __m128i);

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: readable by the trait's contract; any alignment is allowed.
            Self(unsafe { _mm_loadu_si128(from.cast()) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            // SAFETY: writable by the trait's contract; any alignment is allowed.
            unsafe { _mm_storeu_si128(to.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn stream(self, to: *mut u8) {
            // SAFETY: writable and aligned by the trait's contract.
            unsafe { _mm_stream_si128(to.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn prefetch(line: *const u8) {
            // SAFETY: every x86-64 processor has it, and it reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
        }

        #[inline(always)]
        unsafe fn fence() {
            // SAFETY: every x86-64 processor has it.
            unsafe { _mm_sfence() }
        }

        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: register arithmetic, on a processor that has it by the trait's contract.
            Self(unsafe { _mm_setzero_si128() })
        }

        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            // SAFETY: as in `zero`.
            Self(unsafe { _mm_xor_si128(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn double(self) -> Self {
            // SAFETY: as in `zero`.
            unsafe {
                let overflowed = _mm_cmpgt_epi8(_mm_setzero_si128(), self.0);
                let correction = _mm_and_si128(overflowed, _mm_set1_epi8(POLY));
                Self(_mm_xor_si128(_mm_add_epi8(self.0, self.0), correction))
            }
        }

        #[inline(always)]
        unsafe fn factor(c: u8) -> Self::Factor {
            let table = gf::NIBBLES[usize::from(c)].as_ptr();
            // SAFETY: a table is two halves of sixteen bytes.
            unsafe { (_mm_loadu_si128(table.cast()), _mm_loadu_si128(table.add(16).cast())) }
        }

        #[inline(always)]
        unsafe fn split(self) -> Self::Split {
            // SAFETY: as in `zero`.
            unsafe {
                let low = _mm_set1_epi8(0x0f);
                (_mm_and_si128(self.0, low), _mm_and_si128(_mm_srli_epi64(self.0, 4), low))
            }
        }

        #[inline(always)]
        unsafe fn times(split: Self::Split, factor: Self::Factor) -> Self {
            // SAFETY: as in `zero`.
            unsafe { Self(_mm_xor_si128(_mm_shuffle_epi8(factor.0, split.0), _mm_shuffle_epi8(factor.1, split.1))) }
        }
    }
}

pub(crate) mod avx2 {
    use super::*;
    use crate::simd::{Vector, entry_points};

    entry_points!("avx2", ThirtyTwo, target_feature(enable = "avx2"));

    #[derive(Clone, Copy)]
    pub(crate) struct ThirtyTwo(__m256i);

    impl Vector for ThirtyTwo {
        const BYTES: usize = 32;
        const STREAMS: bool = true;
        type Factor = (__m256i, __m256i);
        type Split = (__m256i, __m256i);

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: readable by the trait's contract; any alignment is allowed.
            Self(unsafe { _mm256_loadu_si256(from.cast()) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            // SAFETY: writable by the trait's contract; any alignment is allowed.
            unsafe { _mm256_storeu_si256(to.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn stream(self, to: *mut u8) {
            // SAFETY: writable and aligned by the trait's contract.
            unsafe { _mm256_stream_si256(to.cast(), self.0) }
        }

        /// The intrinsic computes each address in an instruction of its own; eight less of them per step are a tenth of the time of cold
        /// P and Q of few blocks.
        #[inline]
        #[target_feature(enable = "avx2")]
        unsafe fn stream_four(run: [Self; 4], to: *mut u8) {
            let [a, b, c, d] = run;
            // SAFETY: writable and aligned by the trait's contract.
            unsafe {
                core::arch::asm!(
                    "vmovntdq [{to}], {a}",
                    "vmovntdq [{to} + 32], {b}",
                    "vmovntdq [{to} + 64], {c}",
                    "vmovntdq [{to} + 96], {d}",
                    to = in(reg) to,
                    a = in(ymm_reg) a.0,
                    b = in(ymm_reg) b.0,
                    c = in(ymm_reg) c.0,
                    d = in(ymm_reg) d.0,
                    options(nostack, preserves_flags),
                );
            }
        }

        #[inline(always)]
        unsafe fn prefetch(line: *const u8) {
            // SAFETY: every x86-64 processor has it, and it reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
        }

        #[inline(always)]
        unsafe fn fence() {
            // SAFETY: every x86-64 processor has it.
            unsafe { _mm_sfence() }
        }

        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: register arithmetic, on a processor that has it by the trait's contract.
            Self(unsafe { _mm256_setzero_si256() })
        }

        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            // SAFETY: as in `zero`.
            Self(unsafe { _mm256_xor_si256(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn double(self) -> Self {
            // SAFETY: as in `zero`.
            unsafe {
                let overflowed = _mm256_cmpgt_epi8(_mm256_setzero_si256(), self.0);
                let correction = _mm256_and_si256(overflowed, _mm256_set1_epi8(POLY));
                Self(_mm256_xor_si256(_mm256_add_epi8(self.0, self.0), correction))
            }
        }

        #[inline(always)]
        unsafe fn factor(c: u8) -> Self::Factor {
            let table = gf::NIBBLES[usize::from(c)].as_ptr();
            // SAFETY: a table is two halves of sixteen bytes. The shuffle works within 128-bit lanes: each gets a copy.
            unsafe {
                (
                    _mm256_broadcastsi128_si256(_mm_loadu_si128(table.cast())),
                    _mm256_broadcastsi128_si256(_mm_loadu_si128(table.add(16).cast())),
                )
            }
        }

        #[inline(always)]
        unsafe fn split(self) -> Self::Split {
            // SAFETY: as in `zero`.
            unsafe {
                let low = _mm256_set1_epi8(0x0f);
                (_mm256_and_si256(self.0, low), _mm256_and_si256(_mm256_srli_epi64(self.0, 4), low))
            }
        }

        #[inline(always)]
        unsafe fn times(split: Self::Split, factor: Self::Factor) -> Self {
            // SAFETY: as in `zero`.
            unsafe {
                let (low, high) = (_mm256_shuffle_epi8(factor.0, split.0), _mm256_shuffle_epi8(factor.1, split.1));
                Self(_mm256_xor_si256(low, high))
            }
        }
    }
}

pub(crate) mod avx2_gfni {
    use super::*;
    use crate::simd::{Vector, entry_points};

    entry_points!("avx2-gfni", ThirtyTwo, target_feature(enable = "avx2,gfni"));

    #[derive(Clone, Copy)]
    pub(crate) struct ThirtyTwo(__m256i);

    impl Vector for ThirtyTwo {
        const BYTES: usize = 32;
        const STREAMS: bool = true;
        type Factor = __m256i;
        type Split = __m256i;

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: readable by the trait's contract; any alignment is allowed.
            Self(unsafe { _mm256_loadu_si256(from.cast()) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            // SAFETY: writable by the trait's contract; any alignment is allowed.
            unsafe { _mm256_storeu_si256(to.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn stream(self, to: *mut u8) {
            // SAFETY: writable and aligned by the trait's contract.
            unsafe { _mm256_stream_si256(to.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn prefetch(line: *const u8) {
            // SAFETY: every x86-64 processor has it, and it reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
        }

        #[inline(always)]
        unsafe fn fence() {
            // SAFETY: every x86-64 processor has it.
            unsafe { _mm_sfence() }
        }

        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: register arithmetic, on a processor that has it by the trait's contract.
            Self(unsafe { _mm256_setzero_si256() })
        }

        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            // SAFETY: as in `zero`.
            Self(unsafe { _mm256_xor_si256(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn double(self) -> Self {
            const DOUBLE: i64 = gf::matrix(2) as i64;
            // SAFETY: as in `zero`.
            Self(unsafe { _mm256_gf2p8affine_epi64_epi8::<0>(self.0, _mm256_set1_epi64x(DOUBLE)) })
        }

        #[inline(always)]
        unsafe fn factor(c: u8) -> Self::Factor {
            // SAFETY: as in `zero`.
            unsafe { _mm256_set1_epi64x(gf::MATRICES[usize::from(c)] as i64) }
        }

        #[inline(always)]
        unsafe fn split(self) -> Self::Split {
            self.0
        }

        #[inline(always)]
        unsafe fn times(split: Self::Split, factor: Self::Factor) -> Self {
            // SAFETY: as in `zero`.
            Self(unsafe { _mm256_gf2p8affine_epi64_epi8::<0>(split, factor) })
        }
    }
}

pub(crate) mod avx512 {
    use super::*;
    use crate::simd::{Vector, entry_points};

    entry_points!("avx512", SixtyFour, target_feature(enable = "avx512f,avx512bw"));

    #[derive(Clone, Copy)]
    pub(crate) struct SixtyFour(__m512i);

    impl Vector for SixtyFour {
        const BYTES: usize = 64;
        const STREAMS: bool = true;
        type Factor = (__m512i, __m512i);
        type Split = (__m512i, __m512i);

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: readable by the trait's contract; any alignment is allowed.
            Self(unsafe { _mm512_loadu_si512(from.cast()) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            // SAFETY: writable by the trait's contract; any alignment is allowed.
            unsafe { _mm512_storeu_si512(to.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn stream(self, to: *mut u8) {
            // SAFETY: writable and aligned by the trait's contract.
            unsafe { _mm512_stream_si512(to.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn prefetch(line: *const u8) {
            // SAFETY: every x86-64 processor has it, and it reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
        }

        #[inline(always)]
        unsafe fn fence() {
            // SAFETY: every x86-64 processor has it.
            unsafe { _mm_sfence() }
        }

        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: register arithmetic, on a processor that has it by the trait's contract.
            Self(unsafe { _mm512_setzero_si512() })
        }

        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            // SAFETY: as in `zero`.
            Self(unsafe { _mm512_xor_si512(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn xor3(self, a: Self, b: Self) -> Self {
            // SAFETY: as in `zero`. 0x96 is the truth table of the sum of three bits.
            Self(unsafe { _mm512_ternarylogic_epi64::<0x96>(self.0, a.0, b.0) })
        }

        #[inline(always)]
        unsafe fn double(self) -> Self {
            // SAFETY: as in `zero`.
            unsafe {
                let correction = _mm512_maskz_mov_epi8(_mm512_movepi8_mask(self.0), _mm512_set1_epi8(POLY));
                Self(_mm512_xor_si512(_mm512_add_epi8(self.0, self.0), correction))
            }
        }

        #[inline(always)]
        unsafe fn factor(c: u8) -> Self::Factor {
            let table = gf::NIBBLES[usize::from(c)].as_ptr();
            // SAFETY: a table is two halves of sixteen bytes. The shuffle works within 128-bit lanes: each gets a copy.
            unsafe {
                (
                    _mm512_broadcast_i32x4(_mm_loadu_si128(table.cast())),
                    _mm512_broadcast_i32x4(_mm_loadu_si128(table.add(16).cast())),
                )
            }
        }

        #[inline(always)]
        unsafe fn split(self) -> Self::Split {
            // SAFETY: as in `zero`.
            unsafe {
                let low = _mm512_set1_epi8(0x0f);
                (_mm512_and_si512(self.0, low), _mm512_and_si512(_mm512_srli_epi64::<4>(self.0), low))
            }
        }

        #[inline(always)]
        unsafe fn times(split: Self::Split, factor: Self::Factor) -> Self {
            // SAFETY: as in `zero`.
            unsafe {
                let (low, high) = (_mm512_shuffle_epi8(factor.0, split.0), _mm512_shuffle_epi8(factor.1, split.1));
                Self(_mm512_xor_si512(low, high))
            }
        }
    }
}

pub(crate) mod avx512_gfni {
    use super::*;
    use crate::simd::{Vector, entry_points};

    entry_points!("avx512-gfni", SixtyFour, target_feature(enable = "avx512f,avx512bw,gfni"));

    #[derive(Clone, Copy)]
    pub(crate) struct SixtyFour(__m512i);

    impl Vector for SixtyFour {
        const BYTES: usize = 64;
        const STREAMS: bool = true;
        type Factor = __m512i;
        type Split = __m512i;

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: readable by the trait's contract; any alignment is allowed.
            Self(unsafe { _mm512_loadu_si512(from.cast()) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            // SAFETY: writable by the trait's contract; any alignment is allowed.
            unsafe { _mm512_storeu_si512(to.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn stream(self, to: *mut u8) {
            // SAFETY: writable and aligned by the trait's contract.
            unsafe { _mm512_stream_si512(to.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn prefetch(line: *const u8) {
            // SAFETY: every x86-64 processor has it, and it reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
        }

        #[inline(always)]
        unsafe fn fence() {
            // SAFETY: every x86-64 processor has it.
            unsafe { _mm_sfence() }
        }

        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: register arithmetic, on a processor that has it by the trait's contract.
            Self(unsafe { _mm512_setzero_si512() })
        }

        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            // SAFETY: as in `zero`.
            Self(unsafe { _mm512_xor_si512(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn xor3(self, a: Self, b: Self) -> Self {
            // SAFETY: as in `zero`. 0x96 is the truth table of the sum of three bits.
            Self(unsafe { _mm512_ternarylogic_epi64::<0x96>(self.0, a.0, b.0) })
        }

        #[inline(always)]
        unsafe fn double(self) -> Self {
            const DOUBLE: i64 = gf::matrix(2) as i64;
            // SAFETY: as in `zero`.
            Self(unsafe { _mm512_gf2p8affine_epi64_epi8::<0>(self.0, _mm512_set1_epi64(DOUBLE)) })
        }

        #[inline(always)]
        unsafe fn factor(c: u8) -> Self::Factor {
            // SAFETY: as in `zero`.
            unsafe { _mm512_set1_epi64(gf::MATRICES[usize::from(c)] as i64) }
        }

        #[inline(always)]
        unsafe fn split(self) -> Self::Split {
            self.0
        }

        #[inline(always)]
        unsafe fn times(split: Self::Split, factor: Self::Factor) -> Self {
            // SAFETY: as in `zero`.
            Self(unsafe { _mm512_gf2p8affine_epi64_epi8::<0>(split, factor) })
        }
    }
}
