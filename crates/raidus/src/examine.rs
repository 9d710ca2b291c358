//! `raidus examine`: the metadata on devices.

mod json;

use std::path::{Path, PathBuf};

use clap::Args;
use raidus_format::bitmap::{BitArray, BitmapSuper, BitmapVersion, ChunkStates};
use raidus_format::{Found, MdUuid, MetadataVersion, RawSuperblock, Role, badblocks};
use raidus_text::{BitmapContent, Examined};
use raidus_units::{Sector, Sectors};

use crate::error::Failure;
use crate::host::Host;
use crate::look::{self, Looked, look};
use crate::output::{self, say};

/// Show the metadata on devices, in the words of mdadm --examine.
///
/// Nothing is written, and devices in use can be looked at, too. A superblock that is damaged is shown as far as it can be
/// read, with what is wrong with it on standard error.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER)]
pub struct ExamineArgs {
    /// Disks, partitions or image files.
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// One line per array, as in mdadm.conf.
    #[arg(short, long, group = "what")]
    brief: bool,
    /// KEY=value lines, for scripts.
    #[arg(short = 'Y', long, group = "what")]
    export: bool,
    /// Print JSON: a list with one object per device.
    #[arg(long)]
    json: bool,
    /// Show the write-intent bitmap instead.
    #[arg(short = 'X', long, alias = "examine-bitmap", group = "what")]
    bitmap: bool,
    /// Show the bad-block log instead.
    #[arg(long, alias = "examine-badblocks", group = "what")]
    badblocks: bool,
    /// The name of the host that arrays are said to be local to; default: this one's.
    #[arg(long, value_name = "NAME")]
    homehost: Option<String>,
}

const AFTER: &str = "\
Examples:
  raidus examine /dev/sdb1
  raidus examine --brief /dev/sd[b-e] >> /etc/mdadm/mdadm.conf
  raidus examine --json disk*.img | jq '.[] | {device, events: .superblock.events}'
  raidus examine -X disk0.img";

/// The command.
pub fn run(args: ExamineArgs) -> Result<(), Failure> {
    if args.json {
        return output::json(&args.devices.iter().map(|path| json::device(path)).collect::<Vec<_>>());
    }
    if args.brief {
        return each_array(&args.devices);
    }
    let host = args.homehost.as_deref().map_or_else(Host::this, Host::named);
    each(&args.devices, |path| match () {
        _ if args.bitmap => bitmap(path),
        _ if args.badblocks => bad_blocks(path),
        _ if args.export => Ok(raidus_text::examine_export(superblock(path, &look(path)?)?)),
        _ => full(path, &host),
    })
}

/// Every device gets its turn, whatever is wrong with the others.
fn each(devices: &[PathBuf], text: impl Fn(&Path) -> Result<String, Failure>) -> Result<(), Failure> {
    let mut failed = false;
    for path in devices {
        match text(path) {
            Ok(text) => output::text(text)?,
            Err(failure @ Failure::Output(_)) => return Err(failure),
            Err(failure) => {
                say(&failure);
                failed = true;
            }
        }
    }
    if failed { Err(Failure::Told) } else { Ok(()) }
}

fn full(path: &Path, host: &Host) -> Result<String, Failure> {
    let looked = look(path)?;
    let found = found(path, &looked)?;
    let superblock = superblock(path, &looked)?;
    if let Err(why) = &found.superblock {
        say(format_args!("{}: {why}; shown as far as it can be read", path.display()));
    }
    for concern in &found.concerns {
        say(format_args!("{}: {concern}", path.display()));
    }
    let bitmap = bitmap_super(&looked, superblock).map(|sb| sb.area());
    let device = path.display().to_string();
    let examined = Examined { device: &device, size: looked.device.size(), superblock, bitmap };
    Ok(host.with_context(|context| raidus_text::examine(&examined, context)))
}

/// The superblock that mdadm would show: the usable one of the array created last, else whatever there is.
pub fn found<'a>(path: &Path, looked: &'a Looked) -> Result<&'a Found, Failure> {
    let md = &looked.probe.md;
    let newest = looked.probe.newest();
    let usable = md.iter().find(|f| newest.is_some() && f.superblock.as_ref().ok() == newest);
    if let Some(found) = usable.or_else(|| md.iter().find(|f| f.raw.is_some())).or_else(|| md.first()) {
        return Ok(found);
    }
    let path = path.to_owned();
    match looked.probe.foreign.first() {
        Some(kind) => Err(Failure::ForeignMetadata { path, kind: kind.to_string() }),
        None => Err(Failure::NoSuperblock { path }),
    }
}

fn superblock<'a>(path: &Path, looked: &'a Looked) -> Result<&'a RawSuperblock, Failure> {
    let found = found(path, looked)?;
    match (&found.raw, &found.superblock) {
        (Some(raw), _) => Ok(raw),
        (None, Err(why)) => Err(Failure::Unusable { path: path.to_owned(), why: why.clone() }),
        (None, Ok(_)) => Err(Failure::NoSuperblock { path: path.to_owned() }),
    }
}

