//! Arrays used through the kernel: reads, writes, holes, texts, against a byte array.

mod common;

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{Members, Mounted, Rng, can_mount};
use raidus_fuse::{MountError, MountOptions, UnmountError, User};
use raidus_runtime::StopFailed;
use raidus_units::{Level, Sectors};
use rustix::fs::FallocateFlags;

const COMPONENT: Sectors = Sectors::from_kib(4 << 10);

fn raid6() -> Mounted {
    Mounted::new(Level::Raid6, 4, COMPONENT)
}

fn os_error(result: io::Result<impl Sized>) -> rustix::io::Errno {
    let error = result.err().expect("an error");
    rustix::io::Errno::from_io_error(&error).expect("an error of the system")
}

fn punch(file: &File, offset: u64, len: u64) -> rustix::io::Result<()> {
    rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)
}

/// A writer of bytes anywhere in its own pieces, in any length and alignment.
fn one_writer(file: &File, (me, of): (u64, u64), piece: u64, rounds: u64, mut model: Vec<u8>) -> Vec<u8> {
    let mut rng = Rng(me + 1);
    let pieces = model.len() as u64 / piece / of;
    for _ in 0..rounds {
        let start = (rng.below(pieces) * of + me) * piece;
        let from = rng.below(piece);
        let len = 1 + rng.below(piece - from);
        // Half of them in whole sectors.
        let align = |n: u64| if n.is_multiple_of(2) { n } else { n / 512 * 512 };
        let (from, len) = (align(from), align(len).max(1));
        let offset = start + from;
        let range = offset as usize..(offset + len) as usize;
        match rng.below(8) {
            0..4 => {
                rng.fill(&mut model[range.clone()]);
                file.write_all_at(&model[range], offset).unwrap();
            }
            4..6 => {
                let mut back = vec![0; range.len()];
                file.read_exact_at(&mut back, offset).unwrap();
                assert!(back == model[range], "writer {me} reads {len} bytes at {offset}");
            }
            6 => {
                model[range].fill(0);
                if rng.below(2) == 0 {
                    punch(file, offset, len).unwrap();
                } else {
                    rustix::fs::fallocate(file, FallocateFlags::ZERO_RANGE, offset, len).unwrap();
                }
            }
            _ => file.sync_data().unwrap(),
        }
    }
    model
}

/// Several writers at once, who meet in blocks, since pieces are not whole blocks. Then the array is asked directly, and again
/// without members.
fn writers_meet(level: Level, members: u16, block: u32, losses: &[usize]) {
    let mut members = Members::new(level, members, COMPONENT);
    members.block = block;
    let mounted = members.mount(MountOptions::default());
    assert_eq!(mounted.array.block(), block);
    let file = mounted.open();
    let (writers, piece) = (4, 10_000);
    let before = vec![0; mounted.size() as usize];
    let models: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let (file, before) = (&file, &before);
        let threads: Vec<_> = (0..writers)
            .map(|w| scope.spawn(move || one_writer(file, (w, writers), piece, 300, before.clone())))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let mut model = before;
    for at in (0..model.len()).step_by(piece as usize) {
        let to = (at + piece as usize).min(model.len());
        model[at..to].copy_from_slice(&models[at / piece as usize % writers as usize][at..to]);
    }
    assert!(mounted.contents() == model, "the array has what was written");
    let mut read = Vec::new();
    (&file).read_to_end(&mut read).unwrap();
    assert!(read == model, "the file has what was written");
    drop(file);
    let members = mounted.stop();
    let array = members.start(losses);
    let mut back = vec![0; model.len()];
    array.client().read_at(0, &mut back).unwrap();
    assert!(back == model, "without {losses:?}");
    array.stop().unwrap();
}

#[test]
fn writers_meet_on_raid6() {
    if can_mount() {
        writers_meet(Level::Raid6, 5, 512, &[1, 3]);
    }
}

