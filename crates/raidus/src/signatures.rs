//! What stands on a device that somebody may want to keep: file systems, partition tables, volumes of all kinds.
//!
//! Pure: bytes in, names out. Only for warning before a device is overwritten, so it errs on the side of recognising too much.

use raidus_units::Sectors;

/// Bytes looked at from the start of a device.
pub const HEAD_BYTES: usize = (1 << 20) + 4096;
/// Bytes looked at from the end.
pub const TAIL_BYTES: usize = 512 << 10;

/// What a device was read for: its first [`HEAD_BYTES`] and its last [`TAIL_BYTES`], or all of it if it has less.
#[derive(Clone, Copy, Debug)]
pub struct Ends<'a> {
    /// From the start.
    pub head: &'a [u8],
    /// Up to the end.
    pub tail: &'a [u8],
}

/// A fixed mark of a format.
struct Mark {
    what: &'static str,
    at: usize,
    bytes: &'static [u8],
}

const fn mark(what: &'static str, at: usize, bytes: &'static [u8]) -> Mark {
    Mark { what, at, bytes }
}

/// Formats that a mark at one place gives away.
const MARKS: &[Mark] = &[
    mark("an XFS file system", 0, b"XFSB"),
    mark("a Btrfs file system", 0x10040, b"_BHRfS_M"),
    mark("an F2FS file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    mark("an EROFS file system", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    mark("a JFS file system", 0x8000, b"JFS1"),
    mark("a ReiserFS file system", 0x10034, b"ReIsEr"),
    mark("a ReiserFS file system", 0x2034, b"ReIsEr"),
    mark("a GFS2 file system", 0x10000, &[0x01, 0x16, 0x19, 0x70, 0, 0, 0, 1]),
    mark("an HFS+ file system", 1024, b"H+\0\x04"),
    mark("an HFSX file system", 1024, b"HX\0\x05"),
    mark("an APFS container", 32, b"NXSB"),
    mark("a SquashFS file system", 0, b"hsqs"),
    mark("an ISO 9660 file system", 0x8001, b"CD001"),
    mark("a UDF file system", 0x8001, b"BEA01"),
    mark("a VMFS volume", 0x10_0000, &[0x0d, 0xd0, 0x01, 0xc0]),
    mark("an NTFS file system", 3, b"NTFS    "),
    mark("an exFAT file system", 3, b"EXFAT   "),
    mark("a BitLocker volume", 3, b"-FVE-FS-"),
    mark("a FAT file system", 54, b"FAT12   "),
    mark("a FAT file system", 54, b"FAT16   "),
    mark("a FAT file system", 54, b"FAT     "),
    mark("a FAT file system", 82, b"FAT32   "),
    mark("a LUKS encrypted volume", 0, b"LUKS\xba\xbe"),
    // The second header of LUKS2; the first is destroyed first.
    mark("a LUKS encrypted volume", 0x4000, b"SKUL\xba\xbe"),
    mark(
        "a bcache device",
        0x1018,
        &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81],
    ),
    mark(
        "a Bcachefs file system",
        0x1018,
        &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef],
    ),
    mark("a Ceph BlueStore device", 0, b"bluestore block device"),
    mark("a qcow2 image", 0, b"QFI\xfb"),
    mark("a VMDK image", 0, b"KDMV"),
    mark("a VHDX image", 0, b"vhdxfile"),
    mark("a VDI image", 64, &[0x7f, 0x10, 0xda, 0xbe]),
    mark("a GPT partition table", 512, b"EFI PART"),
    mark("a GPT partition table", 4096, b"EFI PART"),
];

