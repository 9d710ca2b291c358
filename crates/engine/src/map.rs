//! The member map: which device serves which slot, and how far it can be trusted. Published by Control, replaced as a whole.

use raidus_units::{MemberId, Sector, Sectors, Slot};

/// One version of the map. Shards plan by the newest they were given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberMap {
    /// Grows with every change.
    pub epoch: u64,
    /// What each slot is served by.
    pub slots: Vec<SlotEntry>,
    /// Every member, by [`MemberId`].
    pub members: Vec<Member>,
    /// Component sectors (raid10: array sectors) from here on may differ between copies or from their parity: rows
    /// there are written by reconstruction, mirrors are read from one fixed leg. `None`: all in sync.
    pub unsynced_from: Option<Sector>,
    /// Too many members are gone: writes fail.
    pub broken: bool,
    /// No write reaches a member.
    pub read_only: bool,
}

/// What serves a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotEntry {
    /// The member in the slot, unless it is missing or failed.
    pub member: Option<MemberId>,
    /// A member that is becoming this slot's holder beside the present one; it is written, never read.
    pub replacement: Option<MemberId>,
}

/// A member device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where it stands.
    pub state: MemberState,
    /// Device sector of component address 0.
    pub data_offset: Sector,
    /// Prefer others for reading.
    pub write_mostly: bool,
    /// Known bad ranges, ascending, as (device sector, length). Not to be read.
    pub bad_blocks: Vec<(Sector, Sectors)>,
}

/// A member's state, in md's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// Holds its slot's data.
    InSync(Slot),
    /// Being rebuilt: valid only below `valid_to` (component address). Written everywhere.
    Rebuilding {
        /// Its slot.
        slot: Slot,
        /// md's recovery_offset.
        valid_to: Sector,
    },
    /// Waiting to be used.
    Spare,
    /// The write journal, emptied: nothing but its superblock is written, lest it look stale.
    Journal,
    /// Failed.
    Faulty,
    /// Was taken out of the array. Its number is not used again.
    Removed,
}

impl MemberMap {
    /// The member in a slot.
    pub fn member_at(&self, slot: Slot) -> Option<(MemberId, &Member)> {
        let id = self.slots.get(slot.index())?.member?;
        Some((id, self.members.get(id.index())?))
    }

    /// A member's slot, if it has one.
    pub fn slot_of(&self, member: MemberId) -> Option<Slot> {
        match self.members.get(member.index())?.state {
            MemberState::InSync(slot) | MemberState::Rebuilding { slot, .. } => Some(slot),
            MemberState::Spare | MemberState::Journal | MemberState::Faulty | MemberState::Removed => None,
        }
    }

    /// Slots without an in-sync member.
    pub fn degraded(&self) -> usize {
        let whole = |e: &SlotEntry| {
            e.member
                .and_then(|m| self.members.get(m.index()))
                .is_some_and(|m| matches!(m.state, MemberState::InSync(_)))
        };
        self.slots.iter().filter(|e| !whole(e)).count()
    }
}

impl MemberState {
    /// Failed or removed.
    pub const fn is_out(self) -> bool {
        matches!(self, MemberState::Faulty | MemberState::Removed)
    }
}

impl Member {
    /// Whether the component range may be read: below the rebuild position and free of known bad blocks.
    pub fn readable(&self, component: Sector, len: Sectors) -> bool {
        let valid = match self.state {
            MemberState::InSync(_) => true,
            MemberState::Rebuilding { valid_to, .. } => component + len <= valid_to,
            MemberState::Spare | MemberState::Journal | MemberState::Faulty | MemberState::Removed => false,
        };
        valid && (self.bad_blocks.is_empty() || !self.overlaps_bad(self.data_offset + component.from_start(), len))
    }

    /// Whether writes go to it.
    pub fn writable(&self) -> bool {
        matches!(self.state, MemberState::InSync(_) | MemberState::Rebuilding { .. })
    }

    /// Whether a known bad block is in this range of the device.
    pub fn overlaps_bad(&self, device: Sector, len: Sectors) -> bool {
        let first = self.bad_blocks.partition_point(|(s, n)| *s + *n <= device);
        self.bad_blocks.get(first).is_some_and(|(s, _)| *s < device + len)
    }

    /// Whether all of this range of the device is known as bad.
    pub fn is_all_bad(&self, device: Sector, len: Sectors) -> bool {
        let first = self.bad_blocks.partition_point(|(s, n)| *s + *n <= device);
        self.bad_blocks.get(first).is_some_and(|(s, n)| *s <= device && device + len <= *s + *n)
    }

    /// Notes a range of the device as bad.
    pub fn add_bad(&mut self, device: Sector, len: Sectors) {
        let (mut start, mut end) = (device, device + len);
        self.bad_blocks.retain(|(s, n)| {
            let touches = *s <= end && start <= *s + *n;
            if touches {
                (start, end) = (start.min(*s), end.max(*s + *n));
            }
            !touches
        });
        let at = self.bad_blocks.partition_point(|(s, _)| *s < start);
        self.bad_blocks.insert(at, (start, end - start));
    }

    /// Notes a range of the device as good. What shares a unit of the log with a bad sector stays bad.
    pub fn remove_bad(&mut self, device: Sector, len: Sectors) {
        let end = device + len;
        let mut left = Vec::with_capacity(self.bad_blocks.len() + 1);
        for (s, n) in self.bad_blocks.drain(..) {
            let e = s + n;
            if e <= device || end <= s {
                left.push((s, n));
                continue;
            }
            if s < device {
                left.push((s, device - s));
            }
            if end < e {
                left.push((end, e - end));
            }
        }
        self.bad_blocks = left;
    }
}
