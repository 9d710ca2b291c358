//! Rounds of metadata writes: the one place where superblocks and bitmap pages are written.
//!
//! A round goes through its phases in order; each is written to all members at once and ends when all of them have answered. A
//! member that fails is taken out of the map, the round is dropped, and the next one records the failure along with what
//! the dropped one was for.

use std::collections::BTreeMap;

use raidus_format::bitmap::BITMAP_PAGE;
use raidus_units::{MemberId, Nanos, SECTOR_BYTES, Sector, Sectors};

use super::Control;
use super::bitmap::Page;
use super::ppl::EmptyLog;
use super::superblock::{Composed, Content, Count};
use crate::io::{IoToken, MemberError, MemberOp};
use crate::map::Member;

#[derive(Debug)]
pub(super) struct Round {
    plan: Plan,
    phase: Phase,
    pending: BTreeMap<IoToken, MemberId>,
    failed: Vec<MemberId>,
    /// The event count before it.
    before: Count,
    /// Members that were introduced, and superblocks that are written last.
    introduced: Vec<MemberId>,
    late: Vec<Composed>,
    /// Logs emptied by it say that parity is right.
    trusted: bool,
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    /// What the superblocks are to say, if they are to be written.
    content: Option<Content>,
    /// The map that is recorded by it.
    epoch: u64,
    /// Bits being cleared go in this round.
    clear: bool,
}

/// In the order they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Bits found when the array was started, to all members, before anything calls the bitmap fresh.
    Seed,
    /// Bitmap superblocks: the new events, `events_cleared`.
    BitmapSuperblocks,
    /// Partial parity logs of earlier sessions are emptied, before superblocks may say dirty.
    Logs,
    /// Bad-block logs that have changed, before superblocks say that there are any.
    BadBlocks,
    /// The superblocks of members that get a slot, before others say that they have it.
    Newcomers,
    /// The members' superblocks.
    Superblocks,
    /// Those of members that the others did not list before: the newest superblock must not be one that the others contradict.
    Latecomers,
    /// Bitmap pages with new or cleared bits.
    Pages,
}

impl Control {
    /// Notes the end of a round's write; other I/Os are those of a round that was given up.
    pub(super) fn on_round_io(&mut self, token: IoToken, result: Result<(), MemberError>) {
        let Some(round) = &mut self.round else { return };
        let Some(member) = round.pending.remove(&token) else { return };
        if result.is_err() {
            round.failed.push(member);
        }
    }

    /// Starts a round if something has to be written and none is under way. Returns whether it has ended already.
    pub(super) fn start_round(&mut self, now: Nanos) -> bool {
        if self.round.is_some() {
            return false;
        }
        let Some(plan) = self.plan_round(now) else { return false };
        let before = self.superblocks.counted();
        if let Some(content) = &plan.content {
            self.superblocks.count(content, self.map.unsynced_from.is_none());
            // From here on some member may say clean.
            self.marked &= content.dirty;
        }
        self.round = Some(Round {
            plan,
            phase: Phase::Seed,
            pending: BTreeMap::new(),
            failed: Vec::new(),
            before,
            introduced: Vec::new(),
            late: Vec::new(),
            trusted: false,
        });
        self.enter(Phase::Seed);
        self.advance_round(now);
        self.round.is_none()
    }

    /// Goes on with the round if the present phase has ended.
    pub(super) fn advance_round(&mut self, now: Nanos) {
        while let Some(round) = self.round.take_if(|round| round.pending.is_empty()) {
            if !round.failed.is_empty() {
                self.drop_round(round);
                return;
            }
            let next = match round.phase {
                Phase::Seed => Some(Phase::BitmapSuperblocks),
                Phase::BitmapSuperblocks => Some(Phase::Logs),
                Phase::Logs => Some(Phase::BadBlocks),
                Phase::BadBlocks => Some(Phase::Newcomers),
                // Another may have got a slot meanwhile.
                Phase::Newcomers if self.has_newcomers(&round) => Some(Phase::Newcomers),
                Phase::Newcomers => Some(Phase::Superblocks),
                Phase::Superblocks => Some(Phase::Latecomers),
                Phase::Latecomers => Some(Phase::Pages),
                Phase::Pages => None,
            };
            self.leave(now, &round);
            if let Some(phase) = next {
                self.round = Some(round);
                self.enter(phase);
            }
        }
    }

