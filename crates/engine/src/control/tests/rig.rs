//! An array of metadata only: Control, members that remember what was written, and shards that say what tests tell them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use raidus_format::bitmap::{BitArray, BitmapSuper, LoadedBitmap, NewBitmap, Stale};
use raidus_format::ppl::PplHeader;
use raidus_format::{
    ArrayUpdate, BadBlockArea, DeviceState, MdUuid, MemberUpdate, MetadataVersion, NewSuperblock, PplArea, ResyncMark,
    Role, Superblock, Timestamp,
};
use raidus_layout::{Geometry, GeometryParams, Raid0Layout};
use raidus_units::{Level, MemberId, Nanos, Sector, Sectors, Slot};

use super::super::{Command, Control, Event};
use crate::config::{ArrayConfig, MemberSetup, Tunables};
use crate::io::{Input, IoToken, MemberError, MemberIo, MemberOp, Output};
use crate::map::{Member, MemberMap, MemberState, SlotEntry};
use crate::msg::{Message, Peer, Region, ShardId};

const SIZE: Sectors = Sectors(64 * 2048);
const BITMAP_OFFSET: i64 = 8;
/// What a bit covers, and a lease: 32 of them.
const CHUNK: Sectors = Sectors(2 * 2048);

/// How a test's array begins.
#[derive(Clone, Copy)]
pub struct Setup {
    pub version: MetadataVersion,
    pub level: Level,
    pub disks: u16,
    pub spares: u16,
    /// Slots without a member.
    pub missing: u16,
    pub events: u64,
    /// The member whose superblock is one event behind.
    pub behind: Option<u16>,
    pub shards: u16,
    pub unsynced_from: Option<Sector>,
    pub read_only: bool,
    /// Bits set at the start, if there is a bitmap; bit i in bit i.
    pub bitmap: Option<u32>,
    /// The bits found on the members were not to be trusted.
    pub stale: bool,
    /// Sectors of each member's partial parity log.
    pub log: Option<u64>,
    /// Members have lists of bad blocks.
    pub bad_blocks: bool,
}

pub const RAID1: Setup = Setup {
    version: MetadataVersion::V1_2,
    level: Level::Raid1,
    disks: 2,
    spares: 0,
    missing: 0,
    events: 18,
    behind: None,
    shards: 2,
    unsynced_from: None,
    read_only: false,
    bitmap: None,
    stale: false,
    log: None,
    bad_blocks: false,
};

pub struct Rig {
    pub control: Control,
    pub now: Nanos,
    /// I/Os that have not ended.
    pub io: Vec<MemberIo>,
    /// Every I/O, as text.
    pub log: Vec<String>,
    /// What shards were told, except maps and the like if they answer by themselves.
    pub sent: Vec<(u16, Message)>,
    pub events: Vec<Event>,
    /// Members on which everything fails.
    pub failing: BTreeSet<u16>,
    /// Shards apply maps at once.
    pub obedient: bool,
    shards: u16,
    replies: Vec<(u16, Message)>,
    /// Durable blocks per member, by sector.
    pub disks: Vec<BTreeMap<u64, Vec<u8>>>,
    version: MetadataVersion,
    super_sector: Sector,
    logged: bool,
    history: History,
}

/// When leases came and went, and flushes began; to check that nothing is called clean before it is flushed.
#[derive(Default)]
struct History {
    moment: u64,
    /// Regions: the last grant or return.
    leases: BTreeMap<u64, u64>,
    /// Leases out, per region.
    out: BTreeMap<u64, BTreeSet<u16>>,
    began: BTreeMap<IoToken, u64>,
    /// Per member: when the newest flush that succeeded began.
    flushed: BTreeMap<u16, u64>,
}

impl Rig {
    pub fn new(setup: Setup) -> Rig {
        let members = setup.disks - setup.missing + setup.spares;
        let super_sector = setup.version.superblock_at(Sectors(SIZE.0 + 8192)).unwrap();
        let config = ArrayConfig {
            geometry: geometry(&setup),
            map: Arc::new(map(&setup)),
            members: (0..members)
                .map(|id| MemberSetup { superblock: superblock(&setup, id, super_sector), super_sector })
                .collect(),
            bitmap: setup.bitmap.map(|bits| bitmap(&setup, bits)),
            region: CHUNK,
            tunables: Tunables { shards: setup.shards, sync_frozen: true, ..Tunables::default() },
            epoch_seconds: 1_700_000_000,
        };
        Rig {
            control: Control::new(config),
            now: Nanos::from_millis(1000),
            io: Vec::new(),
            log: Vec::new(),
            sent: Vec::new(),
            events: Vec::new(),
            failing: BTreeSet::new(),
            obedient: true,
            shards: setup.shards,
            replies: Vec::new(),
            disks: vec![BTreeMap::new(); usize::from(members)],
            version: setup.version,
            super_sector,
            logged: setup.log.is_some(),
            history: History::default(),
        }
    }

