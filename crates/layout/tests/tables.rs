//! Tables of places, row by row, as md puts them.

use raidus_layout::{Geometry, GeometryParams, MirrorGeometry, ParityGeometry, Raid0Layout};
use raidus_units::{Level, Sector, Sectors};

const CHUNK: u64 = 8;

fn geometry(level: Level, layout: u32, raid_disks: u16, chunks: u64) -> Geometry {
    Geometry::new(&GeometryParams {
        level,
        layout,
        raid_disks,
        chunk: Sectors(CHUNK),
        size: Sectors(chunks * CHUNK),
        data_sizes: &[],
        raid0_layout: Raid0Layout::Unknown,
    })
    .unwrap()
}

fn parity(level: Level, layout: u32, raid_disks: u16) -> ParityGeometry {
    match geometry(level, layout, raid_disks, 1000) {
        Geometry::Parity(g) => g,
        other => panic!("{other:?}"),
    }
}

fn mirror(layout: u32, raid_disks: u16) -> MirrorGeometry {
    match geometry(Level::Raid10, layout, raid_disks, 16) {
        Geometry::Mirror(g) => g,
        other => panic!("{other:?}"),
    }
}

/// A row as `D0 P D1`, slots from left to right.
fn picture(g: &ParityGeometry, row: u64) -> String {
    let row = g.row(row);
    let mut cells = vec![String::new(); usize::from(g.raid_disks())];
    cells[row.p().index()] = "P".to_owned();
    if let Some(q) = row.q() {
        cells[q.index()] = "Q".to_owned();
    }
    for i in 0..g.data_disks() {
        cells[row.data(i).index()] = format!("D{i}");
    }
    cells.join(" ")
}

#[test]
fn raid4_has_parity_last() {
    for layout in [0, 5, u32::MAX] {
        for row in 0..8 {
            assert_eq!(picture(&parity(Level::Raid4, layout, 4), row), "D0 D1 D2 P");
        }
    }
}

#[test]
fn raid5_over_four() {
    let table = [
        (0, ["D0 D1 D2 P", "D0 D1 P D2", "D0 P D1 D2", "P D0 D1 D2"]),
        (1, ["P D0 D1 D2", "D0 P D1 D2", "D0 D1 P D2", "D0 D1 D2 P"]),
        (2, ["D0 D1 D2 P", "D1 D2 P D0", "D2 P D0 D1", "P D0 D1 D2"]),
        (3, ["P D0 D1 D2", "D2 P D0 D1", "D1 D2 P D0", "D0 D1 D2 P"]),
        (4, ["P D0 D1 D2"; 4]),
        (5, ["D0 D1 D2 P"; 4]),
    ];
    for (layout, rows) in table {
        let g = parity(Level::Raid5, layout, 4);
        for (row, expected) in (0..).zip(rows) {
            assert_eq!(picture(&g, row), expected, "layout {layout} row {row}");
            assert_eq!(picture(&g, row + 4), expected, "layout {layout} row {row} + 4");
        }
    }
}

#[test]
fn raid6_over_five() {
    let table = [
        (0, "Q D0 D1 D2 P", "D0 D1 D2 P Q", "P Q D0 D1 D2", [0, 1, 2]),
        (1, "P Q D0 D1 D2", "D0 P Q D1 D2", "Q D0 D1 D2 P", [2, 0, 1]),
        (2, "Q D0 D1 D2 P", "D0 D1 D2 P Q", "P Q D0 D1 D2", [0, 1, 2]),
        (3, "P Q D0 D1 D2", "D2 P Q D0 D1", "Q D0 D1 D2 P", [0, 1, 2]),
        (4, "P Q D0 D1 D2", "P Q D0 D1 D2", "P Q D0 D1 D2", [0, 1, 2]),
        (5, "D0 D1 D2 P Q", "D0 D1 D2 P Q", "D0 D1 D2 P Q", [0, 1, 2]),
        (8, "P Q D0 D1 D2", "D0 P Q D1 D2", "Q D0 D1 D2 P", [0, 3, 4]),
        (9, "D0 D1 D2 P Q", "D0 D1 P Q D2", "Q D0 D1 D2 P", [0, 1, 4]),
        (10, "D0 D1 D2 Q P", "D1 D2 Q P D0", "P D0 D1 D2 Q", [4, 0, 1]),
        (16, "D0 D1 D2 P Q", "D0 D1 P D2 Q", "D0 D1 D2 P Q", [0, 1, 2]),
        (17, "P D0 D1 D2 Q", "D0 P D1 D2 Q", "P D0 D1 D2 Q", [0, 1, 2]),
        (18, "D0 D1 D2 P Q", "D1 D2 P D0 Q", "D0 D1 D2 P Q", [2, 0, 1]),
        (19, "P D0 D1 D2 Q", "D2 P D0 D1 Q", "P D0 D1 D2 Q", [1, 2, 0]),
        (20, "P D0 D1 D2 Q", "P D0 D1 D2 Q", "P D0 D1 D2 Q", [0, 1, 2]),
    ];
    for (layout, row0, row1, row4, coefficients) in table {
        let g = parity(Level::Raid6, layout, 5);
        assert_eq!(picture(&g, 0), row0, "layout {layout} row 0");
        assert_eq!(picture(&g, 1), row1, "layout {layout} row 1");
        assert_eq!(picture(&g, 4), row4, "layout {layout} row 4");
        let of_row1: Vec<u8> = (0..3).map(|i| g.row(1).coefficient(i)).collect();
        assert_eq!(of_row1, coefficients, "layout {layout}: coefficients of D0, D1, D2 in row 1");
    }
}

