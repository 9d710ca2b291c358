//! What a client sees of the array.

use raidus_units::SECTOR_BYTES;

use crate::codec::wire;

/// One export: its name, its size and what may be asked of it. Every value was checked against the protocol's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    name: String,
    description: String,
    size: u64,
    blocks: BlockSizes,
    read_only: bool,
    rotational: bool,
    fast_zero: bool,
}

/// The sizes a client has to keep to, all in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of this: the array's logical block size. A power of two, 512 to 65536.
    pub min: u32,
    /// Requests that are multiples of this are efficient. A power of two, at least `min`.
    pub preferred: u32,
    /// Longest read or write. At least `preferred`, at most 1 GiB.
    pub max_payload: u32,
}

/// An export that the protocol cannot express.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// The name is too long or has a NUL in it.
    #[error("the export name must be at most {} bytes long and without NUL; give a shorter one", wire::STRING_MAX)]
    Name,
    /// The block sizes contradict the protocol's rules.
    #[error(
        "block sizes {min}/{preferred}/{max_payload} are not possible: the minimum must be a power of two from 512 to 65536, \
         the preferred size a power of two of at least that, and the longest request between that and 1 GiB",
        min = .0.min, preferred = .0.preferred, max_payload = .0.max_payload
    )]
    BlockSizes(BlockSizes),
}

const SECTOR: u32 = SECTOR_BYTES as u32;

/// The longest string the server puts into a description or an error message.
const DESCRIPTION_MAX: usize = 1024;

impl BlockSizes {
    /// Every server accepts requests this long unless it says otherwise: 32 MiB.
    pub const MAX_PAYLOAD: u32 = 32 << 20;

    /// The sizes for an array with this logical block size (512 or 4096): 4096 preferred, 32 MiB at most.
    pub fn for_logical_block(bytes: u32) -> BlockSizes {
        BlockSizes { min: bytes, preferred: bytes.max(4096), max_payload: Self::MAX_PAYLOAD }
    }

    fn are_valid(&self) -> bool {
        self.min.is_power_of_two()
            && (SECTOR..=1 << 16).contains(&self.min)
            && self.preferred.is_power_of_two()
            && self.preferred >= self.min
            && self.max_payload >= self.preferred
            && self.max_payload <= 1 << 30
    }
}

impl Export {
    /// A writable export of `size` bytes, rounded down to whole blocks.
    pub fn new(name: impl Into<String>, size: u64, blocks: BlockSizes) -> Result<Export, ExportError> {
        let name = name.into();
        if name.len() > wire::STRING_MAX || name.contains('\0') {
            return Err(ExportError::Name);
        }
        if !blocks.are_valid() {
            return Err(ExportError::BlockSizes(blocks));
        }
        let size = size - size % u64::from(blocks.min);
        let description = String::new();
        Ok(Export { name, description, size, blocks, read_only: false, rotational: false, fast_zero: false })
    }

    /// With a text for human beings, shown by `nbdinfo --list`; cut to 1024 bytes.
    #[must_use]
    pub fn with_description(mut self, text: &str) -> Export {
        let cut = text.floor_char_boundary(DESCRIPTION_MAX);
        self.description = text[..cut].replace('\0', " ");
        self
    }

    /// Refuse everything that writes.
    #[must_use]
    pub fn read_only(mut self, yes: bool) -> Export {
        self.read_only = yes;
        self
    }

    /// Tell clients that the members are spinning disks.
    #[must_use]
    pub fn rotational(mut self, yes: bool) -> Export {
        self.rotational = yes;
        self
    }

    /// Whether zeroing is quicker than writing. If not, requests that insist on it are refused with ENOTSUP.
    #[must_use]
    pub fn fast_zero(mut self, yes: bool) -> Export {
        self.fast_zero = yes;
        self
    }

    /// The canonical name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text for human beings; may be empty.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Size in bytes, a multiple of the minimum block size.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Block sizes.
    pub fn blocks(&self) -> BlockSizes {
        self.blocks
    }

    /// Whether everything that writes is refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether zeroing is quicker than writing.
    pub fn zeroes_fast(&self) -> bool {
        self.fast_zero
    }

    /// Whether a client that asks for `name` means this export. The empty name is the protocol's "default export".
    pub fn answers_to(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// With the longest request lowered to `bytes`, or to the minimum block size if that is more.
    #[must_use]
    pub fn limited_to(mut self, bytes: u32) -> Export {
        let blocks = &mut self.blocks;
        blocks.max_payload = blocks.max_payload.min(bytes.max(blocks.min));
        blocks.preferred = blocks.preferred.min(1 << blocks.max_payload.ilog2());
        self
    }

    /// The transmission flags. Every export may be used over several connections, since a flush on one covers all.
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        let mut flags = wire::FLAG_HAS_FLAGS | wire::FLAG_SEND_FLUSH | wire::FLAG_SEND_FUA | wire::FLAG_CAN_MULTI_CONN;
        if self.read_only {
            flags |= wire::FLAG_READ_ONLY;
        } else {
            flags |= wire::FLAG_SEND_TRIM | wire::FLAG_SEND_WRITE_ZEROES | wire::FLAG_SEND_FAST_ZERO;
        }
        if self.rotational {
            flags |= wire::FLAG_ROTATIONAL;
        }
        if structured {
            flags |= wire::FLAG_SEND_DF;
        }
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_is_whole_blocks() {
        let export = Export::new("md0", 10_000, BlockSizes::for_logical_block(4096)).unwrap();
        assert_eq!(export.size(), 8192);
    }

    #[test]
    fn impossible_exports_are_refused() {
        let blocks = BlockSizes::for_logical_block(512);
        assert_eq!(Export::new("a\0b", 0, blocks), Err(ExportError::Name));
        assert_eq!(Export::new("x".repeat(4097), 0, blocks), Err(ExportError::Name));
        for bad in [
            BlockSizes { min: 0, ..blocks },
            BlockSizes { min: 3, ..blocks },
            BlockSizes { min: 256, ..blocks },
            BlockSizes { min: 1 << 17, preferred: 1 << 17, ..blocks },
            BlockSizes { preferred: 256, ..blocks },
            BlockSizes { max_payload: 2048, ..blocks },
            BlockSizes { max_payload: u32::MAX, ..blocks },
        ] {
            assert_eq!(Export::new("md0", 0, bad), Err(ExportError::BlockSizes(bad)));
        }
    }

    #[test]
    fn limits_keep_the_rules() {
        let export =
            Export::new("md0", 0, BlockSizes { preferred: 1 << 20, ..BlockSizes::for_logical_block(512) }).unwrap();
        for limit in [0, 511, 512, 5000, 65536, 3 << 20, u32::MAX] {
            let blocks = export.clone().limited_to(limit).blocks();
            assert!(blocks.are_valid() && blocks.max_payload <= limit.max(512), "{limit}: {blocks:?}");
        }
    }

    #[test]
    fn description_is_cut_between_characters() {
        let export = Export::new("md0", 0, BlockSizes::for_logical_block(512)).unwrap();
        let export = export.with_description(&"é".repeat(600));
        assert_eq!(export.description().len(), 1024);
    }
}
