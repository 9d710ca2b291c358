//! One reactor's io_uring: submission with back-pressure, completions, fixed files and registered memory.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use rustix::event::{PollFd, PollFlags};

use crate::counters::Tally;

/// Submissions gathered before the kernel is called, and completions the ring holds (the kernel keeps what overflows). Smaller ones
/// where the limit on locked memory, which counts all rings of a user, is low.
const SIZES: [(u32, u32); 3] = [(512, 4096), (128, 512), (32, 64)];
/// The kernel's limits of registered buffers: bytes of each.
const REGISTERED_BYTES_MAX: usize = 1 << 30;

/// Why a ring cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// Switched off or filtered.
    #[error(
        "this system does not allow io_uring ({source}); set the sysctl kernel.io_uring_disabled to 0, or allow the \
         io_uring_* system calls in the container's seccomp profile"
    )]
    Forbidden {
        /// What the kernel said.
        source: io::Error,
    },
    /// Too old.
    #[error("this kernel's io_uring lacks what raidus needs; Linux 5.15 or newer is required")]
    TooOld,
    /// The rings do not fit into what the user may lock.
    #[error(
        "the limit on locked memory is too low for io_uring; raise it with `ulimit -l` (8192 is plenty), or LimitMEMLOCK= in a systemd unit"
    )]
    LockedMemory,
    /// Anything else.
    #[error("cannot set up io_uring: {source}")]
    Io {
        /// What the kernel said.
        source: io::Error,
    },
}

/// A ring, used by the thread that made it.
pub(crate) struct Ring {
    uring: IoUring,
    /// Entries that found the submission queue full while the kernel took none.
    backlog: VecDeque<Entry>,
    fixed_files: bool,
    /// Sleep in poll(2), not in the ring.
    polls: bool,
    /// Registered memory: (start, end), ascending; the place is the index.
    registered: Vec<(u64, u64, u16)>,
    /// Submissions without a completion yet.
    pub(crate) in_flight: usize,
}

/// What an operation acts on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// The descriptor.
    pub(crate) fd: RawFd,
    /// Its place in the table of fixed files.
    pub(crate) fixed: u32,
}

impl Ring {
    pub(crate) fn new() -> Result<Ring, RingError> {
        Ring::build(false)
    }

    /// A ring whose sleeps are calls of poll(2).
    pub(crate) fn polled() -> Result<Ring, RingError> {
        Ring::build(true)
    }

    fn build(polls: bool) -> Result<Ring, RingError> {
        let uring = build(polls)?;
        if !uring.params().is_feature_ext_arg() || !uring.params().is_feature_nodrop() {
            return Err(RingError::TooOld);
        }
        Ok(Ring { uring, backlog: VecDeque::new(), fixed_files: false, polls, registered: Vec::new(), in_flight: 0 })
    }

    /// Registers descriptors, −1 for none. Without the kernel's consent they are used as they are.
    pub(crate) fn register_files(&mut self, fds: &[RawFd]) {
        self.fixed_files = fds.iter().any(|fd| *fd >= 0) && self.uring.submitter().register_files(fds).is_ok();
    }

    /// Changes places of the table. Without a table there is nothing to do. `false` if the kernel does not consent.
    pub(crate) fn update_files(&mut self, first: u32, fds: &[RawFd]) -> bool {
        !self.fixed_files || self.uring.submitter().register_files_update(first, fds).is_ok()
    }

    /// Gives the descriptors back, so that closing them is the end of their locks and claims: the kernel tears a dropped ring down
    /// later, at its leisure.
    pub(crate) fn unregister_files(&mut self) {
        if std::mem::take(&mut self.fixed_files) {
            // What could fail is only that there are none.
            let _ = self.uring.submitter().unregister_files();
        }
    }