#[test]
fn raid10_copies() {
    let table: [(u32, u16, u64, [&str; 4]); 6] = [
        (0x102, 3, 24, ["0:0 1:0", "2:0 0:1", "1:1 2:1", "0:2 1:2"]),
        (0x201, 3, 24, ["0:0 1:8", "1:0 2:8", "2:0 0:8", "0:1 1:9"]),
        (0x1_0201, 3, 24, ["0:0 1:1", "1:0 2:1", "2:0 0:1", "0:2 1:3"]),
        (0x103, 4, 21, ["0:0 1:0 2:0", "3:0 0:1 1:1", "2:1 3:1 0:2", "1:2 2:2 3:2"]),
        (0x4_0201, 4, 32, ["0:0 1:8", "1:0 0:8", "2:0 3:8", "3:0 2:8"]),
        (0x202, 4, 16, ["0:0 2:8 1:0 3:8", "2:0 0:8 3:0 1:8", "0:1 2:9 1:1 3:9", "2:1 0:9 3:1 1:9"]),
    ];
    for (layout, n, chunks, copies) in table {
        let g = mirror(layout, n);
        assert_eq!(g.array_sectors(), Sectors(chunks * CHUNK), "layout {layout:#x}");
        for (chunk, expected) in (0..).zip(copies) {
            let places: Vec<String> = (0..g.copies())
                .map(|copy| g.copy(Sector(chunk * CHUNK + 3), copy))
                .map(|(slot, component)| {
                    assert_eq!(component.0 % CHUNK, 3);
                    format!("{slot}:{}", component.0 / CHUNK)
                })
                .collect();
            assert_eq!(places.join(" "), expected, "layout {layout:#x} chunk {chunk}");
        }
    }
}

#[test]
fn slots_with_parity_only() {
    let only_parity = |level, layout, n| {
        let g = parity(level, layout, n);
        (0..n).filter(|slot| g.holds_only_parity(raidus_units::Slot(*slot))).collect::<Vec<u16>>()
    };
    assert_eq!(only_parity(Level::Raid4, 0, 4), [3]);
    assert_eq!(only_parity(Level::Raid5, 4, 4), [0]);
    assert_eq!(only_parity(Level::Raid5, 5, 4), [3]);
    assert_eq!(only_parity(Level::Raid6, 4, 5), [0, 1]);
    assert_eq!(only_parity(Level::Raid6, 5, 5), [3, 4]);
    assert_eq!(only_parity(Level::Raid6, 16, 5), [4]);
    assert_eq!(only_parity(Level::Raid6, 20, 5), [0, 4]);
    for layout in [0, 1, 2, 3, 8, 9, 10] {
        assert!(only_parity(Level::Raid6, layout, 5).is_empty(), "layout {layout}");
    }
}

#[test]
fn enough_members() {
    let enough = |g: &Geometry, missing: &[u16]| g.enough(&|slot| !missing.contains(&slot.0));
    let raid1 = geometry(Level::Raid1, 0, 3, 4);
    assert!(enough(&raid1, &[0, 2]) && !enough(&raid1, &[0, 1, 2]));
    let raid5 = geometry(Level::Raid5, 2, 4, 4);
    assert!(enough(&raid5, &[1]) && !enough(&raid5, &[1, 2]));
    let raid6 = geometry(Level::Raid6, 2, 4, 4);
    assert!(enough(&raid6, &[1, 2]) && !enough(&raid6, &[0, 1, 2]));
    // Pairs 0+1 and 2+3.
    let near = geometry(Level::Raid10, 0x102, 4, 4);
    assert!(enough(&near, &[0, 2]) && enough(&near, &[1, 2]) && !enough(&near, &[2, 3]));
    // Over an odd number the pairs are 0+1, 2+0, 1+2.
    let odd = geometry(Level::Raid10, 0x102, 3, 4);
    assert!(enough(&odd, &[1]) && !enough(&odd, &[0, 1]) && !enough(&odd, &[0, 2]));
    // Each slot and the next.
    let far = geometry(Level::Raid10, 0x201, 4, 4);
    assert!(enough(&far, &[0, 2]) && !enough(&far, &[1, 2]) && !enough(&far, &[3, 0]));
    // Sets of two: 0+1 and 2+3, so 1 and 2 share nothing.
    let sets = geometry(Level::Raid10, 0x4_0201, 4, 4);
    assert!(enough(&sets, &[1, 2]) && !enough(&sets, &[0, 1]));
}
