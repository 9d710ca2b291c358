//! What commands print: texts that other programs read, JSON, help.

mod common;

use common::Place;

#[test]
fn examine_prints_what_mdadm_prints() {
    for name in
        ["raid5-1.2-n3-64k", "raid1-0.90-n2", "raid10-1.0-n3-64k-f2", "badblocks-raid1-1.2", "raid1-1.2-n2-bitmap"]
    {
        let case = raidus_golden::case(name);
        let (place, disks) = Place::golden(name);
        for (n, disk) in disks.iter().enumerate() {
            let ours = place.command(&["examine", "--homehost=testhost", disk]).env("TZ", "UTC").output().unwrap();
            let ours = String::from_utf8(ours.stdout).unwrap();
            let theirs = case.text_of_disk("examine.txt", n);
            // The first line names the device, and device tables name nodes of the machine where they were made.
            let rest = |text: &str| -> Vec<String> {
                text.lines().skip(1).map(|l| l.split("   /dev/").next().unwrap_or_default().to_owned()).collect()
            };
            assert_eq!(rest(ours.trim_matches('\n')), rest(theirs.trim_matches('\n')), "{name} {disk}");
        }
    }
}

#[test]
fn bitmaps_and_bad_blocks() {
    let (place, disks) = Place::golden("raid1-1.2-n2-bitmap");
    let bitmap = place.ok(&["examine", "-X", &disks[0]]).out;
    assert!(bitmap.contains("           Magic : 6d746962\n") && bitmap.contains(" bits (chunks), "), "{bitmap}");
    place.refused(1, &["examine", "-X", &Place::new().image("x", 0)], &["x"]);
    let case = raidus_golden::case("badblocks-raid1-1.2");
    let (place, disks) = Place::golden("badblocks-raid1-1.2");
    let all: String = disks.iter().map(|d| place.ok(&["examine", "--badblocks", d]).out).collect();
    let ranges = case.manifest.members.iter().flat_map(|m| &m.bad_blocks).count();
    assert!(ranges > 0);
    assert_eq!(all.matches(" sectors\n").count(), ranges, "{all}");
}

#[test]
fn examine_brief_has_a_line_per_array() {
    let (place, disks) = Place::golden("raid5-1.2-n3-64k");
    let case = raidus_golden::case("raid5-1.2-n3-64k");
    let brief = place.ok_on(&["examine", "--brief"], &disks).out;
    assert_eq!(brief.lines().count(), 1, "{brief}");
    assert!(brief.contains(&format!("UUID={}", case.manifest.uuid)), "{brief}");
    let export = place.ok(&["examine", "--export", &disks[0]]).out;
    assert!(export.lines().all(|l| l.split_once('=').is_some_and(|(key, _)| key.starts_with("MD_"))), "{export}");
}

/// A line of mdstat as programs take it apart.
#[derive(Debug, PartialEq)]
struct Entry {
    name: String,
    state: String,
    level: String,
    devices: Vec<(String, u32)>,
    blocks: u64,
    counts: Option<(u32, u32, String)>,
}

/// As monitoring scripts do it: words between spaces.
fn parse_mdstat(text: &str) -> Vec<Entry> {
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("Personalities : [") && lines[lines.len() - 1].starts_with("unused devices: "),
        "{text}"
    );
    let mut entries = Vec::new();
    for pair in lines.windows(2) {
        let Some((name, rest)) = pair[0].split_once(" : ") else { continue };
        if !name.starts_with("md") {
            continue;
        }
        let words: Vec<&str> = rest.split(' ').filter(|w| !w.starts_with('(')).collect();
        let device = |w: &&str| {
            let (name, number) = w.split_once('[').unwrap();
            (name.to_owned(), number.split(']').next().unwrap().parse().unwrap())
        };
        let second: Vec<&str> = pair[1].split_whitespace().collect();
        assert_eq!(second[1], "blocks", "{text}");
        let counts = second.iter().find(|w| w.contains('/')).map(|w| {
            let (total, good) = w.trim_matches(['[', ']']).split_once('/').unwrap();
            (total.parse().unwrap(), good.parse().unwrap(), second[second.len() - 1].to_owned())
        });
        entries.push(Entry {
            name: name.to_owned(),
            state: words[0].to_owned(),
            level: words[1].to_owned(),
            devices: words[2..].iter().map(device).collect(),
            blocks: second[0].parse().unwrap(),
            counts,
        });
    }
    entries
}

#[test]
fn status_is_mdstat() {
    let (place, disks) = Place::golden("degraded-raid5-1.2");
    let case = raidus_golden::case("degraded-raid5-1.2");
    let served = place.serve(&["--readonly", "--run"], &disks);
    let entries = parse_mdstat(&place.ok(&["status"]).out);
    assert_eq!(entries.len(), 1);
    let Entry { name, state, level, devices, blocks, counts } = &entries[0];
    assert_eq!((name.as_str(), state.as_str(), level.as_str()), (served.name.as_str(), "active", "raid5"));
    assert_eq!(*blocks, case.manifest.size_bytes / 1024);
    assert!(devices.iter().all(|(name, _)| disks.contains(name)), "{devices:?}");
    let (total, good, letters) = counts.clone().unwrap();
    assert_eq!((total, total - good), (case.manifest.raid_disks, case.manifest.degraded.unwrap()));
    assert_eq!(letters.matches('U').count() as u32, good);
    assert_eq!(place.ok(&["status", &served.name]).out, place.ok(&["status"]).out);
    assert_eq!(served.end("TERM").code, Some(0));
}

