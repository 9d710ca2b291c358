//! How the state machines of one array talk.
//!
//! Shards ask Control for write leases, report failed members and pass flushes on; Control grants, revokes, publishes the
//! member map. Shards hand work to each other where a zone has an owner (parity levels).

use std::sync::Arc;

use raidus_units::{MemberId, Nanos, Sector, Sectors};

use crate::io::{LogEntry, MemAddr, RequestError, RequestOp};
use crate::map::MemberMap;
use crate::sync::{Ranges, SyncJob, SyncOutcome};

/// A shard's number, 0 … shards − 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// A state machine of the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// The one Control.
    Control,
    /// A shard.
    Shard(ShardId),
}

/// The unit of write leases: a bitmap chunk, or 64 MiB where there is no bitmap. Counted in component addresses, for raid10 in
/// array addresses (as md's bitmap).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Region(pub u64);

/// Everything one state machine says to another.
///
/// # Leases
/// A shard may write in a region only while it holds that region's lease. Holding means: the array's dirty mark and the
/// region's bitmap bit are durable on every member in use. Several shards may hold the same region. A shard gives a lease
/// back when told to (`LeaseRevoke`, after its writes there have ended) or on its own when idle. With `LeaseHold` Control takes all
/// of them, so that the regions themselves may change.
///
/// # Failures
/// A shard whose member write failed says `MemberFailed` and keeps the request open. Control publishes a map without the
/// member (`Map`), each shard says `MapApplied` once it plans by it, and when the failure is durable on the survivors *and*
/// every shard has applied the map, Control says `MapDurable`: only then the request is acknowledged. Where the member has a
/// bad-block log, the map may keep it, and name the range as bad. If the member is the
/// last that holds the data, Control answers `FailureRefused`, and the request ends in an error. A map that says `broken` is the
/// last one: no epoch becomes durable after it, so whatever waits for `MapDurable` has failed.
///
/// # Partial parity logs
/// A shard that is about to write to a stripe whose parity somebody takes says `LogWant`, and writes nothing of it, to no member,
/// before `LogGranted`. When the write has ended it says `LogDone`: Control may log over the entry once the members are flushed.
#[derive(Clone, Debug)]
pub enum Message {
    /// Shard → Control: these regions' leases, please.
    LeaseWant(Vec<Region>),
    /// Shard → Control: given back; no write of this shard is under way there.
    LeaseReturned(Vec<Region>),
    /// Shard → Control: a write on this member failed.
    MemberFailed {
        /// The member.
        member: MemberId,
        /// Where, as (device sector, length), if others of its blocks may still be good.
        range: Option<(Sector, Sectors)>,
    },
    /// Shard → Control: blocks that were known as bad have been written.
    BadBlocksWritten {
        /// The member.
        member: MemberId,
        /// Device sector.
        start: Sector,
        /// Length.
        len: Sectors,
    },
    /// Shard → Control: this map (and everything before it) is in force here.
    MapApplied {
        /// The map's epoch.
        epoch: u64,
    },
    /// Shard → Control: a client wants a flush.
    Flush {
        /// Comes back in `FlushDone`.
        token: u64,
    },
    /// Shard → Control: log these writes; none of them has begun.
    LogWant(Vec<LogWant>),
    /// Shard → Control: these logged writes have ended, and what failed of them is on record. Their log is still needed until
    /// the members are flushed.
    LogDone(Vec<u64>),
    /// Shard → Control: no request is under way and no lease held; answer to `Drain`.
    Drained,
    /// Shard → Control: no lease is held, and none is going to be asked for; answer to `LeaseHold`.
    LeaseHeld,
    /// Shard → Control: what the suspension of this number holds back is not under way any more; answer to `Suspend`.
    Suspended {
        /// As in `Suspend`.
        number: u64,
    },
    /// Shard → Control: a member could not read there; the content was found elsewhere, or not at all. Component addresses on parity
    /// levels, array addresses on mirrored ones.
    ReadError {
        /// Start.
        start: Sector,
        /// Length.
        len: Sectors,
    },
    /// Shard → Control: no write of this shard is under way in the window, and none starts; answer to `SyncBar`.
    SyncBarred {
        /// The window.
        window: u64,
    },
    /// Shard → Control: whether clients have requests here, or had until just now; answer to `SyncLoadAsk`.
    SyncLoad {
        /// They do.
        busy: bool,
    },
    /// Shard → Control: the job ended.
    SyncDone {
        /// The window.
        window: u64,
        /// What came of it.
        outcome: Box<SyncOutcome>,
    },

