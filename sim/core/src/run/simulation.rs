//! Simulation loop: passes the actions of the engine to the devices, and the answers of the devices to the
//! engine, at the virtual times of their arrival. The devices of a round compute in parallel. The engine
//! processes answers in the order of (time, device), so results do not depend on the number of threads.

mod actions;
mod delivery;
mod finish;
mod resume;
mod scores;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use fedspan_client::memory::Shape;
use fedspan_engine::{Action, DeviceId, Engine, Event, Failure, Millis, NotCounted, Phase, RoundBroadcast};

use self::delivery::Delivery;
use self::scores::ScoredModel;
use super::arrivals::{ArrivalQueue, PendingAnswer};
use super::attack::Attackers;
use super::devices::{Devices, gate, portion};
use super::engine::{TICKS, ticks};
use super::replay::ReplayDriver;
use super::times::Times;
use super::{Diverged, Outcome, RoundRow, RunError, Watcher};
use crate::data::{Dataset, shape_of};
use crate::evaluate::{ClientScore, MetricSet, Scores};
use crate::fleet::DeviceFactory;
use crate::network::JoinTime;
use crate::noise::SeedSource;
use crate::scenario::Scenario;

/// Largest number of consecutive attempts at a round that fail for reasons other than dropouts.
const MAX_FAILED_ATTEMPTS: u32 = 3;

/// State of a run.
pub struct Simulation<'a> {
    scenario: &'a Scenario,
    dataset: &'a Dataset,
    seed: u64,
    /// Data scaled with the campaign's scale; `None` until the scale is known.
    scaled: Option<Dataset>,
    shape: Shape,
    engine: Engine,
    devices: Devices<'a>,
    /// Expected answers of the devices.
    arrivals: ArrivalQueue,
    /// Attackers, and the data of the honest clients.
    attackers: Option<(Attackers, Dataset)>,
    /// Source of answer times if a server's journal is replayed.
    replay: Option<ReplayDriver<'a>>,
    /// Last device that failed in the current round for a reason other than a dropout.
    last_failure: Option<(u64, NotCounted)>,
    failed_attempts: u32,
    time: f64,
    /// Ticks of the engine's clock per unit of simulated time.
    ticks: f64,
    rows: Vec<RoundRow>,
    updates: u64,
    seconds: f64,
    finished: bool,
    interrupted: bool,
    diverged: Option<Diverged>,
    /// Latest scores of networks before their heads are tuned.
    before_tuning: Option<(Scores, Vec<ClientScore>)>,
    /// Scores of the linear model that was evaluated last, which mostly is the final model.
    last_scored: Option<(ScoredModel, Scores, Vec<ClientScore>)>,
    metrics: MetricSet,
}

impl<'a> Simulation<'a> {
    /// Prepares a run, without devices.
    pub fn new(
        scenario: &'a Scenario,
        dataset: &'a Dataset,
        seed: u64,
        engine: Engine,
        times: Times,
    ) -> Result<Self, RunError> {
        let shape = shape_of(dataset, scenario.model.k);
        let attackers = scenario.attack.map(|attack| {
            Attackers::select(attack, dataset.clients.len(), seed).knowing(dataset.truth.as_ref())
        });
        let build = DeviceFactory::new(scenario, dataset, seed, SeedSource::Deterministic(seed))?;
        let acceptor = gate(scenario, &build, &engine);
        let arrivals = ArrivalQueue::new(scenario, dataset, seed, build.frame_limit(), times);
        Ok(Self {
            scenario,
            dataset,
            seed,
            scaled: None,
            shape,
            engine,
            devices: Devices::new(build, seed, acceptor),
            arrivals,
            attackers: attackers.map(|attackers| {
                let honest = attackers.honest(dataset);
                (attackers, honest)
            }),
            replay: None,
            last_failure: None,
            failed_attempts: 0,
            time: 0.0,
            ticks: TICKS,
            rows: Vec::new(),
            updates: 0,
            seconds: 0.0,
            finished: false,
            interrupted: false,
            diverged: None,
            before_tuning: None,
            last_scored: None,
            metrics: MetricSet::All,
        })
    }

