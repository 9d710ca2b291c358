//! Layout names as mdadm accepts and prints them.

use core::fmt;
use raidus_units::Level;

const RAID0: &[(&str, u32)] = &[("original", 1), ("alternate", 2), ("dangerous", 0)];

const RAID5: &[(&str, u32)] = &[
    ("left-asymmetric", 0),
    ("right-asymmetric", 1),
    ("left-symmetric", 2),
    ("right-symmetric", 3),
    ("parity-first", 4),
    ("parity-last", 5),
];

/// With one parity the DDF layouts are the same as these.
const RAID5_DDF: &[(&str, u32)] = &[("ddf-zero-restart", 1), ("ddf-N-restart", 0), ("ddf-N-continue", 2)];

const RAID6: &[(&str, u32)] = &[
    ("ddf-zero-restart", 8),
    ("ddf-N-restart", 9),
    ("ddf-N-continue", 10),
    ("left-asymmetric-6", 16),
    ("right-asymmetric-6", 17),
    ("left-symmetric-6", 18),
    ("right-symmetric-6", 19),
    ("parity-first-6", 20),
];

const SHORT: &[(&str, u32)] = &[("la", 0), ("ra", 1), ("ls", 2), ("rs", 3), ("default", 2)];

/// A `--layout=` that its level does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutNameError {
    /// The level has no choice of layouts.
    #[error("{0} has no choice of layouts; leave --layout out")]
    NoLayouts(Level),
    /// Not one of its names.
    #[error("{level} has no layout '{text}'; choose one of: {known}", known = known(*level))]
    Unknown {
        /// The level.
        level: Level,
        /// What was given.
        text: String,
    },
}

/// A layout as the `Layout :` lines of mdadm show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutText {
    level: Level,
    layout: u32,
}

/// The number of the layout that `--layout=text` names.
///
/// raid10 takes a letter and the number of copies: `n2`, `f2`, `o3`. Whether the array has slots enough for them is
/// for [`Geometry::new`](crate::Geometry::new) to say.
pub fn parse(level: Level, text: &str) -> Result<u32, LayoutNameError> {
    let unknown = || LayoutNameError::Unknown { level, text: text.to_owned() };
    let tables: &[&[(&str, u32)]] = match level {
        Level::Linear | Level::Raid1 | Level::Raid4 => return Err(LayoutNameError::NoLayouts(level)),
        Level::Raid0 => &[RAID0, &[("1", 1), ("2", 2)]],
        Level::Raid5 => &[RAID5, RAID5_DDF, SHORT],
        Level::Raid6 => &[RAID5, RAID6, SHORT],
        Level::Raid10 => return raid10(text).ok_or_else(unknown),
    };
    tables.iter().copied().flatten().find(|(name, _)| *name == text).map(|(_, layout)| *layout).ok_or_else(unknown)
}

/// The name of a layout of level 0, 5 or 6. raid10 has no names, see [`text`].
pub fn name(level: Level, layout: u32) -> Option<&'static str> {
    let tables: &[&[(&str, u32)]] = match level {
        Level::Raid0 => &[RAID0],
        Level::Raid5 => &[RAID5],
        Level::Raid6 => &[RAID5, RAID6],
        _ => return None,
    };
    tables.iter().copied().flatten().find(|(_, number)| *number == layout).map(|(name, _)| *name)
}

/// What a `Layout :` line shows: `left-symmetric`, `near=2`, `near=2, far=2`, `-unknown-`. `None` for the levels that
/// have no such line.
pub fn text(level: Level, layout: u32) -> Option<LayoutText> {
    matches!(level, Level::Raid0 | Level::Raid5 | Level::Raid6 | Level::Raid10).then_some(LayoutText { level, layout })
}

/// All names for an error message.
pub(crate) fn known(level: Level) -> String {
    let tables: &[&[(&str, u32)]] = match level {
        Level::Raid0 => &[RAID0],
        Level::Raid5 => &[RAID5],
        Level::Raid6 => &[RAID5, RAID6],
        _ => return "n, f or o and the number of copies: n2, f2, o3".to_owned(),
    };
    let names: Vec<&str> = tables.iter().copied().flatten().map(|(name, _)| *name).collect();
    names.join(", ")
}

