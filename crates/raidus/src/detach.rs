//! Arrays in the background: a process of its own that outlives the command.
//!
//! The command starts this program again and hands it the request as JSON. What goes wrong until clients can connect is told
//! on the command's standard error; afterwards the process belongs to nobody, and its log is in the run directory.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use crate::daemon::{Ready, Request, run};
use crate::error::Failure;
use crate::rundir::RunDir;

/// The hidden command that a background process is started with.
pub const COMMAND: &str = "hold";

/// Starts a background process for the array and waits until clients can connect.
pub fn start(request: &Request) -> Result<Ready, Failure> {
    let failed = |source| Failure::System { what: "cannot start a background process", source };
    let request = serde_json::to_vec(request).map_err(|e| failed(e.into()))?;
    let mut child = Command::new(std::env::current_exe().map_err(failed)?)
        .arg(COMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(&request).map_err(failed)?;
    }
    let mut answer = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut answer).map_err(failed)?;
    }
    match serde_json::from_str(&answer) {
        Ok(ready) => Ok(ready),
        Err(_) => {
            let status = child.wait().map_err(failed)?;
            // It says itself what is wrong, unless something ended it.
            if status.code().is_none() {
                return Err(failed(io::Error::other(format!("it ended with {status}"))));
            }
            Err(Failure::Told)
        }
    }
}

/// The background process.
pub fn hold() -> Result<(), Failure> {
    let failed = |source| Failure::System { what: "cannot run in the background", source };
    let mut request = Vec::new();
    io::stdin().read_to_end(&mut request).map_err(failed)?;
    let request: Request = serde_json::from_slice(&request)
        .map_err(|e| Failure::Usage(format!("this command is for raidus itself: {e}")))?;
    // A session of its own, so that the terminal's signals and its end do not reach the array.
    rustix::process::setsid().map_err(|e| failed(e.into()))?;
    run(&request, |ready| {
        let dir = RunDir::find()?;
        let log = OpenOptions::new().create(true).append(true).open(dir.log(&ready.name)).map_err(failed)?;
        let line = serde_json::to_string(ready).map_err(|e| failed(e.into()))?;
        crate::output::text(format_args!("{line}\n"))?;
        let nothing = File::options().read(true).write(true).open("/dev/null").map_err(failed)?;
        let streams = rustix::stdio::dup2_stdin(&nothing)
            .and_then(|()| rustix::stdio::dup2_stdout(&nothing))
            .and_then(|()| rustix::stdio::dup2_stderr(&log));
        streams.map_err(|e| failed(e.into()))?;
        // Whatever the command was started from may be unmounted.
        std::env::set_current_dir("/").map_err(failed)
    })
}
