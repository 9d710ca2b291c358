//! Partial parity logs and write journals: raidus and the kernel replay copies of the same arrays, and leave the same bytes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use interop::{Exhibit, Guest, New, Raidus, Rng, judge, new_arrays};
use raidus_assembly::Options;
use raidus_engine::control::Command;
use raidus_format::{MetadataVersion, ppl};
use raidus_golden::{Case, case};
use raidus_units::Level;

/// Arrays the kernel left in the middle of writing, and a disk to be left out.
const CRASHED: [(&str, Option<usize>); 9] = [
    ("ppl-dirty-raid5-1.2-n3", None),
    ("ppl-dirty-raid5-1.2-n4-4k", None),
    ("ppl-dirty-degraded-raid5-1.2", None),
    ("journal-dirty-raid5-1.2", None),
    ("journal-dirty-raid6-1.2", None),
    ("journal-dirty-raid5-1.2-writeback", None),
    ("journal-dirty-raid5-1.2", Some(2)),
    ("journal-dirty-raid5-1.2-writeback", Some(1)),
    ("journal-dirty-raid6-1.2", Some(0)),
];

const WHATEVER: Options =
    Options { force: false, run: true, readonly: false, uuid: None, name: None, raid0_layout: None };

/// A disk's number, and what is in its data area.
type Data = (usize, Vec<u8>);

/// A copy of an array's disks.
struct Copy {
    case: &'static Case,
    /// Numbers of the disks.
    disks: Vec<usize>,
    images: Vec<PathBuf>,
}

impl Copy {
    fn new(name: &str, without: Option<usize>, dir: &Path) -> Copy {
        let case = case(name);
        std::fs::create_dir_all(dir).expect("a directory");
        let images = case.write_images(dir).expect("room for images");
        let disks: Vec<usize> = (0..images.len()).filter(|n| Some(*n) != without).collect();
        let images = disks.iter().map(|n| images[*n].clone()).collect();
        Copy { case, disks, images }
    }

    /// Makes parity wrong wherever a partial parity log has an entry, as an interrupted write can leave it. Gives the number of
    /// places.
    fn spoil_parity(&self) -> usize {
        let m = &self.case.manifest;
        let (chunk, data_disks) = (m.chunk_bytes / 512, u64::from(m.raid_disks) - 1);
        let mut spoilt = 0;
        for (n, path) in self.disks.iter().zip(&self.images) {
            let member = &m.members[*n];
            let (Some(log @ 1..), Some(log_len), Some(data)) =
                (member.ppl_sector, member.ppl_size, member.data_offset_sectors)
            else {
                continue;
            };
            let mut image = std::fs::read(path).expect("an image");
            let area = &image[log as usize * 512..(log + log_len) as usize * 512];
            let uuid = m.uuid.parse().expect("a UUID");
            let entries = ppl::newest(area, uuid, true).map_or(Vec::new(), |(_, header)| header.entries);
            for entry in entries {
                let (sector, len) = (entry.data_sector.0, u64::from(entry.parity_bytes.max(512)));
                let place = data + sector / chunk / data_disks * chunk + sector % chunk;
                let start = place as usize * 512;
                image[start..start + len as usize].fill(0xa5);
                spoilt += 1;
            }
            std::fs::write(path, image).expect("an image");
        }
        spoilt
    }

    /// What the members in slots hold in the part that the array uses, by disk number.
    fn data(&self) -> Vec<Data> {
        let data = |(n, path): (&usize, &PathBuf)| {
            let member = &self.case.manifest.members[*n];
            member.slot_number()?;
            let start = member.data_offset_sectors? as usize * 512;
            let len = self.case.manifest.component_size_kib as usize * 1024;
            let image = std::fs::read(path).expect("an image");
            Some((*n, image[start..start + len].to_vec()))
        };
        self.disks.iter().zip(&self.images).filter_map(data).collect()
    }
}

