//! Members that only behave like devices: *modelled* ones take as long as a device would, *null* ones no time at all.
//!
//! What is written may be kept in memory, or only the front of it: enough for metadata, so that real arrays can be made on members
//! larger than the machine's memory. For benchmarks and tests; nothing is durable.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use raidus_units::Sectors;

use super::memory::MemoryDevice;
use crate::memory::usize_of;

/// What [`Kept::Front`] keeps: superblocks and bitmaps of the arrays that benchmarks make.
pub const FRONT: Sectors = Sectors::from_kib(8 << 10);

/// How long a device takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// From a request to its answer, transfer not counted.
    pub latency: Duration,
    /// Bytes per second; all transfers of the device share them, one after the other. `None`: any number.
    pub bandwidth: Option<u64>,
    /// Of a flush.
    pub flush: Duration,
}

/// How much of what is written can be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// All.
    Everything,
    /// The first [`FRONT`]. Other writes are forgotten, and reads leave memory as it is.
    Front,
}

/// A device that is none.
#[derive(Debug)]
pub struct ModelledDevice {
    size: Sectors,
    kept: MemoryDevice,
    timing: Option<Timing>,
    epoch: Instant,
    /// Nanoseconds after `epoch` from which on the channel is free.
    channel_free: AtomicU64,
}

impl ModelledDevice {
    /// A device of `size`; without a timing it answers at once.
    pub fn new(size: Sectors, kept: Kept, timing: Option<Timing>) -> io::Result<ModelledDevice> {
        let held = match kept {
            Kept::Everything => size,
            Kept::Front => size.min(FRONT),
        };
        Ok(ModelledDevice {
            size,
            kept: MemoryDevice::new(held)?,
            timing,
            epoch: Instant::now(),
            channel_free: AtomicU64::new(0),
        })
    }

    /// Its size.
    pub fn size(&self) -> Sectors {
        self.size
    }

    /// Takes the memory of what it keeps, as [`MemoryDevice::populate`] does.
    pub fn populate(&self) {
        self.kept.populate();
    }

    /// When a transfer that begins now ends; `None` for at once.
    pub(crate) fn transfer_ends(&self, bytes: u64) -> Option<Instant> {
        let Timing { latency, bandwidth, .. } = self.timing?;
        let now = Instant::now();
        let Some(bandwidth) = bandwidth else { return Some(now + latency) };
        let took = (u128::from(bytes) * 1_000_000_000 / u128::from(bandwidth.max(1))) as u64;
        let at = now.saturating_duration_since(self.epoch).as_nanos() as u64;
        let after = |free: u64| free.max(at).saturating_add(took);
        let before =
            self.channel_free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| Some(after(free))).unwrap_or(0);
        Some(self.epoch + Duration::from_nanos(after(before)) + latency)
    }

    /// When a flush that begins now ends; `None` for at once.
    pub(crate) fn flush_ends(&self) -> Option<Instant> {
        Some(Instant::now() + self.timing?.flush)
    }

    /// Fills what was kept of a range; the rest of `buf` stays as it is.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let held = self.held(offset, buf.len());
        self.kept.read(offset.min(self.kept.size().bytes()), &mut buf[..held])
    }

    pub(crate) fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let held = self.held(offset, buf.len());
        self.kept.write(offset.min(self.kept.size().bytes()), &buf[..held])
    }

    pub(crate) fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        let held = self.held(offset, usize_of(len));
        self.kept.zero(offset.min(self.kept.size().bytes()), held as u64)
    }

    /// How many of `len` bytes at `offset` are kept.
    fn held(&self, offset: u64, len: usize) -> usize {
        usize_of(self.kept.size().bytes().saturating_sub(offset).min(len as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: Sectors = Sectors::from_kib(1 << 20);

    #[test]
    fn the_front_is_kept_and_the_rest_forgotten() {
        let device = ModelledDevice::new(GIB, Kept::Front, None).unwrap();
        let edge = FRONT.bytes();
        device.write(edge - 512, &[7; 1024]).unwrap();
        let mut read = [1; 1024];
        device.read(edge - 512, &mut read).unwrap();
        assert!(read[..512].iter().all(|b| *b == 7) && read[512..].iter().all(|b| *b == 1));
        device.zero(edge - 512, 4096).unwrap();
        device.read(edge - 512, &mut read).unwrap();
        assert!(read[..512].iter().all(|b| *b == 0));
        device.write(GIB.bytes() - 512, &[7; 512]).unwrap();
        assert_eq!(device.transfer_ends(512), None);
    }

    #[test]
    fn transfers_share_the_bandwidth() {
        let timing =
            Timing { latency: Duration::from_millis(5), bandwidth: Some(1 << 20), flush: Duration::from_secs(1) };
        let device = ModelledDevice::new(GIB, Kept::Front, Some(timing)).unwrap();
        let start = Instant::now();
        let first = device.transfer_ends(1 << 20).unwrap();
        let second = device.transfer_ends(1 << 20).unwrap();
        assert!(first >= start + Duration::from_millis(1005));
        assert!(second >= first + Duration::from_millis(999), "the channel was taken");
        assert!(device.flush_ends().unwrap() >= start + Duration::from_secs(1));
        assert!(device.flush_ends().unwrap() < second, "flushes do not wait for the channel");
    }
}
