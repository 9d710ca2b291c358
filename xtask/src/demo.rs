//! `cargo xtask demo`: the main job on image files it makes itself.

use std::path::PathBuf;

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

/// Builds raidus, makes a RAID6 of six images (unless they are there already) and serves it until interrupted: over NBD, and as a file.
pub fn run(args: &Args) -> Result<()> {
    shell::call(&["cargo", "build", "--release", "--package", "raidus"])?;
    let dir = &args.dir;
    let mount = dir.join("mnt");
    std::fs::create_dir_all(&mount).with_context(|| format!("cannot make {}", mount.display()))?;
    let dir = dir.canonicalize()?;
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    let raidus = PathBuf::from(target).join("release/raidus");
    let raidus = raidus.to_str().context("the target directory's name is not UTF-8")?;
    let images: Vec<String> = (0..6).map(|i| format!("{}/disk{i}.img", dir.display())).collect();
    let images: Vec<&str> = images.iter().map(String::as_str).collect();
    if !std::path::Path::new(images[0]).exists() {
        let mut create = vec![raidus, "create", "--level=6", "--raid-devices=6", "--image-size=256M", "--assume-clean"];
        create.extend(&images);
        shell::call(&create)?;
    }
    let socket = format!("{}/nbd.sock", dir.display());
    let (socket, mount) = (format!("--socket={socket}"), format!("--mount={}/mnt", dir.display()));
    let mut serve = vec![raidus, "serve", &socket, &mount];
    serve.extend(&images);
    shell::call(&serve)
}
