//! Everything that is refused: with which words, which status, and that nothing was changed.

mod common;

use std::process::Stdio;

use common::{PROGRAM, Place, said, tool};

const MIB: u64 = 1 << 20;

/// Assembling refuses with these words, explaining does, too, and no image changes.
fn not_assembled(place: &Place, devices: &[String], parts: &[&str]) {
    let before: Vec<Vec<u8>> = devices.iter().map(|d| place.content(d)).collect();
    place.refused_on(&["assemble"], devices, parts);
    let explained = place.run_on(&["assemble", "--explain"], devices);
    assert_eq!(explained.code, Some(1), "{explained:?}");
    for part in parts {
        assert!(explained.out.contains(part), "no {part:?} in {}", explained.out);
    }
    for (device, before) in devices.iter().zip(before) {
        assert!(place.content(device) == before, "{device} was changed");
    }
    assert_eq!(place.ok(&["status"]).out.lines().count(), 2, "nothing runs");
}

#[test]
fn too_few_members() {
    let (place, disks) = Place::golden("raid5-1.2-n4-64k-left-symmetric");
    not_assembled(&place, &disks[..2], &["not enough members", "2 of 4 slots"]);
    not_assembled(&place, &disks[..3], &["slot 3 is missing", "--run"]);
}

#[test]
fn members_of_different_arrays() {
    let (place, mut disks) = Place::golden("raid1-1.2-n2");
    let other = raidus_golden::case("raid5-1.2-n3-64k");
    for n in 0..3 {
        let name = format!("other{n}.img");
        raidus_golden::write_sparse(&place.file(&name), &other.image(n)).unwrap();
        disks.push(name);
    }
    not_assembled(&place, &disks, &["2 different arrays", "--uuid"]);
    let uuid = format!("--uuid={}", other.manifest.uuid);
    let explained = place.run_on(&["assemble", "--explain", &uuid], &disks);
    assert_eq!(explained.code, Some(0), "{explained:?}");
    assert!(explained.out.contains("which was not asked for"));
}

#[test]
fn the_same_member_twice() {
    let (place, mut disks) = Place::golden("raid1-1.2-n2");
    std::fs::copy(place.file(&disks[0]), place.file("copy.img")).unwrap();
    disks.push("copy.img".to_owned());
    not_assembled(&place, &disks, &["are the same member"]);
    place.refused_on(&["assemble"], &[disks[0].clone(), disks[0].clone()], &["same device", "name each member once"]);
}

#[test]
fn truncated_images() {
    let (place, disks) = Place::golden("raid5-1.2-n3-64k");
    for disk in &disks {
        let file = std::fs::OpenOptions::new().write(true).open(place.file(disk)).unwrap();
        file.set_len(file.metadata().unwrap().len() - 4 * MIB).unwrap();
    }
    not_assembled(&place, &disks, &["cut short"]);
}

#[test]
fn a_corrupt_checksum() {
    let (place, disks) = Place::golden("raid1-1.2-n2");
    for disk in &disks {
        // In the set name, which nothing else checks.
        place.poke(disk, 4096 + 40, b"?");
    }
    not_assembled(&place, &disks, &["checksum"]);
    let examined = place.ok(&["examine", &disks[0]]);
    assert!(examined.out.contains("expected"), "{}", examined.out);
    assert!(examined.err.contains("checksum"), "{}", examined.err);
}

#[test]
fn unknown_features() {
    let (place, disks) = Place::golden("raid1-1.2-n2");
    for disk in &disks {
        let mut block = place.content(disk)[4096..4096 + 4096].to_vec();
        block[8..12].copy_from_slice(&0x8000_0000_u32.to_le_bytes());
        set_checksum(&mut block);
        place.poke(disk, 4096, &block);
    }
    not_assembled(&place, &disks, &["unknown features 0x80000000"]);
}

/// The checksum of a 1.x superblock: the sum of its words without the checksum, folded.
fn set_checksum(block: &mut [u8]) {
    block[216..220].fill(0);
    let max_dev = u32::from_le_bytes(block[220..224].try_into().unwrap());
    let len = 256 + 2 * max_dev as usize;
    let mut sum: u64 =
        block[..len / 4 * 4].chunks_exact(4).map(|w| u64::from(u32::from_le_bytes(w.try_into().unwrap()))).sum();
    if len % 4 == 2 {
        sum += u64::from(u16::from_le_bytes(block[len - 2..len].try_into().unwrap()));
    }
    let folded = (sum & 0xffff_ffff) as u32;
    let folded = folded.wrapping_add((sum >> 32) as u32);
    block[216..220].copy_from_slice(&folded.to_le_bytes());
}

