//! A decision in words: a table for people ([`explain`]), plain structures for programs ([`report`]).

use core::fmt::Write;

use serde::Serialize;

use crate::decision::{Assembled, Decision, MemberVerdict, Out, Reason, Seat, Standing, Verdict};

/// A decision as plain data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// `start` or `refuse`.
    pub verdict: &'static str,
    /// Why not; empty when it starts.
    pub reasons: Vec<ReasonReport>,
    /// The array according to its freshest superblock.
    pub array: Option<ArrayReport>,
    /// One per device, in the order given.
    pub members: Vec<MemberReport>,
    /// What is replayed from the array's logs before it starts, if anything.
    pub replay: Option<String>,
    /// What `--force` did.
    pub forced: Vec<String>,
    /// What `--force` would do.
    pub force_would: Vec<String>,
    /// What else to know.
    pub notes: Vec<String>,
}

/// A reason not to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReasonReport {
    /// A constant name.
    pub code: &'static str,
    /// In words.
    pub message: String,
}

/// The array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ArrayReport {
    /// Identity, as md writes it.
    pub uuid: String,
    /// Name.
    pub name: String,
    /// md's name of the level, or its number.
    pub level: String,
    /// Number of slots.
    pub raid_disks: u32,
    /// Metadata version.
    pub metadata: &'static str,
    /// Event count of the freshest superblock.
    pub events: u64,
    /// The device with the freshest superblock.
    pub freshest: String,
    /// Size in bytes, if it starts.
    pub size_bytes: Option<u64>,
    /// Slots without their data, if it starts.
    pub degraded: Option<usize>,
    /// Nothing will be written.
    pub read_only: Option<bool>,
    /// Sector from which a resync is needed, if one is.
    pub resync_from: Option<u64>,
    /// Whether a write-intent bitmap is in use.
    pub bitmap: Option<bool>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemberReport {
    /// Path.
    pub device: String,
    /// Whether it takes part.
    pub used: bool,
    /// Its slot in the array as decided.
    pub slot: Option<u16>,
    /// `in sync`, `rebuilding`, `replacing`, `spare`, `journal`, `forced`, or what it is left out for.
    pub standing: String,
    /// Event count of its superblock.
    pub events: Option<u64>,
    /// Its own idea of its role.
    pub says: Option<String>,
    /// When its superblock was written, seconds since 1970.
    pub updated: Option<u64>,
    /// Whether its superblock says the array is in sync.
    pub clean: Option<bool>,
}

/// The decision as plain data.
pub fn report(decision: &Decision) -> Report {
    let reason = |r: &Reason| ReasonReport { code: r.code(), message: r.to_string() };
    let start = decision.start();
    Report {
        verdict: if start.is_some() { "start" } else { "refuse" },
        reasons: decision.reasons().iter().map(reason).collect(),
        array: array(decision, start),
        members: decision.members.iter().map(member).collect(),
        replay: start.and_then(|a| a.replay.as_ref()).map(ToString::to_string),
        forced: start.map_or_else(Vec::new, |a| a.forced.iter().map(ToString::to_string).collect()),
        force_would: decision.force_would.iter().map(ToString::to_string).collect(),
        notes: decision.notes.clone(),
    }
}

fn array(decision: &Decision, start: Option<&Assembled>) -> Option<ArrayReport> {
    let facts = decision.array.as_ref()?;
    Some(ArrayReport {
        uuid: facts.uuid.to_string(),
        name: facts.name.clone(),
        level: facts.level.map_or_else(|| format!("level {}", facts.level_number), |l| l.to_string()),
        raid_disks: facts.raid_disks,
        metadata: facts.metadata.name(),
        events: facts.events,
        freshest: decision.freshest.and_then(|i| decision.members.get(i)).map(|m| m.name.clone()).unwrap_or_default(),
        size_bytes: start.map(|a| a.geometry.array_sectors().bytes()),
        degraded: start.map(|a| {
            let whole = a.members.iter().filter(|m| matches!(m.seat, Seat::InSync(_))).count();
            usize::from(a.geometry.raid_disks()).saturating_sub(whole)
        }),
        read_only: start.map(|a| a.read_only),
        resync_from: start.and_then(|a| a.unsynced_from).map(|s| s.0),
        bitmap: start.map(|a| a.bitmap.is_some()),
    })
}

fn member(verdict: &MemberVerdict) -> MemberReport {
    let (slot, standing) = match &verdict.standing {
        Standing::In(seat) => (seat.slot(), seat_text(*seat)),
        Standing::Forced(slot) => (Some(*slot), "forced".to_owned()),
        Standing::Out(out) => (None, out.to_string()),
    };
    let says = verdict.says.as_ref();
    MemberReport {
        device: verdict.name.clone(),
        used: !matches!(verdict.standing, Standing::Out(_)),
        slot: slot.map(|s| s.0),
        standing,
        events: says.map(|s| s.events),
        says: says.map(|s| s.role.to_string()),
        updated: says.map(|s| s.updated),
        clean: says.map(|s| s.resync.is_none()),
    }
}

