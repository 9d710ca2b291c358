//! The raid4/5/6 journal: meta blocks that say what the blocks behind them are.
//!
//! Positions are sectors from the start of the journal device's data area, which is used as a ring of 4096-byte blocks.

use crate::MdUuid;
use crate::crc;
use core::mem::{offset_of, size_of};
use raidus_units::{Sector, Sectors};
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

mod scan;

pub use scan::{LogScan, Record, ScanEnd, ring_add};

/// Bytes of every block in the log.
pub const BLOCK_BYTES: usize = 4096;
/// The same in sectors.
pub const BLOCK_SECTORS: Sectors = Sectors(8);
/// First word of a meta block.
pub const JOURNAL_MAGIC: u32 = 0x6433_c509;

const VERSION: u8 = 1;
const TYPE_DATA: u16 = 0;
const TYPE_PARITY: u16 = 1;
const TYPE_FLUSH: u16 = 2;
const FLAG_DISCARD: u16 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Fixed {
    magic: U32,
    checksum: U32,
    version: u8,
    reserved: [u8; 3],
    meta_size: U32,
    seq: U64,
    position: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PayloadHeader {
    kind: U16,
    flags: U16,
    /// Sectors of data or parity; bytes of a flush list.
    size: U32,
}

const CHECKSUM_AT: usize = offset_of!(Fixed, checksum);

const _: () = {
    assert!(size_of::<Fixed>() == 32);
    assert!(size_of::<PayloadHeader>() == 8);
    assert!(CHECKSUM_AT == 4);
};

/// A meta block whose checksum is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaBlock {
    /// One more than that of the meta block before.
    pub seq: u64,
    /// Where it stands.
    pub position: Sectors,
    /// What follows it.
    pub payloads: Vec<Payload>,
}

/// What some of the blocks behind a meta block are, or that stripes are done with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Data, one block per checksum.
    Data {
        /// Array sector.
        location: Sector,
        /// The data is gone: nothing needs to be written.
        discard: bool,
        /// [`checksum`] of each block.
        checksums: Vec<u32>,
    },
    /// Parity of one row: P, or P and Q.
    Parity {
        /// Component sector of the row.
        location: Sector,
        /// [`checksum`] of each block.
        checksums: Vec<u32>,
    },
    /// These rows are safely on the members.
    Flush {
        /// Component sectors of the rows.
        stripes: Vec<Sector>,
    },
}

/// Why a block is not a meta block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum JournalError {
    /// Fewer bytes than a block has.
    #[error("journal block cut short: {0} bytes")]
    Truncated(
        /// Bytes given.
        usize,
    ),
    /// Not a meta block: the log ends here.
    #[error("no journal block (magic number {found:#010x})")]
    NoMagic {
        /// What stands in its place.
        found: u32,
    },
    /// A version nobody knows.
    #[error("journal of unsupported version {0}")]
    UnsupportedVersion(
        /// The stored version.
        u8,
    ),
    /// A block of another array, or one that was torn.
    #[error("journal block has checksum {stored:08x}, its content gives {computed:08x}")]
    BadChecksum {
        /// In the block.
        stored: u32,
        /// From the content.
        computed: u32,
    },
    /// A payload that does not fit, or of a kind nobody knows.
    #[error("journal block makes no sense at byte {0}")]
    Nonsense(
        /// Where.
        usize,
    ),
}

/// Where all checksums of an array's journal start from.
pub fn seed(array: MdUuid) -> u32 {
    crc::raw(u32::MAX, &array.0)
}

/// Checksum of a data or parity block.
pub fn checksum(seed: u32, block: &[u8]) -> u32 {
    crc::raw(seed, block)
}

