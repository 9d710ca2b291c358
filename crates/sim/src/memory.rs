//! The memory the engine names but never touches: one flat space with an allocator, and the arithmetic of
//! [`Compute`] carried out in it.
//!
//! The memory also watches. The engine may write into scratch and into the buffers of reads that are under way; anything
//! else is a violation: a write's payload, the shared zeroes, a buffer that was given back.

use std::collections::BTreeMap;

use raidus_engine::{Blocks, Compare, Compute, MemAddr};
use raidus_parity::{Difference, compare_copies, compare_parities};
use raidus_units::Sectors;

/// What an allocation is for, which decides who may write in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Scratch of a shard.
    Scratch,
    /// Zeroes that nobody writes.
    Zeroes,
    /// Payload of a write: stable until the reply.
    Payload,
    /// Destination of a read.
    Destination,
}

/// Byte that fills memory nobody has written, so that using it shows.
const POISON: u8 = 0xa5;
/// Address 0 is [`MemAddr::NONE`], and small offsets from it are caught too.
const BASE: u64 = 1 << 16;

#[derive(Debug, Default)]
pub(crate) struct Memory {
    bytes: Vec<u8>,
    /// Allocations under way: start → (end, use).
    live: BTreeMap<u64, (u64, Use)>,
    /// Given back, by size in bytes.
    free: BTreeMap<u64, Vec<u64>>,
}

impl Memory {
    /// `len` bytes of poison, 4096-aligned.
    pub(crate) fn alloc(&mut self, len: u64, used_for: Use) -> MemAddr {
        let size = len.max(1).next_multiple_of(4096);
        let start = match self.free.get_mut(&size).and_then(Vec::pop) {
            Some(start) => start,
            None => {
                let start = BASE + self.bytes.len() as u64;
                // A guard page between allocations belongs to nobody.
                self.bytes.resize(self.bytes.len() + size as usize + 4096, POISON);
                start
            }
        };
        self.live.insert(start, (start + len, used_for));
        // What is free is poison.
        if used_for == Use::Zeroes {
            self.raw_mut(start, len).fill(0);
        }
        MemAddr(start)
    }

    /// Gives an allocation back.
    pub(crate) fn release(&mut self, at: MemAddr) {
        let Some((end, _)) = self.live.remove(&at.0) else { return };
        self.raw_mut(at.0, end - at.0).fill(POISON);
        self.free.entry((end - at.0).max(1).next_multiple_of(4096)).or_default().push(at.0);
    }

    /// The bytes at `at`, if they are inside one allocation.
    pub(crate) fn read(&self, at: MemAddr, len: Sectors) -> Result<&[u8], String> {
        self.owner(at, len)?;
        let from = (at.0 - BASE) as usize;
        Ok(&self.bytes[from..from + len.bytes() as usize])
    }

    /// The bytes at `at`, for the simulator's own use (payloads).
    pub(crate) fn own(&mut self, at: MemAddr, len: Sectors) -> &mut [u8] {
        self.raw_mut(at.0, len.bytes())
    }

    /// The bytes at `at` for the engine to write.
    pub(crate) fn write(&mut self, at: MemAddr, len: Sectors) -> Result<&mut [u8], String> {
        match self.owner(at, len)? {
            Use::Scratch | Use::Destination => Ok(self.raw_mut(at.0, len.bytes())),
            used_for => Err(format!("the engine writes {len} sectors at {:#x}, which is {used_for:?}", at.0)),
        }
    }

