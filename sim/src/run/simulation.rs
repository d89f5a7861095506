//! The loop: the engine's actions go to the devices, the devices' answers go back at the virtual time at
//! which they would arrive. Devices of a round compute in parallel; the engine hears them in order of
//! (time, device), so nothing depends on the number of threads.

use std::collections::VecDeque;
use std::time::Instant;

use fedspan_aggregator::admission::Requirements;
use fedspan_aggregator::connection::Inbound;
use fedspan_aggregator::engine::{Action, Engine, Event, Millis, Phase, RoundRecord};
use fedspan_aggregator::linalg::{Matrix, orthonormal};
use fedspan_client::memory::Shape;
use fedspan_client::session::Config;
use fedspan_protocol::message::{Ack, AckOutcome, Model, ToDevice, Welcome};
use rayon::prelude::*;

use super::prepare::engine;
use super::recorded::Recording;
use super::speed::Speeds;
use super::{Outcome, RoundRow, RunError, Unwatched, Watcher, check_finite};
use crate::data::{Client, Dataset};
use crate::evaluate::{self, ClientScore, Scores, Wanted};
use crate::fleet::{SimDevice, frame_limit, session};
use crate::scenario::Scenario;

/// Engine clock ticks per unit of simulated time.
const TICKS: f64 = 1e6;

/// One run in progress.
pub struct Simulation<'a> {
    scenario: &'a Scenario,
    dataset: &'a Dataset,
    seed: u64,
    given: Option<Matrix>,
    shape: Shape,
    engine: Engine,
    /// What the campaign asks of a device's hello.
    requirements: Requirements,
    devices: Vec<SimDevice>,
    speeds: Speeds,
    /// Samples of the client that has most.
    largest: u64,
    /// Where times do not come from `speeds` but from the journal of a server: its clock, and its restarts.
    recording: Option<Recording<'a>>,
    /// When each device answers the round that it was asked and has not heard yet, and its place among those of the
    /// same time.
    due: Vec<Option<(f64, usize)>>,
    time: f64,
    /// Engine clock ticks per unit of time.
    ticks: f64,
    rows: Vec<RoundRow>,
    /// Sums over `rows`.
    recorded: (u64, u64),
    updates: u64,
    seconds: f64,
    finished: bool,
    interrupted: bool,
    wanted: Wanted,
}

impl<'a> Simulation<'a> {
    /// Nothing has happened yet; `given` is the start, where the scenario names one.
    pub fn new(scenario: &'a Scenario, dataset: &'a Dataset, seed: u64, given: Option<Matrix>) -> Self {
        let shape = evaluate::shape_of(dataset, scenario.model.k);
        let engine = engine(scenario, dataset, seed, given.clone());
        let small = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let model = Model::Linear {
            features: small(shape.features),
            width: small(shape.width),
            outputs: small(shape.outputs),
        };
        let requirements =
            Requirements::new(model, &engine.requests(), None).with_numeric(scenario.algorithm.numeric);
        let clients = dataset.clients.len() + dataset.newcomers.len();
        let speeds = Speeds::new(scenario.fleet.speed, seed, clients);
        Self {
            scenario,
            dataset,
            seed,
            given,
            shape,
            engine,
            requirements,
            devices: Vec::new(),
            speeds,
            recording: None,
            largest: dataset.clients.iter().map(|client| client.train.len() as u64).max().unwrap_or(0),
            due: Vec::new(),
            time: 0.0,
            ticks: TICKS,
            rows: Vec::new(),
            recorded: (0, 0),
            updates: 0,
            seconds: 0.0,
            finished: false,
            interrupted: false,
            wanted: Wanted::All,
        }
    }

    /// Computes only these figures.
    pub fn wanting(self, wanted: Wanted) -> Self {
        Self { wanted, ..self }
    }

