//! The program is killed (SIGKILL) while clients write to arrays with partial parity logs. What is left has to be whole without a resync: the
//! kernel and raidus replay the logs, find every acknowledged write, and parity right; so also when a member is lost with the crash.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use interop::program::{self, Daemon};
use interop::{
    Exhibit, Found, Guest, LargeSectors, Ledger, NbdClient, Raidus, Writer, in_parallel, judge, scratch, slow, stamped,
    writers,
};
use raidus_assembly::Options;

/// Size of a member.
const MIB: u64 = 4;
/// In a guest, each member writes that much slower than the one before.
const DELAY_MS: u64 = 15;
const WRITERS: &str = include_str!("../src/writers.pl");
/// Lives of each array; each ends with SIGKILL.
const LIVES: u64 = 3;
/// Numbers of writes in a life begin at its number times this.
const LIFE: u64 = 1 << 32;

#[derive(Clone, Copy, Debug)]
struct Shape {
    slots: usize,
    /// Slots without a member.
    missing: usize,
    words: [&'static str; 2],
    /// The members are disks with sectors of 4096 bytes.
    large: bool,
}

const SHAPES: [Shape; 4] = [
    Shape { slots: 3, missing: 0, words: ["-e1.2", "-c64"], large: false },
    Shape { slots: 4, missing: 0, words: ["-e1.1", "-c4"], large: false },
    Shape { slots: 5, missing: 0, words: ["-e1.0", "-c16"], large: false },
    Shape { slots: 4, missing: 1, words: ["-e1.2", "-c16"], large: false },
];

const LARGE: [Shape; 2] = [
    Shape { slots: 3, missing: 0, words: ["-e1.2", "-c64"], large: true },
    Shape { slots: 4, missing: 1, words: ["-e1.0", "-c16"], large: true },
];

/// What one life left, for the kernel to judge, with all members and without one.
struct Remains {
    exhibits: Vec<Exhibit>,
    /// raidus had nothing to resync.
    whole: bool,
    found: Found,
}

#[test]
fn the_kernel_replays_what_a_killed_program_left() {
    let dir = scratch();
    let remains = live(dir.path(), &SHAPES);
    let exhibits: Vec<Exhibit> = remains.iter().flat_map(|r| r.exhibits.clone()).collect();
    let whole = remains.iter().flat_map(|r| r.exhibits.iter().map(|_| r.whole));
    for (judgement, whole) in judge(&exhibits).unwrap_or_else(|e| panic!("{e:#}")).iter().zip(whole) {
        assert!(
            !whole || judgement.sync_action == "idle",
            "{}: the kernel resyncs, and raidus did not",
            judgement.name
        );
    }
}

#[test]
fn the_kernel_replays_what_a_killed_program_left_on_disks_of_large_sectors() {
    if !LargeSectors::possible() {
        return;
    }
    let dir = scratch();
    let remains = live(dir.path(), &LARGE);
    let exhibits: Vec<(&Exhibit, bool)> =
        remains.iter().flat_map(|r| r.exhibits.iter().map(|exhibit| (exhibit, r.whole))).collect();
    judge_large(&exhibits).unwrap_or_else(|e| panic!("{e:#}"));
}

/// The power goes while the program writes: it runs in the guest, on disks of which each is slower than the one before, so that stripes are
/// torn. Clients are the guest's own block device.
#[test]
fn the_power_goes_while_the_program_writes() {
    let dir = scratch();
    let shapes = [SHAPES[0], SHAPES[1], SHAPES[3]];
    let remains = in_parallel(&shapes, |n, shape| -> Result<Remains> {
        let mut array = Array::new(&dir.path().join(n.to_string()), *shape, 100 + n as u64)?;
        array.live_in_a_guest().with_context(|| format!("{shape:?}"))
    });
    let remains = remains.into_iter().collect::<Result<Vec<_>>>().unwrap_or_else(|e| panic!("{e:#}"));
    for r in &remains {
        println!("{}: {:?}, whole: {}", r.exhibits[0].name, r.found, r.whole);
    }
    let exhibits: Vec<Exhibit> = remains.iter().flat_map(|r| r.exhibits.clone()).collect();
    judge(&exhibits).unwrap_or_else(|e| panic!("{e:#}"));
}

fn live(dir: &Path, shapes: &[Shape]) -> Vec<Remains> {
    let remains = in_parallel(shapes, |n, shape| {
        let lived = Array::new(&dir.join(n.to_string()), *shape, n as u64).and_then(|mut array| array.live());
        lived.with_context(|| format!("{shape:?}"))
    });
    let remains: Vec<Vec<Remains>> = remains.into_iter().collect::<Result<_>>().unwrap_or_else(|e| panic!("{e:#}"));
    let remains: Vec<Remains> = remains.into_iter().flatten().collect();
    for r in &remains {
        println!("{}: {:?}, whole: {}", r.exhibits[0].name, r.found, r.whole);
    }
    assert!(remains.iter().any(|r| r.found.under_way > 0), "the program was never in the middle of a write");
    // A write of a log may have been cut short, but that is rare.
    let whole = remains.iter().filter(|r| r.whole).count();
    assert!(whole * 2 > remains.len(), "raidus resyncs all but {whole} of {}", remains.len());
    remains
}

struct Array {
    dir: PathBuf,
    shape: Shape,
    seed: u64,
    images: Vec<PathBuf>,
    ledger: Option<Ledger>,
}

impl Array {
    fn new(dir: &Path, shape: Shape, seed: u64) -> Result<Array> {
        std::fs::create_dir_all(dir)?;
        let images: Vec<PathBuf> = (0..shape.slots - shape.missing).map(|n| dir.join(format!("disk{n}"))).collect();
        for image in &images {
            std::fs::File::create(image)?.set_len(MIB << 20)?;
        }
        let slots = format!("-n{}", shape.slots);
        let mut words: Vec<PathBuf> = ["create", "--assume-clean", "--consistency-policy=ppl", "-l5", &slots]
            .iter()
            .chain(&shape.words)
            .map(PathBuf::from)
            .collect();
        let members = Members::of(&images, shape.large)?;
        words.extend(members.paths.clone());
        words.extend((0..shape.missing).map(|_| "missing".into()));
        let made = program::run(dir, words)?;
        ensure!(made.status.success(), "raidus create: {}", String::from_utf8_lossy(&made.stderr));
        Ok(Array { dir: dir.to_owned(), shape, seed, images, ledger: None })
    }

