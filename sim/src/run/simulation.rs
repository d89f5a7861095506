//! The loop: the engine's actions go to the devices, the devices' answers go back at the virtual time at
//! which they would arrive. Devices of a round compute in parallel; the engine hears them in order of
//! (time, device), so nothing depends on the number of threads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use fedspan_aggregator::connection::Inbound;
use fedspan_aggregator::engine::{
    Action, Engine, Event, Failure, Millis, NotCounted, Opening, Phase, RoundRecord,
};
use fedspan_aggregator::linalg::{Matrix, orthonormal};
use fedspan_client::memory::Shape;
use fedspan_protocol::message::{Ack, AckOutcome, Decline, DeclineReason, Rejection, ToDevice};

use super::arrivals::{Arrivals, Asked};
use super::attack::Attackers;
use super::devices::{Devices, gate};
use super::prepare::engine;
use super::recorded::Recording;
use super::times::Times;
use super::{
    Diverged, Outcome, PrivacyFigures, RECENT, RoundRow, RunError, Unwatched, Watcher, check_finite,
};
use crate::data::Dataset;
use crate::evaluate::{self, ClientScore, Scores, Wanted};
use crate::fleet::Build;
use crate::network::Joins;
use crate::noise::Seeds;
use crate::scenario::Scenario;

/// Engine clock ticks per unit of simulated time.
const TICKS: f64 = 1e6;

/// Times that a round which nobody answers is repeated where it is not only for dropouts.
const BARREN_MAX: u32 = 3;

