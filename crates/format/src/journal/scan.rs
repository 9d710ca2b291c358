//! Reading a log from its tail to its end, block by block, with every checksum looked at.
//!
//! The log ends at the first meta block that is torn, stale or out of sequence, or one of whose blocks is. What stood in such a
//! block was never acknowledged: an acknowledgement waits for the meta block and all its blocks to be durable.

use super::{BLOCK_BYTES, BLOCK_SECTORS, JournalError, MetaBlock, Payload, checksum, seed};
use crate::MdUuid;
use core::mem;
use raidus_units::{Sector, Sectors};

/// How much is asked for at once.
const READ_MAX: Sectors = Sectors(1024);

/// What the log says, in the order it was said. Places are positions in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A block of data.
    Data {
        /// Array sector.
        array: Sector,
        /// Where it is.
        at: Sectors,
    },
    /// The parity of a row of blocks.
    Parity {
        /// Component sector.
        component: Sector,
        /// Where P is.
        p: Sectors,
        /// Where Q is.
        q: Option<Sectors>,
    },
    /// A row of blocks is safely on the members.
    Flushed {
        /// Component sector.
        component: Sector,
    },
}

/// How a scan ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanEnd {
    /// At the end of the log.
    End,
    /// There is no log where it should begin.
    NoStart,
    /// At a block that is whole, but says things nobody knows.
    Unknown,
}

/// A scan under way: hand in what [`wants`](Self::wants) asks for until it asks for nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogScan {
    seed: u32,
    ring: Sectors,
    /// Where the next meta block is, or would be.
    at: Sectors,
    /// Sectors from the tail to there.
    used: Sectors,
    /// What its number has to be; the first block sets it.
    seq: Option<u64>,
    state: State,
    records: Vec<Record>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Meta,
    /// Behind a meta block; so many of its blocks were good.
    Blocks {
        meta: MetaBlock,
        checksums: Vec<u32>,
        good: usize,
    },
    Done(ScanEnd),
}

impl LogScan {
    /// A scan of the journal of `array`, whose device has `room` for data, from `tail` on.
    pub fn new(array: MdUuid, room: Sectors, tail: Sector) -> LogScan {
        let ring = room.round_down(BLOCK_SECTORS);
        let is_place = tail.0 < ring.0 && tail.0.is_multiple_of(BLOCK_SECTORS.0);
        let state = if is_place { State::Meta } else { State::Done(ScanEnd::NoStart) };
        let (at, used) = (Sectors(tail.0), Sectors::ZERO);
        LogScan { seed: seed(array), ring, at, used, seq: None, state, records: Vec::new() }
    }

    /// The range of the log to be read next.
    pub fn wants(&self) -> Option<(Sectors, Sectors)> {
        match &self.state {
            State::Meta => Some((self.at, BLOCK_SECTORS)),
            State::Blocks { checksums, good, .. } => {
                let start = self.after(1 + *good as u64);
                let left = Sectors((checksums.len() - good) as u64 * BLOCK_SECTORS.0);
                Some((start, left.min(READ_MAX).min(self.ring - start)))
            }
            State::Done(_) => None,
        }
    }

    /// Takes what was read.
    pub fn supply(&mut self, bytes: &[u8]) {
        match mem::replace(&mut self.state, State::Done(ScanEnd::End)) {
            State::Meta => self.state = self.on_meta(bytes),
            State::Blocks { meta, checksums, good } => self.state = self.on_blocks(bytes, meta, checksums, good),
            done @ State::Done(_) => self.state = done,
        }
    }

    /// How it ended, if it did.
    pub fn end(&self) -> Option<ScanEnd> {
        match self.state {
            State::Done(end) => Some(end),
            _ => None,
        }
    }

    /// What the log says.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Where the log ends.
    pub fn head(&self) -> Sectors {
        self.at
    }

    /// Sectors between the end of the log and its tail: not in use.
    pub fn room(&self) -> Sectors {
        self.ring.saturating_sub(self.used)
    }

    /// Sectors of the ring.
    pub fn ring(&self) -> Sectors {
        self.ring
    }

    /// The number after that of the last meta block; `None` if there is no log.
    pub fn next_seq(&self) -> Option<u64> {
        self.seq
    }

    /// What all checksums start from.
    pub fn seed(&self) -> u32 {
        self.seed
    }

    /// The position `blocks` after where the next meta block is.
    fn after(&self, blocks: u64) -> Sectors {
        ring_add(self.ring, self.at, blocks)
    }

