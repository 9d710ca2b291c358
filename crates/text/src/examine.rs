//! `mdadm --examine`.

use core::fmt::Write;

use raidus_format::{ArrayFacts, BadBlockArea, MemberFacts, RawSuperblock, Role};
use raidus_units::{Sectors, Slot};

use crate::{Context, examine090, human_size, layout_text, level_name, local_to, raid10_layout};

/// The kernel keeps this much from the superblock on for itself, whatever is in it.
const KEPT_AFTER_SUPERBLOCK: u64 = 72;

/// What is looked at.
pub struct Examined<'a> {
    /// Path of the device.
    pub device: &'a str,
    /// Its size.
    pub size: Sectors,
    /// What was found on it.
    pub superblock: &'a RawSuperblock,
    /// Sectors the internal bitmap takes with its header, in whole 4 KiB, if there is one and its header is readable.
    pub bitmap: Option<Sectors>,
}

/// All about a superblock.
pub fn examine(of: &Examined<'_>, context: &Context<'_>) -> String {
    let mut out = Lines::default();
    out.raw(&format!("{}:", of.device));
    match of.superblock {
        RawSuperblock::V090(sb) => examine090::examine(&mut out, sb, context),
        RawSuperblock::V1(_) => v1(&mut out, of, context),
    }
    out.text
}

fn v1(out: &mut Lines, of: &Examined<'_>, context: &Context<'_>) {
    let (array, member) = (of.superblock.array(), of.superblock.member());
    out.line("Magic", format_args!("{:08x}", raidus_format::MD_MAGIC));
    out.line("Version", array.metadata);
    out.line("Feature Map", format_args!("{:#x}", array.features));
    out.line("Array UUID", array.uuid);
    out.line("Name", format_args!("{}{}", array.name, local_to(&array.name, context)));
    out.line("Creation Time", (context.time)(array.ctime.secs));
    out.line("Raid Level", level_name(array.level_number));
    out.line("Raid Devices", array.raid_disks);
    out.blank();
    sizes(out, of, &array, &member);
    out.line("State", if array.resync.is_some() { "active" } else { "clean" });
    out.line("Device UUID", member.device_uuid.unwrap_or_default());
    out.blank();
    logs(out, &array);
    reshape(out, &array, KIB_CHUNK);
    if member.write_mostly || member.failfast {
        let words = [(member.write_mostly, " write-mostly"), (member.failfast, " failfast")];
        let flags: String = words.iter().filter(|(on, _)| *on).map(|(_, word)| *word).collect();
        out.line("Flags", flags.trim_start());
    }
    out.line("Update Time", (context.time)(array.utime.secs));
    if let Some(BadBlockArea { offset, size, .. }) = member.bad_block_log {
        let present = if member.has_bad_blocks { " - bad blocks present." } else { "" };
        let entries = size.bytes() / 8;
        out.line("Bad Block Log", format_args!("{entries} entries available at offset {offset} sectors{present}"));
    }
    out.checksum(of.superblock);
    out.line("Events", array.events);
    out.blank();
    shape(out, &array);
    out.blank();
    out.line_at(14, "Device Role", role(&member));
    let note = "('A' == active, '.' == missing, 'R' == replacing)";
    out.line_at(14, "Array State", format_args!("{} {note}", slots(of.superblock, &array)));
}

fn sizes(out: &mut Lines, of: &Examined<'_>, array: &ArrayFacts, member: &MemberFacts) {
    let sectors = |n: Sectors| format!("{} sectors{}", n.0, human(n));
    out.line("Avail Dev Size", sectors(member.data_size));
    if let Some(size) = array_size(array) {
        out.line("Array Size", format_args!("{} KiB{}", size / 2, human(Sectors(size))));
    }
    if array.level_number != 0 && array.size != member.data_size {
        out.line("Used Dev Size", sectors(array.size));
    }
    if member.data_offset.0 != 0 {
        out.line("Data Offset", format_args!("{} sectors", member.data_offset));
    }
    if let Some(moved) = member.new_offset {
        out.line("New Offset", format_args!("{} sectors", member.data_offset.0.saturating_add_signed(moved)));
    }
    out.line("Super Offset", format_args!("{} sectors", member.super_offset));
    if let Some(recovery) = member.recovery {
        out.line("Recovery Offset", format_args!("{} sectors", recovery.offset));
    }
    let (before, after) = unused(of, array, member);
    if member.new_offset.is_none() && (before, after) != (0, 0) {
        out.line("Unused Space", format_args!("before={before} sectors, after={after} sectors"));
    }
}

/// Sectors of the array by the formula mdadm prints, which does not round raid10 down; `None` for linear and raid0.
pub(crate) fn array_size(array: &ArrayFacts) -> Option<u64> {
    let (n, copies) = (u64::from(array.raid_disks), u64::from((array.layout & 255) * (array.layout >> 8 & 255)));
    let (times, over) = match array.level_number {
        1 => (1, 1),
        4 | 5 => (n.checked_sub(1)?, 1),
        6 => (n.checked_sub(2)?, 1),
        10 => (n, copies),
        _ => return None,
    };
    let bytes = u128::from(array.size.0) * 512 * u128::from(times);
    u64::try_from(bytes.checked_div(u128::from(over))? / 512).ok().filter(|_| times > 0)
}

