//! Logs of parity arrays: what is in them that the members may lack, and how it gets there.
//!
//! What is to be replayed is worked out with the [decision](crate::decide) and changes nothing. [`Assembled::replay`] then carries it
//! out through [`Disks`]. It may be cut short anywhere and begun anew: what it writes to the members does not depend on
//! what it wrote before, and the log is given up only when all of that is durable. After it the array is decided on
//! again, from what then stands on its members.

mod journal;
mod ppl;
mod row;

use core::fmt;

use raidus_format::{ArrayUpdate, MemberUpdate, Recovery, ResyncMark, SbError, Timestamp};
use raidus_layout::ParityGeometry;
use raidus_units::{Sector, Sectors, Slot};
use thiserror::Error;

pub use journal::JournalReplay;
pub use ppl::PplReplay;

pub(crate) use journal::JournalUse;
pub(crate) use ppl::OwnLog;

use crate::decision::{Assembled, Seat, Seated};

/// Access to the devices, by index of the candidate.
pub trait Disks {
    /// Why an access failed.
    type Error;

    /// Fills `bytes` from a device sector on.
    ///
    /// # Errors
    /// Those of the device.
    fn read(&mut self, candidate: usize, at: Sector, bytes: &mut [u8]) -> Result<(), Self::Error>;

    /// Writes whole sectors.
    ///
    /// # Errors
    /// Those of the device.
    fn write(&mut self, candidate: usize, at: Sector, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Makes everything written to the device durable.
    ///
    /// # Errors
    /// Those of the device.
    fn flush(&mut self, candidate: usize) -> Result<(), Self::Error>;
}

/// What a log holds that the members may lack.
#[derive(Clone, Debug)]
pub enum Replay {
    /// Partial parity logs.
    Ppl(PplReplay),
    /// A write journal.
    Journal(JournalReplay),
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Replay::Ppl(ppl) => ppl.fmt(f),
            Replay::Journal(journal) => journal.fmt(f),
        }
    }
}

/// Why a replay ended early. It can be begun anew.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReplayError<E> {
    /// A device failed.
    #[error("{0}")]
    Disk(E),
    /// A superblock cannot say what it has to.
    #[error("the superblock cannot be brought up to date ({0})")]
    Superblock(SbError),
}

impl<E> From<E> for ReplayError<E> {
    fn from(error: E) -> ReplayError<E> {
        ReplayError::Disk(error)
    }
}

impl Assembled {
    /// Carries out [`Assembled::replay`]. `now` goes into the superblocks.
    ///
    /// # Errors
    /// That of the first access that failed. Everything is then as before, or in between; the log is still there.
    pub fn carry_out_replay<D: Disks>(&self, disks: &mut D, now: Timestamp) -> Result<(), ReplayError<D::Error>> {
        match &self.replay {
            None => Ok(()),
            Some(Replay::Ppl(ppl)) => ppl.carry_out(self, disks, now),
            Some(Replay::Journal(journal)) => journal.carry_out(self, disks, now),
        }
    }

    /// Everyone whose data area has this slot's data, wholly or in part.
    fn holders(&self, slot: Slot) -> impl Iterator<Item = &Seated> {
        self.members.iter().filter(move |m| m.seat.slot() == Some(slot))
    }

    /// Writes to all holders of a slot.
    fn write<D: Disks>(&self, disks: &mut D, slot: Slot, component: Sector, bytes: &[u8]) -> Result<(), D::Error> {
        self.holders(slot).try_for_each(|m| disks.write(m.candidate, m.place(component), bytes))
    }

    /// Puts on record that replacements begin anew, before any superblock says clean.
    fn record_distrust<D: Disks>(&self, disks: &mut D) -> Result<Assembled, ReplayError<D::Error>> {
        let mut assembled = self.clone();
        for member in &mut assembled.members {
            let Seat::Replacing { .. } = member.seat else { continue };
            let own = member.superblock.member_update();
            let own = MemberUpdate { recovery: Some(Recovery { offset: Sector::ZERO, by_bitmap: false }), ..own };
            // The array is dirty until the logs are replayed.
            let array = ArrayUpdate { resync: ResyncMark::Dirty, ..member.superblock.array_update() };
            member.superblock.update(&array, &own).map_err(ReplayError::Superblock)?;
            disks.write(member.candidate, member.superblock.member().super_offset, &member.superblock.encode())?;
            disks.flush(member.candidate)?;
        }
        Ok(assembled)
    }

    fn flush_members<D: Disks>(&self, disks: &mut D) -> Result<(), D::Error> {
        self.members.iter().filter(|m| m.seat.slot().is_some()).try_for_each(|m| disks.flush(m.candidate))
    }

    /// One round of superblocks on everybody, durable at the end; `tail` is where the journal begins from now on. The first round
    /// only levels members that a crash, perhaps of an earlier attempt, left uneven: assembly forgives a member one event, and one
    /// beyond the highest would leave a good member two behind if this round, too, is cut short.
    fn write_superblocks<D: Disks>(
        &self,
        disks: &mut D,
        round: u64,
        tail: Option<Sectors>,
        now: Timestamp,
    ) -> Result<(), ReplayError<D::Error>> {
        let counts = || self.members.iter().filter(|m| m.seat != Seat::Spare).map(|m| m.superblock.events());
        let (least, most) = (counts().min().unwrap_or_default(), counts().max().unwrap_or_default());
        let before = if least < most { most - 1 } else { most };
        for member in &self.members {
            let mut superblock = member.superblock.clone();
            let mut array = superblock.array_update();
            array.events = before.saturating_add(round);
            array.utime = now;
            array.resync = ResyncMark::Clean { good_to: self.array.resync };
            let mut own = superblock.member_update();
            if let (Seat::Journal, Some(tail)) = (member.seat, tail) {
                own.journal_tail = Some(Sector(tail.0));
            }
            superblock.update(&array, &own).map_err(ReplayError::Superblock)?;
            disks.write(member.candidate, superblock.member().super_offset, &superblock.encode())?;
        }
        self.members.iter().try_for_each(|m| disks.flush(m.candidate))?;
        Ok(())
    }
}

impl Seated {
    /// The device sector of a component sector.
    fn place(&self, component: Sector) -> Sector {
        self.superblock.member().data_offset + component.from_start()
    }

    /// Whether the range has this member's slot's data.
    fn is_valid(&self, component: Sector, len: Sectors) -> bool {
        let written = match self.seat {
            Seat::InSync(_) => true,
            Seat::Rebuilding { valid_to, by_bitmap, .. } => !by_bitmap && component + len <= valid_to,
            Seat::Replacing { .. } | Seat::Spare | Seat::Journal => false,
        };
        let (from, to) = (self.place(component), self.place(component) + len);
        written && self.bad_blocks.iter().all(|(at, n)| *at >= to || *at + *n <= from)
    }
}

/// The member to read a range of a slot from.
fn source(members: &[Seated], slot: Slot, component: Sector, len: Sectors) -> Option<&Seated> {
    members.iter().find(|m| m.seat.slot() == Some(slot) && m.is_valid(component, len))
}

/// The geometry of an array that can have a log.
fn parity(assembled: &Assembled) -> Option<&ParityGeometry> {
    match &assembled.geometry {
        raidus_layout::Geometry::Parity(geometry) => Some(geometry),
        _ => None,
    }
}
