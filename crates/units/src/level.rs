//! RAID levels as md numbers and names them.

use core::fmt;
use core::str::FromStr;

/// The levels raidus serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Members one after the other.
    Linear,
    /// Striping, no redundancy.
    Raid0,
    /// Mirroring.
    Raid1,
    /// Striping with parity on the last member.
    Raid4,
    /// Striping with rotating parity.
    Raid5,
    /// Striping with two parities.
    Raid6,
    /// Striped mirrors: near, far and offset copies.
    Raid10,
}

/// A level number or name that raidus does not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownLevel(pub String);

impl Level {
    /// All levels, in md's numeric order.
    pub const ALL: [Level; 7] =
        [Level::Linear, Level::Raid0, Level::Raid1, Level::Raid4, Level::Raid5, Level::Raid6, Level::Raid10];

    /// The number stored on disk (`level` in both superblock formats).
    pub const fn number(self) -> i32 {
        match self {
            Level::Linear => -1,
            Level::Raid0 => 0,
            Level::Raid1 => 1,
            Level::Raid4 => 4,
            Level::Raid5 => 5,
            Level::Raid6 => 6,
            Level::Raid10 => 10,
        }
    }

    /// The level with this on-disk number.
    pub const fn from_number(number: i32) -> Option<Level> {
        Some(match number {
            -1 => Level::Linear,
            0 => Level::Raid0,
            1 => Level::Raid1,
            4 => Level::Raid4,
            5 => Level::Raid5,
            6 => Level::Raid6,
            10 => Level::Raid10,
            _ => return None,
        })
    }

    /// md's name: `raid5`, `linear`.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Linear => "linear",
            Level::Raid0 => "raid0",
            Level::Raid1 => "raid1",
            Level::Raid4 => "raid4",
            Level::Raid5 => "raid5",
            Level::Raid6 => "raid6",
            Level::Raid10 => "raid10",
        }
    }

    /// Parity blocks per stripe: 0, 1 (levels 4 and 5) or 2 (level 6).
    pub const fn parities(self) -> u16 {
        match self {
            Level::Raid4 | Level::Raid5 => 1,
            Level::Raid6 => 2,
            _ => 0,
        }
    }

    /// Whether members carry redundant data, so that the array has a clean/dirty mark and can be resynced.
    pub const fn is_redundant(self) -> bool {
        !matches!(self, Level::Linear | Level::Raid0)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for UnknownLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown RAID level '{}' (known: linear 0 1 4 5 6 10)", self.0)
    }
}

impl std::error::Error for UnknownLevel {}

impl FromStr for Level {
    type Err = UnknownLevel;

    /// mdadm's spellings: `5`, `raid5`, `linear`, `-1`, `stripe`, `mirror`.
    fn from_str(s: &str) -> Result<Level, UnknownLevel> {
        Ok(match s {
            "linear" | "-1" => Level::Linear,
            "stripe" => Level::Raid0,
            "mirror" => Level::Raid1,
            _ => {
                let digits = s.strip_prefix("raid").unwrap_or(s);
                digits
                    .parse()
                    .ok()
                    .and_then(Level::from_number)
                    .filter(|l| *l != Level::Linear)
                    .ok_or_else(|| UnknownLevel(s.to_owned()))?
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_round_trip() {
        for level in Level::ALL {
            assert_eq!(Level::from_number(level.number()), Some(level));
            assert_eq!(level.name().parse(), Ok(level));
            assert_eq!(level.number().to_string().parse(), Ok(level));
        }
        assert!("raid7".parse::<Level>().is_err());
        assert!("".parse::<Level>().is_err());
    }
}
