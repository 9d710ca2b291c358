//! Write-intent bitmaps: any bytes load or are refused; what loads encodes to what was read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use raidus_format::bitmap::{BITMAP_SUPER_BYTES, BitmapSuper, ChunkStates, LoadContext, LoadedBitmap};
use raidus_format::v090::ByteOrder;
use raidus_units::Sector;

fuzz_target!(|data: &[u8]| {
    let Ok(superblock) = BitmapSuper::parse(data) else { return };
    assert!(superblock.encode() == data[..BITMAP_SUPER_BYTES]);
    let array = LoadContext {
        uuid: superblock.uuid(),
        events: superblock.events(),
        sync_size: superblock.sync_size(),
        resync: Some(Sector(u64::from(data[0]))),
        is_whole: data[1] & 1 == 0,
        host: (data[1] & 2 == 0).then_some(ByteOrder::Little),
    };
    // Large ones are only slow.
    if superblock.bits() > 1 << 20 {
        return;
    }
    if let Ok(states) = ChunkStates::read(data, &superblock) {
        assert_eq!(states.iter().count() as u64, superblock.bits());
        assert_eq!(states.counts().iter().map(|(_, n)| n).sum::<u64>(), superblock.bits());
    }
    let Ok(loaded) = LoadedBitmap::load(data, &array) else { return };
    assert_eq!(loaded.bits.iter_ones().count() as u64, loaded.bits.count_ones());
    if loaded.stale.is_none() {
        let whole = loaded.bits.encode(&loaded.superblock);
        let common = whole.len().min(data.len());
        assert!(whole[..common] == data[..common]);
    }
});
