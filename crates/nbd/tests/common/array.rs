//! A running array of members in memory, with its NBD server.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use raidus_engine::{MemberError, Tunables};
use raidus_format::{
    ArrayUpdate, DeviceState, Geometry as StoredGeometry, MdUuid, MemberUpdate, MetadataVersion, NewSuperblock,
    ResyncMark, Role, Superblock, Timestamp,
};
use raidus_nbd::{Address, BlockSizes, Endpoint, Export, NbdService, listen};
use raidus_runtime::members::{MemberDevice, MemoryDevice, MemoryOp};
use raidus_runtime::{ArrayHandle, OpenOptions, RunOptions, open_devices, start};
use raidus_units::{Level, Sector, Sectors, Slot};

use super::Client;

const SUPERBLOCK: Sector = Sector(8);
const DATA: Sector = Sector(2048);
/// Of each member.
const COMPONENT: Sectors = Sectors(16 << 11);
const CHUNK: Sectors = Sectors(128);

/// An array that is served at one address.
pub struct Server {
    array: ArrayHandle,
    service: Arc<NbdService>,
    endpoint: Endpoint,
    members: Members,
    dir: tempfile::TempDir,
}

/// The members, which outlive the array that runs on them.
#[derive(Clone)]
pub struct Members {
    devices: Vec<Arc<MemoryDevice>>,
    flushes: Arc<AtomicU64>,
    broken: Arc<[AtomicBool]>,
}

/// A client's reading end.
pub enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// A client's writing end: a thread of its own sends, so that a client deep in flight never blocks in sending while the server
/// waits for it to receive.
pub struct Queue(Sender<Vec<u8>>);

impl Server {
    pub fn unix(level: Level, name: &str) -> Server {
        Members::new(level).serve(false, name, false)
    }

    pub fn tcp(level: Level, name: &str) -> Server {
        Members::new(level).serve(true, name, false)
    }

    pub fn read_only(level: Level, name: &str) -> Server {
        Members::new(level).serve(false, name, true)
    }

    /// A connected client, past the handshake.
    pub fn client(&self, structured: bool) -> Client<Socket, Queue> {
        let (reader, writer) = match self.endpoint.address() {
            Address::Unix(path) => {
                let socket = UnixStream::connect(path).unwrap();
                (Socket::Unix(socket.try_clone().unwrap()), Queue::new(socket))
            }
            Address::Tcp(at) => {
                let socket = TcpStream::connect(at).unwrap();
                socket.set_nodelay(true).unwrap();
                (Socket::Tcp(socket.try_clone().unwrap()), Queue::new(socket))
            }
        };
        reader.give_up_after(Duration::from_secs(60));
        Client::start(reader, writer, self.service.export().name(), structured).unwrap()
    }

    pub fn uri(&self) -> String {
        self.uri_of(self.service.export().name())
    }

    pub fn uri_of(&self, export: &str) -> String {
        self.endpoint.uri(export)
    }

    pub fn socket_path(&self) -> PathBuf {
        match self.endpoint.address() {
            Address::Unix(path) => path.clone(),
            Address::Tcp(at) => panic!("listens at {at}"),
        }
    }

    pub fn port(&self) -> u16 {
        match self.endpoint.address() {
            Address::Unix(path) => panic!("listens at {}", path.display()),
            Address::Tcp(at) => at.port(),
        }
    }

    /// A file beside the socket, gone with the server.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn size(&self) -> u64 {
        self.service.export().size()
    }

    /// Flushes the members got so far.
    pub fn flushes(&self) -> u64 {
        self.members.flushes.load(Ordering::Relaxed)
    }

    /// From now on this member fails everything.
    pub fn break_member(&self, n: usize) {
        self.members.broken[n].store(true, Ordering::Relaxed);
    }

    /// Stops the array in order.
    pub fn stop(self) -> Members {
        self.array.stop().unwrap();
        self.members
    }
}

impl Members {
    fn new(level: Level) -> Members {
        let count: u16 = match level {
            Level::Raid1 => 2,
            Level::Raid6 | Level::Raid10 => 4,
            _ => 3,
        };
        let flushes = Arc::new(AtomicU64::new(0));
        let broken: Arc<[AtomicBool]> = (0..count).map(|_| AtomicBool::new(false)).collect();
        let device = |n: u16| {
            let device = MemoryDevice::new(DATA + COMPONENT - Sector::ZERO).unwrap();
            device.write(SUPERBLOCK.bytes(), &superblock(level, count, n).encode()).unwrap();
            let (flushes, broken) = (Arc::clone(&flushes), Arc::clone(&broken));
            device.on_io(move |op| {
                if matches!(op, MemoryOp::Flush) {
                    flushes.fetch_add(1, Ordering::Relaxed);
                }
                if broken[usize::from(n)].load(Ordering::Relaxed) { Err(MemberError::Gone) } else { Ok(()) }
            });
            Arc::new(device)
        };
        let devices = (0..count).map(device).collect();
        Members { devices, flushes, broken }
    }

