//! Device server on tokio: a listener, a task per connection, and one task that owns the server core.
//!
//! ```text
//!  socket, serial port <-> peer task (PeerSession) <- bounded channels -> core task (ServerCore: Engine, Store)
//!                                                                               |
//!                                                     control socket: status, devices, watch, keys, export
//! ```
//!
//! Back-pressure: while the core is busy, the server reads no data from peers. A peer that does not read its
//! messages is disconnected. Shutdown: [`Server::serve`] returns when its `shutdown` future completes; all
//! committed rounds are then on disk.

mod beacon;
mod builder;
mod clock;
mod control;
mod export_stream;
mod listener;
mod peer;
mod query;
mod serial;
mod udp;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};

use self::builder::ServerParts;
use self::clock::Clock;
use self::control::Control;
use self::peer::PeerContext;
use self::udp::UdpListener;
use crate::config::{Fleet, Limits};
use crate::connection::Connection;
use crate::core::{CoreError, ServerCore, Timeouts};
use crate::durable_engine::ResumeError;
use crate::journal::Journal;
use crate::keys::{Entropy, KeyStore, SharedKeyStore};
use crate::store::{Store, StoreError};
use fedspan_connections::{ConnectionSlots, SlotLimits};
use fedspan_engine::config::Problem;
use fedspan_engine::{Checkpoint, CustomError, Millis};

pub use crate::core::{FAILED_PHASE, FINISHED_PHASE, PrivacyStatus, Status};
pub use builder::ServerBuilder;
pub use export_stream::fetch_export;
pub use listener::Listener;
pub use query::{query, socket_is_stale};

/// Capacity of the channel from peer tasks to the core. While the channel is full, peer tasks wait.
const INBOX_CAPACITY: usize = 4096;

/// Name of a file that is created and removed at startup to test the permissions of the state directory.
const PROBE_FILE: &str = "probe";

/// Pause after a failed accept, in ms. The usual cause is a lack of file descriptors, which must first be
/// closed elsewhere.
const ACCEPT_PAUSE: Millis = Millis::new(100);

/// Returns the bounds on connections. The owner of a device's slot is the address that it connects from.
fn slot_limits(limits: &Limits) -> SlotLimits {
    let Limits { connections, per_address, unauthenticated, .. } = *limits;
    SlotLimits { connections, per_owner: per_address, unauthenticated }
}

/// Reason why a server cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener cannot be bound or used.
    #[error("{address}: {error}")]
    Listen {
        /// Configured address.
        address: String,
        /// Error of the socket.
        error: std::io::Error,
    },
    /// The state directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The stored campaign cannot be resumed.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The engine has stopped the campaign.
    #[error("the campaign stopped: {0}")]
    Failed(#[from] fedspan_engine::Failure),
    /// A custom algorithm, policy or rule does not fit the configuration.
    #[error(transparent)]
    Custom(#[from] CustomError),
    /// The given aggregation rule does not fit the configuration.
    #[error(transparent)]
    Rule(#[from] Problem),
    /// The configuration requires keys, but the builder was not given a key store.
    #[error(
        "devices prove keys of {}, but the server was given none; allowed: protection(Protection::Keys(..)), or plaintext in the \
         configuration of a test bench",
        store.display()
    )]
    NoKeys {
        /// Path of the key store.
        store: PathBuf,
    },
}

impl From<CoreError> for ServeError {
    fn from(error: CoreError) -> Self {
        match error {
            CoreError::Resume(error) => Self::Resume(error),
            CoreError::Failed(failure) => Self::Failed(failure),
            CoreError::Custom(error) => Self::Custom(error),
        }
    }
}

/// Device server whose listener is bound and whose campaign is loaded. [`Self::serve`] runs the server.
#[derive(Debug)]
pub struct Server<L = TcpListener> {
    /// Control socket. Clients that connect before [`Server::serve`] are answered by that call. The field is
    /// dropped before `core`, which holds the lock on the state directory.
    control: Option<Control>,
    fleet: Fleet,
    listener: L,
    /// Listener for packets, if one is configured.
    udp: Option<UdpListener>,
    core: ServerCore,
    /// Clock that starts when the campaign is begun or resumed.
    clock: Clock,
    key_store: Option<SharedKeyStore>,
    /// Persistent links that were attached, with their names.
    links: Vec<(String, Box<dyn PersistentLink>)>,
}

/// Protection of frames.
pub enum Protection {
    /// Frames have only checksums, and the device number in a hello is not verified. For test benches.
    Plaintext,
    /// Frames are encrypted with the keys in the key store. The second value is the source of the server's
    /// nonces. The server owns the key store, so `keys` commands are sent to the running server.
    Keys(KeyStore, Box<dyn Entropy>),
}

impl std::fmt::Debug for Protection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Self::Plaintext) { "Plaintext" } else { "Keys" })
    }
}

