//! Every backend against arithmetic done byte by byte from the definition.

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

use crate::recovery::{Located, Lost, Row, locate_error, recover as rows_of};
use crate::{Backend, gf};

/// P and Q of `data` by definition.
fn slow_pq(data: &[(Vec<u8>, u8)], len: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut p, mut q) = (vec![0; len], vec![0; len]);
    for (block, k) in data {
        for i in 0..len {
            p[i] ^= block[i];
            q[i] ^= gf::mul(gf::exp(*k), block[i]);
        }
    }
    (p, q)
}

/// A loss: which data blocks are gone, whether P, whether Q, and what should come back.
type Case<'a> = (Lost, Vec<usize>, bool, bool, Vec<&'a [u8]>);

/// Blocks in one arena at chosen distances from alignment, so that every combination of alignments occurs.
struct Arena {
    memory: Vec<u8>,
    starts: Vec<usize>,
    len: usize,
}

impl Arena {
    fn new(blocks: &[&[u8]], shifts: &[usize]) -> Self {
        let len = blocks.first().map_or(0, |first| first.len());
        let room = blocks.len() * (len + 128) + 192;
        let (mut memory, mut starts) = (Vec::<u8>::with_capacity(room), Vec::new());
        // So that no shift means a whole line.
        let aside = memory.as_ptr().align_offset(64);
        for (block, shift) in blocks.iter().zip(shifts.iter().cycle()) {
            memory.resize(aside + memory.len().saturating_sub(aside).next_multiple_of(64) + shift, 0xee);
            starts.push(memory.len());
            memory.extend_from_slice(block);
        }
        memory.resize(memory.len() + 64, 0xee);
        assert!(memory.len() <= room, "the arena must not move");
        Self { memory, starts, len }
    }

    fn at(&mut self, block: usize) -> *mut u8 {
        // SAFETY: `starts` are offsets into `memory`.
        unsafe { self.memory.as_mut_ptr().add(self.starts[block]) }
    }

    fn block(&self, block: usize) -> &[u8] {
        &self.memory[self.starts[block]..][..self.len]
    }

    /// What lies between the blocks, which nothing may touch.
    fn gaps(&self) -> Vec<u8> {
        let inside = |i: usize| self.starts.iter().any(|&start| (start..start + self.len).contains(&i));
        (0..self.memory.len()).filter(|&i| !inside(i)).map(|i| self.memory[i]).collect()
    }
}

prop_compose! {
    /// Equally long blocks with ascending exponents, mostly without gaps as in most layouts.
    fn rows()(
        len in prop_oneof![0usize..700, Just(512), Just(4096)],
        exponents in prop_oneof![(1u8..20).prop_map(|n| (0..n).collect()), btree_set(0u8..255, 1..20)],
        seed in any::<u64>(),
    ) -> Vec<(Vec<u8>, u8)> {
        let mut state = seed;
        let mut byte = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        exponents.into_iter().map(|k| ((0..len).map(|_| byte()).collect(), k)).collect()
    }
}

fn shifts() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![Just(vec![0]), vec(0usize..64, 1..24)]
}