/// Everything recognised, each once.
pub fn signatures(device: Sectors, ends: Ends<'_>) -> Vec<&'static str> {
    let head = ends.head;
    let mut found: Vec<&'static str> = Vec::new();
    found.extend(ext(head));
    found.extend(MARKS.iter().filter(|m| has(head, m.at, m.bytes)).map(|m| m.what));
    found.extend(lvm(head));
    found.extend(swap(head));
    found.extend(zfs(device, ends));
    found.extend(backup_gpt(ends.tail));
    if found.is_empty() {
        // The same two bytes end the boot sector of most file systems.
        found.extend(mbr(head));
    }
    let mut once = Vec::new();
    for what in found {
        if !once.contains(&what) {
            once.push(what);
        }
    }
    once
}

fn has(bytes: &[u8], at: usize, mark: &[u8]) -> bool {
    bytes.get(at..).is_some_and(|rest| rest.starts_with(mark))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

/// ext2, ext3, ext4 and their external journals share a magic number; feature words tell them apart.
fn ext(head: &[u8]) -> Option<&'static str> {
    const SUPERBLOCK: usize = 1024;
    const HAS_JOURNAL: u32 = 0x4;
    const JOURNAL_DEVICE: u32 = 0x8;
    // extents, 64bit, mmp, flex_bg, ea_inode, csum_seed, largedir, inline_data, encrypt …: anything ext3 does not have.
    const INCOMPAT_EXT3: u32 = 0x2 | 0x4 | 0x8 | 0x10;
    const RO_COMPAT_EXT3: u32 = 0x1 | 0x2 | 0x4;
    if !has(head, SUPERBLOCK + 56, &[0x53, 0xef]) {
        return None;
    }
    let word = |at| u32_at(head, SUPERBLOCK + at).unwrap_or(0);
    let (compat, incompat, ro_compat) = (word(92), word(96), word(100));
    Some(if incompat & JOURNAL_DEVICE != 0 {
        "an ext4 external journal"
    } else if incompat & !INCOMPAT_EXT3 != 0 || ro_compat & !RO_COMPAT_EXT3 != 0 {
        "an ext4 file system"
    } else if compat & HAS_JOURNAL != 0 {
        "an ext3 file system"
    } else {
        "an ext2 file system"
    })
}

/// The label is in one of the first four sectors.
fn lvm(head: &[u8]) -> Option<&'static str> {
    let label = |sector: usize| has(head, sector * 512, b"LABELONE") && has(head, sector * 512 + 24, b"LVM2 001");
    (0..4).any(label).then_some("an LVM physical volume")
}

/// The mark ends the first page, and pages have several sizes. A hibernated system's image stands in the same place.
fn swap(head: &[u8]) -> Option<&'static str> {
    const MARK: usize = 10;
    let at = |mark: &[u8]| (12..=16).any(|shift| has(head, (1 << shift) - MARK, mark));
    if at(b"SWAPSPACE2") || at(b"SWAP-SPACE") {
        Some("swap space")
    } else if at(b"S1SUSPEND\0") || at(b"S2SUSPEND\0") || at(b"ULSUSPEND\0") || at(b"LINHIB0001") {
        Some("a hibernated system")
    } else {
        None
    }
}

/// A label of 256 KiB twice at each end; in each a ring of uberblocks that begin with a magic number in the writer's byte order.
fn zfs(device: Sectors, ends: Ends<'_>) -> Option<&'static str> {
    const LABEL: usize = 256 << 10;
    const RING: usize = 128 << 10;
    const UBERBLOCK: usize = 1024;
    const MAGIC: u64 = 0x00ba_b10c;
    let label = |bytes: Option<&[u8]>| {
        let ring = bytes.and_then(|b| b.get(RING..LABEL)).unwrap_or(&[]);
        ring.chunks_exact(UBERBLOCK).any(|uber| {
            let magic = uber.first_chunk().map(|b| u64::from_le_bytes(*b)).unwrap_or(0);
            magic == MAGIC || magic == MAGIC.swap_bytes()
        })
    };
    // The labels at the end are aligned to 256 KiB, counted from the start.
    let past = (device.bytes() % LABEL as u64) as usize;
    let end = ends.tail.len().checked_sub(past);
    let from_end = |labels: usize| end.and_then(|end| ends.tail.get(end.checked_sub(labels * LABEL)?..end));
    let found = label(Some(ends.head)) || label(ends.head.get(LABEL..)) || label(from_end(1)) || label(from_end(2));
    found.then_some("a ZFS pool member")
}

/// The copy in the last logical block. It survives when the front is overwritten, and comes back to life with the next repair.
fn backup_gpt(tail: &[u8]) -> Option<&'static str> {
    let in_last = |block: usize| tail.len().checked_sub(block).is_some_and(|at| has(tail, at, b"EFI PART"));
    (in_last(512) || in_last(4096)).then_some("a GPT partition table")
}

