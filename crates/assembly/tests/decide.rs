//! Decisions on arrays made for the purpose: each rule, each refusal and what it tells the user.

use raidus_assembly::create::{BitmapWish, CreateDevice, CreateParams, NewMember, Written, plan};
use raidus_assembly::{
    Area, Candidate, Decision, Forced, Found, Options, Out, Reason, Seat, Standing, decide, explain, report,
};
use raidus_format::ppl::{self, PplUnit};
use raidus_format::{
    ArrayUpdate, DeviceState, MdUuid, MemberUpdate, MetadataVersion, PplArea, Recovery, ResyncMark, Role, SbError,
    Superblock, Timestamp,
};
use raidus_layout::{Geometry, Raid0Layout};
use raidus_units::{Level, Sector, Sectors, Slot};

const MIB: u64 = 2048;

/// Members of a clean array, `/dev/a`, `/dev/b`, …; spares last.
fn array(level: Level, n: u16, spares: u16) -> Vec<Candidate> {
    array_of(level, n, spares, &vec![64 * MIB; usize::from(n + spares)], BitmapWish::None)
}

fn array_of(level: Level, n: u16, spares: u16, sizes: &[u64], bitmap: BitmapWish) -> Vec<Candidate> {
    array_in(MetadataVersion::V1_2, level, n, spares, sizes, bitmap)
}

fn array_in(
    metadata: MetadataVersion,
    level: Level,
    n: u16,
    spares: u16,
    sizes: &[u64],
    bitmap: BitmapWish,
) -> Vec<Candidate> {
    let device = |(i, size): (usize, &u64)| {
        CreateDevice::Present(NewMember {
            name: format!("/dev/{}", char::from(b'a' + i as u8)),
            size: Sectors(*size),
            uuid: MdUuid([i as u8 + 1; 16]),
            write_mostly: false,
            failfast: false,
            data_offset: None,
            old_superblocks: Vec::new(),
        })
    };
    let plan = plan(&CreateParams {
        metadata,
        level,
        raid_disks: n,
        spares,
        devices: sizes.iter().enumerate().map(device).collect(),
        chunk: None,
        layout: None,
        size: None,
        data_offset: None,
        bitmap,
        policy: None,
        write_behind: None,
        assume_clean: true,
        force: true,
        name: metadata.is_v1().then(|| "data".to_owned()),
        homehost: metadata.is_v1().then(|| "box".to_owned()),
        uuid: MdUuid([0xa5; 16]),
        now: Timestamp::from_secs(1_700_000_000),
        preferred_minor: 0,
    })
    .expect("a plan");
    let candidate = |m: &raidus_assembly::create::MemberPlan| {
        let found = Found::Superblock(Box::new(m.superblock.clone()));
        let mut c = Candidate::new(&m.name, Sectors(sizes[m.device]), found);
        if let Some(write) = m.writes.iter().find(|w| w.what == Written::Bitmap) {
            c.bitmap = Area::Bytes(write.bytes.clone());
        }
        c
    };
    let mut members: Vec<Candidate> = plan.members.iter().map(candidate).collect();
    for member in &mut members {
        edit(member, |array, _| array.events = 20);
    }
    members
}

/// Changes what a member's superblock says.
fn edit(c: &mut Candidate, change: impl FnOnce(&mut ArrayUpdate, &mut MemberUpdate)) {
    let Found::Superblock(sb) = &mut c.found else { panic!("no superblock") };
    let (mut array, mut member) = (sb.array_update(), sb.member_update());
    change(&mut array, &mut member);
    sb.update(&array, &member).expect("fits");
}

/// Changes bytes of a member's superblock, and its checksum with them.
fn patch(c: &mut Candidate, offset: usize, bytes: &[u8]) {
    let sb = c.superblock().expect("a superblock").clone();
    let (version, at) = (sb.version(), sb.member().super_offset);
    let mut block = sb.encode();
    block[offset..offset + bytes.len()].copy_from_slice(bytes);
    c.found = match Superblock::parse(&block, version, at) {
        Err(SbError::BadChecksum(sum)) => {
            block[216..220].copy_from_slice(&sum.computed.to_le_bytes());
            match Superblock::parse(&block, version, at) {
                Ok(sb) => Found::Superblock(Box::new(sb)),
                Err(why) => Found::Unusable(why),
            }
        }
        Ok(sb) => Found::Superblock(Box::new(sb)),
        Err(why) => Found::Unusable(why),
    };
}

fn all(members: &mut [Candidate], change: impl Fn(&mut ArrayUpdate, &mut MemberUpdate)) {
    members.iter_mut().for_each(|m| edit(m, &change));
}

