//! What superblocks say, and the event count.
//!
//! A round of superblock writes describes the array as it is at that moment to every member that is written. Members
//! that failed are never written again: their last superblock is evidence of when they left.

use std::collections::BTreeSet;

use raidus_format::badblocks::{self, BadRange};
use raidus_format::{
    ArrayUpdate, DeviceState, MdUuid, MemberUpdate, PplArea, Recovery, ResyncMark, Role, Superblock, Timestamp, ppl, v1,
};
use raidus_units::{Level, MemberId, Sector, Sectors};

use super::status::CommandError;
use crate::config::MemberSetup;
use crate::map::{Member, MemberMap, MemberState};

#[derive(Debug)]
pub(super) struct Superblocks {
    members: Vec<MemberSetup>,
    /// The array as the freshest superblock describes it.
    base: ArrayUpdate,
    count: Count,
    /// Members' event counts differ on disk: a power cut came between the writes of a round.
    uneven: bool,
    /// Sectors of each member that were read wrong and written anew since it was added.
    read_errors: Vec<u32>,
    /// Members whose bad-block log is this session's. Those of others are left as they were found, readable or not.
    logs_touched: BTreeSet<MemberId>,
}

/// The event count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count {
    events: u64,
    /// The most events that any superblock may say, written or found.
    highest: u64,
    /// The last round was a mere going-dirty, so that the next going-clean may take its event back.
    can_decrease: bool,
}

/// What a round is to say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content {
    /// Writes may be under way.
    pub dirty: bool,
    /// Nothing but the dirty mark changes, and the array is whole.
    pub toggle: bool,
    /// Only brings the members' event counts to one, the highest there is; says nothing new.
    pub level: bool,
    /// Now, in seconds since 1970.
    pub utime: u64,
}

/// A superblock to be written.
#[derive(Debug)]
pub(super) struct Composed {
    pub member: MemberId,
    pub sector: Sector,
    /// `None`: its format cannot say what there is to say.
    pub block: Option<Box<[u8]>>,
    /// It has a slot now, and had none in what was composed before.
    pub arrived: bool,
}

impl Superblocks {
    pub fn new(members: Vec<MemberSetup>, map: &MemberMap, with_bitmap: bool) -> Superblocks {
        let usable = |id: usize| map.members.get(id).is_some_and(|m| !m.state.is_out());
        let spare = |id: usize| map.members.get(id).is_some_and(|m| m.state == MemberState::Spare);
        // A spare's superblock may lag behind and never speaks for the array.
        let freshest = members
            .iter()
            .enumerate()
            .filter(|(id, _)| usable(*id))
            .max_by_key(|(id, m)| (!spare(*id), m.superblock.events()))
            .or_else(|| members.iter().enumerate().next())
            .map(|(_, m)| &m.superblock);
        let mut base = freshest.map_or_else(nobody, |sb| sb.array_update());
        if !with_bitmap {
            base.bitmap = None;
        }
        // A log with room for two units is a ring from now on, as with md.
        base.ppl.iter_mut().for_each(|area| area.multiple |= area.fits_ring());
        let events = base.events;
        let uneven =
            members.iter().enumerate().any(|(id, m)| usable(id) && !spare(id) && m.superblock.events() != events);
        let count = Count { events, highest: events, can_decrease: false };
        let read_errors = members.iter().map(|m| m.superblock.member().corrected_reads).collect();
        Superblocks { count, uneven, members, base, read_errors, logs_touched: BTreeSet::new() }
    }

    pub fn events(&self) -> u64 {
        self.count.events
    }

    /// The count as it is, to come back to by [`Superblocks::uncount`].
    pub fn counted(&self) -> Count {
        self.count
    }

    /// A round ended before any of its superblocks was written: were its event skipped, members that miss part of the next round
    /// would be two behind.
    pub fn uncount(&mut self, before: Count) {
        self.count = before;
    }

    /// A device joins; its member id is the next.
    pub fn add(&mut self, setup: MemberSetup) {
        self.read_errors.push(setup.superblock.member().corrected_reads);
        self.members.push(setup);
    }

    /// Whether a superblock is one of this array's, and its device number is free.
    pub fn accepts(&self, superblock: &Superblock, map: &MemberMap) -> bool {
        let same = self.members.first().is_some_and(|m| m.superblock.array().uuid == superblock.array().uuid);
        let number = superblock.member().dev_number;
        let mut others = self.members.iter().zip(&map.members).filter(|(_, m)| m.state != MemberState::Removed);
        same && !others.any(|(m, _)| m.superblock.member().dev_number == number)
    }