    /// Runs the array again after a stop, and serves it at a new Unix socket.
    pub fn serve_again(self) -> Server {
        self.serve(false, "md0", false)
    }

    fn serve(self, tcp: bool, name: &str, read_only: bool) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let options = RunOptions { pin: false, ..RunOptions::default() };
        let devices = self.devices.iter().enumerate();
        let devices = devices.map(|(n, device)| MemberDevice::memory(&format!("memory{n}"), Arc::clone(device)));
        let tunables = Tunables { shards: 2, ..Tunables::default() };
        let opened = open_devices(devices.collect(), &OpenOptions { tunables, ..OpenOptions::default() }).unwrap();
        let array = start(opened.config, opened.members, options).unwrap();
        let export = Export::new(name, array.size().bytes(), BlockSizes::for_logical_block(array.block())).unwrap();
        let service = Arc::new(NbdService::new(export.read_only(read_only)));
        let address =
            if tcp { Address::Tcp(([127, 0, 0, 1], 0).into()) } else { Address::Unix(dir.path().join("socket")) };
        let (socket, endpoint) = listen(&address).unwrap();
        array.serve(socket, Arc::<NbdService>::clone(&service));
        Server { array, service, endpoint, members: self, dir }
    }
}

fn superblock(level: Level, count: u16, n: u16) -> Superblock {
    let device = |slot: u16| {
        let mut state = DeviceState::new(Role::Slot(Slot(slot)));
        state.in_sync = true;
        Some(state)
    };
    Superblock::create(&NewSuperblock {
        metadata: MetadataVersion::V1_2,
        uuid: MdUuid([7; 16]),
        name: "nbd".to_owned(),
        ctime: Timestamp::from_secs(1_700_000_000),
        device_uuid: MdUuid([n as u8; 16]),
        super_offset: SUPERBLOCK,
        data_offset: DATA,
        data_size: COMPONENT,
        bad_block_log: None,
        preferred_minor: 0,
        array: ArrayUpdate {
            events: 1,
            utime: Timestamp::from_secs(1_700_000_000),
            resync: ResyncMark::Clean { good_to: None },
            devices: (0..count).map(device).collect(),
            bitmap: None,
            ppl: None,
            journal: false,
            reshape: None,
            geometry: StoredGeometry {
                level: level.number(),
                layout: layout(level),
                raid0_layout_known: level == Level::Raid0,
                size: if level == Level::Raid0 { Sectors::ZERO } else { COMPONENT },
                chunk: chunk(level),
                raid_disks: count.into(),
            },
        },
        member: MemberUpdate::new(n.into()),
    })
    .unwrap()
}

/// mdadm's default placement.
fn layout(level: Level) -> u32 {
    match level {
        Level::Raid5 | Level::Raid6 => 2,
        Level::Raid10 => 0x102,
        Level::Raid0 => 2,
        _ => 0,
    }
}

fn chunk(level: Level) -> Sectors {
    if level == Level::Raid1 { Sectors::ZERO } else { CHUNK }
}

impl Socket {
    fn give_up_after(&self, time: Duration) {
        match self {
            Socket::Unix(socket) => socket.set_read_timeout(Some(time)),
            Socket::Tcp(socket) => socket.set_read_timeout(Some(time)),
        }
        .unwrap();
    }

    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Socket::Unix(socket) => socket.shutdown(how),
            Socket::Tcp(socket) => socket.shutdown(how),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(socket) => socket.read(bytes),
            Socket::Tcp(socket) => socket.read(bytes),
        }
    }
}

impl Queue {
    fn new(mut socket: impl Write + Send + 'static) -> Queue {
        let (sender, receiver) = channel::<Vec<u8>>();
        thread::spawn(move || {
            // Ends with the client, or when the server has hung up.
            while receiver.recv().is_ok_and(|bytes| socket.write_all(&bytes).is_ok()) {}
        });
        Queue(sender)
    }
}

impl Write for Queue {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Whether it arrived shows when the reply is waited for.
        let _ = self.0.send(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
