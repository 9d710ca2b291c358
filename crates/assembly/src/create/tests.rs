//! Plans against what mdadm made, and every refusal.

use super::*;
use raidus_format::{MdUuid, Role, Timestamp};
use raidus_units::Slot;

/// Two or more equal devices.
fn params(metadata: MetadataVersion, level: Level, devices: &[Sectors]) -> CreateParams {
    let member = |(i, size): (usize, &Sectors)| {
        CreateDevice::Present(NewMember {
            name: format!("/dev/d{i}"),
            size: *size,
            uuid: MdUuid([i as u8 + 1; 16]),
            write_mostly: false,
            failfast: false,
            data_offset: None,
            old_superblocks: Vec::new(),
        })
    };
    CreateParams {
        metadata,
        level,
        raid_disks: devices.len() as u16,
        spares: 0,
        devices: devices.iter().enumerate().map(member).collect(),
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
        uuid: MdUuid([0xa5; 16]),
        now: Timestamp::from_secs(1_700_000_000),
        preferred_minor: 0,
    }
}

fn plain(level: Level, n: usize) -> CreateParams {
    params(MetadataVersion::V1_2, level, &vec![Sectors::from_kib(64 * 1024); n])
}

fn sectors(text: &str) -> Sectors {
    let (number, unit) = text.split_at(text.len() - 1);
    let shift = match unit {
        "M" => 11,
        "G" => 21,
        _ => 31,
    };
    Sectors(number.parse::<u64>().expect("a number") << shift)
}

#[test]
fn places_and_sizes_are_mdadms() {
    let table = include_str!("../../tests/mdadm-create.txt");
    let mut rows = 0;
    for row in table.lines().filter(|l| !l.starts_with('#')) {
        let words: Vec<&str> = row.split(' ').collect();
        let [size, metadata, level, chunk, bitmap] = words[..5] else { panic!("{row}") };
        let device = sectors(size);
        let mut p = params(metadata.parse().expect("a version"), level.parse().expect("a level"), &[device; 2]);
        p.chunk = chunk.parse().ok().map(Sectors::from_kib);
        p.assume_clean = true;
        p.bitmap = match bitmap {
            "none" => BitmapWish::None,
            "internal" => BitmapWish::Internal { chunk: None },
            _ => BitmapWish::Auto,
        };
        let plan = plan(&p).unwrap_or_else(|e| panic!("{row}: {e}"));
        let ours = fields(&plan);
        // mdadm -E shows nothing of a bitmap's size in 0.90, and other fields there.
        let skip = |key: &str| metadata == "0.90" && key != "array";
        for (key, theirs) in words[5..].iter().filter_map(|w| w.split_once('=')).filter(|(key, _)| !skip(key)) {
            let (_, found) = ours.iter().find(|(k, _)| *k == key).expect("a known field");
            assert_eq!(found, theirs, "{key} of {row}");
        }
        rows += 1;
    }
    assert!(rows > 150, "{rows} rows");
}

/// What `mdadm --examine` and `-X` would show.
fn fields(plan: &CreatePlan) -> Vec<(&'static str, String)> {
    let sb = &plan.members[0].superblock;
    let (array, member) = (sb.array(), sb.member());
    let shown = |n: u64, yes: bool| if yes { n.to_string() } else { String::new() };
    let redundant = array.level.is_some_and(Level::is_redundant);
    let chunk = |bytes: u64| format!("{}MB", bytes >> 20);
    let array_kib = match array.level {
        Some(Level::Raid10) => array.size.kib() * u64::from(array.raid_disks) / 2,
        Some(level) => {
            array.size.kib() * u64::from(array.raid_disks - u32::from(level.parities()))
                / if level == Level::Raid1 { u64::from(array.raid_disks) } else { 1 }
        }
        None => 0,
    };
    vec![
        ("avail", member.data_size.to_string()),
        ("used", shown(array.size.0, array.level_number != 0 && array.size != member.data_size)),
        ("data", shown(member.data_offset.0, member.data_offset.0 != 0)),
        ("super", member.super_offset.to_string()),
        ("bitmap", array.bitmap.map_or_else(String::new, |b| b.to_string())),
        ("bb", member.bad_block_log.map_or_else(String::new, |b| b.offset.to_string())),
        ("chunk", plan.bitmap_chunk.map_or_else(String::new, chunk)),
        (
            "sync",
            plan.bitmap_chunk.map_or_else(String::new, |_| crate::bitmap::covers(&plan.geometry).kib().to_string()),
        ),
        ("array", shown(array_kib, redundant)),
    ]
}

#[test]
fn raid5_begins_with_its_last_member_rebuilding() {
    let plan = plan(&plain(Level::Raid5, 3)).expect("a plan");
    let roles: Vec<_> = plan.members.iter().map(|m| (m.superblock.member().dev_number, m.role, m.rebuild)).collect();
    let slot = |s| Role::Slot(Slot(s));
    assert_eq!(roles, [(0, slot(0), false), (1, slot(1), false), (3, slot(2), true)]);
    assert!(plan.clean && !plan.notes.is_empty());
    let last = plan.members[2].superblock.member();
    assert_eq!(last.recovery, Some(Recovery { offset: Sector::ZERO, by_bitmap: false }));
    let listed: Vec<_> = plan.members[0].superblock.roles().into_iter().take(5).collect();
    assert_eq!(listed, [slot(0), slot(1), Role::Spare, slot(2), Role::Spare]);
}

