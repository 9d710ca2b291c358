//! Version 6, the lockless bitmap of Linux 6.18: a byte with a state per chunk instead of a bit.

use super::{BitmapError, BitmapSuper, BitmapVersion};

/// Where the states begin, in bytes from the start of the bitmap's superblock.
pub const STATES_AT: usize = 1024;

/// What is known of a chunk. Names and values are the kernel's (`drivers/md/md-llbitmap.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChunkState {
    /// 0: nothing was ever written there; parity was never made.
    Unwritten,
    /// 1: members agree.
    Clean,
    /// 2: writes may be under way.
    Dirty,
    /// 3: to be resynced.
    NeedSync,
    /// 4: being resynced.
    Syncing,
    /// 5: like 0, parity is to be made.
    UnwrittenNeedSync,
    /// 6: like 0, parity is being made.
    UnwrittenSyncing,
    /// 7: like 0, parity was made.
    UnwrittenClean,
    /// A value without meaning so far.
    Unknown(u8),
}

impl ChunkState {
    /// All that have a meaning, by value.
    pub const KNOWN: [ChunkState; 8] = [
        ChunkState::Unwritten,
        ChunkState::Clean,
        ChunkState::Dirty,
        ChunkState::NeedSync,
        ChunkState::Syncing,
        ChunkState::UnwrittenNeedSync,
        ChunkState::UnwrittenSyncing,
        ChunkState::UnwrittenClean,
    ];

    /// The state that a byte stands for.
    pub fn of(byte: u8) -> ChunkState {
        Self::KNOWN.get(usize::from(byte)).copied().unwrap_or(ChunkState::Unknown(byte))
    }

    /// Whether members are known to agree there. Of an array that nobody wrote since the bitmap was last written, that is; and what is
    /// not understood is not relied on.
    pub const fn is_in_sync(self) -> bool {
        matches!(self, ChunkState::Clean | ChunkState::UnwrittenClean)
    }

    /// The kernel's name.
    pub fn name(self) -> String {
        match self {
            ChunkState::Unwritten => "unwritten".to_owned(),
            ChunkState::Clean => "clean".to_owned(),
            ChunkState::Dirty => "dirty".to_owned(),
            ChunkState::NeedSync => "need sync".to_owned(),
            ChunkState::Syncing => "syncing".to_owned(),
            ChunkState::UnwrittenNeedSync => "need sync unwritten".to_owned(),
            ChunkState::UnwrittenSyncing => "syncing unwritten".to_owned(),
            ChunkState::UnwrittenClean => "clean unwritten".to_owned(),
            ChunkState::Unknown(byte) => format!("unknown {byte}"),
        }
    }
}

/// The states of one lockless bitmap, a byte each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkStates<'a>(&'a [u8]);

impl<'a> ChunkStates<'a> {
    /// The states in a bitmap area, whose superblock is this.
    ///
    /// # Errors
    /// [`BitmapError::UnsupportedVersion`] if it is no lockless bitmap, [`BitmapError::Truncated`].
    pub fn read(file: &'a [u8], superblock: &BitmapSuper) -> Result<ChunkStates<'a>, BitmapError> {
        if superblock.version() != BitmapVersion::Lockless {
            return Err(BitmapError::UnsupportedVersion(superblock.header().version.get()));
        }
        let need = superblock.bytes();
        let states = usize::try_from(need).ok().and_then(|end| file.get(STATES_AT..end));
        states.map(ChunkStates).ok_or(BitmapError::Truncated { have: file.len() as u64, need })
    }

    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = ChunkState> + '_ {
        self.0.iter().map(|byte| ChunkState::of(*byte))
    }

    /// How many chunks are in each state that occurs, by value.
    pub fn counts(&self) -> Vec<(ChunkState, u64)> {
        let mut counts = [0; 256];
        self.0.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        (0..=u8::MAX).map(|byte| (ChunkState::of(byte), counts[usize::from(byte)])).filter(|(_, n)| *n > 0).collect()
    }
}
