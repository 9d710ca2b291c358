//! The kernel is killed in the middle of writes, or of a resync or recovery; raidus takes over. What was acknowledged is there, what has to be
//! synced is synced, from where the kernel left it, and the kernel finds the array in order afterwards.
//!
//! Writers go around the page cache, several at once in the same stripes. How many of their writes were acknowledged is on record
//! outside the array.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use interop::{Exhibit, Found, Guest, Ledger, Raidus, Rng, Writer, in_parallel, judge, scratch, slow, writers};
use raidus_assembly::Options;
use raidus_engine::SyncAction;
use raidus_runtime::members::{MemberDevice, OpenMode};
use raidus_runtime::probe_device;

/// The writers' program.
const PROGRAM: &str = include_str!("../src/writers.pl");
const MIB: u64 = 8;

/// Each member writes that much slower than the one before it, so that stripes are torn when the kernel is killed.
const DELAY_MS: u64 = 8;

/// What md writes at once on parity levels, in sectors.
const PAGE: u64 = 8;

/// An array made by the kernel.
#[derive(Clone, Copy, Debug)]
struct Made {
    /// For `mdadm --create`.
    words: &'static str,
    slots: usize,
    /// Slots without a member, from the last.
    missing: usize,
    life: Life,
}

/// What happens to an array before the kernel is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// Nothing but writes.
    Written,
    /// Half of the first resync.
    Resynced,
    /// A member fails, and half of another one is rebuilt.
    Recovered,
}

const fn made(words: &'static str, slots: usize, life: Life) -> Made {
    Made { words, slots, missing: 0, life }
}

/// Arrays for one boot each.
const WRITTEN: [&[Made]; 2] = [
    &[
        made("-l1 -e1.2", 2, Life::Written),
        made("-l1 -e1.0 --bitmap=internal --bitmap-chunk=64K", 3, Life::Written),
        made("-l5 -e0.90 -c16", 3, Life::Written),
        made("-l5 -e1.2 -c4 --bitmap=internal --bitmap-chunk=64K", 4, Life::Written),
        made("-l6 -e1.1 -c16", 4, Life::Written),
    ],
    &[
        made("-l6 -e0.90 -c64 --bitmap=internal --bitmap-chunk=64K", 4, Life::Written),
        made("-l10 -e1.2 -c16 -pn2", 4, Life::Written),
        made("-l10 -e1.0 -c64 -pf2 --bitmap=internal --bitmap-chunk=64K", 3, Life::Written),
        made("-l5 -e1.2 -c16 --consistency-policy=ppl", 3, Life::Written),
        Made { missing: 1, ..made("-l5 -e1.0 -c64 --consistency-policy=ppl", 3, Life::Written) },
    ],
];

/// The kernel is killed after so many writes were acknowledged.
const MOMENTS: [usize; 3] = [150, 700, 2000];

#[test]
fn the_kernel_is_killed_while_it_writes() {
    let boots: Vec<(&[Made], usize)> =
        WRITTEN.iter().flat_map(|arrays| MOMENTS.map(|moment| (*arrays, moment))).collect();
    let taken = take_over(&boots, true);
    let under_way: usize = taken.iter().map(|t| t.found.under_way).sum();
    assert!(under_way > 0, "the kernel was never in the middle of a write");
    // Units may be torn, but not all of them.
    let spared = |t: &&Taken| t.name.contains("ppl") && t.synced_from.is_empty();
    assert!(taken.iter().filter(spared).count() > 0, "no partial parity log spared a resync");
}

/// Clean arrays: their superblocks say how far a resync was.
const HALF_SYNCED: &[Made] = &[
    made("-l1 -e1.2", 2, Life::Resynced),
    made("-l6 -e1.0 -c64", 4, Life::Resynced),
    made("-l5 -e1.2 -c16", 3, Life::Recovered),
    made("-l6 -e1.1 -c16", 4, Life::Recovered),
];

/// Arrays that are being written: dirty ones.
const HALF_SYNCED_DIRTY: &[Made] = &[
    made("-l1 -e1.2", 2, Life::Recovered),
    made("-l10 -e1.0 -c16", 4, Life::Recovered),
    made("-l5 -e1.2 -c64 --bitmap=internal --bitmap-chunk=64K", 3, Life::Resynced),
    made("-l5 -e1.2 -c16 --consistency-policy=ppl", 3, Life::Recovered),
];

