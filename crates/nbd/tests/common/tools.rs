//! Running other people's programs.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

/// Set to skip, with a word, tests of programs that are not installed.
const NO_TOOLS: &str = "RAIDUS_TEST_NO_TOOLS";

/// The program `name`, or `None` if it is missing and the environment says that is fine.
///
/// # Panics
/// If it is missing and nothing says so: a test that silently tests nothing is worse than none.
pub fn tool(name: &str, package: &str) -> Option<Command> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    if let Some(found) = places.map(|place| place.join(name)).find(|file| file.is_file()) {
        return Some(Command::new(found));
    }
    assert!(
        std::env::var_os(NO_TOOLS).is_some(),
        "{name} is not installed: install the package {package}, or set {NO_TOOLS} to skip what needs it"
    );
    eprintln!("skipped: {name} is not installed (package {package})");
    None
}

/// Runs a program to its end and returns what it printed.
///
/// # Panics
/// If it fails.
#[track_caller]
pub fn run<S: AsRef<OsStr>>(command: &mut Command, args: impl IntoIterator<Item = S>) -> String {
    let output = command.args(args).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} failed: {}\n{out}\n{err}", output.status);
    out.into_owned()
}
