//! The tokio shell: a listener, a task per connection, one task that owns the engine.
//!
//! ```text
//!  socket, serial port <-> peer task (Conversation) <-- bounded channels --> host task (Host: Engine, Store)
//!                                                                                    |
//!                                                          control socket: status, watch, keys, export
//! ```
//!
//! Back-pressure: a peer that outruns the host waits to be read; a peer that does not read is cut off.
//! Shutdown: [`Server::serve`] returns when its `shutdown` future completes; what was committed is on disk.

mod clock;
mod connection_slots;
mod control;
mod export_stream;
mod listener;
mod peer;
mod pending_pool;
mod per_address;
mod serial;

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use self::clock::Clock;
use self::connection_slots::ConnectionSlots;
use self::peer::PeerContext;
use crate::config::Fleet;
use crate::core::{CoreError, ServerCore, Timeouts};
use crate::durable_engine::ResumeError;
use crate::journal::Journal;
use crate::keys::{Entropy, KeyStore, SharedKeyStore};
use crate::store::{Store, StoreError};
use fedspan_engine::{Checkpoint, Millis};

pub use crate::core::{PrivacyStatus, Status};
pub use control::{query, socket_is_stale};
pub use export_stream::fetch_export;
pub use listener::Listener;

/// Messages from peers that wait for the host: beyond it, peers wait.
const INBOX: usize = 1024;

/// A file that is made and removed at the start.
const PROBE: &str = "probe";

/// How long no connection is accepted after that has failed: out of file descriptors, most likely, and some
/// must be given back first.
const ACCEPT_PAUSE: Millis = 100;

/// A server could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener could not be bound or used.
    #[error("{address}: {error}")]
    Listen {
        /// Where.
        address: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// The state directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The stored campaign cannot be taken up.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The campaign cannot go on.
    #[error("the campaign stopped: {0}")]
    Failed(#[from] fedspan_engine::Failure),
}

impl From<CoreError> for ServeError {
    fn from(error: CoreError) -> Self {
        match error {
            CoreError::Resume(error) => Self::Resume(error),
            CoreError::Failed(failure) => Self::Failed(failure),
        }
    }
}

/// A server that listens and has its campaign, but has not started.
#[derive(Debug)]
pub struct Server<L = TcpListener> {
    fleet: Fleet,
    listener: L,
    core: ServerCore,
    /// Counts from when the campaign was taken up.
    clock: Clock,
    key_store: Option<SharedKeyStore>,
    lines: Vec<(String, Box<dyn PersistentLink>)>,
}

/// How frames are protected.
pub enum Protection {
    /// By a checksum, against noise; every device is believed. For the bench.
    Plaintext,
    /// By the devices' keys, which the server owns from now on: `keys` commands go through it. With the source of
    /// the server's nonces.
    Keys(KeyStore, Box<dyn Entropy>),
}

impl std::fmt::Debug for Protection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Self::Plaintext) { "Plaintext" } else { "Keys" })
    }
}

/// A link that outlasts conversations.
pub trait PersistentLink: AsyncRead + AsyncWrite + Send + Unpin + std::fmt::Debug {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + std::fmt::Debug> PersistentLink for T {}

impl Server {
    /// Binds the listener, and takes up the campaign of the state directory, or begins one. `campaign` makes a new campaign distinct from every
    /// earlier one of the same configuration: devices that remember one would decline its round numbers. A
    /// campaign that is resumed keeps the number it has. `entropy` makes the keys of what is stored.
    ///
    /// # Errors
    /// [`ServeError`] if either fails.
    pub async fn bind(
        fleet: Fleet,
        campaign: u64,
        entropy: impl Entropy + 'static,
        protection: Protection,
    ) -> Result<Self, ServeError> {
        let store = open_store(&fleet, entropy)?;
        let listener = TcpListener::bind(&fleet.tcp)
            .await
            .map_err(|error| ServeError::Listen { address: fleet.tcp.clone(), error })?;
        Self::with_store(fleet, listener, store, campaign, protection)
    }
}

/// Opens the state directory. A server makes files in it all the time: where it may not, that is said before anybody is let in. A disk
/// that is full has room again later.
fn open_store(fleet: &Fleet, entropy: impl Entropy + 'static) -> Result<Store, StoreError> {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    let store = Store::open(&fleet.state, entropy)?;
    let probe = store.directory().join(PROBE);
    match std::fs::File::create(&probe).and_then(|_| std::fs::remove_file(&probe)) {
        Err(error) if !matches!(error.kind(), StorageFull | QuotaExceeded) => {
            let error = std::io::Error::new(error.kind(), format!("no file can be made here: {error}"));
            Err(StoreError::Io { path: store.directory().to_owned(), error })
        }
        _ => Ok(store),
    }
}

impl<L: Listener> Server<L> {
    /// [`Server::bind`] with a listener that is there already: the configuration's address is not used.
    ///
    /// # Errors
    /// [`ServeError`] if the state directory cannot be opened, or its campaign not be taken up.
    pub fn with_listener(
        fleet: Fleet,
        listener: L,
        campaign: u64,
        entropy: impl Entropy + 'static,
        protection: Protection,
    ) -> Result<Self, ServeError> {
        let store = open_store(&fleet, entropy)?;
        Self::with_store(fleet, listener, store, campaign, protection)
    }

