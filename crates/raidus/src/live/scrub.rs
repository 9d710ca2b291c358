//! What a check or repair found, in terms of devices and bytes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use raidus_engine::Mismatch;
use raidus_engine::control::{Status, SyncEnd};
use raidus_layout::Geometry;
use raidus_units::{MemberId, SECTOR_BYTES, Sector};
use serde::{Deserialize, Serialize};

use super::chart::{Chart, PlaceReport};
use crate::portrait::Portrait;

/// A check or repair that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// Counts those of this run of the array, from 1; 0 for one of a run before.
    pub number: u64,
    /// `check` or `repair`.
    pub action: String,
    /// It came to its end; otherwise only what is before `end_sector` was looked at.
    pub complete: bool,
    /// When it ended, seconds since 1970.
    pub ended_seconds: u64,
    /// How long it took.
    pub took_milliseconds: u64,
    /// Where it began: sectors of the members, for mirrored levels of the array.
    pub start_sector: u64,
    /// How far it got.
    pub end_sector: u64,
    /// md's `mismatch_cnt`: sectors of the pages in which anything disagreed.
    pub mismatch_sectors: u64,
    /// Sectors that could not be read and were written anew.
    pub healed_sectors: u64,
    /// Where, exactly.
    pub mismatches: Vec<MismatchReport>,
    /// There were more than are listed.
    pub more: bool,
    /// Ranges that could not be compared because they cannot be read: start and length in sectors, counted as `start_sector`.
    pub unreadable: Vec<(u64, u64)>,
}

/// A run of sectors in which members disagree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MismatchReport {
    /// Start, counted as [`ScrubReport::start_sector`].
    pub start_sector: u64,
    /// Length.
    pub sectors: u64,
    /// The block that is wrong, if the redundancy tells.
    pub culprit: Option<PlaceReport>,
    /// All blocks that take part, in slot order.
    pub places: Vec<PlaceReport>,
    /// Byte ranges of the array that are wrong, or may be: start and length.
    pub array: Vec<(u64, u64)>,
    /// The blocks agree now.
    pub mended: bool,
}

/// The last report, kept in a file for the array's next run.
pub struct Scrubs {
    kept: Mutex<(u64, Option<ScrubReport>)>,
    file: Option<PathBuf>,
}

impl Scrubs {
    /// Of an array that starts: what is in the file is of a run before.
    pub fn load(file: Option<PathBuf>) -> Scrubs {
        let old = file.as_ref().and_then(|file| std::fs::read(file).ok());
        // One that cannot be understood is of another version; the next takes its place.
        let old: Option<ScrubReport> = old.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Scrubs { kept: Mutex::new((0, old.map(|report| ScrubReport { number: 0, ..report }))), file }
    }

    /// Takes note of a check or repair that ended.
    pub fn note(&self, portrait: &Portrait, status: &Status, end: &SyncEnd, now: u64) {
        let mut kept = self.kept();
        kept.0 += 1;
        let report = report(kept.0, end, &Chart::running(portrait, status), &portrait.assembled.geometry, now);
        if let Some(file) = &self.file
            && let Err(error) = save(file, &report)
        {
            tracing::warn!(file = %file.display(), %error, "the report cannot be kept for the next run");
        }
        kept.1 = Some(report);
    }

    /// How many ended, and the last one.
    pub fn last(&self) -> (u64, Option<ScrubReport>) {
        self.kept().clone()
    }

    fn kept(&self) -> MutexGuard<'_, (u64, Option<ScrubReport>)> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whole or not at all.
fn save(file: &Path, report: &ScrubReport) -> io::Result<()> {
    let new = file.with_extension("new");
    std::fs::write(&new, serde_json::to_vec(report)?)?;
    std::fs::rename(&new, file)
}

fn report(number: u64, end: &SyncEnd, chart: &Chart, geometry: &Geometry, now: u64) -> ScrubReport {
    let listed: u64 = end.mismatches.iter().map(|m| m.len.0).sum();
    ScrubReport {
        number,
        action: end.action.name().to_owned(),
        complete: end.complete,
        ended_seconds: now,
        took_milliseconds: end.took.0 / 1_000_000,
        start_sector: end.start.0,
        end_sector: end.end.0,
        mismatch_sectors: end.mismatch_sectors,
        healed_sectors: end.healed_sectors,
        mismatches: end.mismatches.iter().map(|m| mismatch(m, chart, geometry)).collect(),
        // Pages are counted as soon as one of their sectors disagrees.
        more: listed.saturating_mul(8) < end.mismatch_sectors,
        unreadable: end.unreadable.iter().map(|(start, len)| (start.0, len.0)).collect(),
    }
}

fn mismatch(m: &Mismatch, chart: &Chart, geometry: &Geometry) -> MismatchReport {
    let is_parity = matches!(geometry, Geometry::Parity(_));
    let places = if is_parity { chart.stripe(m.start) } else { chart.of_array(m.start).unwrap_or_default() };
    let culprit = m.culprit.and_then(|(member, sector)| culprit(chart, member, sector));
    let len = m.len.0.saturating_mul(SECTOR_BYTES);
    let array = match &culprit {
        // The data are right, only their parity is not.
        Some(place) if place.array_offset.is_none() => Vec::new(),
        Some(place) => place.array_offset.iter().map(|at| (*at, len)).collect(),
        None if is_parity => places.iter().filter_map(|p| Some((p.array_offset?, len))).collect(),
        None => vec![(m.start.bytes(), len)],
    };
    MismatchReport { start_sector: m.start.0, sectors: m.len.0, culprit, places, array, mended: m.mended }
}

fn culprit(chart: &Chart, member: MemberId, sector: Sector) -> Option<PlaceReport> {
    chart.of_member(member.index(), sector)?.places.into_iter().next()
}