    /// Selects the metrics that are computed.
    pub fn with_metrics(self, metrics: MetricSet) -> Self {
        Self { metrics, ..self }
    }

    /// Sets the number of devices that compute together and stay in memory between rounds.
    pub fn with_awake_devices(mut self, awake_max: usize) -> Self {
        self.devices.set_awake_max(awake_max);
        self
    }

    /// Uses the answer times of a server's journal. A tick is one millisecond of the server's clock.
    pub fn with_replay(self, replay: ReplayDriver<'a>) -> Self {
        Self { replay: Some(replay), ticks: 1.0, ..self }
    }

    /// Runs the campaign to the end and returns the results.
    ///
    /// # Errors
    /// [`RunError`] if the campaign fails.
    pub fn run(mut self, watcher: &mut dyn Watcher) -> Result<Outcome, RunError> {
        let began = Instant::now();
        self.devices.connect(&self.dataset.clients, JoinTime::BeforeTraining)?;
        let mut actions = Vec::new();
        self.join(&mut actions);
        self.seconds += began.elapsed().as_secs_f64();
        let mut queue = VecDeque::from(actions);
        if !matches!(self.engine.phase(), Phase::Start(_)) {
            self.record_initial(&mut queue, watcher)?;
        }
        self.run_until_finished(queue.into(), watcher)?;
        self.finish()
    }

    /// Current time on the engine's clock.
    fn now(&self) -> Millis {
        ticks(self.time, self.ticks)
    }

    /// Deadline of the open round, after which the engine ignores answers; `None` after training.
    fn deadline(&self) -> Option<Millis> {
        self.engine.open_round().and_then(|round| round.deadline).filter(|_| self.trains())
    }

    /// True after the last round of training.
    fn training_is_over(&self) -> bool {
        matches!(self.engine.phase(), Phase::RidgeScores | Phase::FitHead | Phase::Finished)
    }

    /// True in start rounds (which compute the initial representation) and in training rounds.
    fn trains(&self) -> bool {
        matches!(self.engine.phase(), Phase::Start(_) | Phase::Train(_))
    }

    /// Passes one event to the engine at the current time.
    fn handle(&mut self, event: Event, actions: &mut Vec<Action>) {
        self.handle_at(self.now(), event, actions);
    }

    fn handle_at(&mut self, now: Millis, event: Event, actions: &mut Vec<Action>) {
        match &mut self.replay {
            Some(replay) => replay.handle(&mut self.engine, now, event, actions),
            None => self.engine.handle(now, event, actions),
        }
    }

    /// Joins the training devices to the campaign. In a replay, the clock is first set to the opening of the
    /// first round.
    fn join(&mut self, actions: &mut Vec<Action>) {
        if let Some(opened_at) = self.replay.as_ref().map(ReplayDriver::begins_at) {
            #[allow(clippy::cast_precision_loss, reason = "2^53 ms are 285 000 years")]
            let opened_at = opened_at.as_u64() as f64;
            self.time = opened_at;
        }
        for id in 0..self.dataset.clients.len() as u64 {
            self.engine.record_privacy(DeviceId(id), self.devices.privacy(id), actions);
            self.handle(Event::Joined(DeviceId(id)), actions);
        }
    }

    /// Runs rounds until the engine is finished.
    fn run_until_finished(
        &mut self,
        mut actions: Vec<Action>,
        watcher: &mut dyn Watcher,
    ) -> Result<(), RunError> {
        // On a thread of the pool, which would otherwise have to be woken for each round.
        rayon::scope(|_| {
            while self.step(&mut actions, watcher)? {}
            Ok(())
        })
    }

