//! Listens, serves, closes rounds, ends.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::app_state::AppState;
use super::error::io;
use super::handlers::serve;
use super::round_store::{MODEL, RoundStore, updates};
use super::{OpenRound, RoundState, ServerError, Settings};
use crate::files::{HEADER_MAX, read_layout};

/// A head of a request is no longer than this, and a block of a body neither.
const BUFFER: usize = 1 << 16;

/// By how much a client's file may be longer than ours: it has a header of its own.
const LONGER: u64 = 1 << 16;

/// How long connections have to end at an interruption.
const LEAVE: Duration = Duration::from_secs(5);

/// After a failure to accept, as when descriptors are wanting.
const RECOVER: Duration = Duration::from_millis(100);

/// After a mean that could not be made.
const AGAIN: Duration = Duration::from_secs(5);

const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n";

/// Where it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeSummary {
    /// Rounds that are committed.
    pub committed: u32,
    /// Of how many.
    pub rounds: u32,
}

/// A server that listens.
pub struct AdapterServer {
    app: Arc<AppState>,
    listener: TcpListener,
}

impl AdapterServer {
    /// Opens the state directory, and listens.
    ///
    /// # Errors
    /// A base that cannot be used; a state directory of another exchange; an address that cannot be had.
    pub async fn open(settings: Settings) -> Result<Self, ServerError> {
        let (store, record) = RoundStore::open(&settings.state, &settings.base, settings.rules.method)?;
        let names = settings.registry.names();
        let (_, length) = read_layout(&store.round(record.round).join(MODEL))?;
        let last = updates(&record, names);
        let mut rounds = RoundState::new(settings.rules, settings.policy(), names.len(), record.round, last);
        let kept = store.pending_updates(record.round, names)?;
        if record.round > 0 || !kept.is_empty() {
            tracing::info!(
                "resumed after round {}, {} updates of the next one kept",
                record.round,
                kept.len()
            );
        }
        rounds.open(0, kept);
        let address = PathBuf::from(settings.listen.to_string());
        let listener = TcpListener::bind(settings.listen).await.map_err(io(&address))?;
        let most = length.saturating_add(LONGER).min(length.saturating_add(HEADER_MAX));
        Ok(Self { app: Arc::new(AppState::new(settings, store, most, rounds)), listener })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop`, or, when that is asked for, until every client has fetched the final adapter.
    ///
    /// # Errors
    /// A mean that cannot be made or kept. Updates that count are safe.
    pub async fn run(
        self,
        stop: impl Future<Output = ()>,
        exit_when_finished: bool,
        threads: usize,
    ) -> Result<ServeSummary, ServerError> {
        let Self { app, listener } = self;
        let mut connections = JoinSet::new();
        let mut stop = pin!(stop);
        let result = tokio::select! {
            error = close_rounds(&app, threads) => Err(error),
            () = accept(&app, &listener, &mut connections) => Ok(()),
            () = &mut stop => Ok(()),
            () = finished(&app), if exit_when_finished => Ok(()),
        };
        drop(listener);
        app.end();
        let last = app.is_finished() && exit_when_finished;
        let leave = if last { app.settings.limits.transfer } else { LEAVE };
        let left = async { while connections.join_next().await.is_some() {} };
        tokio::select! {
            _ = tokio::time::timeout(leave, left) => {}
            () = stop, if last => {}
        }
        connections.shutdown().await;
        let rounds = app.rounds();
        result.map(|()| ServeSummary { committed: rounds.committed(), rounds: rounds.rules().rounds })
    }
}

/// Waits until every client has asked for the final adapter.
async fn finished(app: &AppState) {
    let mut moved = app.watch();
    loop {
        moved.borrow_and_update();
        if app.all_served() || moved.changed().await.is_err() {
            return;
        }
    }
}

async fn accept(app: &Arc<AppState>, listener: &TcpListener, connections: &mut JoinSet<()>) {
    let places = Arc::new(Semaphore::new(app.settings.limits.connections));
    loop {
        // Those that have ended are forgotten.
        while connections.try_join_next().is_some() {}
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("a connection could not be accepted: {error}");
                tokio::time::sleep(RECOVER).await;
                continue;
            }
        };
        match Arc::clone(&places).try_acquire_owned() {
            Ok(place) => {
                let app = Arc::clone(app);
                connections.spawn(async move {
                    connection(&app, stream).await;
                    drop(place);
                });
            }
            Err(_) => {
                app.counters.add("connections-refused");
                // Who does not get it all gets a closed connection.
                drop(stream.try_write(FULL));
            }
        }
    }
}

async fn connection(app: &Arc<AppState>, stream: TcpStream) {
    let limits = app.settings.limits;
    // A request is bounded by what it does; its answer, and the silence until the next one, by this. Somebody who reads a byte
    // a minute holds a place no longer.
    let patience = limits.transfer.saturating_add(limits.head);
    let (ends, mut ending) = watch::channel(Some(Instant::now() + patience));
    let service = service_fn(|request| {
        ends.send_replace(None);
        let answer = serve(Arc::clone(app), request);
        let ends = &ends;
        async move {
            let answer = answer.await;
            ends.send_replace(Some(Instant::now() + patience));
            answer
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(BUFFER);
    let mut serving = pin!(http.serve_connection(TokioIo::new(stream), service));
    let mut moved = app.watch();
    let mut leaving = false;
    loop {
        let at = *ending.borrow_and_update();
        let end = async {
            match at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            served = serving.as_mut() => {
                if served.is_err() {
                    app.counters.add("connections-broken");
                }
                return;
            }
            () = end => return app.counters.add("connections-slow"),
            _ = ending.changed() => {}
            changed = moved.changed(), if !leaving => {
                if changed.is_err() || app.has_ended() {
                    leaving = true;
                    serving.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

/// Makes a round's mean, as often as it takes: what is wanting may be space.
async fn make(app: &Arc<AppState>, open: &OpenRound, threads: usize) -> Result<(), ServerError> {
    loop {
        let (own, closed) = (Arc::clone(app), open.clone());
        let work = tokio::task::spawn_blocking(move || own.commit(&closed, threads));
        match work.await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) if error.is_invalid_input() || app.has_ended() => return Err(error),
            Ok(Err(error)) => {
                tracing::error!("round {}: {error}; trying again", open.number);
                app.counters.add("means-failed");
            }
            Err(error) => return Err(io(app.store.round(0).as_path())(error.into())),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Closes rounds when it is time. Ends with an error only.
async fn close_rounds(app: &Arc<AppState>, threads: usize) -> ServerError {
    let mut moved = app.watch();
    loop {
        moved.borrow_and_update();
        let (due, wake) = {
            let (now, rounds) = (app.now(), app.rounds());
            (rounds.is_due(now), rounds.next_deadline())
        };
        if due {
            let own = Arc::clone(app);
            let closed = tokio::task::spawn_blocking(move || own.close()).await.unwrap_or_default();
            if let Some(open) = closed
                && let Err(error) = make(app, &open, threads).await
            {
                return error;
            }
            continue;
        }
        let late = async {
            match wake {
                Some(wake) => {
                    tokio::time::sleep(Duration::from_millis(wake.saturating_sub(app.now()).max(1))).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = moved.changed() => {}
            () = late => {}
        }
    }
}
