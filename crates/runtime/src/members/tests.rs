//! Opening, locking, and what refusals say.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::*;

fn image(dir: &Path, name: &str, bytes: u64) -> PathBuf {
    let path = dir.join(name);
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

#[test]
fn a_file_is_opened_and_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), "a.img", (1 << 20) + 100);
    let member = MemberDevice::open(&path, OpenMode::READ_WRITE).unwrap();
    assert_eq!(member.size(), Sectors(2048), "the odd tail is no part of the member");
    member.write_at(4096, &[7; 512]).unwrap();
    member.sync().unwrap();
    let mut back = [0; 1024];
    member.read_at(4096 - 512, &mut back).unwrap();
    assert_eq!((back[511], back[512], back[1023]), (0, 7, 7));
    assert!(member.read_at((1 << 20) - 512, &mut back).is_err());
    assert!(member.write_at(u64::MAX - 1, &[0; 512]).is_err());
}

#[test]
fn writers_exclude_everyone_and_readers_share() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), "a.img", 1 << 20);
    let writer = MemberDevice::open(&path, OpenMode::READ_WRITE).unwrap();
    for mode in [OpenMode::READ_WRITE, OpenMode::READ_ONLY] {
        let error = MemberDevice::open(&path, mode).unwrap_err();
        let MemberOpenError::InUse { by, .. } = &error else { panic!("{error}") };
        assert!(by.contains(&format!("process {}", std::process::id())), "{by}");
    }
    MemberDevice::open(&path, OpenMode::EXAMINE).unwrap();
    drop(writer);
    let reader = MemberDevice::open(&path, OpenMode::READ_ONLY).unwrap();
    let other = MemberDevice::open(&path, OpenMode::READ_ONLY).unwrap();
    assert!(matches!(MemberDevice::open(&path, OpenMode::READ_WRITE), Err(MemberOpenError::InUse { .. })));
    assert!(reader.write_at(0, &[0; 512]).is_err());
    let error = check_distinct(&[reader, other]).unwrap_err();
    assert!(matches!(error, MemberOpenError::GivenTwice { .. }));
}

#[test]
fn one_file_by_two_names_is_given_twice() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), "a.img", 1 << 20);
    let link = dir.path().join("b.img");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let members = [&path, &link].map(|p| MemberDevice::open(p, OpenMode::READ_ONLY).unwrap());
    let text = check_distinct(&members).unwrap_err().to_string();
    assert!(text.contains("a.img") && text.contains("b.img") && text.contains("same device"), "{text}");
}

#[test]
fn refusals_say_what_and_why() {
    let dir = tempfile::tempdir().unwrap();
    let open = |path: &Path| MemberDevice::open(path, OpenMode::READ_WRITE).unwrap_err();
    assert!(matches!(open(&dir.path().join("absent")), MemberOpenError::NoSuchDevice { .. }));
    assert!(matches!(open(dir.path()), MemberOpenError::NotADevice { what: "a directory", .. }));
    assert!(matches!(open(Path::new("/dev/null")), MemberOpenError::NotADevice { what: "a character device", .. }));
    let small = open(&image(dir.path(), "small.img", 4096));
    assert!(matches!(small, MemberOpenError::TooSmall { bytes: 4096, .. }), "{small}");
    let text = open(&dir.path().join("absent")).to_string();
    assert!(text.contains("absent") && text.contains("check the path"), "{text}");
}

#[test]
fn an_overlay_leaves_the_member_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), "a.img", 1 << 20);
    File::options().write(true).open(&path).unwrap().write_all_at(&[3; 8192], 0).unwrap();
    let before = std::fs::read(&path).unwrap();
    for store in [OverlayStore::Memory, OverlayStore::Directory(dir.path().to_owned())] {
        let member = MemberDevice::open(&path, OpenMode::READ_ONLY).unwrap().with_overlay(&store).unwrap();
        assert!(member.writable());
        member.write_at(1024, &[9; 1024]).unwrap();
        member.sync().unwrap();
        let mut back = [0; 4096];
        member.read_at(0, &mut back).unwrap();
        assert_eq!((back[1023], back[1024], back[2047], back[2048]), (3, 9, 9, 3));
        drop(member);
        assert!(std::fs::read(&path).unwrap() == before);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "the store has no name");
}

#[test]
fn memory_zeroes_exactly_its_range() {
    let device = MemoryDevice::new(Sectors(64)).unwrap();
    for (offset, len) in [(512, 1024), (512, 3 * 4096), (4096, 8192), (0, 64 * 512), (4096 * 2, 0)] {
        device.write(0, &[5; 64 * 512]).unwrap();
        device.zero(offset, len).unwrap();
        let mut back = vec![0; 64 * 512];
        device.read(0, &mut back).unwrap();
        for (i, b) in back.iter().enumerate() {
            let inside = (offset..offset + len).contains(&(i as u64));
            assert_eq!(*b, if inside { 0 } else { 5 }, "byte {i}");
        }
    }
}

/// A loop device over a file; detached on drop.
pub(crate) struct Loop(pub(crate) PathBuf);

impl Loop {
    /// `None` where the user may not make one.
    pub(crate) fn over(path: &Path) -> Option<Loop> {
        let output = std::process::Command::new("losetup").args(["--find", "--show"]).arg(path).output().ok()?;
        let name = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| Loop(name.trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn a_loop_device_and_the_file_below_it_exclude_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), "a.img", 1 << 20);
    let Some(device) = Loop::over(&path) else { return eprintln!("no loop devices here: nothing checked") };
    for mode in [OpenMode::READ_WRITE, OpenMode::READ_ONLY] {
        let text = MemberDevice::open(&path, mode).unwrap_err().to_string();
        assert!(text.contains(&format!("in use by loop device {}", device.0.display())), "{text}");
    }
    let member = MemberDevice::open(&device.0, OpenMode::READ_WRITE).unwrap();
    assert_eq!((member.size(), member.block()), (Sectors(2048), 512));
    assert_eq!(member.device_number().unwrap().0, 7, "loop devices have major number 7");
    let error = MemberDevice::open(&device.0, OpenMode::READ_WRITE).unwrap_err();
    let MemberOpenError::InUse { by, .. } = &error else { panic!("{error}") };
    assert!(by.contains(&format!("process {}", std::process::id())), "{by}");
    assert!(member.is_at(&device.0) && !member.is_at(&path));
}