fn dirty(members: &mut [Candidate]) {
    all(members, |array, _| array.resync = ResyncMark::Dirty);
}

fn run(members: &[Candidate]) -> Decision {
    decide(members, &Options::default())
}

/// The one reason of a refusal.
fn refused(members: &[Candidate]) -> Reason {
    let decision = run(members);
    assert_eq!(decision.reasons().len(), 1, "{}", explain(&decision));
    decision.reasons()[0].clone()
}

fn starts(members: &[Candidate], options: &Options) -> raidus_assembly::Assembled {
    let decision = decide(members, options);
    decision.start().unwrap_or_else(|| panic!("{}", explain(&decision))).clone()
}

fn out(decision: &Decision, index: usize) -> Out {
    match &decision.members[index].standing {
        Standing::Out(out) => out.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_whole_array_starts() {
    let assembled = starts(&array(Level::Raid5, 3, 1), &Options::default());
    let seats: Vec<Seat> = assembled.members.iter().map(|m| m.seat).collect();
    assert_eq!(seats, [Seat::InSync(Slot(0)), Seat::InSync(Slot(1)), Seat::InSync(Slot(2)), Seat::Spare]);
    assert_eq!((assembled.unsynced_from, assembled.read_only), (None, false));
}

#[test]
fn devices_without_metadata_make_no_array() {
    let nothing = [Candidate::new("/dev/x", Sectors(1000), Found::Nothing)];
    let decision = run(&nothing);
    assert_eq!(decision.reasons(), [Reason::NoMembers]);
    assert_eq!(out(&decision, 0), Out::NoSuperblock);
    assert_eq!(refused(&array(Level::Raid1, 2, 1)[2..]), Reason::OnlySpares);
}

#[test]
fn members_of_two_arrays_are_listed_and_can_be_chosen_from() {
    let mut members = array(Level::Raid1, 2, 0);
    let mut other = array(Level::Raid1, 2, 0);
    for (c, name) in other.iter_mut().zip(["/dev/x", "/dev/y"]) {
        patch(c, 16, &[7; 16]);
        c.name = name.to_owned();
    }
    members.extend(other);
    let reason = refused(&members);
    assert!(reason.to_string().contains("/dev/x /dev/y") && reason.to_string().contains("box:data"), "{reason}");
    let chosen = starts(&members, &Options { uuid: Some(MdUuid([7; 16])), ..Options::default() });
    assert_eq!(chosen.members.iter().map(|m| m.candidate).collect::<Vec<_>>(), [2, 3]);
    let by_name = decide(&members[..2], &Options { name: Some("data".to_owned()), ..Options::default() });
    assert!(by_name.start().is_some());
    let wrong = decide(&members[..2], &Options { name: Some("other".to_owned()), ..Options::default() });
    assert!(matches!(out(&wrong, 0), Out::NotWanted(_)));
}

#[test]
fn a_copy_of_a_member_is_refused_but_a_path_named_twice_is_not() {
    let mut members = array(Level::Raid1, 2, 0);
    members.push(members[1].clone());
    let decision = run(&members);
    assert!(decision.start().is_some());
    assert_eq!(out(&decision, 2), Out::NamedTwice);
    members[2].name = "/backup/b.img".to_owned();
    edit(&mut members[2], |array, _| array.events = 12);
    let message = refused(&members).to_string();
    assert!(message.contains("/dev/b") && message.contains("(/backup/b.img is the older one)"), "{message}");
}

#[test]
fn two_holders_of_a_slot_are_refused_unless_one_is_fresher() {
    let twice = || {
        let mut members = array(Level::Raid1, 2, 1);
        all(&mut members, |array, _| array.devices = (0..3).map(|n| Some(device(n.min(1)))).collect());
        members
    };
    let (a, b) = ("/dev/b".to_owned(), "/dev/c".to_owned());
    assert_eq!(refused(&twice()), Reason::SlotTwice { slot: Slot(1), a, b });
    let mut members = twice();
    edit(&mut members[2], |array, _| array.events = 19);
    let decision = run(&members);
    assert_eq!(out(&decision, 2), Out::SlotTaken { by: "/dev/b".to_owned() });
    assert!(decision.start().is_some());
}

fn device(slot: u16) -> DeviceState {
    DeviceState::new(Role::Slot(Slot(slot)))
}

#[test]
fn what_raidus_cannot_honour_is_refused() {
    let refuse = |offset: usize, bytes: &[u8]| {
        let mut members = array(Level::Raid5, 3, 0);
        members.iter_mut().for_each(|m| patch(m, offset, bytes));
        refused(&members)
    };
    assert_eq!(refuse(8, &0x100_u32.to_le_bytes()), Reason::Clustered);
    assert_eq!(refuse(8, &0x200_u32.to_le_bytes()), Reason::JournalMissing);
    assert_eq!(refuse(8, &0x4_u32.to_le_bytes()), Reason::Reshaping { position: Sector(0) });
    assert_eq!(refuse(72, &(-4_i32).to_le_bytes()), Reason::Level(-4));
    assert!(matches!(refuse(76, &77_u32.to_le_bytes()), Reason::Geometry(_)));
    for reason in [Reason::Clustered, Reason::JournalMissing, Reason::Reshaping { position: Sector(0) }] {
        assert!(reason.to_string().len() > 60, "says what to do: {reason}");
    }
}

#[test]
fn a_newer_feature_keeps_a_member_out() {
    let mut members = array(Level::Raid1, 2, 0);
    patch(&mut members[1], 8, &0x8000_u32.to_le_bytes());
    let decision = run(&members);
    assert_eq!(out(&decision, 1), Out::Unusable(SbError::UnknownFeatures(0x8000)));
    assert_eq!(decision.reasons(), [Reason::Degraded { missing: vec![Slot(1)] }]);
}

/// A raid5 with a partial parity log of this many sectors on each member.
fn logged(size: u64, mark: ResyncMark) -> Vec<Candidate> {
    let mut members = array(Level::Raid5, 3, 0);
    let area = PplArea { offset: 8, size: Sectors(size), multiple: false };
    all(&mut members, |array, _| (array.ppl, array.resync) = (Some(area), mark));
    members
}

#[test]
fn partial_parity_logs_that_cannot_be_kept_allow_reading_only() {
    let clean = ResyncMark::Clean { good_to: None };
    assert!(!starts(&logged(16, clean), &Options::default()).read_only);
    // A header alone; and a log that reaches into the data.
    assert!(starts(&logged(8, clean), &Options::default()).read_only);
    assert!(starts(&logged(65_000, clean), &Options::default()).read_only);
    let mut members = logged(16, clean);
    edit(&mut members[1], |array, _| array.ppl = Some(PplArea { offset: 16, size: Sectors(16), multiple: false }));
    assert!(starts(&members, &Options::default()).read_only, "they do not agree where it is");
}

/// What stands in the logs of a dirty array, as they were when the power went.
#[test]
fn a_dirty_array_goes_by_what_its_partial_parity_logs_say() {
    let with_logs = |log: &dyn Fn(u16) -> Vec<u8>| {
        let mut members = logged(24, ResyncMark::Dirty);
        for (slot, member) in (0..).zip(&mut members) {
            let mut bytes = log(slot);
            bytes.resize(24 * 512, 0);
            member.ppl = Area::Bytes(bytes);
        }
        members
    };
    let uuid = logged(24, ResyncMark::Dirty)[0].superblock().expect("a superblock").array().uuid;
    let degraded = |members: &[Candidate]| {
        let options = Options { run: true, ..Options::default() };
        decide(&members[..2], &options).start().map(|assembled| assembled.unsynced_from)
    };
    // Unread logs say nothing.
    let unread = logged(24, ResyncMark::Dirty);
    assert_eq!(starts(&unread, &Options::default()).unsynced_from, Some(Sector(0)));
    assert_eq!(degraded(&unread), None);
    // Nothing was being written: whole, one looks at everything once, as md does.
    let empty = with_logs(&|_| ppl::empty(uuid, None));
    let whole = starts(&empty, &Options::default());
    assert_eq!((whole.unsynced_from, whole.replay.is_none()), (Some(Sector(0)), true));
    assert_eq!(degraded(&empty), Some(None));
    // One was being written at the time.
    let torn = with_logs(&|slot| if slot == 0 { Vec::new() } else { ppl::empty(uuid, None) });
    assert_eq!(starts(&torn, &Options::default()).unsynced_from, Some(Sector(0)));
    assert_eq!(degraded(&torn), Some(None));
    // A resync was to come.
    let untrusted = with_logs(&|slot| ppl::empty(uuid, Some(Slot(slot))));
    assert_eq!(starts(&untrusted, &Options::default()).unsynced_from, Some(Sector(0)));
    assert_eq!(degraded(&untrusted), None);
    // A whole stripe was being written, whose parity is on the first member or elsewhere.
    let geometry = whole.geometry.clone();
    let Geometry::Parity(geometry) = geometry else { panic!("raid5") };
    let row = (0..3).find(|row| geometry.row(*row).p() == Slot(0)).expect("one of three");
    let written = with_logs(&|slot| {
        let mut unit = PplUnit::with_room(0);
        unit.push(geometry.array(row, 0, Sectors(0)), 2 * 4096, Slot(0), &[]);
        if slot == 0 { unit.finish(uuid, 1) } else { ppl::empty(uuid, None) }
    });
    let assembled = starts(&written, &Options::default());
    assert_eq!((assembled.unsynced_from, assembled.replay.is_some()), (None, true));
    assert_eq!(degraded(&written), Some(None));
}

/// What a log puts right is parity. Where a write was cut short, a replacement may differ from the member that it is to replace.
#[test]
fn a_replacement_begins_anew_where_only_a_log_makes_a_dirty_array_good() {
    let seat = |mark| {
        let mut members = array(Level::Raid5, 3, 1);
        let uuid = members[0].superblock().expect("a superblock").array().uuid;
        let number = members[3].superblock().expect("a superblock").member().dev_number as usize;
        all(&mut members, |array, member| {
            (array.ppl, array.resync) = (Some(PplArea { offset: 8, size: Sectors(24), multiple: false }), mark);
            array.devices.resize(array.devices.len().max(number + 1), None);
            let spare = DeviceState { in_sync: false, ..array.devices[0].expect("the first") };
            array.devices[number] = Some(DeviceState { role: Role::Slot(Slot(1)), ..spare });
            member.recovery = None;
        });
        let done = Some(Recovery { offset: Sector(64), by_bitmap: false });
        edit(&mut members[3], |_, member| (member.recovery, member.replacement) = (done, true));
        for member in &mut members {
            let mut bytes = ppl::empty(uuid, None);
            bytes.resize(24 * 512, 0);
            member.ppl = Area::Bytes(bytes);
        }
        // Of a whole array everything is looked at once, anyway.
        let decision = decide(&members[1..], &Options { run: true, ..Options::default() });
        let seats = decision.start().map(|a| (a.unsynced_from, a.members.last().expect("three of them").seat));
        seats.unwrap_or_else(|| panic!("{}", explain(&decision)))
    };
    let replacing = |to| (None, Seat::Replacing { slot: Slot(1), valid_to: Sector(to) });
    assert_eq!(seat(ResyncMark::Clean { good_to: None }), replacing(64));
    assert_eq!(seat(ResyncMark::Dirty), replacing(0));
}

#[test]
fn raid0_of_unknown_layout_needs_the_users_word() {
    let mut members = array_of(Level::Raid0, 3, 0, &[64 * MIB - 1024, 80 * MIB, 96 * MIB], BitmapWish::Auto);
    let known = starts(&members, &Options::default());
    all(&mut members, |array, _| array.geometry.raid0_layout_known = false);
    assert!(refused(&members).to_string().contains("--layout=original"));
    let options = Options { raid0_layout: Some(Raid0Layout::Original), ..Options::default() };
    assert_eq!(starts(&members, &options).geometry, known.geometry);
    let missing = refused(&members[..2]);
    assert!(matches!(missing, Reason::NotEnough { level: Level::Raid0, .. }), "{missing}");
}

#[test]
fn one_event_behind_is_current_and_two_are_stale() {
    let mut members = array(Level::Raid5, 3, 0);
    edit(&mut members[2], |array, _| array.events = 19);
    assert_eq!(starts(&members, &Options::default()).members.len(), 3);
    edit(&mut members[2], |array, _| array.events = 18);
    let decision = run(&members);
    assert_eq!(out(&decision, 2), Out::Stale { events: 18, array: 20 });
    assert_eq!(decision.reasons(), [Reason::Degraded { missing: vec![Slot(2)] }]);
    // The freshest no longer lists it: known to be missing.
    for m in &mut members[..2] {
        edit(m, |array, _| array.devices[2] = None);
    }
    assert_eq!(starts(&members, &Options::default()).members.len(), 2);
}

#[test]
fn a_member_the_freshest_calls_failed_gives_no_data() {
    let mut members = array(Level::Raid6, 6, 0);
    dirty(&mut members);
    edit(&mut members[4], |array, _| array.events = 19);
    for (i, m) in members.iter_mut().enumerate().filter(|(i, _)| *i != 4) {
        edit(m, |array, _| array.devices[4] = Some(DeviceState::new(Role::Faulty)));
        assert_ne!(i, 4);
    }
    let decision = run(&members);
    assert_eq!(out(&decision, 4), Out::Failed { by: "/dev/a".to_owned() });
    assert_eq!(decision.reasons(), [Reason::DirtyDegraded { missing: vec![Slot(4)] }]);
    let forced = starts(&members, &Options { force: true, ..Options::default() });
    assert_eq!(forced.forced, [Forced::MarkedClean { missing: vec![Slot(4)] }]);
    assert!(forced.members.iter().all(|m| m.candidate != 4));
}

#[test]
fn of_two_halves_used_apart_only_the_first_is_used() {
    let mut members = array(Level::Raid1, 2, 0);
    edit(&mut members[0], |array, _| array.devices[1] = Some(DeviceState::new(Role::Faulty)));
    edit(&mut members[1], |array, _| array.devices[0] = None);
    let decision = run(&members);
    assert_eq!(out(&decision, 1), Out::Failed { by: "/dev/a".to_owned() });
    assert!(decision.notes[0].contains("(those of /dev/a, /dev/b): going by /dev/a"), "{:?}", decision.notes);
    // Where each is outlived by another the order given is all there is; still no two that contradict each other are used.
    let mut members = array(Level::Raid1, 3, 0);
    for (m, other) in members.iter_mut().zip([1, 2, 0]) {
        edit(m, |array, _| array.devices[other] = None);
    }
    let decision = run(&members);
    assert_eq!(out(&decision, 1), Out::Removed { by: "/dev/a".to_owned() });
    assert_eq!(out(&decision, 2), Out::ReportsFailed { freshest: "/dev/a".to_owned() });
}

#[test]
fn a_member_recorded_as_failed_never_speaks_for_equally_fresh_survivors() {
    for gone in [None, Some(DeviceState::new(Role::Faulty))] {
        let mut members = array(Level::Raid1, 3, 0);
        for m in &mut members[1..] {
            edit(m, |array, _| array.devices[0] = gone);
        }
        let decision = run(&members);
        assert_eq!(decision.freshest, Some(1));
        assert!(matches!(out(&decision, 0), Out::Failed { .. } | Out::Removed { .. }));
        assert!(decision.start().is_some_and(|a| a.members.len() == 2) && decision.notes.is_empty());
        // Not even when its own part could start and the survivors' cannot.
        let mut members = array(Level::Raid5, 4, 0);
        edit(&mut members[3], |array, _| array.devices = vec![gone, gone, gone, array.devices[3]]);
        let decision = run(&members);
        assert_eq!(decision.freshest, Some(3));
        assert!(matches!(decision.reasons(), [Reason::NotEnough { .. }]), "{}", explain(&decision));
    }
}

#[test]
fn of_parts_used_apart_the_one_that_can_start_is_used() {
    // Slot 0 alone on one side, the others on the other; two near copies, so slot 0 alone is no array.
    let mut members = array(Level::Raid10, 4, 0);
    let (alone, others) = members.split_at_mut(1);
    edit(&mut alone[0], |array, _| array.devices[1..].fill(None));
    others.iter_mut().for_each(|m| edit(m, |array, _| array.devices[0] = None));
    let decision = run(&members);
    assert_eq!((decision.freshest, out(&decision, 0)), (Some(1), Out::Removed { by: "/dev/b".to_owned() }));
    assert_eq!(decision.start().map(|a| a.members.len()), Some(3), "{}", explain(&decision));
    assert!(decision.notes[0].contains("going by /dev/b, which is of the only part that can start"));
    // What the user allows brings up no other part.
    for options in [Options { run: true, ..Options::default() }, Options { force: true, ..Options::default() }] {
        assert_eq!(decide(&members, &options).freshest, Some(1));
    }
    // Without the others there is one part only, and it is refused.
    let decision = run(&members[..1]);
    assert!(matches!(decision.reasons(), [Reason::NotEnough { .. }]) && decision.notes.is_empty());
}

#[test]
fn a_spare_never_speaks_for_the_array() {
    let mut members = array(Level::Raid1, 2, 1);
    edit(&mut members[2], |array, _| array.events = 99);
    let decision = run(&members);
    assert_eq!(decision.freshest, Some(0));
    assert_eq!(decision.array.as_ref().map(|a| a.events), Some(20));
    assert!(decision.start().is_some_and(|a| a.array.events == 20 && a.members[2].seat == Seat::Spare));
}

/// The power went when a spare's superblock said already which slot it gets, and the others' did not.
#[test]
fn a_spare_that_alone_knows_of_its_slot_is_a_spare() {
    let mut members = array(Level::Raid1, 2, 1);
    members.remove(1);
    all(&mut members, |array, _| array.devices[1] = None);
    edit(&mut members[1], |array, member| {
        array.devices[2].as_mut().expect("the spare").role = Role::Slot(Slot(1));
        member.recovery = Some(Recovery { offset: Sector(0), by_bitmap: false });
    });
    for order in [[0, 1], [1, 0]] {
        let members = order.map(|i| members[i].clone());
        let seats = run(&members).start().map(|a| order.map(|i| a.members[i].seat));
        assert_eq!(seats, Some([Seat::InSync(Slot(0)), Seat::Spare]));
    }
}

/// The power went when the others had said which slot a spare gets, and it had not said so again.
#[test]
fn a_member_that_holds_nothing_yet_is_never_stale() {
    let mut members = array(Level::Raid1, 2, 0);
    let mut behind = |offset| {
        edit(&mut members[1], |array, member| {
            (array.events, member.recovery) = (18, Some(Recovery { offset: Sector(offset), by_bitmap: false }));
        });
        run(&members)
    };
    let seat = behind(0).start().map(|a| a.members[1].seat);
    assert_eq!(seat, Some(Seat::Rebuilding { slot: Slot(1), valid_to: Sector(0), by_bitmap: false }));
    assert_eq!(out(&behind(64), 1), Out::Stale { events: 18, array: 20 });
}

/// A spare was away while a device joined, was given its number, and was built into slot 1. Then the spare is back.
#[test]
fn a_device_number_belongs_to_the_one_that_was_there_last() {
    let mut members = array(Level::Raid1, 2, 2);
    let away = members.remove(2);
    for (number, member) in (0..).zip(&mut members) {
        edit(member, |array, member| {
            array.events = 30;
            array.devices = vec![Some(device(0)), Some(DeviceState::new(Role::Faulty)), Some(device(1))];
            member.dev_number = number;
        });
    }
    for place in [0, 1, 3] {
        let mut members = members.clone();
        members.insert(place, away.clone());
        let decision = run(&members);
        assert_eq!(out(&decision, place), Out::NumberTaken { number: 2, by: "/dev/d".to_owned() });
        assert!(out(&decision, place).to_string().contains("was away when /dev/d joined"));
        let assembled = decision.start().unwrap_or_else(|| panic!("{}", explain(&decision)));
        let built = assembled.members.iter().find(|m| members[m.candidate].name == "/dev/d").expect("is in");
        assert_eq!((built.seat, built.superblock.member().role), (Seat::InSync(Slot(1)), Role::Slot(Slot(1))));
    }
}

#[test]
fn replacements_are_written_beside_the_holder_and_take_its_place_when_it_is_gone() {
    let mut members = array(Level::Raid5, 3, 1);
    all(&mut members, |array, _| array.devices = [0, 1, 2, 0].map(|s| Some(device(s))).to_vec());
    edit(&mut members[3], |_, member| {
        member.recovery = Some(Recovery { offset: Sector(4096), by_bitmap: false });
        member.replacement = true;
    });
    let seat = |members: &[Candidate]| starts(members, &Options { run: true, ..Options::default() }).members;
    let with = seat(&members);
    assert_eq!(with[3].seat, Seat::Replacing { slot: Slot(0), valid_to: Sector(4096) });
    let without = seat(&members[1..]);
    assert_eq!(without[2].seat, Seat::Rebuilding { slot: Slot(0), valid_to: Sector(4096), by_bitmap: false });
    assert!(!without[2].superblock.member().replacement);
}

#[test]
fn an_image_cut_short_is_left_out() {
    let mut members = array(Level::Raid5, 3, 0);
    members[1].size = Sectors(32 * MIB);
    let decision = run(&members);
    assert!(matches!(out(&decision, 1), Out::Truncated(_)));
    assert!(out(&decision, 1).to_string().contains("cut short"));
    members[2].size = Sectors(32 * MIB);
    assert!(matches!(refused(&members), Reason::NotEnough { .. }));
}

#[test]
fn missing_members_need_run_and_too_many_cannot_start() {
    let members = array(Level::Raid10, 4, 0);
    let pair = [members[0].clone(), members[2].clone()];
    let message = refused(&pair).to_string();
    assert!(
        message.starts_with("slots 1 and 3 are missing, but had members") && message.contains("--run"),
        "{message}"
    );
    let message = refused(&members[..3]).to_string();
    assert!(message.starts_with("slot 3 is missing, but had a member"), "{message}");
    assert_eq!(starts(&pair, &Options { run: true, ..Options::default() }).members.len(), 2);
    let same = [members[0].clone(), members[1].clone()];
    let message = refused(&same).to_string();
    assert!(message.contains("2 of 4 slots") && !message.contains("--force"), "{message}");
}

#[test]
fn dirty_and_degraded_is_refused_only_where_data_is_missing() {
    let missing_last = |level: Level| {
        let mut members = array(level, 4, 0);
        dirty(&mut members);
        decide(&members[..3], &Options { run: true, ..Options::default() })
    };
    assert_eq!(missing_last(Level::Raid5).reasons(), [Reason::DirtyDegraded { missing: vec![Slot(3)] }]);
    assert!(missing_last(Level::Raid5).reasons()[0].to_string().contains("--force"));
    // raid4's last member holds parity only.
    assert_eq!(missing_last(Level::Raid4).start().and_then(|a| a.unsynced_from), Some(Sector(0)));
    assert_eq!(missing_last(Level::Raid10).start().and_then(|a| a.unsynced_from), Some(Sector(0)));
    let mut mirror = array(Level::Raid1, 2, 0);
    dirty(&mut mirror);
    let alone = starts(&mirror[..1], &Options { run: true, ..Options::default() });
    assert_eq!(alone.unsynced_from, None);
    assert_eq!(starts(&mirror, &Options::default()).unsynced_from, Some(Sector(0)));
}

#[test]
fn a_checkpoint_is_where_the_resync_goes_on() {
    let mut members = array(Level::Raid6, 4, 0);
    all(&mut members, |array, _| array.resync = ResyncMark::Clean { good_to: Some(Sector(8192)) });
    assert_eq!(starts(&members, &Options::default()).unsynced_from, Some(Sector(8192)));
}

fn with_bitmap() -> Vec<Candidate> {
    array_of(Level::Raid1, 2, 0, &[64 * MIB; 2], BitmapWish::Internal { chunk: Some(1 << 20) })
}

#[test]
fn a_stale_bitmap_marks_everything_and_a_broken_one_is_refused() {
    // As created the bitmap is of event 0, the array of 20.
    let mut members = with_bitmap();
    dirty(&mut members);
    let decision = run(&members);
    let assembled = decision.start().expect("starts");
    let bitmap = assembled.bitmap.as_ref().expect("a bitmap");
    assert_eq!(bitmap.bits.count_ones(), bitmap.bits.len());
    assert!(decision.notes[0].contains("stopped at event 0"), "{:?}", decision.notes);

    for m in &mut members {
        m.bitmap = Area::Bytes(vec![0; 4096]);
    }
    let reason = refused(&members);
    assert!(matches!(reason, Reason::Bitmap { .. }) && reason.to_string().contains("--readonly"), "{reason}");
    assert!(starts(&members, &Options { readonly: true, ..Options::default() }).bitmap.is_none());
    let forced = starts(&members, &Options { force: true, ..Options::default() });
    assert_eq!(forced.forced, [Forced::BitmapDiscarded]);
    assert_eq!(forced.unsynced_from, Some(Sector(0)));
}

#[test]
fn a_bitmap_guides_the_resync() {
    let mut members = with_bitmap();
    for m in &mut members {
        let Area::Bytes(bytes) = &mut m.bitmap else { panic!("no bitmap") };
        bytes[24..32].copy_from_slice(&20_u64.to_le_bytes());
        bytes[256..].fill(0);
        bytes[256] = 1 << 5;
    }
    assert_eq!(starts(&members, &Options::default()).unsynced_from, None);
    dirty(&mut members);
    assert_eq!(starts(&members, &Options::default()).unsynced_from, Some(Sector(5 * 2048)));
    // The first copy is stale, the second is not.
    let Area::Bytes(bytes) = &mut members[0].bitmap else { panic!("no bitmap") };
    bytes[24..32].copy_from_slice(&3_u64.to_le_bytes());
    assert_eq!(starts(&members, &Options::default()).unsynced_from, Some(Sector(5 * 2048)));
}

/// It is not ours to write; but nothing is reconstructed where it does not say that members agree.
#[test]
fn a_lockless_bitmap_is_read_and_honoured() {
    let with = |change: &dyn Fn(usize, &mut Vec<u8>)| {
        let mut members = with_bitmap();
        for (i, m) in members.iter_mut().enumerate() {
            let Area::Bytes(bytes) = &mut m.bitmap else { panic!("no bitmap") };
            bytes[4] = 6;
            bytes[24..32].copy_from_slice(&20_u64.to_le_bytes());
            // Sectors, not bytes.
            bytes[52..56].copy_from_slice(&2048_u32.to_le_bytes());
            bytes[256..].fill(0);
            bytes.resize(8192, 0);
            bytes[1024..].fill(1);
            change(i, bytes);
        }
        let decision = run(&members);
        let assembled = decision.start().unwrap_or_else(|| panic!("{}", explain(&decision)));
        assert!(assembled.read_only && assembled.bitmap.is_none());
        (assembled.unsynced_from, decision.notes.join("\n"))
    };
    let (from, notes) = with(&|_, _| {});
    assert!(from.is_none() && notes.contains("members agree in all of its"), "{notes}");
    for state in [0, 2, 3, 4, 5, 6, 8, 255] {
        let (from, notes) = with(&|_, bytes| bytes[1024 + 5] = state);
        assert_eq!(from, Some(Sector(5 * 2048)), "state {state}");
        assert!(notes.contains("may differ in 1 of its"), "{notes}");
    }
    assert_eq!(with(&|_, bytes| bytes[1024 + 5] = 7).0, None);
    // The copies of a crash: what one of them doubts is in doubt.
    assert_eq!(with(&|i, bytes| bytes[1024 + 9 - i] = 2).0, Some(Sector(8 * 2048)));
    // Written without it since.
    assert_eq!(with(&|_, bytes| bytes[24] = 19).0, Some(Sector::ZERO));
}

/// Arrays of old NAS boxes: everything of the superblock, and the bits of a version 3 bitmap, in the other byte order.
#[test]
fn the_bits_of_a_big_endian_bitmap_are_all_taken_as_set() {
    let wish = BitmapWish::Internal { chunk: Some(1 << 20) };
    let mut members = array_in(MetadataVersion::V0_90, Level::Raid1, 2, 0, &[64 * MIB; 2], wish);
    dirty(&mut members);
    let with = |version: u8, big: bool| {
        let mut members = members.clone();
        for m in &mut members {
            let Area::Bytes(bytes) = &mut m.bitmap else { panic!("no bitmap") };
            bytes[4] = version;
            bytes[24..32].copy_from_slice(&20_u64.to_le_bytes());
            bytes[256..].fill(0);
            bytes[256] = 1 << 5;
            if big {
                bytes[8..24].chunks_exact_mut(4).for_each(<[u8]>::reverse);
                swap_words(m);
            }
        }
        let decision = run(&members);
        let bitmap =
            decision.start().and_then(|a| a.bitmap.clone()).unwrap_or_else(|| panic!("{}", explain(&decision)));
        (bitmap.bits.count_ones(), bitmap.superblock.header().version.get(), decision.notes)
    };
    assert_eq!(with(4, false), (1, 4, Vec::new()));
    assert_eq!(with(3, false), (1, 3, Vec::new()));
    assert_eq!(with(4, true), (1, 4, Vec::new()), "version 4 is the same everywhere");
    let (ones, version, notes) = with(3, true);
    // What is written from now on must not be read as the other order's.
    assert_eq!((ones, version), (64, 4));
    assert!(notes[0].contains("big-endian"), "{notes:?}");
}

/// Turns a 0.90 superblock into one that a host of the other byte order wrote.
fn swap_words(c: &mut Candidate) {
    let sb = c.superblock().expect("a superblock");
    let (version, at) = (sb.version(), sb.member().super_offset);
    let mut block = sb.encode();
    block.chunks_exact_mut(4).for_each(<[u8]>::reverse);
    for pair in [39, 41, 44] {
        let (low, high) = (pair * 4, pair * 4 + 4);
        (low..high).for_each(|i| block.swap(i, i + 4));
    }
    c.found = Found::Superblock(Box::new(Superblock::parse(&block, version, at).expect("as good as before")));
}

#[test]
fn a_garbled_bad_block_log_is_noted() {
    let mut members = array(Level::Raid1, 2, 0);
    edit(&mut members[1], |_, member| member.has_bad_blocks = true);
    let need = members[1].needs();
    assert_eq!((need.len(), need[0].len), (1, Sectors(8)));
    members[1].supply(need[0], Ok(vec![0; 4096]));
    assert!(members[1].needs().is_empty());
    let decision = run(&members);
    assert!(decision.start().is_some_and(|a| a.members[1].bad_blocks.is_empty()));
    assert!(decision.notes[0].contains("/dev/b"), "{:?}", decision.notes);
}

#[test]
fn explanations_name_every_device_and_what_force_would_do() {
    let mut members = array(Level::Raid5, 3, 0);
    dirty(&mut members);
    edit(&mut members[2], |array, _| array.events = 11);
    let decision = run(&members);
    let text = explain(&decision);
    for part in
        ["/dev/a", "out: is stale: at event 11, the array is at 20", "not started:", "with --force:", "raid5, 3 slots"]
    {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let report = report(&decision);
    assert_eq!((report.verdict, report.members[2].used, report.members[0].slot), ("refuse", false, Some(0)));
    assert_eq!(report.reasons[0].code, "degraded");
}