    /// Control → Shard: these leases are yours.
    LeaseGranted(Vec<Region>),
    /// Control → Shard: leases that cannot be had (the array is broken or read-only): fail what waits for them.
    LeaseRefused {
        /// The regions asked for.
        regions: Vec<Region>,
        /// What to answer.
        error: RequestError,
    },
    /// Control → Shard: give these back as soon as the writes under way there end.
    LeaseRevoke(Vec<Region>),
    /// Control → Shard: give all leases back as their writes end and ask for no others until `LeaseRelease`; when none is held, say
    /// `LeaseHeld`.
    LeaseHold,
    /// Control → Shard: leases may be asked for again.
    LeaseRelease {
        /// All shards have said `LeaseHeld`: what was asked for is forgotten on both sides, and regions have this size.
        anew: Option<Sectors>,
    },
    /// Control → Shard: keep back what this names, and say `Suspended` when nothing that came before is under way. Takes the place
    /// of the suspension before.
    Suspend {
        /// Grows.
        number: u64,
        /// What waits.
        what: Suspension,
    },
    /// Control → Shard: give leases back after this long without a write.
    SafeModeDelay(Nanos),
    /// Control → Shard: these writes are logged, or need no log because nobody is left who holds their parity.
    LogGranted(Vec<u64>),
    /// Control → Shard: plan by this map from now on, and say `MapApplied`.
    Map(Arc<MemberMap>),
    /// Control → Shard: the map of this epoch is durable and in force everywhere.
    MapDurable {
        /// The map's epoch.
        epoch: u64,
    },
    /// Control → Shard: this member holds the last good copy and stays; the write that failed on it failed.
    FailureRefused {
        /// The member.
        member: MemberId,
        /// The newest epoch.
        epoch: u64,
    },
    /// Control → Shard: the flush ended.
    FlushDone {
        /// As in `Flush`.
        token: u64,
        /// How it ended.
        result: Result<(), RequestError>,
    },
    /// Control → Shard (mirrored levels): start no write in these ranges until `SyncUnbar`, and say `SyncBarred` when none is
    /// under way there.
    SyncBar {
        /// The window.
        window: u64,
        /// Array ranges, which do not overlap.
        ranges: Ranges,
    },
    /// Control → Shard: the window's ranges are free again.
    SyncUnbar {
        /// The window.
        window: u64,
    },
    /// Control → Shard: do this, and say `SyncDone`. On mirrored levels all shards are barred from the ranges; on parity levels
    /// the shard owns their stripes.
    Sync(SyncJob),
    /// Control → Shard: say `SyncLoad`.
    SyncLoadAsk,
    /// Control → Shard: finish what is under way, give all leases back, say `Drained`; refuse new requests from now on.
    Drain,

    /// Shard → owner shard: do this piece of a stripe.
    Stripe(StripeJob),
    /// Owner shard → shard: that piece ended.
    StripeDone {
        /// As in the job.
        job: u64,
        /// How it ended.
        result: Result<(), RequestError>,
    },
}

/// Which requests wait until told otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Suspension {
    /// None.
    #[default]
    Nothing,
    /// Writes that touch these array sectors.
    Writes {
        /// Start.
        lo: Sector,
        /// End.
        hi: Sector,
    },
    /// All.
    Everything,
}

impl Suspension {
    /// Whether a request has to wait.
    pub(crate) fn holds(self, op: RequestOp, sector: Sector, len: Sectors) -> bool {
        match self {
            Suspension::Nothing => false,
            Suspension::Everything => true,
            Suspension::Writes { lo, hi } => {
                !matches!(op, RequestOp::Read | RequestOp::Flush) && sector < hi && lo < sector + len
            }
        }
    }
}

/// A write that is to be logged before it begins (arrays with a partial parity log).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogWant {
    /// The shard's name for it.
    pub op: u64,
    /// What the log says of it.
    pub entry: LogEntry,
}

/// The shard that does all stripe operations at this component address. A zone is a run of whole stripes of at least 1 MiB per
/// member, so that a stream spreads over the cores and neighbours stay together.
pub(crate) fn zone_owner(component: Sector, chunk: Sectors, shards: u16) -> ShardId {
    ShardId((component.0 / zone_sectors(chunk).0 % u64::from(shards.max(1))) as u16)
}

/// Height of a zone, in component sectors: whole stripes.
pub(crate) fn zone_sectors(chunk: Sectors) -> Sectors {
    const ZONE: Sectors = Sectors(2048);
    let chunk = chunk.max(Sectors(1));
    Sectors((ZONE.0 / chunk.0).max(1) * chunk.0)
}

/// A piece of one stripe for the shard that owns its zone: the sectors `lo..hi` of each of `disks` consecutive data chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeJob {
    /// The sender's name for it.
    pub job: u64,
    /// What to do.
    pub kind: StripeKind,
    /// Stripe number.
    pub row: u64,
    /// First sector in the chunk.
    pub lo: Sectors,
    /// End in the chunk.
    pub hi: Sectors,
    /// First data chunk of the row (data index, not slot).
    pub first: u16,
    /// How many data chunks.
    pub disks: u16,
    /// Memory of sector `lo` of data chunk `first`; that of the next data chunk is one chunk further.
    pub buf: MemAddr,
}

/// What a [`StripeJob`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StripeKind {
    /// Read data that has to be reconstructed.
    Read,
    /// Write data with its parity.
    Write {
        /// Durable before done.
        fua: bool,
    },
    /// Write zeroes with their parity.
    Zero {
        /// Durable before done.
        fua: bool,
        /// May give the space back.
        unmap: bool,
    },
}
