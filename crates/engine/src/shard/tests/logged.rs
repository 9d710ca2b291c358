//! Arrays with a partial parity log: what is logged, and that nothing is written before.

use raidus_layout::ParityGeometry;

use super::*;
use crate::msg::LogWant;

impl Rig {
    /// Looks at what is to be logged, and grants it some time later.
    pub(super) fn on_log_wanted(&mut self, from: usize, wants: &[LogWant]) {
        for want in wants {
            self.check_partial(&want.entry);
            let logged = self.logged.as_mut().expect("an array with logs");
            assert_eq!(logged.insert((from, want.op), want.entry), None, "two writes of one name");
        }
        self.tell(from, Message::LogGranted(wants.iter().map(|want| want.op).collect()));
    }

    pub(super) fn on_log_done(&mut self, from: usize, ops: &[u64]) {
        let logged = self.logged.as_mut().expect("an array with logs");
        ops.iter().for_each(|op| assert!(logged.remove(&(from, *op)).is_some(), "it was not logged"));
    }

    /// Every write is one that is logged; unless nobody has the row's parity.
    pub(super) fn check_logged(&self, device: Sector, len: Sectors) {
        let (Some(logged), Geometry::Parity(g)) = (&self.logged, &self.geometry) else { return };
        let component = Sector(device.0 - DATA_OFFSET);
        let (number, inside) = g.row_at(component);
        let covers = |entry: &LogEntry| {
            let Rows { row, lo, len: rows, .. } = rows(g, entry);
            row == number && lo <= inside && inside + len <= lo + rows
        };
        let granted = |at: &(usize, u64)| !self.messages.iter().any(|m| is_grant(m, *at));
        let is_logged = logged.iter().any(|(at, entry)| granted(at) && covers(entry));
        assert!(is_logged || self.map.member_at(g.row(number).p()).is_none(), "{component} was not logged");
    }

    /// Partial parity is the sum of the chunks that are not written; where one of them is lost, what parity says of it.
    fn check_partial(&self, entry: &LogEntry) {
        let Geometry::Parity(g) = &self.geometry else { panic!("only parity levels log") };
        let Rows { row, lo, len, written } = rows(g, entry);
        let row = g.row(row);
        assert_eq!(row.p(), entry.parity_slot);
        let component = g.component(rows(g, entry).row, lo);
        let block = |slot: Slot| {
            let (id, _) = self.map.member_at(slot)?;
            let at = ((DATA_OFFSET + component.0) * 512) as usize;
            Some(self.disks[id.index()][at..at + len.bytes() as usize].to_vec())
        };
        let others = (0..g.data_disks()).filter(|i| !written.contains(i));
        let blocks: Option<Vec<Vec<u8>>> = others.map(|i| block(row.data(i))).collect();
        let blocks = blocks.unwrap_or_else(|| {
            let old = written.clone().map(|i| block(row.data(i)).expect("only one is lost"));
            old.chain(block(row.p())).collect()
        });
        let lost = written.clone().filter(|i| block(row.data(*i)).is_none()).count();
        assert!(lost == 0 || written.len() == 1, "a lost chunk is written along with others");
        let Some((at, partial_len)) = entry.partial else {
            return assert_eq!(written.len(), usize::from(g.data_disks()), "only whole stripes need none");
        };
        assert_eq!(partial_len, len);
        let mut sum = vec![0; len.bytes() as usize];
        blocks.iter().for_each(|b| sum.iter_mut().zip(b).for_each(|(s, b)| *s ^= b));
        assert!(self.memory.get(at, len) == sum, "partial parity of {entry:?} is wrong");
    }
}

/// The part of a row that an entry is about.
struct Rows {
    row: u64,
    lo: Sectors,
    len: Sectors,
    written: std::ops::Range<u16>,
}

fn rows(g: &ParityGeometry, entry: &LogEntry) -> Rows {
    let (row, first, lo) = g.map(entry.data_sector);
    let data = Sectors::from_bytes_floor(entry.data_bytes.into());
    let len = entry.partial.map_or(Sectors(data.0 / u64::from(g.data_disks())), |(_, len)| len);
    Rows { row, lo, len, written: first..first + (data.0 / len.0) as u16 }
}

fn is_grant((from, to, message): &(Peer, usize, Message), at: (usize, u64)) -> bool {
    let ours = *from == Peer::Control && *to == at.0;
    ours && matches!(message, Message::LogGranted(ops) if ops.contains(&at.1))
}

fn exercise(n: u16, layout: u32, lost: Option<u16>, seed: u64) {
    let mut rig = Rig::with_logs(Level::Raid5, layout, n, 2, seed, true, |map| {
        if let Some(lost) = lost {
            lose(map, usize::from(lost));
        }
    });
    let mut oracle = rig.oracle();
    rig.exercise(40, &mut oracle);
    rig.assert_consistent();
    assert!(rig.logged.is_some_and(|logged| logged.is_empty()), "a write's end was not told");
}

#[test]
fn what_is_written_is_logged_first_and_rightly() {
    for layout in 0..=5 {
        for n in [2, 3, 5] {
            exercise(n, layout, None, u64::from(n));
        }
    }
}

#[test]
fn with_a_member_missing_too_and_its_chunks_are_written_alone() {
    for layout in [0, 2, 5] {
        for n in [3, 5] {
            (0..n).for_each(|lost| exercise(n, layout, Some(lost), u64::from(lost)));
        }
    }
}
