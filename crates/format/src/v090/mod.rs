//! Superblock 0.90: 1024 words in the byte order of the host that made it.

mod words;
mod write;

pub use words::{ByteOrder, Descriptor};
pub(crate) use write::{create, edit, update};

use crate::superblock::take_block;
use crate::{
    ArrayFacts, Checksum, Concern, DeviceState, MD_MAGIC, MdUuid, MemberFacts, MetadataVersion, Recovery, Reshape,
    ResyncMark, Role, SbError, Timestamp,
};
use raidus_units::{Level, Sector, Sectors, Slot};
use words::*;

/// Most devices the table can hold, failed and spare ones included.
pub const DEVICES_MAX: u32 = 27;
/// The internal bitmap stands this many sectors behind the superblock.
pub const BITMAP_OFFSET: i64 = 8;

/// Descriptor state: failed.
pub const DISK_FAULTY: u32 = 1 << 0;
/// Descriptor state: has a slot.
pub const DISK_ACTIVE: u32 = 1 << 1;
/// Descriptor state: with whole data.
pub const DISK_SYNC: u32 = 1 << 2;
/// Descriptor state: nobody has this number.
pub const DISK_REMOVED: u32 = 1 << 3;
/// Descriptor state: read only if nothing else can be read.
pub const DISK_WRITE_MOSTLY: u32 = 1 << 9;
/// Descriptor state: fail at the first error.
pub const DISK_FAILFAST: u32 = 1 << 10;

/// Array state: clean.
pub const STATE_CLEAN: u32 = 1 << 0;
/// Array state: internal bitmap present.
pub const STATE_BITMAP: u32 = 1 << 8;

/// Minor version while a reshape is running; older kernels then keep off.
const MINOR_RESHAPING: u32 = 91;

/// A block with md's magic number, version 0.90 or 0.91: safe to look at, not yet to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw {
    at: Sector,
    order: ByteOrder,
    words: Words,
}

/// The counts kept for human readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// All devices in the table.
    pub total: u32,
    /// Those with a slot.
    pub active: u32,
    /// Active and spare.
    pub working: u32,
    /// Slots without a device.
    pub failed: u32,
    /// Spares, and devices being rebuilt.
    pub spare: u32,
}

impl Raw {
    /// Looks at a block found at device sector `at`.
    ///
    /// # Errors
    /// [`SbError::Truncated`], [`SbError::NoMagic`], [`SbError::UnsupportedVersion`].
    pub fn recognise(block: &[u8], at: Sector) -> Result<Raw, SbError> {
        let block = take_block(block)?;
        let order = ByteOrder::ALL.into_iter().find(|order| Words::decode(block, *order)[MAGIC] == MD_MAGIC);
        let found = Words::decode(block, ByteOrder::Little)[MAGIC];
        let order = order.ok_or(SbError::NoMagic { found })?;
        let words = Words::decode(block, order);
        let (major, minor) = (words[MAJOR], words[MINOR]);
        if major != 0 || !(90..=MINOR_RESHAPING).contains(&minor) {
            return Err(SbError::UnsupportedVersion { major, minor });
        }
        Ok(Raw { at, order, words })
    }

    /// Every check that concerns the block alone.
    ///
    /// # Errors
    /// [`SbError::BadChecksum`], [`SbError::NoSlots`], [`SbError::MaxDev`].
    pub fn check(&self) -> Result<(), SbError> {
        let checksum = self.checksum();
        // md has summed in different ways over time; folded to 16 bits they all agree, and that is what it compares.
        if fold(checksum.stored) != fold(checksum.computed) {
            return Err(SbError::BadChecksum(checksum));
        }
        let raid_disks = self.words[RAID_DISKS];
        if raid_disks == 0 {
            return Err(SbError::NoSlots);
        }
        if raid_disks > DEVICES_MAX {
            return Err(SbError::MaxDev { found: raid_disks, max: DEVICES_MAX });
        }
        Ok(())
    }

