//! `raidus detail`: all about arrays, running or not.

use std::path::{Path, PathBuf};

use clap::Args;
use raidus_assembly::Decision;
use raidus_format::Superblock;
use raidus_text::{ArrayView, DeviceRole, Policy, ReadOnly, RunState};
use raidus_units::{Level, Sectors};
use serde::Serialize;

use crate::control::DetailFormat;
use crate::control::client::{Remote, find, running};
use crate::error::Failure;
use crate::examine::md_path;
use crate::host::Host;
use crate::look;
use crate::output;
use crate::portrait::{ArrayReport, device_view};
use crate::query::member_of;
use crate::rundir::{RunDir, running_name};

/// Show all about arrays, in the words of mdadm --detail.
///
/// A running array is named by its name or by one of its members. Devices that no running array uses are shown as the array
/// they belong to, inactive, from their superblocks; give all of its members.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER)]
pub struct DetailArgs {
    /// Names of running arrays, or member devices; default: all running arrays.
    #[arg(value_name = "NAME|DEVICE")]
    words: Vec<PathBuf>,
    /// One line per array, as in mdadm.conf.
    #[arg(short, long, group = "what")]
    brief: bool,
    /// KEY=value lines, for scripts.
    #[arg(short = 'Y', long, group = "what")]
    export: bool,
    /// Print JSON: a list with one object per array.
    #[arg(long, group = "what")]
    json: bool,
}

const AFTER: &str = "\
Examples:
  raidus detail md0
  raidus detail --export md0
  raidus detail disk0.img disk1.img disk2.img";

/// What is to be shown.
enum Subject {
    Running(Remote, Box<ArrayReport>),
    /// Devices of one array, not running.
    Devices(Vec<PathBuf>),
}

/// What `--json` prints per array.
#[derive(Serialize)]
struct Shown<'a> {
    running: bool,
    array: Option<&'a ArrayReport>,
    /// What assembling the devices would give.
    assembly: Option<raidus_assembly::Report>,
}

/// The command.
pub fn run(args: DetailArgs) -> Result<(), Failure> {
    let subjects = subjects(&args.words)?;
    if args.json {
        let shown: Vec<Shown<'_>> = subjects.iter().map(shown).collect();
        return output::json(&shown);
    }
    let format = match () {
        _ if args.brief => DetailFormat::Brief,
        _ if args.export => DetailFormat::Export,
        _ => DetailFormat::Full,
    };
    for subject in &subjects {
        output::text(match subject {
            Subject::Running(remote, _) => remote.detail(format)?,
            Subject::Devices(paths) => inactive_text(paths, format)?,
        })?;
    }
    Ok(())
}

fn shown(subject: &Subject) -> Shown<'_> {
    match subject {
        Subject::Running(_, report) => Shown { running: true, array: Some(report), assembly: None },
        Subject::Devices(paths) => {
            let assembly = raidus_assembly::report(&decide(paths));
            Shown { running: false, array: None, assembly: Some(assembly) }
        }
    }
}

/// Every running array once; the other devices by the array they belong to.
fn subjects(words: &[PathBuf]) -> Result<Vec<Subject>, Failure> {
    let dir = RunDir::find()?;
    let arrays = running(&dir)?;
    if words.is_empty() {
        return Ok(arrays.into_iter().map(|(remote, report)| Subject::Running(remote, Box::new(report))).collect());
    }
    let mut subjects: Vec<Subject> = Vec::new();
    for word in words {
        let found = member_of(&arrays, word).cloned().map_or_else(|| by_name(&dir, word), |array| Ok(Some(array)))?;
        match found {
            Some((remote, report)) => {
                let known = |s: &Subject| matches!(s, Subject::Running(r, _) if r.name() == remote.name());
                if !subjects.iter().any(known) {
                    subjects.push(Subject::Running(remote, Box::new(report)));
                }
            }
            None => add_device(&mut subjects, word)?,
        }
    }
    Ok(subjects)
}

