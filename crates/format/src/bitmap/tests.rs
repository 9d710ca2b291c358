use super::*;
use raidus_units::Sector;

fn new_bitmap() -> NewBitmap {
    NewBitmap {
        uuid: MdUuid([7; 16]),
        events: 17,
        sync_size: Sectors(79872),
        chunk: 1 << 20,
        daemon_sleep: 5,
        write_behind: 0,
    }
}

fn context() -> LoadContext {
    LoadContext {
        uuid: MdUuid([7; 16]),
        events: 17,
        sync_size: Sectors(79872),
        resync: Some(Sector::ZERO),
        is_whole: true,
        host: None,
    }
}

/// A bitmap file with chunks 5 and 38 marked.
fn file() -> Vec<u8> {
    let superblock = BitmapSuper::create(&new_bitmap()).unwrap();
    let mut bits = BitArray::zeros(superblock.bits());
    assert!(bits.set(5) && bits.set(38) && !bits.set(39));
    bits.encode(&superblock)
}

#[test]
fn sizes() {
    assert_eq!(bits(Sectors(79872), 1 << 20), 39);
    assert_eq!(file_bytes(39), 261);
    assert_eq!(area(39), Sectors(8));
    assert_eq!(area((4096 - 256) * 8), Sectors(8));
    assert_eq!(area((4096 - 256) * 8 + 1), Sectors(16));
    assert_eq!(BitArray::page_of((4096 - 256) * 8 - 1), 0);
    assert_eq!(BitArray::page_of((4096 - 256) * 8), 1);
    assert_eq!(bits(Sectors(1), 0), 0);
}

#[test]
fn the_smallest_chunk_fits_and_half_of_it_does_not() {
    for size in [100, 16256, 1 << 21, 1 << 33, 20 << 31] {
        for room in [8, 128, 256] {
            let chunk = smallest_chunk(Sectors(size), Sectors(room), CHUNK_MIN_CHOSEN).unwrap();
            assert!(area(bits(Sectors(size), chunk)) <= Sectors(room));
            let half = chunk / 2;
            let fits = size / (half / 512) < (room * 512 - 256) * 8;
            assert!(half < CHUNK_MIN_CHOSEN || !fits, "{size} {room}");
        }
    }
    assert_eq!(smallest_chunk(Sectors(1 << 50), Sectors(8), CHUNK_MIN_CHOSEN), None);
    assert_eq!(smallest_chunk(Sectors(100), Sectors(0), CHUNK_MIN_CHOSEN), None);
}

#[test]
fn bits_past_the_end_do_not_count() {
    let ones = BitArray::ones(39);
    assert_eq!(ones.count_ones(), 39);
    assert_eq!(ones.next_one(38), Some(38));
    assert_eq!(ones.next_one(39), None);
    assert!(!ones.get(39));
}

#[test]
fn a_dirty_array_resyncs_what_is_marked() {
    let loaded = LoadedBitmap::load(&file(), &context()).unwrap();
    assert_eq!(loaded.stale, None);
    assert_eq!(loaded.bits.iter_ones().collect::<Vec<_>>(), [5, 38]);
    let needed: Vec<_> = (0..40).filter(|i| loaded.is_needed(*i)).collect();
    assert_eq!(needed, [5, 38]);
}

#[test]
fn a_clean_array_keeps_its_bits_but_resyncs_nothing() {
    let clean = LoadContext { resync: None, ..context() };
    let loaded = LoadedBitmap::load(&file(), &clean).unwrap();
    assert_eq!(loaded.bits.count_ones(), 2);
    assert!((0..40).all(|i| !loaded.is_needed(i)));
}

#[test]
fn one_event_behind_is_stale_and_one_ahead_is_not() {
    let behind = LoadedBitmap::load(&file(), &LoadContext { events: 18, ..context() }).unwrap();
    assert_eq!(behind.stale, Some(Stale::Events { bitmap: 17, array: 18 }));
    assert_eq!(behind.bits.count_ones(), 39);
    assert_eq!(behind.superblock.events_cleared(), 18);
    let ahead = LoadedBitmap::load(&file(), &LoadContext { events: 16, ..context() }).unwrap();
    assert_eq!(ahead.stale, None);
}

#[test]
fn a_degraded_array_keeps_every_bit_for_the_member_that_returns() {
    let degraded = LoadContext { resync: None, is_whole: false, events: 16, ..context() };
    let loaded = LoadedBitmap::load(&file(), &degraded).unwrap();
    assert!(loaded.is_needed(5) && !loaded.is_needed(6));
}

#[test]
fn what_does_not_fit_the_array_is_refused_or_distrusted() {
    let other = LoadContext { uuid: MdUuid([8; 16]), ..context() };
    assert!(matches!(LoadedBitmap::load(&file(), &other), Err(BitmapError::WrongArray { .. })));
    let larger = LoadContext { sync_size: Sectors(100_000), ..context() };
    assert!(matches!(LoadedBitmap::load(&file(), &larger).unwrap().stale, Some(Stale::Size { .. })));
    let mut marked = file();
    marked[48] |= 2;
    let loaded = LoadedBitmap::load(&marked, &context()).unwrap();
    assert_eq!((loaded.stale, loaded.superblock.is_stale()), (Some(Stale::Marked), false));
    assert!(matches!(LoadedBitmap::load(&file()[..260], &context()), Err(BitmapError::Truncated { .. })));
    let mut lockless = file();
    lockless[4] = 6;
    assert_eq!(BitmapSuper::parse(&lockless).unwrap().version(), BitmapVersion::Lockless);
    assert_eq!(LoadedBitmap::load(&lockless, &context()), Err(BitmapError::UnsupportedVersion(6)));
    let mut odd_chunk = file();
    odd_chunk[52] = 1;
    assert!(matches!(BitmapSuper::parse(&odd_chunk), Err(BitmapError::BadChunk(_))));
}

#[test]
fn pages_put_together_are_the_area() {
    let new = NewBitmap { chunk: 4096, sync_size: Sectors(1 << 20), ..new_bitmap() };
    let superblock = BitmapSuper::create(&new).unwrap();
    let bits = BitArray::ones(superblock.bits());
    assert!(bits.pages() > 1);
    let pages: Vec<u8> = (0..bits.pages()).flat_map(|p| bits.page(&superblock, p)).collect();
    assert!(pages == bits.encode(&superblock));
    assert!(bits.page(&superblock, bits.pages()).is_empty());
    assert!(bits.page(&superblock, u64::MAX).is_empty());
}

#[test]
fn bits_in_the_order_of_an_unknown_host_are_not_used() {
    let mut mine = file();
    mine[4] = 3;
    let mut flagged = file();
    flagged[49] = 0x80;
    for file in [mine, flagged] {
        for host in [None, Some(ByteOrder::Big)] {
            let loaded = LoadedBitmap::load(&file, &LoadContext { host, ..context() }).unwrap();
            assert_eq!(loaded.stale, Some(Stale::ByteOrder));
            assert_eq!(loaded.bits.count_ones(), 39);
            // What is written from now on is in the usual order, and says so.
            assert_eq!(loaded.superblock.version(), BitmapVersion::Normal);
            assert!(!loaded.superblock.is_host_endian() && loaded.superblock.header().version.get() == 4);
        }
        let little = LoadContext { host: Some(ByteOrder::Little), ..context() };
        let loaded = LoadedBitmap::load(&file, &little).unwrap();
        assert_eq!((loaded.stale, loaded.bits.count_ones()), (None, 2));
        assert!(loaded.superblock.is_host_endian());
    }
}
