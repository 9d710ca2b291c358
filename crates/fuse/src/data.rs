//! Bytes of the file become blocks of the array.

use std::sync::Arc;

use fuser::{Errno, ReplyData, ReplyEmpty, ReplyWrite};
use raidus_engine::{RequestError, RequestOp};
use raidus_runtime::memory::{Buffer, BufferPool};
use raidus_runtime::{ArrayHandle, ArrayRequest};
use raidus_units::{SECTOR_BYTES, Sector, Sectors};

use crate::gate::Gate;

/// Buffers for requests under way; when they are used up, memory is mapped for each request.
const POOL_BYTES: usize = 32 << 20;

/// What a block that is zeroed in part is filled from.
static ZEROES: [u8; 1 << 16] = [0; 1 << 16];

/// The array's bytes.
pub struct Data {
    array: Arc<ArrayHandle>,
    size: u64,
    /// The array's logical block size in bytes, a power of two.
    block: u64,
    gate: Arc<Gate>,
    pool: BufferPool,
}

/// A range of bytes, and the blocks it touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    offset: u64,
    len: u64,
    block: u64,
}

impl Span {
    fn end(self) -> u64 {
        self.offset + self.len
    }

    fn is_whole_blocks(self) -> bool {
        (self.offset | self.len).is_multiple_of(self.block)
    }

    /// Where the blocks begin.
    fn start(self) -> u64 {
        self.offset - self.offset % self.block
    }

    /// How long the blocks are.
    fn whole(self) -> u64 {
        self.end().next_multiple_of(self.block) - self.start()
    }

    /// Where it begins inside its first block.
    fn head(self) -> usize {
        (self.offset % self.block) as usize
    }

    /// Whole blocks inside, and the partial ones before and after; those that are empty are left out.
    fn parts(self) -> impl Iterator<Item = Span> {
        let first_whole = self.offset.next_multiple_of(self.block).min(self.end());
        let last_whole = (self.end() - self.end() % self.block).max(first_whole);
        let bounds = [(self.offset, first_whole), (first_whole, last_whole), (last_whole, self.end())];
        let part = move |(from, to)| Span { offset: from, len: to - from, block: self.block };
        bounds.into_iter().filter(|(from, to)| from < to).map(part)
    }
}

