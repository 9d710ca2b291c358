//! What a reactor did, for benchmarks and monitors.

use std::sync::atomic::{AtomicU64, Ordering};

/// Defines the counts once, as a struct and as the array in which they are published.
macro_rules! tally {
    ($($(#[$doc:meta])* $field:ident),+ $(,)?) => {
        /// A reactor's count so far. Only its own thread touches it; a copy is published once in a while.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Tally {
            $($(#[$doc])* pub $field: u64,)+
        }

        const FIELDS: usize = [$(stringify!($field)),+].len();

        impl Tally {
            /// What each number counts, in the order of [`to_array`](Self::to_array).
            pub const NAMES: [&str; FIELDS] = [$(stringify!($field)),+];

            /// All numbers.
            pub const fn to_array(self) -> [u64; FIELDS] {
                [$(self.$field),+]
            }

            fn from_array(fields: [u64; FIELDS]) -> Tally {
                let [$($field),+] = fields;
                Tally { $($field),+ }
            }
        }
    };
}

tally! {
    /// Turns of the loop.
    turns,
    /// Times the kernel was called: for submission, for waiting, to wake another reactor.
    syscalls,
    /// Times the reactor slept.
    sleeps,
    /// Times it woke another one.
    wakes,
    /// Messages to state machines on other reactors.
    messages,
    /// Requests taken in.
    requests,
    /// Reads from members.
    member_reads,
    /// Bytes of them.
    member_read_bytes,
    /// Those of the reads that a write needed: old data, old parity, what the stripe is computed from.
    prereads,
    /// Bytes of them.
    preread_bytes,
    /// Writes of data to members.
    member_writes,
    /// Bytes of them.
    member_write_bytes,
    /// Writes of metadata to members.
    metadata_writes,
    /// Flushes of members.
    member_flushes,
    /// Bytes of zeroes asked of members.
    member_zeroed_bytes,
    /// Bytes that parity arithmetic wrote.
    computed_bytes,
    /// Bytes of data that were copied from one place in memory to another.
    copied_bytes,
    /// Bytes received from clients.
    received_bytes,
    /// Bytes sent to clients.
    sent_bytes,
}

/// The published copy of a [`Tally`].
#[derive(Debug, Default)]
pub(crate) struct Published([AtomicU64; FIELDS]);

impl Tally {
    /// The sum of several reactors' counts.
    #[must_use]
    pub fn plus(self, other: Tally) -> Tally {
        self.with(other, u64::wrapping_add)
    }

    /// What was added since `before`.
    #[must_use]
    pub fn since(self, before: Tally) -> Tally {
        self.with(before, u64::wrapping_sub)
    }

    fn with(self, other: Tally, join: fn(u64, u64) -> u64) -> Tally {
        let (a, b) = (self.to_array(), other.to_array());
        Tally::from_array(std::array::from_fn(|i| join(a[i], b[i])))
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
        assert_eq!((tally.turns, tally.sent_bytes), (1, FIELDS as u64));
        assert_eq!(tally.to_array(), fields);
        assert_eq!(tally.plus(tally).to_array(), fields.map(|f| 2 * f));
        assert_eq!(tally.plus(tally).since(tally), tally);
        let published = Published::default();
        published.publish(&tally);
        assert_eq!(published.load(), tally);
        assert_eq!(Tally::NAMES[FIELDS - 1], "sent_bytes");
    }
}