#[test]
fn writers_meet_on_members_of_larger_blocks() {
    if can_mount() {
        writers_meet(Level::Raid5, 4, 4096, &[2]);
    }
}

#[test]
fn writers_meet_on_raid1() {
    if can_mount() {
        writers_meet(Level::Raid1, 2, 512, &[0]);
    }
}

/// A sector's bytes written by one, its neighbours by others, all the time: no write may undo another.
#[test]
fn bytes_of_one_sector_have_many_writers() {
    if !can_mount() {
        return;
    }
    let mounted = raid6();
    let file = mounted.open();
    std::thread::scope(|scope| {
        for n in 0..8u64 {
            let file = &file;
            scope.spawn(move || {
                for round in 0..100u8 {
                    // Every other one of them spans two sectors.
                    let at = 1000 + n * 60;
                    file.write_all_at(&[round; 50], at).unwrap();
                    let mut back = [0; 50];
                    file.read_exact_at(&mut back, at).unwrap();
                    assert_eq!(back, [round; 50], "writer {n}");
                }
            });
        }
    });
    drop(file);
    mounted.stop();
}

#[test]
fn the_end_of_the_array_is_the_end_of_the_file() {
    if !can_mount() {
        return;
    }
    let mounted = raid6();
    let file = mounted.open();
    let size = mounted.size();
    let meta = file.metadata().unwrap();
    assert_eq!((meta.len(), meta.mode() & 0o7777), (size, 0o600));
    assert_eq!(file.read_at(&mut [0; 10], size).unwrap(), 0);
    assert_eq!(file.read_at(&mut [0; 1000], size - 300).unwrap(), 300);
    assert_eq!(file.write_at(&[1; 1000], size - 300).unwrap(), 300);
    assert_eq!(os_error(file.write_at(&[1], size)), rustix::io::Errno::NOSPC);
    assert_eq!(rustix::fs::fallocate(&file, FallocateFlags::empty(), size - 5, 10), Err(rustix::io::Errno::NOSPC));
    assert_eq!(
        rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096),
        Err(rustix::io::Errno::OPNOTSUPP)
    );
    punch(&file, size - 100, 1000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), size);
    let mut tail = [0; 301];
    assert_eq!(file.read_at(&mut tail, size - 300).unwrap(), 300);
    assert_eq!((&tail[..200], &tail[200..]), (&[1; 200][..], &[0; 101][..]));
    // The whole of it in one request.
    punch(&file, 0, size).unwrap();
    assert!(mounted.contents().iter().all(|b| *b == 0));
    // Like a block device.
    assert_eq!(File::create(mounted.path()).unwrap().metadata().unwrap().len(), size);
    file.set_len(size).unwrap();
    assert_eq!(os_error(file.set_len(size - 1)), rustix::io::Errno::INVAL);
    assert_eq!((&file).seek(SeekFrom::End(0)).unwrap(), size);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(100)), Ok(100));
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(100)), Ok(size));
    drop(file);
    mounted.stop();
}

#[test]
fn syncing_reaches_the_members() {
    if !can_mount() {
        return;
    }
    let mounted = raid6();
    let mut file = mounted.open();
    file.write_all(&[1; 8192]).unwrap();
    let before = mounted.flushes();
    file.sync_all().unwrap();
    let synced = mounted.flushes();
    assert!(synced >= before + 4, "{before} {synced}");
    drop(file);
    mounted.stop();
}

