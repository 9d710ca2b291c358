//! Texts byte for byte as mdadm 4.2 and the kernel gave them for the golden arrays.

use jiff::tz::TimeZone;
use raidus_format::bitmap::{BitArray, BitmapSuper, area};
use raidus_format::{MetadataVersion, ProbeRead, RawSuperblock, badblocks, probe, probe_areas};
use raidus_golden::Case;
use raidus_text::{BitmapContent, Context, Examined, ctime, examine, examine_badblocks, examine_bitmap};
use raidus_units::{Sector, Sectors};

fn with_context<T>(run: impl FnOnce(&Context<'_>) -> T) -> T {
    let time = |seconds: u64| ctime(seconds, &TimeZone::UTC);
    // The disks of the machine the arrays were made on.
    let device =
        |major: u32, minor: u32| (major == 98).then(|| format!("/dev/ubd{}", char::from(b'a' + (minor / 16) as u8)));
    run(&Context { time: &time, homehost: None, device: &device })
}

struct Disk {
    name: String,
    image: Vec<u8>,
    superblock: RawSuperblock,
}

impl Disk {
    fn size(&self) -> Sectors {
        Sectors(self.image.len() as u64 / 512)
    }

    /// Bytes at a distance from the superblock.
    fn near(&self, offset: i64, len: Sectors) -> &[u8] {
        let start = self.superblock.member().super_offset.0.checked_add_signed(offset).expect("inside") * 512;
        &self.image[start as usize..(start + len.bytes()) as usize]
    }

    fn bitmap(&self) -> Option<BitmapSuper> {
        let offset = self.superblock.array().bitmap?;
        BitmapSuper::parse(self.near(offset, Sectors(8))).ok()
    }
}

/// Every disk of every case that carries a superblock.
fn each_disk(mut check: impl FnMut(&Case, usize, &Disk)) {
    for case in raidus_golden::cases() {
        for n in 0..case.disks() {
            let image = case.image(n);
            let size = Sectors(image.len() as u64 / 512);
            let bytes = |at: Sector, len: Sectors| &image[at.bytes() as usize..(at + len).bytes() as usize];
            let areas = probe_areas(size);
            let reads: Vec<_> = areas.iter().map(|(at, len)| ProbeRead { at: *at, bytes: bytes(*at, *len) }).collect();
            let found = probe(size, &reads);
            let Some(superblock) = found.md.into_iter().find_map(|f| f.raw) else { continue };
            check(case, n, &Disk { name: format!("/dev/disk{n}"), image, superblock });
        }
    }
}

#[test]
fn examine_is_mdadms() {
    let mut seen = 0;
    each_disk(|case, n, disk| {
        let bitmap = disk.bitmap().map(|b| area(b.bits()));
        let of = Examined { device: &disk.name, size: disk.size(), superblock: &disk.superblock, bitmap };
        let text = with_context(|context| examine(&of, context));
        assert_eq!(text, case.text_of_disk("examine.txt", n), "{} disk{n}", case.name);
        seen += 1;
    });
    assert!(seen > 1000, "{seen}");
}

#[test]
fn bitmaps_are_shown_as_mdadm_shows_them() {
    let mut seen = 0;
    each_disk(|case, n, disk| {
        let (Some(superblock), Some(offset)) = (disk.bitmap(), disk.superblock.array().bitmap) else { return };
        let bits = BitArray::from_file(disk.near(offset, area(superblock.bits())), superblock.bits()).expect("whole");
        let text = examine_bitmap(&disk.name, &superblock, disk.superblock.version(), Some(&BitmapContent::Bits(bits)));
        assert_eq!(text, case.text_of_disk("bitmap.txt", n), "{} disk{n}", case.name);
        seen += 1;
    });
    assert!(seen > 50, "{seen}");
}

#[test]
fn bad_blocks_are_listed_as_mdadm_lists_them() {
    each_disk(|case, n, disk| {
        let member = disk.superblock.member();
        let list: Option<Vec<(Sector, Sectors)>> = member.bad_block_log.map(|log| {
            if !member.has_bad_blocks {
                return Vec::new();
            }
            let ranges = badblocks::parse(disk.near(log.offset, log.size), log.shift, disk.size()).expect("a log");
            ranges.into_iter().map(|r| (r.start, r.len)).collect()
        });
        let version = disk.superblock.version();
        let text = examine_badblocks(&disk.name, version, list.as_deref());
        assert_eq!(text, case.text_of_disk("badblocks.txt", n), "{} disk{n}", case.name);
        assert!(version.is_v1() || version == MetadataVersion::V0_90);
    });
}
