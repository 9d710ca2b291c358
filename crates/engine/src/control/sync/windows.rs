//! Cutting an action into windows, and handing them out.

use std::collections::BTreeSet;
use std::sync::Arc;

use raidus_layout::{Geometry, Holds};
use raidus_units::{Nanos, Sector, Sectors, Slot};

use super::super::bitmap::Bitmap;
use super::super::outbox::Outbox;
use super::{Control, Run};
use crate::map::MemberState;
use crate::msg::{Message, Region, ShardId, zone_owner, zone_sectors};
use crate::sync::{Ranges, SyncAction, SyncJob, SyncWork};

/// A part of the action that is under way.
#[derive(Debug)]
pub(in super::super) struct Window {
    pub lo: Sector,
    pub hi: Sector,
    /// Shards that may still be writing there.
    pub barring: BTreeSet<ShardId>,
    /// Goes to the shard when nobody writes there any more.
    job: Option<(ShardId, SyncJob)>,
}

impl Window {
    /// Sends the job if nobody writes in the window any more.
    pub fn send_job(&mut self, out: &mut Outbox) {
        if let Some((shard, job)) = self.job.take_if(|_| self.barring.is_empty()) {
            out.send(shard, Message::Sync(job));
        }
    }
}

/// Which bits of the bitmap an action goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guide {
    /// Those kept for a resync.
    Needed,
    /// All.
    Set,
}

impl Guide {
    /// The first region from `from` on that has to be looked at.
    fn next(self, bitmap: &Bitmap, from: Region) -> Option<Region> {
        match self {
            Guide::Needed => bitmap.next_needed(from),
            Guide::Set => bitmap.next_set(from),
        }
    }
}

impl Control {
    pub(super) fn has_room(&self, run: &Run) -> bool {
        run.windows.len() < self.sync.speed.depth(self.tunables.shards)
    }

    /// Sends out the windows that may be under way, and the jobs of those that nobody writes in.
    pub(super) fn issue_windows(&mut self, now: Nanos) {
        // Shards must plan by the newest map before they are told to bring members to what it says.
        let settled = self.settled();
        while settled && self.sync.speed.next_at() <= now && self.issue_window(now) {}
        let Some(run) = &mut self.sync.running else { return };
        let out = &mut self.out;
        run.windows.values_mut().for_each(|window| window.send_job(out));
    }

    /// Issues one window. Ranges that need no work are passed on the way.
    fn issue_window(&mut self, now: Nanos) -> bool {
        let Some(run) = &self.sync.running else { return false };
        if run.stop.is_some() || run.next >= run.end || !self.has_room(run) {
            return false;
        }
        let (action, lo) = (run.action, run.next);
        let hi = self.window_end(run);
        let ranges = self.ranges_to_sync(action, lo, hi);
        let number = self.sync.next_window;
        let Some(run) = &mut self.sync.running else { return false };
        run.next = hi;
        if ranges.is_empty() {
            run.on_done(lo, hi);
            return true;
        }
        let window = self.open_window(action.work(), (lo, hi), ranges);
        if let Some(run) = &mut self.sync.running {
            run.windows.insert(number, window);
        }
        self.sync.speed.on_issued(now, hi - lo);
        true
    }

    /// Numbers a window and, on mirrored levels, has its ranges barred.
    pub(in super::super) fn open_window(
        &mut self,
        work: SyncWork,
        (lo, hi): (Sector, Sector),
        ranges: Vec<(Sector, Sectors)>,
    ) -> Window {
        let number = self.sync.next_window;
        self.sync.next_window += 1;
        let ranges: Ranges = Arc::from(ranges);
        let job = SyncJob { window: number, work, ranges: ranges.clone() };
        let shards = self.tunables.shards;
        let (shard, barring) = match &self.geometry {
            Geometry::Parity(g) => (zone_owner(lo, g.chunk(), shards), BTreeSet::new()),
            _ => {
                self.out.broadcast(shards, &Message::SyncBar { window: number, ranges });
                (ShardId((number % u64::from(shards.max(1))) as u16), (0..shards).map(ShardId).collect())
            }
        };
        Window { lo, hi, barring, job: Some((shard, job)) }
    }

