//! Numbers that no array has, and numbers at the limits.

use proptest::prelude::*;
use raidus_layout::{Geometry, GeometryError, GeometryParams, Holds, Raid0Layout, SECTORS_MAX};
use raidus_units::{Level, Sector, Sectors, Slot};

fn params(level: Level, layout: u32, raid_disks: u16, chunk: u64, size: u64) -> GeometryParams<'static> {
    GeometryParams {
        level,
        layout,
        raid_disks,
        chunk: Sectors(chunk),
        size: Sectors(size),
        data_sizes: &[],
        raid0_layout: Raid0Layout::Unknown,
    }
}

fn error(level: Level, layout: u32, raid_disks: u16, chunk: u64, size: u64) -> GeometryError {
    Geometry::new(&params(level, layout, raid_disks, chunk, size)).unwrap_err()
}

fn striped(level: Level, chunk: u64, sizes: &[u64], raid0_layout: Raid0Layout) -> Result<Geometry, GeometryError> {
    let sizes: Vec<Sectors> = sizes.iter().map(|s| Sectors(*s)).collect();
    let fixed = params(level, 0, sizes.len() as u16, chunk, 0);
    Geometry::new(&GeometryParams { data_sizes: &sizes, raid0_layout, ..fixed })
}

#[test]
fn slots() {
    use GeometryError::{TooFewSlots, TooManySlots};
    for (level, min, max) in [
        (Level::Raid1, 1, 1920),
        (Level::Raid4, 2, 255),
        (Level::Raid5, 2, 255),
        (Level::Raid6, 4, 255),
        (Level::Raid10, 2, 1920),
    ] {
        let layout = if level == Level::Raid10 { 0x102 } else { 2 };
        assert_eq!(error(level, layout, min - 1, 8, 64), TooFewSlots { level, got: min - 1, min });
        assert_eq!(error(level, layout, max + 1, 8, 64), TooManySlots { level, got: max + 1, max });
        assert!(Geometry::new(&params(level, layout, min, 8, 64)).is_ok());
        assert!(Geometry::new(&params(level, layout, max, 8, 64)).is_ok());
        assert!(error(level, layout, u16::MAX, 8, 64).to_string().contains("65535"));
    }
    assert!(matches!(striped(Level::Linear, 0, &[], Raid0Layout::Unknown), Err(TooFewSlots { .. })));
}

#[test]
fn chunks() {
    for chunk in [0, 1, 4, 7, 9, 24, 48, u64::MAX, 1 << 60] {
        for level in [Level::Raid4, Level::Raid5, Level::Raid6, Level::Raid10] {
            let layout = if level == Level::Raid10 { 0x102 } else { 2 };
            assert!(matches!(error(level, layout, 4, chunk, 1024), GeometryError::Chunk { .. }), "{level} {chunk}");
        }
    }
    for chunk in [0, 4, 12, u64::MAX, 1 << 60] {
        let result = striped(Level::Raid0, chunk, &[1024; 2], Raid0Layout::Unknown);
        assert!(matches!(result, Err(GeometryError::Chunk { .. })), "raid0 {chunk}");
    }
    assert!(striped(Level::Raid0, 24, &[1024; 2], Raid0Layout::Unknown).is_ok());
}

#[test]
fn algorithms() {
    for layout in (6..40).chain([u32::MAX, 1 << 31]) {
        let expected = GeometryError::UnknownAlgorithm { level: Level::Raid5, layout };
        assert_eq!(error(Level::Raid5, layout, 4, 8, 64), expected);
        if ![8, 9, 10, 16, 17, 18, 19, 20].contains(&layout) {
            let expected = GeometryError::UnknownAlgorithm { level: Level::Raid6, layout };
            assert_eq!(error(Level::Raid6, layout, 4, 8, 64), expected);
            assert!(expected.to_string().contains("left-symmetric-6"), "{expected}");
        }
    }
}

