//! Resync and recovery, both ways: what the kernel left unfinished raidus finishes, and the kernel has nothing left to do; what
//! raidus left unfinished the kernel goes on with.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use interop::{Exhibit, New, Raidus, Rng, in_parallel, judge, new_arrays, scratch};
use raidus_assembly::Options;
use raidus_engine::control::{Addition, Command};
use raidus_engine::{MemberSetup, Tunables};
use raidus_golden::{Case, cases};
use raidus_runtime::members::{MemberDevice, OpenMode};
use raidus_runtime::probe_device;
use raidus_units::Level;

fn full() -> bool {
    std::env::var_os("RAIDUS_INTEROP_FULL").is_some()
}

fn exhibit(name: String, images: Vec<PathBuf>, sum: String) -> Exhibit {
    Exhibit { name, images, sum, clean: false, then: String::new(), assemble: String::new() }
}

fn run_degraded() -> Options {
    Options { run: true, ..Options::default() }
}

/// Arrays that need work: dirty ones, and such in the middle of a resync, a recovery or a replacement, or degraded with a spare.
fn unfinished(case: &Case) -> bool {
    let kinds = ["resync-", "recovery-", "replace", "dirty-", "spare-"];
    let whole = case.manifest.pattern.is_some() && !case.name.contains("dirty-degraded");
    kinds.iter().any(|k| case.name.starts_with(k)) && whole && case.manifest.level != "raid0"
}

#[test]
fn what_the_kernel_left_unfinished_is_finished_by_raidus() {
    let dir = scratch();
    let unfinished = cases().iter().filter(|c| unfinished(c)).enumerate();
    let chosen: Vec<(usize, &Case)> = unfinished.filter(|(n, _)| full() || n % 2 == 0).collect();
    let exhibits = made(&chosen, |_, (n, case)| {
        finish(case, &dir.path().join(&case.name), *n as u64).with_context(|| case.name.clone())
    });
    println!("{} arrays", exhibits.len());
    expect_in_order(&exhibits);
}

/// What is made of each of them.
fn made<T: Sync, R: Send>(items: &[T], make: impl Fn(u64, &T) -> Result<R> + Sync) -> Vec<R> {
    let made = in_parallel(items, |n, item| make(n as u64, item));
    made.into_iter().collect::<Result<_>>().unwrap_or_else(|e| panic!("{e:#}"))
}

/// The kernel finds the content right, no mismatch, everyone in sync, and nothing to do.
fn expect_in_order(exhibits: &[Exhibit]) {
    for judgement in judge(exhibits).unwrap_or_else(|e| panic!("{e:#}")) {
        let found = (judgement.degraded.as_str(), judgement.sync_action.as_str());
        assert_eq!(found, ("0", "idle"), "{}: the kernel still has something to do", judgement.name);
    }
}

fn finish(case: &Case, dir: &Path, seed: u64) -> Result<Exhibit> {
    std::fs::create_dir_all(dir)?;
    let all = case.write_images(dir)?;
    let members = all.iter().zip(&case.manifest.members).filter(|(_, m)| m.is_in_array());
    let images: Vec<PathBuf> = members.map(|(path, _)| path.clone()).collect();
    let mut array = Raidus::open(&images, run_degraded(), 1 + (seed % 3) as u16)?;
    // Clients are busy meanwhile.
    array.scribble(&mut Rng(seed), 30)?;
    array.settle()?;
    array.verify()?;
    let sum = array.sum();
    array.stop()?;
    // What spares say does not follow every change from dirty to clean, here as in md.
    let clean = !case.name.starts_with("spare-");
    Ok(Exhibit { clean, ..exhibit(case.name.clone(), images, sum) })
}

/// New arrays of every kind with something to sync.
fn to_be_synced() -> Vec<New> {
    let lacking = |new: &New| new.level.is_redundant() && !new.assume_clean && new.missing == 0;
    new_arrays().into_iter().filter(lacking).collect()
}

/// raidus brings what it created into sync; nothing is left for the kernel.
#[test]
fn new_arrays_are_synced_by_raidus() {
    let dir = scratch();
    expect_in_order(&made(&to_be_synced(), |n, new| {
        sync(new, &dir.path().join(new.name()), n).with_context(|| new.name())
    }));
}

fn sync(new: &New, dir: &Path, seed: u64) -> Result<Exhibit> {
    let mut rng = Rng(seed + 50);
    let images = new.create(dir, &mut rng)?;
    let mut array = Raidus::open(&images, run_degraded(), 1 + (seed % 3) as u16)?;
    array.scribble(&mut rng, 30)?;
    array.settle()?;
    array.verify()?;
    let sum = array.sum();
    array.stop()?;
    Ok(Exhibit { clean: true, ..exhibit(new.name(), images, sum) })
}

/// A recovery or resync that raidus began and left, in order or by a crash: the kernel goes on where it was.
#[test]
fn what_raidus_left_unfinished_is_finished_by_the_kernel() {
    let dir = scratch();
    let begun = made(&to_be_synced(), |n, new| begin(new, &dir.path().join(new.name()), n).with_context(|| new.name()));
    let checkpoints = begun.iter().filter(|(_, partly)| *partly).count();
    assert!(checkpoints > 4, "only {checkpoints} arrays had got anywhere");
    let exhibits: Vec<Exhibit> = begun.into_iter().map(|(exhibit, _)| exhibit).collect();
    judge(&exhibits).unwrap_or_else(|e| panic!("{e:#}"));
}

