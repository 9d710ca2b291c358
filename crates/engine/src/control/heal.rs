//! Blocks that clients found unreadable: each is looked at once more with no write beside it, found from the rest, and written
//! anew. How often that happens to a member is counted; too often, and it is failed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use raidus_layout::Geometry;
use raidus_units::{MemberId, Nanos, Sector, Sectors};

use super::Control;
use super::life::Life;
use super::status::Event;
use super::sync::windows::Window;
use crate::map::MemberMap;
use crate::msg::ShardId;
use crate::sync::{Healed, SyncWork};

/// What is looked at in one go.
const BLOCK: u64 = 8;
/// Blocks that wait; more are left to the next check, or to whoever reads them next.
const WAITING_MAX: usize = 1024;
/// Blocks under way at once.
const OUT_MAX: usize = 4;
/// md's `max_read_errors`.
const MOST_MIRRORS: u32 = 20;
/// md fails a member of a parity array after as many errors in a row as it has stripes in its cache.
const MOST_PARITY: u32 = 256;
const HOUR: Nanos = Nanos::from_millis(3_600_000);

#[derive(Debug)]
pub(super) struct Heals {
    waiting: VecDeque<u64>,
    known: BTreeSet<u64>,
    out: BTreeMap<u64, (u64, Window)>,
    members: Vec<ReadErrors>,
    most: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ReadErrors {
    /// Blocks, halved with every hour.
    recent: u32,
    last: Nanos,
}

impl Heals {
    pub fn new(map: &MemberMap) -> Heals {
        Heals {
            waiting: VecDeque::new(),
            known: BTreeSet::new(),
            out: BTreeMap::new(),
            members: vec![ReadErrors::default(); map.members.len()],
            most: None,
        }
    }

    pub fn is_idle(&self) -> bool {
        self.out.is_empty()
    }

    pub fn set_most(&mut self, most: u32) {
        self.most = Some(most);
    }

    /// Whether the window was one of these.
    pub fn on_done(&mut self, window: u64) -> bool {
        let Some((block, _)) = self.out.remove(&window) else { return false };
        self.known.remove(&block);
        true
    }

    pub fn on_barred(&mut self, shard: ShardId, window: u64) {
        if let Some((_, window)) = self.out.get_mut(&window) {
            window.barring.remove(&shard);
        }
    }

    fn note(&mut self, block: u64) {
        if self.waiting.len() < WAITING_MAX && self.known.insert(block) {
            self.waiting.push_back(block);
        }
    }

    fn forget_waiting(&mut self) {
        for block in self.waiting.drain(..) {
            self.known.remove(&block);
        }
    }

    /// Counts a block; whether there were too many.
    fn count(&mut self, now: Nanos, healed: &Healed, most: u32) -> bool {
        let member = healed.member.index();
        if self.members.len() <= member {
            self.members.resize(member + 1, ReadErrors::default());
        }
        let errors = &mut self.members[member];
        let hours = u32::try_from(now.since(errors.last).0 / HOUR.0).unwrap_or(u32::MAX);
        errors.recent = errors.recent.checked_shr(hours).unwrap_or(0) + 1;
        errors.last = now;
        errors.recent > most
    }
}

impl Control {
    pub(super) fn on_read_error(&mut self, start: Sector, len: Sectors) {
        if !self.redundant() {
            return;
        }
        for block in start.0 / BLOCK..(start.0 + len.0).div_ceil(BLOCK) {
            self.heals.note(block);
        }
    }

    /// Has blocks looked at, a few at a time.
    pub(super) fn issue_heals(&mut self) {
        if self.life != Life::Running || self.broken || self.map.read_only {
            self.heals.forget_waiting();
        }
        // One could wait for a write that waits for the pause, which waits for it.
        if self.pause.is_some() {
            return self.send_heals();
        }
        while self.settled() && self.heals.out.len() < OUT_MAX {
            let Some(block) = self.heals.waiting.pop_front() else { break };
            let lo = Sector(block * BLOCK);
            let hi = (lo + Sectors(BLOCK)).min(self.agreement_end());
            let number = self.sync.next_window;
            let window = self.open_window(SyncWork::Look, (lo, hi), vec![(lo, hi - lo)]);
            self.heals.out.insert(number, (block, window));
        }
        self.send_heals();
    }

    fn send_heals(&mut self) {
        let out = &mut self.out;
        self.heals.out.values_mut().for_each(|(_, window)| window.send_job(out));
    }

    /// By member: sectors that were written anew since it was added.
    pub(super) fn read_errors(&self) -> Vec<u64> {
        self.superblocks.read_errors().iter().map(|n| u64::from(*n)).collect()
    }

    pub(super) fn max_read_errors(&self) -> u32 {
        let usual = if matches!(self.geometry, Geometry::Parity(_)) { MOST_PARITY } else { MOST_MIRRORS };
        self.heals.most.unwrap_or(usual)
    }

    /// Blocks were written anew, here or in a sync.
    pub(super) fn count_healed(&mut self, now: Nanos, healed: &[Healed]) {
        let most = self.max_read_errors();
        let mut worn_out: BTreeSet<MemberId> = BTreeSet::new();
        for h in healed {
            self.on_bad_blocks_written(h.member, h.start, h.len);
            self.superblocks.add_read_errors(h.member, h.len.0);
            self.events.push_back(Event::ReadErrorCorrected { member: h.member, start: h.start, len: h.len });
            if self.heals.count(now, h, most) {
                worn_out.insert(h.member);
            }
        }
        for member in worn_out {
            if self.can_bear(member) {
                self.take_out(member);
            }
        }
    }
}
