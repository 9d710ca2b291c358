//! Every sector of small arrays of every shape: there and back.

use raidus_layout::{Extent, Geometry, GeometryError, GeometryParams, Holds, Raid0Layout};
use raidus_units::{Level, Sector, Sectors, Slot};
use std::collections::BTreeMap;

const RAID5: std::ops::Range<u32> = 0..6;
const RAID6: [u32; 14] = [0, 1, 2, 3, 4, 5, 8, 9, 10, 16, 17, 18, 19, 20];

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

/// Every place that `locate` says is in use, and checks that it says nothing past a member's end.
fn places(g: &Geometry) -> BTreeMap<(Slot, Sector), Holds> {
    let mut places = BTreeMap::new();
    for slot in (0..g.raid_disks() + 2).map(Slot) {
        let end = if slot.0 < g.raid_disks() { g.member_sectors(slot).0 } else { 0 };
        assert!(end <= g.component_sectors().0);
        for component in (0..end + 64).map(Sector) {
            match g.locate(slot, component) {
                Holds::Nothing => {}
                holds => {
                    assert!(component.0 < end, "{slot}:{component} holds {holds:?} past the end at {end}");
                    places.insert((slot, component), holds);
                }
            }
        }
    }
    places
}

#[test]
fn parity_levels() {
    let raid4 = (2..=8).map(|n| (Level::Raid4, 0, n));
    let raid5 = (2..=8).flat_map(|n| RAID5.map(move |layout| (Level::Raid5, layout, n)));
    let raid6 = (4..=9).flat_map(|n| RAID6.map(move |layout| (Level::Raid6, layout, n)));
    for (level, layout, n) in raid4.chain(raid5).chain(raid6) {
        let chunk = if n % 2 == 0 { 8 } else { 16 };
        // The last 5 sectors are less than a chunk.
        let rows = 2 * u64::from(n) + 1;
        let geometry = Geometry::new(&params(level, layout, n, chunk, rows * chunk + 5)).unwrap();
        let Geometry::Parity(g) = &geometry else { panic!("{geometry:?}") };
        let mut left = places(&geometry);
        assert_eq!(left.len() as u64, rows * u64::from(n) * chunk, "{level} {layout} n={n}: every place has a use");
        for array in (0..geometry.array_sectors().0).map(Sector) {
            let (row, i, offset) = g.map(array);
            let place = (g.row(row).data(i), g.component(row, offset));
            assert_eq!(left.remove(&place), Some(Holds::Data { array }), "{level} {layout} n={n} {array}");
            assert_eq!(g.array(row, i, offset), array);
            assert_eq!(g.row(row).index_of(place.0), Some(i));
        }
        for ((slot, component), holds) in left {
            let (number, _) = g.row_at(component);
            let row = g.row(number);
            match holds {
                Holds::P { row: found } => assert_eq!((found, row.p()), (number, slot)),
                Holds::Q { row: found } => assert_eq!((found, row.q()), (number, Some(slot))),
                other => panic!("{slot}:{component} holds {other:?}, but nothing maps there"),
            }
            assert_eq!(row.index_of(slot), None);
            assert_eq!(row.index_of(Slot(n)), None);
        }
    }
}

#[test]
fn coefficients_differ() {
    for layout in RAID6 {
        for n in (4..=20).chain([254, 255]) {
            let geometry = Geometry::new(&params(Level::Raid6, layout, n, 8, 8 * 600)).unwrap();
            let Geometry::Parity(g) = &geometry else { panic!("{geometry:?}") };
            for number in 0..2 * u64::from(n) {
                let row = g.row(number);
                let mut seen = [false; 255];
                for i in 0..g.data_disks() {
                    let k = row.coefficient(i);
                    assert!(!seen[usize::from(k)], "layout {layout} n={n} row {number}: {k} twice");
                    seen[usize::from(k)] = true;
                    if n < 20 {
                        assert_eq!(row.index_of_coefficient(k), Some(i));
                    }
                }
                if n < 20 {
                    let unused = seen.iter().position(|used| !used).unwrap();
                    assert_eq!(row.index_of_coefficient(unused as u8), None);
                }
            }
        }
    }
}

#[test]
fn raid1() {
    for n in 1..5 {
        let geometry = Geometry::new(&params(Level::Raid1, 0, n, 0, 37)).unwrap();
        check_mirror(&geometry, "raid1");
    }
}

/// All layout words with up to five copies, over 2 to 10 slots. Which of them are possible is counted from what the
/// word says, not from what the geometry does.
#[test]
fn raid10() {
    let (mut possible, mut refused) = (0, 0);
    for n in 2..=10u16 {
        for (near, far) in (1..=5u16).flat_map(|near| (1..=5).map(move |far| (near, far))) {
            if !(2..=n).contains(&(near * far)) {
                continue;
            }
            for flags in 0..8u32 {
                let layout = flags << 16 | u32::from(far) << 8 | u32::from(near);
                // Sizes that leave chunks over in every way.
                for chunks in [16, 17, 23] {
                    let text = format!("{layout:#x} n={n} chunks={chunks}");
                    match Geometry::new(&params(Level::Raid10, layout, n, 8, chunks * 8 + 3)) {
                        Ok(geometry) => {
                            check_mirror(&geometry, &text);
                            possible += 1;
                        }
                        Err(GeometryError::Raid10Bits { .. }) => assert_eq!(flags & 6, 6, "{text}"),
                        Err(GeometryError::Raid10Collision { .. }) => {
                            let wraps = flags & 1 != 0 && n % near != 0;
                            assert!(far > 1 && (wraps || flags & 6 != 0), "{text}: an ordinary layout");
                            refused += 1;
                        }
                        Err(error) => panic!("{text}: {error}"),
                    }
                }
            }
        }
    }
    assert!(possible > refused, "{possible} possible, {refused} refused");
}