/// Room between the metadata and the data on either side, in sectors.
fn unused(of: &Examined<'_>, array: &ArrayFacts, member: &MemberFacts) -> (u64, u64) {
    let superblock = member.super_offset.0;
    let data = member.data_offset.0;
    // A journal uses all it has.
    let all = array.size.is_zero() || member.role == Role::Journal;
    let used = if all { member.data_size.0 } else { array.size.0 };
    let data_end = data.saturating_add(used);
    let areas = [
        array.bitmap.map(|offset| (offset, of.bitmap.unwrap_or_default().0)),
        array.ppl.map(|ppl| (ppl.offset, ppl.size.0)),
        member.bad_block_log.map(|log| (log.offset, log.size.0)),
    ];
    let areas = areas.into_iter().flatten();
    let start = |offset: i64| superblock.saturating_add_signed(offset);
    if superblock >= data_end {
        let first = areas.map(|(offset, _)| start(offset)).fold(superblock, u64::min);
        return (data, first.saturating_sub(data_end));
    }
    let kept = superblock + KEPT_AFTER_SUPERBLOCK;
    let last = areas.map(|(offset, len)| start(offset).saturating_add(len)).fold(kept, u64::max);
    (data.saturating_sub(last), of.size.0.saturating_sub(data_end))
}

fn logs(out: &mut Lines, array: &ArrayFacts) {
    if let Some(offset) = array.bitmap {
        out.line("Internal Bitmap", format_args!("{offset} sectors from superblock"));
    }
    if let Some(ppl) = array.ppl {
        let text = format!("{} sectors at offset {} sectors from superblock", ppl.size, ppl.offset);
        out.line("PPL", text);
    }
}

/// How a reshape's new chunk size is printed: 1.x in KiB.
const KIB_CHUNK: fn(Sectors) -> String = |chunk| format!("{}K", chunk.kib());

/// The lines on a reshape, and the empty line after them.
pub(crate) fn reshape(out: &mut Lines, array: &ArrayFacts, chunk: fn(Sectors) -> String) {
    let Some(reshape) = &array.reshape else { return };
    let position = reshape.position.from_start();
    out.line("Reshape pos'n", format_args!("{}{}", position.kib(), human(position)));
    if reshape.delta_disks != 0 {
        let old = i64::from(array.raid_disks) - i64::from(reshape.delta_disks);
        out.line("Delta Devices", format_args!("{} ({old}->{})", reshape.delta_disks, array.raid_disks));
    }
    if reshape.new_level != array.level_number {
        out.line("New Level", level_name(reshape.new_level));
    }
    if reshape.new_layout != array.layout {
        match array.level_number {
            5 | 6 => {
                let name = layout_text(array.level_number, reshape.new_layout);
                out.line("New Layout", name.unwrap_or_default());
            }
            10 => out.line("New Layout", raid10_layout(reshape.new_layout)),
            _ => {}
        }
    }
    if reshape.new_chunk != array.chunk {
        out.line("New Chunksize", chunk(reshape.new_chunk));
    }
    out.blank();
}

/// Layout and chunk.
pub(crate) fn shape(out: &mut Lines, array: &ArrayFacts) {
    let shown = array.level_number != 0 || array.raid0_layout_known;
    if let Some(layout) = layout_text(array.level_number, array.layout).filter(|_| shown) {
        out.line("Layout", layout);
    }
    match array.level_number {
        0 | 4 | 5 | 6 | 10 => out.line("Chunk Size", format_args!("{}K", array.chunk.kib())),
        -1 => out.line("Rounding", format_args!("{}K", array.chunk.kib())),
        _ => {}
    }
}

fn role(member: &MemberFacts) -> String {
    match member.role {
        Role::Slot(slot) if member.replacement => format!("Replacement device {slot}"),
        Role::Slot(slot) => format!("Active device {slot}"),
        Role::Journal => "Journal".to_owned(),
        Role::Spare | Role::Faulty => "spare".to_owned(),
    }
}

/// One letter per slot.
fn slots(sb: &RawSuperblock, array: &ArrayFacts) -> String {
    let shrinking = array.reshape.as_ref().map_or(0, |r| r.delta_disks.min(0).unsigned_abs());
    let roles = sb.roles();
    let letter = |slot: u32| {
        let holders = roles.iter().filter(|r| u16::try_from(slot).is_ok_and(|s| **r == Role::Slot(Slot(s)))).count();
        ['.', 'A', 'R'].get(holders).copied().unwrap_or('?')
    };
    let shown = array.raid_disks.saturating_add(shrinking).min(roles.len() as u32);
    (0..shown).map(letter).collect()
}

fn human(n: Sectors) -> String {
    human_size(n.0.saturating_mul(512))
}

/// Text with md's right-aligned labels.
#[derive(Default)]
pub(crate) struct Lines {
    pub(crate) text: String,
}

impl Lines {
    /// `label : value`, the label right-aligned to 15 characters.
    pub(crate) fn line(&mut self, label: &str, value: impl core::fmt::Display) {
        self.line_at(15, label, value);
    }

    /// The same with another width.
    pub(crate) fn line_at(&mut self, width: usize, label: &str, value: impl core::fmt::Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{label:>width$} : {value}");
    }

    pub(crate) fn raw(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    pub(crate) fn blank(&mut self) {
        self.text.push('\n');
    }

    pub(crate) fn checksum(&mut self, sb: &RawSuperblock) {
        let sum = sb.checksum();
        if sum.is_right() {
            self.line("Checksum", format_args!("{:x} - correct", sum.stored));
        } else {
            self.line("Checksum", format_args!("{:x} - expected {:x}", sum.stored, sum.computed));
        }
    }
}