/// `n`, `f` or `o` and the number of copies, which has a byte in the layout word; mdadm stops at 200.
fn raid10(text: &str) -> Option<u32> {
    let mut chars = text.chars();
    let kind = chars.next()?;
    let digits = chars.as_str();
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let copies = digits.parse::<u32>().ok().filter(|copies| (1..=200).contains(copies))?;
    match kind {
        'n' => Some(1 << 8 | copies),
        'f' => Some(copies << 8 | 1),
        'o' => Some(1 << 16 | copies << 8 | 1),
        _ => None,
    }
}

impl fmt::Display for LayoutText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.level != Level::Raid10 {
            return f.pad(name(self.level, self.layout).unwrap_or("-unknown-"));
        }
        let (near, far) = (self.layout & 0xff, self.layout >> 8 & 0xff);
        let far_kind = if self.layout & 1 << 16 != 0 { "offset" } else { "far" };
        match (near, far) {
            (1, 1) => f.write_str("NO REDUNDANCY"),
            (_, 1) => write!(f, "near={near}"),
            (1, _) => write!(f, "{far_kind}={far}"),
            _ => write!(f, "near={near}, {far_kind}={far}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for level in [Level::Raid0, Level::Raid5, Level::Raid6] {
            let mut names = 0;
            for layout in 0..64 {
                if let Some(name) = name(level, layout) {
                    assert_eq!(parse(level, name), Ok(layout));
                    assert_eq!(text(level, layout).unwrap().to_string(), name);
                    assert!(known(level).contains(name));
                    names += 1;
                }
            }
            assert_eq!(names, known(level).split(", ").count());
        }
    }

    #[test]
    fn other_spellings() {
        for level in [Level::Raid5, Level::Raid6] {
            for (text, layout) in [("la", 0), ("ra", 1), ("ls", 2), ("rs", 3), ("default", 2)] {
                assert_eq!(parse(level, text), Ok(layout));
            }
        }
        assert_eq!(parse(Level::Raid0, "1"), Ok(1));
        assert_eq!(parse(Level::Raid0, "2"), Ok(2));
        assert_eq!(parse(Level::Raid5, "ddf-zero-restart"), Ok(1));
        assert_eq!(parse(Level::Raid5, "ddf-N-restart"), Ok(0));
        assert_eq!(parse(Level::Raid5, "ddf-N-continue"), Ok(2));
    }

    #[test]
    fn raid10_layouts() {
        for (text, layout) in [("n2", 0x102), ("f2", 0x201), ("o2", 0x1_0201), ("n3", 0x103), ("o3", 0x1_0301)] {
            assert_eq!(parse(Level::Raid10, text), Ok(layout));
        }
        for text in ["", "n", "2", "n0", "n201", "x2", "n2 ", "n+2", "far=2", "n99999999999", "é2"] {
            assert!(parse(Level::Raid10, text).is_err(), "{text}");
        }
    }

    #[test]
    fn raid10_texts() {
        let show = |layout| text(Level::Raid10, layout).unwrap().to_string();
        assert_eq!(show(0x102), "near=2");
        assert_eq!(show(0x301), "far=3");
        assert_eq!(show(0x1_0201), "offset=2");
        assert_eq!(show(0x202), "near=2, far=2");
        assert_eq!(show(0x1_0202), "near=2, offset=2");
        assert_eq!(show(0x101), "NO REDUNDANCY");
    }

    #[test]
    fn what_there_is_no_name_for() {
        assert_eq!(text(Level::Raid5, 9).unwrap().to_string(), "-unknown-");
        assert_eq!(text(Level::Raid0, u32::MAX).unwrap().to_string(), "-unknown-");
        assert_eq!(text(Level::Raid1, 0), None);
        assert_eq!(text(Level::Raid4, 0), None);
        assert_eq!(parse(Level::Raid1, "ls"), Err(LayoutNameError::NoLayouts(Level::Raid1)));
        let error = parse(Level::Raid5, "parity-first-6").unwrap_err().to_string();
        assert!(error.contains("raid5 has no layout 'parity-first-6'") && error.contains("left-symmetric"), "{error}");
    }
}
