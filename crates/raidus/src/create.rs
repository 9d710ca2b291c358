//! `raidus create`: a new array.

use std::path::{Path, PathBuf};

use clap::{ArgMatches, Args};
use raidus_assembly::create::{BitmapWish, CreateDevice, CreateParams, CreatePlan, NewMember, Policy, plan};
use raidus_format::{MdUuid, MetadataVersion, Probe};
use raidus_runtime::members::{MemberDevice, MemberOpenError, OpenMode};
use raidus_units::{Level, Sector, Sectors};

use crate::error::Failure;
use crate::host::{Host, now, random_uuid};
use crate::image::NewImages;
use crate::output::{json, say};
use crate::{look, sizes};

/// Make a new array on disks, partitions or image files.
///
/// Options, defaults and the result are those of mdadm --create: the same members, byte for byte, apart from random UUIDs and
/// the time. The array is made, not started; `raidus assemble` or `raidus serve` (or Linux) does that.
///
/// Devices are listed in slot order, spares last; "missing" leaves a slot empty. Devices that hold a file system, a partition
/// table or RAID metadata are refused; --run overrides that, and what they hold is lost.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER)]
pub struct CreateArgs {
    /// Devices, or "missing".
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// RAID level: linear, 0, 1, 4, 5, 6, 10 (also raid5, stripe, mirror).
    #[arg(short, long)]
    level: String,
    /// Number of slots; the first devices listed fill them.
    #[arg(short = 'n', long)]
    raid_devices: u16,
    /// Number of spares; the last devices listed.
    #[arg(short = 'x', long, default_value_t = 0)]
    spare_devices: u16,
    /// Chunk size in KiB, or with K, M, G; default 512K.
    #[arg(short, long, value_name = "SIZE", visible_alias = "rounding")]
    chunk: Option<String>,
    /// Where data and parity go: left-symmetric … (5, 6), n2, f2, o2 … (10), original, alternate (0).
    #[arg(short = 'p', long, visible_alias = "parity")]
    layout: Option<String>,
    /// Superblock version: 1.2 (default), 1.1, 1.0, 0.90.
    #[arg(short = 'e', long, default_value = "default")]
    metadata: String,
    /// How much of each member to use, in KiB or with K, M, G, T; default ("max"): all of the smallest.
    #[arg(short = 'z', long, value_name = "SIZE")]
    size: Option<String>,
    /// Write-intent bitmap: internal or none; default: internal for members over 100 GiB.
    #[arg(short, long, value_name = "WHERE")]
    bitmap: Option<String>,
    /// What one bit of the bitmap covers, in KiB or with K, M, G; default: 64M or more.
    #[arg(long, value_name = "SIZE")]
    bitmap_chunk: Option<String>,
    /// What keeps members equal after a crash: resync, bitmap, or (raid5) ppl. With ppl a crash while a member is missing loses nothing that
    /// was acknowledged; each write waits for the log.
    #[arg(short = 'k', long, value_name = "POLICY")]
    consistency_policy: Option<String>,
    /// raid1 with --write-mostly: most writes that may be outstanding on the members after it; default 256.
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "256")]
    write_behind: Option<u32>,
    /// The devices listed after this are read only if no other can be.
    #[arg(short = 'W', long)]
    write_mostly: bool,
    /// The devices listed after this are failed at the first error instead of being tried again.
    #[arg(long)]
    failfast: bool,
    /// The members are known to agree already: no resync.
    #[arg(long)]
    assume_clean: bool,
    /// Where data begins on every member, in KiB or with K, M, G; "variable": DEVICE:SIZE gives it for each.
    #[arg(long, value_name = "SIZE")]
    data_offset: Option<String>,
    /// Name of the array.
    #[arg(short = 'N', long)]
    name: Option<String>,
    /// UUID of the array; default: random.
    #[arg(short, long)]
    uuid: Option<String>,
    /// Name of the host that goes before the array's name; default: this one's.
    #[arg(long, value_name = "NAME")]
    homehost: Option<String>,
    /// Go ahead although devices hold something; it is lost.
    #[arg(short = 'R', long)]
    run: bool,
    /// Do as said where it is unusual: an array of one device; no rebuilding of the last member of a new raid4 or raid5.
    #[arg(short, long)]
    force: bool,
    /// Make the devices first: sparse image files of this size (bytes, or with K, M, G, T). Existing files are refused.
    #[arg(long, value_name = "SIZE")]
    image_size: Option<String>,
    /// Print what was made as JSON.
    #[arg(long)]
    json: bool,
    /// Indices into `devices` from which --write-mostly and --failfast hold.
    #[arg(skip)]
    flags_from: FlagsFrom,
}

/// From which device on a flag holds.
#[derive(Clone, Copy, Debug, Default)]
struct FlagsFrom {
    write_mostly: Option<usize>,
    failfast: Option<usize>,
}

