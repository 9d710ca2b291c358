//! The attributes that Linux shows in `/sys/block/mdN/md`, with its names, texts and rules.

use std::sync::PoisonError;

use raidus_engine::control::{Command, CommandError, Status, SyncRequest};
use raidus_engine::{Member, MemberState, Tunables};
use raidus_format::Role;
use raidus_text::{ArrayView, Policy};
use raidus_units::{Level, MemberId, Sector, Sectors};
use serde::{Deserialize, Serialize};

use super::{Live, Refusal};
use crate::portrait::{Place, last_sync_action, sync_action};

/// md's `sync_min` and `sync_max`, in sectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncRange {
    min: u64,
    max: Option<u64>,
}

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
    range: SyncRange,
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
        let delay = m.tunables.safe_mode_delay.0 / 1_000_000;
        format!("{}.{:03}", delay / 1000, delay % 1000)
    }),
    ("uuid", |m| uuid(&m.view)),
];

/// Of arrays that can lose members.
const REDUNDANT: &[(&str, Value)] = &[
    ("degraded", |m| m.status.degraded.to_string()),
    ("last_sync_action", |m| last_sync_action(m.status).to_owned()),
    ("mismatch_cnt", |m| m.status.sync.mismatch_sectors.to_string()),
    ("sync_action", |m| sync_action(m.status).to_owned()),
    ("sync_completed", |m| match (m.status.sync.action, &m.status.sync) {
        (None, _) => "none".to_owned(),
        (Some(_), sync) => format!("{} / {}", sync.done.0, sync.total.0),
    }),
    ("sync_max", |m| m.range.max.map_or_else(|| "max".to_owned(), |max| max.to_string())),
    ("sync_min", |m| m.range.min.to_string()),
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
    ("errors", |place, _, status, id| {
        let since_start = status.read_errors.get(id.index()).copied().unwrap_or(0);
        since_start.saturating_add(place.superblock.member().corrected_reads.into()).to_string()
    }),
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

    /// The names of the attributes that belong to the array itself, for as long as it runs.
    pub fn array_attributes(&self) -> Vec<&'static str> {
        let redundant = if self.is_redundant() { REDUNDANT } else { &[] };
        let mut names: Vec<&str> = ALL.iter().chain(redundant).map(|(name, _)| *name).collect();
        names.sort_unstable();
        names
    }

    /// The value of one of the array's own.
    pub fn array_attribute(&self, name: &str, status: &Status) -> Option<String> {
        let (_, value) = ALL.iter().chain(REDUNDANT).find(|(known, _)| *known == name)?;
        Some(value(&self.moment(status)))
    }

    fn moment<'a>(&self, status: &'a Status) -> Moment<'a> {
        let range = *self.range.lock().unwrap_or_else(PoisonError::into_inner);
        Moment { view: self.portrait.view(status), status, range, tunables: Tunables::default() }
    }

    fn is_redundant(&self) -> bool {
        self.portrait.assembled.geometry.level().is_redundant()
    }

    /// Writes an attribute.
    pub fn set(&self, name: &str, value: &str) -> Result<(), Refusal> {
        let value = value.trim();
        let bad = |rule: &str| Refusal::BadValue {
            attribute: name.to_owned(),
            value: value.to_owned(),
            rule: rule.to_owned(),
        };
        if let Some(device) = name.strip_prefix("dev-").and_then(|rest| rest.strip_suffix("/state")) {
            return self.set_member_state(device, value);
        }
        match name {
            "array_state" => match value {
                "readonly" => Ok(self.array.command(Command::SetReadOnly(true))?),
                "active" | "clean" if self.portrait.assembled.read_only => Err(Refusal::StartedReadOnly),
                "active" | "clean" => Ok(self.array.command(Command::SetReadOnly(false))?),
                _ => Err(bad("readonly, active and clean are possible")),
            },
            "sync_action" if self.is_redundant() => {
                let request = parse_sync(value).ok_or_else(|| bad("check, repair, idle and frozen are possible"))?;
                self.sync(request)
            }
            "sync_speed_min" | "sync_speed_max" if self.is_redundant() => {
                let defaults = Tunables::default();
                let default = if name == "sync_speed_min" { defaults.sync_speed_min } else { defaults.sync_speed_max };
                let speed = match value {
                    "system" => default,
                    number => number.parse().map_err(|_| bad("a number of KiB per second, or system, is needed"))?,
                };
                let (min, max) = if name == "sync_speed_min" { (Some(speed), None) } else { (None, Some(speed)) };
                Ok(self.array.command(Command::SetSyncSpeed { min, max })?)
            }
            "sync_min" | "sync_max" if self.is_redundant() => self.set_range(name, value),
            _ if self.array_attributes().contains(&name) => Err(Refusal::ReadOnlyAttribute(name.to_owned())),
            _ => Err(Refusal::NoAttribute(name.to_owned())),
        }
    }

    /// What is asked of syncs.
    pub fn sync(&self, request: SyncRequest) -> Result<(), Refusal> {
        if !self.is_redundant() {
            return Err(CommandError::NoRedundancy.into());
        }
        Ok(self.array.command(Command::Sync(request))?)
    }

    fn set_range(&self, name: &str, value: &str) -> Result<(), Refusal> {
        let bad = |rule: &str| Refusal::BadValue {
            attribute: name.to_owned(),
            value: value.to_owned(),
            rule: rule.to_owned(),
        };
        let sectors = match value {
            "max" if name == "sync_max" => None,
            number => Some(number.parse::<u64>().map_err(|_| bad("a number of sectors is needed"))?),
        };
        let chunk = self.portrait.assembled.geometry.chunk().0.max(8);
        if sectors.is_some_and(|sectors| !sectors.is_multiple_of(chunk)) {
            return Err(bad(&format!("a multiple of {chunk} sectors is needed")));
        }
        let mut kept = self.range.lock().unwrap_or_else(PoisonError::into_inner);
        let mut range = *kept;
        if name == "sync_min" {
            range.min = sectors.unwrap_or(0)
        } else {
            range.max = sectors
        }
        if range.max.is_some_and(|max| max < range.min) {
            return Err(bad("sync_min may not be more than sync_max"));
        }
        self.array.command(Command::SetSyncRange { min: Sector(range.min), max: range.max.map(Sector) })?;
        *kept = range;
        Ok(())
    }
}

/// md's words for what can be asked of syncs.
pub fn parse_sync(word: &str) -> Option<SyncRequest> {
    Some(match word {
        "check" => SyncRequest::Check,
        "repair" => SyncRequest::Repair,
        "idle" => SyncRequest::Idle,
        "frozen" | "freeze" => SyncRequest::Freeze,
        _ => return None,
    })
}

fn member_state(place: &Place, member: &Member, status: &Status, id: MemberId) -> String {
    let facts = place.superblock.member();
    let replaced = |entry: &raidus_engine::SlotEntry| entry.member == Some(id) && entry.replacement.is_some();
    let is = |entry: &raidus_engine::SlotEntry| entry.replacement == Some(id);
    let words = [
        ("faulty", member.state == MemberState::Faulty),
        ("in_sync", matches!(member.state, MemberState::InSync(_))),
        ("journal", member.state == MemberState::Journal || facts.role == Role::Journal),
        ("writemostly", member.write_mostly),
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
