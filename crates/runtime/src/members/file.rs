//! Image files and block devices.
//!
//! Each is opened twice: past the page cache (O_DIRECT), where the file system can, and through it. The direct one carries
//! everything that is aligned as it demands; the rest (metadata of odd length, files on file systems without O_DIRECT) takes
//! the other, which the kernel keeps coherent with it, completing a device's blocks that are written in part.
//!
//! Coherent, except for a write through the cache that completes a block from the device while a direct write to that block is under
//! way: the page may go out with what was there before. So writes to one place must never take both ways. On devices with blocks
//! larger than a sector they do not because clients are held to that size; a file may demand more of direct I/O than its users
//! know of, and is then written through the cache only.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use raidus_units::Sectors;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, StatxFlags};
use rustix::io::Errno;

use super::error::{MIN_BYTES, MemberOpenError};
use super::{Access, Identity, OpenMode, holders};

/// An open image file or block device.
#[derive(Debug)]
pub(crate) struct FileDevice {
    cached: File,
    direct: Option<Direct>,
}

/// A descriptor that bypasses the page cache.
#[derive(Debug)]
struct Direct {
    fd: OwnedFd,
    memory_align: u64,
    offset_align: u64,
    /// Whatever is written in whole logical blocks is aligned as direct I/O demands.
    takes_writes: bool,
}

/// What was found out on opening.
pub(crate) struct Facts {
    pub(crate) size: Sectors,
    pub(crate) block: u32,
    pub(crate) identity: Identity,
}

impl FileDevice {
    /// Opens and locks.
    pub(crate) fn open(path: &Path, mode: OpenMode) -> Result<(FileDevice, Facts), MemberOpenError> {
        let stat = rustix::fs::stat(path).map_err(|e| MemberOpenError::of_open(path, "reading", e))?;
        let block_device = is_block_device(path, &stat)?;
        let identity = identity(&stat, block_device);
        if !mode.ignore_use {
            refuse_if_used(path, identity, mode.access)?;
        }
        let cached = open_cached(path, mode, block_device, identity)?;
        let opened = rustix::fs::fstat(&cached).map_err(|e| MemberOpenError::of_open(path, "reading", e))?;
        if self::identity(&opened, block_device) != identity {
            let source = io::Error::other("replaced by another file while it was opened");
            return Err(MemberOpenError::Io { path: path.to_owned(), source });
        }
        if !mode.ignore_use {
            lock(path, &cached, mode.access, identity)?;
        }
        let block = if block_device {
            rustix::fs::ioctl_blksszget(&cached).map_err(|e| MemberOpenError::of_open(path, "reading", e))?
        } else {
            512
        };
        let direct = if mode.direct { open_direct(path, mode.access, identity, block_device) } else { None };
        let direct = direct.map(|d| Direct { takes_writes: d.offset_align <= u64::from(block), ..d });
        let bytes = size_of(&cached, &opened, block_device)
            .map_err(|source| MemberOpenError::Io { path: path.to_owned(), source })?;
        if bytes < MIN_BYTES {
            return Err(MemberOpenError::TooSmall { path: path.to_owned(), bytes });
        }
        let size = Sectors::from_bytes_floor(bytes - bytes % u64::from(block.max(512)));
        Ok((FileDevice { cached, direct }, Facts { size, block, identity }))
    }

    /// What is at the path, if it can be a member.
    pub(crate) fn identity_of(path: &Path) -> Option<Identity> {
        let stat = rustix::fs::stat(path).ok()?;
        Some(identity(&stat, is_block_device(path, &stat).ok()?))
    }

    /// A nameless sparse file of `size` in `directory`.
    pub(crate) fn nameless(directory: &Path, size: Sectors) -> Result<FileDevice, MemberOpenError> {
        let fail = |e| MemberOpenError::of_open(directory, "writing", e);
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let fd = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR).map_err(fail)?;
        rustix::fs::ftruncate(&fd, size.bytes()).map_err(fail)?;
        Ok(FileDevice { cached: File::from(fd), direct: None })
    }

    /// The descriptor through the page cache.
    pub(crate) fn cached_fd(&self) -> RawFd {
        self.cached.as_raw_fd()
    }

    /// The descriptor past the page cache, if there is one.
    pub(crate) fn direct_fd(&self) -> Option<RawFd> {
        self.direct.as_ref().map(|d| d.fd.as_raw_fd())
    }

    /// Whether the direct descriptor takes this I/O.
    pub(crate) fn takes_direct(&self, write: bool, offset: u64, addr: u64, len: u64) -> bool {
        self.direct.as_ref().is_some_and(|d| {
            (!write || d.takes_writes)
                && (offset | len).is_multiple_of(d.offset_align)
                && addr.is_multiple_of(d.memory_align)
        })
    }

    pub(crate) fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.cached.read_exact_at(buf, offset)
    }

    pub(crate) fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.cached.write_all_at(buf, offset)
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.cached.sync_data()
    }
}

impl Drop for FileDevice {
    /// Gives the lock up at once, even if something else (a child process, a ring being torn down) keeps the description open.
    fn drop(&mut self) {
        let _ = set_lock(&self.cached, libc::F_UNLCK);
    }
}

fn is_block_device(path: &Path, stat: &Stat) -> Result<bool, MemberOpenError> {
    let what = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(false),
        FileType::BlockDevice => return Ok(true),
        FileType::Directory => "a directory",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "neither a file nor a device",
    };
    Err(MemberOpenError::NotADevice { path: path.to_owned(), what })
}

