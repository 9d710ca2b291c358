//! Bad-block logs: a write that fails on some blocks of a member does not fail the member if it can be noted where. Reads then go
//! elsewhere; a later write that succeeds there takes the note away, but only when it is durable: were the power cut before, blocks with
//! old content would not be noted any more.

use raidus_units::{MemberId, Sector, Sectors};

use super::Control;
use super::flush::Caller;
use super::life::Life;
use super::status::Event;
use crate::map::MemberState;

/// A range of a member, in device sectors.
type Range = (MemberId, Sector, Sectors);

/// Blocks known as bad that have been written.
#[derive(Debug, Default)]
pub(super) struct Rewritten {
    /// Not durable yet.
    waiting: Vec<Range>,
    /// A flush that makes them durable is asked for, or under way.
    flushing: Vec<Range>,
}

impl Rewritten {
    fn forget(&mut self, member: MemberId, start: Sector, len: Sectors) {
        let is_apart = |(of, at, n): &Range| *of != member || *at >= start + len || start >= *at + *n;
        self.waiting.retain(is_apart);
        self.flushing.retain(is_apart);
    }
}

impl Control {
    /// Notes a range of a member as bad, if its metadata has room for that. Whether the range is noted, now or before.
    pub(super) fn record_bad_blocks(&mut self, member: MemberId, start: Sector, len: Sectors) -> bool {
        let Some(m) = self.map.members.get(member.index()) else { return false };
        if !matches!(m.state, MemberState::InSync(_) | MemberState::Rebuilding { .. }) {
            return false;
        }
        self.rewritten.forget(member, start, len);
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
        self.rewritten.waiting.push((member, start, len));
    }

    /// Asks for the flush that blocks written again need, unless one is on its way. They stay noted if the array stops before.
    pub(super) fn flush_rewritten(&mut self) {
        let rewritten = &mut self.rewritten;
        if rewritten.waiting.is_empty() || !rewritten.flushing.is_empty() || self.life != Life::Running {
            return;
        }
        rewritten.flushing = std::mem::take(&mut rewritten.waiting);
        self.flushes.request(Caller::Rewritten);
    }

    /// That flush ended.
    pub(super) fn on_rewritten_flushed(&mut self, succeeded: bool) {
        for (member, start, len) in std::mem::take(&mut self.rewritten.flushing) {
            if succeeded && self.life == Life::Running {
                self.clear_bad_blocks(member, start, len);
            }
        }
    }

    fn clear_bad_blocks(&mut self, member: MemberId, start: Sector, len: Sectors) {
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
