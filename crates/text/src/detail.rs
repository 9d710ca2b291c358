//! `mdadm --detail`.

use raidus_format::MetadataVersion;
use raidus_units::{Level, Slot};

use crate::mdstat::permille;
use crate::view::{ArrayView, DeviceRole, DeviceView, Policy, RunState, SyncAction, SyncView};
use crate::{Context, human_size, layout_text, local_to};

/// Everything about a running array.
pub fn detail(array: &ArrayView, context: &Context<'_>) -> String {
    let mut out = Lines(String::new());
    let runs = array.state != RunState::Inactive;
    out.raw(&format!("{}:", array.path));
    out.line("Version", array.version().unwrap_or("none"));
    if runs {
        out.line("Creation Time", (context.time)(array.ctime));
    }
    out.line("Raid Level", array.level);
    if runs {
        sizes(&mut out, array);
    }
    out.line("Total Devices", array.devices.len());
    if let Some(minor) = array.preferred_minor {
        out.line("Preferred Minor", minor);
    }
    if array.metadata.is_some() {
        out.line("Persistence", "Superblock is persistent");
    }
    out.blank();
    if let Some(bitmap) = &array.bitmap {
        out.line("Intent Bitmap", bitmap.file.as_deref().unwrap_or("Internal"));
        out.blank();
    }
    if runs {
        state(&mut out, array, context);
        shape(&mut out, array);
        progress(&mut out, array);
    } else {
        out.line("State", "inactive");
        out.line("Working Devices", array.devices.len());
        out.blank();
    }
    identity(&mut out, array, context);
    devices(&mut out, array, runs);
    out.0
}

fn sizes(out: &mut Lines, array: &ArrayView) {
    let kib = |n: raidus_units::Sectors| format!("{}{}", n.kib(), human_size(n.0.saturating_mul(512)));
    out.line("Array Size", kib(array.array_size));
    if array.level.is_redundant() {
        out.line("Used Dev Size", kib(array.component));
    }
    out.line("Raid Devices", array.raid_disks);
}

fn state(out: &mut Lines, array: &ArrayView, context: &Context<'_>) {
    out.line("Update Time", (context.time)(array.utime));
    out.line("State", state_words(array) + " ");
    let count = |pick: fn(&DeviceRole) -> bool| array.devices.iter().filter(|d| pick(&d.role)).count();
    let failed = count(|r| matches!(r, DeviceRole::Faulty));
    let waiting =
        |r: &DeviceRole| matches!(r, DeviceRole::Spare | DeviceRole::Rebuilding(_) | DeviceRole::Replacing(_));
    out.line("Active Devices", count(|r| matches!(r, DeviceRole::InSync(_))));
    out.line("Working Devices", array.devices.len() - failed);
    out.line("Failed Devices", failed);
    out.line("Spare Devices", count(waiting));
    out.blank();
}

fn state_words(array: &ArrayView) -> String {
    let mut words = match array.state {
        RunState::Broken if !array.level.is_redundant() => "broken",
        _ if array.clean => "clean",
        _ => "active",
    }
    .to_owned();
    if !array.enough() {
        words.push_str(", FAILED");
    } else if array.working_slots() < usize::from(array.raid_disks) {
        words.push_str(", degraded");
    }
    let (action, suffix) = match array.sync {
        None => return words,
        Some(SyncView::Running { action, .. }) => (action, ""),
        Some(SyncView::Delayed(action)) => (action, " (DELAYED)"),
        Some(SyncView::Pending(action)) => (action, " (PENDING)"),
    };
    words.push_str(match action {
        SyncAction::Resync => ", resyncing",
        SyncAction::Recovery => ", recovering",
        SyncAction::Check => ", checking",
        SyncAction::Reshape => ", reshaping",
    });
    words + suffix
}

fn shape(out: &mut Lines, array: &ArrayView) {
    let chunk = format!("{}K", array.chunk.kib());
    let layout = match array.level {
        // mdadm names only what the superblock marks as meaningful.
        Level::Raid0 if !array.raid0_layout_known && array.layout == 0 => None,
        Level::Raid0 if !array.raid0_layout_known => Some("-unknown-".to_owned()),
        level => layout_text(level.number(), array.layout),
    };
    let has_layout = layout.is_some();
    if let Some(layout) = layout {
        out.line("Layout", layout);
    }
    match array.level {
        Level::Raid1 if !has_layout => {}
        Level::Raid1 => out.blank(),
        Level::Linear => {
            out.line("Rounding", chunk);
            out.blank();
        }
        _ => {
            out.line("Chunk Size", chunk);
            out.blank();
        }
    }
    let policy = match array.policy {
        Policy::None => "none",
        Policy::Resync => "resync",
        Policy::Bitmap => "bitmap",
        Policy::Journal => "journal",
        Policy::Ppl => "ppl",
    };
    out.line("Consistency Policy", policy);
    out.blank();
}