    /// One turn with these messages from shards.
    pub fn turn(&mut self, messages: Vec<(u16, Message)>) {
        for (shard, message) in messages {
            if let Message::LeaseReturned(regions) = &message {
                regions.iter().for_each(|r| self.history.on_lease(r.0, shard, false));
            }
            let from = Peer::Shard(ShardId(shard));
            self.control.handle(self.now, Input::Message { from, message });
        }
        self.end_turn();
    }

    pub fn command(&mut self, command: Command) {
        self.control.command(self.now, command).expect("a command that can be carried out");
        self.end_turn();
    }

    /// Lets time pass; Control sees it if it asked to.
    pub fn sleep(&mut self, millis: u64) {
        let end = self.now.plus(Nanos::from_millis(millis));
        while let Some(due) = self.control.poll_timeout().filter(|due| *due <= end) {
            assert!(due > self.now || self.io.is_empty(), "a timeout that is never served");
            self.now = self.now.max(due);
            self.control.handle(self.now, Input::Timeout);
            self.end_turn();
            self.settle();
            assert!(self.control.poll_timeout() != Some(due), "the same timeout again");
        }
        self.now = end;
    }

    pub fn end_turn(&mut self) {
        self.control.end_turn(self.now);
        while let Some(output) = self.control.poll_output() {
            match output {
                Output::Io(io) => {
                    let text = self.describe(&io);
                    self.check_order(&io);
                    self.log.push(text);
                    self.io.push(io);
                }
                Output::Send { to: Peer::Shard(shard), message } => self.on_send(shard.0, message),
                other => panic!("Control may not say {other:?}"),
            }
        }
        while let Some(event) = self.control.poll_event() {
            self.events.push(event);
        }
        let replies = std::mem::take(&mut self.replies);
        if !replies.is_empty() {
            self.turn(replies);
        }
    }

    fn on_send(&mut self, shard: u16, message: Message) {
        if let (Message::Map(map), true) = (&message, self.obedient) {
            self.replies.push((shard, Message::MapApplied { epoch: map.epoch }));
        }
        if let Message::LeaseGranted(regions) = &message {
            regions.iter().for_each(|r| self.history.on_lease(r.0, shard, true));
        }
        self.sent.push((shard, message));
    }

    /// Ends all I/Os under way, in one turn.
    pub fn complete(&mut self) {
        for io in std::mem::take(&mut self.io) {
            self.end_io(io);
        }
        self.end_turn();
    }

    /// Ends the I/O at this place in the list, in a turn of its own.
    pub fn complete_one(&mut self, index: usize) {
        let io = self.io.remove(index);
        self.end_io(io);
        self.end_turn();
    }

    fn end_io(&mut self, io: MemberIo) {
        let result = if self.failing.contains(&io.member.0) { Err(MemberError::Io) } else { Ok(()) };
        if result.is_ok() {
            self.land(&io);
        }
        if let (Some(began), Ok(())) = (self.history.began.remove(&io.token), result) {
            self.history.flushed.insert(io.member.0, began);
        }
        self.control.handle(self.now, Input::MemberDone { token: io.token, result });
    }

    /// Puts a write on its member, where it may arrive long before anybody hears of it.
    pub fn land(&mut self, io: &MemberIo) {
        if let MemberOp::WriteMeta { sector, data } = &io.op {
            self.disks[io.member.index()].insert(sector.0, data.to_vec());
        }
    }

    /// Nothing is called clean before all members in use are flushed.
    fn check_order(&mut self, io: &MemberIo) {
        let history = &mut self.history;
        match &io.op {
            MemberOp::Flush => {
                history.moment += 1;
                history.began.insert(io.token, history.moment);
            }
            MemberOp::WriteMeta { sector, data } if *sector == self.super_sector => {
                let sb = Superblock::parse(data, self.version, *sector).expect("what Control writes can be read");
                if sb.array().resync != Some(Sector::ZERO) {
                    self.check_flushed(0..32);
                }
            }
            MemberOp::WriteMeta { data, .. } => {
                let set = |bit: u64| data[256 + bit as usize / 8] >> (bit % 8) & 1 != 0;
                let cleared: Vec<u64> =
                    (0..32).filter(|bit| self.bit_on_disk(io.member.0, *bit) && !set(*bit)).collect();
                if !cleared.is_empty() {
                    assert_eq!(self.control.status().degraded, 0, "bits are cleared while a member is missing");
                    self.check_flushed(cleared.into_iter());
                }
            }
            _ => {}
        }
    }

