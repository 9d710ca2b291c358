//! From a decision to a running array: what assembly found, in the engine's terms.

use std::sync::Arc;

use raidus_assembly::{Assembled, Seat, Seated};
use raidus_units::{MemberId, Sectors};

use crate::config::{ArrayConfig, MemberSetup, Tunables};
use crate::map::{Member, MemberMap, MemberState, SlotEntry};

/// Size of a lease region where no bitmap chunk gives one: 64 MiB.
pub const REGION_DEFAULT: Sectors = Sectors::from_kib(64 * 1024);

/// What to start the engine with. Member ids are the indices into [`Assembled::members`], so the driver opens
/// `assembled.members[id].candidate` for member `id`. `epoch_seconds` is the wall clock at `Nanos(0)`.
pub fn open(assembled: &Assembled, tunables: Tunables, epoch_seconds: u64) -> ArrayConfig {
    let bitmap = assembled.bitmap.clone();
    let region = bitmap.as_ref().map_or(REGION_DEFAULT, |b| Sectors::from_bytes_floor(b.superblock.chunk()));
    ArrayConfig {
        geometry: assembled.geometry.clone(),
        map: Arc::new(map(assembled)),
        members: assembled.members.iter().map(setup).collect(),
        bitmap,
        region,
        tunables,
        epoch_seconds,
    }
}

fn map(assembled: &Assembled) -> MemberMap {
    let empty = SlotEntry { member: None, replacement: None };
    let mut slots = vec![empty; usize::from(assembled.geometry.raid_disks())];
    for (id, seated) in (0..).map(MemberId).zip(&assembled.members) {
        let Some(entry) = seated.seat.slot().and_then(|s| slots.get_mut(s.index())) else { continue };
        match seated.seat {
            Seat::Replacing { .. } => entry.replacement = Some(id),
            _ => entry.member = Some(id),
        }
    }
    MemberMap {
        epoch: 0,
        slots,
        members: assembled.members.iter().map(member).collect(),
        unsynced_from: assembled.unsynced_from,
        broken: false,
        read_only: assembled.read_only,
    }
}

fn member(seated: &Seated) -> Member {
    let facts = seated.superblock.member();
    let state = match seated.seat {
        Seat::InSync(slot) => MemberState::InSync(slot),
        Seat::Rebuilding { slot, valid_to, .. } | Seat::Replacing { slot, valid_to } => {
            MemberState::Rebuilding { slot, valid_to }
        }
        Seat::Spare => MemberState::Spare,
    };
    Member {
        state,
        data_offset: facts.data_offset,
        write_mostly: facts.write_mostly,
        bad_blocks: seated.bad_blocks.clone(),
    }
}

fn setup(seated: &Seated) -> MemberSetup {
    MemberSetup { superblock: seated.superblock.clone(), super_sector: seated.superblock.member().super_offset }
}
