//! Bad-block logs: a write that fails on some blocks of a member does not fail the member if it can be noted where. Reads then go
//! elsewhere; a later write that succeeds there takes the note away.

use raidus_units::{MemberId, Sector, Sectors};

use super::Control;
use super::status::Event;
use crate::map::MemberState;

impl Control {
    /// Notes a range of a member as bad, if its metadata has room for that. Whether the range is noted, now or before.
    pub(super) fn record_bad_blocks(&mut self, member: MemberId, start: Sector, len: Sectors) -> bool {
        let Some(m) = self.map.members.get(member.index()) else { return false };
        if !matches!(m.state, MemberState::InSync(_) | MemberState::Rebuilding { .. }) {
            return false;
        }
        if m.is_all_bad(start, len) {
            return true;
        }
        let mut noted = m.clone();
        noted.add_bad(start, len);
        if self.superblocks.bad_block_log(member, &noted.bad_blocks).is_none() {
            return false;
        }
        self.change_bad_blocks(member, noted.bad_blocks);
        self.events.push_back(Event::BadBlocks { member, start, len });
        true
    }

    /// Blocks that were known as bad have been written.
    pub(super) fn on_bad_blocks_written(&mut self, member: MemberId, start: Sector, len: Sectors) {
        let Some(m) = self.map.members.get(member.index()).filter(|m| m.overlaps_bad(start, len)) else { return };
        let mut noted = m.clone();
        noted.remove_bad(start, len);
        // Cutting a piece out of a range takes one entry more.
        if self.superblocks.bad_block_log(member, &noted.bad_blocks).is_some() {
            self.change_bad_blocks(member, noted.bad_blocks);
        }
    }

    fn change_bad_blocks(&mut self, member: MemberId, ranges: Vec<(Sector, Sectors)>) {
        let epoch = self.change_map(|map| map.members[member.index()].bad_blocks = ranges);
        self.failures.on_change(epoch);
        self.superblocks.touch_log(member);
        self.bad_logs.insert(member);
    }
}