    /// The same, at the times of a server's journal: a tick is a millisecond of the server's clock.
    pub fn recorded(mut self, recording: Recording<'a>) -> Self {
        self.recording = Some(recording);
        self.ticks = 1.0;
        self
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn run(mut self, watcher: &mut dyn Watcher) -> Result<Outcome, RunError> {
        let began = Instant::now();
        self.connect(&self.dataset.clients)?;
        let mut actions = Vec::new();
        if !self.restarted(None, &mut actions) {
            self.join(&mut actions);
        }
        self.seconds += began.elapsed().as_secs_f64();
        let mut queue = VecDeque::from(actions);
        if !matches!(self.engine.phase(), Phase::Start(_)) {
            self.record_initial(&mut queue, watcher)?;
        }
        self.until_finished(queue.into(), watcher)?;
        let fitted = self.traffic();
        let trained = self.recorded;
        let newcomers = match self.recording {
            Some(_) => Vec::new(),
            None => self.welcome_newcomers()?,
        };
        let all = self.traffic();
        let representation = self.engine.representation().clone();
        let basis = orthonormal(&representation).unwrap_or_else(|_| representation.clone());
        let (scores, clients) = self.scores(self.rows.last().map_or(0, |row| row.round))?;
        // A run that ended early ends with a row of figures, too.
        if let Some(row) = self.rows.last_mut() {
            row.scores.get_or_insert(scores);
        }
        let outcome = Outcome {
            rounds: self.rows,
            scores,
            clients,
            newcomers,
            newcomers_global: self.engine.shared_head().map_or_else(Scores::default, |w| {
                evaluate::shared(&self.dataset.newcomers, &representation, w)
            }),
            outputs: self.dataset.outputs,
            representation: Some(basis),
            counters: self.engine.counters(),
            updates: self.updates,
            bytes: trained,
            fit_bytes: (fitted.0 - trained.0, fitted.1 - trained.1),
            newcomer_bytes: (all.0 - fitted.0, all.1 - fitted.1),
            seconds: self.seconds,
            interrupted: self.interrupted,
        };
        outcome.check_figures()?;
        Ok(outcome)
    }

    /// Connects a device for each client: hello, admission as on a server, welcome.
    fn connect(&mut self, clients: &[Client]) -> Result<(), RunError> {
        let limit = frame_limit(self.shape);
        for client in clients {
            let id = self.devices.len() as u64;
            let config = Config { frame_limit: limit, ..Config::new(id) };
            let session =
                session(config, self.shape, self.scenario.algorithm.numeric, client.source(), self.seed);
            let mut device = SimDevice::connect(session);
            for said in device.said.drain(..) {
                let admitted = match said {
                    Inbound::Hello(hello) => self.requirements.admit(&hello),
                    Inbound::Foreign(refusal) => Err(refusal),
                    _ => return Err(RunError::Silent),
                };
                admitted.map_err(|refusal| RunError::Refused { client: id, refusal })?;
            }
            device.connection.send(ToDevice::Welcome(Welcome { campaign: 1, idle_milliseconds: u32::MAX }));
            device.pump();
            device.connection.forget_traffic();
            self.devices.push(device);
        }
        Ok(())
    }

    fn now(&self) -> Millis {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a clock")]
        let now = (self.time * self.ticks) as u64;
        now
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
            self.handle(Event::Joined(id), actions);
        }
    }

    /// If the server of the journal was restarted after this round (`None`: before the first): goes on from what the
    /// round left, as a server does. What had been opened since never was.
    fn restarted(&mut self, after: Option<&RoundRecord>, actions: &mut Vec<Action>) -> bool {
        let Some(recording) = &mut self.recording else { return false };
        let (last, _, state) = self.engine.snapshot();
        let (id, phase) = after.map_or((last, Phase::Waiting), |record| (record.id, record.phase));
        let Some(id) = recording.restarted(id) else { return false };
        self.engine = engine(self.scenario, self.dataset, self.seed, self.given.clone());
        self.engine.resume(id, phase, &state);
        self.due.fill(None);
        for device in &mut self.devices {
            device.miss();
        }
        self.join(actions);
        true
    }

    /// Drives rounds until the engine says that it is finished.
    fn until_finished(
        &mut self,
        mut actions: Vec<Action>,
        watcher: &mut dyn Watcher,
    ) -> Result<(), RunError> {
        loop {
            self.act(&mut actions, watcher)?;
            if self.recording.as_ref().is_some_and(Recording::is_over) {
                return Ok(());
            }
            let began = Instant::now();
            // Only as many compute as the round waits for: the others are told to stop before they are done.
            let mut arrivals = self.next_to_answer();
            for (_, index) in &arrivals {
                self.due.get_mut(*index).map(Option::take);
            }
            self.pump();
            if arrivals.is_empty() {
                self.seconds += began.elapsed().as_secs_f64();
                // A journal may end before its campaign does.
                let silent = !self.finished && self.recording.is_none();
                return if silent { Err(RunError::Silent) } else { Ok(()) };
            }
            for (time, index) in arrivals.drain(..) {
                self.time = time.max(self.time);
                let Some(device) = self.devices.get_mut(index) else { continue };
                for inbound in std::mem::take(&mut device.said) {
                    let event = match inbound {
                        Inbound::Update(update) => Event::Update(index as u64, update),
                        Inbound::Unread(id) => Event::Unread(index as u64, id),
                        Inbound::Decline(decline) => Event::Declined(index as u64, decline),
                        _ => continue,
                    };
                    self.handle(event, &mut actions);
                }
            }
            self.seconds += began.elapsed().as_secs_f64();
        }
    }

