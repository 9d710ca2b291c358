//! Partial parity logs: any bytes are a header or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use raidus_format::MdUuid;
use raidus_format::ppl::{self, HEADER_BYTES, PplHeader};

fuzz_target!(|data: &[u8]| {
    let array = MdUuid([7; 16]);
    let mut block = data.to_vec();
    block.resize(HEADER_BYTES * 2, 0);
    // The fuzzer cannot guess a checksum or a signature.
    block[512..516].copy_from_slice(&ppl::signature(array).to_le_bytes());
    block[532..536].fill(0);
    let sum = ppl::checksum(&block[..HEADER_BYTES]);
    block[532..536].copy_from_slice(&sum.to_le_bytes());
    if let Ok(header) = PplHeader::parse(&block, array) {
        assert!(ppl::newest(&block, array, true).is_some());
        assert_eq!(PplHeader::parse(&header.encode(array), array), Ok(header));
    }
});
