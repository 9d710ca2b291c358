//! Blocks of a member that could not be written, noted and written again.

use raidus_units::{MemberId, Sector, Sectors};

use super::rig::{RAID1, Rig, Setup, want};
use crate::msg::Message;

const BAD: (Sector, Sectors) = (Sector(4096), Sectors(8));

/// A mirror whose member 0 has noted bad blocks.
fn noted() -> Rig {
    let mut rig = Rig::new(Setup { bad_blocks: true, ..RAID1 });
    rig.turn(vec![want(0, &[1])]);
    rig.turn(vec![fails()]);
    rig.settle();
    rig.take_log();
    assert_eq!(bad(&rig), [BAD]);
    rig
}

fn fails() -> (u16, Message) {
    (0, Message::MemberFailed { member: MemberId(0), range: Some(BAD) })
}

fn succeeds() -> (u16, Message) {
    (0, Message::BadBlocksWritten { member: MemberId(0), start: BAD.0, len: BAD.1 })
}

fn bad(rig: &Rig) -> Vec<(Sector, Sectors)> {
    rig.control.status().map.members[0].bad_blocks.clone()
}

#[test]
fn a_note_goes_when_what_was_written_there_is_durable() {
    let mut rig = noted();
    rig.turn(vec![succeeds()]);
    assert_eq!(rig.take_log(), ["m0 flush", "m1 flush"]);
    assert_eq!(bad(&rig), [BAD], "what a power cut loses must stay noted");
    rig.settle();
    assert!(bad(&rig).is_empty());
}

#[test]
fn a_note_stays_where_a_write_failed_again_before_the_flush_ended() {
    let mut rig = noted();
    rig.turn(vec![succeeds()]);
    rig.turn(vec![fails()]);
    rig.settle();
    assert_eq!(bad(&rig), [BAD]);
}
