//! An action under way.

use std::collections::BTreeMap;

use raidus_units::{MemberId, Nanos, Sector, Sectors};

use super::windows::Window;
use crate::control::status::SyncEnd;
use crate::sync::{Mismatch, SyncAction, SyncOutcome};

/// Mismatches kept in a report; more are only counted.
const REPORT_MAX: usize = 4096;

/// An action under way.
#[derive(Debug)]
pub(super) struct Run {
    pub action: SyncAction,
    /// The members that are being rebuilt: those that were when the action began. Others have missed what is done already.
    pub targets: Vec<MemberId>,
    pub start: Sector,
    pub end: Sector,
    /// Where the next window begins.
    pub next: Sector,
    pub windows: BTreeMap<u64, Window>,
    /// Windows done beyond the watermark: start and end.
    pub done: BTreeMap<Sector, Sector>,
    pub watermark: Sector,
    pub checkpoint: Sector,
    pub checkpoint_at: Nanos,
    /// A flush for this watermark has been asked for.
    pub flushing: Option<Sector>,
    pub flushed: bool,
    /// The superblocks are told that replacements have all data, before those they replace go.
    pub replacing: bool,
    /// No new windows: why.
    pub stop: Option<Stop>,
    pub began: Nanos,
    pub mismatch_sectors: u64,
    pub mismatches: Vec<Mismatch>,
    healed_sectors: u64,
    pub unreadable: Vec<(Sector, Sectors)>,
}

/// Why an action ends before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The members changed, the operator said so, or the array comes to rest: what is done counts.
    Interrupted,
    /// Something could not be read or written.
    Failed,
}

impl Run {
    pub fn new(action: SyncAction, targets: Vec<MemberId>, (start, end): (Sector, Sector), now: Nanos) -> Run {
        Run {
            action,
            targets,
            start,
            end,
            next: start,
            windows: BTreeMap::new(),
            done: BTreeMap::new(),
            watermark: start,
            checkpoint: start,
            checkpoint_at: now,
            flushing: None,
            flushed: false,
            replacing: false,
            stop: None,
            began: now,
            mismatch_sectors: 0,
            mismatches: Vec::new(),
            healed_sectors: 0,
            unreadable: Vec::new(),
        }
    }

    /// Whether superblocks say how far it is.
    pub fn records(&self) -> bool {
        matches!(self.action, SyncAction::Recover | SyncAction::Resync)
    }

    /// Adds what a window found.
    pub fn note(&mut self, outcome: &SyncOutcome) {
        self.mismatch_sectors += mismatch_sectors(&outcome.mismatches);
        let room = REPORT_MAX.saturating_sub(self.mismatches.len());
        self.mismatches.extend(outcome.mismatches.iter().take(room));
        self.healed_sectors += outcome.healed.iter().map(|h| h.len.0).sum::<u64>();
        let room = REPORT_MAX.saturating_sub(self.unreadable.len());
        self.unreadable.extend(outcome.unreadable.iter().take(room));
    }

    /// Counts a window that needs no more work.
    pub fn on_done(&mut self, lo: Sector, hi: Sector) {
        self.done.insert(lo, hi);
        while let Some(hi) = self.done.remove(&self.watermark) {
            self.watermark = hi;
        }
    }

    pub fn report(&self, now: Nanos, complete: bool) -> SyncEnd {
        SyncEnd {
            action: self.action,
            complete,
            start: self.start,
            end: self.watermark,
            took: now.since(self.began),
            mismatch_sectors: self.mismatch_sectors,
            mismatches: self.mismatches.clone(),
            healed_sectors: self.healed_sectors,
            unreadable: self.unreadable.clone(),
        }
    }
}

/// md counts whole pages in which anything differs.
fn mismatch_sectors(mismatches: &[Mismatch]) -> u64 {
    const PAGE: u64 = 8;
    let mut counted = 0;
    let mut last = None;
    for m in mismatches {
        for page in m.start.0 / PAGE..(m.start.0 + m.len.0).div_ceil(PAGE) {
            if last != Some(page) {
                counted += PAGE;
                last = Some(page);
            }
        }
    }
    counted
}
