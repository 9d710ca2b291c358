//! A running array as the user sees it: mdadm's view for texts, plain data for programs.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use raidus_assembly::Assembled;
use raidus_engine::control::{ArrayState, Status};

use raidus_engine::{Member, MemberState, SyncAction};
use raidus_format::{MetadataVersion, Superblock};
use raidus_runtime::members::MemberDevice;
use raidus_text::{ArrayView, BitmapView, DeviceRole, DeviceView, Policy, ReadOnly, RunState, SyncView};
use raidus_units::{MemberId, SECTOR_BYTES};
use serde::{Deserialize, Serialize};

/// What stays the same while an array runs. With a [`Status`] it gives a picture of the moment.
pub struct Portrait {
    /// The name it runs under.
    pub name: String,
    /// Where its data can be had: mdadm shows a device node there.
    pub path: PathBuf,
    /// What was decided.
    pub assembled: Assembled,
    /// Nothing is written to members: what is written goes to overlays.
    pub overlay: bool,
    /// By member id; members only ever join.
    members: RwLock<Vec<Place>>,
    /// When superblocks were last written, seconds since 1970.
    updated: AtomicU64,
}

/// Where a member is, and what it was when it joined.
#[derive(Clone, Debug)]
pub struct Place {
    /// As the user called it.
    pub path: PathBuf,
    /// The same, wherever this process stands.
    pub absolute: PathBuf,
    /// Major and minor number, if it is a block device.
    pub node: Option<(u32, u32)>,
    /// Its superblock.
    pub superblock: Superblock,
}

impl Place {
    /// Of a device that is (about to be) a member.
    pub fn new(device: &MemberDevice, superblock: Superblock) -> Place {
        let path = device.name().to_owned();
        let absolute = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
        Place { path, absolute, node: device.device_number(), superblock }
    }

    /// Whether this path leads to it.
    pub fn is_at(&self, path: &Path) -> bool {
        let real = |path: &Path| std::fs::canonicalize(path).ok();
        self.absolute == path || real(path).is_some_and(|path| real(&self.absolute) == Some(path))
    }

    /// Whether the user means it by this word: a path as it was given, or its name in mdstat and sysfs.
    pub fn is_called(&self, word: &Path) -> bool {
        self.path == word || word.to_str().is_some_and(|word| word == self.short_name())
    }

    /// As mdstat calls it.
    pub fn short_name(&self) -> String {
        short_name(&self.path)
    }

    /// Whether there is nothing any more where it was.
    pub fn is_detached(&self) -> bool {
        // A device node without a device behind it cannot be opened; one that is in use can be looked at.
        match std::fs::File::open(&self.absolute) {
            Ok(_) => false,
            Err(e) => {
                let gone = [rustix::io::Errno::NXIO, rustix::io::Errno::NODEV, rustix::io::Errno::NOENT];
                gone.iter().any(|errno| e.raw_os_error() == Some(errno.raw_os_error()))
            }
        }
    }
}

impl Portrait {
    /// Of an array that is about to start on these devices, which are in the order of its member ids.
    pub fn new(name: &str, path: PathBuf, assembled: Assembled, devices: &[MemberDevice], overlay: bool) -> Portrait {
        let seated = devices.iter().zip(&assembled.members);
        let members = seated.map(|(device, seated)| Place::new(device, seated.superblock.clone())).collect();
        let updated = AtomicU64::new(assembled.array.utime.secs);
        Portrait { name: name.to_owned(), path, members: RwLock::new(members), assembled, overlay, updated }
    }

    /// Superblocks were written at this time.
    pub fn set_updated(&self, seconds: u64) {
        self.updated.store(seconds, Ordering::Relaxed);
    }

    /// A device is joining; its member id will be the next.
    pub fn join(&self, place: Place) {
        self.members.write().unwrap_or_else(PoisonError::into_inner).push(place);
    }

    /// The last one did not.
    pub fn did_not_join(&self) {
        self.members.write().unwrap_or_else(PoisonError::into_inner).pop();
    }

