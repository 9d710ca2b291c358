//! The texts people and scripts know from Linux md: `/proc/mdstat` and what mdadm prints, word for word as mdadm 4.2 does.
//!
//! Everything is a pure function of plain values: superblocks for the `--examine` family, an [`ArrayView`] for texts on a
//! running array. What differs between hosts (time zone, host name, device names) comes in through [`Context`].
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod badblocks;
mod bitmap;
mod brief;
mod detail;
mod examine;
mod examine090;
mod mdstat;
mod size;
mod view;

pub use badblocks::examine_badblocks;
pub use bitmap::{BitmapContent, examine_bitmap};
pub use brief::{detail_brief, detail_export, examine_brief, examine_export, query_array, query_device};
pub use detail::detail;
pub use examine::{Examined, examine};
pub use mdstat::{PERSONALITIES, mdstat, mdstat_array};
pub use size::{human_size, human_size_brief};
pub use view::{
    ArrayView, BitmapView, DeviceRole, DeviceView, Policy, ReadOnly, ReshapeView, RunState, SyncAction, SyncView,
};

use jiff::tz::TimeZone;

/// What of the host shows in texts.
pub struct Context<'a> {
    /// Formats seconds since 1970 as local time, like [`ctime`].
    pub time: &'a dyn Fn(u64) -> String,
    /// This host's name, for `(local to host …)`.
    pub homehost: Option<&'a str>,
    /// The path of a block device by major and minor number. 0.90 superblocks record these.
    pub device: &'a dyn Fn(u32, u32) -> Option<String>,
}

/// `Mon Nov 30 10:31:05 2026`, as C's ctime.
pub fn ctime(seconds: u64, zone: &TimeZone) -> String {
    let stamp = i64::try_from(seconds).ok().and_then(|s| jiff::Timestamp::from_second(s).ok()).unwrap_or_default();
    stamp.to_zoned(zone.clone()).strftime("%a %b %e %H:%M:%S %Y").to_string()
}

/// `  (local to host NAME)` if the array's name begins with this host's.
fn local_to(name: &str, context: &Context<'_>) -> String {
    match context.homehost {
        Some(host) if name.strip_prefix(host).is_some_and(|rest| rest.starts_with(':')) => {
            format!("  (local to host {host})")
        }
        _ => String::new(),
    }
}

/// md's name of a level number.
fn level_name(number: i32) -> &'static str {
    match raidus_units::Level::from_number(number) {
        Some(level) => level.name(),
        None if number == -4 => "multipath",
        None if number == -5 => "faulty",
        None => "-unknown-",
    }
}

/// The layout as the `Layout :` lines show it; `None` where mdadm shows none.
fn layout_text(level: i32, layout: u32) -> Option<String> {
    use raidus_units::Level;
    let level = Level::from_number(level)?;
    Some(match level {
        Level::Raid5 | Level::Raid6 | Level::Raid0 => {
            raidus_layout::names::name(level, layout).unwrap_or("-unknown-").to_owned()
        }
        Level::Raid10 => raid10_layout(layout),
        Level::Linear | Level::Raid1 | Level::Raid4 => return None,
    })
}

fn raid10_layout(layout: u32) -> String {
    let (near, far, offset) = (layout & 255, layout >> 8 & 255, layout & 0x1_0000 != 0);
    let mut parts = Vec::new();
    if near != 1 || far == 1 {
        parts.push(format!("near={near}"));
    }
    if far != 1 {
        parts.push(format!("{}={far}", if offset { "offset" } else { "far" }));
    }
    parts.join(", ")
}
