//! What a user can say about an array to be made, and what comes out.

use raidus_format::{MdUuid, MetadataVersion, Role, Superblock, Timestamp};
use raidus_layout::{Geometry, GeometryError};
use raidus_units::{Level, Sector, Sectors};
use thiserror::Error;

/// A new array. `None` is mdadm's default.
#[derive(Clone, Debug)]
pub struct CreateParams {
    /// Superblock format and place.
    pub metadata: MetadataVersion,
    /// RAID level.
    pub level: Level,
    /// Number of slots.
    pub raid_disks: u16,
    /// Number of spares.
    pub spares: u16,
    /// The devices, in slot order, spares last.
    pub devices: Vec<CreateDevice>,
    /// Chunk; for linear the rounding of member sizes.
    pub chunk: Option<Sectors>,
    /// md's layout number (see [`raidus_layout::names`]).
    pub layout: Option<u32>,
    /// How much of each member to use.
    pub size: Option<Sectors>,
    /// Where data starts on every member.
    pub data_offset: Option<Sectors>,
    /// Write-intent bitmap.
    pub bitmap: BitmapWish,
    /// What keeps the members consistent after a crash.
    pub policy: Option<Policy>,
    /// Most write-behind writes under way, for write-mostly members.
    pub write_behind: Option<u32>,
    /// The members are known to be consistent.
    pub assume_clean: bool,
    /// Do what is unusual: a single member; a resync instead of a rebuild for raid4 and raid5.
    pub force: bool,
    /// Name of the array.
    pub name: Option<String>,
    /// Name of this host, put before the array's name.
    pub homehost: Option<String>,
    /// Identity of the array: random.
    pub uuid: MdUuid,
    /// Now.
    pub now: Timestamp,
    /// 0.90 only: the md minor number the array would like to have.
    pub preferred_minor: u32,
}

/// A place in the list of devices.
#[derive(Clone, Debug)]
pub enum CreateDevice {
    /// Left empty.
    Missing,
    /// A device.
    Present(NewMember),
}

/// A device that becomes a member.
#[derive(Clone, Debug)]
pub struct NewMember {
    /// How the user calls it.
    pub name: String,
    /// Size of the device.
    pub size: Sectors,
    /// Identity of the member: random.
    pub uuid: MdUuid,
    /// Read only if nothing else can be read.
    pub write_mostly: bool,
    /// Fail at the first error.
    pub failfast: bool,
    /// Where its data starts, if not where that of the others does.
    pub data_offset: Option<Sectors>,
    /// Device sectors of md superblocks found on it, which have to go.
    pub old_superblocks: Vec<Sector>,
}

/// Whether there is to be a write-intent bitmap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BitmapWish {
    /// As mdadm would: on large arrays.
    #[default]
    Auto,
    /// No.
    None,
    /// In front of, or behind, the data on each member.
    Internal {
        /// Bytes per bit; `None`: chosen.
        chunk: Option<u64>,
    },
}

/// mdadm's `--consistency-policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// A full resync.
    Resync,
    /// A resync of what the bitmap marks.
    Bitmap,
    /// Replay of a partial parity log on each member (raid5).
    Ppl,
}

/// All that has to be written to make the array.
#[derive(Clone, Debug)]
pub struct CreatePlan {
    /// The mapping.
    pub geometry: Geometry,
    /// Sectors used of each member; 0 for raid0 and linear.
    pub component: Sectors,
    /// Chunk, as stored.
    pub chunk: Sectors,
    /// Layout, as stored.
    pub layout: u32,
    /// Name, as stored.
    pub name: String,
    /// Bytes per bit of the bitmap, if there is one.
    pub bitmap_chunk: Option<u64>,
    /// Whether redundancy counts as good from the start.
    pub clean: bool,
    /// What goes on each device that is there.
    pub members: Vec<MemberPlan>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// What goes on one device.
#[derive(Clone, Debug)]
pub struct MemberPlan {
    /// Index in [`CreateParams::devices`].
    pub device: usize,
    /// How the user calls it.
    pub name: String,
    /// What it becomes.
    pub role: Role,
    /// It has a slot, and is rebuilt from the other members first.
    pub rebuild: bool,
    /// Its superblock.
    pub superblock: Superblock,
    /// To be written in this order; the superblock is last, so that an interrupted creation leaves no array.
    pub writes: Vec<PlannedWrite>,
}

/// Bytes for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedWrite {
    /// What it is.
    pub what: Written,
    /// Device sector.
    pub at: Sector,
    /// A whole number of sectors.
    pub bytes: Vec<u8>,
}

/// What a planned write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Zeroes over an old superblock.
    OldSuperblock,
    /// An empty bad-block log.
    BadBlockLog,
    /// The bitmap, all ones.
    Bitmap,
    /// An empty partial parity log.
    Ppl,
    /// The superblock.
    Superblock,
}

