//! Adapter server on tokio: accepts connections, closes rounds when they are due, and shuts down.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fedspan_connections::{ConnectionSlots, Slot, SlotLimits, reserve_descriptors, spare_descriptors};
use fedspan_engine::Millis;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::app_state::AppState;
use super::client_registry::ClientIndex;
use super::disk::Disk;
use super::error::io_error;
use super::handlers::handle;
use super::round_store::{RoundStore, updates_of_record};
use super::stored_state::model_len;
use super::{Limits, OpenRound, RoundState, ServerError, Settings};
use crate::files::{HEADER_ROOM, OPEN_MAX};

/// Size of the read buffer, in bytes. It limits the head of a request and the blocks of a body.
const BUFFER: usize = 1 << 16;

/// Longest time that open requests may take after the server has begun to stop.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of connections that may wait to be accepted. In a flood, a connection that finds the queue full is tried again
/// by its system only after a second.
const QUEUE: u32 = 8192;

/// Number of open files besides connections, uploads and the inputs of a mean: those of the state directory, of logs, of
/// the runtime, and of the threads of a mean.
const OTHER_FILES: usize = 128;

/// Longest time for which a new connection delays the acceptance of others, so that its request is read before newer
/// connections can evict it. A request that was sent at once arrives within this time.
const FIRST_BYTES: Duration = Duration::from_millis(5);

/// Largest number of connections that delay the acceptance of others, also at most half of the places for connections
/// without a token.
const NEW_MAX: usize = 128;

/// Pause while too many evicted connections are still closing. Each closes as soon as its task runs.
const LEAVING_PAUSE: Duration = Duration::from_millis(1);

/// Number of pauses after which a connection is refused.
const LEAVING_RETRIES: u32 = 100;

/// Pause after a failed accept, for example for lack of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Pause after a failed commit, for example for lack of disk space.
const COMMIT_RETRY: Duration = Duration::from_secs(5);

/// Response to a connection above the limit.
const UNAVAILABLE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n";

/// Progress of the server when it stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeSummary {
    /// Number of committed rounds.
    pub committed: u32,
    /// Number of rounds in the configuration.
    pub rounds: u32,
}

/// Adapter server that listens for connections.
pub struct AdapterServer {
    app: Arc<AppState>,
    listener: TcpListener,
}

impl AdapterServer {
    /// Opens the state directory and binds the listener.
    ///
    /// # Errors
    /// [`ServerError::Adapter`] if the base cannot be used; [`ServerError::Locked`], [`ServerError::NotPrivate`],
    /// [`ServerError::SettingChanged`], [`ServerError::UnknownUpdate`], [`ServerError::ClosedUpdates`] or
    /// [`ServerError::Damaged`] if the state directory cannot be used; [`ServerError::Io`] if a file operation fails, or if the address
    /// cannot be bound (the path is then the address).
    pub async fn open(settings: Settings) -> Result<Self, ServerError> {
        let (store, record) =
            RoundStore::open(&settings.state, &settings.base, settings.rules.method, Disk::default())?;
        let names = settings.registry.names();
        let length = model_len(&settings.state, record.round)?;
        let last_updates = updates_of_record(&record, names);
        let mut rounds =
            RoundState::new(settings.rules, settings.policy(), names.len(), record.round, last_updates);
        // An upload has its body, the whole adapter and the base open.
        let others = OTHER_FILES.saturating_add(settings.limits.connections.saturating_mul(3));
        let slots = slot_limits(&settings.limits);
        if let Err(shortage) = reserve_descriptors(slots, others.saturating_add(OPEN_MAX)) {
            tracing::warn!(%shortage, "limit on open files");
        }
        // If the system allows fewer files, a mean opens its inputs again for each block instead of taking the
        // descriptors of connections, which may all wait for the next round.
        let mean_files = spare_descriptors(slots, others).min(OPEN_MAX);
        let (pending, damaged) = store.pending_updates(record.round, names)?;
        if record.round > 0 || !pending.is_empty() {
            let (committed, updates) = (record.round, pending.len());
            tracing::info!(committed, updates, "resumed from the state directory");
        }
        rounds.open(Millis::ZERO, pending);
        let address = PathBuf::from(settings.listen.to_string());
        let listener = bind(settings.listen).map_err(io_error(&address))?;
        // The headers may differ.
        let max_body_len = length.saturating_add(HEADER_ROOM);
        let app = AppState::new(settings, store, max_body_len, mean_files, rounds);
        app.counters.add("damaged", damaged);
        Ok(Self { app: Arc::new(app), listener })
    }

