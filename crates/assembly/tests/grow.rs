//! Bitmaps for arrays that run without one, against those that mdadm made.

mod common;

use common::probe_all;
use raidus_assembly::create::{BitmapGrowth, GrowError, grow_bitmap};
use raidus_assembly::{Assembled, Options, decide};
use raidus_format::Superblock;
use raidus_units::Level;

fn assembled(case: &'static raidus_golden::Case) -> Option<Assembled> {
    let options = Options { run: true, readonly: true, ..Options::default() };
    decide(&probe_all(case), &options).start().cloned()
}

fn members(assembled: &Assembled) -> Vec<Superblock> {
    assembled.members.iter().map(|seated| seated.superblock.clone()).collect()
}

#[test]
fn a_bitmap_goes_where_mdadm_puts_it() {
    let mut compared = 0;
    for case in raidus_golden::cases() {
        let Some(assembled) = assembled(case) else { continue };
        let Some(made) = &assembled.bitmap else { continue };
        let members = members(&assembled);
        let chunk = Some(made.superblock.chunk());
        let growth = BitmapGrowth { members: &members, geometry: &assembled.geometry, chunk };
        let grown = grow_bitmap(&growth).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        assert_eq!(Some(grown.offset), assembled.array.bitmap, "{}", case.name);
        let same = |of: &raidus_format::bitmap::BitmapSuper| (of.uuid(), of.sync_size(), of.chunk(), of.bits());
        assert_eq!(same(&grown.superblock), same(&made.superblock), "{}", case.name);
        compared += 1;
    }
    assert!(compared > 20, "{compared}");
}

#[test]
fn a_chunk_is_chosen_that_fits_and_others_are_refused() {
    let case = raidus_golden::case("raid5-1.2-n3-64k");
    let assembled = assembled(case).expect("it starts");
    let members = members(&assembled);
    let grow = |chunk| grow_bitmap(&BitmapGrowth { members: &members, geometry: &assembled.geometry, chunk });
    assert_eq!(grow(None).expect("room").superblock.chunk(), 64 << 20);
    assert_eq!(grow(Some(2048)).expect_err("too small"), GrowError::ChunkTooSmall { given: 2, min: 4 });
    assert!(matches!(grow(Some(12_288)), Err(GrowError::Bitmap(_))));
}

#[test]
fn arrays_without_use_for_a_bitmap_get_none() {
    let refused = |name| {
        let assembled = assembled(raidus_golden::case(name)).expect("it starts");
        let members = members(&assembled);
        let growth = BitmapGrowth { members: &members, geometry: &assembled.geometry, chunk: None };
        grow_bitmap(&growth).expect_err("refused")
    };
    let mut cases = raidus_golden::cases().iter();
    let striped = cases.find(|case| assembled(case).is_some_and(|a| a.geometry.level() == Level::Raid0));
    assert_eq!(refused(&striped.expect("a raid0").name), GrowError::NoRedundancy);
    assert_eq!(refused("ppl-raid5-1.2-n3"), GrowError::OtherPolicy);
}
