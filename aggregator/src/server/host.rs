//! The task that owns the engine: turns peers' messages into events and the engine's actions into commands,
//! commits finished rounds, publishes status.

use std::collections::BTreeMap;
use std::sync::Arc;

use fedspan_protocol::message::{Model, Welcome};
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use super::ServeError;
use super::mailbox::Sender;
use super::peer::{Command, Message, What};
use super::status::{ConnectionCounters, Status};
use crate::admission::Requirements;
use crate::config::{Fleet, difference};
use crate::connection::Gate;
use crate::engine::{Action, DeviceId, Engine, Event, Failure, Millis, Phase, RoundRecord};
use crate::journal::{self, Journal, Line, Scribe};
use crate::keys::{Entropy, KeyDesk};
use crate::store::{Committed, Store};

struct Peer {
    device: DeviceId,
    commands: Sender<Command>,
}

/// The engine with its surroundings.
pub(super) struct Host {
    engine: Engine,
    store: Store,
    /// What the engine decides, in the journal's words, and where that is written.
    scribe: Scribe,
    journal: Option<Journal>,
    gate: Arc<Gate>,
    desk: Option<KeyDesk>,
    fingerprint: String,
    campaign: u64,
    rounds: u32,
    done: u32,
    peers: BTreeMap<u64, Peer>,
    /// The peer of each connected device: its newest connection.
    current: BTreeMap<DeviceId, u64>,
    /// Updates that devices have sent since the last round was committed, and how many are looked at.
    updates: BTreeMap<DeviceId, u32>,
    updates_most: u32,
    /// Devices that were cut off, of which the engine has not heard yet.
    cut_off: Vec<DeviceId>,
    connections: ConnectionCounters,
    began: Instant,
    status: watch::Sender<Status>,
    round_lines: broadcast::Sender<String>,
    failure: Option<Failure>,
}