    /// Address of the listener.
    ///
    /// # Errors
    /// The I/O error of the operating system.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Runs the server until `stop` completes or, with `exit_when_finished`, until every client has requested
    /// the final adapter. `threads` is the number of threads that compute a mean.
    ///
    /// # Errors
    /// [`ServerError`] if a mean cannot be computed or committed. Accepted updates stay on disk.
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
            () = accept_connections(&app, &listener, &mut connections) => Ok(()),
            () = &mut stop => Ok(()),
            () = wait_until_all_served(&app), if exit_when_finished => Ok(()),
        };
        drop(listener);
        app.stop();
        let all_served = app.is_finished() && exit_when_finished;
        let drain_timeout = if all_served { app.settings.limits.transfer } else { SHUTDOWN_TIMEOUT };
        let drained = async { while connections.join_next().await.is_some() {} };
        tokio::select! {
            _ = tokio::time::timeout(drain_timeout, drained) => {}
            () = stop, if all_served => {}
        }
        connections.shutdown().await;
        let rounds = app.rounds();
        result.map(|()| ServeSummary { committed: rounds.committed(), rounds: rounds.rules().rounds })
    }
}

/// Binds an address, with a queue for connections that are not accepted yet. The system bounds the queue (on Linux
/// `net.core.somaxconn`).
fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A server that restarts can bind its address although old connections are still closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(QUEUE)
}

/// Waits until every client has requested the final adapter.
async fn wait_until_all_served(app: &AppState) {
    let mut changed = app.watch();
    loop {
        changed.borrow_and_update();
        if app.all_served() || changed.changed().await.is_err() {
            return;
        }
    }
}

/// Bounds on connections. The owner of a slot is a client.
fn slot_limits(limits: &Limits) -> SlotLimits {
    let Limits { connections, per_client, unauthenticated, .. } = *limits;
    SlotLimits { connections, per_owner: per_client, unauthenticated }
}

/// Accepts connections and spawns a task for each. If too many evicted connections are still closing, a connection gets
/// a short response and is closed.
async fn accept_connections(app: &Arc<AppState>, listener: &TcpListener, connections: &mut JoinSet<()>) {
    let limits = app.settings.limits;
    let slots = ConnectionSlots::new(slot_limits(&limits));
    let new_connections = Arc::new(Semaphore::new(NEW_MAX.min(limits.unauthenticated / 2).max(1)));
    loop {
        // Removes finished connections from the set.
        while connections.try_join_next().is_some() {}
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&new_connections).acquire_owned().await else { return };
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let mut slot = slots.enter(address);
        for _ in 0..LEAVING_RETRIES {
            if slot.is_some() {
                break;
            }
            tokio::time::sleep(LEAVING_PAUSE).await;
            slot = slots.enter(address);
        }
        match slot {
            Some(slot) => {
                let app = Arc::clone(app);
                connections.spawn(async move {
                    drop(tokio::time::timeout(FIRST_BYTES, stream.readable()).await);
                    drop(permit);
                    serve_connection(&app, stream, slot).await;
                });
            }
            None => {
                app.counters.increment("connections-refused");
                // The response is written without waiting; if it is not sent completely, the client only sees
                // a closed connection.
                drop(stream.try_write(UNAVAILABLE));
            }
        }
    }
}