/// Starts arrays on the kernel and stops them.
fn start_on_the_kernel(copies: &[&Copy]) -> Result<()> {
    let images: Vec<&PathBuf> = copies.iter().flat_map(|c| &c.images).collect();
    let mut script = String::new();
    let mut disk = 0;
    for (n, copy) in copies.iter().enumerate() {
        let disks: Vec<String> = (disk..disk + copy.images.len()).map(|d| format!("/dev/disk{d}")).collect();
        disk += disks.len();
        script += &format!(
            r#"
mdadm --assemble /dev/md{n} --run {} 2>&1
report md{n} "$(cat /sys/block/md{n}/md/resync_start)/$(cat /sys/block/md{n}/md/sync_action)"
mdadm --stop /dev/md{n} 2>&1
"#,
            disks.join(" ")
        );
    }
    let outcome = Guest::new(&images).run(&script)?.expect_success()?;
    for (n, copy) in copies.iter().enumerate() {
        let said = outcome.report(&format!("md{n}"))?;
        ensure!(said == "none/idle", "{}: the kernel did more than replay: {said}\n{}", copy.case.name, outcome.output);
    }
    Ok(())
}

#[test]
fn raidus_replays_as_the_kernel_does() {
    let dir = tempfile::tempdir().expect("a directory");
    let copy = |(n, (name, without)): (usize, &(&str, Option<usize>)), whose: &str| {
        Copy::new(name, *without, &dir.path().join(format!("{whose}{n}")))
    };
    let kernels: Vec<Copy> = CRASHED.iter().enumerate().map(|c| copy(c, "kernel")).collect();
    let ours: Vec<Copy> = CRASHED.iter().enumerate().map(|c| copy(c, "raidus")).collect();
    for (theirs, own) in kernels.iter().zip(&ours).filter(|(c, _)| c.case.name.starts_with("ppl")) {
        assert!(theirs.spoil_parity() > 0 && own.spoil_parity() > 0, "{}", own.case.name);
    }
    // As many as a guest has disks for.
    for batch in kernels.chunks(4) {
        start_on_the_kernel(&batch.iter().collect::<Vec<_>>()).unwrap_or_else(|e| panic!("{e:#}"));
    }
    let mut exhibits = Vec::new();
    for (own, kernels) in ours.iter().zip(&kernels) {
        let name = format!("{}, disks {:?}", own.case.name, own.disks);
        let before = own.data();
        let array = Raidus::open(&own.images, WHATEVER, 1).unwrap_or_else(|e| panic!("{name}: {e:#}"));
        let sum = array.sum();
        array.stop().unwrap_or_else(|e| panic!("{name}: {e:#}"));
        let after = own.data();
        for ((disk, own), (_, theirs)) in after.iter().zip(kernels.data()) {
            let differs = own.chunks(512).zip(theirs.chunks(512)).position(|(a, b)| a != b);
            assert_eq!(differs, None, "{name}: component sector on disk{disk}");
        }
        let changed =
            |((_, a), (_, b)): (&Data, &Data)| a.chunks(4096).zip(b.chunks(4096)).filter(|(a, b)| a != b).count();
        println!("{name}: {} blocks were replayed", before.iter().zip(&after).map(changed).sum::<usize>());
        // The superblock of a member that has failed stays as it is.
        let whole = !own.case.name.contains("degraded");
        exhibits.push(exhibit(name, own.images.clone(), sum, whole));
    }
    // The kernel finds nothing left to do in what raidus replayed, and goes on with it.
    judge(&exhibits).unwrap_or_else(|e| panic!("{e:#}"));
}

/// The kernel writes through the journal, raidus past it, in turns; each reads what the other wrote, and finds parity right.
#[test]
fn a_journal_goes_from_hand_to_hand() {
    let dir = tempfile::tempdir().expect("a directory");
    let names =
        ["journal-raid4-1.2", "journal-dirty-raid5-1.2", "journal-raid6-1.2", "journal-dirty-raid5-1.2-writeback"];
    let copies: Vec<Copy> = names.iter().map(|name| Copy::new(name, None, &dir.path().join(name))).collect();
    for round in 0..3 {
        let mut exhibits = Vec::new();
        for (n, copy) in copies.iter().enumerate() {
            // The last time raidus is killed: the kernel resyncs.
            let made = scribble(copy, 10 * round + n as u64, round == 2).with_context(|| copy.case.name.clone());
            exhibits.push(made.unwrap_or_else(|e| panic!("{e:#}")));
        }
        let judgements = judge(&exhibits).unwrap_or_else(|e| panic!("{e:#}"));
        for (exhibit, judgement) in exhibits.iter().zip(&judgements) {
            let array = Raidus::look(&exhibit.images).unwrap_or_else(|e| panic!("{}: {e:#}", exhibit.name));
            assert_eq!(array.sum(), judgement.sum_after, "{}", exhibit.name);
            assert_ne!(exhibit.sum, judgement.sum_after, "{}: the kernel wrote nothing", exhibit.name);
        }
    }
}