    /// Where each member is, by id.
    pub fn places(&self) -> Vec<Place> {
        self.members.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The path of a member.
    pub fn member(&self, id: MemberId) -> PathBuf {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        members.get(id.index()).map_or_else(|| PathBuf::from("?"), |place| place.path.clone())
    }

    /// As mdadm and mdstat show it.
    pub fn view(&self, status: &Status) -> ArrayView {
        let facts = &self.assembled.array;
        let geometry = &self.assembled.geometry;
        let policy = match geometry.level().is_redundant() {
            false => Policy::None,
            true if status.bitmap.is_some() => Policy::Bitmap,
            true if facts.ppl.is_some() => Policy::Ppl,
            true if facts.journal => Policy::Journal,
            true => Policy::Resync,
        };
        ArrayView {
            name: self.name.clone(),
            path: self.path.display().to_string(),
            state: if status.map.broken { RunState::Broken } else { RunState::Active },
            read_only: match status.array_state {
                _ if status.map.read_only => ReadOnly::Yes,
                ArrayState::ReadAuto => ReadOnly::Auto,
                _ => ReadOnly::No,
            },
            clean: is_clean(status),
            metadata: Some(facts.metadata),
            level: geometry.level(),
            layout: facts.layout,
            raid0_layout_known: facts.raid0_layout_known,
            chunk: geometry.chunk(),
            raid_disks: geometry.raid_disks(),
            array_size: geometry.array_sectors(),
            component: geometry.component_sectors(),
            devices: self.devices(status),
            bitmap: status.bitmap.map(|b| BitmapView {
                pages: b.pages_used,
                pages_total: b.pages,
                chunk: b.chunk.bytes(),
                file: None,
            }),
            sync: sync_view(status),
            reshape: None,
            policy,
            uuid: facts.uuid,
            array_name: facts.name.clone(),
            ctime: facts.ctime.secs,
            utime: self.updated.load(Ordering::Relaxed),
            events: status.events,
            preferred_minor: facts.preferred_minor,
        }
    }

    /// In the order in which mdadm adds devices: the first slot's last, then spares.
    fn devices(&self, status: &Status) -> Vec<DeviceView> {
        let places = self.places();
        let mut devices: Vec<(DeviceView, Option<u16>)> = (0..)
            .map(MemberId)
            .zip(status.map.members.iter().zip(&places))
            .filter_map(|(id, (member, place))| device(id, member, place, status))
            .collect();
        devices.sort_by_key(|(device, slot)| match slot {
            Some(0) => (1, 0, device.dev_number),
            Some(slot) => (0, *slot, device.dev_number),
            None => (2, 0, device.dev_number),
        });
        devices.into_iter().map(|(device, _)| device).collect()
    }

    /// As plain data.
    pub fn report(&self, status: &Status) -> ArrayReport {
        let facts = &self.assembled.array;
        let geometry = &self.assembled.geometry;
        let level = geometry.level();
        ArrayReport {
            name: self.name.clone(),
            array_name: facts.name.clone(),
            uuid: facts.uuid.to_string(),
            array_state: status.array_state.name().to_owned(),
            level: level.to_string(),
            layout: raidus_layout::names::text(level, facts.layout).map(|t| t.to_string()),
            chunk_bytes: geometry.chunk().bytes(),
            metadata: facts.metadata.to_string(),
            raid_disks: geometry.raid_disks(),
            degraded: status.map.degraded(),
            array_bytes: geometry.array_sectors().bytes(),
            component_bytes: geometry.component_sectors().bytes(),
            events: status.events,
            read_only: status.map.read_only,
            overlay: self.overlay,
            resync_from_sector: status.map.unsynced_from.map(|s| s.0),
            bitmap: status.bitmap.map(|b| BitmapReport {
                chunk_bytes: b.chunk.bytes(),
                bits: b.bits,
                dirty: b.dirty,
                events_cleared: b.events_cleared,
            }),
            members: self.member_reports(status),
            counters: CounterReport {
                superblock_rounds: status.counters.superblock_rounds,
                bitmap_pages: status.counters.bitmap_pages,
                flush_rounds: status.counters.flush_rounds,
            },
            sync: SyncReport::of(status),
            nbd: Vec::new(),
            pid: std::process::id(),
        }
    }

    fn member_reports(&self, status: &Status) -> Vec<MemberReport> {
        let places = self.places();
        let members = status.map.members.iter().zip(&places);
        let report = |(member, place): (&Member, &Place)| MemberReport {
            device: place.path.display().to_string(),
            number: number(member, place),
            slot: slot_of(member.state),
            state: state_word(member.state).to_owned(),
            valid_to_sector: match member.state {
                MemberState::Rebuilding { valid_to, .. } => Some(valid_to.0),
                _ => None,
            },
            write_mostly: member.write_mostly,
            data_offset_bytes: member.data_offset.0.saturating_mul(SECTOR_BYTES),
        };
        members.filter(|(member, _)| member.state != MemberState::Removed).map(report).collect()
    }
}

fn device(id: MemberId, member: &Member, place: &Place, status: &Status) -> Option<(DeviceView, Option<u16>)> {
    let replaces = status.map.slots.iter().any(|entry| entry.replacement == Some(id));
    let role = match member.state {
        MemberState::InSync(slot) => DeviceRole::InSync(slot),
        MemberState::Rebuilding { slot, .. } if replaces => DeviceRole::Replacing(slot),
        MemberState::Rebuilding { slot, .. } => DeviceRole::Rebuilding(slot),
        MemberState::Spare => DeviceRole::Spare,
        MemberState::Journal => DeviceRole::Journal,
        MemberState::Faulty => DeviceRole::Faulty,
        MemberState::Removed => return None,
    };
    let view = device_view(&place.path, place.node, &place.superblock, role);
    let (dev_number, write_mostly) = (number(member, place), member.write_mostly);
    Some((DeviceView { dev_number, write_mostly, ..view }, slot_of(member.state)))
}

/// A member's number in the array. 0.90 gives the holder of a slot the slot's.
pub fn number(member: &Member, place: &Place) -> u32 {
    let renumbers = place.superblock.version() == MetadataVersion::V0_90;
    match member.state {
        MemberState::InSync(slot) if renumbers => slot.0.into(),
        _ => place.superblock.member().dev_number,
    }
}

/// md's word for what is being synced.
pub fn sync_action(status: &Status) -> &'static str {
    match status.sync.action {
        Some(action) => action.name(),
        None if status.sync.frozen => "frozen",
        // Asked for, and about to begin.
        None => status.sync.requested.map_or("idle", SyncAction::name),
    }
}