/// Link that outlasts peer sessions, such as a serial port.
pub trait PersistentLink: AsyncRead + AsyncWrite + Send + Unpin + std::fmt::Debug {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + std::fmt::Debug> PersistentLink for T {}

impl Server {
    /// Returns a builder of a server for a configuration.
    pub fn builder(fleet: Fleet) -> ServerBuilder {
        ServerBuilder::new(fleet)
    }

    /// Binds the listener and the control socket, and resumes the campaign in the state directory or begins a
    /// new one. `campaign` is the number of a new campaign; see [`ServerBuilder::campaign`]. `entropy`
    /// supplies the keys of stored updates.
    ///
    /// # Errors
    /// [`ServeError`] if the listener cannot be bound or the campaign cannot be begun or resumed.
    pub async fn bind(
        fleet: Fleet,
        campaign: u64,
        entropy: impl Entropy + 'static,
        protection: Protection,
    ) -> Result<Self, ServeError> {
        Self::builder(fleet).campaign(campaign).entropy(entropy).protection(protection).bind().await
    }
}

/// Opens the store and checks that files can be created in the state directory. A full disk is accepted,
/// because it may have room later.
fn open_store(fleet: &Fleet, entropy: impl Entropy + 'static) -> Result<Store, StoreError> {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    let store = Store::open(&fleet.state, entropy)?;
    let probe = store.directory().join(PROBE_FILE);
    // A crash may have left the file.
    let _ = std::fs::remove_file(&probe);
    match std::fs::File::create_new(&probe).and_then(|_| std::fs::remove_file(&probe)) {
        Err(error) if !matches!(error.kind(), StorageFull | QuotaExceeded) => {
            let error = std::io::Error::new(error.kind(), format!("cannot create files here: {error}"));
            Err(StoreError::Io { path: store.directory().to_owned(), error })
        }
        _ => Ok(store),
    }
}

impl<L: Listener> Server<L> {
    /// Creates a server as [`Server::bind`] does, with an existing listener instead of the configured
    /// address.
    ///
    /// # Errors
    /// [`ServeError`] if the state directory cannot be opened or its campaign cannot be resumed.
    pub fn with_listener(
        fleet: Fleet,
        listener: L,
        campaign: u64,
        entropy: impl Entropy + 'static,
        protection: Protection,
    ) -> Result<Self, ServeError> {
        Server::builder(fleet).campaign(campaign).entropy(entropy).protection(protection).over(listener)
    }

    /// Creates a server from its parts, a listener and an open store.
    fn with_store(
        parts: ServerParts,
        listener: L,
        udp: Option<UdpListener>,
        store: Store,
    ) -> Result<Self, ServeError> {
        let ServerParts { fleet, custom, protection, campaign, control } = parts;
        let (key_store, nonces) = match protection {
            Protection::Plaintext => (None, None),
            Protection::Keys(keys, nonces) => (Some(SharedKeyStore::new(keys)), Some(nonces)),
        };
        let file = fleet.journal.then(|| Journal::open(store.directory())).transpose()?;
        let keys = key_store.clone().zip(nonces);
        let core = ServerCore::with_custom_parts(&fleet, store, campaign, keys, file, custom)?;
        if let Some(control) = &control {
            control.end_start();
        }
        Ok(Self { control, fleet, listener, udp, core, clock: Clock::new(), key_store, links: Vec::new() })
    }

    /// Returns the status of the campaign.
    #[must_use]
    pub fn status(&self) -> Status {
        self.core.status()
    }

    /// Returns the checkpoint from which the campaign was resumed; `None` if no round of the campaign was
    /// opened.
    #[must_use]
    pub fn resume_checkpoint(&self) -> Option<Checkpoint> {
        Some(self.core.durable().engine().checkpoint()).filter(|checkpoint| checkpoint.id.round > 0)
    }

    /// Adds a persistent link, such as an emulated board or a modem. `name` appears in the log. The serial
    /// ports of the configuration are served without this call.
    pub fn attach_link(&mut self, name: impl Into<String>, link: impl PersistentLink + 'static) {
        self.links.push((name.into(), Box::new(link)));
    }

    /// Returns the address of the listener, with the actual port if the configured one was 0.
    ///
    /// # Errors
    /// [`ServeError::Listen`] if the socket does not report it.
    pub fn address(&self) -> Result<SocketAddr, ServeError> {
        let unknown = |error| ServeError::Listen { address: self.fleet.tcp.clone(), error };
        self.listener.address().map_err(unknown)
    }

    /// Returns the address for packets over UDP; `None` if none is configured.
    #[must_use]
    pub fn udp_address(&self) -> Option<SocketAddr> {
        self.udp.as_ref().map(UdpListener::address)
    }

