//! The transmission phase: requests and replies.

use super::negotiate::ALLOCATION_CONTEXT_ID;
use super::wire::{self, Reader};
use super::{Session, State, Violation};

/// A request that passed every check and awaits its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// The client's name for it.
    pub cookie: u64,
    /// What to do.
    pub op: Op,
    /// First byte; a multiple of the minimum block size.
    pub offset: u64,
    /// Bytes; a multiple of the minimum block size, zero only for a flush.
    pub len: u32,
}

/// The operations a server has to carry out; the session answers everything else by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read.
    Read,
    /// Write the payload that follows.
    Write {
        /// Durable before the reply.
        fua: bool,
    },
    /// Make every write replied to so far durable, on whichever connection it came.
    Flush,
    /// The content is no longer needed.
    Trim {
        /// Durable before the reply.
        fua: bool,
    },
    /// Write zeroes.
    WriteZeroes {
        /// Durable before the reply.
        fua: bool,
        /// The space may not be given back.
        no_hole: bool,
    },
}

/// The errors the protocol knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u32)]
pub enum ErrorCode {
    /// EPERM.
    #[error("the export is read-only")]
    Perm = 1,
    /// EIO.
    #[error("input/output error")]
    Io = 5,
    /// EINVAL.
    #[error("the request is not valid: flags, alignment or range")]
    Inval = 22,
    /// ENOSPC.
    #[error("the request goes past the end of the export")]
    NoSpace = 28,
    /// EOVERFLOW.
    #[error("the request is longer than the server's longest payload")]
    Overflow = 75,
    /// ENOTSUP.
    #[error("zeroing is no quicker than writing here")]
    NotSup = 95,
    /// ESHUTDOWN.
    #[error("the server is stopping")]
    Shutdown = 108,
}

/// What becomes of a request.
enum Verdict {
    /// To be carried out.
    Do(Op),
    /// Nothing to do.
    Done,
    /// Its answer is in the session.
    Status,
    Refuse(ErrorCode),
}

struct RawRequest {
    flags: u16,
    kind: u16,
    cookie: u64,
    offset: u64,
    len: u32,
}

