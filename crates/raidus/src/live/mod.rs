//! A running array as those see it who look at it or change it while it runs: the control socket, the mount, the log.

pub mod attributes;
pub mod chart;
pub mod feed;
pub mod grow;
pub mod members;
pub mod scrub;
pub mod set;

use std::sync::{Arc, Mutex};

use raidus_engine::control::{ArrayState, CommandError, Event, Status, SyncEnd};
use raidus_engine::{MemberState, SyncAction};
use raidus_runtime::ArrayHandle;
use raidus_runtime::members::{MemberOpenError, OverlayStore};
use raidus_units::Sector;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::host::now;
use crate::portrait::Portrait;

use feed::{Feed, What};
use scrub::Scrubs;

/// A running array.
pub struct Live {
    /// The array.
    pub array: Arc<ArrayHandle>,
    /// What is known of it.
    pub portrait: Arc<Portrait>,
    /// What happened to it.
    pub feed: Feed,
    /// What checks and repairs found.
    pub scrubs: Scrubs,
    /// The last state that was told of keeps clients from writing.
    hindered: AtomicBool,
    /// Held while a device joins: its number must stay free.
    joining: Mutex<()>,
    /// What is written to members is kept here instead.
    overlay: Option<OverlayStore>,
}

/// Why something is not done to a running array.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It has ended.
    #[error("the array has stopped")]
    Stopped,
    /// Not a member.
    #[error("{word} is not a member of the array; its members are {members}")]
    NotAMember {
        /// What the user said.
        word: String,
        /// Those there are.
        members: String,
    },
    /// More than one member could be meant.
    #[error("{word} could be {members}; say which by its path")]
    Ambiguous {
        /// What the user said.
        word: String,
        /// Those it could be.
        members: String,
    },
    /// The engine refuses something about a member.
    #[error("{device}: {source}")]
    Member {
        /// The member.
        device: String,
        /// Why.
        source: CommandError,
    },
    /// The engine refuses.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A device cannot be opened.
    #[error(transparent)]
    Open(#[from] MemberOpenError),
    /// There can be no bitmap.
    #[error(transparent)]
    Grow(#[from] raidus_assembly::create::GrowError),
    /// A device cannot join.
    #[error(transparent)]
    Join(#[from] raidus_assembly::create::JoinError),
    /// The runtime refuses a device.
    #[error("{device}: {source}")]
    Add {
        /// The device.
        device: String,
        /// Why.
        source: raidus_runtime::AddError,
    },
    /// Anything else that is wrong with a device.
    #[error("{device}: {why}")]
    Device {
        /// The device.
        device: String,
        /// What.
        why: String,
    },
    /// Something on a device would be lost.
    #[error("{device}: holds {}; check that this is the right device, then wipe it or add --force", .found.join(" and "))]
    HoldsData {
        /// The device.
        device: String,
        /// What was found.
        found: Vec<String>,
    },
    /// There is no such attribute.
    #[error("there is no attribute '{0}'; `raidus get NAME` lists all")]
    NoAttribute(String),
    /// It cannot be written.
    #[error("{0} cannot be set; it only tells")]
    ReadOnlyAttribute(String),
    /// It cannot have this value.
    #[error("{attribute} cannot be '{value}': {rule}")]
    BadValue {
        /// The attribute.
        attribute: String,
        /// The value.
        value: String,
        /// What it can be.
        rule: String,
    },
    /// It could not write if it were made writable.
    #[error(
        "the array was started read-only, and its members are open for reading only; stop it, then start it without --readonly"
    )]
    StartedReadOnly,
    /// Something else in the request is wrong.
    #[error("{0}")]
    Request(String),
    /// The system refuses something basic.
    #[error("{0}")]
    System(String),
}

/// How far an array is from rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "sync", content = "why", rename_all = "lowercase")]
pub enum Settling {
    /// Nothing is being synced, and nothing needs it.
    Settled,
    /// Something is, or is about to be.
    Busy,
    /// Something needs it, and will not get it unless somebody does something.
    Stuck(String),
}

impl Live {
    /// Of an array that has just started.
    pub fn new(array: Arc<ArrayHandle>, portrait: Portrait, overlay: Option<OverlayStore>, scrubs: Scrubs) -> Live {
        Live {
            array,
            portrait: Arc::new(portrait),
            feed: Feed::default(),
            scrubs,
            hindered: AtomicBool::new(false),
            joining: Mutex::default(),
            overlay,
        }
    }

