//! The decision: md's rules on which members make an array, in the order md applies them.

mod logs;

use raidus_format::{ArrayFacts, ArrayUpdate, DeviceState, ResyncMark, Role, Superblock};
use raidus_layout::{Geometry, GeometryError, GeometryParams, Raid0Layout};
use raidus_units::{Level, Sector, Sectors, Slot};

use self::logs::Logs;
use crate::bitmap::{self, Loaded, Outcome};
use crate::candidate::Candidate;
use crate::decision::{
    Assembled, Decision, Forced, MemberSays, MemberVerdict, Options, Out, Reason, Seat, Seated, Standing, Verdict,
};
use crate::screen::{Usable, screen};
use crate::seats;

/// Decides whether and how the candidates start as an array. Reads nothing, writes nothing: what else it needs to know is
/// in [`Candidate::needs`].
pub fn decide(candidates: &[Candidate], options: &Options) -> Decision {
    let mut decision = Attempt::new(candidates, options).run();
    if decision.start().is_none() && !options.force {
        let forced = Attempt::new(candidates, &Options { force: true, ..options.clone() }).run();
        if let Verdict::Start(assembled) = forced.verdict {
            decision.force_would = assembled.forced;
        }
    }
    let helps = !decision.force_would.is_empty();
    if let Verdict::Refuse(reasons) = &mut decision.verdict {
        for reason in reasons {
            if let Reason::NotEnough { force_helps, .. } = reason {
                *force_helps = helps;
            }
        }
    }
    decision
}

#[derive(Default)]
struct Bitmap {
    loaded: Option<Loaded>,
    read_only: bool,
    /// From where on a lockless one does not say that members agree.
    in_sync_to: Option<Sector>,
}

struct Attempt<'a> {
    candidates: &'a [Candidate],
    options: &'a Options,
    outs: Vec<Option<Out>>,
    notes: Vec<String>,
    forced: Vec<Forced>,
    /// Candidates that only `--force` brought in.
    forced_in: Vec<usize>,
    seated: Vec<(usize, Seat)>,
    freshest: Option<usize>,
    array: Option<ArrayFacts>,
    /// Try with this candidate as the freshest.
    speaker: Option<usize>,
}