#[test]
fn a_reshape_in_progress() {
    let case = raidus_golden::cases().iter().find(|c| c.manifest.reshape_position.is_some()).unwrap();
    let (place, disks) = Place::golden(&case.name);
    not_assembled(&place, &disks, &["reshape"]);
}

#[test]
fn a_journal_that_is_missing_or_damaged() {
    let (place, disks) = Place::golden("journal-dirty-raid5-1.2");
    not_assembled(&place, &disks[..3], &["write journal", "missing or stale", "--force"]);
    // Its tail: the first block of the log that is to be replayed.
    let journal = place.content(&disks[3]);
    let word = |at: usize| u64::from_le_bytes(journal[4096 + at..][..8].try_into().unwrap());
    let tail = (word(128) + word(152)) * 512;
    place.poke(&disks[3], tail, &[0; 512]);
    not_assembled(&place, &disks, &["cannot be replayed", "no log begins where it should", "--force"]);
}

#[test]
fn a_clustered_bitmap() {
    let (place, disks) = Place::golden("raid1-1.2-n2-bitmap");
    for disk in &disks {
        let mut block = place.content(disk)[4096..4096 + 4096].to_vec();
        let features = u32::from_le_bytes(block[8..12].try_into().unwrap());
        block[8..12].copy_from_slice(&(features | 0x100).to_le_bytes());
        set_checksum(&mut block);
        place.poke(disk, 4096, &block);
    }
    not_assembled(&place, &disks, &["cluster"]);
}

#[test]
fn an_uneven_raid0_that_does_not_tell_its_layout() {
    let (place, disks) = Place::golden("raid0-1.2-n4-uneven2-original");
    for disk in &disks {
        let mut block = place.content(disk)[4096..4096 + 4096].to_vec();
        let features = u32::from_le_bytes(block[8..12].try_into().unwrap());
        block[8..12].copy_from_slice(&(features & !0x1000).to_le_bytes());
        set_checksum(&mut block);
        place.poke(disk, 4096, &block);
    }
    not_assembled(&place, &disks, &["layout"]);
    let told = place.run_on(&["assemble", "--explain", "--layout=original"], &disks);
    assert_eq!(told.code, Some(0), "{told:?}");
}

#[test]
fn dirty_and_degraded() {
    let (place, disks) = Place::golden("dirty-degraded-raid5-1.2");
    not_assembled(&place, &disks, &["stopped while being written", "--force"]);
    let explained = place.run_on(&["assemble", "--explain"], &disks);
    assert!(explained.out.contains("with --force: the array would be marked clean"), "{}", explained.out);
    let forced = place.run_on(&["assemble", "--explain", "--force"], &disks);
    assert_eq!(forced.code, Some(0), "{forced:?}");
}

#[test]
fn stale_members() {
    // A raid1 whose second half went on alone, twice.
    let place = Place::new();
    let disks = place.images(2, 32 * MIB);
    place.ok_on(&["create", "-l", "1", "-n", "2", "--assume-clean"], &disks);
    for _ in 0..2 {
        let served = place.serve(&["--run"], &disks[1..]);
        let done = tool("qemu-io", &["-f", "raw", "-c", "write -P 9 0 64k", "-c", "flush", &served.uri]);
        assert!(done.out.contains("wrote 65536/65536"), "{done:?}");
        assert_eq!(served.end("TERM").code, Some(0));
    }
    let explained = place.run_on(&["assemble", "--explain", "--run"], &disks);
    let line = |disk: &str| explained.out.lines().find(|l| l.starts_with(disk)).unwrap_or_default();
    assert!(line("d0").contains("out: is stale: at event 0, the array is at"), "{}", explained.out);
    assert!(line("d1").ends_with("in sync"), "{}", explained.out);
    // Both are there, so Linux's rule is to start with the fresh one; the stale one is named.
    let served = place.serve(&["--run", "--readonly"], &disks);
    let said = served.end("TERM");
    assert!(said.err.contains("d0: is stale"), "{said:?}");
}

#[test]
fn things_that_are_no_members() {
    let place = Place::new();
    let image = place.image("empty.img", MIB);
    not_assembled(&place, std::slice::from_ref(&image), &["none of the devices given is a usable member"]);
    place.refused(1, &["assemble", "nothing.img"], &["nothing.img: no such file or device"]);
    place.refused(1, &["assemble", "."], &["is a directory"]);
    place.refused(1, &["examine", &image], &["No md superblock detected on empty.img."]);
    place.refused(1, &["zero-superblock", &image], &["No md superblock detected on empty.img."]);
    place.image("tiny.img", 4096);
    place.refused(1, &["examine", "tiny.img"], &["tiny.img has only 4096 bytes"]);
    let query = place.ok(&["query", &image]);
    assert_eq!(query.out, "empty.img: is not an md array\n");
}