    /// Whether the format can say that a member is being replaced.
    pub fn can_replace(&self) -> bool {
        self.members.first().is_some_and(|m| m.superblock.array().metadata.is_v1())
    }

    /// Whether a spare has room for a component of `size`.
    pub fn can_take_slot(&self, member: MemberId, size: Sectors) -> bool {
        let facts = self.members.get(member.index()).map(|setup| setup.superblock.member());
        facts.is_some_and(|facts| facts.role != Role::Journal && facts.data_size >= size)
    }

    /// A member's bad-block log has changed.
    pub fn touch_log(&mut self, member: MemberId) {
        self.logs_touched.insert(member);
    }

    /// The whole area of a member's bad-block log and its device sector; `None` if it has none, or the ranges do not fit.
    pub fn bad_block_log(&self, member: MemberId, ranges: &[(Sector, Sectors)]) -> Option<(Sector, Box<[u8]>)> {
        let setup = self.members.get(member.index())?;
        let area = setup.superblock.member().bad_block_log?;
        let sector = setup.super_sector.0.checked_add_signed(area.offset)?;
        let ranges: Vec<BadRange> = ranges.iter().map(|(start, len)| BadRange { start: *start, len: *len }).collect();
        let data = badblocks::encode(&ranges, &area).ok()?;
        Some((Sector(sector), data.into()))
    }

    /// The most events that any superblock may say.
    pub fn highest(&self) -> u64 {
        self.count.highest
    }

    /// By member.
    pub fn read_errors(&self) -> &[u32] {
        &self.read_errors
    }

    /// Counts sectors that were written anew.
    pub fn add_read_errors(&mut self, member: MemberId, sectors: u64) {
        if let Some(count) = self.read_errors.get_mut(member.index()) {
            *count = count.saturating_add(u32::try_from(sectors).unwrap_or(u32::MAX));
        }
    }

    /// Begins to count from here; superblocks say so with the next round.
    pub fn set_read_errors(&mut self, member: MemberId, sectors: u32) -> Result<(), CommandError> {
        let count = self.read_errors.get_mut(member.index()).ok_or(CommandError::NotAMember)?;
        *count = sectors;
        Ok(())
    }

    /// Where the bitmap is from now on, as sectors from the superblock.
    pub fn set_bitmap(&mut self, offset: Option<i64>) {
        self.base.bitmap = offset;
    }

    /// Sectors from the superblock to the bitmap.
    pub fn bitmap_offset(&self) -> i64 {
        self.base.bitmap.unwrap_or(0)
    }

    /// Whether something else than a bitmap keeps redundancy consistent.
    pub fn has_log(&self) -> bool {
        self.base.ppl.is_some() || self.base.journal
    }

    /// Device sector of a member's bitmap area and how much room there is.
    pub fn bitmap_area(&self, member: MemberId) -> Option<(Sector, Sectors)> {
        self.room_at(member, self.base.bitmap?)
    }

    /// Whether nothing else is in `len` sectors this far from a member's superblock.
    pub fn is_free(&self, member: MemberId, offset: i64, len: Sectors) -> bool {
        let Some((start, room)) = self.room_at(member, offset) else { return false };
        let facts = self.members[member.index()].superblock.member();
        let data_end = facts.data_offset.0.saturating_add(facts.data_size.0);
        let in_data = start.0 < data_end && start.0.saturating_add(len.0) > facts.data_offset.0;
        room >= len && !in_data
    }

    /// Device sector this far from a member's superblock, and how much room there is.
    pub fn room_at(&self, member: MemberId, offset: i64) -> Option<(Sector, Sectors)> {
        let setup = self.members.get(member.index())?;
        let start = setup.super_sector.0.checked_add_signed(offset)?;
        let facts = setup.superblock.member();
        let log = facts.bad_block_log.and_then(|log| setup.super_sector.0.checked_add_signed(log.offset));
        // What comes next must not be overwritten: the superblock itself, the bad-block log, or the data.
        let next = [Some(setup.super_sector.0), log, Some(facts.data_offset.0)].into_iter().flatten();
        let next = next.filter(|s| *s > start).min();
        Some((Sector(start), Sectors(next.unwrap_or(u64::MAX) - start)))
    }

    /// The array's UUID and the place of its partial parity logs, if it has them.
    pub fn log_area(&self) -> Option<(MdUuid, PplArea)> {
        let area = self.base.ppl.filter(|_| self.base.geometry.level == Level::Raid5.number())?;
        Some((self.members.first()?.superblock.array().uuid, area))
    }

    /// The device sector of a member's partial parity log.
    pub fn log_start(&self, member: MemberId) -> Option<Sector> {
        let setup = self.members.get(member.index())?;
        ppl::place(&self.base.ppl?, setup.super_sector).map(|(start, _)| start)
    }

