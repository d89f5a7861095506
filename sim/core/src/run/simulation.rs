//! The loop: the engine's actions go to the devices, the devices' answers go back at the virtual time at
//! which they would arrive. Devices of a round compute in parallel; the engine hears them in order of
//! (time, device), so nothing depends on the number of threads.

mod actions;
mod end;
mod scores;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use fedspan_aggregator::connection::PeerMessage;
use fedspan_client::memory::Shape;
use fedspan_engine::linalg::Matrix;
use fedspan_engine::{Action, Engine, Event, Failure, Millis, NotCounted, Opening, Phase};
use fedspan_protocol::message::{Decline, DeclineReason};

use super::arrivals::{Arrivals, Asked};
use super::attack::Attackers;
use super::devices::{Devices, gate};
use super::prepare::engine;
use super::recorded::Recording;
use super::times::Times;
use super::{Diverged, Outcome, RoundRow, RunError, Watcher};
use crate::data::Dataset;
use crate::evaluate::{self, ClientScore, Scores, Wanted};
use crate::fleet::Build;
use crate::network::Joins;
use crate::noise::Seeds;
use crate::scenario::Scenario;

/// Engine clock ticks per unit of simulated time.
pub const TICKS: f64 = 1e6;

/// Times that a round which nobody answers is repeated where it is not only for dropouts.
const BARREN_MAX: u32 = 3;

/// One run in progress.
pub struct Simulation<'a> {
    scenario: &'a Scenario,
    dataset: &'a Dataset,
    /// The same under the campaign's scale, once that is known.
    scaled: Option<Dataset>,
    shape: Shape,
    engine: Engine,
    devices: Devices,
    /// What each device was asked and has not been heard on.
    arrivals: Arrivals,
    /// Who lies, and the data of the others.
    attackers: Option<(Attackers, Dataset)>,
    /// Where times come from the journal of a server instead: its clock, and its restarts.
    recording: Option<Recording<'a>>,
    /// The last device in this round that could not answer, for another reason than that it had dropped out, and how
    /// often in a row a round was repeated for such.
    refused: Option<(u64, NotCounted)>,
    barren: u32,
    time: f64,
    /// Engine clock ticks per unit of time.
    ticks: f64,
    rows: Vec<RoundRow>,
    updates: u64,
    seconds: f64,
    finished: bool,
    interrupted: bool,
    diverged: Option<Diverged>,
    /// The last scores of networks before their heads are tuned.
    untuned: Option<(Scores, Vec<ClientScore>)>,
    wanted: Wanted,
}

impl<'a> Simulation<'a> {
    /// Nothing has happened yet; `given` is the start, where the scenario names one.
    pub fn new(
        scenario: &'a Scenario,
        dataset: &'a Dataset,
        seed: u64,
        given: Option<Matrix>,
        times: Times,
    ) -> Result<Self, RunError> {
        let shape = evaluate::shape_of(dataset, scenario.model.k);
        let engine = engine(scenario, dataset, seed, given);
        let attackers = scenario.attack.map(|attack| Attackers::of(attack, dataset.clients.len(), seed));
        let build = Build::of(scenario, dataset, seed, Seeds::Foreseeable(seed))?;
        let gate = gate(scenario, &build, &engine);
        let arrivals = Arrivals::new(scenario, dataset, seed, build.frame_limit(), times);
        Ok(Self {
            scenario,
            dataset,
            scaled: None,
            shape,
            engine,
            devices: Devices::new(build, seed, gate),
            arrivals,
            attackers: attackers.map(|attackers| {
                let honest = attackers.honest(dataset);
                (attackers, honest)
            }),
            recording: None,
            refused: None,
            barren: 0,
            time: 0.0,
            ticks: TICKS,
            rows: Vec::new(),
            updates: 0,
            seconds: 0.0,
            finished: false,
            interrupted: false,
            diverged: None,
            untuned: None,
            wanted: Wanted::All,
        })
    }

    /// Computes only these figures.
    pub fn wanting(self, wanted: Wanted) -> Self {
        Self { wanted, ..self }
    }

