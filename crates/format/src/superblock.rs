//! One superblock of any version: looked at, checked, updated, written.

use crate::{
    ArrayFacts, ArrayUpdate, Checksum, Concern, DeviceState, Geometry, MemberFacts, MemberUpdate, MetadataVersion,
    NewSuperblock, ResyncMark, Role, SUPERBLOCK_BYTES, SbError,
};
use crate::{v1, v090};
use core::ops::Deref;
use raidus_units::{Sector, Sectors};

/// A recognised superblock: every accessor is safe, nothing else is promised. Good for showing it, and for
/// [`RawSuperblock::check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawSuperblock {
    /// 1.0, 1.1 or 1.2.
    V1(Box<v1::Raw>),
    /// 0.90.
    V090(v090::Raw),
}

/// A superblock that passed every check which concerns the block alone. What must be weighed against the device is in
/// [`RawSuperblock::concerns`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock(RawSuperblock);

impl RawSuperblock {
    /// Looks at the 4096 bytes found at device sector `at`, which is where `version` keeps its superblock.
    ///
    /// # Errors
    /// If this is not a superblock, or one that cannot even be shown.
    pub fn recognise(block: &[u8], version: MetadataVersion, at: Sector) -> Result<RawSuperblock, SbError> {
        match version {
            MetadataVersion::V0_90 => v090::Raw::recognise(block, at).map(RawSuperblock::V090),
            _ => v1::Raw::recognise(block, version, at).map(|sb| RawSuperblock::V1(Box::new(sb))),
        }
    }

    /// Makes every check that concerns the block alone.
    ///
    /// # Errors
    /// The first thing found wrong, in the kernel's order.
    pub fn check(self) -> Result<Superblock, SbError> {
        match &self {
            RawSuperblock::V1(sb) => sb.check()?,
            RawSuperblock::V090(sb) => sb.check()?,
        }
        Ok(Superblock(self))
    }

    /// What must be weighed against a device of this size. The kernel refuses a member for each of these.
    pub fn concerns(&self, device: Sectors) -> Vec<Concern> {
        match self {
            RawSuperblock::V1(sb) => sb.concerns(device),
            RawSuperblock::V090(sb) => sb.concerns(),
        }
    }

    /// Format and place.
    pub fn version(&self) -> MetadataVersion {
        match self {
            RawSuperblock::V1(sb) => sb.version(),
            RawSuperblock::V090(_) => MetadataVersion::V0_90,
        }
    }

    /// The byte order of the hosts that use the array, where the format tells: 0.90 is in theirs, 1.x little-endian everywhere.
    pub fn host_order(&self) -> Option<v090::ByteOrder> {
        match self {
            RawSuperblock::V1(_) => None,
            RawSuperblock::V090(sb) => Some(sb.byte_order()),
        }
    }

    /// What it says about the array.
    pub fn array(&self) -> ArrayFacts {
        match self {
            RawSuperblock::V1(sb) => sb.array(),
            RawSuperblock::V090(sb) => sb.array(),
        }
    }

    /// What it says about the device it stands on.
    pub fn member(&self) -> MemberFacts {
        match self {
            RawSuperblock::V1(sb) => sb.member(),
            RawSuperblock::V090(sb) => sb.member(),
        }
    }

    /// Update counter.
    pub fn events(&self) -> u64 {
        match self {
            RawSuperblock::V1(sb) => sb.header().events.get(),
            RawSuperblock::V090(sb) => sb.events(),
        }
    }

    /// The role of a device number; numbers past the table are spares.
    pub fn role_of(&self, dev_number: u32) -> Role {
        match self {
            RawSuperblock::V1(sb) => sb.role_of(dev_number),
            RawSuperblock::V090(sb) => sb.role_of(dev_number),
        }
    }

    /// The roles of all device numbers in the table.
    pub fn roles(&self) -> Vec<Role> {
        let len = match self {
            RawSuperblock::V1(sb) => sb.role_values().len() as u32,
            RawSuperblock::V090(_) => v090::DEVICES_MAX,
        };
        (0..len).map(|i| self.role_of(i)).collect()
    }

    /// The stored checksum and that of the content.
    pub fn checksum(&self) -> Checksum {
        match self {
            RawSuperblock::V1(sb) => sb.checksum(),
            RawSuperblock::V090(sb) => sb.checksum(),
        }
    }