impl<'a> Attempt<'a> {
    fn new(candidates: &'a [Candidate], options: &'a Options) -> Attempt<'a> {
        Attempt {
            candidates,
            options,
            outs: vec![None; candidates.len()],
            notes: Vec::new(),
            forced: Vec::new(),
            forced_in: Vec::new(),
            seated: Vec::new(),
            freshest: None,
            array: None,
            speaker: None,
        }
    }

    fn run(mut self) -> Decision {
        let verdict = match self.attempt() {
            Ok(assembled) => Verdict::Start(Box::new(assembled)),
            Err(reasons) => Verdict::Refuse(reasons),
        };
        let members = (0..self.candidates.len()).map(|i| self.member_verdict(i)).collect();
        let Attempt { notes, freshest, array, .. } = self;
        Decision { verdict, members, array, freshest, force_would: Vec::new(), notes }
    }

    fn attempt(&mut self) -> Result<Assembled, Vec<Reason>> {
        let usable = screen(self.candidates, self.options, &mut self.outs)?;
        let speakers = seats::speakers(&usable);
        let Some(freshest) = self.choose(&speakers) else { return Err(vec![Reason::OnlySpares]) };
        let mut array = freshest.sb.array();
        self.freshest = Some(freshest.index);
        self.array = Some(array.clone());

        let mut reasons = self.unsupported(&array);
        let mut seats = Vec::new();
        for (i, u) in usable.iter().enumerate() {
            match seats::seat(u, freshest, &array) {
                Ok(seat) => seats.push((i, seat)),
                Err(out) => self.outs[u.index] = Some(out),
            }
        }
        seats::one_per_number(&usable, &mut seats, &mut self.outs);
        reasons.extend(seats::one_per_slot(&usable, &mut seats, &mut self.outs));
        self.seated = seats.iter().map(|(i, s)| (usable[*i].index, *s)).collect();
        let Some(level) = array.level.filter(|_| reasons.is_empty()) else { return Err(reasons) };

        let geometry = self.geometry(level, &array, freshest)?;
        self.enough(level, &geometry, freshest)?;
        let dirty = array.resync.is_some();
        let ppl = self.partial_parity(&mut array, &geometry);
        let read_only = self.read_only(&array);
        let Bitmap { loaded, read_only: bitmap_read_only, in_sync_to } = self.bitmap(&array, &geometry, read_only)?;
        let unsynced_from = self.resync(level, &mut array, &geometry, loaded.as_ref())?;
        let unsynced_from = [unsynced_from, in_sync_to].into_iter().flatten().min();
        if dirty && unsynced_from.is_none() {
            self.distrust_replacements();
        }
        let members = self.seat_superblocks(&array);
        let Logs { replay, read_only: no_journal } = self.logs(&array, &geometry, &members, ppl)?;
        let forced = std::mem::take(&mut self.forced);
        let bitmap = loaded.map(|l| l.bitmap);
        let read_only = read_only || bitmap_read_only || no_journal;
        if array.journal && !read_only {
            self.notes.push(
                "raidus writes past the journal: after a crash the array is resynced, as one without a journal is"
                    .to_owned(),
            );
        }
        Ok(Assembled { geometry, array, members, unsynced_from, bitmap, read_only, replay, forced })
    }

    /// Who speaks for the array. Where parts of it were used apart, the first whose part can start with what is here: one that
    /// cannot is of no use to anybody. What the user allows does not change the choice, or `--run` and `--force` would bring
    /// up other data than what was explained before.
    fn choose<'u>(&mut self, speakers: &[&'u Usable<'a>]) -> Option<&'u Usable<'a>> {
        if let [] | [_] = speakers {
            return speakers.first().copied();
        }
        if let Some(index) = self.speaker {
            return speakers.iter().copied().find(|u| u.index == index);
        }
        let options = Options { force: false, run: true, ..self.options.clone() };
        let can_start = |u: &&&Usable<'a>| {
            let mut attempt = Attempt::new(self.candidates, &options);
            attempt.speaker = Some(u.index);
            attempt.attempt().is_ok()
        };
        let able: Vec<&Usable<'a>> = speakers.iter().filter(can_start).copied().collect();
        let chosen = able.first().or(speakers.first()).copied()?;
        let why = match able.len() {
            0 => "is the first given, and no part can start",
            1 => "is of the only part that can start",
            _ => "is the first given; leave its part out to use another",
        };
        let names: Vec<&str> = speakers.iter().map(|u| u.candidate.name.as_str()).collect();
        self.notes.push(format!(
            "parts of the array were used apart from each other and are equally fresh (those of {}): going by {}, which {why}",
            names.join(", "),
            chosen.candidate.name,
        ));
        Some(chosen)
    }

    /// Array-wide features that raidus cannot honour.
    fn unsupported(&self, array: &ArrayFacts) -> Vec<Reason> {
        let mut reasons = Vec::new();
        if array.level.is_none() {
            reasons.push(Reason::Level(array.level_number));
        }
        if array.clustered {
            reasons.push(Reason::Clustered);
        }
        if let Some(reshape) = &array.reshape {
            reasons.push(Reason::Reshaping { position: reshape.position });
        }
        reasons
    }

    /// The mapping. Linear and raid0 need every member for it, since their sizes make the zones; the others none.
    fn geometry(&mut self, level: Level, array: &ArrayFacts, freshest: &Usable<'_>) -> Result<Geometry, Vec<Reason>> {
        let raid_disks = u16::try_from(array.raid_disks).unwrap_or(u16::MAX);
        if !level.is_redundant() && array.raid_disks <= u32::from(raidus_layout::SLOTS_MAX) {
            self.force_all_slots(level, raid_disks, freshest)?;
        }
        let sizes: Vec<Sectors> = match level {
            Level::Linear | Level::Raid0 => {
                (0..raid_disks).filter_map(|s| self.holder(Slot(s))).map(|sb| sb.member().data_size).collect()
            }
            _ => Vec::new(),
        };
        let stored = Raid0Layout::from_superblock(array.layout, array.raid0_layout_known);
        let raid0_layout = match self.options.raid0_layout {
            Some(wanted) if stored == Raid0Layout::Unknown => wanted,
            Some(wanted) if wanted != stored => {
                self.notes.push(format!("the layout given is ignored: the superblocks say {stored:?}"));
                stored
            }
            _ => stored,
        };
        Geometry::new(&GeometryParams {
            level,
            layout: array.layout,
            raid_disks,
            chunk: array.chunk,
            size: array.size,
            data_sizes: &sizes,
            raid0_layout,
        })
        .map_err(|e: GeometryError| vec![Reason::Geometry(e)])
    }

    fn force_all_slots(&mut self, level: Level, raid_disks: u16, freshest: &Usable<'_>) -> Result<(), Vec<Reason>> {
        let usable = self.stale_members();
        while self.options.force && !self.missing(raid_disks).is_empty() && self.force_next(&usable, freshest) {}
        let missing = self.missing(raid_disks);
        if missing.is_empty() {
            return Ok(());
        }
        Err(vec![Reason::NotEnough { level, slots: raid_disks.into(), missing, force_helps: false }])
    }

    /// md's rule on when the data is complete, and the user's on when to start without some of the members.
    fn enough(&mut self, level: Level, geometry: &Geometry, freshest: &Usable<'_>) -> Result<(), Vec<Reason>> {
        let raid_disks = geometry.raid_disks();
        let usable: Vec<Usable<'a>> = self.stale_members();
        while self.options.force && !self.is_enough(geometry) && self.force_next(&usable, freshest) {}
        let missing = self.missing(raid_disks);
        if !self.is_enough(geometry) {
            return Err(vec![Reason::NotEnough { level, slots: raid_disks.into(), missing, force_helps: false }]);
        }
        let listed = freshest.sb.roles();
        let absent: Vec<Slot> = (0..raid_disks)
            .map(Slot)
            .filter(|s| {
                listed.contains(&Role::Slot(*s)) && !self.seated.iter().any(|(_, seat)| seat.slot() == Some(*s))
            })
            .collect();
        if !absent.is_empty() && !self.options.run && !self.options.force {
            return Err(vec![Reason::Degraded { missing: absent }]);
        }
        Ok(())
    }

    fn is_enough(&self, geometry: &Geometry) -> bool {
        let missing = self.missing(geometry.raid_disks());
        geometry.enough(&|slot| !missing.contains(&slot))
    }

    /// Members that were left out for missing updates.
    fn stale_members(&self) -> Vec<Usable<'a>> {
        let candidates = self.candidates;
        let stale =
            |i: &usize| matches!(self.outs[*i], Some(Out::Stale { .. } | Out::Failed { .. } | Out::Removed { .. }));
        (0..candidates.len())
            .filter(stale)
            .filter_map(|index| {
                let candidate = &candidates[index];
                candidate.superblock().map(|sb| Usable { index, candidate, sb })
            })
            .collect()
    }

    /// Takes in the least stale member for a slot without data. Only members that had whole data when they dropped out.
    fn force_next(&mut self, usable: &[Usable<'_>], freshest: &Usable<'_>) -> bool {
        let array = freshest.sb.array();
        let fits = |u: &&Usable<'_>| {
            let own = u.sb.member();
            let left_out =
                matches!(self.outs[u.index], Some(Out::Stale { .. } | Out::Failed { .. } | Out::Removed { .. }));
            let free = |slot: Slot| {
                u32::from(slot.0) < array.raid_disks
                    && !self.seated.iter().any(|(_, s)| matches!(s, Seat::InSync(h) if *h == slot))
            };
            left_out
                && own.role.slot().is_some_and(free)
                && own.recovery.is_none()
                && !own.replacement
                && seats::shape(u.sb, &array).is_ok()
        };
        let mut best: Option<&Usable<'_>> = None;
        for u in usable.iter().filter(fits) {
            if best.is_none_or(|b| u.sb.events() > b.sb.events()) {
                best = Some(u);
            }
        }
        let Some((u, slot)) = best.and_then(|u| Some((u, u.sb.member().role.slot()?))) else { return false };
        // Whoever was being rebuilt in this slot has less than the old holder.
        let rivals: Vec<usize> =
            self.seated.iter().filter(|(_, s)| s.slot() == Some(slot)).map(|(candidate, _)| *candidate).collect();
        self.seated.retain(|(candidate, _)| !rivals.contains(candidate));
        for rival in rivals {
            self.outs[rival] = Some(Out::SlotTaken { by: u.candidate.name.clone() });
        }
        self.seated.push((u.index, Seat::InSync(slot)));
        self.seated.sort_by_key(|(candidate, _)| *candidate);
        self.outs[u.index] = None;
        self.forced_in.push(u.index);
        let (events, newest) = (u.sb.events(), freshest.sb.events());
        self.forced.push(Forced::Stale { member: u.candidate.name.clone(), slot, events, array: newest });
        true
    }

    /// The bitmap to start with, and whether its kind allows no writing.
    fn bitmap(&mut self, array: &ArrayFacts, geometry: &Geometry, read_only: bool) -> Result<Bitmap, Vec<Reason>> {
        let holders = (0..geometry.raid_disks()).filter_map(|s| self.holder_index(Slot(s)));
        let copies: Vec<&Candidate> = holders.map(|i| &self.candidates[i]).collect();
        let whole = copies.len() == usize::from(geometry.raid_disks());
        match bitmap::load(array, geometry, whole, &copies) {
            Outcome::None => Ok(Bitmap::default()),
            Outcome::Loaded(loaded) => {
                self.notes.extend(loaded.note.clone());
                Ok(Bitmap { loaded: Some(*loaded), ..Bitmap::default() })
            }
            Outcome::Lockless(lockless) => {
                // Degraded, the kernel marks all that is written as in need of a resync, so the marks do not tell what can be
                // reconstructed; whether the array was stopped well does, as ever.
                self.notes.push(lockless.note(whole));
                let in_sync_to = lockless.in_sync_to.filter(|_| whole);
                Ok(Bitmap { read_only: true, in_sync_to, ..Bitmap::default() })
            }
            Outcome::Failed { why, .. } if read_only => {
                self.notes.push(format!("the write-intent bitmap cannot be used ({why})"));
                Ok(Bitmap::default())
            }
            Outcome::Failed { .. } if self.options.force => {
                self.forced.push(Forced::BitmapDiscarded);
                Ok(Bitmap { loaded: bitmap::all_dirty(array, geometry, whole, &copies), ..Bitmap::default() })
            }
            Outcome::Failed { member, why } => Err(vec![Reason::Bitmap { member, why }]),
        }
    }

    /// From where on redundancy may be wrong, and whether the array may start like that.
    fn resync(
        &mut self,
        level: Level,
        array: &mut ArrayFacts,
        geometry: &Geometry,
        loaded: Option<&Loaded>,
    ) -> Result<Option<Sector>, Vec<Reason>> {
        let raid_disks = geometry.raid_disks();
        let missing = self.missing(raid_disks);
        let Some(good_to) = array.resync.filter(|_| level.is_redundant()) else {
            return Ok(None);
        };
        if level.parities() > 0 && !missing.iter().all(|s| holds_parity_only(geometry, *s)) {
            if !self.options.force {
                return Err(vec![Reason::DirtyDegraded { missing }]);
            }
            self.forced.push(Forced::MarkedClean { missing });
            (array.resync, array.clean) = (None, true);
            return Ok(None);
        }
        if level == Level::Raid1 && missing.len() + 1 == usize::from(raid_disks) {
            // A single copy cannot differ from itself. One that is being rebuilt beside it may differ also where it was
            // done already: it is rebuilt anew. (md reads old data in this case.) The array stays dirty then: only that member's
            // superblock says where its rebuild is, and a power cut may part it from the one that would say clean.
            let mut anew = false;
            for (_, seat) in &mut self.seated {
                if let Seat::Rebuilding { valid_to, .. } | Seat::Replacing { valid_to, .. } = seat {
                    anew |= *valid_to > Sector::ZERO;
                    *valid_to = Sector::ZERO;
                }
            }
            if !anew {
                (array.resync, array.clean) = (None, true);
                return Ok(None);
            }
        }
        match loaded {
            Some(l) => Ok(l.first_needed()),
            None => Ok(Some(good_to)),
        }
    }

    /// Nothing is to be resynced of a dirty array: a log has put parity right, or the user said so. But where a write was cut short, a
    /// replacement may still differ from the member beside it.
    fn distrust_replacements(&mut self) {
        for (_, seat) in &mut self.seated {
            if let Seat::Replacing { valid_to, .. } = seat {
                *valid_to = Sector::ZERO;
            }
        }
    }

    /// Restates every member's superblock as the freshest sees the array, in memory only, so that one superblock is as
    /// good as another for whoever runs the array. Devices that are not here are no longer listed, as md does it.
    fn seat_superblocks(&mut self, array: &ArrayFacts) -> Vec<Seated> {
        let Some(freshest) = self.freshest.and_then(|i| self.candidates[i].superblock()) else { return Vec::new() };
        let mut update = freshest.array_update();
        if freshest.array().resync != array.resync {
            update.resync = ResyncMark::Clean { good_to: array.resync };
        }
        update.devices = self.device_table(&update.devices);
        let seated = self.seated.clone();
        seated.into_iter().filter_map(|(candidate, seat)| self.seat_one(candidate, seat, &update)).collect()
    }

    fn device_table(&self, known: &[Option<DeviceState>]) -> Vec<Option<DeviceState>> {
        let mut devices = Vec::new();
        for (candidate, seat) in &self.seated {
            let Some(own) = self.candidates[*candidate].superblock().map(|sb| sb.member()) else { continue };
            let number = own.dev_number as usize;
            if number >= usize::from(raidus_layout::SLOTS_MAX) {
                continue;
            }
            if devices.len() <= number {
                devices.resize(number + 1, None);
            }
            let role = match seat {
                Seat::Journal => Role::Journal,
                _ => seat.slot().map_or(Role::Spare, Role::Slot),
            };
            let node = known.get(number).copied().flatten().map_or((0, 0), |device| device.node);
            devices[number] = Some(DeviceState {
                in_sync: matches!(seat, Seat::InSync(_)),
                write_mostly: own.write_mostly,
                failfast: own.failfast,
                node,
                role,
            });
        }
        devices
    }

    fn seat_one(&mut self, candidate: usize, seat: Seat, update: &ArrayUpdate) -> Option<Seated> {
        let (name, own) = (&self.candidates[candidate].name, self.candidates[candidate].superblock()?);
        let mut superblock = own.clone();
        let mut member = own.member_update();
        member.replacement = matches!(seat, Seat::Replacing { .. });
        // How fresh it is on disk stays its own: who runs the array must know whether the members are level.
        let update = ArrayUpdate { events: own.events(), ..update.clone() };
        if let Err(why) = superblock.update(&update, &member) {
            // Cannot be: the same figures came out of superblocks of this format. The member's own words still hold.
            self.notes.push(format!("{name}: keeping its superblock as it is ({why})"));
            superblock = own.clone();
        }
        let bad_blocks = self.bad_blocks(candidate);
        Some(Seated { candidate, seat, superblock, bad_blocks })
    }

    /// The member's bad-block log. One that cannot be read does not keep its member out: the data is still the best there is.
    fn bad_blocks(&mut self, candidate: usize) -> Vec<(Sector, Sectors)> {
        let candidate = &self.candidates[candidate];
        let recorded = candidate.superblock().is_some_and(|sb| sb.member().has_bad_blocks);
        match candidate.bad_block_list() {
            Ok(list) if !recorded => list,
            Ok(list) if list.is_empty() => {
                self.notes
                    .push(format!("{}: bad blocks are said to be recorded, but the log is empty", candidate.name));
                list
            }
            Ok(list) => list,
            Err(why) => {
                self.notes.push(format!(
                    "{}: its bad-block log cannot be used ({why}); blocks known bad will be read from it as if they were good",
                    candidate.name
                ));
                Vec::new()
            }
        }
    }

    /// Slots without an in-sync member.
    fn missing(&self, raid_disks: u16) -> Vec<Slot> {
        (0..raid_disks).map(Slot).filter(|s| self.holder_index(*s).is_none()).collect()
    }

    fn holder_index(&self, slot: Slot) -> Option<usize> {
        self.seated.iter().find(|(_, s)| *s == Seat::InSync(slot)).map(|(candidate, _)| *candidate)
    }

    fn holder(&self, slot: Slot) -> Option<&'a Superblock> {
        self.candidates[self.holder_index(slot)?].superblock()
    }

    fn member_verdict(&self, index: usize) -> MemberVerdict {
        let candidate = &self.candidates[index];
        let seat = self.seated.iter().find(|(i, _)| *i == index).map(|(_, seat)| *seat);
        let standing = match (seat, &self.outs[index]) {
            (Some(Seat::InSync(slot)), _) if self.forced_in.contains(&index) => Standing::Forced(slot),
            (Some(seat), _) => Standing::In(seat),
            (None, Some(out)) => Standing::Out(out.clone()),
            (None, None) => Standing::Out(Out::Undecided),
        };
        let says = candidate.superblock().map(|sb| {
            let (array, member) = (sb.array(), sb.member());
            MemberSays {
                uuid: array.uuid,
                device_uuid: member.device_uuid,
                dev_number: member.dev_number,
                role: member.role,
                events: array.events,
                updated: array.utime.secs,
                resync: array.resync,
            }
        });
        MemberVerdict { name: candidate.name.clone(), standing, says }
    }
}

/// Whether no row has data in this slot, so that its loss costs none: raid4's last slot, the parity slots of the
/// parity-first and parity-last layouts, Q of the layouts raid6 takes over from raid5.
fn holds_parity_only(geometry: &Geometry, slot: Slot) -> bool {
    matches!(geometry, Geometry::Parity(parity) if parity.holds_only_parity(slot))
}