impl MetaBlock {
    /// Reads and checks a meta block. Whether it is the one expected is for the caller to say: compare `position` and
    /// `seq`.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn parse(block: &[u8], seed: u32) -> Result<MetaBlock, JournalError> {
        let block = block.get(..BLOCK_BYTES).ok_or(JournalError::Truncated(block.len()))?;
        let (fixed, _) = Fixed::ref_from_prefix(block).map_err(|_| JournalError::Truncated(block.len()))?;
        if fixed.magic.get() != JOURNAL_MAGIC {
            return Err(JournalError::NoMagic { found: fixed.magic.get() });
        }
        if fixed.version != VERSION {
            return Err(JournalError::UnsupportedVersion(fixed.version));
        }
        let (stored, computed) = (fixed.checksum.get(), crc::raw_with_hole(seed, block, CHECKSUM_AT));
        if stored != computed {
            return Err(JournalError::BadChecksum { stored, computed });
        }
        let used = fixed.meta_size.get() as usize;
        let body = block.get(..used).filter(|b| b.len() >= size_of::<Fixed>());
        let body = body.ok_or(JournalError::Nonsense(offset_of!(Fixed, meta_size)))?;
        let payloads = parse_payloads(body)?;
        Ok(MetaBlock { seq: fixed.seq.get(), position: Sectors(fixed.position.get()), payloads })
    }

    /// The 4096 bytes; `None` if the payloads do not fit.
    pub fn encode(&self, seed: u32) -> Option<Vec<u8>> {
        let mut block = vec![0; size_of::<Fixed>()];
        for payload in &self.payloads {
            payload.encode(&mut block)?;
        }
        let fixed = Fixed {
            magic: JOURNAL_MAGIC.into(),
            checksum: 0.into(),
            version: VERSION,
            reserved: [0; 3],
            meta_size: u32::try_from(block.len()).ok()?.into(),
            seq: self.seq.into(),
            position: self.position.0.into(),
        };
        block[..size_of::<Fixed>()].copy_from_slice(fixed.as_bytes());
        if block.len() > BLOCK_BYTES {
            return None;
        }
        block.resize(BLOCK_BYTES, 0);
        let sum = crc::raw(seed, &block);
        block[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
        Some(block)
    }

    /// Blocks that follow this one before the next meta block.
    pub fn blocks(&self) -> u64 {
        self.payloads.iter().map(Payload::blocks).sum()
    }
}

impl Payload {
    /// Blocks this is about.
    pub fn blocks(&self) -> u64 {
        match self {
            Payload::Data { checksums, .. } | Payload::Parity { checksums, .. } => checksums.len() as u64,
            Payload::Flush { .. } => 0,
        }
    }

    fn checksums(&self) -> &[u32] {
        match self {
            Payload::Data { checksums, .. } | Payload::Parity { checksums, .. } => checksums,
            Payload::Flush { .. } => &[],
        }
    }

    fn encode(&self, out: &mut Vec<u8>) -> Option<()> {
        let (kind, flags, size) = match self {
            Payload::Data { discard, checksums, .. } => {
                (TYPE_DATA, if *discard { FLAG_DISCARD } else { 0 }, checksums.len().checked_mul(8)?)
            }
            Payload::Parity { checksums, .. } => (TYPE_PARITY, 0, checksums.len().checked_mul(8)?),
            Payload::Flush { stripes } => (TYPE_FLUSH, 0, stripes.len().checked_mul(8)?),
        };
        let header = PayloadHeader { kind: kind.into(), flags: flags.into(), size: u32::try_from(size).ok()?.into() };
        out.extend_from_slice(header.as_bytes());
        match self {
            Payload::Data { location, checksums, .. } | Payload::Parity { location, checksums } => {
                out.extend_from_slice(&location.0.to_le_bytes());
                out.extend(checksums.iter().flat_map(|c| c.to_le_bytes()));
            }
            Payload::Flush { stripes } => out.extend(stripes.iter().flat_map(|s| s.0.to_le_bytes())),
        }
        Some(())
    }
}

