//! The server on real sockets and a running array, under our own client.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use common::array::{Server, Socket};
use common::oracle::Workload;
use common::{Random, option};
use raidus_nbd::codec::wire;
use raidus_units::Level;

const LEVELS: [Level; 5] = [Level::Raid0, Level::Raid1, Level::Raid5, Level::Raid6, Level::Raid10];

fn workload(area: u64, count: usize, seed: u64) -> Workload {
    Workload { area, count, depth: 128, blocks_max: 300, random: Random(seed) }
}

#[test]
fn deep_pipelining_finds_what_was_written() {
    for level in LEVELS {
        let server = Server::unix(level, "md0");
        let mut client = server.client(true);
        let mut model = vec![0; 4 << 20];
        workload(0, 1500, 1).run(&mut client, &mut model);
        client.disconnect().unwrap();
        server.stop();
    }
}

#[test]
fn many_clients_at_once_over_tcp() {
    let server = Server::tcp(Level::Raid5, "md0");
    let area = 1 << 20;
    thread::scope(|scope| {
        for i in 0..8 {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client(i % 2 == 0);
                let mut model = vec![0; area];
                let start = i * area as u64;
                workload(start, 300, i).run(&mut client, &mut model);
                client.disconnect().unwrap();
                // Another connection sees the same: there is one array behind all of them.
                let mut other = server.client(true);
                assert!(other.read(start, area as u32).unwrap() == model);
                other.disconnect().unwrap();
            });
        }
    });
    server.stop();
}

#[test]
fn a_flush_on_one_connection_covers_the_others() {
    let server = Server::unix(Level::Raid1, "md0");
    let (mut a, mut b) = (server.client(true), server.client(false));
    a.write(4096, &[3; 8192]).unwrap();
    assert_eq!(b.call(wire::CMD_FLUSH, 0, 0, 0, &[]).unwrap().error, 0);
    assert_eq!(b.read(4096, 8192).unwrap(), [3; 8192]);
    assert!(server.flushes() > 0, "the members were flushed");
}

#[test]
fn a_long_request_of_a_single_piece() {
    let server = Server::unix(Level::Raid5, "md0");
    let mut client = server.client(true);
    let len = client.info.max_payload.min(16 << 20) as usize;
    let data = Random(5).bytes(len);
    client.write(0, &data).unwrap();
    assert!(client.read(0, len as u32).unwrap() == data);
    let size = client.info.size;
    assert_eq!(client.call(wire::CMD_WRITE_ZEROES, 0, 0, size as u32, &[]).unwrap().error, 0);
    assert!(client.read(0, len as u32).unwrap().iter().all(|&byte| byte == 0));
}

#[test]
fn clients_that_vanish_take_nobody_with_them() {
    let server = Server::unix(Level::Raid5, "md0");
    let mut witness = server.client(true);
    witness.write(8 << 20, &[9; 65536]).unwrap();
    for round in 0..20 {
        let mut client = server.client(round % 2 == 0);
        for i in 0..100 {
            let (kind, payload) = if i % 2 == 0 { (wire::CMD_WRITE, vec![1; 16384]) } else { (wire::CMD_READ, vec![]) };
            client.send(kind, 0, i * 16384, 16384, &payload).unwrap();
        }
        if round % 4 == 0 {
            // In the middle of a payload.
            let (_, bytes) = client.prepare(wire::CMD_WRITE, 0, 0, 65536, &[0; 1000]);
            client.writer.write_all(&bytes).unwrap();
        }
        client.reader.shutdown(if round % 3 == 0 { Shutdown::Read } else { Shutdown::Both }).unwrap();
    }
    assert_eq!(witness.read(8 << 20, 65536).unwrap(), [9; 65536]);
    let found = witness.read(0, 16384).unwrap();
    assert!(found.iter().all(|&byte| byte == found[0]) && found[0] <= 1, "a write happens whole or not at all");
    server.stop();
}

