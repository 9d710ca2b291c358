//! The handshake: client flags and options.

use super::wire::{self, Reader};
use super::{MESSAGE_MAX, OPTION_SKIP_MAX, Session, State, Violation};

/// The id of the `base:allocation` context in this server's replies.
pub(super) const ALLOCATION_CONTEXT_ID: u32 = 1;

/// An option that is answered with an error: reply type and text for the client's user.
struct Refusal(u32, String);

impl Session {
    pub(super) fn client_flags(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let flags = Reader(bytes).u32().ok_or(Violation::MessageLength)?;
        let offered = u32::from(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES);
        if flags & !offered != 0 {
            return Err(Violation::ClientFlags(flags));
        }
        // Fixed newstyle is spoken even with clients that do not say they know it: the specification allows it, and such
        // clients send only OPT_EXPORT_NAME.
        self.no_zeroes = flags & u32::from(wire::FLAG_NO_ZEROES) != 0;
        self.state = State::OptionHeader;
        Ok(())
    }

    pub(super) fn option_header(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Violation> {
        let (option, len) = parse_option_header(bytes).ok_or(Violation::OptionMagic)?;
        if len == 0 {
            return self.option(option, &[], out);
        }
        self.state = match usize::try_from(len) {
            Ok(len) if len <= MESSAGE_MAX => State::OptionData { option, len },
            _ if len <= OPTION_SKIP_MAX && option != wire::OPT_EXPORT_NAME => State::SkipOption { option, left: len },
            _ => return Err(Violation::OptionLength { option, len }),
        };
        Ok(())
    }

    pub(super) fn option(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<(), Violation> {
        self.state = State::OptionHeader;
        let outcome = match option {
            wire::OPT_EXPORT_NAME => return self.export_name(data, out),
            wire::OPT_ABORT => {
                self.state = State::Closed;
                Ok(())
            }
            _ if self.stopping => Err(Refusal(wire::REP_ERR_SHUTDOWN, "the server is stopping".into())),
            wire::OPT_LIST => self.list(data, out),
            wire::OPT_STRUCTURED_REPLY => self.structured_reply(data),
            wire::OPT_INFO => self.info(option, data, out),
            wire::OPT_GO => self.info(option, data, out).inspect(|()| self.state = State::Request),
            wire::OPT_LIST_META_CONTEXT => self.list_meta_context(data, out),
            wire::OPT_SET_META_CONTEXT => self.set_meta_context(data, out),
            wire::OPT_STARTTLS if !data.is_empty() => Err(no_data_expected()),
            wire::OPT_STARTTLS => Err(Refusal(wire::REP_ERR_UNSUP, "this server does not speak TLS".into())),
            _ => Err(Refusal(wire::REP_ERR_UNSUP, String::new())),
        };
        match outcome {
            Ok(()) => option_reply(out, option, wire::REP_ACK, &[]),
            Err(Refusal(reply, text)) => option_reply(out, option, reply, &[text.as_bytes()]),
        }
        Ok(())
    }

    pub(super) fn option_too_long(&mut self, option: u32, out: &mut Vec<u8>) {
        if option == wire::OPT_SET_META_CONTEXT {
            self.allocation_context = false;
        }
        option_reply(out, option, wire::REP_ERR_TOO_BIG, &[b"the option is too long"]);
    }

    /// The old way to start; there is no way to say no but to hang up.
    fn export_name(&mut self, name: &[u8], out: &mut Vec<u8>) -> Result<(), Violation> {
        if self.stopping || !self.export.answers_to(name) {
            return Err(Violation::ExportName);
        }
        out.extend_from_slice(&self.export.size().to_be_bytes());
        out.extend_from_slice(&self.export.flags(self.structured).to_be_bytes());
        if !self.no_zeroes {
            out.resize(out.len() + 124, 0);
        }
        self.state = State::Request;
        Ok(())
    }

    fn list(&self, data: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
        if !data.is_empty() {
            return Err(no_data_expected());
        }
        let name = self.export.name().as_bytes();
        let description = self.export.description().as_bytes();
        option_reply(out, wire::OPT_LIST, wire::REP_SERVER, &[&length_of(name), name, description]);
        Ok(())
    }

    fn structured_reply(&mut self, data: &[u8]) -> Result<(), Refusal> {
        if !data.is_empty() {
            return Err(no_data_expected());
        }
        self.structured = true;
        Ok(())
    }

    fn info(&self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
        let (name, wanted) = parse_info(data).ok_or_else(malformed)?;
        self.check_name(name)?;
        let export = &self.export;
        let mut tell = |what: u16, parts: &[&[u8]]| {
            let what = what.to_be_bytes();
            option_reply(out, option, wire::REP_INFO, &[&[&what[..]], parts].concat());
        };
        tell(wire::INFO_EXPORT, &[&export.size().to_be_bytes(), &export.flags(self.structured).to_be_bytes()]);
        // Sent to all: the sizes are never the protocol's defaults, and clients ignore what they do not know.
        let blocks = export.blocks();
        tell(
            wire::INFO_BLOCK_SIZE,
            &[&blocks.min.to_be_bytes(), &blocks.preferred.to_be_bytes(), &blocks.max_payload.to_be_bytes()],
        );
        if wanted.contains(&wire::INFO_NAME) {
            tell(wire::INFO_NAME, &[export.name().as_bytes()]);
        }
        if wanted.contains(&wire::INFO_DESCRIPTION) && !export.description().is_empty() {
            tell(wire::INFO_DESCRIPTION, &[export.description().as_bytes()]);
        }
        Ok(())
    }

    fn list_meta_context(&self, data: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
        let queries = self.meta_queries(data)?;
        let matches = |query: &&[u8]| *query == b"base:" || *query == wire::BASE_ALLOCATION.as_bytes();
        if queries.is_empty() || queries.iter().any(matches) {
            meta_context(out, wire::OPT_LIST_META_CONTEXT, 0);
        }
        Ok(())
    }

    fn set_meta_context(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
        // The former choice is void even if this one fails.
        self.allocation_context = false;
        if !self.structured {
            return Err(Refusal(wire::REP_ERR_INVALID, "structured replies have to be negotiated first".into()));
        }
        let queries = self.meta_queries(data)?;
        if queries.contains(&wire::BASE_ALLOCATION.as_bytes()) {
            self.allocation_context = true;
            meta_context(out, wire::OPT_SET_META_CONTEXT, ALLOCATION_CONTEXT_ID);
        }
        Ok(())
    }

    fn meta_queries<'a>(&self, data: &'a [u8]) -> Result<Vec<&'a [u8]>, Refusal> {
        let (name, queries) = parse_meta_context(data).ok_or_else(malformed)?;
        self.check_name(name)?;
        Ok(queries)
    }

