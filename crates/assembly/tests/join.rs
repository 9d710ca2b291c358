//! New spares, against the members that mdadm made and added.

mod common;

use common::probe_all;
use raidus_assembly::create::{JoinError, JoinParams, NewMember, Written, join};
use raidus_assembly::{Assembled, Options, decide};
use raidus_format::{MdUuid, Role, SUPERBLOCK_BYTES, Superblock};
use raidus_units::{Sector, Sectors};

fn assembled(name: &str) -> Assembled {
    let decision = decide(&probe_all(raidus_golden::case(name)), &Options { run: true, ..Options::default() });
    decision.start().unwrap_or_else(|| panic!("{name} does not start")).clone()
}

fn device(size: Sectors) -> NewMember {
    NewMember {
        name: "new".to_owned(),
        size,
        uuid: MdUuid([7; 16]),
        write_mostly: false,
        failfast: false,
        data_offset: None,
        old_superblocks: vec![Sector(8)],
    }
}

fn params<'a>(assembled: &'a Assembled, taken: &'a [u32], device: &'a NewMember) -> JoinParams<'a> {
    JoinParams {
        like: &assembled.members[0].superblock,
        geometry: &assembled.geometry,
        bitmap_chunk: assembled.bitmap.as_ref().map(|b| b.superblock.chunk()),
        taken,
        device,
    }
}

/// Where the superblock says that things are.
fn places(superblock: &Superblock) -> impl PartialEq + std::fmt::Debug {
    let (array, member) = (superblock.array(), superblock.member());
    let log = member.bad_block_log.map(|log| (log.offset, log.size));
    (member.super_offset, member.data_offset, member.data_size, log, array.bitmap, array.size)
}

#[test]
fn a_new_spare_is_laid_out_as_mdadm_lays_out_members() {
    let mut compared = 0;
    for case in raidus_golden::cases() {
        let candidates = probe_all(case);
        let decision = decide(&candidates, &Options { run: true, readonly: true, ..Options::default() });
        let Some(assembled) = decision.start() else { continue };
        let facts = &assembled.array;
        // Bitmaps, journals and sizes that came later than their members are told by the members themselves.
        let later = ["journal", "reshape", "grow", "takeover"];
        if !assembled.geometry.level().is_redundant() || later.iter().any(|word| case.name.contains(word)) {
            continue;
        }
        for seated in &assembled.members {
            let size = candidates[seated.candidate].size;
            let plan = join(&params(assembled, &[], &device(size))).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            assert_eq!(places(&plan.superblock), places(&seated.superblock), "{}", case.name);
            let array = plan.superblock.array();
            assert_eq!((array.uuid, &array.name, array.level), (facts.uuid, &facts.name, facts.level), "{}", case.name);
            assert_eq!(plan.superblock.member().role, Role::Spare, "{}", case.name);
            let parsed =
                Superblock::parse(&plan.superblock.encode(), array.metadata, plan.superblock.member().super_offset);
            assert_eq!(parsed.as_ref(), Ok(&plan.superblock), "{}", case.name);
            compared += 1;
        }
    }
    assert!(compared > 300, "{compared}");
}

#[test]
fn numbers_are_the_first_that_no_slot_and_nobody_has() {
    let assembled = assembled("spare-raid5-1.2");
    let size = Sectors::from_kib(1 << 20);
    let number =
        |taken: &[u32]| join(&params(&assembled, taken, &device(size))).expect("a plan").superblock.member().dev_number;
    let disks = u32::from(assembled.geometry.raid_disks());
    assert_eq!(number(&[0, 1, 2]), disks);
    assert_eq!(number(&[0, 1, disks, disks + 2]), disks + 1);
    let all: Vec<u32> = (disks..1920).collect();
    assert_eq!(number(&all), 0);
    let all: Vec<u32> = (0..1920).collect();
    assert!(matches!(join(&params(&assembled, &all, &device(size))), Err(JoinError::Full { .. })));
}

#[test]
fn old_superblocks_go_first_and_the_new_one_is_not_written() {
    let assembled = assembled("recovery-raid5-1.2-bitmap-readd");
    let plan = join(&params(&assembled, &[0, 1, 2], &device(Sectors::from_kib(1 << 20)))).expect("a plan");
    let what: Vec<Written> = plan.writes.iter().map(|w| w.what).collect();
    assert_eq!(what, [Written::OldSuperblock, Written::BadBlockLog, Written::Bitmap]);
    assert!(plan.writes[0].at == Sector(8) && plan.writes[0].bytes == vec![0; SUPERBLOCK_BYTES]);
}

#[test]
fn too_small_a_device_is_refused() {
    let assembled = assembled("spare-raid5-1.2");
    let needed = assembled.array.size;
    let error = join(&params(&assembled, &[], &device(needed))).expect_err("too small");
    assert!(matches!(error, JoinError::TooSmall { .. }), "{error}");
    let enough = needed + assembled.members[0].superblock.member().data_offset.from_start();
    assert!(join(&params(&assembled, &[], &device(enough))).is_ok());
    // Less room before the data is made do with.
    let least = join(&params(&assembled, &[], &device(needed + Sectors(4096)))).expect("fits");
    assert!(least.superblock.member().data_size >= needed);
}
