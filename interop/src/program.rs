//! The raidus program, as a process of its own that can be killed.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};

/// The program, built like the tests that run it.
pub fn program() -> Result<&'static Path> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build().map_err(|e| format!("{e:#}")));
    built.as_deref().map_err(|e| anyhow::anyhow!("{e}"))
}

/// Tests are in TARGET/PROFILE/deps, programs in TARGET/PROFILE.
fn build() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let place = test.ancestors().nth(2).context("a test that is not in a target directory")?;
    let target = place.parent().context("a test that is not in a target directory")?;
    let profile = if place.ends_with("release") { "release" } else { "test" };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--package", "raidus", "--bin", "raidus", "--profile", profile, "--target-dir"])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .context("cannot run cargo")?;
    ensure!(built.success(), "the program could not be built");
    Ok(place.join("raidus"))
}

/// An array that runs in a process of its own (`raidus serve`). Killed if it is dropped.
pub struct Daemon {
    child: Child,
    run_dir: PathBuf,
    ready: String,
}

impl Daemon {
    /// Starts `raidus serve` with these words, and waits until clients can connect. Fails with what it said if it does not start.
    pub fn serve<S: AsRef<OsStr>>(run_dir: &Path, words: impl IntoIterator<Item = S>) -> Result<Daemon> {
        let mut child = command(run_dir)?
            .args(["serve", "--json"])
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut ready = String::new();
        BufReader::new(child.stdout.take().context("no stdout")?).read_line(&mut ready)?;
        if ready.is_empty() {
            let said = child.wait_with_output()?;
            bail!("raidus serve ended with {}: {}", said.status, String::from_utf8_lossy(&said.stderr));
        }
        // It goes on to say things, and must not wait for a reader.
        let said = BufReader::new(child.stderr.take().context("no stderr")?);
        std::thread::spawn(move || said.lines().map_while(Result::ok).for_each(|line| eprintln!("{line}")));
        Ok(Daemon { child, run_dir: run_dir.to_owned(), ready })
    }

    /// Where it listens for NBD clients: `unix:PATH` or `tcp:ADDRESS:PORT`; the one the user asked for first.
    pub fn nbd(&self) -> Result<String> {
        let uris = self.ready.split('"').filter_map(|word| {
            let socket = word.strip_prefix("nbd+unix:///?socket=").map(|path| format!("unix:{path}"));
            socket.or_else(|| Some(format!("tcp:{}", word.strip_prefix("nbd://")?.trim_end_matches('/'))))
        });
        uris.into_iter().next().with_context(|| format!("no NBD address in {}", self.ready))
    }

    /// Stops it in order.
    pub fn stop(mut self) -> Result<()> {
        let stopped = run(&self.run_dir, ["stop", "--all"])?;
        ensure!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
        let status = self.child.wait()?;
        ensure!(status.success(), "raidus serve ended with {status}");
        Ok(())
    }

    /// Ends it with SIGKILL.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Ended already, unless a test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `raidus` with these words to its end.
pub fn run<S: AsRef<OsStr>>(run_dir: &Path, words: impl IntoIterator<Item = S>) -> Result<Output> {
    Ok(command(run_dir)?.args(words).stdin(Stdio::null()).output()?)
}

fn command(run_dir: &Path) -> Result<Command> {
    let mut command = Command::new(program()?);
    command.env("RAIDUS_RUN_DIR", run_dir);
    Ok(command)
}