    /// Carries out arithmetic.
    pub(crate) fn compute(&mut self, job: &Compute) -> Result<(), String> {
        match job {
            Compute::Xor { dst, srcs, len } => {
                let blocks = self.copies(srcs, *len)?;
                raidus_parity::xor(self.write(*dst, *len)?, &slices(&blocks));
            }
            Compute::Pq { p, q, data, len } => {
                let blocks = self.copies(&data.iter().map(|d| d.0).collect::<Vec<_>>(), *len)?;
                let data: Vec<(&[u8], u8)> = blocks.iter().zip(data).map(|(b, d)| (&b[..], d.1)).collect();
                let (mut new_p, mut new_q) = (vec![0; len.bytes() as usize], vec![0; len.bytes() as usize]);
                raidus_parity::pq(Some(&mut new_p), Some(&mut new_q), &data);
                self.store_parities(*p, *q, &new_p, &new_q, *len)?;
            }
            Compute::PqUpdate { p, q, deltas, len } => {
                let old = self.copies(&deltas.iter().map(|d| d.0).collect::<Vec<_>>(), *len)?;
                let new = self.copies(&deltas.iter().map(|d| d.1).collect::<Vec<_>>(), *len)?;
                let deltas: Vec<(&[u8], &[u8], u8)> =
                    old.iter().zip(&new).zip(deltas).map(|((o, n), d)| (&o[..], &n[..], d.2)).collect();
                let mut new_p = self.copy_or_zero(*p, *len)?;
                let mut new_q = self.copy_or_zero(*q, *len)?;
                raidus_parity::pq_update(Some(&mut new_p), Some(&mut new_q), &deltas);
                self.store_parities(*p, *q, &new_p, &new_q, *len)?;
            }
            Compute::Combine { outs, srcs, len } => {
                let blocks = self.copies(srcs, *len)?;
                for (dst, coefficients) in outs {
                    if srcs.contains(dst) {
                        return Err(format!("a combination's destination {:#x} is one of its sources", dst.0));
                    }
                    raidus_parity::combine(&mut [(self.write(*dst, *len)?, coefficients)], &slices(&blocks));
                }
            }
            Compute::Copy { dst, src, len } => {
                let block = self.read(*src, *len)?.to_vec();
                self.write(*dst, *len)?.copy_from_slice(&block);
            }
            Compute::Zero { dst, len } => self.write(*dst, *len)?.fill(0),
        }
        Ok(())
    }

    /// Makes a comparison.
    pub(crate) fn compare(&self, job: &Compare) -> Result<Vec<Difference>, String> {
        let block = |at: MemAddr| self.read(at, job.len);
        match &job.blocks {
            Blocks::Parities { p, q, exponents } => {
                let pair = |(stored, computed)| Ok::<_, String>((block(stored)?, block(computed)?));
                Ok(compare_parities(p.map(pair).transpose()?, q.map(pair).transpose()?, exponents))
            }
            Blocks::Copies(copies) => {
                Ok(compare_copies(&copies.iter().map(|c| block(*c)).collect::<Result<Vec<_>, _>>()?))
            }
        }
    }

    fn store_parities(
        &mut self,
        p: Option<MemAddr>,
        q: Option<MemAddr>,
        new_p: &[u8],
        new_q: &[u8],
        len: Sectors,
    ) -> Result<(), String> {
        if let Some(p) = p {
            self.write(p, len)?.copy_from_slice(new_p);
        }
        if let Some(q) = q {
            self.write(q, len)?.copy_from_slice(new_q);
        }
        Ok(())
    }

    fn copies(&self, at: &[MemAddr], len: Sectors) -> Result<Vec<Vec<u8>>, String> {
        at.iter().map(|a| self.read(*a, len).map(<[u8]>::to_vec)).collect()
    }

    fn copy_or_zero(&self, at: Option<MemAddr>, len: Sectors) -> Result<Vec<u8>, String> {
        at.map_or_else(|| Ok(vec![0; len.bytes() as usize]), |a| self.read(a, len).map(<[u8]>::to_vec))
    }

    fn owner(&self, at: MemAddr, len: Sectors) -> Result<Use, String> {
        let end = at.0.checked_add(len.bytes());
        match self.live.range(..=at.0).next_back() {
            Some((_, (live_end, used_for))) if end.is_some_and(|end| end <= *live_end) => Ok(*used_for),
            _ => Err(format!("the engine names memory at {:#x}, {len} sectors, which nobody allocated", at.0)),
        }
    }

    fn raw_mut(&mut self, start: u64, len: u64) -> &mut [u8] {
        let from = (start - BASE) as usize;
        &mut self.bytes[from..from + len as usize]
    }
}

fn slices(blocks: &[Vec<u8>]) -> Vec<&[u8]> {
    blocks.iter().map(|b| &b[..]).collect()
}
