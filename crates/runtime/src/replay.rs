//! Logs replayed onto member devices.

use std::io;

use raidus_assembly::{Assembled, Disks, ReplayError};
use raidus_format::Timestamp;
use raidus_units::Sector;

use crate::members::{MemberDevice, MemberOpenError, OverlayStore};

/// Why a log was not replayed to its end. It is still there.
#[derive(Debug, thiserror::Error)]
pub enum ReplayFailed {
    /// A device failed.
    #[error(
        "{device}: {source}, while the array's log was being replayed; nothing is lost, the log is still there. Start again \
         without the device if the array can do without it, or with a copy of it"
    )]
    Device {
        /// The device.
        device: String,
        /// What it said.
        source: io::Error,
    },
    /// It cannot be recorded that the log was replayed.
    #[error(
        "the array's log was replayed, but cannot be given up: {why}. Nothing is lost; let Linux md start the array once"
    )]
    Record {
        /// Why.
        why: String,
    },
    /// The same log is found anew: a device forgets what is written to it.
    #[error("what was replayed is not on the members ({what}); check the devices")]
    Left {
        /// What is found anew.
        what: String,
    },
}

/// The devices with memory over those that must not be written, or cannot.
pub(crate) fn writable(devices: Vec<MemberDevice>, readonly: bool) -> Result<Vec<MemberDevice>, MemberOpenError> {
    let over = |device: MemberDevice| match device.overlay {
        None if readonly || !device.writable() => device.with_overlay(&OverlayStore::Memory),
        _ => Ok(device),
    };
    devices.into_iter().map(over).collect()
}

/// Replays onto `devices`, which are in the order of the candidates.
pub(crate) fn carry_out(assembled: &Assembled, devices: &[MemberDevice], now: u64) -> Result<(), ReplayFailed> {
    let done = assembled.carry_out_replay(&mut Devices(devices), Timestamp::from_secs(now));
    done.map_err(|error| match error {
        ReplayError::Disk(failed) => failed,
        ReplayError::Superblock(why) => ReplayFailed::Record { why: why.to_string() },
    })
}

struct Devices<'a>(&'a [MemberDevice]);

impl Devices<'_> {
    fn at(&self, candidate: usize, access: impl FnOnce(&MemberDevice) -> io::Result<()>) -> Result<(), ReplayFailed> {
        // Candidates are numbered as the devices are.
        let Some(device) = self.0.get(candidate) else { return Ok(()) };
        let failed = |source| ReplayFailed::Device { device: device.name().display().to_string(), source };
        access(device).map_err(failed)
    }
}

impl Disks for Devices<'_> {
    type Error = ReplayFailed;

    fn read(&mut self, candidate: usize, at: Sector, bytes: &mut [u8]) -> Result<(), ReplayFailed> {
        self.at(candidate, |device| device.read_at(at.bytes(), bytes))
    }

    fn write(&mut self, candidate: usize, at: Sector, bytes: &[u8]) -> Result<(), ReplayFailed> {
        self.at(candidate, |device| device.write_at(at.bytes(), bytes))
    }

    fn flush(&mut self, candidate: usize) -> Result<(), ReplayFailed> {
        self.at(candidate, MemberDevice::sync)
    }
}