    fn with_store(
        fleet: Fleet,
        listener: L,
        store: Store,
        campaign: u64,
        protection: Protection,
    ) -> Result<Self, ServeError> {
        let (key_store, nonces) = match protection {
            Protection::Plaintext => (None, None),
            Protection::Keys(keys, nonces) => (Some(SharedKeyStore::new(keys)), Some(nonces)),
        };
        let file = fleet.journal.then(|| Journal::open(store.directory())).transpose()?;
        let core = ServerCore::new(&fleet, store, campaign, key_store.clone().zip(nonces), file)?;
        Ok(Self { fleet, listener, core, clock: Clock::new(), key_store, lines: Vec::new() })
    }

    /// Where the campaign is.
    #[must_use]
    pub fn status(&self) -> Status {
        self.core.status()
    }

    /// Where it goes on, if a round of the campaign was opened before.
    #[must_use]
    pub fn resume_checkpoint(&self) -> Option<Checkpoint> {
        Some(self.core.durable().engine().checkpoint()).filter(|checkpoint| checkpoint.id.round > 0)
    }

    /// Adds a line that is there already: an emulated board's, a modem's, a test's. `name` is for the log.
    /// The configuration's serial ports need not be added.
    pub fn attach_link(&mut self, name: impl Into<String>, line: impl PersistentLink + 'static) {
        self.lines.push((name.into(), Box::new(line)));
    }

    /// Where it listens: the port is the system's choice if the configuration said 0.
    ///
    /// # Errors
    /// [`ServeError::Listen`] if the system does not say.
    pub fn address(&self) -> Result<SocketAddr, ServeError> {
        let unknown = |error| ServeError::Listen { address: self.fleet.tcp.clone(), error };
        self.listener.address().map_err(unknown)
    }

    /// Serves until `shutdown` completes or the campaign fails; with `until_finished`, also until every
    /// known device has fitted its head.
    ///
    /// # Errors
    /// [`ServeError`].
    pub async fn serve(
        self,
        shutdown: impl Future<Output = ()>,
        until_finished: bool,
    ) -> Result<Status, ServeError> {
        let Self { fleet, mut listener, mut core, clock, key_store, lines: attached } = self;
        let limits = fleet.limits;
        let control = control::Control::bind(&fleet.state);
        let (inbox, mut messages) = mpsc::channel(INBOX);
        let (fetch_export, mut asked) = mpsc::channel::<export_stream::SnapshotRequest>(1);
        let slots = ConnectionSlots::new(&limits);
        let mut accept_again = None;
        let mut peers = tokio::task::JoinSet::new();
        let mut controls = tokio::task::JoinSet::new();
        let peer_ids = serial::PeerIds::default();
        let mut lines = tokio::task::JoinSet::new();
        let context =
            PeerContext { acceptor: core.acceptor(), timeouts: Timeouts::from(&limits), clock, inbox };
        for path in fleet.serial.iter().cloned() {
            lines.spawn(serial::serial(path, fleet.baud, peer_ids.clone(), context.clone()));
        }
        for (name, stream) in attached {
            let (peer_ids, context) = (peer_ids.clone(), context.clone());
            lines.spawn(async move { serial::stream(&name, stream, &peer_ids, &context).await });
        }
        tokio::pin!(shutdown);
        tracing::info!(state = %fleet.state.display(), "listening");
        if let Some(advice) = core.advice() {
            tracing::warn!("{advice}");
        }
        let result = loop {
            let wake = core.wake();
            tokio::select! {
                // Commands and deadlines first, so that no flood of messages or connections can starve the
                // campaign or its end.
                biased;
                () = &mut shutdown => break Ok(()),
                () = clock.sleep_until(wake) => {
                    if let Err(error) = core.tick(clock.now()) {
                        break Err(error.into());
                    }
                    if until_finished && core.is_finished() {
                        break Ok(());
                    }
                }
                message = messages.recv(), if !core.is_stalled() => {
                    let Some(message) = message else { break Ok(()) };
                    core.take(clock.now(), message);
                    // What has come meanwhile shares the wait for the disk.
                    for _ in 1..INBOX {
                        let Ok(message) = messages.try_recv() else { break };
                        core.take(clock.now(), message);
                    }
                    if let Err(error) = core.flush(clock.now()) {
                        break Err(error.into());
                    }
                    if until_finished && core.is_finished() {
                        break Ok(());
                    }
                }
                Some(client) = control::accept(control.as_ref()) => {
                    let (status, rounds) = (core.status_feed(), core.round_feed());
                    controls.spawn(control::answer(client, status, rounds, key_store.clone(), fetch_export.clone()));
                }
                // Whoever has asked may have gone.
                Some(asker) = asked.recv() => drop(asker.send(core.read_snapshot())),
                Some(_) = peers.join_next(), if !peers.is_empty() => {}
                Some(_) = controls.join_next(), if !controls.is_empty() => {}
                Some(_) = lines.join_next(), if !lines.is_empty() => {}
                () = clock.sleep_until(accept_again), if accept_again.is_some() => accept_again = None,
                accepted = listener.accept(), if accept_again.is_none() => match accepted {
                    Ok((socket, address)) => match slots.enter(address) {
                        Some(place) => {
                            let context = context.clone();
                            drop(peers.spawn(peer::run(peer_ids.next(), socket, address, context, place)));
                        }
                        None => core.connection_dropped(),
                    },
                    Err(error) => {
                        let now = clock.now();
                        core.accept_failed(now, &error);
                        accept_again = Some(now + ACCEPT_PAUSE);
                    }
                },
            }
        };
        // First: who watches looks for it when there is nothing more to hear.
        drop(control);
        // What is queued for the devices (the last acknowledgements) is still written.
        messages.close();
        core.close_peers();
        drop(context);
        let drained = async { while peers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_secs(2), drained).await;
        // A line with nobody on it does not end by itself.
        let drained = async { while lines.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_millis(300), drained).await;
        result.map(|()| core.status())
    }
}
