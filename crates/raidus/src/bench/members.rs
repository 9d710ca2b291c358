//! What a benchmark runs on: devices, and members that are none.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use raidus_runtime::members::{Kept, MemberDevice, MemberOpenError, MemoryDevice, ModelledDevice, OpenMode, Timing};
use raidus_units::{Sector, Sectors};

use crate::create::describe_member;
use crate::error::Failure;
use crate::output::say;
use crate::{look, sizes};

/// A member as it stands on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    Path(PathBuf),
    Memory { size: Sectors },
    Modelled { size: Sectors, kept: Kept, timing: Option<Timing> },
}

/// A member, to be opened any number of times, one after the other.
#[derive(Clone, Debug)]
pub enum Member {
    Path(PathBuf),
    Memory(Arc<MemoryDevice>),
    Modelled(Arc<ModelledDevice>),
}

const SIZE: Sectors = Sectors::from_kib(256 << 10);

/// Reads `[N*]WHAT`: a path, `null`, `memory` or `model`, the last three with options after a colon.
pub fn parse(text: &str) -> Result<Vec<Wanted>, String> {
    let (count, what) = match text.split_once('*') {
        Some((count, what)) if !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit()) => (
            count.parse::<usize>().ok().filter(|n| (1..=384).contains(n)).ok_or("1 to 384 members are possible")?,
            what,
        ),
        _ => (1, text),
    };
    let (kind, options) = what.split_once(':').unwrap_or((what, ""));
    let wanted = match kind {
        "null" | "memory" | "model" => modelled(kind, options)?,
        _ => Wanted::Path(what.into()),
    };
    Ok(vec![wanted; count])
}

fn modelled(kind: &str, options: &str) -> Result<Wanted, String> {
    let (mut size, mut timing) = (SIZE, Timing::default());
    let mut kept = if kind == "null" { Kept::Front } else { Kept::Everything };
    for option in options.split(',').filter(|o| !o.is_empty()) {
        let (name, value) = option.split_once('=').ok_or_else(|| format!("'{option}' is not NAME=VALUE"))?;
        match name {
            "size" => size = Sectors::from_bytes_floor(sizes::parse_bytes(value).map_err(|e| e.to_string())?),
            "latency" if kind == "model" => timing.latency = time(value)?,
            "flush" if kind == "model" => timing.flush = time(value)?,
            "bandwidth" if kind == "model" => timing.bandwidth = Some(bandwidth(value)?),
            "kept" if kind == "model" => {
                kept = match value {
                    "all" => Kept::Everything,
                    "front" => Kept::Front,
                    _ => return Err(format!("kept={value}: all and front are possible")),
                }
            }
            _ => return Err(format!("{kind} has no option '{name}'")),
        }
    }
    Ok(match kind {
        "memory" => Wanted::Memory { size },
        "null" => Wanted::Modelled { size, kept, timing: None },
        _ => Wanted::Modelled { size, kept, timing: Some(timing) },
    })
}

/// A time as people write it: 80us, 1ms, 5s.
pub fn time(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let bad = || format!("'{text}' is not a time, such as 80us, 1ms or 5s");
    let number: u64 = number.parse().map_err(|_| bad())?;
    let nanos = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return Err(bad()),
    };
    number.checked_mul(nanos).map(Duration::from_nanos).ok_or_else(bad)
}

fn bandwidth(text: &str) -> Result<u64, String> {
    let size = text.strip_suffix("/s").unwrap_or(text);
    let bytes = sizes::parse_bytes(size).map_err(|_| format!("'{text}' is not a bandwidth, such as 2GiB/s"))?;
    if bytes == 0 { Err("bandwidth=0: nothing would ever end".to_owned()) } else { Ok(bytes) }
}

impl Wanted {
    pub fn make(&self) -> Result<Member, Failure> {
        let failed = |source| Failure::System { what: "memory for the members", source };
        Ok(match self {
            Wanted::Path(path) => Member::Path(path.clone()),
            Wanted::Memory { size } => {
                let device = MemoryDevice::new(*size).map_err(failed)?;
                device.populate();
                Member::Memory(Arc::new(device))
            }
            Wanted::Modelled { size, kept, timing } => {
                let device = ModelledDevice::new(*size, *kept, *timing).map_err(failed)?;
                if *kept == Kept::Everything {
                    device.populate();
                }
                Member::Modelled(Arc::new(device))
            }
        })
    }

    /// For people and programs.
    pub fn describe(&self) -> String {
        match self {
            Wanted::Path(path) => path.display().to_string(),
            Wanted::Memory { size } => format!("memory:size={}K", size.kib()),
            Wanted::Modelled { size, timing: None, .. } => format!("null:size={}K", size.kib()),
            Wanted::Modelled { size, kept, timing: Some(t) } => {
                let bandwidth = t.bandwidth.map_or(String::new(), |b| format!(",bandwidth={}K/s", b >> 10));
                let kept = if *kept == Kept::Front { ",kept=front" } else { "" };
                let (latency, flush) = (t.latency, t.flush);
                format!("model:latency={latency:?}{bandwidth},flush={flush:?},size={}K{kept}", size.kib())
            }
        }
    }
}