fn progress(out: &mut Lines, array: &ArrayView) {
    let mut shown = false;
    if let Some(SyncView::Running { action, done, total, .. }) = array.sync {
        let label = match action {
            SyncAction::Recovery => "Rebuild Status",
            SyncAction::Resync => "Resync Status",
            SyncAction::Check => "Check Status",
            SyncAction::Reshape => "Reshape Status",
        };
        let percent = permille(done, total) / 10;
        out.line(label, format_args!("{percent}% complete"));
        shown = true;
    }
    if let Some(reshape) = &array.reshape {
        if reshape.delta_disks != 0 {
            let old = i64::from(array.raid_disks) - i64::from(reshape.delta_disks);
            out.line("Delta Devices", format_args!("{}, ({old}->{})", reshape.delta_disks, array.raid_disks));
        }
        if reshape.level != array.level {
            out.line("New Level", reshape.level);
        }
        if reshape.layout != array.layout {
            out.line("New Layout", layout_text(reshape.level.number(), reshape.layout).unwrap_or_default());
        }
        if reshape.chunk != array.chunk {
            out.line("New Chunksize", format_args!("{}K", reshape.chunk.kib()));
        }
        shown = true;
    }
    if shown {
        out.blank();
    }
}

fn identity(out: &mut Lines, array: &ArrayView, context: &Context<'_>) {
    if array.metadata == Some(MetadataVersion::V0_90) {
        out.line("UUID", array.uuid);
        out.line("Events", format_args!("{}.{}", array.events >> 32, array.events & 0xffff_ffff));
    } else {
        out.line("Name", format_args!("{}{}", array.array_name, local_to(&array.array_name, context)));
        out.line("UUID", array.uuid);
        out.line("Events", array.events);
    }
    out.blank();
}

fn devices(out: &mut Lines, array: &ArrayView, runs: bool) {
    if !runs {
        out.raw("    Number   Major   Minor   RaidDevice");
        out.blank();
        for device in &array.devices {
            let (major, minor) = device.node.unwrap_or_default();
            let path = &device.path;
            out.raw(&format!("{:>8}   {major:>5}    {minor:>5}    {:>5}        {path}", "-", "-"));
        }
        return;
    }
    out.raw("    Number   Major   Minor   RaidDevice State");
    for slot in (0..array.raid_disks).map(Slot) {
        let holder = array.devices.iter().find(|d| holds(d, slot));
        let replacement = array.devices.iter().find(|d| d.role == DeviceRole::Replacing(slot));
        if holder.is_none() && replacement.is_none() {
            out.raw(&format!("{:>8}   {:>5}    {:>5}    {slot:>5}      removed", "-", 0, 0));
        }
        for device in [holder, replacement].into_iter().flatten() {
            out.raw(&row(device, &slot.to_string(), array));
        }
    }
    let shown = |d: &&DeviceView| slot_of(d).is_some_and(|s| s.0 < array.raid_disks);
    let mut others: Vec<&DeviceView> = array.devices.iter().filter(|d| !shown(d)).collect();
    others.sort_by_key(|d| (slot_of(d), d.dev_number));
    if !others.is_empty() {
        out.blank();
    }
    for device in others {
        let slot = slot_of(device).map_or_else(|| "-".to_owned(), |s| s.to_string());
        out.raw(&row(device, &slot, array));
    }
}

fn holds(device: &DeviceView, slot: Slot) -> bool {
    matches!(device.role, DeviceRole::InSync(s) | DeviceRole::Rebuilding(s) if s == slot)
}

fn slot_of(device: &DeviceView) -> Option<Slot> {
    match device.role {
        DeviceRole::InSync(slot) | DeviceRole::Rebuilding(slot) | DeviceRole::Replacing(slot) => Some(slot),
        DeviceRole::Spare | DeviceRole::Faulty | DeviceRole::Journal => None,
    }
}

fn row(device: &DeviceView, slot: &str, array: &ArrayView) -> String {
    let (major, minor) = device.node.unwrap_or_default();
    let mut words = match device.role {
        DeviceRole::InSync(_) => " active sync",
        DeviceRole::Rebuilding(_) | DeviceRole::Replacing(_) => " spare rebuilding",
        DeviceRole::Spare => " spare",
        DeviceRole::Faulty => " faulty",
        DeviceRole::Journal => " journal",
    }
    .to_owned();
    if let (DeviceRole::InSync(slot), Some(set)) = (device.role, copy_sets(array)) {
        // Sets are lettered; mdadm has as many letters as it needs.
        words.push_str(&format!(" set-{}", char::from(b'A' + (slot.0 % set) as u8)));
    }
    if device.write_mostly {
        words.push_str(" writemostly");
    }
    if device.failfast {
        words.push_str(" failfast");
    }
    let (number, path) = (device.dev_number, &device.path);
    format!("{number:>8}   {major:>5}    {minor:>5}    {slot:>5}     {words}   {path}")
}

/// How many sets of slots hold a whole copy of the array each: raid10 with near copies that divide the slots.
fn copy_sets(array: &ArrayView) -> Option<u16> {
    let near = (array.layout & 255) as u16;
    let plain = array.level == Level::Raid10 && array.layout >> 8 == 1;
    (plain && (2..=26).contains(&near) && array.raid_disks.is_multiple_of(near)).then_some(near)
}

/// Text with mdadm's right-aligned labels.
struct Lines(String);

impl Lines {
    fn line(&mut self, label: &str, value: impl core::fmt::Display) {
        self.0.push_str(&format!("{label:>18} : {value}\n"));
    }

    fn raw(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    fn blank(&mut self) {
        self.0.push('\n');
    }
}