/// Waits for an instant; for ever if there is none.
pub(super) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Host {
    pub(super) fn new(
        fleet: &Fleet,
        store: Store,
        entropy: u64,
        keys: Option<(KeyDesk, Box<dyn Entropy>)>,
    ) -> Result<Self, ServeError> {
        let mut engine = fleet.engine();
        let fingerprint = fleet.fingerprint();
        let small = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let model = Model::Linear {
            features: small(fleet.shape.features),
            width: small(fleet.model.k),
            outputs: small(fleet.shape.outputs),
        };
        let requirements = Requirements::new(model, &engine.requests(), fleet.allowed.clone())
            .with_numeric(fleet.algorithm.numeric);
        let mut campaign = entropy;
        let mut done = 0;
        let mut trained = false;
        let mut resumed = None;
        // Where no round was finished there is nothing that another configuration could spoil.
        let begun =
            |stored: &Committed| stored.configuration == fingerprint || stored.phase() != Phase::Waiting;
        if let Some(committed) = store.load()?.filter(begun) {
            if committed.configuration != fingerprint {
                let difference = difference(&committed.configuration, &fingerprint);
                return Err(ServeError::Changed { difference });
            }
            if !engine.resume(committed.round(), committed.phase(), &committed.state) {
                let difference = "the stored state has another size\n".to_owned();
                return Err(ServeError::Changed { difference });
            }
            campaign = committed.campaign;
            resumed = Some(committed.id.0);
            trained = committed.ends_training();
            if trained {
                // Nobody is connected: there is nothing to do yet.
                engine.finish_training(0, &mut Vec::new());
            }
            if let Phase::Train(number) = committed.phase() {
                done = number.min(fleet.algorithm.rounds);
            }
            if committed.phase() != Phase::Waiting {
                tracing::info!(round = done, "resuming after the last committed round");
            }
        }
        // Before any device sees a number: the next start must not use it again, even if nothing is
        // committed until then.
        let (id, phase, state) = engine.snapshot();
        let begun = Committed::new(fingerprint.clone(), campaign, id, phase, state);
        store.commit(&begun.ending_training(trained))?;
        let mut journal = match fleet.journal {
            true => Some(Journal::open(store.directory())?),
            false => None,
        };
        if let Some(journal) = &mut journal {
            let after = resumed.unwrap_or(0);
            let server =
                journal::Server { after, expected: fleet.expected, configuration: fingerprint.clone() };
            journal.append(&[if resumed.is_some() { Line::Resumed(server) } else { Line::Began(server) }]);
            journal.flush();
        }
        let (status, _) = watch::channel(Status::default());
        let (round_lines, _) = broadcast::channel(64);
        let idle_milliseconds = u32::try_from(fleet.limits.idle.as_millis()).unwrap_or(u32::MAX);
        let welcome = Welcome { campaign, idle_milliseconds };
        let desk = keys.as_ref().map(|(desk, _)| desk.clone());
        let gate = match keys {
            None => {
                tracing::warn!(
                    "PLAINTEXT: frames are not encrypted, and every device is believed; for the bench only"
                );
                Gate::plaintext(requirements, welcome)
            }
            Some((desk, nonces)) => Gate::encrypted(requirements, welcome, desk.keys(), nonces),
        };
        let mut host = Self {
            engine,
            store,
            scribe: Scribe::default(),
            journal,
            gate: Arc::new(gate),
            desk,
            fingerprint,
            campaign,
            rounds: fleet.algorithm.rounds,
            done,
            peers: BTreeMap::new(),
            current: BTreeMap::new(),
            updates: BTreeMap::new(),
            updates_most: fleet.limits.updates,
            cut_off: Vec::new(),
            connections: ConnectionCounters::default(),
            began: Instant::now(),
            status,
            round_lines,
            failure: None,
        };
        host.publish();
        Ok(host)
    }

    fn now(&self) -> Millis {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn wake(&self) -> Option<Instant> {
        self.engine.wake().map(|at| self.began + std::time::Duration::from_millis(at))
    }

    /// What connections need to know.
    pub(super) fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    pub(super) fn is_finished(&self) -> bool {
        self.engine.phase() == Phase::Finished
    }

    pub(super) fn status_feed(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    pub(super) fn round_feed(&self) -> broadcast::Receiver<String> {
        self.round_lines.subscribe()
    }

    /// A connection was closed as it came.
    pub(super) fn dropped(&mut self) {
        self.connections.dropped += 1;
        self.publish();
    }

    pub(super) fn accept_failed(&mut self) {
        self.connections.accept_errors += 1;
        self.publish();
    }

    /// Lets all peers go: they write what is queued and close.
    pub(super) fn release(&mut self) {
        self.peers.clear();
    }

    pub(super) fn tick(&mut self) -> Result<(), ServeError> {
        self.event(Event::Tick)
    }

    pub(super) fn take(&mut self, message: Message) -> Result<(), ServeError> {
        let Message { peer, what, traffic } = message;
        self.connections.passed(&traffic);
        let device = self.peers.get(&peer).map(|known| known.device);
        match (what, device) {
            (What::Hello(device, commands), None) => {
                self.connections.welcomed += 1;
                if let Some(old) = self.current.insert(device, peer) {
                    // The device is back before its old connection was missed.
                    self.peers.remove(&old);
                }
                self.peers.insert(peer, Peer { device, commands });
                tracing::info!(device, "joined");
                self.event(Event::Joined(device))
            }
            (What::Refused(refusal), device) => {
                tracing::warn!(device, "refused: {refusal}");
                self.publish();
                Ok(())
            }
            (What::TurnedAway, _) => {
                self.connections.turned_away += 1;
                self.publish();
                Ok(())
            }
            (What::HelloAgain, Some(device)) => self.greeted_again(peer, device),
            (What::Update(_) | What::Unread(_), Some(device)) if self.is_over_quota(device) => {
                tracing::warn!(device, "left: it sends update after update");
                self.connections.over_quota += 1;
                self.cut_off(device);
                self.let_go()
            }
            (What::Update(update), Some(device)) => self.event(Event::Update(device, *update)),
            (What::Unread(id), Some(device)) => self.event(Event::Unread(device, id)),
            (What::Decline(decline), Some(device)) => {
                tracing::warn!(device, round = decline.id.round, "declined: {}", decline.reason);
                self.event(Event::Declined(device, decline))
            }
            (What::Noise, _) => {
                self.publish();
                Ok(())
            }
            (What::Gone(gone), device) => {
                self.connections.ended(gone);
                self.peers.remove(&peer);
                match device {
                    Some(device) if self.current.get(&device) == Some(&peer) => {
                        self.current.remove(&device);
                        tracing::info!(device, ?gone, "left");
                        self.event(Event::Left(device))
                    }
                    _ => {
                        self.publish();
                        Ok(())
                    }
                }
            }
            // A message from a connection that has been replaced or cut off.
            _ => {
                self.connections.stale += 1;
                Ok(())
            }
        }
    }

    /// A device that is known has restarted, or has missed its welcome.
    fn greeted_again(&mut self, peer: u64, device: DeviceId) -> Result<(), ServeError> {
        if self.current.get(&device) != Some(&peer) {
            self.connections.stale += 1;
            return Ok(());
        }
        self.connections.welcomed_again += 1;
        self.event(Event::Joined(device))
    }

    fn event(&mut self, event: Event) -> Result<(), ServeError> {
        self.handle(event)?;
        self.let_go()
    }

    /// The engine hears who was cut off; what follows may cut off others.
    fn let_go(&mut self) -> Result<(), ServeError> {
        while let Some(device) = self.cut_off.pop() {
            self.handle(Event::Left(device))?;
        }
        self.publish();
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<(), ServeError> {
        let (mut actions, mut lines) = (Vec::new(), Vec::new());
        let now = self.now();
        self.scribe.handle(&mut self.engine, now, event, &mut actions, &mut lines);
        if let Some(journal) = &mut self.journal {
            journal.append(&lines);
        }
        for action in actions {
            match action {
                Action::Open(device, opening) => self.command(device, Command::Open(opening)),
                Action::Acknowledge(device, ack) => {
                    if let fedspan_protocol::message::AckOutcome::Rejected(reason) = ack.outcome {
                        tracing::warn!(device, round = ack.id.round, "update rejected: {reason}");
                    }
                    self.command(device, Command::Acknowledge(ack));
                }
                Action::Close(device, id) => self.command(device, Command::CloseRound(id)),
                Action::Commit(record) => self.commit(&record)?,
                Action::Finished => {
                    self.end_grace();
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
        }
        Ok(())
    }

    /// A round has closed: keys that were replaced before count no more.
    fn end_grace(&self) {
        if let Some(Err(error)) = self.desk.as_ref().map(KeyDesk::round_closed) {
            tracing::error!("keys that were replaced: {error}");
        }
    }

    /// Durable before anything that follows is done.
    fn commit(&mut self, record: &RoundRecord) -> Result<(), ServeError> {
        // First: a server that is resumed says after which round, so that a line too many is seen to be one, and a line
        // too few would be missed.
        if let Some(journal) = &mut self.journal {
            journal.flush();
        }
        let (_, _, state) = self.engine.snapshot();
        let configuration = self.fingerprint.clone();
        let committed = Committed::new(configuration, self.campaign, record.id, record.phase, state);
        self.store.commit(&committed.ending_training(record.ends_training))?;
        self.updates.clear();
        self.end_grace();
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
        // Nobody may be watching.
        let _ = self.round_lines.send(line.to_string());
        Ok(())
    }

    fn command(&mut self, device: DeviceId, command: Command) {
        let Some(peer) = self.current.get(&device) else { return };
        let Some(known) = self.peers.get(peer) else { return };
        if !known.commands.send(command) {
            // It does not read, or it is closing.
            self.connections.congested += 1;
            tracing::warn!(device, "left: it does not take what is sent to it");
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

    /// Counts an update of a device, on whatever connection it comes. Not where heads are fitted: every device that
    /// comes back fits its own again, no round ends that, and what it sends has no tensors.
    fn is_over_quota(&mut self, device: DeviceId) -> bool {
        if matches!(self.engine.phase(), Phase::FitHead | Phase::Finished) {
            return false;
        }
        let sent = self.updates.entry(device).or_default();
        *sent = sent.saturating_add(1);
        *sent > self.updates_most
    }

    pub(super) fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    fn publish(&mut self) {
        let phase = match self.engine.phase() {
            Phase::Waiting => "waiting",
            Phase::Start(_) => "start",
            Phase::Train(_) => "training",
            Phase::FitHead => "fitting heads",
            Phase::Finished => "finished",
            Phase::Failed => "failed",
        };
        let (devices, connected) = self.engine.fleet();
        let (answers, target) = self
            .engine
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
            updates: self.engine.counters(),
            journal_lost: self.journal.as_ref().map_or(0, Journal::lost),
            connections: self.connections,
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use fedspan_protocol::message::{Decline, DeclineReason, RoundId};
    use fedspan_protocol::tensor::Role;

    use super::*;
    use crate::algorithm::Tensor;
    use crate::engine::{Opening, Update};
    use crate::server::mailbox::mailbox;

    fn host(state: &std::path::Path) -> Host {
        let text = format!(
            "state = {:?}\n[devices]\nexpected = 2\nabsence = 0\n[data]\nd = 6\n[model]\nk = 2\n[algorithm]\n\
             name = \"fedrep\"\nrounds = 3\nstep_size = 0.25\n",
            state.display().to_string()
        );
        let fleet = Fleet::parse("fleet.toml", &text).unwrap();
        Host::new(&fleet, Store::open(state).unwrap(), 1, None).unwrap()
    }

    fn take(host: &mut Host, peer: u64, what: What) {
        host.take(Message { peer, what, traffic: Default::default() }).unwrap();
    }

    /// Nothing is sent back that would slow it down: the journal must not grow with what it says.
    #[test]
    fn a_device_that_declines_again_and_again_is_journalled_once() {
        let state = tempfile::tempdir().unwrap();
        let mut host = host(state.path());
        let boxes = [mailbox(16), mailbox(16)];
        let (senders, _heard): (Vec<_>, Vec<_>) = boxes.into_iter().unzip();
        for (device, commands) in (0..).zip(senders) {
            take(&mut host, device, What::Hello(device, commands));
        }
        let id = host.engine.open_round().unwrap().opening.id;
        for round in [id.round, 0, 77] {
            for _ in 0..50 {
                let id = RoundId { round, ..id };
                let reason = DeclineReason::Device;
                take(&mut host, 1, What::Decline(Decline { id, reason }));
            }
        }
        host.journal = None;
        let journal = std::fs::read_to_string(state.path().join(journal::FILE)).unwrap();
        assert_eq!(journal.matches("declined").count(), 1, "{journal}");
        assert_eq!(host.status().updates.declined, 150);
    }

    /// It is the last that the round waits for. That it is gone closes the round: what follows from it is done like
    /// anything else.
    #[test]
    fn a_round_that_closes_because_a_device_is_cut_off_is_committed_and_the_next_one_opens() {
        let state = tempfile::tempdir().unwrap();
        let mut host = host(state.path());
        let (honest, mut heard) = mailbox(16);
        // Room for one opening, which it does not take.
        let (mute, _unread) = mailbox(1);
        take(&mut host, 0, What::Hello(0, honest));
        take(&mut host, 1, What::Hello(1, mute));
        let mut opened = Vec::new();
        let mut listen = |opened: &mut Vec<Arc<Opening>>| {
            while let Some(command) = heard.try_recv() {
                if let Command::Open(opening) = command {
                    opened.push(opening);
                }
            }
        };
        listen(&mut opened);
        let request = &opened.first().expect("the first round").request;
        let values = vec![0.0; 12];
        let update = Update {
            id: opened.first().expect("the first round").id,
            samples: 1,
            skipped: 0,
            descriptors: request.expects.clone(),
            tensors: vec![Tensor { role: Role::Gradient, rows: 6, cols: 2, values }],
        };
        take(&mut host, 0, What::Update(Box::new(update)));
        take(&mut host, 1, What::HelloAgain);
        listen(&mut opened);
        assert_eq!((host.done, opened.len()), (1, 2), "the round is committed, the next one is open");
        assert_eq!(host.status().connections.congested, 1);
    }
}