/// Opens all members.
pub fn open(members: &[Member], mode: OpenMode) -> Result<Vec<MemberDevice>, Failure> {
    let mut devices: Vec<MemberDevice> = Vec::new();
    for (number, member) in members.iter().enumerate() {
        devices.push(match member {
            Member::Path(path) => {
                if let Some(first) = devices.iter().find(|d| d.is_at(path)) {
                    let first = first.name().to_owned();
                    return Err(MemberOpenError::GivenTwice { path: path.clone(), first }.into());
                }
                MemberDevice::open(path, mode)?
            }
            Member::Memory(device) => MemberDevice::memory(&format!("memory{number}"), Arc::clone(device)),
            Member::Modelled(device) => MemberDevice::modelled(&format!("model{number}"), Arc::clone(device)),
        });
    }
    Ok(devices)
}

/// Refuses devices that hold anything that can be recognised, or any byte but zero at many places, unless `run` says that it may go.
pub fn refuse_content(members: &[Member], devices: &[MemberDevice], run: bool) -> Result<(), Failure> {
    let mut refused = false;
    let given = |(member, _): &(&Member, &MemberDevice)| matches!(member, Member::Path(_));
    for (_, device) in members.iter().zip(devices).filter(given) {
        let path = device.name();
        let probe = raidus_runtime::probe_device(device).map_err(|source| Failure::read(path.to_owned(), source))?;
        let mut found: Vec<String> = probe.md.iter().map(describe_member).collect();
        found.extend(probe.foreign.iter().map(|kind| format!("{kind} RAID metadata")));
        found.extend(look::other_content(device)?.into_iter().map(str::to_owned));
        if found.is_empty() && !is_blank(device)? {
            found.push("data".to_owned());
        }
        if found.is_empty() {
            continue;
        }
        if run {
            say(format_args!("{}: held {}", path.display(), found.join(" and ")));
        } else {
            say(Failure::HoldsData { path: path.to_owned(), found });
            refused = true;
        }
    }
    if refused { Err(Failure::Told) } else { Ok(()) }
}

/// Whether a device reads as zeroes at its start, its end, and many places between. More cannot be known without reading all.
fn is_blank(device: &MemberDevice) -> Result<bool, Failure> {
    const PLACES: u64 = 256;
    const LOOK: Sectors = Sectors::from_kib(64);
    let last = device.size().0.saturating_sub(LOOK.0);
    for place in 0..=PLACES {
        let at = Sector((u128::from(last) * u128::from(place) / u128::from(PLACES)) as u64);
        let bytes = look::read(device, at, LOOK.min(device.size()))?;
        if bytes.iter().any(|b| *b != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Takes the superblocks of a benchmark's array away, so that nothing takes its members for an array.
pub fn forget(members: &[Member]) -> Result<(), Failure> {
    let paths: Vec<Member> = members.iter().filter(|m| matches!(m, Member::Path(_))).cloned().collect();
    for device in open(&paths, OpenMode { direct: false, ..OpenMode::READ_WRITE })? {
        let failed = |path: &Path, source| Failure::write(path.to_owned(), source);
        let probe = raidus_runtime::probe_device(&device).map_err(|e| Failure::read(device.name().to_owned(), e))?;
        for found in probe.md {
            device.write_at(found.at.bytes(), &[0; 4096]).map_err(|e| failed(device.name(), e))?;
        }
        device.sync().map_err(|e| failed(device.name(), e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_as_they_are_typed() {
        assert_eq!(parse("/dev/sdb"), Ok(vec![Wanted::Path("/dev/sdb".into())]));
        assert_eq!(parse("a*b"), Ok(vec![Wanted::Path("a*b".into())]));
        let null = Wanted::Modelled { size: SIZE, kept: Kept::Front, timing: None };
        assert_eq!(parse("3*null"), Ok(vec![null; 3]));
        assert_eq!(parse("memory:size=64M"), Ok(vec![Wanted::Memory { size: Sectors::from_kib(64 << 10) }]));
        let timing =
            Timing { latency: Duration::from_micros(80), bandwidth: Some(2 << 30), flush: Duration::from_millis(1) };
        let model = parse("model:latency=80us,bandwidth=2GiB/s,flush=1ms,size=4TiB,kept=front");
        let size = Sectors::from_kib(4 << 30);
        assert_eq!(model, Ok(vec![Wanted::Modelled { size, kept: Kept::Front, timing: Some(timing) }]));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "0*null",
            "999*null",
            "null:latency=1us",
            "model:latency=80",
            "model:bandwidth=0",
            "model:x=1",
            "model:size",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