    /// Registers memory (start, length). Where the kernel does not consent, it is used as it is.
    ///
    /// # Safety
    /// The ranges stay mapped until the ring is dropped.
    pub(crate) unsafe fn register_memory(&mut self, ranges: &[(u64, usize)]) {
        let ranges: Vec<_> = ranges.iter().filter(|(_, len)| *len > 0 && *len <= REGISTERED_BYTES_MAX).collect();
        let iovecs: Vec<libc::iovec> =
            ranges.iter().map(|(base, len)| libc::iovec { iov_base: *base as *mut _, iov_len: *len }).collect();
        // SAFETY: the caller keeps the ranges mapped.
        if iovecs.is_empty() || unsafe { self.uring.submitter().register_buffers(&iovecs) }.is_err() {
            return;
        }
        self.registered = (0u16..).zip(&ranges).map(|(i, (base, len))| (*base, *base + *len as u64, i)).collect();
        self.registered.sort_unstable();
    }

    fn registered_index(&self, addr: u64, len: u64) -> Option<u16> {
        let after = self.registered.partition_point(|(start, ..)| *start <= addr);
        let (_, end, index) = self.registered[..after].last()?;
        (addr + len <= *end).then_some(*index)
    }

    /// Queues a read or write of memory.
    ///
    /// # Safety
    /// `len` bytes at `addr` stay valid, and unchanged by others, until the completion with `user_data` was seen.
    pub(crate) unsafe fn transfer(&mut self, target: Target, transfer: &Transfer, user_data: u64, tally: &mut Tally) {
        let Transfer { write, offset, addr, len, sync } = *transfer;
        let rw_flags = if sync { libc::RWF_DSYNC } else { 0 };
        let fd = self.fd(target);
        let pointer = addr as *mut u8;
        let index = self.registered_index(addr, u64::from(len));
        let entry = match (write, index) {
            (false, None) => opcode::Read::new(fd, pointer, len).offset(offset).build(),
            (false, Some(i)) => opcode::ReadFixed::new(fd, pointer, len, i).offset(offset).build(),
            (true, None) => opcode::Write::new(fd, pointer, len).offset(offset).rw_flags(rw_flags).build(),
            (true, Some(i)) => opcode::WriteFixed::new(fd, pointer, len, i).offset(offset).rw_flags(rw_flags).build(),
        };
        // SAFETY: the caller's promise.
        unsafe { self.push(self.fixed(entry).user_data(user_data), tally) };
    }

    /// Queues an fdatasync.
    pub(crate) fn sync(&mut self, target: Target, user_data: u64, tally: &mut Tally) {
        let entry = opcode::Fsync::new(self.fd(target)).flags(io_uring::types::FsyncFlags::DATASYNC).build();
        // SAFETY: the operation names no memory.
        unsafe { self.push(self.fixed(entry).user_data(user_data), tally) };
    }

    /// Queues a fallocate.
    pub(crate) fn allocate(&mut self, target: Target, mode: i32, range: (u64, u64), user_data: u64, tally: &mut Tally) {
        let entry = opcode::Fallocate::new(self.fd(target), range.1).offset(range.0).mode(mode).build();
        // SAFETY: the operation names no memory.
        unsafe { self.push(self.fixed(entry).user_data(user_data), tally) };
    }

    fn fd(&self, target: Target) -> Fd {
        Fd(if self.fixed_files { target.fixed as RawFd } else { target.fd })
    }

    fn fixed(&self, entry: Entry) -> Entry {
        if self.fixed_files { entry.flags(Flags::FIXED_FILE) } else { entry }
    }

    /// Queues an operation.
    ///
    /// # Safety
    /// The memory it names stays valid until its completion was seen.
    pub(crate) unsafe fn push(&mut self, entry: Entry, tally: &mut Tally) {
        self.in_flight += 1;
        if !self.backlog.is_empty() {
            return self.backlog.push_back(entry);
        }
        // SAFETY: the caller's promise.
        if unsafe { self.uring.submission().push(&entry) }.is_ok() {
            return;
        }
        self.backlog.push_back(entry);
        self.flush(tally);
    }

