//! What an array under the raidus program should contain, and the way there: its NBD socket.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::program::Daemon;
use crate::raidus::Rng;

/// What an array should contain, and who writes to it.
pub struct Content {
    /// All of it.
    pub bytes: Vec<u8>,
    uri: String,
    /// What is random in it, and in what its owner does.
    pub rng: Rng,
}

impl Content {
    /// Of an array that nobody has written to.
    pub fn zeroes(daemon: &Daemon, seed: u64) -> Result<Content> {
        let uri = format!("nbd+unix:///?socket={}", daemon.nbd()?.trim_start_matches("unix:"));
        let size = said(Command::new("nbdinfo").args(["--size", &uri]))?;
        Ok(Content { bytes: vec![0; size.trim().parse()?], uri, rng: Rng(seed) })
    }

    /// Random content, which [`write_all`](Self::write_all) has yet to write.
    pub fn random(daemon: &Daemon, seed: u64) -> Result<Content> {
        let mut content = Content::zeroes(daemon, seed)?;
        content.rng.fill(&mut content.bytes);
        Ok(content)
    }

    /// Writes everything, by way of a file in `dir`.
    pub fn write_all(&self, dir: &Path) -> Result<()> {
        let file = dir.join("content");
        std::fs::write(&file, &self.bytes)?;
        said(Command::new("nbdcopy").arg("--flush").arg(&file).arg(&self.uri))?;
        Ok(std::fs::remove_file(&file)?)
    }

    /// Writes `n` patterns at random places, and has them made durable.
    pub fn write_some(&mut self, n: usize) -> Result<()> {
        let sectors = self.bytes.len() as u64 / 512;
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw"]);
        for _ in 0..n {
            let at = self.rng.below(sectors);
            let len = (1 + self.rng.below(600)).min(sectors - at);
            let byte = self.rng.below(256) as u8;
            self.bytes[(at * 512) as usize..((at + len) * 512) as usize].fill(byte);
            command.args(["-c", &format!("write -P {byte} {} {}", at * 512, len * 512)]);
        }
        let out = said(command.args(["-c", "flush", &self.uri]))?;
        ensure!(!out.contains("failed") && out.matches("wrote ").count() == n, "{out}");
        Ok(())
    }
}

/// What a command printed; an error with all it said if it failed.
pub fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{command:?}: {out}{err}");
    Ok(out.into_owned())
}
