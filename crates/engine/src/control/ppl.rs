//! Partial parity logs: one on each member, for the stripes whose parity it holds.
//!
//! A log is written in *units*, one at a time: a unit is made of what waits, written durably, and then the writes it speaks of may
//! begin. The next one must not be written before all of them have ended, what failed of them is on record, and the members have been
//! flushed since: after a crash only the newest unit of a log counts (the rest of the area is there so that the same place is not
//! always worn, as with md).
//!
//! Logs are emptied before the first superblock of a session, so that nothing written in an earlier one is ever applied to what this
//! one writes; and again when a member gets a slot. While a resync is pending they say that parity is not to be trusted: a crash
//! must not leave the array looking in sync.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use raidus_format::ppl::{self, ENTRIES_MAX};
use raidus_format::{MdUuid, PplArea};
use raidus_units::{MemberId, Sector, Sectors, Slot};

use super::Control;
use crate::io::{IoToken, LogEntry, LogUnit, MemberError, MemberOp};
use crate::msg::{LogWant, Message, ShardId};

/// A logged write: its shard and the shard's name for it.
type Op = (ShardId, u64);

#[derive(Debug)]
pub(super) struct Logs {
    array: MdUuid,
    area: PplArea,
    generation: u64,
    /// By member id.
    members: Vec<Log>,
    /// Writes that are not granted.
    waiting: BTreeMap<Op, Waiting>,
    /// Members whose log could not be written.
    failed: Vec<MemberId>,
    /// The number of the newest flush round.
    flushes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    /// Log writes that have not ended.
    logs: usize,
    /// A member that was to log it has failed: that must be on record first.
    lost: bool,
}

#[derive(Debug, Default)]
struct Log {
    content: Content,
    /// Where in the area the next unit goes.
    at: Sectors,
    unit: Unit,
    queue: VecDeque<(Op, LogEntry)>,
}

/// What a log says if no unit is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Content {
    /// Something of an earlier session.
    #[default]
    Stale,
    /// It is being emptied.
    Emptying,
    /// That parity is right except where it says otherwise; or that it is not to be trusted.
    Own { trusted: bool },
}

/// A log's newest unit.
#[derive(Debug, Default)]
enum Unit {
    /// There is none, or everything it speaks of is durable.
    #[default]
    None,
    Writing {
        token: IoToken,
        ops: Vec<Op>,
        /// The member is out meanwhile.
        dropped: bool,
    },
    /// These writes have not ended.
    Open(BTreeSet<Op>),
    /// All have ended.
    Ended,
    /// And this flush round began after that.
    Flushing(u64),
}

impl Logs {
    pub fn new(array: MdUuid, area: PplArea) -> Logs {
        Logs {
            array,
            area,
            generation: 0,
            members: Vec::new(),
            waiting: BTreeMap::new(),
            failed: Vec::new(),
            flushes: 0,
        }
    }

    fn log(&mut self, member: MemberId) -> &mut Log {
        let index = member.index();
        if self.members.len() <= index {
            self.members.resize_with(index + 1, Log::default);
        }
        &mut self.members[index]
    }

    /// Writes have ended. Where they were the last of a unit, only a flush is missing.
    fn on_done(&mut self, shard: ShardId, ops: &[u64]) {
        for log in &mut self.members {
            let Unit::Open(open) = &mut log.unit else { continue };
            ops.iter().for_each(|op| {
                open.remove(&(shard, *op));
            });
            if open.is_empty() {
                log.unit = Unit::Ended;
            }
        }
    }

    /// Whether the I/O was one of a log's.
    pub fn done(&mut self, token: IoToken, result: Result<(), MemberError>) -> bool {
        let is_it = |log: &Log| matches!(log.unit, Unit::Writing { token: t, .. } if t == token);
        let Some(index) = self.members.iter().position(is_it) else { return false };
        let Unit::Writing { ops, dropped, .. } = std::mem::take(&mut self.members[index].unit) else { return false };
        if result.is_err() && !dropped {
            self.failed.push(MemberId(index as u16));
        }
        let logged = result.is_ok() && !dropped;
        for op in &ops {
            if let Some(waiting) = self.waiting.get_mut(op) {
                waiting.logs -= 1;
                waiting.lost |= !logged;
            }
        }
        if logged {
            self.members[index].unit = Unit::Open(ops.into_iter().collect());
        }
        true
    }

