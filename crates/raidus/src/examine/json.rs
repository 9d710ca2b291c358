//! What `examine --json` prints.

use std::path::Path;

use raidus_format::{ArrayFacts, Found, MemberFacts, RawSuperblock};
use serde::Serialize;

use super::{bad_ranges, bitmap_super, found};
use crate::look::{self, Looked, look};

/// A device.
#[derive(Serialize)]
pub struct Device {
    device: String,
    size_bytes: Option<u64>,
    /// Why there is nothing more, or what is wrong with the superblock.
    error: Option<String>,
    /// What must be weighed against the device.
    concerns: Vec<String>,
    superblock: Option<Superblock>,
    bitmap: Option<Bitmap>,
    /// Device sector and length.
    bad_blocks: Option<Vec<(u64, u64)>>,
    /// RAID metadata of other kinds.
    foreign: Vec<String>,
    /// File systems, partition tables and the like.
    other: Vec<&'static str>,
}

#[derive(Serialize)]
struct Superblock {
    metadata: &'static str,
    at_sector: u64,
    checksum_right: bool,
    array_uuid: String,
    name: String,
    level: i32,
    layout: u32,
    raid_disks: u32,
    chunk_bytes: u64,
    component_bytes: u64,
    created: u64,
    updated: u64,
    events: u64,
    clean: bool,
    resync_from_sector: Option<u64>,
    features: u32,
    reshaping: bool,
    journal: bool,
    clustered: bool,
    device_uuid: Option<String>,
    device_number: u32,
    role: String,
    replacement: bool,
    recovery_offset_sector: Option<u64>,
    data_offset_sector: u64,
    data_sectors: u64,
    write_mostly: bool,
    failfast: bool,
    roles: Vec<String>,
}

#[derive(Serialize)]
struct Bitmap {
    version: u32,
    uuid: String,
    events: u64,
    events_cleared: u64,
    chunk_bytes: u64,
    bits: u64,
}

/// All about a device. What goes wrong is part of the answer.
pub fn device(path: &Path) -> Device {
    let mut device = Device {
        device: path.display().to_string(),
        size_bytes: None,
        error: None,
        concerns: Vec::new(),
        superblock: None,
        bitmap: None,
        bad_blocks: None,
        foreign: Vec::new(),
        other: Vec::new(),
    };
    match look(path) {
        Ok(looked) => fill(&mut device, path, &looked),
        Err(failure) => device.error = Some(failure.to_string()),
    }
    device
}

fn fill(device: &mut Device, path: &Path, looked: &Looked) {
    device.size_bytes = Some(looked.device.size().bytes());
    device.foreign = looked.probe.foreign.iter().map(ToString::to_string).collect();
    device.other = look::other_content(&looked.device).unwrap_or_default();
    match found(path, looked) {
        Ok(found) => fill_superblock(device, path, looked, found),
        Err(failure) => device.error = Some(failure.to_string()),
    }
}

fn fill_superblock(device: &mut Device, path: &Path, looked: &Looked, found: &Found) {
    device.error = found.superblock.as_ref().err().map(ToString::to_string);
    device.concerns = found.concerns.iter().map(ToString::to_string).collect();
    let Some(raw) = &found.raw else { return };
    device.superblock = Some(superblock(raw));
    device.bitmap = bitmap_super(looked, raw).map(|sb| Bitmap {
        version: sb.header().version.get(),
        uuid: sb.uuid().to_string(),
        events: sb.events(),
        events_cleared: sb.events_cleared(),
        chunk_bytes: sb.chunk(),
        bits: sb.bits(),
    });
    match bad_ranges(path, looked, raw) {
        Ok(ranges) => device.bad_blocks = ranges.map(|r| r.into_iter().map(|(at, len)| (at.0, len.0)).collect()),
        Err(failure) => device.error = device.error.take().or(Some(failure.to_string())),
    }
}

fn superblock(raw: &RawSuperblock) -> Superblock {
    let (array, member): (ArrayFacts, MemberFacts) = (raw.array(), raw.member());
    let mut roles: Vec<String> = raw.roles().iter().map(ToString::to_string).collect();
    let used = roles.iter().rposition(|r| r != "spare").map_or(0, |last| last + 1);
    roles.truncate(used);
    Superblock {
        metadata: array.metadata.name(),
        at_sector: member.super_offset.0,
        checksum_right: raw.checksum().is_right(),
        array_uuid: array.uuid.to_string(),
        name: array.name,
        level: array.level_number,
        layout: array.layout,
        raid_disks: array.raid_disks,
        chunk_bytes: array.chunk.0.saturating_mul(512),
        component_bytes: array.size.0.saturating_mul(512),
        created: array.ctime.secs,
        updated: array.utime.secs,
        events: array.events,
        clean: array.resync.is_none(),
        resync_from_sector: array.resync.map(|s| s.0),
        features: array.features,
        reshaping: array.reshape.is_some(),
        journal: array.journal,
        clustered: array.clustered,
        device_uuid: member.device_uuid.map(|u| u.to_string()),
        device_number: member.dev_number,
        role: member.role.to_string(),
        replacement: member.replacement,
        recovery_offset_sector: member.recovery.map(|r| r.offset.0),
        data_offset_sector: member.data_offset.0,
        data_sectors: member.data_size.0,
        write_mostly: member.write_mostly,
        failfast: member.failfast,
        roles,
    }
}
