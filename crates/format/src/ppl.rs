//! The partial parity log of a raid5 member: what parity was before the write that a crash interrupted.
//!
//! A log unit is a 4096-byte header followed by the partial parity of its entries, in their order.

use crate::crc;
use crate::{MdUuid, PplArea};
use core::mem::{offset_of, size_of};
use raidus_units::{SECTOR_BYTES, Sector, Sectors, Slot};
use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 4096;
/// Most entries in one header.
pub const ENTRIES_MAX: usize = (HEADER_BYTES - size_of::<Fixed>()) / size_of::<RawEntry>();

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Fixed {
    reserved: [u8; 512],
    signature: U32,
    padding: U32,
    generation: U64,
    entries: U32,
    checksum: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    data_sector: U64,
    parity_size: U32,
    data_size: U32,
    parity_disk: U32,
    checksum: U32,
}

const CHECKSUM_AT: usize = offset_of!(Fixed, checksum);

const _: () = {
    assert!(size_of::<Fixed>() == 536);
    assert!(size_of::<RawEntry>() == 24);
    assert!(CHECKSUM_AT == 532);
    assert!(ENTRIES_MAX == 148);
};

/// A header whose checksum and signature are right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PplHeader {
    /// Counts headers over all members.
    pub generation: u64,
    /// What was being written.
    pub entries: Vec<PplEntry>,
}

/// One write, or several that follow each other and touch the same members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PplEntry {
    /// Array sector of the first data written.
    pub data_sector: Sector,
    /// Bytes of partial parity; 0 for whole stripes.
    pub parity_bytes: u32,
    /// Bytes of data written.
    pub data_bytes: u32,
    /// Slot that holds the parity.
    pub parity_slot: Slot,
    /// Checksum of the partial parity, as [`checksum`] gives it.
    pub checksum: u32,
}

/// Why a block is not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PplError {
    /// Fewer bytes than a header has.
    #[error("partial parity log cut short: {0} bytes")]
    Truncated(
        /// Bytes given.
        usize,
    ),
    /// Not a header, or one that was torn.
    #[error("partial parity log header has checksum {stored:08x}, its content gives {computed:08x}")]
    BadChecksum {
        /// In the block.
        stored: u32,
        /// From the content.
        computed: u32,
    },
    /// The header of another array.
    #[error("partial parity log has signature {found:08x}, this array's is {expected:08x}")]
    WrongArray {
        /// In the block.
        found: u32,
        /// Of the array.
        expected: u32,
    },
    /// More entries than fit, or one for a member that cannot be.
    #[error("partial parity log header makes no sense")]
    Nonsense,
}

/// Checksum of partial parity, and signature of an array when taken over its uuid.
pub fn checksum(bytes: &[u8]) -> u32 {
    !crc::raw(u32::MAX, bytes)
}

/// What all headers of an array carry.
pub fn signature(array: MdUuid) -> u32 {
    checksum(&array.0)
}

impl PplHeader {
    /// Reads and checks a header.
    ///
    /// # Errors
    /// See [`PplError`].
    pub fn parse(block: &[u8], array: MdUuid) -> Result<PplHeader, PplError> {
        let block = block.get(..HEADER_BYTES).ok_or(PplError::Truncated(block.len()))?;
        let (fixed, rest) = Fixed::ref_from_prefix(block).map_err(|_| PplError::Truncated(block.len()))?;
        let computed = !crc::raw_with_hole(u32::MAX, block, CHECKSUM_AT);
        if fixed.checksum.get() != computed {
            return Err(PplError::BadChecksum { stored: fixed.checksum.get(), computed });
        }
        let (found, expected) = (fixed.signature.get(), signature(array));
        if found != expected {
            return Err(PplError::WrongArray { found, expected });
        }
        let count = fixed.entries.get() as usize;
        let (entries, _) = <[RawEntry]>::ref_from_prefix_with_elems(rest, count.min(ENTRIES_MAX + 1))
            .map_err(|_| PplError::Nonsense)?;
        let entries = entries.iter().map(PplEntry::from_raw).collect::<Option<Vec<_>>>().ok_or(PplError::Nonsense)?;
        Ok(PplHeader { generation: fixed.generation.get(), entries })
    }

    /// The 4096 bytes. Entries past [`ENTRIES_MAX`] are left out.
    pub fn encode(&self, array: MdUuid) -> Vec<u8> {
        let entries = &self.entries[..self.entries.len().min(ENTRIES_MAX)];
        let fixed = Fixed {
            reserved: [0xff; 512],
            signature: signature(array).into(),
            padding: 0.into(),
            generation: self.generation.into(),
            entries: (entries.len() as u32).into(),
            checksum: 0.into(),
        };
        let mut block = fixed.as_bytes().to_vec();
        for entry in entries {
            block.extend_from_slice(entry.to_raw().as_bytes());
        }
        block.resize(HEADER_BYTES, 0);
        let sum = checksum(&block);
        block[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// Bytes from this header to where the next one would be.
    pub fn unit_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.entries.iter().map(|e| u64::from(e.parity_bytes)).sum::<u64>()
    }
}

/// A log unit in the making: entries with their partial parity, to be headed when all are there.
#[derive(Clone, Debug)]
pub struct PplUnit {
    entries: Vec<PplEntry>,
    /// Room for the header, then the partial parity.
    bytes: Vec<u8>,
}

impl PplUnit {
    /// Nothing yet, with room for this much partial parity.
    pub fn with_room(parity_bytes: usize) -> PplUnit {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + parity_bytes);
        bytes.resize(HEADER_BYTES, 0);
        PplUnit { entries: Vec::new(), bytes }
    }

