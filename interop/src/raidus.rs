//! raidus, in this process, on image files.

use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use raidus_assembly::Options;
use raidus_engine::control::{Command, Event, SyncEnd, SyncRequest};
use raidus_engine::{MemberState, RequestError, SyncAction, Tunables};
use raidus_runtime::{ArrayHandle, OpenOptions, RunOptions, open_array, start};
use sha2::{Digest, Sha256};

/// A running array and what it should contain.
pub struct Raidus {
    handle: ArrayHandle,
    /// What every byte of the array should be.
    pub content: Vec<u8>,
    /// Ranges of bytes that could not be read when it was opened; zeroes in `content`.
    pub unreadable: Ranges,
    events: Mutex<Receiver<Event>>,
}

/// Half-open ranges of bytes of the array.
pub type Ranges = Vec<(u64, u64)>;

/// A small generator of test data and choices: the same seed, the same run.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// The next 64 bits (splitmix64).
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n.max(1)
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            let bits = self.bits().to_le_bytes();
            word.copy_from_slice(&bits[..word.len()]);
        }
    }
}

impl Raidus {
    /// Opens the images as an array and reads all of it.
    pub fn open(images: &[PathBuf], assembly: Options, threads: u16) -> Result<Raidus> {
        Raidus::open_with(images, assembly, Tunables { shards: threads, ..Tunables::default() })
    }

    /// As [`open`](Self::open), with these settings.
    pub fn open_with(images: &[PathBuf], assembly: Options, tunables: Tunables) -> Result<Raidus> {
        // Small pools: many arrays run in one test.
        let tunables = Tunables { scratch_bytes: 8 << 20, ..tunables };
        let options = OpenOptions { assembly, tunables, ..OpenOptions::default() };
        let opened = open_array(images, &options)?;
        let run = RunOptions { pool_bytes: 8 << 20, connection_bytes: 4 << 20, pin: false, ..RunOptions::default() };
        let handle = start(opened.config, opened.members, run)?;
        let events = Mutex::new(handle.events());
        let mut array = Raidus { handle, content: Vec::new(), unreadable: Vec::new(), events };
        (array.content, array.unreadable) = array.read()?;
        Ok(array)
    }

    /// Opens without writing anything, even if members are missing.
    pub fn look(images: &[PathBuf]) -> Result<Raidus> {
        Raidus::open(images, Options { readonly: true, run: true, ..Options::default() }, 1)
    }

    /// Reads the whole array; what cannot be read is listed, in steps of 4 KiB.
    pub fn read(&self) -> Result<(Vec<u8>, Ranges)> {
        let size = usize::try_from(self.handle.size().bytes())?;
        let client = self.handle.client();
        let mut content = vec![0; size];
        let mut unreadable = Vec::new();
        for (n, piece) in content.chunks_mut(1 << 20).enumerate() {
            let at = (n as u64) << 20;
            if client.read_at(at, piece).is_ok() {
                continue;
            }
            for (k, page) in piece.chunks_mut(4096).enumerate() {
                let at = at + k as u64 * 4096;
                match client.read_at(at, page) {
                    Ok(()) => {}
                    Err(RequestError::Io) => unreadable.push((at, at + page.len() as u64)),
                    Err(e) => bail!("reading at byte {at}: {e}"),
                }
            }
        }
        Ok((content, unreadable))
    }

    /// Does `n` random writes, discards and flushes of one block to 300 KiB (blocks of 512 bytes), and notes them in `content`.
    pub fn scribble(&mut self, rng: &mut Rng, n: u32) -> Result<()> {
        let client = self.handle.client();
        let block = u64::from(self.handle.block());
        let blocks = self.content.len() as u64 / block;
        for _ in 0..n {
            let longest = [1, 8, 64, 600][rng.below(4) as usize];
            let at = rng.below(blocks);
            let len = (1 + rng.below(longest)).min(blocks - at);
            let range = (at * block) as usize..((at + len) * block) as usize;
            match rng.below(12) {
                0 => {
                    client.write_zeroes(at * block, len * block, true, false)?;
                    self.content[range].fill(0);
                }
                1 => client.flush()?,
                n => {
                    rng.fill(&mut self.content[range.clone()]);
                    client.write_at(at * block, &self.content[range], n == 2)?;
                }
            }
        }
        Ok(())
    }

    /// Reads back what was written.
    pub fn verify(&self) -> Result<()> {
        ensure!(
            self.read()? == (self.content.clone(), self.unreadable.clone()),
            "the array does not contain what was written"
        );
        Ok(())
    }

    /// Waits until every member has its data and agrees with the others.
    pub fn settle(&self) -> Result<()> {
        for _ in 0..6000 {
            let status = self.handle.status().context("the array has ended")?;
            let rebuilding = status.map.members.iter().any(|m| matches!(m.state, MemberState::Rebuilding { .. }));
            if status.sync.action.is_none() && !rebuilding && status.map.unsynced_from.is_none() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("still syncing after a minute: {:?}", self.handle.status())
    }

    /// Has everything compared, and fails if anything disagrees.
    pub fn check(&self) -> Result<()> {
        self.handle.command(Command::Sync(SyncRequest::Check))?;
        for _ in 0..6000 {
            let sync = self.handle.status().context("the array has ended")?.sync;
            if let Some(end) = sync.last.filter(|end| end.action == SyncAction::Check && sync.action.is_none()) {
                ensure!(end.complete && end.unreadable.is_empty(), "the check did not come to its end: {end:?}");
                ensure!(end.mismatch_sectors == 0, "the check found {:?}", end.mismatches);
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("still checking after a minute: {:?}", self.handle.status())
    }

    /// What was synced since the last time that this was asked.
    pub fn syncs(&self) -> Vec<Arc<SyncEnd>> {
        let ended = |event| if let Event::SyncEnded { report, .. } = event { Some(report) } else { None };
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.try_iter().filter_map(ended).collect()
    }

    /// Stops in order.
    pub fn stop(self) -> Result<()> {
        Ok(self.handle.stop()?)
    }

    /// Ends as a crash would.
    pub fn crash(self) {
        self.handle.abandon();
    }

    /// Digest of what the array should contain, as `sha256sum` prints it.
    pub fn sum(&self) -> String {
        sum(&self.content)
    }

    /// The running array.
    pub fn handle(&self) -> &ArrayHandle {
        &self.handle
    }
}

/// A digest as `sha256sum` prints it.
pub fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}