    /// Whether a round must bring the members level before anything else is written. Assembly forgives a member one event;
    /// if counting went on from an uneven state, a second power cut could leave a good member two behind.
    pub fn is_uneven(&self) -> bool {
        self.uneven
    }

    /// Whether an event was taken back. What goes beyond everything written is then two events ahead of the members, too far for
    /// a power cut in the middle: they are brought to the highest first.
    pub fn is_taken_back(&self) -> bool {
        self.count.events < self.count.highest
    }

    /// The members say the same event count.
    pub fn on_level(&mut self) {
        self.uneven = false;
    }

    /// Whether one round does not put a failure on record. Assembly forgives a member one event; with 0.90, md then believes what that
    /// member says of itself (with 1.x, what the others say of it). Only two events make it stale. They cannot be
    /// counted at once: a power cut would leave good members two behind.
    pub fn must_say_twice(&self) -> bool {
        self.members.first().is_some_and(|m| !m.superblock.array().metadata.is_v1())
    }

    /// Counts a new round: md's arithmetic. A going-clean that undoes a going-dirty takes the event back, so that members which
    /// sleep through idle toggles stay fresh. A round that says more than clean or dirty goes beyond everything written
    /// before: a member that fails while an event is being taken back must not look as fresh as those that outlive it.
    pub fn count(&mut self, content: &Content, in_sync: bool) {
        if content.level {
            self.count.events = self.count.highest;
            self.count.can_decrease = false;
            return;
        }
        let undo = content.toggle && !content.dirty && in_sync && self.count.can_decrease && self.count.events > 1;
        if undo {
            self.count.events -= 1;
            self.count.can_decrease = false;
        } else {
            let last = if content.toggle { self.count.events } else { self.count.highest };
            self.count.events = last.saturating_add(1);
            self.count.highest = self.count.events.max(self.count.highest);
            self.count.can_decrease = content.toggle && content.dirty;
        }
    }

    /// The superblocks of a round. Spares are left out of mere toggles.
    pub fn compose(&mut self, map: &MemberMap, content: &Content, by_bitmap: &BTreeSet<MemberId>) -> Vec<Composed> {
        let written = |state| match state {
            MemberState::InSync(_) | MemberState::Rebuilding { .. } | MemberState::Journal => true,
            MemberState::Spare => !content.toggle,
            MemberState::Faulty | MemberState::Removed => false,
        };
        let ids = (0u16..).zip(&map.members).filter(|(_, m)| written(m.state)).map(|(id, _)| MemberId(id));
        self.compose_for(ids.collect(), map, content, by_bitmap, self.count.events)
    }

    /// The superblocks of [newcomers](Superblocks::newcomers), an event behind what it was a round ago (`of`): while the others do not
    /// list them, they must not speak for the array.
    pub fn introduce(
        &mut self,
        map: &MemberMap,
        content: &Content,
        by_bitmap: &BTreeSet<MemberId>,
        of: Count,
    ) -> Vec<Composed> {
        self.compose_for(self.newcomers(map), map, content, by_bitmap, of.events.saturating_sub(1))
    }

    /// Members that get a slot and are rebuilt on, whose own superblocks do not say so yet. Were others to say it first and a power cut
    /// to come, assembly by md would believe them of the slot, find nothing of a rebuild in the member's own superblock, and
    /// take it for in sync. With 0.90 each superblock tells of all members alike.
    pub fn newcomers(&self, map: &MemberMap) -> Vec<MemberId> {
        let is_new = |setup: &MemberSetup, member: &Member| {
            let MemberState::Rebuilding { valid_to, .. } = member.state else { return false };
            let own = setup.superblock.member();
            // One that comes back and says that it is in sync has been proved stale by those who did without it.
            let admits = own.recovery.is_none_or(|recovery| recovery.offset <= valid_to);
            setup.superblock.array().metadata.is_v1() && !(matches!(own.role, Role::Slot(_)) && admits)
        };
        let both = (0u16..).zip(self.members.iter().zip(&map.members));
        both.filter(|(_, (setup, member))| is_new(setup, member)).map(|(id, _)| MemberId(id)).collect()
    }