    /// What must be weighed against the device.
    pub fn concerns(&self) -> Vec<Concern> {
        let used = Sector(self.array().size.0);
        // Linear and raid0 use what is before the superblock, whatever `size` says.
        if self.words[LEVEL].cast_signed() > 0 && used > self.at {
            return vec![Concern::DataBeyondDevice { end: used, limit: self.at }];
        }
        Vec::new()
    }

    /// The stored checksum and that of the content.
    pub fn checksum(&self) -> Checksum {
        let stored = self.words[CHECKSUM];
        // 1024 words of 32 bits cannot overflow 64 bits.
        let sum = self.words.iter().map(|word| u64::from(*word)).sum::<u64>() - u64::from(stored);
        Checksum { stored, computed: (sum as u32).wrapping_add((sum >> 32) as u32) }
    }

    /// Byte order of the host that made it.
    pub const fn byte_order(&self) -> ByteOrder {
        self.order
    }

    /// The stored word `index` (0 … 1023), in host order.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn word(&self, index: usize) -> u32 {
        self.words[index]
    }

    /// Where it was found.
    pub const fn at(&self) -> Sector {
        self.at
    }

    /// The counts kept for human readers.
    pub fn counts(&self) -> Counts {
        let [active, working, failed, spare] = [ACTIVE, ACTIVE + 1, ACTIVE + 2, ACTIVE + 3].map(|i| self.words[i]);
        Counts { total: self.words[NR_DISKS], active, working, failed, spare }
    }

    /// Descriptor of a device number.
    pub fn descriptor(&self, dev_number: u32) -> Option<Descriptor> {
        (dev_number < DEVICES_MAX).then(|| Descriptor::read(&self.words, DISKS + DESCRIPTOR * dev_number as usize))
    }

    /// The descriptor of the device it stands on, as stored apart from the table.
    pub fn this_disk(&self) -> Descriptor {
        Descriptor::read(&self.words, THIS_DISK)
    }

    /// The role of a device number; numbers past the table are spares.
    pub fn role_of(&self, dev_number: u32) -> Role {
        let Some(disk) = self.descriptor(dev_number) else { return Role::Spare };
        if disk.state & DISK_REMOVED != 0 {
            Role::Spare
        } else if disk.state & DISK_FAULTY != 0 {
            Role::Faulty
        } else if disk.state & (DISK_ACTIVE | DISK_SYNC) != 0 && disk.raid_disk < self.words[RAID_DISKS] {
            // At most 26 in a checked superblock; in an unchecked one whatever fits.
            u16::try_from(disk.raid_disk).map_or(Role::Spare, |slot| Role::Slot(Slot(slot)))
        } else {
            Role::Spare
        }
    }

    /// The block, 4096 bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.words.encode(self.order)
    }

    /// Update counter.
    pub fn events(&self) -> u64 {
        self.words.u64(EVENTS, self.order)
    }

    /// What it says about the array.
    pub fn array(&self) -> ArrayFacts {
        let w = &self.words;
        let level_number = w[LEVEL].cast_signed();
        ArrayFacts {
            metadata: MetadataVersion::V0_90,
            uuid: self.uuid(),
            name: String::new(),
            level_number,
            level: Level::from_number(level_number),
            layout: w[LAYOUT],
            size: Sectors::from_kib(w[SIZE].into()),
            chunk: Sectors::from_bytes_floor(w[CHUNK].into()),
            raid_disks: w[RAID_DISKS],
            ctime: Timestamp::from_secs(w[CTIME].into()),
            utime: Timestamp::from_secs(w[UTIME].into()),
            events: self.events(),
            clean: w[STATE] & STATE_CLEAN != 0,
            resync: self.resync(),
            bitmap: (w[STATE] & STATE_BITMAP != 0).then_some(BITMAP_OFFSET),
            ppl: None,
            journal: false,
            reshape: self.reshape(),
            raid0_layout_known: false,
            clustered: false,
            features: 0,
            preferred_minor: Some(w[PREFERRED_MINOR]),
        }
    }

    fn uuid(&self) -> MdUuid {
        let w = &self.words;
        MdUuid::from_words([w[UUID_FIRST], w[UUID_REST], w[UUID_REST + 1], w[UUID_REST + 2]])
    }

    /// The checkpoint counts only if it was written together with the events; mdadm leaves 0 there on a clean array.
    fn resync(&self) -> Option<Sector> {
        let checkpoint = self.words[RECOVERY_CP];
        let is_current = self.events() == self.words.u64(CP_EVENTS, self.order);
        let clean = self.words[STATE] & STATE_CLEAN != 0;
        match (clean, is_current) {
            (true, true) if self.events() != 0 && checkpoint != u32::MAX => Some(Sector(checkpoint.into())),
            (true, _) => None,
            (false, true) if checkpoint == u32::MAX => None,
            (false, true) => Some(Sector(checkpoint.into())),
            (false, false) => Some(Sector::ZERO),
        }
    }

    fn reshape(&self) -> Option<Reshape> {
        let w = &self.words;
        let delta_disks = w[DELTA_DISKS].cast_signed();
        (w[MINOR] == MINOR_RESHAPING).then(|| Reshape {
            position: Sector(w.u64(RESHAPE_POSITION, self.order)),
            new_level: w[NEW_LEVEL].cast_signed(),
            new_layout: w[NEW_LAYOUT],
            new_chunk: Sectors::from_bytes_floor(w[NEW_CHUNK].into()),
            delta_disks,
            backwards: delta_disks < 0,
        })
    }

    /// What it says about the device it stands on.
    pub fn member(&self) -> MemberFacts {
        let dev_number = self.this_disk().number;
        let role = self.role_of(dev_number);
        let state = self.descriptor(dev_number).map_or(0, |disk| disk.state);
        // How far it is rebuilt has no place in this format.
        let rebuilding = role.slot().is_some() && state & DISK_SYNC == 0;
        MemberFacts {
            role,
            dev_number,
            device_uuid: None,
            data_offset: Sector::ZERO,
            data_size: self.at.from_start(),
            super_offset: self.at,
            recovery: rebuilding.then_some(Recovery { offset: Sector::ZERO, by_bitmap: false }),
            replacement: false,
            bad_block_log: None,
            has_bad_blocks: false,
            write_mostly: state & DISK_WRITE_MOSTLY != 0,
            failfast: state & DISK_FAILFAST != 0,
            journal_tail: None,
            corrected_reads: 0,
            new_offset: None,
            logical_block_size: self.words[LOGICAL_BLOCK_SIZE],
        }
    }

    /// The device table as an update takes it.
    pub(crate) fn devices(&self) -> Vec<Option<DeviceState>> {
        let state = |number| {
            let disk = self.descriptor(number)?;
            let is_empty = disk == Descriptor::default() || disk.state & DISK_REMOVED != 0;
            (!is_empty).then_some(DeviceState {
                role: self.role_of(number),
                in_sync: disk.state & DISK_SYNC != 0,
                write_mostly: disk.state & DISK_WRITE_MOSTLY != 0,
                failfast: disk.state & DISK_FAILFAST != 0,
                node: (disk.major, disk.minor),
            })
        };
        (0..DEVICES_MAX).map(state).collect()
    }

    /// Clean or dirty as an update takes it.
    pub(crate) fn resync_mark(&self) -> ResyncMark {
        let checkpointed = self.words.u64(CP_EVENTS, self.order) == self.events();
        if self.words[STATE] & STATE_CLEAN != 0 || checkpointed {
            ResyncMark::Clean { good_to: self.resync() }
        } else {
            ResyncMark::Dirty
        }
    }
}

fn fold(sum: u32) -> u32 {
    let once = (sum & 0xffff) + (sum >> 16);
    (once & 0xffff) + (once >> 16)
}
