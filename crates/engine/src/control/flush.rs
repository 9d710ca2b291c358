//! The coalescer of member flushes.
//!
//! At most one round is running and one waiting. A caller is satisfied by any round that started after it arrived, so all
//! that arrive while a round runs share the next one. An error of any member reaches every caller of the round, unless
//! the member's failure is recorded first: then the survivors hold the data, and say so.

use std::collections::BTreeMap;

use raidus_units::{MemberId, Nanos};

use super::Control;
use super::outbox::Outbox;
use crate::io::{IoToken, MemberError, MemberOp, RequestError};
use crate::msg::{Message, ShardId};

/// Who wants a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// A client of this shard.
    Shard(ShardId, u64),
    /// Control, before it marks the array clean; with the count of grants at that time.
    Clean {
        /// [`super::leases::Leases::grants`].
        grants: u64,
    },
    /// Control, before it clears bits.
    Clear,
    /// Control, before what was synced counts.
    Sync,
    /// Control, before it takes notes of bad blocks away.
    Rewritten,
    /// Control, before it writes over logs; with the number of the round.
    Log(u64),
}

#[derive(Debug, Default)]
pub(super) struct Flushes {
    waiting: Vec<Caller>,
    running: Option<FlushRound>,
    rounds: u64,
}

#[derive(Debug)]
struct FlushRound {
    callers: Vec<Caller>,
    pending: BTreeMap<IoToken, MemberId>,
    failed: Vec<MemberId>,
}

/// A round that ended.
#[derive(Debug)]
pub(super) struct Flushed {
    pub callers: Vec<Caller>,
    /// The members that could not do it.
    pub failed: Vec<MemberId>,
}

impl Flushes {
    pub fn request(&mut self, caller: Caller) {
        self.waiting.push(caller);
    }

    /// Whether a round would start, were there a caller.
    pub fn may_start(&self) -> bool {
        self.running.is_none()
    }

    /// Whether somebody waits for a round.
    pub fn is_wanted(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Starts the waiting round if there is one and none is running.
    pub fn start(&mut self, members: impl Iterator<Item = MemberId>, out: &mut Outbox) {
        if self.running.is_some() || self.waiting.is_empty() {
            return;
        }
        let pending = members.map(|member| (out.io(member, MemberOp::Flush), member)).collect();
        self.running = Some(FlushRound { callers: std::mem::take(&mut self.waiting), pending, failed: Vec::new() });
        self.rounds += 1;
    }

    /// Whether the I/O was one of the running round's.
    pub fn done(&mut self, token: IoToken, result: Result<(), MemberError>) -> bool {
        let Some(round) = &mut self.running else { return false };
        let Some(member) = round.pending.remove(&token) else { return false };
        if result.is_err() {
            round.failed.push(member);
        }
        true
    }

    /// The running round, if all its I/Os have ended.
    pub fn finished(&mut self) -> Option<Flushed> {
        let round = self.running.take_if(|round| round.pending.is_empty())?;
        Some(Flushed { callers: round.callers, failed: round.failed })
    }

    pub fn has_finished(&self) -> bool {
        self.running.as_ref().is_some_and(|round| round.pending.is_empty())
    }

    /// Gives up all that waits for a round not yet started.
    pub fn abandon_waiting(&mut self) -> Vec<Caller> {
        std::mem::take(&mut self.waiting)
    }

    /// Whether Control itself has asked for a flush that has not ended.
    pub fn has_internal(&self) -> bool {
        let internal = |c: &Caller| !matches!(c, Caller::Shard(..) | Caller::Log(_));
        self.waiting.iter().any(internal) || self.running.as_ref().is_some_and(|r| r.callers.iter().any(internal))
    }

    pub fn idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_none()
    }

    pub fn rounds(&self) -> u64 {
        self.rounds
    }
}

/// After a flush of its own failed, Control leaves the members alone for this long.
const RETRY: Nanos = Nanos::from_millis(5000);

