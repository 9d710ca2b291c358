//! Logs of arrays that the real kernel left in the middle of writing, replayed in memory: afterwards the array has what the kernel read
//! after its own replay, and parity is right everywhere. Cut short anywhere, with any of the writes that were not flushed lost, a
//! replay is begun anew and comes to the same end.

mod common;

use common::candidate;
use raidus_assembly::{Area, Assembled, Candidate, Disks, Options, ReplayError, Seat, decide};
use raidus_format::Timestamp;
use raidus_format::ppl::PplHeader;
use raidus_golden::Case;
use raidus_layout::Geometry;
use raidus_units::{Sector, Slot};
use sha2::{Digest, Sha256};

/// Images with a volatile cache, and a limit on how much may be written.
struct Memory {
    images: Vec<Vec<u8>>,
    /// Not flushed: what stood there before, newest last.
    undo: Vec<(usize, usize, Vec<u8>)>,
    /// Writes until the power fails.
    budget: usize,
    writes: usize,
    log: Vec<Written>,
}

/// A write.
struct Written {
    candidate: usize,
    at: Sector,
    len: usize,
}

impl Written {
    /// Whether it went to a data area.
    fn is_data(&self, assembled: &Assembled) -> bool {
        let member = assembled.members.iter().find(|m| m.candidate == self.candidate);
        member.is_some_and(|m| self.at >= m.superblock.member().data_offset)
    }
}

#[derive(Debug)]
struct PowerFailed;

impl Disks for Memory {
    type Error = PowerFailed;

    fn read(&mut self, candidate: usize, at: Sector, bytes: &mut [u8]) -> Result<(), PowerFailed> {
        let start = at.bytes() as usize;
        bytes.copy_from_slice(&self.images[candidate][start..start + bytes.len()]);
        Ok(())
    }

    fn write(&mut self, candidate: usize, at: Sector, bytes: &[u8]) -> Result<(), PowerFailed> {
        if self.writes == self.budget {
            return Err(PowerFailed);
        }
        self.writes += 1;
        self.log.push(Written { candidate, at, len: bytes.len() });
        assert!(bytes.len().is_multiple_of(512) && !bytes.is_empty());
        let start = at.bytes() as usize;
        let place = &mut self.images[candidate][start..start + bytes.len()];
        self.undo.push((candidate, start, place.to_vec()));
        place.copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self, candidate: usize) -> Result<(), PowerFailed> {
        self.undo.retain(|(of, ..)| *of != candidate);
        Ok(())
    }
}

impl Memory {
    fn new(images: Vec<Vec<u8>>) -> Memory {
        Memory { images, undo: Vec::new(), budget: usize::MAX, writes: 0, log: Vec::new() }
    }

    fn of(case: &Case, disks: &[usize]) -> Memory {
        Memory::new(disks.iter().map(|n| case.image(*n)).collect())
    }

    fn candidates(&self) -> Vec<Candidate> {
        self.images.iter().enumerate().map(|(n, image)| candidate(&format!("/dev/disk{n}"), image)).collect()
    }

    fn decide(&self) -> Assembled {
        let decision = decide(&self.candidates(), &Options { run: true, ..Options::default() });
        decision.start().unwrap_or_else(|| panic!("{}", raidus_assembly::explain(&decision))).clone()
    }

    /// Replays what there is; gives the array as it is decided on afterwards.
    fn replay(&mut self) -> Result<Assembled, PowerFailed> {
        let before = self.decide();
        match before.carry_out_replay(self, Timestamp::from_secs(1_800_000_000)) {
            Ok(()) => {}
            Err(ReplayError::Disk(e)) => return Err(e),
            Err(ReplayError::Superblock(e)) => panic!("{e}"),
        }
        let after = self.decide();
        assert!(after.replay.is_none());
        assert!(after.array.events >= before.array.events);
        Ok(after)
    }

