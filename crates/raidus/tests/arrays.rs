//! Arrays from creation to the end, used by clients that are not ours.

mod common;

use common::{Place, tool};

const MIB: u64 = 1 << 20;

/// Writes a pattern with QEMU and gives it back with libnbd.
fn io(uri: &str, place: &Place) {
    let script = ["write -P 0x5a 1M 3M", "write -P 0xa5 70k 9k", "flush", "read -P 0x5a 1M 3M", "read -P 0xa5 70k 9k"];
    let mut args = vec!["-f", "raw"];
    for command in script {
        args.extend(["-c", command]);
    }
    args.push(uri);
    let done = tool("qemu-io", &args);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(!done.out.contains("failed"), "{done:?}");
    let copy = place.file("copy");
    let copied = tool("nbdcopy", &[uri, copy.to_str().unwrap()]);
    assert_eq!(copied.code, Some(0), "{copied:?}");
    check_pattern(place);
}

/// What [`io`] wrote, in a copy of the array.
fn check_pattern(place: &Place) {
    let copy = place.content("copy");
    let all = |range: std::ops::Range<u64>, byte: u8| {
        copy[range.start as usize..range.end as usize].iter().all(|b| *b == byte)
    };
    assert!(all(MIB..4 * MIB, 0x5a) && all(70 * 1024..79 * 1024, 0xa5) && all(0..70 * 1024, 0));
}

fn copy_again(uri: &str, place: &Place) {
    std::fs::remove_file(place.file("copy")).unwrap();
    let copied = tool("nbdcopy", &[uri, place.file("copy").to_str().unwrap()]);
    assert_eq!(copied.code, Some(0), "{copied:?}");
    check_pattern(place);
}

fn events(place: &Place, disk: &str) -> u64 {
    place.json(&["examine", "--json", disk])[0]["superblock"]["events"].as_u64().unwrap()
}

fn is_clean(place: &Place, disk: &str) -> bool {
    place.json(&["examine", "--json", disk])[0]["superblock"]["clean"].as_bool().unwrap()
}

#[test]
fn create_serve_use_stop_examine() {
    for (level, disks, more) in
        [("6", 6, ""), ("5", 3, "--assume-clean"), ("1", 2, "--bitmap=internal"), ("10", 4, "-pf2")]
    {
        let place = Place::new();
        let names: Vec<String> = (0..disks).map(|i| format!("d{i}")).collect();
        let (level, count) = (format!("--level={level}"), format!("--raid-devices={disks}"));
        let mut words = vec!["create", &level, &count, "--image-size=64M", "--chunk=64", "--name=data"];
        if !more.is_empty() {
            words.push(more);
        }
        words.retain(|w| level != "--level=1" || !w.starts_with("--chunk"));
        let made = place.ok_on(&words, &names);
        assert!(made.err.contains("raidus: Defaulting to version 1.2 metadata\n"), "{}", made.err);
        assert!(made.err.contains(":data created.\n"), "{}", made.err);

        let served = place.serve(&[], &names);
        assert_eq!(served.name, "md_data");
        io(&served.uri, &place);
        let status = place.json(&["status", "--json", "data"]);
        assert_eq!(status[0]["degraded"], 0);
        assert_eq!(status[0]["members"].as_array().unwrap().len(), disks);
        let ended = served.end("INT");
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(!place.file("run").join("md_data.nbd").exists() && !place.file("run").join("md_data.control").exists());

        let all: Vec<u64> = names.iter().map(|d| events(&place, d)).collect();
        assert!(all[0] > 0 && all.iter().all(|e| *e == all[0]), "{all:?}");
        if more == "--assume-clean" {
            assert!(names.iter().all(|d| is_clean(&place, d)));
        }

        let again = place.serve(&["--readonly"], &names);
        copy_again(&again.uri, &place);
        assert_eq!(again.end("TERM").code, Some(0));
        assert_eq!(events(&place, "d0"), all[0], "reading changes nothing");
    }
}

