//! The attributes that Linux shows in `/sys/block/mdN/md`, with its names, texts and rules.

use raidus_engine::control::Status;
use raidus_engine::{Member, MemberState, Tunables};
use raidus_format::Role;
use raidus_text::{ArrayView, Policy};
use raidus_units::{Level, MemberId, Sectors};
use serde::{Deserialize, Serialize};

use super::Live;
use crate::portrait::{Place, last_sync_action, sync_action};

/// An attribute and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attribute {
    /// `sync_action`, `dev-sdb/state`.
    pub name: String,
    /// Without the end of the line.
    pub value: String,
}

/// An array at a moment.
struct Moment<'a> {
    view: ArrayView,
    status: &'a Status,
    tunables: Tunables,
}

type Value = fn(&Moment<'_>) -> String;

/// Of every array.
const ALL: &[(&str, Value)] = &[
    ("array_size", |_| "default".to_owned()),
    ("array_state", |m| m.status.array_state.name().to_owned()),
    ("chunk_size", |m| m.view.chunk.bytes().to_string()),
    ("component_size", |m| component(&m.view).kib().to_string()),
    ("consistency_policy", |m| policy(m.view.policy).to_owned()),
    ("layout", |m| layout(&m.view)),
    ("level", |m| m.view.level.to_string()),
    ("metadata_version", |m| m.view.metadata.map_or_else(|| "none".to_owned(), |version| version.to_string())),
    ("raid_disks", |m| m.view.raid_disks.to_string()),
    ("resync_start", |m| m.status.map.unsynced_from.map_or_else(|| "none".to_owned(), |from| from.0.to_string())),
    ("safe_mode_delay", |m| {
        let delay = m.status.safe_mode_delay.map_or(0, |delay| delay.0 / 1_000_000);
        format!("{}.{:03}", delay / 1000, delay % 1000)
    }),
    ("suspend_hi", |m| m.status.suspended.hi.to_string()),
    ("suspend_lo", |m| m.status.suspended.lo.to_string()),
    ("uuid", |m| uuid(&m.view)),
];

/// Of arrays that can lose members.
const REDUNDANT: &[(&str, Value)] = &[
    ("bitmap/can_clear", |m| match m.status.bitmap {
        None => String::new(),
        Some(_) => (m.status.degraded == 0).to_string(),
    }),
    ("bitmap/chunksize", |m| m.status.bitmap.map_or(0, |b| b.chunk.bytes()).to_string()),
    ("bitmap/location", |m| m.status.bitmap.map_or("none".to_owned(), |b| format!("{:+}", b.offset))),
    ("bitmap/metadata", |_| "internal".to_owned()),
    ("degraded", |m| m.status.degraded.to_string()),
    ("fail_last_dev", |m| u8::from(m.status.fail_last).to_string()),
    ("last_sync_action", |m| last_sync_action(m.status).to_owned()),
    ("max_read_errors", |m| m.status.max_read_errors.to_string()),
    ("mismatch_cnt", |m| m.status.sync.mismatch_sectors.to_string()),
    ("sync_action", |m| sync_action(m.status).to_owned()),
    ("sync_completed", |m| match (m.status.sync.action, &m.status.sync) {
        (None, sync) if sync.requested.is_some() && !sync.frozen => "delayed".to_owned(),
        (None, _) => "none".to_owned(),
        (Some(_), sync) => format!("{} / {}", sync.done.0, sync.total.0),
    }),
    ("sync_max", |m| m.status.sync.max.map_or_else(|| "max".to_owned(), |max| max.to_string())),
    ("sync_min", |m| m.status.sync.min.to_string()),
    ("sync_speed", |m| match m.status.sync.action {
        None => "none".to_owned(),
        Some(_) => m.status.sync.kib_per_second.to_string(),
    }),
    ("sync_speed_max", |m| speed(m.status.sync.speed_max, m.tunables.sync_speed_max)),
    ("sync_speed_min", |m| speed(m.status.sync.speed_min, m.tunables.sync_speed_min)),
];

/// Of a member, in its directory.
type MemberValue = fn(&Place, &Member, &Status, MemberId) -> String;

const OF_MEMBER: &[(&str, MemberValue)] = &[
    ("bad_blocks", |_, member, _, _| {
        member.bad_blocks.iter().map(|(start, len)| format!("{} {}", start.0, len.0)).collect::<Vec<_>>().join("\n")
    }),
    ("errors", |_, _, status, id| status.read_errors.get(id.index()).copied().unwrap_or(0).to_string()),
    ("offset", |_, member, _, _| member.data_offset.0.to_string()),
    ("recovery_start", |_, member, _, _| match member.state {
        MemberState::Rebuilding { valid_to, .. } => valid_to.0.to_string(),
        MemberState::InSync(_) => "none".to_owned(),
        _ => "0".to_owned(),
    }),
    ("size", |place, _, _, _| place.superblock.member().data_size.kib().to_string()),
    ("slot", |_, member, _, _| match member.state {
        MemberState::InSync(slot) | MemberState::Rebuilding { slot, .. } => slot.to_string(),
        MemberState::Journal => "journal".to_owned(),
        MemberState::Spare | MemberState::Faulty | MemberState::Removed => "none".to_owned(),
    }),
    ("state", |place, member, status, id| member_state(place, member, status, id)),
    // A write that waits for the note is not acknowledged, so nobody can see it.
    ("unacknowledged_bad_blocks", |_, _, _, _| String::new()),
];

impl Live {
    /// All attributes, in the order of their names: the array's, then its members'.
    pub fn attributes(&self, status: &Status) -> Vec<Attribute> {
        let moment = self.moment(status);
        let redundant = self.is_redundant();
        let of_array = ALL.iter().chain(if redundant { REDUNDANT } else { &[] });
        let mut all: Vec<Attribute> =
            of_array.map(|(name, value)| Attribute { name: (*name).to_owned(), value: value(&moment) }).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        for ((id, place), member) in (0..).zip(self.portrait.places()).zip(&status.map.members) {
            if member.state == MemberState::Removed {
                continue;
            }
            let short = place.short_name();
            all.extend(OF_MEMBER.iter().map(|(name, value)| Attribute {
                name: format!("dev-{short}/{name}"),
                value: value(&place, member, status, MemberId(id)),
            }));
        }
        all
    }

    /// One of them.
    pub fn attribute(&self, name: &str, status: &Status) -> Option<String> {
        let of_array = ALL.iter().chain(if self.is_redundant() { REDUNDANT } else { &[] });
        if let Some((_, value)) = of_array.into_iter().find(|(known, _)| *known == name) {
            return Some(value(&self.moment(status)));
        }
        let (short, own) = name.strip_prefix("dev-")?.rsplit_once('/')?;
        let (_, value) = OF_MEMBER.iter().find(|(known, _)| *known == own)?;
        let members = (0..).zip(self.portrait.places()).zip(&status.map.members);
        let mut members = members.filter(|(_, member)| member.state != MemberState::Removed);
        let ((id, place), member) = members.find(|((_, place), _)| place.short_name() == short)?;
        Some(value(&place, member, status, MemberId(id)))
    }

    fn moment<'a>(&self, status: &'a Status) -> Moment<'a> {
        Moment { view: self.portrait.view(status), status, tunables: Tunables::default() }
    }

    pub(super) fn is_redundant(&self) -> bool {
        self.portrait.assembled.geometry.level().is_redundant()
    }
}

