//! The operator: fails, removes, adds, re-adds and replaces members while the array runs, and asks for checks.

use raidus_engine::MemberSetup;
use raidus_engine::control::{Addition, Command, CommandError, SyncRequest};
use raidus_engine::{MemberMap, MemberState};
use raidus_units::{MemberId, Sector, Sectors};

use crate::assemble::{bad_blocks, log_place, superblock};
use crate::create;
use crate::world::{MemberPlace, World};

impl World<'_> {
    /// Does something, if it can be done now.
    pub(crate) fn operate(&mut self) -> Result<(), String> {
        self.manage()?;
        let map = self.machines.status().map;
        let member = MemberId(self.rng.index(map.members.len()) as u16);
        let may_fail = self.plan.doomed.contains(&self.plan.places[member.index()].disk);
        let command = match (self.rng.below(8), map.members[member.index()].state) {
            (0, _) if may_fail => Command::Fail(member),
            (1, MemberState::Faulty | MemberState::Spare) => Command::Remove(member),
            (2, MemberState::InSync(_)) if !self.may_fail_as_spare(&map) => Command::Replace(member),
            (3, _) => Command::Sync(self.rng.pick(&[
                SyncRequest::Check,
                SyncRequest::Repair,
                SyncRequest::Idle,
                SyncRequest::Freeze,
                SyncRequest::Idle,
            ])),
            (4, _) => Command::SetSyncSpeed { min: Some(self.rng.range(1, 10_000)), max: None },
            (_, MemberState::Faulty) => Command::Remove(member),
            _ => return self.add(),
        };
        self.ground.trace.note(self.now, || format!("operator: {command:?}"));
        let result = self.machines.command(self.now, command);
        self.ground.trace.note(self.now, || format!("operator: {result:?}"));
        self.turn(0)
    }

    /// Whether a spare may fail: it must not take the slot of a member that does not.
    fn may_fail_as_spare(&self, map: &MemberMap) -> bool {
        let mut spares = self.plan.places.iter().zip(&map.members).filter(|(_, m)| m.state == MemberState::Spare);
        spares.any(|(place, _)| self.plan.doomed.contains(&place.disk))
    }

    /// Adds a disk that is in no slot: as the member it was, or else as a new one.
    fn add(&mut self) -> Result<(), String> {
        let map = self.machines.status().map;
        let members = |disk: usize| {
            let members = self.plan.places.iter().zip(&map.members);
            members.filter(move |(place, _)| place.disk == disk).map(|(_, m)| m.state)
        };
        let out = |disk: &usize| members(*disk).all(|state| state == MemberState::Removed) && !self.is_busy(*disk);
        let outside: Vec<usize> = (0..self.ground.disks.len()).filter(out).collect();
        if outside.is_empty() || !self.scenario.level.is_redundant() {
            return Ok(());
        }
        let disk = self.rng.pick(&outside);
        let former = superblock(&self.ground.disks[disk]);
        if let Some(superblock) = former.filter(|_| self.rng.percent(70)) {
            let super_sector = superblock.member().super_offset;
            let bad_blocks = bad_blocks(&self.ground.disks[disk]);
            if self.join(disk, MemberSetup { superblock, super_sector }, bad_blocks, true)?.is_ok() {
                return self.turn(0);
            }
        }
        for number in u32::from(self.scenario.raid_disks)..27 {
            let (superblock, super_sector) = create::joining(&self.scenario, &self.superblock, number, &mut self.rng)?;
            match self.join(disk, MemberSetup { superblock, super_sector }, Vec::new(), false)? {
                // The number is taken.
                Err(CommandError::Foreign) => {}
                _ => return self.turn(0),
            }
        }
        Ok(())
    }

    fn join(
        &mut self,
        disk: usize,
        setup: MemberSetup,
        bad_blocks: Vec<(Sector, Sectors)>,
        former: bool,
    ) -> Result<Result<(), CommandError>, String> {
        let facts = setup.superblock.member();
        let known = self.plan.places.iter().position(|place| place.disk == disk);
        let faults = known.map(|member| self.plan.faults[member].clone()).unwrap_or_default();
        let place = MemberPlace {
            disk,
            superblock: setup.super_sector,
            data: (facts.data_offset.0, facts.data_offset.0 + facts.data_size.0),
            log: log_place(&setup.superblock),
            atomic_superblock: self.scenario.metadata == raidus_format::MetadataVersion::V0_90,
        };
        let addition = Addition { data_offset: facts.data_offset, setup, bad_blocks, former };
        let result = self.machines.command(self.now, Command::Add(Box::new(addition)));
        self.ground.trace.note(self.now, || format!("operator: disk {disk} joins, former {former}: {result:?}"));
        if result.is_ok() {
            self.plan.places.push(place);
            self.plan.faults.push(faults);
        }
        Ok(result)
    }
}