const AFTER: &str = "\
Sizes are in KiB where nothing else is said; K, M, G and T are powers of 1024, s is sectors of 512 bytes.

Examples:
  raidus create --level=6 --raid-devices=6 --image-size=64M d0 d1 d2 d3 d4 d5
  raidus create -l 1 -n 2 --bitmap=internal /dev/sdb1 /dev/sdc1
  raidus create -l 5 -n 4 --chunk=64 /dev/sdb /dev/sdc missing /dev/sdd
  raidus create -l 10 -n 4 --layout=f2 --metadata=1.0 --name=scratch a.img b.img c.img d.img";

impl CreateArgs {
    /// Takes from the raw command line what the order of its words means.
    pub fn note_order(&mut self, matches: &ArgMatches) {
        let devices: Vec<usize> = matches.indices_of("devices").map_or_else(Vec::new, Iterator::collect);
        let from = |id: &str, given: bool| {
            let at = matches.indices_of(id)?.next().filter(|_| given)?;
            Some(devices.iter().filter(|device| **device < at).count())
        };
        self.flags_from = FlagsFrom {
            write_mostly: from("write_mostly", self.write_mostly),
            failfast: from("failfast", self.failfast),
        };
    }
}

/// The command.
pub fn run(args: CreateArgs) -> Result<(), Failure> {
    let wanted = Wanted::parse(&args)?;
    let mut images = NewImages::default();
    if let Some(bytes) = wanted.image_bytes {
        for path in wanted.devices.iter().filter_map(|d| d.path.as_ref()) {
            images.make(path, bytes)?;
        }
    }
    let devices = open(&wanted.devices)?;
    let probes = probe(&devices)?;
    refuse_content(&devices, &probes, args.run)?;
    let params = params(&args, &wanted, &devices, &probes)?;
    let plan = plan(&params)?;
    refuse_split_blocks(&plan, &devices)?;
    tell_choices(&args, &params, &plan);
    raidus_runtime::create_array(&plan, &devices).map_err(|failed| full_disk(failed, &wanted))?;
    images.keep();
    let name = if plan.name.is_empty() { params.uuid.to_string() } else { plan.name.clone() };
    say(format_args!("array {name} created."));
    if args.json { json(&report(&params, &plan)) } else { Ok(()) }
}

/// The command line, understood.
struct Wanted {
    level: Level,
    metadata: MetadataVersion,
    chunk: Option<Sectors>,
    layout: Option<u32>,
    size: Option<Sectors>,
    bitmap: BitmapWish,
    policy: Option<Policy>,
    data_offset: Option<Sectors>,
    uuid: MdUuid,
    devices: Vec<WantedDevice>,
    image_bytes: Option<u64>,
}

/// A word of the device list.
struct WantedDevice {
    /// `None`: missing.
    path: Option<PathBuf>,
    data_offset: Option<Sectors>,
    write_mostly: bool,
    failfast: bool,
}

impl Wanted {
    fn parse(args: &CreateArgs) -> Result<Wanted, Failure> {
        let level: Level = args.level.parse().map_err(|e| usage("--level", e))?;
        let layout = args.layout.as_deref().map(|text| raidus_layout::names::parse(level, text));
        let variable = args.data_offset.as_deref() == Some("variable");
        let data_offset = args.data_offset.as_deref().filter(|_| !variable);
        let component = args.size.as_deref().map(sizes::parse_component).transpose();
        Ok(Wanted {
            level,
            metadata: args.metadata.parse().map_err(|e| usage("--metadata", e))?,
            chunk: size("--chunk", args.chunk.as_deref())?,
            layout: layout.transpose().map_err(|e| usage("--layout", e))?,
            size: component.map_err(|e| usage("--size", e))?.flatten(),
            bitmap: bitmap(args)?,
            policy: policy(args.consistency_policy.as_deref())?,
            data_offset: size("--data-offset", data_offset)?,
            uuid: match &args.uuid {
                Some(text) => text.parse().map_err(|e| usage("--uuid", e))?,
                None => random_uuid()?,
            },
            devices: devices(args, variable)?,
            image_bytes: args
                .image_size
                .as_deref()
                .map(sizes::parse_bytes)
                .transpose()
                .map_err(|e| usage("--image-size", e))?,
        })
    }
}

fn usage(option: &str, why: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!("{option}: {why}"))
}

fn size(option: &str, text: Option<&str>) -> Result<Option<Sectors>, Failure> {
    text.map(sizes::parse_size).transpose().map_err(|e| usage(option, e))
}