    fn on_meta(&mut self, bytes: &[u8]) -> State {
        let first = self.seq.is_none();
        let meta = match MetaBlock::parse(bytes, self.seed) {
            Ok(meta) => meta,
            Err(JournalError::Nonsense(_) | JournalError::UnsupportedVersion(_)) if !self.is_old(bytes) => {
                return State::Done(ScanEnd::Unknown);
            }
            Err(_) => return State::Done(if first { ScanEnd::NoStart } else { ScanEnd::End }),
        };
        if meta.position != self.at || self.seq.is_some_and(|seq| seq != meta.seq) {
            return State::Done(if first { ScanEnd::NoStart } else { ScanEnd::End });
        }
        // A log longer than the ring would have overwritten its own tail.
        let len = Sectors((1 + meta.blocks()).saturating_mul(BLOCK_SECTORS.0));
        if len > self.room() {
            return State::Done(ScanEnd::Unknown);
        }
        self.seq = Some(meta.seq);
        let checksums = meta.payloads.iter().flat_map(|p| p.checksums().iter().copied()).collect();
        self.if_complete(meta, checksums, 0)
    }

    /// Whether a block that cannot be understood is none of this log's: what stood there before.
    fn is_old(&self, bytes: &[u8]) -> bool {
        let word = |at: usize| bytes.get(at..at + 8).and_then(|w| w.try_into().ok()).map_or(0, u64::from_le_bytes);
        word(24) != self.at.0 || self.seq.is_some_and(|seq| seq != word(16))
    }

    fn on_blocks(&mut self, bytes: &[u8], meta: MetaBlock, checksums: Vec<u32>, good: usize) -> State {
        let expected = checksums.get(good..).unwrap_or_default();
        let mut count = 0;
        for (block, sum) in bytes.chunks_exact(BLOCK_BYTES).zip(expected) {
            if checksum(self.seed, block) != *sum {
                return State::Done(ScanEnd::End);
            }
            count += 1;
        }
        if count == 0 {
            return State::Done(ScanEnd::End);
        }
        self.if_complete(meta, checksums, good + count)
    }

    /// Goes on to the next meta block once all blocks of this one were good.
    fn if_complete(&mut self, meta: MetaBlock, checksums: Vec<u32>, good: usize) -> State {
        if good < checksums.len() {
            return State::Blocks { meta, checksums, good };
        }
        let mut block = 1;
        for payload in &meta.payloads {
            self.record(payload, block);
            block += payload.blocks();
        }
        self.used += Sectors(block * BLOCK_SECTORS.0);
        self.at = self.after(block);
        self.seq = Some(meta.seq.wrapping_add(1));
        State::Meta
    }

    /// Notes a payload whose blocks begin `block` blocks after the meta block.
    fn record(&mut self, payload: &Payload, block: u64) {
        match payload {
            Payload::Data { location, checksums, .. } => {
                for i in 0..checksums.len() as u64 {
                    // Wrapping: an address this large is found out of range by whoever maps it.
                    let array = Sector(location.0.wrapping_add(i * BLOCK_SECTORS.0));
                    self.records.push(Record::Data { array, at: self.after(block + i) });
                }
            }
            Payload::Parity { location, checksums } => {
                let q = (checksums.len() > 1).then(|| self.after(block + 1));
                self.records.push(Record::Parity { component: *location, p: self.after(block), q });
            }
            Payload::Flush { stripes } => {
                self.records.extend(stripes.iter().map(|s| Record::Flushed { component: *s }));
            }
        }
    }
}

