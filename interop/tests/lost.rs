//! Arrays that raidus wrote without as many members as they can do without, then given to the kernel: it reads the same, and rebuilds the lost
//! members.

use std::path::Path;

use anyhow::{Context, Result};
use interop::{Exhibit, New, Raidus, Rng, in_parallel, judge, new_arrays, scratch};
use raidus_assembly::Options;
use raidus_units::Level;

/// A shape, and the members that are lost.
const LOST: [(Level, u32, u16, &[usize]); 10] = [
    (Level::Raid10, 0x102, 4, &[0, 2]),
    (Level::Raid10, 0x102, 5, &[1, 3]),
    (Level::Raid10, 0x103, 4, &[0, 1]),
    (Level::Raid10, 0x103, 6, &[3, 4]),
    (Level::Raid10, 0x201, 6, &[1, 3]),
    (Level::Raid10, 0x10201, 5, &[0, 3]),
    (Level::Raid6, 2, 5, &[1, 4]),
    (Level::Raid6, 8, 4, &[0, 3]),
    (Level::Raid6, 10, 5, &[2, 3]),
    (Level::Raid6, 18, 5, &[0, 4]),
];

#[test]
fn the_kernel_rebuilds_what_raidus_did_without() {
    let dir = scratch();
    let exhibits = in_parallel(&LOST, |n, (level, layout, slots, lost)| {
        let new = New { level: *level, layout: Some(*layout), n: *slots, bitmap: n % 2 == 1, ..new_arrays()[1] };
        write_without(&dir.path().join(n.to_string()), &new, lost, n as u64).with_context(|| new.name())
    });
    let exhibits = exhibits.into_iter().collect::<Result<Vec<_>>>().unwrap_or_else(|e| panic!("{e:#}"));
    for (judgement, (.., lost)) in judge(&exhibits).unwrap_or_else(|e| panic!("{e:#}")).iter().zip(LOST) {
        assert_eq!(judgement.degraded, lost.len().to_string(), "{}", judgement.name);
    }
    for exhibit in &exhibits {
        let array = Raidus::look(&exhibit.images).unwrap_or_else(|e| panic!("{}: {e:#}", exhibit.name));
        assert_eq!(array.sum(), exhibit.sum, "{}", exhibit.name);
    }
}

fn write_without(dir: &Path, new: &New, lost: &[usize], seed: u64) -> Result<Exhibit> {
    let mut rng = Rng(seed);
    let images = new.create(dir, &mut rng)?;
    let mut array = Raidus::open(&images, Options::default(), 2)?;
    array.scribble(&mut rng, 40)?;
    array.stop()?;
    let left: Vec<_> = (0..).zip(&images).filter(|(n, _)| !lost.contains(n)).map(|(_, image)| image.clone()).collect();
    let mut array = Raidus::open(&left, Options { run: true, ..Options::default() }, 2)?;
    array.scribble(&mut rng, 40)?;
    array.verify()?;
    let sum = array.sum();
    array.stop()?;
    // With a bitmap the kernel copies what it marks, otherwise everything.
    let back: Vec<String> = lost.iter().map(|n| format!("mdadm /dev/$md --add ${{disks[{n}]}} || exit 9")).collect();
    let then = format!(
        r#"
  {}
  settle $md; nap; settle $md
  [ "$(cat /sys/block/$md/md/degraded)" = 0 ] || exit 9
  check $md
"#,
        back.join("\n")
    );
    // The superblocks of those who were lost stay as they were.
    Ok(Exhibit { name: new.name(), images, sum, clean: false, then, assemble: String::new() })
}