#[test]
fn a_resync_is_recorded_as_one() {
    let resync = |p: &CreateParams| plan(p).expect("a plan").members[0].superblock.array().resync;
    assert_eq!(resync(&plain(Level::Raid1, 2)), Some(Sector::ZERO));
    assert_eq!(resync(&CreateParams { force: true, ..plain(Level::Raid5, 3) }), Some(Sector::ZERO));
    assert_eq!(resync(&CreateParams { assume_clean: true, ..plain(Level::Raid6, 4) }), None);
    assert_eq!(resync(&plain(Level::Raid0, 2)), None);
}

#[test]
fn the_superblock_is_written_last_and_old_ones_are_wiped_first() {
    let mut p = plain(Level::Raid1, 2);
    p.bitmap = BitmapWish::Internal { chunk: Some(1 << 16) };
    if let CreateDevice::Present(d) = &mut p.devices[0] {
        d.old_superblocks = vec![Sector(0), Sector(8)];
    }
    let plan = plan(&p).expect("a plan");
    let what: Vec<_> = plan.members[0].writes.iter().map(|w| (w.what, w.at.0)).collect();
    let expected =
        [(Written::OldSuperblock, 0), (Written::BadBlockLog, 24), (Written::Bitmap, 16), (Written::Superblock, 8)];
    assert_eq!(what, expected);
    for write in &plan.members[0].writes {
        assert!(write.bytes.len().is_multiple_of(512) && !write.bytes.is_empty());
    }
    assert!(plan.members[0].writes[2].bytes[256..].iter().all(|b| *b == 0xff));
}

#[test]
fn names_carry_the_host_where_both_fit() {
    let name = |host: &str, name: &str| {
        let (homehost, name) = (Some(host.to_owned()), Some(name.to_owned()));
        plan(&CreateParams { homehost, name, ..plain(Level::Raid1, 2) }).expect("a plan").name
    };
    assert_eq!(name("box", "data"), "box:data");
    assert_eq!(name("box", "other:data"), "other:data");
    assert_eq!(name("golden", &"x".repeat(24)), format!("golden:{}", "x".repeat(24)));
    assert_eq!(name("golden", &"x".repeat(25)), "x".repeat(25));
}

/// The error of a plan that must not be.
fn refused(change: impl FnOnce(&mut CreateParams), level: Level, n: usize) -> String {
    let mut p = plain(level, n);
    change(&mut p);
    match plan(&p) {
        Ok(_) => panic!("{level} over {n} was planned"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn impossible_options_are_refused_with_a_way_out() {
    let cases: [(String, &str); 17] = [
        (refused(|_| {}, Level::Raid6, 3), "needs at least 4 devices"),
        (refused(|_| {}, Level::Raid1, 1), "--force"),
        (refused(|p| p.spares = 1, Level::Raid5, 3), "use 'missing'"),
        (refused(|p| p.raid_disks = 2, Level::Raid5, 3), "raise --raid-devices"),
        (refused(|p| p.raid_disks = 2, Level::Raid0, 3), "raise --raid-devices"),
        (refused(|p| p.chunk = Some(Sectors(24)), Level::Raid5, 3), "power of two"),
        (refused(|p| p.chunk = Some(Sectors(9)), Level::Raid0, 3), "multiple of 4 KiB"),
        (refused(|p| p.chunk = Some(Sectors(128)), Level::Raid1, 2), "--chunk has no meaning for raid1"),
        (refused(|p| p.layout = Some(2), Level::Raid1, 2), "--layout has no meaning"),
        (refused(|p| p.size = Some(Sectors::from_kib(1 << 20)), Level::Raid1, 2), "the smallest device"),
        (refused(|p| p.chunk = Some(Sectors::from_kib(1 << 17)), Level::Raid5, 3), "too small"),
        (refused(|p| p.bitmap = BitmapWish::Internal { chunk: Some(1000) }, Level::Raid1, 2), "power of two"),
        (refused(|p| p.bitmap = BitmapWish::Internal { chunk: None }, Level::Raid0, 2), "--bitmap has no meaning"),
        (refused(|p| p.name = Some("n".repeat(33)), Level::Raid1, 2), "longer than 32 bytes"),
        (refused(|p| p.data_offset = Some(Sectors(8)), Level::Raid1, 2), "at least 8 KiB"),
        (refused(|p| p.layout = Some(7), Level::Raid5, 3), "no layout number 7"),
        (refused(|p| p.metadata = MetadataVersion::V0_90, Level::Raid0, 2), "cannot have level raid0"),
    ];
    for (message, part) in cases {
        assert!(message.contains(part), "'{message}' lacks '{part}'");
    }
}

#[test]
fn empty_slots_are_bounded_by_the_level() {
    let missing = |level, n: usize, gone: usize| {
        let mut p = plain(level, n);
        for device in p.devices.iter_mut().take(gone) {
            *device = CreateDevice::Missing;
        }
        plan(&p)
    };
    assert!(missing(Level::Raid1, 3, 2).is_ok() && missing(Level::Raid6, 4, 2).is_ok());
    for (level, n, gone) in [(Level::Raid5, 3, 2), (Level::Raid6, 4, 3), (Level::Raid1, 2, 2), (Level::Raid10, 4, 2)] {
        assert!(matches!(missing(level, n, gone), Err(CreateError::MissingTooMany { .. })), "{level}");
    }
    let mut p = plain(Level::Raid0, 2);
    p.devices[1] = CreateDevice::Missing;
    assert!(plan(&p).is_err());
}