    fn live(&mut self) -> Result<Vec<Remains>> {
        (1..=LIVES).map(|life| self.live_once(life).with_context(|| format!("life {life}"))).collect()
    }

    /// Serves the array, has clients write, kills it, and looks at copies of what is left.
    fn live_once(&mut self, life: u64) -> Result<Remains> {
        let members = Members::of(&self.images, self.shape.large)?;
        let words = ["--as=md0", "--threads=2"].map(OsStr::new);
        let daemon = Daemon::serve(&self.dir, words.into_iter().chain(members.paths.iter().map(|m| m.as_os_str())))?;
        let socket = PathBuf::from(daemon.nbd()?.trim_start_matches("unix:"));
        let size = NbdClient::connect(&socket)?.size;
        let block = if self.shape.large { 8 } else { 1 };
        let writers = writers(life * 64, block, life * LIFE, self.seed * LIVES + life);
        let acknowledged = until_killed(daemon, &socket, &writers, 120 << life)?;
        drop(members);

        let mut ledger = self.ledger.take().unwrap_or_else(|| Ledger::new(size as usize, true));
        for (writer, acknowledged) in writers.iter().zip(acknowledged) {
            ledger.note(*writer, acknowledged, true);
        }
        let remains = self.look(&ledger, life)?;
        let members = Members::of(&self.images, self.shape.large)?;
        ledger.settle(&self.read(&members.paths, &ledger, false)?.0);
        self.ledger = Some(ledger);
        Ok(remains)
    }

