//! The serving side of the control socket.
//!
//! What takes the array or a device to answer is done on threads of its own, so that no request waits for another. Only
//! stopping is the business of the thread that owns the array: it becomes an [`Order`].

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use raidus_engine::control::Status;
use raidus_nbd::Endpoint;
use raidus_units::{SECTOR_BYTES, Sector};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{
    ActRequest, AddRequest, DetailFormat, ErrorBody, MapAnswer, MapRequest, Patience, ReplaceRequest, ScrubAnswer,
    SyncWord,
};
use crate::daemon::Order;
use crate::host::Host;
use crate::live::attributes::Attribute;
use crate::live::chart::Chart;
use crate::live::grow::Grow;
use crate::live::set::parse_sync;
use crate::live::{Live, Refusal, Settling};
use crate::portrait::sync_action;

/// What the handlers look at.
pub struct Shared {
    /// The array.
    pub live: Arc<Live>,
    /// Where clients can connect.
    pub nbd: Vec<String>,
    /// To the thread that owns the array.
    pub orders: Sender<Order>,
}

/// A served control socket. Its file goes when this is dropped.
pub struct Server {
    end: oneshot::Sender<()>,
    thread: JoinHandle<()>,
    _endpoint: Endpoint,
}

/// Serves the socket on a thread of its own.
pub fn serve((socket, endpoint): (OwnedFd, Endpoint), shared: Shared) -> io::Result<Server> {
    let socket = UnixListener::from(socket);
    socket.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (end, ended) = oneshot::channel::<()>();
    let router = router(Arc::new(shared));
    let thread = std::thread::Builder::new().name("raidus-control".to_owned()).spawn(move || {
        let served = runtime.block_on(async {
            let socket = tokio::net::UnixListener::from_std(socket)?;
            // Requests under way are still answered.
            let ended = async {
                let _ = ended.await;
            };
            axum::serve(socket, router).with_graceful_shutdown(ended).await
        });
        if let Err(error) = served {
            tracing::error!(%error, "the control socket is not served any more");
        }
        runtime.shutdown_background();
    })?;
    Ok(Server { end, thread, _endpoint: endpoint })
}

impl Server {
    /// Answers what is under way, and no more.
    pub fn end(self) {
        let _ = self.end.send(());
        let _ = self.thread.join();
    }
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/status", get(status))
        .route("/mdstat", get(mdstat))
        .route("/detail", get(detail))
        .route("/stop", post(stop))
        .route("/members/add", post(add))
        .route("/members/act", post(act))
        .route("/members/replace", post(replace))
        .route("/grow", post(grow))
        .route("/sync", post(sync))
        .route("/scrub", get(scrub))
        .route("/wait", get(wait))
        .route("/events", get(events))
        .route("/attributes", get(attributes).post(set_attribute))
        .route("/map", post(map))
        .fallback(async || failed(StatusCode::NOT_FOUND, "no such request"))
        .with_state(shared)
}

type Handle = State<Arc<Shared>>;

async fn status(State(shared): Handle) -> Response {
    with_status(shared, |shared, status| {
        let mut report = shared.live.portrait.report(status);
        report.nbd.clone_from(&shared.nbd);
        Json(report).into_response()
    })
    .await
}

async fn mdstat(State(shared): Handle) -> Response {
    with_status(shared, |shared, status| raidus_text::mdstat_array(&shared.live.portrait.view(status)).into_response())
        .await
}

#[derive(Deserialize)]
struct DetailQuery {
    #[serde(default)]
    format: DetailFormat,
}

async fn detail(State(shared): Handle, Query(query): Query<DetailQuery>) -> Response {
    with_status(shared, move |shared, status| {
        let view = shared.live.portrait.view(status);
        let text = match query.format {
            DetailFormat::Full => Host::this().with_context(|context| raidus_text::detail(&view, context)),
            DetailFormat::Brief => raidus_text::detail_brief(&view),
            DetailFormat::Export => raidus_text::detail_export(&view),
            DetailFormat::Query => raidus_text::query_array(&view, "raidus detail"),
        };
        text.into_response()
    })
    .await
}

async fn stop(State(shared): Handle) -> Response {
    let (reply, answer) = oneshot::channel();
    if shared.orders.send(Order::Stop(reply)).is_err() {
        return failed(StatusCode::CONFLICT, "the array is stopping already");
    }
    match answer.await {
        Ok(Ok(())) => Json(serde_json::json!({ "stopped": true })).into_response(),
        Ok(Err(why)) => failed(StatusCode::INTERNAL_SERVER_ERROR, &why),
        Err(_) => failed(StatusCode::CONFLICT, "the array is stopping already"),
    }
}

