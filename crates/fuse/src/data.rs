//! Bytes of the file become sectors of the array.

use std::sync::Arc;

use fuser::{Errno, ReplyData, ReplyEmpty, ReplyWrite};
use raidus_engine::{RequestError, RequestOp};
use raidus_runtime::memory::{Buffer, BufferPool};
use raidus_runtime::{ArrayHandle, ArrayRequest};
use raidus_units::{SECTOR_BYTES, Sector, Sectors};

use crate::gate::Gate;

/// Buffers for requests under way; when they are used up, memory is mapped for each request.
const POOL_BYTES: usize = 32 << 20;

/// The array's bytes.
pub struct Data {
    array: Arc<ArrayHandle>,
    size: u64,
    gate: Arc<Gate>,
    pool: BufferPool,
}

/// A range of bytes, and the sectors it touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    offset: u64,
    len: u64,
}

impl Span {
    fn end(self) -> u64 {
        self.offset + self.len
    }

    fn is_whole_sectors(self) -> bool {
        (self.offset | self.len).is_multiple_of(SECTOR_BYTES)
    }

    fn first(self) -> Sector {
        Sector(self.offset / SECTOR_BYTES)
    }

    fn sectors(self) -> Sectors {
        Sectors(self.end().div_ceil(SECTOR_BYTES) - self.first().0)
    }

    /// Where it begins inside its first sector.
    fn head(self) -> usize {
        (self.offset % SECTOR_BYTES) as usize
    }

    /// Whole sectors inside, and the partial ones before and after; those that are empty are left out.
    fn parts(self) -> impl Iterator<Item = Span> {
        let first_whole = self.offset.next_multiple_of(SECTOR_BYTES).min(self.end());
        let last_whole = (self.end() - self.end() % SECTOR_BYTES).max(first_whole);
        let bounds = [(self.offset, first_whole), (first_whole, last_whole), (last_whole, self.end())];
        bounds.into_iter().filter(|(from, to)| from < to).map(|(from, to)| Span { offset: from, len: to - from })
    }
}

impl Data {
    pub fn new(array: Arc<ArrayHandle>) -> std::io::Result<Data> {
        let size = array.size().bytes();
        Ok(Data { array, size, gate: Arc::new(Gate::default()), pool: BufferPool::new(POOL_BYTES)? })
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// The logical block size of the members.
    pub fn block(&self) -> u32 {
        self.array.block()
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
        if !span.is_whole_sectors() {
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
        if span.is_whole_sectors() {
            let pass = self.gate.enter();
            return self.submit_empty(self.request(op, span, None), move || drop(pass), reply);
        }
        let result = span.parts().try_for_each(|part| {
            if part.is_whole_sectors() {
                let _pass = self.gate.enter();
                self.array.client().run(self.request(op, part, None)).map(|_| ()).map_err(errno)
            } else {
                self.write_partial(part, &[0; SECTOR_BYTES as usize][..part.len as usize], false)
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

    /// Completes the first and the last sector from the array, and writes all of it. Blocks.
    fn write_partial(&self, span: Span, bytes: &[u8], fua: bool) -> Result<(), Errno> {
        let mut buffer = self.buffer(span)?;
        let client = self.array.client();
        let _alone = self.gate.alone();
        let sector = SECTOR_BYTES as usize;
        let whole = span.sectors().bytes() as usize;
        let first = span.first().bytes();
        if span.head() != 0 {
            client.read_at(first, &mut buffer[..sector]).map_err(errno)?;
        }
        if !span.end().is_multiple_of(SECTOR_BYTES) && (whole > sector || span.head() == 0) {
            client.read_at(first + (whole - sector) as u64, &mut buffer[whole - sector..whole]).map_err(errno)?;
        }
        buffer[span.head()..span.head() + bytes.len()].copy_from_slice(bytes);
        client.run(self.request(RequestOp::Write { fua }, span, Some(buffer))).map(|_| ()).map_err(errno)
    }

    /// The part of a range that is inside the array, unless it is empty.
    fn clamp(&self, offset: u64, len: u64) -> Option<Span> {
        let len = len.min(self.size.saturating_sub(offset));
        (len > 0).then_some(Span { offset, len })
    }

    /// For all sectors of a span. Content is arbitrary.
    fn buffer(&self, span: Span) -> Result<Buffer, Errno> {
        let bytes = usize::try_from(span.sectors().bytes()).map_err(|_| Errno::EINVAL)?;
        match self.pool.take(bytes) {
            Some(buffer) => Ok(buffer),
            None => Buffer::alone(bytes).map_err(|_| Errno::ENOMEM),
        }
    }

    fn request(&self, op: RequestOp, span: Span, buffer: Option<Buffer>) -> ArrayRequest {
        ArrayRequest { op, sector: span.first(), len: span.sectors(), buffer }
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
        for offset in [0, 1, 511, 512, 513, 1000] {
            for len in [1, 10, 511, 512, 513, 1024, 1025, 5000] {
                let span = Span { offset, len };
                let parts: Vec<Span> = span.parts().collect();
                let mut at = offset;
                for part in &parts {
                    assert_eq!(part.offset, at);
                    at = part.end();
                    assert!(part.is_whole_sectors() || part.sectors() == Sectors(1), "{span:?}: {parts:?}");
                }
                assert_eq!(at, span.end());
                assert!(parts.len() <= 3);
            }
        }
    }
}
