//! The texts beside a mounted array: mdstat, and the attributes that Linux shows in `/sys/block/mdN/md`.

use std::sync::Arc;

use raidus_engine::control::Status;
use raidus_fuse::{Files, Text};
use raidus_runtime::ArrayHandle;
use raidus_text::{ArrayView, Policy};
use raidus_units::{Level, Sectors};

use crate::portrait::Portrait;

/// A value as of now.
type Value = fn(&ArrayView, &Status) -> String;

/// Of every array.
const ATTRIBUTES: &[(&str, Value)] = &[
    ("array_size", |_, _| "default".to_owned()),
    ("array_state", |_, status| status.array_state.name().to_owned()),
    ("chunk_size", |view, _| view.chunk.bytes().to_string()),
    ("component_size", |view, _| component(view).kib().to_string()),
    ("consistency_policy", |view, _| policy(view.policy).to_owned()),
    ("layout", |view, _| layout(view)),
    ("level", |view, _| view.level.to_string()),
    ("metadata_version", |view, _| view.metadata.map_or_else(|| "none".to_owned(), |version| version.to_string())),
    ("raid_disks", |view, _| view.raid_disks.to_string()),
    ("resync_start", |_, status| status.map.unsynced_from.map_or_else(|| "none".to_owned(), |from| from.0.to_string())),
    ("uuid", |view, _| uuid(view)),
];

/// Of arrays that can lose members.
const REDUNDANT: &[(&str, Value)] = &[("degraded", |_, status| status.degraded.to_string())];

/// The texts of a running array. Of one that has stopped, they are empty.
pub fn files(array: &Arc<ArrayHandle>, portrait: &Arc<Portrait>) -> Files {
    let redundant = portrait.assembled.geometry.level().is_redundant();
    let attributes = ATTRIBUTES.iter().chain(if redundant { REDUNDANT } else { &[] });
    let attribute = |&(name, value): &(&str, Value)| {
        (name.to_owned(), text(array, portrait, move |view, status| value(view, status) + "\n"))
    };
    Files {
        mdstat: text(array, portrait, |view, _| raidus_text::mdstat(std::slice::from_ref(view))),
        attributes: attributes.map(attribute).collect(),
    }
}

fn text(
    array: &Arc<ArrayHandle>,
    portrait: &Arc<Portrait>,
    show: impl Fn(&ArrayView, &Status) -> String + Send + Sync + 'static,
) -> Text {
    let (array, portrait) = (Arc::clone(array), Arc::clone(portrait));
    Box::new(move || array.status().map_or_else(String::new, |status| show(&portrait.view(&status), &status)))
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
