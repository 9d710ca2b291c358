//! Which copy of the write-intent bitmap an array starts with, and a new array's first one.

use raidus_format::bitmap::{
    self, BITMAP_PAGE, BitArray, BitmapError, BitmapSuper, BitmapVersion, ChunkState, ChunkStates, LoadContext,
    LoadedBitmap, NewBitmap, Stale,
};
use raidus_format::{ArrayFacts, Superblock};
use raidus_layout::Geometry;
use raidus_units::{Level, SECTOR_BYTES, Sector, Sectors};

use crate::candidate::{Area, AreaKind, Candidate, Need, near};

const PAGE: Sectors = Sectors(BITMAP_PAGE as u64 / SECTOR_BYTES);
/// Largest bitmap area that is read.
const AREA_MAX: Sectors = Sectors::from_kib(64 * 1024);
/// Seconds between clearing rounds of a new bitmap.
const DAEMON_SLEEP: u32 = 5;

/// What came of looking for the bitmap.
pub(crate) enum Outcome {
    /// The array has none.
    None,
    /// This one.
    Loaded(Box<Loaded>),
    /// The array's bitmap is of a kind that raidus reads, but does not keep up to date.
    Lockless(Lockless),
    /// It has one that cannot be used.
    Failed {
        /// Where it was read.
        member: String,
        /// What is wrong.
        why: String,
    },
}

/// What a lockless bitmap says.
#[derive(Clone, Copy)]
pub(crate) struct Lockless {
    /// Start of the first chunk of which it does not say that members agree.
    pub(crate) in_sync_to: Option<Sector>,
    /// How many chunks it does not say that of.
    in_doubt: u64,
    /// Of how many.
    of: u64,
}

impl Lockless {
    /// What both say.
    fn and(self, other: &Lockless) -> Lockless {
        let first = [self.in_sync_to, other.in_sync_to].into_iter().flatten().min();
        Lockless { in_sync_to: first, in_doubt: self.in_doubt.max(other.in_doubt), of: self.of.max(other.of) }
    }

    /// What the user should know.
    pub(crate) fn note(&self, whole: bool) -> String {
        let Lockless { in_doubt, of, .. } = self;
        let there = match (in_doubt, whole) {
            (0, _) => format!("members agree in all of its {of} chunks"),
            (_, true) => format!(
                "members may differ in {in_doubt} of its {of} chunks, and nothing is reconstructed from there on"
            ),
            (_, false) => format!(
                "members may differ in {in_doubt} of its {of} chunks, and what is reconstructed there may be wrong"
            ),
        };
        format!(
            "read-only: the array has a lockless write-intent bitmap, which raidus reads, but does not keep up to date; {there}"
        )
    }
}

/// A bitmap to start with.
pub(crate) struct Loaded {
    pub(crate) bitmap: LoadedBitmap,
    /// What the user should know.
    pub(crate) note: Option<String>,
}

impl Loaded {
    /// Start of the first chunk that has to be resynced.
    pub(crate) fn first_needed(&self) -> Option<Sector> {
        let chunk = self.bitmap.superblock.chunk() / SECTOR_BYTES;
        let first = self.bitmap.bits.iter_ones().find(|i| self.bitmap.is_needed(*i))?;
        Some(Sector(first.saturating_mul(chunk)))
    }
}

/// What to read next of a member's bitmap: its first page, then all of it.
pub(crate) fn need(sb: &Superblock, candidate: &Candidate) -> Option<Need> {
    let array = sb.array();
    let offset = array.bitmap?;
    let len = match &candidate.bitmap {
        Area::Unread => PAGE,
        Area::Failed(_) => return None,
        Area::Bytes(bytes) => {
            let area = BitmapSuper::parse(bytes).ok()?.area();
            if bytes.len() as u64 >= area.0.saturating_mul(SECTOR_BYTES) || area > AREA_MAX {
                return None;
            }
            area
        }
    };
    Some(Need { kind: AreaKind::Bitmap, at: near(sb, offset, len, candidate.size)?, len })
}

/// Loads the bitmap from the first of `copies` (the in-sync members, in slot order) whose copy is good and not stale. Copies of
/// one array differ only where a crash cut off a round of writes, and every copy is right then: a bit is on all members
/// before the data that needs it is on any.
pub(crate) fn load(array: &ArrayFacts, geometry: &Geometry, whole: bool, copies: &[&Candidate]) -> Outcome {
    if array.bitmap.is_none() || !geometry.level().is_redundant() {
        return Outcome::None;
    }
    let context = context(array, geometry, whole, copies);
    let mut stale: Option<LoadedBitmap> = None;
    let mut failed: Option<(String, String)> = None;
    let mut lockless: Option<Lockless> = None;
    for copy in copies {
        let result = match &copy.bitmap {
            Area::Bytes(bytes) => match lockless_states(bytes, &context) {
                Some(Ok(states)) => {
                    // Copies differ where a crash cut off a round; each says what was in doubt when it was written.
                    lockless = Some(lockless.map_or_else(|| states, |known| known.and(&states)));
                    continue;
                }
                Some(Err(why)) => Err(why.to_string()),
                None => LoadedBitmap::load(bytes, &context).map_err(|e| e.to_string()),
            },
            Area::Failed(why) => Err(why.clone()),
            Area::Unread => Err("it is not inside the device".to_owned()),
        };
        match result {
            Ok(bitmap) if bitmap.stale.is_none() => return Outcome::Loaded(Box::new(Loaded { bitmap, note: None })),
            Ok(bitmap) => stale = stale.or(Some(bitmap)),
            Err(why) => failed = failed.or_else(|| Some((copy.name.clone(), why))),
        }
    }
    if let Some(lockless) = lockless {
        return Outcome::Lockless(lockless);
    }
    if let Some(bitmap) = stale {
        let note = bitmap.stale.map(|stale| format!("the write-intent bitmap is not used: {}", stale_text(stale)));
        return Outcome::Loaded(Box::new(Loaded { bitmap, note }));
    }
    let (member, why) = failed.unwrap_or_else(|| ("no member".to_owned(), "there is no copy of it".to_owned()));
    Outcome::Failed { member, why }
}

