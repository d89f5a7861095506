//! What owns the engine: turns the messages of conversations into events and the engine's actions into commands, makes durable
//! what has happened, publishes status.
//!
//! No clock, no sockets, no threads, no runtime: the server drives it with real time and sockets, simulated disasters with
//! virtual time and links that lose. Times are milliseconds since the host began, by its caller's clock.
//!
//! ```text
//!  Conversation -- Message --> Host (Coordinator: Engine, Store) -- Command, through a mailbox --> Conversation
//! ```

mod command_queue;
mod log_limiter;
mod messages;
mod peer_session;
mod privacy_status;
mod round_report;
mod startup;
mod status;
#[cfg(test)]
mod tests;
mod update_quota;

use std::collections::BTreeMap;
use std::sync::Arc;

use fedspan_protocol::message::{Ack, AckOutcome, Privacy, RoundId};
use tokio::sync::{broadcast, watch};

use self::log_limiter::{Kind, LogRateLimiter};
use self::update_quota::UpdateQuota;
use crate::connection::Acceptor;
use crate::durable_engine::{DurableEngine, Flushed, ResumeError};
use crate::journal::Journal;
use crate::keys::{KeyStoreError, SharedKeyStore};
use crate::store::{ReadSnapshot, StoreError};
use fedspan_engine::privacy::Delta;
use fedspan_engine::{Action, DeviceId, Engine, Event, Failure, Millis, Phase};

pub use command_queue::{Receiver, Sender};
pub use messages::{Command, DisconnectReason, Origin, PeerEvent, PeerEventKind};
pub use peer_session::{PeerAction, PeerSession, Timeouts};
pub use privacy_status::PrivacyStatus;
pub use status::{ConnectionCounters, Status};

#[cfg(test)]
pub(crate) use {command_queue::memory as command_queue_memory, peer_session::COMMAND_CAPACITY};

/// A host cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// The stored campaign cannot be taken up, or the store cannot be used any more.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The campaign cannot go on.
    #[error("the campaign stopped: {0}")]
    Failed(#[from] Failure),
}

struct Peer {
    device: DeviceId,
    from: Origin,
    commands: Sender<Command>,
}

/// The engine with its surroundings.
pub struct ServerCore {
    durable: DurableEngine,
    /// Where what was decided is written for other programs.
    journal: Option<Journal>,
    acceptor: Arc<Acceptor>,
    key_store: Option<SharedKeyStore>,
    rounds: u32,
    done: u32,
    peers: BTreeMap<u64, Peer>,
    /// The peer of each connected device: its newest connection.
    current: BTreeMap<DeviceId, u64>,
    quota: UpdateQuota,
    /// No round will close any more, and the keys know.
    rounds_over: bool,
    /// Devices that were cut off, of which the engine has not heard yet.
    cut_off: Vec<DeviceId>,
    connections: ConnectionCounters,
    log: LogRateLimiter,
    /// What epsilons are for, and what they were when the last round closed.
    delta: Delta,
    privacy: Option<Arc<PrivacyStatus>>,
    /// What the campaign's clock said when this began.
    clock: Millis,
    /// For how long that has stood still since, as nothing could be written.
    paused_for: Millis,
    status: watch::Sender<Status>,
    round_feed_sender: broadcast::Sender<String>,
    failure: Option<Failure>,
    /// Since when something cannot be written, when it is tried again, and how often that has begun.
    write_stall: Option<Stall>,
    stalls: u64,
    /// What the operator should know about the configuration under which the campaign runs.
    advice: Option<String>,
}

/// Nothing can be written just now.
#[derive(Clone, Copy, Debug)]
struct Stall {
    since: Millis,
    retry_at: Millis,
}

/// How long until what could not be written is tried again.
const WRITE_RETRY: Millis = 1_000;

impl std::fmt::Debug for ServerCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerCore").field("phase", &self.engine().phase()).finish_non_exhaustive()
    }
}

impl ServerCore {
    /// When [`Self::tick`] is due, if nothing else happens.
    #[must_use]
    pub fn wake(&self) -> Option<Millis> {
        if self.is_stalled() {
            return self.write_stall.map(|stall| stall.retry_at);
        }
        let wake =
            self.engine().wake().map(|at| at.saturating_sub(self.clock).saturating_add(self.paused_for));
        wake.into_iter().chain(self.log.next_summary()).min()
    }

