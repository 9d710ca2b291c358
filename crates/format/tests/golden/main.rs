//! Arrays made by the real kernel and mdadm: every superblock, bitmap and log on every member is read, compared with
//! what the kernel and mdadm said, and written again byte for byte.

mod areas;
mod superblocks;

use raidus_format::bitmap::{self, BitmapSuper};
use raidus_format::{
    ArrayFacts, MemberFacts, MetadataVersion, Probe, ProbeRead, Role, SUPERBLOCK_BYTES, Superblock, probe, probe_areas,
};
use raidus_golden::{Case, Member, cases};
use raidus_units::{Sector, Sectors};
use std::fmt;
use std::sync::OnceLock;

/// One disk of one array, with the areas its superblock points to.
struct Disk {
    case: &'static Case,
    disk: usize,
    size: Sectors,
    found: Probe,
    /// The superblock's bytes.
    block: Vec<u8>,
    sb: Superblock,
    array: ArrayFacts,
    member: MemberFacts,
    bitmap: Option<Vec<u8>>,
    bad_blocks: Option<Vec<u8>>,
    ppl: Option<Vec<u8>>,
    journal: Option<Vec<u8>>,
}

/// Every disk of every array, unpacked once.
fn disks() -> &'static [Disk] {
    static DISKS: OnceLock<Vec<Disk>> = OnceLock::new();
    DISKS.get_or_init(|| cases().iter().flat_map(|case| (0..case.disks()).map(|disk| load(case, disk))).collect())
}

fn load(case: &'static Case, disk: usize) -> Disk {
    let image = case.image(disk);
    let size = Sectors::from_bytes_floor(image.len() as u64);
    let bytes = |at: Sector, len: u64| &image[at.bytes() as usize..][..len as usize];
    let areas = probe_areas(size);
    let reads: Vec<_> = areas.iter().map(|(at, len)| ProbeRead { at: *at, bytes: bytes(*at, len.bytes()) }).collect();
    let found = probe(size, &reads);
    let sb = found.newest().unwrap_or_else(|| panic!("{} disk{disk}: no superblock", case.name)).clone();
    let (array, member) = (sb.array(), sb.member());
    let area = |offset: i64, len: u64| {
        let start = Sector(member.super_offset.0.checked_add_signed(offset).expect("an area on the device"));
        bytes(start, len).to_vec()
    };
    // Only members with a slot have a copy of the bitmap, or a partial parity log.
    let has_slot = member.role.slot().is_some();
    Disk {
        case,
        disk,
        size,
        block: area(0, SUPERBLOCK_BYTES as u64),
        bitmap: array.bitmap.filter(|_| has_slot).map(|offset| {
            let header = BitmapSuper::parse(&area(offset, bitmap::BITMAP_SUPER_BYTES as u64));
            area(offset, bitmap::area(header.expect("a bitmap").bits()).bytes())
        }),
        bad_blocks: member.bad_block_log.map(|log| area(log.offset, log.size.bytes())),
        ppl: array.ppl.filter(|_| has_slot).map(|ppl| area(ppl.offset, ppl.size.bytes())),
        journal: (member.role == Role::Journal).then(|| bytes(member.data_offset, member.data_size.bytes()).to_vec()),
        found,
        sb,
        array,
        member,
    }
}

impl Disk {
    /// What the kernel said about this disk.
    fn said(&self) -> &Member {
        &self.case.manifest.members[self.disk]
    }

    /// The manifest shows 0.90 as 0.91 while reshaping.
    fn version(&self) -> MetadataVersion {
        self.case.manifest.metadata.replace("0.91", "0.90").parse().expect("a known version")
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} disk{}", self.case.name, self.disk)
    }
}