/// One line per array, however many of its members are given.
fn each_array(devices: &[PathBuf]) -> Result<(), Failure> {
    let mut arrays: Vec<(MdUuid, RawSuperblock, usize)> = Vec::new();
    let mut failed = false;
    for path in devices {
        let looked = look(path).and_then(|looked| superblock(path, &looked).cloned());
        let superblock = match looked {
            Ok(superblock) => superblock,
            Err(failure) => {
                say(&failure);
                failed = true;
                continue;
            }
        };
        let uuid = superblock.array().uuid;
        let spare = superblock.member().role == Role::Spare;
        match arrays.iter_mut().find(|(known, ..)| *known == uuid) {
            Some((_, known, spares)) => {
                *spares += usize::from(spare);
                // A member with a slot speaks for the array rather than a spare.
                if known.member().role == Role::Spare {
                    *known = superblock;
                }
            }
            None => arrays.push((uuid, superblock, usize::from(spare))),
        }
    }
    for (_, superblock, spares) in &arrays {
        output::text(raidus_text::examine_brief(superblock, &md_path(superblock), *spares))?;
    }
    if failed { Err(Failure::Told) } else { Ok(()) }
}

/// Where Linux would put the array's device node.
pub fn md_path(superblock: &RawSuperblock) -> String {
    let array = superblock.array();
    match array.preferred_minor {
        Some(minor) => format!("/dev/md{minor}"),
        None => format!("/dev/md/{}", array.name.split_once(':').map_or(array.name.as_str(), |(_, own)| own)),
    }
}

fn bitmap(path: &Path) -> Result<String, Failure> {
    let name = path.display().to_string();
    // An external bitmap is a file of its own, often too small to be a device.
    if let Ok(start) = look::file_start(path, BITMAP_FILE_MAX)
        && let Ok(superblock) = BitmapSuper::parse(&start)
    {
        return Ok(raidus_text::examine_bitmap(
            &name,
            &superblock,
            MetadataVersion::V1_2,
            content(&superblock, &start).as_ref(),
        ));
    }
    let looked = look(path)?;
    let superblock = superblock(path, &looked)?;
    let Some(at) = bitmap_at(superblock) else { return Err(Failure::NoBitmap { path: path.to_owned() }) };
    let header = look::read(&looked.device, at, PAGE)?;
    let header = BitmapSuper::parse(&header);
    let header = header.map_err(|why| Failure::BitmapUnreadable { path: path.to_owned(), why })?;
    let area = header.area();
    let bytes = if area <= AREA_MAX { look::read(&looked.device, at, area).ok() } else { None };
    Ok(raidus_text::examine_bitmap(
        &name,
        &header,
        superblock.version(),
        bytes.as_ref().and_then(|b| content(&header, b)).as_ref(),
    ))
}

const PAGE: Sectors = Sectors(8);
/// Longer bitmaps than md makes are not read.
const AREA_MAX: Sectors = Sectors::from_kib(64 << 10);
const BITMAP_FILE_MAX: u64 = 64 << 20;

fn content<'a>(superblock: &BitmapSuper, area: &'a [u8]) -> Option<BitmapContent<'a>> {
    match superblock.version() {
        BitmapVersion::Lockless => ChunkStates::read(area, superblock).ok().map(BitmapContent::States),
        _ => BitArray::from_file(area, superblock.bits()).ok().map(BitmapContent::Bits),
    }
}

fn bitmap_at(superblock: &RawSuperblock) -> Option<Sector> {
    let offset = superblock.array().bitmap?;
    superblock.member().super_offset.0.checked_add_signed(offset).map(Sector)
}

fn bitmap_super(looked: &Looked, superblock: &RawSuperblock) -> Option<BitmapSuper> {
    let page = look::read(&looked.device, bitmap_at(superblock)?, PAGE).ok()?;
    BitmapSuper::parse(&page).ok()
}

fn bad_blocks(path: &Path) -> Result<String, Failure> {
    let looked = look(path)?;
    let superblock = superblock(path, &looked)?;
    let list = bad_ranges(path, &looked, superblock)?;
    Ok(raidus_text::examine_badblocks(&path.display().to_string(), superblock.version(), list.as_deref()))
}

/// The bad-block log; `None` if there is none.
fn bad_ranges(path: &Path, looked: &Looked, sb: &RawSuperblock) -> Result<Option<Vec<(Sector, Sectors)>>, Failure> {
    let member = sb.member();
    let Some(log) = member.bad_block_log else { return Ok(None) };
    if !member.has_bad_blocks {
        return Ok(Some(Vec::new()));
    }
    let unreadable = |why| Failure::BadBlocksUnreadable { path: path.to_owned(), why };
    let at = member.super_offset.0.checked_add_signed(log.offset).map(Sector);
    let at = at.ok_or_else(|| unreadable("it lies before the start of the device".to_owned()))?;
    let bytes = look::read(&looked.device, at, log.size)?;
    let ranges = badblocks::parse(&bytes, log.shift, looked.device.size()).map_err(|e| unreadable(e.to_string()))?;
    Ok(Some(ranges.into_iter().map(|range| (range.start, range.len)).collect()))
}
