//! Changes for which nobody may be writing: the bitmap comes or goes, the array is put to rest until the next write.
//!
//! Syncs end first, since they may wait for a write, and a write is about to wait for us. Then shards give all leases back and ask for none
//! (`LeaseHold`), the members are flushed and marked clean, and the change is made. What it says on the members is for the next round of
//! superblocks: until that is durable no lease is granted, so the shards may be let go at once. A power cut in the middle of
//! that round leaves an array without writes to disagree about, whichever superblock speaks for it.

use std::collections::BTreeSet;

use raidus_format::bitmap::{BitArray, LoadedBitmap};
use raidus_units::{MemberId, Nanos, SECTOR_BYTES, Sector, Sectors};

use super::Control;
use super::bitmap::Bitmap;
use super::life::Life;
use super::status::{BitmapAddition, CommandError, Event};
use crate::map::{Member, MemberState};
use crate::msg::{Message, ShardId};
use crate::open::REGION_DEFAULT;

/// Writes are being brought to a halt.
#[derive(Debug)]
pub(super) struct Pause {
    change: Change,
    /// Shards that hold no lease; `None` while they have not been asked to.
    held: Option<BTreeSet<ShardId>>,
}

/// What for.
#[derive(Debug)]
enum Change {
    AddBitmap(Box<BitmapAddition>),
    RemoveBitmap,
    ReadAuto,
}

impl Pause {
    /// Whether no lease may be granted.
    pub fn holds(&self) -> bool {
        self.held.is_some()
    }
}

impl Control {
    pub(super) fn add_bitmap(&mut self, addition: Box<BitmapAddition>) -> Result<(), CommandError> {
        if self.bitmap.is_some() {
            return Err(CommandError::HasBitmap);
        }
        self.may_change_bitmap()?;
        if !self.bitmap_fits(&addition) {
            return Err(CommandError::NoRoom);
        }
        self.begin_pause(Change::AddBitmap(addition))
    }

    pub(super) fn remove_bitmap(&mut self) -> Result<(), CommandError> {
        if self.bitmap.is_none() {
            return Err(CommandError::NoBitmap);
        }
        self.may_change_bitmap()?;
        self.begin_pause(Change::RemoveBitmap)
    }

    pub(super) fn begin_read_auto(&mut self) -> Result<(), CommandError> {
        if !self.redundant() {
            return Err(CommandError::NoRedundancy);
        }
        match self.life {
            Life::ReadAuto => Ok(()),
            Life::ReadOnly => {
                self.change_map(|map| map.read_only = false);
                self.life = Life::ReadAuto;
                Ok(())
            }
            Life::Running => self.begin_pause(Change::ReadAuto),
            _ => Err(CommandError::Busy),
        }
    }

    /// As md: not while members are being synced. A member that is rebuilt by the bitmap could not do without it.
    fn may_change_bitmap(&self) -> Result<(), CommandError> {
        let rebuilding = self.map.members.iter().any(|m| matches!(m.state, MemberState::Rebuilding { .. }));
        if self.superblocks.has_log() {
            Err(CommandError::OtherPolicy)
        } else if rebuilding || !self.sync.is_idle() {
            Err(CommandError::Syncing)
        } else {
            Ok(())
        }
    }

    /// Whether every member, spares too, has room where the bitmap would be.
    fn bitmap_fits(&self, addition: &BitmapAddition) -> bool {
        let area = raidus_format::bitmap::area(addition.superblock.bits());
        let used = |(_, m): &(u16, &Member)| m.writable() || m.state == MemberState::Spare;
        let mut members = (0u16..).zip(&self.map.members).filter(used);
        members.all(|(id, _)| self.superblocks.is_free(MemberId(id), addition.offset, area))
    }

    fn begin_pause(&mut self, change: Change) -> Result<(), CommandError> {
        if self.pause.is_some() || !self.announcements.is_empty() {
            return Err(CommandError::Busy);
        }
        self.clean_failed = false;
        self.retry_at = Nanos(0);
        self.pause = Some(Pause { change, held: None });
        Ok(())
    }

