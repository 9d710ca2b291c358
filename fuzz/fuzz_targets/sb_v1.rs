//! Superblock 1.x: any bytes are read, shown and, if they pass the checks, updated; and encode to themselves.
#![no_main]

use libfuzzer_sys::fuzz_target;
use raidus_format::{MetadataVersion, RawSuperblock, SUPERBLOCK_BYTES};
use raidus_units::{Sector, Sectors};

fuzz_target!(|data: &[u8]| {
    let mut block = data.to_vec();
    block.resize(SUPERBLOCK_BYTES, 0);
    let Ok(sb) = RawSuperblock::recognise(&block, MetadataVersion::V1_2, Sector(8)) else { return };
    assert!(sb.encode() == block);
    // The fuzzer cannot guess a checksum.
    let right = sb.checksum().computed;
    block[216..220].copy_from_slice(&right.to_le_bytes());
    let Ok(sb) = RawSuperblock::recognise(&block, MetadataVersion::V1_2, Sector(8)) else { return };
    assert!(sb.checksum().is_right());
    sb.concerns(Sectors(1 << 20));
    let Ok(mut sb) = sb.check() else { return };
    let (array, member) = (sb.array_update(), sb.member_update());
    if sb.update(&array, &member).is_ok() {
        assert_eq!((sb.array_update(), sb.member_update()), (array, member));
    }
});
