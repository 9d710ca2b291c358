//! Silent corruption of one member, and a check or repair that must find it: exactly it, and name the member where the evidence
//! suffices.

use std::collections::BTreeSet;

use raidus_assembly::{Assembled, Seat};
use raidus_engine::Mismatch;
use raidus_engine::control::SyncRequest;
use raidus_layout::{Geometry, Holds};
use raidus_units::{Sector, Slot};

use crate::disk::Store;
use crate::run::Seed;
use crate::stamp::SECTOR;
use crate::trace::Trace;

/// A member that lies.
struct Liar {
    slot: Slot,
    disk: usize,
    data_offset: u64,
    /// Component sectors that are wrong, and what they held.
    spots: Vec<(u64, Vec<u8>)>,
}

impl Seed {
    /// Corrupts a member of the array at rest, and has it scrubbed.
    pub(crate) fn scrub(&mut self, trace: &mut Trace) -> Result<(), String> {
        let offered: Vec<usize> = (0..self.disks.len()).collect();
        if self.in_doubt || !self.scenario.level.is_redundant() {
            return Ok(());
        }
        let Some(assembled) = self.assemble(&offered)? else { return Ok(()) };
        let flawed = assembled.members.iter().any(|m| !m.bad_blocks.is_empty());
        if flawed
            || assembled.members.iter().any(|m| matches!(m.seat, Seat::Rebuilding { .. } | Seat::Replacing { .. }))
        {
            return Ok(());
        }
        let whole = assembled.members.iter().filter(|m| matches!(m.seat, Seat::InSync(_))).count();
        if assembled.unsynced_from.is_some() || whole < usize::from(assembled.geometry.raid_disks()) {
            return Ok(());
        }
        let mut tunables = self.scenario.tunables;
        tunables.sync_frozen = false;
        let mut config = raidus_engine::open(&assembled, tunables, 1_700_000_200);
        if config.bitmap.is_none() {
            config.region = self.scenario.region;
        }
        let Some(liar) = self.corrupt(&assembled, &offered)? else { return Ok(()) };
        let nameable = match &assembled.geometry {
            Geometry::Parity(g) => g.parities() == 2,
            Geometry::Mirror(g) => g.copies() > 2,
            _ => false,
        };
        // Without a name for the culprit a repair may as well spread the wrong content.
        let repair = nameable && self.rng.percent(70);
        let mut plan = self.plan(&assembled, &offered, &BTreeSet::new(), false);
        (plan.requests, plan.cut_after, plan.stop_early, plan.operator_percent) = (0, None, false, 0);
        plan.scrub = Some(if repair { SyncRequest::Repair } else { SyncRequest::Check });
        plan.let_sync_end = true;
        let end = self.run(&config, plan, trace)?;
        let report = end.last_sync.clone().filter(|last| last.complete).ok_or("the scrub did not come to its end")?;
        self.compare(&assembled, &liar, &report.mismatches, nameable)?;
        self.after(&end);
        self.stats.scrubs += 1;
        for (component, content) in &liar.spots {
            let at = liar.data_offset + component;
            let mut now = vec![0; SECTOR];
            self.disks[liar.disk].read(at, &mut now).map_err(|e| format!("{e:?}"))?;
            if repair != (now == *content) {
                return Err(format!(
                    "component sector {component} of slot {}: repaired {}",
                    liar.slot,
                    now == *content
                ));
            }
            self.disks[liar.disk].write(at, content, Store::Durable).map_err(|e| format!("{e:?}"))?;
        }
        Ok(())
    }

    fn corrupt(&mut self, assembled: &Assembled, offered: &[usize]) -> Result<Option<Liar>, String> {
        let holders: Vec<(usize, Slot)> = (assembled.members.iter().enumerate())
            .filter_map(|(i, m)| if let Seat::InSync(slot) = m.seat { Some((i, slot)) } else { None })
            .collect();
        let (member, slot) = self.rng.pick(&holders);
        let seated = &assembled.members[member];
        let disk = offered[seated.candidate];
        let data_offset = seated.superblock.member().data_offset.0;
        let sectors = assembled.geometry.component_sectors().0;
        let mut liar = Liar { slot, disk, data_offset, spots: Vec::new() };
        for _ in 0..self.rng.range(1, 4) {
            let first = self.rng.below(sectors);
            for component in first..(first + self.rng.range(1, 10)).min(sectors) {
                let unused = assembled.geometry.locate(slot, Sector(component)) == Holds::Nothing;
                let bad = seated.bad_blocks.iter().any(|(s, n)| (s.0..s.0 + n.0).contains(&(data_offset + component)));
                if unused || bad || liar.spots.iter().any(|(spot, _)| *spot == component) {
                    continue;
                }
                let mut content = vec![0; SECTOR];
                self.disks[disk].read(data_offset + component, &mut content).map_err(|e| format!("{e:?}"))?;
                let mut wrong = content.clone();
                for _ in 0..self.rng.range(1, 20) {
                    wrong[self.rng.index(SECTOR)] ^= self.rng.range(1, 255) as u8;
                }
                if wrong != content {
                    self.disks[disk]
                        .write(data_offset + component, &wrong, Store::Durable)
                        .map_err(|e| format!("{e:?}"))?;
                    liar.spots.push((component, content));
                }
            }
        }
        liar.spots.sort_by_key(|spot| spot.0);
        Ok((!liar.spots.is_empty()).then_some(liar))
    }

    /// Whether a report names exactly what was corrupted.
    fn compare(&self, assembled: &Assembled, liar: &Liar, found: &[Mismatch], nameable: bool) -> Result<(), String> {
        let expected: BTreeSet<u64> = liar.spots.iter().map(|spot| spot.0).collect();
        let mut reported = BTreeSet::new();
        for m in found {
            for n in 0..m.len.0 {
                reported.insert(component_of(&assembled.geometry, liar.slot, Sector(m.start.0 + n))?);
                let named = m.culprit.map(|(member, sector)| {
                    (assembled.members[member.index()].seat.slot(), sector.0 + n - liar.data_offset)
                });
                let component = component_of(&assembled.geometry, liar.slot, Sector(m.start.0 + n))?;
                let right = if nameable { named == Some((Some(liar.slot), component)) } else { named.is_none() };
                if !right {
                    return Err(format!("slot {} is wrong, but the report says {m:?}", liar.slot));
                }
            }
        }
        if reported != expected {
            return Err(format!("wrong are {expected:?} of slot {}, reported {reported:?}", liar.slot));
        }
        Ok(())
    }
}

/// Where a mismatch is on a slot.
fn component_of(geometry: &Geometry, slot: Slot, at: Sector) -> Result<u64, String> {
    match geometry {
        Geometry::Mirror(g) => (0..g.copies())
            .map(|n| g.copy(at, n))
            .find(|(s, _)| *s == slot)
            .map(|(_, component)| component.0)
            .ok_or_else(|| format!("slot {slot} has no copy of array sector {at}, which is reported")),
        _ => Ok(at.0),
    }
}
