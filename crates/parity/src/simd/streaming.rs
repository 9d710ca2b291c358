//! Parity past the caches.
//!
//! New parity goes to a member next, so its place is memory. An ordinary store of a line that is not cached reads it from
//! memory first, for nothing; but where the lines *are* cached it is far faster. How much a pass touches decides: what is in use again
//! and again is likely still there if it is little, unless the caller knows better ([`Backend::cold`](crate::Backend::cold)).
//! Recovered data does not stream, whoever asked for it reads it at once; nor do updates in place, whose lines have just been read.
//!
//! The hardware's prefetcher keeps up once it has found the pattern, and asking ahead of it lost everywhere. But each block is a new
//! pattern: asking for the first lines of all at once wins up to a tenth on blocks of a page.

use super::Vector;

/// The bytes touched by a pass, all blocks together, from which on XOR streams: what no second-level cache holds. It is so light that
/// in a third-level cache too, reading the lines that it is about to overwrite counts.
pub(crate) const XOR_FROM: usize = 512 << 10;

/// The same for P and Q: what no third-level cache is likely to hold for us.
pub(crate) const PQ_FROM: usize = 12 << 20;

/// How much of each block is asked for before the first step, in bytes.
const PREFETCH: usize = 256;

/// Asks for the start of every block; the last first, as the kernels go.
#[inline(always)]
pub(crate) unsafe fn announce<V: Vector>(blocks: impl DoubleEndedIterator<Item = *const u8> + Clone, len: usize) {
    for at in (0..len.min(PREFETCH)).step_by(64) {
        for block in blocks.clone().rev() {
            // SAFETY: inside the block.
            unsafe { V::prefetch(block.add(at)) }
        }
    }
}

/// Whether a pass over so many bytes should stream its outputs.
#[inline(always)]
pub(crate) fn pays<V: Vector>(size: usize, from: usize, outs: &[Option<*mut u8>]) -> bool {
    let aligned = |out: &Option<*mut u8>| out.is_none_or(|out| out.addr().is_multiple_of(V::BYTES));
    V::STREAMS && size >= from && outs.iter().all(aligned)
}

/// A vector whose stores go past the caches. A line that is written whole need not be read from memory first, and leaves
/// the caches to others; but whoever reads it next finds it in memory only. `store` needs alignment to `BYTES`, and the
/// caller ends with [`Vector::fence`].
#[derive(Clone, Copy)]
pub(crate) struct Streaming<V>(V);

impl<V: Vector> Vector for Streaming<V> {
    const BYTES: usize = V::BYTES;
    type Factor = V::Factor;
    type Split = V::Split;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: here and below, the contract is `V`'s.
        Self(unsafe { V::load(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: aligned, as this type asks.
        unsafe { self.0.stream(to) }
    }

    #[inline(always)]
    unsafe fn store_four(run: [Self; 4], to: *mut u8) {
        // SAFETY: aligned, as this type asks.
        unsafe { V::stream_four(run.map(|register| register.0), to) }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: as in `load`.
        Self(unsafe { V::zero() })
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: as in `load`.
        Self(unsafe { self.0.xor(other.0) })
    }

    #[inline(always)]
    unsafe fn xor3(self, a: Self, b: Self) -> Self {
        // SAFETY: as in `load`.
        Self(unsafe { self.0.xor3(a.0, b.0) })
    }

    #[inline(always)]
    unsafe fn double(self) -> Self {
        // SAFETY: as in `load`.
        Self(unsafe { self.0.double() })
    }

    #[inline(always)]
    unsafe fn factor(c: u8) -> Self::Factor {
        // SAFETY: as in `load`.
        unsafe { V::factor(c) }
    }

    #[inline(always)]
    unsafe fn split(self) -> Self::Split {
        // SAFETY: as in `load`.
        unsafe { self.0.split() }
    }

    #[inline(always)]
    unsafe fn times(split: Self::Split, factor: Self::Factor) -> Self {
        // SAFETY: as in `load`.
        Self(unsafe { V::times(split, factor) })
    }
}