fn scribble(copy: &Copy, seed: u64, crash: bool) -> Result<Exhibit> {
    let mut array = Raidus::open(&copy.images, WHATEVER, 2)?;
    array.scribble(&mut Rng(seed), 40)?;
    array.verify()?;
    let sum = array.sum();
    if crash {
        array.crash();
    } else {
        array.stop()?;
    }
    Ok(exhibit(copy.case.name.clone(), copy.images.clone(), sum, !crash))
}

fn exhibit(name: String, images: Vec<PathBuf>, sum: String, clean: bool) -> Exhibit {
    let then = "dd if=/dev/urandom of=/dev/$md bs=20k count=30 seek=7 oflag=direct conv=notrunc status=none".to_owned();
    Exhibit { name, images, sum, clean, then, assemble: String::new() }
}

/// raidus makes arrays with partial parity logs; the kernel takes and keeps the logs, and raidus reads what the kernel wrote.
#[test]
fn the_kernel_accepts_partial_parity_logs_made_by_raidus() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut exhibits = Vec::new();
    for (n, metadata) in [MetadataVersion::V1_0, MetadataVersion::V1_1, MetadataVersion::V1_2].into_iter().enumerate() {
        let base = new_arrays()[0];
        let new = New { level: Level::Raid5, n: 3 + n as u16, metadata, ppl: true, ..base };
        let images =
            new.create(&dir.path().join(n.to_string()), &mut Rng(n as u64)).unwrap_or_else(|e| panic!("{e:#}"));
        let sum = Raidus::look(&images).unwrap_or_else(|e| panic!("{e:#}")).sum();
        let made = exhibit(new.name(), images, sum, true);
        let policy = r#"[ "$(cat /sys/block/$md/md/consistency_policy)" = ppl ] || exit 9"#;
        exhibits.push(Exhibit { then: format!("{policy}\n{}", made.then), ..made });
    }
    let judgements = judge(&exhibits).unwrap_or_else(|e| panic!("{e:#}"));
    for (exhibit, judgement) in exhibits.iter().zip(&judgements) {
        let array = Raidus::look(&exhibit.images).unwrap_or_else(|e| panic!("{}: {e:#}", exhibit.name));
        assert_eq!(array.sum(), judgement.sum_after, "{}", exhibit.name);
    }
}

/// Blocks of an array that were written by several writers until it crashed.
struct Written {
    /// By block: the number of the last write that was acknowledged, and of the one that was not.
    blocks: Vec<(u64, u64)>,
}

const BLOCK: usize = 4096;
const WRITERS: u64 = 6;

impl Written {
    /// Writes single blocks from all sides, and crashes after `count` of them.
    fn until_crash(array: Raidus, count: u64, seed: u64) -> Written {
        let blocks = array.content.len() / BLOCK;
        let acknowledged = AtomicU64::new(0);
        let write = |writer: u64| {
            let (client, mut rng) = (array.handle().client(), Rng(seed * WRITERS + writer));
            let mut own: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
            for number in 1.. {
                // Neighbours in a row, and the same ones again and again.
                let block = rng.below(blocks as u64 / 8 / WRITERS) * WRITERS + writer;
                let entry = own.entry(block).or_default();
                entry.1 = number;
                if client.write_at(block * BLOCK as u64, &stamped(block, number), number % 7 == 0).is_err() {
                    break;
                }
                entry.0 = number;
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            own
        };
        let mut written = Written { blocks: vec![(0, 0); blocks] };
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS).map(|w| scope.spawn(move || write(w))).collect();
            while acknowledged.load(Ordering::Relaxed) < count {
                std::thread::yield_now();
            }
            array.handle().abandon();
            for writer in writers {
                for (block, numbers) in writer.join().expect("a writer") {
                    written.blocks[block as usize] = numbers;
                }
            }
        });
        written
    }

    /// Whether each sector is of the last write that was acknowledged or of a later one.
    fn check(&self, content: &[u8]) {
        for (n, (block, (old, new))) in content.chunks(BLOCK).zip(&self.blocks).enumerate() {
            let (old, new) = (stamped(n as u64, *old), stamped(n as u64, *new));
            let sectors = block.chunks(512).zip(old.chunks(512)).zip(new.chunks(512));
            for (k, ((is, old), new)) in sectors.enumerate() {
                assert!(is == old || is == new, "sector {k} of block {n} is neither of before nor of after a write");
            }
        }
    }
}

