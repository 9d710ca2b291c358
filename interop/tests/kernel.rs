//! Both ways: arrays the kernel made are read and written by raidus and judged by the kernel, which then writes to them;
//! arrays raidus made are judged and written by the kernel; and raidus reads what the kernel left.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use interop::{Exhibit, New, Raidus, Rng, by_boots, in_parallel, judge, new_arrays, scratch, sum};
use raidus_assembly::Options;
use raidus_golden::{Case, cases};
use raidus_units::Level;

/// Some writes by the kernel, to be read by raidus. Closing the array writes what is cached.
const KERNEL_WRITES: &str = r#"
  read -r size < /sys/block/$md/size
  perl -e '
    open(my $random, "<:raw", "/dev/urandom") or die "urandom: $!";
    open(my $array, "+<:raw", shift) or die "array: $!";
    for (@ARGV) {
      sysread($random, my $bytes, 9 * 512) == 9 * 512 or die "urandom: $!";
      defined sysseek($array, $_ * 512, 0) && syswrite($array, $bytes) == 9 * 512 or die "write: $!";
    }
    close($array) or die "close: $!";
  ' /dev/$md 0 7 $((size/3)) $((size/2+1)) $((size-9)) || report $md.write failed
"#;

/// Whether every array is tried, or a sample that has each kind once.
fn full() -> bool {
    std::env::var_os("RAIDUS_INTEROP_FULL").is_some()
}

fn exhibit(name: String, images: Vec<PathBuf>, sum: String) -> Exhibit {
    Exhibit { name, images, sum, clean: true, then: KERNEL_WRITES.into(), assemble: String::new() }
}

/// Makes an exhibit of each item, as many at a time as go into one boot. The kernel judges them and writes to them; raidus then
/// reads the same as the kernel.
fn make_judge_and_read_back<T: Sync>(
    items: Vec<T>,
    disks: impl Fn(&T) -> usize,
    make: impl Fn(u64, &T, &Path) -> Result<Exhibit> + Sync,
) {
    assert!(!items.is_empty());
    let (count, start) = (items.len(), std::time::Instant::now());
    let numbered = (0..).zip(items).collect();
    let objections: Vec<String> = in_parallel(&by_boots(numbered, |(_, item)| disks(item)), |_, group| {
        let dir = scratch();
        let make_one = |(n, item): &(u64, T)| make(*n, item, &dir.path().join(n.to_string()));
        let exhibits = group.iter().map(make_one).collect::<Result<Vec<_>>>()?;
        judge_and_read_back(&exhibits)
    })
    .into_iter()
    .filter_map(|result| Some(format!("{:#}", result.err()?)))
    .collect();
    assert!(objections.is_empty(), "{}", objections.join("\n"));
    println!("{count} arrays in {:.0} s", start.elapsed().as_secs_f64());
}

fn judge_and_read_back(exhibits: &[Exhibit]) -> Result<()> {
    for (exhibit, judgement) in exhibits.iter().zip(&judge(exhibits)?) {
        let array = Raidus::look(&exhibit.images).with_context(|| exhibit.name.clone())?;
        ensure!(array.sum() == judgement.sum_after, "{}: raidus reads something else than the kernel", exhibit.name);
        ensure!(exhibit.sum != judgement.sum_after, "{}: the kernel wrote nothing", exhibit.name);
    }
    Ok(())
}

fn writable_case(case: &Case) -> bool {
    let m = &case.manifest;
    let foreign = ["journal-", "ppl-", "reshape-", "dirty-degraded", "resync-", "recovery-", "replace", "badblocks"];
    let plain = !foreign.iter().any(|f| case.name.starts_with(f)) && m.reshape_position.is_none();
    plain && m.after_crash.is_none() && !m.scenario.starts_with("reshape") && m.scenario != "dust"
}

/// Arrays the kernel left in the middle of something: dirty, resyncing, recovering, being replaced, with bad blocks.
fn unfinished_case(case: &Case) -> bool {
    let kinds = ["resync-", "recovery-", "replace", "badblocks", "dirty-"];
    let whole = case.manifest.pattern.is_some() && !case.name.contains("dirty-degraded");
    // Both copies of a block on these are bad: no digest of the whole.
    let readable = !case.name.contains("dust");
    kinds.iter().any(|k| case.name.starts_with(k)) && whole && readable && case.manifest.level != "raid0"
}