    /// Executes the actions of the engine, then delivers the next answers. Returns false if the run has
    /// ended.
    fn step(&mut self, actions: &mut Vec<Action>, watcher: &mut dyn Watcher) -> Result<bool, RunError> {
        self.execute(actions, watcher)?;
        if self.metrics == MetricSet::Distance && self.training_is_over() {
            return Ok(false);
        }
        if self.replay.as_ref().is_some_and(ReplayDriver::is_over) {
            return Ok(false);
        }
        let began = Instant::now();
        // Only as many devices compute as the round needs. For the other devices the round is closed before
        // their answers are due.
        let deadline = self.deadline();
        // In a replay, the deadlines are those of the journal.
        let decision = self.replay.as_ref().and_then(ReplayDriver::next_deadline);
        let in_time = |answer: &PendingAnswer| {
            deadline.is_none_or(|deadline| ticks(answer.at, self.ticks) < deadline)
                && decision.is_none_or(|decision| (answer.at, answer.rank) < decision)
        };
        let arrivals = self.arrivals.next(self.engine.open_round(), in_time);
        for (index, pending_answer) in &arrivals {
            if pending_answer.dropped_out {
                self.devices.wake(*index)?.discard_frames();
            }
        }
        let is_empty = arrivals.is_empty();
        self.compute(&arrivals, actions, watcher)?;
        // After a divergence, training ends before the engine repeats the round or opens another round. The
        // results of earlier rounds are kept.
        if self.diverged.is_some() && matches!(self.engine.phase(), Phase::Train(_)) {
            let commits = actions.iter().any(|action| matches!(action, Action::Commit(_)));
            if !commits {
                let mut queue = actions.drain(..).collect();
                self.end_training(&mut queue)?;
                actions.extend(queue);
            }
        }
        self.seconds += began.elapsed().as_secs_f64();
        if is_empty && let (Some((at, _)), Some(replay)) = (decision, &mut self.replay) {
            self.time = at.max(self.time);
            let now = ticks(self.time, self.ticks);
            replay.pass_deadline(&mut self.engine, now, actions);
            return Ok(true);
        }
        // In a replay, the journal may end before the campaign has finished.
        let ended = is_empty && (self.finished || self.replay.is_some());
        if is_empty && !ended {
            self.advance_without_answers(actions)?;
        }
        Ok(!ended)
    }

    /// Lets devices compute, and delivers their answers to the engine in order. If there are many, they compute in portions,
    /// so that only the updates of a portion are in memory.
    fn compute(
        &mut self,
        arrivals: &[(usize, PendingAnswer)],
        actions: &mut Vec<Action>,
        watcher: &mut dyn Watcher,
    ) -> Result<(), RunError> {
        // Attackers know all honest updates, and in a replay the actions have the times of the journal.
        if self.attackers.is_some() || self.replay.is_some() {
            self.process_due_frames()?;
            if let Some((attackers, _)) = &mut self.attackers {
                attackers.corrupt(&mut self.devices, arrivals, &self.engine);
            }
            return self.deliver_all(arrivals, actions, false);
        }
        let awake_max = self.devices.awake_max();
        if arrivals.len() <= awake_max.max(1) {
            return self.deliver_all(arrivals, actions, true);
        }
        self.devices.set_aside(arrivals.iter().map(|(index, _)| *index));
        for arrivals in arrivals.chunks(portion(awake_max, self.trains())) {
            self.devices.take_up(arrivals.iter().map(|(index, _)| *index));
            self.deliver_all(arrivals, actions, true)?;
            // Other actions are executed at the time of the last answer.
            if actions.iter().all(|action| matches!(action, Action::Acknowledge(..))) {
                self.execute(actions, watcher)?;
                // After training no round refers to an earlier one.
                if !self.trains() {
                    self.devices.rest(0, u32::MAX, |_| false);
                }
            }
        }
        Ok(())
    }

    /// True if the open round trains the layers of a network, and does not learn a prior of its heads.
    pub(super) fn trains_network(&self) -> bool {
        let algorithm = &self.scenario.algorithm;
        let finished = self.rows.last().map_or(0, |row| row.round);
        algorithm.network().is_some() && finished < algorithm.training_rounds()
    }