    /// The block, 4096 bytes, to be written at [`MemberFacts::super_offset`].
    pub fn encode(&self) -> Vec<u8> {
        match self {
            RawSuperblock::V1(sb) => sb.encode(),
            RawSuperblock::V090(sb) => sb.encode(),
        }
    }
}

impl Superblock {
    /// [`RawSuperblock::recognise`] and [`RawSuperblock::check`].
    ///
    /// # Errors
    /// Those of both.
    pub fn parse(block: &[u8], version: MetadataVersion, at: Sector) -> Result<Superblock, SbError> {
        RawSuperblock::recognise(block, version, at)?.check()
    }

    /// A member's first superblock.
    ///
    /// # Errors
    /// [`SbError::NotStorable`], [`SbError::MaxDev`], and what [`RawSuperblock::check`] finds wrong with the values.
    pub fn create(new: &NewSuperblock) -> Result<Superblock, SbError> {
        Ok(Superblock(match new.metadata {
            MetadataVersion::V0_90 => RawSuperblock::V090(v090::create(new)?),
            _ => RawSuperblock::V1(Box::new(v1::create(new)?)),
        }))
    }

    /// One superblock round: writes what the array and this member are now, with a new checksum.
    ///
    /// # Errors
    /// [`SbError::NotStorable`] and [`SbError::MaxDev`]; the superblock is then unchanged.
    pub fn update(&mut self, array: &ArrayUpdate, member: &MemberUpdate) -> Result<(), SbError> {
        match &mut self.0 {
            RawSuperblock::V1(sb) => v1::update(sb, array, member),
            RawSuperblock::V090(sb) => v090::update(sb, array, member),
        }
    }

    /// What this superblock says, as the array-wide part of an update: updating with it changes nothing. Of other
    /// members it knows only the roles, so `write_mostly`, `failfast` and whether they are in sync have to be filled
    /// in from their own superblocks.
    pub fn array_update(&self) -> ArrayUpdate {
        let facts = self.array();
        let (mut devices, resync) = match &self.0 {
            RawSuperblock::V1(_) => (self.devices_v1(), ResyncMark::Clean { good_to: facts.resync }),
            RawSuperblock::V090(sb) => (sb.devices(), sb.resync_mark()),
        };
        let used = devices.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        devices.truncate(used);
        ArrayUpdate {
            events: facts.events,
            utime: facts.utime,
            resync,
            devices,
            bitmap: facts.bitmap,
            ppl: facts.ppl,
            journal: facts.journal,
            reshape: facts.reshape,
            geometry: Geometry {
                level: facts.level_number,
                layout: facts.layout,
                raid0_layout_known: facts.raid0_layout_known,
                size: facts.size,
                chunk: facts.chunk,
                raid_disks: facts.raid_disks,
            },
        }
    }

    fn devices_v1(&self) -> Vec<Option<DeviceState>> {
        let member = self.member();
        let known = |role| (role != Role::Spare).then_some(DeviceState::new(role));
        let mut devices: Vec<_> = self.roles().into_iter().map(known).collect();
        let own = DeviceState {
            role: member.role,
            in_sync: member.role.slot().is_some() && member.recovery.is_none(),
            write_mostly: member.write_mostly,
            failfast: member.failfast,
            node: (0, 0),
        };
        if let Some(device) = devices.get_mut(member.dev_number as usize) {
            *device = Some(own);
        }
        devices
    }

    /// What this superblock says, as the member's part of an update.
    pub fn member_update(&self) -> MemberUpdate {
        let member = self.member();
        MemberUpdate {
            dev_number: member.dev_number,
            recovery: member.recovery,
            replacement: member.replacement,
            has_bad_blocks: member.has_bad_blocks,
            corrected_reads: member.corrected_reads,
            journal_tail: member.journal_tail,
            new_offset: member.new_offset,
        }
    }
}

impl Deref for Superblock {
    type Target = RawSuperblock;

    fn deref(&self) -> &RawSuperblock {
        &self.0
    }
}

/// The first 4096 bytes.
pub(crate) fn take_block(block: &[u8]) -> Result<&[u8], SbError> {
    block.get(..SUPERBLOCK_BYTES).ok_or(SbError::Truncated { have: block.len(), need: SUPERBLOCK_BYTES })
}