    /// Serves the array in a guest until the power goes.
    fn live_in_a_guest(&mut self) -> Result<Remains> {
        let look = Raidus::look(&self.images)?;
        let size = look.content.len();
        look.stop()?;
        let share = self.dir.join("share");
        std::fs::create_dir_all(&share)?;
        let writers = writers(0, 1, 0, self.seed);
        let program = program::program()?.display();
        let disks = 0..self.images.len();
        let slow: String = disks.clone().map(|d| slow(d, MIB, d as u64 * DELAY_MS)).collect();
        let members: String = disks.map(|d| format!(" /dev/mapper/slow{d}")).collect();
        let words: String = writers.iter().map(|w| format!(" /dev/nbd0,{}", w.words())).collect();
        let script = format!(
            r#"
modprobe -a dm-delay nbd || exit 9
{slow}
cat > /tmp/writers.pl <<'END'
{WRITERS}
END
: > $SHARE/log
export RAIDUS_RUN_DIR=/tmp/run
mkdir /tmp/run
{program} serve --as=md0 --socket=/tmp/socket --threads=1 {members} &
i=0
until [ -S /tmp/socket ]; do nap; i=$((i+1)); [ $i -lt 1000 ] || exit 8; done
nbd-client -unix /tmp/socket /dev/nbd0 -N md0 -C 4 || exit 8
perl /tmp/writers.pl 150 0 $SHARE/log {words} &
i=0
until [ -e /tmp/acknowledged ]; do nap; i=$((i+1)); [ $i -lt 1000 ] || exit 8; done
pull-plug
"#
        );
        let share_option = share.to_str().context("a path that is not UTF-8")?;
        let outcome = Guest::new(&self.images).option("--share").option(share_option).run(&script)?;
        ensure!(outcome.status == 137, "the power did not go: {}\n{}", outcome.status, outcome.output);
        let log = std::fs::read(share.join("log"))?;
        let mut ledger = Ledger::new(size, true);
        for (writer, count) in writers.iter().zip(log.as_chunks().0) {
            ledger.note(*writer, u64::from_le_bytes(*count), true);
        }
        self.look(&ledger, 1)
    }

    fn look(&self, ledger: &Ledger, life: u64) -> Result<Remains> {
        let name = |what: &str| format!("{:?}, life {life}, {what}", self.shape);
        let copy = self.copy(&format!("raidus{life}"), None)?;
        let members = Members::of(&copy, self.shape.large)?;
        let array = Raidus::open(&members.paths, Options { run: true, ..Options::default() }, 2)?;
        let found = ledger.check(&array.content, 0)?;
        array.settle()?;
        let whole = array.syncs().is_empty();
        array.check()?;
        array.verify()?;
        array.stop()?;

        let mut exhibits = Vec::new();
        // A member is lost with the crash, each in its turn.
        let spare = if self.shape.missing == 0 { self.images.len() } else { 0 };
        for lost in std::iter::once(None).chain((0..spare).map(Some)) {
            let copy = self.copy(&format!("kernel{life}-{lost:?}"), lost)?;
            let members = Members::of(&copy, self.shape.large)?;
            let (_, sum) = self
                .read(&members.paths, ledger, lost.is_some())
                .with_context(|| name(&format!("without {lost:?}")))?;
            // The kernel judges one of them each time.
            if lost.is_none_or(|lost| lost == life as usize % spare) {
                let name = name(&format!("without {lost:?}"));
                let images = copy;
                exhibits.push(Exhibit {
                    name,
                    images,
                    sum,
                    clean: false,
                    then: String::new(),
                    assemble: String::new(),
                });
            }
        }
        Ok(Remains { exhibits, whole, found })
    }

    /// What the array contains, and its digest, without anything being written.
    fn read(&self, members: &[PathBuf], ledger: &Ledger, lost: bool) -> Result<(Vec<u8>, String)> {
        let look = Raidus::look(members)?;
        ledger.check(&look.content, u64::from(lost))?;
        let sum = look.sum();
        let content = look.content.clone();
        look.stop()?;
        Ok((content, sum))
    }

