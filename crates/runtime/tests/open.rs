//! Arrays on image files: creating, opening, and what refusals say.

mod common;

use std::fs::File;
use std::path::{Path, PathBuf};

use common::{Rng, params, shape};
use raidus_assembly::Options;
use raidus_assembly::create::plan;
use raidus_runtime::members::{MemberDevice, MemberOpenError, OpenMode, OverlayStore};
use raidus_runtime::{
    CreateFailed, OpenError, OpenOptions, Opened, RunOptions, create_array, open_array, probe_device, start,
};
use raidus_units::Level;

fn images(dir: &Path, count: usize) -> Vec<PathBuf> {
    let make = |i| {
        let path = dir.join(format!("disk{i}.img"));
        File::create(&path).unwrap().set_len(6 << 20).unwrap();
        path
    };
    (0..count).map(make).collect()
}

fn created(dir: &Path, level: Level, count: u16) -> Vec<PathBuf> {
    let paths = images(dir, count.into());
    let devices: Vec<MemberDevice> =
        paths.iter().map(|p| MemberDevice::open(p, OpenMode::READ_WRITE).unwrap()).collect();
    let plan = plan(&params(shape(level, count), &devices)).unwrap();
    create_array(&plan, &devices.into_iter().map(Some).collect::<Vec<_>>()).unwrap();
    paths
}

fn open(paths: &[PathBuf]) -> Result<Opened, OpenError> {
    open_array(paths, &OpenOptions::default())
}

#[test]
fn files_hold_what_was_written_across_stops() {
    let dir = tempfile::tempdir().unwrap();
    let paths = created(dir.path(), Level::Raid5, 3);
    let mut data = vec![0; 1 << 20];
    Rng(8).fill(&mut data);
    let run = |opened: Opened| start(opened.config, opened.members, RunOptions::default()).unwrap();
    let array = run(open(&paths).unwrap());
    array.client().write_at(4096, &data, true).unwrap();
    array.client().write_zeroes(8192, 65536, true, false).unwrap();
    data[4096..4096 + 65536].fill(0);
    let locked = open(&paths).unwrap_err();
    assert!(matches!(locked, OpenError::Member(MemberOpenError::InUse { .. })), "{locked}");
    array.stop().unwrap();
    drop(array);
    // In another order, and one is missing.
    let options = OpenOptions { assembly: Options { run: true, ..Options::default() }, ..OpenOptions::default() };
    let array = run(open_array(&[paths[2].clone(), paths[0].clone()], &options).unwrap());
    let mut back = vec![0; 1 << 20];
    array.client().read_at(4096, &mut back).unwrap();
    assert!(back == data);
    array.stop().unwrap();
}

#[test]
fn an_overlay_or_reading_only_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let paths = created(dir.path(), Level::Raid1, 2);
    let before: Vec<_> = paths.iter().map(|p| std::fs::read(p).unwrap()).collect();
    let overlay = OpenOptions { overlay: Some(OverlayStore::Directory(dir.path().into())), ..OpenOptions::default() };
    let opened = open_array(&paths, &overlay).unwrap();
    let array = start(opened.config, opened.members, RunOptions::default()).unwrap();
    array.client().write_at(0, &[7; 4096], true).unwrap();
    let mut back = [0; 4096];
    array.client().read_at(0, &mut back).unwrap();
    assert_eq!(back, [7; 4096]);
    array.stop().unwrap();
    drop(array);
    let readonly = Options { readonly: true, ..Options::default() };
    let opened = open_array(&paths, &OpenOptions { assembly: readonly, ..OpenOptions::default() }).unwrap();
    let array = start(opened.config, opened.members, RunOptions::default()).unwrap();
    array.client().read_at(0, &mut back).unwrap();
    assert_eq!(back, [0; 4096]);
    assert!(array.client().write_at(0, &[1; 4096], false).is_err());
    array.client().flush().unwrap();
    array.stop().unwrap();
    drop(array);
    for (path, before) in paths.iter().zip(&before) {
        assert!(std::fs::read(path).unwrap() == *before);
    }
}

#[test]
fn refusals_name_the_device_and_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let paths = created(dir.path(), Level::Raid5, 3);
    let twice = open(&[paths[0].clone(), paths[1].clone(), paths[0].clone()]).unwrap_err();
    assert!(matches!(twice, OpenError::Member(MemberOpenError::GivenTwice { .. })), "{twice}");
    let few = open(&paths[..1]).unwrap_err();
    assert!(matches!(few, OpenError::Refused(_)), "{few}");
    let blank = dir.path().join("blank.img");
    File::create(&blank).unwrap().set_len(1 << 20).unwrap();
    let text = open(&[blank]).unwrap_err().to_string();
    assert!(text.contains("none of the devices"), "{text}");
    assert!(open(&paths).is_ok(), "refusing leaves no lock behind");
}

#[test]
fn creation_without_a_device_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let paths = images(dir.path(), 2);
    let devices: Vec<MemberDevice> =
        paths.iter().map(|p| MemberDevice::open(p, OpenMode::READ_WRITE).unwrap()).collect();
    let plan = plan(&params(shape(Level::Raid1, 2), &devices)).unwrap();
    let mut devices: Vec<_> = devices.into_iter().map(Some).collect();
    devices[1] = None;
    assert!(matches!(create_array(&plan, &devices), Err(CreateFailed::NotGiven { .. })));
    // A member that takes no writes.
    drop(devices);
    let devices = vec![
        Some(MemberDevice::open(&paths[0], OpenMode::READ_WRITE).unwrap()),
        Some(MemberDevice::open(&paths[1], OpenMode::READ_ONLY).unwrap()),
    ];
    assert!(matches!(create_array(&plan, &devices), Err(CreateFailed::Write { .. })));
    drop(devices);
    for path in &paths {
        let device = MemberDevice::open(path, OpenMode::EXAMINE).unwrap();
        assert!(probe_device(&device).unwrap().is_empty(), "{}", path.display());
    }
}