    /// What is not flushed is lost, or some of it, sector by sector.
    fn power_fails(&mut self, rng: &mut u64) {
        let mut next = || {
            *rng = rng.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *rng >> 33
        };
        for (candidate, start, before) in std::mem::take(&mut self.undo).into_iter().rev() {
            for (n, sector) in before.chunks(512).enumerate() {
                if next() % 2 == 0 {
                    let at = start + n * 512;
                    self.images[candidate][at..at + 512].copy_from_slice(sector);
                }
            }
        }
        self.budget = usize::MAX;
    }

    fn block(&self, assembled: &Assembled, slot: Slot, component: Sector) -> Option<&[u8]> {
        let member = assembled.members.iter().find(|m| m.seat == Seat::InSync(slot))?;
        let at = (member.superblock.member().data_offset + component.from_start()).bytes() as usize;
        Some(&self.images[member.candidate][at..at + 4096])
    }

    /// The array's content. Panics where parity does not fit.
    fn content(&self, assembled: &Assembled) -> Vec<u8> {
        let Geometry::Parity(g) = &assembled.geometry else { panic!("no parity") };
        let mut content = vec![0; g.array_sectors().bytes() as usize];
        for component in (0..g.component_sectors().0).step_by(8).map(Sector) {
            let (number, offset) = g.row_at(component);
            let row = g.row(number);
            let mut data: Vec<Option<Vec<u8>>> = (0..g.data_disks())
                .map(|i| self.block(assembled, row.data(i), component).map(<[u8]>::to_vec))
                .collect();
            let p = self.block(assembled, row.p(), component);
            let lost: Vec<usize> = (0..data.len()).filter(|i| data[*i].is_none()).collect();
            match lost[..] {
                [] => {}
                [x] => {
                    let mut sum = p.expect("P of a row that lacks data").to_vec();
                    data.iter().flatten().for_each(|d| raidus_parity::xor_in_place(&mut sum, &[d]));
                    data[x] = Some(sum);
                }
                _ => panic!("two blocks lost"),
            }
            let data: Vec<Vec<u8>> = data.into_iter().flatten().collect();
            let mut blocks: Vec<(&[u8], u8)> =
                (0..).zip(&data).map(|(i, d)| (d.as_slice(), row.coefficient(i))).collect();
            blocks.sort_by_key(|(_, k)| *k);
            let (mut sum, mut syndrome) = (vec![0; 4096], vec![0; 4096]);
            raidus_parity::pq(Some(&mut sum), Some(&mut syndrome), &blocks);
            assert!(p.is_none_or(|p| p == sum), "P of component sector {component}");
            let q = row.q().and_then(|q| self.block(assembled, q, component));
            assert!(q.is_none_or(|q| q == syndrome), "Q of component sector {component}");
            for (i, block) in (0..).zip(data) {
                let at = g.array(number, i, offset).bytes() as usize;
                content[at..at + 4096].copy_from_slice(&block);
            }
        }
        content
    }
}

fn sum(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|b| format!("{b:02x}")).collect()
}

fn kernel_read(case: &Case) -> &str {
    let after = case.manifest.after_crash.as_ref().expect("a crash");
    after.kernel_read_sha256.as_deref().expect("a digest")
}

fn all(case: &Case) -> Vec<usize> {
    (0..case.disks()).collect()
}

const CRASHED: [&str; 6] = [
    "ppl-dirty-raid5-1.2-n3",
    "ppl-dirty-raid5-1.2-n4-4k",
    "ppl-dirty-degraded-raid5-1.2",
    "journal-dirty-raid5-1.2",
    "journal-dirty-raid5-1.2-writeback",
    "journal-dirty-raid6-1.2",
];

#[test]
fn after_a_replay_the_array_has_what_the_kernel_read_and_parity_is_right() {
    for name in CRASHED {
        let case = raidus_golden::case(name);
        let mut memory = Memory::of(case, &all(case));
        assert!(memory.decide().replay.is_some(), "{name}");
        let assembled = memory.replay().unwrap();
        assert_eq!(assembled.unsynced_from, None, "{name}");
        let content = memory.content(&assembled);
        assert_eq!(sum(&content), kernel_read(case), "{name}");
        let pattern = case.manifest.pattern.as_deref().expect("a pattern");
        assert_eq!(raidus_golden::pattern::check(pattern, 0, &content), Ok(()), "{name}");
    }
}