/// Asks the array how it is, which takes a turn of a reactor, and answers with what `show` makes of it.
async fn with_status(
    shared: Arc<Shared>,
    show: impl FnOnce(&Shared, &Status) -> Response + Send + 'static,
) -> Response {
    let looked = tokio::task::spawn_blocking(move || match shared.live.array.status() {
        Some(status) => show(&shared, &status),
        None => failed(StatusCode::CONFLICT, "the array has stopped"),
    });
    looked.await.unwrap_or_else(|_| failed(StatusCode::INTERNAL_SERVER_ERROR, "internal error"))
}

async fn add(State(shared): Handle, body: Bytes) -> Response {
    carry_out(shared, body, |live, request: AddRequest| live.add(&request.device, request.how)).await
}

async fn act(State(shared): Handle, body: Bytes) -> Response {
    carry_out(shared, body, |live, request: ActRequest| live.act(request.action, &request.device)).await
}

async fn replace(State(shared): Handle, body: Bytes) -> Response {
    carry_out(shared, body, |live, request: ReplaceRequest| live.replace(&request.device, request.with.as_ref())).await
}

async fn grow(State(shared): Handle, body: Bytes) -> Response {
    carry_out(shared, body, |live, wanted: Grow| live.grow(wanted)).await
}

async fn sync(State(shared): Handle, body: Bytes) -> Response {
    carry_out(shared, body, |live, request: SyncWord| {
        let word = request.action;
        let wanted = parse_sync(&word).ok_or_else(|| Refusal::BadValue {
            attribute: "sync_action".to_owned(),
            value: word,
            rule: "check, repair, idle and frozen are possible".to_owned(),
        })?;
        live.sync(wanted)
    })
    .await
}

async fn set_attribute(State(shared): Handle, body: Bytes) -> Response {
    carry_out(shared, body, |live, wanted: Attribute| live.set(&wanted.name, &wanted.value)).await
}

async fn attributes(State(shared): Handle) -> Response {
    with_status(shared, |shared, status| Json(shared.live.attributes(status)).into_response()).await
}

async fn map(State(shared): Handle, body: Bytes) -> Response {
    carry_out(shared, body, |live, request: MapRequest| {
        let chart = Chart::running(&live.portrait, &live.status()?);
        let places = live.portrait.places();
        let meant = |named: &crate::live::members::Named| {
            let at = |path: &std::path::PathBuf| {
                places.iter().any(|p| p.path == *path && (p.is_at(&named.absolute) || p.is_called(&named.word)))
            };
            chart.find(at)
        };
        answer_map(&chart, &request, meant).map_err(Refusal::Request)
    })
    .await
}

/// What is at a place of a chart, or why there is nothing.
pub fn answer_map(
    chart: &Chart,
    request: &MapRequest,
    find: impl Fn(&crate::live::members::Named) -> Option<usize>,
) -> Result<MapAnswer, String> {
    match request {
        MapRequest::Array(byte) => {
            let places = chart.of_array(Sector(byte / SECTOR_BYTES));
            places.map(MapAnswer::Array).ok_or_else(|| format!("offset {byte} is past the end of the array"))
        }
        MapRequest::Member(device, sector) => {
            let name = device.word.display();
            let member = find(device).ok_or_else(|| format!("{name} is not a member of the array"))?;
            let report = chart.of_member(member, Sector(*sector));
            report.map(MapAnswer::Member).ok_or_else(|| format!("{name} has no sector {sector}"))
        }
    }
}

/// Requests that wait do so at most this long; whoever wants to wait longer asks again.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How often those who wait look although nothing was said to have happened.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Looks until there is something to answer with, or the time is over: `look` is told whether it is.
async fn look_until(
    shared: Arc<Shared>,
    seconds: u64,
    look: impl Fn(&Live, bool) -> Option<Response> + Send + Sync + 'static,
) -> Response {
    let look = Arc::new(look);
    let end = Instant::now() + Duration::from_secs(seconds).min(WAIT_MAX);
    let mut news = shared.live.feed.watch();
    loop {
        // What comes while it looks is news, too.
        news.borrow_and_update();
        let left = end.saturating_duration_since(Instant::now());
        let over = left.is_zero() || shared.live.feed.has_ended();
        let (shared, look) = (Arc::clone(&shared), Arc::clone(&look));
        match tokio::task::spawn_blocking(move || look(&shared.live, over)).await {
            Ok(Some(answer)) => return answer,
            Ok(None) => {}
            Err(_) => return failed(StatusCode::INTERNAL_SERVER_ERROR, "internal error"),
        }
        // Either way there is something to look for.
        let _ = tokio::time::timeout(left.min(LOOK_EVERY), news.changed()).await;
    }
}