/// One run in progress.
pub struct Simulation<'a> {
    scenario: &'a Scenario,
    dataset: &'a Dataset,
    seed: u64,
    given: Option<Matrix>,
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
        let engine = engine(scenario, dataset, seed, given.clone());
        let attackers = scenario.attack.map(|attack| Attackers::of(attack, dataset.clients.len(), seed));
        let build = Build::of(scenario, dataset, seed, Seeds::Foreseeable(seed))?;
        let gate = gate(scenario, &build, &engine);
        Ok(Self {
            scenario,
            dataset,
            seed,
            given,
            shape,
            engine,
            devices: Devices::new(build, seed, gate),
            arrivals: Arrivals::new(scenario, dataset, seed, build.frame_limit(), times),
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
        if !self.restarted(None, &mut actions) {
            self.join(&mut actions);
        }
        self.seconds += began.elapsed().as_secs_f64();
        let mut queue = VecDeque::from(actions);
        if !matches!(self.engine.phase(), Phase::Start(_)) {
            self.record_initial(&mut queue, watcher)?;
        }
        self.until_finished(queue.into(), watcher)?;
        let (fitted, trained) = (self.devices.traffic(), self.devices.traffic_told());
        let newcomers = match self.recording {
            Some(_) => Vec::new(),
            None => self.welcome_newcomers()?,
        };
        let all = self.devices.traffic();
        let network = self.scenario.algorithm.network;
        let representation = self.engine.representation().clone();
        let basis = network
            .is_none()
            .then(|| orthonormal(&representation).unwrap_or_else(|_| representation.clone()));
        let last = self.rows.last().map_or(0, |row| row.round);
        let (scores, clients, tuned) = match network {
            None => {
                let (scores, clients) = self.scores(last)?;
                (scores, clients, Vec::new())
            }
            Some(network) => {
                let tuned = evaluate::as_they_are(&self.dataset.clients, self.devices.as_slice());
                let (scores, clients) = match self.untuned.take() {
                    Some(untuned) if !network.tuned => untuned,
                    _ => (evaluate::average(&tuned), tuned.clone()),
                };
                (scores, clients, tuned)
            }
        };
        // A run that ended early ends with a row of figures, too.
        if let Some(row) = self.rows.last_mut() {
            row.scores.get_or_insert(scores);
        }
        let privacy = self.privacy();
        let outcome = Outcome {
            rounds: self.rows,
            scores,
            clients,
            tuned,
            diverged: self.diverged,
            newcomers,
            newcomers_global: self.engine.shared_head().map_or_else(Scores::default, |w| {
                evaluate::shared(&self.dataset.newcomers, &representation, w)
            }),
            outputs: self.dataset.outputs,
            representation: basis,
            layers: if network.is_some() { self.engine.tensors() } else { Vec::new() },
            counters: self.engine.counters(),
            privacy,
            updates: self.updates,
            bytes: trained,
            fit_bytes: (fitted.0 - trained.0, fitted.1 - trained.1),
            newcomer_bytes: (all.0 - fitted.0, all.1 - fitted.1),
            seconds: self.seconds,
            attacks: self.attackers.as_ref().map_or(0, |(attackers, _)| attackers.replaced()),
            interrupted: self.interrupted,
        };
        outcome.check_figures()?;
        Ok(outcome)
    }

    /// The engine's clock.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates after 10^13 units")]
    fn now(&self) -> Millis {
        (self.time * self.ticks) as u64
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

    /// If the server of the journal was restarted after this round (`None`: before the first): goes on from what the
    /// round left, as a server does. What had been opened since never was.
    fn restarted(&mut self, after: Option<&RoundRecord>, actions: &mut Vec<Action>) -> bool {
        let Some(recording) = &mut self.recording else { return false };
        let (last, _, state) = self.engine.snapshot();
        let (id, phase) = after.map_or((last, Phase::Waiting), |record| (record.id, record.phase));
        let Some(id) = recording.restarted(id) else { return false };
        self.engine = engine(self.scenario, self.dataset, self.seed, self.given.clone());
        self.engine.resume(id, phase, &state);
        self.arrivals.forget_all();
        for device in self.devices.iter_mut() {
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
        let arrivals = self.arrivals.next(self.engine.open_round());
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
                Inbound::Update(update) => Event::Update(id, update),
                Inbound::Unread(round) => Event::Unread(id, round),
                Inbound::Decline(decline) => {
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

    /// Nobody could answer the round: it is repeated, and has cost its time. Dropouts pass, other reasons may not.
    fn repeat(&mut self, actions: &mut Vec<Action>) -> Result<(), RunError> {
        let Some(at) = self.engine.wake() else { return Err(RunError::Silent) };
        if let Some((device, reason)) = self.refused.take() {
            self.barren += 1;
            if self.barren >= BARREN_MAX {
                let round = self.engine.snapshot().0.round;
                return Err(Failure::NoUpdates { round, device, reason }.into());
            }
        }
        self.engine.handle(at.max(self.now()), Event::Tick, actions);
        Ok(())
    }

    /// Asks a device.
    fn ask(&mut self, device: u64, opening: &Arc<Opening>) {
        let Ok(index) = usize::try_from(device) else { return };
        let trains = matches!(self.engine.phase(), Phase::Start(_) | Phase::Train(_));
        let asked = match &mut self.recording {
            Some(recording) => {
                let (at, place) = recording.due(device, opening.id.round);
                Asked { id: opening.id, at, place, lost: false }
            }
            None => self.arrivals.foresee(index, opening, self.time, trains),
        };
        if let Some(device) = self.devices.get(index) {
            self.arrivals.ask(index, asked);
            device.connection.open(opening);
        }
    }

    fn act(&mut self, actions: &mut Vec<Action>, watcher: &mut dyn Watcher) -> Result<(), RunError> {
        let mut queue: VecDeque<Action> = actions.drain(..).collect();
        while let Some(action) = queue.pop_front() {
            match action {
                Action::Acknowledge(device, ack) => {
                    if let AckOutcome::Rejected(reason) = ack.outcome {
                        if matches!(reason, Rejection::NormOverBound { .. } | Rejection::NonFinite) {
                            self.diverges(device, ack.id.round);
                        }
                        self.refused = Some((device, NotCounted::Rejected(reason)));
                    }
                    let index = usize::try_from(device).unwrap_or(usize::MAX);
                    if let Some(device) = self.devices.get(index) {
                        device.connection.send(ToDevice::Ack(ack));
                    }
                }
                Action::Open(device, opening) => self.ask(device, &opening),
                Action::Close(device, id) => {
                    let index = usize::try_from(device).unwrap_or(usize::MAX);
                    let unheard = self.arrivals.forget(index);
                    let recording = self.recording.as_ref();
                    let late = recording.is_some_and(|known| known.came_late(device, id.round));
                    let Some(device) = self.devices.get(index) else { continue };
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
                    (self.refused, self.barren) = (None, 0);
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
                    let evaluated =
                        last || self.is_recent(number) || number.is_multiple_of(self.scenario.evaluate_every);
                    let scored = if evaluated { Some(self.scores(number)?) } else { None };
                    let scores = scored.as_ref().map(|(scores, _)| *scores);
                    // Of what diverges the last scores are kept.
                    if self.diverged.is_none() {
                        self.untuned = scored.filter(|_| self.scenario.algorithm.network.is_some());
                    }
                    let (bytes_up, bytes_down) = self.devices.traffic_since();
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
                        if self.interrupted || self.diverged.is_some() || self.reached(scores.as_ref()) {
                            self.end_training(&mut queue)?;
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
        let scored = self.scores(0)?;
        let scores = scored.0;
        self.untuned = Some(scored).filter(|_| self.scenario.algorithm.network.is_some());
        let (bytes_up, bytes_down) = self.devices.traffic_since();
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
            self.end_training(queue)?;
        }
        Ok(())
    }

    /// The loss of a network's client is not finite any more, or as good as: training ends.
    fn diverges(&mut self, client: u64, round: u32) {
        if self.scenario.algorithm.network.is_some() && matches!(self.engine.phase(), Phase::Train(_)) {
            self.diverged.get_or_insert(Diverged { client, round });
        }
    }

    /// Networks are scored before their heads are tuned, wherever training ends: after a round that was not evaluated, as
    /// it is left. What has diverged is not: then it is as it was scored last.
    fn score_untuned(&mut self) -> Result<(), RunError> {
        let Some(row) = self.rows.last() else { return Ok(()) };
        if self.scenario.algorithm.network.is_none() || self.untuned.is_some() || self.diverged.is_some() {
            return Ok(());
        }
        let scored = self.scores(row.round)?;
        if let Some(row) = self.rows.last_mut() {
            row.scores = Some(scored.0);
        }
        self.untuned = Some(scored);
        Ok(())
    }

    /// Goes on to the final heads. The round that had just opened never reaches a device.
    fn end_training(&mut self, queue: &mut VecDeque<Action>) -> Result<(), RunError> {
        self.score_untuned()?;
        queue.retain(|action| !matches!(action, Action::Open(..)));
        self.arrivals.forget_all();
        let mut more = Vec::new();
        self.engine.finish_training(0, &mut more);
        queue.extend(more.into_iter().filter(|action| !matches!(action, Action::Close(..))));
        Ok(())
    }

    /// Lets devices take what waits for them, but for those whose turn has not come.
    fn pump(&mut self) {
        let arrivals = &self.arrivals;
        self.devices.pump(|index| arrivals.due(index).is_some());
    }

    /// Whether a round is among the last ten, whose mean accuracy is reported of networks.
    fn is_recent(&self, number: u32) -> bool {
        let algorithm = &self.scenario.algorithm;
        algorithm.network.is_some() && number.saturating_add(RECENT) > algorithm.rounds
    }

    /// The figures after a round, all of them numbers.
    fn scores(&self, round: u32) -> Result<(Scores, Vec<ClientScore>), RunError> {
        let dataset = self.attackers.as_ref().map_or(self.dataset, |(_, honest)| honest);
        if self.wanted == Wanted::Distance {
            let scores = evaluate::distance(dataset, self.engine.representation());
            check_finite(&scores, round)?;
            return Ok((scores, Vec::new()));
        }
        let algorithm = &self.scenario.algorithm;
        // Of what has diverged there is no figure.
        if let (Some(_), Some(untuned)) = (self.diverged, &self.untuned) {
            return Ok(untuned.clone());
        }
        if algorithm.network.is_some() {
            let devices = self.devices.as_slice();
            let clients = evaluate::with_networks(&dataset.clients, devices, &self.engine.tensors());
            let scores = evaluate::average(&clients);
            check_finite(&scores, round)?;
            return Ok((scores, clients));
        }
        let (head, numeric) = (algorithm.final_head, algorithm.numeric);
        let (mut scores, clients) =
            evaluate::representation(dataset, self.engine.representation(), head, numeric);
        if let Some(w) = self.engine.shared_head() {
            let shared = evaluate::shared(&dataset.clients, self.engine.representation(), w);
            scores.accuracy_global = shared.accuracy;
            scores.loss = shared.loss;
            scores.test_mse = shared.test_mse.or(scores.test_mse);
        }
        check_finite(&scores, round)?;
        Ok((scores, clients))
    }

    /// What all releases together have cost the records of each device.
    fn privacy(&self) -> Option<PrivacyFigures> {
        let delta = self.scenario.privacy?.delta;
        let (devices, epsilon) = self.engine.ledger().epsilons(delta);
        Some(PrivacyFigures { epsilon, delta: delta.get(), devices: devices.into_iter().collect() })
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
        // What the clients have had of a network's training, on average.
        let rounds = self.updates.div_ceil((self.dataset.clients.len() as u64).max(1));
        let each = self.scenario.algorithm.network.map_or(0, |network| network.epochs);
        let epochs = u16::try_from(rounds.saturating_mul(each.into())).unwrap_or(u16::MAX);
        self.devices.connect(&self.dataset.newcomers, Joins::AfterTraining { epochs })?;
        let mut actions = Vec::new();
        for id in first..self.devices.len() {
            self.engine.handle(0, Event::Joined(id as u64), &mut actions);
        }
        self.until_finished(actions, &mut Unwatched)?;
        let shape = self.shape;
        let newcomers = self.devices.iter_mut().skip(first).zip(&self.dataset.newcomers);
        Ok(newcomers
            .map(|(device, client)| evaluate::on_device(device.session.task_mut(), client, shape))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use fedspan_client::Task;

    use super::*;
    use crate::run::Job;

    const TEXT: &str = "[data]\nkind = \"linear-regression\"\nclients = 9\nd = 5\nk = 2\nsamples = 6\nfresh = true\n\
                        [model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 20\nstep_size = 0.2\n\
                        [fleet]\nspeed = \"exponential\"\ndropout = 0.4\n";

    fn heads(devices: &mut Devices) -> Vec<Vec<f32>> {
        devices.iter_mut().map(|device| device.session.task_mut().head().to_vec()).collect()
    }

    /// It does not hear of the round, and keeps the head it had; everyone else has a new one.
    #[test]
    fn who_drops_out_keeps_its_head() -> Result<(), RunError> {
        let scenario =
            Scenario::parse("my.toml", TEXT, &[]).map_err(|p| RunError::Mismatch(p.to_string()))?;
        let dataset = Job::prepare(&scenario, 3)?.dataset;
        let times = Times::of(&scenario, &dataset, 3)?;
        let mut run = Simulation::new(&scenario, &dataset, 3, None, times)?;
        run.devices.connect(&dataset.clients, Joins::First)?;
        let mut actions = Vec::new();
        for id in 0..9 {
            run.engine.handle(0, Event::Joined(id), &mut actions);
        }
        let mut lost = 0;
        loop {
            run.act(&mut actions, &mut Unwatched)?;
            if run.engine.phase() == Phase::FitHead {
                break;
            }
            let before = heads(&mut run.devices);
            let asked: Vec<bool> =
                (0..9).map(|i| run.arrivals.due(i).is_some_and(|asked| asked.lost)).collect();
            run.step(&mut actions, &mut Unwatched)?;
            for ((before, after), dropped) in before.iter().zip(heads(&mut run.devices)).zip(asked) {
                assert_eq!(*before == after, dropped);
                lost += u64::from(dropped);
            }
        }
        let heard: u64 = run.devices.iter_mut().map(|d| u64::from(d.session.counters().counted)).sum();
        assert_eq!((lost + heard, lost > 40), (20 * 9, true));
        Ok(())
    }
}
