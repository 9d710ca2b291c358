//! What of this host shows in texts and names: time zone, host name, device names, the time, random numbers.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::tz::TimeZone;
use raidus_format::{MdUuid, Timestamp};
use raidus_text::Context;

use crate::error::Failure;

/// What texts need to know of this host.
pub struct Host {
    zone: TimeZone,
    name: String,
}

impl Host {
    /// This host.
    pub fn this() -> Host {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Host { zone: TimeZone::system(), name }
    }

    /// This host under another name (`--homehost`).
    pub fn named(name: &str) -> Host {
        Host { zone: TimeZone::system(), name: name.to_owned() }
    }

    /// Its name, as it stands before array names: nothing if it has none worth the word.
    pub fn homehost(&self) -> Option<&str> {
        Some(self.name.as_str()).filter(|n| !n.is_empty() && *n != "(none)")
    }

    /// Calls `f` with the context for texts.
    pub fn with_context<T>(&self, f: impl FnOnce(&Context<'_>) -> T) -> T {
        let time = |seconds| raidus_text::ctime(seconds, &self.zone);
        f(&Context { time: &time, homehost: self.homehost(), device: &device_path })
    }
}

/// The path of a block device.
fn device_path(major: u32, minor: u32) -> Option<String> {
    let uevent = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/uevent")).ok()?;
    let name = uevent.lines().find_map(|l| l.strip_prefix("DEVNAME="))?;
    Some(format!("/dev/{name}"))
}

/// Now, as superblocks keep it.
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { secs: since.as_secs(), micros: since.subsec_micros() }
}

/// A new identity.
pub fn random_uuid() -> Result<MdUuid, Failure> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        let random = rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty());
        filled += random.map_err(|e| Failure::System { what: "no random numbers for a UUID", source: e.into() })?;
    }
    Ok(MdUuid(bytes))
}
