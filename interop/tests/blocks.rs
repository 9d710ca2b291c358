//! Arrays on disks with 4096-byte sectors ("4Kn"), for which loop devices stand: made, written, left by a crash, read without a
//! member, served; and the bytes are still those that md expects.
//!
//! Such a disk takes no smaller request, and neither does the array; what is smaller is refused, or completed by the front end that
//! takes bytes (FUSE).

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use interop::program::{self, Daemon};
use interop::{Exhibit, LargeSectors, Raidus, Rng, judge, said, scratch};
use raidus_assembly::Options;
use raidus_engine::RequestError;

const BLOCK: u32 = LargeSectors::BLOCK;
const MIB: u64 = 12;

fn create(dir: &Path, words: &[&str], disks: &LargeSectors) -> Result<()> {
    let words = ["create", "--assume-clean"].iter().chain(words).map(OsStr::new);
    let made = program::run(dir, words.chain(disks.loops.iter().map(|d| d.as_os_str())))?;
    ensure!(made.status.success(), "raidus create: {}", String::from_utf8_lossy(&made.stderr));
    Ok(())
}

#[test]
fn arrays_on_disks_of_large_sectors() {
    if !LargeSectors::possible() {
        return;
    }
    let shapes: [(&[&str], usize); 6] = [
        (&["-l0", "-c64", "-n2"], 2),
        (&["-l1", "-n2", "-e1.0", "--bitmap=internal"], 2),
        (&["-l5", "-c64", "-n3", "-e1.1"], 3),
        (&["-l6", "-n4", "-e1.2", "-c64", "--bitmap=internal"], 4),
        (&["-l10", "-n4", "-c64", "-e0.90", "--bitmap=internal"], 4),
        (&["-l10", "-n3", "-c64", "-pf2"], 3),
    ];
    let dir = scratch();
    let mut exhibits = Vec::new();
    for (n, (words, count)) in shapes.into_iter().enumerate() {
        let place = dir.path().join(n.to_string());
        std::fs::create_dir(&place).expect("a directory");
        exhibits.push(exercise(&place, words, count, n as u64).unwrap_or_else(|e| panic!("{words:?}: {e:#}")));
    }
    let start = std::time::Instant::now();
    judge(&exhibits).unwrap_or_else(|e| panic!("{e:#}"));
    println!("the kernel judged {} arrays in {:.0} s", exhibits.len(), start.elapsed().as_secs_f64());
}

fn exercise(dir: &Path, words: &[&str], count: usize, seed: u64) -> Result<Exhibit> {
    let disks = LargeSectors::new(dir, count, MIB)?;
    create(dir, words, &disks)?;
    let mut rng = Rng(seed);

    let mut array = Raidus::open(&disks.loops, Options::default(), 2)?;
    ensure!(array.handle().block() == BLOCK, "the array's blocks are of {} bytes", array.handle().block());
    refuses_less(&array)?;
    array.scribble(&mut rng, 150)?;
    array.verify()?;
    let content = array.content.clone();
    array.stop()?;

    if !words.contains(&"-l0") {
        let array = Raidus::look(&disks.loops[1..])?;
        ensure!(array.content == content, "without a member it reads differently");
        array.stop()?;
    }

    let mut array = Raidus::open(&disks.loops, Options::default(), 1)?;
    array.scribble(&mut rng, 50)?;
    let (content, sum) = (array.content.clone(), array.sum());
    // Nothing is under way.
    array.crash();
    let array = Raidus::open(&disks.loops, Options::default(), 1)?;
    ensure!(array.content == content, "after a crash it reads differently");
    array.stop()?;
    let (name, images) = (format!("{words:?}"), disks.images.clone());
    drop(disks);
    // The crash left writes in doubt, whose resync is for the kernel to do.
    Ok(Exhibit { name, images, sum, clean: false, then: String::new(), assemble: String::new() })
}

fn refuses_less(array: &Raidus) -> Result<()> {
    let client = array.handle().client();
    for (offset, len) in [(512, BLOCK as usize), (0, 512), (u64::from(BLOCK), BLOCK as usize + 512)] {
        let written = client.write_at(offset, &vec![1; len], true);
        ensure!(written == Err(RequestError::Range), "{len} bytes written at {offset}: {written:?}");
    }
    Ok(())
}

#[test]
fn front_ends_on_disks_of_large_sectors() {
    if !LargeSectors::possible() {
        return;
    }
    front_ends().unwrap_or_else(|e| panic!("{e:#}"));
}

/// NBD tells its clients, and refuses those who do not listen; FUSE takes bytes anywhere.
fn front_ends() -> Result<()> {
    let dir = scratch();
    let disks = LargeSectors::new(dir.path(), 4, MIB)?;
    let [run_dir, mount] = ["run", "mount"].map(|name| dir.path().join(name));
    std::fs::create_dir(&run_dir)?;
    std::fs::create_dir(&mount)?;
    create(&run_dir, &["-l6", "-n4"], &disks)?;
    let refused = create(&run_dir, &["-l6", "-n4", "--run", "--data-offset=1025"], &disks);
    let told = format!("{:#}", refused.err().context("data was put across sectors")?);
    ensure!(told.contains("--data-offset") && told.contains("4096"), "the refusal says: {told}");

    let words = ["--as=md0", "--mount", mount.to_str().context("a plain path")?].map(OsStr::new);
    let daemon = Daemon::serve(&run_dir, words.into_iter().chain(disks.loops.iter().map(|d| d.as_os_str())))?;
    let file = File::options().read(true).write(true).open(mount.join("md0"))?;
    let mut model = vec![0; 1 << 20];
    file.read_exact_at(&mut model, 0)?;
    let mut rng = Rng(4);
    for _ in 0..200 {
        let (at, len) = (rng.below(1 << 20) as usize, 1 + rng.below(20_000) as usize);
        let range = at..(at + len).min(model.len());
        rng.fill(&mut model[range.clone()]);
        file.write_all_at(&model[range], at as u64)?;
    }
    let mut back = vec![0; model.len()];
    file.read_exact_at(&mut back, 0)?;
    ensure!(back == model, "the file reads differently");
    drop(file);

    let uri = format!("nbd+unix:///md0?socket={}", daemon.nbd()?.trim_start_matches("unix:"));
    let info = said(Command::new("nbdinfo").arg(&uri))?;
    ensure!(info.contains("block_size_minimum: 4096"), "{info}");
    let small = ["-f", "raw", "-c", "write -P 7 512 512", "-c", "read -P 7 512 512", &uri];
    let out = said(Command::new("qemu-io").args(small))?;
    ensure!(!out.contains("failed"), "a client that keeps to the block size is served: {out}");
    daemon.stop()
}
