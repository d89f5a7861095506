//! Server core: turns peer events into engine events and engine actions into commands, makes decisions
//! durable, limits the messages of peers, and publishes the status.
//!
//! The core has no sockets, threads or clock, and needs no async runtime (its tokio channels work without
//! one). The server drives the core with real time; fault simulations drive it with virtual time and lossy
//! links. Times are milliseconds since the core was created.
//!
//! ```text
//!  PeerSession -- PeerEvent --> ServerCore (DurableEngine: Engine, Store) -- Command (queue) --> PeerSession
//! ```

mod command_queue;
mod device_table;
mod held_out;
mod log_limiter;
mod messages;
mod packet_totals;
mod peer_session;
mod privacy_status;
mod robustness;
mod round_report;
mod sleepers;
mod startup;
mod status;
#[cfg(test)]
mod tests;
mod update_quota;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use fedspan_protocol::message::{Ack, AckOutcome, Firmware, Privacy, RoundId};
use tokio::sync::{broadcast, watch};

use self::held_out::HeldOut;
use self::log_limiter::{LogKind, LogRateLimiter};
use self::robustness::Robustness;
use self::sleepers::Sleepers;
use self::update_quota::UpdateQuota;
use crate::connection::Acceptor;
use crate::durable_engine::{DurableEngine, Flushed, ResumeError};
use crate::journal::Journal;
use crate::keys::{AcceptedKey, KeyStoreError, SharedKeyStore};
use crate::store::{ReadSnapshot, StoreError};
use fedspan_engine::privacy::Delta;
use fedspan_engine::{Action, CustomError, DeviceId, Engine, Event, Failure, Millis, Phase};

pub use command_queue::{Receiver, Sender};
pub use device_table::DeviceTable;
pub use messages::{Command, DisconnectReason, Origin, PeerEvent, PeerEventKind};
pub use packet_totals::{PacketStatus, PacketTotals};
pub use peer_session::{PeerAction, PeerSession, Timeouts};
pub use privacy_status::PrivacyStatus;
pub use status::{ConnectionCounters, FAILED_PHASE, FINISHED_PHASE, Status};

#[cfg(test)]
pub(crate) use {command_queue::memory as command_queue_memory, peer_session::COMMAND_CAPACITY};

/// Reason why the server core cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// The stored campaign cannot be resumed, or the store has become unusable.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The engine has stopped the campaign.
    #[error("the campaign stopped: {0}")]
    Failed(#[from] Failure),
    /// A custom algorithm, policy or rule does not fit the configuration.
    #[error(transparent)]
    Custom(#[from] CustomError),
}

/// Peer session with a device.
struct Peer {
    device: DeviceId,
    from: Origin,
    commands: Sender<Command>,
}

/// Server without sockets: the durable engine, its peers and their limits.
pub struct ServerCore {
    durable: DurableEngine,
    /// Journal file for other programs.
    journal: Option<Journal>,
    acceptor: Arc<Acceptor>,
    key_store: Option<SharedKeyStore>,
    /// Number of training rounds of the campaign.
    rounds: u32,
    /// Number of committed training rounds.
    done: u32,
    peers: HashMap<u64, Peer>,
    /// Number of the newest peer session of each connected device.
    current: HashMap<DeviceId, u64>,
    quota: UpdateQuota,
    /// Whether training is over and the key store has been notified.
    rounds_over: bool,
    /// Devices that were disconnected by the core and whose departure has not been passed to the engine.
    cut_off: Vec<DeviceId>,
    connections: ConnectionCounters,
    /// Counters of packets; `None` if the server does not listen for packets.
    packets: Option<Arc<PacketTotals>>,
    log: LogRateLimiter,
    /// Delta of the published (epsilon, delta) privacy loss.
    delta: Delta,
    privacy: Option<Arc<PrivacyStatus>>,
    /// Campaign time at which this core was created.
    clock: Millis,
    /// Total time for which write stalls have paused the campaign clock since this core was created, in ms.
    paused_for: Millis,
    status: watch::Sender<Status>,
    round_feed_sender: broadcast::Sender<String>,
    failure: Option<Failure>,
    /// The current write stall; `None` if the store can be written.
    write_stall: Option<Stall>,
    stalls: u64,
    /// Distance from the measured space of the aggregation rule; `None` if the rule has none.
    robustness: Option<Robustness>,
    /// Advice to the operator about the configuration.
    advice: Option<String>,
    /// Devices that rounds do not wait for.
    not_awaited: Arc<Vec<DeviceId>>,
    /// Devices that join when training has ended.
    held_out: HeldOut,
    /// Devices that disconnect between rounds.
    sleepers: Sleepers,
    /// Devices for the operator.
    devices: DeviceTable,
}

/// Period in which the store cannot be written.
#[derive(Clone, Copy, Debug)]
struct Stall {
    since: Millis,
    retry_at: Millis,
}

/// Interval between attempts to write during a write stall, in ms.
const WRITE_RETRY: Millis = Millis::new(1_000);

/// Shortest time, in ms, between a message of a device and its next hello on the same connection for which it counts as having slept. If
/// its welcome was lost, a device with the usual timers repeats its hello earlier.
const SHORTEST_SLEEP: Millis = Millis::new(10_000);

impl std::fmt::Debug for ServerCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerCore").field("phase", &self.engine().phase()).finish_non_exhaustive()
    }
}

