//! The task that owns the engine: turns peers' messages into events and the engine's actions into commands,
//! commits finished rounds, publishes status.

mod start;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use fedspan_protocol::message::{Ack, AckOutcome, Privacy, RoundId};
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use super::ServeError;
use super::log::{Kind, Throttle};
use super::mailbox::Sender;
use super::messages::{Command, Gone, Message, Origin, What};
use super::privacy::PrivacyStatus;
use super::status::{ConnectionCounters, Status};
use crate::connection::Gate;
use crate::coordinator::{Coordinator, ResumeError, Settled};
use crate::engine::{Action, DeviceId, Engine, Event, Failure, Millis, Phase, RoundRecord};
use crate::journal::Journal;
use crate::keys::{KeyDesk, KeyStoreError};
use crate::privacy::Delta;
use crate::store::{Past, StoreError};

struct Peer {
    device: DeviceId,
    from: Origin,
    commands: Sender<Command>,
}

/// The engine with its surroundings.
pub(super) struct Host {
    coordinator: Coordinator,
    /// Where what was decided is written for other programs.
    journal: Option<Journal>,
    gate: Arc<Gate>,
    desk: Option<KeyDesk>,
    rounds: u32,
    done: u32,
    peers: BTreeMap<u64, Peer>,
    /// The peer of each connected device: its newest connection.
    current: BTreeMap<DeviceId, u64>,
    /// Updates that devices have sent since the last round was opened, and how many are looked at.
    updates: BTreeMap<DeviceId, u32>,
    updates_most: u32,
    /// The number of the round that they are counted in.
    counted_in: Option<RoundId>,
    /// No round will close any more, and the keys know.
    rounds_over: bool,
    /// Devices that were cut off, of which the engine has not heard yet.
    cut_off: Vec<DeviceId>,
    connections: ConnectionCounters,
    log: Throttle,
    /// What epsilons are for, and what they were when the last round closed.
    delta: Delta,
    privacy: Option<Arc<PrivacyStatus>>,
    began: Instant,
    /// What the campaign's clock said then.
    clock: Millis,
    status: watch::Sender<Status>,
    round_lines: broadcast::Sender<String>,
    failure: Option<Failure>,
    /// When what cannot be written is tried again, and how often that has begun.
    stalled_until: Option<Instant>,
    stalls: u64,
}

/// How long until what could not be written is tried again.
const WRITE_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);

