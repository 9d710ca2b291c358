//! Parity arithmetic for md arrays: XOR, the P and Q of raid6, recovery of lost blocks and location of wrong ones.
//!
//! P = Σ D_k and Q = Σ gᵏ·D_k over the data blocks of a row, byte by byte in GF(2⁸) with the polynomial 0x11d and g = 2. The
//! exponent k of a block is the layout's business: most layouts number the data blocks without gaps, the DDF ones use the
//! slot number and skip those of P and Q. Here exponents are given with the blocks, ascending, and gaps cost next to
//! nothing.
//!
//! - Free functions and the methods of [`Backend`] work on slices; [`raw`] has the same on pointers, and says what may
//!   overlap.
//! - [`recovery`] says *which* combination of the survivors a lost block is, and touches no memory: a planner can carry its
//!   rows in what it hands to whoever owns the buffers.
//! - [`gf`] is the field.
//!
//! The instruction set is chosen once, by [`Backend::detect`]. The kernels are written once over a trait of vector
//! operations and compiled for each instruction set, so that they differ in a few lines each; all are tested against the
//! scalar one. A pass reads every source line once and writes every output line once.

#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

mod backend;
mod compare;
pub mod gf;
pub mod raw;
pub mod recovery;
mod simd;
mod slices;

#[cfg(test)]
mod tests;

pub use backend::Backend;
pub use compare::{Culprit, Difference, compare_copies, compare_parities};
pub use recovery::{Located, Lost, Row, locate_error};

/// [`Backend::xor`] by the best backend.
pub fn xor(dst: &mut [u8], srcs: &[&[u8]]) {
    Backend::detect().xor(dst, srcs);
}

/// [`Backend::xor_in_place`] by the best backend.
pub fn xor_in_place(dst: &mut [u8], srcs: &[&[u8]]) {
    Backend::detect().xor_in_place(dst, srcs);
}

/// [`Backend::pq`] by the best backend.
pub fn pq(p: Option<&mut [u8]>, q: Option<&mut [u8]>, data: &[(&[u8], u8)]) {
    Backend::detect().pq(p, q, data);
}

/// [`Backend::pq_update`] by the best backend.
pub fn pq_update(p: Option<&mut [u8]>, q: Option<&mut [u8]>, deltas: &[(&[u8], &[u8], u8)]) {
    Backend::detect().pq_update(p, q, deltas);
}

/// [`Backend::combine`] by the best backend.
pub fn combine(outs: &mut [(&mut [u8], &[u8])], srcs: &[&[u8]]) {
    Backend::detect().combine(outs, srcs);
}

/// [`Backend::recover`] by the best backend.
pub fn recover(outs: &mut [(&mut [u8], Row)], p: Option<&[u8]>, q: Option<&[u8]>, data: &[(&[u8], u8)]) {
    Backend::detect().recover(outs, p, q, data);
}