#[test]
fn the_kernel_is_killed_while_it_resyncs() {
    for taken in take_over(&[(HALF_SYNCED, 300)], false) {
        let checkpoint = taken.checkpoint.unwrap_or_else(|| panic!("{}: the kernel left no checkpoint", taken.name));
        let from = taken.synced_from.iter().map(|(_, from)| *from).min();
        assert!(
            from >= Some(checkpoint),
            "{}: {checkpoint} sectors were done, and raidus went on at {from:?}",
            taken.name
        );
    }
}

#[test]
fn the_kernel_is_killed_while_it_resyncs_and_writes() {
    for taken in take_over(&[(HALF_SYNCED_DIRTY, 300)], true) {
        // A second copy may differ from the first also where it was done already: it is rebuilt anew.
        if taken.name.starts_with("-l1 ") {
            continue;
        }
        let recovered = taken.synced_from.iter().find(|(action, _)| *action == SyncAction::Recover);
        if taken.life == Life::Recovered {
            let checkpoint =
                taken.checkpoint.unwrap_or_else(|| panic!("{}: the kernel left no checkpoint", taken.name));
            let from = recovered.map(|(_, from)| *from);
            assert!(
                from >= Some(checkpoint),
                "{}: {checkpoint} sectors were done, and raidus went on at {from:?}",
                taken.name
            );
        } else {
            assert!(!taken.synced_from.is_empty(), "{}: raidus synced nothing", taken.name);
        }
    }
}

/// What raidus made of an array.
#[derive(Debug)]
struct Taken {
    name: String,
    life: Life,
    found: Found,
    /// Up to where the superblocks say that it was synced, if that is neither nowhere nor everywhere.
    checkpoint: Option<u64>,
    /// What raidus synced, and where it began.
    synced_from: Vec<(SyncAction, u64)>,
}

/// Has the kernel killed in each boot, `busy` or idle, and raidus go on; the kernel judges the result.
fn take_over(boots: &[(&[Made], usize)], busy: bool) -> Vec<Taken> {
    let dir = scratch();
    let taken = in_parallel(boots, |n, (arrays, moment)| -> Result<Vec<(Taken, Exhibit)>> {
        let boot = Boot::new(&dir.path().join(n.to_string()), arrays, n as u64)?;
        boot.kill(*moment, busy)?;
        boot.arrays.iter().map(|array| boot.go_on(array, busy).with_context(|| array.name())).collect()
    });
    let taken = taken.into_iter().collect::<Result<Vec<_>>>().unwrap_or_else(|e| panic!("{e:#}"));
    let (taken, exhibits): (Vec<Taken>, Vec<Exhibit>) = taken.into_iter().flatten().unzip();
    for taken in &taken {
        println!("{taken:?}");
    }
    judge(&exhibits).unwrap_or_else(|e| panic!("{e:#}"));
    taken
}

/// Arrays in one guest.
struct Boot {
    arrays: Vec<Array>,
    share: PathBuf,
}

struct Array {
    made: Made,
    images: Vec<PathBuf>,
    /// A device that is to join.
    new: Option<PathBuf>,
    writers: Vec<Writer>,
    /// Of its first writer, among all of the boot.
    first_writer: usize,
}

impl Array {
    fn new(dir: &Path, made: Made, seed: u64) -> Result<Array> {
        std::fs::create_dir_all(dir)?;
        let image = |name: String, garbage: bool| -> Result<PathBuf> {
            let path = dir.join(name);
            let mut bytes = vec![0; (MIB << 20) as usize];
            if garbage {
                Rng(seed).fill(&mut bytes);
            }
            std::fs::write(&path, bytes)?;
            Ok(path)
        };
        let images = (0..made.slots - made.missing).map(|n| image(format!("disk{n}"), made.life == Life::Resynced));
        let images = images.collect::<Result<_>>()?;
        let new = (made.life == Life::Recovered).then(|| image("new".into(), true)).transpose()?;
        let writers = writers(seed * 8, 1, 0, seed);
        Ok(Array { made, images, new, writers, first_writer: 0 })
    }

