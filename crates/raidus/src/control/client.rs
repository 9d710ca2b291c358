//! The asking side of the control socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{
    ActRequest, AddRequest, DetailFormat, ErrorBody, MapAnswer, MapRequest, ReplaceRequest, ScrubAnswer, SyncWord,
};
use crate::live::Settling;
use crate::live::attributes::Attribute;
use crate::live::feed::Batch;
use crate::live::grow::{Grow, Grown};
use crate::live::members::{Joined, Replaced};
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

    /// A device joins.
    pub fn add(&self, request: &AddRequest) -> Result<Joined, ControlError> {
        self.post("/members/add", request)
    }

    /// Fails or removes members; gives the paths of those it happened to.
    pub fn act(&self, request: &ActRequest) -> Result<Vec<String>, ControlError> {
        self.post("/members/act", request)
    }

    /// Begins to rebuild a member onto a spare.
    pub fn replace(&self, request: &ReplaceRequest) -> Result<Replaced, ControlError> {
        self.post("/members/replace", request)
    }

    /// Adds or removes the write-intent bitmap.
    pub fn grow(&self, wanted: Grow) -> Result<Grown, ControlError> {
        self.post("/grow", &wanted)
    }

    /// Begins a check or repair, interrupts what runs, or freezes.
    pub fn sync(&self, action: &str) -> Result<(), ControlError> {
        self.post("/sync", &SyncWord { action: action.to_owned() })
    }

    /// The last check or repair; waits a while for one after the number `after`.
    pub fn scrub(&self, after: u64, seconds: u64) -> Result<ScrubAnswer, ControlError> {
        self.get(&format!("/scrub?after={after}&seconds={seconds}"), seconds)
    }

    /// Waits a while until nothing is synced, or has to be.
    pub fn wait(&self, seconds: u64) -> Result<Settling, ControlError> {
        self.get(&format!("/wait?seconds={seconds}"), seconds)
    }

    /// What happened after event number `after`; waits a while for something.
    pub fn events(&self, after: u64, seconds: u64) -> Result<Batch, ControlError> {
        self.get(&format!("/events?after={after}&seconds={seconds}"), seconds)
    }

    /// md's attributes.
    pub fn attributes(&self) -> Result<Vec<Attribute>, ControlError> {
        self.get("/attributes", 0)
    }

    /// Sets one of them.
    pub fn set(&self, attribute: &Attribute) -> Result<(), ControlError> {
        self.post("/attributes", attribute)
    }

    /// What is where.
    pub fn map(&self, request: &MapRequest) -> Result<MapAnswer, ControlError> {
        self.post("/map", request)
    }

    fn get<A: DeserializeOwned>(&self, what: &str, waits: u64) -> Result<A, ControlError> {
        let body = self.ask(Method::GET, what, Some(PATIENCE + Duration::from_secs(waits)))?;
        serde_json::from_slice(&body).map_err(|e| self.garbled(e))
    }

    /// However long it takes: a device may have to be woken up.
    fn post<A: DeserializeOwned>(&self, what: &str, request: &impl Serialize) -> Result<A, ControlError> {
        let request = serde_json::to_vec(request).map_err(|e| self.garbled(e))?;
        let body = self.send(Method::POST, what, request, None)?;
        serde_json::from_slice(&body).map_err(|e| self.garbled(e))
    }

    fn text(&self, what: &str) -> Result<String, ControlError> {
        let body = self.ask(Method::GET, what, Some(PATIENCE))?;
        String::from_utf8(body).map_err(|e| self.garbled(e))
    }

    fn ask(&self, method: Method, what: &str, patience: Option<Duration>) -> Result<Vec<u8>, ControlError> {
        self.send(method, what, Vec::new(), patience)
    }

    fn send(
        &self,
        method: Method,
        what: &str,
        body: Vec<u8>,
        patience: Option<Duration>,
    ) -> Result<Vec<u8>, ControlError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| self.broken(e))?;
        runtime.block_on(async {
            let answer = self.exchange(method, what, body);
            match patience {
                None => answer.await,
                Some(patience) => {
                    let answer = tokio::time::timeout(patience, answer).await;
                    answer.unwrap_or_else(|_| Err(ControlError::Silent(self.socket.clone())))
                }
            }
        })
    }

    async fn exchange(&self, method: Method, what: &str, body: Vec<u8>) -> Result<Vec<u8>, ControlError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|e| self.broken(e))?;
        let hyper = |e: hyper::Error| self.broken(io::Error::other(e));
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(hyper)?;
        tokio::spawn(connection);
        let request = Request::builder().method(method).uri(what).header("host", "raidus");
        let request = request.body(Full::new(Bytes::from(body))).map_err(|e| self.garbled(e))?;
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
