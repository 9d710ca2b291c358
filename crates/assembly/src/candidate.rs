//! What is known of a device before anything is decided, and what else must be read to decide.

use raidus_format::journal::LogScan;
use raidus_format::{Probe, Role, SbError, Superblock, badblocks, ppl};
use raidus_units::{Sector, Sectors};

/// A device that may be a member.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// How the user calls it: its path.
    pub name: String,
    /// Size of the device.
    pub size: Sectors,
    /// What stands where superblocks stand.
    pub found: Found,
    /// The write-intent bitmap area, once read.
    pub bitmap: Area,
    /// The bad-block log, once read.
    pub bad_blocks: Area,
    /// The partial parity log, once read.
    pub ppl: Area,
    /// The write journal on it.
    pub journal: JournalLog,
}

/// The write journal on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalLog {
    /// It is no journal.
    None,
    /// Read as far as this.
    Scan(Box<LogScan>),
    /// Could not be read, and why.
    Failed(String),
}

/// The outcome of looking for a superblock.
#[derive(Clone, Debug)]
pub enum Found {
    /// A valid one.
    Superblock(Box<Superblock>),
    /// None.
    Nothing,
    /// One that must not be used.
    Unusable(SbError),
    /// The metadata of another RAID system, which raidus leaves alone.
    Foreign(String),
    /// The device cannot be read.
    Unreadable(String),
}

/// A metadata area that is read when a superblock asks for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Area {
    /// Not read yet.
    #[default]
    Unread,
    /// What was read.
    Bytes(Vec<u8>),
    /// Could not be read, and why.
    Failed(String),
}

/// A range to read before the decision can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// What it is.
    pub kind: AreaKind,
    /// Device sector.
    pub at: Sector,
    /// Length.
    pub len: Sectors,
}

/// The areas a superblock can point to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AreaKind {
    /// Write-intent bitmap.
    Bitmap,
    /// Bad-block log.
    BadBlocks,
    /// Partial parity log.
    Ppl,
    /// A piece of the write journal.
    Journal,
}

impl From<Probe> for Found {
    fn from(probe: Probe) -> Found {
        if let Some(sb) = probe.newest() {
            return Found::Superblock(Box::new(sb.clone()));
        }
        if let Some(why) = probe.md.into_iter().find_map(|found| found.superblock.err()) {
            return Found::Unusable(why);
        }
        probe.foreign.first().map_or(Found::Nothing, |kind| Found::Foreign(kind.to_string()))
    }
}

impl Candidate {
    /// A device of this size with this on it.
    pub fn new(name: impl Into<String>, size: Sectors, found: Found) -> Candidate {
        let (bitmap, bad_blocks, ppl) = (Area::Unread, Area::Unread, Area::Unread);
        let journal = journal_log(&found);
        Candidate { name: name.into(), size, found, bitmap, bad_blocks, ppl, journal }
    }

    /// The superblock, if there is a usable one.
    pub fn superblock(&self) -> Option<&Superblock> {
        match &self.found {
            Found::Superblock(sb) => Some(sb),
            _ => None,
        }
    }

    /// What to read next for [`crate::decide`]; hand it in with [`Candidate::supply`] and ask again, until there is
    /// nothing more. A bitmap takes two rounds: its header says how long it is. A journal takes as many as it has meta blocks, and
    /// more.
    pub fn needs(&self) -> Vec<Need> {
        let Some(sb) = self.superblock() else { return Vec::new() };
        let needs = [crate::bitmap::need(sb, self), bad_block_need(sb, self), ppl_need(self), journal_need(sb, self)];
        needs.into_iter().flatten().collect()
    }

    /// Takes what was read for a [`Need`], or why it could not be read.
    pub fn supply(&mut self, need: Need, result: Result<Vec<u8>, String>) {
        let area = match (result, need.kind) {
            (Ok(bytes), AreaKind::Journal) => {
                if let JournalLog::Scan(scan) = &mut self.journal {
                    scan.supply(&bytes);
                }
                return;
            }
            (Err(why), AreaKind::Journal) => {
                self.journal = JournalLog::Failed(why);
                return;
            }
            (Ok(bytes), _) => Area::Bytes(bytes),
            (Err(why), _) => Area::Failed(why),
        };
        match need.kind {
            AreaKind::Bitmap => self.bitmap = area,
            AreaKind::BadBlocks => self.bad_blocks = area,
            AreaKind::Ppl => self.ppl = area,
            AreaKind::Journal => {}
        }
    }

    /// Ranges that are known to be bad, as (device sector, length).
    ///
    /// # Errors
    /// If there is a log and it cannot be used: why.
    pub fn bad_block_list(&self) -> Result<Vec<(Sector, Sectors)>, String> {
        let Some(member) = self.superblock().map(|sb| sb.member()).filter(|member| member.has_bad_blocks) else {
            return Ok(Vec::new());
        };
        match (&self.bad_blocks, member.bad_block_log) {
            (Area::Bytes(bytes), Some(log)) => badblocks::parse(bytes, log.shift, self.size)
                .map(|ranges| ranges.into_iter().map(|r| (r.start, r.len)).collect())
                .map_err(|e| e.to_string()),
            (Area::Failed(why), Some(_)) => Err(why.clone()),
            (Area::Unread, Some(_)) => Err("it is not inside the device".to_owned()),
            (_, None) => Err("the superblock does not say where it is".to_owned()),
        }
    }

    /// Where its partial parity log is, if there is room for one there.
    pub(crate) fn ppl_place(&self) -> Option<(Sector, Sectors)> {
        let sb = self.superblock()?;
        let area = sb.array().ppl?;
        near(sb, area.offset, area.size, self.size)?;
        ppl::place(&area, sb.member().super_offset)
    }
}

/// `len` sectors at a distance from the superblock, if that is inside the device.
pub(crate) fn near(sb: &Superblock, offset: i64, len: Sectors, device: Sectors) -> Option<Sector> {
    let at = sb.member().super_offset.0.checked_add_signed(offset)?;
    (at.checked_add(len.0)? <= device.0).then_some(Sector(at))
}

fn bad_block_need(sb: &Superblock, candidate: &Candidate) -> Option<Need> {
    let member = sb.member();
    if !member.has_bad_blocks || candidate.bad_blocks != Area::Unread {
        return None;
    }
    let log = member.bad_block_log?;
    let len = Sectors(log.size.0.min(8));
    Some(Need { kind: AreaKind::BadBlocks, at: near(sb, log.offset, len, candidate.size)?, len })
}

fn ppl_need(candidate: &Candidate) -> Option<Need> {
    // Also where this superblock says clean: a power cut may have come before it was told otherwise.
    if candidate.ppl != Area::Unread {
        return None;
    }
    let (at, len) = candidate.ppl_place()?;
    Some(Need { kind: AreaKind::Ppl, at, len })
}

fn journal_log(found: &Found) -> JournalLog {
    let Found::Superblock(sb) = found else { return JournalLog::None };
    let (array, member) = (sb.array(), sb.member());
    match (member.role, member.journal_tail) {
        (Role::Journal, Some(tail)) if array.journal => {
            JournalLog::Scan(Box::new(LogScan::new(array.uuid, member.data_size, tail)))
        }
        _ => JournalLog::None,
    }
}

fn journal_need(sb: &Superblock, candidate: &Candidate) -> Option<Need> {
    let JournalLog::Scan(scan) = &candidate.journal else { return None };
    let (at, len) = scan.wants()?;
    let at = sb.member().data_offset.checked_add(at)?;
    Some(Need { kind: AreaKind::Journal, at, len })
}
