//! Candidates from golden images.
#![allow(dead_code)]

use raidus_assembly::{Candidate, Found};
use raidus_format::{ProbeRead, probe, probe_areas};
use raidus_golden::Case;
use raidus_units::{Sector, Sectors};

/// All members of a case.
pub fn probe_all(case: &Case) -> Vec<Candidate> {
    candidates(case, &(0..case.disks()).collect::<Vec<_>>())
}

/// Some members of a case.
pub fn candidates(case: &Case, disks: &[usize]) -> Vec<Candidate> {
    disks.iter().map(|n| candidate(&format!("/dev/disk{n}"), &case.image(*n))).collect()
}

/// What a driver does: look for a superblock, then read what it points to.
pub fn candidate(name: &str, image: &[u8]) -> Candidate {
    let size = Sectors(image.len() as u64 / 512);
    let mut candidate = Candidate::new(name, size, found(image, size));
    loop {
        let needs = candidate.needs();
        if needs.is_empty() {
            return candidate;
        }
        for need in needs {
            let (start, len) = (need.at.bytes() as usize, need.len.bytes() as usize);
            candidate.supply(need, Ok(image[start..start + len].to_vec()));
        }
    }
}

fn found(image: &[u8], size: Sectors) -> Found {
    let bytes = |at: Sector, len: Sectors| &image[at.bytes() as usize..(at + len).bytes() as usize];
    let areas = probe_areas(size);
    let reads: Vec<ProbeRead<'_>> =
        areas.iter().map(|(at, len)| ProbeRead { at: *at, bytes: bytes(*at, *len) }).collect();
    Found::from(probe(size, &reads))
}
