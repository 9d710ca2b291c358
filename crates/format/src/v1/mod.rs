//! Superblock 1.0, 1.1 and 1.2: one format at three places.

mod header;
mod write;

pub use header::*;
pub(crate) use write::{create, edit, update};

use crate::superblock::take_block;
use crate::{
    ArrayFacts, BadBlockArea, Checksum, Concern, MD_MAGIC, MdUuid, MemberFacts, MetadataVersion, NO_POSITION, PplArea,
    Recovery, Reshape, Role, SUPERBLOCK_BYTES, SbError, Timestamp,
};
use raidus_units::{Level, SECTOR_BYTES, Sector, Sectors, Slot};
use zerocopy::{FromBytes, IntoBytes};

/// Longest device table that fits.
pub const MAX_DEV: u32 = ((SUPERBLOCK_BYTES - HEADER_BYTES) / 2) as u32;
/// Role value of a spare, or of a number nobody has.
pub const ROLE_SPARE: u16 = 0xffff;
/// Role value of a failed device.
pub const ROLE_FAULTY: u16 = 0xfffe;
/// Role value of the journal device.
pub const ROLE_JOURNAL: u16 = 0xfffd;
/// Largest slot number.
pub const SLOT_MAX: u16 = 0xfeff;

/// The smallest data area md accepts.
const DATA_MIN: u64 = 10;
/// The longest bad-block log md reads.
const BAD_BLOCK_LOG_MAX: u16 = 8;

/// A block with md's magic number, major version 1 and a device table that fits: safe to look at, not yet to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw {
    version: MetadataVersion,
    at: Sector,
    header: Header,
    roles: Vec<u16>,
    /// What follows the device table, up to 4096 bytes; not covered by the checksum.
    tail: Vec<u8>,
}

impl Raw {
    /// Looks at a block found at device sector `at`, which implies `version`.
    ///
    /// # Errors
    /// [`SbError::Truncated`], [`SbError::NoMagic`], [`SbError::UnsupportedVersion`], [`SbError::MaxDev`].
    pub fn recognise(block: &[u8], version: MetadataVersion, at: Sector) -> Result<Raw, SbError> {
        let block = take_block(block)?;
        let (header, rest) = Header::read_from_prefix(block)
            .map_err(|_| SbError::Truncated { have: block.len(), need: SUPERBLOCK_BYTES })?;
        if header.magic.get() != MD_MAGIC {
            return Err(SbError::NoMagic { found: header.magic.get() });
        }
        if header.major_version.get() != 1 {
            return Err(SbError::UnsupportedVersion { major: header.major_version.get(), minor: 0 });
        }
        let max_dev = header.max_dev.get();
        if max_dev > MAX_DEV {
            return Err(SbError::MaxDev { found: max_dev, max: MAX_DEV });
        }
        let (table, tail) = rest.split_at(2 * max_dev as usize);
        let roles = table.chunks_exact(2).map(|r| u16::from_le_bytes([r[0], r[1]])).collect();
        Ok(Raw { version, at, header, roles, tail: tail.to_vec() })
    }

    /// Every check that concerns the block alone: what the kernel refuses a member for.
    ///
    /// # Errors
    /// The first thing found wrong, in the kernel's order.
    pub fn check(&self) -> Result<(), SbError> {
        let h = &self.header;
        if h.super_offset.get() != self.at.0 {
            return Err(SbError::WrongPosition { stored: Sector(h.super_offset.get()), found: self.at });
        }
        let unknown = h.feature_map.get() & !ALL;
        if unknown != 0 {
            return Err(SbError::UnknownFeatures(unknown));
        }
        let checksum = self.checksum();
        if !checksum.is_right() {
            return Err(SbError::BadChecksum(checksum));
        }
        if h.data_size.get() < DATA_MIN {
            return Err(SbError::DataTooSmall(Sectors(h.data_size.get())));
        }
        if h.pad0.get() != 0 {
            return Err(SbError::ReservedNotZero { offset: core::mem::offset_of!(Header, pad0) });
        }
        if h.pad3 != [0; 28] {
            return Err(SbError::ReservedNotZero { offset: core::mem::offset_of!(Header, pad3) });
        }
        self.check_overlap()?;
        self.check_features()?;
        self.check_role()
    }

