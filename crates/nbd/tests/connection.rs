//! The server's side of a connection without sockets, reactor and array: a driver that keeps the runtime's contract but
//! chooses freely what it leaves open — where the byte stream is cut, and in which order requests end.

mod common;

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::rc::Rc;

use common::oracle::Workload;
use common::{Client, Random};
use proptest::prelude::*;
use raidus_engine::{RequestError, RequestOp};
use raidus_nbd::codec::wire;
use raidus_nbd::{BlockSizes, Export, NbdService};
use raidus_runtime::memory::{Buffer, BufferPool};
use raidus_runtime::stream::{
    Connection, Context, Effects, PeerAddress, Piece, RECEIVE_BYTES, Service, StreamRequest, Then,
};

const SIZE: usize = 1 << 20;

/// A connection with its driver. Writing feeds the connection, reading takes what it sends.
struct Driver {
    connection: Box<dyn Connection>,
    pool: BufferPool,
    effects: Effects,
    /// Sent by the client, not yet consumed.
    incoming: Vec<u8>,
    /// As many of them the connection has seen already.
    shown: usize,
    /// Payload being received: buffer, next byte, end.
    payload: Option<(Buffer, usize, usize)>,
    waiting: bool,
    closed: bool,
    under_way: Vec<StreamRequest>,
    /// What the array was asked, in order.
    seen: Vec<RequestOp>,
    outgoing: Vec<u8>,
    disk: Vec<u8>,
    /// The next request ends like this instead of being carried out.
    fail: Option<RequestError>,
    random: Random,
}

#[derive(Clone)]
struct End(Rc<RefCell<Driver>>);

impl Driver {
    fn new(service: &NbdService, pool: usize, in_flight_max: usize, seed: u64) -> Driver {
        let mut driver = Driver {
            connection: service.connect(&PeerAddress::Unix),
            pool: BufferPool::new(pool).unwrap(),
            effects: Effects::new(in_flight_max),
            incoming: Vec::new(),
            shown: 0,
            payload: None,
            waiting: false,
            closed: false,
            under_way: Vec::new(),
            seen: Vec::new(),
            outgoing: Vec::new(),
            disk: vec![0; SIZE],
            fail: None,
            random: Random(seed),
        };
        driver.call(|connection, cx| connection.opened(cx));
        driver
    }

