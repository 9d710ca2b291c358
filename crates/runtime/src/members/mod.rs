//! Member devices: what an array's bytes lie on.
//!
//! A member is an image file, a block device, memory (tests, benchmarks) or a model of a device (benchmarks), each optionally under a
//! copy-on-write [overlay](MemberDevice::with_overlay) that keeps every write away from it. Opening takes the locks that
//! keep two users from writing to one device; they last as long as the [`MemberDevice`].
//!
//! The blocking methods here serve assembly and creation, before a reactor runs; a running array does its I/O through the
//! reactors' rings.

mod error;
mod file;
mod holders;
mod memory;
mod modelled;
mod overlay;
#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use raidus_units::{Sector, Sectors};

pub use error::{MemberOpenError, check_distinct};
pub use memory::{Fault, MemoryDevice, MemoryOp};
pub use modelled::{Kept, ModelledDevice, Timing};

pub(crate) use file::FileDevice;
pub(crate) use overlay::Overlay;

/// A member device, open and locked.
#[derive(Debug)]
pub struct MemberDevice {
    name: PathBuf,
    pub(crate) base: Backend,
    pub(crate) overlay: Option<Overlay>,
    size: Sectors,
    block: u32,
    writable: bool,
    identity: Option<Identity>,
}

/// Where bytes are.
#[derive(Debug)]
pub(crate) enum Backend {
    File(FileDevice),
    Memory(Arc<MemoryDevice>),
    Modelled(Arc<ModelledDevice>),
}

/// What makes two paths the same device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// A block device's major and minor number.
    Device(u32, u32),
    /// A file's file system and inode number.
    Inode(u64, u64),
}

/// How to open a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenMode {
    /// Whether it will be written.
    pub access: Access,
    /// Bypass the page cache where the device can (O_DIRECT).
    pub direct: bool,
    /// Open even if something else uses the device, for looking at it. Only with [`Access::ReadOnly`].
    pub ignore_use: bool,
}

/// Whether a member will be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading and writing; nobody else may use the device.
    ReadWrite,
    /// Reading only; other readers may too.
    ReadOnly,
}

impl OpenMode {
    /// For running an array that is written.
    pub const READ_WRITE: OpenMode = OpenMode { access: Access::ReadWrite, direct: true, ignore_use: false };
    /// For running an array read-only, or below overlays.
    pub const READ_ONLY: OpenMode = OpenMode { access: Access::ReadOnly, direct: true, ignore_use: false };
    /// For looking at superblocks, whoever uses the device.
    pub const EXAMINE: OpenMode = OpenMode { access: Access::ReadOnly, direct: false, ignore_use: true };
}

/// Where an overlay keeps what is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverlayStore {
    /// In memory, as much of it as is written.
    Memory,
    /// In a nameless sparse file in this directory.
    Directory(PathBuf),
}

impl MemberDevice {
    /// Opens an image file or block device.
    pub fn open(path: &Path, mode: OpenMode) -> Result<MemberDevice, MemberOpenError> {
        let (file, facts) = FileDevice::open(path, mode)?;
        Ok(MemberDevice {
            name: path.to_owned(),
            base: Backend::File(file),
            overlay: None,
            size: facts.size,
            block: facts.block,
            writable: mode.access == Access::ReadWrite,
            identity: Some(facts.identity),
        })
    }

    /// A member in memory. The device can be kept to look at its content and to make it fail.
    pub fn memory(name: &str, device: Arc<MemoryDevice>) -> MemberDevice {
        let size = device.size();
        MemberDevice {
            name: name.into(),
            base: Backend::Memory(device),
            overlay: None,
            size,
            block: 512,
            writable: true,
            identity: None,
        }
    }

    /// A member that only behaves like a device.
    pub fn modelled(name: &str, device: Arc<ModelledDevice>) -> MemberDevice {
        MemberDevice {
            name: name.into(),
            size: device.size(),
            base: Backend::Modelled(device),
            overlay: None,
            block: 512,
            writable: true,
            identity: None,
        }
    }

    /// The same member, with every write kept in `store` instead. What was written is gone when the member is dropped.
    pub fn with_overlay(mut self, store: &OverlayStore) -> Result<MemberDevice, MemberOpenError> {
        self.overlay = Some(Overlay::new(&self.name, self.size, store)?);
        self.writable = true;
        Ok(self)
    }

    /// The same member with larger logical blocks than it has: a stand-in, in tests, for devices that have them.
    #[must_use]
    pub fn with_block(mut self, bytes: u32) -> MemberDevice {
        self.block = bytes;
        self
    }

    /// The path or name it was opened by.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// Its size, in whole logical blocks.
    pub fn size(&self) -> Sectors {
        self.size
    }

    /// Its logical block size in bytes. Members of one array are accessed in the largest of theirs.
    pub fn block(&self) -> u32 {
        self.block
    }

    /// Whether writes are possible.
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Major and minor number of a block device.
    pub fn device_number(&self) -> Option<(u32, u32)> {
        match self.identity {
            Some(Identity::Device(major, minor)) => Some((major, minor)),
            _ => None,
        }
    }

    /// Whether the path leads to this device.
    pub fn is_at(&self, path: &Path) -> bool {
        self.identity.is_some() && FileDevice::identity_of(path) == self.identity
    }

    /// Fills `buf` from byte `offset` on. Blocks.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check(offset, buf.len())?;
        let Some(overlay) = &self.overlay else { return self.base.read_at(offset, buf) };
        let mut at = 0;
        for run in overlay.runs(offset, buf.len() as u64) {
            let place = if run.in_store { &overlay.store } else { &self.base };
            let end = at + crate::memory::usize_of(run.len);
            place.read_at(run.offset, &mut buf[at..end])?;
            at = end;
        }
        Ok(())
    }

    /// Writes `buf` at byte `offset`. Blocks; not durable before [`sync`](Self::sync). Under an overlay, whole sectors only.
    pub fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.check(offset, buf.len())?;
        if !self.writable {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        let Some(overlay) = &self.overlay else { return self.base.write_at(offset, buf) };
        if !(offset | buf.len() as u64).is_multiple_of(512) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        overlay.store.write_at(offset, buf)?;
        overlay.mark(offset, buf.len() as u64);
        Ok(())
    }

    /// Makes everything written durable. Blocks.
    pub fn sync(&self) -> io::Result<()> {
        match (&self.overlay, &self.base) {
            (None, Backend::File(file)) if self.writable => file.sync(),
            _ => Ok(()),
        }
    }

    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.size.bytes() => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "past the end of the member")),
        }
    }
}

impl Backend {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        match self {
            Backend::File(file) => file.read_at(offset, buf),
            Backend::Memory(memory) => memory.read(offset, buf),
            Backend::Modelled(device) => {
                // What is not kept has some content, always the same.
                buf.fill(0);
                device.read(offset, buf)
            }
        }
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        match self {
            Backend::File(file) => file.write_at(offset, buf),
            Backend::Memory(memory) => memory.write(offset, buf),
            Backend::Modelled(device) => device.write(offset, buf),
        }
    }
}

/// The device sectors `len` bytes at `offset`, which are whole ones.
pub(crate) fn sectors_of(offset: u64, len: u64) -> (Sector, Sectors) {
    (Sector(offset / 512), Sectors(len / 512))
}