/// A boot sector with at least one partition, and none that makes no sense.
fn mbr(head: &[u8]) -> Option<&'static str> {
    const TABLE: usize = 446;
    const ENTRY: usize = 16;
    if !has(head, 510, &[0x55, 0xaa]) {
        return None;
    }
    let entries: Vec<&[u8]> = head.get(TABLE..510)?.chunks_exact(ENTRY).collect();
    let used = |e: &&&[u8]| e[4] != 0 && e[12..16] != [0; 4];
    let sane = entries.iter().all(|e| e[0] & 0x7f == 0);
    (sane && entries.iter().filter(used).count() > 0).then_some("an MBR partition table")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// What is found on a device of 8 MiB with these bytes at these places.
    fn found(content: &[(usize, &[u8])]) -> Vec<&'static str> {
        let mut device = vec![0; 8 * MIB];
        for (at, bytes) in content {
            device[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        on(&device)
    }

    fn on(device: &[u8]) -> Vec<&'static str> {
        let head = &device[..device.len().min(HEAD_BYTES)];
        let tail = &device[device.len().saturating_sub(TAIL_BYTES)..];
        signatures(Sectors::from_bytes_floor(device.len() as u64), Ends { head, tail })
    }

    #[test]
    fn every_mark_is_found_and_nothing_on_an_empty_device() {
        assert_eq!(found(&[]), Vec::<&str>::new());
        for mark in MARKS {
            assert_eq!(found(&[(mark.at, mark.bytes)]), [mark.what]);
        }
    }

    #[test]
    fn the_ext_family() {
        let magic: (usize, &[u8]) = (1080, &[0x53, 0xef]);
        assert_eq!(found(&[magic]), ["an ext2 file system"]);
        assert_eq!(found(&[magic, (1116, &[4])]), ["an ext3 file system"]);
        assert_eq!(found(&[magic, (1116, &[4]), (1120, &[0x42])]), ["an ext4 file system"]);
        assert_eq!(found(&[magic, (1120, &[8])]), ["an ext4 external journal"]);
    }

    #[test]
    fn volumes_and_swap() {
        assert_eq!(found(&[(512, b"LABELONE"), (536, b"LVM2 001")]), ["an LVM physical volume"]);
        assert_eq!(found(&[(512, b"LABELONE")]), Vec::<&str>::new());
        assert_eq!(found(&[(4086, b"SWAPSPACE2")]), ["swap space"]);
        assert_eq!(found(&[(65526, b"SWAPSPACE2")]), ["swap space"]);
        assert_eq!(found(&[(4086, b"S1SUSPEND\0")]), ["a hibernated system"]);
    }

    #[test]
    fn zfs_labels_at_both_ends() {
        let magic = 0x00ba_b10c_u64;
        for at in [128 << 10, (256 + 128) << 10, 8 * MIB - (128 << 10), 8 * MIB - (384 << 10)] {
            assert_eq!(found(&[(at + 5 * 1024, &magic.to_le_bytes())]), ["a ZFS pool member"], "{at}");
            assert_eq!(found(&[(at, &magic.to_be_bytes())]), ["a ZFS pool member"], "{at}");
        }
        assert_eq!(found(&[(4096, &magic.to_le_bytes())]), Vec::<&str>::new());
    }

    #[test]
    fn partition_tables() {
        let end: (usize, &[u8]) = (510, &[0x55, 0xaa]);
        let entry = [0x80, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0, 1, 0];
        assert_eq!(found(&[end, (446, &entry)]), ["an MBR partition table"]);
        assert_eq!(found(&[end]), Vec::<&str>::new());
        assert_eq!(found(&[end, (446, &entry), (462, &[7])]), Vec::<&str>::new(), "boot code, no table");
        assert_eq!(found(&[end, (446, &entry), (82, b"FAT32   ")]), ["a FAT file system"]);
        assert_eq!(found(&[(8 * MIB - 512, b"EFI PART")]), ["a GPT partition table"]);
        assert_eq!(
            found(&[end, (446, &entry), (512, b"EFI PART"), (8 * MIB - 512, b"EFI PART")]),
            ["a GPT partition table"]
        );
    }

    #[test]
    fn short_devices_do_not_matter() {
        for len in [0, 1, 511, 512, 1080, 4096, 70_000, 300 << 10] {
            assert_eq!(on(&vec![0; len]), Vec::<&str>::new());
            on(&vec![0xff; len]);
        }
    }
}
