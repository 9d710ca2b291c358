//! The short forms and the texts on an inactive array, as mdadm 4.2 gave them for these two arrays.

use raidus_assembly::create::{BitmapWish, CreateDevice, CreateParams, CreatePlan, NewMember, plan};
use raidus_format::{MdUuid, MetadataVersion, Timestamp};
use raidus_text::{
    ArrayView, Context, DeviceRole, DeviceView, Policy, ReadOnly, RunState, detail, detail_brief, detail_export,
    examine_brief, examine_export, mdstat_array, query_array, query_device,
};
use raidus_units::{Level, Sectors, Slot};

/// 20 MiB members; spares last.
fn make(metadata: MetadataVersion, level: Level, n: u16, spares: u16, uuid: &str) -> CreatePlan {
    let device = |i| {
        CreateDevice::Present(NewMember {
            name: format!("/dev/ubd{}", letter(i)),
            size: Sectors::from_kib(20 * 1024),
            uuid: "a5c29608:6b8caca5:b81e2125:4491b52e".parse().expect("a uuid"),
            write_mostly: false,
            failfast: false,
            data_offset: None,
            old_superblocks: Vec::new(),
        })
    };
    let named = |name: &str| metadata.is_v1().then(|| name.to_owned());
    plan(&CreateParams {
        metadata,
        level,
        raid_disks: n,
        spares,
        devices: (0..n + spares).map(device).collect(),
        chunk: None,
        layout: None,
        size: None,
        data_offset: None,
        bitmap: BitmapWish::None,
        policy: None,
        write_behind: None,
        assume_clean: true,
        force: false,
        name: named("data"),
        homehost: named("box"),
        uuid: uuid.parse().expect("a uuid"),
        now: Timestamp::from_secs(1_796_045_605),
        preferred_minor: 3,
    })
    .expect("a plan")
}

fn letter(i: u16) -> char {
    char::from(b'a' + i as u8)
}

fn raid5() -> CreatePlan {
    make(MetadataVersion::V1_2, Level::Raid5, 3, 1, "8cbf045b:56b099a2:8c7f816f:64d00580")
}

fn raid1() -> CreatePlan {
    make(MetadataVersion::V0_90, Level::Raid1, 2, 0, "394d096a:dddefceb:9b2ba25c:c8e0d1de")
}

/// The array running, its devices added in the order the text shows them.
fn running(plan: &CreatePlan, path: &str, order: &[u16]) -> ArrayView {
    let facts = plan.members[0].superblock.array();
    let device = |i: &u16| DeviceView {
        name: format!("ubd{}", letter(*i)),
        path: format!("/dev/ubd{}", letter(*i)),
        node: Some((98, u32::from(*i) * 16)),
        dev_number: u32::from(*i),
        role: if *i < facts.raid_disks as u16 { DeviceRole::InSync(Slot(*i)) } else { DeviceRole::Spare },
        write_mostly: false,
        failfast: false,
    };
    ArrayView {
        name: path.rsplit('/').next().expect("a name").to_owned(),
        path: path.to_owned(),
        state: RunState::Active,
        read_only: ReadOnly::No,
        clean: true,
        metadata: Some(facts.metadata),
        level: facts.level.expect("a level"),
        layout: facts.layout,
        raid0_layout_known: false,
        chunk: facts.chunk,
        raid_disks: facts.raid_disks as u16,
        array_size: plan.geometry.array_sectors(),
        component: facts.size,
        devices: order.iter().map(device).collect(),
        bitmap: None,
        sync: None,
        reshape: None,
        policy: Policy::Resync,
        uuid: facts.uuid,
        array_name: facts.name,
        ctime: facts.ctime.secs,
        utime: facts.utime.secs,
        events: 1,
        preferred_minor: facts.preferred_minor,
    }
}

#[test]
fn lines_for_mdadm_conf() {
    let (five, one) = (raid5(), raid1());
    let line = "ARRAY /dev/md0 metadata=1.2 spares=1 name=box:data UUID=8cbf045b:56b099a2:8c7f816f:64d00580\n";
    assert_eq!(detail_brief(&running(&five, "/dev/md0", &[0, 1, 2, 3])), line);
    let line = "ARRAY /dev/md/data  metadata=1.2 UUID=8cbf045b:56b099a2:8c7f816f:64d00580 name=box:data\n";
    assert_eq!(examine_brief(&five.members[0].superblock, "/dev/md/data", 0), line);
    assert_eq!(examine_brief(&five.members[3].superblock, "/dev/md/data", 1), format!("{line}   spares=1\n"));
    let uuid = "UUID=394d096a:dddefceb:9b2ba25c:c8e0d1de\n";
    assert_eq!(detail_brief(&running(&one, "/dev/md3", &[0, 1])), format!("ARRAY /dev/md3 metadata=0.90 {uuid}"));
    assert_eq!(examine_brief(&one.members[0].superblock, "/dev/md3", 0), format!("ARRAY /dev/md3 {uuid}"));
}

