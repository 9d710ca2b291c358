use super::*;

/// Each case has what its name says.
#[test]
fn lives_have_their_troubles() {
    for case in cases() {
        let life = case.live().unwrap_or_else(|e| panic!("{case}: {e}"));
        let expected = match case.trouble {
            Trouble::None => (0, 0),
            Trouble::Fails => (1, 0),
            Trouble::Rebuilds => (1, 1),
        };
        assert_eq!((life.failures, life.rebuilt), expected, "{case}");
        println!("{case}: {life:?}");
        assert!(life.writes > 50, "{case}: {life:?}");
    }
}

#[test]
fn the_same_cut_leaves_the_same_bytes() {
    let case = cases()[5];
    let cut = |unflushed| case.cut(40, unflushed).expect("a cut");
    for unflushed in [Unflushed::Lost, Unflushed::Kept, Unflushed::Torn] {
        assert_eq!(cut(unflushed).disks, cut(unflushed).disks, "{case}");
    }
    assert_ne!(cut(Unflushed::Lost).disks, cut(Unflushed::Kept).disks);
    assert!(case.cut(1_000_000, Unflushed::Lost).is_err());
}

#[test]
fn the_check_knows_what_was_flushed() {
    let case = cases()[0];
    let aftermath = case.cut(60, Unflushed::Kept).expect("a cut");
    let data_offset = 64 * SECTOR;
    let content = &aftermath.disks[0][data_offset..data_offset + 128 * SECTOR];
    aftermath.check(content).expect("one member of a raid1");
    assert!(aftermath.check(&content[..SECTOR]).is_err());
    let mut moved = content.to_vec();
    moved.rotate_left(SECTOR);
    assert!(aftermath.check(&moved).is_err());
    assert!(aftermath.check(&vec![0; content.len()]).is_err());
}
