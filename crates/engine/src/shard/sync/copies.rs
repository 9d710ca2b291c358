//! Sync operations of mirrored levels. A range of array addresses, in one piece on every member, is read from one copy or
//! from all. Scratch blocks: one per copy that is read.

use raidus_layout::Geometry;
use raidus_parity::{Culprit, Difference};
use raidus_units::{MemberId, Nanos, Sector, Sectors};

use super::stripes::lacking_replacement;
use super::{Phase, Shard, SyncWrite};
use crate::io::Blocks;
use crate::map::MemberState;
use crate::sync::{Mismatch, SyncWork};

/// The members that hold, or are to hold, a range.
#[derive(Debug, Default)]
struct Legs {
    /// Those that can be read, as (copy, member, device sector). The first is the one that is read where copies may differ.
    sources: Vec<(u16, MemberId, Sector)>,
    /// In sync, but a part of the range cannot be read.
    holes: Vec<(u16, MemberId, Sector)>,
    /// Being rebuilt, and not so far yet.
    lacking: Vec<(MemberId, Sector)>,
}

impl Shard {
    pub(super) fn start_copies_sync(&mut self, now: Nanos, id: usize) -> bool {
        let work = self.work_of(id);
        let legs = self.legs(id);
        let bad = !self.syncs.ops[id].bad.is_empty();
        let nothing_to_do = match work {
            SyncWork::Recover => legs.lacking.is_empty(),
            _ => legs.sources.len() + legs.holes.len() < 2,
        };
        if nothing_to_do && !bad {
            self.end_sync_op(id);
            return true;
        }
        if !legs.holes.is_empty() && self.split_sync_op(now, id) {
            return true;
        }
        if legs.sources.is_empty() {
            let op = &self.syncs.ops[id];
            let range = (op.start, op.len);
            self.window_of(id).outcome.unreadable.push(range);
            self.end_sync_op(id);
            return true;
        }
        let reads = if work == SyncWork::Recover { 1 } else { legs.sources.len() };
        if !self.take_sync_scratch(id, reads) {
            return false;
        }
        let op = &mut self.syncs.ops[id];
        op.phase = Phase::Reading;
        op.read.clear();
        for (block, (copy, member, sector)) in legs.sources.into_iter().take(reads).enumerate() {
            let buf = self.sync_block(id, block);
            self.sync_read(id, copy, member, sector, buf);
        }
        true
    }

    pub(super) fn after_copies_read(&mut self, now: Nanos, id: usize) {
        if !self.syncs.ops[id].bad.is_empty() && self.split_sync_op(now, id) {
            return;
        }
        let good = self.good_blocks(id);
        if good.is_empty() {
            // Plan again without what could not be read. The scratch goes back first: nobody waits holding some.
            let op = &mut self.syncs.ops[id];
            op.phase = Phase::Gate;
            if let Some(run) = op.run.take() {
                self.arena.give_back(run);
                self.scratch_freed = true;
            }
            return self.wait_for_scratch(now, super::Needy::Sync(id));
        }
        self.syncs.ops[id].phase = Phase::Comparing;
        if good.len() > 1 {
            let blocks = good.iter().map(|block| self.sync_block(id, *block)).collect();
            let len = self.syncs.ops[id].len;
            self.sync_compare(id, 0, Blocks::Copies(blocks), len);
        } else {
            self.write_copies(id);
        }
    }

    pub(super) fn write_copies(&mut self, id: usize) {
        let work = self.work_of(id);
        let op = &mut self.syncs.ops[id];
        op.phase = Phase::Writing;
        let (len, read) = (op.len, op.read.clone());
        let found = std::mem::take(&mut op.found);
        let good = self.good_blocks(id);
        let legs = self.legs(id);
        let content = good.first().map(|block| self.sync_block(id, *block));
        if let Some(content) = content {
            for (_, member, sector) in &legs.holes {
                self.sync_write(id, SyncWrite { member: *member, sector: *sector, len, heals: true }, content);
            }
            if work == SyncWork::Recover {
                for (member, sector) in &legs.lacking {
                    self.sync_write(id, SyncWrite { member: *member, sector: *sector, len, heals: false }, content);
                }
            }
        }
        let copies: Vec<u16> = good.iter().map(|block| read[*block]).collect();
        for d in found.into_iter().flat_map(|(_, differences)| differences) {
            self.settle_copies(id, &legs, &copies, &good, d, work);
        }
        if self.syncs.ops[id].pending == 0 {
            self.end_sync_op(id);
        }
    }

    /// Notes a run of sectors in which copies differ, and mends it if that is wanted.
    fn settle_copies(
        &mut self,
        id: usize,
        legs: &Legs,
        copies: &[u16],
        blocks: &[usize],
        d: Difference,
        work: SyncWork,
    ) {
        let (at, len) = (Sectors(d.at), Sectors(d.len));
        // A member that went meanwhile is no source any more.
        let place = |i: usize| {
            let leg = legs.sources.iter().find(|(copy, ..)| *copy == copies[i]);
            leg.map(|(_, member, sector)| (*member, *sector + at))
        };
        let odd = match d.culprit {
            Some(Culprit::Copy(i)) => Some(i),
            _ => None,
        };
        let culprit = odd.and_then(place);
        let mended = work != SyncWork::Look;
        let start = self.syncs.ops[id].start + at;
        self.window_of(id).outcome.mismatches.push(Mismatch { start, len, culprit, mended });
        if !mended {
            return;
        }
        let (from, to): (usize, Vec<usize>) = match odd.filter(|_| work == SyncWork::Mend) {
            Some(i) => (usize::from(i == 0), vec![i]),
            None => (0, (1..copies.len()).collect()),
        };
        let buf = self.sync_block(id, blocks[from]).plus(at);
        for (member, sector) in to.into_iter().filter_map(place) {
            self.sync_write(id, SyncWrite { member, sector, len, heals: false }, buf);
        }
    }

    /// Places in `read` (and so scratch blocks) of the copies that were read.
    fn good_blocks(&self, id: usize) -> Vec<usize> {
        let op = &self.syncs.ops[id];
        (0..op.read.len()).filter(|i| !op.bad.contains(&op.read[*i])).collect()
    }

    fn legs(&self, id: usize) -> Legs {
        let Geometry::Mirror(geometry) = &self.geometry else { return Legs::default() };
        let op = &self.syncs.ops[id];
        let mut legs = Legs::default();
        for n in 0..geometry.copies() {
            let (slot, component) = geometry.copy(op.start, n);
            let copy = n as u16;
            if let Some((member, m)) = self.map.member_at(slot) {
                let sector = m.data_offset + component.from_start();
                match m.state {
                    _ if op.bad.contains(&copy) => legs.holes.push((copy, member, sector)),
                    _ if m.readable(component, op.len) => legs.sources.push((copy, member, sector)),
                    MemberState::Rebuilding { .. } => legs.lacking.push((member, sector)),
                    _ => legs.holes.push((copy, member, sector)),
                }
            }
            legs.lacking.extend(lacking_replacement(&self.map, slot, component, op.len));
        }
        let write_mostly = |member: MemberId| self.map.members[member.index()].write_mostly;
        legs.sources.sort_by_key(|(copy, member, _)| (write_mostly(*member), *copy));
        legs
    }
}
