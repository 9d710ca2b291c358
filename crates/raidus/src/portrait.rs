//! A running array as the user sees it: mdadm's view for texts, plain data for programs.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use raidus_assembly::Assembled;
use raidus_engine::control::{ArrayState, Status};
use raidus_engine::{Member, MemberState};
use raidus_format::Superblock;
use raidus_runtime::members::MemberDevice;
use raidus_text::{ArrayView, BitmapView, DeviceRole, DeviceView, Policy, ReadOnly, RunState, SyncAction, SyncView};
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
    members: Vec<Place>,
    /// When superblocks were last written, seconds since 1970.
    updated: AtomicU64,
}

/// Where a member is.
struct Place {
    path: PathBuf,
    node: Option<(u32, u32)>,
}

impl Portrait {
    /// Of an array that is about to start on these devices, which are in the order of its member ids.
    pub fn new(name: &str, path: PathBuf, assembled: Assembled, devices: &[MemberDevice], overlay: bool) -> Portrait {
        let place = |d: &MemberDevice| Place { path: d.name().to_owned(), node: d.device_number() };
        let updated = AtomicU64::new(assembled.array.utime.secs);
        Portrait {
            name: name.to_owned(),
            path,
            members: devices.iter().map(place).collect(),
            assembled,
            overlay,
            updated,
        }
    }

    /// Superblocks were written at this time.
    pub fn set_updated(&self, seconds: u64) {
        self.updated.store(seconds, Ordering::Relaxed);
    }

    /// The path of a member.
    pub fn member(&self, id: MemberId) -> &Path {
        self.members.get(id.index()).map_or(Path::new("?"), |place| &place.path)
    }

    /// As mdadm and mdstat show it.
    pub fn view(&self, status: &Status) -> ArrayView {
        let facts = &self.assembled.array;
        let geometry = &self.assembled.geometry;
        let policy = match geometry.level().is_redundant() {
            false => Policy::None,
            true if status.bitmap.is_some() => Policy::Bitmap,
            true if facts.ppl.is_some() => Policy::Ppl,
            true => Policy::Resync,
        };
        ArrayView {
            name: self.name.clone(),
            path: self.path.display().to_string(),
            state: if status.map.broken { RunState::Broken } else { RunState::Active },
            read_only: if status.map.read_only { ReadOnly::Yes } else { ReadOnly::No },
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
            // Wanted, and not running.
            sync: status.map.unsynced_from.map(|_| SyncView::Pending(SyncAction::Resync)),
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
        let mut devices: Vec<(DeviceView, Option<u16>)> = (0..)
            .map(MemberId)
            .zip(&status.map.members)
            .filter_map(|(id, member)| self.device(id, member, status))
            .collect();
        devices.sort_by_key(|(device, slot)| match slot {
            Some(0) => (1, 0, device.dev_number),
            Some(slot) => (0, *slot, device.dev_number),
            None => (2, 0, device.dev_number),
        });
        devices.into_iter().map(|(device, _)| device).collect()
    }

    fn device(&self, id: MemberId, member: &Member, status: &Status) -> Option<(DeviceView, Option<u16>)> {
        let place = self.members.get(id.index())?;
        let superblock = &self.assembled.members.get(id.index())?.superblock;
        let replaces = status.map.slots.iter().any(|entry| entry.replacement == Some(id));
        let role = match member.state {
            MemberState::InSync(slot) => DeviceRole::InSync(slot),
            MemberState::Rebuilding { slot, .. } if replaces => DeviceRole::Replacing(slot),
            MemberState::Rebuilding { slot, .. } => DeviceRole::Rebuilding(slot),
            MemberState::Spare => DeviceRole::Spare,
            MemberState::Faulty => DeviceRole::Faulty,
        };
        let view = device_view(&place.path, place.node, superblock, role);
        Some((view, slot_of(member.state)))
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
            nbd: Vec::new(),
            pid: std::process::id(),
        }
    }

    fn member_reports(&self, status: &Status) -> Vec<MemberReport> {
        let members = status.map.members.iter().zip(&self.members).zip(&self.assembled.members);
        let report = |((member, place), seated): ((&Member, &Place), &raidus_assembly::Seated)| {
            let facts = seated.superblock.member();
            MemberReport {
                device: place.path.display().to_string(),
                number: facts.dev_number,
                slot: slot_of(member.state),
                state: state_word(member.state).to_owned(),
                valid_to_sector: match member.state {
                    MemberState::Rebuilding { valid_to, .. } => Some(valid_to.0),
                    _ => None,
                },
                write_mostly: member.write_mostly,
                data_offset_bytes: member.data_offset.0.saturating_mul(SECTOR_BYTES),
            }
        };
        members.map(report).collect()
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
    /// NBD URIs.
    pub nbd: Vec<String>,
    /// The process that runs it.
    pub pid: u32,
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

fn slot_of(state: MemberState) -> Option<u16> {
    match state {
        MemberState::InSync(slot) | MemberState::Rebuilding { slot, .. } => Some(slot.0),
        MemberState::Spare | MemberState::Faulty => None,
    }
}

fn state_word(state: MemberState) -> &'static str {
    match state {
        MemberState::InSync(_) => "in_sync",
        MemberState::Rebuilding { .. } => "rebuilding",
        MemberState::Spare => "spare",
        MemberState::Faulty => "faulty",
    }
}

/// md calls an array clean as long as its superblocks do.
fn is_clean(status: &Status) -> bool {
    match status.array_state {
        ArrayState::Clean | ArrayState::ReadOnly | ArrayState::Clear => true,
        ArrayState::Active | ArrayState::ActiveIdle | ArrayState::WritePending | ArrayState::Broken => false,
    }
}
