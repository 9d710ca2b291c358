//! Probing: a device of any size with any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use raidus_format::{ProbeRead, probe, probe_areas};
use raidus_units::{Sector, Sectors};

fuzz_target!(|data: &[u8]| {
    let Some((size, disk)) = data.split_first_chunk::<2>() else { return };
    let device = Sectors(u16::from_le_bytes(*size).into());
    // The disk is the input over and over.
    let reads: Vec<(Sector, Vec<u8>)> = probe_areas(device)
        .into_iter()
        .map(|(at, len)| (at, disk.iter().copied().cycle().take(len.bytes() as usize).collect()))
        .collect();
    let reads: Vec<_> = reads.iter().map(|(at, bytes)| ProbeRead { at: *at, bytes }).collect();
    let found = probe(device, &reads);
    assert_eq!(found.is_empty(), found.md.is_empty() && found.foreign.is_empty());
    if let Some(sb) = found.newest() {
        assert!(sb.checksum().is_right() || !sb.version().is_v1());
    }
});