    /// Adds a write of `data_bytes` from array sector `data_sector` on, whose row has its parity in `parity_slot`; `parity` is what
    /// that parity is without the chunks written, empty for whole stripes.
    pub fn push(&mut self, data_sector: Sector, data_bytes: u32, parity_slot: Slot, parity: &[u8]) {
        let (parity_bytes, checksum) = (parity.len() as u32, checksum(parity));
        self.entries.push(PplEntry { data_sector, parity_bytes, data_bytes, parity_slot, checksum });
        self.bytes.extend_from_slice(parity);
    }

    /// Adds the mark of [`PplEntry::untrusted`].
    pub fn push_untrusted(&mut self, parity_slot: Slot) {
        self.entries.push(PplEntry::untrusted(parity_slot));
    }

    /// The whole unit, header first.
    pub fn finish(self, array: MdUuid, generation: u64) -> Vec<u8> {
        let PplUnit { entries, mut bytes } = self;
        bytes[..HEADER_BYTES].copy_from_slice(&PplHeader { generation, entries }.encode(array));
        bytes
    }
}

/// The header of a log without a write in it, as it stands at the start of a log that has just been emptied. `untrusted`: see
/// [`PplEntry::untrusted`].
pub fn empty(array: MdUuid, untrusted: Option<Slot>) -> Vec<u8> {
    let entries = untrusted.into_iter().map(PplEntry::untrusted).collect();
    PplHeader { generation: 0, entries }.encode(array)
}

impl PplEntry {
    /// An entry that says nothing but: parity is not to be trusted everywhere, whatever else is logged. md finds its checksum wrong
    /// and so resyncs the array, where it would otherwise take one whose logs are whole for in sync, though it may have been in
    /// the middle of a resync. No write makes such an entry, and no crash: it has no partial parity that could be torn.
    pub const fn untrusted(parity_slot: Slot) -> PplEntry {
        PplEntry { data_sector: Sector(0), parity_bytes: 0, data_bytes: 0, parity_slot, checksum: u32::MAX }
    }

    /// Whether it is one that says that parity is not to be trusted.
    pub const fn is_untrusted(&self) -> bool {
        self.parity_bytes == 0 && self.checksum != 0
    }

    fn from_raw(raw: &RawEntry) -> Option<PplEntry> {
        Some(PplEntry {
            data_sector: Sector(raw.data_sector.get()),
            parity_bytes: raw.parity_size.get(),
            data_bytes: raw.data_size.get(),
            parity_slot: Slot(u16::try_from(raw.parity_disk.get()).ok()?),
            checksum: raw.checksum.get(),
        })
    }

    fn to_raw(self) -> RawEntry {
        RawEntry {
            data_sector: self.data_sector.0.into(),
            parity_size: self.parity_bytes.into(),
            data_size: self.data_bytes.into(),
            parity_disk: u32::from(self.parity_slot.0).into(),
            checksum: self.checksum.into(),
        }
    }
}

/// The newest header in a member's log area, and at which byte of it. Units follow each other; where the generation
/// goes down, or a header is not valid, the one before was the newest. A log that is not a ring has one unit.
pub fn newest(area: &[u8], array: MdUuid, is_ring: bool) -> Option<(u64, PplHeader)> {
    let mut newest: Option<(u64, PplHeader)> = None;
    let mut at = 0_u64;
    loop {
        let unit = usize::try_from(at).ok().and_then(|start| area.get(start..))?;
        let Ok(header) = PplHeader::parse(unit, array) else { return newest };
        if newest.as_ref().is_some_and(|(_, last)| header.generation < last.generation) {
            return newest;
        }
        let next = at.saturating_add(header.unit_bytes());
        newest = Some((at, header));
        if !is_ring || next >= area.len() as u64 {
            return newest;
        }
        at = next;
    }
}

/// Most partial parity md puts in one unit of a ring.
pub const RING_PARITY_BYTES: u64 = 128 << 10;

impl PplArea {
    /// Whether there is room for two of md's units, so that md uses it as a ring.
    pub fn fits_ring(&self) -> bool {
        self.size.bytes() >= 2 * (HEADER_BYTES as u64 + RING_PARITY_BYTES)
    }