/// md's word for what was synced last.
pub fn last_sync_action(status: &Status) -> &'static str {
    status.sync.last.as_ref().map_or("none", |end| end.action.process_name())
}

fn sync_view(status: &Status) -> Option<SyncView> {
    let Some(action) = status.sync.action else {
        // Wanted, and not running.
        let pending = status.map.unsynced_from.map(|_| SyncView::Pending(raidus_text::SyncAction::Resync));
        let delayed = status.sync.requested.map(|action| SyncView::Delayed(text_action(action)));
        return pending.or(delayed.filter(|_| !status.sync.frozen));
    };
    let sync = &status.sync;
    let action = text_action(action);
    Some(SyncView::Running { action, done: sync.done.kib(), total: sync.total.kib(), speed: sync.kib_per_second })
}

fn text_action(action: SyncAction) -> raidus_text::SyncAction {
    match action {
        // In mdstat a repair is a resync.
        SyncAction::Resync | SyncAction::Repair => raidus_text::SyncAction::Resync,
        SyncAction::Recover => raidus_text::SyncAction::Recovery,
        SyncAction::Check => raidus_text::SyncAction::Check,
    }
}

/// A running array, for programs: what `status --json` prints per array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayReport {
    /// The name it runs under.
    pub name: String,
    /// `host:name` from the superblocks.
    pub array_name: String,
    /// Identity, as md writes it.
    pub uuid: String,
    /// md's word: `clean`, `active`, `readonly`, `broken` …
    pub array_state: String,
    /// `raid5`.
    pub level: String,
    /// `left-symmetric`, `near=2`.
    pub layout: Option<String>,
    /// Chunk; 0 for raid1.
    pub chunk_bytes: u64,
    /// `1.2`.
    pub metadata: String,
    /// Number of slots.
    pub raid_disks: u16,
    /// Slots without an in-sync member.
    pub degraded: usize,
    /// Size of the array.
    pub array_bytes: u64,
    /// Used of each member.
    pub component_bytes: u64,
    /// Update counter.
    pub events: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// Nothing is written to members.
    pub overlay: bool,
    /// From here on redundancy needs a resync.
    pub resync_from_sector: Option<u64>,
    /// Write-intent bitmap.
    pub bitmap: Option<BitmapReport>,
    /// Members, in the order of the daemon's member numbers.
    pub members: Vec<MemberReport>,
    /// Work done since the start.
    pub counters: CounterReport,
    /// Resync, recovery, check and repair.
    pub sync: SyncReport,
    /// NBD URIs.
    pub nbd: Vec<String>,
    /// The process that runs it.
    pub pid: u32,
}

