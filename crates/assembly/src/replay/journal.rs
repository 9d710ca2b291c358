//! The write journal. Rows of blocks whose data and parity are both in it go to the members as they are. Of data alone (write-back)
//! the parity is worked out from the row on the members, which is consistent: nothing of it was written yet.
//!
//! Where a member is missing that row can be known only with the old parity, and no longer once the new data is
//! written. So data and new parity first go into the log together.

use core::fmt;
use std::collections::BTreeMap;

use raidus_format::Timestamp;
use raidus_format::journal::{BLOCK_BYTES, BLOCK_SECTORS, LogScan, MetaBlock, Payload, Record, checksum, ring_add};
use raidus_layout::ParityGeometry;
use raidus_units::{Sector, Sectors};

use super::row::{needs_parity, parities_with};
use super::{Disks, ReplayError, parity};
use crate::decision::{Assembled, Seat, Seated};

/// Distance between the numbers of an old log and of the one that begins anew behind it (md's). Blocks that were written
/// but never acknowledged may stand behind the end, and must not become its continuation.
const SEQ_LEAP: u64 = 10_000;

/// Blocks of data that one meta block can speak of, each in a payload of its own, beside those of a parity payload.
const DATA_BLOCKS_MAX: u16 = 200;

/// What a journal holds that the members may lack.
#[derive(Clone, Debug)]
pub struct JournalReplay {
    name: String,
    /// Rows with data and parity, in the order they were completed; a row may come more than once.
    complete: Vec<Stripe>,
    /// Rows with data alone.
    data_only: Vec<Stripe>,
    /// Data and new parity go through the log.
    relog: bool,
    head: Sectors,
    next_seq: u64,
    ring: Sectors,
    seed: u32,
}

/// A row of blocks. Places are positions in the log.
#[derive(Clone, Debug, Default)]
struct Stripe {
    component: Sector,
    data: BTreeMap<u16, Sectors>,
    p: Option<Sectors>,
    q: Option<Sectors>,
}

/// What can be done with a journal.
pub(crate) enum JournalUse {
    /// It is empty. One that only speaks of what is done is not: who writes past a journal must have emptied it.
    Nothing,
    /// This is to be replayed.
    Replay(JournalReplay),
    /// It cannot be replayed.
    Unusable(&'static str),
}

impl JournalReplay {
    /// What a scanned log says to an array of this geometry. `members` are those with slots.
    pub(crate) fn plan(name: &str, scan: &LogScan, geometry: &ParityGeometry, members: &[Seated]) -> JournalUse {
        let Some(next_seq) = scan.next_seq() else { return JournalUse::Unusable("no log begins where it should") };
        let Some((complete, data_only)) = collect(scan.records(), geometry) else {
            return JournalUse::Unusable("it speaks of places that the array does not have");
        };
        if scan.records().is_empty() {
            return JournalUse::Nothing;
        }
        let relog = data_only
            .iter()
            .any(|s| needs_parity(members, geometry, s.component, BLOCK_SECTORS, |i| s.data.contains_key(&i)));
        if relog && !relog_fits(&data_only, geometry, scan.room()) {
            return JournalUse::Unusable(
                "it is so full that nothing can be added, which is necessary while a member is missing",
            );
        }
        let (name, head, ring, seed) = (name.to_owned(), scan.head(), scan.ring(), scan.seed());
        JournalUse::Replay(JournalReplay { name, complete, data_only, relog, head, next_seq, ring, seed })
    }

