//! A small blocking NBD client, so that the server is tested without anybody else's.
#![allow(dead_code, reason = "each test uses its part")]

pub mod array;
pub mod oracle;
pub mod tools;

use std::collections::HashMap;
use std::io::{Error, ErrorKind, Read, Result, Write};

use raidus_nbd::codec::wire;

/// A client in the transmission phase, over any two ends of a connection.
pub struct Client<R, W> {
    pub reader: R,
    pub writer: W,
    pub info: Info,
    /// Lengths of the reads under way: a simple reply does not say whether content follows.
    reads: HashMap<u64, u32>,
    structured: bool,
    cookie: u64,
}

/// What the server said about its export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    pub size: u64,
    pub flags: u16,
    pub min: u32,
    pub preferred: u32,
    pub max_payload: u32,
}

/// The end of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub cookie: u64,
    /// 0 for success.
    pub error: u32,
    pub data: Vec<u8>,
}

impl<R: Read, W: Write> Client<R, W> {
    /// Through the handshake by `OPT_GO`.
    pub fn start(mut reader: R, mut writer: W, export: &str, structured: bool) -> Result<Client<R, W>> {
        let mut greeting = [0; 18];
        reader.read_exact(&mut greeting)?;
        assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\x00\x03");
        writer.write_all(&3u32.to_be_bytes())?;
        if structured {
            writer.write_all(&option(wire::OPT_STRUCTURED_REPLY, &[]))?;
            let (kind, data) = read_option_reply(&mut reader)?;
            assert_eq!((kind, &data[..]), (wire::REP_ACK, &[][..]));
        }
        let mut data = (export.len() as u32).to_be_bytes().to_vec();
        data.extend(export.as_bytes());
        data.extend([0, 1, 0, wire::INFO_BLOCK_SIZE as u8]);
        writer.write_all(&option(wire::OPT_GO, &data))?;
        let mut info = Info::default();
        loop {
            match read_option_reply(&mut reader)? {
                (wire::REP_INFO, data) => info.take(&data),
                (wire::REP_ACK, _) => break,
                (_, text) => return Err(Error::new(ErrorKind::NotFound, String::from_utf8_lossy(&text))),
            }
        }
        Ok(Client { reader, writer, info, reads: HashMap::new(), structured, cookie: 0 })
    }

    /// Bytes of a request with a cookie of its own; the reply has to be taken by `receive`.
    pub fn prepare(&mut self, kind: u16, flags: u16, offset: u64, len: u32, payload: &[u8]) -> (u64, Vec<u8>) {
        self.cookie += 1;
        if kind == wire::CMD_READ {
            self.reads.insert(self.cookie, len);
        }
        let mut bytes = wire::REQUEST_MAGIC.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes.extend(payload);
        (self.cookie, bytes)
    }

    /// Sends a request and returns its cookie.
    pub fn send(&mut self, kind: u16, flags: u16, offset: u64, len: u32, payload: &[u8]) -> Result<u64> {
        let (cookie, bytes) = self.prepare(kind, flags, offset, len, payload);
        self.writer.write_all(&bytes)?;
        self.writer.flush()?;
        Ok(cookie)
    }

    /// The next reply, whichever request it is for.
    pub fn receive(&mut self) -> Result<Reply> {
        let mut head = [0; 16];
        self.reader.read_exact(&mut head)?;
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        if word(0) == wire::SIMPLE_REPLY_MAGIC {
            let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
            let read = self.reads.remove(&cookie);
            assert!(!(self.structured && read.is_some()), "reads have structured replies");
            let len = if word(4) == 0 { read.unwrap_or(0) } else { 0 };
            return Ok(Reply { cookie, error: word(4), data: self.bytes(len as usize)? });
        }
        assert!(self.structured, "structured replies were not negotiated");
        assert_eq!(word(0), wire::STRUCTURED_REPLY_MAGIC);
        assert_eq!(head[4..6], wire::REPLY_FLAG_DONE.to_be_bytes(), "this server sends one chunk per reply");
        let kind = u16::from_be_bytes([head[6], head[7]]);
        let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
        let len = self.bytes(4)?;
        let mut data = self.bytes(u32::from_be_bytes(len.try_into().unwrap()) as usize)?;
        let read = self.reads.remove(&cookie);
        let mut error = 0;
        match kind {
            wire::REPLY_TYPE_NONE => assert_eq!(data, []),
            wire::REPLY_TYPE_OFFSET_DATA => {
                data.drain(..8);
                assert_eq!(read, Some(data.len() as u32));
            }
            wire::REPLY_TYPE_ERROR => {
                error = u32::from_be_bytes(data[..4].try_into().unwrap());
                data.clear();
            }
            other => panic!("chunk type {other} to a request that has none of it"),
        }
        Ok(Reply { cookie, error, data })
    }

    /// Sends a request and waits for its reply; there must be no others under way.
    pub fn call(&mut self, kind: u16, flags: u16, offset: u64, len: u32, payload: &[u8]) -> Result<Reply> {
        let cookie = self.send(kind, flags, offset, len, payload)?;
        let reply = self.receive()?;
        assert_eq!(reply.cookie, cookie);
        Ok(reply)
    }

    pub fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>> {
        let reply = self.call(wire::CMD_READ, 0, offset, len, &[])?;
        assert_eq!(reply.error, 0);
        Ok(reply.data)
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let reply = self.call(wire::CMD_WRITE, 0, offset, data.len() as u32, data)?;
        assert_eq!(reply.error, 0);
        Ok(())
    }

    /// Says goodbye and waits until the server has closed.
    pub fn disconnect(mut self) -> Result<()> {
        let (_, bytes) = self.prepare(wire::CMD_DISC, 0, 0, 0, &[]);
        self.writer.write_all(&bytes)?;
        self.writer.flush()?;
        let mut rest = Vec::new();
        self.reader.read_to_end(&mut rest)?;
        assert_eq!(rest, []);
        Ok(())
    }

    fn bytes(&mut self, n: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; n];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

impl Info {
    fn take(&mut self, data: &[u8]) {
        let word = |at: usize| u32::from_be_bytes(data[at..at + 4].try_into().unwrap());
        match u16::from_be_bytes([data[0], data[1]]) {
            wire::INFO_EXPORT => {
                self.size = u64::from_be_bytes(data[2..10].try_into().unwrap());
                self.flags = u16::from_be_bytes([data[10], data[11]]);
            }
            wire::INFO_BLOCK_SIZE => (self.min, self.preferred, self.max_payload) = (word(2), word(6), word(10)),
            _ => {}
        }
    }
}

/// Bytes of an option.
pub fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = wire::OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// Type and data of a reply to an option.
pub fn read_option_reply(reader: &mut impl Read) -> Result<(u32, Vec<u8>)> {
    let mut head = [0; 20];
    reader.read_exact(&mut head)?;
    let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
    assert_eq!(head[..8], wire::OPTION_REPLY_MAGIC.to_be_bytes());
    let mut data = vec![0; word(16) as usize];
    reader.read_exact(&mut data)?;
    Ok((word(12), data))
}

/// A small generator of repeatable numbers.
pub struct Random(pub u64);

impl Random {
    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    /// `len` bytes that look like noise.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}