    fn copy(&self, name: &str, without: Option<usize>) -> Result<Vec<PathBuf>> {
        let dir = self.dir.join(name);
        std::fs::create_dir_all(&dir)?;
        let left = self.images.iter().enumerate().filter(|(n, _)| Some(*n) != without);
        let copy = |(n, image): (usize, &PathBuf)| -> Result<PathBuf> {
            let path = dir.join(format!("disk{n}"));
            std::fs::copy(image, &path)?;
            Ok(path)
        };
        left.map(copy).collect()
    }
}

/// Images as members: themselves, or disks with large sectors made of them.
struct Members {
    paths: Vec<PathBuf>,
    _large: Option<LargeSectors>,
}

impl Members {
    fn of(images: &[PathBuf], large: bool) -> Result<Members> {
        let large = if large { Some(LargeSectors::of(images.to_vec())?) } else { None };
        let paths = large.as_ref().map_or_else(|| images.to_vec(), |large| large.loops.clone());
        Ok(Members { paths, _large: large })
    }
}

/// Each writer writes over a connection of its own, until so many writes of all of them were acknowledged and the program is killed. How many of each
/// were acknowledged.
fn until_killed(daemon: Daemon, socket: &Path, writers: &[Writer], enough: usize) -> Result<Vec<u64>> {
    let (sender, answers) = channel();
    let work = |writer: Writer, answers: Sender<()>| -> Result<u64> {
        let mut client = NbdClient::connect(socket)?;
        let mut acknowledged = 0;
        for write in writer.writes() {
            if client.write(write.sector * 512, &stamped(&write), write.number % 7 == 0).is_err() {
                break;
            }
            acknowledged += 1;
            // Nobody listens any more when the program is about to be killed.
            let _ = answers.send(());
        }
        Ok(acknowledged)
    };
    let work = &work;
    std::thread::scope(|scope| {
        let spawn = |writer: &Writer| {
            let (writer, sender) = (*writer, sender.clone());
            scope.spawn(move || work(writer, sender))
        };
        let threads: Vec<_> = writers.iter().map(spawn).collect();
        for _ in 0..enough {
            answers.recv_timeout(Duration::from_secs(60)).context("the clients get no answers")?;
        }
        daemon.kill()?;
        threads.into_iter().map(|thread| thread.join().expect("a writer")).collect()
    })
}

/// As [`judge`], with disks of large sectors on the kernel's side too; nothing is to be synced where raidus found the array whole.
fn judge_large(exhibits: &[(&Exhibit, bool)]) -> Result<()> {
    for batch in exhibits.chunks(4) {
        let images: Vec<&PathBuf> = batch.iter().flat_map(|(e, _)| &e.images).collect();
        let (mut script, mut disk) = (String::new(), 0);
        for (n, (exhibit, _)) in batch.iter().enumerate() {
            let disks = disk..disk + exhibit.images.len();
            disk = disks.end;
            let loops: Vec<String> = disks.clone().map(|d| format!("/dev/loop{d}")).collect();
            for d in disks {
                script += &format!("losetup --sector-size 4096 /dev/loop{d} /dev/disk{d} || exit 9\n");
            }
            script += &format!(
                r#"
mdadm --assemble /dev/md{n} --run {}
report_file md{n}.block /sys/block/md{n}/queue/logical_block_size
report_file md{n}.sync_action /sys/block/md{n}/md/sync_action
report_sum md{n}.sum /dev/md{n}
check md{n}
mdadm --stop /dev/md{n}
"#,
                loops.join(" ")
            );
        }
        let outcome =
            Guest::new(&images).option("--module").option("loop max_loop=16").run(&script)?.expect_success()?;
        for (n, (exhibit, whole)) in batch.iter().enumerate() {
            for (key, value) in
                [("block", "4096"), ("sync_action", "idle"), ("sum", &exhibit.sum), ("mismatch_cnt", "0")]
            {
                let said = outcome.report(&format!("md{n}.{key}"))?;
                ensure!(
                    said == value || (key == "sync_action" && !whole),
                    "{}: {key} is {said}\n{}",
                    exhibit.name,
                    outcome.output
                );
            }
        }
    }
    Ok(())
}
