//! Running the program as a user does.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_raidus");

/// A directory with images, and a run directory of its own.
pub struct Place {
    dir: TempDir,
}

/// What a command said.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Place {
    pub fn new() -> Place {
        let dir = tempfile::Builder::new().prefix("raidus").tempdir().unwrap();
        Place { dir }
    }

    /// With the images of a golden array: disk0.img, disk1.img …
    pub fn golden(case: &str) -> (Place, Vec<String>) {
        let place = Place::new();
        let images = raidus_golden::case(case).write_images(place.path()).unwrap();
        let names = images.iter().map(|p| p.file_name().unwrap().to_str().unwrap().to_owned()).collect();
        (place, names)
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A sparse file.
    pub fn image(&self, name: &str, bytes: u64) -> String {
        File::create(self.file(name)).unwrap().set_len(bytes).unwrap();
        name.to_owned()
    }

    pub fn images(&self, n: usize, bytes: u64) -> Vec<String> {
        (0..n).map(|i| self.image(&format!("d{i}"), bytes)).collect()
    }

    /// Overwrites bytes of a file.
    pub fn poke(&self, name: &str, at: u64, bytes: &[u8]) {
        let mut file = OpenOptions::new().write(true).open(self.file(name)).unwrap();
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(bytes).unwrap();
    }

    pub fn content(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.file(name)).unwrap()
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(words).current_dir(self.path()).env("RAIDUS_RUN_DIR", self.file("run")).env_remove("RAIDUS_LOG");
        command.stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, words: &[&str]) -> Said {
        said(self.command(words).output().unwrap())
    }

    /// Words, then devices.
    pub fn run_on(&self, words: &[&str], devices: &[String]) -> Said {
        self.run(&join(words, devices))
    }

    /// Runs a command that must do what it is told.
    pub fn ok(&self, words: &[&str]) -> Said {
        let said = self.run(words);
        assert_eq!(said.code, Some(0), "{words:?}: {said:?}");
        said
    }

    pub fn ok_on(&self, words: &[&str], devices: &[String]) -> Said {
        self.ok(&join(words, devices))
    }

    /// Runs a command that must fail with this status, and say this.
    pub fn refused(&self, code: i32, words: &[&str], parts: &[&str]) -> Said {
        let said = self.run(words);
        assert_eq!(said.code, Some(code), "{words:?}: {said:?}");
        for part in parts {
            assert!(said.err.contains(part), "{words:?}: no {part:?} in {}", said.err);
        }
        assert!(!said.err.contains("panicked"), "{}", said.err);
        said
    }

    pub fn refused_on(&self, words: &[&str], devices: &[String], parts: &[&str]) -> Said {
        self.refused(1, &join(words, devices), parts)
    }

    /// Starts `raidus serve` and waits until clients can connect.
    pub fn serve(&self, words: &[&str], devices: &[String]) -> Served {
        let mut words = join(words, devices);
        words.insert(0, "serve");
        words.insert(1, "--json");
        words.insert(1, "--threads=1");
        let mut child = self.command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let Ok(ready) = serde_json::from_str::<Value>(&line) else {
            let output = child.wait_with_output().unwrap();
            panic!("{words:?}: not ready: {:?}", said(output));
        };
        Served {
            name: ready["name"].as_str().unwrap().to_owned(),
            uri: ready["nbd"][0].as_str().unwrap().to_owned(),
            child,
        }
    }

    pub fn json(&self, words: &[&str]) -> Value {
        let out = self.ok(words).out;
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{words:?}: {e}: {out}"))
    }
}

/// A test that failed leaves no array in the background.
impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.command(&["stop", "--all"]).output();
    }
}

/// A served array; killed when dropped.
pub struct Served {
    pub name: String,
    pub uri: String,
    child: Child,
}

impl Served {
    /// Sends a signal and waits for the end.
    pub fn end(mut self, signal: &str) -> Said {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap().success());
        let status = self.child.wait().unwrap();
        let mut err = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        Said { code: status.code(), out: String::new(), err }
    }

    /// Waits for the end.
    pub fn ended(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn said(output: Output) -> Said {
    Said {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn join<'a>(words: &[&'a str], devices: &'a [String]) -> Vec<&'a str> {
    words.iter().copied().chain(devices.iter().map(String::as_str)).collect()
}

/// A tool that tests need: they fail without it rather than pass without having tested anything.
pub fn tool(name: &str, args: &[&str]) -> Said {
    let output = Command::new(name).args(args).output();
    said(output.unwrap_or_else(|e| panic!("{name}: {e}; install it to run these tests")))
}