impl Session {
    pub(super) fn request(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Option<Command>, Violation> {
        let request = RawRequest::parse(bytes).ok_or(Violation::RequestMagic)?;
        let RawRequest { kind, cookie, offset, len, .. } = request;
        if kind == wire::CMD_DISC {
            self.state = State::Closed;
            return Ok(None);
        }
        let payload = if kind == wire::CMD_WRITE { len } else { 0 };
        match self.judge(&request) {
            Verdict::Do(op) => {
                if payload > 0 {
                    self.state = State::Payload { left: payload };
                }
                return Ok(Some(Command { cookie, op, offset, len }));
            }
            // A client may look for the reply only once it has sent everything.
            Verdict::Refuse(error) if payload > 0 => self.state = State::SkipPayload { cookie, error, left: payload },
            Verdict::Refuse(error) => self.refuse(cookie, error, out),
            Verdict::Done if kind == wire::CMD_READ && self.structured => {
                chunk(out, wire::REPLY_TYPE_NONE, cookie, &[], 0);
            }
            Verdict::Done => simple_reply(out, cookie, 0),
            Verdict::Status => self.block_status(&request, out),
        }
        Ok(None)
    }

    /// Appends the reply to a command. After the reply to a successful read, exactly `command.len` bytes of content have to
    /// be sent.
    pub fn reply(&self, command: &Command, result: Result<(), ErrorCode>, out: &mut Vec<u8>) {
        match result {
            Err(error) => self.refuse(command.cookie, error, out),
            Ok(()) if command.op == Op::Read && self.structured => {
                let offset = command.offset.to_be_bytes();
                chunk(out, wire::REPLY_TYPE_OFFSET_DATA, command.cookie, &[&offset], command.len);
            }
            Ok(()) => simple_reply(out, command.cookie, 0),
        }
    }

    pub(super) fn refuse(&self, cookie: u64, error: ErrorCode, out: &mut Vec<u8>) {
        if !self.structured {
            return simple_reply(out, cookie, error as u32);
        }
        let text = error.to_string();
        let code = (error as u32).to_be_bytes();
        let text_len = (text.len() as u16).to_be_bytes();
        chunk(out, wire::REPLY_TYPE_ERROR, cookie, &[&code, &text_len, text.as_bytes()], 0);
    }

    fn judge(&self, request: &RawRequest) -> Verdict {
        if self.stopping {
            return Verdict::Refuse(ErrorCode::Shutdown);
        }
        match self.check(request) {
            Err(error) => Verdict::Refuse(error),
            Ok(verdict) => verdict,
        }
    }

    fn check(&self, request: &RawRequest) -> Result<Verdict, ErrorCode> {
        let allowed = self.allowed_flags(request.kind).ok_or(ErrorCode::Inval)?;
        if request.flags & !allowed != 0 {
            return Err(ErrorCode::Inval);
        }
        let fua = request.has(wire::CMD_FLAG_FUA);
        let op = match request.kind {
            wire::CMD_FLUSH if request.offset != 0 || request.len != 0 => return Err(ErrorCode::Inval),
            // Where nothing is written there is nothing to make durable.
            wire::CMD_FLUSH if self.export.is_read_only() => return Ok(Verdict::Done),
            wire::CMD_FLUSH => return Ok(Verdict::Do(Op::Flush)),
            wire::CMD_BLOCK_STATUS => return self.check_block_status(request),
            wire::CMD_READ => Op::Read,
            wire::CMD_WRITE => Op::Write { fua },
            wire::CMD_TRIM => Op::Trim { fua },
            _ => Op::WriteZeroes { fua, no_hole: request.has(wire::CMD_FLAG_NO_HOLE) },
        };
        self.check_range(request, op)?;
        if request.has(wire::CMD_FLAG_FAST_ZERO) && !self.export.zeroes_fast() {
            return Err(ErrorCode::NotSup);
        }
        Ok(if request.len == 0 { Verdict::Done } else { Verdict::Do(op) })
    }

    /// The flags a command may carry, or `None` for commands that are not known. FUA is accepted wherever clients are known
    /// to set it, that is everywhere.
    fn allowed_flags(&self, kind: u16) -> Option<u16> {
        let own = match kind {
            wire::CMD_READ if self.structured => wire::CMD_FLAG_DF,
            wire::CMD_READ | wire::CMD_WRITE | wire::CMD_FLUSH | wire::CMD_TRIM => 0,
            wire::CMD_WRITE_ZEROES => wire::CMD_FLAG_NO_HOLE | wire::CMD_FLAG_FAST_ZERO,
            wire::CMD_BLOCK_STATUS => wire::CMD_FLAG_REQ_ONE,
            _ => return None,
        };
        Some(own | wire::CMD_FLAG_FUA)
    }

    fn check_range(&self, request: &RawRequest, op: Op) -> Result<(), ErrorCode> {
        let blocks = self.export.blocks();
        if op != Op::Read && self.export.is_read_only() {
            return Err(ErrorCode::Perm);
        }
        if !request.is_inside(self.export.size()) {
            let writes = matches!(op, Op::Write { .. } | Op::WriteZeroes { .. });
            return Err(if writes { ErrorCode::NoSpace } else { ErrorCode::Inval });
        }
        if !request.is_aligned(blocks.min) {
            return Err(ErrorCode::Inval);
        }
        if request.len > blocks.max_payload && op == Op::Read && self.structured {
            return Err(ErrorCode::Overflow);
        }
        if request.len > blocks.max_payload && matches!(op, Op::Read | Op::Write { .. }) {
            return Err(ErrorCode::Inval);
        }
        Ok(())
    }

    fn check_block_status(&self, request: &RawRequest) -> Result<Verdict, ErrorCode> {
        let valid = self.allocation_context
            && request.len > 0
            && request.is_inside(self.export.size())
            && request.is_aligned(self.export.blocks().min);
        if valid { Ok(Verdict::Status) } else { Err(ErrorCode::Inval) }
    }

    /// Everything is allocated and of unknown content, which is true of any array.
    fn block_status(&self, request: &RawRequest, out: &mut Vec<u8>) {
        let extent = if request.has(wire::CMD_FLAG_REQ_ONE) {
            request.len
        } else {
            // To the end of the export, so that the client need not ask again.
            let longest = u64::from(u32::MAX - 0xffff);
            (self.export.size() - request.offset).min(longest) as u32
        };
        let (id, flags) = (ALLOCATION_CONTEXT_ID.to_be_bytes(), 0u32.to_be_bytes());
        chunk(out, wire::REPLY_TYPE_BLOCK_STATUS, request.cookie, &[&id, &extent.to_be_bytes(), &flags], 0);
    }
}

impl RawRequest {
    fn parse(bytes: &[u8]) -> Option<RawRequest> {
        let mut reader = Reader(bytes);
        let magic = reader.u32()?;
        let (flags, kind) = (reader.u16()?, reader.u16()?);
        let request = RawRequest { flags, kind, cookie: reader.u64()?, offset: reader.u64()?, len: reader.u32()? };
        (magic == wire::REQUEST_MAGIC).then_some(request)
    }

    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    fn is_inside(&self, size: u64) -> bool {
        self.offset.checked_add(u64::from(self.len)).is_some_and(|end| end <= size)
    }

    fn is_aligned(&self, block: u32) -> bool {
        self.offset.is_multiple_of(u64::from(block)) && self.len.is_multiple_of(block)
    }
}

fn simple_reply(out: &mut Vec<u8>, cookie: u64, error: u32) {
    let mut reply = [0; 16];
    reply[..4].copy_from_slice(&wire::SIMPLE_REPLY_MAGIC.to_be_bytes());
    reply[4..8].copy_from_slice(&error.to_be_bytes());
    reply[8..].copy_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&reply);
}

/// The only chunk of a structured reply: `parts`, and after them `content` bytes that the caller sends.
fn chunk(out: &mut Vec<u8>, kind: u16, cookie: u64, parts: &[&[u8]], content: u32) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&wire::STRUCTURED_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&wire::REPLY_FLAG_DONE.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    // No overflow: content is at most the longest payload, which is at most 1 GiB.
    out.extend_from_slice(&(content + len as u32).to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}
