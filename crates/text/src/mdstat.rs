//! `/proc/mdstat`.

use core::fmt::Write;

use raidus_units::{Level, Slot};

use crate::view::{ArrayView, DeviceRole, DeviceView, ReadOnly, RunState, SyncView};

/// The first line, as a kernel with every level loaded prints it.
pub const PERSONALITIES: &str = "Personalities : [linear] [raid0] [raid1] [raid10] [raid6] [raid5] [raid4] ";

/// The whole file; `arrays` in the order the kernel shows them: the newest first.
pub fn mdstat(arrays: &[ArrayView]) -> String {
    let arrays: String = arrays.iter().map(mdstat_array).collect();
    format!("{PERSONALITIES}\n{arrays}unused devices: <none>\n")
}

/// The lines of one array.
pub fn mdstat_array(array: &ArrayView) -> String {
    let state = match array.state {
        RunState::Inactive => "inactive",
        RunState::Active => "active",
        RunState::Broken => "broken",
    };
    let mut out = format!("{} : {state}", array.name);
    let runs = array.state != RunState::Inactive;
    if runs {
        out.push_str(match array.read_only {
            ReadOnly::No => "",
            ReadOnly::Yes => " (read-only)",
            ReadOnly::Auto => " (auto-read-only)",
        });
        push(&mut out, format_args!(" {}", array.level));
    }
    for device in array.devices.iter().rev() {
        out.push(' ');
        out.push_str(&device_text(device));
    }
    push(&mut out, format_args!("\n      {} blocks{}", array.array_size.kib(), metadata(array)));
    if !runs {
        // The kernel's empty status line is one longer for an array without a personality.
        out.push_str("\n       \n");
        return out;
    }
    out.push_str(&level_text(array));
    out.push_str("\n      ");
    if let Some(sync) = &array.sync {
        out.push_str(&sync_text(sync));
        out.push_str("\n      ");
    }
    if let Some(bitmap) = &array.bitmap {
        let (used, total) = (bitmap.pages, bitmap.pages_total);
        push(&mut out, format_args!("bitmap: {used}/{total} pages [{}KB], {} chunk", used * 4, chunk(bitmap.chunk)));
        if let Some(file) = &bitmap.file {
            push(&mut out, format_args!(", file: {file}"));
        }
        out.push('\n');
    }
    out.push('\n');
    out
}

fn device_text(device: &DeviceView) -> String {
    let mut text = format!("{}[{}]", device.name, device.dev_number);
    if device.write_mostly {
        text.push_str("(W)");
    }
    text.push_str(match device.role {
        DeviceRole::Journal => "(J)",
        DeviceRole::Faulty => "(F)",
        DeviceRole::Spare => "(S)",
        DeviceRole::Replacing(_) => "(R)",
        DeviceRole::InSync(_) | DeviceRole::Rebuilding(_) => "",
    });
    text
}

fn metadata(array: &ArrayView) -> String {
    match array.version() {
        None => " super non-persistent".to_owned(),
        Some("0.90") => String::new(),
        Some(version) => format!(" super {version}"),
    }
}

fn level_text(array: &ArrayView) -> String {
    let chunk = array.reshape.map_or(array.chunk, |r| r.chunk).kib();
    match array.level {
        Level::Linear => format!(" {chunk}k rounding"),
        Level::Raid0 => format!(" {chunk}k chunks"),
        Level::Raid1 => slots(array),
        Level::Raid4 | Level::Raid5 | Level::Raid6 => {
            let (level, layout) = (array.level.number(), array.layout);
            format!(" level {level}, {chunk}k chunk, algorithm {layout}{}", slots(array))
        }
        Level::Raid10 => format!("{}{}", raid10(array), slots(array)),
    }
}

fn raid10(array: &ArrayView) -> String {
    let layout = array.layout;
    let (near, far) = (layout & 255, layout >> 8 & 255);
    let mut text = String::new();
    if near < u32::from(array.raid_disks) {
        push(&mut text, format_args!(" {}K chunks", array.chunk.kib()));
    }
    if near > 1 {
        push(&mut text, format_args!(" {near} near-copies"));
    }
    if far > 1 {
        let kind = if layout & 0x1_0000 != 0 { "offset" } else { "far" };
        push(&mut text, format_args!(" {far} {kind}-copies"));
    }
    if layout & 0x6_0000 != 0 {
        let set = if layout & 0x4_0000 != 0 { near * far } else { u32::from(array.raid_disks) / far.max(1) };
        push(&mut text, format_args!(" {set} devices per set"));
    }
    text
}

/// ` [3/2] [UU_]`
fn slots(array: &ArrayView) -> String {
    let letter = |s| if array.in_sync(Slot(s)) { 'U' } else { '_' };
    let letters: String = (0..array.raid_disks).map(letter).collect();
    format!(" [{}/{}] [{letters}]", array.raid_disks, array.working_slots())
}

fn sync_text(sync: &SyncView) -> String {
    let &SyncView::Running { action, done, total, speed } = sync else {
        return match sync {
            SyncView::Delayed(_) => "\tresync=DELAYED".to_owned(),
            _ => "\tresync=PENDING".to_owned(),
        };
    };
    let permille = permille(done, total);
    let ticks = usize::try_from(permille / 50).unwrap_or(20).min(20);
    let bar = format!("[{}>{}]", "=".repeat(ticks), ".".repeat(20 - ticks));
    let percent = format!("{:3}.{}", permille / 10, permille % 10);
    // The kernel's arithmetic: 32 sectors at a time, so that small rates do not divide by zero.
    let remaining = u128::from(total.saturating_sub(done)) * 2;
    let seconds = remaining / (u128::from(speed) * 2 / 32 + 1) / 32;
    let finish = format!("{}.{}", seconds / 60, seconds % 60 / 6);
    format!("{bar}  {} ={percent}% ({done}/{total}) finish={finish}min speed={speed}K/sec", action.word())
}

/// Thousandths done, counted as the kernel does: in whole units of 512 KiB. `done` and `total` in KiB.
pub(crate) fn permille(done: u64, total: u64) -> u64 {
    (done / 512).saturating_mul(1000) / (total / 512 + 1)
}

fn chunk(bytes: u64) -> String {
    if bytes >= 1024 { format!("{}KB", bytes / 1024) } else { format!("{bytes}B") }
}

fn push(out: &mut String, text: core::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = out.write_fmt(text);
}
