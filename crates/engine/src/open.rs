//! From a decision to a running array: what assembly found, in the engine's terms.

use std::sync::Arc;

use raidus_assembly::{Assembled, Seat, Seated};
use raidus_layout::Geometry;
use raidus_units::{MemberId, Sector, Sectors};

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
        members: assembled.members.iter().map(|seated| member(seated, trusted_to(assembled))).collect(),
        unsynced_from: assembled.unsynced_from,
        broken: false,
        read_only: assembled.read_only,
    }
}

/// Component address up to which a replacement and the member it replaces are certainly equal. Writes that a crash cut short may
/// have reached only one of them.
fn trusted_to(assembled: &Assembled) -> Sector {
    match (&assembled.geometry, assembled.unsynced_from) {
        (_, None) => Sector(u64::MAX),
        // Counted in array addresses.
        (Geometry::Mirror(g), Some(_)) if !g.is_raid1() => Sector::ZERO,
        (_, Some(from)) => from,
    }
}

fn member(seated: &Seated, trusted_to: Sector) -> Member {
    let facts = seated.superblock.member();
    let state = match seated.seat {
        Seat::InSync(slot) => MemberState::InSync(slot),
        Seat::Rebuilding { slot, valid_to, .. } => MemberState::Rebuilding { slot, valid_to },
        Seat::Replacing { slot, valid_to } => MemberState::Rebuilding { slot, valid_to: valid_to.min(trusted_to) },
        Seat::Spare => MemberState::Spare,
        Seat::Journal => MemberState::Journal,
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

#[cfg(test)]
mod tests {
    use super::*;
    use raidus_assembly::create::{BitmapWish, CreateDevice, CreateParams, NewMember, Written, plan};
    use raidus_assembly::{Area, Candidate, Found, Options, decide};
    use raidus_format::{MdUuid, MetadataVersion, Timestamp};
    use raidus_units::{Level, Slot};

    /// A raid5 with a bitmap as it is created: its last member is rebuilt from the others; and a spare.
    fn created() -> Vec<Candidate> {
        let device = |i: u8| {
            CreateDevice::Present(NewMember {
                name: format!("/dev/d{i}"),
                size: Sectors::from_kib(64 * 1024),
                uuid: MdUuid([i + 1; 16]),
                write_mostly: i == 1,
                failfast: false,
                data_offset: None,
                old_superblocks: Vec::new(),
            })
        };
        let plan = plan(&CreateParams {
            metadata: MetadataVersion::V1_2,
            level: Level::Raid5,
            raid_disks: 3,
            spares: 1,
            devices: (0..4).map(device).collect(),
            chunk: None,
            layout: None,
            size: None,
            data_offset: None,
            bitmap: BitmapWish::Internal { chunk: Some(1 << 20) },
            policy: None,
            write_behind: None,
            assume_clean: false,
            force: false,
            name: None,
            homehost: None,
            uuid: MdUuid([9; 16]),
            now: Timestamp::from_secs(1),
            preferred_minor: 0,
        })
        .expect("a plan");
        let candidate = |m: &raidus_assembly::create::MemberPlan| {
            let found = Found::Superblock(Box::new(m.superblock.clone()));
            let mut candidate = Candidate::new(&m.name, Sectors::from_kib(64 * 1024), found);
            let bitmap = m.writes.iter().find(|w| w.what == Written::Bitmap).expect("a bitmap");
            candidate.bitmap = Area::Bytes(bitmap.bytes.clone());
            candidate
        };
        plan.members.iter().map(candidate).collect()
    }

    #[test]
    fn a_decision_becomes_a_map() {
        let decision = decide(&created(), &Options::default());
        let config = open(decision.start().expect("starts"), Tunables::default(), 7);
        let states: Vec<MemberState> = config.map.members.iter().map(|m| m.state).collect();
        let rebuilding = MemberState::Rebuilding { slot: Slot(2), valid_to: Sector(0) };
        // Members stand in the order of the devices; the one being rebuilt has the highest number.
        let expected = [MemberState::InSync(Slot(0)), MemberState::InSync(Slot(1)), MemberState::Spare, rebuilding];
        assert_eq!(states, expected);
        let holders: Vec<Option<MemberId>> = config.map.slots.iter().map(|s| s.member).collect();
        assert_eq!(holders, [0, 1, 3].map(|id| Some(MemberId(id))));
        assert_eq!(config.map.degraded(), 1);
        assert_eq!(config.region, Sectors(2048));
        assert!(config.map.members[1].write_mostly && !config.map.members[0].write_mostly);
        assert!(config.members.iter().all(|m| m.super_sector == Sector(8)));
        assert_eq!((config.map.unsynced_from, config.map.read_only, config.epoch_seconds), (None, false, 7));
    }
}
