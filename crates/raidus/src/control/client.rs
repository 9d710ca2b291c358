//! The asking side of the control socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use super::{DetailFormat, ErrorBody};
use crate::output::say;
use crate::portrait::ArrayReport;
use crate::rundir::{RunDir, check_name};

/// How long a running array may take to say how it is.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a running array cannot be spoken with.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody answers on its socket.
    #[error("no array named '{name}' is running; `raidus status` lists those that are")]
    NotRunning {
        /// The name.
        name: String,
    },
    /// The connection broke, or was never made.
    #[error("{}: {source}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It does not answer in time.
    #[error("{}: no answer within {} seconds; the process may be waiting for a member that hangs", .0.display(), PATIENCE.as_secs())]
    Silent(PathBuf),
    /// The answer makes no sense.
    #[error("{}: answered something that is not understood ({why}); is it a raidus of another version?", path.display())]
    Garbled {
        /// The socket.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The array refuses.
    #[error("{name}: {why}")]
    Refused {
        /// The array.
        name: String,
        /// Why.
        why: String,
    },
}

impl ControlError {
    /// Whether there simply is no such array.
    pub fn is_absence(&self) -> bool {
        matches!(self, ControlError::NotRunning { .. })
    }
}

/// A running array.
#[derive(Clone, Debug)]
pub struct Remote {
    name: String,
    socket: PathBuf,
}

impl Remote {
    /// The array of this name, if there is one.
    pub fn new(dir: &RunDir, name: &str) -> Remote {
        Remote { name: name.to_owned(), socket: dir.control(name) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it is.
    pub fn status(&self) -> Result<ArrayReport, ControlError> {
        let body = self.ask(Method::GET, "/status", Some(PATIENCE))?;
        serde_json::from_slice(&body).map_err(|e| self.garbled(e))
    }

    /// Its lines of mdstat.
    pub fn mdstat(&self) -> Result<String, ControlError> {
        self.text("/mdstat")
    }

    /// mdadm's text about it.
    pub fn detail(&self, format: DetailFormat) -> Result<String, ControlError> {
        self.text(&format!("/detail?format={}", format.word()))
    }

    /// Stops it. Returns when it is stopped, however long that takes.
    pub fn stop(&self) -> Result<(), ControlError> {
        self.ask(Method::POST, "/stop", None).map(|_| ())
    }

    fn text(&self, what: &str) -> Result<String, ControlError> {
        let body = self.ask(Method::GET, what, Some(PATIENCE))?;
        String::from_utf8(body).map_err(|e| self.garbled(e))
    }

    fn ask(&self, method: Method, what: &str, patience: Option<Duration>) -> Result<Vec<u8>, ControlError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| self.broken(e))?;
        runtime.block_on(async {
            let answer = self.exchange(method, what);
            match patience {
                None => answer.await,
                Some(patience) => {
                    let answer = tokio::time::timeout(patience, answer).await;
                    answer.unwrap_or_else(|_| Err(ControlError::Silent(self.socket.clone())))
                }
            }
        })
    }

    async fn exchange(&self, method: Method, what: &str) -> Result<Vec<u8>, ControlError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|e| self.broken(e))?;
        let hyper = |e: hyper::Error| self.broken(io::Error::other(e));
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(hyper)?;
        tokio::spawn(connection);
        let request = Request::builder().method(method).uri(what).header("host", "raidus");
        let request = request.body(Empty::<Bytes>::new()).map_err(|e| self.garbled(e))?;
        let response = sender.send_request(request).await.map_err(hyper)?;
        let ok = response.status().is_success();
        let body = response.into_body().collect().await.map_err(hyper)?.to_bytes().to_vec();
        if ok {
            return Ok(body);
        }
        let body: ErrorBody = serde_json::from_slice(&body).map_err(|e| self.garbled(e))?;
        Err(ControlError::Refused { name: self.name.clone(), why: body.error })
    }

    fn broken(&self, source: io::Error) -> ControlError {
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                ControlError::NotRunning { name: self.name.clone() }
            }
            _ => ControlError::Io { path: self.socket.clone(), source },
        }
    }

    fn garbled(&self, why: impl ToString) -> ControlError {
        ControlError::Garbled { path: self.socket.clone(), why: why.to_string() }
    }
}

/// All running arrays and how they are. Those that stop meanwhile are left out; the user is told of those that do not answer.
pub fn running(dir: &RunDir) -> Result<Vec<(Remote, ArrayReport)>, crate::error::Failure> {
    let mut arrays = Vec::new();
    for name in dir.names()? {
        let remote = Remote::new(dir, &name);
        match remote.status() {
            Ok(report) => arrays.push((remote, report)),
            Err(e) if e.is_absence() => {}
            Err(e) => say(e),
        }
    }
    Ok(arrays)
}

/// The running array that the user means: by the name it runs under, by its own name, by its UUID, or by one of its sockets.
pub fn find(dir: &RunDir, word: &str) -> Result<(Remote, ArrayReport), crate::error::Failure> {
    let own = Path::new(word).file_stem().and_then(|s| s.to_str()).filter(|_| word.contains('/'));
    let name = own.unwrap_or(word);
    if check_name(name).is_ok() {
        let remote = Remote::new(dir, name);
        match remote.status() {
            Ok(report) => return Ok((remote, report)),
            Err(e) if e.is_absence() => {}
            Err(e) => return Err(e.into()),
        }
    }
    let means = |r: &ArrayReport| {
        r.array_name == word || r.array_name.rsplit_once(':').is_some_and(|(_, n)| n == word) || r.uuid == word
    };
    let mut found: Vec<_> = running(dir)?.into_iter().filter(|(_, report)| means(report)).collect();
    match found.pop() {
        Some(one) if found.is_empty() => Ok(one),
        _ => Err(ControlError::NotRunning { name: word.to_owned() }.into()),
    }
}
