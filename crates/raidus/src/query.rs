//! `raidus query`: what a device or an array is, in a line.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::control::DetailFormat;
use crate::control::client::{Remote, find, running};
use crate::error::Failure;
use crate::look::look;
use crate::output::{self, say};
use crate::portrait::ArrayReport;
use crate::rundir::RunDir;

/// Say in a line what a device or a running array is, almost in the words of mdadm --query.
#[derive(Args, Debug)]
pub struct QueryArgs {
    /// Devices, or names of running arrays.
    #[arg(required = true, value_name = "DEVICE")]
    words: Vec<PathBuf>,
}

/// The command.
pub fn run(args: QueryArgs) -> Result<(), Failure> {
    let dir = RunDir::find()?;
    let arrays = running(&dir)?;
    let mut failed = false;
    for word in &args.words {
        match query(&dir, &arrays, word) {
            Ok(text) => output::text(text)?,
            Err(failure) => {
                say(&failure);
                failed = true;
            }
        }
    }
    if failed { Err(Failure::Told) } else { Ok(()) }
}

fn query(dir: &RunDir, arrays: &[(Remote, ArrayReport)], word: &Path) -> Result<String, Failure> {
    let looked = match look(word) {
        Ok(looked) => looked,
        // Not a device; the name of an array, perhaps.
        Err(failure) => {
            let array = word.to_str().and_then(|name| find(dir, name).ok());
            return match array {
                Some((remote, _)) => Ok(remote.detail(DetailFormat::Query)?),
                None => Err(failure),
            };
        }
    };
    let device = word.display().to_string();
    let array = looked.probe.newest().map(|superblock| (superblock.array(), superblock.member().dev_number));
    let running = member_of(arrays, word).map(|(_, report)| report.name.as_str());
    Ok(raidus_text::query_device(
        &device,
        array.as_ref().map(|(facts, number)| (facts, *number)),
        running,
        "raidus examine",
    ))
}

/// The running array that uses this device.
pub fn member_of<'a>(arrays: &'a [(Remote, ArrayReport)], device: &Path) -> Option<&'a (Remote, ArrayReport)> {
    let device = std::fs::canonicalize(device).ok()?;
    let is = |path: &str| std::fs::canonicalize(path).is_ok_and(|p| p == device);
    arrays.iter().find(|(_, report)| report.members.iter().any(|m| is(&m.device)))
}