/// Waits for an instant; for ever if there is none.
pub(super) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Host {
    fn now(&self) -> Millis {
        self.clock.saturating_add(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn wake(&self) -> Option<Instant> {
        if self.is_stalled() {
            return self.stalled_until;
        }
        let wake = self.engine().wake().into_iter().chain(self.log.due()).min();
        wake.map(|at| self.began + std::time::Duration::from_millis(at.saturating_sub(self.clock)))
    }

    /// What connections need to know.
    pub(super) fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    fn engine(&self) -> &Engine {
        self.coordinator.engine()
    }

    pub(super) fn is_finished(&self) -> bool {
        self.engine().phase() == Phase::Finished && !self.is_stalled()
    }

    pub(super) fn status_feed(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    pub(super) fn round_feed(&self) -> broadcast::Receiver<String> {
        self.round_lines.subscribe()
    }

    /// What is durable now.
    pub(super) fn past(&self) -> Result<Past, StoreError> {
        self.coordinator.store().past()
    }

    /// A connection was closed as it came.
    pub(super) fn dropped(&mut self) {
        self.connections.dropped += 1;
        self.publish();
    }

    pub(super) fn accept_failed(&mut self, error: &std::io::Error) {
        if self.logs(Kind::AcceptFailed) {
            tracing::warn!(%error, "accept failed");
        }
        self.connections.accept_errors += 1;
        self.publish();
    }

    /// Lets all peers go: they write what is queued and close.
    pub(super) fn release(&mut self) {
        self.peers.clear();
        self.say_left_out(Millis::MAX);
    }

    /// Whether there is room in the log for one more line of this kind.
    fn logs(&mut self, kind: Kind) -> bool {
        let now = self.now();
        self.say_left_out(now);
        self.log.admits(kind, now)
    }

    fn say_left_out(&mut self, now: Millis) {
        for (kind, lines) in self.log.over(now) {
            tracing::warn!(lines, "left out of this log since the first of their minute: {kind}");
        }
    }

    pub(super) fn tick(&mut self) -> Result<(), ServeError> {
        self.say_left_out(self.now());
        if !self.is_stalled() {
            self.event(Event::Tick);
        }
        self.settle()
    }

    /// What comes of it waits for [`Self::settle`].
    pub(super) fn take(&mut self, message: Message) {
        let Message { peer, from, key, what, traffic } = message;
        self.connections.passed(&traffic);
        let device = self.peers.get(&peer).map(|known| known.device);
        if what.needs_key() && key.is_some_and(|key| !key.is_accepted()) {
            self.revoked(peer);
            return;
        }
        match (what, device) {
            (What::Hello(device, privacy, commands), None) => {
                self.connections.welcomed += 1;
                if let Some(old) = self.current.insert(device, peer) {
                    // The device is back before its old connection was missed.
                    self.peers.remove(&old);
                }
                if self.logs(Kind::Joined) {
                    tracing::info!(device, %from, "joined");
                }
                self.peers.insert(peer, Peer { device, from, commands });
                self.joined(device, privacy)
            }
            (What::Refused(refusal), device) => {
                if self.logs(Kind::Refused) {
                    tracing::warn!(device, %from, "refused: {refusal}");
                }
            }
            (What::TurnedAway, _) => {
                if self.logs(Kind::TurnedAway) {
                    tracing::warn!(%from, "turned away: there is no place for one more device");
                }
                self.connections.turned_away += 1;
            }
            (What::HelloAgain(privacy), Some(device)) => self.greeted_again(peer, device, privacy),
            (What::Update(_) | What::Unread(_), Some(device)) if self.is_over_quota(device) => {
                if self.logs(Kind::CutOff) {
                    tracing::warn!(device, %from, "left: it sends update after update");
                }
                self.connections.over_quota += 1;
                self.cut_off(device);
            }
            (What::Update(update), Some(device)) => self.event(Event::Update(device, *update)),
            (What::Unread(id), Some(device)) => self.event(Event::Unread(device, id)),
            (What::Decline(decline), Some(device)) => {
                if self.logs(Kind::Declined) {
                    tracing::warn!(device, %from, round = decline.id.round, "declined: {}", decline.reason);
                }
                self.event(Event::Declined(device, decline))
            }
            (What::Noise, _) => {}
            (What::Gone(gone), device) => {
                self.connections.ended(gone);
                self.peers.remove(&peer);
                if let Some(device) = device
                    && self.current.get(&device) == Some(&peer)
                {
                    self.current.remove(&device);
                    self.say_left(device, &from, gone);
                    self.event(Event::Left(device));
                }
            }
            // A message from a connection that has been replaced or cut off.
            _ => {
                self.connections.stale += 1;
            }
        }
    }

    fn say_left(&mut self, device: DeviceId, from: &Origin, gone: Gone) {
        if self.logs(Kind::Left) {
            tracing::info!(device, %from, ?gone, "left");
        }
    }

    /// Something came under a key that is not accepted any more: it was waiting here when that was decided. It does not
    /// count, and its connection ends.
    fn revoked(&mut self, peer: u64) {
        self.connections.revoked_messages += 1;
        match self.peers.remove(&peer) {
            Some(known) if self.current.get(&known.device) == Some(&peer) => {
                self.say_left(known.device, &known.from, Gone::Revoked);
                self.cut_off(known.device);
            }
            _ => {}
        }
    }

    /// A device that is known has restarted, or has missed its welcome.
    fn greeted_again(&mut self, peer: u64, device: DeviceId, privacy: Privacy) {
        if self.current.get(&device) != Some(&peer) {
            self.connections.stale += 1;
            return;
        }
        self.connections.welcomed_again += 1;
        self.joined(device, privacy);
    }

    fn joined(&mut self, device: DeviceId, privacy: Privacy) {
        self.coordinator.heard_privacy(device, privacy);
        if self.is_fitting() {
            // Whoever comes back fits its head again, and no other round is opened.
            self.updates.remove(&device);
        }
        self.event(Event::Joined(device));
    }

    /// What comes of it waits for [`Self::settle`].
    fn event(&mut self, event: Event) {
        let (now, ruined) = (self.now(), self.engine().counters().ruined);
        self.coordinator.handle(now, event);
        if self.engine().counters().ruined > ruined {
            tracing::warn!("the updates of a round left no representation of full width; it is asked again");
        }
        self.follow_rounds();
    }

    /// Makes durable what has happened, and does what follows from it.
    pub(super) fn settle(&mut self) -> Result<(), ServeError> {
        loop {
            let Settled { actions, lines } = match self.coordinator.settle() {
                Ok(settled) => settled,
                Err(error) if error.may_pass() => {
                    self.stall(&error);
                    return Ok(());
                }
                Err(error) => return Err(ResumeError::from(error).into()),
            };
            if self.stalled_until.take().is_some() {
                tracing::info!("the store can be written again");
            }
            if let Some(journal) = &mut self.journal {
                journal.append(&lines);
            }
            for action in actions {
                self.act(action)?;
            }
            // The engine hears who was cut off; what follows may cut off others.
            if self.cut_off.is_empty() {
                break;
            }
            while let Some(device) = self.cut_off.pop() {
                self.event(Event::Left(device));
            }
        }
        self.publish();
        Ok(())
    }

    /// Nothing is acknowledged, and nobody is listened to, until what has happened can be written.
    fn stall(&mut self, error: &StoreError) {
        if self.stalled_until.replace(Instant::now() + WRITE_AGAIN).is_none() {
            tracing::error!(%error, "nothing is acknowledged until this can be written; trying every second");
            self.stalls += 1;
        }
        self.publish();
    }

    /// What has happened cannot be written just now.
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled_until.is_some()
    }

    fn act(&mut self, action: Action) -> Result<(), ServeError> {
        match action {
            Action::Open(device, opening) => self.command(device, Command::Open(opening)),
            Action::Acknowledge(device, ack) => {
                self.say_rejected(device, &ack);
                self.command(device, Command::Acknowledge(ack));
            }
            Action::Close(device, id) => self.command(device, Command::CloseRound(id)),
            Action::Commit(record) => self.committed(&record),
            Action::Finished => {
                if let Some(journal) = &mut self.journal {
                    journal.flush();
                }
                tracing::info!("finished; new devices may still fit their heads");
            }
            Action::Failed(failure) => {
                self.failure = Some(failure);
                self.publish();
                return Err(failure.into());
            }
        }
        Ok(())
    }

    /// A round that is opened, again or not, has a quota of its own. Where heads are fitted none closes any more.
    fn follow_rounds(&mut self) {
        let open = self.engine().open_round().map(|round| round.opening.id);
        if open.is_some() && open != self.counted_in {
            self.counted_in = open;
            self.updates.clear();
        }
        if self.is_fitting() {
            self.rounds_are_over();
        }
    }

    fn rounds_are_over(&mut self) {
        if !std::mem::replace(&mut self.rounds_over, true) {
            self.replaced(KeyDesk::rounds_over);
            self.account();
        }
    }

    /// Keys that were replaced count no more, as far as the desk says.
    fn replaced(&self, end: impl FnOnce(&KeyDesk) -> Result<usize, KeyStoreError>) {
        if let Some(Err(error)) = self.desk.as_ref().map(end) {
            tracing::error!("keys that were replaced: {error}");
        }
    }

    /// Training is over: every device that comes fits its head, and uploads nothing.
    fn is_fitting(&self) -> bool {
        matches!(self.engine().phase(), Phase::FitHead | Phase::Finished)
    }

    /// A round is durable.
    fn committed(&mut self, record: &RoundRecord) {
        if let Some(journal) = &mut self.journal {
            journal.flush();
        }
        self.replaced(KeyDesk::round_closed);
        let (label, number) = match record.phase {
            Phase::Start(number) => ("start", number),
            Phase::Train(number) => {
                self.done = number;
                ("training", number)
            }
            _ => ("other", 0),
        };
        tracing::info!(phase = label, round = number, participants = record.participants.len(), "committed");
        if let Some(wanted) = record.short_of {
            let answers = record.participants.len();
            tracing::warn!(answers, wanted, "closed with fewer answers than it waited for");
        }
        if let (Some(change), true) = (record.change, record.ends_training && self.done < self.rounds) {
            tracing::info!(round = self.done, change, "training ends: the representation moved little");
        }
        let mut line = serde_json::json!({
            "phase": label,
            "round": number,
            "of": self.rounds,
            "cohort": record.cohort,
            "participants": record.participants,
            "rejected": record.rejected,
            "milliseconds": record.closed_at - record.opened_at,
        });
        if let (Some(change), Some(line)) = (record.change, line.as_object_mut()) {
            line.insert("change".to_owned(), change.into());
        }
        self.account();
        if let (Some(privacy), Some(line)) = (&self.privacy, line.as_object_mut()) {
            line.insert("epsilon".to_owned(), privacy.epsilon.into());
        }
        // Nobody may be watching.
        let _ = self.round_lines.send(line.to_string());
    }

    /// Brings what is said of privacy up to date: not with every message, since each device is looked at.
    fn account(&mut self) {
        self.privacy = PrivacyStatus::of(self.engine().ledger(), self.delta).map(Arc::new);
    }

    /// The newest connection of a device.
    fn peer(&self, device: DeviceId) -> Option<&Peer> {
        self.current.get(&device).and_then(|peer| self.peers.get(peer))
    }

    fn say_rejected(&mut self, device: DeviceId, ack: &Ack) {
        if let AckOutcome::Rejected(reason) = ack.outcome
            && self.logs(Kind::Rejected)
        {
            let from = self.peer(device).map(|known| tracing::field::display(&known.from));
            tracing::warn!(device, from, round = ack.id.round, "update rejected: {reason}");
        }
    }

    fn command(&mut self, device: DeviceId, command: Command) {
        let Some(known) = self.peer(device) else { return };
        if !known.commands.send(command) {
            let from = known.from.clone();
            // It does not read, or it is closing.
            self.connections.congested += 1;
            if self.logs(Kind::CutOff) {
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

    /// Counts an update of a device, on whatever connection it comes.
    fn is_over_quota(&mut self, device: DeviceId) -> bool {
        let sent = self.updates.entry(device).or_default();
        *sent = sent.saturating_add(1);
        *sent > self.updates_most
    }

    pub(super) fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    fn publish(&mut self) {
        let engine = self.coordinator.engine();
        let phase = match engine.phase() {
            Phase::Waiting => "waiting",
            Phase::Start(_) => "start",
            Phase::Train(_) => "training",
            Phase::FitHead => "fitting heads",
            Phase::Finished => "finished",
            Phase::Failed => "failed",
        };
        let (devices, connected) = engine.fleet();
        let (answers, target) = engine
            .open_round()
            .map_or((0, 0), |round| (round.participants.len(), round.target.min(round.cohort.len())));
        self.status.send_replace(Status {
            phase: phase.to_owned(),
            round: self.done,
            rounds: self.rounds,
            devices,
            connected,
            answers,
            target,
            updates: engine.counters(),
            stalled: self.is_stalled(),
            stalls: self.stalls,
            journal_lost: self.journal.as_ref().map_or(0, Journal::lost),
            connections: self.connections,
            privacy: self.privacy.clone(),
        });
    }
}