/// The position `blocks` blocks after `at` in a ring. `at` is inside.
pub fn ring_add(ring: Sectors, at: Sectors, blocks: u64) -> Sectors {
    let ring_blocks = (ring.0 / BLOCK_SECTORS.0).max(1);
    Sectors((at.0 / BLOCK_SECTORS.0 + blocks % ring_blocks) % ring_blocks * BLOCK_SECTORS.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRAY: MdUuid = MdUuid([7; 16]);
    const RING: u64 = 16;

    /// A log in a ring of 16 blocks.
    struct Log(Vec<u8>);

    impl Log {
        fn new() -> Log {
            Log(vec![0; RING as usize * BLOCK_BYTES])
        }

        /// Puts a meta block and blocks filled with `fill` behind it; gives the place of the next.
        fn put(&mut self, block: u64, seq: u64, fill: u8, payloads: &dyn Fn(u32) -> Vec<Payload>) -> u64 {
            let (seed, content) = (seed(ARRAY), [fill; BLOCK_BYTES]);
            let payloads = payloads(checksum(seed, &content));
            let meta = MetaBlock { seq, position: Sectors(block * 8), payloads };
            self.write(block, &meta.encode(seed).unwrap());
            (1..=meta.blocks()).for_each(|i| self.write(block + i, &content));
            (block + 1 + meta.blocks()) % RING
        }

        fn write(&mut self, block: u64, content: &[u8]) {
            let at = (block % RING) as usize * BLOCK_BYTES;
            self.0[at..at + BLOCK_BYTES].copy_from_slice(content);
        }

        fn scan(&self, tail: u64) -> LogScan {
            let mut scan = LogScan::new(ARRAY, Sectors(RING * 8 + 5), Sector(tail * 8));
            while let Some((at, len)) = scan.wants() {
                let (start, len) = (at.bytes() as usize, len.bytes() as usize);
                scan.supply(&self.0[start..start + len]);
            }
            scan
        }
    }

    fn data(sum: u32) -> Vec<Payload> {
        vec![
            Payload::Data { location: Sector(80), discard: false, checksums: vec![sum] },
            Payload::Parity { location: Sector(40), checksums: vec![sum, sum] },
        ]
    }

    #[test]
    fn a_log_is_read_around_the_end_of_the_ring() {
        let mut log = Log::new();
        let next = log.put(11, 5, 1, &data);
        let next = log.put(next, 6, 2, &data);
        let end = log.put(next, 7, 0, &|_| vec![Payload::Flush { stripes: vec![Sector(40)] }]);
        let scan = log.scan(11);
        let of = |a: u64, p: u64, q: u64| {
            let at = |block: u64| Sectors(block * 8);
            let parity = Record::Parity { component: Sector(40), p: at(p), q: Some(at(q)) };
            [Record::Data { array: Sector(80), at: at(a) }, parity]
        };
        let flushed = Record::Flushed { component: Sector(40) };
        assert_eq!(scan.records(), [&of(12, 13, 14)[..], &of(0, 1, 2)[..], &[flushed]].concat());
        assert_eq!((scan.end(), scan.head(), scan.next_seq()), (Some(ScanEnd::End), Sectors(end * 8), Some(8)));
        assert_eq!(scan.room(), Sectors((RING - 9) * 8));
    }

    #[test]
    fn it_ends_at_what_was_torn_or_stood_there_before() {
        let mut log = Log::new();
        let second = log.put(0, 5, 1, &data);
        let third = log.put(second, 6, 2, &data);
        log.put(third, 2, 3, &data);
        assert_eq!(log.scan(0).records().len(), 4, "the third is of an earlier round");
        log.put(third, 7, 3, &data);
        assert_eq!(log.scan(0).records().len(), 6);
        let whole = log.0.clone();
        log.0[(second as usize + 2) * BLOCK_BYTES + 100] ^= 1;
        let scan = log.scan(0);
        assert_eq!((scan.records().len(), scan.head()), (2, Sectors(second * 8)), "a torn block drops all behind it");
        log.0 = whole;
        log.0[second as usize * BLOCK_BYTES + 3000] ^= 1;
        assert_eq!(log.scan(0).records().len(), 2);
        assert_eq!(log.scan(0).next_seq(), Some(6));
    }

    #[test]
    fn no_start_and_unknown_content_are_told_apart() {
        let mut log = Log::new();
        assert_eq!(log.scan(0).end(), Some(ScanEnd::NoStart));
        assert_eq!(LogScan::new(ARRAY, Sectors(128), Sector(4)).end(), Some(ScanEnd::NoStart));
        assert_eq!(LogScan::new(ARRAY, Sectors(128), Sector(128)).end(), Some(ScanEnd::NoStart));
        assert_eq!(LogScan::new(ARRAY, Sectors(7), Sector(0)).end(), Some(ScanEnd::NoStart));
        log.put(0, 5, 1, &data);
        // A payload kind from the future, with the right checksum.
        let mut block = log.0[..BLOCK_BYTES].to_vec();
        block[32] = 9;
        block[4..8].fill(0);
        let sum = checksum(seed(ARRAY), &block);
        block[4..8].copy_from_slice(&sum.to_le_bytes());
        log.write(0, &block);
        assert_eq!(log.scan(0).end(), Some(ScanEnd::Unknown));
    }

    #[test]
    fn a_log_that_goes_all_the_way_round_ends() {
        let mut log = Log::new();
        let mut at = 0;
        for seq in 0..4 {
            at = log.put(at, seq, 1, &data);
        }
        assert_eq!(at, 0);
        let scan = log.scan(0);
        assert_eq!((scan.records().len(), scan.room(), scan.end()), (8, Sectors(0), Some(ScanEnd::End)));
    }
}