#[test]
fn in_the_background() {
    let place = Place::new();
    let disks = place.images(3, 64 * MIB);
    place.ok_on(&["create", "-l", "5", "-n", "3", "--assume-clean"], &disks);
    let started = place.ok_on(&["assemble"], &disks);
    assert_eq!(started.err, "raidus: md0 has been started with 3 drives.\n");
    let uri = started.out.trim();
    assert!(uri.starts_with("nbd+unix:///?socket="), "{uri}");
    io(uri, &place);

    // The array is found by its name, its own name, its UUID, a member, its socket.
    let uuid = place.json(&["status", "--json"])[0]["uuid"].as_str().unwrap().to_owned();
    let socket = place.file("run").join("md0.nbd").display().to_string();
    for word in ["md0", "0", &uuid, "d1", &socket] {
        let detail = place.ok(&["detail", word]).out;
        assert!(detail.contains("        Raid Level : raid5\n") && detail.contains(&uuid), "{word}: {detail}");
    }
    let brief = place.ok(&["detail", "--brief"]).out;
    assert!(brief.starts_with("ARRAY ") && brief.ends_with(&format!("UUID={uuid}\n")), "{brief}");
    assert!(place.ok(&["detail", "--export", "md0"]).out.starts_with("MD_LEVEL=raid5\nMD_DEVICES=3\n"));
    let query = place.ok(&["query", "d1", "md0"]).out;
    assert!(query.contains("d1: device 1 in 3 device active raid5 md0."), "{query}");
    assert!(query.contains(" raid5 3 devices, 0 spares."), "{query}");

    let stopped = place.ok(&["stop", "md0"]);
    assert_eq!(stopped.err, "raidus: stopped md0\n");
    assert!(disks.iter().all(|d| is_clean(&place, d)));
    // Members are free as soon as it says so.
    let again = place.ok_on(&["assemble", "--as=again", "--json"], &disks);
    let ready: serde_json::Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!(ready["name"], "again");
    copy_again(ready["nbd"][0].as_str().unwrap(), &place);
    place.ok(&["stop", "--all"]);
    assert_eq!(place.json(&["status", "--json"]), serde_json::json!([]));
}

#[test]
fn killed_while_writing() {
    let place = Place::new();
    let disks = place.images(3, 64 * MIB);
    place.ok_on(&["create", "-l", "5", "-n", "3", "--assume-clean"], &disks);
    let served = place.serve(&[], &disks);
    let written =
        tool("qemu-io", &["-f", "raw", "-c", "write -P 7 0 1M", "-c", "flush", "-c", "sigraise 9", &served.uri]);
    assert!(written.out.contains("wrote 1048576/1048576"), "{written:?}");
    served.end("KILL");
    assert!(place.file("run").join("md0.nbd").exists(), "a killed process cannot clean up");
    assert_eq!(place.json(&["status", "--json"]), serde_json::json!([]));

    // It was dirty or is marked clean again since; in both cases all members agree and it starts, taking over the sockets.
    let explained = place.ok_on(&["assemble", "--explain"], &disks);
    assert!(explained.out.contains("starts"), "{}", explained.out);
    let started = place.ok_on(&["assemble"], &disks);
    assert!(started.err.contains("md0 has been started with 3 drives."), "{}", started.err);
    let read = tool("qemu-io", &["-f", "raw", "-c", "read -P 7 0 1M", started.out.trim()]);
    assert!(read.out.contains("read 1048576/1048576") && !read.out.contains("failed"), "{read:?}");
    place.ok(&["stop", "md0"]);
}

#[test]
fn overlays_keep_members_as_they_are() {
    let (place, disks) = Place::golden("raid5-1.2-n3-64k");
    let before: Vec<Vec<u8>> = disks.iter().map(|d| place.content(d)).collect();
    for overlay in ["--overlay=memory", "--overlay=."] {
        let served = place.serve(&[overlay], &disks);
        io_anywhere(&served.uri);
        assert_eq!(place.json(&["status", "--json"])[0]["overlay"], true);
        assert_eq!(served.end("TERM").code, Some(0));
    }
    let after: Vec<Vec<u8>> = disks.iter().map(|d| place.content(d)).collect();
    assert!(before == after);
}

fn io_anywhere(uri: &str) {
    let done = tool("qemu-io", &["-f", "raw", "-c", "write -P 1 1M 1M", "-c", "flush", "-c", "read -P 1 1M 1M", uri]);
    assert!(done.out.contains("read 1048576/1048576") && !done.out.contains("failed"), "{done:?}");
}

