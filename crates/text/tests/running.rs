//! mdstat and `--detail` of running arrays, as the kernel and mdadm showed the golden arrays before they were stopped.
//!
//! The view is put together from the members' superblocks and from what sysfs said of the devices. What moves while an array runs
//! (events, update time, progress, counter pages, order of adding) is taken from the text itself.

use jiff::tz::TimeZone;
use raidus_format::{ProbeRead, RawSuperblock, probe, probe_areas};
use raidus_golden::Case;
use raidus_text::{
    ArrayView, BitmapView, Context, DeviceRole, DeviceView, PERSONALITIES, Policy, ReadOnly, ReshapeView, RunState,
    SyncAction, SyncView, ctime, detail, mdstat,
};
use raidus_units::{Level, Sector, Sectors, Slot};

#[test]
fn mdstat_is_the_kernels() {
    let mut seen = 0;
    // A raid0 that grows is a raid4 without parity for the time, whose missing members the kernel counts in the old shape.
    for (case, view) in views().filter(|(case, _)| case.name != "reshape-raid0-1.2-n3to4") {
        let text = case.text("mdstat.txt");
        assert!(text.starts_with(PERSONALITIES), "{}", case.name);
        assert_eq!(mdstat(&[view]).trim_end(), text.trim_end(), "{}", case.name);
        seen += 1;
    }
    assert!(seen > 250, "{seen}");
}

#[test]
fn detail_is_mdadms() {
    for (case, view) in views() {
        let text = case.text("detail.txt");
        let time = |seconds: u64| {
            // The superblocks were written once more when the array was stopped.
            if seconds == view.utime { labelled(text, "Update Time") } else { ctime(seconds, &TimeZone::UTC) }
        };
        let context = Context { time: &time, homehost: None, device: &|_, _| None };
        assert_eq!(detail(&view, &context), text, "{}", case.name);
    }
}

fn views() -> impl Iterator<Item = (&'static Case, ArrayView)> {
    // Killed in a reshape: texts from before it, superblocks from after. Dust: a device mapper target stands in for a disk.
    let shown = |case: &&Case| !matches!(case.manifest.scenario.as_str(), "reshapecrash" | "dust");
    raidus_golden::cases().iter().filter(shown).map(|case| (case, view(case)))
}

/// The value of a `Label : value` line.
fn labelled(text: &str, label: &str) -> String {
    let line = text.lines().find(|l| l.trim_start().starts_with(label)).unwrap_or_else(|| panic!("no {label}"));
    line.split_once(" : ").expect("a value").1.to_owned()
}

fn view(case: &Case) -> ArrayView {
    let manifest = &case.manifest;
    let (stat, detail) = (case.text("mdstat.txt"), case.text("detail.txt"));
    let superblocks: Vec<Option<RawSuperblock>> = (0..case.disks()).map(|n| superblock(&case.image(n))).collect();
    let array = superblocks.iter().flatten().max_by_key(|sb| sb.events()).expect("a superblock").array();
    let level: Level = manifest.level.parse().expect("a level");
    let events = labelled(detail, "Events");
    let events = events.rsplit('.').next().expect("a number").parse().expect("a number");
    ArrayView {
        name: "md0".to_owned(),
        path: "/dev/md0".to_owned(),
        state: RunState::Active,
        read_only: ReadOnly::No,
        clean: labelled(detail, "State").starts_with("clean"),
        metadata: Some(array.metadata),
        level,
        layout: array.layout,
        raid0_layout_known: array.raid0_layout_known,
        chunk: array.chunk,
        raid_disks: array.raid_disks as u16,
        array_size: Sectors(manifest.size_bytes / 512),
        component: Sectors::from_kib(manifest.component_size_kib),
        devices: devices(case, &superblocks, stat),
        bitmap: stat.lines().find(|l| l.contains("bitmap:")).map(|l| bitmap(l, manifest.bitmap.chunk_bytes)),
        sync: stat.lines().find(|l| l.contains("finish=")).map(sync),
        reshape: array.reshape.map(|r| ReshapeView {
            delta_disks: r.delta_disks,
            level: Level::from_number(r.new_level).expect("a level"),
            layout: r.new_layout,
            chunk: r.new_chunk,
        }),
        policy: match manifest.consistency_policy.as_str() {
            "none" => Policy::None,
            "resync" => Policy::Resync,
            "bitmap" => Policy::Bitmap,
            "journal" => Policy::Journal,
            "ppl" => Policy::Ppl,
            other => panic!("{other}"),
        },
        uuid: array.uuid,
        array_name: array.name,
        ctime: array.ctime.secs,
        utime: u64::from(u32::MAX),
        events,
        preferred_minor: array.preferred_minor,
    }
}