    /// What has to be written now.
    fn plan_round(&self, now: Nanos) -> Option<Plan> {
        if self.broken || self.sealed || !self.redundant() {
            return None;
        }
        let wanted = self.wanted();
        let record = self.failures.to_record();
        let go_dirty = wanted && !self.marked;
        let go_clean = self.marked && self.data_clean && !wanted && self.likes_clean();
        let more = record || self.degraded();
        let level = self.superblocks.is_uneven() || more && self.superblocks.is_taken_back();
        let content = (record || go_dirty || go_clean).then(|| Content {
            dirty: !level && (wanted || !self.data_clean),
            toggle: !level && !more,
            level,
            utime: self.wall_seconds(now),
        });
        let clear = self.clear_ready && !self.degraded();
        let pages = self.bitmap.as_ref().is_some_and(|b| b.has_pages(clear));
        (content.is_some() || pages).then_some(Plan { content, epoch: self.map.epoch, clear })
    }

    /// Issues a phase's writes, if there are any.
    fn enter(&mut self, phase: Phase) {
        let Some(mut round) = self.round.take() else { return };
        round.phase = phase;
        match phase {
            Phase::Seed => self.write_seed(&mut round),
            Phase::BitmapSuperblocks => self.write_bitmap_superblocks(&mut round),
            Phase::Logs => self.empty_logs(&mut round),
            Phase::BadBlocks => self.write_bad_blocks(&mut round),
            Phase::Newcomers => self.introduce_newcomers(&mut round),
            Phase::Superblocks => self.write_superblocks(&mut round),
            Phase::Latecomers => {
                let late = std::mem::take(&mut round.late);
                self.write_composed(&mut round, late);
            }
            Phase::Pages => self.write_pages(&mut round),
        }
        self.round = Some(round);
    }

    /// What is true once a phase is on every member.
    fn leave(&mut self, now: Nanos, round: &Round) {
        let bitmap = self.bitmap.as_mut();
        match (round.phase, round.plan.content) {
            (Phase::Seed, Some(_)) => bitmap.filter(|b| b.unseeded()).into_iter().for_each(|b| b.end_seed()),
            (Phase::Latecomers, Some(content)) if content.level => self.superblocks.on_level(),
            (Phase::Latecomers, Some(content)) => {
                self.failures.on_said(round.plan.epoch, self.superblocks.must_say_twice());
                self.marked = content.dirty;
                if !self.touched && !self.map.members.is_empty() {
                    self.touched = true;
                    bitmap.into_iter().for_each(|b| b.adopt_strays(now));
                }
            }
            (Phase::Logs, _) => self.logs.iter_mut().for_each(|logs| logs.on_emptied(round.trusted, true)),
            (Phase::BadBlocks, _) => self.logs_written.clear(),
            (Phase::Pages, _) => bitmap.into_iter().for_each(|b| b.end_pages()),
            _ => {}
        }
    }

    /// Some members could not be written to.
    fn drop_round(&mut self, round: Round) {
        self.bad_logs.append(&mut self.logs_written);
        self.logs.iter_mut().for_each(|logs| logs.on_emptied(false, false));
        if !matches!(round.phase, Phase::Superblocks | Phase::Latecomers | Phase::Pages) {
            self.superblocks.uncount(round.before);
        }
        if let Some(bitmap) = &mut self.bitmap {
            bitmap.abort_pages();
        }
        for member in round.failed {
            // Without this member the array cannot live, and with it metadata cannot be kept true.
            if !self.fail(member) {
                self.break_array();
            }
        }
    }

    fn write_seed(&mut self, round: &mut Round) {
        let Some(bitmap) = self.bitmap.as_mut().filter(|b| b.unseeded()) else { return };
        if round.plan.content.is_some() {
            let pages = bitmap.begin_seed();
            self.write_bitmap(round, pages);
        }
    }

    fn write_bitmap_superblocks(&mut self, round: &mut Round) {
        let Some(bitmap) = &mut self.bitmap else { return };
        let events = self.superblocks.events();
        let clear = round.plan.clear && bitmap.is_clearing();
        if round.plan.content.is_some() || clear && bitmap.needs_superblock(events) {
            let page = bitmap.superblock_page(events, clear);
            self.write_bitmap(round, vec![(0, page)]);
        }
    }

