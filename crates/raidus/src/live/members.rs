//! Devices that join and leave a running array.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use raidus_assembly::Candidate;
use raidus_assembly::create::{JoinParams, NewMember, PlannedWrite, join};
use raidus_engine::control::{Addition, Command, CommandError, Status};
use raidus_engine::{Member, MemberSetup, MemberState};
use raidus_format::{Probe, Role, Superblock};
use raidus_runtime::AddError;
use raidus_runtime::members::{MemberDevice, MemberOpenError, OpenMode};
use raidus_units::{MemberId, Sector, Slot};
use serde::{Deserialize, Serialize};

use super::feed::What;
use super::{Live, Refusal};
use crate::create::describe_member;
use crate::host::{now, random_uuid};
use crate::look;
use crate::portrait::{Place, number};

/// A device as the user named it, and what that means where he stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// As it was said.
    pub word: PathBuf,
    /// From the root.
    pub absolute: PathBuf,
}

impl Named {
    /// What a user says in the directory of this process.
    pub fn here(word: &Path) -> Named {
        Named { word: word.to_owned(), absolute: std::path::absolute(word).unwrap_or_else(|_| word.to_owned()) }
    }
}

/// How a device is to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Join {
    /// As the former member it is, or else as a new spare.
    Add {
        /// Although something on it will be lost.
        force: bool,
    },
    /// As the former member it is.
    ReAdd,
}

/// A device that joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Its path.
    pub device: String,
    /// Its number in the array.
    pub number: u32,
    /// It took its former slot back.
    pub former: bool,
    /// Why it did not, though it was a member.
    pub note: Option<String>,
}

/// What is done to members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Treat as failed.
    Fail,
    /// Take out.
    Remove,
}

/// A member that is being replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replaced {
    /// Its path.
    pub device: String,
    /// Its number in the array.
    pub number: u32,
    /// The device that succeeds it.
    pub spare: String,
}

/// A member on the map, and where it is.
pub(super) struct Seen {
    pub id: MemberId,
    pub place: Place,
    member: Member,
}

impl Live {
    /// A device joins.
    pub fn add(&self, device: &Named, how: Join) -> Result<Joined, Refusal> {
        let _one_at_a_time = self.joining.lock().unwrap_or_else(PoisonError::into_inner);
        self.refuse_member(device)?;
        let mut newcomer = self.look_at(device)?;
        let mut note = None;
        let name = || device.word.display().to_string();
        if newcomer.is_ours {
            match self.rejoin(newcomer, device) {
                Ok(joined) => return Ok(joined),
                Err(Rejoin::Failed(refusal)) => return Err(refusal),
                Err(Rejoin::Hopeless(why)) if how == Join::ReAdd => {
                    let why = format!("cannot be re-added: {why}; `raidus add` makes it a new member, rebuilt in full");
                    return Err(Refusal::Device { device: name(), why });
                }
                Err(Rejoin::Hopeless(why)) => note = Some(why),
            }
            newcomer = self.look_at(device)?;
        } else if how == Join::ReAdd {
            let why = "is no former member of this array; `raidus add` makes it a new one".to_owned();
            return Err(Refusal::Device { device: name(), why });
        } else if how == (Join::Add { force: false }) {
            self.refuse_content(&newcomer)?;
        }
        let joined = self.join_new(newcomer, device)?;
        Ok(Joined { note, ..joined })
    }

    /// Fails or removes members. Gives the paths of those it happened to.
    pub fn act(&self, action: Action, device: &Named) -> Result<Vec<String>, Refusal> {
        let status = self.status()?;
        let word = device.word.to_str().unwrap_or_default();
        let members = self.seen(&status);
        let targets: Vec<Seen> = match (word, action) {
            ("detached", _) => members.into_iter().filter(|seen| seen.place.is_detached()).collect(),
            ("failed", Action::Remove) => {
                members.into_iter().filter(|seen| seen.member.state == MemberState::Faulty).collect()
            }
            _ => vec![self.resolve(&status, device)?],
        };
        let mut done = Vec::new();
        for target in targets {
            self.act_on(action, &target)?;
            done.push(target.place.path.display().to_string());
        }
        Ok(done)
    }

