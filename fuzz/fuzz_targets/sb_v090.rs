//! Superblock 0.90, both byte orders: as for 1.x.
#![no_main]

use libfuzzer_sys::fuzz_target;
use raidus_format::v090::ByteOrder;
use raidus_format::{MetadataVersion, RawSuperblock, SUPERBLOCK_BYTES};
use raidus_units::{Sector, Sectors};

fuzz_target!(|data: &[u8]| {
    let mut block = data.to_vec();
    block.resize(SUPERBLOCK_BYTES, 0);
    let recognise = |block: &[u8]| RawSuperblock::recognise(block, MetadataVersion::V0_90, Sector(1 << 20));
    let Ok(sb) = recognise(&block) else { return };
    assert!(sb.encode() == block);
    let right = sb.checksum().computed;
    let RawSuperblock::V090(raw) = &sb else { return };
    // The fuzzer cannot guess a checksum.
    block[152..156].copy_from_slice(&match raw.byte_order() {
        ByteOrder::Little => right.to_le_bytes(),
        ByteOrder::Big => right.to_be_bytes(),
    });
    let Ok(sb) = recognise(&block) else { return };
    assert!(sb.checksum().is_right());
    sb.concerns(Sectors(1 << 21));
    let Ok(mut sb) = sb.check() else { return };
    let (array, member) = (sb.array_update(), sb.member_update());
    if sb.update(&array, &member).is_ok() {
        let written = sb.clone();
        sb.update(&sb.array_update(), &sb.member_update()).expect("what was written can be written again");
        assert!(sb == written);
    }
});
