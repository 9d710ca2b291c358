//! What happened to a running array, for anybody who asks.
//!
//! The last [`KEPT`] events are kept. Readers ask for those after the last they know; the list never waits for a reader, and one
//! that is too slow is told how many it missed.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Events kept for readers.
const KEPT: usize = 1024;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum What {
    /// A member failed.
    MemberFailed {
        /// Its path.
        device: String,
    },
    /// A device joined.
    MemberAdded {
        /// Its path.
        device: String,
        /// It took its former slot back.
        former: bool,
    },
    /// A device left.
    MemberRemoved {
        /// Its path.
        device: String,
    },
    /// A member holds its slot's data now.
    MemberInSync {
        /// Its path.
        device: String,
    },
    /// A member has been replaced and is not used any more.
    MemberReplaced {
        /// Its path.
        device: String,
    },
    /// A block that could not be read was written anew.
    ReadErrorCorrected {
        /// The member's path.
        device: String,
        /// Device sector.
        sector: u64,
        /// Length.
        sectors: u64,
    },
    /// Blocks that cannot be written are noted as bad.
    BadBlocks {
        /// The member's path.
        device: String,
        /// Device sector.
        sector: u64,
        /// Length.
        sectors: u64,
    },
    /// A sync began.
    SyncStarted {
        /// `resync`, `recovery`, `check`, `repair`.
        action: String,
    },
    /// A sync ended.
    SyncEnded {
        /// As above.
        action: String,
        /// It came to its end.
        complete: bool,
        /// Sectors in which members disagreed.
        mismatch_sectors: u64,
    },
    /// The array has a write-intent bitmap now.
    BitmapAdded {
        /// Bytes per bit.
        chunk_bytes: u64,
    },
    /// The array has no write-intent bitmap any more.
    BitmapRemoved,
    /// Requests wait from now on.
    Suspended {
        /// Writes to these sectors of the array do: from here …
        lo: u64,
        /// … to here.
        hi: u64,
        /// All requests do.
        all: bool,
    },
    /// Nothing waits any more.
    Resumed,
    /// A member is read only if no other can be, or so no more.
    WriteMostly {
        /// Its path.
        device: String,
        /// It is so.
        on: bool,
    },
    /// A setting was changed.
    AttributeSet {
        /// Its name.
        attribute: String,
        /// What it is now.
        value: String,
    },
    /// Writes are refused, or wait, or are accepted again.
    StateChanged {
        /// md's `array_state`.
        array_state: String,
    },
    /// Too many members failed.
    Broken,
    /// The array has stopped; nothing comes after it.
    Stopped,
}

/// An event, its number and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Counts from 1.
    pub number: u64,
    /// Seconds since 1970.
    pub seconds: u64,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// Events after a number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Events that came after that number and are not kept any more.
    pub missed: u64,
    /// The others, oldest first.
    pub events: Vec<Entry>,
    /// The number to ask with next.
    pub last: u64,
    /// No more will come.
    pub ended: bool,
}

/// The list.
pub struct Feed {
    kept: Mutex<Kept>,
    /// The number of the newest, for those who wait for it.
    newest: watch::Sender<u64>,
}

#[derive(Default)]
struct Kept {
    entries: VecDeque<Entry>,
    last: u64,
    ended: bool,
}

impl Default for Feed {
    fn default() -> Feed {
        Feed { kept: Mutex::default(), newest: watch::Sender::new(0) }
    }
}

impl Feed {
    /// Adds an event.
    pub fn push(&self, what: What, seconds: u64) {
        let mut kept = self.kept();
        kept.last += 1;
        kept.ended |= what == What::Stopped;
        let number = kept.last;
        kept.entries.push_back(Entry { number, seconds, what });
        if kept.entries.len() > KEPT {
            kept.entries.pop_front();
        }
        drop(kept);
        self.newest.send_replace(number);
    }

    /// Those after number `after`.
    pub fn after(&self, after: u64) -> Batch {
        let kept = self.kept();
        let events: Vec<Entry> = kept.entries.iter().filter(|e| e.number > after).cloned().collect();
        let missed = events.first().map_or(0, |first| first.number - 1 - after.min(first.number - 1));
        Batch { missed, events, last: kept.last, ended: kept.ended }
    }

    /// Whether no more events will come.
    pub fn has_ended(&self) -> bool {
        self.kept().ended
    }

    /// Changes with every event.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::MemberFailed { device } => write!(f, "{device} failed"),
            What::MemberAdded { device, former: false } => write!(f, "{device} added"),
            What::MemberAdded { device, former: true } => write!(f, "{device} re-added"),
            What::MemberRemoved { device } => write!(f, "{device} removed"),
            What::MemberInSync { device } => write!(f, "{device} is in sync"),
            What::MemberReplaced { device } => write!(f, "{device} has been replaced"),
            What::ReadErrorCorrected { device, sector, sectors } => {
                write!(f, "{device}: read error corrected ({sectors} sectors at {sector})")
            }
            What::BadBlocks { device, sector, sectors } => {
                write!(f, "{device}: {sectors} sectors at {sector} are noted as bad")
            }
            What::SyncStarted { action } => write!(f, "{action} started"),
            What::SyncEnded { action, complete, mismatch_sectors } => {
                write!(f, "{action} {}", if *complete { "done" } else { "interrupted" })?;
                if *mismatch_sectors > 0 { write!(f, ", {mismatch_sectors} sectors mismatched") } else { Ok(()) }
            }
            What::BitmapAdded { chunk_bytes } => {
                write!(f, "write-intent bitmap added, {} KiB per bit", chunk_bytes / 1024)
            }
            What::BitmapRemoved => f.write_str("write-intent bitmap removed"),
            What::Suspended { all: true, .. } => f.write_str("all requests suspended"),
            What::Suspended { lo, hi, all: false } => write!(f, "writes to sectors {lo} to {hi} suspended"),
            What::Resumed => f.write_str("resumed"),
            What::WriteMostly { device, on: true } => write!(f, "{device} is write-mostly"),
            What::WriteMostly { device, on: false } => write!(f, "{device} is write-mostly no more"),
            What::AttributeSet { attribute, value } => write!(f, "{attribute} set to {value}"),
            What::StateChanged { array_state } => write!(f, "array is {array_state}"),
            What::Broken => f.write_str("too many members failed; writes are refused"),
            What::Stopped => f.write_str("stopped"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_readers_are_told_what_they_missed() {
        let feed = Feed::default();
        for n in 0..KEPT as u64 + 10 {
            feed.push(What::SyncStarted { action: n.to_string() }, n);
        }
        let batch = feed.after(3);
        assert_eq!((batch.missed, batch.events.len(), batch.last), (7, KEPT, KEPT as u64 + 10));
        assert_eq!(feed.after(batch.last), Batch { last: batch.last, ..Batch::default() });
        assert_eq!(feed.after(batch.last - 1).events.len(), 1);
        // One from another life of the array.
        assert_eq!(feed.after(u64::MAX).events.len(), 0);
        feed.push(What::Stopped, 0);
        assert!(feed.after(batch.last).ended);
    }
}