    /// Hands everything queued to the kernel, without waiting.
    pub(crate) fn flush(&mut self, tally: &mut Tally) {
        loop {
            self.refill();
            let queued = self.uring.submission().len();
            if queued == 0 && !self.uring.submission().taskrun() && !self.uring.submission().cq_overflow() {
                return;
            }
            tally.syscalls += 1;
            match self.uring.submit() {
                Ok(taken) if taken > 0 && !self.backlog.is_empty() => {}
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
                // EBUSY and EAGAIN: completions have to be taken first. What is queued stays queued.
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Hands everything queued to the kernel and sleeps until something completes, at most for `timeout`.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>, tally: &mut Tally) {
        if self.polls {
            return self.poll(timeout, tally);
        }
        self.refill();
        tally.syscalls += 1;
        let result = match timeout {
            None => self.uring.submit_and_wait(1),
            Some(timeout) => {
                let timespec = Timespec::from(timeout);
                self.uring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timespec))
            }
        };
        // ETIME, EINTR, EBUSY: the next turn looks at what there is.
        let _ = result;
    }

    /// As [`wait`](Self::wait), in another system call.
    fn poll(&mut self, timeout: Option<Duration>, tally: &mut Tally) {
        self.flush(tally);
        tally.syscalls += 1;
        let timeout = timeout.and_then(|timeout| rustix::fs::Timespec::try_from(timeout).ok());
        // SAFETY: the ring owns the descriptor and outlives the borrow.
        let ring = unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) };
        // Whatever ends it: the next turn looks at what there is.
        let _ = rustix::event::poll(&mut [PollFd::from_borrowed_fd(ring, PollFlags::IN)], timeout.as_ref());
    }

    fn refill(&mut self) {
        while let Some(entry) = self.backlog.front() {
            // SAFETY: `push` had the caller's promise for the entry.
            if unsafe { self.uring.submission().push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// Takes completions as (user data, result, whether it was the operation's last).
    pub(crate) fn completions(&mut self, into: &mut Vec<(u64, i32, bool)>) {
        let before = into.len();
        into.extend(self.uring.completion().map(|c| (c.user_data(), c.result(), !io_uring::cqueue::more(c.flags()))));
        self.in_flight -= into[before..].iter().filter(|(.., last)| *last).count();
    }
}

/// Whether this much memory may be locked without leaving other users of the limit short: registered memory counts against
/// RLIMIT_MEMLOCK, which is one for all processes of a user and needed for rings, too.
pub(crate) fn may_lock(bytes: u64) -> bool {
    use rustix::thread::CapabilitySet;
    let free = rustix::thread::capabilities(None).is_ok_and(|c| c.effective.contains(CapabilitySet::IPC_LOCK));
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    free || limit.is_none_or(|limit| bytes <= limit / 2)
}

/// A read or write of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) write: bool,
    pub(crate) offset: u64,
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) sync: bool,
}

/// The largest ring that the limit on locked memory lets us have.
fn build(polled: bool) -> Result<IoUring, RingError> {
    let mut last = RingError::LockedMemory;
    for (submissions, completions) in SIZES {
        match build_sized(submissions, completions, polled) {
            Ok(uring) => return Ok(uring),
            Err(source) => match source.raw_os_error() {
                Some(libc::ENOMEM) => last = RingError::LockedMemory,
                Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => return Err(RingError::Forbidden { source }),
                Some(libc::EINVAL) => return Err(RingError::TooOld),
                _ => last = RingError::Io { source },
            },
        }
    }
    Err(last)
}

/// The newest set-up the kernel takes: completions are posted only when the reactor asks for them (6.1), or at least without
/// interrupting it (5.19). Completions that wait to be asked for do not end a poll(2).
fn build_sized(submissions: u32, completions: u32, polled: bool) -> io::Result<IoUring> {
    let plain = || {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(completions);
        builder
    };
    let deferred = || {
        if polled {
            return Err(io::ErrorKind::Unsupported.into());
        }
        plain().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().build(submissions)
    };
    deferred()
        .or_else(|_: io::Error| plain().setup_coop_taskrun().setup_taskrun_flag().build(submissions))
        .or_else(|_| plain().build(submissions))
}