    /// A window does not cross a zone, since one shard does it. Regions that need no work are one window.
    fn window_end(&self, run: &Run) -> Sector {
        if let Some(next) = self.next_to_sync(run).filter(|next| *next > run.next) {
            return next;
        }
        let longest = self.tunables.sync_window.max(Sectors(8));
        let mut end = (run.next + longest).min(run.end);
        if let Some((guide, bitmap)) = self.guide(run) {
            // Up to the first region that needs no work.
            let mut region = run.next.0 / self.region.0 + 1;
            while region * self.region.0 < end.0 && guide.next(bitmap, Region(region)) == Some(Region(region)) {
                region += 1;
            }
            end = end.min(Sector(region * self.region.0));
        }
        if let Geometry::Parity(g) = &self.geometry {
            let zone = zone_sectors(g.chunk());
            end = end.min(Sector((run.next + Sectors(1)).from_start().round_up(zone).0));
        }
        end
    }

    /// Where the bitmap says that the next work is, if it guides the action.
    fn next_to_sync(&self, run: &Run) -> Option<Sector> {
        let (guide, bitmap) = self.guide(run)?;
        let next = guide.next(bitmap, Region(run.next.0 / self.region.0));
        Some(next.map_or(run.end, |r| Sector(r.0.saturating_mul(self.region.0)).min(run.end)))
    }

    /// What guides the action, if it counts in the same addresses as the bitmap.
    fn guide(&self, run: &Run) -> Option<(Guide, &Bitmap)> {
        let same = !matches!((&self.geometry, run.action), (Geometry::Mirror(g), SyncAction::Recover) if !g.is_raid1());
        Some((self.guided(run.action)?, self.bitmap.as_ref().filter(|_| same)?))
    }

    /// Whether the bitmap says what an action has to look at.
    fn guided(&self, action: SyncAction) -> Option<Guide> {
        match action {
            SyncAction::Resync => Some(Guide::Needed),
            // What a member missed is marked while nobody holds the region's lease, too.
            SyncAction::Recover => self.all_by_bitmap().then_some(Guide::Set),
            SyncAction::Check | SyncAction::Repair => None,
        }
    }

    /// What in `lo..hi` needs work: component ranges on parity levels, array ranges on mirrored ones.
    fn ranges_to_sync(&self, action: SyncAction, lo: Sector, hi: Sector) -> Vec<(Sector, Sectors)> {
        let mut ranges = match (&self.geometry, action) {
            (Geometry::Mirror(g), SyncAction::Recover) if !g.is_raid1() => self.array_ranges(lo, hi),
            _ => vec![(lo, hi - lo)],
        };
        if let (Some(guide), Some(bitmap)) = (self.guided(action), &self.bitmap) {
            ranges.retain(|(start, len)| {
                let first = Region(start.0 / self.region.0);
                let last = Region((start.0 + len.0 - 1) / self.region.0);
                guide.next(bitmap, first).is_some_and(|next| next <= last)
            });
        }
        merged(ranges)
    }

    fn all_by_bitmap(&self) -> bool {
        let mut rebuilding =
            (0u16..).zip(&self.map.members).filter(|(_, m)| matches!(m.state, MemberState::Rebuilding { .. }));
        rebuilding.all(|(id, _)| self.sync.by_bitmap.contains(&raidus_units::MemberId(id)))
    }

    /// The array ranges that component addresses `lo..hi` of the members being rebuilt hold (raid10).
    fn array_ranges(&self, lo: Sector, hi: Sector) -> Vec<(Sector, Sectors)> {
        let slots: BTreeSet<Slot> = self
            .map
            .members
            .iter()
            .filter_map(|m| match m.state {
                MemberState::Rebuilding { slot, .. } => Some(slot),
                _ => None,
            })
            .collect();
        let chunk = self.geometry.chunk().max(Sectors(1));
        let mut ranges = Vec::new();
        for slot in slots {
            let mut at = lo;
            while at < hi {
                let next = Sector((at + Sectors(1)).from_start().round_up(chunk).0).min(hi);
                if let Holds::Copy { array, .. } = self.geometry.locate(slot, at) {
                    ranges.push((array, next - at));
                }
                at = next;
            }
        }
        ranges
    }
}

/// Ascending and without overlap.
fn merged(mut ranges: Vec<(Sector, Sectors)>) -> Vec<(Sector, Sectors)> {
    ranges.sort_unstable();
    let mut merged: Vec<(Sector, Sectors)> = Vec::with_capacity(ranges.len());
    for (start, len) in ranges {
        match merged.last_mut() {
            Some((s, n)) if *s + *n >= start => *n = (*n).max(start + len - *s),
            _ => merged.push((start, len)),
        }
    }
    merged
}
