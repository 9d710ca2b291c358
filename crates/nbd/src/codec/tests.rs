//! The codec against hand-written bytes, and against noise.

use std::sync::Arc;

use proptest::prelude::*;

use super::wire::{self, Reader};
use super::*;
use crate::BlockSizes;

const SIZE: u64 = 1 << 20;
const COOKIE: u64 = 0x0123_4567_89ab_cdef;

/// A client that writes bytes into a session and looks at what comes out.
struct Peer {
    session: Session,
    out: Vec<u8>,
    commands: Vec<Command>,
}

/// A reply to an option.
#[derive(Debug, PartialEq, Eq)]
struct OptionReply {
    option: u32,
    kind: u32,
    data: Vec<u8>,
}

fn export() -> Export {
    Export::new("md0", SIZE, BlockSizes::for_logical_block(512)).unwrap()
}

impl Peer {
    fn new(export: Export) -> Peer {
        let mut out = Vec::new();
        let session = Session::new(Arc::new(export), &mut out);
        Peer { session, out, commands: Vec::new() }
    }

    /// Past the client flags.
    fn greeted() -> Peer {
        Peer::greeted_with(export())
    }

    fn greeted_with(export: Export) -> Peer {
        let mut peer = Peer::new(export);
        peer.send(&3u32.to_be_bytes()).unwrap();
        peer.out.clear();
        peer
    }

    /// In the transmission phase.
    fn started(export: Export, structured: bool) -> Peer {
        let mut peer = Peer::greeted_with(export);
        if structured {
            assert_eq!(peer.option(wire::OPT_STRUCTURED_REPLY, &[]), [ack(wire::OPT_STRUCTURED_REPLY)]);
            let reply = peer.option(wire::OPT_SET_META_CONTEXT, &meta("md0", &["base:allocation"]));
            assert_eq!(reply.len(), 2);
        }
        assert_eq!(peer.option(wire::OPT_GO, &info("md0", &[])).last(), Some(&ack(wire::OPT_GO)));
        assert!(peer.session.is_transmitting());
        peer
    }

    /// Feeds all of `bytes`, as much at a time as the session needs; stops early when it is closed.
    fn send(&mut self, mut bytes: &[u8]) -> Result<(), Violation> {
        while !bytes.is_empty() {
            match self.session.need() {
                Need::Message(n) => {
                    assert!((1..=MESSAGE_MAX).contains(&n));
                    let Some((message, rest)) = bytes.split_at_checked(n) else { return Ok(()) };
                    bytes = rest;
                    self.commands.extend(self.session.message(message, &mut self.out)?);
                }
                Need::Payload(n) | Need::Skip(n) => {
                    assert!(n > 0);
                    let n = bytes.len().min(n as usize);
                    bytes = &bytes[n..];
                    self.session.consumed(n as u32, &mut self.out);
                }
                Need::Close => return Ok(()),
            }
        }
        Ok(())
    }

    fn option(&mut self, option: u32, data: &[u8]) -> Vec<OptionReply> {
        self.send(&option_bytes(option, data)).unwrap();
        option_replies(&std::mem::take(&mut self.out))
    }

    fn request(&mut self, flags: u16, kind: u16, offset: u64, len: u32) -> Vec<u8> {
        self.send(&request_bytes(flags, kind, offset, len)).unwrap();
        std::mem::take(&mut self.out)
    }

    /// The error of a request that the session refuses by itself.
    fn refused(&mut self, flags: u16, kind: u16, offset: u64, len: u32) -> u32 {
        let mut bytes = self.request(flags, kind, offset, len);
        if kind == wire::CMD_WRITE && len > 0 {
            assert_eq!(bytes, [], "no reply before the payload is over");
            assert_eq!(self.session.need(), Need::Skip(len));
            self.session.consumed(len, &mut self.out);
            bytes = std::mem::take(&mut self.out);
        }
        assert_eq!(self.commands, [], "not carried out");
        assert_eq!(self.session.need(), Need::Message(wire::REQUEST_BYTES));
        error_of(&bytes)
    }
}

fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = wire::OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn request_bytes(flags: u16, kind: u16, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = wire::REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(COOKIE.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

fn info(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.extend((wanted.len() as u16).to_be_bytes());
    bytes.extend(wanted.iter().flat_map(|what| what.to_be_bytes()));
    bytes
}

fn meta(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.extend((queries.len() as u32).to_be_bytes());
    bytes.extend(queries.iter().flat_map(|query| string(query)));
    bytes
}

fn option_replies(bytes: &[u8]) -> Vec<OptionReply> {
    let mut reader = Reader(bytes);
    let mut replies = Vec::new();
    while !reader.0.is_empty() {
        assert_eq!(reader.u64(), Some(wire::OPTION_REPLY_MAGIC));
        let (option, kind) = (reader.u32().unwrap(), reader.u32().unwrap());
        replies.push(OptionReply { option, kind, data: reader.string().unwrap().to_vec() });
    }
    replies
}

fn ack(option: u32) -> OptionReply {
    OptionReply { option, kind: wire::REP_ACK, data: Vec::new() }
}

/// The one reply is an error of this kind.
#[track_caller]
fn assert_refused(replies: &[OptionReply], kind: u32) {
    assert_eq!(replies.iter().map(|reply| reply.kind).collect::<Vec<_>>(), [kind]);
}

/// The error in a reply that is only that, simple or structured.
fn error_of(bytes: &[u8]) -> u32 {
    let mut reader = Reader(bytes);
    let error;
    if reader.u32() == Some(wire::SIMPLE_REPLY_MAGIC) {
        error = reader.u32().unwrap();
        assert_eq!(reader.u64(), Some(COOKIE));
    } else {
        assert_eq!((reader.u16(), reader.u16()), (Some(wire::REPLY_FLAG_DONE), Some(wire::REPLY_TYPE_ERROR)));
        assert_eq!(reader.u64(), Some(COOKIE));
        assert_eq!(reader.u32(), Some(reader.0.len() as u32));
        error = reader.u32().unwrap();
        let text_len = reader.u16().unwrap();
        assert!(reader.bytes(text_len.into()).is_some());
    }
    assert_eq!(reader.0, [], "nothing behind the reply");
    error
}

#[test]
fn greeting() {
    let peer = Peer::new(export());
    assert_eq!(peer.out, b"NBDMAGICIHAVEOPT\x00\x03");
    assert_eq!(peer.session.need(), Need::Message(4));
}

#[test]
fn unknown_client_flags_end_the_connection() {
    let mut peer = Peer::new(export());
    assert_eq!(peer.send(&[0, 0, 0, 4]), Err(Violation::ClientFlags(4)));
    assert_eq!(peer.session.need(), Need::Close);
}

#[test]
fn something_else_than_an_option_ends_the_connection() {
    let mut peer = Peer::greeted();
    assert_eq!(peer.send(b"GET / HTTP/1.1\r\n"), Err(Violation::OptionMagic));
    assert_eq!(peer.session.need(), Need::Close);
}

#[test]
fn export_name_with_and_without_padding() {
    for (flags, len) in [(3u32, 10), (1, 134), (0, 134)] {
        for name in ["", "md0"] {
            let mut peer = Peer::new(export());
            peer.send(&flags.to_be_bytes()).unwrap();
            peer.out.clear();
            peer.send(&option_bytes(wire::OPT_EXPORT_NAME, name.as_bytes())).unwrap();
            assert_eq!(peer.out.len(), len);
            let mut reader = Reader(&peer.out);
            assert_eq!(reader.u64(), Some(SIZE));
            // HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, MULTI_CONN, FAST_ZERO; no DF without structured replies.
            assert_eq!(reader.u16(), Some(0b1001_0110_1101));
            assert!(reader.0.iter().all(|&byte| byte == 0));
            assert!(peer.session.is_transmitting());
        }
    }
}

#[test]
fn export_name_of_another_export_ends_the_connection() {
    let mut peer = Peer::greeted();
    assert_eq!(peer.send(&option_bytes(wire::OPT_EXPORT_NAME, b"md1")), Err(Violation::ExportName));
}

#[test]
fn abort_is_acknowledged_and_closes() {
    let mut peer = Peer::greeted();
    assert_eq!(peer.option(wire::OPT_ABORT, b"bye"), [ack(wire::OPT_ABORT)]);
    assert_eq!(peer.session.need(), Need::Close);
}

#[test]
fn list() {
    let mut peer = Peer::greeted_with(export().with_description("raid5 of 3"));
    let replies = peer.option(wire::OPT_LIST, &[]);
    let data = [string("md0"), b"raid5 of 3".to_vec()].concat();
    assert_eq!(replies, [OptionReply { option: wire::OPT_LIST, kind: wire::REP_SERVER, data }, ack(wire::OPT_LIST)]);
    assert_refused(&peer.option(wire::OPT_LIST, b"x"), wire::REP_ERR_INVALID);
}

#[test]
fn options_without_support() {
    let mut peer = Peer::greeted();
    for option in [0, 4, wire::OPT_STARTTLS, 11, u32::MAX] {
        assert_refused(&peer.option(option, &[]), wire::REP_ERR_UNSUP);
    }
    assert_refused(&peer.option(wire::OPT_STARTTLS, b"x"), wire::REP_ERR_INVALID);
    assert_refused(&peer.option(11, b"data"), wire::REP_ERR_UNSUP);
    assert_eq!(peer.option(wire::OPT_STRUCTURED_REPLY, &[]), [ack(wire::OPT_STRUCTURED_REPLY)]);
    assert_refused(&peer.option(wire::OPT_STRUCTURED_REPLY, b"x"), wire::REP_ERR_INVALID);
}

#[test]
fn info_and_go_tell_what_was_asked() {
    let mut peer = Peer::greeted_with(export().with_description("raid5 of 3").rotational(true));
    assert_eq!(peer.option(wire::OPT_STRUCTURED_REPLY, &[]), [ack(wire::OPT_STRUCTURED_REPLY)]);
    let all = [wire::INFO_NAME, wire::INFO_DESCRIPTION, wire::INFO_BLOCK_SIZE, 999];
    for option in [wire::OPT_INFO, wire::OPT_GO] {
        let mut replies = peer.option(option, &info("", &all));
        assert_eq!(replies.pop(), Some(ack(option)));
        assert!(replies.iter().all(|reply| reply.kind == wire::REP_INFO && reply.option == option));
        let data: Vec<&[u8]> = replies.iter().map(|reply| &reply.data[..]).collect();
        // Size 1 MiB; as above plus ROTATIONAL and DF.
        assert_eq!(data[0], b"\0\x00\0\0\0\0\0\x10\0\0\x09\xfd");
        // 512, 4096, 32 MiB.
        assert_eq!(data[1], b"\0\x03\0\0\x02\0\0\0\x10\0\x02\0\0\0");
        assert_eq!(data[2], b"\0\x01md0");
        assert_eq!(data[3], b"\0\x02raid5 of 3");
        assert_eq!(data.len(), 4);
    }
    assert!(peer.session.is_transmitting());
}

#[test]
fn read_only_exports_say_so() {
    let mut peer = Peer::greeted_with(export().read_only(true));
    let replies = peer.option(wire::OPT_INFO, &info("md0", &[]));
    // HAS_FLAGS, READ_ONLY, FLUSH, FUA, MULTI_CONN.
    assert_eq!(replies[0].data[10..], [0b1, 0b1111]);
}

#[test]
fn info_of_another_export() {
    let mut peer = Peer::greeted();
    let replies = peer.option(wire::OPT_GO, &info("md1", &[]));
    assert_refused(&replies, wire::REP_ERR_UNKNOWN);
    assert!(String::from_utf8_lossy(&replies[0].data).contains("\"md0\""), "says which export there is");
    assert!(!peer.session.is_transmitting());
}

#[test]
fn malformed_info() {
    let mut peer = Peer::greeted();
    let good = info("md0", &[wire::INFO_NAME]);
    for cut in 0..good.len() {
        assert_refused(&peer.option(wire::OPT_INFO, &good[..cut]), wire::REP_ERR_INVALID);
        assert_refused(&peer.option(wire::OPT_GO, &good[..cut]), wire::REP_ERR_INVALID);
        assert!(!peer.session.is_transmitting());
    }
    assert_refused(&peer.option(wire::OPT_GO, &[&good[..], b"x"].concat()), wire::REP_ERR_INVALID);
    let long = "n".repeat(wire::STRING_MAX + 1);
    assert_refused(&peer.option(wire::OPT_GO, &info(&long, &[])), wire::REP_ERR_INVALID);
    assert_refused(&peer.option(wire::OPT_GO, b"\xff\xff\xff\xff\0\0"), wire::REP_ERR_INVALID);
}

#[test]
fn long_options_are_skipped_and_absurd_ones_end_the_connection() {
    let mut peer = Peer::greeted();
    let long = vec![0; MESSAGE_MAX + 1];
    assert_refused(&peer.option(wire::OPT_GO, &long), wire::REP_ERR_TOO_BIG);
    assert_refused(&peer.option(77, &long), wire::REP_ERR_TOO_BIG);
    assert_eq!(peer.option(wire::OPT_STRUCTURED_REPLY, &[]), [ack(wire::OPT_STRUCTURED_REPLY)]);

    let mut absurd = option_bytes(wire::OPT_GO, &[]);
    absurd[12..].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(peer.send(&absurd), Err(Violation::OptionLength { option: wire::OPT_GO, len: u32::MAX }));
    let mut peer = Peer::greeted();
    assert!(peer.send(&option_bytes(wire::OPT_EXPORT_NAME, &long)).is_err());
}

#[test]
fn list_meta_context() {
    let mut peer = Peer::greeted();
    let option = wire::OPT_LIST_META_CONTEXT;
    let found = OptionReply { option, kind: wire::REP_META_CONTEXT, data: b"\0\0\0\0base:allocation".to_vec() };
    for queries in [&[][..], &["base:"], &["base:allocation"], &["x-y:z", "base:allocation"]] {
        let replies = peer.option(option, &meta("md0", queries));
        assert_eq!(replies[0], found);
        assert_eq!(replies[1..], [ack(option)]);
    }
    for queries in [&["qemu:dirty-bitmap:x"][..], &["base:other"], &["nonsense"]] {
        assert_eq!(peer.option(option, &meta("", queries)), [ack(option)]);
    }
    assert_refused(&peer.option(option, &meta("md1", &[])), wire::REP_ERR_UNKNOWN);
    let good = meta("md0", &["base:"]);
    for cut in 0..good.len() {
        assert_refused(&peer.option(option, &good[..cut]), wire::REP_ERR_INVALID);
    }
}

#[test]
fn set_meta_context() {
    let mut peer = Peer::greeted();
    let option = wire::OPT_SET_META_CONTEXT;
    assert_refused(&peer.option(option, &meta("md0", &["base:allocation"])), wire::REP_ERR_INVALID);
    peer.option(wire::OPT_STRUCTURED_REPLY, &[]);
    for queries in [&[][..], &["base:"], &["base:other"]] {
        assert_eq!(peer.option(option, &meta("md0", queries)), [ack(option)]);
    }
    let replies = peer.option(option, &meta("", &["base:allocation", "base:allocation"]));
    let data = b"\0\0\0\x01base:allocation".to_vec();
    assert_eq!(replies, [OptionReply { option, kind: wire::REP_META_CONTEXT, data }, ack(option)]);
}

#[test]
fn a_failed_choice_of_contexts_voids_the_former() {
    for bad in [meta("md1", &["base:allocation"]), b"junk".to_vec(), vec![0; MESSAGE_MAX + 1]] {
        let mut peer = Peer::greeted();
        peer.option(wire::OPT_STRUCTURED_REPLY, &[]);
        peer.option(wire::OPT_SET_META_CONTEXT, &meta("", &["base:allocation"]));
        peer.option(wire::OPT_SET_META_CONTEXT, &bad);
        peer.option(wire::OPT_GO, &info("", &[]));
        assert_eq!(peer.refused(0, wire::CMD_BLOCK_STATUS, 0, 512), 22);
    }
}

#[test]
fn stopping_server_refuses_options_and_commands() {
    let mut peer = Peer::greeted();
    peer.session.stop();
    assert_refused(&peer.option(wire::OPT_GO, &info("", &[])), wire::REP_ERR_SHUTDOWN);
    assert_eq!(peer.option(wire::OPT_ABORT, &[]), [ack(wire::OPT_ABORT)]);

    let mut peer = Peer::started(export(), false);
    peer.session.stop();
    assert_eq!(peer.refused(0, wire::CMD_READ, 0, 512), 108);
    assert_eq!(peer.refused(0, wire::CMD_WRITE, 0, 512), 108);
    assert_eq!(peer.refused(0, wire::CMD_FLUSH, 0, 0), 108);
}

#[test]
fn commands_come_out_as_sent() {
    let mut peer = Peer::started(export(), true);
    let (fua, no_hole) = (wire::CMD_FLAG_FUA, wire::CMD_FLAG_NO_HOLE);
    let requests = [
        (0, wire::CMD_READ, 512, 1024, Op::Read),
        (wire::CMD_FLAG_DF | fua, wire::CMD_READ, 0, 512, Op::Read),
        (0, wire::CMD_WRITE, 0, 4096, Op::Write { fua: false }),
        (fua, wire::CMD_WRITE, SIZE - 512, 512, Op::Write { fua: true }),
        (0, wire::CMD_FLUSH, 0, 0, Op::Flush),
        (fua, wire::CMD_FLUSH, 0, 0, Op::Flush),
        (0, wire::CMD_TRIM, 0, SIZE as u32, Op::Trim { fua: false }),
        (fua, wire::CMD_TRIM, 0, 512, Op::Trim { fua: true }),
        (0, wire::CMD_WRITE_ZEROES, 0, 512, Op::WriteZeroes { fua: false, no_hole: false }),
        (fua | no_hole, wire::CMD_WRITE_ZEROES, 0, 512, Op::WriteZeroes { fua: true, no_hole: true }),
    ];
    for (flags, kind, offset, len, op) in requests {
        assert_eq!(peer.request(flags, kind, offset, len), [], "the server replies, not the session");
        assert_eq!(peer.commands, [Command { cookie: COOKIE, op, offset, len }]);
        peer.commands.clear();
        if let Need::Payload(n) = peer.session.need() {
            assert_eq!((kind, n), (wire::CMD_WRITE, len));
            peer.session.consumed(n - 1, &mut peer.out);
            assert_eq!(peer.session.need(), Need::Payload(1));
            peer.session.consumed(1, &mut peer.out);
        }
        assert_eq!(peer.session.need(), Need::Message(wire::REQUEST_BYTES));
    }
}

#[test]
fn each_error() {
    for structured in [false, true] {
        let mut peer = Peer::started(export(), structured);
        let r = wire::CMD_READ;
        let w = wire::CMD_WRITE;
        let z = wire::CMD_WRITE_ZEROES;
        let t = wire::CMD_TRIM;
        // Past the end.
        for (kind, error) in [(r, 22), (t, 22), (w, 28), (z, 28)] {
            assert_eq!(peer.refused(0, kind, SIZE, 512), error);
            assert_eq!(peer.refused(0, kind, SIZE - 512, 1024), error);
            assert_eq!(peer.refused(0, kind, u64::MAX - 511, 512), error, "no overflow");
            // Not aligned.
            assert_eq!(peer.refused(0, kind, 1, 512), 22);
            assert_eq!(peer.refused(0, kind, 512, 513), 22);
            // Flags that are not known, or not for this command.
            assert_eq!(peer.refused(1 << 15, kind, 0, 512), 22);
            assert_eq!(peer.refused(wire::CMD_FLAG_REQ_ONE, kind, 0, 512), 22);
        }
        assert_eq!(peer.refused(wire::CMD_FLAG_DF, w, 0, 512), 22);
        assert_eq!(peer.refused(wire::CMD_FLAG_NO_HOLE, w, 0, 512), 22);
        assert_eq!(peer.refused(0, wire::CMD_FLUSH, 0, 512), 22);
        assert_eq!(peer.refused(0, wire::CMD_FLUSH, 512, 0), 22);
        assert_eq!(peer.refused(wire::CMD_FLAG_FAST_ZERO, z, 0, 512), 95);
        // Unknown commands.
        for kind in [5, 8, 999] {
            assert_eq!(peer.refused(0, kind, 0, 512), 22);
        }
        // Block status past the end, not aligned, empty.
        for (offset, len) in [(SIZE, 512), (SIZE - 512, 1024), (1, 512), (0, 100), (0, 0)] {
            assert_eq!(peer.refused(0, wire::CMD_BLOCK_STATUS, offset, len), 22);
        }
    }
}

#[test]
fn dont_fragment_needs_structured_replies() {
    let mut peer = Peer::started(export(), false);
    assert_eq!(peer.refused(wire::CMD_FLAG_DF, wire::CMD_READ, 0, 512), 22);
}

#[test]
fn read_only_exports_refuse_writing() {
    let mut peer = Peer::started(export().read_only(true), true);
    for kind in [wire::CMD_WRITE, wire::CMD_TRIM, wire::CMD_WRITE_ZEROES] {
        assert_eq!(peer.refused(0, kind, 0, 512), 1);
        assert_eq!(peer.refused(0, kind, SIZE, 512), 1);
    }
    // A flush has nothing to do.
    assert_eq!(peer.request(0, wire::CMD_FLUSH, 0, 0)[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
    assert_eq!(peer.commands, []);
}

#[test]
fn payloads_longer_than_the_longest() {
    let blocks = BlockSizes { max_payload: 8192, ..BlockSizes::for_logical_block(4096) };
    let export = Export::new("md0", SIZE, blocks).unwrap();
    let mut peer = Peer::started(export.clone(), false);
    assert_eq!(peer.refused(0, wire::CMD_READ, 0, 12288), 22);
    assert_eq!(peer.refused(0, wire::CMD_WRITE, 0, 12288), 22);
    assert_eq!(peer.refused(0, wire::CMD_READ, 512, 4096), 22, "not aligned to the logical block");
    let mut peer = Peer::started(export, true);
    assert_eq!(peer.refused(0, wire::CMD_READ, 0, 12288), 75);
    peer.request(0, wire::CMD_TRIM, 0, 12288);
    assert_eq!(peer.commands.len(), 1, "commands without payload may be longer");
}

#[test]
fn fast_zero_where_it_is_fast() {
    let mut peer = Peer::started(export().fast_zero(true), false);
    peer.request(wire::CMD_FLAG_FAST_ZERO, wire::CMD_WRITE_ZEROES, 0, 512);
    assert_eq!(peer.commands.len(), 1);
}

#[test]
fn empty_requests_succeed_without_a_command() {
    let kinds = [wire::CMD_READ, wire::CMD_WRITE, wire::CMD_TRIM, wire::CMD_WRITE_ZEROES];
    let mut simple = Peer::started(export(), false);
    let mut structured = Peer::started(export(), true);
    for kind in kinds {
        let reply = simple.request(0, kind, 0, 0);
        assert_eq!(reply, [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0][..], &COOKIE.to_be_bytes()].concat());
        let reply = structured.request(0, kind, SIZE, 0);
        if kind == wire::CMD_READ {
            let expected = [&[0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 0][..], &COOKIE.to_be_bytes(), &[0; 4]].concat();
            assert_eq!(reply, expected, "a structured reply of type NONE");
        } else {
            assert_eq!(reply.len(), 16);
        }
    }
    assert_eq!((simple.commands, structured.commands), (vec![], vec![]));
}

#[test]
fn replies() {
    let read = Command { cookie: COOKIE, op: Op::Read, offset: 0x1200, len: 0x400 };
    let write = Command { op: Op::Write { fua: false }, ..read };
    let peer = Peer::started(export(), false);
    let reply = |peer: &Peer, command: &Command, result| {
        let mut out = Vec::new();
        peer.session.reply(command, result, &mut out);
        out
    };
    let good = [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0][..], &COOKIE.to_be_bytes()].concat();
    assert_eq!(reply(&peer, &read, Ok(())), good);
    assert_eq!(reply(&peer, &write, Ok(())), good);
    assert_eq!(error_of(&reply(&peer, &read, Err(ErrorCode::Io))), 5);

    let peer = Peer::started(export(), true);
    let head = [&[0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1][..], &COOKIE.to_be_bytes()].concat();
    let chunk = [&head[..], &0x408u32.to_be_bytes(), &0x1200u64.to_be_bytes()].concat();
    assert_eq!(reply(&peer, &read, Ok(())), chunk);
    assert_eq!(reply(&peer, &write, Ok(())), good);
    assert_eq!(error_of(&reply(&peer, &read, Err(ErrorCode::Shutdown))), 108);
    assert_eq!(error_of(&reply(&peer, &write, Err(ErrorCode::Io))), 5);
}

#[test]
fn block_status_is_allocated_everywhere() {
    let mut peer = Peer::started(export(), true);
    let expected = |len: u32| {
        let head = [&[0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 5][..], &COOKIE.to_be_bytes(), &12u32.to_be_bytes()].concat();
        [&head[..], &1u32.to_be_bytes(), &len.to_be_bytes(), &0u32.to_be_bytes()].concat()
    };
    let status = wire::CMD_BLOCK_STATUS;
    assert_eq!(peer.request(wire::CMD_FLAG_REQ_ONE, status, 512, 1024), expected(1024));
    assert_eq!(peer.request(0, status, 512, 1024), expected(SIZE as u32 - 512), "to the end of the export");

    let huge = Export::new("md0", 1 << 40, BlockSizes::for_logical_block(512)).unwrap();
    let mut peer = Peer::started(huge, true);
    assert_eq!(peer.request(0, status, 0, 1 << 31), expected(0xffff_0000));
}

#[test]
fn disconnect() {
    let mut peer = Peer::started(export(), false);
    assert_eq!(peer.request(0, wire::CMD_DISC, 0, 0), []);
    assert_eq!(peer.session.need(), Need::Close);
}

#[test]
fn something_else_than_a_request_ends_the_connection() {
    let mut peer = Peer::started(export(), false);
    assert_eq!(peer.send(&[0x55; 28]), Err(Violation::RequestMagic));
    assert_eq!(peer.session.need(), Need::Close);
}

#[test]
fn messages_of_the_wrong_length_are_refused() {
    let mut peer = Peer::greeted();
    assert_eq!(peer.session.message(&[0; 15], &mut peer.out), Err(Violation::MessageLength));
}

/// Bytes of a client that knows the protocol just well enough to do harm.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let option = (0u32..12, prop::collection::vec(any::<u8>(), 0..64)).prop_map(|(o, data)| option_bytes(o, &data));
    let length = any::<u32>().prop_map(|len| {
        let mut bytes = option_bytes(wire::OPT_INFO, &[]);
        bytes[12..].copy_from_slice(&len.to_be_bytes());
        bytes
    });
    let name = prop::sample::select(vec!["", "md0", "md1"]);
    let query = prop::sample::select(vec!["base:", "base:allocation", ":", ""]);
    let queries = prop::collection::vec(query, 0..3);
    let context = (9u32..=10, name.clone(), queries).prop_map(|(o, name, q)| option_bytes(o, &meta(name, &q)));
    let go = (6u32..=7, name, prop::collection::vec(0u16..5, 0..4)).prop_map(|(o, n, w)| option_bytes(o, &info(n, &w)));
    let structured = Just(option_bytes(wire::OPT_STRUCTURED_REPLY, &[]));
    let offset = prop_oneof![any::<u64>(), (0..=SIZE / 512).prop_map(|block| block * 512)];
    let len = prop_oneof![any::<u32>(), (0u32..9).prop_map(|blocks| blocks * 512)];
    let request = (0u16..32, 0u16..9, offset, len).prop_map(|(f, k, o, l)| request_bytes(f, k, o, l));
    let noise = prop::collection::vec(any::<u8>(), 0..40);
    prop_oneof![option, length, context, go, structured, request.clone(), request, noise]
}

proptest! {
    #[test]
    fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let mut peer = Peer::new(export());
        let _ = peer.send(&bytes);
        prop_assert!(peer.out.len() < 1000);
    }

    #[test]
    fn hostile_clients_get_only_valid_commands(
        pieces in prop::collection::vec(hostile(), 0..40), read_only: bool, stop_after in 0usize..80,
    ) {
        let mut peer = Peer::new(export().read_only(read_only));
        peer.send(&3u32.to_be_bytes()).unwrap();
        for (i, piece) in pieces.iter().enumerate() {
            if i == stop_after {
                peer.session.stop();
            }
            peer.out.clear();
            if peer.send(piece).is_err() {
                prop_assert_eq!(peer.session.need(), Need::Close);
                break;
            }
            prop_assert!(peer.out.len() <= 64 * piece.len() + 256, "replies are bounded by what was sent");
            for command in peer.commands.drain(..) {
                prop_assert!(command.offset % 512 == 0 && command.len % 512 == 0);
                prop_assert!(command.offset + u64::from(command.len) <= SIZE);
                prop_assert!(command.len > 0 || command.op == Op::Flush);
                prop_assert!(!read_only || command.op == Op::Read);
                prop_assert!(i < stop_after);
            }
        }
    }
}