/// What is being synced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncReport {
    /// md's `sync_action`: `idle`, `frozen`, `resync`, `recover`, `check`, `repair`.
    pub action: String,
    /// Sectors done: of each member, or for the resync of raid10 of the array.
    pub done_sectors: u64,
    /// Sectors to do.
    pub total_sectors: u64,
    /// KiB per second and member.
    pub kib_per_second: u64,
    /// md's `mismatch_cnt`.
    pub mismatch_sectors: u64,
    /// md's `last_sync_action`.
    pub last_action: String,
}

impl SyncReport {
    fn of(status: &Status) -> SyncReport {
        let sync = &status.sync;
        SyncReport {
            action: sync_action(status).to_owned(),
            done_sectors: sync.done.0,
            total_sectors: sync.total.0,
            kib_per_second: sync.kib_per_second,
            mismatch_sectors: sync.mismatch_sectors,
            last_action: last_sync_action(status).to_owned(),
        }
    }
}

/// A write-intent bitmap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BitmapReport {
    /// Covered by a bit.
    pub chunk_bytes: u64,
    /// Bits.
    pub bits: u64,
    /// Bits set.
    pub dirty: u64,
    /// Events when a bit was last cleared for good.
    pub events_cleared: u64,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberReport {
    /// Path.
    pub device: String,
    /// md's device number.
    pub number: u32,
    /// Slot, if it has one.
    pub slot: Option<u16>,
    /// `in_sync`, `rebuilding`, `spare`, `faulty`.
    pub state: String,
    /// A rebuilding member is good below this component sector.
    pub valid_to_sector: Option<u64>,
    /// Read only if nothing else can be read.
    pub write_mostly: bool,
    /// Where its data begins.
    pub data_offset_bytes: u64,
}

/// Metadata work since the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterReport {
    /// Rounds of superblock writes.
    pub superblock_rounds: u64,
    /// Bitmap pages written.
    pub bitmap_pages: u64,
    /// Rounds of flushes.
    pub flush_rounds: u64,
}

/// A device for mdadm's texts.
pub fn device_view(path: &Path, node: Option<(u32, u32)>, superblock: &Superblock, role: DeviceRole) -> DeviceView {
    let facts = superblock.member();
    DeviceView {
        name: short_name(path),
        path: path.display().to_string(),
        node,
        dev_number: facts.dev_number,
        role,
        write_mostly: facts.write_mostly,
        failfast: facts.failfast,
    }
}

/// The last part of a path, without what would confuse readers of mdstat.
fn short_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    name.chars().map(|c| if c.is_whitespace() || c.is_control() || "[]()".contains(c) { '_' } else { c }).collect()
}

/// A member's slot, if it has one.
pub fn slot_of(state: MemberState) -> Option<u16> {
    match state {
        MemberState::InSync(slot) | MemberState::Rebuilding { slot, .. } => Some(slot.0),
        MemberState::Spare | MemberState::Journal | MemberState::Faulty | MemberState::Removed => None,
    }
}

fn state_word(state: MemberState) -> &'static str {
    match state {
        MemberState::InSync(_) => "in_sync",
        MemberState::Rebuilding { .. } => "rebuilding",
        MemberState::Spare => "spare",
        MemberState::Journal => "journal",
        MemberState::Faulty => "faulty",
        MemberState::Removed => "removed",
    }
}

/// md calls an array clean as long as its superblocks do.
fn is_clean(status: &Status) -> bool {
    match status.array_state {
        ArrayState::Clean | ArrayState::ReadAuto | ArrayState::ReadOnly | ArrayState::Clear => true,
        ArrayState::Suspended => status.clean,
        ArrayState::Active | ArrayState::ActiveIdle | ArrayState::WritePending | ArrayState::Broken => false,
    }
}
