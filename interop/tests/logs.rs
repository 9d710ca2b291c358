//! Partial parity logs and write journals: raidus and the kernel replay copies of the same arrays, and leave the same bytes.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use interop::{Exhibit, Guest, New, Raidus, Rng, judge, new_arrays};
use raidus_assembly::Options;
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
