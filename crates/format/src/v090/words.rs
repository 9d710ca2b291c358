//! Which word is what, and the two byte orders.

use core::array;
use core::ops::{Deref, Index, IndexMut};

pub(super) const MAGIC: usize = 0;
pub(super) const MAJOR: usize = 1;
pub(super) const MINOR: usize = 2;
pub(super) const UUID_FIRST: usize = 5;
pub(super) const CTIME: usize = 6;
pub(super) const LEVEL: usize = 7;
/// KiB.
pub(super) const SIZE: usize = 8;
pub(super) const NR_DISKS: usize = 9;
pub(super) const RAID_DISKS: usize = 10;
pub(super) const PREFERRED_MINOR: usize = 11;
/// Three words.
pub(super) const UUID_REST: usize = 13;
pub(super) const UTIME: usize = 32;
pub(super) const STATE: usize = 33;
/// Active, working, failed, spare: four words.
pub(super) const ACTIVE: usize = 34;
pub(super) const CHECKSUM: usize = 38;
/// Two words.
pub(super) const EVENTS: usize = 39;
/// Two words.
pub(super) const CP_EVENTS: usize = 41;
/// Sectors.
pub(super) const RECOVERY_CP: usize = 43;
/// Two words.
pub(super) const RESHAPE_POSITION: usize = 44;
pub(super) const NEW_LEVEL: usize = 46;
pub(super) const DELTA_DISKS: usize = 47;
pub(super) const NEW_LAYOUT: usize = 48;
/// Bytes.
pub(super) const NEW_CHUNK: usize = 49;
pub(super) const LOGICAL_BLOCK_SIZE: usize = 50;
pub(super) const LAYOUT: usize = 64;
/// Bytes.
pub(super) const CHUNK: usize = 65;
pub(super) const DISKS: usize = 128;
/// Words per descriptor.
pub(super) const DESCRIPTOR: usize = 32;
pub(super) const THIS_DISK: usize = 992;

const COUNT: usize = 1024;

const _: () = assert!(COUNT * 4 == crate::SUPERBLOCK_BYTES);
const _: () = assert!(DISKS + DESCRIPTOR * super::DEVICES_MAX as usize == THIS_DISK);
const _: () = assert!(THIS_DISK + DESCRIPTOR == COUNT);

/// Byte order of a 0.90 superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// x86, ARM and most others.
    Little,
    /// Older NAS boxes (PowerPC, MIPS, SPARC).
    Big,
}

impl ByteOrder {
    pub(super) const ALL: [ByteOrder; 2] = [ByteOrder::Little, ByteOrder::Big];
}

/// The 1024 words in host order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Words(Box<[u32; COUNT]>);

impl Words {
    pub(super) fn zeroed() -> Words {
        Words(Box::new([0; COUNT]))
    }

    /// From 4096 bytes; what is missing reads as 0.
    pub(super) fn decode(block: &[u8], order: ByteOrder) -> Words {
        let (words, _) = block.as_chunks::<4>();
        let word = |i: usize| {
            let bytes = words.get(i).copied().unwrap_or_default();
            match order {
                ByteOrder::Little => u32::from_le_bytes(bytes),
                ByteOrder::Big => u32::from_be_bytes(bytes),
            }
        };
        Words(Box::new(array::from_fn(word)))
    }

    pub(super) fn encode(&self, order: ByteOrder) -> Vec<u8> {
        let bytes = |word: &u32| match order {
            ByteOrder::Little => word.to_le_bytes(),
            ByteOrder::Big => word.to_be_bytes(),
        };
        self.0.iter().flat_map(bytes).collect()
    }

    /// A number of two words, which stand in the byte order of the host as well.
    pub(super) fn u64(&self, at: usize, order: ByteOrder) -> u64 {
        let (low, high) = match order {
            ByteOrder::Little => (self[at], self[at + 1]),
            ByteOrder::Big => (self[at + 1], self[at]),
        };
        u64::from(high) << 32 | u64::from(low)
    }

    pub(super) fn set_u64(&mut self, at: usize, value: u64, order: ByteOrder) {
        let (low, high) = (value as u32, (value >> 32) as u32);
        (self[at], self[at + 1]) = match order {
            ByteOrder::Little => (low, high),
            ByteOrder::Big => (high, low),
        };
    }
}

impl Deref for Words {
    type Target = [u32; COUNT];

    fn deref(&self) -> &[u32; COUNT] {
        &self.0
    }
}

impl Index<usize> for Words {
    type Output = u32;

    fn index(&self, i: usize) -> &u32 {
        &self.0[i]
    }
}

impl IndexMut<usize> for Words {
    fn index_mut(&mut self, i: usize) -> &mut u32 {
        &mut self.0[i]
    }
}

/// One device in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Its number, equal to its index.
    pub number: u32,
    /// Device number it had last.
    pub major: u32,
    /// Device number it had last.
    pub minor: u32,
    /// Its slot; its number if it has none.
    pub raid_disk: u32,
    /// State bits.
    pub state: u32,
}

impl Descriptor {
    pub(super) fn read(words: &Words, at: usize) -> Descriptor {
        let [number, major, minor, raid_disk, state] = array::from_fn(|i| words[at + i]);
        Descriptor { number, major, minor, raid_disk, state }
    }

    pub(super) fn write(self, words: &mut Words, at: usize) {
        let Descriptor { number, major, minor, raid_disk, state } = self;
        for (i, word) in [number, major, minor, raid_disk, state].into_iter().enumerate() {
            words[at + i] = word;
        }
    }
}
