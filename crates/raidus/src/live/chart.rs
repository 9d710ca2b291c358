//! Which sector of which member holds what of the array, both ways.

use std::path::PathBuf;

use raidus_assembly::Assembled;
use raidus_engine::control::Status;
use raidus_format::{SUPERBLOCK_SECTORS, Superblock, bitmap};
use raidus_layout::{Geometry, Holds};
use raidus_units::{Sector, Sectors, Slot};
use serde::{Deserialize, Serialize};

use crate::portrait::Portrait;

/// An array's shape and its members.
pub struct Chart {
    geometry: Geometry,
    members: Vec<ChartMember>,
    bitmap_bits: Option<u64>,
}

/// A member on a chart.
pub struct ChartMember {
    path: PathBuf,
    slot: Option<Slot>,
    data_offset: Sector,
    superblock: Superblock,
}

/// A sector of a member that belongs to a place in the array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceReport {
    /// The member; `None` if its slot is empty.
    pub device: Option<String>,
    /// Its slot.
    pub slot: u16,
    /// Device sector; `None` if the slot is empty.
    pub sector: Option<u64>,
    /// Sector from where the member's data begins.
    pub component_sector: u64,
    /// `data`, `P`, `Q`, `copy`, or `nothing`.
    pub holds: String,
    /// The byte of the array that it holds.
    pub array_offset: Option<u64>,
}

/// What a sector of a device is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SectorReport {
    /// The device.
    pub device: String,
    /// Device sector.
    pub sector: u64,
    /// `data`, `superblock`, `bad-block log`, `bitmap`, `unused`, or `spare`.
    pub area: String,
    /// Where it belongs, if it is data: itself first, then what else holds the same data or guards it.
    pub places: Vec<PlaceReport>,
}

impl Chart {
    /// Of a running array. Its members have the member ids as indices.
    pub fn running(portrait: &Portrait, status: &Status) -> Chart {
        let member = |(place, member): (crate::portrait::Place, &raidus_engine::Member)| ChartMember {
            path: place.path,
            slot: crate::portrait::slot_of(member.state).map(Slot),
            data_offset: member.data_offset,
            superblock: place.superblock,
        };
        Chart {
            geometry: portrait.assembled.geometry.clone(),
            members: portrait.places().into_iter().zip(&status.map.members).map(member).collect(),
            bitmap_bits: status.bitmap.map(|b| b.bits),
        }
    }

    /// Of one that could be started from these devices.
    pub fn assembled(assembled: &Assembled, devices: &[PathBuf]) -> Chart {
        let member = |seated: &raidus_assembly::Seated| ChartMember {
            path: devices.get(seated.candidate).cloned().unwrap_or_default(),
            slot: seated.seat.slot(),
            data_offset: seated.superblock.member().data_offset,
            superblock: seated.superblock.clone(),
        };
        Chart {
            geometry: assembled.geometry.clone(),
            members: assembled.members.iter().map(member).collect(),
            bitmap_bits: assembled.bitmap.as_ref().map(|b| b.superblock.bits()),
        }
    }

    /// The first member for which `is_meant` says so.
    pub fn find(&self, is_meant: impl Fn(&PathBuf) -> bool) -> Option<usize> {
        self.members.iter().position(|member| is_meant(&member.path))
    }

    /// Where a sector of the array is, and what guards it. `None` past its end.
    pub fn of_array(&self, array: Sector) -> Option<Vec<PlaceReport>> {
        if array.0 >= self.geometry.array_sectors().0 {
            return None;
        }
        let one = Sectors(1);
        let places = match &self.geometry {
            Geometry::Linear(g) => vec![g.map(array, one)].into_iter().map(|e| (e.slot, e.component)).collect(),
            Geometry::Raid0(g) => vec![g.map(array, one)].into_iter().map(|e| (e.slot, e.component)).collect(),
            Geometry::Mirror(g) => (0..g.copies()).map(|n| g.copy(array, n)).collect::<Vec<_>>(),
            Geometry::Parity(g) => {
                let (number, i, offset) = g.map(array);
                let (row, component) = (g.row(number), g.component(number, offset));
                let slots = [Some(row.data(i)), Some(row.p()), row.q()];
                slots.into_iter().flatten().map(|slot| (slot, component)).collect()
            }
        };
        Some(places.into_iter().flat_map(|(slot, component)| self.places(slot, component)).collect())
    }