proptest! {
    #[test]
    fn xor_is_the_sum(data in rows(), shifts in shifts()) {
        let len = data[0].0.len();
        let expected = slow_pq(&data, len).0;
        let blank = vec![0x55; len];
        let blocks: Vec<&[u8]> = core::iter::once(&blank).chain(data.iter().map(|d| &d.0)).map(|b| &b[..]).collect();
        for backend in Backend::available() {
            let mut arena = Arena::new(&blocks, &shifts);
            let gaps = arena.gaps();
            let srcs: Vec<*const u8> = (1..blocks.len()).map(|b| arena.at(b).cast_const()).collect();
            // SAFETY: blocks of `len` bytes that do not overlap.
            unsafe { backend.xor_raw(arena.at(0), &srcs, len) };
            prop_assert_eq!(arena.block(0), &expected[..], "{:?}", backend);
            // In place, over the last source.
            // SAFETY: as above; the output is exactly one of the sources.
            unsafe { backend.xor_raw(arena.at(blocks.len() - 1), &srcs, len) };
            prop_assert_eq!(arena.block(blocks.len() - 1), &expected[..], "{:?}", backend);
            prop_assert_eq!(arena.gaps(), gaps);

            let mut sum = blank.clone();
            backend.xor_in_place(&mut sum, &blocks[1..]);
            backend.xor_in_place(&mut sum, &[&blank]);
            prop_assert_eq!(&sum, &expected, "{:?}", backend);
        }
    }

    #[test]
    fn pq_is_its_definition(data in rows(), shifts in shifts()) {
        let len = data[0].0.len();
        let (p, q) = slow_pq(&data, len);
        let blank = vec![0x55; len];
        let blocks: Vec<&[u8]> = [&blank, &blank].into_iter().chain(data.iter().map(|d| &d.0)).map(|b| &b[..]).collect();
        for backend in Backend::available() {
            let mut arena = Arena::new(&blocks, &shifts);
            let gaps = arena.gaps();
            let terms: Vec<_> = data.iter().enumerate().map(|(i, d)| (arena.at(i + 2).cast_const(), d.1)).collect();
            let (to_p, to_q) = (arena.at(0), arena.at(1));
            // SAFETY: blocks of `len` bytes that do not overlap.
            unsafe { backend.pq_raw(Some(to_p), Some(to_q), &terms, len) };
            prop_assert_eq!((arena.block(0), arena.block(1)), (&p[..], &q[..]), "{:?}", backend);
            prop_assert_eq!(arena.gaps(), gaps);

            let slices: Vec<(&[u8], u8)> = data.iter().map(|(block, k)| (&block[..], *k)).collect();
            let mut alone = blank.clone();
            backend.pq(Some(&mut alone), None, &slices);
            prop_assert_eq!(&alone, &p, "{:?}", backend);
            backend.pq(None, Some(&mut alone), &slices);
            prop_assert_eq!(&alone, &q, "{:?}", backend);

            // In place: P over the first data block, Q over the last.
            if data.len() > 1 {
                let (first, last) = (arena.at(2), arena.at(data.len() + 1));
                // SAFETY: as above; the outputs are exactly two of the sources.
                unsafe { backend.pq_raw(Some(first), Some(last), &terms, len) };
                prop_assert_eq!((arena.block(2), arena.block(data.len() + 1)), (&p[..], &q[..]), "{:?}", backend);
            }
        }
    }

    #[test]
    fn updates_give_what_computing_anew_gives(old in rows(), touched in vec(any::<bool>(), 20), shifts in shifts()) {
        let len = old[0].0.len();
        let mut new = old.clone();
        for ((block, k), _) in new.iter_mut().zip(&touched).filter(|(_, touched)| **touched) {
            block.iter_mut().enumerate().for_each(|(i, byte)| *byte = byte.wrapping_mul(7).wrapping_add(*k) ^ i as u8);
        }
        let (before, after) = (slow_pq(&old, len), slow_pq(&new, len));
        let changed: Vec<usize> = (0..old.len()).filter(|&i| touched[i]).collect();
        let both = [&before.0, &before.1].into_iter().chain(old.iter().chain(&new).map(|d| &d.0));
        let blocks: Vec<&[u8]> = both.map(|block| &block[..]).collect();
        for backend in Backend::available() {
            let mut arena = Arena::new(&blocks, &shifts);
            let mut deltas: Vec<_> = Vec::new();
            for &i in changed.iter().rev() {
                deltas.push((arena.at(2 + i).cast_const(), arena.at(2 + old.len() + i).cast_const(), old[i].1));
            }
            let (p, q) = (arena.at(0), arena.at(1));
            // SAFETY: blocks of `len` bytes that do not overlap.
            unsafe { backend.pq_update_raw(Some(p), Some(q), &deltas, len) };
            prop_assert_eq!((arena.block(0), arena.block(1)), (&after.0[..], &after.1[..]), "{:?}", backend);

            let slices: Vec<_> = changed.iter().map(|&i| (&old[i].0[..], &new[i].0[..], old[i].1)).collect();
            let (mut p, mut q) = before.clone();
            backend.pq_update(Some(&mut p), None, &slices);
            backend.pq_update(None, Some(&mut q), &slices);
            prop_assert_eq!(&(p, q), &after, "{:?}", backend);
        }
    }

    #[test]
    fn combinations_are_sums_of_multiples(
        data in rows(), factors in vec(vec(any::<u8>(), 20), 0..=4), shifts in shifts(),
    ) {
        let len = data[0].0.len();
        let expected: Vec<Vec<u8>> = factors.iter().map(|row| {
            (0..len).map(|i| data.iter().zip(row).fold(0, |sum, (d, c)| sum ^ gf::mul(*c, d.0[i]))).collect()
        }).collect();
        let blank = vec![0x55; len];
        let blocks: Vec<&[u8]> =
            factors.iter().map(|_| &blank[..]).chain(data.iter().map(|d| &d.0[..])).collect();
        for backend in Backend::available() {
            let mut arena = Arena::new(&blocks, &shifts);
            let gaps = arena.gaps();
            let srcs: Vec<_> = (factors.len()..blocks.len()).map(|b| arena.at(b).cast_const()).collect();
            let outs: Vec<_> = factors.iter().enumerate().map(|(o, row)| (arena.at(o), &row[..data.len()])).collect();
            // SAFETY: blocks of `len` bytes that do not overlap.
            unsafe { backend.combine_raw(&outs, &srcs, len) };
            for (o, expected) in expected.iter().enumerate() {
                prop_assert_eq!(arena.block(o), &expected[..], "{:?} output {}", backend, o);
            }
            prop_assert_eq!(arena.gaps(), gaps);
        }
    }

    /// Every loss that two parities bear comes back, by both ways of computing it.
    #[test]
    fn what_is_lost_comes_back(data in rows(), x in any::<prop::sample::Index>(), y in any::<prop::sample::Index>()) {
        let len = data[0].0.len();
        let (p, q) = slow_pq(&data, len);
        let (x, y) = (x.index(data.len()), y.index(data.len()));
        let (kx, ky) = (data[x].1, data[y].1);
        let mut cases: Vec<Case<'_>> = vec![
            (Lost::P, vec![], true, false, vec![&p]),
            (Lost::Q, vec![], false, true, vec![&q]),
            (Lost::PQ, vec![], true, true, vec![&p, &q]),
            (Lost::Data(kx), vec![x], false, false, vec![&data[x].0]),
            (Lost::DataP(kx), vec![x], true, false, vec![&data[x].0, &p]),
            (Lost::DataQ(kx), vec![x], false, true, vec![&data[x].0, &q]),
        ];
        if x == y {
            prop_assert_eq!(rows_of(Lost::DataData(kx, ky)), None);
        } else {
            cases.push((Lost::DataData(kx, ky), vec![x, y], false, false, vec![&data[x].0, &data[y].0]));
        }
        for (lost, gone, p_gone, q_gone, expected) in cases {
            let (first, second) = rows_of(lost).unwrap();
            let rows: Vec<Row> = [Some(first), second].into_iter().flatten().collect();
            prop_assert_eq!(rows.len(), expected.len());
            let left: Vec<(&[u8], u8)> =
                data.iter().enumerate().filter(|(i, _)| !gone.contains(i)).map(|(_, d)| (&d.0[..], d.1)).collect();
            let (p, q) = ((!p_gone).then_some(&p[..]), (!q_gone).then_some(&q[..]));
            let exponents: Vec<u8> = left.iter().map(|(_, k)| *k).collect();
            let tables: Vec<Vec<u8>> =
                rows.iter().map(|row| row.coefficients(&exponents, p.is_some(), q.is_some())).collect();
            let sources: Vec<&[u8]> = left.iter().map(|(block, _)| *block).chain(p).chain(q).collect();
            for backend in Backend::available() {
                let mut found = vec![vec![0x55; len]; rows.len()];
                let mut outs: Vec<(&mut [u8], Row)> =
                    found.iter_mut().zip(&rows).map(|(out, row)| (&mut out[..], *row)).collect();
                backend.recover(&mut outs, p, q, &left);
                prop_assert_eq!(&found, &expected, "{:?} {:?}", backend, lost);

                let mut found = vec![vec![0x55; len]; rows.len()];
                let mut outs: Vec<(&mut [u8], &[u8])> =
                    found.iter_mut().zip(&tables).map(|(out, row)| (&mut out[..], &row[..])).collect();
                backend.combine(&mut outs, &sources);
                prop_assert_eq!(&found, &expected, "{:?} {:?} by coefficients", backend, lost);
            }
        }
    }

    /// One wrong block is named; the syndromes come from `recover` with the unit rows.
    #[test]
    fn one_wrong_block_is_found(
        data in rows(), which in any::<prop::sample::Index>(), noise in vec(any::<u8>(), 1..64),
    ) {
        let len = data[0].0.len();
        let (mut p, mut q) = slow_pq(&data, len);
        let mut data = data;
        let which = which.index(data.len() + 2);
        let expected = match which {
            _ if len == 0 || noise.iter().take(len).all(|byte| *byte == 0) => Located::Consistent,
            0 => Located::P,
            1 => Located::Q,
            i => Located::Data(data[i - 2].1),
        };
        let wrong = match which {
            0 => &mut p,
            1 => &mut q,
            i => &mut data[i - 2].0,
        };
        wrong.iter_mut().zip(&noise).for_each(|(byte, noise)| *byte ^= noise);
        let (mut p_syndrome, mut q_syndrome) = (vec![0; len], vec![0; len]);
        let slices: Vec<(&[u8], u8)> = data.iter().map(|(block, k)| (&block[..], *k)).collect();
        crate::recover(
            &mut [(&mut p_syndrome, Row { p: 1, q: 0 }), (&mut q_syndrome, Row { p: 0, q: 1 })],
            Some(&p),
            Some(&q),
            &slices,
        );
        let exponents: Vec<u8> = data.iter().map(|d| d.1).collect();
        prop_assert_eq!(locate_error(&p_syndrome, &q_syndrome, &exponents), expected);
    }
}

