//! Changes outside a superblock round: what `mdadm --assemble --update=` and the end of a reshape change.
//!
//! Whatever a round writes (events, resync position, bitmap, geometry, …) is changed by [`Superblock::update`] with
//! what [`Superblock::array_update`] gives.

use crate::superblock::Superblock;
use crate::{BadBlockArea, MdUuid, SbError};
use raidus_units::{Sector, Sectors};

/// One change. The checksum follows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Edit {
    /// Another name, at most 32 bytes.
    Name(String),
    /// Another identity of the array. An internal bitmap carries it too.
    Uuid(MdUuid),
    /// Another identity of the member.
    DeviceUuid(MdUuid),
    /// A bad-block log at another place, or none. What a log still has in it must be moved first.
    BadBlockLog(Option<BadBlockArea>),
    /// Another data area: after a reshape that moved it, or on a device that has grown.
    DataArea {
        /// Device sector of component address 0.
        offset: Sector,
        /// Sectors available from there.
        size: Sectors,
    },
    /// 0.90: another md minor number.
    PreferredMinor(u32),
}

impl Superblock {
    /// Makes one change.
    ///
    /// # Errors
    /// [`SbError::NotStorable`] where the format has no place for it, and what [`crate::RawSuperblock::check`] finds
    /// wrong with the result; the superblock is then unchanged.
    pub fn edit(&mut self, edit: &Edit) -> Result<(), SbError> {
        let mut next = (**self).clone();
        match &mut next {
            crate::RawSuperblock::V1(sb) => crate::v1::edit(sb, edit)?,
            crate::RawSuperblock::V090(sb) => crate::v090::edit(sb, edit)?,
        }
        *self = next.check()?;
        Ok(())
    }
}
