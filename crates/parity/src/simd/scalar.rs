//! Eight bytes in a word, for processors with nothing better; and single bytes, for the ends of blocks. This is the
//! reference that every other backend is tested against.

use super::{Vector, entry_points};
use crate::gf;

entry_points!("scalar", u64);

/// The byte 1 in every lane.
const ONES: u64 = u64::MAX / 255;

impl Vector for u64 {
    const BYTES: usize = 8;
    type Factor = u8;
    type Split = u64;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: eight readable bytes, by the trait's contract.
        unsafe { from.cast::<u64>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: eight writable bytes, by the trait's contract.
        unsafe { to.cast::<u64>().write_unaligned(self) }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        0
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        self ^ other
    }

    #[inline(always)]
    unsafe fn double(self) -> Self {
        let overflowed = (self >> 7) & ONES;
        ((self << 1) & !ONES) ^ (overflowed * u64::from(gf::POLY))
    }

    #[inline(always)]
    unsafe fn factor(c: u8) -> u8 {
        c
    }

    #[inline(always)]
    unsafe fn split(self) -> u64 {
        self
    }

    #[inline(always)]
    unsafe fn times(mut split: u64, factor: u8) -> Self {
        let mut sum = 0;
        for bit in 0..8 {
            sum ^= split & 0u64.wrapping_sub(u64::from((factor >> bit) & 1));
            // SAFETY: word arithmetic needs no instruction set.
            split = unsafe { split.double() };
        }
        sum
    }
}

impl Vector for u8 {
    const BYTES: usize = 1;
    type Factor = u8;
    type Split = u8;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: one readable byte, by the trait's contract.
        unsafe { *from }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: one writable byte, by the trait's contract.
        unsafe { *to = self }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        0
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        self ^ other
    }

    #[inline(always)]
    unsafe fn double(self) -> Self {
        gf::double(self)
    }

    #[inline(always)]
    unsafe fn factor(c: u8) -> u8 {
        c
    }

    #[inline(always)]
    unsafe fn split(self) -> u8 {
        self
    }

    #[inline(always)]
    unsafe fn times(split: u8, factor: u8) -> Self {
        gf::mul(split, factor)
    }
}