#[test]
fn published_vectors() {
    for (data, p, q) in [(&[0x11, 0x22, 0x33][..], 0x00, 0x99), (&[0x80, 0xff, 0x01, 0x5a], 0x24, 0x8d)] {
        for backend in Backend::available() {
            let blocks: Vec<Vec<u8>> = data.iter().map(|byte| vec![*byte; 200]).collect();
            let terms: Vec<(&[u8], u8)> = blocks.iter().zip(0..).map(|(block, k)| (&block[..], k)).collect();
            let (mut to_p, mut to_q) = (vec![0; 200], vec![0; 200]);
            backend.pq(Some(&mut to_p), Some(&mut to_q), &terms);
            assert_eq!((to_p, to_q), (vec![p; 200], vec![q; 200]), "{backend:?}");
        }
    }
}

#[test]
fn two_wrong_blocks_are_not_called_one() {
    // Bytes that disagree, a byte that only P sees beside one that only Q sees, and an exponent that no block has.
    assert_eq!(locate_error(&[1, 1], &[gf::exp(1), gf::exp(2)], &[0, 1, 2]), Located::Several);
    assert_eq!(locate_error(&[1, 0], &[0, 1], &[0, 1, 2]), Located::Several);
    assert_eq!(locate_error(&[1, 1], &[1, 0], &[0, 1, 2]), Located::Several);
    assert_eq!(locate_error(&[1], &[gf::exp(3)], &[0, 1, 2]), Located::Several);
    assert_eq!(locate_error(&[0, 7], &[0, gf::mul(7, gf::exp(2))], &[0, 1, 2]), Located::Data(2));
}