    fn check_overlap(&self) -> Result<(), SbError> {
        if self.version == MetadataVersion::V1_0 {
            return Ok(());
        }
        let end = Sector(self.at.0 + self.written_sectors());
        let data = self.header.data_offset.get() as i128;
        let moved = if self.header.has(NEW_OFFSET) { data + self.header.new_offset.get() as i128 } else { data };
        for data in [data, moved] {
            if data < end.0 as i128 {
                return Err(SbError::DataOverlapsSuperblock { data, end });
            }
        }
        Ok(())
    }

    fn check_features(&self) -> Result<(), SbError> {
        let h = &self.header;
        let logs = h.feature_map.get() & (JOURNAL | PPL | MULTIPLE_PPLS);
        let conflict = if h.has(BITMAP) && h.feature_map.get() & (PPL | MULTIPLE_PPLS) != 0 {
            BITMAP | logs & !JOURNAL
        } else if logs.count_ones() > 1 {
            logs
        } else if h.has(RAID0_LAYOUT) && h.level.get() != 0 {
            RAID0_LAYOUT
        } else {
            return Ok(());
        };
        Err(SbError::FeatureConflict(conflict))
    }

    fn check_role(&self) -> Result<(), SbError> {
        match self.roles.get(self.header.dev_number.get() as usize) {
            Some(&role) if role > SLOT_MAX && role < ROLE_JOURNAL => Err(SbError::BadRole(role)),
            _ => Ok(()),
        }
    }

    /// What must be weighed against the device: `device` is its size.
    pub fn concerns(&self, device: Sectors) -> Vec<Concern> {
        let h = &self.header;
        let mut concerns = Vec::new();
        let limit = if self.version == MetadataVersion::V1_0 { self.at } else { Sector(device.0) };
        let end = Sector(h.data_offset.get().saturating_add(h.data_size.get()));
        if end > limit {
            concerns.push(Concern::DataBeyondDevice { end, limit });
        }
        if h.has(BAD_BLOCKS) && h.bad_block_offset.get() == 0 {
            concerns.push(Concern::BadBlockLogMissing);
        }
        if h.bad_block_offset.get() != 0 && h.bad_block_size.get() > BAD_BLOCK_LOG_MAX {
            concerns.push(Concern::BadBlockLogTooLarge(Sectors(h.bad_block_size.get().into())));
        }
        concerns
    }

    /// The stored checksum and that of the content.
    pub fn checksum(&self) -> Checksum {
        let mut header = self.header;
        header.checksum.set(0);
        let words = header.as_bytes().chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
        let pairs = self.roles.chunks(2).map(|r| match *r {
            [low, high] => u32::from(low) | u32::from(high) << 16,
            [odd] => odd.into(),
            _ => 0,
        });
        // 64 + 960 words of 32 bits cannot overflow 64 bits.
        let sum: u64 = words.chain(pairs).map(u64::from).sum();
        let computed = (sum as u32).wrapping_add((sum >> 32) as u32);
        Checksum { stored: self.header.checksum.get(), computed }
    }

    /// Where the block was found, which implies the minor version.
    pub const fn version(&self) -> MetadataVersion {
        self.version
    }

    /// The stored fields.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The stored device table.
    pub fn role_values(&self) -> &[u16] {
        &self.roles
    }

    /// The role of a device number; numbers past the table are spares.
    pub fn role_of(&self, dev_number: u32) -> Role {
        match self.roles.get(dev_number as usize).copied() {
            Some(ROLE_FAULTY) => Role::Faulty,
            Some(ROLE_JOURNAL) => Role::Journal,
            Some(slot) if slot <= SLOT_MAX => Role::Slot(Slot(slot)),
            _ => Role::Spare,
        }
    }

