//! Every set of members that a level can do without: what was written while all were there is read without them, and what is written
//! without them is read again, by the rest and beside the lost ones once they are back.

mod common;

use common::{Disks, Rng, Shape, shape};
use raidus_assembly::Options;
use raidus_runtime::ArrayHandle;
use raidus_units::{Level, Sectors};

/// A few dozen chunks.
const MEMBER: Sectors = Sectors::from_kib(3 << 10);

/// md's numbers for the layouts of raid6.
const RAID6: [u32; 14] = [0, 1, 2, 3, 4, 5, 8, 9, 10, 16, 17, 18, 19, 20];

/// A layout of raid10.
#[derive(Clone, Copy, Debug)]
struct Raid10 {
    near: usize,
    /// Copies by way of far, or else of offset.
    far: usize,
    offset: bool,
}

const RAID10: [Raid10; 6] = [
    Raid10 { near: 2, far: 1, offset: false },
    Raid10 { near: 3, far: 1, offset: false },
    Raid10 { near: 1, far: 2, offset: false },
    Raid10 { near: 1, far: 3, offset: false },
    Raid10 { near: 1, far: 2, offset: true },
    Raid10 { near: 2, far: 2, offset: false },
];

impl Raid10 {
    fn number(self) -> u32 {
        (self.near | self.far << 8 | usize::from(self.offset) << 16) as u32
    }

    /// Whether each chunk has a copy elsewhere. Copies of chunk `c` are on `near` slots in a row from slot `c * near` on, and on those that
    /// are `near` slots further, `far` times in all.
    fn survives(self, slots: usize, lost: &[usize]) -> bool {
        (0..slots).all(|chunk| {
            let first = chunk * self.near;
            (0..self.far * self.near).any(|copy| !lost.contains(&((first + copy) % slots)))
        })
    }
}

/// Every one and every pair of so many slots.
fn sets(slots: usize) -> Vec<Vec<usize>> {
    let singles = (0..slots).map(|a| vec![a]);
    singles.chain((0..slots).flat_map(|a| (a + 1..slots).map(move |b| vec![a, b]))).collect()
}

#[test]
fn raid10_without_one_or_two_members() {
    let (mut survived, mut refused) = (0, 0);
    for layout in RAID10 {
        for slots in 4..=6 {
            let shape = Shape { layout: Some(layout.number()), ..shape(Level::Raid10, slots) };
            let (can, cannot): (Vec<_>, Vec<_>) =
                sets(shape.disks.into()).into_iter().partition(|lost| layout.survives(slots.into(), lost));
            lose(shape, &can);
            refuse(shape, &cannot);
            survived += can.len();
            refused += cannot.len();
        }
    }
    assert!(survived > 200 && refused > 30, "{survived} survived, {refused} refused");
}

#[test]
fn raid6_without_one_or_two_members() {
    for layout in RAID6 {
        let pairs: Vec<_> = sets(5).into_iter().filter(|lost| lost.len() == 2).collect();
        lose(Shape { layout: Some(layout), ..shape(Level::Raid6, 5) }, &pairs);
    }
    for slots in [4, 6] {
        lose(shape(Level::Raid6, slots), &sets(slots.into()));
    }
}

#[test]
fn raid5_without_a_member() {
    for layout in 0..=5 {
        lose(Shape { layout: Some(layout), bitmap: layout % 2 == 0, ..shape(Level::Raid5, 4) }, &sets(4)[..4]);
    }
    lose(shape(Level::Raid4, 4), &sets(4)[..4]);
}

/// Both ways, for each set.
fn lose(shape: Shape, sets: &[Vec<usize>]) {
    let what = |lost: &[usize]| format!("{} {:?} of {} without {lost:?}", shape.level, shape.layout, shape.disks);
    let mut rng = Rng(u64::from(shape.disks));
    let disks = Disks::create(shape, MEMBER);
    let mut model = fill(&disks.start(&[], 1), &mut rng);
    for lost in sets {
        let array = disks.start(lost, 1);
        assert!(contents(&array) == model, "{}: content of before", what(lost));
        array.stop().unwrap();
    }
    for lost in sets {
        let disks = Disks::create(shape, MEMBER);
        let array = disks.start(&[], 1);
        array.client().write_at(0, &model, false).unwrap();
        array.stop().unwrap();

        let array = disks.start(lost, 1);
        scribble(&array, &mut rng, &mut model);
        assert!(contents(&array) == model, "{}", what(lost));
        array.stop().unwrap();
        // They missed writes, and are left out.
        let array = disks.start(&[], 1);
        assert!(contents(&array) == model, "{}: with the lost ones there", what(lost));
        assert_eq!(array.status().unwrap().degraded, lost.len(), "{}", what(lost));
        array.stop().unwrap();
    }
}

/// An array that has lost all copies of something does not start.
fn refuse(shape: Shape, sets: &[Vec<usize>]) {
    let disks = Disks::create(shape, MEMBER);
    for lost in sets {
        let opened = disks.open(lost, 1, Options { run: true, ..Options::default() });
        assert!(opened.is_err(), "raid10 {:?} of {} starts without {lost:?}", shape.layout, shape.disks);
    }
}

/// Random content everywhere; stops the array.
fn fill(array: &ArrayHandle, rng: &mut Rng) -> Vec<u8> {
    let mut model = vec![0; array.size().bytes() as usize];
    rng.fill(&mut model);
    array.client().write_at(0, &model, false).unwrap();
    array.stop().unwrap();
    model
}

/// Writes from one sector to some chunks, and a long one.
fn scribble(array: &ArrayHandle, rng: &mut Rng, model: &mut [u8]) {
    let sectors = model.len() as u64 / 512;
    for n in 0..24 {
        let at = rng.below(sectors);
        let longest = [1, 16, 300, 2000][n % 4];
        let len = (1 + rng.below(longest)).min(sectors - at);
        let range = (at * 512) as usize..((at + len) * 512) as usize;
        rng.fill(&mut model[range.clone()]);
        array.client().write_at(at * 512, &model[range], false).unwrap();
    }
}

fn contents(array: &ArrayHandle) -> Vec<u8> {
    let mut bytes = vec![0; array.size().bytes() as usize];
    array.client().read_at(0, &mut bytes).unwrap();
    bytes
}