fn superblock(image: &[u8]) -> Option<RawSuperblock> {
    let size = Sectors(image.len() as u64 / 512);
    let bytes = |at: Sector, len: Sectors| &image[at.bytes() as usize..(at + len).bytes() as usize];
    let areas = probe_areas(size);
    let reads: Vec<_> = areas.iter().map(|(at, len)| ProbeRead { at: *at, bytes: bytes(*at, *len) }).collect();
    probe(size, &reads).md.into_iter().find_map(|found| found.raw)
}

/// Devices in the order they were added, which only the text tells.
fn devices(case: &Case, superblocks: &[Option<RawSuperblock>], stat: &str) -> Vec<DeviceView> {
    let line = stat.lines().find(|l| l.starts_with("md0 :")).expect("md0");
    let listed: Vec<&str> = line.split(' ').filter(|w| w.contains('[')).collect();
    let device = |word: &&str| {
        let name = word.split('[').next().expect("a name").to_owned();
        let n = usize::from(name.as_bytes()[3] - b'a');
        let member = &case.manifest.members[n];
        let own = superblocks[n].as_ref().expect("a superblock").member();
        let words: Vec<&str> = member.state.split(',').collect();
        let slot = member.slot.as_u64().map(|s| Slot(s as u16));
        let role = match slot {
            _ if words.contains(&"faulty") => DeviceRole::Faulty,
            _ if words.contains(&"journal") => DeviceRole::Journal,
            Some(slot) if words.contains(&"replacement") => DeviceRole::Replacing(slot),
            Some(slot) if words.contains(&"in_sync") => DeviceRole::InSync(slot),
            Some(slot) => DeviceRole::Rebuilding(slot),
            None => DeviceRole::Spare,
        };
        DeviceView {
            path: format!("/dev/{name}"),
            name,
            node: Some((98, n as u32 * 16)),
            dev_number: own.dev_number,
            role,
            write_mostly: own.write_mostly,
            failfast: own.failfast,
        }
    };
    listed.iter().rev().map(device).collect()
}

fn bitmap(line: &str, chunk: u64) -> BitmapView {
    let pages = line.trim().split(' ').nth(1).and_then(|p| p.split_once('/')).expect("pages");
    let number = |n: &str| n.parse().expect("a number");
    BitmapView { pages: number(pages.0), pages_total: number(pages.1), chunk, file: None }
}

fn sync(line: &str) -> SyncView {
    let between = |a: &str, b: &str| line.split_once(a).and_then(|(_, rest)| rest.split_once(b)).expect("a figure").0;
    let number = |n: &str| n.parse().expect("a number");
    let action = match line.split(']').nth(1).and_then(|rest| rest.split('=').next()).map(str::trim) {
        Some("recovery") => SyncAction::Recovery,
        Some("resync") => SyncAction::Resync,
        Some("reshape") => SyncAction::Reshape,
        other => panic!("{other:?}"),
    };
    let (done, total) = between("(", ")").split_once('/').expect("done and total");
    SyncView::Running { action, done: number(done), total: number(total), speed: number(between("speed=", "K/sec")) }
}