#[test]
fn devices_that_hold_something_are_not_overwritten() {
    let place = Place::new();
    let disks = place.images(2, 32 * MIB);
    let create = ["create", "-l", "1", "-n", "2"];
    place.poke(&disks[0], 1080, &[0x53, 0xef]);
    place.poke(&disks[1], 0, b"XFSB");
    let both = ["d0: holds an ext2 file system", "d1: holds an XFS file system", "--run"];
    place.refused_on(&create, &disks, &both);
    assert!(!place.content(&disks[1])[4096..8192].iter().any(|b| *b != 0));
    place.ok_on(&["create", "-l", "1", "-n", "2", "--run"], &disks);
    let again = place.refused_on(&create, &disks, &["d0: holds an md superblock 1.2 (member of array"]);
    assert!(again.err.contains("raid1, 2 devices"), "{}", again.err);
}

#[test]
fn arrays_that_cannot_be_made() {
    let place = Place::new();
    let disks = place.images(4, 32 * MIB);
    let refused = |words: &[&str], parts: &[&str]| {
        let mut all = vec!["create"];
        all.extend(words);
        place.refused_on(&all, &disks, parts);
    };
    refused(&["-l", "6", "-n", "3", "-x", "1"], &["raid6 needs at least 4 devices, not 3"]);
    refused(&["-l", "5", "-n", "3"], &["4 devices are listed, more than the 3 slots"]);
    refused(&["-l", "5", "-n", "5"], &["5 devices", "4 devices are listed"]);
    refused(&["-l", "5", "-n", "4", "--size=1G"], &["--size=1048576 KiB is more than d0 has"]);
    refused(&["-l", "5", "-n", "4", "--chunk=3"], &["a chunk of 3 KiB is not possible"]);
    refused(&["-l", "1", "-n", "4", "--name", &"x".repeat(33)], &["longer than 32 bytes"]);
    refused(&["-l", "0", "-n", "3", "-x", "1"], &["no redundancy and can use no spares"]);
    place.image("small", 512 << 10);
    place.refused(1, &["create", "-l", "1", "-n", "2", "d0", "small"], &["small is too small"]);
    place.refused(1, &["create", "-l", "1", "-n", "2", "d0", "d0"], &["same device"]);
    place.refused(1, &["create", "-l", "5", "-n", "3", "d0", "missing", "missing"], &["missing devices are too many"]);
    place.refused(1, &["create", "-l", "1", "-n", "2", "--image-size=64M", "d0", "new"], &["d0: exists already"]);
    assert!(!place.file("new").exists());
    for disk in &disks {
        assert!(place.content(disk).iter().all(|b| *b == 0), "{disk} was written");
    }
}

#[test]
fn images_of_a_creation_that_failed_are_removed() {
    let place = Place::new();
    place.refused(1, &["create", "-l", "6", "-n", "4", "--image-size=64K", "a", "b", "c", "d"], &["too small"]);
    assert!(!place.file("a").exists() && !place.file("d").exists());
}

#[test]
fn command_lines_that_make_no_sense() {
    let place = Place::new();
    place.refused(2, &[], &["Usage"]);
    place.refused(2, &["frobnicate"], &["frobnicate"]);
    place.refused(2, &["examine", "--frobnicate", "x"], &["--frobnicate"]);
    place.refused(2, &["create", "-l", "7", "-n", "2", "a", "b"], &["--level", "unknown RAID level '7'"]);
    place.refused(2, &["create", "-l", "5", "-n", "x", "a"], &["--raid-devices"]);
    place.refused(2, &["create", "-l", "5", "-n", "3", "-c", "1.5", "a", "b", "c"], &["--chunk", "is not a size"]);
    place.refused(2, &["create", "-l", "5", "-n", "3", "-p", "round", "a", "b", "c"], &["--layout", "left-symmetric"]);
    place.refused(2, &["create", "-l", "5", "-n", "3", "-e", "2.0", "a", "b", "c"], &["--metadata", "1.2"]);
    place.refused(2, &["create", "-l", "5", "-n", "3", "-b", "/bitmap", "a", "b", "c"], &["--bitmap", "internal"]);
    place.refused(2, &["create", "-l", "5", "-n", "3", "-u", "12", "a", "b", "c"], &["--uuid", "32 hex digits"]);
    place.refused(2, &["assemble", "--uuid=xyz", "a"], &["--uuid"]);
    place.refused(2, &["serve", "--tcp=nowhere", "a"], &["--tcp"]);
    place.refused(2, &["serve", "--as=../x", "a"], &["cannot be the name of an array"]);
    place.refused(2, &["serve"], &["DEVICE"]);
    place.refused(2, &["stop"], &["NAME"]);
}

