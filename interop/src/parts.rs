//! Many small devices on the few disks a guest can have: each is a partition.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::work::DISKS_MAX;

/// Partitions of one disk that hold something: the guest knows 15, and the fourth holds the fifth and all that follow.
const PER_DISK: usize = 14;
const PRIMARY: usize = 3;

/// Devices one guest can have.
pub const PARTS_MAX: usize = PER_DISK * DISKS_MAX;

const SECTOR: u64 = 512;
/// Space before each partition, where those in the fourth have their tables; keeps blocks of 4 KiB where they are.
const GAP: u64 = 8;

/// Writes these contents to the partitions of as few disk images as hold them; the images, and what the guest calls the devices.
///
/// # Errors
/// Those of the file system.
///
/// # Panics
/// If there are more than [`PARTS_MAX`].
pub fn partition(dir: &Path, contents: &[&[u8]]) -> io::Result<(Vec<PathBuf>, Vec<String>)> {
    assert!(contents.len() <= PARTS_MAX, "{} devices are too many for one guest", contents.len());
    let mut images = Vec::new();
    let mut names = Vec::new();
    for (n, contents) in contents.chunks(PER_DISK).enumerate() {
        let image = dir.join(format!("parts{n}"));
        write_disk(&File::create(&image)?, contents)?;
        images.push(image);
        let letter = char::from(b'a' + n as u8);
        let number = |i: usize| if i < PRIMARY { i + 1 } else { i + 2 };
        names.extend((0..contents.len()).map(|i| format!("/dev/ubd{letter}{}", number(i))));
    }
    Ok((images, names))
}

fn write_disk(image: &File, contents: &[&[u8]]) -> io::Result<()> {
    let sectors: Vec<u64> = contents.iter().map(|c| (c.len() as u64).div_ceil(SECTOR)).collect();
    let place = |n: usize| sectors[..n].iter().map(|len| GAP + len.next_multiple_of(GAP)).sum::<u64>() + GAP;
    for (n, content) in contents.iter().enumerate() {
        image.write_all_at(content, (place(n) + GAP) * SECTOR)?;
    }
    let end = place(contents.len());
    image.set_len((end + GAP) * SECTOR)?;

    let mut first = Table::default();
    for (n, len) in sectors.iter().enumerate().take(PRIMARY) {
        first.add(LINUX, place(n) + GAP, *len);
    }
    if contents.len() > PRIMARY {
        first.add(EXTENDED, place(PRIMARY), end - place(PRIMARY));
    }
    image.write_all_at(&first.bytes(), 0)?;
    // Each of the others has a table of its own before it, which also says where the next one is.
    for (n, len) in sectors.iter().enumerate().skip(PRIMARY) {
        let mut table = Table::default();
        table.add(LINUX, GAP, *len);
        if n + 1 < contents.len() {
            table.add(EXTENDED, place(n + 1) - place(PRIMARY), place(n + 2) - place(n + 1));
        }
        image.write_all_at(&table.bytes(), place(n) * SECTOR)?;
    }
    Ok(())
}

const LINUX: u8 = 0x83;
const EXTENDED: u8 = 0x05;

/// A master boot record's partition table.
#[derive(Default)]
struct Table {
    entries: Vec<(u8, u64, u64)>,
}

impl Table {
    fn add(&mut self, kind: u8, first: u64, len: u64) {
        self.entries.push((kind, first, len));
    }

    fn bytes(&self) -> [u8; SECTOR as usize] {
        let mut bytes = [0; SECTOR as usize];
        for ((kind, first, len), entry) in self.entries.iter().zip(bytes[446..510].chunks_exact_mut(16)) {
            entry[4] = *kind;
            entry[8..12].copy_from_slice(&(*first as u32).to_le_bytes());
            entry[12..16].copy_from_slice(&(*len as u32).to_le_bytes());
        }
        bytes[510..].copy_from_slice(&[0x55, 0xaa]);
        bytes
    }
}
