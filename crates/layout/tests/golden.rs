//! The real kernel's arrays, read through our mapping: the content is what the kernel read, and parities and copies are
//! what they should be.
//!
//! Arrays in the middle of a reshape have two geometries at once and are not looked at here.

mod gf;

use raidus_golden::{Case, pattern};
use raidus_layout::{Geometry, GeometryParams, MirrorGeometry, ParityGeometry, Raid0Layout, Row};
use raidus_units::{Level, Sector, Sectors, Slot};
use sha2::{Digest, Sha256};
use std::ops::Range;

/// Arrays of which a part is only in a log, as the machine was killed: the kernel's digest is of the content after
/// replay.
const NEEDS_REPLAY: &str = "journal-dirty-";

#[test]
fn linear_and_raid0() {
    check_all(&[Level::Linear, Level::Raid0]);
}

#[test]
fn raid1() {
    check_all(&[Level::Raid1]);
}

#[test]
fn raid10() {
    check_all(&[Level::Raid10]);
}

#[test]
fn raid4_and_raid5() {
    check_all(&[Level::Raid4, Level::Raid5]);
}

#[test]
fn raid6() {
    check_all(&[Level::Raid6]);
}

#[test]
fn what_is_left_out_is_being_reshaped() {
    let (reshaping, rest): (Vec<&Case>, Vec<&Case>) = raidus_golden::cases().iter().partition(|c| is_reshaping(c));
    assert!(reshaping.iter().all(|case| case.text("examine.txt").contains("Reshape pos'n")));
    assert!(rest.iter().all(|case| !case.text("examine.txt").contains("Reshape pos'n")));
}

fn is_reshaping(case: &Case) -> bool {
    case.manifest.scenario.starts_with("reshape")
}

/// Checks all arrays of some levels, and tells all that are wrong.
fn check_all(levels: &[Level]) {
    let cases = raidus_golden::cases().iter().filter(|case| !is_reshaping(case));
    let mut wrong = Vec::new();
    let mut checked = 0;
    for case in cases.filter(|case| levels.contains(&case.manifest.level.parse().unwrap())) {
        checked += 1;
        if let Err(what) = Array::open(case).check() {
            wrong.push(format!("{}: {what}", case.name));
        }
    }
    assert!(checked > 0);
    assert!(wrong.is_empty(), "{} of {checked}:\n{}", wrong.len(), wrong.join("\n"));
}

struct Array {
    case: &'static Case,
    geometry: Geometry,
    members: Vec<Member>,
    /// Sectors handled at once: a chunk, or one sector where a boundary may be anywhere.
    unit: u64,
}

/// A member with a slot.
struct Member {
    slot: u16,
    image: Vec<u8>,
    data_offset: u64,
    /// Component sectors that are valid.
    valid: u64,
    /// Component sectors that are not.
    bad: Vec<Range<u64>>,
}

impl Array {
    fn open(case: &'static Case) -> Array {
        let manifest = &case.manifest;
        let (members, facts): (Vec<Member>, Vec<(Sectors, Sectors)>) =
            (0..case.disks()).filter_map(|disk| Member::open(case, disk)).unzip();
        let mut data_sizes = vec![Sectors::ZERO; manifest.raid_disks as usize];
        for (member, (_, data_size)) in members.iter().zip(&facts) {
            data_sizes[usize::from(member.slot)] = *data_size;
        }
        let geometry = Geometry::new(&GeometryParams {
            level: manifest.level.parse().unwrap(),
            layout: manifest.layout as u32,
            raid_disks: manifest.raid_disks as u16,
            chunk: Sectors::from_bytes_floor(manifest.chunk_bytes),
            size: facts[0].0,
            data_sizes: &data_sizes,
            raid0_layout: Raid0Layout::from_superblock(manifest.layout as u32, true),
        });
        let geometry = geometry.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let bounds = members.iter().map(|m| m.valid).chain(manifest.resync_start);
        let chunk = if geometry.chunk().is_zero() { 128 } else { geometry.chunk().0 };
        let on_chunks = bounds.into_iter().all(|b| b == u64::MAX || b % chunk == 0);
        let unit = if on_chunks && members.iter().all(|m| m.bad.is_empty()) { chunk } else { 1 };
        Array { case, geometry, members, unit }
    }