#[test]
fn raid10_layouts() {
    let of = |layout, n| error(Level::Raid10, layout, n, 8, 1024);
    assert!(matches!(of(0x8_0102, 4), GeometryError::Raid10Bits { .. }));
    assert!(matches!(of(0x6_0102, 4), GeometryError::Raid10Bits { .. }));
    for (layout, copies) in [(0, 0), (0x101, 1), (0x100, 0), (0x303, 9), (0xffff, 255 * 255)] {
        assert_eq!(of(layout, 4), GeometryError::Raid10Copies { layout, copies, slots: 4 });
    }
    // The two kinds in which md lays copies over each other.
    for (layout, slots) in [(0x1_0202, 5), (0x4_0202, 9), (0x4_0202, 10)] {
        assert_eq!(of(layout, slots), GeometryError::Raid10Collision { layout, slots });
    }
    // The historic far sets, too small for the copies.
    assert_eq!(of(0x2_0301, 4), GeometryError::Raid10Collision { layout: 0x2_0301, slots: 4 });
    for (layout, slots) in [(0x1_0202, 4), (0x4_0202, 8), (0x4_0201, 5), (0x2_0201, 4), (0x1_0102, 3), (0x4_0102, 3)] {
        assert!(Geometry::new(&params(Level::Raid10, layout, slots, 8, 1024)).is_ok(), "{layout:#x} {slots}");
    }
}

#[test]
fn sizes() {
    let empty = |level, chunk| GeometryError::Empty { level, chunk: Sectors(chunk) };
    assert_eq!(error(Level::Raid1, 0, 2, 0, 0), empty(Level::Raid1, 1));
    assert_eq!(error(Level::Raid5, 2, 3, 128, 127), empty(Level::Raid5, 128));
    assert_eq!(error(Level::Raid10, 0x201, 2, 128, 255), empty(Level::Raid10, 128));
    let max = SECTORS_MAX.0;
    assert_eq!(error(Level::Raid1, 0, 2, 0, max + 1), GeometryError::TooLarge);
    for size in [max, max + 1, u64::MAX] {
        assert_eq!(error(Level::Raid6, 2, 255, 8, size), GeometryError::TooLarge);
        assert_eq!(error(Level::Raid10, 0x102, 1920, 8, size), GeometryError::TooLarge);
        assert_eq!(striped(Level::Linear, 0, &[size; 1500], Raid0Layout::Unknown), Err(GeometryError::TooLarge));
        assert_eq!(striped(Level::Raid0, 8, &[size; 1500], Raid0Layout::Unknown), Err(GeometryError::TooLarge));
    }
    // As large as can be.
    for (level, layout, n) in [(Level::Raid5, 2, 2), (Level::Raid10, 0x102, 2), (Level::Raid1, 0, 1920)] {
        let g = Geometry::new(&params(level, layout, n, 8, max)).unwrap();
        assert_eq!(g.array_sectors(), SECTORS_MAX);
        assert_ne!(g.locate(Slot(1), Sector(max - 1)), Holds::Nothing);
        assert_eq!(g.locate(Slot(1), Sector(max)), Holds::Nothing);
        assert_eq!(g.locate(Slot(1), Sector::MAX), Holds::Nothing);
    }
    let need = GeometryError::DataSizes { level: Level::Raid0, need: 2, got: 0 };
    assert_eq!(error(Level::Raid0, 0, 2, 8, 64), need);
    let small = striped(Level::Raid0, 16, &[32, 15], Raid0Layout::Alternate);
    assert_eq!(small, Err(GeometryError::MemberTooSmall { slot: 1, chunk: Sectors(16) }));
}