    fn act(&mut self, actions: &mut Vec<Action>, watcher: &mut dyn Watcher) -> Result<(), RunError> {
        let mut queue: VecDeque<Action> = actions.drain(..).collect();
        while let Some(action) = queue.pop_front() {
            match action {
                Action::Acknowledge(device, ack) => {
                    if let Some(device) = self.device(device) {
                        device.connection.send(ToDevice::Ack(ack));
                    }
                }
                Action::Open(device, opening) => {
                    let index = usize::try_from(device).unwrap_or(usize::MAX);
                    let due = match &mut self.recording {
                        Some(recording) => recording.due(device, opening.id.round),
                        None => (self.time + self.speeds.time(index, opening.id.round), index),
                    };
                    self.due.resize(self.devices.len(), None);
                    if let Some(place) = self.due.get_mut(index) {
                        *place = Some(due);
                    }
                    if let Some(device) = self.device(device) {
                        device.connection.open(&opening);
                    }
                }
                Action::Close(device, id) => {
                    let index = usize::try_from(device).unwrap_or(usize::MAX);
                    let unheard = self.due.get_mut(index).and_then(Option::take).is_some();
                    let recording = self.recording.as_ref();
                    let late = recording.is_some_and(|known| known.came_late(device, id.round));
                    let Some(device) = self.devices.get_mut(index) else { continue };
                    if unheard && late {
                        // Its answer crossed with this: it is heard in vain, but it has done the work.
                        device.pump();
                        device.said.clear();
                        device.connection.close_round(id);
                        device.connection.send(ToDevice::Ack(Ack { id, outcome: AckOutcome::Late }));
                        continue;
                    }
                    if unheard {
                        device.miss();
                    }
                    device.connection.close_round(id);
                }
                Action::Commit(record) => {
                    let began = Instant::now();
                    self.pump();
                    self.seconds += began.elapsed().as_secs_f64();
                    if self.recording.is_none() {
                        self.time += self.scenario.fleet.communication;
                    }
                    self.updates += record.participants.len() as u64;
                    let number = match record.phase {
                        Phase::Train(number) => number,
                        // The start belongs to round 0, which is the initial model.
                        _ => {
                            if matches!(self.engine.phase(), Phase::Train(_)) {
                                self.record_initial(&mut queue, watcher)?;
                            }
                            self.restart(&record, &mut queue);
                            continue;
                        }
                    };
                    let last = record.ends_training;
                    let evaluated = last || number.is_multiple_of(self.scenario.evaluate_every);
                    let scores = if evaluated { Some(self.scores(number)?.0) } else { None };
                    let (bytes_up, bytes_down) = self.traffic_since_last_row();
                    self.rows.push(RoundRow {
                        round: number,
                        stage: record.id.stage,
                        cohort: record.cohort.clone(),
                        participants: record.participants.clone(),
                        time: self.time,
                        scores,
                        bytes_up,
                        bytes_down,
                        rejected: record.rejected,
                    });
                    let go_on = watcher.round(number, self.scenario.algorithm.rounds, scores.as_ref());
                    if !last {
                        self.interrupted = !go_on;
                        if self.interrupted || self.reached(scores.as_ref()) {
                            self.end_training(&mut queue);
                        }
                        self.restart(&record, &mut queue);
                    }
                }
                Action::Finished => self.finished = true,
                Action::Failed(failure) => return Err(failure.into()),
            }
        }
        Ok(())
    }

    /// [`Self::restarted`]: the round that had just opened never reaches a device.
    fn restart(&mut self, after: &RoundRecord, queue: &mut VecDeque<Action>) {
        let mut more = Vec::new();
        if self.restarted(Some(after), &mut more) {
            queue.clear();
            queue.extend(more);
        }
    }

    /// Round 0: the initial model, with the bytes that the start took.
    fn record_initial(
        &mut self,
        queue: &mut VecDeque<Action>,
        watcher: &mut dyn Watcher,
    ) -> Result<(), RunError> {
        let scores = self.scores(0)?.0;
        let (bytes_up, bytes_down) = self.traffic_since_last_row();
        self.rows.push(RoundRow {
            round: 0,
            stage: 0,
            cohort: Vec::new(),
            participants: Vec::new(),
            time: self.time,
            scores: Some(scores),
            bytes_up,
            bytes_down,
            rejected: 0,
        });
        if !watcher.round(0, self.scenario.algorithm.rounds, Some(&scores)) {
            self.interrupted = true;
            self.end_training(queue);
        }
        Ok(())
    }

