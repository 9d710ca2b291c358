//! Sync operations of parity levels. A range of component addresses is read from every member at once; it holds one or more
//! stripes, or part of one. Scratch blocks: one per slot, then P and Q as they should be.

use raidus_layout::{Geometry, ParityGeometry, Row};
use raidus_parity::{Culprit, Difference};
use raidus_units::{MemberId, Nanos, Sector, Sectors, Slot};

use super::{Phase, Shard, SyncWrite};
use crate::io::{Blocks, Compute, MemAddr, Output};
use crate::map::{MemberMap, MemberState};
use crate::plan::{Access, DataSet, Recovery, StripeView, recovery};
use crate::shard::stripe_io::recover_data;
use crate::sync::{Mismatch, SyncWork};

/// A slot as an operation sees it.
#[derive(Clone, Copy, Debug)]
struct SlotView {
    /// The member and the device sector of the range, if there is one.
    place: Option<(MemberId, Sector)>,
    standing: Standing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Has its data.
    Whole,
    /// Has its data, but part of the range cannot be read.
    Hole,
    /// Is being rebuilt, and has not got so far.
    Lacking,
    /// Nobody is there.
    Empty,
}

/// A part of the range inside one stripe.
#[derive(Clone, Copy, Debug)]
struct Part {
    row: u64,
    /// From the start of the range.
    at: Sectors,
    len: Sectors,
}

impl Shard {
    pub(super) fn start_stripes_sync(&mut self, now: Nanos, id: usize) -> bool {
        let Geometry::Parity(geometry) = &self.geometry else { return true };
        let (slots, parities) = (usize::from(geometry.raid_disks()), usize::from(geometry.parities()));
        let work = self.work_of(id);
        let views = self.slot_views(id);
        if views.iter().any(|v| v.standing == Standing::Hole) && self.split_sync_op(now, id) {
            return true;
        }
        let gone = views.iter().filter(|v| v.standing != Standing::Whole).count();
        let absent = views.iter().filter(|v| matches!(v.standing, Standing::Lacking | Standing::Empty)).count();
        let nothing_to_do = match work {
            SyncWork::Recover => !self.anyone_lacks(id, &views),
            // Without redundancy left there is nothing to compare.
            _ => absent >= parities,
        };
        if nothing_to_do {
            self.end_sync_op(id);
            return true;
        }
        if gone > parities {
            self.give_up(id);
            return true;
        }
        let checks = if work == SyncWork::Recover { 0 } else { parities };
        if !self.take_sync_scratch(id, slots + checks) {
            return false;
        }
        self.syncs.ops[id].phase = Phase::Reading;
        for (slot, view) in (0u16..).zip(&views) {
            if let (Standing::Whole, Some((member, sector))) = (view.standing, view.place) {
                let buf = self.sync_block(id, usize::from(slot));
                self.sync_read(id, slot, member, sector, buf);
            }
        }
        true
    }

    pub(super) fn after_stripes_read(&mut self, now: Nanos, id: usize) {
        let Geometry::Parity(geometry) = &self.geometry else { return };
        let geometry = geometry.clone();
        if !self.syncs.ops[id].bad.is_empty() && self.split_sync_op(now, id) {
            return;
        }
        // Whatever happened to the members meanwhile: what was read is as good as before.
        let op = &self.syncs.ops[id];
        let present: Vec<bool> =
            (0..geometry.raid_disks()).map(|s| op.read.contains(&s) && !op.bad.contains(&s)).collect();
        if present.iter().filter(|there| !**there).count() > usize::from(geometry.parities()) {
            return self.give_up(id);
        }
        let check = self.work_of(id) != SyncWork::Recover;
        self.syncs.ops[id].phase = Phase::Comparing;
        for (n, part) in (0u16..).zip(self.parts(&geometry, id)) {
            self.complete_row(id, &geometry, part, &present, check, n);
        }
        if self.syncs.ops[id].pending == 0 {
            self.write_stripes(id);
        }
    }