    /// A member is out: whatever it was to log is not logged there. The writes of a unit under way wait for its end, as the unit reads
    /// their memory.
    fn drop_log(&mut self, member: MemberId) {
        let Log { mut unit, queue, .. } = std::mem::take(self.log(member));
        for (op, _) in queue {
            if let Some(waiting) = self.waiting.get_mut(&op) {
                waiting.logs -= 1;
                waiting.lost = true;
            }
        }
        if let Unit::Writing { dropped, .. } = &mut unit {
            *dropped = true;
            self.log(member).unit = unit;
        }
    }

    /// Takes the writes out that may begin: logged everywhere, or waiting only for a failure that is on record.
    fn take_ready(&mut self, recorded: bool) -> BTreeMap<ShardId, Vec<u64>> {
        let mut ready: BTreeMap<ShardId, Vec<u64>> = BTreeMap::new();
        self.waiting.retain(|(shard, op), waiting| {
            let is_ready = waiting.logs == 0 && (recorded || !waiting.lost);
            if is_ready {
                ready.entry(*shard).or_default().push(*op);
            }
            !is_ready
        });
        ready
    }

    /// What the next unit of a log holds, and where it goes; `None` if it has to wait, or nothing does.
    fn next_unit(&mut self, member: MemberId, untrusted: bool) -> Option<(Sectors, Vec<Op>, LogUnit)> {
        let (array, area) = (self.array, self.area);
        let log = self.log(member);
        let may = matches!(log.unit, Unit::None) && matches!(log.content, Content::Own { .. });
        if !may || log.queue.is_empty() {
            return None;
        }
        let (mut ops, mut entries, mut room) = (Vec::new(), Vec::new(), area.unit_room());
        let most = ENTRIES_MAX - usize::from(untrusted);
        while let Some((op, entry)) = log.queue.front().copied().filter(|_| entries.len() < most) {
            let len = entry.partial.map_or(Sectors::ZERO, |(_, len)| len);
            if len > room {
                break;
            }
            room -= len;
            log.queue.pop_front();
            ops.push(op);
            entries.push(entry);
        }
        let mut unit = LogUnit { array, generation: 0, entries, untrusted };
        let at = if log.at + unit.sectors() > area.size { Sectors::ZERO } else { log.at };
        log.at = if area.fits_ring() { at + unit.sectors() } else { Sectors::ZERO };
        log.content = Content::Own { trusted: !untrusted };
        self.generation += 1;
        unit.generation = self.generation;
        Some((at, ops, unit))
    }

    /// Whether a unit has to wait for a flush.
    pub fn want_flush(&self) -> bool {
        self.members.iter().any(|log| matches!(log.unit, Unit::Ended) && !log.queue.is_empty())
    }

    /// A flush round begins. Its number, if logs have something of it.
    pub fn on_flush_begins(&mut self) -> Option<u64> {
        self.flushes += 1;
        let round = self.flushes;
        let mut ended = self.members.iter_mut().filter(|log| matches!(log.unit, Unit::Ended)).peekable();
        ended.peek()?;
        ended.for_each(|log| log.unit = Unit::Flushing(round));
        Some(round)
    }

    /// A flush round ended.
    pub fn on_flushed(&mut self, round: u64, succeeded: bool) {
        for log in &mut self.members {
            if matches!(log.unit, Unit::Flushing(r) if r == round) {
                log.unit = if succeeded { Unit::None } else { Unit::Ended };
            }
        }
    }

    /// Whether the log is to be emptied with the next superblocks.
    fn is_to_be_emptied(&mut self, member: MemberId, trusted: bool) -> bool {
        let log = self.log(member);
        match log.content {
            Content::Stale => true,
            Content::Emptying => false,
            // Parity is right everywhere by now.
            Content::Own { trusted: before } => trusted && !before && matches!(log.unit, Unit::None),
        }
    }

    /// Logs that were being emptied are, or are not.
    pub fn on_emptied(&mut self, trusted: bool, succeeded: bool) {
        for log in self.members.iter_mut().filter(|log| log.content == Content::Emptying) {
            log.content = if succeeded { Content::Own { trusted } } else { Content::Stale };
            log.at = Sectors::ZERO;
        }
    }
}

