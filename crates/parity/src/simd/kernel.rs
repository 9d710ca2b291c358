//! The kernels, over any [`Vector`].
//!
//! Each walks the blocks once, a few registers at a time: first in runs of several registers (whole cache lines, so that
//! every line is read once and written once), then single registers, then words, then bytes. At every step all inputs are
//! read before any output is written; that is what makes exact in-place use right.

use super::{Parities, RecoveryArgs, Vector};
use crate::gf;
use crate::raw::{Combination, Delta, Term};

/// Runs a step over the offsets of a block: by `$many` registers, one register, words, bytes.
macro_rules! sweep {
    ($vector:ident, $many:literal, $len:expr, |$at:ident| $step:ident::<_, _ $(, $generic:tt)*>($($arg:expr),*)) => {{
        let len: usize = $len;
        let mut $at = 0;
        while len - $at >= $many * $vector::BYTES {
            $step::<$vector, $many $(, $generic)*>($($arg),*);
            $at += $many * $vector::BYTES;
        }
        while len - $at >= $vector::BYTES {
            $step::<$vector, 1 $(, $generic)*>($($arg),*);
            $at += $vector::BYTES;
        }
        while len - $at >= u64::BYTES {
            $step::<u64, 1 $(, $generic)*>($($arg),*);
            $at += u64::BYTES;
        }
        while $at < len {
            $step::<u8, 1 $(, $generic)*>($($arg),*);
            $at += 1;
        }
    }};
}

/// `dst` = sum of `srcs` (at least one). In longer runs than the rest: page-aligned blocks compete for the same cache sets,
/// so with many of them every visit should use up all it can. From the last source to the first, as P and Q go too: that
/// measured faster for wide arrays whose blocks lie one after the other with parity behind them. The likely reason, not
/// confirmed by counters: going upward, the hardware prefetches parity's lines as the next in the pattern.
#[inline(always)]
pub(crate) unsafe fn xor<V: Vector>(dst: *mut u8, srcs: &[*const u8], len: usize) {
    // SAFETY: every step stays below `len`, within blocks that the caller vouches for.
    unsafe { sweep!(V, 8, len, |at| xor_step::<_, _>(dst, srcs, at)) }
}

#[inline(always)]
unsafe fn xor_step<V: Vector, const N: usize>(dst: *mut u8, srcs: &[*const u8], at: usize) {
    // SAFETY: the caller keeps `at` + N registers within every block.
    unsafe {
        let (first, rest) = srcs.split_last().unwrap_unchecked();
        let mut sum = load::<V, N>(*first, at);
        let mut pairs = rest.rchunks_exact(2);
        for pair in pairs.by_ref() {
            let (a, b) = (load::<V, N>(pair[1], at), load::<V, N>(pair[0], at));
            for i in 0..N {
                sum[i] = sum[i].xor3(a[i], b[i]);
            }
        }
        for src in pairs.remainder() {
            add::<V, N>(&mut sum, &load::<V, N>(*src, at));
        }
        store::<V, N>(&sum, dst, at);
    }
}

/// P and Q of `data` (at least one block, exponents ascending); at least one of them wanted.
#[inline(always)]
pub(crate) unsafe fn pq<V: Vector>(out: Parities, data: &[Term], len: usize) {
    // SAFETY: as in `xor`.
    unsafe {
        match out {
            Parities { p: Some(p), q: Some(q) } => sweep!(V, 4, len, |at| pq_step::<_, _>(p, q, data, at)),
            Parities { p: None, q: Some(q) } => sweep!(V, 4, len, |at| q_step::<_, _>(q, data, at)),
            Parities { p: Some(p), q: None } => sweep!(V, 4, len, |at| p_step::<_, _>(p, data, at)),
            Parities { p: None, q: None } => {}
        }
    }
}

#[inline(always)]
unsafe fn pq_step<V: Vector, const N: usize>(p: *mut u8, q: *mut u8, data: &[Term], at: usize) {
    // SAFETY: as in `xor_step`.
    unsafe {
        let (p_sum, q_sum) = horner::<V, N, true, true>(data, at);
        store::<V, N>(&p_sum, p, at);
        store::<V, N>(&q_sum, q, at);
    }
}