    /// Delivers answers to the engine. If `computes`, the devices compute meanwhile, and each answer is delivered as soon as it and
    /// all earlier ones are there.
    fn deliver_all(
        &mut self,
        arrivals: &[(usize, PendingAnswer)],
        actions: &mut Vec<Action>,
        computes: bool,
    ) -> Result<(), RunError> {
        let round = self.engine.open_round().map(|round| Arc::clone(&round.broadcast));
        let trains_network = self.trains_network();
        let mut delivery = Delivery {
            engine: &mut self.engine,
            replay: self.replay.as_mut(),
            time: &mut self.time,
            ticks: self.ticks,
            last_failure: &mut self.last_failure,
            diverged: &mut self.diverged,
            trains_network,
            ends_after_training: self.metrics == MetricSet::Distance,
            sends_acknowledgements: computes,
            actions,
        };
        if !computes {
            for (index, pending_answer) in arrivals {
                delivery.deliver(*index, pending_answer, self.devices.get(*index));
            }
            return Ok(());
        }
        let pending = &self.arrivals;
        let waits = |index: usize| pending.pending(index).is_some();
        let order: Vec<usize> = arrivals.iter().map(|(index, _)| *index).collect();
        let mut answers = arrivals.iter();
        self.devices.pump_in_order(round.as_deref(), waits, &order, |index, device| {
            if let Some((_, pending_answer)) = answers.next() {
                delivery.deliver(index, pending_answer, device);
            }
        })
    }

    /// Advances the clock to the engine's next wake-up, when no device will answer the open round. The engine
    /// then closes, extends or repeats the round. Repetitions are limited if devices fail for reasons other
    /// than dropouts, since such failures may be permanent.
    fn advance_without_answers(&mut self, actions: &mut Vec<Action>) -> Result<(), RunError> {
        let Some(wake_time) = self.engine.wake() else { return Err(RunError::Silent) };
        if let Some((device, reason)) = self.last_failure.take() {
            self.failed_attempts += 1;
            if self.failed_attempts >= MAX_FAILED_ATTEMPTS {
                let round = self.engine.checkpoint().id.round;
                return Err(Failure::NoUpdates { round, device: DeviceId(device), reason }.into());
            }
        }
        #[allow(clippy::cast_precision_loss, reason = "2^53 ticks are 10^9 units")]
        let moment = wake_time.as_u64() as f64 / self.ticks;
        self.time = self.time.max(moment);
        let open = |engine: &Engine| engine.open_round().map(|round| Arc::clone(&round.broadcast));
        let open_before = open(&self.engine);
        self.handle_at(wake_time.max(self.now()), Event::Tick, actions);
        let open_after = open(&self.engine);
        if let Some(opening) = open_after
            .filter(|open_after| open_before.is_some_and(|open_before| open_before.id == open_after.id))
        {
            self.resend_to_silent(&opening)?;
        }
        Ok(())
    }

    /// Sends an extended round again to the devices that dropped out, as the connections of a server do,
    /// because some of these devices may be available again.
    fn resend_to_silent(&mut self, opening: &Arc<RoundBroadcast>) -> Result<(), RunError> {
        for index in self.arrivals.silent_devices() {
            self.devices.wake(index)?.discard_frames();
            self.send_round(index as u64, opening);
        }
        Ok(())
    }

    /// Sends a round to a device and schedules the answer of the device.
    fn send_round(&mut self, device: u64, opening: &Arc<RoundBroadcast>) {
        let Ok(index) = usize::try_from(device) else { return };
        let extended = u32::try_from(self.engine.counters().extended).unwrap_or(u32::MAX);
        let period = self.trains().then(|| opening.id.round.saturating_add(extended));
        let pending_answer = match &mut self.replay {
            Some(replay) => {
                let (at, rank) = replay.due(DeviceId(device), opening.id.round);
                PendingAnswer { id: opening.id, at, rank, dropped_out: false }
            }
            None => self.arrivals.schedule(index, opening, self.time, period),
        };
        if index < self.devices.len() {
            self.arrivals.insert(index, pending_answer);
            self.devices.open(index, opening);
        }
    }

    /// Processes the frames of all devices except those whose answers are due later.
    fn process_due_frames(&mut self) -> Result<(), RunError> {
        let arrivals = &self.arrivals;
        let round = self.engine.open_round().map(|round| &*round.broadcast);
        self.devices.pump(round, |index| arrivals.pending(index).is_some())
    }
}

#[cfg(test)]
mod tests;
