//! Partial parity logs. A member's log says, of writes to rows whose parity it holds, what the parity is without the chunks that
//! were being written. So whatever became of those chunks, the parity that fits them can be told.

use core::fmt;

use raidus_format::ppl::{self, PplEntry, PplHeader};
use raidus_format::{MdUuid, PplArea, Timestamp};
use raidus_layout::ParityGeometry;
use raidus_units::{Sector, Sectors, Slot};

use super::{Disks, ReplayError, parity, source};
use crate::decision::Assembled;

/// Parity is put right in pieces of this size: md's unit of stripes.
const PIECE: Sectors = Sectors(8);

/// What partial parity logs say about writes that were under way.
#[derive(Clone, Debug)]
pub struct PplReplay {
    parts: Vec<Part>,
    areas: Vec<LogArea>,
    /// The logs are whole and cover everything: redundancy is good afterwards.
    pub complete: bool,
}

/// A row of chunks of which parity is put right.
#[derive(Clone, Debug)]
struct Part {
    row: u64,
    /// Offset in the chunks.
    offset: Sectors,
    /// The data chunks that were written: the first, and how many.
    first: u16,
    count: u16,
    /// Sectors of each.
    len: Sectors,
    /// What parity is without them; empty for whole rows.
    partial: Vec<u8>,
}

#[derive(Clone, Debug)]
struct LogArea {
    name: String,
    candidate: usize,
    slot: Slot,
    at: Sector,
    len: Sectors,
    entries: usize,
}

/// What is wrong with logs.
#[derive(Debug, Default)]
struct Flaws {
    notes: Vec<String>,
    /// Not only that the last unit was torn, of which no write had begun.
    untrusted: bool,
}

/// A member's log as read.
pub(crate) struct OwnLog<'a> {
    pub(crate) name: &'a str,
    pub(crate) candidate: usize,
    pub(crate) slot: Slot,
    pub(crate) area: PplArea,
    /// The member holds all of its slot's data.
    pub(crate) in_sync: bool,
    /// Device sector of the area.
    pub(crate) at: Sector,
    /// Nothing if it cannot be read.
    pub(crate) bytes: &'a [u8],
}

