//! What is kept from one run of an array to the next: the last report of a check or repair, one file per array.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

/// The file for the array with this UUID; `None` if there is no place for one. Without it everything else works.
pub fn scrub_file(uuid: &str) -> Option<PathBuf> {
    let dir = dir()?;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    if let Err(error) = made {
        tracing::warn!(dir = %dir.display(), %error, "reports are not kept for the next run");
        return None;
    }
    Some(dir.join(format!("{}.scrub.json", uuid.replace(':', "-"))))
}

/// `$RAIDUS_STATE_DIR`, or `$RAIDUS_RUN_DIR`; else /var/lib/raidus for root, and `$XDG_STATE_HOME/raidus` or ~/.local/state/raidus for others.
fn dir() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    if let Some(dir) = var("RAIDUS_STATE_DIR").or_else(|| var("RAIDUS_RUN_DIR")) {
        return std::path::absolute(dir).ok();
    }
    if rustix::process::geteuid().is_root() {
        return Some("/var/lib/raidus".into());
    }
    let own = var("XDG_STATE_HOME").or_else(|| var("HOME").map(|home| home.join(".local/state")))?;
    Some(own.join("raidus"))
}