fn bitmap(args: &CreateArgs) -> Result<BitmapWish, Failure> {
    let chunk = size("--bitmap-chunk", args.bitmap_chunk.as_deref())?.map(Sectors::bytes);
    match args.bitmap.as_deref() {
        None if chunk.is_some() => Err(usage("--bitmap-chunk", "needs --bitmap=internal")),
        None => Ok(BitmapWish::Auto),
        Some("none") => Ok(BitmapWish::None),
        Some("internal") => Ok(BitmapWish::Internal { chunk }),
        Some(other) => Err(usage(
            "--bitmap",
            format!("'{other}' is neither internal nor none; raidus keeps bitmaps on the members"),
        )),
    }
}

fn policy(text: Option<&str>) -> Result<Option<Policy>, Failure> {
    Ok(match text {
        None => None,
        Some("resync") => Some(Policy::Resync),
        Some("bitmap") => Some(Policy::Bitmap),
        Some("ppl") => Some(Policy::Ppl),
        Some(other) => {
            return Err(usage(
                "--consistency-policy",
                format!("'{other}' is not possible: resync, bitmap and ppl are"),
            ));
        }
    })
}

fn devices(args: &CreateArgs, variable: bool) -> Result<Vec<WantedDevice>, Failure> {
    let holds = |from: Option<usize>, i: usize| from.is_some_and(|from| i >= from);
    let device = |(i, word): (usize, &PathBuf)| {
        let (write_mostly, failfast) = (holds(args.flags_from.write_mostly, i), holds(args.flags_from.failfast, i));
        let mut path = word.clone();
        let mut data_offset = None;
        if variable && let Some((name, offset)) = word.to_str().and_then(|w| w.rsplit_once(':')) {
            path = name.into();
            data_offset = size("--data-offset", Some(offset))?;
        }
        let path = Some(path).filter(|p| p != Path::new("missing"));
        Ok(WantedDevice { path, data_offset, write_mostly, failfast })
    };
    args.devices.iter().enumerate().map(device).collect()
}

/// Opens and locks all devices; `None` for the missing.
fn open(wanted: &[WantedDevice]) -> Result<Vec<Option<MemberDevice>>, Failure> {
    let mut devices: Vec<Option<MemberDevice>> = Vec::new();
    for device in wanted {
        let Some(path) = &device.path else {
            devices.push(None);
            continue;
        };
        // A device given twice would meet its own lock.
        if let Some(first) = devices.iter().flatten().find(|d| d.is_at(path)) {
            return Err(MemberOpenError::GivenTwice { path: path.clone(), first: first.name().to_owned() }.into());
        }
        devices.push(Some(MemberDevice::open(path, OpenMode { direct: false, ..OpenMode::READ_WRITE })?));
    }
    Ok(devices)
}

fn probe(devices: &[Option<MemberDevice>]) -> Result<Vec<Probe>, Failure> {
    let probe = |device: &Option<MemberDevice>| match device {
        None => Ok(Probe::default()),
        Some(d) => raidus_runtime::probe_device(d).map_err(|source| Failure::read(d.name().to_owned(), source)),
    };
    devices.iter().map(probe).collect()
}

/// Tells of everything on the devices that would be lost, before refusing.
fn refuse_content(devices: &[Option<MemberDevice>], probes: &[Probe], run: bool) -> Result<(), Failure> {
    let mut refused = false;
    for (device, probe) in devices.iter().zip(probes) {
        let Some(device) = device else { continue };
        let mut found: Vec<String> = probe.md.iter().map(describe_member).collect();
        found.extend(probe.foreign.iter().map(|kind| format!("{kind} RAID metadata")));
        found.extend(look::other_content(device)?.into_iter().map(str::to_owned));
        if found.is_empty() {
            continue;
        }
        if run {
            say(format_args!("{}: held {}", device.name().display(), found.join(" and ")));
        } else {
            say(Failure::HoldsData { path: device.name().to_owned(), found });
            refused = true;
        }
    }
    if refused { Err(Failure::Told) } else { Ok(()) }
}

/// Data that begins inside a block of the device would make every block of the array two of the device's, in part.
fn refuse_split_blocks(plan: &CreatePlan, devices: &[Option<MemberDevice>]) -> Result<(), Failure> {
    for member in &plan.members {
        let Some(Some(device)) = devices.get(member.device) else { continue };
        let (offset, block) = (member.superblock.member().data_offset.bytes(), u64::from(device.block()));
        if !offset.is_multiple_of(block) {
            let why = format!("{}: {offset} is no multiple of the device's sectors of {block} bytes", member.name);
            return Err(usage("--data-offset", why));
        }
    }
    Ok(())
}

/// What a superblock that is about to be lost says.
pub fn describe_member(found: &raidus_format::Found) -> String {
    let Some(array) = found.raw.as_ref().map(|raw| raw.array()) else {
        return format!("a damaged md superblock ({})", found.version);
    };
    let level = array.level.map_or_else(|| format!("level {}", array.level_number), |l| l.to_string());
    let name = if array.name.is_empty() { String::new() } else { format!(" '{}'", array.name) };
    let (disks, uuid) = (array.raid_disks, array.uuid);
    format!("an md superblock {} (member of array {uuid}{name}: {level}, {disks} devices)", found.version)
}

