//! A plain NBD client: one request at a time, so that it knows which were answered when the server dies.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

const MAGIC: &[u8; 8] = b"NBDMAGIC";
const HAVE_OPTIONS: &[u8; 8] = b"IHAVEOPT";
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;
/// Client flags: fixed newstyle, no zeroes after the export's size.
const FLAGS: u32 = 3;
const OPTION_GO: u32 = 7;
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;
const ACK: u32 = 1;
const INFO: u32 = 3;
const WRITE: u16 = 1;
const FUA: u16 = 1;

/// A connection.
#[derive(Debug)]
pub struct NbdClient {
    socket: UnixStream,
    /// Bytes of the export.
    pub size: u64,
    cookie: u64,
}

impl NbdClient {
    /// Connects to the server's default export.
    pub fn connect(socket: &Path) -> Result<NbdClient> {
        let mut socket =
            UnixStream::connect(socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
        let mut greeting = [0; 18];
        socket.read_exact(&mut greeting)?;
        ensure!(&greeting[..8] == MAGIC && &greeting[8..16] == HAVE_OPTIONS, "no NBD server");
        let mut hello = FLAGS.to_be_bytes().to_vec();
        hello.extend(HAVE_OPTIONS);
        hello.extend(OPTION_GO.to_be_bytes());
        // The default export; one thing to be told about: its blocks.
        hello.extend(8u32.to_be_bytes());
        hello.extend(0u32.to_be_bytes());
        hello.extend(1u16.to_be_bytes());
        hello.extend(INFO_BLOCK_SIZE.to_be_bytes());
        socket.write_all(&hello)?;
        let mut size = None;
        loop {
            let mut header = [0; 20];
            socket.read_exact(&mut header)?;
            ensure!(header[..8] == OPTION_REPLY.to_be_bytes(), "the server answers {header:x?}");
            let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
            let mut data = vec![0; word(16) as usize];
            socket.read_exact(&mut data)?;
            match word(12) {
                ACK => break,
                INFO if data[..2] == INFO_EXPORT.to_be_bytes() => {
                    size = data.get(2..10).and_then(|size| size.try_into().ok()).map(u64::from_be_bytes);
                }
                INFO => {}
                other => bail!("the server refuses the export ({other:#x}): {}", String::from_utf8_lossy(&data)),
            }
        }
        Ok(NbdClient { socket, size: size.context("the server did not say how large the export is")?, cookie: 0 })
    }

    /// Writes, with FUA if asked to. An I/O error means that nobody knows what came of it.
    pub fn write(&mut self, offset: u64, bytes: &[u8], fua: bool) -> io::Result<()> {
        self.cookie += 1;
        let mut request = REQUEST.to_be_bytes().to_vec();
        request.extend((if fua { FUA } else { 0 }).to_be_bytes());
        request.extend(WRITE.to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend((bytes.len() as u32).to_be_bytes());
        request.extend(bytes);
        self.socket.write_all(&request)?;
        let mut reply = [0; 16];
        self.socket.read_exact(&mut reply)?;
        let mut expected = REPLY.to_be_bytes().to_vec();
        expected.extend(0u32.to_be_bytes());
        expected.extend(self.cookie.to_be_bytes());
        if reply == *expected { Ok(()) } else { Err(io::Error::other(format!("the server answers {reply:x?}"))) }
    }
}
