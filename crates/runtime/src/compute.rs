//! Carries out the engine's arithmetic on memory.

use raidus_engine::{Blocks, Compare, Compute, MemAddr};
use raidus_parity::{Backend, Difference, compare_copies, compare_parities};

use crate::memory::usize_of;

/// Does `job` and gives the bytes it wrote.
///
/// # Safety
/// Every range named is mapped memory that nothing else writes (and, for destinations, reads) meanwhile: the engine's contract
/// for what it is given and what it hands out.
pub(crate) unsafe fn run(backend: Backend, job: &Compute) -> u64 {
    match job {
        Compute::Xor { dst, srcs, len } => {
            let srcs: Vec<_> = srcs.iter().map(|s| ptr(*s).cast_const()).collect();
            // SAFETY: the caller's promise; the engine's overlap rules are those of the kernels.
            unsafe { backend.xor_raw(ptr(*dst), &srcs, usize_of(len.bytes())) };
            len.bytes()
        }
        Compute::Pq { p, q, data, len } => {
            let data: Vec<_> = data.iter().map(|(d, k)| (ptr(*d).cast_const(), *k)).collect();
            // SAFETY: as above.
            unsafe { backend.pq_raw(p.map(ptr), q.map(ptr), &data, usize_of(len.bytes())) };
            len.bytes() * (u64::from(p.is_some()) + u64::from(q.is_some()))
        }
        Compute::PqUpdate { p, q, deltas, len } => {
            let deltas: Vec<_> =
                deltas.iter().map(|(old, new, k)| (ptr(*old).cast_const(), ptr(*new).cast_const(), *k)).collect();
            // SAFETY: as above.
            unsafe { backend.pq_update_raw(p.map(ptr), q.map(ptr), &deltas, usize_of(len.bytes())) };
            len.bytes() * (u64::from(p.is_some()) + u64::from(q.is_some()))
        }
        Compute::Combine { outs, srcs, len } => {
            let srcs: Vec<_> = srcs.iter().map(|s| ptr(*s).cast_const()).collect();
            for outs in outs.chunks(raidus_parity::raw::OUTS_MAX) {
                let outs: Vec<_> = outs.iter().map(|(dst, row)| (ptr(*dst), row.as_slice())).collect();
                // SAFETY: as above.
                unsafe { backend.combine_raw(&outs, &srcs, usize_of(len.bytes())) };
            }
            len.bytes() * outs.len() as u64
        }
        Compute::Copy { dst, src, len } => {
            // SAFETY: as above; copies do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(ptr(*src), ptr(*dst), usize_of(len.bytes())) };
            len.bytes()
        }
        Compute::Zero { dst, len } => {
            // SAFETY: as above.
            unsafe { ptr(*dst).write_bytes(0, usize_of(len.bytes())) };
            len.bytes()
        }
    }
}

/// Makes a comparison.
///
/// # Safety
/// As for [`run`]; nothing writes the blocks meanwhile.
pub(crate) unsafe fn compare(job: &Compare) -> Vec<Difference> {
    let len = usize_of(job.len.bytes());
    // SAFETY: the caller's promise.
    let block = |addr: MemAddr| unsafe { std::slice::from_raw_parts(ptr(addr).cast_const(), len) };
    match &job.blocks {
        Blocks::Parities { p, q, exponents } => {
            let pair = |(stored, computed): (MemAddr, MemAddr)| (block(stored), block(computed));
            compare_parities(p.map(pair), q.map(pair), exponents)
        }
        Blocks::Copies(copies) => compare_copies(&copies.iter().map(|c| block(*c)).collect::<Vec<_>>()),
    }
}

fn ptr(addr: MemAddr) -> *mut u8 {
    debug_assert!(addr != MemAddr::NONE, "arithmetic on no memory");
    addr.0 as *mut u8
}