    fn check_flushed(&self, regions: impl Iterator<Item = u64>) {
        let map = self.control.status().map;
        for region in regions {
            let Some(last) = self.history.leases.get(&region) else { continue };
            assert!(self.history.out.get(&region).is_none_or(BTreeSet::is_empty), "a lease on {region} is out");
            for (id, _) in map.members.iter().enumerate().filter(|(_, m)| m.writable()) {
                let flushed = self.history.flushed.get(&(id as u16));
                assert!(flushed.is_some_and(|began| began > last), "region {region} is not flushed on member {id}");
            }
        }
    }

    /// Ends I/Os until there are none.
    pub fn settle(&mut self) {
        while !self.io.is_empty() {
            self.complete();
        }
    }

    /// The log since the last call; I/Os issued together on one line.
    pub fn take_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    pub fn take_sent(&mut self) -> Vec<(u16, Message)> {
        std::mem::take(&mut self.sent)
    }

    /// Shards that were granted these regions since the last look; other messages are dropped.
    pub fn take_grants(&mut self) -> Vec<(u16, u64)> {
        let grants = self.take_sent().into_iter().filter_map(|(shard, m)| match m {
            Message::LeaseGranted(regions) => Some(regions.into_iter().map(move |r| (shard, r.0))),
            _ => None,
        });
        grants.flatten().collect()
    }

    /// Epochs announced as durable, to shard 0.
    pub fn durable(&self) -> Vec<u64> {
        let epoch = |(shard, m): &(u16, Message)| match m {
            Message::MapDurable { epoch } if *shard == 0 => Some(*epoch),
            _ => None,
        };
        self.sent.iter().filter_map(epoch).collect()
    }

    /// The superblock a member has on disk.
    pub fn on_disk(&self, member: u16) -> Option<Superblock> {
        let block = self.disks[usize::from(member)].get(&self.super_sector.0)?;
        Some(Superblock::parse(block, self.version, self.super_sector).expect("what Control writes can be read"))
    }

    /// Whether the bit of a region is set in the bitmap a member has on disk.
    pub fn bit_on_disk(&self, member: u16, region: u64) -> bool {
        let page = self.disks[usize::from(member)].get(&self.super_sector.0.strict_add_signed(BITMAP_OFFSET));
        page.is_some_and(|page| page[256 + region as usize / 8] >> (region % 8) & 1 != 0)
    }

    pub fn shards(&self) -> u16 {
        self.shards
    }

    fn describe(&self, io: &MemberIo) -> String {
        let m = io.member;
        match &io.op {
            MemberOp::Flush => format!("m{m} flush"),
            MemberOp::WriteMeta { sector, data } if *sector == self.super_sector => {
                let sb = Superblock::parse(data, self.version, *sector).expect("what Control writes can be read");
                format!("m{m} sb {}", superblock_text(&sb))
            }
            MemberOp::WriteMeta { sector, data } if self.logged => {
                let header = PplHeader::parse(data, MdUuid([7; 16])).expect("an empty log");
                let trusted = if header.entries.is_empty() { "" } else { " untrusted" };
                format!("m{m} empty {sector}{trusted}")
            }
            MemberOp::WriteZeroes { sector, len, fua: true, .. } if self.logged => format!("m{m} zero {sector}+{len}"),
            MemberOp::WriteLog { sector, unit } => {
                let writes: Vec<u64> = unit.entries.iter().map(|e| e.data_sector.0).collect();
                let trusted = if unit.untrusted { " untrusted" } else { "" };
                format!("m{m} log {sector} #{} {writes:?}{trusted}", unit.generation)
            }
            MemberOp::WriteMeta { data, .. } => {
                let word = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
                let bits: Vec<_> = (0..32).filter(|bit| data[256 + bit / 8] >> (bit % 8) & 1 != 0).collect();
                let stale = if data[48] & 2 != 0 { "stale " } else { "" };
                format!("m{m} bitmap {} cleared {} {stale}{bits:?}", word(24), word(32))
            }
            other => panic!("Control may not do {other:?}"),
        }
    }
}

impl History {
    fn on_lease(&mut self, region: u64, shard: u16, granted: bool) {
        self.moment += 1;
        self.leases.insert(region, self.moment);
        let out = self.out.entry(region).or_default();
        if granted {
            out.insert(shard)
        } else {
            out.remove(&shard)
        };
    }
}

fn superblock_text(sb: &Superblock) -> String {
    let facts = sb.array();
    let mut roles = sb.roles();
    let used = roles.iter().rposition(|role| *role != Role::Spare).map_or(0, |last| last + 1);
    roles.truncate(used);
    let roles: Vec<_> = roles.into_iter().map(short).collect();
    let mark = match (facts.clean, facts.resync) {
        (_, Some(at)) => format!("resync {at}"),
        (true, None) => "clean".to_owned(),
        (false, None) => "unclean".to_owned(),
    };
    format!("{} {mark} {}", facts.events, roles.join(" "))
}