    fn name(&self) -> String {
        format!("{} -n{} missing {} {:?}", self.made.words, self.made.slots, self.made.missing, self.made.life)
    }

    fn disks(&self) -> impl Iterator<Item = &PathBuf> {
        self.images.iter().chain(&self.new)
    }
}

impl Boot {
    fn new(dir: &Path, made: &[Made], seed: u64) -> Result<Boot> {
        let share = dir.join("share");
        std::fs::create_dir_all(&share)?;
        let mut first_writer = 0;
        let array = |(n, made): (u64, &Made)| -> Result<Array> {
            let array = Array::new(&dir.join(n.to_string()), *made, seed * 10 + n)?;
            first_writer += array.writers.len();
            Ok(Array { first_writer: first_writer - array.writers.len(), ..array })
        };
        Ok(Boot { arrays: (0..).zip(made).map(array).collect::<Result<_>>()?, share })
    }

    /// Runs all of it on the kernel until this many writes were acknowledged, does by halves what is to be synced, and kills it. If it is not
    /// `busy`, the writers have ended then.
    fn kill(&self, moment: usize, busy: bool) -> Result<()> {
        let images: Vec<&PathBuf> = self.arrays.iter().flat_map(Array::disks).collect();
        let mut disk = 0;
        let (mut create, mut sync, mut rest, mut words) = (String::new(), String::new(), String::new(), String::new());
        for (n, array) in self.arrays.iter().enumerate() {
            for (k, d) in (disk..disk + array.disks().count()).enumerate() {
                create += &slow(d, MIB, k as u64 * DELAY_MS);
            }
            let mut names = (disk..).map(|d| format!("/dev/mapper/slow{d}"));
            let members: Vec<String> = names.by_ref().take(array.images.len()).collect();
            disk += array.disks().count();
            create += &script_create(n, &array.made, &members);
            sync += &script_sync(n, array.made.life, &members[0], &names.next().unwrap_or_default());
            rest += &format!("until_file /sys/block/md{n}/md/array_state clean\n");
            array.writers.iter().for_each(|w| words += &format!(" /dev/md{n},{}", w.words()));
        }
        let end = u8::from(!busy);
        let script = format!(
            r#"
until_file() {{  # FILE WORD: waits until its first word is that
  local i=0 word=
  while read -r word _ < $1 && [ "$word" != $2 ]; do nap; i=$((i+1)); [ $i -lt 1000 ] || {{ echo "$1: $word"; exit 7; }}; done
}}
modprobe dm-delay || exit 9
cat > /tmp/writers.pl <<'END'
{PROGRAM}
END
echo 100 > /proc/sys/dev/raid/speed_limit_min
echo 100 > /proc/sys/dev/raid/speed_limit_max
: > $SHARE/log
{create}
perl /tmp/writers.pl {moment} {end} $SHARE/log {words} &
i=0
until [ -e /tmp/acknowledged ]; do nap; i=$((i+1)); [ $i -lt 1000 ] || exit 8; done
{sync}
{}
pull-plug
"#,
            if busy { "" } else { &rest }
        );
        let share = self.share.to_str().context("a path that is not UTF-8")?;
        let outcome = Guest::new(&images).option("--share").option(share).run(&script)?;
        ensure!(outcome.status == 137, "the guest was not killed: {}\n{}", outcome.status, outcome.output);
        Ok(())
    }