/// A running array, if this is not the path of something else.
fn by_name(dir: &RunDir, word: &Path) -> Result<Option<(Remote, ArrayReport)>, Failure> {
    let is_device = std::fs::metadata(word).is_ok_and(|m| {
        use std::os::unix::fs::FileTypeExt;
        m.is_file() || m.file_type().is_block_device()
    });
    match word.to_str() {
        Some(name) if !is_device && (!name.contains('/') || word.starts_with(dir.path())) => find(dir, name).map(Some),
        _ => Ok(None),
    }
}

fn add_device(subjects: &mut Vec<Subject>, path: &Path) -> Result<(), Failure> {
    let looked = look::look(path)?;
    let uuid = crate::examine::found(path, &looked)?.raw.as_ref().map(|raw| raw.array().uuid);
    for subject in subjects.iter_mut() {
        let Subject::Devices(paths) = subject else { continue };
        let first = look::look(&paths[0])?;
        if crate::examine::found(&paths[0], &first)?.raw.as_ref().map(|raw| raw.array().uuid) == uuid {
            paths.push(path.to_owned());
            return Ok(());
        }
    }
    subjects.push(Subject::Devices(vec![path.to_owned()]));
    Ok(())
}

fn decide(paths: &[PathBuf]) -> Decision {
    raidus_assembly::decide(&look::candidates(paths), &raidus_assembly::Options { run: true, ..Default::default() })
}

fn inactive_text(paths: &[PathBuf], format: DetailFormat) -> Result<String, Failure> {
    let mut members = Vec::new();
    for path in paths {
        let looked = look::look(path)?;
        if let Some(superblock) = looked.probe.newest() {
            members.push((path.clone(), looked.device.device_number(), superblock.clone()));
        }
    }
    let freshest = members.iter().max_by_key(|(_, _, sb)| sb.events());
    let Some((_, _, freshest)) = freshest else { return Err(Failure::NoSuperblock { path: paths[0].clone() }) };
    let view = inactive(&members, freshest)?;
    Ok(match format {
        DetailFormat::Full => Host::this().with_context(|context| raidus_text::detail(&view, context)),
        DetailFormat::Brief => raidus_text::detail_brief(&view),
        DetailFormat::Export => raidus_text::detail_export(&view),
        DetailFormat::Query => raidus_text::query_array(&view, "raidus detail"),
    })
}

type Device = (PathBuf, Option<(u32, u32)>, Superblock);

/// The array as Linux shows one that is put together and not started: every device a spare.
fn inactive(members: &[Device], freshest: &Superblock) -> Result<ArrayView, Failure> {
    let facts = freshest.array();
    let level = facts.level.ok_or(Failure::UnknownLevel { level: facts.level_number })?;
    let data = |(_, _, sb): &Device| sb.member().data_size.0;
    let name = running_name(&facts.name, facts.preferred_minor).unwrap_or_else(|| "md127".to_owned());
    Ok(ArrayView {
        name,
        path: md_path(freshest),
        state: RunState::Inactive,
        read_only: ReadOnly::No,
        clean: facts.resync.is_none(),
        metadata: Some(facts.metadata),
        level,
        layout: facts.layout,
        raid0_layout_known: facts.raid0_layout_known,
        chunk: facts.chunk,
        raid_disks: u16::try_from(facts.raid_disks).unwrap_or(u16::MAX),
        array_size: Sectors(members.iter().map(data).fold(0, u64::saturating_add)),
        component: facts.size,
        devices: members.iter().map(|(path, node, sb)| device_view(path, *node, sb, DeviceRole::Spare)).collect(),
        bitmap: None,
        sync: None,
        reshape: None,
        policy: if level == Level::Raid0 || level == Level::Linear { Policy::None } else { Policy::Resync },
        uuid: facts.uuid,
        array_name: facts.name,
        ctime: facts.ctime.secs,
        utime: facts.utime.secs,
        events: facts.events,
        preferred_minor: facts.preferred_minor,
    })
}