#[inline(always)]
unsafe fn q_step<V: Vector, const N: usize>(q: *mut u8, data: &[Term], at: usize) {
    // SAFETY: as in `xor_step`.
    unsafe { store::<V, N>(&horner::<V, N, false, true>(data, at).1, q, at) }
}

#[inline(always)]
unsafe fn p_step<V: Vector, const N: usize>(p: *mut u8, data: &[Term], at: usize) {
    // SAFETY: as in `xor_step`.
    unsafe { store::<V, N>(&horner::<V, N, true, false>(data, at).0, p, at) }
}

/// Σ D_k and Σ gᵏ·D_k. The second by Horner's rule from the highest exponent down: a doubling per step of the exponent
/// instead of a multiplication per block.
#[inline(always)]
unsafe fn horner<V: Vector, const N: usize, const P: bool, const Q: bool>(
    data: &[Term],
    at: usize,
) -> ([V; N], [V; N]) {
    // SAFETY: as in `xor_step`.
    unsafe {
        let Some((&(top, mut above), rest)) = data.split_last() else {
            return ([V::zero(); N], [V::zero(); N]);
        };
        let mut p = load::<V, N>(top, at);
        let mut q = p;
        for &(src, k) in rest.iter().rev() {
            let block = load::<V, N>(src, at);
            if P {
                add(&mut p, &block);
            }
            if Q {
                double(&mut q);
                // Exponents that no block has: places of absent members, or of P and Q in the DDF layouts.
                for _ in k + 1..above {
                    double(&mut q);
                }
                add(&mut q, &block);
                above = k;
            }
        }
        if Q {
            for _ in 0..above {
                double(&mut q);
            }
        }
        (p, q)
    }
}

/// Like [`pq`] with both parities, for stores past the caches, and no block in place of P. Such stores like long runs to one place,
/// longer than there are registers for both sums: so P first and then Q, of data that is in the first-level cache by then.
#[inline(always)]
pub(crate) unsafe fn pq_in_turn<V: Vector>(p: *mut u8, q: *mut u8, data: &[Term], len: usize) {
    // SAFETY: as in `xor`.
    unsafe { sweep!(V, 8, len, |at| pq_turn_step::<_, _>(p, q, data, at)) }
}

#[inline(always)]
unsafe fn pq_turn_step<V: Vector, const N: usize>(p: *mut u8, q: *mut u8, data: &[Term], at: usize) {
    // SAFETY: as in `xor_step`; no input of Q is where P has been written.
    unsafe {
        p_step::<V, N>(p, data, at);
        q_step::<V, N>(q, data, at);
    }
}

/// How many blocks are read side by side where they come from memory. Page-aligned blocks compete for the same sets of the caches,
/// which hold eight lines or so: of more blocks, lines that the hardware has fetched ahead are gone again before they are used.
pub(crate) const ABREAST: usize = 8;

/// How far a group of blocks is followed before the next group has its turn: the sums stay in the first-level cache.
const LAP: usize = 2048;

/// Like [`pq`] with both parities, for more blocks than can be read [`ABREAST`], in groups. The sums of all groups but the last are kept
/// by `V`; the parities are stored by `S`.
#[inline(always)]
pub(crate) unsafe fn pq_in_groups<V: Vector, S: Vector>(p: *mut u8, q: *mut u8, data: &[Term], len: usize) {
    #[repr(align(64))]
    struct Sums([u8; LAP]);
    let (mut p_sums, mut q_sums) = (Sums([0; LAP]), Sums([0; LAP]));
    let groups = data.len().div_ceil(ABREAST);
    let group = data.len().div_ceil(groups);
    for lap in (0..len).step_by(LAP) {
        let size = LAP.min(len - lap);
        let mut above = None;
        let mut groups = data.rchunks(group).peekable();
        while let Some(data) = groups.next() {
            let carry = Carry { p: p_sums.0.as_mut_ptr(), q: q_sums.0.as_mut_ptr(), above, lap };
            // SAFETY: as in `xor`; the sums have room for a lap.
            unsafe {
                if groups.peek().is_some() {
                    sweep!(V, 4, size, |at| group_step::<_, _, false>(p, q, carry, data, at));
                } else {
                    sweep!(S, 4, size, |at| group_step::<_, _, true>(p, q, carry, data, at));
                }
            }
            above = data.first().map(|term| term.1);
        }
    }
}

