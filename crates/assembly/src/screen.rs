//! First look at the candidates: which have a usable superblock, of which array, and is each member here once?

use raidus_format::{MdUuid, Role, Superblock};

use crate::candidate::{Candidate, Found};
use crate::decision::{Group, Options, Out, Reason};

/// A candidate with a usable superblock of the array in question.
pub(crate) struct Usable<'a> {
    pub(crate) index: usize,
    pub(crate) candidate: &'a Candidate,
    pub(crate) sb: &'a Superblock,
}

/// The members to go on with, or why there is nothing to go on with. `outs` takes the reasons of those left out.
pub(crate) fn screen<'a>(
    candidates: &'a [Candidate],
    options: &Options,
    outs: &mut [Option<Out>],
) -> Result<Vec<Usable<'a>>, Vec<Reason>> {
    let mut usable: Vec<Usable<'a>> = Vec::new();
    for (index, candidate) in candidates.iter().enumerate() {
        let twice = candidates[..index].iter().any(|c| c.name == candidate.name);
        match check(candidate, options, twice) {
            Ok(sb) => usable.push(Usable { index, candidate, sb }),
            Err(out) => outs[index] = Some(out),
        }
    }
    let groups = group(&usable);
    match groups.len() {
        0 => return Err(vec![Reason::NoMembers]),
        1 => {}
        _ => return Err(vec![Reason::Mixed { groups }]),
    }
    let clones = clones(&usable);
    if clones.is_empty() { Ok(usable) } else { Err(clones) }
}

fn check<'a>(candidate: &'a Candidate, options: &Options, twice: bool) -> Result<&'a Superblock, Out> {
    if twice {
        return Err(Out::NamedTwice);
    }
    let sb = match &candidate.found {
        Found::Superblock(sb) => sb,
        Found::Nothing => return Err(Out::NoSuperblock),
        Found::Unusable(why) => return Err(Out::Unusable(why.clone())),
        Found::Foreign(what) => return Err(Out::Foreign(what.clone())),
        Found::Unreadable(why) => return Err(Out::Unreadable(why.clone())),
    };
    let array = sb.array();
    let uuid_fits = options.uuid.is_none_or(|u| u == array.uuid);
    let name_fits = options.name.as_ref().is_none_or(|n| names_match(n, &array.name));
    if uuid_fits && name_fits {
        Ok(sb)
    } else if array.name.is_empty() {
        Err(Out::NotWanted(array.uuid.to_string()))
    } else {
        Err(Out::NotWanted(format!("'{}' ({})", array.name, array.uuid)))
    }
}

/// Whether the name wanted is that of the array, which may carry the name of the host that made it.
fn names_match(wanted: &str, name: &str) -> bool {
    wanted == name || name.split_once(':').is_some_and(|(_, short)| wanted == short)
}

fn group(usable: &[Usable<'_>]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for u in usable {
        let array = u.sb.array();
        match groups.iter_mut().find(|g| g.uuid == array.uuid) {
            Some(group) => group.members.push(u.candidate.name.clone()),
            None => groups.push(Group { uuid: array.uuid, name: array.name, members: vec![u.candidate.name.clone()] }),
        }
    }
    groups
}

/// Pairs that are the same member. Which of two copies holds the newest data cannot be told from superblocks alone (both may
/// have been written since), so nobody but the user can choose.
fn clones(usable: &[Usable<'_>]) -> Vec<Reason> {
    let mut found = Vec::new();
    for (i, a) in usable.iter().enumerate() {
        for b in &usable[i + 1..] {
            if same_member(a.sb, b.sb) {
                let (ea, eb) = (a.sb.events(), b.sb.events());
                let older = match ea.cmp(&eb) {
                    std::cmp::Ordering::Less => Some(a.candidate.name.clone()),
                    std::cmp::Ordering::Greater => Some(b.candidate.name.clone()),
                    std::cmp::Ordering::Equal => None,
                };
                found.push(Reason::SameMember { a: a.candidate.name.clone(), b: b.candidate.name.clone(), older });
            }
        }
    }
    found
}

/// 1.x names members by UUID. In 0.90 a number in the table is all there is, and it is given anew when a member is
/// replaced: there, only superblocks of the same moment can be told to be copies; of holders of a slot, also those one event apart, since an
/// event can be taken back, and who takes a slot over is written at least twice after its former holder.
fn same_member(a: &Superblock, b: &Superblock) -> bool {
    let (ma, mb) = (a.member(), b.member());
    let known = |uuid: Option<MdUuid>| uuid.filter(|u| *u != MdUuid::default());
    match (known(ma.device_uuid), known(mb.device_uuid)) {
        (Some(x), Some(y)) => x == y,
        _ => {
            let apart = a.events().abs_diff(b.events());
            let near = if matches!(ma.role, Role::Slot(_)) { apart <= 1 } else { apart == 0 };
            ma.dev_number == mb.dev_number && ma.role == mb.role && near
        }
    }
}
