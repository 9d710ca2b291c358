//! A small protocol over real sockets: pipelining, payloads in place, back-pressure, and every way to end.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Disks, Rng, shape};
use raidus_assembly::Options;
use raidus_engine::{RequestError, RequestOp};
use raidus_runtime::memory::Buffer;
use raidus_runtime::stream::{Connection, Context, PeerAddress, Receive, Service, StreamRequest, Then};
use raidus_runtime::{ArrayHandle, Opened, RunOptions, start};
use raidus_units::{Level, Sector, Sectors};

/// Header both ways: cookie, sector, sectors with the operation in the top byte (replies: the outcome).
const HEADER: usize = 24;
const READ: u64 = 1;
const WRITE: u64 = 2;
const FLUSH: u64 = 3;
const BYE: u64 = 4;

#[derive(Default)]
struct Tiny {
    open: Arc<AtomicUsize>,
}

struct TinyConnection {
    /// The write whose payload is coming.
    writing: Option<(u64, u64, u64)>,
    open: Arc<AtomicUsize>,
}

impl Service for Tiny {
    fn connect(&self, _peer: &PeerAddress) -> Box<dyn Connection> {
        self.open.fetch_add(1, Ordering::SeqCst);
        Box::new(TinyConnection { writing: None, open: self.open.clone() })
    }
}

impl Drop for TinyConnection {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

fn header(cookie: u64, sector: u64, op: u64, sectors: u64) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..8].copy_from_slice(&cookie.to_le_bytes());
    bytes[8..16].copy_from_slice(&sector.to_le_bytes());
    bytes[16..].copy_from_slice(&(op << 56 | sectors).to_le_bytes());
    bytes
}

fn parse(bytes: &[u8]) -> (u64, u64, u64, u64) {
    let word = |i: usize| u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().unwrap());
    (word(0), word(1), word(2) >> 56, word(2) & ((1 << 56) - 1))
}

impl TinyConnection {
    fn submit(
        &self,
        op: RequestOp,
        (cookie, sector, len): (u64, u64, u64),
        buffer: Option<Buffer>,
        cx: &mut Context<'_>,
    ) {
        cx.submit(StreamRequest { cookie, op, sector: Sector(sector), len: Sectors(len), buffer });
    }
}

impl Connection for TinyConnection {
    fn opened(&mut self, cx: &mut Context<'_>) {
        cx.send(b"hello");
    }

    fn receive(&mut self, bytes: &[u8], cx: &mut Context<'_>) -> Receive {
        let mut consumed = 0;
        while let Some(message) = bytes[consumed..].first_chunk::<HEADER>() {
            let (cookie, sector, op, len) = parse(message);
            match op {
                READ | WRITE => {
                    let Some(buffer) = cx.buffer((len * 512) as usize) else {
                        return Receive { consumed, then: Then::Wait };
                    };
                    consumed += HEADER;
                    if op == WRITE {
                        self.writing = Some((cookie, sector, len));
                        return Receive { consumed, then: Then::Payload { buffer, range: 0..(len * 512) as usize } };
                    }
                    self.submit(RequestOp::Read, (cookie, sector, len), Some(buffer), cx);
                }
                FLUSH => {
                    consumed += HEADER;
                    self.submit(RequestOp::Flush, (cookie, 0, 0), None, cx);
                }
                _ => return Receive { consumed, then: Then::Close },
            }
        }
        Receive { consumed, then: Then::More }
    }

    fn payload(&mut self, buffer: Buffer, cx: &mut Context<'_>) {
        let write = self.writing.take().expect("a payload follows a write");
        self.submit(RequestOp::Write { fua: false }, write, Some(buffer), cx);
    }

    fn reply(&mut self, cookie: u64, result: Result<(), RequestError>, buffer: Option<Buffer>, cx: &mut Context<'_>) {
        // The top bit of the cookie says that the client wants the data.
        let data = buffer.filter(|_| cookie >> 63 == 1 && result.is_ok());
        cx.send(&header(cookie, 0, u64::from(result.is_err()), data.as_ref().map_or(0, |b| b.len() as u64 / 512)));
        if let Some(buffer) = data {
            let len = buffer.len();
            cx.send_buffer(buffer, 0..len);
        }
    }
}

fn running(threads: u16, options: RunOptions) -> (ArrayHandle, Arc<Tiny>, Disks) {
    let disks = Disks::create(shape(Level::Raid5, 3), Sectors::from_kib(16 << 10));
    let Opened { config, members, .. } = disks.open(&[], threads, Options::default()).unwrap();
    (start(config, members, options).unwrap(), Arc::new(Tiny::default()), disks)
}

fn small() -> RunOptions {
    RunOptions { pool_bytes: 1 << 20, connection_bytes: 256 << 10, ..RunOptions::default() }
}

