//! Superblocks.

use crate::{Disk, disks};
use raidus_format::{RawSuperblock, Role};
use raidus_units::{Level, Sector};

#[test]
fn parsing_and_encoding_gives_the_same_bytes() {
    for disk in disks() {
        assert!(disk.sb.encode() == disk.block, "{disk}");
        assert!(disk.sb.checksum().is_right(), "{disk}: {:x?}", disk.sb.checksum());
        assert_eq!(disk.sb.concerns(disk.size), [], "{disk}");
    }
}

#[test]
fn writing_what_a_superblock_says_changes_nothing() {
    for disk @ Disk { sb, block, .. } in disks() {
        let facts = &disk.array;
        // A clean 0.90 superblock that only mdadm has written lacks the kernel's checkpoint.
        if matches!(&**sb, RawSuperblock::V090(raw) if facts.clean && raw.word(43) == 0) {
            continue;
        }
        let mut same = sb.clone();
        same.update(&sb.array_update(), &sb.member_update()).unwrap();
        let written = same.encode();
        let differ: Vec<_> = (0..block.len()).filter(|i| written[*i] != block[*i]).collect();
        assert!(differ.is_empty(), "{disk}: bytes {differ:?}");
    }
}

#[test]
fn the_array_is_what_the_kernel_said() {
    for what in disks() {
        let (m, facts) = (&what.case.manifest, &what.array);
        assert_eq!(facts.uuid.to_string(), m.uuid, "{what}");
        if facts.metadata.is_v1() {
            // mdadm leaves the host out where the whole would not fit with a NUL behind it.
            let name = m.create.split_once("--name=").unwrap().1.split(' ').next().unwrap();
            let full = format!("golden:{name}");
            assert_eq!(facts.name, if full.len() < 32 { &full } else { name }, "{what}");
        }
        // A disk that is no longer in the array says what was true when it left.
        if !what.said().is_in_array() {
            continue;
        }
        // Where the machine was killed while reshaping, the kernel was asked before.
        if m.scenario == "reshapecrash" {
            continue;
        }
        // While reshaping, the kernel shows what the array will be.
        let (level, layout, chunk) = match facts.reshape {
            Some(reshape) => (Level::from_number(reshape.new_level), reshape.new_layout, reshape.new_chunk),
            None => (facts.level, facts.layout, facts.chunk),
        };
        assert_eq!(level.unwrap().name(), m.level, "{what}");
        assert_eq!(facts.raid_disks, m.raid_disks, "{what}");
        assert_eq!(chunk.bytes(), m.chunk_bytes, "{what}");
        assert_eq!(facts.size.kib(), m.component_size_kib, "{what}");
        // The kernel shows -1 where the layout of a raid0 is not in the superblock.
        if level != Some(Level::Raid0) || facts.raid0_layout_known {
            assert_eq!(i64::from(layout), m.layout, "{what}");
        }
        // It went on for a moment after the kernel was asked.
        assert_eq!(facts.reshape.is_some(), m.reshape_position.is_some(), "{what}");
        if let (Some(reshape), Some(then)) = (facts.reshape, m.reshape_position) {
            assert!(if reshape.backwards { reshape.position.0 <= then } else { reshape.position.0 >= then }, "{what}");
        }
        // A spare is not written when the array goes clean, nor is a failed member; a killed machine leaves it dirty.
        if what.member.role != Role::Spare && what.said().state != "faulty" && m.after_crash.is_none() {
            assert_eq!(facts.resync.map(|p| p.0), m.resync_start, "{what}");
        }
        assert_eq!(facts.bitmap.map_or("none".into(), |offset| format!("{offset:+}")), m.bitmap.location, "{what}");
        assert_eq!(facts.ppl.is_some(), m.consistency_policy == "ppl", "{what}");
        assert_eq!(facts.journal, m.consistency_policy == "journal", "{what}");
    }
}

#[test]
fn the_member_is_what_the_kernel_said() {
    for what in disks() {
        let (m, facts) = (what.said(), &what.member);
        let Some(data_offset) = m.data_offset_sectors else { continue };
        assert_eq!(facts.data_offset, Sector(data_offset), "{what}");
        assert_eq!(facts.write_mostly, m.state.contains("write_mostly"), "{what}");
        assert_eq!(facts.failfast, m.state.contains("failfast"), "{what}");
        assert_eq!(facts.replacement, m.state.contains("replacement") && !m.state.contains("want"), "{what}");
        // A failed member's own superblock still calls it a healthy one. Where the machine was killed while reshaping,
        // the kernel was asked before the new members came in.
        if m.state.contains("faulty") || what.case.manifest.scenario == "reshapecrash" {
            continue;
        }
        let is_v1 = what.version().is_v1();
        match facts.role {
            Role::Slot(slot) => assert_eq!(Some(slot.0), m.slot_number(), "{what}"),
            Role::Journal => assert_eq!(m.slot, "journal", "{what}"),
            // 0.90 cannot tell a rebuilding device from a spare.
            Role::Spare if !is_v1 => assert!(m.state.contains("spare"), "{what}"),
            role => assert_eq!((role, &m.slot), (Role::Spare, &"none".into()), "{what}"),
        }
        if is_v1 && facts.role.slot().is_some() {
            assert_eq!(facts.recovery.map(|r| r.offset.0), m.recovery_start, "{what}");
        }
    }
}