/// Passes large enough to go past the caches, aligned and not, with an end that is no whole register; and in place.
#[test]
fn large_blocks_are_right_too() {
    check_streaming(crate::simd::streaming::PQ_FROM / 6 + 77, |backend| backend);
}

/// Small ones that go past the caches because the caller says so.
#[test]
fn cold_blocks_are_right_too() {
    for len in [1, 31, 64, 4096, 4096 + 77] {
        check_streaming(len, Backend::cold);
    }
}

/// Few cold blocks and more than are read side by side, with gaps in their exponents, lengths around a lap, and P over one of its sources.
#[test]
fn cold_rows_of_any_width_are_right_too() {
    for (count, len) in [(4, 4096 + 77), (8, 300), (9, 1), (9, 2048), (14, 2048 + 77), (17, 4096 + 100), (33, 64)] {
        let exponent = |block: usize| (block + block / 5 * 2) as u8 + 1;
        let data: Vec<(Vec<u8>, u8)> = (0..count)
            .map(|k| ((0..len).map(|i: usize| (i.wrapping_mul(0x9e37_79b1) >> (k % 23)) as u8).collect(), exponent(k)))
            .collect();
        let expected = slow_pq(&data, len);
        let blank = vec![0x55; len];
        let blocks: Vec<&[u8]> =
            [&blank, &blank].into_iter().chain(data.iter().map(|d| &d.0)).map(|b| &b[..]).collect();
        for backend in Backend::available().map(Backend::cold) {
            for over_a_source in [false, true] {
                let mut arena = Arena::new(&blocks, &[0]);
                let gaps = arena.gaps();
                let terms: Vec<_> = (0..count).map(|b| (arena.at(b + 2).cast_const(), exponent(b))).collect();
                let p = if over_a_source { count / 2 + 2 } else { 0 };
                let (p_at, q_at) = (arena.at(p), arena.at(1));
                // SAFETY: blocks of `len` bytes that do not overlap, but for P, which may be exactly a source.
                unsafe { backend.pq_raw(Some(p_at), Some(q_at), &terms, len) };
                backend.fence();
                assert!(arena.block(p) == expected.0, "{backend:?} P of {count} blocks of {len}");
                assert!(arena.block(1) == expected.1, "{backend:?} Q of {count} blocks of {len}");
                assert!(arena.gaps() == gaps, "{backend:?} wrote outside");
            }
        }
    }
}