    fn act_on(&self, action: Action, target: &Seen) -> Result<(), Refusal> {
        let device = target.place.path.display().to_string();
        let command = match action {
            Action::Fail => Command::Fail(target.id),
            Action::Remove => Command::Remove(target.id),
        };
        self.array.command(command).map_err(|source| Refusal::Member { device: device.clone(), source })?;
        if action == Action::Remove {
            self.feed.push(What::MemberRemoved { device }, now().secs);
        }
        Ok(())
    }

    /// Begins to rebuild a member's data onto a spare.
    pub fn replace(&self, device: &Named, with: Option<&Named>) -> Result<Replaced, Refusal> {
        let status = self.status()?;
        let target = self.resolve(&status, device)?;
        let name = target.place.path.display().to_string();
        let spare = self.next_spare(&status);
        if let Some(with) = with {
            let wanted = self.resolve(&status, with)?;
            let is_spare = wanted.member.state == MemberState::Spare;
            if spare.is_none_or(|spare| spare != wanted.id) {
                let why = match spare.filter(|_| is_spare) {
                    None => "is not a spare that is large enough; add it first".to_owned(),
                    Some(first) => format!("is not the first spare; {} is", self.portrait.member(first).display()),
                };
                return Err(Refusal::Device { device: with.word.display().to_string(), why });
            }
        }
        let refused = |source| Refusal::Member { device: name.clone(), source };
        self.array.command(Command::Replace(target.id)).map_err(refused)?;
        let successor = crate::portrait::slot_of(target.member.state)
            .and_then(|slot| self.status().ok()?.map.slots.get(usize::from(slot))?.replacement)
            .or(spare);
        let spare = successor.map_or_else(String::new, |id| self.portrait.member(id).display().to_string());
        Ok(Replaced { device: name, number: number(&target.member, &target.place), spare })
    }

    /// The spare that takes the next empty slot.
    pub(super) fn next_spare(&self, status: &Status) -> Option<MemberId> {
        let size = self.portrait.assembled.geometry.component_sectors();
        let fits = |seen: &Seen| {
            let facts = seen.place.superblock.member();
            seen.member.state == MemberState::Spare && facts.role != Role::Journal && facts.data_size >= size
        };
        self.seen(status).into_iter().find(fits).map(|seen| seen.id)
    }

    /// Members that have not been removed.
    fn seen(&self, status: &Status) -> Vec<Seen> {
        let places = self.portrait.places().into_iter().zip(&status.map.members);
        let seen =
            (0..).zip(places).map(|(id, (place, member))| Seen { id: MemberId(id), place, member: member.clone() });
        seen.filter(|seen| seen.member.state != MemberState::Removed).collect()
    }

    /// The member that is meant.
    pub(super) fn resolve(&self, status: &Status, device: &Named) -> Result<Seen, Refusal> {
        let word = device.word.display().to_string();
        let all = self.seen(status);
        let names = |members: &[Seen]| {
            members.iter().map(|seen| seen.place.path.display().to_string()).collect::<Vec<_>>().join(", ")
        };
        let members = names(&all);
        let (exact, rest): (Vec<Seen>, Vec<Seen>) =
            all.into_iter().partition(|seen| seen.place.is_at(&device.absolute));
        let mut meant = exact;
        if meant.is_empty() {
            meant = rest.into_iter().filter(|seen| seen.place.is_called(&device.word)).collect();
        }
        match meant.len() {
            0 => Err(Refusal::NotAMember { word, members }),
            1 => Ok(meant.swap_remove(0)),
            _ => Err(Refusal::Ambiguous { word, members: names(&meant) }),
        }
    }

    /// A member, even a failed one, cannot join.
    fn refuse_member(&self, device: &Named) -> Result<(), Refusal> {
        let status = self.status()?;
        let name = device.word.display().to_string();
        let Some(seen) = self.seen(&status).into_iter().find(|seen| seen.place.is_at(&device.absolute)) else {
            return Ok(());
        };
        let why = match seen.member.state {
            MemberState::Faulty => "is in the array as a failed member; `raidus remove` it first",
            _ => "is a member of the array already",
        };
        Err(Refusal::Device { device: name, why: why.to_owned() })
    }