impl PplReplay {
    /// What the logs of the members say. `from_start`: the array stopped while being written, as far as its superblocks tell. The
    /// second is what is wrong with the logs.
    pub(crate) fn plan(
        array: MdUuid,
        geometry: &ParityGeometry,
        logs: &[OwnLog<'_>],
        from_start: bool,
    ) -> (PplReplay, Vec<String>) {
        let mut replay = PplReplay { parts: Vec::new(), areas: Vec::new(), complete: false };
        let mut flaws = Flaws::default();
        for log in logs {
            let found = ppl::newest(log.bytes, array, log.area.multiple);
            if found.is_none() {
                flaws.notes.push(format!("{}: no partial parity log where it should be", log.name));
                flaws.untrusted |= log.bytes.is_empty();
            }
            let before = replay.parts.len();
            if let Some((start, header)) = found.filter(|_| from_start) {
                replay.read_unit(geometry, log, start, &header, &mut flaws);
            }
            let (name, candidate, slot, at, len) =
                (log.name.to_owned(), log.candidate, log.slot, log.at, log.area.size);
            replay.areas.push(LogArea { name, candidate, slot, at, len, entries: replay.parts.len() - before });
        }
        let degraded = logs.iter().filter(|log| log.in_sync).count() < usize::from(geometry.raid_disks());
        // A unit that is torn, or not there because it was, is of writes that never began. Where all members are there one looks at
        // everything once for that, as md does, and if nothing is logged; where one is missing that cannot be, and must not keep
        // the array from its data.
        let whole = flaws.notes.is_empty() && !replay.parts.is_empty();
        replay.complete = from_start && !flaws.untrusted && (degraded || whole);
        (replay, flaws.notes)
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    fn read_unit(
        &mut self,
        geometry: &ParityGeometry,
        log: &OwnLog<'_>,
        start: u64,
        header: &PplHeader,
        flaws: &mut Flaws,
    ) {
        let mut at = start.saturating_add(ppl::HEADER_BYTES as u64);
        for entry in &header.entries {
            let end = at.saturating_add(entry.parity_bytes.into());
            let bytes = usize::try_from(at).ok().zip(usize::try_from(end).ok());
            let partial = bytes.and_then(|(from, to)| log.bytes.get(from..to));
            at = end;
            if entry.is_untrusted() {
                flaws.notes.push(format!("{}: its partial parity log says that a resync was to come", log.name));
                flaws.untrusted = true;
                continue;
            }
            match partial.filter(|p| ppl::checksum(p) == entry.checksum).map(|p| part(geometry, log.slot, entry, p)) {
                Some(Some(part)) => self.parts.push(part),
                Some(None) => {
                    flaws.notes.push(format!("{}: an entry of its partial parity log makes no sense", log.name));
                    flaws.untrusted = true;
                }
                None => flaws.notes.push(format!("{}: an entry of its partial parity log is torn", log.name)),
            }
        }
    }

    pub(super) fn carry_out<D: Disks>(
        &self,
        assembled: &Assembled,
        disks: &mut D,
        now: Timestamp,
    ) -> Result<(), ReplayError<D::Error>> {
        if let Some(geometry) = parity(assembled) {
            self.parts.iter().try_for_each(|part| part.put_right(assembled, geometry, disks))?;
        }
        assembled.flush_members(disks)?;
        let assembled = assembled.record_distrust(disks)?;
        // The logs can be needed until the superblocks say that they are not.
        assembled.write_superblocks(disks, 1, None, now)?;
        for area in &self.areas {
            let untrusted = assembled.array.resync.map(|_| area.slot);
            let mut bytes = ppl::empty(assembled.array.uuid, untrusted);
            bytes.resize(usize::try_from(area.len.bytes()).unwrap_or(bytes.len()).max(bytes.len()), 0);
            disks.write(area.candidate, area.at, &bytes)?;
            disks.flush(area.candidate)?;
        }
        Ok(())
    }
}

/// What an entry is about; `None` if that is nothing a row of this array can have.
fn part(geometry: &ParityGeometry, owner: Slot, entry: &PplEntry, partial: &[u8]) -> Option<Part> {
    let bytes = if entry.parity_bytes > 0 {
        entry.parity_bytes
    } else {
        entry.data_bytes.checked_div(geometry.data_disks().into())?
    };
    let count = u16::try_from(entry.data_bytes.checked_div(bytes)?).ok()?;
    let len = Sectors::from_bytes_floor(bytes.into());
    let (row, first, offset) = geometry.map(entry.data_sector);
    let is_whole = bytes.is_multiple_of(512) && u64::from(entry.data_bytes) == u64::from(bytes) * u64::from(count);
    let fits = row < geometry.rows()
        && first.checked_add(count).is_some_and(|end| end <= geometry.data_disks())
        && offset + len <= geometry.chunk();
    let is_own = entry.parity_slot == owner && row < geometry.rows() && geometry.row(row).p() == owner;
    (is_whole && fits && is_own && count > 0).then(|| Part {
        row,
        offset,
        first,
        count,
        len,
        partial: partial.to_vec(),
    })
}

impl Part {
    /// Makes parity fit the data, piece by piece. Where one of the chunks that were written is missing, nobody can tell what it
    /// became: parity is left alone.
    fn put_right<D: Disks>(
        &self,
        assembled: &Assembled,
        geometry: &ParityGeometry,
        disks: &mut D,
    ) -> Result<(), D::Error> {
        let row = geometry.row(self.row);
        let mut done = Sectors::ZERO;
        while done < self.len {
            let len = PIECE.min(self.len - done);
            let component = geometry.component(self.row, self.offset + done);
            let range = done.bytes() as usize..(done + len).bytes() as usize;
            done += len;
            let slots = (self.first..self.first + self.count).map(|i| row.data(i));
            let sources: Option<Vec<_>> = slots.map(|slot| source(&assembled.members, slot, component, len)).collect();
            let Some(sources) = sources else { continue };
            let mut sum = self.partial.get(range.clone()).map_or_else(|| vec![0; range.len()], <[u8]>::to_vec);
            for member in sources {
                let mut data = vec![0; range.len()];
                disks.read(member.candidate, member.place(component), &mut data)?;
                raidus_parity::xor_in_place(&mut sum, &[&data]);
            }
            assembled.write(disks, row.p(), component, &sum)?;
        }
        Ok(())
    }
}

impl fmt::Display for PplReplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.parts.len();
        let logs: Vec<String> =
            self.areas.iter().filter(|a| a.entries > 0).map(|a| format!("{} of {}", a.entries, a.name)).collect();
        let word = if entries == 1 { "entry" } else { "entries" };
        write!(f, "{entries} {word} of the partial parity log ({})", logs.join(", "))
    }
}
