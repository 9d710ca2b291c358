//! From the disks to a running array's configuration, the way the runtime goes: look for superblocks, read what they point to,
//! decide.

use raidus_assembly::{Assembled, Candidate, Decision, Disks, Found, Options, ReplayError, Verdict, decide};
use raidus_engine::MemberError;
use raidus_format::{MetadataVersion, RawSuperblock, SUPERBLOCK_SECTORS, SbError, Superblock, Timestamp, ppl};
use raidus_units::{Sector, Sectors};

use crate::disk::{Disk, Store};

/// Looks at the disks with these indices, in this order, and decides.
pub(crate) fn assemble(disks: &[Disk], offered: &[usize]) -> Decision {
    decision_on(offered.iter().map(|i| (&disks[*i], *i)))
}

/// The decision on disks, each with a number for its name.
pub(crate) fn decision_on<'a>(disks: impl Iterator<Item = (&'a Disk, usize)>) -> Decision {
    let candidates: Vec<Candidate> = disks.map(|(disk, index)| candidate(disk, index)).collect();
    // Starting degraded is the operator's decision; this operator always takes it.
    decide(&candidates, &Options { run: true, ..Options::default() })
}

/// The array, or why there is none.
pub(crate) fn started(decision: Decision) -> Result<Assembled, String> {
    match decision.verdict {
        Verdict::Start(assembled) => Ok(*assembled),
        Verdict::Refuse(reasons) => {
            let members: Vec<String> =
                decision.members.iter().map(|m| format!("{}: {:?} {:?}", m.name, m.standing, m.says)).collect();
            let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
            Err(format!("{}\n  {}", reasons.join("; "), members.join("\n  ")))
        }
    }
}

fn candidate(disk: &Disk, index: usize) -> Candidate {
    let size = Sectors(disk.sectors());
    let mut candidate = Candidate::new(format!("disk{index}"), size, look(disk));
    loop {
        let needs = candidate.needs();
        if needs.is_empty() {
            return candidate;
        }
        for need in needs {
            let read = read(disk, need.at, need.len);
            candidate.supply(need, read);
        }
    }
}

/// A disk's list of bad blocks, as (device sector, length).
pub(crate) fn bad_blocks(disk: &Disk) -> Vec<(Sector, Sectors)> {
    candidate(disk, 0).bad_block_list().unwrap_or_default()
}

/// The superblock on a disk, if there is one.
pub(crate) fn superblock(disk: &Disk) -> Option<Superblock> {
    match look(disk) {
        Found::Superblock(superblock) => Some(*superblock),
        _ => None,
    }
}

/// Carries out what an assembly says is to be replayed. With `cut`, the power goes after so many writes and flushes: `false`.
pub(crate) fn replay(
    disks: &mut [Disk],
    offered: &[usize],
    assembled: &Assembled,
    cut: Option<u64>,
) -> Result<bool, String> {
    let mut access = Access { disks, offered, left: cut };
    match assembled.carry_out_replay(&mut access, Timestamp::from_secs(1_700_000_050)) {
        Ok(()) => Ok(true),
        Err(ReplayError::Disk(Ended::Cut)) => Ok(false),
        Err(ReplayError::Disk(Ended::Failed(e))) => Err(format!("the replay failed: {e:?}")),
        Err(ReplayError::Superblock(e)) => Err(format!("the replay failed: {e}")),
    }
}

struct Access<'a> {
    disks: &'a mut [Disk],
    offered: &'a [usize],
    /// Writes and flushes until the power goes.
    left: Option<u64>,
}

/// Why a replay ended early.
enum Ended {
    Cut,
    Failed(MemberError),
}

impl Access<'_> {
    fn change(&mut self, candidate: usize) -> Result<&mut Disk, Ended> {
        match &mut self.left {
            Some(0) => return Err(Ended::Cut),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(&mut self.disks[self.offered[candidate]])
    }
}

impl Disks for Access<'_> {
    type Error = Ended;

    fn read(&mut self, candidate: usize, at: Sector, bytes: &mut [u8]) -> Result<(), Ended> {
        self.disks[self.offered[candidate]].read(at.0, bytes).map_err(Ended::Failed)
    }

    fn write(&mut self, candidate: usize, at: Sector, bytes: &[u8]) -> Result<(), Ended> {
        self.change(candidate)?.write(at.0, bytes, Store::Volatile).map_err(Ended::Failed)
    }

    fn flush(&mut self, candidate: usize) -> Result<(), Ended> {
        self.change(candidate)?.flush(u64::MAX);
        Ok(())
    }
}

/// Device sectors of a member's partial parity log, as first and end.
pub(crate) fn log_place(superblock: &Superblock) -> Option<(u64, u64)> {
    let (start, len) = ppl::place(&superblock.array().ppl?, superblock.member().super_offset)?;
    Some((start.0, start.0 + len.0))
}

fn look(disk: &Disk) -> Found {
    let mut unusable = None;
    for version in MetadataVersion::ALL {
        let Some(at) = version.superblock_at(Sectors(disk.sectors())) else { continue };
        let block = match read(disk, at, SUPERBLOCK_SECTORS) {
            Ok(block) => block,
            Err(why) => return Found::Unreadable(why),
        };
        let parsed = RawSuperblock::recognise(&block, version, at).and_then(RawSuperblock::check);
        match parsed {
            Ok(superblock) => return Found::Superblock(Box::<Superblock>::new(superblock)),
            // Version 1 formats share a magic number; a block of another version's place is not this one's.
            Err(SbError::NoMagic { .. } | SbError::WrongPosition { .. } | SbError::UnsupportedVersion { .. }) => {}
            Err(error) => unusable = Some(error),
        }
    }
    unusable.map_or(Found::Nothing, Found::Unusable)
}

fn read(disk: &Disk, at: Sector, len: Sectors) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; len.bytes() as usize];
    disk.read(at.0, &mut bytes).map_err(|e| format!("cannot be read at {at}: {e:?}"))?;
    Ok(bytes)
}