fn member_state(place: &Place, member: &Member, status: &Status, id: MemberId) -> String {
    let facts = place.superblock.member();
    let replaced = |entry: &raidus_engine::SlotEntry| entry.member == Some(id) && entry.replacement.is_some();
    let is = |entry: &raidus_engine::SlotEntry| entry.replacement == Some(id);
    let words = [
        ("faulty", member.state == MemberState::Faulty),
        ("in_sync", matches!(member.state, MemberState::InSync(_))),
        ("journal", member.state == MemberState::Journal || facts.role == Role::Journal),
        ("write_mostly", member.write_mostly),
        ("spare", matches!(member.state, MemberState::Spare | MemberState::Rebuilding { .. })),
        ("want_replacement", status.map.slots.iter().any(replaced)),
        ("replacement", status.map.slots.iter().any(is)),
        ("failfast", facts.failfast),
    ];
    words.iter().filter(|(_, holds)| *holds).map(|(word, _)| *word).collect::<Vec<_>>().join(",")
}

/// md's limits are 32 bits wide, and say where they come from.
fn speed(kib: u64, default: u64) -> String {
    format!("{} ({})", kib.min(i32::MAX as u64), if kib == default { "system" } else { "local" })
}

fn policy(policy: Policy) -> &'static str {
    match policy {
        Policy::None => "none",
        Policy::Resync => "resync",
        Policy::Bitmap => "bitmap",
        Policy::Journal => "journal",
        Policy::Ppl => "ppl",
    }
}

/// Levels whose members need not be of one size have none.
fn component(view: &ArrayView) -> Sectors {
    if view.level.is_redundant() { view.component } else { Sectors::ZERO }
}

fn layout(view: &ArrayView) -> String {
    if view.level == Level::Raid0 && !view.raid0_layout_known { "-1".to_owned() } else { view.layout.to_string() }
}

/// In the form of other UUIDs, not in md's own.
fn uuid(view: &ArrayView) -> String {
    let digits = view.uuid.to_string().replace(':', "");
    let groups = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| digits[range].to_owned());
    groups.join("-")
}