#[test]
fn texts_are_made_when_they_are_opened() {
    if !can_mount() {
        return;
    }
    let mounted = raid6();
    let dir = mounted.mount.dir().to_owned();
    let names = |of: &str| {
        let mut names: Vec<_> = fs::read_dir(dir.join(of)).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(""), ["md", "md0", "mdstat"]);
    assert_eq!(names("md"), ["array_state", "dev-a", "level", "sync_max"]);
    let mut slow = File::open(dir.join("mdstat")).unwrap();
    let mut first = [0; 8];
    slow.read_exact(&mut first).unwrap();
    assert_eq!(fs::read_to_string(dir.join("mdstat")).unwrap(), "opened 2 times\n");
    let mut rest = String::new();
    slow.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, " times\n");
    assert_eq!(&first, b"opened 1");
    drop(slow);
    assert_eq!(fs::read_to_string(dir.join("md/level")).unwrap(), "raid6\n");
    assert_eq!(fs::read_to_string(dir.join("md/array_state")).unwrap(), "clean\n");
    mounted.open().write_all(&[1; 4096]).unwrap();
    assert_eq!(fs::read_to_string(dir.join("md/array_state")).unwrap(), "active\n");
    assert_eq!(File::open(dir.join("md/nothing")).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(File::options().write(true).open(dir.join("md/level")).is_err());
    mounted.stop();
}

#[test]
fn a_read_only_mount_refuses_writers() {
    if !can_mount() {
        return;
    }
    let members = Members::new(Level::Raid1, 2, COMPONENT);
    let mounted = members.mount(MountOptions { read_only: true, ..MountOptions::default() });
    assert_eq!(fs::metadata(mounted.path()).unwrap().mode() & 0o7777, 0o400);
    let refused = os_error(File::options().write(true).open(mounted.path()));
    // Root is above permissions, and is told by the mount.
    assert!([rustix::io::Errno::ROFS, rustix::io::Errno::ACCESS].contains(&refused), "{refused:?}");
    assert_eq!(File::open(mounted.path()).unwrap().read_at(&mut [0; 100], 5).unwrap(), 100);
    mounted.stop();
}

#[test]
fn a_mount_in_use_stays_and_says_who_uses_it() {
    if !can_mount() {
        return;
    }
    let mut mounted = raid6();
    let mut cat = std::process::Command::new("sleep").arg("1000").stdin(mounted.open()).spawn().unwrap();
    let error = mounted.mount.unmount().unwrap_err();
    let UnmountError::Busy { users, .. } = &error else { panic!("{error:?}") };
    assert!(users.contains(&User::Process { pid: cat.id(), name: "sleep".to_owned() }), "{users:?}");
    assert!(error.to_string().contains(&format!("by sleep (process {})", cat.id())), "{error}");
    assert!(mounted.mount.is_mounted());
    mounted.open().write_all(b"still there").unwrap();
    cat.kill().unwrap();
    cat.wait().unwrap();
    mounted.mount.unmount().unwrap();
    assert!(!mounted.mount.is_mounted());
    assert!(!mounted.path().exists());
    mounted.stop();
}

#[test]
fn a_place_is_taken_once() {
    if !can_mount() {
        return;
    }
    let mounted = raid6();
    let error = mounted.mount_again().unwrap_err();
    assert!(matches!(error, MountError::AlreadyMounted(_)), "{error}");
    // Somebody else may unmount it; the place is free then, and another mount is not ours to take away.
    let dir = mounted.mount.dir().to_owned();
    rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::empty()).unwrap();
    // While the first session ends, the library unmounts the place once more; only then it is ours to use again.
    let wait = Instant::now();
    while mounted.mount.is_mounted() {
        assert!(wait.elapsed() < Duration::from_secs(60));
        std::thread::yield_now();
    }
    let mut second = mounted.mount_again().unwrap();
    assert!(mounted.path().exists());
    let array = std::sync::Arc::clone(&mounted.array);
    mounted.stop();
    assert!(second.is_mounted());
    assert!(matches!(array.stop(), Err(StopFailed::AlreadyStopped)));
    second.unmount().unwrap();
}