/// Why an array cannot be made like that.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CreateError {
    /// Fewer members than the level needs.
    #[error("{level} needs at least {min} devices, not {got}")]
    TooFewDevices {
        /// The level.
        level: Level,
        /// Needed.
        min: u16,
        /// Asked for.
        got: u16,
    },
    /// One member only.
    #[error("an array of one device is unusual and probably a mistake; if it is meant, add --force")]
    SingleDevice,
    /// The list of devices is too short.
    #[error(
        "{raid_disks} devices and {spares} spares are wanted but {got} devices are listed; use 'missing' for empty slots"
    )]
    DevicesMissing {
        /// Slots.
        raid_disks: u16,
        /// Spares.
        spares: u16,
        /// Devices listed.
        got: usize,
    },
    /// The list of devices is too long.
    #[error(
        "{got} devices are listed, more than the {raid_disks} slots and {spares} spares; raise --raid-devices or \
             --spare-devices"
    )]
    DevicesTooMany {
        /// Slots.
        raid_disks: u16,
        /// Spares.
        spares: u16,
        /// Devices listed.
        got: usize,
    },
    /// A spare that is not there.
    #[error("a spare cannot be 'missing'; lower --spare-devices")]
    MissingSpare,
    /// A device listed twice.
    #[error("{0} is listed twice")]
    SameDevice(String),
    /// Not enough members to start with.
    #[error("{missing} missing devices are too many for {level}: the array would have no data")]
    MissingTooMany {
        /// The level.
        level: Level,
        /// Missing members.
        missing: usize,
    },
    /// Spares where there is nothing to rebuild.
    #[error("{0} has no redundancy and can use no spares; leave --spare-devices out")]
    NoSpares(Level),
    /// An option that means nothing for the level.
    #[error("{option} has no meaning for {level}; leave it out")]
    NotForLevel {
        /// The option.
        option: &'static str,
        /// The level.
        level: Level,
    },
    /// An option that means nothing for the metadata.
    #[error("metadata {metadata} cannot have {what}; use --metadata=1.2")]
    NotForMetadata {
        /// The format.
        metadata: MetadataVersion,
        /// What it cannot have.
        what: &'static str,
    },
    /// Options that contradict each other.
    #[error("{0}")]
    Contradiction(&'static str),
    /// The name does not fit.
    #[error("the name '{0}' is longer than 32 bytes")]
    NameTooLong(String),
    /// The chunk size is not possible.
    #[error("a chunk of {chunk} KiB is not possible for {level}: it must be {rule}")]
    Chunk {
        /// The level.
        level: Level,
        /// The chunk in KiB.
        chunk: u64,
        /// What it must be.
        rule: &'static str,
    },
    /// A device has no room for metadata and one chunk.
    #[error("{device} is too small: {usable} KiB are left beside the metadata, at least {needed} KiB are needed")]
    DeviceTooSmall {
        /// The device.
        device: String,
        /// KiB usable.
        usable: u64,
        /// KiB needed.
        needed: u64,
    },
    /// The size asked for is larger than the smallest member.
    #[error("--size={wanted} KiB is more than {device} has, the smallest device: {usable} KiB beside the metadata")]
    SizeTooLarge {
        /// The smallest device.
        device: String,
        /// KiB asked for.
        wanted: u64,
        /// KiB it has.
        usable: u64,
    },
    /// A device is larger than the format can describe.
    #[error("metadata {metadata} can use at most {max} KiB of a device; use --metadata=1.2 or give a --size")]
    SizeBeyondMetadata {
        /// The format.
        metadata: MetadataVersion,
        /// KiB.
        max: u64,
    },
    /// The data would cover the metadata.
    #[error("--data-offset={given} KiB leaves no room for the metadata of {device}: at least {min} KiB are needed")]
    DataOffsetTooSmall {
        /// The device.
        device: String,
        /// KiB given.
        given: u64,
        /// KiB needed.
        min: u64,
    },
    /// The bitmap chunk is not possible.
    #[error(
        "a bitmap chunk of {chunk} bytes is not possible: it must be a power of two of at least {min} bytes, so that the \
             bitmap fits its room"
    )]
    BitmapChunk {
        /// Bytes given.
        chunk: u64,
        /// Bytes needed.
        min: u64,
    },
    /// No room for a bitmap at all.
    #[error("the devices are too small for a bitmap; leave --bitmap out")]
    NoRoomForBitmap,
    /// More devices than the format can list.
    #[error("metadata {metadata} can list at most {max} devices, not {got}")]
    DevicesBeyondMetadata {
        /// The format.
        metadata: MetadataVersion,
        /// Most devices.
        max: usize,
        /// Asked for.
        got: usize,
    },
    /// The numbers make no array.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The bitmap cannot be made.
    #[error(transparent)]
    Bitmap(#[from] raidus_format::bitmap::BitmapError),
    /// The superblock cannot be made.
    #[error("{device}: {source}")]
    Superblock {
        /// The device.
        device: String,
        /// Why.
        source: raidus_format::SbError,
    },
}
