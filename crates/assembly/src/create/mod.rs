//! Planning a new array: mdadm's option semantics and defaults, so that `raidus create` and `mdadm --create` with the same
//! options make the same members. Nothing is read or written here; randomness and the time come in as parameters.

mod check;
mod grow;
mod join;
mod params;
mod place;
mod roles;

pub use grow::{BitmapGrowth, GrowError, GrownBitmap, grow_bitmap};
pub use join::{JoinError, JoinParams, JoinPlan, join};
pub use params::{
    BitmapWish, CreateDevice, CreateError, CreateParams, CreatePlan, MemberPlan, NewMember, PlannedWrite, Policy,
    Written,
};

use raidus_format::{
    ArrayUpdate, BadBlockArea, DeviceState, Geometry as StoredGeometry, MemberUpdate, MetadataVersion, NewSuperblock,
    PplArea, Recovery, ResyncMark, SUPERBLOCK_BYTES, Superblock, bitmap, ppl,
};
use raidus_layout::{Geometry, GeometryParams, Raid0Layout};
use raidus_units::{Level, Sector, Sectors};

use place::{BAD_BLOCK_LOG, Placement};
use roles::{Assigned, Roles};

const CHUNK_DEFAULT: Sectors = Sectors::from_kib(512);
/// left-symmetric
const PARITY_LAYOUT_DEFAULT: u32 = 2;
/// Two near copies.
const RAID10_LAYOUT_DEFAULT: u32 = 0x102;
const RAID0_LAYOUT_ORIGINAL: u32 = 1;
/// The largest component the kernel accepts with 0.90.
const SIZE_MAX_V090: Sectors = Sectors((1 << 32) - 2);
/// The stored name has this many bytes; mdadm puts the host name before it only where a byte is left over.
const NAME_BYTES: usize = 32;

/// Plans an array.
///
/// # Errors
/// If the options make no array; nothing has been written then, nor is anything when it succeeds.
pub fn plan(params: &CreateParams) -> Result<CreatePlan, CreateError> {
    check::check(params)?;
    let mut plan = Planner::new(params);
    let component = plan.component()?;
    let bitmap = plan.bitmap(component)?;
    let (geometry, layout, raid0_layout_known) = plan.geometry(component)?;
    check::missing(params, &geometry)?;
    let roles = roles::assign(
        params.level,
        params.raid_disks,
        &params.devices.iter().map(|d| matches!(d, CreateDevice::Present(_))).collect::<Vec<_>>(),
        params.assume_clean,
        params.force,
    );
    // The kernel writes back what a raid10 layout makes use of, which can be less than whole chunks of the member.
    let used = if params.level == Level::Raid10 { geometry.component_sectors() } else { component };
    let stored = stored_size(params.level, used);
    let update = ArrayUpdate {
        events: 0,
        utime: params.now,
        resync: if roles.clean {
            ResyncMark::Clean { good_to: None }
        } else {
            ResyncMark::Clean { good_to: Some(Sector::ZERO) }
        },
        devices: device_table(params, &roles),
        bitmap: bitmap.as_ref().map(|b| b.offset),
        ppl: ppl_room(params).map(|size| PplArea {
            offset: place::bitmap_offset(params.metadata, size),
            size,
            // The kernel makes it a ring when it first starts the array.
            multiple: false,
        }),
        journal: false,
        reshape: None,
        geometry: StoredGeometry {
            level: params.level.number(),
            layout,
            raid0_layout_known,
            size: stored,
            chunk: plan.chunk,
            raid_disks: params.raid_disks.into(),
        },
    };
    let name = stored_name(params);
    let mut members = Vec::new();
    for assigned in &roles.assigned {
        members.push(plan.member(assigned, stored, bitmap.as_ref(), &update, &name)?);
    }
    plan.note_rebuild(&roles);
    Ok(CreatePlan {
        geometry,
        component: stored,
        chunk: plan.chunk,
        layout,
        name,
        bitmap_chunk: bitmap.map(|b| b.chunk),
        clean: roles.clean,
        members,
        notes: plan.notes,
    })
}

