//! The kernel's requests.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{FallocateFlags, OFlags};

use crate::data::Data;
use crate::tree::{Node, Tree, WriteError};

/// Longest read or write of one request: the most the kernel allows by default.
const REQUEST_BYTES: u32 = 1 << 20;

/// Most asynchronous requests the kernel has under way.
const REQUESTS_MAX: u16 = 256;

/// Names and attributes of what stays never change, so the kernel may keep them. Members' files come and go.
const KEEP: Duration = Duration::from_secs(3600);

/// The mounted files.
pub struct ArrayFs {
    tree: Tree,
    data: Data,
    /// Texts of the text files that are open, by handle.
    texts: Mutex<BTreeMap<u64, Arc<str>>>,
    opened: AtomicU64,
}

impl ArrayFs {
    pub fn new(tree: Tree, data: Data) -> ArrayFs {
        ArrayFs { tree, data, texts: Mutex::default(), opened: AtomicU64::new(1) }
    }

    fn texts(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<str>>> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, node: Node) -> Duration {
        if self.tree.is_passing(node) { Duration::ZERO } else { KEEP }
    }

    fn is_array(&self, ino: INodeNo) -> bool {
        ino == Node::Array.number()
    }

    /// The kernel must not cache: the array has other clients too. Writers need no turns: they have them at the array.
    fn open_array(&self, flags: OpenFlags, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY && !self.tree.writable() {
            return reply.error(Errno::EROFS);
        }
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(0), flags);
    }

    /// A reader sees one text from start to end, however it reads.
    fn open_text(&self, node: Node, flags: OpenFlags, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY && !self.tree.is_settable(node) {
            return reply.error(Errno::EACCES);
        }
        let Some(text) = self.tree.text(node) else { return reply.error(Errno::ENODEV) };
        let handle = self.opened.fetch_add(1, Ordering::Relaxed);
        self.texts().insert(handle, text.into());
        reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH);
    }

    /// Each write sets the attribute, as in sysfs. That may take as long as the array takes, so it has a thread of its own.
    fn write_text(&self, ino: INodeNo, bytes: &[u8], reply: ReplyWrite) {
        let node = self.tree.node(ino).filter(|node| self.tree.is_settable(*node));
        let Some(path) = node.and_then(|node| self.tree.attribute(node)) else { return reply.error(Errno::EBADF) };
        let Ok(value) = std::str::from_utf8(bytes).map(str::to_owned) else { return reply.error(Errno::EINVAL) };
        let (texts, written) = (self.tree.texts(), bytes.len() as u32);
        let set = move || match texts.write(&path, &value) {
            Ok(()) => reply.written(written),
            Err(error) => reply.error(errno(error)),
        };
        // A reply that is dropped says EIO.
        let _ = std::thread::Builder::new().name("raidus-attribute".to_owned()).spawn(set);
    }

    fn read_text(&self, handle: FileHandle, offset: u64, size: u32, reply: ReplyData) {
        let text = self.texts().get(&handle.0).cloned();
        let Some(text) = text else { return reply.error(Errno::EBADF) };
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        let to = from.saturating_add(size as usize).min(text.len());
        reply.data(&text.as_bytes()[from..to]);
    }
}