    /// raidus reads what the kernel left, syncs, and checks it.
    fn go_on(&self, array: &Array, busy: bool) -> Result<(Taken, Exhibit)> {
        let images: Vec<PathBuf> = match array.made.life {
            Life::Recovered => array.disks().skip(1).cloned().collect(),
            _ => array.images.clone(),
        };
        let look = Raidus::look(&images)?;
        let ledger = self.ledger(array, look.content.len(), busy)?;
        // A chunk that nobody holds is what the rest says it is.
        let lost = if array.made.missing > 0 { PAGE } else { 0 };
        ledger.check(&look.content, lost).context("read only")?;
        look.stop()?;
        let checkpoint = checkpoint(&images)?;
        self.lose_one(array, &images, &ledger)?;

        let running = Raidus::open(&images, Options::default(), 2)?;
        let found = ledger.check(&running.content, lost)?;
        running.settle()?;
        running.verify().context("after the sync")?;
        let synced_from: Vec<_> = running.syncs().iter().map(|end| (end.action, end.start.0)).collect();
        running.check()?;
        let sum = running.sum();
        running.stop()?;
        // Without anything to do, raidus leaves superblocks as it found them: the kernel may have said clean to some members only.
        let clean = !synced_from.is_empty();
        let taken = Taken { name: array.name(), life: array.made.life, found, checkpoint, synced_from };
        let (then, assemble) = (String::new(), String::new());
        let exhibit = Exhibit { name: array.name(), images, sum, clean, then, assemble };
        Ok((taken, exhibit))
    }

    /// Where a dirty array may be started without one more member, what was acknowledged is there too.
    fn lose_one(&self, array: &Array, images: &[PathBuf], ledger: &Ledger) -> Result<()> {
        let Made { words, missing, life, .. } = array.made;
        let parity = ["-l5", "-l6"].iter().any(|level| words.contains(level));
        if life != Life::Written || missing > 0 || parity && !words.contains("ppl") {
            return Ok(());
        }
        for lost in images {
            let left: Vec<PathBuf> = images.iter().filter(|image| *image != lost).cloned().collect();
            let look = Raidus::look(&left)?;
            ledger
                .check(&look.content, if parity { PAGE } else { 0 })
                .with_context(|| format!("without {}", lost.display()))?;
            look.stop()?;
        }
        Ok(())
    }

    fn ledger(&self, array: &Array, bytes: usize, busy: bool) -> Result<Ledger> {
        let log = std::fs::read(self.share.join("log"))?;
        let counts: Vec<u64> = log.as_chunks().0.iter().map(|count| u64::from_le_bytes(*count)).collect();
        let mut ledger = Ledger::new(bytes, array.made.life != Life::Resynced);
        for (n, writer) in array.writers.iter().enumerate() {
            ledger.note(*writer, counts.get(array.first_writer + n).copied().unwrap_or(0), busy);
        }
        Ok(ledger)
    }
}

fn script_create(n: usize, made: &Made, members: &[String]) -> String {
    let clean = match made.life {
        Life::Resynced => "--force",
        _ => "--assume-clean",
    };
    let missing = " missing".repeat(made.missing);
    let Made { words, slots, .. } = made;
    format!("mdadm --create /dev/md{n} --run {clean} {words} -n{slots} {}{missing} || exit 9\n", members.join(" "))
}

/// Begins a sync, or finds one that has begun and is slow, and has it go on to the middle of the members.
fn script_sync(n: usize, life: Life, first: &str, new: &str) -> String {
    let begin = match life {
        Life::Written => return String::new(),
        Life::Resynced => String::new(),
        Life::Recovered => format!("mdadm /dev/md{n} --fail {first} --remove {first} --add {new} || exit 9"),
    };
    format!(
        r#"
echo frozen > /sys/block/md{n}/md/sync_action
{begin}
read -r kib < /sys/block/md{n}/md/component_size
half=$((kib / 128 * 128))
echo $half > /sys/block/md{n}/md/sync_max || exit 9
echo 200000 > /sys/block/md{n}/md/sync_speed_max
echo 200000 > /sys/block/md{n}/md/sync_speed_min
echo idle > /sys/block/md{n}/md/sync_action
until_file /sys/block/md{n}/md/sync_completed $half
"#
    )
}

/// How far the superblocks say that something was synced.
fn checkpoint(images: &[PathBuf]) -> Result<Option<u64>> {
    let mut marks = Vec::new();
    for image in images {
        let probe = probe_device(&MemberDevice::open(image, OpenMode::READ_ONLY)?)?;
        let superblock = probe.newest().context("no superblock")?;
        let (array, member) = (superblock.array(), superblock.member());
        let all = array.resync.into_iter().chain(member.recovery.map(|r| r.offset));
        marks.extend(all.map(|mark| mark.0).filter(|mark| *mark > 0 && *mark < array.size.0));
    }
    Ok(marks.into_iter().min())
}