    /// Opens a device and reads what is on it.
    fn look_at(&self, device: &Named) -> Result<Newcomer, Refusal> {
        let status = self.status()?;
        // Nothing is to be written to a device of an array that would not take it.
        if status.map.broken {
            return Err(CommandError::Broken.into());
        }
        if !self.portrait.assembled.geometry.level().is_redundant() {
            return Err(CommandError::NoRedundancy.into());
        }
        if status.map.read_only {
            return Err(CommandError::ReadOnly.into());
        }
        let opened = self.open(device)?;
        let name = device.word.display().to_string();
        if opened.block() > self.array.block() {
            let source = AddError::Block { device: opened.block(), array: self.array.block() };
            return Err(Refusal::Add { device: name, source });
        }
        let unreadable =
            |e: std::io::Error| Refusal::Device { device: name.clone(), why: format!("cannot be read: {e}") };
        let probe = raidus_runtime::probe_device(&opened).map_err(unreadable)?;
        let candidate = raidus_runtime::candidate(&opened);
        let uuid = self.portrait.assembled.array.uuid;
        let is_ours = candidate.superblock().is_some_and(|sb| sb.array().uuid == uuid);
        Ok(Newcomer { device: opened, probe, candidate, is_ours, status })
    }

    fn open(&self, device: &Named) -> Result<MemberDevice, MemberOpenError> {
        match &self.overlay {
            None => MemberDevice::open(&device.absolute, OpenMode::READ_WRITE),
            Some(store) => MemberDevice::open(&device.absolute, OpenMode::READ_ONLY)?.with_overlay(store),
        }
    }

    /// Tells of everything on a device that would be lost.
    fn refuse_content(&self, newcomer: &Newcomer) -> Result<(), Refusal> {
        let device = newcomer.device.name().display().to_string();
        let mut found: Vec<String> = newcomer.probe.md.iter().map(describe_member).collect();
        found.extend(newcomer.probe.foreign.iter().map(|kind| format!("{kind} RAID metadata")));
        let other = look::other_content(&newcomer.device);
        let other = other.map_err(|failure| Refusal::System(failure.to_string()))?;
        found.extend(other.into_iter().map(str::to_owned));
        if found.is_empty() { Ok(()) } else { Err(Refusal::HoldsData { device, found }) }
    }

    /// A former member takes its slot back, if the bitmap tells what it missed.
    fn rejoin(&self, newcomer: Newcomer, device: &Named) -> Result<Joined, Rejoin> {
        let Newcomer { device: opened, candidate, status, .. } = newcomer;
        let addition = self.former(&candidate, &status).map_err(Rejoin::Hopeless)?;
        self.join(opened, addition).map_err(|error| match error {
            AddError::Refused(error @ CommandError::MissedTooMuch) => Rejoin::Hopeless(error.to_string()),
            source => Rejoin::Failed(Refusal::Add { device: device.word.display().to_string(), source }),
        })
    }

    /// What the engine needs to take a former member back, or why it will not.
    fn former(&self, candidate: &Candidate, status: &Status) -> Result<Addition, String> {
        let Some(superblock) = candidate.superblock() else { return Err("it has no superblock".to_owned()) };
        let facts = superblock.member();
        let Role::Slot(slot) = facts.role else { return Err("it was a spare".to_owned()) };
        if self.taken(status).contains(&facts.dev_number) {
            return Err(format!("its number, {}, has been given to another device", facts.dev_number));
        }
        if !self.is_empty(status, slot) {
            return Err(format!("its slot, {slot}, is taken"));
        }
        let Some(bitmap) = status.bitmap else {
            return Err("the array has no bitmap that tells what it missed".to_owned());
        };
        if superblock.events() < bitmap.events_cleared {
            return Err(format!(
                "it is at event {}, and the bitmap tells what was missed since event {} only",
                superblock.events(),
                bitmap.events_cleared
            ));
        }
        let bad_blocks = candidate.bad_block_list();
        let bad_blocks = bad_blocks.map_err(|why| format!("its bad-block log cannot be used ({why})"))?;
        let setup = MemberSetup { superblock: superblock.clone(), super_sector: facts.super_offset };
        Ok(Addition { setup, data_offset: facts.data_offset, bad_blocks, former: true })
    }