    /// The same, at the times of a server's journal: a tick is a millisecond of the server's clock.
    pub fn recorded(self, recording: Recording<'a>) -> Self {
        Self { recording: Some(recording), ticks: 1.0, ..self }
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn run(mut self, watcher: &mut dyn Watcher) -> Result<Outcome, RunError> {
        let began = Instant::now();
        self.devices.connect(&self.dataset.clients, Joins::First)?;
        let mut actions = Vec::new();
        self.join(&mut actions);
        self.seconds += began.elapsed().as_secs_f64();
        let mut queue = VecDeque::from(actions);
        if !matches!(self.engine.phase(), Phase::Start(_)) {
            self.record_initial(&mut queue, watcher)?;
        }
        self.until_finished(queue.into(), watcher)?;
        self.end()
    }

    /// The engine's clock.
    fn now(&self) -> Millis {
        ticks(self.time, self.ticks)
    }

    /// When the engine hears nobody any more who answers the open round.
    fn deadline(&self) -> Option<Millis> {
        self.engine.open_round().and_then(|round| round.deadline).filter(|_| self.trains())
    }

    /// Whether what the engine asks is of the start or of training.
    fn trains(&self) -> bool {
        matches!(self.engine.phase(), Phase::Start(_) | Phase::Train(_))
    }

    /// Gives the engine one event.
    fn handle(&mut self, event: Event, actions: &mut Vec<Action>) {
        let now = self.now();
        match &mut self.recording {
            Some(recording) => recording.handle(&mut self.engine, now, event, actions),
            None => self.engine.handle(now, event, actions),
        }
    }

    /// Those who train join, at the time at which their first round opens.
    fn join(&mut self, actions: &mut Vec<Action>) {
        if let Some(opened_at) = self.recording.as_ref().map(Recording::begins_at) {
            #[allow(clippy::cast_precision_loss, reason = "2^53 ms are 285 000 years")]
            let opened_at = opened_at as f64;
            self.time = opened_at;
        }
        for id in 0..self.dataset.clients.len() as u64 {
            self.engine.heard_privacy(id, self.devices.privacy(id));
            self.handle(Event::Joined(id), actions);
        }
    }

    /// Drives rounds until the engine says that it is finished.
    fn until_finished(
        &mut self,
        mut actions: Vec<Action>,
        watcher: &mut dyn Watcher,
    ) -> Result<(), RunError> {
        while self.step(&mut actions, watcher)? {}
        Ok(())
    }

    /// Does what the engine asked for, and lets it hear those who answer next. False once it is finished.
    fn step(&mut self, actions: &mut Vec<Action>, watcher: &mut dyn Watcher) -> Result<bool, RunError> {
        self.act(actions, watcher)?;
        if self.recording.as_ref().is_some_and(Recording::is_over) {
            return Ok(false);
        }
        let began = Instant::now();
        // Only as many compute as the round waits for: the others are told to stop before they are done.
        let deadline = self.deadline();
        let in_time = |at: f64| deadline.is_none_or(|deadline| ticks(at, self.ticks) < deadline);
        let arrivals = self.arrivals.next(self.engine.open_round(), in_time);
        for (index, asked) in &arrivals {
            if let Some(device) = self.devices.get(*index).filter(|_| asked.lost) {
                device.miss();
            }
        }
        self.pump();
        if let Some((attackers, _)) = &mut self.attackers {
            attackers.corrupt(&mut self.devices, &arrivals, self.engine.open_round());
        }
        let silent = arrivals.is_empty();
        for (index, asked) in arrivals {
            self.time = asked.at.max(self.time);
            self.hear(index, &asked, actions);
        }
        // Before the round is repeated, or another opened; what the rounds before have made is kept.
        if self.diverged.is_some() && matches!(self.engine.phase(), Phase::Train(_)) {
            let commits = actions.iter().any(|action| matches!(action, Action::Commit(_)));
            if !commits {
                let mut queue = actions.drain(..).collect();
                self.end_training(&mut queue)?;
                actions.extend(queue);
            }
        }
        self.seconds += began.elapsed().as_secs_f64();
        // A journal may end before its campaign does.
        let ended = silent && (self.finished || self.recording.is_some());
        if silent && !ended {
            self.repeat(actions)?;
        }
        Ok(!ended)
    }

    /// The engine hears what a device has said, or that it will say nothing.
    fn hear(&mut self, index: usize, asked: &Asked, actions: &mut Vec<Action>) {
        let id = index as u64;
        if asked.lost {
            let decline = Decline { id: asked.id, reason: DeclineReason::Device };
            return self.handle(Event::Declined(id, decline), actions);
        }
        let Some(device) = self.devices.get(index) else { return };
        for inbound in std::mem::take(&mut device.said) {
            let event = match inbound {
                PeerMessage::Update(update) => Event::Update(id, update),
                PeerMessage::UnreadUpdate(round) => Event::Unread(id, round),
                PeerMessage::Decline(decline) => {
                    if decline.reason == DeclineReason::UpdateNonFinite {
                        self.diverges(id, decline.id.round);
                    }
                    self.refused = Some((id, NotCounted::Declined(decline.reason)));
                    Event::Declined(id, decline)
                }
                _ => continue,
            };
            self.handle(event, actions);
        }
    }

    /// Nobody else answers the round: it closes at its deadline or is extended, or it is repeated, and has cost its time.
    /// Dropouts pass, other reasons may not.
    fn repeat(&mut self, actions: &mut Vec<Action>) -> Result<(), RunError> {
        let Some(at) = self.engine.wake() else { return Err(RunError::Silent) };
        if let Some((device, reason)) = self.refused.take() {
            self.barren += 1;
            if self.barren >= BARREN_MAX {
                let round = self.engine.checkpoint().id.round;
                return Err(Failure::NoUpdates { round, device, reason }.into());
            }
        }
        #[allow(clippy::cast_precision_loss, reason = "2^53 ticks are 10^9 units")]
        let moment = at as f64 / self.ticks;
        self.time = self.time.max(moment);
        let open = |engine: &Engine| engine.open_round().map(|round| Arc::clone(&round.opening));
        let before = open(&self.engine);
        self.engine.handle(at.max(self.now()), Event::Tick, actions);
        let after = open(&self.engine);
        if let Some(opening) = after.filter(|after| before.is_some_and(|before| before.id == after.id)) {
            self.repeat_for_silent(&opening);
        }
        Ok(())
    }

    /// A round that goes on is sent again to those who have not been heard on, as a server's connections do: some may be
    /// back.
    fn repeat_for_silent(&mut self, opening: &Arc<Opening>) {
        for index in self.arrivals.silent() {
            if let Some(device) = self.devices.get(index) {
                device.miss();
            }
            self.ask(index as u64, opening);
        }
    }

    /// Asks a device.
    fn ask(&mut self, device: u64, opening: &Arc<Opening>) {
        let Ok(index) = usize::try_from(device) else { return };
        let extended = u32::try_from(self.engine.counters().extended).unwrap_or(u32::MAX);
        let period = self.trains().then(|| opening.id.round.saturating_add(extended));
        let asked = match &mut self.recording {
            Some(recording) => {
                let (at, place) = recording.due(device, opening.id.round);
                Asked { id: opening.id, at, place, lost: false }
            }
            None => self.arrivals.foresee(index, opening, self.time, period),
        };
        if let Some(device) = self.devices.get(index) {
            self.arrivals.ask(index, asked);
            device.connection.open(opening);
        }
    }

    /// Lets devices take what waits for them, but for those whose turn has not come.
    fn pump(&mut self) {
        let arrivals = &self.arrivals;
        self.devices.pump(|index| arrivals.due(index).is_some());
    }
}

/// A time on the engine's clock.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates after 10^13 units")]
pub fn ticks(time: f64, ticks: f64) -> Millis {
    (time * ticks) as u64
}

#[cfg(test)]
mod tests;
