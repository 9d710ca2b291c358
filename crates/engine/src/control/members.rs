//! The operator's commands about members: add, re-add, fail, remove, replace.

use raidus_format::Role;
use raidus_units::{MemberId, Sector, Sectors};

use super::Control;
use super::status::{Addition, Command, CommandError, Event};
use crate::map::{Member, MemberState};

impl Control {
    /// Carries out a command that needs a running, writable array.
    pub(super) fn change_members(&mut self, command: Command) -> Result<(), CommandError> {
        if self.broken {
            return Err(CommandError::Broken);
        }
        if !self.redundant() {
            return Err(CommandError::NoRedundancy);
        }
        match command {
            Command::Add(addition) => self.add(*addition),
            Command::Fail(member) => self.fail_on_command(member),
            Command::Remove(member) => self.remove(member),
            Command::Replace(member) => self.replace(member),
            Command::Sync(request) => self.on_sync_command(request),
            Command::AddBitmap(addition) => self.add_bitmap(addition),
            Command::RemoveBitmap => self.remove_bitmap(),
            Command::SetWriteMostly(member, on) => self.set_write_mostly(member, on),
            Command::AddBadBlocks { member, start, len } => self.add_bad_blocks(member, start, len),
            Command::Stop
            | Command::SetReadOnly(_)
            | Command::SetReadAuto
            | Command::SetSuspended { .. }
            | Command::SetSafeModeDelay(_)
            | Command::SetFailLast(_)
            | Command::SetReadErrors(..)
            | Command::SetSyncSpeed { .. }
            | Command::SetMaxReadErrors(_)
            | Command::SetSyncRange { .. } => Ok(()),
        }
    }

    fn add(&mut self, addition: Addition) -> Result<(), CommandError> {
        let facts = addition.setup.superblock.member();
        if facts.data_size < self.geometry.component_sectors() {
            return Err(CommandError::TooSmall);
        }
        if !self.superblocks.accepts(&addition.setup.superblock, &self.map) {
            return Err(CommandError::Foreign);
        }
        let slot = match (addition.former, facts.role) {
            (false, _) => None,
            (true, Role::Slot(slot)) => Some(slot),
            (true, _) => return Err(CommandError::MissedTooMuch),
        };
        if let Some(slot) = slot {
            let free = self.map.slots.get(slot.index()).is_some_and(|entry| entry.member.is_none());
            let cleared = self.bitmap.as_ref().map(|b| b.events_cleared());
            // What it had not been given when it left is not in the bitmap.
            let whole = facts.recovery.is_none() && !facts.replacement;
            let events = addition.setup.superblock.events();
            let is_enough = cleared.is_some_and(|cleared| events >= cleared && events <= self.superblocks.highest());
            if !free || !whole || !is_enough {
                return Err(CommandError::MissedTooMuch);
            }
        }
        let member = MemberId(self.map.members.len() as u16);
        let joined = Member {
            state: MemberState::Spare,
            data_offset: addition.data_offset,
            write_mostly: facts.write_mostly,
            bad_blocks: addition.bad_blocks,
        };
        self.superblocks.add(addition.setup);
        let epoch = self.change_map(|map| map.members.push(joined));
        self.failures.on_change(epoch);
        if let Some(slot) = slot {
            self.sync.by_bitmap.insert(member);
            self.seat(member, slot, false);
        }
        self.sync.on_members_changed();
        Ok(())
    }

    fn fail_on_command(&mut self, member: MemberId) -> Result<(), CommandError> {
        match self.state_of(member)? {
            MemberState::Faulty | MemberState::Removed => Ok(()),
            // The array lives without it, but md would not start it any more.
            MemberState::Journal => Err(CommandError::Needed),
            _ if !self.can_bear(member) => Err(CommandError::Needed),
            _ => {
                self.take_out(member);
                Ok(())
            }
        }
    }

    fn remove(&mut self, member: MemberId) -> Result<(), CommandError> {
        match self.state_of(member)? {
            MemberState::Faulty | MemberState::Spare => {
                let epoch = self.change_map(|map| map.members[member.index()].state = MemberState::Removed);
                self.failures.on_change(epoch);
                Ok(())
            }
            MemberState::Removed => Err(CommandError::NotAMember),
            MemberState::InSync(_) | MemberState::Rebuilding { .. } | MemberState::Journal => Err(CommandError::InUse),
        }
    }

    fn replace(&mut self, member: MemberId) -> Result<(), CommandError> {
        let MemberState::InSync(slot) = self.state_of(member)? else { return Err(CommandError::NotReplaceable) };
        if self.map.slots[slot.index()].replacement.is_some() {
            return Err(CommandError::NotReplaceable);
        }
        if !self.superblocks.can_replace() {
            return Err(CommandError::NotStorable);
        }
        let size = self.geometry.component_sectors();
        let spares = (0u16..).zip(&self.map.members).filter(|(_, m)| m.state == MemberState::Spare);
        let mut spares = spares.map(|(id, _)| MemberId(id)).filter(|id| self.superblocks.can_take_slot(*id, size));
        let spare = spares.next().ok_or(CommandError::NoSpare)?;
        self.seat(spare, slot, true);
        Ok(())
    }

    fn set_write_mostly(&mut self, member: MemberId, on: bool) -> Result<(), CommandError> {
        if self.state_of(member)? == MemberState::Removed {
            return Err(CommandError::NotAMember);
        }
        if self.map.members[member.index()].write_mostly != on {
            self.change_map(|map| map.members[member.index()].write_mostly = on);
            self.record_change(Event::WriteMostly { member, on });
        }
        Ok(())
    }

    /// What is noted as bad is read by nobody any more, so the others must have it.
    fn add_bad_blocks(&mut self, member: MemberId, start: Sector, len: Sectors) -> Result<(), CommandError> {
        self.state_of(member)?;
        let data = self.map.members[member.index()].data_offset;
        let end = start.checked_add(len).ok_or(CommandError::OutOfRange)?;
        if len.is_zero() || start < data || end > data + self.geometry.component_sectors() {
            return Err(CommandError::OutOfRange);
        }
        let whole = !self.degraded() && self.map.unsynced_from.is_none();
        let others = self.map.members.iter().all(|m| m.bad_blocks.is_empty() || m == &self.map.members[member.index()]);
        if !whole || !others {
            return Err(CommandError::Needed);
        }
        if self.record_bad_blocks(member, start, len) { Ok(()) } else { Err(CommandError::NoBadBlockLog) }
    }

    fn state_of(&self, member: MemberId) -> Result<MemberState, CommandError> {
        self.map.members.get(member.index()).map(|m| m.state).ok_or(CommandError::NotAMember)
    }
}
