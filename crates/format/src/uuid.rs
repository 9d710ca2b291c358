//! Array and member identities, in md's own spelling.

use core::fmt;
use core::str::FromStr;
use thiserror::Error;

/// 16 bytes that name an array or a member. Shown as md does: four groups of eight hex digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MdUuid(pub [u8; 16]);

/// Text that is not a uuid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{0}' is not a UUID: 32 hex digits are needed, ':', '-', '.' and spaces between them are ignored")]
pub struct UuidError(pub String);

impl MdUuid {
    /// The four words of a 0.90 superblock as a uuid that shows the same text.
    pub const fn from_words(words: [u32; 4]) -> MdUuid {
        let mut bytes = [0; 16];
        let mut i = 0;
        while i < 16 {
            bytes[i] = words[i / 4].to_be_bytes()[i % 4];
            i += 1;
        }
        MdUuid(bytes)
    }

    /// The uuid as the four words of a 0.90 superblock.
    pub const fn words(self) -> [u32; 4] {
        let b = self.0;
        [
            u32::from_be_bytes([b[0], b[1], b[2], b[3]]),
            u32::from_be_bytes([b[4], b[5], b[6], b[7]]),
            u32::from_be_bytes([b[8], b[9], b[10], b[11]]),
            u32::from_be_bytes([b[12], b[13], b[14], b[15]]),
        ]
    }

    /// The bytes with each group of four reversed: how the uuid of an array with 0.90 metadata (written by a
    /// little-endian host) stands in its bitmap.
    #[must_use]
    pub fn word_swapped(self) -> MdUuid {
        let mut bytes = self.0;
        for word in bytes.chunks_exact_mut(4) {
            word.reverse();
        }
        MdUuid(bytes)
    }
}

impl fmt::Display for MdUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = self.words();
        write!(f, "{a:08x}:{b:08x}:{c:08x}:{d:08x}")
    }
}

impl FromStr for MdUuid {
    type Err = UuidError;

    fn from_str(text: &str) -> Result<MdUuid, UuidError> {
        let bad = || UuidError(text.to_owned());
        let mut nibbles = Vec::with_capacity(32);
        for c in text.chars() {
            match c {
                ':' | '-' | '.' | ' ' => {}
                _ => nibbles.push(c.to_digit(16).ok_or_else(bad)? as u8),
            }
        }
        if nibbles.len() != 32 {
            return Err(bad());
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(nibbles.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Ok(MdUuid(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trip() {
        let uuid = MdUuid([0xfd, 0x33, 0x0f, 0x0f, 0x70, 0x9e, 0xd5, 0x3f, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(uuid.to_string(), "fd330f0f:709ed53f:01020304:05060708");
        assert_eq!(uuid.to_string().parse(), Ok(uuid));
        assert_eq!("fd330f0f-709e-d53f-0102-030405060708".parse(), Ok(uuid));
        assert!("fd330f0f:709ed53f:01020304:0506070".parse::<MdUuid>().is_err());
        assert!("xd330f0f:709ed53f:01020304:05060708".parse::<MdUuid>().is_err());
        assert_eq!(MdUuid::from_words(uuid.words()), uuid);
        assert_eq!(uuid.word_swapped().word_swapped(), uuid);
        assert_eq!(uuid.word_swapped().0[..4], [0x0f, 0x0f, 0x33, 0xfd]);
    }
}