fn params(
    args: &CreateArgs,
    wanted: &Wanted,
    devices: &[Option<MemberDevice>],
    probes: &[Probe],
) -> Result<CreateParams, Failure> {
    let mut members = Vec::new();
    for ((device, wanted), probe) in devices.iter().zip(&wanted.devices).zip(probes) {
        members.push(match device {
            None => CreateDevice::Missing,
            Some(device) => CreateDevice::Present(NewMember {
                name: device.name().display().to_string(),
                size: device.size(),
                uuid: random_uuid()?,
                write_mostly: wanted.write_mostly,
                failfast: wanted.failfast,
                data_offset: wanted.data_offset,
                old_superblocks: probe.md.iter().map(|found| found.at).collect::<Vec<Sector>>(),
            }),
        });
    }
    let v1 = wanted.metadata.is_v1();
    let host = args.homehost.as_deref().map_or_else(Host::this, Host::named);
    Ok(CreateParams {
        metadata: wanted.metadata,
        level: wanted.level,
        raid_disks: args.raid_devices,
        spares: args.spare_devices,
        devices: members,
        chunk: wanted.chunk,
        layout: wanted.layout,
        size: wanted.size,
        data_offset: wanted.data_offset,
        bitmap: wanted.bitmap,
        policy: wanted.policy,
        write_behind: args.write_behind,
        assume_clean: args.assume_clean,
        force: args.force,
        // As for /dev/md0.
        name: args.name.clone().or_else(|| v1.then(|| "0".to_owned())),
        homehost: host.homehost().map(str::to_owned).filter(|_| v1),
        uuid: wanted.uuid,
        now: now(),
        preferred_minor: 0,
    })
}

/// What was chosen because nobody said otherwise, in mdadm's words.
fn tell_choices(args: &CreateArgs, params: &CreateParams, plan: &CreatePlan) {
    if args.layout.is_none()
        && let Some(layout) = raidus_layout::names::text(params.level, plan.layout)
        && params.level != Level::Raid0
    {
        say(format_args!("layout defaults to {layout}"));
    }
    if args.chunk.is_none() && !plan.chunk.is_zero() {
        say(format_args!("chunk size defaults to {}K", plan.chunk.kib()));
    }
    if args.size.is_none() && !plan.component.is_zero() {
        say(format_args!("size set to {}K", plan.component.kib()));
    }
    if args.bitmap.is_none() && plan.bitmap_chunk.is_some() {
        say("automatically enabling write-intent bitmap on large array");
    }
    if args.metadata == "default" {
        say(format_args!("Defaulting to version {} metadata", params.metadata));
    }
    for note in &plan.notes {
        say(format_args!("note: {note}"));
    }
}

fn full_disk(failed: raidus_runtime::CreateFailed, wanted: &Wanted) -> Failure {
    if let raidus_runtime::CreateFailed::Write { device, source } = &failed {
        let path = wanted.devices.iter().filter_map(|d| d.path.as_ref()).find(|p| p.display().to_string() == *device);
        let kind = source.kind();
        let known =
            [std::io::ErrorKind::StorageFull, std::io::ErrorKind::QuotaExceeded, std::io::ErrorKind::FileTooLarge];
        if let Some(path) = path.filter(|_| known.contains(&kind)) {
            return Failure::write(path.clone(), kind.into());
        }
    }
    failed.into()
}

fn report(params: &CreateParams, plan: &CreatePlan) -> serde_json::Value {
    let member = |m: &raidus_assembly::create::MemberPlan| {
        let facts = m.superblock.member();
        serde_json::json!({
            "device": m.name,
            "role": m.role.to_string(),
            "rebuild": m.rebuild,
            "device_uuid": facts.device_uuid.map(|u| u.to_string()),
            "data_offset_bytes": facts.data_offset.0 * raidus_units::SECTOR_BYTES,
        })
    };
    serde_json::json!({
        "uuid": params.uuid.to_string(),
        "name": plan.name,
        "level": params.level.to_string(),
        "raid_disks": params.raid_disks,
        "metadata": params.metadata.to_string(),
        "layout": raidus_layout::names::text(params.level, plan.layout).map(|t| t.to_string()),
        "chunk_bytes": plan.chunk.bytes(),
        "component_bytes": plan.component.bytes(),
        "array_bytes": plan.geometry.array_sectors().bytes(),
        "bitmap_chunk_bytes": plan.bitmap_chunk,
        "clean": plan.clean,
        "members": plan.members.iter().map(member).collect::<Vec<_>>(),
        "notes": plan.notes,
    })
}