/// A bitmap that marks everything, small enough for any room.
pub(crate) fn all_dirty(array: &ArrayFacts, geometry: &Geometry, whole: bool, copies: &[&Candidate]) -> Option<Loaded> {
    let context = context(array, geometry, whole, copies);
    let new = NewBitmap {
        uuid: context.uuid,
        events: array.events,
        sync_size: context.sync_size,
        chunk: bitmap::smallest_chunk(context.sync_size, PAGE, bitmap::CHUNK_MIN_CHOSEN)?,
        daemon_sleep: DAEMON_SLEEP,
        write_behind: 0,
    };
    let superblock = BitmapSuper::create(&new).ok()?;
    let file = BitArray::ones(superblock.bits()).encode(&superblock);
    let bitmap = LoadedBitmap::load(&file, &context).ok()?;
    Some(Loaded { bitmap, note: None })
}

/// The area of a new array's bitmap. As mdadm makes it: every bit set. On a clean array that means nothing, on others that
/// all must be resynced.
pub(crate) fn new_area(new: &NewBitmap) -> Result<Vec<u8>, BitmapError> {
    let superblock = BitmapSuper::create(new)?;
    Ok(BitArray::ones(superblock.bits()).encode(&superblock))
}

/// What a bitmap of this array covers.
pub(crate) fn covers(geometry: &Geometry) -> Sectors {
    if geometry.level() == Level::Raid10 { geometry.array_sectors() } else { geometry.component_sectors() }
}

/// A new bitmap with md's defaults.
pub(crate) fn new_bitmap(
    array_uuid: raidus_format::MdUuid,
    sync_size: Sectors,
    chunk: u64,
    write_behind: u32,
) -> NewBitmap {
    NewBitmap { uuid: array_uuid, events: 0, sync_size, chunk, daemon_sleep: DAEMON_SLEEP, write_behind }
}

fn context(array: &ArrayFacts, geometry: &Geometry, is_whole: bool, copies: &[&Candidate]) -> LoadContext {
    // Members in different orders have no history in common; the first is as good as any.
    let host = copies.iter().find_map(|c| c.superblock()?.host_order());
    LoadContext {
        uuid: bitmap::uuid_in_bitmap(array.metadata, host, array.uuid),
        events: array.events,
        sync_size: covers(geometry),
        resync: array.resync,
        is_whole,
        host,
    }
}

/// What a copy of a lockless bitmap says; `None` if it is none.
fn lockless_states(bytes: &[u8], array: &LoadContext) -> Option<Result<Lockless, BitmapError>> {
    let superblock = BitmapSuper::parse(bytes).ok().filter(|sb| sb.version() == BitmapVersion::Lockless)?;
    if superblock.uuid() != array.uuid {
        return Some(Err(BitmapError::WrongArray { found: superblock.uuid(), expected: array.uuid }));
    }
    let states = match ChunkStates::read(bytes, &superblock) {
        Ok(states) => states,
        Err(why) => return Some(Err(why)),
    };
    // Written without its bitmap being kept, or of another size: nothing in it can be relied on.
    let is_stale = superblock.events() < array.events || superblock.sync_size() != array.sync_size;
    let in_doubt = |state: &ChunkState| is_stale || !state.is_in_sync();
    let chunk = superblock.chunk() / SECTOR_BYTES;
    let first = states.iter().position(|state| in_doubt(&state));
    Some(Ok(Lockless {
        in_sync_to: first.map(|i| Sector((i as u64).saturating_mul(chunk))),
        of: states.iter().count() as u64,
        in_doubt: states.iter().filter(in_doubt).count() as u64,
    }))
}

fn stale_text(stale: Stale) -> String {
    match stale {
        Stale::Events { bitmap, array } => {
            format!("it stopped at event {bitmap}, the array went on to {array} without it")
        }
        Stale::Marked => "it is marked stale".to_owned(),
        Stale::ByteOrder => {
            "its bits may be in the byte order of a big-endian machine, so all are taken as set".to_owned()
        }
        Stale::Size { bitmap, array } => format!("it covers {bitmap} sectors, the array needs {array}"),
    }
}
