//! Bad-block logs: any bytes are a list or an error; a list is not lost by writing and reading it again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use raidus_format::BadBlockArea;
use raidus_format::badblocks;
use raidus_units::Sectors;

fuzz_target!(|data: &[u8]| {
    let Some((shift, log)) = data.split_first() else { return };
    let device = Sectors(1 << 40);
    let Ok(ranges) = badblocks::parse(log, *shift, device) else { return };
    let area = BadBlockArea { offset: 8, size: Sectors(64), shift: *shift };
    let Ok(written) = badblocks::encode(&ranges, &area) else { return };
    let again = badblocks::parse(&written, *shift, device).expect("what was written can be read");
    for range in &ranges {
        assert!(again.iter().any(|r| r.start <= range.start && range.start < r.start + r.len));
    }
});
