//! The arithmetic on memory: one set of kernels, written once over [`Vector`], compiled for each instruction set.

pub(crate) mod kernel;
pub(crate) mod scalar;
pub(crate) mod streaming;

#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

use crate::raw::{Combination, Delta, Term};
use crate::recovery::Row;

/// A register of bytes, each byte an element of GF(2⁸).
///
/// # Safety
///
/// Every method may be called only on a processor with the instruction set that the implementation is for, and only
/// from code compiled for it (the entry points made by [`entry_points!`]) if it is to be inlined. `load` and `store`
/// access `BYTES` bytes at any alignment.
pub(crate) trait Vector: Copy {
    /// Size in bytes.
    const BYTES: usize;
    /// Whether stores can go past the caches.
    const STREAMS: bool = false;
    /// A constant prepared for multiplication.
    type Factor: Copy;
    /// A vector prepared for multiplication by several factors.
    type Split: Copy;

    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    /// Like `store`, past the caches where [`STREAMS`](Self::STREAMS). `to` is aligned to `BYTES`; order comes from
    /// [`fence`](Self::fence).
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the caller's promise covers the one `store` needs.
        unsafe { self.store(to) }
    }
    /// Stores four, one behind the other.
    #[inline(always)]
    unsafe fn store_four(run: [Self; 4], to: *mut u8) {
        for (i, register) in run.into_iter().enumerate() {
            // SAFETY: the caller's promise is for four.
            unsafe { register.store(to.add(i * Self::BYTES)) }
        }
    }
    /// Like `stream`, four of them.
    #[inline(always)]
    unsafe fn stream_four(run: [Self; 4], to: *mut u8) {
        for (i, register) in run.into_iter().enumerate() {
            // SAFETY: as in `store_four`.
            unsafe { register.stream(to.add(i * Self::BYTES)) }
        }
    }
    /// Asks for a line that will be read soon.
    #[inline(always)]
    unsafe fn prefetch(_line: *const u8) {}
    /// Orders streamed stores before all stores that follow.
    #[inline(always)]
    unsafe fn fence() {}
    unsafe fn zero() -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    /// Sum of three; one instruction where there is one.
    #[inline(always)]
    unsafe fn xor3(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller's promise is the one `xor` needs.
        unsafe { self.xor(a).xor(b) }
    }
    /// Each byte times g.
    unsafe fn double(self) -> Self;
    unsafe fn factor(c: u8) -> Self::Factor;
    unsafe fn split(self) -> Self::Split;
    unsafe fn times(split: Self::Split, factor: Self::Factor) -> Self;
}

/// Where parity goes: P, Q, or both.
#[derive(Clone, Copy)]
pub(crate) struct Parities {
    pub p: Option<*mut u8>,
    pub q: Option<*mut u8>,
}

/// What [`crate::recovery`] yields for one output: multiples of the two syndromes.
pub(crate) struct RecoveryArgs<'a> {
    pub outs: &'a [(*mut u8, Row)],
    pub p: Option<*const u8>,
    pub q: Option<*const u8>,
    pub data: &'a [Term],
}

/// The kernels compiled for one instruction set. `len` is the length in bytes of every block; with `cold`, outputs go past the caches
/// however little there is, and the caller ends with `fence`.
pub(crate) struct Kernels {
    pub name: &'static str,
    pub xor: unsafe fn(dst: *mut u8, srcs: &[*const u8], len: usize, cold: bool),
    pub pq: unsafe fn(out: Parities, data: &[Term], len: usize, cold: bool),
    pub update: unsafe fn(Parities, &[Delta], usize),
    pub combine: unsafe fn(&[Combination<'_>], &[*const u8], usize),
    pub recover: unsafe fn(&RecoveryArgs<'_>, usize),
    pub fence: unsafe fn(),
}

/// Compiles the kernels for a vector type under the given attributes, and makes the table of them.
macro_rules! entry_points {
    ($name:literal, $vector:ty $(, $feature:meta)?) => {
        pub(crate) static KERNELS: $crate::simd::Kernels =
            $crate::simd::Kernels { name: $name, xor, pq, update, combine, recover, fence };

        $(#[$feature])?
        unsafe fn fence() {
            // SAFETY: as for `xor`.
            unsafe { <$vector as $crate::simd::Vector>::fence() }
        }

        $(#[$feature])?
        unsafe fn xor(dst: *mut u8, srcs: &[*const u8], len: usize, cold: bool) {
            use $crate::simd::{Vector, kernel, streaming};
            // SAFETY: the caller vouches for the blocks; the table is handed out only where the processor has the
            // instructions.
            unsafe {
                if cold {
                    streaming::announce::<$vector>(srcs.iter().copied(), len);
                }
                let size = if cold { usize::MAX } else { len.saturating_mul(srcs.len() + 1) };
                if streaming::pays::<$vector>(size, streaming::XOR_FROM, &[Some(dst)]) && !srcs.contains(&dst.cast_const()) {
                    kernel::xor::<streaming::Streaming<$vector>>(dst, srcs, len);
                    if !cold { <$vector>::fence(); }
                } else {
                    kernel::xor::<$vector>(dst, srcs, len);
                }
            }
        }

        $(#[$feature])?
        unsafe fn pq(out: $crate::simd::Parities, data: &[$crate::raw::Term], len: usize, cold: bool) {
            use $crate::simd::{Vector, kernel, streaming};
            // SAFETY: as for `xor`.
            unsafe {
                if cold {
                    streaming::announce::<$vector>(data.iter().map(|term| term.0), len);
                }
                let size = if cold { usize::MAX } else { len.saturating_mul(data.len() + 2) };
                if streaming::pays::<$vector>(size, streaming::PQ_FROM, &[out.p, out.q]) {
                    match out {
                        $crate::simd::Parities { p: Some(p), q: Some(q) } if data.len() > kernel::ABREAST => {
                            kernel::pq_in_groups::<$vector, streaming::Streaming<$vector>>(p, q, data, len)
                        }
                        $crate::simd::Parities { p: Some(p), q: Some(q) }
                            if data.iter().all(|term| term.0 != p.cast_const()) =>
                        {
                            kernel::pq_in_turn::<streaming::Streaming<$vector>>(p, q, data, len)
                        }
                        _ => kernel::pq::<streaming::Streaming<$vector>>(out, data, len),
                    }
                    if !cold { <$vector>::fence(); }
                } else {
                    kernel::pq::<$vector>(out, data, len);
                }
            }
        }

        $(#[$feature])?
        unsafe fn update(out: $crate::simd::Parities, deltas: &[$crate::raw::Delta], len: usize) {
            // SAFETY: as for `xor`.
            unsafe { $crate::simd::kernel::update::<$vector>(out, deltas, len) }
        }

        $(#[$feature])?
        unsafe fn combine(outs: &[$crate::raw::Combination<'_>], srcs: &[*const u8], len: usize) {
            // SAFETY: as for `xor`.
            unsafe { $crate::simd::kernel::combine::<$vector>(outs, srcs, len) }
        }

        $(#[$feature])?
        unsafe fn recover(args: &$crate::simd::RecoveryArgs<'_>, len: usize) {
            // SAFETY: as for `xor`.
            unsafe { $crate::simd::kernel::recover::<$vector>(args, len) }
        }
    };
}
pub(crate) use entry_points;