impl Control {
    pub(super) fn on_log_wanted(&mut self, shard: ShardId, wants: Vec<LogWant>) {
        let Some(logs) = &mut self.logs else { return };
        for LogWant { op, entry } in wants {
            let holders = self.map.slots.get(entry.parity_slot.index());
            // Whoever is to succeed the parity's holder may do so while the write is under way.
            let holders = holders.into_iter().flat_map(|slot| [slot.member, slot.replacement]).flatten();
            let holders = holders.filter(|m| self.map.members[m.index()].writable());
            let op = (shard, op);
            let mut waiting = Waiting { logs: 0, lost: true };
            for member in holders {
                logs.log(member).queue.push_back((op, entry));
                waiting = Waiting { logs: waiting.logs + 1, lost: false };
            }
            logs.waiting.insert(op, waiting);
        }
    }

    pub(super) fn on_logged_ended(&mut self, shard: ShardId, ops: &[u64]) {
        self.logs.iter_mut().for_each(|logs| logs.on_done(shard, ops));
    }

    /// Takes out the members whose log could not be written, and forgets the logs of those that are out.
    pub(super) fn fail_logs(&mut self) {
        let Some(logs) = &mut self.logs else { return };
        for member in std::mem::take(&mut logs.failed) {
            // Without this member the array cannot live, and with it parity cannot be kept true.
            if !self.fail(member) {
                self.break_array();
            }
        }
        let Some(logs) = &mut self.logs else { return };
        for (index, member) in self.map.members.iter().enumerate() {
            let has_log =
                logs.members.get(index).is_some_and(|log| log.content != Content::Stale || !log.queue.is_empty());
            if has_log && !member.writable() {
                logs.drop_log(MemberId(index as u16));
            }
        }
    }

    /// Lets the writes begin that are logged, and writes the units that can be.
    pub(super) fn settle_logs(&mut self) {
        let broken = self.broken;
        let recorded = broken || !self.failures.to_record();
        let Some(logs) = &mut self.logs else { return };
        if broken {
            // They will find that out.
            (0..logs.members.len()).for_each(|index| logs.drop_log(MemberId(index as u16)));
        }
        for (shard, ops) in logs.take_ready(recorded) {
            self.out.send(shard, Message::LogGranted(ops));
        }
        if broken {
            return;
        }
        let untrusted = self.map.unsynced_from.is_some();
        for index in 0..logs.members.len() {
            let member = MemberId(index as u16);
            let Some((at, ops, unit)) = logs.next_unit(member, untrusted) else { continue };
            let Some(start) = self.superblocks.log_start(member) else { continue };
            let op = MemberOp::WriteLog { sector: start + at, unit: Box::new(unit) };
            self.counters.log_units += 1;
            let token = self.out.io(member, op);
            logs.log(member).unit = Unit::Writing { token, ops, dropped: false };
        }
    }

    /// The logs that have to be emptied before superblocks are written, with what their headers say and where they are.
    pub(super) fn logs_to_empty(&mut self) -> Vec<EmptyLog> {
        let trusted = self.map.unsynced_from.is_none();
        let members = self.members_in_use();
        let Some(logs) = &mut self.logs else { return Vec::new() };
        let mut empty = Vec::new();
        for member in members {
            if !logs.is_to_be_emptied(member, trusted) {
                continue;
            }
            let start = self.superblocks.log_start(member);
            let slot = self.map.slot_of(member);
            let (Some(start), Some(slot)) = (start, slot) else { continue };
            let header = header(logs.array, slot, trusted);
            logs.log(member).content = Content::Emptying;
            empty.push(EmptyLog { member, start, len: logs.area.size, header });
        }
        empty
    }
}

/// A log to be emptied: zeroes behind this header.
pub(super) struct EmptyLog {
    pub member: MemberId,
    pub start: Sector,
    pub len: Sectors,
    pub header: Box<[u8]>,
}

fn header(array: MdUuid, slot: Slot, trusted: bool) -> Box<[u8]> {
    ppl::empty(array, (!trusted).then_some(slot)).into()
}