    /// Goes on to the final heads. The round that had just opened never reaches a device.
    fn end_training(&mut self, queue: &mut VecDeque<Action>) {
        queue.retain(|action| !matches!(action, Action::Open(..)));
        self.due.fill(None);
        let mut more = Vec::new();
        self.engine.finish_training(0, &mut more);
        queue.extend(more.into_iter().filter(|action| !matches!(action, Action::Close(..))));
    }

    /// Those who answer next, by time: as many as the open round still waits for, of those that were asked.
    fn next_to_answer(&self) -> Vec<(f64, usize)> {
        let asked = self.due.iter().enumerate().filter_map(|(index, due)| Some(((*due)?, index)));
        // Who is not in a journal never answers.
        let mut asked: Vec<((f64, usize), usize)> = asked.filter(|((time, _), _)| time.is_finite()).collect();
        asked.sort_by(|((a, first), _), ((b, second), _)| a.total_cmp(b).then(first.cmp(second)));
        let wanted = self.engine.open_round().map_or(1, |round| {
            let answers = round.target.saturating_sub(round.participants.len());
            let samples = round.samples.map(|samples| samples.saturating_sub(round.counted_samples));
            // No fewer than these bring as many samples; whether more are needed shows when they are here.
            let fewest = samples.map(|samples| samples / self.largest.max(1));
            fewest.and_then(|n| usize::try_from(n).ok()).map_or(answers, |n| n.min(answers))
        });
        asked.truncate(wanted.max(1));
        asked.into_iter().map(|((time, _), index)| (time, index)).collect()
    }

    /// Lets every device take what waits for it, but for those whose turn has not come; in parallel, in portions
    /// that are worth a thread's while.
    fn pump(&mut self) {
        let portion = (self.devices.len() / 64).max(1);
        self.due.resize(self.devices.len(), None);
        let due = &self.due;
        self.devices.par_iter_mut().zip(due).with_min_len(portion).for_each(|(device, due)| {
            if due.is_none() {
                device.pump();
            }
        });
    }

    fn device(&mut self, id: u64) -> Option<&mut SimDevice> {
        usize::try_from(id).ok().and_then(|index| self.devices.get_mut(index))
    }

    fn traffic(&self) -> (u64, u64) {
        self.devices.iter().map(SimDevice::traffic).fold((0, 0), |(up, down), t| (up + t.up, down + t.down))
    }

    fn traffic_since_last_row(&mut self) -> (u64, u64) {
        let now = self.traffic();
        let before = std::mem::replace(&mut self.recorded, now);
        (now.0 - before.0, now.1 - before.1)
    }

    /// The figures after a round, all of them numbers.
    fn scores(&self, round: u32) -> Result<(Scores, Vec<ClientScore>), RunError> {
        if self.wanted == Wanted::Distance {
            let scores = evaluate::distance(self.dataset, self.engine.representation());
            check_finite(&scores, round)?;
            return Ok((scores, Vec::new()));
        }
        let algorithm = &self.scenario.algorithm;
        let (head, numeric) = (algorithm.final_head, algorithm.numeric);
        let (mut scores, clients) =
            evaluate::representation(self.dataset, self.engine.representation(), head, numeric);
        if let Some(w) = self.engine.shared_head() {
            let shared = evaluate::shared(&self.dataset.clients, self.engine.representation(), w);
            scores.accuracy_global = shared.accuracy;
            scores.loss = shared.loss;
            scores.test_mse = shared.test_mse.or(scores.test_mse);
        }
        check_finite(&scores, round)?;
        Ok((scores, clients))
    }

    /// Whether `[stop]` asks for the end; figures count where the round was evaluated.
    fn reached(&self, scores: Option<&Scores>) -> bool {
        let stop = &self.scenario.stop;
        let below =
            |value: Option<f64>, limit: Option<f64>| matches!((value, limit), (Some(v), Some(l)) if v <= l);
        let scores = scores.copied().unwrap_or_default();
        below(scores.distance, stop.distance)
            || below(scores.loss, stop.loss)
            || below(stop.accuracy, scores.accuracy)
            || below(stop.simulated_time, Some(self.time))
    }

    /// Newcomers join the finished campaign and fit their head through it, like any device.
    fn welcome_newcomers(&mut self) -> Result<Vec<ClientScore>, RunError> {
        let first = self.devices.len();
        self.connect(&self.dataset.newcomers)?;
        let mut actions = Vec::new();
        for id in first..self.devices.len() {
            self.handle(Event::Joined(id as u64), &mut actions);
        }
        self.until_finished(actions, &mut Unwatched)?;
        let shape = self.shape;
        let newcomers = self.devices.iter_mut().skip(first).zip(&self.dataset.newcomers);
        Ok(newcomers
            .map(|(device, client)| evaluate::score(device.session.task_mut(), client, shape))
            .collect())
    }
}