    fn compose_for(
        &mut self,
        ids: Vec<MemberId>,
        map: &MemberMap,
        content: &Content,
        by_bitmap: &BTreeSet<MemberId>,
        events: u64,
    ) -> Vec<Composed> {
        let numbers = self.numbers(map);
        let array = ArrayUpdate { events, ..self.array(map, content, &numbers) };
        let mut round = Vec::new();
        for id in ids {
            let (Some(setup), Some(member)) = (self.members.get_mut(id.index()), map.members.get(id.index())) else {
                continue;
            };
            let replaces = map.slots.iter().any(|slot| slot.replacement == Some(id));
            let known = MemberUpdate { dev_number: numbers[id.index()], ..setup.superblock.member_update() };
            let mut update = of_member(&known, member.state, array.geometry.size, by_bitmap.contains(&id), replaces);
            update.corrected_reads = self.read_errors.get(id.index()).copied().unwrap_or(0);
            if self.logs_touched.contains(&id) {
                update.has_bad_blocks = !member.bad_blocks.is_empty();
            }
            let has_slot = |superblock: &Superblock| matches!(superblock.member().role, Role::Slot(_));
            let had_slot = has_slot(&setup.superblock);
            let block = setup.superblock.update(&array, &update).ok().map(|()| setup.superblock.encode().into());
            let arrived = !had_slot && has_slot(&setup.superblock);
            round.push(Composed { member: id, sector: setup.super_sector, block, arrived });
        }
        round
    }

    /// All but the event count.
    fn array(&self, map: &MemberMap, content: &Content, numbers: &[u32]) -> ArrayUpdate {
        let mut array = self.base.clone();
        array.utime = Timestamp::from_secs(content.utime);
        array.resync = if content.dirty { ResyncMark::Dirty } else { ResyncMark::Clean { good_to: map.unsynced_from } };
        array.devices = self.devices(map, numbers);
        array
    }

    /// The members' places in the device table. 0.90 gives numbers anew with each write, by the order of the table; what devices
    /// say that were not written since may be another's by now.
    fn numbers(&self, map: &MemberMap) -> Vec<u32> {
        let renumbered = self.members.first().is_some_and(|m| !m.superblock.array().metadata.is_v1());
        let mut next = 0;
        let number = |(setup, member): (&MemberSetup, &Member)| {
            if !renumbered {
                return setup.superblock.member().dev_number;
            }
            let number = next;
            next += u32::from(member.state != MemberState::Removed);
            number
        };
        self.members.iter().zip(&map.members).map(number).collect()
    }

    /// The device table: what each known device is. Numbers of unknown devices are free again.
    fn devices(&self, map: &MemberMap, numbers: &[u32]) -> Vec<Option<DeviceState>> {
        let mut devices = Vec::new();
        for ((setup, member), number) in self.members.iter().zip(&map.members).zip(numbers) {
            if member.state == MemberState::Removed || *number >= v1::MAX_DEV {
                continue;
            }
            let facts = setup.superblock.member();
            let number = *number as usize;
            let role = match member.state {
                MemberState::InSync(slot) | MemberState::Rebuilding { slot, .. } => Role::Slot(slot),
                MemberState::Faulty | MemberState::Removed => Role::Faulty,
                MemberState::Journal => Role::Journal,
                MemberState::Spare => Role::Spare,
            };
            let known = self.base.devices.get(facts.dev_number as usize).copied().flatten();
            let state = DeviceState {
                role,
                in_sync: matches!(member.state, MemberState::InSync(_)),
                write_mostly: member.write_mostly,
                failfast: facts.failfast,
                node: known.map_or((0, 0), |d| d.node),
            };
            if devices.len() <= number {
                devices.resize(number + 1, None);
            }
            devices[number] = Some(state);
        }
        devices
    }
}

fn of_member(found: &MemberUpdate, state: MemberState, size: Sectors, by_bitmap: bool, replaces: bool) -> MemberUpdate {
    let recovery = match state {
        // A replacement that has all data, beside the member it is about to succeed.
        MemberState::Rebuilding { valid_to, .. } if replaces && valid_to.from_start() >= size => None,
        MemberState::Rebuilding { valid_to, .. } => Some(Recovery { offset: valid_to, by_bitmap }),
        MemberState::InSync(_) | MemberState::Spare | MemberState::Journal => None,
        MemberState::Faulty | MemberState::Removed => None,
    };
    MemberUpdate { recovery, replacement: replaces, ..*found }
}

/// An array without members has nothing to say; nobody will be written to.
fn nobody() -> ArrayUpdate {
    ArrayUpdate {
        events: 0,
        utime: Timestamp::default(),
        resync: ResyncMark::Dirty,
        devices: Vec::new(),
        bitmap: None,
        ppl: None,
        journal: false,
        reshape: None,
        geometry: raidus_format::Geometry {
            level: 0,
            layout: 0,
            raid0_layout_known: false,
            size: Sectors::ZERO,
            chunk: Sectors::ZERO,
            raid_disks: 0,
        },
    }
}