    fn check(&self) -> Result<(), String> {
        let manifest = &self.case.manifest;
        if self.geometry.array_sectors().bytes() != manifest.size_bytes {
            return Err(format!("size {} not {}", self.geometry.array_sectors().bytes(), manifest.size_bytes));
        }
        let content = self.read()?;
        pattern::check(manifest.pattern.as_deref().unwrap(), 0, &content).map_err(|wrong| wrong.to_string())?;
        if self.case.name.starts_with(NEEDS_REPLAY) {
            return Ok(());
        }
        let digest: String = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = match &manifest.after_crash {
            Some(after) => &after.kernel_read_sha256,
            None => &manifest.kernel_read_sha256,
        };
        match expected {
            Some(expected) if *expected != digest => Err("not what the kernel read".to_owned()),
            None if !self.has_losses() => Err("no digest of what the kernel read".to_owned()),
            _ => Ok(()),
        }
    }

    /// The content of the array. What is lost is left zero, which the pattern never is.
    fn read(&self) -> Result<Vec<u8>, String> {
        let mut content = vec![0; self.geometry.array_sectors().bytes() as usize];
        match &self.geometry {
            Geometry::Mirror(g) => self.read_copies(g, &mut content)?,
            Geometry::Parity(g) => self.read_rows(g, &mut content)?,
            Geometry::Linear(_) | Geometry::Raid0(_) => self.read_extents(&mut content)?,
        }
        Ok(content)
    }

    fn read_extents(&self, content: &mut [u8]) -> Result<(), String> {
        let mut at = Sector::ZERO;
        while at < Sector(self.geometry.array_sectors().0) {
            let extent = match &self.geometry {
                Geometry::Linear(g) => g.map(at, Sectors(1000)),
                Geometry::Raid0(g) => g.map(at, Sectors(1000)),
                other => panic!("{other:?}"),
            };
            let bytes = self.member(extent.slot, extent.component, extent.len).ok_or("a member is missing")?;
            content[byte_range(at, extent.len)].copy_from_slice(bytes);
            at += extent.len;
        }
        Ok(())
    }

    /// Reads the first copy there is, as md does where copies may differ, and checks that they do not where they may
    /// not.
    fn read_copies(&self, g: &MirrorGeometry, content: &mut [u8]) -> Result<(), String> {
        let end = g.array_sectors().0;
        let (mut at, mut compared) = (Sector::ZERO, 0);
        while at.0 < end {
            let len = g.piece(at, Sectors(self.unit.min(end - at.0)));
            let mut copies = (0..g.copies()).filter_map(|n| {
                let (slot, component) = g.copy(at, n);
                self.member(slot, component, len)
            });
            if let Some(first) = copies.next() {
                content[byte_range(at, len)].copy_from_slice(first);
                for other in copies.filter(|_| self.is_synced(at + len)) {
                    compared += 1;
                    if other != first {
                        return Err(format!("copies of array sector {at} differ"));
                    }
                }
            }
            at += len;
        }
        if compared == 0 && self.is_synced(Sector(end)) && self.case.manifest.degraded == Some(0) && g.copies() > 1 {
            return Err("no copies were compared".to_owned());
        }
        Ok(())
    }

    /// Reads all data, reconstructing what is missing, and checks the parities that were not needed for it.
    fn read_rows(&self, g: &ParityGeometry, content: &mut [u8]) -> Result<(), String> {
        let unit = Sectors(self.unit);
        let mut compared = 0;
        for (number, offset) in (0..g.component_sectors().0).step_by(self.unit as usize).map(|s| g.row_at(Sector(s))) {
            let row = g.row(number);
            let component = g.component(number, offset);
            let block = |slot| self.member(slot, component, unit);
            let mut data: Vec<Option<Vec<u8>>> =
                (0..g.data_disks()).map(|i| block(row.data(i)).map(<[u8]>::to_vec)).collect();
            let (p, q) = (block(row.p()), row.q().and_then(block));
            let missing = data.iter().filter(|d| d.is_none()).count();
            gf::recover(&mut data, p, q, |i| row.coefficient(i));
            if let Some(data) =
                data.iter().cloned().collect::<Option<Vec<_>>>().filter(|_| self.is_synced(component + unit))
            {
                compared += usize::from(p.is_some()) + usize::from(q.is_some()) - missing;
                check_parity(&row, &data, p, q).map_err(|which| format!("{which} of row {number} is wrong"))?;
            }
            for (i, block) in (0..).zip(&data) {
                if let Some(block) = block {
                    content[byte_range(g.array(number, i, offset), unit)].copy_from_slice(block);
                }
            }
        }
        let units = g.component_sectors().0 / self.unit;
        let whole = self.is_synced(Sector(g.component_sectors().0)) && self.case.manifest.degraded == Some(0);
        if whole && self.unit > 1 && compared as u64 != units * u64::from(g.parities()) {
            return Err(format!("only {compared} parities were compared"));
        }
        Ok(())
    }

