//! The kernels on raw pointers, for buffers that the borrow checker does not see: registered I/O buffers, guest memory.
//!
//! The contract of all of them, `len` being the length of every block in bytes (any length, any alignment; multiples of
//! 64 are fastest):
//!
//! - every source is readable and every output writable for `len` bytes, and nothing else writes to them meanwhile;
//! - an output may be *exactly* a source (same address): the work is then done in place. Otherwise outputs overlap neither
//!   sources nor each other. Sources may overlap sources.
//!
//! Wrong counts and orders panic: they are the caller's bugs, not properties of data.

use crate::backend::Backend;
use crate::recovery::Row;
use crate::simd::{Parities, RecoveryArgs};

/// A data block and the exponent k of its coefficient gᵏ in Q.
pub type Term = (*const u8, u8);

/// The old and new content of a data block, and its exponent.
pub type Delta = (*const u8, *const u8, u8);

/// An output and its coefficient for every source.
pub type Combination<'a> = (*mut u8, &'a [u8]);

/// The most outputs of one [`Backend::combine_raw`].
pub const OUTS_MAX: usize = 4;

impl Backend {
    /// `dst` = XOR of `srcs`. `P ^= old ^ new` is `xor_raw(p, &[p, old, new], len)`.
    ///
    /// # Safety
    ///
    /// See [the module](crate::raw).
    ///
    /// # Panics
    ///
    /// If there is no source.
    pub unsafe fn xor_raw(self, dst: *mut u8, srcs: &[*const u8], len: usize) {
        assert!(!srcs.is_empty(), "XOR of no blocks");
        // SAFETY: the caller's promise, and at least one source.
        unsafe { (self.kernels().xor)(dst, srcs, len, self.is_cold()) }
    }

    /// P = Σ D_k and Q = Σ gᵏ·D_k, each if wanted, in one pass over `data`. Exponents that are missing count as blocks of
    /// zeros.
    ///
    /// # Safety
    ///
    /// See [the module](crate::raw).
    ///
    /// # Panics
    ///
    /// If there is no data, or its exponents do not ascend below 255.
    pub unsafe fn pq_raw(self, p: Option<*mut u8>, q: Option<*mut u8>, data: &[Term], len: usize) {
        assert!(!data.is_empty(), "parity of no blocks");
        assert_exponents(data);
        // SAFETY: the caller's promise, and at least one block.
        unsafe { (self.kernels().pq)(Parities { p, q }, data, len, self.is_cold()) }
    }

    /// P ^= old ^ new and Q ^= gᵏ·(old ^ new) for every delta, each parity if wanted, in place. Exponents below 255, in any
    /// order.
    ///
    /// # Safety
    ///
    /// See [the module](crate::raw).
    pub unsafe fn pq_update_raw(self, p: Option<*mut u8>, q: Option<*mut u8>, deltas: &[Delta], len: usize) {
        // SAFETY: the caller's promise.
        unsafe { (self.kernels().update)(Parities { p, q }, deltas, len) }
    }

    /// Each output = Σ coefficient·source; a coefficient for every source. At most [`OUTS_MAX`] outputs. The general tool:
    /// [`recover_raw`](Self::recover_raw) is faster for what it does.
    ///
    /// # Safety
    ///
    /// See [the module](crate::raw).
    ///
    /// # Panics
    ///
    /// If there are too many outputs, or not as many coefficients as sources.
    pub unsafe fn combine_raw(self, outs: &[Combination<'_>], srcs: &[*const u8], len: usize) {
        assert!(outs.len() <= OUTS_MAX, "at most {OUTS_MAX} combinations at a time");
        assert!(outs.iter().all(|(_, row)| row.len() == srcs.len()), "a coefficient for every source");
        // SAFETY: the caller's promise, and the counts just checked.
        unsafe { (self.kernels().combine)(outs, srcs, len) }
    }

    /// Lost blocks by the rows that [`recovery`](crate::recovery) gives for them, in one pass over the surviving blocks:
    /// `data` and, unless lost or not needed, P and Q. With the rows (1, 0) and (0, 1) the outputs are the two syndromes.
    ///
    /// # Safety
    ///
    /// See [the module](crate::raw).
    ///
    /// # Panics
    ///
    /// If the exponents of `data` do not ascend below 255.
    pub unsafe fn recover_raw(
        self,
        outs: &[(*mut u8, Row)],
        p: Option<*const u8>,
        q: Option<*const u8>,
        data: &[Term],
        len: usize,
    ) {
        assert_exponents(data);
        // SAFETY: the caller's promise.
        unsafe { (self.kernels().recover)(&RecoveryArgs { outs, p, q, data }, len) }
    }
}

fn assert_exponents(data: &[Term]) {
    let ascend = data.windows(2).all(|pair| pair[0].1 < pair[1].1);
    assert!(ascend && data.last().is_none_or(|last| last.1 < 255), "exponents ascend below 255");
}
