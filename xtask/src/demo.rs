//! `cargo xtask demo`: the main job on image files it makes itself.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args as ClapArgs;

use crate::shell;

/// Where the demonstration lives.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Directory for the images, the mount point and the socket; made if missing.
    #[arg(default_value = "raidus-demo")]
    dir: PathBuf,
}

/// Builds raidus, makes a RAID6 of six images (unless they are there already) and serves it until interrupted: over NBD, and as a
/// file where FUSE is to be had.
pub fn run(args: &Args) -> Result<()> {
    shell::call(&["cargo", "build", "--release", "--package", "raidus"])?;
    let raidus = shell::release_program("raidus")?;
    let raidus = raidus.to_str().context("the target directory's name is not UTF-8")?.to_owned();
    fs::create_dir_all(&args.dir).with_context(|| format!("cannot make {}", args.dir.display()))?;
    // What is printed must be of use in any directory.
    let dir = args.dir.canonicalize()?;
    let mount = dir.join("mnt");
    let images: Vec<String> = (0..6).map(|i| dir.join(format!("disk{i}.img")).display().to_string()).collect();
    if !Path::new(&images[0]).exists() {
        let mut create =
            vec![&*raidus, "create", "--level=6", "--raid-devices=6", "--image-size=256M", "--assume-clean"];
        create.extend(images.iter().map(String::as_str));
        shell::call(&create)?;
    }
    let mut serve = vec!["serve".to_owned(), format!("--socket={}", dir.join("nbd.sock").display())];
    if File::options().read(true).write(true).open("/dev/fuse").is_ok() {
        // After a run that was killed it is there, but dead: raidus says what to do about that.
        if fs::symlink_metadata(&mount).is_err() {
            fs::create_dir(&mount).with_context(|| format!("cannot make {}", mount.display()))?;
        }
        serve.push(format!("--mount={}", mount.display()));
    } else {
        println!("/dev/fuse cannot be used here, so the array is served over NBD only");
    }
    serve.extend(images);
    println!("$ {raidus} {}", serve.join(" "));
    println!("(Ctrl-C stops the array in order; what is in {} stays for the next time)", dir.display());
    // In place of this process: the interrupt is for raidus alone, which has things to do before it ends.
    let error = Command::new(&raidus).args(&serve).exec();
    Err(error).with_context(|| format!("cannot run {raidus}"))
}