    /// How much partial parity a unit can have: what md allows itself, in whole sectors.
    pub fn unit_room(&self) -> Sectors {
        let all = Sectors::from_bytes_floor(self.size.bytes().saturating_sub(HEADER_BYTES as u64));
        if self.fits_ring() { Sectors::from_bytes_floor(RING_PARITY_BYTES) } else { all.round_down(Sectors(8)) }
    }
}

/// Where a member's log is: device sector and length. `None` if the superblock places it before the device.
pub fn place(area: &PplArea, super_offset: Sector) -> Option<(Sector, Sectors)> {
    let start = super_offset.0.checked_add_signed(area.offset)?;
    start.checked_mul(SECTOR_BYTES)?;
    Some((Sector(start), area.size))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting() -> MdUuid {
        MdUuid(core::array::from_fn(|i| i as u8))
    }

    fn entry(parity_bytes: u32) -> PplEntry {
        let (data_sector, parity_slot) = (Sector(128), Slot(2));
        PplEntry { data_sector, parity_bytes, data_bytes: 4096, parity_slot, checksum: 9 }
    }

    #[test]
    fn known_values() {
        assert_eq!(signature(counting()), 0xd9c9_08eb);
        let block = PplHeader { generation: 0, entries: vec![] }.encode(counting());
        assert_eq!(block[CHECKSUM_AT..][..4], 0xa68b_68c7_u32.to_le_bytes());
    }

    #[test]
    fn round_trip_and_damage() {
        let header = PplHeader { generation: 7, entries: vec![entry(4096), entry(0)] };
        let mut block = header.encode(counting());
        assert_eq!(PplHeader::parse(&block, counting()), Ok(header));
        let other = MdUuid([3; 16]);
        assert!(matches!(PplHeader::parse(&block, other), Err(PplError::WrongArray { .. })));
        block[4095] ^= 1;
        assert!(matches!(PplHeader::parse(&block, counting()), Err(PplError::BadChecksum { .. })));
        assert_eq!(PplHeader::parse(&block[1..], counting()), Err(PplError::Truncated(4095)));
    }

    #[test]
    fn a_unit_is_what_a_scan_reads() {
        let (a, b) = (vec![1; 512], vec![2; 4096]);
        let mut unit = PplUnit::with_room(4608);
        unit.push(Sector(7), 1024, Slot(1), &a);
        unit.push(Sector(64), 8192, Slot(1), &[]);
        unit.push(Sector(99), 4096, Slot(1), &b);
        let bytes = unit.finish(counting(), 5);
        let (at, header) = newest(&bytes, counting(), true).unwrap();
        assert_eq!((at, header.generation, header.unit_bytes()), (0, 5, bytes.len() as u64));
        assert_eq!(bytes[HEADER_BYTES..], [&a[..], &b[..]].concat());
        let sums: Vec<u32> = header.entries.iter().map(|e| e.checksum).collect();
        assert_eq!(sums, [checksum(&a), 0, checksum(&b)]);
        assert!(!header.entries.iter().any(PplEntry::is_untrusted));
    }

    #[test]
    fn an_empty_log_says_whether_parity_is_to_be_trusted() {
        let entries = |block: Vec<u8>| PplHeader::parse(&block, counting()).unwrap().entries;
        assert_eq!(entries(empty(counting(), None)), []);
        let marks = entries(empty(counting(), Some(Slot(3))));
        assert!(marks[0].is_untrusted() && marks[0].checksum != checksum(&[]), "md finds the checksum wrong");
    }

    #[test]
    fn a_ring_has_room_for_two_units() {
        let area = |size| PplArea { offset: 8, size: Sectors(size), multiple: false };
        assert!(area(2048).fits_ring() && area(528).fits_ring() && !area(527).fits_ring());
        assert_eq!(area(2048).unit_room(), Sectors(256));
        assert_eq!([area(527), area(23), area(8), area(0)].map(|a| a.unit_room().0), [512, 8, 0, 0]);
    }

    #[test]
    fn too_many_entries_are_nonsense_not_a_panic() {
        let mut block = PplHeader { generation: 7, entries: vec![] }.encode(counting());
        block[528..532].copy_from_slice(&149_u32.to_le_bytes());
        let sum = !crc::raw_with_hole(u32::MAX, &block, CHECKSUM_AT);
        block[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(PplHeader::parse(&block, counting()), Err(PplError::Nonsense));
    }

    #[test]
    fn the_newest_unit_of_a_ring_is_where_the_generation_goes_down() {
        let unit = |generation, parity| {
            let mut unit = PplHeader { generation, entries: vec![entry(parity)] }.encode(counting());
            unit.resize(HEADER_BYTES + parity as usize, 0xaa);
            unit
        };
        let area = [unit(8, 4096), unit(9, 0), unit(5, 0), vec![0; 8192]].concat();
        assert_eq!(newest(&area, counting(), true).map(|(at, h)| (at, h.generation)), Some((8192, 9)));
        assert_eq!(newest(&area, counting(), false).map(|(at, h)| (at, h.generation)), Some((0, 8)));
        assert_eq!(newest(&[0; 8192], counting(), true), None);
    }
}