/// Checks that all copies of a sector are on different members, that no two sectors share a place, and that pieces are
/// in one piece.
fn check_mirror(geometry: &Geometry, text: &str) {
    let Geometry::Mirror(g) = geometry else { panic!("{geometry:?}") };
    let mut left = places(geometry);
    let size = g.array_sectors().0;
    for array in (0..size).map(Sector) {
        let mut slots = Vec::new();
        for copy in 0..g.copies() {
            let place = g.copy(array, copy);
            assert_eq!(left.remove(&place), Some(Holds::Copy { array, copy }), "{text}: copy {copy} of {array}");
            assert!(!slots.contains(&place.0), "{text}: two copies of {array} on slot {}", place.0);
            slots.push(place.0);
            let piece = g.piece(array, Sectors(size - array.0));
            let last = g.copy(array + piece - Sectors(1), copy);
            assert_eq!(last, (place.0, place.1 + piece - Sectors(1)), "{text}: piece at {array}");
        }
        // Exactly the members that have a copy are needed in turn.
        assert!(!geometry.enough(&|slot| !slots.contains(&slot)), "{text}: {array} would be lost");
        assert!(slots.iter().all(|kept| geometry.enough(&|slot| slot == *kept || !slots.contains(&slot))), "{text}");
    }
    assert!(left.is_empty(), "{text}: nothing maps to {left:?}");
}

#[test]
fn linear() {
    let sizes = [Sectors(37), Sectors(5), Sectors(0), Sectors(64), Sectors(7)];
    for (rounding, total) in [(0, 113), (8, 32 + 64), (24, 24 + 48)] {
        let params = GeometryParams { data_sizes: &sizes, ..params(Level::Linear, 0, 5, rounding, 0) };
        let geometry = Geometry::new(&params).unwrap();
        let Geometry::Linear(g) = &geometry else { panic!("{geometry:?}") };
        assert_eq!(geometry.array_sectors(), Sectors(total));
        check_striped(&geometry, |array, max| g.map(array, max), false);
    }
}

#[test]
fn raid0() {
    let layouts = [Raid0Layout::Original, Raid0Layout::Alternate];
    let shapes: [&[u64]; 7] = [
        &[40],
        &[80, 80, 80],
        &[40, 80],
        &[160, 40, 80],
        &[80, 160, 80, 240, 245],
        &[48, 240, 144, 240],
        &[9, 500, 500],
    ];
    for (shape, layout, chunk) in
        shapes.iter().flat_map(|shape| layouts.map(|layout| [8, 16, 24].map(|chunk| (shape, layout, chunk)))).flatten()
    {
        let sizes: Vec<Sectors> = shape.iter().map(|s| Sectors(*s)).collect();
        let params = GeometryParams {
            data_sizes: &sizes,
            raid0_layout: layout,
            ..params(Level::Raid0, 0, sizes.len() as u16, chunk, 0)
        };
        match Geometry::new(&params) {
            Ok(geometry) => {
                let Geometry::Raid0(g) = &geometry else { panic!("{geometry:?}") };
                check_striped(&geometry, |array, max| g.map(array, max), !chunk.is_power_of_two());
            }
            Err(error) => {
                assert_eq!(error, GeometryError::MemberTooSmall { slot: 0, chunk: Sectors(chunk) });
                assert!(shape[0] < chunk);
            }
        }
    }
}

/// Checks a level without redundancy. `short`: the array may be smaller than the room its members have.
fn check_striped(g: &Geometry, map: impl Fn(Sector, Sectors) -> Extent, short: bool) {
    let mut left = places(g);
    let size = g.array_sectors().0;
    let mut extent_end = 0;
    for array in (0..size).map(Sector) {
        let extent = map(array, Sectors(u64::MAX));
        assert_eq!(left.remove(&(extent.slot, extent.component)), Some(Holds::Data { array }));
        assert_eq!(map(array, Sectors(1)), Extent { len: Sectors(1), ..extent });
        // An extent ends where those that begin inside it end.
        let end = array.0 + extent.len.0;
        if array.0 < extent_end {
            assert_eq!(end, extent_end);
        }
        extent_end = end;
        let last = map(Sector(end - 1), Sectors(1));
        assert_eq!((last.slot, last.component), (extent.slot, extent.component + extent.len - Sectors(1)));
    }
    assert_eq!(extent_end, size);
    assert!(left.is_empty(), "nothing maps to {left:?}");
    let members: u64 = (0..g.raid_disks()).map(|slot| g.member_sectors(Slot(slot)).0).sum();
    assert!(if short { size <= members } else { size == members });
    assert!((0..g.raid_disks()).all(|gone| !g.enough(&|slot| slot.0 != gone)) && g.enough(&|_| true));
}