impl Data {
    pub fn new(array: Arc<ArrayHandle>) -> std::io::Result<Data> {
        let block = u64::from(array.block());
        // As with any disk: what is left over at the end is no block.
        let size = array.size().bytes() - array.size().bytes() % block;
        Ok(Data { array, size, block, gate: Arc::new(Gate::default()), pool: BufferPool::new(POOL_BYTES)? })
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// The logical block size of the members.
    pub fn block(&self) -> u32 {
        // At most what block sizes can be, 64 KiB.
        self.block as u32
    }

    /// Reads what there is: less at the end, nothing past it.
    pub fn read(&self, offset: u64, len: u64, reply: ReplyData) {
        let Some(span) = self.clamp(offset, len) else { return reply.data(&[]) };
        let buffer = match self.buffer(span) {
            Ok(buffer) => buffer,
            Err(error) => return reply.error(error),
        };
        let bytes = span.head()..span.head() + span.len as usize;
        let request = self.request(RequestOp::Read, span, Some(buffer));
        let done = move |result: Result<(), RequestError>, buffer: Option<Buffer>| match (result, buffer) {
            (Ok(()), Some(buffer)) => reply.data(&buffer[bytes]),
            (Ok(()), None) => reply.error(Errno::EIO),
            (Err(error), _) => reply.error(errno(error)),
        };
        self.array.submit(request, Box::new(done));
    }

    /// Writes what there is room for. With `fua` it is durable at the reply.
    pub fn write(&self, offset: u64, bytes: &[u8], fua: bool, reply: ReplyWrite) {
        if bytes.is_empty() {
            return reply.written(0);
        }
        let Some(span) = self.clamp(offset, bytes.len() as u64) else { return reply.error(Errno::ENOSPC) };
        let bytes = &bytes[..span.len as usize];
        let written = bytes.len() as u32;
        if !span.is_whole_blocks() {
            return match self.write_partial(span, bytes, fua) {
                Ok(()) => reply.written(written),
                Err(error) => reply.error(error),
            };
        }
        let mut buffer = match self.buffer(span) {
            Ok(buffer) => buffer,
            Err(error) => return reply.error(error),
        };
        buffer[..bytes.len()].copy_from_slice(bytes);
        let pass = self.gate.enter();
        let request = self.request(RequestOp::Write { fua }, span, Some(buffer));
        let done = move |result: Result<(), RequestError>, _| {
            drop(pass);
            match result {
                Ok(()) => reply.written(written),
                Err(error) => reply.error(errno(error)),
            }
        };
        self.array.submit(request, Box::new(done));
    }

    /// Zeroes what there is of a range. With `unmap`, members may give its space back.
    pub fn zero(&self, offset: u64, len: u64, unmap: bool, reply: ReplyEmpty) {
        let Some(span) = self.clamp(offset, len) else { return reply.ok() };
        let op = RequestOp::WriteZeroes { fua: false, unmap };
        if span.is_whole_blocks() {
            let pass = self.gate.enter();
            return self.submit_empty(self.request(op, span, None), move || drop(pass), reply);
        }
        let result = span.parts().try_for_each(|part| {
            if part.is_whole_blocks() {
                let _pass = self.gate.enter();
                self.array.client().run(self.request(op, part, None)).map(|_| ()).map_err(errno)
            } else {
                self.write_partial(part, &ZEROES[..part.len as usize], false)
            }
        });
        match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    /// Makes every write that was replied to durable.
    pub fn flush(&self, reply: ReplyEmpty) {
        let flush = ArrayRequest { op: RequestOp::Flush, sector: Sector::ZERO, len: Sectors::ZERO, buffer: None };
        self.submit_empty(flush, || {}, reply);
    }

    fn submit_empty(&self, request: ArrayRequest, then: impl FnOnce() + Send + 'static, reply: ReplyEmpty) {
        let done = move |result: Result<(), RequestError>, _| {
            then();
            match result {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(error)),
            }
        };
        self.array.submit(request, Box::new(done));
    }

    /// Completes the first and the last block from the array, and writes all of it. Blocks.
    fn write_partial(&self, span: Span, bytes: &[u8], fua: bool) -> Result<(), Errno> {
        let mut buffer = self.buffer(span)?;
        let client = self.array.client();
        let _alone = self.gate.alone();
        let block = self.block as usize;
        let whole = span.whole() as usize;
        if span.head() != 0 {
            client.read_at(span.start(), &mut buffer[..block]).map_err(errno)?;
        }
        if !span.end().is_multiple_of(self.block) && (whole > block || span.head() == 0) {
            let last = span.start() + (whole - block) as u64;
            client.read_at(last, &mut buffer[whole - block..whole]).map_err(errno)?;
        }
        buffer[span.head()..span.head() + bytes.len()].copy_from_slice(bytes);
        client.run(self.request(RequestOp::Write { fua }, span, Some(buffer))).map(|_| ()).map_err(errno)
    }

    /// The part of a range that is inside the array, unless it is empty.
    fn clamp(&self, offset: u64, len: u64) -> Option<Span> {
        let len = len.min(self.size.saturating_sub(offset));
        (len > 0).then_some(Span { offset, len, block: self.block })
    }

    /// For all blocks of a span. Content is arbitrary.
    fn buffer(&self, span: Span) -> Result<Buffer, Errno> {
        let bytes = usize::try_from(span.whole()).map_err(|_| Errno::EINVAL)?;
        match self.pool.take(bytes) {
            Some(buffer) => Ok(buffer),
            None => Buffer::alone(bytes).map_err(|_| Errno::ENOMEM),
        }
    }

    fn request(&self, op: RequestOp, span: Span, buffer: Option<Buffer>) -> ArrayRequest {
        let (sector, len) = (Sector(span.start() / SECTOR_BYTES), Sectors::from_bytes_floor(span.whole()));
        ArrayRequest { op, sector, len, buffer }
    }
}

fn errno(error: RequestError) -> Errno {
    match error {
        RequestError::Io => Errno::EIO,
        RequestError::Range => Errno::EINVAL,
        RequestError::ReadOnly => Errno::EROFS,
        RequestError::Stopped => Errno::ESHUTDOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_span_and_only_edges_are_partial() {
        for block in [512, 4096] {
            for offset in [0, 1, 511, 512, 513, 1000, 4095, 4096, 5000] {
                for len in [1, 10, 511, 512, 513, 1024, 1025, 4096, 5000, 9000] {
                    let span = Span { offset, len, block };
                    let parts: Vec<Span> = span.parts().collect();
                    let mut at = offset;
                    for part in &parts {
                        assert_eq!(part.offset, at);
                        at = part.end();
                        assert!(part.is_whole_blocks() || part.whole() == block, "{span:?}: {parts:?}");
                    }
                    assert_eq!(at, span.end());
                    assert!(parts.len() <= 3);
                    assert!(span.start() <= offset && span.start() + span.whole() >= span.end());
                    assert!((span.start() | span.whole()).is_multiple_of(block));
                }
            }
        }
    }
}