/// The sums of the groups before: where they are kept, the lowest exponent so far (none before the first group), and the offset in
/// the blocks that they begin at.
#[derive(Clone, Copy)]
struct Carry {
    p: *mut u8,
    q: *mut u8,
    above: Option<u8>,
    lap: usize,
}

#[inline(always)]
unsafe fn group_step<V: Vector, const N: usize, const LAST: bool>(
    p: *mut u8,
    q: *mut u8,
    carry: Carry,
    data: &[Term],
    at: usize,
) {
    // SAFETY: as in `xor_step`; the sums are as long as a lap.
    unsafe {
        let (mut p_sum, mut q_sum, mut above, rest) = match (carry.above, data.split_last()) {
            (None, Some((&(top, k), rest))) => {
                let block = load::<V, N>(top, carry.lap + at);
                (block, block, k, rest)
            }
            (above, _) => (load::<V, N>(carry.p, at), load::<V, N>(carry.q, at), above.unwrap_or(0), data),
        };
        for &(src, k) in rest.iter().rev() {
            let block = load::<V, N>(src, carry.lap + at);
            add(&mut p_sum, &block);
            for _ in k..above {
                double(&mut q_sum);
            }
            add(&mut q_sum, &block);
            above = k;
        }
        if LAST {
            for _ in 0..above {
                double(&mut q_sum);
            }
            store::<V, N>(&p_sum, p, carry.lap + at);
            store::<V, N>(&q_sum, q, carry.lap + at);
        } else {
            store::<V, N>(&p_sum, carry.p, at);
            store::<V, N>(&q_sum, carry.q, at);
        }
    }
}

/// Adds what changed to P and Q in place; at least one of them wanted.
#[inline(always)]
pub(crate) unsafe fn update<V: Vector>(out: Parities, deltas: &[Delta], len: usize) {
    // SAFETY: as in `xor`.
    unsafe {
        match out {
            Parities { p: Some(p), q: Some(q) } => {
                sweep!(V, 4, len, |at| update_step::<_, _, true, true>(p, q, deltas, at))
            }
            Parities { p: None, q: Some(q) } => {
                sweep!(V, 4, len, |at| update_step::<_, _, false, true>(q, q, deltas, at))
            }
            Parities { p: Some(p), q: None } => {
                sweep!(V, 4, len, |at| update_step::<_, _, true, false>(p, p, deltas, at))
            }
            Parities { p: None, q: None } => {}
        }
    }
}

#[inline(always)]
unsafe fn update_step<V: Vector, const N: usize, const P: bool, const Q: bool>(
    p: *mut u8,
    q: *mut u8,
    deltas: &[Delta],
    at: usize,
) {
    // SAFETY: as in `xor_step`; a parity that is not wanted is neither read nor written.
    unsafe {
        let mut p_sum = if P { load::<V, N>(p, at) } else { [V::zero(); N] };
        let mut q_sum = if Q { load::<V, N>(q, at) } else { [V::zero(); N] };
        for &(old, new, k) in deltas {
            let mut change = load::<V, N>(old, at);
            add(&mut change, &load::<V, N>(new, at));
            if P {
                add(&mut p_sum, &change);
            }
            if Q {
                add_multiple(&mut q_sum, &change, V::factor(gf::exp(k)));
            }
        }
        if P {
            store(&p_sum, p, at);
        }
        if Q {
            store(&q_sum, q, at);
        }
    }
}

