//! From the disks to a running array's configuration, the way the runtime goes: look for superblocks, read what they point to,
//! decide.

use raidus_assembly::{Assembled, Candidate, Decision, Found, Options, Verdict, decide};
use raidus_format::{MetadataVersion, RawSuperblock, SUPERBLOCK_SECTORS, SbError, Superblock};
use raidus_units::{Sector, Sectors};

use crate::disk::Disk;

/// Looks at the disks with these indices, in this order, and decides.
pub(crate) fn assemble(disks: &[Disk], offered: &[usize]) -> Decision {
    let candidates: Vec<Candidate> = offered.iter().map(|i| candidate(&disks[*i], *i)).collect();
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
