//! Scans of a write journal: any ring comes to an end, is asked for inside only, and is told of inside only.
#![no_main]

use libfuzzer_sys::fuzz_target;
use raidus_format::MdUuid;
use raidus_format::journal::{self, BLOCK_BYTES, LogScan, MetaBlock, Payload, Record};
use raidus_units::{Sector, Sectors};

const ARRAY: MdUuid = MdUuid([7; 16]);
/// Blocks of the ring.
const RING: usize = 16;
/// Bytes of input that each block begins with; the rest of it is zeroes.
const GIVEN: usize = 96;
/// Sectors of a block.
const SECTORS: u64 = BLOCK_BYTES as u64 / 512;

fuzz_target!(|data: &[u8]| {
    let Some((&[tail, odd], blocks)) = data.split_first_chunk() else { return };
    let ring = ring(blocks);
    // A tail anywhere, also where none can be, and a ring that is no whole number of blocks.
    let room = Sectors(RING as u64 * SECTORS + u64::from(odd % 8));
    let tail = if tail < 128 { u64::from(tail % 16) * SECTORS } else { u64::from(tail) };
    let mut scan = LogScan::new(ARRAY, room, Sector(tail));
    let mut asked = 0;
    while let Some((at, len)) = scan.wants() {
        assert!(!len.is_zero() && at + len <= scan.ring(), "{len} sectors at {at}");
        asked += len.0 / SECTORS;
        assert!(asked <= 2 * RING as u64 + 1, "more is asked for than there is");
        scan.supply(&ring[at.bytes() as usize..(at + len).bytes() as usize]);
    }
    assert!(scan.end().is_some());
    let inside = |place: Sectors| place.0.is_multiple_of(SECTORS) && place < scan.ring();
    for record in scan.records() {
        match *record {
            Record::Data { at, .. } => assert!(inside(at)),
            Record::Parity { p, q, .. } => assert!(inside(p) && q.is_none_or(inside)),
            Record::Flushed { .. } => {}
        }
    }
});

/// A ring of blocks that begin with the input; where it says so they get what the fuzzer cannot guess.
fn ring(input: &[u8]) -> Vec<u8> {
    let mut ring = vec![0; RING * BLOCK_BYTES];
    for (block, given) in ring.chunks_mut(BLOCK_BYTES).zip(input.chunks(GIVEN)) {
        block[..given.len()].copy_from_slice(given);
    }
    // From the end on, since a block's checksum is in one before it.
    for n in (0..RING).rev() {
        let block = &ring[n * BLOCK_BYTES..(n + 1) * BLOCK_BYTES];
        let (is_meta, is_whole) = (block[0] & 1 == 0, block[1] & 1 == 0);
        if is_meta {
            let sealed = seal(&ring, n, is_whole);
            ring[n * BLOCK_BYTES..(n + 1) * BLOCK_BYTES].copy_from_slice(&sealed);
        }
    }
    ring
}

/// Block `n` with the right magic number, place and checksum; with those of its payloads, if it is to be whole.
fn seal(ring: &[u8], n: usize, whole: bool) -> Vec<u8> {
    let seed = journal::seed(ARRAY);
    let mut block = ring[n * BLOCK_BYTES..(n + 1) * BLOCK_BYTES].to_vec();
    block[..4].copy_from_slice(&0x6433_c509_u32.to_le_bytes());
    block[4..12].fill(0);
    block[8] = 1;
    block[24..32].copy_from_slice(&(n as u64 * SECTORS).to_le_bytes());
    let sum = journal::checksum(seed, &block);
    block[4..8].copy_from_slice(&sum.to_le_bytes());
    let Ok(mut meta) = MetaBlock::parse(&block, seed) else { return block };
    if !whole {
        return block;
    }
    let mut next = n + 1;
    for payload in &mut meta.payloads {
        let (Payload::Data { checksums, .. } | Payload::Parity { checksums, .. }) = payload else { continue };
        for sum in checksums {
            let at = next % RING * BLOCK_BYTES;
            *sum = journal::checksum(seed, &ring[at..at + BLOCK_BYTES]);
            next += 1;
        }
    }
    meta.encode(seed).unwrap_or(block)
}