/// A sample with every layout of every level in every state, and every level with every metadata version, with and without
/// bitmap; chunk sizes and member counts vary over it.
fn sampled(case: &Case) -> bool {
    let earlier = || cases().iter().take_while(|c| c.name != case.name).filter(|c| writable_case(c));
    let shape = |c: &Case| (c.manifest.level.clone(), c.manifest.layout, c.manifest.scenario.clone());
    let dress =
        |c: &Case| (c.manifest.level.clone(), c.manifest.metadata.clone(), c.manifest.bitmap.location == "none");
    !earlier().any(|c| shape(c) == shape(case)) || !earlier().any(|c| dress(c) == dress(case))
}

#[test]
fn arrays_made_by_the_kernel_are_written_by_raidus() {
    let chosen = cases().iter().filter(|c| writable_case(c)).filter(|c| full() || sampled(c)).collect();
    make_judge_and_read_back(chosen, |case: &&Case| case.disks(), |n, case, dir| scribble_on(case, dir, n));
}

/// raidus writes to them without finishing what was begun; the kernel finishes it, and all is consistent.
#[test]
fn what_the_kernel_left_unfinished_is_written_by_raidus() {
    let unfinished = cases().iter().filter(|c| unfinished_case(c)).enumerate();
    let chosen = unfinished.filter(|(n, _)| full() || n % 2 == 0).collect();
    make_judge_and_read_back(
        chosen,
        |(_, case)| case.disks(),
        |_, (n, case), dir| Ok(Exhibit { clean: false, ..scribble_on(case, dir, *n as u64)? }),
    );
}

fn scribble_on(case: &Case, dir: &Path, seed: u64) -> Result<Exhibit> {
    scribbled(case, dir, seed).with_context(|| case.name.clone())
}

fn scribbled(case: &Case, dir: &Path, seed: u64) -> Result<Exhibit> {
    std::fs::create_dir_all(dir)?;
    let all = case.write_images(dir)?;
    let members = all.iter().zip(&case.manifest.members).filter(|(_, m)| m.is_in_array());
    let images: Vec<PathBuf> = members.map(|(path, _)| path.clone()).collect();
    let threads = 1 + (seed % 3) as u16;
    let mut array = Raidus::open(&images, Options { run: true, ..Options::default() }, threads)?;
    array.scribble(&mut Rng(seed), 60)?;
    array.verify()?;
    let sum = array.sum();
    array.stop()?;
    Ok(exhibit(case.name.clone(), images, sum))
}

#[test]
fn arrays_made_by_raidus_are_accepted_by_the_kernel() {
    make_judge_and_read_back(new_arrays(), New::disks, |n, new, dir| {
        made_and_scribbled(new, dir, n).with_context(|| new.name())
    });
}

fn made_and_scribbled(new: &New, dir: &Path, seed: u64) -> Result<Exhibit> {
    let mut rng = Rng(seed + 1000);
    let images = new.create(dir, &mut rng)?;
    let mut array = Raidus::open(&images, Options { run: true, ..Options::default() }, 1 + (seed % 2) as u16)?;
    array.scribble(&mut rng, 60)?;
    array.verify()?;
    let sum = array.sum();
    array.stop()?;
    // What has yet to be synced does not say clean.
    Ok(Exhibit { clean: new.assume_clean, ..exhibit(new.name(), images, sum) })
}

/// raidus is killed in the middle of writing: the kernel assembles what is left, resyncs it, and finds it consistent; what
/// was flushed is there.
#[test]
fn arrays_that_raidus_left_dirty_are_resynced_by_the_kernel() {
    let whole = |n: &New| n.level.is_redundant() && n.assume_clean && n.missing == 0;
    let whole = new_arrays().into_iter().filter(whole).enumerate();
    let chosen = whole.filter(|(n, _)| full() || n % 3 == 0).map(|(_, new)| new).collect();
    make_judge_and_read_back(chosen, New::disks, |n, new, dir| left_dirty(new, dir, n).with_context(|| new.name()));
}

fn left_dirty(new: &New, dir: &Path, seed: u64) -> Result<Exhibit> {
    let mut rng = Rng(seed + 5);
    let images = new.create(dir, &mut rng)?;
    let mut array = Raidus::open(&images, Options::default(), 1)?;
    array.scribble(&mut rng, 40)?;
    let sum = array.sum();
    array.crash();
    Ok(Exhibit { clean: false, ..exhibit(new.name(), images, sum) })
}