#[test]
fn a_detached_mount_serves_those_who_have_it_open() {
    if !can_mount() {
        return;
    }
    // By us, and by somebody else.
    for by_us in [true, false] {
        let mounted = raid6();
        let file = mounted.open();
        let Mounted { mut mount, array, .. } = mounted;
        let path = mount.file().to_owned();
        if by_us {
            mount.detach();
        } else {
            rustix::mount::unmount(mount.dir(), rustix::mount::UnmountFlags::DETACH).unwrap();
            mount.unmount().unwrap();
        }
        assert!(!path.exists());
        file.write_all_at(&[7; 4096], 4096).unwrap();
        assert_eq!(array.client().read_at(4096, &mut [0; 4096]), Ok(()));
        array.stop().unwrap();
        assert_eq!(os_error(file.read_at(&mut [0; 512], 0)), rustix::io::Errno::SHUTDOWN);
    }
}

#[test]
fn an_array_that_has_stopped_says_so() {
    if !can_mount() {
        return;
    }
    let mounted = raid6();
    let file = mounted.open();
    let written = AtomicU64::new(0);
    let (report, enough) = channel();
    // Stopped in the middle of writing: everything replied to is there.
    std::thread::scope(|scope| {
        let (file, written) = (&file, &written);
        scope.spawn(move || {
            for n in 0u64.. {
                match file.write_all_at(&n.to_le_bytes().repeat(512), n % 100 * 4096) {
                    Ok(()) => written.store(n + 1, Ordering::Release),
                    Err(error) => {
                        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::SHUTDOWN.raw_os_error()));
                        break;
                    }
                }
                if n == 50 {
                    report.send(()).unwrap();
                }
            }
        });
        enough.recv().unwrap();
        mounted.array.stop().unwrap();
    });
    assert_eq!(os_error(file.read_at(&mut [0; 512], 0)), rustix::io::Errno::SHUTDOWN);
    assert_eq!(os_error(file.sync_all()), rustix::io::Errno::SHUTDOWN);
    drop(file);
    let members = mounted.unmounted();
    let array = members.start(&[]);
    let count = written.load(Ordering::Acquire);
    for n in count.saturating_sub(100)..count {
        let mut back = [0; 4096];
        array.client().read_at(n % 100 * 4096, &mut back).unwrap();
        let found = u64::from_le_bytes(back[..8].try_into().unwrap());
        // The one after the last may have been written too, and not have been replied to.
        assert!(found == n || found == count && n + 100 == count, "{n}: {found}");
    }
    array.stop().unwrap();
}

#[test]
fn attributes_are_set_by_writing_to_them() {
    if !can_mount() {
        return;
    }
    let mounted = raid6();
    let md = mounted.mount.dir().join("md");
    let limit = md.join("sync_max");
    fs::write(&limit, "4096\n").unwrap();
    assert_eq!(fs::read_to_string(&limit).unwrap(), "4096\n");
    let shell = |script: &str| {
        let done = std::process::Command::new("sh").arg("-c").arg(script).current_dir(&md).output().unwrap();
        (done.status.success(), String::from_utf8(done.stderr).unwrap())
    };
    assert_eq!(shell("echo 8192 > sync_max"), (true, String::new()));
    assert_eq!(fs::read_to_string(&limit).unwrap(), "8192\n");
    // What is wrong, shells do not say.
    let (done, said) = shell("echo never > sync_max");
    assert!(!done && !said.is_empty());
    assert_eq!(os_error(fs::write(&limit, "x")), rustix::io::Errno::INVAL);
    let state = md.join("dev-a/state");
    assert_eq!(fs::read_to_string(&state).unwrap(), "in_sync\n");
    assert_eq!(os_error(fs::write(&state, "remove")), rustix::io::Errno::BUSY);
    assert_eq!(os_error(fs::write(md.join("level"), "raid5")), rustix::io::Errno::ACCESS);
    assert_eq!(fs::metadata(&limit).unwrap().mode() & 0o777, 0o644);
    let names = |dir: &std::path::Path| {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&md), ["array_state", "dev-a", "level", "sync_max"]);
    assert_eq!(names(&md.join("dev-a")), ["state"]);
    fs::write(&limit, "0").unwrap();
    assert_eq!(names(&md), ["array_state", "level", "sync_max"]);
    assert_eq!(File::open(&state).unwrap_err().kind(), ErrorKind::NotFound);
}