    /// All that stands at one component sector of a parity array: data and parity that belong together.
    pub fn stripe(&self, component: Sector) -> Vec<PlaceReport> {
        (0..self.geometry.raid_disks()).flat_map(|slot| self.places(Slot(slot), component)).collect()
    }

    /// What a sector of a member is; `member` is its index.
    pub fn of_member(&self, member: usize, sector: Sector) -> Option<SectorReport> {
        let found = self.members.get(member)?;
        let device = found.path.display().to_string();
        let report = |area: &str, places| {
            Some(SectorReport { device: device.clone(), sector: sector.0, area: area.to_owned(), places })
        };
        if let Some(area) = self.metadata(found, sector) {
            return report(area, Vec::new());
        }
        let Some(slot) = found.slot else { return report("spare", Vec::new()) };
        let Some(component) = sector.0.checked_sub(found.data_offset.0).map(Sector) else {
            return report("unused", Vec::new());
        };
        let mut places = match self.geometry.locate(slot, component) {
            Holds::Nothing => return report("unused", Vec::new()),
            Holds::Data { array } | Holds::Copy { array, .. } => self.of_array(array)?,
            Holds::P { .. } | Holds::Q { .. } => self.stripe(component),
        };
        places.sort_by_key(|place| (place.slot, place.sector) != (slot.0, Some(sector.0)));
        report("data", places)
    }

    /// The members in a slot (two while one is being replaced), at a component sector.
    fn places(&self, slot: Slot, component: Sector) -> Vec<PlaceReport> {
        let (holds, array) = match self.geometry.locate(slot, component) {
            Holds::Data { array } => ("data", Some(array)),
            Holds::Copy { array, .. } => ("copy", Some(array)),
            Holds::P { .. } => ("P", None),
            Holds::Q { .. } => ("Q", None),
            Holds::Nothing => ("nothing", None),
        };
        let place = |member: Option<&ChartMember>| PlaceReport {
            device: member.map(|m| m.path.display().to_string()),
            slot: slot.0,
            sector: member.map(|m| m.data_offset.0.saturating_add(component.0)),
            component_sector: component.0,
            holds: holds.to_owned(),
            array_offset: array.map(Sector::bytes),
        };
        let there: Vec<PlaceReport> =
            self.members.iter().filter(|m| m.slot == Some(slot)).map(|m| place(Some(m))).collect();
        if there.is_empty() { vec![place(None)] } else { there }
    }

    fn metadata(&self, member: &ChartMember, sector: Sector) -> Option<&'static str> {
        let (array, facts) = (member.superblock.array(), member.superblock.member());
        let near = |offset: i64| facts.super_offset.0.checked_add_signed(offset).map(Sector);
        let within = |start: Option<Sector>, len: Sectors| {
            start.is_some_and(|start| (start.0..start.0.saturating_add(len.0)).contains(&sector.0))
        };
        let bitmap = self.bitmap_bits.zip(array.bitmap);
        if within(Some(facts.super_offset), SUPERBLOCK_SECTORS) {
            Some("superblock")
        } else if facts.bad_block_log.is_some_and(|log| within(near(log.offset), log.size)) {
            Some("bad-block log")
        } else if bitmap.is_some_and(|(bits, offset)| within(near(offset), bitmap::area(bits))) {
            Some("bitmap")
        } else {
            None
        }
    }
}

impl PlaceReport {
    /// In words.
    pub fn text(&self) -> String {
        let at = match (&self.device, self.sector) {
            (Some(device), Some(sector)) => format!("{device} sector {sector}"),
            _ => "(missing)".to_owned(),
        };
        let holds = match (self.holds.as_str(), self.array_offset) {
            (holds, Some(offset)) => format!("{holds} of array offset {offset}"),
            (holds, None) => holds.to_owned(),
        };
        format!("slot {}: {at}: {holds}", self.slot)
    }
}
