//! Stopping, and switching between read-write and read-only: ways to bring an array to rest.
//!
//! Both go the same way: no new writes, all leases back, members flushed, bits cleared, clean mark. What was never written
//! to is left as it was found.

use std::collections::BTreeSet;

use raidus_units::Nanos;

use super::status::{Command, CommandError, Event, StopError};
use super::{Control, NEVER};
use crate::msg::{Message, ShardId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Running,
    /// The map says read-only since this epoch; leases come back.
    Sealing {
        epoch: u64,
    },
    ReadOnly,
    /// At rest; the first write sets it running.
    ReadAuto,
    /// Shards finish what they have; those in the set have.
    Draining(BTreeSet<ShardId>),
    /// All shards have finished.
    Closing,
    Stopped,
}

impl Control {
    /// Does as the operator says.
    ///
    /// # Errors
    /// [`CommandError`] if it cannot be done; then nothing has changed. Stopping an array that stops, or switching to what it
    /// is already, is no error.
    pub fn command(&mut self, _now: Nanos, command: Command) -> Result<(), CommandError> {
        let changes_nothing = matches!(command, Command::SetReadAuto | Command::SetSuspended { .. });
        if self.life == Life::ReadAuto && !changes_nothing {
            self.wake_up();
        }
        match (command, &self.life) {
            (Command::Stop, Life::Running | Life::Sealing { .. } | Life::ReadOnly) => self.drain(),
            (Command::Stop, _) => {}
            (_, Life::Draining(_) | Life::Closing | Life::Stopped) => return Err(CommandError::Stopping),
            (Command::SetReadOnly(true), Life::Running) => self.seal(),
            (Command::SetReadOnly(false), Life::Sealing { .. } | Life::ReadOnly) => self.unseal(),
            (Command::SetReadOnly(_), _) => {}
            (Command::SetReadAuto, _) => return self.begin_read_auto(),
            (Command::SetSuspended { lo, hi, all }, _) => self.suspend(lo, hi, all),
            (Command::SetSafeModeDelay(delay), _) => self.set_safe_mode_delay(delay),
            (Command::SetFailLast(on), _) => self.fail_last = on,
            (Command::SetReadErrors(member, n), _) => return self.superblocks.set_read_errors(member, n),
            (Command::SetSyncSpeed { min, max }, _) => self.sync.set_speed(min, max),
            (Command::SetMaxReadErrors(most), _) => self.heals.set_most(most),
            (Command::SetSyncRange { min, max }, _) => (self.sync.min, self.sync.max) = (min, max),
            (_, Life::Sealing { .. } | Life::ReadOnly) => return Err(CommandError::ReadOnly),
            (command, Life::Running | Life::ReadAuto) => return self.change_members(command),
        }
        Ok(())
    }

    fn set_safe_mode_delay(&mut self, delay: Option<Nanos>) {
        let delay = delay.unwrap_or(NEVER);
        self.tunables.safe_mode_delay = delay;
        self.out.broadcast(self.tunables.shards, &Message::SafeModeDelay(delay));
    }

    fn drain(&mut self) {
        self.end_pause();
        self.life = Life::Draining(BTreeSet::new());
        self.retry_at = Nanos(0);
        self.out.broadcast(self.tunables.shards, &Message::Drain);
        self.close_if_drained();
    }

    pub(super) fn on_drained(&mut self, shard: ShardId) {
        if let Life::Draining(drained) = &mut self.life {
            drained.insert(shard);
        }
        self.close_if_drained();
    }

    fn close_if_drained(&mut self) {
        let Life::Draining(drained) = &self.life else { return };
        if drained.len() < usize::from(self.tunables.shards) {
            return;
        }
        self.life = Life::Closing;
        self.clean_failed &= self.sealed;
        // Without leases nobody knows whether there were writes.
        self.data_clean &= self.redundant();
    }

    fn seal(&mut self) {
        self.end_pause();
        let epoch = self.change_map(|map| map.read_only = true);
        self.life = Life::Sealing { epoch };
        self.clean_failed = false;
        self.retry_at = Nanos(0);
        self.data_clean &= self.redundant();
        for shard in (0..self.tunables.shards).map(ShardId) {
            let held = self.leases.of(shard);
            if !held.is_empty() {
                self.out.send(shard, Message::LeaseRevoke(held));
            }
        }
    }

    fn unseal(&mut self) {
        self.change_map(|map| map.read_only = false);
        self.sealed = false;
        self.life = Life::Running;
    }

    /// Whether the array is on its way to rest and no shard writes any more.
    pub(super) fn closing(&self) -> bool {
        match self.life {
            Life::Closing => true,
            Life::Sealing { epoch } => self.failures.in_force(epoch) && self.leases.none_held(),
            _ => false,
        }
    }

    /// Brings the array to rest.
    pub(super) fn pursue_life(&mut self, now: Nanos) {
        if !self.closing() {
            return;
        }
        self.clear_last_bits(now);
        if !self.at_rest() {
            return;
        }
        if self.life == Life::Closing {
            self.life = Life::Stopped;
            self.events.push_back(Event::Stopped { result: self.outcome() });
        } else {
            self.life = Life::ReadOnly;
            self.sealed = true;
        }
    }

    /// All bits may go now that the members are flushed and nobody writes.
    fn clear_last_bits(&mut self, now: Nanos) {
        let may = self.touched && self.data_clean && !self.degraded() && !self.broken && !self.failures.to_record();
        let Some(bitmap) = self.bitmap.as_mut().filter(|b| may && b.has_idle()) else { return };
        if !bitmap.is_clearing() && bitmap.begin_clearing(now, true) {
            self.clear_ready = true;
        }
    }

    /// Whether an array that is closing has nothing left to do.
    pub(super) fn at_rest(&self) -> bool {
        let quiet = self.sync.is_idle()
            && self.heals.is_idle()
            && self.round.is_none()
            && self.flushes.idle()
            && self.parked.is_empty()
            && self.out.idle();
        if self.broken || self.clean_failed || self.sealed {
            return quiet;
        }
        let bits = self.bitmap.as_ref().is_some_and(|b| b.has_pages(true));
        quiet && self.data_clean && !self.marked && !bits && !self.failures.to_record()
    }

    fn outcome(&self) -> Result<(), StopError> {
        if self.broken {
            Err(StopError::Broken)
        } else if self.clean_failed {
            Err(StopError::FlushFailed)
        } else {
            Ok(())
        }
    }
}