    /// `len` sectors of the member in `slot`, if they are there and valid.
    fn member(&self, slot: Slot, component: Sector, len: Sectors) -> Option<&[u8]> {
        let range = component.0..component.0 + len.0;
        let valid = |m: &&Member| {
            m.slot == slot.0
                && range.end <= m.valid
                && m.bad.iter().all(|bad| bad.end <= range.start || range.end <= bad.start)
        };
        let member = self.members.iter().find(valid)?;
        Some(&member.image[byte_range(component + Sectors(member.data_offset), len)])
    }

    /// Whether redundancy is in order up to `end` (array address for raid10, else component address).
    fn is_synced(&self, end: Sector) -> bool {
        let manifest = &self.case.manifest;
        manifest.scenario != "dirty" && manifest.resync_start.is_none_or(|start| end.0 <= start)
    }

    /// Whether the array has sectors that nobody can read.
    fn has_losses(&self) -> bool {
        self.case.manifest.scenario == "dust"
    }
}

impl Member {
    /// The disk, and component size and data size from its superblock, if the array was using it in a slot.
    fn open(case: &Case, disk: usize) -> Option<(Member, (Sectors, Sectors))> {
        let facts = &case.manifest.members[disk];
        let slot = facts.slot_number()?;
        let data_offset = facts.data_offset_sectors?;
        let image = case.image(disk);
        let sizes = superblock_sizes(&image, &case.manifest.metadata);
        let valid = facts.recovery_start.unwrap_or(u64::MAX);
        assert_eq!(facts.state.contains("in_sync"), valid == u64::MAX, "{}: disk{disk}", case.name);
        // The manifest has what the running kernel knew; the log on the disk may have more.
        let bad = case.text_of_disk("badblocks.txt", disk).lines().filter_map(|line| {
            let (start, rest) = line.trim().split_once(" for ")?;
            let start = start.parse::<u64>().unwrap() - data_offset;
            Some(start..start + rest.strip_suffix(" sectors")?.parse::<u64>().unwrap())
        });
        let bad = bad.collect();
        Some((Member { slot, image, data_offset, valid, bad }, sizes))
    }
}

/// Component size and size of the data area.
fn superblock_sizes(image: &[u8], metadata: &str) -> (Sectors, Sectors) {
    let sectors = image.len() as u64 / 512;
    let u64_at = |at: u64| u64::from_le_bytes(image[at as usize..at as usize + 8].try_into().unwrap());
    let superblock = match metadata {
        "1.0" => ((sectors - 16) & !7) * 512,
        "1.1" => 0,
        "1.2" => 4096,
        "0.90" => {
            let superblock = (sectors & !127) - 128;
            return (Sectors::from_kib(u64_at(superblock * 512 + 32) & 0xffff_ffff), Sectors(superblock));
        }
        other => panic!("metadata {other}"),
    };
    (Sectors(u64_at(superblock + 80)), Sectors(u64_at(superblock + 136)))
}

fn check_parity(row: &Row, data: &[Vec<u8>], p: Option<&[u8]>, q: Option<&[u8]>) -> Result<(), &'static str> {
    if p.is_some_and(|p| p != gf::p(data)) {
        return Err("P");
    }
    let coefficients: Vec<u8> = (0..data.len() as u16).map(|i| row.coefficient(i)).collect();
    if q.is_some_and(|q| q != gf::q(data, &coefficients)) {
        return Err("Q");
    }
    Ok(())
}

fn byte_range(start: Sector, len: Sectors) -> Range<usize> {
    start.bytes() as usize..(start + len).bytes() as usize
}