/// The members alone are not enough: without replay parity is wrong somewhere, or (data alone in the journal) data is old.
#[test]
fn these_arrays_do_need_their_logs() {
    for name in ["journal-dirty-raid5-1.2", "journal-dirty-raid5-1.2-writeback"] {
        let case = raidus_golden::case(name);
        let memory = Memory::of(case, &all(case));
        let assembled = memory.decide();
        let read = std::panic::catch_unwind(|| sum(&memory.content(&assembled)));
        assert!(read.is_err() || read.is_ok_and(|sum| sum != kernel_read(case)), "{name}");
    }
}

/// Whatever became of parity where writes were under way, it is put right; and nothing else is touched.
#[test]
fn partial_parity_makes_parity_fit_the_data() {
    for name in CRASHED.iter().filter(|n| n.starts_with("ppl")) {
        let case = raidus_golden::case(name);
        let fresh = Memory::of(case, &all(case));
        let assembled = fresh.decide();
        let mut whole = Memory::new(fresh.images.clone());
        whole.replay().unwrap();
        let mut spoilt = Memory::new(fresh.images.clone());
        let mut blocks = 0;
        for written in whole.log.iter().filter(|w| w.is_data(&assembled)) {
            let at = written.at.bytes() as usize;
            spoilt.images[written.candidate][at..at + written.len].fill(0x5a);
            blocks += 1;
        }
        assert!(blocks > 0, "{name}");
        let assembled = spoilt.replay().unwrap();
        assert_eq!(sum(&spoilt.content(&assembled)), kernel_read(case), "{name}");
    }
}

/// With a member missing the journal has what the member would, or what parity needs to tell it.
#[test]
fn a_journal_is_replayed_without_one_of_the_members() {
    for name in CRASHED.iter().filter(|n| n.starts_with("journal") && !n.contains("raid6")) {
        let case = raidus_golden::case(name);
        for missing in 0..3 {
            let disks: Vec<usize> = all(case).into_iter().filter(|n| *n != missing).collect();
            let mut memory = Memory::of(case, &disks);
            let assembled = memory.replay().unwrap();
            assert_eq!(sum(&memory.content(&assembled)), kernel_read(case), "{name} without disk{missing}");
        }
    }
}

#[test]
fn a_replay_that_is_cut_short_is_begun_anew_and_comes_to_the_same_end() {
    let mut rng = 1;
    let mut cuts = 0;
    for (name, missing) in [
        ("ppl-dirty-raid5-1.2-n4-4k", None),
        ("ppl-dirty-degraded-raid5-1.2", None),
        ("journal-dirty-raid5-1.2-writeback", None),
        ("journal-dirty-raid5-1.2-writeback", Some(1)),
        ("journal-dirty-raid6-1.2", None),
    ] {
        let case = raidus_golden::case(name);
        let disks: Vec<usize> = all(case).into_iter().filter(|n| Some(*n) != missing).collect();
        let fresh = Memory::of(case, &disks);
        let mut whole = Memory::new(fresh.images.clone());
        let members = whole.replay().unwrap().members.len();
        // Spread over the replay, and each of its last steps, where the log is given up.
        let steps = (0..8).map(|n| whole.writes * n / 8).chain(whole.writes.saturating_sub(8)..whole.writes);
        for (step, attempts) in steps.flat_map(|step| [(step, 1), (step, 3)]) {
            let mut memory = Memory::new(fresh.images.clone());
            for attempt in 0..attempts {
                // Later ones come somewhat further, though they may have less to write.
                (memory.writes, memory.budget) = (0, step + attempt);
                let ended = memory.replay();
                assert!(ended.is_err() || attempt > 0, "{name}: {step}");
                memory.power_fails(&mut rng);
            }
            let assembled = memory.replay().unwrap();
            assert_eq!(assembled.members.len(), members, "{name}, cut after {step} writes: a good member is stale");
            assert_eq!(sum(&memory.content(&assembled)), kernel_read(case), "{name}, cut after {step} writes");
            cuts += 1;
        }
    }
    assert!(cuts > 120);
}