#[test]
fn a_client_that_sends_without_reading_is_stopped_and_others_go_on() {
    let server = Server::unix(Level::Raid1, "md0");
    let mut flood = server.client(false);
    let (_, read) = flood.prepare(wire::CMD_READ, 0, 0, 65536, &[]);
    let Socket::Unix(socket) = &flood.reader else { panic!("a Unix socket") };
    let mut socket = socket.try_clone().unwrap();
    // Far more replies than sockets and buffers hold: at some point the server must stop taking requests.
    socket.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let requests = read.repeat(1000);
    let stopped = (0..1000).find_map(|_| socket.write_all(&requests).err());
    assert_eq!(stopped.map(|error| error.kind()), Some(ErrorKind::WouldBlock));
    let mut other = server.client(true);
    other.write(0, &[1; 4096]).unwrap();
    assert_eq!(other.read(0, 4096).unwrap(), [1; 4096]);
    drop((flood, socket));
    server.stop();
}

#[test]
fn stopping_with_requests_under_way() {
    let server = Server::unix(Level::Raid5, "md0");
    let mut client = server.client(true);
    for i in 0..64 {
        client.send(wire::CMD_WRITE, 0, i * 65536, 65536, &[7; 65536]).unwrap();
    }
    // At least one is certain to have arrived.
    assert_eq!(client.receive().unwrap().error, 0);
    let members = server.stop();
    // Every reply that was sent arrives, then the end of the stream; none says it was done that was not.
    let mut acknowledged = 1;
    while let Ok(reply) = client.receive() {
        acknowledged += u32::from(reply.error == 0);
    }
    let server = members.serve_again();
    let mut client = server.client(true);
    let there = (0..64).filter(|i| client.read(i * 65536, 65536).unwrap().iter().all(|&byte| byte == 7)).count();
    assert!(there as u32 >= acknowledged, "{acknowledged} writes were acknowledged, {there} are there");
}

#[test]
fn hostile_handshakes_are_hung_up_on() {
    let server = Server::unix(Level::Raid1, "md0");
    let too_long = [&wire::OPTION_MAGIC.to_be_bytes()[..], &[0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff]].concat();
    let attempts: [&[u8]; 5] = [
        &[0xff; 4],
        b"\0\0\0\x03GET / HTTP/1.1\r\n\r\n",
        &[&[0, 0, 0, 3], &option(wire::OPT_EXPORT_NAME, b"other")[..]].concat(),
        &[&[0, 0, 0, 3], &option(wire::OPT_EXPORT_NAME, b"md0")[..], &[0x77; 28]].concat(),
        &[&[0, 0, 0, 3], &too_long[..]].concat(),
    ];
    for attempt in attempts {
        let mut socket = UnixStream::connect(server.socket_path()).unwrap();
        socket.write_all(attempt).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).unwrap_or_else(|error| panic!("{attempt:?}: not hung up on: {error}"));
        assert!(answer.starts_with(b"NBDMAGICIHAVEOPT"));
    }
    // Half a handshake, held open, harms nobody.
    let mut half = UnixStream::connect(server.socket_path()).unwrap();
    half.write_all(&[0, 0]).unwrap();
    server.client(true).disconnect().unwrap();
    server.stop();
}

#[test]
fn member_errors_reach_the_client_only_beyond_redundancy() {
    let server = Server::unix(Level::Raid1, "md0");
    let mut client = server.client(true);
    client.write(0, &[5; 4096]).unwrap();
    server.break_member(0);
    assert_eq!(client.read(0, 4096).unwrap(), [5; 4096], "the other copy");
    client.write(0, &[6; 4096]).unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), [6; 4096]);
    server.break_member(1);
    let reply = client.call(wire::CMD_READ, 0, 0, 4096, &[]).unwrap();
    assert_eq!((reply.error, reply.data), (5, vec![]));
    assert_ne!(client.call(wire::CMD_WRITE, 0, 0, 4096, &[7; 4096]).unwrap().error, 0);
}