impl Filesystem for ArrayFs {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Kernels that have less of it say how much; the default stands then.
        let _ = config.set_max_write(REQUEST_BYTES);
        let _ = config.set_max_background(REQUESTS_MAX);
        // Direct requests of one process (a loop device's) in parallel.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.tree.node(parent).and_then(|parent| self.tree.find(parent, name)) {
            Some(node) => reply.entry(&self.keep(node), &self.tree.attr(node), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.tree.node(ino) {
            Some(node) => reply.attr(&self.keep(node), &self.tree.attr(node)),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// Like a block device: truncating to nothing, which comes with `> FILE`, changes nothing; other sizes are refused. Times are
    /// not kept.
    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let Some(node) = self.tree.node(ino) else { return reply.error(Errno::ENOENT) };
        let attr = self.tree.attr(node);
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        match size {
            None => reply.attr(&self.keep(node), &attr),
            Some(0) if self.tree.is_settable(node) => reply.attr(&self.keep(node), &attr),
            Some(_) if node != Node::Array => reply.error(Errno::EACCES),
            Some(_) if !self.tree.writable() => reply.error(Errno::EROFS),
            Some(size) if size == 0 || size == attr.size => reply.attr(&KEEP, &attr),
            Some(_) => reply.error(Errno::EINVAL),
        }
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let Some((node, children)) = self.tree.node(ino).and_then(|n| Some((n, self.tree.children(n)?))) else {
            return reply.error(Errno::ENOTDIR);
        };
        let up = if self.tree.is_passing(node) { Node::Md } else { Node::Root };
        let entries = [(".".to_owned(), node), ("..".to_owned(), up)].into_iter().chain(children);
        for (next, (name, node)) in (1..).zip(entries).skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            let kind: FileType = self.tree.attr(node).kind;
            if reply.add(node.number(), next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.tree.node(ino) {
            Some(Node::Array) => self.open_array(flags, reply),
            Some(node) if self.tree.children(node).is_some() => reply.error(Errno::EISDIR),
            Some(node) => self.open_text(node, flags, reply),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.texts().remove(&handle.0);
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if self.is_array(ino) {
            self.data.read(offset, size.into(), reply);
        } else {
            self.read_text(handle, offset, size, reply);
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if self.is_array(ino) {
            self.data.write(offset, bytes, is_durable(flags), reply);
        } else {
            self.write_text(ino, bytes, reply);
        }
    }

    /// Closing makes nothing durable, as with block devices; the kernel does not ask again.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        if self.is_array(ino) { self.data.flush(reply) } else { reply.ok() }
    }

    fn fallocate(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, len: u64, mode: i32, reply: ReplyEmpty) {
        if !self.is_array(ino) {
            return reply.error(Errno::EBADF);
        }
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let grows = offset.checked_add(len).is_none_or(|end| end > self.data.size());
        if grows && !mode.contains(FallocateFlags::KEEP_SIZE) {
            return reply.error(Errno::ENOSPC);
        }
        match mode - FallocateFlags::KEEP_SIZE {
            FallocateFlags::PUNCH_HOLE => self.data.zero(offset, len, true, reply),
            FallocateFlags::ZERO_RANGE => self.data.zero(offset, len, false, reply),
            // Every byte of an array has its place.
            plain if plain.is_empty() => reply.ok(),
            _ => reply.error(Errno::EOPNOTSUPP),
        }
    }

    /// There are no holes: all is data.
    fn lseek(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        let Some(node) = self.tree.node(ino) else { return reply.error(Errno::ENOENT) };
        let size = self.tree.attr(node).size.cast_signed();
        match whence {
            SEEK_DATA | SEEK_HOLE if offset < 0 || offset >= size => reply.error(Errno::ENXIO),
            SEEK_DATA => reply.offset(offset),
            SEEK_HOLE => reply.offset(size),
            _ => reply.error(Errno::EINVAL),
        }
    }

    /// Full, like any device. Loop devices take their granularity for discards from the block size.
    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let block = self.tree.attr(Node::Array).blksize;
        let blocks = self.data.size() / u64::from(block);
        reply.statfs(blocks, 0, 0, self.tree.count(), 0, block, 255, block);
    }
}

fn errno(error: WriteError) -> Errno {
    match error {
        WriteError::Invalid => Errno::EINVAL,
        WriteError::Busy => Errno::EBUSY,
        WriteError::ReadOnly => Errno::EROFS,
        WriteError::Stopped => Errno::ENODEV,
        WriteError::Failed => Errno::EIO,
    }
}

/// Whether writes have to be durable before they are replied to. O_SYNC includes O_DSYNC.
fn is_durable(flags: OpenFlags) -> bool {
    OFlags::from_bits_retain(flags.0.cast_unsigned()).contains(OFlags::DSYNC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_opened_for_synchronous_writing_are_written_durably() {
        let flags = |flags: OFlags| OpenFlags(flags.bits().cast_signed());
        assert!(is_durable(flags(OFlags::RDWR | OFlags::DSYNC)));
        assert!(is_durable(flags(OFlags::WRONLY | OFlags::SYNC)));
        assert!(!is_durable(flags(OFlags::RDWR | OFlags::DIRECT)));
    }
}