    fn is_empty(&self, status: &Status, slot: Slot) -> bool {
        status.map.slots.get(slot.index()).is_some_and(|entry| entry.member.is_none())
    }

    /// A device becomes a new spare. All that is on it is lost.
    fn join_new(&self, newcomer: Newcomer, device: &Named) -> Result<Joined, Refusal> {
        let Newcomer { device: opened, probe, status, .. } = newcomer;
        let name = device.word.display().to_string();
        let new = NewMember {
            name: name.clone(),
            size: opened.size(),
            uuid: random_uuid().map_err(|failure| Refusal::System(failure.to_string()))?,
            write_mostly: false,
            failfast: false,
            data_offset: None,
            old_superblocks: probe.md.iter().map(|found| found.at).collect::<Vec<Sector>>(),
        };
        let seen = self.seen(&status);
        let like = seen.iter().find(|seen| matches!(seen.member.state, MemberState::InSync(_)));
        let Some(like) = like else { return Err(CommandError::Broken.into()) };
        let like = as_it_is(&like.place.superblock, &status);
        let plan = join(&JoinParams {
            like: &like,
            geometry: &self.portrait.assembled.geometry,
            bitmap_chunk: status.bitmap.map(|b| b.chunk.bytes()),
            taken: &self.taken(&status),
            device: &new,
        })?;
        write(&opened, &plan.writes)
            .map_err(|e| Refusal::Device { device: name.clone(), why: format!("cannot be written: {e}") })?;
        let facts = plan.superblock.member();
        let setup = MemberSetup { superblock: plan.superblock, super_sector: facts.super_offset };
        let addition = Addition { setup, data_offset: facts.data_offset, bad_blocks: Vec::new(), former: false };
        self.join(opened, addition).map_err(|source| Refusal::Add { device: name, source })
    }

    fn join(&self, opened: MemberDevice, addition: Addition) -> Result<Joined, AddError> {
        let (former, superblock) = (addition.former, addition.setup.superblock.clone());
        let number = superblock.member().dev_number;
        let place = Place::new(&opened, superblock);
        let device = place.path.display().to_string();
        // What happens to it from the first moment on is told with its name.
        self.portrait.join(place);
        if let Err(error) = self.array.add(opened, addition) {
            self.portrait.did_not_join();
            return Err(error);
        }
        self.feed.push(What::MemberAdded { device: device.clone(), former }, now().secs);
        Ok(Joined { device, number, former, note: None })
    }

    /// Device numbers in use.
    fn taken(&self, status: &Status) -> Vec<u32> {
        let seen = self.seen(status);
        // Where 0.90 renumbers, the number a device came with is kept free, too.
        let own = seen.iter().map(|seen| seen.place.superblock.member().dev_number);
        own.chain(seen.iter().map(|seen| number(&seen.member, &seen.place))).collect()
    }
}

/// A device that wants to join.
struct Newcomer {
    device: MemberDevice,
    probe: Probe,
    candidate: Candidate,
    /// It has a superblock of this array.
    is_ours: bool,
    status: Status,
}

/// Why a former member does not take its slot back.
enum Rejoin {
    /// It could only become a new member.
    Hopeless(String),
    /// Something else is wrong.
    Failed(Refusal),
}

/// A member's superblock as it was read, but with what has come or gone since.
fn as_it_is(superblock: &Superblock, status: &Status) -> Superblock {
    let mut array = superblock.array_update();
    let mut now = superblock.clone();
    array.bitmap = status.bitmap.map(|bitmap| bitmap.offset);
    // What could be read can be written.
    let _ = now.update(&array, &superblock.member_update());
    now
}

fn write(device: &MemberDevice, writes: &[PlannedWrite]) -> std::io::Result<()> {
    for write in writes {
        device.write_at(write.at.bytes(), &write.bytes)?;
    }
    device.sync()
}