/// An internal bitmap.
struct BitmapPlan {
    /// Bytes per bit.
    chunk: u64,
    /// Distance from the superblock.
    offset: i64,
    /// Room taken.
    sectors: Sectors,
    /// What is written there.
    bytes: Vec<u8>,
}

struct Planner<'a> {
    params: &'a CreateParams,
    chunk: Sectors,
    /// Where data starts unless a device says otherwise.
    data_offset: Sectors,
    notes: Vec<String>,
}

impl<'a> Planner<'a> {
    fn new(params: &'a CreateParams) -> Planner<'a> {
        let chunk = params.chunk.unwrap_or(match params.level {
            Level::Raid1 | Level::Linear => Sectors::ZERO,
            _ => CHUNK_DEFAULT,
        });
        // The first device decides for all.
        let first = params.devices.iter().find_map(present).map_or(Sectors::ZERO, |d| d.size);
        let data_offset =
            params.data_offset.unwrap_or_else(|| place::data_offset(params.metadata, first, chunk, ppl_room(params)));
        Planner { params, chunk, data_offset, notes: Vec::new() }
    }

    fn data_offset_of(&self, device: &NewMember) -> Sectors {
        device.data_offset.unwrap_or(self.data_offset)
    }

    fn usable(&self, device: &NewMember) -> Sectors {
        let offset = self.data_offset_of(device);
        let usable = place::usable(self.params.metadata, device.size, offset, ppl_room(self.params));
        // 0.90 counts KiB.
        if self.params.metadata == MetadataVersion::V0_90 { usable.round_down(Sectors(2)) } else { usable }
    }

    /// How much of each member is used.
    fn component(&mut self) -> Result<Sectors, CreateError> {
        let p = self.params;
        let present: Vec<&NewMember> = p.devices.iter().filter_map(present).collect();
        for device in &present {
            check::data_offset(p.metadata, device, self.data_offset_of(device))?;
            let usable = place::component(p.level, self.usable(device), self.chunk);
            if usable.is_zero() {
                let needed = self.chunk.kib().max(64);
                let (device, usable) = (device.name.clone(), self.usable(device).kib());
                return Err(CreateError::DeviceTooSmall { device, usable, needed });
            }
        }
        let smallest = present.iter().min_by_key(|d| self.usable(d));
        let Some(smallest) = smallest else {
            return Err(CreateError::MissingTooMany { level: p.level, missing: p.devices.len() });
        };
        let largest = present.iter().map(|d| self.usable(d)).max().unwrap_or_default();
        let usable = self.usable(smallest);
        let component = match p.size {
            None => place::component(p.level, usable, self.chunk),
            Some(wanted) if wanted > usable => {
                let device = smallest.name.clone();
                return Err(CreateError::SizeTooLarge { device, wanted: wanted.kib(), usable: usable.kib() });
            }
            Some(wanted) if matches!(p.level, Level::Raid1 | Level::Linear) => wanted,
            Some(wanted) => wanted.round_down(self.chunk),
        };
        if component.is_zero() {
            let rule = "no larger than the size used of each device";
            return Err(CreateError::Chunk { level: p.level, chunk: self.chunk.kib(), rule });
        }
        if p.metadata == MetadataVersion::V0_90 && component > SIZE_MAX_V090 {
            return Err(CreateError::SizeBeyondMetadata { metadata: p.metadata, max: SIZE_MAX_V090.kib() });
        }
        if p.level.is_redundant() && largest.saturating_sub(component).0 > component.0 / 100 {
            self.notes.push(format!(
                "{} KiB of each device are used; the largest would have room for {} KiB",
                component.kib(),
                largest.kib()
            ));
        }
        Ok(component)
    }

    fn bitmap(&self, component: Sectors) -> Result<Option<BitmapPlan>, CreateError> {
        let p = self.params;
        let wanted = match (p.bitmap, p.policy) {
            (BitmapWish::Internal { chunk }, _) => Some(chunk),
            (BitmapWish::None, _) | (_, Some(Policy::Resync | Policy::Ppl)) => None,
            (BitmapWish::Auto, Some(Policy::Bitmap)) => Some(None),
            (BitmapWish::Auto, None) => {
                (place::bitmap_by_default(p.level, component) || p.write_behind.is_some()).then_some(None)
            }
        };
        let Some(chunk) = wanted else { return Ok(None) };
        let min = place::bitmap_chunk_min(p.metadata, component).ok_or(CreateError::NoRoomForBitmap)?;
        let chunk = match chunk {
            Some(chunk) if chunk < min || !chunk.is_power_of_two() => {
                return Err(CreateError::BitmapChunk { chunk, min });
            }
            Some(chunk) => chunk,
            None => place::bitmap_chunk_default(p.metadata, component).ok_or(CreateError::NoRoomForBitmap)?,
        };
        let covered = crate::bitmap::covers(&self.geometry(component)?.0);
        let sectors = bitmap::area(bitmap::bits(covered, chunk));
        let uuid = bitmap::uuid_in_bitmap(p.metadata, None, p.uuid);
        let new = crate::bitmap::new_bitmap(uuid, covered, chunk, p.write_behind.unwrap_or(0));
        let bytes = crate::bitmap::new_area(&new)?;
        Ok(Some(BitmapPlan { chunk, offset: place::bitmap_offset(p.metadata, sectors), sectors, bytes }))
    }

    /// The mapping, the layout as stored, and whether a raid0 layout is marked as meaningful.
    fn geometry(&self, component: Sectors) -> Result<(Geometry, u32, bool), CreateError> {
        let p = self.params;
        let sizes: Vec<Sectors> = match p.level {
            Level::Linear | Level::Raid0 => p.devices.iter().filter_map(present).map(|d| self.data_size(d)).collect(),
            _ => Vec::new(),
        };
        let uneven = sizes.windows(2).any(|w| w[0].round_down(self.chunk) != w[1].round_down(self.chunk));
        let marked = p.level == Level::Raid0 && (p.layout.is_some() || uneven);
        let layout = p.layout.unwrap_or(match p.level {
            Level::Raid5 | Level::Raid6 => PARITY_LAYOUT_DEFAULT,
            Level::Raid10 => RAID10_LAYOUT_DEFAULT,
            Level::Raid0 => RAID0_LAYOUT_ORIGINAL,
            _ => 0,
        });
        let geometry = Geometry::new(&GeometryParams {
            level: p.level,
            layout,
            raid_disks: p.raid_disks,
            chunk: self.chunk,
            size: component,
            data_sizes: &sizes,
            raid0_layout: Raid0Layout::from_superblock(layout, marked),
        })?;
        Ok((geometry, layout, marked))
    }

    fn data_size(&self, device: &NewMember) -> Sectors {
        let p = self.params;
        let component = stored_size(p.level, self.usable(device));
        place::place(p.metadata, device.size, self.data_offset_of(device), component, None)
            .map_or(Sectors::ZERO, |at| at.data_size)
    }

    fn member(
        &self,
        assigned: &Assigned,
        component: Sectors,
        bitmap: Option<&BitmapPlan>,
        update: &ArrayUpdate,
        name: &str,
    ) -> Result<MemberPlan, CreateError> {
        let p = self.params;
        let Some(device) = p.devices.get(assigned.device).and_then(present) else {
            return Err(CreateError::MissingTooMany { level: p.level, missing: p.devices.len() });
        };
        let offset = self.data_offset_of(device);
        let log = update.ppl;
        let kept = bitmap.map(|b| (b.offset, b.sectors)).or(log.map(|log| (log.offset, log.size)));
        let at = place::place(p.metadata, device.size, offset, component, kept.map(|(_, sectors)| sectors));
        let at = at.ok_or_else(|| check::too_small(device, self.chunk))?;
        check::bitmap_room(device, &at, kept)?;
        let superblock = Superblock::create(&NewSuperblock {
            metadata: p.metadata,
            uuid: p.uuid,
            name: name.to_owned(),
            ctime: p.now,
            device_uuid: device.uuid,
            super_offset: at.super_offset,
            data_offset: at.data_offset,
            data_size: at.data_size,
            bad_block_log: at.bad_block_log.map(|offset| BadBlockArea {
                offset,
                size: Sectors(BAD_BLOCK_LOG),
                shift: 0,
            }),
            preferred_minor: p.preferred_minor,
            array: update.clone(),
            member: MemberUpdate {
                recovery: assigned.rebuild.then_some(Recovery { offset: Sector::ZERO, by_bitmap: false }),
                ..MemberUpdate::new(assigned.dev_number)
            },
        })
        .map_err(|source| CreateError::Superblock { device: device.name.clone(), source })?;
        let log = log.map(|log| (log.offset, ppl::empty(p.uuid, None)));
        let writes = writes(device, &at, bitmap, log, &superblock);
        Ok(MemberPlan {
            device: assigned.device,
            name: device.name.clone(),
            role: assigned.role,
            rebuild: assigned.rebuild,
            superblock,
            writes,
        })
    }

    fn note_rebuild(&mut self, roles: &Roles) {
        if let Some(assigned) = roles.assigned.iter().find(|a| a.rebuild) {
            let name = self.params.devices.get(assigned.device).and_then(present).map_or("", |d| d.name.as_str());
            self.notes.push(format!(
                "the array starts degraded and {name} is rebuilt from the others, which is faster than a resync (--force for a \
                 resync instead)"
            ));
        }
    }
}

fn writes(
    device: &NewMember,
    at: &Placement,
    bitmap: Option<&BitmapPlan>,
    log: Option<(i64, Vec<u8>)>,
    superblock: &Superblock,
) -> Vec<PlannedWrite> {
    let mut writes = Vec::new();
    for old in device.old_superblocks.iter().filter(|old| **old != at.super_offset) {
        let bytes = vec![0; SUPERBLOCK_BYTES];
        writes.push(PlannedWrite { what: Written::OldSuperblock, at: *old, bytes });
    }
    let from_superblock = |offset: i64| Sector(at.super_offset.0.saturating_add_signed(offset));
    if let Some(offset) = at.bad_block_log {
        let bytes = vec![0xff; Sectors(BAD_BLOCK_LOG).bytes() as usize];
        writes.push(PlannedWrite { what: Written::BadBlockLog, at: from_superblock(offset), bytes });
    }
    if let Some(b) = bitmap {
        writes.push(PlannedWrite { what: Written::Bitmap, at: from_superblock(b.offset), bytes: b.bytes.clone() });
    }
    if let Some((offset, bytes)) = log {
        writes.push(PlannedWrite { what: Written::Ppl, at: from_superblock(offset), bytes });
    }
    writes.push(PlannedWrite { what: Written::Superblock, at: at.super_offset, bytes: superblock.encode() });
    writes
}

/// Room for a partial parity log, if there is to be one.
fn ppl_room(params: &CreateParams) -> Option<Sectors> {
    (params.policy == Some(Policy::Ppl)).then_some(place::PPL)
}

fn present(device: &CreateDevice) -> Option<&NewMember> {
    match device {
        CreateDevice::Missing => None,
        CreateDevice::Present(member) => Some(member),
    }
}

/// The superblock's size field: raid0 and linear go by each member's own size, and store none.
fn stored_size(level: Level, component: Sectors) -> Sectors {
    if level.is_redundant() { component } else { Sectors::ZERO }
}

fn stored_name(params: &CreateParams) -> String {
    let name = params.name.clone().unwrap_or_default();
    match &params.homehost {
        Some(host) if !name.contains(':') && host.len() + 1 + name.len() < NAME_BYTES => format!("{host}:{name}"),
        _ => name,
    }
}

fn device_table(params: &CreateParams, roles: &Roles) -> Vec<Option<DeviceState>> {
    let len = roles.assigned.iter().map(|a| a.dev_number as usize + 1).max().unwrap_or(0);
    let mut table = vec![None; len];
    for assigned in &roles.assigned {
        let Some(device) = params.devices.get(assigned.device).and_then(present) else { continue };
        table[assigned.dev_number as usize] = Some(DeviceState {
            in_sync: assigned.role.slot().is_some() && !assigned.rebuild,
            write_mostly: device.write_mostly,
            failfast: device.failfast,
            ..DeviceState::new(assigned.role)
        });
    }
    table
}

#[cfg(test)]
mod tests;
