//! The run directory: where running arrays can be found.
//!
//! Per array `NAME.control` (commands and status) and `NAME.nbd` (data), both Unix sockets, and `NAME.log` if it runs in the
//! background. A socket on which nobody answers is left over from a process that was killed; the next array of that name takes it
//! over.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The run directory.
#[derive(Clone, Debug)]
pub struct RunDir(PathBuf);

/// Why the run directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// Nothing says where it is.
    #[error("no directory for sockets: set RAIDUS_RUN_DIR (or XDG_RUNTIME_DIR) to a directory of your own")]
    Unknown,
    /// It cannot be made or read.
    #[error("{}: {source}; set RAIDUS_RUN_DIR to a directory of your own", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It belongs to somebody else, who could put sockets of his own in it.
    #[error("{}: belongs to another user; set RAIDUS_RUN_DIR to a directory of your own", .0.display())]
    NotOurs(PathBuf),
    /// Not a name that can be a file's.
    #[error("'{0}' cannot be the name of an array: letters, digits and . _ - + : are allowed")]
    BadName(String),
}

const CONTROL: &str = "control";

impl RunDir {
    /// `$RAIDUS_RUN_DIR`; else /run/raidus for root, and `$XDG_RUNTIME_DIR/raidus` or /run/user/UID/raidus for others.
    pub fn find() -> Result<RunDir, RunDirError> {
        if let Some(dir) = std::env::var_os("RAIDUS_RUN_DIR").filter(|d| !d.is_empty()) {
            // Arrays in the background live elsewhere.
            let path = PathBuf::from(dir);
            return std::path::absolute(&path).map(RunDir).map_err(|source| RunDirError::Io { path, source });
        }
        let user = rustix::process::geteuid();
        if user.is_root() {
            return Ok(RunDir("/run/raidus".into()));
        }
        let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|d| !d.is_empty()).map(PathBuf::from);
        let systemd = || Some(PathBuf::from(format!("/run/user/{}", user.as_raw()))).filter(|p| p.is_dir());
        own.or_else(systemd).map(|d| RunDir(d.join("raidus"))).ok_or(RunDirError::Unknown)
    }

    /// Makes it, if it is not there; only this user may look into it.
    pub fn make(&self) -> Result<(), RunDirError> {
        let failed = |source| RunDirError::Io { path: self.0.clone(), source };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0).map_err(failed)?;
        let owner = std::fs::metadata(&self.0).map_err(failed)?.uid();
        let user = rustix::process::geteuid();
        if owner == user.as_raw() || user.is_root() { Ok(()) } else { Err(RunDirError::NotOurs(self.0.clone())) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The socket for commands.
    pub fn control(&self, name: &str) -> PathBuf {
        self.file(name, CONTROL)
    }

    /// The socket for data.
    pub fn nbd(&self, name: &str) -> PathBuf {
        self.file(name, "nbd")
    }

    /// The log of an array in the background.
    pub fn log(&self, name: &str) -> PathBuf {
        self.file(name, "log")
    }

    fn file(&self, name: &str, kind: &str) -> PathBuf {
        self.0.join(format!("{name}.{kind}"))
    }

    /// The names of the arrays that have, or had, a control socket.
    pub fn names(&self) -> Result<Vec<String>, RunDirError> {
        let entries = match std::fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(RunDirError::Io { path: self.0.clone(), source }),
        };
        let is_control = |path: &Path| path.extension().is_some_and(|e| e == CONTROL);
        let mut names: Vec<String> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| is_control(path))
            .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
            .collect();
        names.sort();
        Ok(names)
    }
}

/// A name as a part of a file's name: nothing that leads elsewhere.
pub fn check_name(name: &str) -> Result<&str, RunDirError> {
    let allowed = |c: char| c.is_alphanumeric() || "._-+:".contains(c);
    let fits = !name.is_empty() && name.len() <= 64 && !name.starts_with('.') && name.chars().all(allowed);
    if fits { Ok(name) } else { Err(RunDirError::BadName(name.to_owned())) }
}

/// The name an array runs under when the user gives none: `md0` for arrays that have a number, `md_data` for those with a name,
/// like the device nodes of Linux. `None` for those that have neither.
pub fn running_name(array_name: &str, preferred_minor: Option<u32>) -> Option<String> {
    let own = array_name.rsplit_once(':').map_or(array_name, |(_, own)| own);
    if let Some(minor) = preferred_minor {
        return Some(format!("md{minor}"));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
    let clean: String = own.chars().map(|c| if allowed(c) { c } else { '_' }).collect();
    match clean.as_str() {
        "" => None,
        own if own.bytes().all(|b| b.is_ascii_digit()) => Some(format!("md{own}")),
        own if own.starts_with("md") => Some(own.to_owned()),
        own => Some(format!("md_{own}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_running_arrays() {
        let name = |n: &str| running_name(n, None);
        assert_eq!(name("host:0").as_deref(), Some("md0"));
        assert_eq!(name("host:data").as_deref(), Some("md_data"));
        assert_eq!(name("md7").as_deref(), Some("md7"));
        assert_eq!(name("a/../b").as_deref(), Some("md_a_.._b"));
        assert_eq!(name(""), None);
        assert_eq!(running_name("", Some(3)).as_deref(), Some("md3"));
        for bad in ["", "../x", ".x", "a/b", "a b"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        assert!(check_name("md_data-1:x").is_ok());
    }
}
