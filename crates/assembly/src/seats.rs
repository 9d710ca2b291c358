//! Who takes which seat: freshness, roles by the freshest superblock, one holder per slot.

use raidus_format::{ArrayFacts, Concern, Recovery, Role, Superblock};
use raidus_units::{Sector, Slot};

use crate::decision::{Out, Reason, Seat};
use crate::screen::Usable;

/// Difference in events up to which a member is current: it may have missed the last update of a crash, whose writes were
/// not acknowledged yet.
const EVENTS_MARGIN: u64 = 1;

/// The members whose superblocks may speak for the array: of those with a slot (or the journal), the ones with most events.
/// Where these agree on who belongs to the array one is as good as another, and only the first is returned. Where they do not:
///
/// - one that does not list another, which still lists it, was written later (the other had failed or was not there, and
///   was never told): the earlier one may have missed writes and does not speak;
/// - of those that do not list each other, the array's parts were used apart, and one of each part is returned.
///
/// A spare's superblock never speaks.
pub(crate) fn speakers<'u, 'a>(usable: &'u [Usable<'a>]) -> Vec<&'u Usable<'a>> {
    let with_place = usable.iter().filter(|u| matches!(u.sb.member().role, Role::Slot(_) | Role::Journal));
    let newest = with_place.clone().map(|u| u.sb.events()).max();
    let freshest: Vec<&Usable<'_>> = with_place.filter(|u| Some(u.sb.events()) == newest).collect();
    let outlived = |u: &Usable<'_>| freshest.iter().any(|by| !lists(by, u) && lists(u, by));
    let mut latest: Vec<&Usable<'_>> = freshest.iter().copied().filter(|u| !outlived(u)).collect();
    if latest.is_empty() {
        // Each outlived by another makes no sense; the order given decides then.
        latest = freshest;
    }
    let mut speakers: Vec<&Usable<'_>> = Vec::new();
    for u in latest {
        if speakers.iter().all(|s| !lists(s, u) || !lists(u, s)) {
            speakers.push(u);
        }
    }
    speakers
}

/// Whether a superblock still has a member in the place where that sees itself.
fn lists(by: &Usable<'_>, u: &Usable<'_>) -> bool {
    let own = u.sb.member();
    by.sb.role_of(own.dev_number) == own.role
}

/// What the member is in the array as the freshest superblock sees it.
pub(crate) fn seat(u: &Usable<'_>, freshest: &Usable<'_>, array: &ArrayFacts) -> Result<Seat, Out> {
    let own = u.sb.member();
    if let Some(concern) = u.sb.concerns(u.candidate.size).into_iter().find(cuts_data) {
        return Err(Out::Truncated(concern));
    }
    let listed = freshest.sb.role_of(own.dev_number);
    let by = || freshest.candidate.name.clone();
    let (events, newest) = (u.sb.events(), freshest.sb.events());
    if own.role == Role::Journal {
        return match listed {
            _ if !array.journal => Err(Out::Journal),
            Role::Faulty => Err(Out::Failed { by: by() }),
            _ if events.saturating_add(EVENTS_MARGIN) < newest => Err(Out::Stale { events, array: newest }),
            Role::Journal => Ok(Seat::Journal),
            _ => Err(Out::Removed { by: by() }),
        };
    }
    if listed == Role::Faulty || own.role == Role::Faulty {
        return Err(Out::Failed { by: by() });
    }
    let Role::Slot(slot) = own.role else {
        // A spare. If the freshest says it has a slot meanwhile, it was picked but never told: nothing is rebuilt on it.
        return Ok(Seat::Spare);
    };
    // Of one that holds nothing yet nothing can be stale.
    let empty = own.recovery.is_some_and(|r| r.offset == Sector::ZERO && !r.by_bitmap) && listed == Role::Slot(slot);
    if events.saturating_add(EVENTS_MARGIN) < newest && !empty {
        return Err(Out::Stale { events, array: newest });
    }
    match listed {
        Role::Slot(s) if s == slot => {}
        // It was told of its slot before the others were, and they never heard: nothing is rebuilt on it.
        Role::Spare if own.recovery.is_some() => return Ok(Seat::Spare),
        Role::Spare => return Err(Out::Removed { by: by() }),
        other => return Err(Out::RoleConflict { own: slot, other }),
    }
    if events == newest && reports_failed(u.sb, freshest.sb) {
        return Err(Out::ReportsFailed { freshest: by() });
    }
    shape(u.sb, array)?;
    if u32::from(slot.0) >= array.raid_disks {
        return Err(Out::Differs("number of slots"));
    }
    Ok(seat_in(slot, own.recovery, own.replacement))
}