#[test]
fn raid0_layout_matters_only_with_wide_later_zones() {
    let unknown = |sizes: &[u64]| striped(Level::Raid0, 8, sizes, Raid0Layout::Unknown);
    let error = unknown(&[80, 160, 160, 160, 240]).unwrap_err();
    assert_eq!(error, GeometryError::Raid0LayoutUnknown);
    assert!(error.to_string().contains("--layout=original"), "{error}");
    // One zone; and a second zone with one member only.
    assert!(unknown(&[160, 160]).is_ok());
    assert!(unknown(&[80, 160]).is_ok());
    // 4 members · 10 chunks = 40 chunks, which is a whole number of rows of the 2 members left: both ways are the same.
    let either = unknown(&[80, 80, 160, 160]).unwrap();
    for layout in [Raid0Layout::Original, Raid0Layout::Alternate] {
        assert_eq!(striped(Level::Raid0, 8, &[80, 80, 160, 160], layout).as_ref(), Ok(&either));
    }
    let uneven = [80, 160, 160, 160, 240];
    let [original, alternate] =
        [Raid0Layout::Original, Raid0Layout::Alternate].map(|l| striped(Level::Raid0, 8, &uneven, l).unwrap());
    assert_ne!(original, alternate);
}

#[test]
fn raid0_layout_of_superblocks() {
    assert_eq!(Raid0Layout::from_superblock(1, true), Raid0Layout::Original);
    assert_eq!(Raid0Layout::from_superblock(2, true), Raid0Layout::Alternate);
    for (layout, marked) in [(1, false), (2, false), (0, true), (3, true), (u32::MAX, true)] {
        assert_eq!(Raid0Layout::from_superblock(layout, marked), Raid0Layout::Unknown);
    }
}

/// md's own array size for a chunk that is no power of two comes from a bit mask, not from a division.
#[test]
fn raid0_size_with_odd_chunks() {
    // 433 chunks of 48 sectors are 20784 (0x5130) sectors; without the bits of 47 (0x2f) that is 20752 (0x5110).
    let g = striped(Level::Raid0, 48, &[20_800; 3], Raid0Layout::Unknown).unwrap();
    assert_eq!(g.member_sectors(Slot(0)), Sectors(20_784));
    assert_eq!(g.array_sectors(), Sectors(3 * 20_752));
}

/// Sizes a device can have, and any.
fn sectors() -> impl Strategy<Value = u64> {
    prop_oneof![0..100_000u64, 0..=SECTORS_MAX.0, any::<u64>()]
}

fn level() -> impl Strategy<Value = Level> {
    prop::sample::select(&Level::ALL[..])
}

fn layout() -> impl Strategy<Value = u32> {
    let raid10 = (1..5u32, 1..5u32, 0..8u32).prop_map(|(near, far, flags)| flags << 16 | far << 8 | near);
    prop_oneof![0..24u32, raid10, any::<u32>()]
}

fn chunk() -> impl Strategy<Value = u64> {
    prop_oneof![(0..20u32).prop_map(|shift| 1 << shift), (1..100u64).prop_map(|pages| 8 * pages), sectors()]
}

fn raid0_layout() -> impl Strategy<Value = Raid0Layout> {
    prop::sample::select(&[Raid0Layout::Original, Raid0Layout::Alternate, Raid0Layout::Unknown][..])
}

/// Every place of `array`, found by the forward mapping of its level, is found again by `locate`.
fn check_sector(g: &Geometry, array: Sector) -> Result<(), TestCaseError> {
    match g {
        Geometry::Linear(l) => {
            let extent = l.map(array, Sectors(9));
            prop_assert_eq!(g.locate(extent.slot, extent.component), Holds::Data { array });
            prop_assert!((1..=9).contains(&extent.len.0));
        }
        Geometry::Raid0(r) => {
            let extent = r.map(array, Sectors(9));
            prop_assert_eq!(g.locate(extent.slot, extent.component), Holds::Data { array });
            prop_assert!((1..=9).contains(&extent.len.0));
        }
        Geometry::Mirror(m) => {
            for copy in 0..m.copies() {
                let (slot, component) = m.copy(array, copy);
                prop_assert_eq!(g.locate(slot, component), Holds::Copy { array, copy });
            }
        }
        Geometry::Parity(p) => {
            let (number, i, offset) = p.map(array);
            let (row, component) = (p.row(number), p.component(number, offset));
            prop_assert_eq!(g.locate(row.data(i), component), Holds::Data { array });
            prop_assert_eq!(g.locate(row.p(), component), Holds::P { row: number });
            if let Some(q) = row.q() {
                prop_assert_eq!(g.locate(q, component), Holds::Q { row: number });
            }
        }
    }
    Ok(())
}