/// Sends from one thread and reads replies on another, so that neither waits for the other.
fn pipeline<S: Read + Write + Send>(mut reader: S, mut writer: S, first: u64, seed: u64) {
    let mut hello = [0; 5];
    reader.read_exact(&mut hello).unwrap();
    assert_eq!(&hello, b"hello");
    const REQUESTS: u64 = 60;
    const SECTORS: u64 = 128;
    let pattern = |i: u64| {
        let mut bytes = vec![0; 1 + (i % SECTORS) as usize * 512 + 511];
        Rng(seed + i).fill(&mut bytes);
        bytes
    };
    let len = |i: u64| i % SECTORS + 1;
    let exchange = |reader: &mut S, writer: &mut S, reading: bool| {
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for i in 0..REQUESTS {
                    let cookie = if reading { 1 << 63 | i } else { i };
                    let op = if reading { READ } else { WRITE };
                    writer.write_all(&header(cookie, first + i * SECTORS, op, len(i))).unwrap();
                    if !reading {
                        writer.write_all(&pattern(i)).unwrap();
                    }
                }
                writer.write_all(&header(1 << 62, 0, FLUSH, 0)).unwrap();
            });
            for _ in 0..=REQUESTS {
                let mut reply = [0; HEADER];
                reader.read_exact(&mut reply).unwrap();
                let (cookie, _, failed, sectors) = parse(&reply);
                assert_eq!(failed, 0);
                let mut data = vec![0; (sectors * 512) as usize];
                reader.read_exact(&mut data).unwrap();
                if cookie >> 63 == 1 {
                    assert!(data == pattern(cookie & !(1 << 63)));
                }
            }
        });
    };
    exchange(&mut reader, &mut writer, false);
    exchange(&mut reader, &mut writer, true);
    writer.write_all(&header(0, 0, BYE, 0)).unwrap();
    assert_eq!(reader.read(&mut [0]).unwrap(), 0, "the server closes");
}

#[test]
fn many_connections_with_little_memory() {
    let (array, service, _disks) = running(2, small());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let id = array.serve(UnixListener::bind(&path).unwrap().into(), service.clone());
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap();
    array.serve(tcp.into(), service.clone());
    std::thread::scope(|scope| {
        for i in 0..3u64 {
            let path = &path;
            scope.spawn(move || {
                let s = UnixStream::connect(path).unwrap();
                pipeline(s.try_clone().unwrap(), s, i * 2 * 8192, i * 1000);
            });
            scope.spawn(move || {
                let s = TcpStream::connect(address).unwrap();
                pipeline(s.try_clone().unwrap(), s, (i * 2 + 1) * 8192, i * 1000 + 500);
            });
        }
    });
    let tally = array.tally();
    assert!(tally.received_bytes > 1 << 20 && tally.sent_bytes > 1 << 20, "{tally:?}");
    array.stop_serving(id);
    assert!(UnixStream::connect(&path).is_err(), "nobody listens");
    let s = TcpStream::connect(address).unwrap();
    pipeline(s.try_clone().unwrap(), s, 0, 77);
    array.stop().unwrap();
    assert_eq!(service.open.load(Ordering::SeqCst), 0);
}

#[test]
fn a_request_longer_than_the_bound_is_still_served() {
    let (array, service, _disks) = running(1, small());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    array.serve(UnixListener::bind(&path).unwrap().into(), service);
    let mut s = UnixStream::connect(&path).unwrap();
    s.read_exact(&mut [0; 5]).unwrap();
    let mut data = vec![0; 1 << 20];
    Rng(3).fill(&mut data);
    s.write_all(&header(1, 64, WRITE, 2048)).unwrap();
    s.write_all(&data).unwrap();
    s.read_exact(&mut [0; HEADER]).unwrap();
    s.write_all(&header(1 << 63, 64, READ, 2048)).unwrap();
    s.read_exact(&mut [0; HEADER]).unwrap();
    let mut back = vec![0; 1 << 20];
    s.read_exact(&mut back).unwrap();
    assert!(back == data);
    array.stop().unwrap();
}

#[test]
fn clients_that_leave_take_nothing_with_them() {
    let (array, service, _disks) = running(2, small());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    array.serve(UnixListener::bind(&path).unwrap().into(), service.clone());
    for i in 0..40u64 {
        let mut s = UnixStream::connect(&path).unwrap();
        match i % 4 {
            // Without a word; in the middle of a header; of a payload; with replies unread.
            0 => {}
            1 => s.write_all(&[1; 7]).unwrap(),
            2 => {
                s.write_all(&header(1, 0, WRITE, 256)).unwrap();
                s.write_all(&vec![7; 100_000]).unwrap();
            }
            _ => {
                for cookie in 0..50 {
                    s.write_all(&header(1 << 63 | cookie, 0, READ, 64)).unwrap();
                }
            }
        }
    }
    // All memory is back: a request as long as the whole pool can be served on both reactors.
    for _ in 0..2 {
        let mut s = UnixStream::connect(&path).unwrap();
        s.read_exact(&mut [0; 5]).unwrap();
        s.write_all(&header(9, 0, READ, 2048)).unwrap();
        s.read_exact(&mut [0; HEADER]).unwrap();
    }
    array.stop().unwrap();
    assert_eq!(service.open.load(Ordering::SeqCst), 0);
}

#[test]
fn stopping_pays_what_clients_are_owed_and_does_not_wait_for_ever() {
    let options = RunOptions { stop_grace: std::time::Duration::from_millis(300), ..RunOptions::default() };
    let (array, service, _disks) = running(2, options);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    array.serve(UnixListener::bind(&path).unwrap().into(), service.clone());
    // One client is idle, one never reads the megabytes it asked for.
    let mut idle = UnixStream::connect(&path).unwrap();
    idle.read_exact(&mut [0; 5]).unwrap();
    let mut deaf = UnixStream::connect(&path).unwrap();
    deaf.read_exact(&mut [0; 5]).unwrap();
    for cookie in 0..8 {
        deaf.write_all(&header(1 << 63 | cookie, 0, READ, 2048)).unwrap();
    }
    idle.write_all(&header(1 << 63, 0, READ, 8)).unwrap();
    idle.read_exact(&mut [0; HEADER + 4096]).unwrap();
    array.stop().unwrap();
    assert_eq!(idle.read(&mut [0]).unwrap(), 0);
    assert_eq!(service.open.load(Ordering::SeqCst), 0);
}
