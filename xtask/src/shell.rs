//! Running other programs, and installing those that are missing.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Debian packages that tests need, each with a file that shows it is there.
const PACKAGES: &[(&str, &str)] = &[
    ("user-mode-linux", "/usr/bin/linux.uml"),
    ("mdadm", "/sbin/mdadm"),
    ("dmsetup", "/sbin/dmsetup"),
    ("kmod", "/sbin/modprobe"),
    ("zstd", "/usr/bin/zstd"),
    ("nbd-client", "/sbin/nbd-client"),
    ("socat", "/usr/bin/socat"),
    ("iproute2", "/sbin/ip"),
    ("libnbd-bin", "/usr/bin/nbdinfo"),
    ("qemu-utils", "/usr/bin/qemu-io"),
    ("fio", "/usr/bin/fio"),
    ("e2fsprogs", "/sbin/mkfs.ext4"),
    ("xfsprogs", "/sbin/mkfs.xfs"),
    ("fuse3", "/bin/fusermount3"),
    ("mount", "/sbin/losetup"),
    ("valgrind", "/usr/bin/valgrind"),
];

/// Installs the Debian packages that are missing; does nothing if none is.
pub fn install_packages() -> Result<()> {
    let missing: Vec<&str> =
        PACKAGES.iter().filter(|(_, file)| !std::path::Path::new(file).exists()).map(|(package, _)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("==> installing {}", missing.join(" "));
    call(&["apt-get", "update", "-qq"]).context("cannot refresh Debian's package list (needs root)")?;
    let mut install = vec!["apt-get", "install", "-y", "-qq", "--no-install-recommends"];
    install.extend(&missing);
    call(&install).with_context(|| format!("cannot install {}", missing.join(" ")))
}

/// Installs a cargo sub-command if it is missing.
pub fn install_cargo_tool(name: &str) -> Result<()> {
    let sub_command = name.trim_start_matches("cargo-");
    let there = Command::new("cargo").args([sub_command, "--version"]).output();
    if there.is_ok_and(|out| out.status.success()) {
        return Ok(());
    }
    call(&["cargo", "install", "--locked", name]).with_context(|| format!("cannot install {name}"))
}

/// Where a release build puts a program of the project.
pub fn release_program(name: &str) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target"));
    Ok(std::path::absolute(target)?.join("release").join(name))
}

/// Runs a program; an error if it fails.
pub fn call(command: &[&str]) -> Result<()> {
    call_with(command, &[])
}

/// Runs a program with additions to its environment; an error if it fails.
pub fn call_with(command: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    println!("$ {}", command.join(" "));
    let (program, arguments) = command.split_first().context("an empty command")?;
    let status = Command::new(program)
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .envs(environment.iter().copied())
        .status()
        .with_context(|| format!("cannot run {program}"))?;
    if !status.success() {
        bail!("`{}` ended with {status}", command.join(" "));
    }
    Ok(())
}
