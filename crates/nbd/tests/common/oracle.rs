//! Random requests, deep in flight, against a byte array that knows what every read must find.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::ops::Range;

use raidus_nbd::codec::wire;

use super::{Client, Random};

/// How to run.
pub struct Workload {
    /// Start of the bytes the model stands for.
    pub area: u64,
    /// Requests in all.
    pub count: usize,
    /// Requests at once.
    pub depth: usize,
    /// Longest request, in blocks.
    pub blocks_max: u64,
    /// What it is drawn from.
    pub random: Random,
}

/// A request under way: the bytes it touches, and whether it only reads them.
struct UnderWay {
    range: Range<usize>,
    reads: bool,
}

impl Workload {
    /// Runs on an area whose content is `model`, and reads all of it in the end. Ranges under way overlap only if both just
    /// read, since the protocol leaves their order open otherwise. Discarded blocks read as zeroes.
    pub fn run<R: Read, W: Write>(mut self, client: &mut Client<R, W>, model: &mut [u8]) {
        let mut under_way = HashMap::new();
        for _ in 0..self.count {
            while under_way.len() >= self.depth {
                finish_one(client, model, &mut under_way);
            }
            let (kind, flags, range) = self.draw(client.info.min as usize, model.len());
            let reads = kind == wire::CMD_READ;
            let clash = |other: &UnderWay| {
                other.range.start < range.end && range.start < other.range.end && !(reads && other.reads)
            };
            while under_way.values().any(clash) {
                finish_one(client, model, &mut under_way);
            }
            let payload = self.apply(kind, &mut model[range.clone()]);
            let offset = if range.is_empty() { 0 } else { self.area + range.start as u64 };
            let cookie = client.send(kind, flags, offset, range.len() as u32, &payload).unwrap();
            under_way.insert(cookie, UnderWay { range, reads });
        }
        while !under_way.is_empty() {
            finish_one(client, model, &mut under_way);
        }
        let piece = client.info.max_payload.min(64 << 10) as usize;
        for (i, expected) in model.chunks(piece).enumerate() {
            let found = client.read(self.area + (i * piece) as u64, expected.len() as u32).unwrap();
            assert!(found == expected, "content differs in the end, somewhere in the {piece} bytes at {}", i * piece);
        }
    }

    fn draw(&mut self, block: usize, area: usize) -> (u16, u16, Range<usize>) {
        let random = &mut self.random;
        let blocks = area / block;
        let len = 1 + random.below(self.blocks_max.min(blocks as u64)) as usize;
        let start = random.below((blocks - len + 1) as u64) as usize;
        let range = start * block..(start + len) * block;
        let fua = if random.below(4) == 0 { wire::CMD_FLAG_FUA } else { 0 };
        match random.below(20) {
            0 => (wire::CMD_FLUSH, 0, 0..0),
            1 => (wire::CMD_TRIM, fua, range),
            2 => (wire::CMD_WRITE_ZEROES, fua, range),
            3 => (wire::CMD_WRITE_ZEROES, fua | wire::CMD_FLAG_NO_HOLE, range),
            4..=11 => (wire::CMD_WRITE, fua, range),
            _ => (wire::CMD_READ, 0, range),
        }
    }

    /// Does to the model what the request does; returns the payload.
    fn apply(&mut self, kind: u16, model: &mut [u8]) -> Vec<u8> {
        match kind {
            wire::CMD_WRITE => {
                let payload = self.random.bytes(model.len());
                model.copy_from_slice(&payload);
                payload
            }
            wire::CMD_TRIM | wire::CMD_WRITE_ZEROES => {
                model.fill(0);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }
}

fn finish_one<R: Read, W: Write>(client: &mut Client<R, W>, model: &[u8], under_way: &mut HashMap<u64, UnderWay>) {
    let reply = client.receive().unwrap();
    assert_eq!(reply.error, 0);
    let done = under_way.remove(&reply.cookie).expect("a reply to a request under way");
    if done.reads {
        assert!(reply.data == model[done.range.clone()], "a read of {:?} found something else", done.range);
    }
}