/// What `locate` says of a place, the forward mapping confirms.
fn check_place(g: &Geometry, slot: Slot, component: Sector) -> Result<(), TestCaseError> {
    let place = match g.locate(slot, component) {
        Holds::Nothing => return Ok(()),
        Holds::Data { array } => {
            prop_assert!(array.0 < g.array_sectors().0);
            return check_sector(g, array);
        }
        Holds::Copy { array, copy } => match g {
            Geometry::Mirror(m) => m.copy(array, copy),
            other => panic!("a copy in {other:?}"),
        },
        Holds::P { row } | Holds::Q { row } => match g {
            Geometry::Parity(p) => {
                let roles = p.row(row);
                prop_assert!(slot == roles.p() || Some(slot) == roles.q());
                (slot, p.component(row, p.row_at(component).1))
            }
            other => panic!("parity in {other:?}"),
        },
    };
    prop_assert_eq!(place, (slot, component));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Any numbers at all give a geometry or an error, and a geometry's two directions agree everywhere.
    #[test]
    fn any_numbers(
        level in level(), layout in layout(), sizes in prop::collection::vec(sectors(), 0..12), chunk in chunk(),
        size in sectors(), wide in any::<Option<u16>>(), raid0_layout in raid0_layout(),
        at in prop::collection::vec((any::<u64>(), any::<u16>()), 8),
    ) {
        let sizes: Vec<Sectors> = sizes.into_iter().map(Sectors).collect();
        let raid_disks = wide.unwrap_or(sizes.len() as u16);
        let params = GeometryParams { level, layout, raid_disks, chunk: Sectors(chunk), size: Sectors(size), data_sizes: &sizes, raid0_layout };
        match Geometry::new(&params) {
            Ok(g) => {
                prop_assert_eq!(g.level(), level);
                for (position, slot) in at {
                    check_sector(&g, Sector(position % g.array_sectors().0))?;
                    check_place(&g, Slot(slot % raid_disks), Sector(position % g.component_sectors().0))?;
                    check_place(&g, Slot(slot), Sector(position))?;
                }
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    /// The same with numbers that make an array, so that the deep end is tested as well.
    #[test]
    fn good_numbers(
        level in level(), (near, far, far_sets, offset) in (1..4u32, 1..4u32, any::<bool>(), any::<bool>()), algorithm in 0..21u32,
        shift in 3..12u32, sizes in prop::collection::vec(10_000..1u64 << 45, 4..12),
        at in prop::collection::vec((any::<u64>(), any::<u16>()), 8), original in any::<bool>(),
    ) {
        let sizes: Vec<Sectors> = sizes.into_iter().map(Sectors).collect();
        let raid_disks = sizes.len() as u16;
        let layout = match level {
            Level::Raid10 if near * far == 1 => 0x102,
            Level::Raid10 => u32::from(far_sets) << 18 | u32::from(offset) << 16 | far << 8 | near,
            Level::Raid5 => algorithm % 6,
            _ => algorithm,
        };
        let params = GeometryParams {
            level, layout, raid_disks, chunk: Sectors(1 << shift), size: sizes[0], data_sizes: &sizes,
            raid0_layout: if original { Raid0Layout::Original } else { Raid0Layout::Alternate },
        };
        let g = match Geometry::new(&params) {
            Ok(g) => g,
            Err(error) => {
                let layout_refused = matches!(error, GeometryError::UnknownAlgorithm { .. } | GeometryError::Raid10Collision { .. } | GeometryError::Raid10Copies { .. });
                prop_assert!(layout_refused, "{}", error);
                return Ok(());
            }
        };
        for (position, slot) in at {
            check_sector(&g, Sector(position % g.array_sectors().0))?;
            check_place(&g, Slot(slot % raid_disks), Sector(position % g.component_sectors().0))?;
        }
        check_sector(&g, Sector(g.array_sectors().0 - 1))?;
    }
}