#[test]
fn explanations_name_every_device_and_why() {
    let (place, mut disks) = Place::golden("degraded-raid5-1.2");
    disks.push(place.image("blank.img", 1 << 20));
    disks.push("absent.img".to_owned());
    let explained = place.run_on(&["assemble", "--explain", "--run"], &disks);
    assert_eq!(explained.code, Some(0), "{explained:?}");
    let line = |device: &str| {
        explained.out.lines().find(|l| l.starts_with(device)).unwrap_or_else(|| panic!("{}", explained.out))
    };
    assert!(line("blank.img").ends_with("out: has no md superblock"));
    assert!(line("absent.img").contains("out: cannot be read: no such file or device"), "{}", explained.out);
    assert!(explained.out.contains("starts, degraded (1 of"), "{}", explained.out);
    assert!(
        explained.out.lines().any(|l| l.contains("out: is stale: at event") || l.contains("out: has failed")),
        "{}",
        explained.out
    );
}

#[test]
fn json_is_valid_everywhere() {
    let (place, disks) = Place::golden("raid6-1.2-n5-64k-left-symmetric");
    let on = |words: &[&str]| {
        let all: Vec<&str> = words.iter().copied().chain(disks.iter().map(String::as_str)).collect();
        place.json(&all)
    };
    let examined = on(&["examine", "--json"]);
    assert_eq!(examined.as_array().unwrap().len(), disks.len());
    assert_eq!(examined[0]["superblock"]["level"], 6);
    let explained = on(&["assemble", "--explain", "--json"]);
    assert_eq!(explained["verdict"], "start");
    assert_eq!(explained["members"].as_array().unwrap().len(), disks.len());
    let detail = on(&["detail", "--json"]);
    assert_eq!((detail.as_array().unwrap().len(), &detail[0]["running"]), (1, &serde_json::json!(false)));
    let broken = place.json(&["examine", "--json", "nothing"]);
    assert!(broken[0]["error"].as_str().unwrap().contains("no such file"));
    let served = place.serve(&["--readonly"], &disks);
    let status = place.json(&["status", "--json"]);
    assert_eq!(status[0]["raid_disks"], disks.len());
    let detail = place.json(&["detail", "--json", &disks[0]]);
    assert_eq!(
        (&detail[0]["running"], &detail[0]["array"]["level"]),
        (&serde_json::json!(true), &serde_json::json!("raid6"))
    );
    assert_eq!(served.end("TERM").code, Some(0));
    let fresh = place.images(2, 32 << 20);
    let made = place.json(&["create", "--json", "-l", "1", "-n", "2", &fresh[0], &fresh[1]]);
    assert_eq!(made["level"], "raid1");
}

#[test]
fn detail_of_devices_that_do_not_run() {
    let (place, disks) = Place::golden("raid5-1.2-n3-64k");
    let detail = place.ok_on(&["detail"], &disks).out;
    assert!(detail.contains("             State : inactive\n"), "{detail}");
    assert!(detail.contains("     Total Devices : 3\n"), "{detail}");
}

#[test]
fn zero_superblock_removes_the_superblock_and_nothing_else() {
    let (place, disks) = Place::golden("raid1-1.2-n2");
    let before = place.content(&disks[0]);
    let said = place.ok(&["zero-superblock", &disks[0]]);
    assert!(said.err.contains("disk0.img: removed the 1.2 superblock of array"), "{}", said.err);
    let after = place.content(&disks[0]);
    let differs: Vec<usize> = (0..before.len()).filter(|i| before[*i] != after[*i]).collect();
    assert!(!differs.is_empty() && differs.iter().all(|i| (4096..8192).contains(i)));
    place.refused(1, &["examine", &disks[0]], &["No md superblock detected"]);
    place.ok(&["examine", &disks[1]]);
}

#[test]
fn write_mostly_holds_for_the_devices_after_it() {
    let place = Place::new();
    let disks = place.images(3, 32 << 20);
    place.ok(&["create", "-l", "1", "-n", "3", &disks[0], "--write-mostly", &disks[1], &disks[2]]);
    let flags: Vec<bool> = disks
        .iter()
        .map(|d| place.json(&["examine", "--json", d])[0]["superblock"]["write_mostly"].as_bool().unwrap())
        .collect();
    assert_eq!(flags, [false, true, true]);
}

#[test]
fn help_says_what_there_is() {
    let place = Place::new();
    let help = place.ok(&["--help"]).out;
    let commands = "create assemble mount serve examine detail query status stop add re-add fail remove replace grow scrub wait events get \
                    set map zero-superblock";
    for command in commands.split_whitespace() {
        assert!(help.contains(&format!("  {command} ")), "{command}: {help}");
        let long = place.ok(&["help", command]).out;
        assert_eq!(long, place.ok(&[command, "--help"]).out);
        let short = place.ok(&[command, "-h"]).out;
        assert!(short.len() < long.len(), "{command}");
        assert!(long.lines().all(|l| l.chars().count() <= 110), "{command}: {long}");
    }
    assert!(help.contains("Exit status:") && help.contains("RAIDUS_RUN_DIR"));
    assert!(!help.contains("\n  hold"), "not for users");
    assert!(place.ok(&["--version"]).out.starts_with("raidus "));
}