/// The seat of a member whose slot is settled.
fn seat_in(slot: Slot, recovery: Option<Recovery>, replacement: bool) -> Seat {
    match recovery {
        // A replacement that is not rebuilding any more has a full copy, but its predecessor still holds the slot.
        _ if replacement => Seat::Replacing { slot, valid_to: recovery.map_or(Sector::ZERO, |r| r.offset) },
        Some(r) => Seat::Rebuilding { slot, valid_to: r.offset, by_bitmap: r.by_bitmap },
        None => Seat::InSync(slot),
    }
}

/// Checks that the member describes the array's shape as the freshest does, and has room for it.
pub(crate) fn shape(sb: &Superblock, array: &ArrayFacts) -> Result<(), Out> {
    let own = sb.array();
    let pairs = [
        ("metadata version", own.metadata == array.metadata),
        ("level", own.level_number == array.level_number),
        ("layout", own.layout == array.layout),
        ("chunk size", own.chunk == array.chunk),
        ("number of slots", own.raid_disks == array.raid_disks),
        ("component size", own.size == array.size),
        ("creation time", own.ctime.secs == array.ctime.secs),
    ];
    if let Some((what, _)) = pairs.iter().find(|(_, same)| !same) {
        return Err(Out::Differs(what));
    }
    let has = sb.member().data_size;
    if has < array.size { Err(Out::TooSmall { has, needs: array.size }) } else { Ok(()) }
}

/// Whether `sb` has no holder for the slot of the freshest member.
fn reports_failed(sb: &Superblock, freshest: &Superblock) -> bool {
    freshest.member().role.slot().is_some_and(|slot| !sb.roles().contains(&Role::Slot(slot)))
}

fn cuts_data(concern: &Concern) -> bool {
    matches!(concern, Concern::DataBeyondDevice { .. })
}

/// Leaves each device number to one device. A device that joins gets the number of one that is away, as md does it too; when that
/// comes back, two claim one line of the table, and what is said of the one would be written of the other. The one that joined has been
/// written since: it has more events. Between equals the one that holds something keeps it.
pub(crate) fn one_per_number(usable: &[Usable<'_>], seats: &mut Vec<(usize, Seat)>, outs: &mut [Option<Out>]) {
    let mut order = seats.clone();
    order.sort_by_key(|(i, seat)| (std::cmp::Reverse(usable[*i].sb.events()), *seat == Seat::Spare));
    let number = |i: usize| usable[i].sb.member().dev_number;
    let mut kept: Vec<(usize, Seat)> = Vec::new();
    for (i, seat) in order {
        // Two that claim the same slot are for `one_per_slot` to judge.
        match kept.iter().find(|(k, held)| number(*k) == number(i) && !same_place(*held, seat)) {
            None => kept.push((i, seat)),
            Some((holder, _)) => {
                let by = usable[*holder].candidate.name.clone();
                outs[usable[i].index] = Some(Out::NumberTaken { number: number(i), by });
            }
        }
    }
    kept.sort_by_key(|(i, _)| *i);
    *seats = kept;
}

/// Gives each slot one holder (and one replacement). `seats` are (index into usable, seat).
pub(crate) fn one_per_slot(
    usable: &[Usable<'_>],
    seats: &mut Vec<(usize, Seat)>,
    outs: &mut [Option<Out>],
) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let mut kept: Vec<(usize, Seat)> = Vec::new();
    // Most events first; the order given among equals.
    let mut order = seats.clone();
    order.sort_by_key(|(i, _)| std::cmp::Reverse(usable[*i].sb.events()));
    for (i, seat) in order {
        let rival = kept.iter().find(|(_, k)| same_place(*k, seat));
        let Some((r, _)) = rival else {
            kept.push((i, seat));
            continue;
        };
        let (this, holder) = (&usable[i], &usable[*r]);
        if this.sb.events() == holder.sb.events() {
            let slot = seat.slot().unwrap_or(Slot(0));
            let (a, b) = (holder.candidate.name.clone(), this.candidate.name.clone());
            reasons.push(Reason::SlotTwice { slot, a, b });
        }
        outs[this.index] = Some(Out::SlotTaken { by: holder.candidate.name.clone() });
    }
    // A replacement whose predecessor is gone is all the slot has.
    for k in 0..kept.len() {
        if let Seat::Replacing { slot, .. } = kept[k].1
            && !kept.iter().any(|(_, s)| is_holder(*s, slot))
        {
            kept[k].1 = seat_in(slot, usable[kept[k].0].sb.member().recovery, false);
        }
    }
    kept.sort_by_key(|(i, _)| *i);
    *seats = kept;
    reasons
}

fn is_holder(seat: Seat, slot: Slot) -> bool {
    matches!(seat, Seat::InSync(s) | Seat::Rebuilding { slot: s, .. } if s == slot)
}

fn same_place(a: Seat, b: Seat) -> bool {
    let replacing = |s| matches!(s, Seat::Replacing { .. });
    a.slot().is_some() && a.slot() == b.slot() && replacing(a) == replacing(b)
}
