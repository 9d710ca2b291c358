//! Every golden array's `mdadm --create` command, planned again: what creation decides must come out the same.

mod common;

use std::collections::VecDeque;

use common::probe_all;
use raidus_assembly::create::{BitmapWish, CreateDevice, CreateParams, NewMember, Policy, plan};
use raidus_format::bitmap::BitmapSuper;
use raidus_format::{MdUuid, MetadataVersion, Timestamp};
use raidus_golden::Case;
use raidus_layout::names;
use raidus_units::{Level, Sectors};

#[test]
fn golden_superblocks_are_as_planned() {
    let mut planned = 0;
    for case in raidus_golden::cases() {
        // Reshapes and takeovers changed what creation had decided.
        if matches!(
            case.manifest.scenario.as_str(),
            "reshape" | "reshapemax" | "reshapecrash" | "takeover" | "lineargrow"
        ) {
            continue;
        }
        if let Some(params) = parse(case) {
            compare(case, &params);
            planned += 1;
        }
    }
    assert!(planned > 200, "{planned}");
}

fn compare(case: &Case, params: &CreateParams) {
    let name = &case.name;
    let plan = plan(params).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(plan.geometry.array_sectors().bytes(), case.manifest.size_bytes, "{name}");
    for candidate in probe_all(case) {
        let Some(found) = candidate.superblock() else { continue };
        let Some(ours) = plan.members.iter().find(|m| m.name == candidate.name) else { continue };
        let (theirs, made) = (found.array(), ours.superblock.array());
        assert_eq!(made.metadata, theirs.metadata, "{name}");
        assert_eq!(made.uuid, theirs.uuid, "{name}");
        assert_eq!(made.name, theirs.name, "{name}");
        assert_eq!(made.layout, theirs.layout, "{name}");
        assert_eq!(made.raid0_layout_known, theirs.raid0_layout_known, "{name}");
        assert_eq!(made.size, theirs.size, "{name}");
        assert_eq!(made.chunk, theirs.chunk, "{name}");
        assert_eq!(made.raid_disks, theirs.raid_disks, "{name}");
        assert_eq!(made.bitmap, theirs.bitmap, "{name}");
        let place = |ppl: Option<raidus_format::PplArea>| ppl.map(|log| (log.offset, log.size));
        assert_eq!(place(made.ppl), place(theirs.ppl), "{name}");
        let (theirs, made) = (found.member(), ours.superblock.member());
        assert_eq!(made.data_offset, theirs.data_offset, "{name}");
        assert_eq!(made.data_size, theirs.data_size, "{name}");
        assert_eq!(made.super_offset, theirs.super_offset, "{name}");
        assert_eq!(made.bad_block_log, theirs.bad_block_log, "{name}");
        // mdadm loses the flag when it makes 0.90 metadata.
        if params.metadata.is_v1() {
            assert_eq!(made.write_mostly, theirs.write_mostly, "{name}");
        }
        assert_eq!(made.failfast, theirs.failfast, "{name}");
        if case.manifest.scenario == "plain" {
            assert_eq!((made.role, made.dev_number), (theirs.role, theirs.dev_number), "{name}");
        }
        if let raidus_assembly::Area::Bytes(bytes) = &candidate.bitmap {
            let write = ours.writes.iter().find(|w| w.what == raidus_assembly::create::Written::Bitmap);
            let made = BitmapSuper::parse(&write.expect("a bitmap").bytes).expect("a bitmap");
            let theirs = BitmapSuper::parse(bytes).expect("a bitmap");
            assert_eq!(made.uuid(), theirs.uuid(), "{name}");
            assert_eq!(made.chunk(), theirs.chunk(), "{name}");
            assert_eq!(made.sync_size(), theirs.sync_size(), "{name}");
            assert_eq!(made.write_behind(), theirs.write_behind(), "{name}");
            assert_eq!(made.daemon_sleep(), theirs.daemon_sleep(), "{name}");
        }
    }
}

/// mdadm's command line; `None` if it asks for something raidus does not make.
fn parse(case: &Case) -> Option<CreateParams> {
    let mut words: VecDeque<&str> = case.manifest.create.split_whitespace().skip(3).collect();
    let level_at = words.iter().position(|w| *w == "-l").expect("a level") + 1;
    let level: Level = words[level_at].parse().expect("a level");
    let mut p = CreateParams {
        metadata: MetadataVersion::V1_2,
        level,
        raid_disks: 0,
        spares: 0,
        devices: Vec::new(),
        chunk: None,
        layout: None,
        size: None,
        data_offset: None,
        bitmap: BitmapWish::Auto,
        policy: None,
        write_behind: None,
        assume_clean: false,
        force: false,
        name: None,
        homehost: None,
        uuid: MdUuid::default(),
        now: Timestamp::from_secs(1),
        preferred_minor: 0,
    };
    let (mut write_mostly, mut failfast) = (false, false);
    while let Some(word) = words.pop_front() {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let kib = |v: &str| Sectors::from_kib(v.trim_end_matches('K').parse().expect("a number"));
        match key {
            "--run" => {}
            "-e" => p.metadata = words.pop_front()?.parse().expect("a version"),
            "-l" => drop(words.pop_front()),
            "-n" => p.raid_disks = words.pop_front()?.parse().expect("a number"),
            "-x" => p.spares = words.pop_front()?.parse().expect("a number"),
            "-c" => p.chunk = Some(kib(words.pop_front()?)),
            "--layout" => p.layout = Some(names::parse(level, value).expect("a layout")),
            "--uuid" => p.uuid = value.parse().expect("a uuid"),
            "--homehost" => p.homehost = Some(value.to_owned()),
            "--name" => p.name = Some(value.to_owned()),
            "--size" => p.size = Some(kib(value)),
            "--data-offset" => p.data_offset = Some(kib(value)),
            "--bitmap" if value == "none" => p.bitmap = BitmapWish::None,
            "--bitmap" => p.bitmap = BitmapWish::Internal { chunk: None },
            "--bitmap-chunk" => p.bitmap = BitmapWish::Internal { chunk: Some(bytes(value)) },
            "--write-behind" => p.write_behind = Some(value.parse().expect("a number")),
            "--assume-clean" => p.assume_clean = true,
            "--force" => p.force = true,
            "--write-mostly" => write_mostly = true,
            "--failfast" => failfast = true,
            "missing" => p.devices.push(CreateDevice::Missing),
            "--consistency-policy" if value == "ppl" => p.policy = Some(Policy::Ppl),
            "--consistency-policy" | "--write-journal" => return None,
            path => {
                // dm-dust stands in front of disk 0.
                let path = if path.starts_with("/dev/mapper") { "/dev/disk0" } else { path };
                let index: usize = path.trim_start_matches("/dev/disk").parse().expect("a disk");
                let size = Sectors(case.manifest.members[index].bytes / 512);
                let uuid = MdUuid([index as u8; 16]);
                let (name, data_offset, old_superblocks) = (path.to_owned(), None, Vec::new());
                let member = NewMember { name, size, uuid, write_mostly, failfast, data_offset, old_superblocks };
                p.devices.push(CreateDevice::Present(member));
                write_mostly = false;
            }
        }
    }
    Some(p)
}

fn bytes(text: &str) -> u64 {
    let (number, unit) = text.split_at(text.len() - 1);
    let shift = if unit == "M" { 20 } else { 10 };
    number.parse::<u64>().expect("a number") << shift
}
