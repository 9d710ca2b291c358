//! What to sync next, and where: md's order.

use raidus_layout::Geometry;
use raidus_units::{MemberId, Sector, Slot};

use super::Control;
use crate::map::{Member, MemberState};
use crate::sync::SyncAction;

impl Control {
    /// What to do next, and where.
    pub(super) fn choose(&self) -> Option<(SyncAction, Sector, Sector)> {
        let component = Sector(self.geometry.component_sectors().0);
        if let Some(from) = self.rebuild_from().filter(|_| !self.sync.stuck) {
            return Some((SyncAction::Recover, from, component));
        }
        let end = self.agreement_end();
        if let Some(from) = self.map.unsynced_from.filter(|_| self.can_resync()) {
            return Some((SyncAction::Resync, from.min(end), end));
        }
        let action = self.sync.requested.filter(|_| self.map.unsynced_from.is_none())?;
        let max = self.sync.max.unwrap_or(end).min(end);
        Some((action, self.sync.min.min(max), max))
    }

    /// The end of the address space in which members are compared: component addresses, for raid10 array addresses.
    pub(in crate::control) fn agreement_end(&self) -> Sector {
        match &self.geometry {
            Geometry::Mirror(g) => Sector(g.array_sectors().0),
            geometry => Sector(geometry.component_sectors().0),
        }
    }

    /// A parity array without redundancy left cannot be resynced; it waits for a recovery.
    pub(super) fn can_resync(&self) -> bool {
        match &self.geometry {
            Geometry::Parity(g) => self.map.degraded() < usize::from(g.parities()),
            _ => true,
        }
    }

    /// How far all members that are being rebuilt have got.
    pub(super) fn rebuild_from(&self) -> Option<Sector> {
        let valid = |m: &Member| match m.state {
            MemberState::Rebuilding { valid_to, .. } => Some(valid_to),
            _ => None,
        };
        self.map.members.iter().filter_map(valid).min()
    }

    /// Empty slots, and the spares that can take them.
    pub(super) fn spares_to_seat(&self) -> Vec<(Slot, MemberId)> {
        let slots = (0u16..).zip(&self.map.slots);
        let empty: Vec<Slot> = slots.filter(|(_, e)| e.member.is_none()).map(|(slot, _)| Slot(slot)).collect();
        if empty.is_empty() {
            return Vec::new();
        }
        let members = (0u16..).zip(&self.map.members);
        let spares = members.filter(|(_, m)| m.state == MemberState::Spare).map(|(id, _)| MemberId(id));
        let size = self.geometry.component_sectors();
        empty.into_iter().zip(spares.filter(|id| self.superblocks.can_take_slot(*id, size))).collect()
    }
}
