//! What a reactor did, for benchmarks and monitors.

use std::sync::atomic::{AtomicU64, Ordering};

/// A reactor's count so far. Only its own thread touches it; a copy is published once in a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Turns of the loop.
    pub turns: u64,
    /// Times the kernel was called for submission or waiting.
    pub syscalls: u64,
    /// Times the reactor slept.
    pub sleeps: u64,
    /// Requests taken in.
    pub requests: u64,
    /// Reads from members.
    pub member_reads: u64,
    /// Bytes of them.
    pub member_read_bytes: u64,
    /// Writes of data to members.
    pub member_writes: u64,
    /// Bytes of them.
    pub member_write_bytes: u64,
    /// Writes of metadata to members.
    pub metadata_writes: u64,
    /// Flushes of members.
    pub member_flushes: u64,
    /// Bytes of zeroes asked of members.
    pub member_zeroed_bytes: u64,
    /// Bytes that parity arithmetic and copies wrote.
    pub computed_bytes: u64,
    /// Bytes received from clients.
    pub received_bytes: u64,
    /// Bytes sent to clients.
    pub sent_bytes: u64,
}

const FIELDS: usize = 14;

/// The published copy of a [`Tally`].
#[derive(Debug, Default)]
pub(crate) struct Published([AtomicU64; FIELDS]);

impl Tally {
    fn to_array(self) -> [u64; FIELDS] {
        [
            self.turns,
            self.syscalls,
            self.sleeps,
            self.requests,
            self.member_reads,
            self.member_read_bytes,
            self.member_writes,
            self.member_write_bytes,
            self.metadata_writes,
            self.member_flushes,
            self.member_zeroed_bytes,
            self.computed_bytes,
            self.received_bytes,
            self.sent_bytes,
        ]
    }

    fn from_array(fields: [u64; FIELDS]) -> Tally {
        let [turns, syscalls, sleeps, requests, member_reads, member_read_bytes, rest @ ..] = fields;
        let [member_writes, member_write_bytes, metadata_writes, member_flushes, rest @ ..] = rest;
        let [member_zeroed_bytes, computed_bytes, received_bytes, sent_bytes] = rest;
        Tally {
            turns,
            syscalls,
            sleeps,
            requests,
            member_reads,
            member_read_bytes,
            member_writes,
            member_write_bytes,
            metadata_writes,
            member_flushes,
            member_zeroed_bytes,
            computed_bytes,
            received_bytes,
            sent_bytes,
        }
    }

    /// The sum of several reactors' counts.
    #[must_use]
    pub fn plus(self, other: Tally) -> Tally {
        let mut sum = self.to_array();
        for (a, b) in sum.iter_mut().zip(other.to_array()) {
            *a += b;
        }
        Tally::from_array(sum)
    }
}

impl Published {
    pub(crate) fn publish(&self, tally: &Tally) {
        for (to, from) in self.0.iter().zip(tally.to_array()) {
            to.store(from, Ordering::Relaxed);
        }
    }

    pub(crate) fn load(&self) -> Tally {
        Tally::from_array(std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_array_form_keeps_every_field_in_place() {
        let fields = std::array::from_fn(|i| i as u64 + 1);
        let tally = Tally::from_array(fields);
        assert_eq!((tally.turns, tally.sent_bytes, tally.metadata_writes), (1, 14, 9));
        assert_eq!(tally.to_array(), fields);
        assert_eq!(tally.plus(tally).to_array(), fields.map(|f| 2 * f));
        let published = Published::default();
        published.publish(&tally);
        assert_eq!(published.load(), tally);
    }
}