    fn call<T>(&mut self, f: impl FnOnce(&mut dyn Connection, &mut Context<'_>) -> T) -> T {
        let result = f(&mut *self.connection, &mut Context::new(&self.pool, &mut self.effects));
        self.seen.extend(self.effects.requests.iter().map(|request| request.op));
        self.under_way.append(&mut self.effects.requests);
        result
    }

    /// Receives `n` more of the incoming bytes, if there are so many: payload first goes to its buffer.
    fn receive(&mut self, mut n: usize) {
        while n + self.shown > 0 && !self.incoming.is_empty() && !self.waiting && !self.closed {
            if let Some((mut buffer, at, end)) = self.payload.take() {
                let part = (self.shown + n).min(end - at).min(self.incoming.len());
                buffer[at..at + part].copy_from_slice(&self.incoming[..part]);
                self.incoming.drain(..part);
                n -= part.saturating_sub(self.shown);
                self.shown = self.shown.saturating_sub(part);
                if at + part == end {
                    self.call(|connection, cx| connection.payload(buffer, cx));
                } else {
                    self.payload = Some((buffer, at + part, end));
                }
                continue;
            }
            let visible = (self.shown + n).min(self.incoming.len()).min(RECEIVE_BYTES);
            n = n.saturating_sub(visible - self.shown);
            let visible = self.incoming[..visible].to_vec();
            let answer = self.call(|connection, cx| connection.receive(&visible, cx));
            assert!(answer.consumed <= visible.len());
            self.incoming.drain(..answer.consumed);
            self.shown = visible.len() - answer.consumed;
            match answer.then {
                Then::More if visible.len() == RECEIVE_BYTES => {
                    assert!(answer.consumed > 0, "a message fits the buffer")
                }
                Then::More => return,
                Then::Payload { buffer, range } => {
                    assert!(!range.is_empty() && range.end <= buffer.len());
                    self.payload = Some((buffer, range.start, range.end));
                }
                Then::Wait => self.waiting = true,
                Then::Close => self.closed = true,
            }
        }
    }

    /// Ends one of the requests under way.
    fn finish_one(&mut self) {
        let chosen = self.random.below(self.under_way.len() as u64) as usize;
        let StreamRequest { cookie, op, sector, len, mut buffer } = self.under_way.swap_remove(chosen);
        let result = match self.fail.take() {
            Some(error) => Err(error),
            None => {
                let range = sector.bytes() as usize..(sector + len).bytes() as usize;
                carry_out(op, &mut self.disk[range], buffer.as_deref_mut());
                Ok(())
            }
        };
        self.call(|connection, cx| connection.reply(cookie, result, buffer, cx));
        self.waiting = false;
    }

    fn take_sends(&mut self) {
        for piece in self.effects.sends.drain(..) {
            match piece {
                Piece::Bytes(bytes) => self.outgoing.extend(bytes),
                Piece::Buffer(buffer, range) => self.outgoing.extend(&buffer[range]),
            }
        }
    }
}

fn carry_out(op: RequestOp, disk: &mut [u8], buffer: Option<&mut [u8]>) {
    match (op, buffer) {
        (RequestOp::Read, Some(buffer)) => buffer[..disk.len()].copy_from_slice(disk),
        (RequestOp::Write { .. }, Some(buffer)) => disk.copy_from_slice(&buffer[..disk.len()]),
        (RequestOp::Flush, None) => assert!(disk.is_empty()),
        (RequestOp::Discard | RequestOp::WriteZeroes { .. }, None) => disk.fill(0),
        (op, _) => panic!("{op:?} without its buffer, or with one too many"),
    }
}

impl Write for End {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut driver = self.0.borrow_mut();
        driver.incoming.extend(bytes);
        let n = 1 + driver.random.below(bytes.len() as u64 * 2) as usize;
        driver.receive(n);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for End {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut driver = self.0.borrow_mut();
        loop {
            driver.take_sends();
            if !driver.outgoing.is_empty() {
                let n = bytes.len().min(driver.outgoing.len());
                bytes[..n].copy_from_slice(&driver.outgoing[..n]);
                driver.outgoing.drain(..n);
                return Ok(n);
            }
            let all = driver.incoming.len();
            if !driver.under_way.is_empty() && (all == 0 || driver.waiting || driver.random.below(2) == 0) {
                driver.finish_one();
            } else if driver.closed {
                return Ok(0);
            } else {
                assert!(all > 0, "the client waits and there is nothing to do");
                // Memory was given back by what was sent.
                driver.waiting = false;
                let n = 1 + driver.random.below(all as u64) as usize;
                driver.receive(n);
            }
        }
    }
}

fn service() -> NbdService {
    NbdService::new(Export::new("md0", SIZE as u64, BlockSizes::for_logical_block(512)).unwrap())
}

fn connect(
    service: &NbdService,
    pool: usize,
    in_flight_max: usize,
    structured: bool,
    seed: u64,
) -> (End, Client<End, End>) {
    let end = End(Rc::new(RefCell::new(Driver::new(service, pool, in_flight_max, seed))));
    let client = Client::start(end.clone(), end.clone(), "md0", structured).unwrap();
    (end, client)
}

#[test]
fn fua_and_flush_reach_the_array() {
    let (end, mut client) = connect(&service(), 1 << 20, 1 << 20, true, 1);
    let fua = wire::CMD_FLAG_FUA;
    let no_hole = wire::CMD_FLAG_NO_HOLE;
    let payload = [7; 512];
    let cases = [
        (wire::CMD_WRITE, 0, 512, RequestOp::Write { fua: false }),
        (wire::CMD_WRITE, fua, 512, RequestOp::Write { fua: true }),
        (wire::CMD_FLUSH, 0, 0, RequestOp::Flush),
        (wire::CMD_TRIM, 0, 512, RequestOp::Discard),
        (wire::CMD_TRIM, fua, 512, RequestOp::WriteZeroes { fua: true, unmap: true }),
        (wire::CMD_WRITE_ZEROES, 0, 512, RequestOp::WriteZeroes { fua: false, unmap: true }),
        (wire::CMD_WRITE_ZEROES, fua | no_hole, 512, RequestOp::WriteZeroes { fua: true, unmap: false }),
    ];
    for (kind, flags, len, op) in cases {
        let payload = if kind == wire::CMD_WRITE { &payload[..] } else { &[] };
        assert_eq!(client.call(kind, flags, 0, len, payload).unwrap().error, 0);
        assert_eq!(end.0.borrow_mut().seen.pop(), Some(op));
    }
}

#[test]
fn errors_of_the_array_reach_the_client() {
    for structured in [false, true] {
        let (end, mut client) = connect(&service(), 1 << 20, 1 << 20, structured, 2);
        let cases = [
            (wire::CMD_READ, RequestError::Io, 5),
            (wire::CMD_WRITE, RequestError::Io, 5),
            (wire::CMD_READ, RequestError::Range, 22),
            (wire::CMD_WRITE, RequestError::Range, 28),
            (wire::CMD_WRITE_ZEROES, RequestError::Range, 28),
            (wire::CMD_TRIM, RequestError::Range, 22),
            (wire::CMD_WRITE, RequestError::ReadOnly, 1),
            (wire::CMD_READ, RequestError::Stopped, 108),
        ];
        for (kind, error, code) in cases {
            end.0.borrow_mut().fail = Some(error);
            let payload = if kind == wire::CMD_WRITE { vec![1; 512] } else { Vec::new() };
            let reply = client.call(kind, 0, 0, 512, &payload).unwrap();
            assert_eq!((reply.error, reply.data), (code, vec![]));
        }
        assert_eq!(client.read(0, 512).unwrap(), [0; 512], "the connection lives on");
    }
}

#[test]
fn the_longest_request_is_lowered_to_the_longest_buffer() {
    let (_, mut client) = connect(&service(), 64 << 10, 1 << 20, true, 3);
    assert_eq!(client.info.max_payload, 64 << 10);
    assert_eq!(client.read(0, 64 << 10).unwrap().len(), 64 << 10);
    assert_eq!(client.call(wire::CMD_READ, 0, 0, (64 << 10) + 512, &[]).unwrap().error, 75);
}

#[test]
fn a_refused_write_s_payload_is_skipped() {
    let service = NbdService::new(service().export().clone().read_only(true));
    let (end, mut client) = connect(&service, 1 << 20, 1 << 20, true, 4);
    for len in [512, 100 << 10] {
        assert_eq!(client.call(wire::CMD_WRITE, 0, 0, len, &vec![9; len as usize]).unwrap().error, 1);
        assert_eq!(client.read(0, 512).unwrap(), [0; 512]);
    }
    assert_eq!(end.0.borrow().seen, [RequestOp::Read, RequestOp::Read]);
}

#[test]
fn replies_are_sent_before_the_connection_closes() {
    let (end, mut client) = connect(&service(), 1 << 20, 1 << 20, true, 5);
    let first = client.send(wire::CMD_READ, 0, 0, 4096, &[]).unwrap();
    let (_, goodbye) = client.prepare(wire::CMD_DISC, 0, 0, 0, &[]);
    client.writer.write_all(&goodbye).unwrap();
    let reply = client.receive().unwrap();
    assert_eq!((reply.cookie, reply.data.len()), (first, 4096));
    let mut rest = Vec::new();
    client.reader.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, []);
    assert!(end.0.borrow().closed);
}