    fn check_name(&self, name: &[u8]) -> Result<(), Refusal> {
        if self.export.answers_to(name) {
            return Ok(());
        }
        let text = format!("there is no such export here; this server exports {:?}", self.export.name());
        Err(Refusal(wire::REP_ERR_UNKNOWN, text))
    }
}

fn parse_option_header(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut reader = Reader(bytes);
    let magic = reader.u64()?;
    let header = (reader.u32()?, reader.u32()?);
    (magic == wire::OPTION_MAGIC).then_some(header)
}

/// Export name and wanted information of `OPT_INFO` and `OPT_GO`.
fn parse_info(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let mut reader = Reader(data);
    let name = reader.string()?;
    let count = reader.u16()?;
    let wanted: Vec<u16> = reader.0.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
    (name.len() <= wire::STRING_MAX && reader.0.len() == 2 * usize::from(count)).then_some((name, wanted))
}

/// Export name and queries of `OPT_LIST_META_CONTEXT` and `OPT_SET_META_CONTEXT`.
fn parse_meta_context(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let mut reader = Reader(data);
    let name = reader.string()?;
    let count = reader.u32()?;
    let mut queries = Vec::new();
    for _ in 0..count {
        // Each takes at least four bytes of the data, so the number of rounds is bounded by its length.
        queries.push(reader.string()?);
    }
    (name.len() <= wire::STRING_MAX && reader.0.is_empty()).then_some((name, queries))
}

fn meta_context(out: &mut Vec<u8>, option: u32, id: u32) {
    option_reply(out, option, wire::REP_META_CONTEXT, &[&id.to_be_bytes(), wire::BASE_ALLOCATION.as_bytes()]);
}

fn option_reply(out: &mut Vec<u8>, option: u32, reply: u32, data: &[&[u8]]) {
    let len: usize = data.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&wire::OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&reply.to_be_bytes());
    out.extend_from_slice(&(len as u32).to_be_bytes());
    for part in data {
        out.extend_from_slice(part);
    }
}

fn length_of(string: &[u8]) -> [u8; 4] {
    (string.len() as u32).to_be_bytes()
}

fn malformed() -> Refusal {
    Refusal(wire::REP_ERR_INVALID, "the option's lengths contradict each other".into())
}

fn no_data_expected() -> Refusal {
    Refusal(wire::REP_ERR_INVALID, "this option takes no data".into())
}
