//! Changes of a running array that writes have to wait for: the write-intent bitmap comes and goes.

use std::time::Duration;

use raidus_assembly::create::{BitmapGrowth, grow_bitmap};
use raidus_engine::MemberState;
use raidus_engine::control::{BitmapAddition, Command, CommandError, Status};
use serde::{Deserialize, Serialize};

use super::{Live, Refusal};

/// What the array is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grow {
    /// With a write-intent bitmap on its members.
    Bitmap {
        /// Bytes per bit; none for mdadm's choice.
        chunk: Option<u64>,
    },
    /// Without one.
    NoBitmap,
}

/// What it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grown {
    /// It was so before.
    pub already: bool,
    /// Bytes per bit of its bitmap, if it has one.
    pub bitmap_chunk: Option<u64>,
}

/// How often those who wait look.
const LOOK_EVERY: Duration = Duration::from_millis(5);

impl Live {
    /// Makes the array so. Returns when its members say it.
    pub fn grow(&self, wanted: Grow) -> Result<Grown, Refusal> {
        let asked = match wanted {
            Grow::Bitmap { chunk } => self.add_bitmap(chunk),
            Grow::NoBitmap => self.array.command(Command::RemoveBitmap).map_err(Refusal::from),
        };
        let already = match asked {
            Ok(()) => false,
            Err(Refusal::Command(CommandError::HasBitmap | CommandError::NoBitmap)) => true,
            Err(refusal) => return Err(refusal),
        };
        let status = self.until_settled()?;
        if status.bitmap.is_some() != matches!(wanted, Grow::Bitmap { .. }) {
            let why =
                "nothing has been changed, since members came or went or could not be written meanwhile; try again";
            return Err(Refusal::Request(why.to_owned()));
        }
        Ok(Grown { already, bitmap_chunk: status.bitmap.map(|b| b.chunk.bytes()) })
    }

    fn add_bitmap(&self, chunk: Option<u64>) -> Result<(), Refusal> {
        let status = self.status()?;
        if let Some(bitmap) = status.bitmap {
            let other = chunk.filter(|chunk| *chunk != bitmap.chunk.bytes());
            return Err(other.map_or(CommandError::HasBitmap.into(), |_| {
                let why = "the array has a bitmap with another chunk; take it away first: --bitmap=none";
                Refusal::Request(why.to_owned())
            }));
        }
        if status.map.read_only {
            return Err(CommandError::ReadOnly.into());
        }
        let places = self.portrait.places();
        let used = |state: MemberState| !state.is_out() && state != MemberState::Journal;
        let members = places.into_iter().zip(&status.map.members).filter(|(_, member)| used(member.state));
        let members: Vec<_> = members.map(|(place, _)| place.superblock).collect();
        let geometry = &self.portrait.assembled.geometry;
        let grown = grow_bitmap(&BitmapGrowth { members: &members, geometry, chunk })?;
        let addition = BitmapAddition { superblock: grown.superblock, offset: grown.offset };
        Ok(self.array.command(Command::AddBitmap(Box::new(addition)))?)
    }

    /// Waits until what was asked for is so: on record, and nothing of before under way.
    pub(super) fn until_settled(&self) -> Result<Status, Refusal> {
        loop {
            let status = self.status()?;
            if !status.changing && !status.suspended.pending {
                return Ok(status);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}