    fn empty_logs(&mut self, round: &mut Round) {
        if round.plan.content.is_none() {
            return;
        }
        round.trusted = self.map.unsynced_from.is_none();
        for EmptyLog { member, start, len, header } in self.logs_to_empty() {
            let rest = Sectors(header.len() as u64 / SECTOR_BYTES);
            let zero = MemberOp::WriteZeroes { sector: start + rest, len: len - rest, unmap: false, fua: true };
            round.pending.insert(self.out.io(member, zero), member);
            self.write_meta(round, member, start, header);
        }
    }

    fn has_newcomers(&self, round: &Round) -> bool {
        round.plan.content.is_some() && !self.superblocks.newcomers(&self.map).is_empty()
    }

    fn introduce_newcomers(&mut self, round: &mut Round) {
        let Some(content) = round.plan.content else { return };
        let composed = self.superblocks.introduce(&self.map, &content, &self.sync.by_bitmap, round.before);
        round.introduced.extend(composed.iter().map(|c| c.member));
        self.write_composed(round, composed);
    }

    fn write_superblocks(&mut self, round: &mut Round) {
        let Some(content) = round.plan.content else { return };
        self.counters.superblock_rounds += 1;
        let composed = self.superblocks.compose(&self.map, &content, &self.sync.by_bitmap);
        let is_late = |c: &Composed| c.arrived || round.introduced.contains(&c.member);
        let (late, first) = composed.into_iter().partition(is_late);
        round.late = late;
        self.write_composed(round, first);
    }

    fn write_composed(&mut self, round: &mut Round, superblocks: Vec<Composed>) {
        for composed in superblocks {
            match composed.block {
                Some(data) => self.write_meta(round, composed.member, composed.sector, data),
                None => round.failed.push(composed.member),
            }
        }
    }

    fn write_pages(&mut self, round: &mut Round) {
        let Some(bitmap) = &mut self.bitmap else { return };
        if round.plan.clear && std::mem::take(&mut self.clear_ready) {
            bitmap.clear();
        }
        let pages = bitmap.begin_pages();
        self.write_bitmap(round, pages);
    }

    /// Writes pages of the bitmap area to every member in use.
    fn write_bitmap(&mut self, round: &mut Round, pages: Vec<Page>) {
        self.counters.bitmap_pages += pages.len() as u64;
        for member in self.members_in_use() {
            for (page, data) in &pages {
                match self.place_of_page(member, *page) {
                    Some((sector, len)) => self.write_meta(round, member, sector, data[..len].into()),
                    None => round.failed.push(member),
                }
            }
        }
    }

    /// Where a page of the bitmap is on a member, and how many bytes of it may be written.
    fn place_of_page(&self, member: MemberId, page: u64) -> Option<(Sector, usize)> {
        const PAGE: Sectors = Sectors(BITMAP_PAGE as u64 / SECTOR_BYTES);
        let (start, room) = self.superblocks.bitmap_area(member)?;
        let before = Sectors(PAGE.0 * page);
        let len = room.saturating_sub(before).min(PAGE);
        let min = self.bitmap.as_ref()?.page_sectors_min(page);
        (len >= min).then_some((start.checked_add(before)?, len.bytes() as usize))
    }

    fn write_bad_blocks(&mut self, round: &mut Round) {
        if round.plan.content.is_none() {
            return;
        }
        // One that changes again before the round ends goes into the next.
        for member in std::mem::take(&mut self.bad_logs) {
            let Some(m) = self.map.members.get(member.index()).filter(|m| m.writable()) else { continue };
            match self.superblocks.bad_block_log(member, &m.bad_blocks) {
                Some((sector, data)) => self.write_meta(round, member, sector, data),
                None => round.failed.push(member),
            }
            self.logs_written.insert(member);
        }
    }

    fn write_meta(&mut self, round: &mut Round, member: MemberId, sector: Sector, data: Box<[u8]>) {
        let token = self.out.io(member, MemberOp::WriteMeta { sector, data });
        round.pending.insert(token, member);
    }

    /// The members that hold data.
    pub(super) fn members_in_use(&self) -> Vec<MemberId> {
        let used = |(_, member): &(usize, &Member)| member.writable();
        self.map.members.iter().enumerate().filter(used).map(|(id, _)| MemberId(id as u16)).collect()
    }
}
