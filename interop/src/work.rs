//! Where and how tests work: in memory if it has room, on all processors.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use nix::sys::statvfs::statvfs;
use tempfile::TempDir;

/// Disks one guest can have.
pub(crate) const DISKS_MAX: usize = 16;

/// A file system in memory.
const MEMORY: &str = "/dev/shm";
/// Room there has to be, in bytes: images for one test, and the guests' memory.
const ROOM: u64 = 4 << 30;

/// A directory for images that vanishes with the test. It is in memory where there is enough: these tests are about what is
/// written, and a thousand forced writes to small arrays would take minutes on a disk.
///
/// # Panics
/// If there is no place for it.
pub fn scratch() -> TempDir {
    let has_room = |dir: &Path| statvfs(dir).is_ok_and(|s| s.blocks_available() * s.fragment_size() >= ROOM);
    let memory = Path::new(MEMORY);
    let made = if has_room(memory) { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a directory for images")
}

/// Groups for one boot of the guest each: as many items in a row as its disks suffice for.
pub fn by_boots<T>(items: Vec<T>, disks: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    let mut free = 0;
    for item in items {
        let needed = disks(&item);
        if needed > free {
            groups.push(Vec::new());
            free = DISKS_MAX.max(needed);
        }
        free -= needed;
        groups.last_mut().expect("pushed").push(item);
    }
    groups
}

/// Does the work on each item, as many at a time as there are processors, and gives the results in the items' order.
///
/// # Panics
/// If the work on an item does.
pub fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(usize, &T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    let worker = |sender: mpsc::Sender<(usize, R)>| {
        while let n = next.fetch_add(1, Ordering::Relaxed)
            && let Some(item) = items.get(n)
        {
            // Nobody listens any more if another one panicked.
            let _ = sender.send((n, work(n, item)));
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from).min(items.len()) {
            let sender = sender.clone();
            scope.spawn(|| worker(sender));
        }
    });
    drop(sender);
    let mut results: Vec<(usize, R)> = results.into_iter().collect();
    results.sort_by_key(|(n, _)| *n);
    results.into_iter().map(|(_, result)| result).collect()
}
