//! The serving side of the control socket: one thread, one request at a time as far as the array is concerned.
//!
//! What only looks is answered here. What changes something becomes an [`Order`] to the thread that owns the array, and the
//! answer waits for it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use raidus_engine::control::Status;
use raidus_nbd::Endpoint;
use raidus_runtime::ArrayHandle;
use serde::Deserialize;
use tokio::sync::oneshot;

use super::{DetailFormat, ErrorBody};
use crate::daemon::Order;
use crate::host::Host;
use crate::portrait::Portrait;

/// What the handlers look at.
pub struct Shared {
    /// The array.
    pub array: Arc<ArrayHandle>,
    /// What is known of it.
    pub portrait: Arc<Portrait>,
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
        .fallback(async || failed(StatusCode::NOT_FOUND, "no such request"))
        .with_state(shared)
}

type Handle = State<Arc<Shared>>;

async fn status(State(shared): Handle) -> Response {
    with_status(shared, |shared, status| {
        let mut report = shared.portrait.report(status);
        report.nbd.clone_from(&shared.nbd);
        Json(report).into_response()
    })
    .await
}

async fn mdstat(State(shared): Handle) -> Response {
    with_status(shared, |shared, status| raidus_text::mdstat_array(&shared.portrait.view(status)).into_response()).await
}

#[derive(Deserialize)]
struct DetailQuery {
    #[serde(default)]
    format: DetailFormat,
}

async fn detail(State(shared): Handle, Query(query): Query<DetailQuery>) -> Response {
    with_status(shared, move |shared, status| {
        let view = shared.portrait.view(status);
        let text = match query.format {
            DetailFormat::Full => Host::this().with_context(|context| raidus_text::detail(&view, context)),
            DetailFormat::Brief => raidus_text::detail_brief(&view),
            DetailFormat::Export => raidus_text::detail_export(&view),
            DetailFormat::Query => raidus_text::query_array(&view),
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
    let looked = tokio::task::spawn_blocking(move || match shared.array.status() {
        Some(status) => show(&shared, &status),
        None => failed(StatusCode::CONFLICT, "the array has stopped"),
    });
    looked.await.unwrap_or_else(|_| failed(StatusCode::INTERNAL_SERVER_ERROR, "internal error"))
}

fn failed(status: StatusCode, why: &str) -> Response {
    (status, Json(ErrorBody { error: why.to_owned() })).into_response()
}