    /// How it is.
    pub fn status(&self) -> Result<Status, Refusal> {
        self.array.status().ok_or(Refusal::Stopped)
    }

    /// Takes note of what the array says of itself.
    pub fn note(&self, event: Event) {
        let now = now().secs;
        let path = |member| self.portrait.member(member).display().to_string();
        let what = match event {
            Event::MemberFailed { member } => What::MemberFailed { device: path(member) },
            Event::MemberInSync { member } => What::MemberInSync { device: path(member) },
            Event::MemberReplaced { member } => What::MemberReplaced { device: path(member) },
            Event::ReadErrorCorrected { member, start, len } => {
                What::ReadErrorCorrected { device: path(member), sector: start.0, sectors: len.0 }
            }
            Event::BadBlocks { member, start, len } => {
                What::BadBlocks { device: path(member), sector: start.0, sectors: len.0 }
            }
            Event::SyncStarted { action } => What::SyncStarted { action: action.process_name().to_owned() },
            Event::SyncEnded { action, complete, report } => self.note_sync(action, complete, &report, now),
            Event::BitmapAdded => {
                let bitmap = self.array.status().and_then(|status| status.bitmap);
                What::BitmapAdded { chunk_bytes: bitmap.map_or(0, |b| b.chunk.bytes()) }
            }
            Event::BitmapRemoved => What::BitmapRemoved,
            Event::Suspended { lo, hi, all } => What::Suspended { lo: lo.0, hi: hi.0, all },
            Event::Resumed => What::Resumed,
            Event::WriteMostly { member, on } => What::WriteMostly { device: path(member), on },
            Event::Broken => What::Broken,
            Event::StateChanged(state) => {
                let hinders = matches!(
                    state,
                    ArrayState::ReadOnly | ArrayState::ReadAuto | ArrayState::Suspended | ArrayState::Broken
                );
                // The others come and go with the writes.
                if !self.hindered.swap(hinders, Ordering::Relaxed) && !hinders {
                    return;
                }
                What::StateChanged { array_state: state.name().to_owned() }
            }
            Event::Stopped { .. } => return,
        };
        self.feed.push(what, now);
    }

    fn note_sync(&self, action: SyncAction, complete: bool, end: &SyncEnd, now: u64) -> What {
        if matches!(action, SyncAction::Check | SyncAction::Repair)
            && let Some(status) = self.array.status()
        {
            self.scrubs.note(&self.portrait, &status, end, now);
        }
        let (action, mismatch_sectors) = (action.process_name().to_owned(), end.mismatch_sectors);
        What::SyncEnded { action, complete, mismatch_sectors }
    }

    /// How far it is from rest.
    pub fn settling(&self, status: &Status) -> Settling {
        let stuck = |why: &str| Settling::Stuck(why.to_owned());
        if status.sync.action.is_some() || status.sync.requested.is_some() && !status.sync.frozen {
            return Settling::Busy;
        }
        if status.map.broken {
            return stuck("the array has lost too many members, and nothing can be synced");
        }
        let rebuilding = status.map.members.iter().any(|m| matches!(m.state, MemberState::Rebuilding { .. }));
        let Some(what) = (match () {
            () if rebuilding
                || self.next_spare(status).is_some() && status.map.slots.iter().any(|s| s.member.is_none()) =>
            {
                Some("a recovery")
            }
            () => status.map.unsynced_from.map(|_| "a resync"),
        }) else {
            return Settling::Settled;
        };
        let last = status.sync.last.as_ref();
        if status.map.read_only {
            stuck(&format!("{what} is needed, but the array is read-only"))
        } else if status.sync.frozen {
            stuck(&format!("{what} is needed, but syncs are frozen; `raidus set NAME sync_action idle` lets it begin"))
        } else if last
            .is_some_and(|end| end.action == SyncAction::Recover && !end.complete && !end.unreadable.is_empty())
        {
            let at = last.and_then(|end| end.unreadable.first()).map_or(Sector::ZERO, |(start, _)| *start);
            stuck(&format!("the recovery cannot go on: what it needs at sector {at} of the members cannot be read"))
        } else if what == "a resync" && self.resync_is_impossible(status) {
            stuck("a resync is needed, but the array has no redundancy left; add a device")
        } else {
            Settling::Busy
        }
    }

    fn resync_is_impossible(&self, status: &Status) -> bool {
        match &self.portrait.assembled.geometry {
            raidus_layout::Geometry::Parity(g) => status.map.degraded() >= usize::from(g.parities()),
            _ => false,
        }
    }
}
