//! `mdadm --examine` of a 0.90 superblock.

use raidus_format::v090::{DISK_ACTIVE, DISK_FAILFAST, DISK_FAULTY, DISK_REMOVED, DISK_SYNC, DISK_WRITE_MOSTLY};
use raidus_format::v090::{Descriptor, Raw};
use raidus_units::Sectors;

use crate::examine::{Lines, array_size, reshape, shape};
use crate::{Context, human_size, level_name};

pub(crate) fn examine(out: &mut Lines, sb: &Raw, context: &Context<'_>) {
    let array = sb.array();
    out.line("Magic", format_args!("{:08x}", raidus_format::MD_MAGIC));
    out.line("Version", format_args!("{}.{:02}.{:02}", sb.word(1), sb.word(2), sb.word(3)));
    out.line("UUID", array.uuid);
    out.line("Creation Time", (context.time)(array.ctime.secs));
    out.line("Raid Level", level_name(array.level_number));
    if array.level_number > 0 {
        out.line("Used Dev Size", kib(array.size));
        if let Some(size) = array_size(&array) {
            out.line("Array Size", kib(Sectors(size)));
        }
    }
    let counts = sb.counts();
    out.line("Raid Devices", array.raid_disks);
    out.line("Total Devices", counts.total);
    out.line("Preferred Minor", array.preferred_minor.unwrap_or(0));
    out.blank();
    reshape(out, &array, |chunk| chunk.bytes().to_string());
    out.line("Update Time", (context.time)(array.utime.secs));
    out.line("State", if array.clean { "clean" } else { "active" });
    if array.bitmap.is_some() {
        out.line("Internal Bitmap", "present");
    }
    out.line("Active Devices", counts.active);
    out.line("Working Devices", counts.working);
    out.line("Failed Devices", counts.failed);
    out.line("Spare Devices", counts.spare);
    let sum = sb.checksum();
    if sum.is_right() {
        out.line("Checksum", format_args!("{:x} - correct", sum.stored));
    } else {
        out.line("Checksum", format_args!("{:x} - expected {:x}", sum.stored, sum.computed));
    }
    out.line("Events", array.events);
    out.blank();
    shape(out, &array);
    out.blank();
    devices(out, sb, counts.spare, context);
}

fn devices(out: &mut Lines, sb: &Raw, spares: u32, context: &Context<'_>) {
    let array = sb.array();
    out.raw("      Number   Major   Minor   RaidDevice State");
    out.raw(&row("this", &sb.this_disk(), context));
    out.blank();
    let shrinking = array.reshape.map_or(0, |r| r.delta_disks.min(0).unsigned_abs());
    let rows = array.raid_disks.saturating_add(shrinking).saturating_add(spares);
    for (number, disk) in (0..rows).map_while(|number| Some((number, sb.descriptor(number)?))) {
        out.raw(&row(&format!("{number:>4}"), &disk, context));
    }
}

fn row(title: &str, disk: &Descriptor, context: &Context<'_>) -> String {
    let Descriptor { number, major, minor, raid_disk, state } = *disk;
    let words = [
        (DISK_FAULTY, " faulty"),
        (DISK_ACTIVE, " active"),
        (DISK_SYNC, " sync"),
        (DISK_REMOVED, " removed"),
        (DISK_WRITE_MOSTLY, " write-mostly"),
        (DISK_FAILFAST, " failfast"),
    ];
    let mut text: String = words.iter().filter(|(bit, _)| state & bit != 0).map(|(_, word)| *word).collect();
    if state & (DISK_FAULTY | DISK_ACTIVE | DISK_SYNC | DISK_REMOVED) == 0 {
        text.push_str(" spare");
    }
    let path = (context.device)(major, minor).map_or_else(String::new, |path| format!("   {path}"));
    format!("{title} {number:>5}   {major:>5}    {minor:>5}    {raid_disk:>5}     {text}{path}")
}

fn kib(size: Sectors) -> String {
    format!("{}{}", size.kib(), human_size(size.0.saturating_mul(512)))
}