fn seat_text(seat: Seat) -> String {
    match seat {
        Seat::InSync(_) => "in sync".to_owned(),
        Seat::Rebuilding { valid_to, by_bitmap: false, .. } => format!("rebuilding, done up to sector {valid_to}"),
        Seat::Rebuilding { valid_to, by_bitmap: true, .. } => {
            format!("rebuilding what the bitmap marks, done up to sector {valid_to}")
        }
        Seat::Replacing { valid_to, .. } => format!("replacing the slot's holder, done up to sector {valid_to}"),
        Seat::Spare => "spare".to_owned(),
        Seat::Journal => "journal".to_owned(),
    }
}

/// The decision as text: the verdict, one row per device, and what to do.
pub fn explain(decision: &Decision) -> String {
    let report = report(decision);
    let mut text = String::new();
    if let Some(a) = &report.array {
        let name = if a.name.is_empty() { String::new() } else { format!(" '{}'", a.name) };
        line(
            &mut text,
            &format!("array {}{name}: {}, {} slots, metadata {}", a.uuid, a.level, a.raid_disks, a.metadata),
        );
        line(&mut text, &format!("freshest superblock: {} (event {})", a.freshest, a.events));
    }
    table(&mut text, &report.members);
    for note in &report.notes {
        line(&mut text, &format!("note: {note}"));
    }
    match &decision.verdict {
        Verdict::Start(assembled) => start_text(&mut text, assembled, &report),
        Verdict::Refuse(reasons) => {
            for reason in reasons {
                line(&mut text, &format!("not started: {reason}"));
            }
        }
    }
    for forced in &report.force_would {
        line(&mut text, &format!("with --force: {forced}"));
    }
    text
}

fn start_text(text: &mut String, assembled: &Assembled, report: &Report) {
    for forced in &report.forced {
        line(text, &format!("forced: {forced}"));
    }
    if let Some(replay) = &report.replay {
        line(text, &format!("first replays {replay}"));
    }
    let mut words = vec!["starts".to_owned()];
    if let Some(missing @ 1..) = report.array.as_ref().and_then(|a| a.degraded) {
        words.push(format!("degraded ({missing} of {} slots without data)", assembled.geometry.raid_disks()));
    }
    if assembled.read_only {
        words.push("read-only".to_owned());
    }
    match (assembled.unsynced_from, &assembled.bitmap) {
        (Some(_), Some(_)) => words.push("with a resync of what the bitmap marks".to_owned()),
        (Some(from), None) => words.push(format!("with a resync from sector {from}")),
        (None, _) => {}
    }
    line(text, &words.join(", "));
}

fn table(text: &mut String, members: &[MemberReport]) {
    let head = ["DEVICE", "SLOT", "EVENTS", "SAYS", "CLEAN", "STANDING"].map(str::to_owned);
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let row = |m: &MemberReport| {
        [
            m.device.clone(),
            or_dash(m.slot.map(|s| s.to_string())),
            or_dash(m.events.map(|e| e.to_string())),
            or_dash(m.says.clone()),
            or_dash(m.clean.map(|c| if c { "yes" } else { "no" }.to_owned())),
            if m.used { m.standing.clone() } else { format!("out: {}", m.standing) },
        ]
    };
    let rows: Vec<[String; 6]> = std::iter::once(head).chain(members.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..6).map(width).collect();
    for row in &rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, w)| format!("{cell:w$}", w = *w)).collect();
        line(text, cells.join("  ").trim_end());
    }
}

fn line(text: &mut String, content: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{content}");
}

impl Out {
    /// A short constant name, for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Out::Unreadable(_) => "unreadable",
            Out::NoSuperblock => "no-superblock",
            Out::Foreign(_) => "foreign",
            Out::Unusable(_) => "unusable",
            Out::NotWanted(_) => "not-wanted",
            Out::NamedTwice => "named-twice",
            Out::Stale { .. } => "stale",
            Out::Failed { .. } => "failed",
            Out::Removed { .. } => "removed",
            Out::ReportsFailed { .. } => "reports-failed",
            Out::Differs(_) => "differs",
            Out::Truncated(_) => "truncated",
            Out::TooSmall { .. } => "too-small",
            Out::SlotTaken { .. } => "slot-taken",
            Out::NumberTaken { .. } => "number-taken",
            Out::RoleConflict { .. } => "role-conflict",
            Out::Journal => "journal",
            Out::Undecided => "undecided",
        }
    }
}
