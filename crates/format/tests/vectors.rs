//! Blocks with known bytes, worked out from the format alone.

use raidus_format::{
    ArrayUpdate, BadBlockArea, DeviceState, Geometry, MdUuid, MemberUpdate, MetadataVersion, NewSuperblock, ResyncMark,
    Role, Superblock, Timestamp,
};
use raidus_units::{Sector, Sectors, Slot};

/// Bytes `first`, `first + 1`, …
fn counting(first: u8) -> MdUuid {
    MdUuid(core::array::from_fn(|i| first + i as u8))
}

fn raid5_of_three() -> NewSuperblock {
    let slot = |s| Some(DeviceState::new(Role::Slot(Slot(s))));
    NewSuperblock {
        metadata: MetadataVersion::V1_2,
        uuid: counting(0),
        name: "host:0".into(),
        ctime: Timestamp::from_secs(1_700_000_000),
        device_uuid: counting(0x10),
        super_offset: Sector(8),
        data_offset: Sector(2048),
        data_size: Sectors(79872),
        bad_block_log: Some(BadBlockArea { offset: 16, size: Sectors(8), shift: 0 }),
        preferred_minor: 0,
        array: ArrayUpdate {
            events: 18,
            utime: Timestamp::from_secs(1_700_000_100),
            resync: ResyncMark::Clean { good_to: None },
            devices: vec![slot(0), slot(1), None, slot(2)],
            bitmap: None,
            ppl: None,
            journal: false,
            reshape: None,
            geometry: Geometry {
                level: 5,
                layout: 2,
                raid0_layout_known: false,
                size: Sectors(79872),
                chunk: Sectors(128),
                raid_disks: 3,
            },
        },
        member: MemberUpdate::new(1),
    }
}

#[test]
fn a_created_superblock_has_the_known_checksum() {
    let sb = Superblock::create(&raid5_of_three()).unwrap();
    assert_eq!(sb.checksum().stored, 0x70d5_c2a9);
    let again = Superblock::parse(&sb.encode(), MetadataVersion::V1_2, Sector(8)).unwrap();
    assert_eq!(again, sb);
    assert_eq!(again.member().role, Role::Slot(Slot(1)));
    assert_eq!(again.array().name, "host:0");
    assert_eq!(again.roles().len(), 128);
}

#[test]
fn restating_a_superblock_changes_nothing() {
    let sb = Superblock::create(&raid5_of_three()).unwrap();
    let mut same = sb.clone();
    same.update(&sb.array_update(), &sb.member_update()).unwrap();
    assert_eq!(same.encode(), sb.encode());
}