/// Linear combinations of `srcs`, one to four.
#[inline(always)]
pub(crate) unsafe fn combine<V: Vector>(outs: &[Combination<'_>], srcs: &[*const u8], len: usize) {
    // SAFETY: as in `xor`. The fewer outputs, the more registers are left for longer runs.
    unsafe {
        match outs {
            [a] => sweep!(V, 4, len, |at| combine_step::<_, _, 1>(&[*a], srcs, at)),
            [a, b] => sweep!(V, 2, len, |at| combine_step::<_, _, 2>(&[*a, *b], srcs, at)),
            [a, b, c] => sweep!(V, 1, len, |at| combine_step::<_, _, 3>(&[*a, *b, *c], srcs, at)),
            [a, b, c, d] => sweep!(V, 1, len, |at| combine_step::<_, _, 4>(&[*a, *b, *c, *d], srcs, at)),
            _ => {}
        }
    }
}

#[inline(always)]
unsafe fn combine_step<V: Vector, const N: usize, const OUTS: usize>(
    outs: &[Combination<'_>; OUTS],
    srcs: &[*const u8],
    at: usize,
) {
    // SAFETY: as in `xor_step`; each output has a coefficient for every source.
    unsafe {
        let mut sums = [[V::zero(); N]; OUTS];
        for (s, src) in srcs.iter().enumerate() {
            let block = load::<V, N>(*src, at);
            let mut factors = [V::factor(0); OUTS];
            for o in 0..OUTS {
                factors[o] = V::factor(*outs[o].1.get_unchecked(s));
            }
            for i in 0..N {
                let split = block[i].split();
                for o in 0..OUTS {
                    sums[o][i] = sums[o][i].xor(V::times(split, factors[o]));
                }
            }
        }
        for o in 0..OUTS {
            store(&sums[o], outs[o].0, at);
        }
    }
}

/// Lost blocks from both syndromes, which stay in registers: a doubling per surviving block instead of a multiplication
/// per surviving block and output.
#[inline(always)]
pub(crate) unsafe fn recover<V: Vector>(args: &RecoveryArgs<'_>, len: usize) {
    // SAFETY: as in `xor`.
    unsafe {
        match args.outs {
            [] => {}
            outs if outs.iter().all(|(_, row)| row.q == 0) => {
                sweep!(V, 4, len, |at| recover_step::<_, _, false>(args, at))
            }
            _ => sweep!(V, 4, len, |at| recover_step::<_, _, true>(args, at)),
        }
    }
}

#[inline(always)]
unsafe fn recover_step<V: Vector, const N: usize, const Q: bool>(args: &RecoveryArgs<'_>, at: usize) {
    // SAFETY: as in `xor_step`.
    unsafe {
        let (mut p, mut q) = horner::<V, N, true, Q>(args.data, at);
        if let Some(stored) = args.p {
            add(&mut p, &load(stored, at));
        }
        if let (true, Some(stored)) = (Q, args.q) {
            add(&mut q, &load(stored, at));
        }
        for (dst, row) in args.outs {
            let mut sum = [V::zero(); N];
            add_multiple(&mut sum, &p, V::factor(row.p));
            if Q {
                add_multiple(&mut sum, &q, V::factor(row.q));
            }
            store(&sum, *dst, at);
        }
    }
}

#[inline(always)]
unsafe fn load<V: Vector, const N: usize>(block: *const u8, at: usize) -> [V; N] {
    // SAFETY: as in `xor_step`.
    unsafe {
        let mut run = [V::zero(); N];
        for (i, register) in run.iter_mut().enumerate() {
            *register = V::load(block.add(at + i * V::BYTES));
        }
        run
    }
}

#[inline(always)]
unsafe fn store<V: Vector, const N: usize>(run: &[V; N], block: *mut u8, at: usize) {
    // SAFETY: as in `xor_step`.
    unsafe {
        for (n, part) in run.chunks(4).enumerate() {
            let to = block.add(at + n * 4 * V::BYTES);
            match <[V; 4]>::try_from(part) {
                Ok(four) => V::store_four(four, to),
                Err(_) => part.iter().enumerate().for_each(|(i, register)| register.store(to.add(i * V::BYTES))),
            }
        }
    }
}

#[inline(always)]
unsafe fn add<V: Vector, const N: usize>(sum: &mut [V; N], run: &[V; N]) {
    for i in 0..N {
        // SAFETY: the processor has the instructions, as for the caller.
        sum[i] = unsafe { sum[i].xor(run[i]) };
    }
}

#[inline(always)]
unsafe fn double<V: Vector, const N: usize>(run: &mut [V; N]) {
    for register in run {
        // SAFETY: as in `add`.
        *register = unsafe { register.double() };
    }
}

#[inline(always)]
unsafe fn add_multiple<V: Vector, const N: usize>(sum: &mut [V; N], run: &[V; N], factor: V::Factor) {
    for i in 0..N {
        // SAFETY: as in `add`.
        sum[i] = unsafe { sum[i].xor(V::times(run[i].split(), factor)) };
    }
}