fn check_streaming(len: usize, as_used: fn(Backend) -> Backend) {
    let data: Vec<(Vec<u8>, u8)> =
        (0..4).map(|k| ((0..len).map(|i| (i.wrapping_mul(0x9e37_79b1) >> (9 + k)) as u8).collect(), k)).collect();
    let expected = slow_pq(&data, len);
    let blank = vec![0x55; len];
    let blocks: Vec<&[u8]> = [&blank, &blank].into_iter().chain(data.iter().map(|d| &d.0)).map(|b| &b[..]).collect();
    for backend in Backend::available().map(as_used) {
        for shifts in [[0], [24]] {
            let mut arena = Arena::new(&blocks, &shifts);
            let gaps = arena.gaps();
            let srcs: Vec<*const u8> = (2..6).map(|b| arena.at(b).cast_const()).collect();
            let terms: Vec<_> = srcs.iter().copied().zip(0..).collect();
            let (p, q) = (arena.at(0), arena.at(1));
            // SAFETY: blocks of `len` bytes that do not overlap.
            unsafe { backend.pq_raw(Some(p), Some(q), &terms, len) };
            assert!((arena.block(0), arena.block(1)) == (&expected.0, &expected.1), "{backend:?} P and Q");
            // SAFETY: as above.
            unsafe { backend.xor_raw(q, &srcs, len) };
            assert!(arena.block(1) == expected.0, "{backend:?} XOR");
            // SAFETY: as above; the output is exactly a source, so everything cancels but P itself.
            unsafe { backend.xor_raw(p, &[&[p.cast_const(), q.cast_const()][..], &srcs].concat(), len) };
            assert!(arena.block(0) == expected.0, "{backend:?} in place");
            assert!(arena.gaps() == gaps, "{backend:?} wrote outside");
        }
    }
}

/// The widest arrays: more sources than fit the stack, and the highest exponent.
#[test]
fn as_many_blocks_as_the_field_allows() {
    let data: Vec<(Vec<u8>, u8)> = (0..255).map(|k| (vec![k ^ 0x3c; 129], k)).collect();
    let slices: Vec<(&[u8], u8)> = data.iter().map(|(block, k)| (&block[..], *k)).collect();
    for backend in Backend::available() {
        let (mut p, mut q) = (vec![0; 129], vec![0; 129]);
        backend.pq(Some(&mut p), Some(&mut q), &slices);
        assert_eq!((p, q), slow_pq(&data, 129), "{backend:?}");
    }
}

/// Says which backends the tests of this run could not cover, and that the choice is one of those they did.
#[test]
fn backends_of_this_processor() {
    for name in Backend::NAMES {
        match Backend::named(name) {
            Some(backend) => assert_eq!(backend.name(), *name),
            None => println!("not tested: {name} (this processor lacks it)"),
        }
    }
    assert!(Backend::available().any(|backend| backend.name() == Backend::detect().name()));
    assert!(Backend::named("no such thing").is_none());
}

#[test]
#[should_panic(expected = "ascend")]
fn exponents_out_of_order_are_refused() {
    let block = [0; 8];
    crate::pq(Some(&mut [0; 8]), None, &[(&block, 1), (&block, 0)]);
}

#[test]
#[should_panic(expected = "equally long")]
fn blocks_of_different_lengths_are_refused() {
    crate::xor(&mut [0; 8], &[&[0; 9]]);
}