    pub(super) fn carry_out<D: Disks>(
        &self,
        assembled: &Assembled,
        disks: &mut D,
        now: Timestamp,
    ) -> Result<(), ReplayError<D::Error>> {
        let journal = assembled.members.iter().find(|m| m.seat == Seat::Journal);
        let (Some(geometry), Some(journal)) = (parity(assembled), journal) else { return Ok(()) };
        let mut log = Log { replay: self, journal, head: self.head, seq: self.next_seq.wrapping_add(SEQ_LEAP) };
        for stripe in &self.complete {
            let content = log.content(stripe, disks)?;
            content.write(assembled, geometry, disks)?;
        }
        assembled.flush_members(disks)?;
        let mut round = 1;
        let mut fresh = Vec::new();
        if self.relog {
            let tail = log.head;
            for stripe in &self.data_only {
                let content = log.with_parity(stripe, assembled, geometry, disks)?;
                log.append(&content, geometry, disks)?;
                fresh.push(content);
            }
            disks.flush(journal.candidate)?;
            assembled.write_superblocks(disks, round, Some(tail), now)?;
            round += 1;
        }
        for content in &fresh {
            content.write(assembled, geometry, disks)?;
        }
        if !self.relog {
            for stripe in &self.data_only {
                log.with_parity(stripe, assembled, geometry, disks)?.write(assembled, geometry, disks)?;
            }
        }
        assembled.flush_members(disks)?;
        log.seq = log.seq.wrapping_add(if self.relog { SEQ_LEAP } else { 0 });
        let tail = log.head;
        log.meta(Vec::new(), disks)?;
        disks.flush(journal.candidate)?;
        assembled.write_superblocks(disks, round, Some(tail), now)
    }
}

/// Whether these rows fit into the rest of the log, and each with its parity behind one meta block.
fn relog_fits(stripes: &[Stripe], geometry: &ParityGeometry, room: Sectors) -> bool {
    let wanted: u64 = stripes.iter().map(|s| 1 + s.data.len() as u64 + u64::from(geometry.parities())).sum();
    // The meta block that begins the next log comes behind them.
    (wanted + 1).saturating_mul(BLOCK_SECTORS.0) <= room.0 && geometry.data_disks() <= DATA_BLOCKS_MAX
}

/// Sorts the log's words by rows: those with parity, and those with data alone. `None` if a place is outside the array.
fn collect(records: &[Record], geometry: &ParityGeometry) -> Option<(Vec<Stripe>, Vec<Stripe>)> {
    let mut open: BTreeMap<Sector, Stripe> = BTreeMap::new();
    let mut complete = Vec::new();
    let is_block = |s: Sector| s.0.is_multiple_of(BLOCK_SECTORS.0);
    for record in records {
        match *record {
            Record::Data { array, at } => {
                if !is_block(array) || array.0 >= geometry.array_sectors().0 {
                    return None;
                }
                let (row, index, offset) = geometry.map(array);
                let component = geometry.component(row, offset);
                let stripe = open.entry(component).or_default();
                if stripe.p.is_some() {
                    // Parity belongs to what came before it; this is a new write to the row.
                    complete.push(std::mem::take(stripe));
                }
                stripe.component = component;
                stripe.data.insert(index, at);
            }
            Record::Parity { component, p, q } => {
                if !is_block(component) || component.0 >= geometry.component_sectors().0 {
                    return None;
                }
                let stripe = open.entry(component).or_default();
                (stripe.component, stripe.p, stripe.q) = (component, Some(p), q);
            }
            // A row is flushed after its parity. Data without parity is of a later write.
            Record::Flushed { component } => {
                if open.get(&component).is_some_and(|s| s.p.is_some()) {
                    open.remove(&component);
                }
            }
        }
    }
    let (closed, data_only): (Vec<_>, Vec<_>) = open.into_values().partition(|s| s.p.is_some());
    complete.extend(closed);
    // Parity alone: its data was flushed, and with it what it belongs to.
    complete.retain(|s| !s.data.is_empty());
    Some((complete, data_only))
}

/// A row's new blocks.
struct Content {
    component: Sector,
    data: BTreeMap<u16, Vec<u8>>,
    p: Option<Vec<u8>>,
    q: Option<Vec<u8>>,
}

impl Content {
    fn write<D: Disks>(&self, assembled: &Assembled, geometry: &ParityGeometry, disks: &mut D) -> Result<(), D::Error> {
        let row = geometry.row(geometry.row_at(self.component).0);
        for (i, block) in &self.data {
            assembled.write(disks, row.data(*i), self.component, block)?;
        }
        if let Some(p) = &self.p {
            assembled.write(disks, row.p(), self.component, p)?;
        }
        match (&self.q, row.q()) {
            (Some(q), Some(slot)) => assembled.write(disks, slot, self.component, q),
            _ => Ok(()),
        }
    }
}

/// The log while it is being replayed, and where it goes on.
struct Log<'a> {
    replay: &'a JournalReplay,
    journal: &'a Seated,
    head: Sectors,
    seq: u64,
}