    /// Runs the server until `shutdown` completes or the campaign fails. With `until_finished`, the server
    /// also stops once every known device has fitted its head.
    ///
    /// # Errors
    /// [`ServeError`] if the store becomes unusable or the engine stops the campaign.
    pub async fn serve(
        self,
        shutdown: impl Future<Output = ()>,
        until_finished: bool,
    ) -> Result<Status, ServeError> {
        let Self { fleet, mut listener, mut udp, mut core, clock, key_store, links: attached, control } =
            self;
        if let Some(udp) = &udp {
            core.count_packets(udp.totals());
        }
        let limits = fleet.limits;
        let (inbox, mut events) = mpsc::channel(INBOX_CAPACITY);
        let (snapshot_sender, mut snapshot_requests) = mpsc::channel::<export_stream::SnapshotRequest>(1);
        let keys_changed = Arc::new(Notify::new());
        let slots = ConnectionSlots::new(slot_limits(&limits));
        let mut accept_after = None;
        let mut peers = tokio::task::JoinSet::new();
        let mut controls = tokio::task::JoinSet::new();
        let peer_ids = serial::PeerIds::default();
        let mut link_tasks = tokio::task::JoinSet::new();
        let beacons = match &fleet.beacon {
            Some(address) => {
                let started = beacon::start(address, fleet.beacon_delay, fleet.packet, core.acceptor()).await;
                Some(started.map_err(|error| ServeError::Listen { address: address.clone(), error })?)
            }
            None => None,
        };
        let timeouts = Timeouts::from(&limits);
        let context = PeerContext { acceptor: core.acceptor(), timeouts, clock, inbox, beacons };
        for path in fleet.serial.iter().cloned() {
            link_tasks.spawn(serial::serve_port(path, fleet.baud, peer_ids.clone(), context.clone()));
        }
        for (name, stream) in attached {
            let (peer_ids, context) = (peer_ids.clone(), context.clone());
            link_tasks.spawn(async move { serial::serve_stream(&name, stream, &peer_ids, &context).await });
        }
        tokio::pin!(shutdown);
        tracing::info!(state = %fleet.state.display(), "listening");
        if let Some(advice) = core.advice() {
            tracing::warn!(advice, "configuration advice");
        }
        let result = loop {
            let wake = core.wake();
            tokio::select! {
                // Shutdown, deadlines and revocations are polled first, so that a flood of messages or connections cannot
                // starve them.
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
                () = keys_changed.notified(), if !core.is_stalled() => {
                    core.remove_revoked(clock.now());
                    if let Err(error) = core.flush(clock.now()) {
                        break Err(error.into());
                    }
                }
                event = events.recv(), if !core.is_stalled() => {
                    let Some(event) = event else { break Ok(()) };
                    core.handle(clock.now(), event);
                    // Handles all events that have arrived, so that they share one sync to disk.
                    for _ in 1..INBOX_CAPACITY {
                        let Ok(event) = events.try_recv() else { break };
                        core.handle(clock.now(), event);
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
                    let keys = key_store.clone().map(|store| (store, keys_changed.clone()));
                    controls.spawn(control::serve_client(client, status, rounds, keys, snapshot_sender.clone(), (core.devices(), clock)));
                }
                // Sending fails if the requesting client has disconnected.
                Some(requester) = snapshot_requests.recv() => drop(requester.send(core.read_snapshot())),
                Some(_) = peers.join_next(), if !peers.is_empty() => {}
                Some(_) = controls.join_next(), if !controls.is_empty() => {}
                Some(_) = link_tasks.join_next(), if !link_tasks.is_empty() => {}
                () = clock.sleep_until(accept_after), if accept_after.is_some() => accept_after = None,
                (stream, address) = udp::accept(&mut udp) => match slots.enter(address) {
                    Some(slot) => {
                        let connection = Connection::datagrams(core.acceptor());
                        let context = context.clone();
                        drop(peers.spawn(peer::run(peer_ids.next(), stream, address, context, connection, slot)));
                    }
                    None => core.connection_dropped(),
                },
                accepted = listener.accept(), if accept_after.is_none() => match accepted {
                    Ok((socket, address)) => match slots.enter(address) {
                        Some(slot) => {
                            let connection = Connection::new(core.acceptor());
                            let context = context.clone();
                            drop(peers.spawn(peer::run(peer_ids.next(), socket, address, context, connection, slot)));
                        }
                        None => core.connection_dropped(),
                    },
                    Err(error) => {
                        let now = clock.now();
                        core.accept_failed(now, &error);
                        accept_after = Some(now + ACCEPT_PAUSE);
                    }
                },
            }
        };
        // Removes the control socket first: `watch` clients distinguish a clean shutdown from a crash by its
        // absence.
        drop(control);
        // Peer tasks then send their queued messages, such as the last acknowledgements.
        events.close();
        core.close_peers();
        drop(context);
        let drained = async { while peers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_secs(2), drained).await;
        // The session on a link without a device does not end by itself, so the wait is short.
        let drained = async { while link_tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_millis(300), drained).await;
        // Clients of `watch` get their last line once the feeds are closed.
        let status = core.status();
        drop((core, snapshot_requests));
        let drained = async { while controls.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_millis(300), drained).await;
        result.map(|()| status)
    }
}