async fn events(State(shared): Handle, Query(patience): Query<Patience>) -> Response {
    look_until(shared, patience.seconds, move |live, over| {
        let batch = live.feed.after(patience.after);
        let worth = over || batch.ended || batch.missed > 0 || !batch.events.is_empty();
        worth.then(|| Json(batch).into_response())
    })
    .await
}

async fn scrub(State(shared): Handle, Query(patience): Query<Patience>) -> Response {
    look_until(shared, patience.seconds, move |live, over| {
        let (finished, report) = live.scrubs.last();
        if finished <= patience.after && !over {
            return None;
        }
        let running = live.array.status().map_or("idle", |status| sync_action(&status)).to_owned();
        Some(Json(ScrubAnswer { finished, report, running }).into_response())
    })
    .await
}

/// Nobody can do anything about what is going to pass by itself: an array is called stuck only if it has been so for a while.
const STUCK_FOR: Duration = Duration::from_millis(1500);
/// Longer than the engine waits before it tries again.
const IDLE_FOR: Duration = Duration::from_secs(12);

async fn wait(State(shared): Handle, Query(patience): Query<Patience>) -> Response {
    let stuck_since: Mutex<Option<Instant>> = Mutex::default();
    let idle_since: Mutex<Option<Instant>> = Mutex::default();
    // A short wait would not find out.
    let seconds = patience.seconds.max(IDLE_FOR.as_secs() + 1);
    look_until(shared, seconds, move |live, over| {
        let Some(status) = live.array.status() else {
            return Some(failed(StatusCode::CONFLICT, "the array has stopped"));
        };
        let found = live.settling(&status);
        let stuck_for = lasts(&stuck_since, matches!(found, Settling::Stuck(_)));
        let idle_for = lasts(&idle_since, found == Settling::Busy && status.sync.action.is_none());
        let answer = match found {
            Settling::Stuck(_) if stuck_for < STUCK_FOR => Settling::Busy,
            Settling::Busy if idle_for >= IDLE_FOR => {
                Settling::Stuck("a sync is needed and does not begin; the array's log may say why".to_owned())
            }
            found => found,
        };
        (over || answer != Settling::Busy).then(|| Json(answer).into_response())
    })
    .await
}

/// How long something has been so.
fn lasts(since: &Mutex<Option<Instant>>, is_so: bool) -> Duration {
    let mut since = since.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_so {
        *since = None;
        return Duration::ZERO;
    }
    since.get_or_insert_with(Instant::now).elapsed()
}

/// Does what a request asks for, on a thread of its own.
async fn carry_out<Q: DeserializeOwned + Send + 'static, A: Serialize>(
    shared: Arc<Shared>,
    body: Bytes,
    act: impl FnOnce(&Live, Q) -> Result<A, Refusal> + Send + 'static,
) -> Response {
    let request = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => return failed(StatusCode::BAD_REQUEST, &format!("the request is not understood: {error}")),
    };
    let done = tokio::task::spawn_blocking(move || match act(&shared.live, request) {
        Ok(answer) => Json(answer).into_response(),
        Err(refusal) => failed(code(&refusal), &refusal.to_string()),
    });
    done.await.unwrap_or_else(|_| failed(StatusCode::INTERNAL_SERVER_ERROR, "internal error"))
}

fn code(refusal: &Refusal) -> StatusCode {
    match refusal {
        Refusal::NotAMember { .. } | Refusal::NoAttribute(_) => StatusCode::NOT_FOUND,
        Refusal::BadValue { .. } | Refusal::Ambiguous { .. } | Refusal::Request(_) => StatusCode::BAD_REQUEST,
        Refusal::System(_) => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::CONFLICT,
    }
}

fn failed(status: StatusCode, why: &str) -> Response {
    (status, Json(ErrorBody { error: why.to_owned() })).into_response()
}