fn short(role: Role) -> String {
    match role {
        Role::Slot(slot) => slot.to_string(),
        Role::Spare => "S".to_owned(),
        Role::Faulty => "F".to_owned(),
        Role::Journal => "J".to_owned(),
    }
}

fn geometry(setup: &Setup) -> Geometry {
    Geometry::new(&GeometryParams {
        level: setup.level,
        layout: if setup.level == Level::Raid10 { 0x102 } else { 2 },
        raid_disks: setup.disks,
        chunk: Sectors(128),
        size: SIZE,
        data_sizes: &vec![SIZE; usize::from(setup.disks)],
        raid0_layout: Raid0Layout::Original,
    })
    .unwrap()
}

fn map(setup: &Setup) -> MemberMap {
    let present = setup.disks - setup.missing;
    let member = |state| Member { state, data_offset: Sector(2048), write_mostly: false, bad_blocks: Vec::new() };
    let holders = (0..present).map(|slot| member(MemberState::InSync(Slot(slot))));
    let spares = (0..setup.spares).map(|_| member(MemberState::Spare));
    MemberMap {
        epoch: 1,
        slots: (0..setup.disks)
            .map(|slot| SlotEntry { member: (slot < present).then_some(MemberId(slot)), replacement: None })
            .collect(),
        members: holders.chain(spares).collect(),
        unsynced_from: setup.unsynced_from,
        broken: false,
        read_only: setup.read_only,
    }
}

fn superblock(setup: &Setup, id: u16, super_offset: Sector) -> Superblock {
    let present = setup.disks - setup.missing;
    let role = |id| if id < present { Role::Slot(Slot(id)) } else { Role::Spare };
    let v1 = setup.version.is_v1();
    Superblock::create(&NewSuperblock {
        metadata: setup.version,
        uuid: MdUuid([7; 16]),
        name: if v1 { "test".to_owned() } else { String::new() },
        ctime: Timestamp::from_secs(1_600_000_000),
        device_uuid: MdUuid([id as u8; 16]),
        super_offset,
        data_offset: if v1 { Sector(2048) } else { Sector::ZERO },
        data_size: if v1 { SIZE } else { Sectors(super_offset.0) },
        bad_block_log: setup.bad_blocks.then_some(BadBlockArea { offset: 64, size: Sectors(8), shift: 0 }),
        preferred_minor: 0,
        array: ArrayUpdate {
            events: setup.events - u64::from(setup.behind == Some(id)),
            utime: Timestamp::from_secs(1_600_000_001),
            resync: ResyncMark::Clean { good_to: setup.unsynced_from },
            devices: (0..present + setup.spares).map(|id| Some(DeviceState::new(role(id)))).collect(),
            bitmap: setup.bitmap.map(|_| BITMAP_OFFSET),
            ppl: setup.log.map(|size| PplArea { offset: BITMAP_OFFSET, size: Sectors(size), multiple: false }),
            journal: false,
            reshape: None,
            geometry: raidus_format::Geometry {
                level: setup.level.number(),
                layout: if setup.level == Level::Raid10 { 0x102 } else { 2 },
                raid0_layout_known: false,
                size: SIZE,
                chunk: Sectors(128),
                raid_disks: setup.disks.into(),
            },
        },
        member: MemberUpdate::new(id.into()),
    })
    .unwrap()
}

fn bitmap(setup: &Setup, ones: u32) -> LoadedBitmap {
    let new = NewBitmap {
        uuid: MdUuid([7; 16]),
        events: setup.events,
        sync_size: SIZE,
        chunk: CHUNK.bytes(),
        daemon_sleep: 5,
        write_behind: 0,
    };
    let superblock = BitmapSuper::create(&new).unwrap();
    let mut bits = BitArray::zeros(superblock.bits());
    (0..32).filter(|bit| ones >> bit & 1 != 0).for_each(|bit| {
        bits.set(bit);
    });
    let stale = setup.stale.then_some(Stale::Marked);
    LoadedBitmap { superblock, bits, stale, needed_from: setup.unsynced_from.unwrap_or(Sector::MAX) }
}

/// Wants, as a shard says them.
pub fn want(shard: u16, regions: &[u64]) -> (u16, Message) {
    (shard, Message::LeaseWant(regions.iter().map(|r| Region(*r)).collect()))
}

/// Leases given back, as a shard says it.
pub fn give_back(shard: u16, regions: &[u64]) -> (u16, Message) {
    (shard, Message::LeaseReturned(regions.iter().map(|r| Region(*r)).collect()))
}

/// A member's failure, as a shard says it.
pub fn failed(shard: u16, member: u16) -> (u16, Message) {
    (shard, Message::MemberFailed { member: MemberId(member), range: None })
}
