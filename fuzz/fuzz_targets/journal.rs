//! Journal blocks: any bytes are a meta block or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use raidus_format::journal::{self, BLOCK_BYTES, MetaBlock};

fuzz_target!(|data: &[u8]| {
    let seed = 1;
    let mut block = data.to_vec();
    block.resize(BLOCK_BYTES, 0);
    // The fuzzer cannot guess a checksum.
    block[4..8].fill(0);
    let sum = journal::checksum(seed, &block);
    block[4..8].copy_from_slice(&sum.to_le_bytes());
    if let Ok(meta) = MetaBlock::parse(&block, seed) {
        let again = meta.encode(seed).expect("what fitted once fits again");
        assert_eq!(MetaBlock::parse(&again, seed), Ok(meta));
    }
});