    /// What connections need to know.
    #[must_use]
    pub fn acceptor(&self) -> Arc<Acceptor> {
        Arc::clone(&self.acceptor)
    }

    /// What the operator should know about the configuration under which the campaign runs, if anything.
    #[must_use]
    pub fn advice(&self) -> Option<&str> {
        self.advice.as_deref()
    }

    /// The engine, and what is durable of it.
    #[must_use]
    pub fn durable(&self) -> &DurableEngine {
        &self.durable
    }

    fn engine(&self) -> &Engine {
        self.durable.engine()
    }

    /// Every known device has fitted its head.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.engine().phase() == Phase::Finished && !self.is_stalled()
    }

    /// The status now, and whenever it changes.
    #[must_use]
    pub fn status_feed(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// A line of JSON for every round that is committed from now on.
    #[must_use]
    pub fn round_feed(&self) -> broadcast::Receiver<String> {
        self.round_feed_sender.subscribe()
    }

    /// What is durable now.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn read_snapshot(&self) -> Result<ReadSnapshot, StoreError> {
        self.durable.store().read_snapshot()
    }

    /// A connection was closed as it came.
    pub fn connection_dropped(&mut self) {
        self.connections.dropped += 1;
        self.publish_status();
    }

    /// The system did not hand over a connection.
    pub fn accept_failed(&mut self, now: Millis, error: &std::io::Error) {
        if self.may_log(now, Kind::AcceptFailed) {
            tracing::warn!(%error, "accept failed");
        }
        self.connections.accept_errors += 1;
        self.publish_status();
    }

    /// Lets all peers go: they write what is queued and close.
    pub fn close_peers(&mut self) {
        self.peers.clear();
        self.log_suppressed(Millis::MAX);
    }

    /// Whether there is room in the log for one more line of this kind.
    fn may_log(&mut self, now: Millis, kind: Kind) -> bool {
        self.log_suppressed(now);
        self.log.allow(kind, now)
    }

    fn log_suppressed(&mut self, now: Millis) {
        for (kind, lines) in self.log.drain_expired(now) {
            tracing::warn!(lines, "left out of this log since the first of their minute: {kind}");
        }
    }

    /// Does what is due, as [`Self::wake`] has said.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub fn tick(&mut self, now: Millis) -> Result<(), CoreError> {
        self.log_suppressed(now);
        if !self.is_stalled() {
            self.apply_event(now, Event::Tick);
        }
        self.flush(now)
    }

    /// Hears a message. What comes of it waits for [`Self::flush`], as that of many can wait for the disk together. While the
    /// host [is stalled](Self::is_stalled) messages wait outside.
    pub fn take(&mut self, now: Millis, message: PeerEvent) {
        let PeerEvent { peer, from, key, kind, traffic } = message;
        self.connections.passed(&traffic);
        let device = self.peers.get(&peer).map(|known| known.device);
        if traffic.unchosen > 0 && self.may_log(now, Kind::Unchosen) {
            tracing::warn!(
                device,
                %from,
                "does not choose the ridge of its head: it takes the published one (firmware without ridge-choice, fixed point, or samples seen once)"
            );
        }
        if kind.needs_key() && key.is_some_and(|key| !key.is_accepted()) {
            self.revoked(now, peer);
            return;
        }
        match (kind, device) {
            (PeerEventKind::Hello(device, privacy, commands), None) => {
                self.connections.welcomed += 1;
                if let Some(old) = self.current.insert(device, peer) {
                    // The device is back before its old connection was missed.
                    self.peers.remove(&old);
                }
                if self.may_log(now, Kind::Joined) {
                    tracing::info!(device, %from, "joined");
                }
                self.peers.insert(peer, Peer { device, from, commands });
                self.joined(now, device, privacy)
            }
            (PeerEventKind::Refused(refusal), device) => {
                if self.may_log(now, Kind::Refused) {
                    tracing::warn!(device, %from, "refused: {refusal}");
                }
            }
            (PeerEventKind::TurnedAway, _) => {
                if self.may_log(now, Kind::TurnedAway) {
                    tracing::warn!(%from, "turned away: there is no place for one more device");
                }
                self.connections.turned_away += 1;
            }
            (PeerEventKind::HelloAgain(privacy), Some(device)) => {
                self.hello_again(now, peer, device, privacy)
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
                if self.may_log(now, Kind::Declined) {
                    tracing::warn!(device, %from, round = decline.id.round, "declined: {}", decline.reason);
                }
                self.apply_event(now, Event::Declined(device, decline))
            }
            (PeerEventKind::TrafficOnly, _) => {}
            (PeerEventKind::Gone(gone), device) => {
                self.connections.ended(gone);
                self.peers.remove(&peer);
                if let Some(device) = device
                    && self.current.get(&device) == Some(&peer)
                {
                    self.current.remove(&device);
                    self.log_left(now, device, &from, gone);
                    self.apply_event(now, Event::Left(device));
                }
            }
            // A message from a connection that has been replaced or cut off.
            _ => {
                self.connections.stale += 1;
            }
        }
    }

    fn log_left(&mut self, now: Millis, device: DeviceId, from: &Origin, gone: DisconnectReason) {
        if self.may_log(now, Kind::Left) {
            tracing::info!(device, %from, ?gone, "left");
        }
    }

    /// Something came under a key that is not accepted any more: it was waiting here when that was decided. It does not
    /// count, and its connection ends.
    fn revoked(&mut self, now: Millis, peer: u64) {
        self.connections.revoked_messages += 1;
        match self.peers.remove(&peer) {
            Some(known) if self.current.get(&known.device) == Some(&peer) => {
                self.log_left(now, known.device, &known.from, DisconnectReason::Revoked);
                self.cut_off(known.device);
            }
            _ => {}
        }
    }

    /// A device that is known has restarted, or has missed its welcome.
    fn hello_again(&mut self, now: Millis, peer: u64, device: DeviceId, privacy: Privacy) {
        if self.current.get(&device) != Some(&peer) {
            self.connections.stale += 1;
            return;
        }
        self.connections.welcomed_again += 1;
        self.joined(now, device, privacy);
    }

    fn joined(&mut self, now: Millis, device: DeviceId, privacy: Privacy) {
        self.durable.record_privacy(device, privacy);
        if self.is_fitting() {
            // Whoever comes back fits its head again, and no other round is opened.
            self.quota.forget(device);
        }
        self.apply_event(now, Event::Joined(device));
    }

    /// What comes of it waits for [`Self::flush`].
    ///
    /// The campaign's clock stands still while nothing can be written: devices that waited to be heard are not late for it.
    fn apply_event(&mut self, now: Millis, event: Event) {
        let before = self.engine().counters();
        self.durable.handle(self.clock.saturating_add(now.saturating_sub(self.paused_for)), event);
        let after = self.engine().counters();
        if after.ruined > before.ruined {
            tracing::warn!("the updates of a round left no representation of full width; it is asked again");
        }
        if after.renamed > before.renamed {
            tracing::warn!("devices have lost their answers to a round; it goes on under another number");
        }
        // A round that is opened has a quota of its own.
        self.quota.follow(self.engine().open_round().map(|round| round.opening.id));
    }

    /// Makes durable what has happened, and does what follows from it. If it cannot be written for a while the host
    /// [is stalled](Self::is_stalled).
    ///
    /// # Errors
    /// [`CoreError`]: the campaign cannot go on.
    pub fn flush(&mut self, now: Millis) -> Result<(), CoreError> {
        loop {
            let Flushed { actions, lines } = match self.durable.flush() {
                Ok(flushed) => flushed,
                Err(error) if error.may_pass() => {
                    self.stall(now, &error);
                    return Ok(());
                }
                Err(error) => return Err(ResumeError::from(error).into()),
            };
            if let Some(stall) = self.write_stall.take() {
                self.paused_for = self.paused_for.saturating_add(now.saturating_sub(stall.since));
                tracing::info!("the store can be written again");
            }
            if let Some(journal) = &mut self.journal {
                journal.append(&lines);
            }
            // Only now: after a power cut a round whose end was not durable is open again.
            if self.engine().is_trained() {
                self.rounds_are_over();
            }
            let mut told = BTreeMap::new();
            for action in actions {
                // An update that came again and again while it had to wait for the disk is answered once.
                if let Action::Acknowledge(device, ack) = &action {
                    let first = told.get(&(*device, ack.id));
                    if first.is_some_and(|first| *first == ack.outcome || *first == AckOutcome::Counted) {
                        self.connections.answered_already += 1;
                        continue;
                    }
                    told.insert((*device, ack.id), ack.outcome);
                }
                self.perform(now, action)?;
            }
            // The engine hears who was cut off; what follows may cut off others.
            if self.cut_off.is_empty() {
                break;
            }
            while let Some(device) = self.cut_off.pop() {
                self.apply_event(now, Event::Left(device));
            }
        }
        self.publish_status();
        Ok(())
    }

    /// Nothing is acknowledged, and nobody is listened to, until what has happened can be written.
    fn stall(&mut self, now: Millis, error: &StoreError) {
        let since = self.write_stall.map_or(now, |stall| stall.since);
        let again = Stall { since, retry_at: now.saturating_add(WRITE_RETRY) };
        if self.write_stall.replace(again).is_none() {
            tracing::error!(%error, "nothing is acknowledged until this can be written; trying every second");
            self.stalls += 1;
        }
        self.publish_status();
    }

    /// What has happened cannot be written just now.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.write_stall.is_some()
    }

    fn perform(&mut self, now: Millis, action: Action) -> Result<(), CoreError> {
        match action {
            Action::Open(device, opening) => self.command(now, device, Command::Open(opening)),
            Action::Acknowledge(device, ack) => {
                self.log_rejected(now, device, &ack);
                self.command(now, device, Command::Acknowledge(ack));
            }
            Action::Close(device, id) => self.command(now, device, Command::CloseRound(id)),
            Action::Commit(record) => self.committed(&record),
            Action::Finished => {
                if let Some(journal) = &mut self.journal {
                    journal.flush();
                }
                tracing::info!("finished; new devices may still fit their heads");
            }
            Action::Failed(failure) => {
                self.failure = Some(failure);
                self.publish_status();
                return Err(failure.into());
            }
        }
        Ok(())
    }

    fn rounds_are_over(&mut self) {
        if !std::mem::replace(&mut self.rounds_over, true) {
            self.expire_replaced_keys(SharedKeyStore::rounds_over);
            self.update_privacy();
        }
    }

    /// Keys that were replaced count no more, as far as the desk says.
    fn expire_replaced_keys(&self, end: impl FnOnce(&SharedKeyStore) -> Result<usize, KeyStoreError>) {
        if let Some(Err(error)) = self.key_store.as_ref().map(end) {
            tracing::error!("keys that were replaced: {error}");
        }
    }

    /// Training is over: every device that comes fits its head, and uploads nothing.
    fn is_fitting(&self) -> bool {
        matches!(self.engine().phase(), Phase::FitHead | Phase::Finished)
    }

    /// The newest connection of a device.
    fn peer(&self, device: DeviceId) -> Option<&Peer> {
        self.current.get(&device).and_then(|peer| self.peers.get(peer))
    }

    fn log_rejected(&mut self, now: Millis, device: DeviceId, ack: &Ack) {
        if let AckOutcome::Rejected(reason) = ack.outcome
            && self.may_log(now, Kind::Rejected)
        {
            let from = self.peer(device).map(|known| tracing::field::display(&known.from));
            tracing::warn!(device, from, round = ack.id.round, "update rejected: {reason}");
        }
    }

    fn command(&mut self, now: Millis, device: DeviceId, command: Command) {
        let Some(known) = self.peer(device) else { return };
        // Where nobody takes it any more the conversation is over, and has said so: that waits to be heard.
        if !known.commands.send(command) && !known.commands.is_closed() {
            let from = known.from.clone();
            self.connections.congested += 1;
            if self.may_log(now, Kind::CutOff) {
                tracing::warn!(device, %from, "left: it does not take what is sent to it");
            }
            self.cut_off(device);
        }
    }

    /// Lets a device go: dropping its commands ends its connection.
    fn cut_off(&mut self, device: DeviceId) {
        if let Some(peer) = self.current.remove(&device) {
            self.peers.remove(&peer);
            // The engine may close the round without it, which is for after what it wants done now.
            self.cut_off.push(device);
        }
    }

    /// Counts an update of a device. True: it is one too many.
    fn is_over_quota(&mut self, device: DeviceId, id: RoundId, is_read: bool) -> bool {
        self.quota.is_over(device, id, is_read, self.durable.engine().open_round())
    }

    fn cut_off_over_quota(&mut self, now: Millis, device: DeviceId, from: &Origin) {
        if self.may_log(now, Kind::CutOff) {
            tracing::warn!(device, %from, "left: it sends update after update");
        }
        self.connections.over_quota += 1;
        self.cut_off(device);
    }
}