#[test]
fn variables_for_scripts() {
    let five = raid5();
    let export = "MD_LEVEL=raid5\nMD_DEVICES=3\nMD_METADATA=1.2\nMD_UUID=8cbf045b:56b099a2:8c7f816f:64d00580\n\
                  MD_NAME=box:data\n\
                  MD_DEVICE_dev_ubdd_ROLE=spare\nMD_DEVICE_dev_ubdd_DEV=/dev/ubdd\n\
                  MD_DEVICE_dev_ubdb_ROLE=1\nMD_DEVICE_dev_ubdb_DEV=/dev/ubdb\n";
    assert_eq!(detail_export(&running(&five, "/dev/md0", &[3, 1])), export);
    let export = "MD_LEVEL=raid5\nMD_DEVICES=3\nMD_NAME=box:data\nMD_ARRAY_SIZE=37.75MB\n\
                  MD_UUID=8cbf045b:56b099a2:8c7f816f:64d00580\nMD_UPDATE_TIME=1796045605\n\
                  MD_DEV_UUID=a5c29608:6b8caca5:b81e2125:4491b52e\nMD_EVENTS=0\n";
    assert_eq!(examine_export(&five.members[0].superblock), export);
    let export = "MD_LEVEL=raid1\nMD_DEVICES=2\nMD_UUID=394d096a:dddefceb:9b2ba25c:c8e0d1de\n\
                  MD_UPDATE_TIME=1796045605\nMD_EVENTS=0\n";
    assert_eq!(examine_export(&raid1().members[0].superblock), export);
}

#[test]
fn queries() {
    let five = raid5();
    let text = "/dev/md0: 36.00MiB raid5 3 devices, 1 spare. Use mdadm --detail for more detail.\n";
    assert_eq!(query_array(&running(&five, "/dev/md0", &[0, 1, 2, 3]), "mdadm --detail"), text);
    let text = "/dev/md3: 19.94MiB raid1 2 devices, 0 spares. Use mdadm --detail for more detail.\n";
    assert_eq!(query_array(&running(&raid1(), "/dev/md3", &[0, 1]), "mdadm --detail"), text);
    let facts = five.members[3].superblock.array();
    let text = "/dev/ubdd: is not an md array\n\
                /dev/ubdd: device 3 in 3 device active raid5 /dev/md0.  Use mdadm --examine for more detail.\n";
    assert_eq!(query_device("/dev/ubdd", Some((&facts, 3)), Some("/dev/md0"), "mdadm --examine"), text);
    let text = "/dev/ubda: is not an md array\n\
                /dev/ubda: device 0 in 3 device inactive raid5 array.  Use mdadm --examine for more detail.\n";
    assert_eq!(query_device("/dev/ubda", Some((&facts, 0)), None, "mdadm --examine"), text);
    assert_eq!(query_device("/dev/ubdc", None, None, "mdadm --examine"), "/dev/ubdc: is not an md array\n");
}

#[test]
fn an_inactive_array() {
    let one = raid1();
    let mut view = running(&one, "/dev/md3", &[0]);
    view.state = RunState::Inactive;
    view.array_size = Sectors::from_kib(20416);
    view.devices[0].role = DeviceRole::Spare;
    assert_eq!(mdstat_array(&view), "md3 : inactive ubda[0](S)\n      20416 blocks\n       \n");
    let context = Context { time: &|_| String::new(), homehost: None, device: &|_, _| None };
    let text = "/dev/md3:\n           Version : 0.90\n        Raid Level : raid1\n     Total Devices : 1\n   \
                Preferred Minor : 3\n       Persistence : Superblock is persistent\n\n             \
                State : inactive\n   Working Devices : 1\n\n              \
                UUID : 394d096a:dddefceb:9b2ba25c:c8e0d1de\n            Events : 0.1\n\n    \
                Number   Major   Minor   RaidDevice\n\n       \
                -      98        0        -        /dev/ubda\n";
    assert_eq!(detail(&view, &context), text);
    assert_ne!(view.uuid, MdUuid::default());
}

#[test]
fn what_waits_and_what_is_read_only() {
    use raidus_text::{SyncAction, SyncView};
    let five = raid5();
    let mut view = running(&five, "/dev/md0", &[3, 2, 1, 0]);
    view.read_only = ReadOnly::Auto;
    view.sync = Some(SyncView::Pending(SyncAction::Resync));
    let text = mdstat_array(&view);
    assert!(text.starts_with("md0 : active (auto-read-only) raid5 ubda[0] ubdb[1] ubdc[2] ubdd[3](S)\n"), "{text}");
    assert!(text.contains("[3/3] [UUU]\n      \tresync=PENDING\n      \n"), "{text}");
    let context = Context { time: &|_| String::new(), homehost: Some("box"), device: &|_, _| None };
    let text = detail(&view, &context);
    assert!(text.contains("State : clean, resyncing (PENDING) \n"), "{text}");
    assert!(text.contains("Name : box:data  (local to host box)\n"), "{text}");
    view.devices.truncate(2);
    assert!(detail(&view, &context).contains("State : clean, FAILED, resyncing (PENDING) \n"));
}