/// A member that missed writes of raidus is not taken for current by the kernel.
#[test]
fn a_member_that_missed_writes_is_stale_for_the_kernel() {
    let make = |_, (level, n): &(Level, u16), dir: &Path| -> Result<Exhibit> {
        let new = New { level: *level, n: *n, ..new_arrays()[1] };
        let mut rng = Rng(u64::from(*n));
        let images = new.create(dir, &mut rng)?;
        let mut array = Raidus::open(&images[1..], Options { run: true, ..Options::default() }, 1)?;
        array.scribble(&mut rng, 30)?;
        let sum = array.sum();
        array.stop()?;
        ensure!(Raidus::look(&images)?.sum() == sum, "raidus itself took the stale member");
        Ok(Exhibit {
            clean: false,
            then: format!("cat /sys/block/$md/md/degraded; {KERNEL_WRITES}"),
            ..exhibit(new.name(), images, sum)
        })
    };
    let shapes = vec![(Level::Raid1, 2), (Level::Raid5, 4), (Level::Raid6, 5)];
    make_judge_and_read_back(shapes, |(_, n)| usize::from(*n), make);
}

/// A file system made on one side and filled on the other is clean on both.
#[test]
fn ext4_made_by_raidus_and_filled_by_the_kernel() {
    let dir = scratch();
    let made = (|| -> Result<()> {
        let new = New { level: Level::Raid6, n: 5, ..new_arrays()[1] };
        let images = new.create(dir.path(), &mut Rng(3))?;
        // raidus's side: a file system made on a file of the array's size, put through the array.
        let array = Raidus::open(&images, Options::default(), 2)?;
        let file = dir.path().join("fs");
        std::fs::write(&file, &array.content)?;
        run("mkfs.ext4", &["-q", "-F", file.to_str().context("path")?])?;
        let content = std::fs::read(&file)?;
        for (n, piece) in content.chunks(300 << 10).enumerate() {
            array.handle().client().write_at(n as u64 * (300 << 10), piece, false)?;
        }
        array.stop()?;
        let then = "fsck.ext4 -fn /dev/$md || report fsck failed; mount /dev/$md /mnt && \
                    cp -r /usr/share/doc/e2fsprogs /etc/init.d /mnt/; umount /mnt";
        let exhibit = Exhibit { then: then.into(), ..exhibit("ext4".into(), images, sum(&content)) };
        let judgements = judge(std::slice::from_ref(&exhibit))?;
        let array = Raidus::look(&exhibit.images)?;
        ensure!(array.sum() == judgements[0].sum_after, "raidus reads something else");
        ensure!(array.content != content, "the kernel wrote no files");
        std::fs::write(&file, &array.content)?;
        run("fsck.ext4", &["-fn", file.to_str().context("path")?])
    })();
    made.unwrap_or_else(|e| panic!("{e:#}"));
}

#[test]
fn xfs_made_and_filled_by_the_kernel() {
    let dir = scratch();
    let made = (|| -> Result<()> {
        // As small as mkfs.xfs allows.
        let new = New { level: Level::Raid5, n: 4, mib: 110, ..new_arrays()[1] };
        let images = new.create(dir.path(), &mut Rng(4))?;
        let sum = Raidus::look(&images)?.sum();
        let then = "mkfs.xfs -q -f /dev/$md && mount /dev/$md /mnt && cp -r /usr/share/doc/[a-d]* /etc/init.d /mnt/; umount /mnt";
        let exhibit = Exhibit { then: then.into(), ..exhibit("xfs".into(), images, sum) };
        let judgements = judge(std::slice::from_ref(&exhibit))?;
        // A member less makes no difference.
        let array = Raidus::look(&exhibit.images[1..])?;
        ensure!(array.sum() == judgements[0].sum_after, "raidus reads something else");
        let file = dir.path().join("fs");
        std::fs::write(&file, &array.content)?;
        ensure!(array.content.starts_with(b"XFSB"), "the kernel made no file system");
        run("xfs_repair", &["-n", file.to_str().context("path")?])
    })();
    made.unwrap_or_else(|e| panic!("{e:#}"));
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let out = std::process::Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("cannot run {program}: install e2fsprogs and xfsprogs"))?;
    ensure!(out.status.success(), "{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&out.stdout));
    Ok(())
}
