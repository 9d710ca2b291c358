//! One client's side of the protocol as a state machine without I/O.
//!
//! A [`Session`] says what it needs next ([`Session::need`]): a small message of known length, handed over by
//! [`Session::message`]; or payload, which the caller receives straight into its own memory and only counts off with
//! [`Session::consumed`]. Out come [`Command`]s and the bytes of replies, appended to a byte sink. Replies may be given in
//! any order, by [`Session::reply`]; the content of a read goes right behind its reply's header, from the caller's memory.
//!
//! Invariants: whatever the client sends, nothing panics; no message asked for is longer than [`MESSAGE_MAX`]; every command
//! handed out is aligned to the minimum block size, inside the export and, if it carries payload, no longer than the
//! longest payload; every command gets exactly one reply, and an error reply to a write comes after its payload.

mod negotiate;
mod transmit;
pub mod wire;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::Export;

pub use transmit::{Command, ErrorCode, Op};

/// The longest message a session asks for: the data of an option.
pub const MESSAGE_MAX: usize = 16 << 10;

/// Options longer than this are not even skipped: no honest client sends them.
const OPTION_SKIP_MAX: u32 = 1 << 20;

/// One connection of a client.
#[derive(Debug)]
pub struct Session {
    export: Arc<Export>,
    state: State,
    no_zeroes: bool,
    structured: bool,
    /// `base:allocation` was chosen.
    allocation_context: bool,
    stopping: bool,
}

/// What a session needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Exactly this many bytes, 1 to [`MESSAGE_MAX`], for [`Session::message`].
    Message(usize),
    /// This many bytes of the payload of the write command that was handed out last.
    Payload(u32),
    /// This many bytes that mean nothing.
    Skip(u32),
    /// No more bytes: finish the commands under way, send their replies, and close the connection.
    Close,
}

/// The client broke the protocol in a way that has no reply; the connection has to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A handshake flag that was not offered.
    #[error("the client set handshake flags {0:#x}, which were not offered")]
    ClientFlags(u32),
    /// Bytes that are not an option.
    #[error("the client sent something that is not an NBD option")]
    OptionMagic,
    /// An option of absurd length.
    #[error("the client sent option {option} with {len} bytes of data")]
    OptionLength {
        /// The option.
        option: u32,
        /// Length of its data.
        len: u32,
    },
    /// `OPT_EXPORT_NAME` with the name of no export; this option has no error reply.
    #[error("the client asked for an export that does not exist")]
    ExportName,
    /// Bytes that are not a request.
    #[error("the client sent something that is not an NBD request")]
    RequestMagic,
    /// The caller handed over another number of bytes than the session needed.
    #[error("the session was given a message of the wrong length")]
    MessageLength,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    ClientFlags,
    OptionHeader,
    OptionData {
        option: u32,
        len: usize,
    },
    SkipOption {
        option: u32,
        left: u32,
    },
    Request,
    /// The payload of a write command that was handed out.
    Payload {
        left: u32,
    },
    /// The payload of a refused write command; the reply is sent when it is over.
    SkipPayload {
        cookie: u64,
        error: ErrorCode,
        left: u32,
    },
    Closed,
}

impl Session {
    /// A new connection; appends the greeting to `out`.
    pub fn new(export: Arc<Export>, out: &mut Vec<u8>) -> Session {
        out.extend_from_slice(&wire::NBD_MAGIC.to_be_bytes());
        out.extend_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES).to_be_bytes());
        Session {
            export,
            state: State::ClientFlags,
            no_zeroes: false,
            structured: false,
            allocation_context: false,
            stopping: false,
        }
    }

    /// Lowers the longest payload to `bytes`. Only before the first message, as clients are told during the handshake.
    pub fn limit_payload(&mut self, bytes: u32) {
        if bytes < self.export.blocks().max_payload {
            self.export = Arc::new(Export::clone(&self.export).limited_to(bytes));
        }
    }

    /// What the session needs next.
    pub fn need(&self) -> Need {
        match self.state {
            State::ClientFlags => Need::Message(4),
            State::OptionHeader => Need::Message(wire::OPTION_BYTES),
            State::OptionData { len, .. } => Need::Message(len),
            State::SkipOption { left, .. } | State::SkipPayload { left, .. } => Need::Skip(left),
            State::Request => Need::Message(wire::REQUEST_BYTES),
            State::Payload { left } => Need::Payload(left),
            State::Closed => Need::Close,
        }
    }

    /// Takes the message that was needed. Replies the session gives by itself go to `out`. If a write command comes out,
    /// its payload is needed next.
    pub fn message(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Option<Command>, Violation> {
        if self.need() != Need::Message(bytes.len()) {
            return Err(self.break_off(Violation::MessageLength));
        }
        let outcome = match self.state {
            State::ClientFlags => self.client_flags(bytes).map(|()| None),
            State::OptionHeader => self.option_header(bytes, out).map(|()| None),
            State::OptionData { option, .. } => self.option(option, bytes, out).map(|()| None),
            State::Request => self.request(bytes, out),
            State::SkipOption { .. } | State::Payload { .. } | State::SkipPayload { .. } | State::Closed => {
                Err(Violation::MessageLength)
            }
        };
        outcome.map_err(|violation| self.break_off(violation))
    }

    /// Counts off `n` bytes of what [`Need::Payload`] or [`Need::Skip`] asked for; more than was asked for counts as all of it.
    pub fn consumed(&mut self, n: u32, out: &mut Vec<u8>) {
        match &mut self.state {
            State::Payload { left } | State::SkipOption { left, .. } | State::SkipPayload { left, .. } => {
                *left = left.saturating_sub(n);
            }
            State::ClientFlags | State::OptionHeader | State::OptionData { .. } | State::Request | State::Closed => {}
        }
        match self.state {
            State::Payload { left: 0 } => self.state = State::Request,
            State::SkipOption { option, left: 0 } => {
                self.state = State::OptionHeader;
                self.option_too_long(option, out);
            }
            State::SkipPayload { cookie, error, left: 0 } => {
                self.state = State::Request;
                self.refuse(cookie, error, out);
            }
            _ => {}
        }
    }

    /// From now on refuse every option and command, because the server is stopping. Commands handed out before are
    /// still replied to.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Whether the handshake is over.
    pub fn is_transmitting(&self) -> bool {
        matches!(self.state, State::Request | State::Payload { .. } | State::SkipPayload { .. })
    }

    fn break_off(&mut self, violation: Violation) -> Violation {
        self.state = State::Closed;
        violation
    }
}
