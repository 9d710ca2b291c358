//! What the logs of parity arrays have to do with the decision.

use raidus_format::journal::ScanEnd;
use raidus_format::{ArrayFacts, PplArea, SUPERBLOCK_SECTORS, Superblock, ppl};
use raidus_layout::Geometry;
use raidus_units::{Level, Sector};

use super::Attempt;
use crate::candidate::{Area, JournalLog};
use crate::decision::{Forced, Reason, Seat, Seated};
use crate::replay::{JournalReplay, JournalUse, OwnLog, PplReplay, Replay};

/// What came of looking at the logs.
pub(super) struct Logs {
    /// What has to be replayed.
    pub(super) replay: Option<Replay>,
    /// Nothing may be written, for lack of a journal.
    pub(super) read_only: bool,
}

impl Attempt<'_> {
    /// What the partial parity logs say of an array that stopped while being written. If they cover all of it, the array is as good
    /// as clean, whether or not members are missing.
    pub(super) fn partial_parity(&mut self, array: &mut ArrayFacts, geometry: &Geometry) -> Option<PplReplay> {
        let (Some(area), Some(good_to), Geometry::Parity(geometry)) = (array.ppl, array.resync, geometry) else {
            return None;
        };
        if geometry.level() != Level::Raid5 {
            return None;
        }
        let mut logs = Vec::new();
        for (candidate, seat) in &self.seated {
            let (Seat::InSync(slot) | Seat::Rebuilding { slot, .. }) = *seat else { continue };
            let in_sync = matches!(seat, Seat::InSync(_));
            let device = &self.candidates[*candidate];
            let bytes: &[u8] = match &device.ppl {
                Area::Bytes(bytes) => bytes,
                Area::Unread | Area::Failed(_) => &[],
            };
            let at = device.ppl_place().map_or(Sector::ZERO, |(at, _)| at);
            logs.push(OwnLog { name: &device.name, candidate: *candidate, slot, area, in_sync, at, bytes });
        }
        let (replay, wrong) = PplReplay::plan(array.uuid, geometry, &logs, good_to == Sector::ZERO);
        self.notes.extend(wrong);
        if replay.complete {
            (array.resync, array.clean) = (None, true);
        }
        Some(replay)
    }

    /// Whether nothing may be written, because the user says so or because raidus cannot do it right.
    pub(super) fn read_only(&mut self, array: &ArrayFacts) -> bool {
        let fault = array.ppl.and_then(|area| self.log_fault(array, area));
        if let Some(fault) = fault.filter(|_| !self.options.readonly) {
            self.notes.push(format!("read-only: the array has partial parity logs that cannot be kept, {fault}"));
        }
        fault.is_some() || self.options.readonly
    }

    /// Why partial parity logs cannot be written: md's reasons.
    fn log_fault(&self, array: &ArrayFacts, area: PplArea) -> Option<&'static str> {
        if array.level != Some(Level::Raid5) {
            return Some("since only raid5 has such logs");
        }
        if array.bitmap.is_some() || array.journal {
            return Some("since it also has a write-intent bitmap or a journal");
        }
        if area.unit_room().is_zero() {
            return Some("since they have no room");
        }
        let mut members =
            self.seated.iter().filter_map(|(candidate, seat)| Some((self.candidates[*candidate].superblock()?, seat)));
        members.find_map(|(superblock, seat)| misplaced(superblock, area, seat.slot().is_some()))
    }

    /// What has to be replayed of the logs, now that the members are settled.
    pub(super) fn logs(
        &mut self,
        array: &ArrayFacts,
        geometry: &Geometry,
        members: &[Seated],
        ppl: Option<PplReplay>,
    ) -> Result<Logs, Vec<Reason>> {
        let logs = if array.journal {
            self.journal(geometry, members)?
        } else {
            // Where a resync is to come as well: a member may be lost before that.
            let ppl = ppl.filter(|replay| !replay.is_empty());
            Logs { replay: ppl.map(Replay::Ppl), read_only: false }
        };
        if logs.replay.is_some() && self.options.readonly {
            self.notes.push("the log is replayed in memory: nothing is written to the members".to_owned());
        }
        Ok(logs)
    }

    fn journal(&mut self, geometry: &Geometry, members: &[Seated]) -> Result<Logs, Vec<Reason>> {
        let reason = match self.journal_use(geometry, members) {
            Ok(replay) => return Ok(Logs { replay: replay.map(Replay::Journal), read_only: false }),
            Err(reason) if !self.options.force => return Err(vec![reason]),
            Err(reason) => reason,
        };
        let why = match reason {
            Reason::JournalUnusable { member, why } => format!("{member}: {why}"),
            _ => "it is missing or stale".to_owned(),
        };
        self.forced.push(Forced::JournalIgnored { why });
        Ok(Logs { replay: None, read_only: true })
    }

    fn journal_use(&self, geometry: &Geometry, members: &[Seated]) -> Result<Option<JournalReplay>, Reason> {
        let mut journals = self.seated.iter().filter(|(_, seat)| *seat == Seat::Journal);
        let Some((candidate, _)) = journals.next() else { return Err(Reason::JournalMissing) };
        let device = &self.candidates[*candidate];
        let unusable = |why: &str| Reason::JournalUnusable { member: device.name.clone(), why: why.to_owned() };
        let Geometry::Parity(geometry) = geometry else { return Err(unusable("this level has no use for one")) };
        if journals.next().is_some() {
            return Err(unusable("there is another one"));
        }
        let scan = match &device.journal {
            JournalLog::Scan(scan) => scan,
            JournalLog::Failed(why) => return Err(unusable(why)),
            JournalLog::None => return Err(unusable("its superblock does not say where it begins")),
        };
        match scan.end() {
            Some(ScanEnd::End | ScanEnd::NoStart) => {}
            Some(ScanEnd::Unknown) => return Err(unusable("it says things that raidus does not know")),
            None => return Err(unusable("it was not read to its end")),
        }
        match JournalReplay::plan(&device.name, scan, geometry, members) {
            JournalUse::Nothing => Ok(None),
            JournalUse::Replay(replay) => Ok(Some(replay)),
            JournalUse::Unusable(why) => Err(unusable(why)),
        }
    }
}

/// What is wrong with the place of a member's partial parity log.
fn misplaced(superblock: &Superblock, area: PplArea, has_slot: bool) -> Option<&'static str> {
    let (own, member) = (superblock.array().ppl, superblock.member());
    if has_slot && own.is_none_or(|own| (own.offset, own.size) != (area.offset, area.size)) {
        return Some("since its members do not agree on where they are");
    }
    let superblock = member.super_offset.0..member.super_offset.0 + SUPERBLOCK_SECTORS.0;
    let data = member.data_offset.0..member.data_offset.0.saturating_add(member.data_size.0);
    let Some((start, len)) = ppl::place(&area, member.super_offset) else { return Some("since they have no place") };
    let overlaps = |other: core::ops::Range<u64>| start.0 < other.end && other.start < start.0 + len.0;
    (overlaps(superblock) || overlaps(data)).then_some("since they lie over something else")
}