/// Leaves an array in the middle of its first sync; also whether its superblocks say how far it was.
fn begin(new: &New, dir: &Path, seed: u64) -> Result<(Exhibit, bool)> {
    let mut rng = Rng(seed + 80);
    let images = new.create(dir, &mut rng)?;
    let tunables = Tunables { shards: 1 + (seed % 2) as u16, sync_speed_max: 3000, ..Tunables::default() };
    let mut array = Raidus::open_with(&images, run_degraded(), tunables)?;
    array.scribble(&mut rng, 20)?;
    let sum = array.sum();
    // Without a bitmap a dirty parity array without one member is lost, which is no matter of syncing.
    let may_crash = new.level != Level::Raid5 || new.bitmap;
    if seed.is_multiple_of(3) && may_crash {
        array.crash();
    } else {
        array.stop()?;
    }
    let mut partly = false;
    for image in &images {
        let device = MemberDevice::open(image, OpenMode::READ_ONLY)?;
        let probe = probe_device(&device)?;
        let sb = probe.newest().context("no superblock")?;
        let end = sb.array().size.0;
        let within = |at: u64| at > 0 && at < end;
        partly |= sb.array().resync.is_some_and(|s| within(s.0));
        partly |= sb.member().recovery.is_some_and(|r| within(r.offset.0));
    }
    Ok((exhibit(new.name(), images, sum), partly))
}

/// A member that was away while raidus wrote comes back under the kernel, which copies what the bitmap says.
#[test]
fn a_member_that_missed_writes_of_raidus_is_re_added_by_the_kernel() {
    let dir = scratch();
    let mut exhibits = Vec::new();
    for (n, new) in with_bitmap().enumerate() {
        let made = (|| -> Result<Exhibit> {
            let mut rng = Rng(n as u64 + 7);
            let images = new.create(&dir.path().join(new.name()), &mut rng)?;
            let array = Raidus::open(&images, Options::default(), 1)?;
            array.stop()?;
            let mut array = Raidus::open(&images[..images.len() - 1], run_degraded(), 1)?;
            array.scribble(&mut rng, 10)?;
            let sum = array.sum();
            array.stop()?;
            // The guest's last disk of this array is the one that was away.
            let then = "mdadm /dev/$md --re-add $last 2>&1 && settle $md; cat /sys/block/$md/md/degraded; \\
                        [ \"$(cat /sys/block/$md/md/degraded)\" = 0 ] || exit 9; check $md";
            Ok(Exhibit { then: then.into(), ..exhibit(new.name(), images, sum) })
        })();
        exhibits.push(made.unwrap_or_else(|e| panic!("{}: {e:#}", new.name())));
    }
    judge(&exhibits).unwrap_or_else(|e| panic!("{e:#}"));
}

fn with_bitmap() -> impl Iterator<Item = New> {
    let base = new_arrays()[1];
    [(Level::Raid1, 2), (Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid10, 4)]
        .into_iter()
        .map(move |(level, n)| New { level, n, bitmap: true, assume_clean: true, ..base })
}

/// A member that was away while the kernel wrote comes back under raidus, which copies what the bitmap says, and no more.
#[test]
fn a_member_that_missed_writes_of_the_kernel_is_re_added_by_raidus() {
    let dir = scratch();
    let mut exhibits = Vec::new();
    let mut images_of = Vec::new();
    for (n, new) in with_bitmap().enumerate() {
        let images = new.create(&dir.path().join(new.name()), &mut Rng(n as u64)).unwrap_or_else(|e| panic!("{e:#}"));
        let sum = Raidus::look(&images).unwrap_or_else(|e| panic!("{e:#}")).sum();
        let then = "mdadm /dev/$md --fail $last --remove $last; \\
                    dd if=/dev/urandom of=/dev/$md bs=4096 seek=100 count=3 conv=notrunc,fsync status=none";
        exhibits.push(Exhibit { then: then.into(), ..exhibit(new.name(), images.clone(), sum) });
        images_of.push(images);
    }
    let judgements = judge(&exhibits).unwrap_or_else(|e| panic!("{e:#}"));
    let mut judged_again = Vec::new();
    for ((new, images), judgement) in with_bitmap().zip(images_of).zip(judgements) {
        let back = take_back(&images).with_context(|| new.name());
        let (sum, written) = back.unwrap_or_else(|e| panic!("{e:#}"));
        assert_eq!(sum, judgement.sum_after, "{}", new.name());
        assert!(written < 256 << 10, "{}: {written} bytes were written to bring three blocks up to date", new.name());
        judged_again.push(Exhibit { clean: true, ..exhibit(new.name(), images, sum) });
    }
    expect_in_order(&judged_again);
}

/// Starts the array without its last member, takes that back, and waits until it is in sync. The digest, and how much was
/// written to members meanwhile.
fn take_back(images: &[PathBuf]) -> Result<(String, u64)> {
    let (last, others) = images.split_last().context("no members")?;
    let array = Raidus::open(others, run_degraded(), 2)?;
    let device = MemberDevice::open(last, OpenMode::READ_WRITE)?;
    let superblock = probe_device(&device)?.newest().context("no superblock")?.clone();
    let facts = superblock.member();
    let setup = MemberSetup { superblock, super_sector: facts.super_offset };
    let addition = Addition { setup, data_offset: facts.data_offset, bad_blocks: Vec::new(), former: true };
    let before = array.handle().tally();
    array.handle().add(device, addition)?;
    array.settle()?;
    std::thread::sleep(std::time::Duration::from_millis(300));
    let written = array.handle().tally().member_write_bytes - before.member_write_bytes;
    let status = array.handle().status().context("ended")?;
    ensure!(status.degraded == 0, "still degraded");
    ensure!(array.handle().command(Command::Fail(raidus_units::MemberId(99))).is_err(), "a member out of nothing");
    let sum = array.sum();
    array.verify()?;
    array.stop()?;
    Ok((sum, written))
}