    /// Computes what is missing of a row, and compares the parities that were not needed for that.
    fn complete_row(
        &mut self,
        id: usize,
        geometry: &ParityGeometry,
        part: Part,
        present: &[bool],
        check: bool,
        n: u16,
    ) {
        let row = geometry.row(part.row);
        let here = |slot: Slot| present[slot.index()];
        let (has_p, has_q) = (here(row.p()), row.q().is_some_and(here));
        let access = |readable| Access { readable, writable: true };
        let mut unreadable = DataSet::EMPTY;
        (0..geometry.data_disks()).filter(|i| !here(row.data(*i))).for_each(|i| unreadable.insert(i));
        let view = StripeView {
            data_disks: geometry.data_disks(),
            unreadable,
            unwritable: DataSet::EMPTY,
            p: access(has_p),
            q: access(has_q),
            parities: geometry.parities(),
            in_sync: true,
        };
        // As many may be gone as there are parities: this cannot fail.
        let Ok(how) = recovery(&view, None) else { return };
        let block = |slot: Slot| self.sync_block(id, slot.index()).plus(part.at);
        let spare = |k: usize| self.sync_block(id, present.len() + k).plus(part.at);
        let data = |i: u16| block(row.data(i));
        let (p, q) = (block(row.p()), row.q().map_or(MemAddr::NONE, block));
        let recovered =
            recover_data(&row, geometry.data_disks(), how, &data, &|second| if second { q } else { p }, None, part.len);
        let (used_p, used_q) = match how {
            Recovery::Nothing => (false, false),
            Recovery::OneWithP(_) => (true, false),
            Recovery::OneWithQ(_) => (false, true),
            Recovery::Two(..) => (true, true),
        };
        let new_p = if has_p { (check && !used_p).then(|| spare(0)) } else { Some(p) };
        let new_q = match row.q() {
            None => None,
            Some(_) if has_q => (check && !used_q).then(|| spare(1)),
            Some(_) => Some(q),
        };
        let mut blocks: Vec<(MemAddr, u8)> =
            (0..geometry.data_disks()).map(|i| (data(i), row.coefficient(i))).collect();
        blocks.sort_unstable_by_key(|d| d.1);
        let exponents = blocks.iter().map(|d| d.1).collect();
        let pair = |stored, has: bool, new: Option<MemAddr>| new.filter(|_| has && check).map(|new| (stored, new));
        let (pair_p, pair_q) = (pair(p, has_p, new_p), pair(q, has_q, new_q));
        self.syncs.ops[id].compared.push((pair_p.is_some(), pair_q.is_some()));
        // What is compared is looked at again; what is rebuilt only goes out.
        let compute = if check { Output::Compute } else { Output::ComputeCold };
        self.out.extend(recovered.map(compute));
        let len = part.len;
        match (new_p, new_q) {
            (None, None) => {}
            (Some(dst), None) => {
                let srcs = blocks.iter().map(|d| d.0).collect();
                self.out.push_back(compute(Compute::Xor { dst, srcs, len }));
            }
            (p, q) => self.out.push_back(compute(Compute::Pq { p, q, data: blocks, len })),
        }
        if pair_p.is_some() || pair_q.is_some() {
            self.sync_compare(id, n, Blocks::Parities { p: pair_p, q: pair_q, exponents }, len);
        }
    }

    pub(super) fn write_stripes(&mut self, id: usize) {
        let Geometry::Parity(geometry) = &self.geometry else { return };
        let geometry = geometry.clone();
        self.syncs.ops[id].phase = Phase::Writing;
        let len = self.syncs.ops[id].len;
        let work = self.work_of(id);
        for slot in 0..geometry.raid_disks() {
            let buf = self.sync_block(id, usize::from(slot));
            for (member, sector, heals) in self.takers(id, Slot(slot), work) {
                self.sync_write(id, SyncWrite { member, sector, len, heals }, buf);
            }
        }
        let parts = self.parts(&geometry, id);
        for (n, differences) in std::mem::take(&mut self.syncs.ops[id].found) {
            let part = parts[usize::from(n)];
            let row = geometry.row(part.row);
            let compared = self.syncs.ops[id].compared[usize::from(n)];
            differences.into_iter().for_each(|d| self.settle_difference(id, (&row, part, compared), d, work));
        }
        if self.syncs.ops[id].pending == 0 {
            self.end_sync_op(id);
        }
    }