impl Log<'_> {
    fn read<D: Disks>(&self, at: Sectors, disks: &mut D) -> Result<Vec<u8>, D::Error> {
        let mut block = vec![0; BLOCK_BYTES];
        disks.read(self.journal.candidate, self.journal.place(Sector(at.0)), &mut block)?;
        Ok(block)
    }

    fn content<D: Disks>(&self, stripe: &Stripe, disks: &mut D) -> Result<Content, D::Error> {
        let mut read = |at: Sectors| self.read(at, disks);
        let data = stripe.data.iter().map(|(i, at)| Ok((*i, read(*at)?))).collect::<Result<_, D::Error>>()?;
        let (p, q) = (stripe.p.map(&mut read).transpose()?, stripe.q.map(&mut read).transpose()?);
        Ok(Content { component: stripe.component, data, p, q })
    }

    /// The content of a row that has data alone, with the parity that it makes.
    fn with_parity<D: Disks>(
        &self,
        stripe: &Stripe,
        assembled: &Assembled,
        geometry: &ParityGeometry,
        disks: &mut D,
    ) -> Result<Content, D::Error> {
        let mut content = self.content(stripe, disks)?;
        // With more lost than parity can tell, parity is lost or of no use, and data is all there is to write.
        if let Some(new) = parities_with(assembled, geometry, stripe.component, &content.data, disks)? {
            (content.p, content.q) = (Some(new.p), new.q);
        }
        Ok(content)
    }

    /// Adds a row to the log.
    fn append<D: Disks>(
        &mut self,
        content: &Content,
        geometry: &ParityGeometry,
        disks: &mut D,
    ) -> Result<(), D::Error> {
        let sum = |block: &Vec<u8>| checksum(self.replay.seed, block);
        let (row, offset) = geometry.row_at(content.component);
        let data = |(i, block): (&u16, &Vec<u8>)| {
            let location = geometry.array(row, *i, offset);
            Payload::Data { location, discard: false, checksums: vec![sum(block)] }
        };
        let mut payloads: Vec<Payload> = content.data.iter().map(data).collect();
        let parities: Vec<&Vec<u8>> = content.p.iter().chain(&content.q).collect();
        if !parities.is_empty() {
            let checksums = parities.iter().map(|block| sum(block)).collect();
            payloads.push(Payload::Parity { location: content.component, checksums });
        }
        self.meta(payloads, disks)?;
        for block in content.data.values().chain(parities) {
            self.write(block, disks)?;
        }
        Ok(())
    }

    /// Writes the next meta block.
    fn meta<D: Disks>(&mut self, payloads: Vec<Payload>, disks: &mut D) -> Result<(), D::Error> {
        let meta = MetaBlock { seq: self.seq, position: self.head, payloads };
        self.seq = self.seq.wrapping_add(1);
        // They fit: see `relog_fits`.
        let block = meta.encode(self.replay.seed).unwrap_or_default();
        self.write(&block, disks)
    }

    /// Writes a block at the head.
    fn write<D: Disks>(&mut self, block: &[u8], disks: &mut D) -> Result<(), D::Error> {
        disks.write(self.journal.candidate, self.journal.place(Sector(self.head.0)), block)?;
        self.head = ring_add(self.replay.ring, self.head, 1);
        Ok(())
    }
}

impl fmt::Display for JournalReplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (complete, data_only) = (self.complete.len(), self.data_only.len());
        let rows = complete + data_only;
        write!(f, "{rows} row{} of blocks from the write journal {}", if rows == 1 { "" } else { "s" }, self.name)?;
        if data_only > 0 {
            write!(f, ", {data_only} of them without their parity")?;
        }
        Ok(())
    }
}
