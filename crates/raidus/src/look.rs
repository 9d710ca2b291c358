//! Looking at devices without changing anything, whoever uses them.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use raidus_assembly::{Candidate, Found};
use raidus_format::Probe;
use raidus_runtime::members::{MemberDevice, MemberOpenError, OpenMode};
use raidus_units::{SECTOR_BYTES, Sector, Sectors};

use crate::error::Failure;
use crate::signatures::{Ends, HEAD_BYTES, TAIL_BYTES, signatures};

/// A device and the RAID metadata on it.
pub struct Looked {
    /// The device.
    pub device: MemberDevice,
    /// What was found.
    pub probe: Probe,
}

/// Looks at a device.
pub fn look(path: &Path) -> Result<Looked, Failure> {
    let device = MemberDevice::open(path, OpenMode::EXAMINE)?;
    let probe = raidus_runtime::probe_device(&device).map_err(|source| Failure::read(path.to_owned(), source))?;
    Ok(Looked { device, probe })
}

/// What assembly needs to know of devices. Those that cannot be opened are candidates, too: unreadable ones.
pub fn candidates(paths: &[PathBuf]) -> Vec<Candidate> {
    let candidate = |path: &PathBuf| match MemberDevice::open(path, OpenMode::EXAMINE) {
        Ok(device) => raidus_runtime::candidate(&device),
        Err(error) => Candidate::new(path.display().to_string(), Sectors::ZERO, Found::Unreadable(reason(path, error))),
    };
    paths.iter().map(candidate).collect()
}

/// The message without the path, which stands before it already.
fn reason(path: &Path, error: MemberOpenError) -> String {
    let text = error.to_string();
    let rest = text.strip_prefix(&path.display().to_string()).unwrap_or(&text);
    rest.trim_start_matches([':', ' ']).to_owned()
}

/// Reads whole sectors.
pub fn read(device: &MemberDevice, at: Sector, len: Sectors) -> Result<Vec<u8>, Failure> {
    let failed = |source| Failure::read(device.name().to_owned(), source);
    let inside = at.checked_add(len).is_some_and(|end| end.0 <= device.size().0);
    let bytes = usize::try_from(len.0.saturating_mul(SECTOR_BYTES)).ok().filter(|_| inside);
    let mut content = vec![0; bytes.ok_or_else(|| failed(io::ErrorKind::UnexpectedEof.into()))?];
    device.read_at(at.bytes(), &mut content).map_err(failed)?;
    Ok(content)
}

/// What else than RAID metadata is on a device.
pub fn other_content(device: &MemberDevice) -> Result<Vec<&'static str>, Failure> {
    let size = device.size();
    let part = |bytes: usize| Sectors::from_bytes_floor(bytes as u64).0.min(size.0);
    let head = read(device, Sector::ZERO, Sectors(part(HEAD_BYTES)))?;
    let tail = part(TAIL_BYTES);
    let tail = read(device, Sector(size.0 - tail), Sectors(tail))?;
    Ok(signatures(size, Ends { head: &head, tail: &tail }))
}

/// The start of a file that is not a device: an external bitmap.
pub fn file_start(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut content = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(bytes).read_to_end(&mut content)?;
    Ok(content)
}