impl Control {
    /// Starts the waiting round, if none is running.
    pub(super) fn start_flush(&mut self) {
        if self.broken || self.sealed {
            // Broken: no promise can be kept. Sealed: nothing has been written since the last flush.
            let result = if self.broken { Err(RequestError::Io) } else { Ok(()) };
            for caller in self.flushes.abandon_waiting() {
                self.answer_flush(caller, result, Nanos(0));
            }
            return;
        }
        self.flush_rewritten();
        if let Some(logs) = self.logs.as_mut().filter(|_| self.flushes.may_start())
            && (self.flushes.is_wanted() || logs.want_flush())
            && let Some(round) = logs.on_flush_begins()
        {
            self.flushes.request(Caller::Log(round));
        }
        self.flushes.start(self.members_in_use().into_iter(), &mut self.out);
    }

    /// Takes the members that failed out, and answers the callers of a round that ended.
    pub(super) fn settle_flushes(&mut self, now: Nanos) {
        let Some(flushed) = self.flushes.finished() else { return };
        let mut refused = false;
        for member in flushed.failed {
            refused |= !self.fail(member);
        }
        if refused || self.broken {
            for caller in flushed.callers {
                self.answer_flush(caller, Err(RequestError::Io), now);
            }
        } else {
            self.parked.extend(flushed.callers);
        }
    }

    /// Answers flushes that waited for a failure to be recorded. Without the record, a crash could make the failed
    /// member's stale data look as good as what was flushed to the others.
    pub(super) fn settle_parked(&mut self, now: Nanos) {
        if self.failures.to_record() && !self.broken {
            return;
        }
        let result = if self.broken { Err(RequestError::Io) } else { Ok(()) };
        for caller in std::mem::take(&mut self.parked) {
            self.answer_flush(caller, result, now);
        }
    }

    fn answer_flush(&mut self, caller: Caller, result: Result<(), RequestError>, now: Nanos) {
        match caller {
            Caller::Shard(shard, token) => self.out.send(shard, Message::FlushDone { token, result }),
            Caller::Clean { grants } if result.is_ok() => self.data_clean = grants == self.leases.grants(),
            Caller::Clear if result.is_ok() => self.clear_ready = true,
            Caller::Sync => self.on_sync_flushed(now, result.is_ok()),
            Caller::Rewritten => self.on_rewritten_flushed(result.is_ok()),
            Caller::Log(round) => self.logs.iter_mut().for_each(|logs| logs.on_flushed(round, result.is_ok())),
            Caller::Clean { .. } => {
                self.retry_at = now.plus(RETRY);
                self.clean_failed = true;
            }
            Caller::Clear => self.bitmap.iter_mut().for_each(|b| b.cancel_clearing()),
        }
    }

    /// Whether the members have to be flushed before the array can be marked clean.
    pub(super) fn wants_clean_flush(&self) -> bool {
        let due = self.marked && self.likes_clean() || self.closing();
        let quiet = self.leases.none_held() && !self.wanted();
        due && quiet && !self.data_clean && !self.broken && !self.sealed && !self.has_internal_flush()
    }

    fn has_internal_flush(&self) -> bool {
        self.flushes.has_internal() || self.parked.iter().any(|c| !matches!(c, Caller::Shard(..) | Caller::Log(_)))
    }

    /// Flushes the members as soon as nobody writes.
    pub(super) fn begin_clean(&mut self, now: Nanos) {
        if self.wants_clean_flush() && now >= self.retry_at {
            self.flushes.request(Caller::Clean { grants: self.leases.grants() });
        }
    }

    /// Whether bits may be cleared at all.
    pub(super) fn may_clear(&self) -> bool {
        let running = !self.map.read_only && !self.closing();
        running && self.touched && !self.broken && !self.degraded() && !self.failures.to_record()
    }

    /// Flushes the members when bits are due to be cleared; unless nothing was written since the last flush.
    pub(super) fn begin_clearing(&mut self, now: Nanos) {
        if !self.may_clear() {
            return;
        }
        let Some(bitmap) = &mut self.bitmap else { return };
        if bitmap.clearing_due().is_none_or(|due| due > now) || !bitmap.begin_clearing(now, false) {
            return;
        }
        self.clear_ready = self.data_clean;
        if !self.data_clean {
            self.flushes.request(Caller::Clear);
        }
    }
}
