//! What the logs of parity arrays have to do with the decision.

use raidus_format::ArrayFacts;
use raidus_format::journal::ScanEnd;
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
            let device = &self.candidates[*candidate];
            let bytes: &[u8] = match &device.ppl {
                Area::Bytes(bytes) => bytes,
                Area::Unread | Area::Failed(_) => &[],
            };
            let at = device.ppl_place().map_or(Sector::ZERO, |(at, _)| at);
            logs.push(OwnLog { name: &device.name, candidate: *candidate, slot, area, at, bytes });
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
        if array.ppl.is_some() && !self.options.readonly {
            // Were the log left as it is, md could apply its old entries to newer data after a crash. Were it empty, md would
            // start the array without resync if a member is lost in a crash, too.
            self.notes.push(
                "read-only: the array has a partial parity log, which raidus does not keep up to date. To write, change it with \
                 Linux md: mdadm --grow --consistency-policy=resync"
                    .to_owned(),
            );
        }
        array.ppl.is_some() || self.options.readonly
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
            // Where a resync is to come, it puts parity right everywhere.
            let ppl = ppl.filter(|replay| !replay.is_empty() && array.resync.is_none());
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
