//! A running array as its texts show it: plain values, filled from wherever the array runs.

use raidus_format::{MdUuid, MetadataVersion};
use raidus_units::{Level, Sectors, Slot};

/// A running (or assembled but not started) array.
#[derive(Clone, Debug)]
pub struct ArrayView {
    /// Its short name: `md0`.
    pub name: String,
    /// Its path: `/dev/md0`.
    pub path: String,
    /// Whether it runs.
    pub state: RunState,
    /// Whether it takes writes.
    pub read_only: ReadOnly,
    /// No write is under way: the base word of `State :`.
    pub clean: bool,
    /// Superblock format; `None` for an array without superblocks.
    pub metadata: Option<MetadataVersion>,
    /// RAID level.
    pub level: Level,
    /// md's layout number.
    pub layout: u32,
    /// raid0 only: the superblocks say that `layout` is meaningful.
    pub raid0_layout_known: bool,
    /// Chunk; rounding for linear.
    pub chunk: Sectors,
    /// Number of slots.
    pub raid_disks: u16,
    /// Size of the array. Of an inactive one: the sum of its members' data sizes.
    pub array_size: Sectors,
    /// Sectors used of each member.
    pub component: Sectors,
    /// All devices, the first added first.
    pub devices: Vec<DeviceView>,
    /// Write-intent bitmap.
    pub bitmap: Option<BitmapView>,
    /// Resync, recovery or check.
    pub sync: Option<SyncView>,
    /// Reshape in progress.
    pub reshape: Option<ReshapeView>,
    /// What keeps members consistent after a crash.
    pub policy: Policy,
    /// Array identity.
    pub uuid: MdUuid,
    /// `host:name`; empty in 0.90.
    pub array_name: String,
    /// Creation, seconds since 1970.
    pub ctime: u64,
    /// Last update of the superblocks, seconds since 1970.
    pub utime: u64,
    /// Update counter.
    pub events: u64,
    /// 0.90 only: the md minor number it prefers.
    pub preferred_minor: Option<u32>,
}

/// Whether an array runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Assembled, not started.
    Inactive,
    /// Serving.
    Active,
    /// Serving what is left after a failure too many.
    Broken,
}

/// Whether an array takes writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOnly {
    /// It does.
    No,
    /// It does not.
    Yes,
    /// It will with the first write.
    Auto,
}

/// A device of the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceView {
    /// Its short name: `sdb1`.
    pub name: String,
    /// Its path.
    pub path: String,
    /// Major and minor number, if it is a block device.
    pub node: Option<(u32, u32)>,
    /// Its number in the array.
    pub dev_number: u32,
    /// What it does.
    pub role: DeviceRole,
    /// Read only if nothing else can be read.
    pub write_mostly: bool,
    /// Fails at the first error.
    pub failfast: bool,
}

/// What a device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceRole {
    /// Holds its slot's data.
    InSync(Slot),
    /// Is rebuilt.
    Rebuilding(Slot),
    /// Is rebuilt beside the slot's present holder.
    Replacing(Slot),
    /// Waits.
    Spare,
    /// Failed; the slot it had, if still attached to it.
    Faulty,
    /// Write journal.
    Journal,
}

/// The write-intent bitmap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitmapView {
    /// Pages of counters in use (2048 chunks each).
    pub pages: u64,
    /// All pages of counters.
    pub pages_total: u64,
    /// Bytes per bit.
    pub chunk: u64,
    /// Path of an external bitmap.
    pub file: Option<String>,
}

/// A synchronisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncView {
    /// Under way. All in KiB.
    Running {
        /// Which.
        action: SyncAction,
        /// Done.
        done: u64,
        /// To do in all.
        total: u64,
        /// Done per second, lately.
        speed: u64,
    },
    /// Waits for another array on the same devices.
    Delayed(SyncAction),
    /// Wanted, but the array is read-only or frozen.
    Pending(SyncAction),
}

/// Kinds of synchronisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncAction {
    /// Members made equal.
    Resync,
    /// A member rebuilt.
    Recovery,
    /// Members compared.
    Check,
    /// Geometry changed.
    Reshape,
}

/// A reshape's target where it differs from the array's present shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReshapeView {
    /// Slots more (or less) than before.
    pub delta_disks: i32,
    /// New level.
    pub level: Level,
    /// New layout.
    pub layout: u32,
    /// New chunk.
    pub chunk: Sectors,
}

/// `Consistency Policy :`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Nothing to keep consistent.
    None,
    /// A full resync.
    Resync,
    /// A resync of marked chunks.
    Bitmap,
    /// Write journal.
    Journal,
    /// Partial parity log.
    Ppl,
}

impl ArrayView {
    /// The metadata version as shown: 0.90 takes another number while it reshapes.
    pub(crate) fn version(&self) -> Option<&'static str> {
        match self.metadata? {
            MetadataVersion::V0_90 if self.reshape.is_some() => Some("0.91"),
            version => Some(version.name()),
        }
    }

    /// The in-sync holder of a slot.
    pub(crate) fn in_sync(&self, slot: Slot) -> bool {
        self.devices.iter().any(|d| d.role == DeviceRole::InSync(slot))
    }

    /// Slots that are in sync.
    pub(crate) fn working_slots(&self) -> usize {
        (0..self.raid_disks).filter(|s| self.in_sync(Slot(*s))).count()
    }

    /// Whether the array has all its data.
    pub(crate) fn enough(&self) -> bool {
        let missing = usize::from(self.raid_disks) - self.working_slots();
        match self.level {
            Level::Linear | Level::Raid0 => missing == 0,
            Level::Raid1 => missing < usize::from(self.raid_disks),
            Level::Raid4 | Level::Raid5 | Level::Raid6 => missing <= usize::from(self.level.parities()),
            Level::Raid10 => self.raid10_enough(),
        }
    }

    /// In each run of slots that hold copies of the same data there is one in sync.
    fn raid10_enough(&self) -> bool {
        let near = usize::from(self.layout as u8).max(1);
        let copies = near * usize::from((self.layout >> 8) as u8).max(1);
        let n = usize::from(self.raid_disks);
        let there: Vec<bool> = (0..self.raid_disks).map(|s| self.in_sync(Slot(s))).collect();
        (0..n).step_by(near).all(|first| (0..copies).any(|k| there[(first + k) % n]))
    }
}

impl SyncAction {
    /// mdstat's word.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            SyncAction::Resync => "resync",
            SyncAction::Recovery => "recovery",
            SyncAction::Check => "check",
            SyncAction::Reshape => "reshape",
        }
    }
}
