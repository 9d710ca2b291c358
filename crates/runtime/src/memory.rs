//! Memory that devices read and write: page-aligned regions, and a bounded pool of request buffers cut from one.
//!
//! A [`Buffer`] never moves and is owned by exactly one holder at a time, so its address can be handed to the engine, to a
//! device and to a socket without copying. Dropping it gives the memory back to where it came from, on any thread.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use raidus_engine::MemAddr;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The alignment of every region and buffer.
pub const PAGE: usize = 4096;

const PAGE_SHIFT: u32 = PAGE.trailing_zeros();

/// An anonymous, zero-filled, page-aligned mapping.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a region is plain memory that belongs to its owner; nothing about it is tied to the thread that mapped it.
unsafe impl Send for Region {}
// SAFETY: through a shared region only its address and length can be had; who may access the memory behind is the concern of
// those who hand out parts of it.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `len` bytes, rounded up to whole pages. Pages are taken when first touched; `reserve` false lets the mapping be
    /// larger than the machine's memory (for sparse use).
    pub fn map(len: usize, reserve: bool) -> std::io::Result<Region> {
        let len = len.max(1).checked_next_multiple_of(PAGE).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let flags = if reserve { MapFlags::PRIVATE } else { MapFlags::PRIVATE | MapFlags::NORESERVE };
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        if len >= 2 << 20 {
            // SAFETY: the range is the mapping just made. Huge pages are a wish: a kernel without them refuses, and that is fine.
            let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), len, Advice::LinuxHugepage) };
        }
        Ok(Region { base, len })
    }

    /// Where it starts.
    pub fn addr(&self) -> MemAddr {
        MemAddr(self.base.as_ptr() as u64)
    }

    /// Its start as a pointer.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Its length in bytes, a multiple of [`PAGE`].
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a region has at least one page.
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map`, and whoever held parts of it held this region too.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A page-aligned piece of memory for one request's data.
#[derive(Debug)]
pub struct Buffer {
    base: NonNull<u8>,
    len: usize,
    home: Home,
    budget: Option<Arc<AtomicUsize>>,
}

#[derive(Debug)]
enum Home {
    /// A block of a pool: first page and order.
    Pool { pool: Arc<PoolInner>, page: u32, order: u32 },
    /// A mapping of its own.
    Own { _region: Region },
}

// SAFETY: a buffer is the only way to its memory, like a Box.
unsafe impl Send for Buffer {}
// SAFETY: a shared buffer only gives shared access to its bytes, like a Box.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer outside any pool, zero-filled.
    pub fn alone(len: usize) -> std::io::Result<Buffer> {
        let region = Region::map(len, true)?;
        Ok(Buffer { base: region.base, len, home: Home::Own { _region: region }, budget: None })
    }

    /// The address for the engine.
    pub fn addr(&self) -> MemAddr {
        MemAddr(self.base.as_ptr() as u64)
    }

    /// Makes the buffer count against `budget` until it is dropped.
    pub(crate) fn charge(&mut self, budget: &Arc<AtomicUsize>) {
        budget.fetch_add(self.len, Ordering::Relaxed);
        self.budget = Some(Arc::clone(budget));
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: base and len describe memory that is mapped, initialised (anonymous mappings are zero-filled) and ours.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.fetch_sub(self.len, Ordering::Relaxed);
        }
        if let Home::Pool { pool, page, order } = &self.home {
            pool.blocks.lock().unwrap_or_else(PoisonError::into_inner).give(*page, *order);
            pool.given_back.fetch_add(1, Ordering::Release);
        }
    }
}

/// A bounded pool of buffers: one region, cut in halves as needed (a buddy allocator). Content of a fresh buffer is whatever the
/// last holder left there.
#[derive(Clone, Debug)]
pub struct BufferPool(Arc<PoolInner>);

#[derive(Debug)]
struct PoolInner {
    region: Region,
    max_order: u32,
    blocks: Mutex<Buddy>,
    given_back: AtomicU64,
}

impl BufferPool {
    /// A pool of `bytes`, rounded up to a power of two.
    pub fn new(bytes: usize) -> std::io::Result<BufferPool> {
        let bytes = bytes.max(PAGE).checked_next_power_of_two().ok_or(std::io::ErrorKind::OutOfMemory)?;
        let pages = u32::try_from(bytes >> PAGE_SHIFT).map_err(|_| std::io::ErrorKind::OutOfMemory)?;
        let region = Region::map(bytes, true)?;
        let max_order = pages.trailing_zeros();
        Ok(BufferPool(Arc::new(PoolInner {
            region,
            max_order,
            blocks: Mutex::new(Buddy::new(max_order)),
            given_back: AtomicU64::new(0),
        })))
    }

    /// A buffer of `len` bytes, or `None` while there is no free block of that size.
    pub fn take(&self, len: usize) -> Option<Buffer> {
        let pages = len.max(1).div_ceil(PAGE).checked_next_power_of_two()?;
        let order = pages.trailing_zeros();
        let page = self.0.blocks.lock().unwrap_or_else(PoisonError::into_inner).take(order)?;
        // SAFETY: the block lies inside the region: `page` + 2^order pages is at most the region's length.
        let base = unsafe { self.0.region.base.add((page as usize) << PAGE_SHIFT) };
        Some(Buffer { base, len, home: Home::Pool { pool: Arc::clone(&self.0), page, order }, budget: None })
    }

    /// The longest buffer the pool ever gives.
    pub fn buffer_max(&self) -> usize {
        PAGE << self.0.max_order
    }

    /// Grows with every buffer given back: whoever waits for memory looks again when it changed.
    pub fn given_back(&self) -> u64 {
        self.0.given_back.load(Ordering::Acquire)
    }

    /// The memory the buffers are cut from.
    pub fn region(&self) -> &Region {
        &self.0.region
    }
}

/// Which blocks of a region of 2^max_order pages are free.
#[derive(Debug)]
struct Buddy {
    /// Free blocks by order. May hold stale entries: only those with `free_at[page] == order + 1` count.
    free: Vec<Vec<u32>>,
    /// Order + 1 of the free block that starts at a page; 0 if none does.
    free_at: Vec<u8>,
}

impl Buddy {
    fn new(max_order: u32) -> Buddy {
        let mut buddy =
            Buddy { free: vec![Vec::new(); max_order as usize + 1], free_at: vec![0; 1 << max_order as usize] };
        buddy.put(0, max_order);
        buddy
    }

    fn put(&mut self, page: u32, order: u32) {
        self.free_at[page as usize] = order as u8 + 1;
        self.free[order as usize].push(page);
    }

    fn take(&mut self, order: u32) -> Option<u32> {
        for from in order..self.free.len() as u32 {
            while let Some(page) = self.free[from as usize].pop() {
                if self.free_at[page as usize] != from as u8 + 1 {
                    continue;
                }
                self.free_at[page as usize] = 0;
                for half in (order..from).rev() {
                    self.put(page + (1 << half), half);
                }
                return Some(page);
            }
        }
        None
    }

    fn give(&mut self, mut page: u32, mut order: u32) {
        while (order as usize) < self.free.len() - 1 {
            let buddy = page ^ (1 << order);
            if self.free_at[buddy as usize] != order as u8 + 1 {
                break;
            }
            // Its entry in `free` is now stale and skipped by `take`.
            self.free_at[buddy as usize] = 0;
            page &= !(1 << order);
            order += 1;
        }
        self.put(page, order);
    }
}

/// The address as a pointer; `None` for [`MemAddr::NONE`].
pub(crate) fn pointer(addr: MemAddr) -> Option<NonNull<u8>> {
    NonNull::new(addr.0 as *mut u8)
}

/// A length that the platform can address.
pub(crate) fn usize_of(n: u64) -> usize {
    usize::try_from(n).expect("lengths inside mapped memory fit the platform")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_disjoint_and_come_back_whole() {
        let pool = BufferPool::new(64 * PAGE).unwrap();
        let mut held: Vec<Buffer> = Vec::new();
        let mut seed = 1u64;
        for round in 0..2000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            if seed >> 62 == 0 && !held.is_empty() {
                held.swap_remove((seed >> 8) as usize % held.len());
            } else if let Some(mut b) = pool.take(((seed >> 20) as usize % (9 * PAGE)).max(1)) {
                b.fill(round as u8);
                held.push(b);
            } else {
                held.clear();
            }
            let mut ranges: Vec<_> = held.iter().map(|b| (b.addr().0, b.addr().0 + b.len() as u64)).collect();
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|w| w[0].1 <= w[1].0));
        }
        held.clear();
        assert!(pool.take(pool.buffer_max()).is_some());
        assert!(pool.take(pool.buffer_max() + 1).is_none());
    }

    #[test]
    fn stale_entries_do_not_pile_up() {
        let pool = BufferPool::new(2 * PAGE).unwrap();
        for _ in 0..10_000 {
            let a = pool.take(PAGE).unwrap();
            let b = pool.take(PAGE).unwrap();
            drop(a);
            drop(b);
        }
        let blocks = pool.0.blocks.lock().unwrap();
        assert!(blocks.free.iter().map(Vec::len).sum::<usize>() < 64);
    }

    #[test]
    fn a_budget_is_given_back_with_the_buffer() {
        let budget = Arc::new(AtomicUsize::new(0));
        let mut b = Buffer::alone(5000).unwrap();
        b.charge(&budget);
        assert_eq!(budget.load(Ordering::Relaxed), 5000);
        drop(b);
        assert_eq!(budget.load(Ordering::Relaxed), 0);
    }
}