fn identity(stat: &Stat, block_device: bool) -> Identity {
    if block_device {
        Identity::Device(rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev))
    } else {
        Identity::Inode(stat.st_dev, stat.st_ino)
    }
}

/// What the kernel would let us do although it harms: write below a loop device, read below a mounted file system that changes.
fn refuse_if_used(path: &Path, identity: Identity, access: Access) -> Result<(), MemberOpenError> {
    let users = holders::kernel_users(identity, access);
    if users.is_empty() {
        return Ok(());
    }
    Err(MemberOpenError::InUse { path: path.to_owned(), by: users.join(", ") })
}

fn open_cached(path: &Path, mode: OpenMode, block_device: bool, identity: Identity) -> Result<File, MemberOpenError> {
    let (flags, what) = match mode.access {
        // O_EXCL on a block device claims it: the kernel refuses mounts, swap, md and other claims meanwhile.
        Access::ReadWrite if block_device => (OFlags::RDWR | OFlags::EXCL, "writing"),
        Access::ReadWrite => (OFlags::RDWR, "writing"),
        Access::ReadOnly => (OFlags::RDONLY, "reading"),
    };
    match rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()) {
        Ok(fd) => Ok(File::from(fd)),
        Err(Errno::BUSY) => {
            let by = holders::describe(identity, "the kernel (mounted, swap, or part of another array or volume)");
            Err(MemberOpenError::InUse { path: path.to_owned(), by })
        }
        Err(e) => Err(MemberOpenError::of_open(path, what, e)),
    }
}

/// How long the lock of a process that is gone may stay.
const AFTERLIFE: Duration = Duration::from_secs(5);

/// An open-file-description lock on the whole file: exclusive for writers, shared for readers. It conflicts with the ones QEMU
/// takes on its images, too.
///
/// Rings hold files, and the kernel takes rings down at its leisure: after an array's process was killed, nobody has its members
/// open, yet they stay locked for a moment. That is waited for.
fn lock(path: &Path, file: &File, access: Access, identity: Identity) -> Result<(), MemberOpenError> {
    let kind = match access {
        Access::ReadWrite => libc::F_WRLCK,
        Access::ReadOnly => libc::F_RDLCK,
    };
    let start = Instant::now();
    let source = loop {
        let Err(source) = set_lock(file, kind) else { return Ok(()) };
        let locked = matches!(source.raw_os_error(), Some(libc::EAGAIN | libc::EACCES));
        if !locked || start.elapsed() > AFTERLIFE || holders::others_have_it_open(identity) {
            break source;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    match source.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => {
            let by = holders::describe(identity, "another process");
            Err(MemberOpenError::InUse { path: path.to_owned(), by })
        }
        // File systems without locks exist; the kernel's own claims still protect block devices.
        Some(libc::EINVAL | libc::ENOLCK | libc::EOPNOTSUPP | libc::ENOSYS) => Ok(()),
        _ => Err(MemberOpenError::Io { path: path.to_owned(), source }),
    }
}

fn set_lock(file: &File, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: `flock` is plain data, for which all zeroes is a valid value.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the descriptor is open, and the kernel only reads `range`, which outlives the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens past the page cache; `None` where that is not possible.
fn open_direct(path: &Path, access: Access, identity: Identity, block_device: bool) -> Option<Direct> {
    let flags = match access {
        Access::ReadWrite => OFlags::RDWR,
        Access::ReadOnly => OFlags::RDONLY,
    };
    let fd = rustix::fs::open(path, flags | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).ok()?;
    if self::identity(&rustix::fs::fstat(&fd).ok()?, block_device) != identity {
        return None;
    }
    let (memory_align, offset_align) = match direct_alignment(&fd) {
        Some((_, 0)) => return None,
        Some((memory, offset)) => (u64::from(memory.max(1)), u64::from(offset)),
        // Kernels before 6.1 do not say. A block device demands its logical blocks; for files a trial read decides.
        None if block_device => {
            let block = rustix::fs::ioctl_blksszget(&fd).ok()?;
            (u64::from(block), u64::from(block))
        }
        None => {
            let align = [512, 4096].into_iter().find(|a| trial_read(&fd, *a))?;
            (align, align)
        }
    };
    Some(Direct { fd, memory_align, offset_align: offset_align.max(512), takes_writes: false })
}

/// Memory and offset alignment for direct I/O as the file system states them; `None` if it does not.
fn direct_alignment(fd: &OwnedFd) -> Option<(u32, u32)> {
    let wanted = StatxFlags::from_bits_retain(libc::STATX_DIOALIGN);
    let statx = rustix::fs::statx(fd.as_fd(), c"", AtFlags::EMPTY_PATH, wanted).ok()?;
    if statx.stx_mask & libc::STATX_DIOALIGN == 0 {
        return None;
    }
    Some((statx.stx_dio_mem_align, statx.stx_dio_offset_align))
}

fn trial_read(fd: &OwnedFd, align: u64) -> bool {
    let Ok(mut buffer) = crate::memory::Buffer::alone(crate::memory::usize_of(align)) else { return false };
    rustix::io::pread(fd, &mut buffer[..], 0).is_ok()
}

fn size_of(file: &File, stat: &Stat, block_device: bool) -> io::Result<u64> {
    if block_device {
        Ok(rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))?)
    } else {
        u64::try_from(stat.st_size).map_err(|_| io::ErrorKind::InvalidData.into())
    }
}