    /// The block, 4096 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(SUPERBLOCK_BYTES);
        block.extend_from_slice(self.header.as_bytes());
        block.extend(self.roles.iter().flat_map(|r| r.to_le_bytes()));
        block.extend_from_slice(&self.tail);
        block
    }

    /// Sectors md writes for this superblock on a device with 512-byte blocks.
    pub fn written_sectors(&self) -> u64 {
        ((HEADER_BYTES + 2 * self.roles.len()) as u64).div_ceil(SECTOR_BYTES)
    }

    /// What it says about the array.
    pub fn array(&self) -> ArrayFacts {
        let h = &self.header;
        let resync = h.resync_offset.get();
        ArrayFacts {
            metadata: self.version,
            uuid: MdUuid(h.set_uuid),
            name: text(&h.set_name),
            level_number: h.level.get(),
            level: Level::from_number(h.level.get()),
            layout: h.layout.get(),
            size: Sectors(h.size.get()),
            chunk: Sectors(h.chunk.get().into()),
            raid_disks: h.raid_disks.get(),
            ctime: Timestamp::from_packed(h.ctime.get()),
            utime: Timestamp::from_packed(h.utime.get()),
            events: h.events.get(),
            clean: resync == NO_POSITION,
            resync: (resync != NO_POSITION).then_some(Sector(resync)),
            bitmap: h.has(BITMAP).then(|| i32::from_le_bytes(h.bitmap_or_ppl).into()),
            ppl: self.ppl(),
            journal: h.has(JOURNAL),
            reshape: h.has(RESHAPE).then(|| self.reshape()),
            raid0_layout_known: h.has(RAID0_LAYOUT),
            clustered: h.has(CLUSTERED),
            features: h.feature_map.get(),
            preferred_minor: None,
        }
    }

    fn ppl(&self) -> Option<PplArea> {
        let h = &self.header;
        let [o0, o1, s0, s1] = h.bitmap_or_ppl;
        (h.has(PPL) || h.has(MULTIPLE_PPLS)).then(|| PplArea {
            offset: i16::from_le_bytes([o0, o1]).into(),
            size: Sectors(u16::from_le_bytes([s0, s1]).into()),
            multiple: h.has(MULTIPLE_PPLS),
        })
    }

    fn reshape(&self) -> Reshape {
        let h = &self.header;
        let delta = h.delta_disks.get();
        Reshape {
            position: Sector(h.reshape_position.get()),
            new_level: h.new_level.get(),
            new_layout: h.new_layout.get(),
            new_chunk: Sectors(h.new_chunk.get().into()),
            delta_disks: delta,
            backwards: delta < 0 || delta == 0 && h.has(RESHAPE_BACKWARDS),
        }
    }

    /// What it says about the device it stands on.
    pub fn member(&self) -> MemberFacts {
        let h = &self.header;
        let role = self.role_of(h.dev_number.get());
        let recovery = Recovery { offset: Sector(h.recovery_offset.get()), by_bitmap: h.has(RECOVERY_BITMAP) };
        let log = BadBlockArea {
            offset: h.bad_block_offset.get().into(),
            size: Sectors(h.bad_block_size.get().into()),
            shift: h.bad_block_shift,
        };
        MemberFacts {
            role,
            dev_number: h.dev_number.get(),
            device_uuid: Some(MdUuid(h.device_uuid)),
            data_offset: Sector(h.data_offset.get()),
            data_size: Sectors(h.data_size.get()),
            super_offset: Sector(h.super_offset.get()),
            recovery: h.has(RECOVERY_OFFSET).then_some(recovery),
            replacement: h.has(REPLACEMENT),
            bad_block_log: (log.offset != 0).then_some(log),
            has_bad_blocks: h.has(BAD_BLOCKS),
            write_mostly: h.dev_flags & WRITE_MOSTLY != 0,
            failfast: h.dev_flags & FAILFAST != 0,
            journal_tail: (role == Role::Journal).then_some(Sector(h.recovery_offset.get())),
            corrected_reads: h.corrected_reads.get(),
            new_offset: h.has(NEW_OFFSET).then(|| h.new_offset.get().into()),
            logical_block_size: h.logical_block_size.get(),
        }
    }
}

/// NUL-padded text, not necessarily NUL-ended.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
