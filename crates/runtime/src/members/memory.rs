//! A member in memory, with a hook to make it fail.

use std::fmt;
use std::io;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};

use raidus_engine::MemberError;
use raidus_units::{Sector, Sectors};

use super::sectors_of;
use crate::memory::{Region, usize_of};

/// A device in memory: sparse, zero-filled, gone when dropped.
pub struct MemoryDevice {
    region: Region,
    size: Sectors,
    hooked: AtomicBool,
    hook: RwLock<Option<Box<Fault>>>,
}

/// Decides whether an I/O fails.
pub type Fault = dyn Fn(MemoryOp) -> Result<(), MemberError> + Send + Sync;

/// An I/O about to be done, as the hook sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryOp {
    /// A read.
    Read(Sector, Sectors),
    /// A write of data, metadata or zeroes.
    Write(Sector, Sectors),
    /// A flush.
    Flush,
}

impl MemoryDevice {
    /// A device of `size`.
    pub fn new(size: Sectors) -> io::Result<MemoryDevice> {
        let region = Region::map(usize_of(size.bytes()), false)?;
        Ok(MemoryDevice { region, size, hooked: AtomicBool::new(false), hook: RwLock::new(None) })
    }

    /// Its size.
    pub fn size(&self) -> Sectors {
        self.size
    }

    /// Takes all of its memory now instead of when it is first written, which takes far longer than a write. A wish only.
    pub fn populate(&self) {
        let (start, len) = (self.region.as_ptr(), self.region.len());
        // SAFETY: the range is the device's mapping; populating it changes no content.
        let _ = unsafe { rustix::mm::madvise(start.cast(), len, rustix::mm::Advice::LinuxPopulateWrite) };
    }

    /// From now on `hook` decides whether an I/O of a running array fails. It runs on the reactors' threads.
    pub fn on_io(&self, hook: impl Fn(MemoryOp) -> Result<(), MemberError> + Send + Sync + 'static) {
        *self.hook.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(Box::new(hook));
        self.hooked.store(true, Ordering::Release);
    }

    /// Takes the hook away.
    pub fn heal(&self) {
        self.hooked.store(false, Ordering::Release);
        *self.hook.write().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
    }

    /// Copies `buf.len()` bytes at byte `offset` out.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let from = self.at(offset, buf.len() as u64)?;
        // SAFETY: `at` checked that the range lies in the mapping. As on a disk, what a read returns that races with a write to
        // the same bytes is undefined content, never undefined addresses.
        unsafe { std::ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len()) };
        Ok(())
    }

    /// Copies `buf` to byte `offset`.
    pub fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let to = self.at(offset, buf.len() as u64)?;
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(buf.as_ptr(), to, buf.len()) };
        Ok(())
    }

    /// Zeroes a byte range, giving whole pages back.
    pub(crate) fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        let start = self.at(offset, len)?;
        let page = crate::memory::PAGE;
        let len = usize_of(len);
        let head = start.align_offset(page).min(len);
        let body = (len - head) / page * page;
        // SAFETY: head + body + tail are `len` bytes from `start`, which `at` checked. Giving pages of a private anonymous
        // mapping back makes them read as zeroes.
        unsafe {
            start.write_bytes(0, head);
            if body > 0 {
                let middle = start.add(head);
                if rustix::mm::madvise(middle.cast(), body, rustix::mm::Advice::LinuxDontNeed).is_err() {
                    middle.write_bytes(0, body);
                }
            }
            start.add(head + body).write_bytes(0, len - head - body);
        }
        Ok(())
    }

    /// What the hook says to an I/O.
    pub(crate) fn verdict(&self, op: MemoryOp) -> Result<(), MemberError> {
        if !self.hooked.load(Ordering::Acquire) {
            return Ok(());
        }
        let hook = self.hook.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        hook.as_ref().map_or(Ok(()), |hook| hook(op))
    }

    /// What the hook says to a transfer of bytes.
    pub(crate) fn verdict_of_transfer(&self, write: bool, offset: u64, len: u64) -> Result<(), MemberError> {
        let (sector, sectors) = sectors_of(offset, len);
        self.verdict(if write { MemoryOp::Write(sector, sectors) } else { MemoryOp::Read(sector, sectors) })
    }

    fn at(&self, offset: u64, len: u64) -> io::Result<*mut u8> {
        match offset.checked_add(len) {
            // SAFETY: the end, and so the start, lies in the mapping.
            Some(end) if end <= self.size.bytes() => Ok(unsafe { self.region.as_ptr().add(usize_of(offset)) }),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryDevice").field("size", &self.size).finish_non_exhaustive()
    }
}
