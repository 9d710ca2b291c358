//! Which device gets which number and slot in a new array, and whether the array starts clean.

use raidus_format::Role;
use raidus_units::{Level, Slot};

/// What a device is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Assigned {
    /// Index among the devices given, missing ones counted.
    pub(crate) device: usize,
    /// Device number.
    pub(crate) dev_number: u32,
    /// Slot or spare.
    pub(crate) role: Role,
    /// It has a slot, and everything on it is to be rebuilt.
    pub(crate) rebuild: bool,
}

/// Roles of all devices, and whether redundancy counts as good from the start.
pub(crate) struct Roles {
    pub(crate) assigned: Vec<Assigned>,
    pub(crate) clean: bool,
}

/// `present[i]`: whether the i-th device given is there or `missing`. The first `raid_disks` are for slots, the others spares.
///
/// Making one member from the others takes one pass of reading and one of writing, each sequential; computing parity over
/// what happens to be there would read and write on all. So a complete raid4/5 (and a raid6 with one member missing) begins
/// with its last member being rebuilt, unless the user says what the content is worth (`assume_clean`) or asks for a plain
/// resync (`force`).
pub(crate) fn assign(level: Level, raid_disks: u16, present: &[bool], assume_clean: bool, force: bool) -> Roles {
    let slots = usize::from(raid_disks);
    let missing: Vec<usize> = (0..slots).filter(|i| !present[*i]).collect();
    let rebuilt = if assume_clean || force { None } else { rebuilt(level, slots, &missing) };
    let mut assigned = Vec::new();
    for (device, _) in present.iter().enumerate().filter(|(_, there)| **there) {
        let dev_number = device as u32;
        if rebuilt != Some(device) {
            let role = if device < slots { Role::Slot(Slot(device as u16)) } else { Role::Spare };
            assigned.push(Assigned { device, dev_number, role, rebuild: false });
        }
    }
    if let Some(device) = rebuilt {
        // md gives a spare the lowest slot that is empty, and numbers it behind everything else.
        let slot = missing.first().copied().unwrap_or(device).min(device);
        let (dev_number, role) = (present.len() as u32, Role::Slot(Slot(slot as u16)));
        assigned.push(Assigned { device, dev_number, role, rebuild: true });
    }
    let clean = assume_clean || !level.is_redundant() || rebuilt.is_some() || no_parity_left(level, missing.len());
    Roles { assigned, clean }
}

/// The device that is rebuilt from the others.
fn rebuilt(level: Level, slots: usize, missing: &[usize]) -> Option<usize> {
    match (level, missing) {
        (Level::Raid4 | Level::Raid5, []) => Some(slots - 1),
        (Level::Raid6, [gone]) if *gone == slots - 1 => Some(slots - 2),
        (Level::Raid6, [_]) => Some(slots - 1),
        _ => None,
    }
}

/// Whether so many members are missing that no row has redundancy which could be wrong.
fn no_parity_left(level: Level, missing: usize) -> bool {
    level.parities() > 0 && missing >= usize::from(level.parities())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Roles by device number, `ffff` for none, `*` for rebuilding.
    fn roles(level: Level, n: u16, present: &[bool], assume_clean: bool, force: bool) -> String {
        let roles = assign(level, n, present, assume_clean, force);
        let last = roles.assigned.iter().map(|a| a.dev_number).max().unwrap_or(0);
        let text = |number| match roles.assigned.iter().find(|a| a.dev_number == number) {
            Some(Assigned { role: Role::Slot(s), rebuild, .. }) => format!("{s}{}", if *rebuild { "*" } else { "" }),
            _ => "ffff".to_owned(),
        };
        (0..=last).map(text).collect::<Vec<_>>().join(",")
    }

    #[test]
    fn roles_are_mdadms() {
        assert_eq!(roles(Level::Raid5, 3, &[true; 3], false, false), "0,1,ffff,2*");
        assert_eq!(roles(Level::Raid5, 3, &[true; 4], false, false), "0,1,ffff,ffff,2*");
        assert_eq!(roles(Level::Raid5, 3, &[true; 3], true, false), "0,1,2");
        assert_eq!(roles(Level::Raid5, 3, &[true; 3], false, true), "0,1,2");
        assert_eq!(roles(Level::Raid5, 3, &[true, true, false], false, false), "0,1");
        assert_eq!(roles(Level::Raid6, 4, &[true, false, true, true], false, false), "0,ffff,2,ffff,1*");
        assert_eq!(roles(Level::Raid6, 4, &[true, true, true, false], false, false), "0,1,ffff,ffff,2*");
        assert_eq!(roles(Level::Raid6, 4, &[true; 4], false, false), "0,1,2,3");
        assert_eq!(roles(Level::Raid1, 2, &[true; 3], false, false), "0,1,ffff");
    }

    #[test]
    fn clean_when_nothing_could_differ() {
        let clean = |level, present: &[bool], assume| assign(level, 4, present, assume, false).clean;
        assert!(!clean(Level::Raid10, &[true; 4], false) && !clean(Level::Raid6, &[true; 4], false));
        assert!(clean(Level::Raid10, &[true; 4], true) && clean(Level::Raid0, &[true; 4], false));
        assert!(clean(Level::Raid5, &[true; 4], false) && clean(Level::Raid5, &[true, true, true, false], false));
        assert!(clean(Level::Raid6, &[true, true, false, false], false));
        assert!(!clean(Level::Raid1, &[true, true, false, false], false));
    }
}