/// Serves one connection until it ends, is too slow, or is evicted before it has proved a token.
async fn serve_connection(app: &Arc<AppState>, stream: TcpStream, slot: Slot<ClientIndex>) {
    let limits = app.settings.limits;
    // If the option cannot be set, the connection is merely slower.
    let _ = stream.set_nodelay(true);
    let slot = Mutex::new(slot);
    // The handlers limit the time of a request. This timeout limits the time for sending the response
    // together with the idle time before the next request, so that a peer that reads very slowly cannot hold
    // its slot for ever.
    let timeout = limits.transfer.saturating_add(limits.head);
    let (deadline_sender, mut deadline) = watch::channel(Some(Instant::now() + timeout));
    let service = service_fn(|request| {
        deadline_sender.send_replace(None);
        let response = handle(Arc::clone(app), &slot, request);
        let deadline_sender = &deadline_sender;
        async move {
            let response = response.await;
            deadline_sender.send_replace(Some(Instant::now() + timeout));
            response
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(BUFFER);
    let mut serving = pin!(http.serve_connection(TokioIo::new(stream), service));
    let mut changed = app.watch();
    let mut is_closing = false;
    loop {
        let expiry = *deadline.borrow_and_update();
        let expired = async {
            match expiry {
                Some(expiry) => tokio::time::sleep_until(expiry).await,
                None => std::future::pending().await,
            }
        };
        let evicted = std::future::poll_fn(|context| {
            slot.lock().unwrap_or_else(PoisonError::into_inner).poll_evicted(context)
        });
        tokio::select! {
            // A request that has arrived is read before its connection is evicted, because its token may be right.
            biased;
            served = serving.as_mut() => {
                if served.is_err() {
                    app.counters.increment("connections-broken");
                }
                return;
            }
            () = evicted => return app.counters.increment("connections-evicted"),
            () = expired => return app.counters.increment("connections-slow"),
            _ = deadline.changed() => {}
            result = changed.changed(), if !is_closing => {
                if result.is_err() || app.is_stopping() {
                    is_closing = true;
                    serving.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

/// Commits a closed round. Failed operations are retried until the server stops, because the cause may be a
/// temporary lack of disk space.
async fn commit_with_retry(app: &Arc<AppState>, open: &OpenRound, threads: usize) -> Result<(), ServerError> {
    loop {
        let (shared_app, closed) = (Arc::clone(app), open.clone());
        let commit_task = tokio::task::spawn_blocking(move || shared_app.commit(&closed, threads));
        match commit_task.await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) if !error.is_temporary() || app.is_stopping() => return Err(error),
            Ok(Err(error)) => {
                tracing::error!(round = open.number, %error, "cannot commit a round; retrying");
                app.counters.increment("means-failed");
            }
            Err(error) => return Err(io_error(app.store.round(0).as_path())(error.into())),
        }
        tokio::time::sleep(COMMIT_RETRY).await;
    }
}

/// Closes and commits rounds when they are due. Returns only after an error.
async fn close_rounds(app: &Arc<AppState>, threads: usize) -> ServerError {
    let mut changed = app.watch();
    loop {
        changed.borrow_and_update();
        let (is_due, next_deadline) = {
            let (now, rounds) = (app.now(), app.rounds());
            (rounds.is_due(now), rounds.next_deadline())
        };
        if is_due {
            let shared_app = Arc::clone(app);
            let closed = tokio::task::spawn_blocking(move || shared_app.close()).await.unwrap_or_default();
            if let Some(open) = closed
                && let Err(error) = commit_with_retry(app, &open, threads).await
            {
                return error;
            }
            continue;
        }
        let deadline_passed = async {
            match next_deadline {
                Some(deadline) => {
                    tokio::time::sleep(Duration::from_millis((deadline - app.now()).as_u64().max(1))).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = changed.changed() => {}
            () = deadline_passed => {}
        }
    }
}