/// The kernel leaves rows in the log that are on the members already. Replaying them changes nothing.
#[test]
fn a_journal_of_an_array_that_was_stopped_in_order_says_nothing_new() {
    for name in ["journal-raid4-1.2", "journal-raid5-1.2", "journal-raid6-1.2", "journal-writeback-raid5-1.2"] {
        let case = raidus_golden::case(name);
        let mut memory = Memory::of(case, &all(case));
        let before = memory.content(&memory.decide());
        let assembled = memory.replay().unwrap();
        assert!(!assembled.read_only, "{name}");
        assert!(memory.content(&assembled) == before, "{name}");
        assert_eq!(Some(sum(&before)), case.manifest.kernel_read_sha256, "{name}");
    }
}

#[test]
fn what_cannot_be_replayed_is_refused_with_the_reason() {
    let refused = |memory: &Memory, force: bool| {
        let decision = decide(&memory.candidates(), &Options { run: true, force, ..Options::default() });
        let codes: Vec<&str> = decision.reasons().iter().map(|r| r.code()).collect();
        assert!(!decision.force_would.is_empty() || force);
        (codes.join(" "), decision.start().map(|a| (a.read_only, a.forced.len())))
    };
    let case = raidus_golden::case("journal-dirty-raid5-1.2");
    let without = Memory::of(case, &[0, 1, 2]);
    assert_eq!(refused(&without, false), ("journal-missing".to_owned(), None));
    assert_eq!(refused(&without, true), (String::new(), Some((true, 1))));
    let mut damaged = Memory::of(case, &all(case));
    let tail = damaged.candidates()[3].superblock().unwrap().member();
    let at = (tail.data_offset + tail.journal_tail.unwrap().from_start()).bytes() as usize;
    damaged.images[3][at + 50] ^= 1;
    assert_eq!(refused(&damaged, false), ("journal-unusable".to_owned(), None));
    assert_eq!(refused(&damaged, true), (String::new(), Some((true, 1))));
}

/// What is torn is left out. The array is resynced, after what else is logged was replayed; without a member it starts as it is, since
/// no write had begun of which the log was torn. A log that cannot be read tells nothing of the kind.
#[test]
fn a_torn_partial_parity_log_is_of_writes_that_had_not_begun() {
    let case = raidus_golden::case("ppl-dirty-degraded-raid5-1.2");
    let area = case.manifest.members[0].ppl_sector.unwrap() as usize * 512;
    let mut memory = Memory::of(case, &all(case));
    for disk in [0, 2] {
        memory.images[disk][area..area + (1 << 20)].fill(0);
    }
    let options = Options { run: true, ..Options::default() };
    let decision = decide(&memory.candidates(), &options);
    let assembled = decision.start().unwrap_or_else(|| panic!("{}", raidus_assembly::explain(&decision)));
    assert!(assembled.replay.is_none() && assembled.unsynced_from.is_none());
    let mut unreadable = memory.candidates();
    unreadable[0].ppl = Area::Failed("no".to_owned());
    let decision = decide(&unreadable, &options);
    assert!(decision.reasons().iter().any(|r| r.code() == "dirty-degraded"), "{}", raidus_assembly::explain(&decision));
    let case = raidus_golden::case("ppl-dirty-raid5-1.2-n3");
    let mut memory = Memory::of(case, &all(case));
    memory.images[1][area + 532] ^= 1;
    let assembled = memory.decide();
    assert!(assembled.replay.is_some(), "the others have something");
    assert_eq!(assembled.unsynced_from, Some(Sector(0)));
    // A resync is still to come, and the emptied logs say so.
    assert_eq!(memory.replay().unwrap().unsynced_from, Some(Sector(0)));
    let header = PplHeader::parse(&memory.images[0][area..area + 4096], case.manifest.uuid.parse().unwrap());
    assert!(header.unwrap().entries[0].is_untrusted());
}