#[test]
fn read_only_arrays_refuse_writes() {
    let (place, disks) = Place::golden("raid1-1.2-n2");
    let before = place.content(&disks[0]);
    let served = place.serve(&["--readonly"], &disks);
    let done = tool("qemu-io", &["-f", "raw", "-c", "write 0 4k", &served.uri]);
    assert_ne!((done.code, done.out.contains("wrote 4096/4096")), (Some(0), true), "{done:?}");
    let status = place.ok(&["status"]).out;
    assert!(status.contains(&format!("{} : active (read-only) raid1 ", served.name)), "{status}");
    assert_eq!(served.end("TERM").code, Some(0));
    assert!(place.content(&disks[0]) == before);
}

#[test]
fn over_tcp_and_at_a_socket_of_ones_own() {
    let (place, disks) = Place::golden("raid1-1.2-n2");
    let served = place.serve(&["--readonly", "--tcp=127.0.0.1:0"], &disks);
    assert!(served.uri.starts_with("nbd://127.0.0.1:"), "{}", served.uri);
    assert_eq!(tool("nbdinfo", &["--size", &served.uri]).code, Some(0));
    assert_eq!(served.end("TERM").code, Some(0));
    let served = place.serve(&["--readonly", "--socket=own.sock"], &disks);
    assert!(served.uri.ends_with("own.sock"), "{}", served.uri);
    let socket = place.file("own.sock");
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    assert_eq!(tool("nbdinfo", &["--size", &uri]).code, Some(0));
    assert_eq!(served.end("TERM").code, Some(0));
    assert!(!socket.exists());
}

#[test]
fn stop_ends_a_served_array() {
    let (place, disks) = Place::golden("raid1-1.2-n2");
    let served = place.serve(&[], &disks);
    place.ok(&["stop", &served.name]);
    assert_eq!(served.ended(), Some(0));
}

/// What the kernel put into an array comes out of ours.
#[test]
fn golden_arrays_read_as_the_kernel_read_them() {
    for name in ["raid0-1.2-n3-uneven-alternate", "raid6-0.90-n4-64k", "degraded-raid6-1.2-2", "raid10-1.0-n3-64k-f2"] {
        let case = raidus_golden::case(name);
        let (place, disks) = Place::golden(&case.name);
        let served = place.serve(&["--readonly", "--run"], &disks);
        let copied = tool("nbdcopy", &[&served.uri, place.file("copy").to_str().unwrap()]);
        assert_eq!(copied.code, Some(0), "{copied:?}");
        let copy = place.content("copy");
        assert_eq!(copy.len() as u64, case.manifest.size_bytes, "{}", case.name);
        let pattern = case.manifest.pattern.as_deref().unwrap();
        assert_eq!(raidus_golden::pattern::check(pattern, 0, &copy), Ok(()), "{}", case.name);
    }
}

#[test]
fn mounted_as_a_file() {
    let (place, disks) = Place::golden("raid5-1.2-n3-64k");
    let case = raidus_golden::case("raid5-1.2-n3-64k");
    place.refused(1, &["mount", "nowhere", &disks[0], &disks[1], &disks[2]], &["nowhere: there is no such directory"]);
    if !std::path::Path::new("/dev/fuse").exists() {
        std::fs::create_dir(place.file("at")).unwrap();
        place.refused(1, &["mount", "at", &disks[0], &disks[1], &disks[2]], &["/dev/fuse", "NBD"]);
        return;
    }
    std::fs::create_dir(place.file("at")).unwrap();
    let served = place.serve(&["--readonly", "--mount=at"], &disks);
    let content = place.content(&format!("at/{}", served.name));
    assert_eq!(content.len() as u64, case.manifest.size_bytes);
    assert_eq!(raidus_golden::pattern::check(case.manifest.pattern.as_deref().unwrap(), 0, &content), Ok(()));
    assert_eq!(place.content("at/md/level"), b"raid5\n");
    assert_eq!(String::from_utf8(place.content("at/mdstat")).unwrap(), place.ok(&["status"]).out);
    // In use, it is not taken away.
    let held = std::fs::File::open(place.file("at").join(&served.name)).unwrap();
    place.refused(1, &["stop", &served.name], &["still in use"]);
    drop(held);
    place.ok(&["stop", &served.name]);
    assert_eq!(served.ended(), Some(0));
    assert_eq!(std::fs::read_dir(place.file("at")).unwrap().count(), 0);
}
