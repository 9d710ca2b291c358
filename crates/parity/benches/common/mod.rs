//! What both benchmarks measure: the same work by one of our backends and by a rival, Intel's ISA-L where it is installed
//! and our scalar backend elsewhere.

use raidus_parity::recovery::{Lost, recover as rows_of};
use raidus_parity::{Backend, Row};

/// The operations measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    /// P of members − 1 data blocks.
    Xor,
    /// P and Q of members − 2 data blocks.
    Pq,
    /// Two lost data blocks of members − 2, from the others, P and Q.
    RecoverTwo,
    /// One combination of members − 1 blocks by arbitrary coefficients.
    CombineOne,
    /// Two of them.
    CombineTwo,
}

impl Op {
    /// In the order of the table.
    pub const ALL: [Op; 5] = [Op::Xor, Op::Pq, Op::RecoverTwo, Op::CombineOne, Op::CombineTwo];

    /// How many blocks it writes.
    pub fn outputs(self) -> usize {
        if matches!(self, Op::Xor | Op::CombineOne) { 1 } else { 2 }
    }

    /// How many blocks it reads, in an array of so many members. Recovery reads the members that are left.
    pub fn sources(self, members: usize) -> usize {
        members - self.outputs()
    }
}

/// One row of an array: its members' blocks, each starting on a page as I/O buffers do.
pub struct Work {
    op: Op,
    len: usize,
    coefficients: [Vec<u8>; 2],
    rows: (Row, Row),
    memory: Vec<u8>,
    first: usize,
    members: usize,
    #[cfg(isal)]
    tables: Vec<u8>,
}

const PAGE: usize = 4096;

impl Work {
    /// Work over blocks of `len` bytes, a multiple of 64, with reproducible content.
    pub fn new(op: Op, members: usize, len: usize) -> Self {
        let stride = len.next_multiple_of(PAGE);
        let memory: Vec<u8> = (0..members * stride + PAGE).map(|i| (i.wrapping_mul(0x9e3779b1) >> 13) as u8).collect();
        let first = memory.as_ptr().align_offset(PAGE);
        let sources = op.sources(members);
        let rows = match rows_of(Lost::DataData(0, 1)) {
            Some((x, Some(y))) => (x, y),
            _ => unreachable!("two different blocks can be recovered"),
        };
        let coefficients = if op == Op::RecoverTwo {
            // Data 0 and 1 are lost: data 2.. are left, then P and Q.
            let left: Vec<u8> = (2..sources as u8).collect();
            [rows.0.coefficients(&left, true, true), rows.1.coefficients(&left, true, true)]
        } else {
            [(0..sources).map(|i| i as u8 * 29 + 3).collect(), (0..sources).map(|i| i as u8 * 71 + 5).collect()]
        };
        Self {
            #[cfg(isal)]
            tables: isal::tables(&coefficients[..op.outputs()]),
            op,
            len,
            coefficients,
            rows,
            memory,
            first,
            members,
        }
    }

    fn block(&mut self, index: usize) -> *mut u8 {
        let at = self.first + index * self.len.next_multiple_of(PAGE);
        self.memory[at..at + self.len].as_mut_ptr()
    }

    /// What the last run wrote.
    pub fn results(&mut self) -> Vec<Vec<u8>> {
        let sources = self.op.sources(self.members);
        (sources..self.members)
            .map(|index| {
                let block = self.block(index);
                // SAFETY: `block` is `len` bytes of our own memory.
                unsafe { core::slice::from_raw_parts(block, self.len) }.to_vec()
            })
            .collect()
    }

