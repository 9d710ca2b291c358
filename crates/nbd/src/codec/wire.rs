//! The protocol's numbers, and big-endian reading without panics.

/// First word of the server's greeting.
pub const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second word of the greeting, and first of every option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First word of a reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First word of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First word of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First word of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Longest string the protocol allows.
pub const STRING_MAX: usize = 4096;

/// Bytes of a request header.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of an option header.
pub const OPTION_BYTES: usize = 16;

/// Handshake flag (server and client): the fixed newstyle protocol.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag (server and client): no padding after the answer to `OPT_EXPORT_NAME`.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

/// Transmission flag: always set.
pub const FLAG_HAS_FLAGS: u16 = 1 << 0;
/// Transmission flag: writes are refused.
pub const FLAG_READ_ONLY: u16 = 1 << 1;
/// Transmission flag: [`CMD_FLUSH`] is understood.
pub const FLAG_SEND_FLUSH: u16 = 1 << 2;
/// Transmission flag: [`CMD_FLAG_FUA`] is understood.
pub const FLAG_SEND_FUA: u16 = 1 << 3;
/// Transmission flag: spinning disks.
pub const FLAG_ROTATIONAL: u16 = 1 << 4;
/// Transmission flag: [`CMD_TRIM`] is understood.
pub const FLAG_SEND_TRIM: u16 = 1 << 5;
/// Transmission flag: [`CMD_WRITE_ZEROES`] is understood.
pub const FLAG_SEND_WRITE_ZEROES: u16 = 1 << 6;
/// Transmission flag: [`CMD_FLAG_DF`] is understood.
pub const FLAG_SEND_DF: u16 = 1 << 7;
/// Transmission flag: several connections see one cache.
pub const FLAG_CAN_MULTI_CONN: u16 = 1 << 8;
/// Transmission flag: [`CMD_FLAG_FAST_ZERO`] is understood.
pub const FLAG_SEND_FAST_ZERO: u16 = 1 << 11;

/// Option: choose an export, and start.
pub const OPT_EXPORT_NAME: u32 = 1;
/// Option: give up.
pub const OPT_ABORT: u32 = 2;
/// Option: list the exports.
pub const OPT_LIST: u32 = 3;
/// Option: switch to TLS.
pub const OPT_STARTTLS: u32 = 5;
/// Option: describe an export.
pub const OPT_INFO: u32 = 6;
/// Option: describe an export, and start.
pub const OPT_GO: u32 = 7;
/// Option: use structured replies.
pub const OPT_STRUCTURED_REPLY: u32 = 8;
/// Option: list metadata contexts.
pub const OPT_LIST_META_CONTEXT: u32 = 9;
/// Option: choose metadata contexts.
pub const OPT_SET_META_CONTEXT: u32 = 10;

/// Option reply: done.
pub const REP_ACK: u32 = 1;
/// Option reply: an export.
pub const REP_SERVER: u32 = 2;
/// Option reply: something about an export.
pub const REP_INFO: u32 = 3;
/// Option reply: a metadata context.
pub const REP_META_CONTEXT: u32 = 4;
/// Option reply: the option is not known.
pub const REP_ERR_UNSUP: u32 = 1 << 31 | 1;
/// Option reply: the option makes no sense.
pub const REP_ERR_INVALID: u32 = 1 << 31 | 3;
/// Option reply: no such export.
pub const REP_ERR_UNKNOWN: u32 = 1 << 31 | 6;
/// Option reply: the server is stopping.
pub const REP_ERR_SHUTDOWN: u32 = 1 << 31 | 7;
/// Option reply: the option is too long.
pub const REP_ERR_TOO_BIG: u32 = 1 << 31 | 9;

/// Information: size and transmission flags.
pub const INFO_EXPORT: u16 = 0;
/// Information: canonical name.
pub const INFO_NAME: u16 = 1;
/// Information: text for human beings.
pub const INFO_DESCRIPTION: u16 = 2;
/// Information: block sizes.
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Command: read.
pub const CMD_READ: u16 = 0;
/// Command: write.
pub const CMD_WRITE: u16 = 1;
/// Command: disconnect.
pub const CMD_DISC: u16 = 2;
/// Command: make what was written durable.
pub const CMD_FLUSH: u16 = 3;
/// Command: the content is no longer needed.
pub const CMD_TRIM: u16 = 4;
/// Command: write zeroes.
pub const CMD_WRITE_ZEROES: u16 = 6;
/// Command: describe a range by the chosen metadata contexts.
pub const CMD_BLOCK_STATUS: u16 = 7;

/// Command flag: durable before the reply.
pub const CMD_FLAG_FUA: u16 = 1 << 0;
/// Command flag of [`CMD_WRITE_ZEROES`]: keep the space.
pub const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
/// Command flag of [`CMD_READ`]: one content chunk.
pub const CMD_FLAG_DF: u16 = 1 << 2;
/// Command flag of [`CMD_BLOCK_STATUS`]: one extent.
pub const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
/// Command flag of [`CMD_WRITE_ZEROES`]: only if quicker than writing.
pub const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;

/// Structured reply flag: the last chunk.
pub const REPLY_FLAG_DONE: u16 = 1 << 0;
/// Chunk: nothing.
pub const REPLY_TYPE_NONE: u16 = 0;
/// Chunk: content.
pub const REPLY_TYPE_OFFSET_DATA: u16 = 1;
/// Chunk: extents of a metadata context.
pub const REPLY_TYPE_BLOCK_STATUS: u16 = 5;
/// Chunk: an error.
pub const REPLY_TYPE_ERROR: u16 = 1 << 15 | 1;

/// The one metadata context there is.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// Reads big-endian numbers and slices off a byte string; `None` when it is too short.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    /// The next 16 bits.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next 64 bits.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string with its length in 32 bits before it.
    pub fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.bytes(usize::try_from(len).ok()?)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }
}
