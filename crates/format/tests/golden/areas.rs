//! What stands beside the superblocks: bitmaps, bad-block logs, partial parity logs, journals.

use crate::disks;
use raidus_format::Role;
use raidus_format::badblocks::{self, BadRange};
use raidus_format::bitmap::{BitArray, BitmapSuper, LoadContext, LoadedBitmap, uuid_in_bitmap};
use raidus_format::journal::{self, JournalError, MetaBlock};
use raidus_format::ppl::{self, PplHeader};
use raidus_units::{Level, Sector, Sectors};

#[test]
fn probing_finds_the_one_superblock_and_nothing_else() {
    for disk in disks() {
        assert_eq!(disk.found.md.len(), 1, "{disk}");
        assert_eq!(disk.found.foreign, [], "{disk}");
        assert_eq!(disk.array.metadata, disk.version(), "{disk}");
    }
}

#[test]
fn bitmaps_are_what_mdadm_said_and_are_written_exactly() {
    let mut seen = 0;
    for disk in disks() {
        let Some(area) = &disk.bitmap else { continue };
        seen += 1;
        let superblock = BitmapSuper::parse(area).unwrap();
        let bits = BitArray::from_file(area, superblock.bits()).unwrap();
        assert!(bits.encode(&superblock) == *area, "{disk}");
        assert_eq!(superblock.uuid(), uuid_in_bitmap(disk.array.metadata, None, disk.array.uuid), "{disk}");
        let said = disk.case.text_of_disk("bitmap.txt", disk.disk);
        let value =
            |name: &str| said.lines().find_map(|l| l.trim_start().strip_prefix(name)?.trim_start().strip_prefix(": "));
        assert_eq!(value("Events").unwrap(), superblock.events().to_string(), "{disk}");
        assert_eq!(value("Events Cleared").unwrap(), superblock.events_cleared().to_string(), "{disk}");
        assert_eq!(value("Daemon").unwrap(), format!("{}s flush period", superblock.daemon_sleep()), "{disk}");
        let counts = format!("{} bits (chunks), {} dirty", bits.len(), bits.count_ones());
        assert!(value("Bitmap").unwrap().starts_with(&counts), "{disk}: {counts}\n{said}");
        if disk.said().is_in_array() {
            assert_eq!(superblock.chunk(), disk.case.manifest.bitmap.chunk_bytes, "{disk}");
        }
    }
    assert!(seen > 0);
}

#[test]
fn bitmaps_of_members_load() {
    for disk in disks() {
        let Some(area) = &disk.bitmap else { continue };
        let said = &disk.case.manifest;
        let context = LoadContext {
            uuid: uuid_in_bitmap(disk.array.metadata, None, disk.array.uuid),
            events: disk.array.events,
            sync_size: match disk.array.level {
                Some(Level::Raid10) => Sectors::from_bytes_floor(said.size_bytes),
                _ => disk.array.size,
            },
            resync: disk.array.resync,
            is_whole: said.degraded == Some(0),
            host: None,
        };
        let loaded = LoadedBitmap::load(area, &context).unwrap_or_else(|e| panic!("{disk}: {e}"));
        assert_eq!(loaded.stale, None, "{disk}");
        // A killed machine was writing: something is marked, and has to be resynced.
        if said.scenario == "dirty" {
            assert!((0..loaded.bits.len()).any(|i| loaded.is_needed(i)), "{disk}");
        }
    }
}

#[test]
fn bad_blocks_are_what_mdadm_said_and_are_written_exactly() {
    let mut seen = 0;
    for disk in disks() {
        let (Some(log), Some(area)) = (&disk.bad_blocks, disk.member.bad_block_log) else { continue };
        let said = disk.case.text_of_disk("badblocks.txt", disk.disk);
        if !disk.member.has_bad_blocks {
            assert!(said.contains("list is empty"), "{disk}: {said}");
            continue;
        }
        seen += 1;
        let ranges = badblocks::parse(log, area.shift, disk.size).unwrap_or_else(|e| panic!("{disk}: {e}"));
        assert_eq!(ranges, ranges_in(said), "{disk}");
        assert!(badblocks::encode(&ranges, &area).unwrap() == *log, "{disk}");
    }
    assert!(seen > 0);
}

/// `                6144 for 16 sectors`, after a title line.
fn ranges_in(text: &str) -> Vec<BadRange> {
    let range = |line: &str| {
        let (start, rest) = line.trim().split_once(" for ")?;
        let len = rest.strip_suffix(" sectors")?;
        Some(BadRange { start: Sector(start.parse().ok()?), len: Sectors(len.parse().ok()?) })
    };
    text.lines().filter_map(range).collect()
}

#[test]
fn partial_parity_logs_have_headers_and_right_checksums() {
    let mut entries = 0;
    for disk in disks() {
        let (Some(area), Some(ppl)) = (&disk.ppl, disk.array.ppl) else { continue };
        let Some((at, header)) = ppl::newest(area, disk.array.uuid, ppl.multiple) else { panic!("{disk}: no header") };
        let block = &area[at as usize..][..ppl::HEADER_BYTES];
        assert!(header.encode(disk.array.uuid) == block, "{disk}");
        assert_eq!(PplHeader::parse(block, disk.array.uuid).as_ref(), Ok(&header), "{disk}");
        let mut parity = &area[at as usize + ppl::HEADER_BYTES..];
        for entry in &header.entries {
            let (own, rest) = parity.split_at(entry.parity_bytes as usize);
            assert_eq!(ppl::checksum(own), entry.checksum, "{disk}");
            // The log of a stripe is kept by the member that holds its parity.
            assert_eq!(disk.member.role, Role::Slot(entry.parity_slot), "{disk}");
            parity = rest;
            entries += 1;
        }
    }
    assert!(entries > 0);
}

#[test]
fn journals_read_from_their_tail() {
    let mut payloads = 0;
    for disk in disks() {
        let Some(log) = &disk.journal else { continue };
        let seed = journal::seed(disk.array.uuid);
        let mut at = disk.member.journal_tail.unwrap().bytes() as usize;
        let mut seq = None;
        loop {
            let meta = match MetaBlock::parse(&log[at..], seed) {
                Ok(meta) if meta.position.bytes() == at as u64 && seq.is_none_or(|seq| meta.seq == seq) => meta,
                Ok(_) | Err(JournalError::NoMagic { .. }) => break,
                Err(error) => panic!("{disk}: {error}"),
            };
            assert!(meta.encode(seed).unwrap() == log[at..at + journal::BLOCK_BYTES], "{disk} at {at}");
            let blocks = log[at + journal::BLOCK_BYTES..].chunks_exact(journal::BLOCK_BYTES);
            let sums = meta.payloads.iter().flat_map(|p| match p {
                journal::Payload::Data { checksums, .. } | journal::Payload::Parity { checksums, .. } => {
                    checksums.as_slice()
                }
                journal::Payload::Flush { .. } => &[],
            });
            for (sum, block) in sums.zip(blocks) {
                assert_eq!(journal::checksum(seed, block), *sum, "{disk} behind {at}");
            }
            payloads += meta.payloads.len();
            seq = Some(meta.seq + 1);
            at += journal::BLOCK_BYTES * (1 + meta.blocks() as usize);
        }
        assert!(seq.is_some(), "{disk}: nothing at the tail");
    }
    assert!(payloads > 0);
}
