//! AArch64: NEON, which every such processor has. Doubling and multiplication as on x86-64 without GFNI.

use core::arch::aarch64::*;

use super::{Vector, entry_points};
use crate::gf;

entry_points!("neon", Sixteen, target_feature(enable = "neon"));

#[derive(Clone, Copy)]
pub(crate) struct Sixteen(uint8x16_t);

impl Vector for Sixteen {
    const BYTES: usize = 16;
    type Factor = (uint8x16_t, uint8x16_t);
    type Split = (uint8x16_t, uint8x16_t);

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: readable by the trait's contract; any alignment is allowed.
        Self(unsafe { vld1q_u8(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: writable by the trait's contract; any alignment is allowed.
        unsafe { vst1q_u8(to, self.0) }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: register arithmetic that every AArch64 processor has.
        Self(unsafe { vdupq_n_u8(0) })
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: as in `zero`.
        Self(unsafe { veorq_u8(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn double(self) -> Self {
        // SAFETY: as in `zero`.
        unsafe {
            let overflowed = vcltzq_s8(vreinterpretq_s8_u8(self.0));
            let correction = vandq_u8(overflowed, vdupq_n_u8(gf::POLY));
            Self(veorq_u8(vshlq_n_u8::<1>(self.0), correction))
        }
    }

    #[inline(always)]
    unsafe fn factor(c: u8) -> Self::Factor {
        let table = gf::NIBBLES[usize::from(c)].as_ptr();
        // SAFETY: a table is two halves of sixteen bytes.
        unsafe { (vld1q_u8(table), vld1q_u8(table.add(16))) }
    }

    #[inline(always)]
    unsafe fn split(self) -> Self::Split {
        // SAFETY: as in `zero`.
        unsafe { (vandq_u8(self.0, vdupq_n_u8(0x0f)), vshrq_n_u8::<4>(self.0)) }
    }

    #[inline(always)]
    unsafe fn times(split: Self::Split, factor: Self::Factor) -> Self {
        // SAFETY: as in `zero`.
        Self(unsafe { veorq_u8(vqtbl1q_u8(factor.0, split.0), vqtbl1q_u8(factor.1, split.1)) })
    }
}