    /// The shard holds no lease.
    pub(super) fn on_lease_held(&mut self, shard: ShardId) {
        if let Some(held) = self.pause.as_mut().and_then(|pause| pause.held.as_mut()) {
            held.insert(shard);
        }
    }

    /// Goes on with the change. Returns whether it has been made, or given up.
    pub(super) fn pursue_pause(&mut self, now: Nanos) -> bool {
        let Some(pause) = &mut self.pause else { return false };
        if self.broken || self.life != Life::Running || self.clean_failed {
            self.end_pause();
            return true;
        }
        let shards = self.tunables.shards;
        let Some(held) = &pause.held else {
            if self.sync.is_idle() && self.heals.is_idle() {
                pause.held = Some(BTreeSet::new());
                self.out.broadcast(shards, &Message::LeaseHold);
            }
            return false;
        };
        let quiet = held.len() == usize::from(shards) && self.leases.none_held();
        if !quiet || !self.data_clean || self.marked || !self.settled() || !self.flushes.idle() {
            return false;
        }
        let change = self.pause.take().map(|pause| pause.change);
        self.forget_wants(now);
        match change {
            Some(Change::AddBitmap(addition)) => self.make_bitmap(&addition),
            Some(Change::RemoveBitmap) => self.drop_bitmap(),
            Some(Change::ReadAuto) => (self.life, self.sealed) = (Life::ReadAuto, true),
            None => {}
        }
        self.release(Some(self.region));
        true
    }

    /// Lets writes go on, if they were stopped.
    pub(super) fn end_pause(&mut self) {
        if self.pause.take().is_some_and(|pause| pause.holds()) {
            self.release(None);
        }
    }

    fn release(&mut self, anew: Option<Sectors>) {
        self.out.broadcast(self.tunables.shards, &Message::LeaseRelease { anew });
    }

    /// Bits of writes that have yet to begin need not stay.
    fn forget_wants(&mut self, now: Nanos) {
        let keep = self.degraded();
        for region in self.leases.forget() {
            if let Some(bitmap) = &mut self.bitmap {
                bitmap.on_idle(region, now, keep);
            }
        }
    }

    fn make_bitmap(&mut self, addition: &BitmapAddition) {
        // Members may have changed since it was asked for.
        if self.may_change_bitmap().is_err() || !self.bitmap_fits(addition) {
            return;
        }
        let mut superblock = addition.superblock.clone();
        superblock.set_events(self.superblocks.events());
        superblock.set_events_cleared(self.superblocks.events());
        superblock.set_stale(false);
        let mut bits = BitArray::zeros(superblock.bits());
        let from = self.map.unsynced_from.unwrap_or(Sector::MAX);
        let chunk = superblock.chunk() / SECTOR_BYTES;
        for bit in (0..superblock.bits()).filter(|bit| bit.saturating_add(1).saturating_mul(chunk) > from.0) {
            bits.set(bit);
        }
        self.region = Sectors(chunk);
        let loaded = LoadedBitmap { superblock, bits, stale: None, needed_from: from };
        let mut bitmap = Bitmap::new(loaded, self.degraded());
        bitmap.reseed();
        self.bitmap = Some(bitmap);
        self.superblocks.set_bitmap(Some(addition.offset));
        self.record_change(Event::BitmapAdded);
    }

    fn drop_bitmap(&mut self) {
        if self.may_change_bitmap().is_err() {
            return;
        }
        self.bitmap = None;
        self.clear_ready = false;
        self.region = REGION_DEFAULT;
        self.superblocks.set_bitmap(None);
        self.record_change(Event::BitmapRemoved);
    }

    /// Has superblocks say what is new, and tells it then.
    pub(super) fn record_change(&mut self, event: Event) {
        let epoch = self.change_map(|_| {});
        self.failures.on_change(epoch);
        self.announcements.push((epoch, event));
    }

    /// A write has come to an array that waited for one.
    pub(super) fn wake(&mut self) {
        if self.life == Life::ReadAuto && !self.leases.none_wanted() {
            self.wake_up();
        }
    }

    pub(super) fn wake_up(&mut self) {
        self.life = Life::Running;
        self.sealed = false;
    }
}