    /// Does it by one of our backends. Like the rival's, its list of blocks is made anew each time, once, in the form in which it is
    /// handed over: small blocks are a matter of nanoseconds.
    pub fn ours(&mut self, backend: Backend) {
        let (len, sources) = (self.len, self.op.sources(self.members));
        let (to, and) = (self.block(sources), self.block(sources + self.op.outputs() - 1));
        match self.op {
            Op::Pq => {
                let mut terms = [(core::ptr::null(), 0); 32];
                self.list_terms(&mut terms[..sources], 0);
                // SAFETY: here and below, all are distinct blocks of `len` bytes of our own memory.
                unsafe { backend.pq_raw(Some(to), Some(and), &terms[..sources], len) }
            }
            Op::RecoverTwo => {
                let mut terms = [(core::ptr::null(), 0); 32];
                let data = &mut terms[..sources - 2];
                self.list_terms(data, 2);
                let (p, q) = (self.block(sources - 2).cast_const(), self.block(sources - 1).cast_const());
                let outs = [(to, self.rows.0), (and, self.rows.1)];
                // SAFETY: as above.
                unsafe { backend.recover_raw(&outs, Some(p), Some(q), data, len) }
            }
            Op::Xor | Op::CombineOne | Op::CombineTwo => {
                let mut blocks = [core::ptr::null(); 32];
                for (i, src) in blocks.iter_mut().enumerate().take(sources) {
                    *src = self.block(i).cast_const();
                }
                let srcs = &blocks[..sources];
                let [a, b] = &self.coefficients;
                // SAFETY: as above.
                unsafe {
                    match self.op {
                        Op::CombineOne => backend.combine_raw(&[(to, a)], srcs, len),
                        Op::CombineTwo => backend.combine_raw(&[(to, a), (and, b)], srcs, len),
                        _ => backend.xor_raw(to, srcs, len),
                    }
                }
            }
        }
    }

    fn list_terms(&mut self, terms: &mut [(*const u8, u8)], first: u8) {
        for (i, term) in terms.iter_mut().enumerate() {
            *term = (self.block(i).cast_const(), first + i as u8);
        }
    }

    /// Does it by the rival.
    #[cfg(isal)]
    pub fn rivals(&mut self) {
        let mut blocks = [core::ptr::null_mut(); 32];
        for (i, to) in blocks.iter_mut().enumerate().take(self.members) {
            *to = self.block(i);
        }
        isal::run(self.op, &mut blocks[..self.members], self.op.sources(self.members), &mut self.tables, self.len);
    }

    /// Does it by the rival.
    #[cfg(not(isal))]
    pub fn rivals(&mut self) {
        if let Some(scalar) = Backend::named("scalar") {
            self.ours(scalar);
        }
    }
}

/// The rival's name.
pub const RIVAL: &str = if cfg!(isal) { "ISA-L" } else { "our scalar backend (ISA-L is not installed)" };

#[cfg(isal)]
mod isal {
    use core::ffi::c_int;

    use super::Op;

    #[link(name = "isal")]
    unsafe extern "C" {
        fn xor_gen(vects: c_int, len: c_int, array: *mut *mut u8) -> c_int;
        fn pq_gen(vects: c_int, len: c_int, array: *mut *mut u8) -> c_int;
        fn ec_init_tables(k: c_int, rows: c_int, a: *const u8, tables: *mut u8);
        fn ec_encode_data(len: c_int, k: c_int, rows: c_int, tables: *mut u8, data: *mut *mut u8, coding: *mut *mut u8);
    }

    pub fn tables(coefficients: &[Vec<u8>]) -> Vec<u8> {
        let matrix = coefficients.concat();
        let mut tables = vec![0; 32 * matrix.len()];
        // SAFETY: k·rows coefficients and 32 bytes of table for each.
        unsafe {
            ec_init_tables(
                coefficients[0].len() as c_int,
                coefficients.len() as c_int,
                matrix.as_ptr(),
                tables.as_mut_ptr(),
            )
        }
        tables
    }

    pub fn run(op: Op, blocks: &mut [*mut u8], sources: usize, tables: &mut [u8], len: usize) {
        let (count, len, all) = (blocks.len() as c_int, len as c_int, blocks.as_mut_ptr());
        // SAFETY: distinct blocks of `len` bytes on page boundaries, outputs last; tables as made by `tables`.
        let failed = unsafe {
            match op {
                Op::Xor => xor_gen(count, len, all),
                Op::Pq => pq_gen(count, len, all),
                _ => {
                    let rows = count - sources as c_int;
                    ec_encode_data(len, sources as c_int, rows, tables.as_mut_ptr(), all, all.add(sources));
                    0
                }
            }
        };
        assert_eq!(failed, 0, "ISA-L refused the blocks");
    }
}