    /// Notes a run of sectors in which a row's parities do not fit, and mends it if that is wanted.
    fn settle_difference(
        &mut self,
        id: usize,
        (row, part, compared): (&Row, Part, (bool, bool)),
        d: Difference,
        work: SyncWork,
    ) {
        let slot = d.culprit.and_then(|culprit| match culprit {
            Culprit::P => Some(row.p()),
            Culprit::Q => row.q(),
            Culprit::Data(k) => row.index_of_coefficient(k).map(|i| row.data(i)),
            Culprit::Copy(_) => None,
        });
        let at = part.at + Sectors(d.at);
        let len = Sectors(d.len);
        let start = self.syncs.ops[id].start + at;
        let place = |shard: &Shard, slot: Slot| {
            shard.map.member_at(slot).map(|(member, m)| (member, m.data_offset + start.from_start()))
        };
        let culprit = slot.and_then(|slot| place(self, slot));
        let mended = work != SyncWork::Look;
        self.window_of(id).outcome.mismatches.push(Mismatch { start, len, culprit, mended });
        if !mended {
            return;
        }
        let slots = usize::from(self.geometry.raid_disks());
        let block = |shard: &Shard, slot: Slot| shard.sync_block(id, slot.index()).plus(at);
        let fresh = |shard: &Shard, k: usize| shard.sync_block(id, slots + k).plus(at);
        match (slot, culprit, d.culprit) {
            (Some(slot), Some((member, sector)), Some(Culprit::Data(_))) if work == SyncWork::Mend => {
                // What P says of it: itself, and by how much P is off.
                let dst = block(self, slot);
                let srcs = vec![dst, block(self, row.p()), fresh(self, 0)];
                self.out.push_back(Output::Compute(Compute::Xor { dst, srcs, len }));
                self.sync_write(id, SyncWrite { member, sector, len, heals: false }, dst);
            }
            _ => {
                let parities = [(0, compared.0.then(|| row.p())), (1, row.q().filter(|_| compared.1))];
                for (k, slot) in parities {
                    let Some((member, sector)) = slot.and_then(|slot| place(self, slot)) else { continue };
                    let buf = fresh(self, k);
                    self.sync_write(id, SyncWrite { member, sector, len, heals: false }, buf);
                }
            }
        }
    }

    /// Nothing can be done here with what can be read.
    fn give_up(&mut self, id: usize) {
        let op = &self.syncs.ops[id];
        let range = (op.start, op.len);
        self.window_of(id).outcome.unreadable.push(range);
        self.end_sync_op(id);
    }

    fn slot_views(&self, id: usize) -> Vec<SlotView> {
        let op = &self.syncs.ops[id];
        let view = |slot: u16| {
            let Some((member, m)) = self.map.member_at(Slot(slot)) else {
                return SlotView { place: None, standing: Standing::Empty };
            };
            let standing = match m.state {
                _ if op.bad.contains(&slot) => Standing::Hole,
                _ if m.readable(op.start, op.len) => Standing::Whole,
                MemberState::Rebuilding { .. } => Standing::Lacking,
                _ => Standing::Hole,
            };
            SlotView { place: Some((member, m.data_offset + op.start.from_start())), standing }
        };
        (0..self.geometry.raid_disks()).map(view).collect()
    }

    fn anyone_lacks(&self, id: usize, views: &[SlotView]) -> bool {
        let replaced = (0..self.geometry.raid_disks()).any(|s| self.lacking_replacement(id, Slot(s)).is_some());
        replaced || views.iter().any(|v| v.standing == Standing::Lacking)
    }

    fn lacking_replacement(&self, id: usize, slot: Slot) -> Option<(MemberId, Sector)> {
        let op = &self.syncs.ops[id];
        lacking_replacement(&self.map, slot, op.start, op.len)
    }

    /// Who is to be given the slot's block as it was computed: the member and device sector, and whether that heals a block.
    fn takers(&self, id: usize, slot: Slot, work: SyncWork) -> Vec<(MemberId, Sector, bool)> {
        let view = self.slot_views(id)[slot.index()];
        let mut takers = Vec::new();
        if let Some((member, sector)) = view.place {
            if view.standing == Standing::Hole {
                takers.push((member, sector, true));
            } else if view.standing == Standing::Lacking && work == SyncWork::Recover {
                takers.push((member, sector, false));
            }
        }
        if work == SyncWork::Recover {
            takers.extend(self.lacking_replacement(id, slot).map(|(member, sector)| (member, sector, false)));
        }
        takers
    }

    fn parts(&self, geometry: &ParityGeometry, id: usize) -> Vec<Part> {
        let op = &self.syncs.ops[id];
        let mut parts = Vec::new();
        let mut at = Sectors::ZERO;
        while at < op.len {
            let (row, inside) = geometry.row_at(op.start + at);
            let len = (geometry.chunk() - inside).min(op.len - at);
            parts.push(Part { row, at, len });
            at += len;
        }
        parts
    }
}

/// The member that is replacing the slot's, if it has not got as far as this range, and its device sector there.
pub(super) fn lacking_replacement(
    map: &MemberMap,
    slot: Slot,
    component: Sector,
    len: Sectors,
) -> Option<(MemberId, Sector)> {
    let member = map.slots.get(slot.index())?.replacement?;
    let m = map.members.get(member.index())?;
    let lacks = m.writable() && !m.readable(component, len);
    lacks.then(|| (member, m.data_offset + component.from_start()))
}