fn parse_payloads(body: &[u8]) -> Result<Vec<Payload>, JournalError> {
    let mut payloads = Vec::new();
    let mut at = size_of::<Fixed>();
    while at < body.len() {
        let (payload, len) = parse_payload(&body[at..]).ok_or(JournalError::Nonsense(at))?;
        payloads.push(payload);
        at += len;
    }
    Ok(payloads)
}

/// The payload `bytes` begin with, and its length.
fn parse_payload(bytes: &[u8]) -> Option<(Payload, usize)> {
    let (header, rest) = PayloadHeader::ref_from_prefix(bytes).ok()?;
    let (kind, size) = (header.kind.get(), header.size.get() as usize);
    if kind == TYPE_FLUSH {
        let (list, _) = rest.get(..size).filter(|_| size.is_multiple_of(8))?.as_chunks::<8>();
        let stripes = list.iter().map(|s| Sector(u64::from_le_bytes(*s))).collect();
        return Some((Payload::Flush { stripes }, size_of::<PayloadHeader>() + size));
    }
    let blocks = size / BLOCK_SECTORS.0 as usize;
    let (location, rest) = U64::ref_from_prefix(rest).ok()?;
    let (sums, _) = rest.get(..blocks.checked_mul(4)?)?.as_chunks::<4>();
    let checksums: Vec<u32> = sums.iter().map(|s| u32::from_le_bytes(*s)).collect();
    let location = Sector(location.get());
    let payload = match kind {
        TYPE_DATA if blocks > 0 => {
            Payload::Data { location, discard: header.flags.get() & FLAG_DISCARD != 0, checksums }
        }
        TYPE_PARITY if blocks == 1 || blocks == 2 => Payload::Parity { location, checksums },
        _ => return None,
    };
    Some((payload, size_of::<PayloadHeader>() + size_of::<U64>() + blocks * 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting_seed() -> u32 {
        seed(MdUuid(core::array::from_fn(|i| i as u8)))
    }

    #[test]
    fn known_values() {
        assert_eq!(counting_seed(), 0x2636_f714);
        let empty = MetaBlock { seq: 1, position: Sectors(0), payloads: vec![] };
        let block = empty.encode(counting_seed()).unwrap();
        assert_eq!(block[4..8], 0x2e0f_adba_u32.to_le_bytes());
        assert_eq!(block[12..16], 32_u32.to_le_bytes());
    }

    #[test]
    fn round_trip_and_damage() {
        let meta = MetaBlock {
            seq: 77,
            position: Sectors(640),
            payloads: vec![
                Payload::Data { location: Sector(4096), discard: false, checksums: vec![1] },
                Payload::Parity { location: Sector(2048), checksums: vec![2, 3] },
                Payload::Flush { stripes: vec![Sector(8), Sector(16)] },
            ],
        };
        let mut block = meta.encode(counting_seed()).unwrap();
        assert_eq!(MetaBlock::parse(&block, counting_seed()), Ok(meta.clone()));
        assert_eq!(meta.blocks(), 3);
        assert!(matches!(MetaBlock::parse(&block, 1), Err(JournalError::BadChecksum { .. })));
        block[0] = 0;
        assert!(matches!(MetaBlock::parse(&block, counting_seed()), Err(JournalError::NoMagic { .. })));
    }

    #[test]
    fn payloads_that_reach_past_the_block_are_nonsense() {
        let data = Payload::Data { location: Sector(0), discard: false, checksums: vec![0; 4] };
        let meta = MetaBlock { seq: 1, position: Sectors(0), payloads: vec![data] };
        let mut block = meta.encode(counting_seed()).unwrap();
        block[36..40].copy_from_slice(&u32::MAX.to_le_bytes());
        let sum = crc::raw_with_hole(counting_seed(), &block, CHECKSUM_AT);
        block[4..8].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(MetaBlock::parse(&block, counting_seed()), Err(JournalError::Nonsense(32)));
        let long = Payload::Flush { stripes: vec![Sector(0); 600] };
        assert_eq!(MetaBlock { payloads: vec![long], ..meta }.encode(counting_seed()), None);
    }
}