/// A block as write `number` leaves it; zeroes if there was none.
fn stamped(block: u64, number: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    if number > 0 {
        Rng(block << 32 | number).fill(&mut bytes);
    }
    bytes
}

/// raidus crashes in the middle of writing; the kernel replays what it had logged, whether all members are there or one is lost
/// with the crash, and so does raidus: to the same content, in which nothing acknowledged is missing.
#[test]
fn a_crash_of_raidus_is_mended_by_the_kernel() {
    let dir = tempfile::tempdir().expect("a directory");
    let base = new_arrays()[0];
    let mut copies: Vec<(String, Vec<PathBuf>, bool, String)> = Vec::new();
    for (n, metadata) in [MetadataVersion::V1_2, MetadataVersion::V1_1, MetadataVersion::V1_0].into_iter().enumerate() {
        let new = New { level: Level::Raid5, n: 3 + n as u16, metadata, chunk_kib: [64, 4, 16][n], ppl: true, ..base };
        let images =
            new.create(&dir.path().join(n.to_string()), &mut Rng(n as u64)).unwrap_or_else(|e| panic!("{e:#}"));
        let array = Raidus::open(&images, WHATEVER, 2).unwrap_or_else(|e| panic!("{e:#}"));
        let written = Written::until_crash(array, 200 + 90 * n as u64, n as u64);
        for lost in [None, Some(0), Some(images.len() - 1)] {
            let name = format!("{}, without {lost:?}", new.name());
            let place = dir.path().join(format!("{n}-{lost:?}"));
            std::fs::create_dir_all(&place).expect("a directory");
            let mut copy = Vec::new();
            for (i, image) in images.iter().enumerate().filter(|(i, _)| Some(*i) != lost) {
                copy.push(place.join(format!("disk{i}")));
                std::fs::copy(image, &copy[copy.len() - 1]).expect("room for images");
            }
            let array = Raidus::look(&copy).unwrap_or_else(|e| panic!("{name}: {e:#}"));
            written.check(&array.content);
            let sum = array.sum();
            array.stop().unwrap_or_else(|e| panic!("{name}: {e:#}"));
            copies.push((name, copy, lost.is_none(), sum));
        }
    }
    let mut spared = 0;
    for batch in copies.chunks(3) {
        let mut script = String::new();
        let mut disk = 0;
        for (n, (_, images, ..)) in batch.iter().enumerate() {
            let disks: Vec<String> = (disk..disk + images.len()).map(|d| format!("/dev/disk{d}")).collect();
            disk += disks.len();
            script += &format!(
                r#"
mdadm --assemble /dev/md{n} --run {} 2>&1
report_file md{n}.resync_start /sys/block/md{n}/md/resync_start
report_file md{n}.sync_action /sys/block/md{n}/md/sync_action
report_sum md{n}.sum /dev/md{n}
[ "$(cat /sys/block/md{n}/md/degraded)" != 0 ] || check md{n}
mdadm --stop /dev/md{n} 2>&1
"#,
                disks.join(" ")
            );
        }
        let images: Vec<&PathBuf> = batch.iter().flat_map(|(_, images, ..)| images).collect();
        let outcome = Guest::new(&images).run(&script).and_then(|o| o.expect_success()).expect("a guest");
        for (n, (name, _, whole, sum)) in batch.iter().enumerate() {
            let report = |key: &str| outcome.report(&format!("md{n}.{key}")).unwrap_or("nothing").to_owned();
            assert_eq!(report("sum"), *sum, "{name}: {}", outcome.output);
            if *whole {
                assert_eq!(report("mismatch_cnt"), "0", "{name}: {}", outcome.output);
                spared += usize::from(report("resync_start") == "none" && report("sync_action") == "idle");
            }
        }
    }
    // A unit may have been torn, but not in all of them.
    assert!(spared > 0, "no array was spared a resync");
}