#[test]
fn arrays_that_do_not_run() {
    let place = Place::new();
    for command in ["stop", "status", "detail"] {
        place.refused(1, &[command, "md7"], &["no array named 'md7' is running", "raidus status"]);
    }
    assert_eq!(place.ok(&["stop", "--all"]).err, "");
    // One that does not answer as it should is told of, and hides nothing.
    std::fs::create_dir(place.file("run")).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(place.file("run/md9.control")).unwrap();
    let answer = std::thread::spawn(move || drop(socket.accept()));
    let said = place.ok(&["status"]);
    answer.join().unwrap();
    assert!(said.err.contains("md9.control"), "{said:?}");
}

#[test]
fn members_and_sockets_in_use() {
    let (place, disks) = Place::golden("raid1-1.2-n2");
    let served = place.serve(&[], &disks);
    place.refused_on(&["assemble"], &disks, &["disk0.img is in use by", "raidus", "stop that first"]);
    place.refused_on(&["zero-superblock"], &disks, &["is in use by"]);
    place.refused_on(&["create", "-l", "1", "-n", "2", "--run"], &disks, &["is in use by"]);
    // Looking is allowed.
    place.ok_on(&["examine"], &disks);

    // Copies of the members: the same array a second time.
    let copies: Vec<String> = disks.iter().map(|d| format!("copy-{d}")).collect();
    for (disk, copy) in disks.iter().zip(&copies) {
        std::fs::copy(place.file(disk), place.file(copy)).unwrap();
    }
    place.refused_on(&["assemble"], &copies, &[&format!("{}: runs already (process", served.name), "raidus stop"]);

    // Another array under the same name, or at the same socket.
    let other = place.images(2, 32 * MIB);
    place.ok_on(&["create", "-l", "1", "-n", "2", "--name=other"], &other);
    let name = format!("--as={}", served.name);
    place.refused_on(&["assemble", &name], &other, &["is taken by another running array", "--as=NAME"]);
    let socket = format!("--socket={}", place.file("run").join(format!("{}.nbd", served.name)).display());
    place.refused_on(&["serve", &socket], &other, &["another server is listening there"]);
    place.image("file", 4096);
    place.refused_on(&["serve", "--socket=file"], &other, &["exists and is not a socket"]);
    assert_eq!(served.end("TERM").code, Some(0));
}

#[test]
fn a_full_disk_leaves_nothing_behind() {
    let place = Place::new();
    // Files may have 40 KiB (the shell counts 512 or 1024 bytes): not enough for 64 MiB.
    let script = format!("ulimit -f 40 && exec {PROGRAM} create -l 1 -n 2 --image-size=64M a b");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).current_dir(place.path()).stdin(Stdio::null());
    let said = said(command.output().unwrap());
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("a: larger than this process may write (ulimit -f)"), "{said:?}");
    assert!(!place.file("a").exists());
}

#[test]
fn no_permission() {
    let (place, disks) = Place::golden("raid1-1.2-n2");
    let user = String::from_utf8(std::process::Command::new("id").arg("-u").output().unwrap().stdout).unwrap();
    if user.trim() == "0" {
        // As somebody else, who may look into the directory and not at the images.
        let open = |path: &std::path::Path, mode: u32| {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        open(place.path(), 0o755);
        open(&place.file(&disks[0]), 0o600);
        // The program may be where nobody else may look.
        std::fs::copy(PROGRAM, place.file("raidus")).unwrap();
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "./raidus", "examine"]);
        let said = said(command.arg(&disks[0]).current_dir(place.path()).output().unwrap());
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(said.err.contains("disk0.img: permission denied for reading"), "{said:?}");
    } else {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(place.file(&disks[0]), std::fs::Permissions::from_mode(0o000)).unwrap();
        place.refused(1, &["examine", &disks[0]], &["disk0.img: permission denied for reading"]);
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let (place, disks) = Place::golden("raid1-1.2-n2");
    for words in [&["examine"][..], &["assemble", "--explain"], &["examine", "--json"]] {
        let mut all = words.to_vec();
        all.extend(disks.iter().map(String::as_str));
        let mut child = place.command(&all).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let said = said(child.wait_with_output().unwrap());
        assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{words:?}");
    }
}