impl ServerCore {
    /// Returns the time at which [`Self::tick`] is due if no event arrives before.
    #[must_use]
    pub fn wake(&self) -> Option<Millis> {
        if self.is_stalled() {
            return self.write_stall.map(|stall| stall.retry_at);
        }
        let wake = self.engine().wake().map(|time| time - self.clock + self.paused_for);
        wake.into_iter().chain(self.log.next_summary()).min()
    }

    /// Returns the handshake parameters that connections share.
    #[must_use]
    pub fn acceptor(&self) -> Arc<Acceptor> {
        Arc::clone(&self.acceptor)
    }

    /// Returns advice to the operator about the configuration of the campaign; `None` if there is no advice.
    #[must_use]
    pub fn advice(&self) -> Option<&str> {
        self.advice.as_deref()
    }

    /// Returns the engine with its store.
    #[must_use]
    pub fn durable(&self) -> &DurableEngine {
        &self.durable
    }

    fn engine(&self) -> &Engine {
        self.durable.engine()
    }

    /// Returns true once every known device has fitted its head.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.engine().phase() == Phase::Finished && !self.is_stalled()
    }

    /// Subscribes to the status: the current one and every change.
    #[must_use]
    pub fn status_feed(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Subscribes to committed rounds, one line of JSON each.
    #[must_use]
    pub fn round_feed(&self) -> broadcast::Receiver<String> {
        self.round_feed_sender.subscribe()
    }

    /// Returns the table of devices.
    #[must_use]
    pub fn devices(&self) -> DeviceTable {
        self.devices.clone()
    }

    /// Opens a read snapshot of the store.
    ///
    /// # Errors
    /// [`StoreError`] if the database is closed after a failed write, or cannot be read.
    pub fn read_snapshot(&self) -> Result<ReadSnapshot, StoreError> {
        self.durable.store().read_snapshot()
    }

    /// Counts a connection that was closed immediately after it was accepted.
    pub fn connection_dropped(&mut self) {
        self.connections.dropped += 1;
        self.publish_status();
    }

    /// Logs and counts a failed accept.
    pub fn accept_failed(&mut self, now: Millis, error: &std::io::Error) {
        if self.may_log(now, LogKind::AcceptFailed) {
            tracing::warn!(%error, "accept failed");
        }
        self.connections.accept_errors += 1;
        self.publish_status();
    }

    /// Drops the command queues of all peers: their sessions send what is queued and close.
    pub fn close_peers(&mut self) {
        self.peers.clear();
        self.log_suppressed(Millis::MAX);
    }

    /// Returns true if one more line of this kind may be logged.
    fn may_log(&mut self, now: Millis, kind: LogKind) -> bool {
        self.log_suppressed(now);
        self.log.allow(kind, now)
    }

    /// Logs the numbers of suppressed lines of expired windows.
    fn log_suppressed(&mut self, now: Millis) {
        for (kind, lines) in self.log.drain_expired(now) {
            tracing::warn!(kind = %kind, lines, "similar messages suppressed in the last minute");
        }
    }

    /// Applies timeouts of the engine, retries a stalled write and logs suppressed lines. Call at the time
    /// that [`Self::wake`] returns.
    ///
    /// # Errors
    /// [`CoreError`] as for [`Self::flush`].
    pub fn tick(&mut self, now: Millis) -> Result<(), CoreError> {
        self.log_suppressed(now);
        if !self.is_stalled() {
            self.apply_event(now, Event::Tick);
        }
        self.flush(now)
    }

    /// Handles one peer event. The effects are held back until [`Self::flush`], so that several events share
    /// one sync to disk. Must not be called during a write stall ([`Self::is_stalled`]).
    pub fn handle(&mut self, now: Millis, event: PeerEvent) {
        let PeerEvent { peer, from, key, kind, traffic } = event;
        self.connections.add_traffic(&traffic);
        let device = self.peers.get(&peer).map(|entry| entry.device);
        if traffic.unchosen > 0 && self.may_log(now, LogKind::NoRidgeChoice) {
            tracing::warn!(
                device = device.map(|device| device.0),
                %from,
                "device cannot choose the ridge of its head and uses the published one (firmware without ridge-choice, fixed point, or samples seen once)"
            );
        }
        if kind.needs_key() && key.as_ref().is_some_and(|key| !key.is_accepted()) {
            self.discard_revoked(now, peer);
            return;
        }
        if matches!(kind, PeerEventKind::Hello(..) | PeerEventKind::HelloAgain(..))
            && let Some(key) = &key
        {
            self.use_key(now, key);
        }
        match (kind, device) {
            (PeerEventKind::Hello(device, privacy, commands), None) => {
                self.connections.welcomed += 1;
                if let Some(old) = self.current.insert(device, peer) {
                    // The device has reconnected before its old connection timed out, so the old session is
                    // dropped.
                    self.peers.remove(&old);
                }
                if self.may_log(now, LogKind::Joined) {
                    tracing::info!(device = device.0, %from, "device joined");
                }
                self.peers.insert(peer, Peer { device, from, commands });
                self.devices.joined(now, device);
                self.handle_join(now, Event::Joined(device), device, privacy)
            }
            (PeerEventKind::Refused(refusal), device) => {
                if self.may_log(now, LogKind::Refused) {
                    tracing::warn!(device = device.map(|device| device.0), %from, reason = %refusal, "device refused");
                }
            }
            (PeerEventKind::TurnedAway, _) => {
                if self.may_log(now, LogKind::TurnedAway) {
                    tracing::warn!(%from, "device turned away: no free connection slot");
                }
                self.connections.turned_away += 1;
            }
            (PeerEventKind::HelloAgain(privacy, last_message), Some(device)) => {
                self.handle_repeated_hello(now, peer, device, privacy, last_message)
            }
            (PeerEventKind::Update(update), Some(device)) => {
                if self.is_over_quota(device, update.id, true) {
                    self.cut_off_over_quota(now, device, &from);
                } else {
                    self.apply_event(now, Event::Update(device, *update));
                }
            }
            (PeerEventKind::UnreadUpdate(id), Some(device)) => {
                if self.is_over_quota(device, id, false) {
                    self.cut_off_over_quota(now, device, &from);
                } else {
                    self.apply_event(now, Event::Unread(device, id));
                }
            }
            (PeerEventKind::Decline(decline), Some(device)) => {
                if self.may_log(now, LogKind::Declined) {
                    tracing::warn!(device = device.0, %from, round = decline.id.round, reason = %decline.reason, "round declined");
                }
                self.apply_event(now, Event::Declined(device, decline))
            }
            (PeerEventKind::Report(report), Some(device)) => {
                let Firmware { version: [major, minor, patch], build } = report.report.firmware;
                let reset = report.report.reset;
                if self.devices.reported(now, device, report) && self.may_log(now, LogKind::Reported) {
                    let firmware = format!("{major}.{minor}.{patch}");
                    tracing::info!(
                        device = device.0,
                        firmware,
                        build = format!("{build:08x}"),
                        ?reset,
                        "device reports"
                    );
                }
            }
            (PeerEventKind::TrafficOnly, _) => {}
            (PeerEventKind::Gone(reason), device) => {
                self.connections.count_end(reason);
                self.peers.remove(&peer);
                let is_unknown = device.is_none()
                    && self.key_store.is_some()
                    && matches!(reason, DisconnectReason::Closed | DisconnectReason::NoHello);
                if is_unknown && self.may_log(now, LogKind::NoKey) {
                    tracing::info!(
                        %from,
                        reason = ?reason,
                        "connection ended before a device proved a key: it has another key than this server, or is no device"
                    );
                }
                if let Some(device) = device
                    && self.current.get(&device) == Some(&peer)
                {
                    self.current.remove(&device);
                    self.log_left(now, device, &from, reason);
                    self.handle_departure(now, device);
                }
            }
            // The event comes from a session that was replaced or disconnected.
            _ => {
                self.connections.stale += 1;
            }
        }
    }

    /// Disconnects the devices that have no accepted key any more, and lets no round wait for them. Call after
    /// every request to the key store, and then [`Self::flush`]. Must not be called during a write stall
    /// ([`Self::is_stalled`]).
    pub fn remove_revoked(&mut self, now: Millis) {
        let Some(keys) = self.key_store.as_ref().map(SharedKeyStore::keys) else { return };
        let awaited = self.engine().open_round().into_iter().flat_map(|round| round.cohort.iter());
        let known: BTreeSet<DeviceId> = awaited.chain(self.current.keys()).copied().collect();
        for device in known.into_iter().filter(|device| !keys.has_key(*device)) {
            if let Some(entry) = self.current.remove(&device).and_then(|peer| self.peers.remove(&peer)) {
                self.log_left(now, device, &entry.from, DisconnectReason::Revoked);
            }
            if !self.held_out.leave(device) {
                self.apply_event(now, Event::Removed(device));
            }
        }
        self.update_not_awaited();
    }

    /// Logs the departure of a device, and records it for the operator.
    fn log_left(&mut self, now: Millis, device: DeviceId, from: &Origin, reason: DisconnectReason) {
        self.devices.left(now, device);
        if self.may_log(now, LogKind::Left) {
            tracing::info!(device = device.0, %from, reason = ?reason, "device left");
        }
    }

    /// Discards an event whose key was revoked while the event was in the inbox, and disconnects the device.
    fn discard_revoked(&mut self, now: Millis, peer: u64) {
        self.connections.revoked_messages += 1;
        match self.peers.remove(&peer) {
            Some(entry) if self.current.get(&entry.device) == Some(&peer) => {
                self.log_left(now, entry.device, &entry.from, DisconnectReason::Revoked);
                self.cut_off(entry.device);
            }
            _ => {}
        }
    }

    /// Handles a repeated hello: the device has restarted, its welcome was lost, or it has slept since its last message on a link that
    /// does not end meanwhile.
    fn handle_repeated_hello(
        &mut self,
        now: Millis,
        peer: u64,
        device: DeviceId,
        privacy: Privacy,
        last_message: Millis,
    ) {
        if self.current.get(&device) != Some(&peer) {
            self.connections.stale += 1;
            return;
        }
        self.devices.joined(now, device);
        self.connections.welcomed_again += 1;
        if now >= last_message + SHORTEST_SLEEP {
            self.sleepers.left(last_message, device);
        }
        self.handle_join(now, Event::Greeted(device), device, privacy);
    }

    /// Passes the join or the repeated hello of a device to the engine, with the privacy state that the device reports.
    fn handle_join(&mut self, now: Millis, event: Event, device: DeviceId, privacy: Privacy) {
        self.durable.record_privacy(device, privacy);
        if !self.engine().is_trained() && self.held_out.wait(device) {
            return;
        }
        self.sleepers.joined(now, device).log(device);
        if self.is_fitting() {
            // Every returning device fits its head again, and no later round will reset the quota.
            self.quota.reset_device(device);
        }
        self.apply_event(now, event);
    }

    /// Passes the departure of a device to the engine, unless the engine does not know the device yet.
    fn handle_departure(&mut self, now: Millis, device: DeviceId) {
        self.devices.left(now, device);
        if !self.held_out.leave(device) {
            self.sleepers.left(now, device);
            self.apply_event(now, Event::Left(device));
        }
    }

    /// Applies one event to the engine; the effects are held back until [`Self::flush`].
    ///
    /// The campaign clock is paused during a write stall, so that an update that waited in the inbox does not
    /// miss the deadline.
    fn apply_event(&mut self, now: Millis, event: Event) {
        let counters_before = self.engine().counters();
        self.durable.handle(self.clock + (now - self.paused_for), event);
        let counters_after = self.engine().counters();
        if counters_after.ruined > counters_before.ruined {
            tracing::warn!("averaged update is rank deficient; repeating the round");
        }
        if counters_after.renamed > counters_before.renamed {
            tracing::warn!("some devices lost their cached update; the round continues under a new id");
        }
        // The quota is reset whenever another round is open.
        self.quota.reset_for_round(self.engine().open_round().map(|round| round.broadcast.id));
    }

    /// Writes pending records and performs the actions that depend on them. A temporary write error starts a
    /// write stall ([`Self::is_stalled`]) instead of failing.
    ///
    /// # Errors
    /// [`CoreError`] if the store is unusable or the campaign has failed.
    pub fn flush(&mut self, now: Millis) -> Result<(), CoreError> {
        loop {
            let Flushed { actions, lines } = match self.durable.flush() {
                Ok(flushed) => flushed,
                Err(error) if error.may_pass() => {
                    self.begin_stall(now, &error);
                    return Ok(());
                }
                Err(error) => return Err(ResumeError::from(error).into()),
            };
            if let Some(stall) = self.write_stall.take() {
                self.paused_for += now - stall.since;
                tracing::info!("store can be written again");
            }
            if let Some(journal) = &mut self.journal {
                journal.append(&lines);
            }
            // Replaced keys are revoked only after the write: after a power cut before the write, the last
            // round would be reopened, and devices would still need the replaced keys.
            if self.engine().is_trained() {
                self.rounds_are_over();
            }
            let mut acknowledged = HashMap::new();
            for action in actions {
                // If copies of an update arrived during a write stall, only one acknowledgement is sent.
                if let Action::Acknowledge(device, ack) = &action {
                    let earlier = acknowledged.get(&(*device, ack.id));
                    if earlier
                        .is_some_and(|outcome| *outcome == ack.outcome || *outcome == AckOutcome::Counted)
                    {
                        self.connections.answered_already += 1;
                        continue;
                    }
                    acknowledged.insert((*device, ack.id), ack.outcome);
                }
                self.perform_action(now, action)?;
            }
            // Departures of disconnected devices, and the devices that were held out of training, are passed to the
            // engine; the resulting actions may disconnect further devices.
            let joining =
                if self.engine().is_trained() { self.held_out.end_training() } else { Arc::default() };
            if self.cut_off.is_empty() && joining.is_empty() {
                break;
            }
            while let Some(device) = self.cut_off.pop() {
                self.handle_departure(now, device);
            }
            for device in joining.iter() {
                self.apply_event(now, Event::Joined(*device));
            }
        }
        self.publish_status();
        Ok(())
    }

    /// Starts or prolongs a write stall: no event is handled and no update is acknowledged until the store
    /// can be written.
    fn begin_stall(&mut self, now: Millis, error: &StoreError) {
        let since = self.write_stall.map_or(now, |stall| stall.since);
        let stall = Stall { since, retry_at: now + WRITE_RETRY };
        if self.write_stall.replace(stall).is_none() {
            tracing::error!(%error, "store cannot be written and nothing is acknowledged; retrying every second");
            self.stalls += 1;
        }
        self.publish_status();
    }

    /// Returns true during a write stall.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.write_stall.is_some()
    }

    /// Performs an action of the engine whose records are durable.
    fn perform_action(&mut self, now: Millis, action: Action) -> Result<(), CoreError> {
        match action {
            Action::Open(device, opening) => self.send_command(now, device, Command::Open(opening)),
            Action::Acknowledge(device, ack) => {
                self.log_rejected(now, device, &ack);
                self.send_command(now, device, Command::Acknowledge(ack));
            }
            Action::Close(device, id) => self.send_command(now, device, Command::CloseRound(id)),
            Action::NextRound(device, time) => self.send_command(now, device, Command::NextRound(time)),
            Action::Commit(record) => self.report_committed(&record),
            Action::Finished => {
                if let Some(journal) = &mut self.journal {
                    journal.flush();
                }
                tracing::info!("campaign finished; new devices may still fit their heads");
            }
            Action::NotAwaited(device) => {
                self.update_not_awaited();
                if self.may_log(now, LogKind::NotAwaited) {
                    tracing::warn!(
                        device = device.0,
                        "device missed too many deadlines; rounds do not wait for it until it answers"
                    );
                }
            }
            Action::Awaited(device) => {
                self.update_not_awaited();
                if self.may_log(now, LogKind::Awaited) {
                    tracing::info!(device = device.0, "rounds wait for the device again");
                }
            }
            Action::Failed(failure) => {
                self.failure = Some(failure);
                self.publish_status();
                return Err(failure.into());
            }
        }
        Ok(())
    }

    /// Publishes these counters with the status.
    pub fn count_packets(&mut self, totals: Arc<PacketTotals>) {
        self.packets = Some(totals);
    }

    /// Revokes replaced keys and publishes the privacy loss, once, after training has ended.
    fn rounds_are_over(&mut self) {
        if !std::mem::replace(&mut self.rounds_over, true) {
            self.expire_replaced_keys(SharedKeyStore::rounds_over);
            self.update_privacy();
        }
    }

    /// Revokes replaced keys by calling `revoke_keys` on the key store; logs a failure.
    fn expire_replaced_keys(
        &self,
        revoke_keys: impl FnOnce(&SharedKeyStore) -> Result<usize, KeyStoreError>,
    ) {
        if let Some(Err(error)) = self.key_store.as_ref().map(revoke_keys) {
            tracing::error!(%error, "the key store cannot be written");
        }
    }

    /// Records that a device has completed a handshake with a key. The key that it replaces, because the server has sent it, is revoked.
    fn use_key(&mut self, now: Millis, key: &AcceptedKey) {
        key.mark_used();
        let device = key.device();
        if self.key_store.as_ref().is_some_and(|store| store.keys().has_used_sent_key(device)) {
            self.expire_replaced_keys(|store| store.sent_key_used(device));
            if self.may_log(now, LogKind::Joined) {
                tracing::info!(
                    device = device.0,
                    epoch = key.epoch(),
                    "device uses the key that was sent to it"
                );
            }
        }
    }

    /// Returns true once training is over; devices that join then only fit their heads and send no updates.
    fn is_fitting(&self) -> bool {
        matches!(self.engine().phase(), Phase::FitHead | Phase::Finished)
    }

    /// Returns the newest peer session of a device.
    fn peer(&self, device: DeviceId) -> Option<&Peer> {
        self.current.get(&device).and_then(|peer| self.peers.get(peer))
    }

    /// Logs the reason of a rejected update.
    fn log_rejected(&mut self, now: Millis, device: DeviceId, ack: &Ack) {
        if let AckOutcome::Rejected(reason) = ack.outcome
            && self.may_log(now, LogKind::Rejected)
        {
            let from = self.peer(device).map(|peer| tracing::field::display(&peer.from));
            tracing::warn!(device = device.0, from, round = ack.id.round, reason = %reason, "update rejected");
        }
    }

    /// Queues a command for a device; disconnects the device if its queue is full.
    fn send_command(&mut self, now: Millis, device: DeviceId, command: Command) {
        let Some(peer) = self.peer(device) else { return };
        // A closed queue means that the peer session has ended; its `Gone` event is in the inbox already.
        if !peer.commands.send(command) && !peer.commands.is_closed() {
            let from = peer.from.clone();
            self.connections.congested += 1;
            if self.may_log(now, LogKind::CutOff) {
                tracing::warn!(device = device.0, %from, "device cut off: command queue full");
            }
            self.cut_off(device);
        }
    }

    /// Disconnects a device: dropping its command queue ends the session.
    fn cut_off(&mut self, device: DeviceId) {
        if let Some(peer) = self.current.remove(&device) {
            self.peers.remove(&peer);
            // The departure may close the round, so it is passed to the engine only after the current
            // actions.
            self.cut_off.push(device);
        }
    }

    /// Counts an update of a device and returns true if it exceeds the quota.
    fn is_over_quota(&mut self, device: DeviceId, id: RoundId, is_read: bool) -> bool {
        self.quota.is_over(device, id, is_read, self.durable.engine().open_round())
    }

    /// Disconnects a device that has exceeded the update quota.
    fn cut_off_over_quota(&mut self, now: Millis, device: DeviceId, from: &Origin) {
        if self.may_log(now, LogKind::CutOff) {
            tracing::warn!(device = device.0, %from, "device cut off: update quota exceeded");
        }
        self.connections.over_quota += 1;
        self.cut_off(device);
    }
}