#[test]
fn a_stopping_server_refuses_new_commands() {
    let service = service();
    let (end, mut client) = connect(&service, 1 << 20, 1 << 20, true, 6);
    client.write(0, &[1; 4096]).unwrap();
    service.stop();
    assert_eq!(client.call(wire::CMD_WRITE, 0, 0, 4096, &[2; 4096]).unwrap().error, 108);
    assert_eq!(client.call(wire::CMD_READ, 0, 0, 4096, &[]).unwrap().error, 108);
    assert_eq!(end.0.borrow().seen.len(), 1);
}

#[test]
fn a_client_that_never_reads_is_stopped() {
    let (end, mut client) = connect(&service(), 1 << 20, 1 << 20, true, 8);
    // Refused by the session itself: only replies pile up.
    let (_, request) = client.prepare(wire::CMD_READ, 0, 1, 1, &[]);
    let mut driver = end.0.borrow_mut();
    for _ in 0..100 {
        driver.incoming.extend(request.repeat(100));
        driver.receive(usize::MAX >> 1);
    }
    assert!(driver.waiting);
    driver.take_sends();
    assert!(driver.outgoing.len() < 128 << 10, "{} bytes of replies", driver.outgoing.len());
}

#[test]
fn noise_closes_the_connection() {
    let (end, _) = connect(&service(), 1 << 20, 1 << 20, true, 7);
    let mut driver = end.0.borrow_mut();
    driver.incoming.extend([0xa5; 4096]);
    driver.receive(4096);
    assert!(driver.closed);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// However the stream is cut, in whatever order requests end, with as little memory as one request needs.
    #[test]
    fn every_read_finds_what_was_written(
        seed: u64, structured: bool, depth in 1usize..=128, pool_pages in 3u32..=8, in_flight in 1usize..(256 << 10),
    ) {
        let pool = 4096usize << pool_pages;
        let (end, mut client) = connect(&service(), pool, in_flight, structured, seed);
        let mut model = vec![0; 256 << 10];
        let blocks_max = u64::from(client.info.max_payload / 512).min(64);
        let workload = Workload { area: 4096, count: 300, depth, blocks_max, random: Random(!seed) };
        workload.run(&mut client, &mut model);
        prop_assert!(end.0.borrow().disk[4096..][..model.len()] == model);
    }
}