/// Members of arrays with a partial parity log fail, are rebuilt on a spare, and are replaced, under raidus; the kernel finds
/// everything in order, and replays what raidus leaves when it crashes then.
#[test]
fn members_come_and_go_beside_their_logs() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut exhibits = Vec::new();
    for (n, metadata) in [MetadataVersion::V1_0, MetadataVersion::V1_2].into_iter().enumerate() {
        let base = new_arrays()[0];
        // Not assumed clean: the last slot is rebuilt at first.
        let new = New { level: Level::Raid5, n: 4, metadata, ppl: true, spares: 2, assume_clean: false, ..base };
        let images =
            new.create(&dir.path().join(n.to_string()), &mut Rng(n as u64)).unwrap_or_else(|e| panic!("{e:#}"));
        let name = new.name();
        let change = |crash: bool| -> Result<Exhibit> {
            let mut rng = Rng(7 + n as u64);
            let mut array = Raidus::open(&images, WHATEVER, 2)?;
            array.scribble(&mut rng, 30)?;
            array.settle()?;
            let map = array.handle().status().context("the array has ended")?.map;
            let holder = |slot: usize| map.slots[slot].member.context("an empty slot");
            array.handle().command(Command::Fail(holder(1)?))?;
            array.scribble(&mut rng, 30)?;
            array.settle()?;
            array.handle().command(Command::Replace(holder(2)?))?;
            array.scribble(&mut rng, 30)?;
            array.settle()?;
            array.scribble(&mut rng, 30)?;
            array.verify()?;
            let sum = array.sum();
            if crash {
                array.crash();
            } else {
                array.stop()?;
            }
            // The superblocks of those that have left stay as they were.
            Ok(exhibit(format!("{name}, crash {crash}"), images.clone(), sum, false))
        };
        exhibits.push(change(n == 1).unwrap_or_else(|e| panic!("{name}: {e:#}")));
    }
    let judgements = judge(&exhibits).unwrap_or_else(|e| panic!("{e:#}"));
    for (exhibit, judgement) in exhibits.iter().zip(&judgements) {
        assert_eq!(judgement.degraded, "0", "{}", exhibit.name);
        let array = Raidus::look(&exhibit.images).unwrap_or_else(|e| panic!("{}: {e:#}", exhibit.name));
        assert_eq!(array.sum(), judgement.sum_after, "{}", exhibit.name);
    }
}

/// The kernel and raidus write to the same arrays in turns; the last time raidus is killed.
#[test]
fn a_partial_parity_log_goes_from_hand_to_hand() {
    let dir = tempfile::tempdir().expect("a directory");
    let names = ["ppl-dirty-raid5-1.2-n3", "ppl-dirty-raid5-1.2-n4-4k", "ppl-dirty-degraded-raid5-1.2"];
    let copies: Vec<Copy> = names.iter().map(|name| Copy::new(name, None, &dir.path().join(name))).collect();
    for round in 0..3 {
        let mut exhibits = Vec::new();
        for (n, copy) in copies.iter().enumerate() {
            let made = scribble(copy, 10 * round + n as u64, round == 2).with_context(|| copy.case.name.clone());
            let made = made.unwrap_or_else(|e| panic!("{e:#}"));
            // The superblock of a member that has failed stays as it is.
            let clean = made.clean && !copy.case.name.contains("degraded");
            exhibits.push(Exhibit { clean, ..made });
        }
        let judgements = judge(&exhibits).unwrap_or_else(|e| panic!("{e:#}"));
        for (exhibit, judgement) in exhibits.iter().zip(&judgements) {
            let array = Raidus::look(&exhibit.images).unwrap_or_else(|e| panic!("{}: {e:#}", exhibit.name));
            assert_eq!(array.sum(), judgement.sum_after, "{}", exhibit.name);
            assert_ne!(exhibit.sum, judgement.sum_after, "{}: the kernel wrote nothing", exhibit.name);
        }
    }
}

/// Reading an array whose log has to be replayed leaves its members as they are.
#[test]
fn looking_replays_in_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    for (n, (name, without)) in CRASHED.iter().enumerate() {
        let copy = Copy::new(name, *without, &dir.path().join(n.to_string()));
        let before: Vec<Vec<u8>> = copy.images.iter().map(|p| std::fs::read(p).expect("an image")).collect();
        let array = Raidus::look(&copy.images).unwrap_or_else(|e| panic!("{name}: {e:#}"));
        let kernel = copy.case.manifest.after_crash.as_ref().and_then(|a| a.kernel_read_sha256.as_deref());
        assert_eq!(Some(array.sum().as_str()), kernel, "{name}");
        array.stop().unwrap_or_else(|e| panic!("{name}: {e:#}"));
        let after: Vec<Vec<u8>> = copy.images.iter().map(|p| std::fs::read(p).expect("an image")).collect();
        assert!(before == after, "{name}");
    }
}
