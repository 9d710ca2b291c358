//! Small arrays made by the real kernel and mdadm, as a reference for tests.
//!
//! `interop/golden.tar.zst` holds one directory per array: the members' disk images, what mdadm and the kernel said
//! about them, and a manifest. The archive is opened once per process and kept in memory; an image is unpacked when
//! asked for.
//!
//! ```
//! let case = raidus_golden::case("raid5-1.2-n3-64k");
//! assert_eq!(case.manifest.level, "raid5");
//! let disk = case.image(0);
//! assert_eq!(disk[4096..4100], 0xa92b4efc_u32.to_le_bytes());
//! assert!(case.text("examine.txt").contains("Raid Level : raid5"));
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod manifest;
pub mod pattern;

pub use manifest::{AfterCrash, Bitmap, Manifest, Member, PatternRange};

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const ARCHIVE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../golden.tar.zst");
/// The archive is compressed with matches this far back (a power of two), to find what the images have in common.
const WINDOW_LOG: u32 = 27;
/// Zero blocks of this size are left out of image files.
const HOLE: usize = 4096;

/// One array.
#[derive(Debug)]
pub struct Case {
    /// Its directory name, which says what it is: `dirty-raid5-1.2-bitmap`.
    pub name: String,
    /// What the kernel said about it.
    pub manifest: Manifest,
    files: BTreeMap<String, Range<usize>>,
}

struct Archive {
    bytes: Vec<u8>,
    cases: Vec<Case>,
}

/// All arrays, by name.
pub fn cases() -> &'static [Case] {
    &archive().cases
}

/// The array of this name.
///
/// # Panics
/// If there is none.
pub fn case(name: &str) -> &'static Case {
    let at = cases().binary_search_by(|c| c.name.as_str().cmp(name));
    &cases()[at.unwrap_or_else(|_| panic!("no golden array '{name}'"))]
}

impl Case {
    /// Number of disk images.
    pub fn disks(&self) -> usize {
        self.manifest.members.len()
    }

    /// The whole of disk `n`, unpacked.
    ///
    /// # Panics
    /// If there is no such disk.
    pub fn image(&self, n: usize) -> Vec<u8> {
        let packed = self.file(&format!("disk{n}.img.zst"));
        zstd::decode_all(packed).unwrap_or_else(|e| panic!("{}: disk{n} does not unpack: {e}", self.name))
    }

    /// Writes all disks into `dir` as sparse files `disk0.img`, `disk1.img`, … and gives their paths.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write_images(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        (0..self.disks())
            .map(|n| {
                let path = dir.join(format!("disk{n}.img"));
                write_sparse(&path, &self.image(n))?;
                Ok(path)
            })
            .collect()
    }

    /// A file beside the images: `examine.txt`, `bitmap.txt`, `badblocks.txt`, `detail.txt`, `mdstat.txt`,
    /// `sysfs.txt`; for some also `reassembled.txt`.
    ///
    /// # Panics
    /// If the array has no such file.
    pub fn text(&self, file: &str) -> &'static str {
        std::str::from_utf8(self.file(file)).unwrap_or_else(|_| panic!("{}: {file} is not text", self.name))
    }

    /// Whether there is such a file.
    pub fn has(&self, file: &str) -> bool {
        self.files.contains_key(file)
    }

    /// The bytes of a file.
    ///
    /// # Panics
    /// If the array has no such file.
    pub fn file(&self, file: &str) -> &'static [u8] {
        let range = self.files.get(file).unwrap_or_else(|| panic!("{}: no file '{file}'", self.name));
        &archive().bytes[range.clone()]
    }

    /// The part of `examine.txt`, `bitmap.txt` or `badblocks.txt` that is about disk `n`, without its `== diskN` line.
    ///
    /// # Panics
    /// If the array has no such file, or the file no such part.
    pub fn text_of_disk(&self, file: &str, n: usize) -> &'static str {
        let text = self.text(file);
        let title = format!("== disk{n}\n");
        let at = text.find(&title).unwrap_or_else(|| panic!("{}: {file} has nothing of disk{n}", self.name));
        let part = &text[at + title.len()..];
        // Up to the next title, whose preceding newline still belongs to this part.
        part.find("\n== disk").map_or(part, |end| &part[..end + 1])
    }
}

/// Writes `content` to a new file, leaving holes for zeros.
///
/// # Errors
/// Those of the file system.
pub fn write_sparse(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.set_len(content.len() as u64)?;
    for (i, block) in content.chunks(HOLE).enumerate() {
        if block.iter().any(|b| *b != 0) {
            file.seek(SeekFrom::Start((i * HOLE) as u64))?;
            file.write_all(block)?;
        }
    }
    Ok(())
}

fn archive() -> &'static Archive {
    static CELL: OnceLock<Archive> = OnceLock::new();
    CELL.get_or_init(|| open(Path::new(ARCHIVE)).unwrap_or_else(|e| panic!("{ARCHIVE}: {e}")))
}

fn open(path: &Path) -> io::Result<Archive> {
    let mut decoder = zstd::Decoder::new(File::open(path)?)?;
    decoder.window_log_max(WINDOW_LOG)?;
    let mut bytes = Vec::new();
    decoder.read_to_end(&mut bytes)?;
    let mut files: BTreeMap<String, BTreeMap<String, Range<usize>>> = BTreeMap::new();
    for entry in tar::Archive::new(bytes.as_slice()).entries()? {
        let entry = entry?;
        let path = entry.path()?.into_owned();
        let (Some(dir), Some(file)) = (path.parent().and_then(Path::file_name), path.file_name()) else { continue };
        if entry.header().entry_type().is_file() {
            let start = entry.raw_file_position() as usize;
            let range = start..start + entry.size() as usize;
            let name = |s: &std::ffi::OsStr| s.to_string_lossy().into_owned();
            files.entry(name(dir)).or_default().insert(name(file), range);
        }
    }
    let cases = files
        .into_iter()
        .filter(|(_, files)| files.contains_key("manifest.json"))
        .map(|(name, files)| {
            let manifest = serde_json::from_slice(&bytes[files["manifest.json"].clone()])?;
            Ok(Case { name, manifest, files })
        })
        .collect::<io::Result<Vec<_>>>()?;
    Ok(Archive { bytes, cases })
}
