//! When models are scored, and which: after rounds that are evaluated, and wherever training ends.

use std::collections::VecDeque;

use fedspan_engine::{Action, Phase};

use super::Simulation;
use crate::data::Dataset;
use crate::evaluate::{self, ClientScore, Scores, Wanted};
use crate::run::{Diverged, RECENT, RoundRow, RunError, Watcher, check_finite};

impl Simulation<'_> {
    /// Round 0: the initial model, with the bytes that the start took.
    pub(super) fn record_initial(
        &mut self,
        queue: &mut VecDeque<Action>,
        watcher: &mut dyn Watcher,
    ) -> Result<(), RunError> {
        self.find_scale();
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
            interference: None,
        });
        if !watcher.round(0, self.scenario.algorithm.rounds, Some(&scores)) {
            self.interrupted = true;
            self.end_training(queue)?;
        }
        Ok(())
    }

    /// Data as devices see them, once the campaign has a scale: models are about those.
    fn find_scale(&mut self) {
        if let (None, Some(scale)) = (&self.scaled, self.engine.scale()) {
            let pooled = self.scenario.algorithm.power.is_some().then_some(self.scenario.model.target);
            self.scaled = Some(self.dataset.scaled(&scale, pooled));
            if let Some((_, honest)) = &mut self.attackers {
                *honest = honest.scaled(&scale, pooled);
            }
        }
    }

    /// The data that models are about.
    pub(super) fn seen(&self) -> &Dataset {
        self.scaled.as_ref().unwrap_or(self.dataset)
    }

    /// The loss of a network's client is not finite any more, or as good as: training ends.
    pub(super) fn diverges(&mut self, client: u64, round: u32) {
        if self.scenario.algorithm.network.is_some() && matches!(self.engine.phase(), Phase::Train(_)) {
            self.diverged.get_or_insert(Diverged { client, round });
        }
    }

    /// Networks are scored before their heads are tuned, wherever training ends: after a round that was not evaluated, as
    /// it is left. What has diverged is not: then it is as it was scored last.
    pub(super) fn score_untuned(&mut self) -> Result<(), RunError> {
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

    /// Whether a round is among the last ten, whose mean accuracy is reported of networks.
    pub(super) fn is_recent(&self, number: u32) -> bool {
        let algorithm = &self.scenario.algorithm;
        algorithm.network.is_some() && number.saturating_add(RECENT) > algorithm.rounds
    }

    /// The figures after a round, all of them numbers.
    pub(super) fn scores(&self, round: u32) -> Result<(Scores, Vec<ClientScore>), RunError> {
        let dataset = self.attackers.as_ref().map_or(self.seen(), |(_, honest)| honest);
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
        if let Some(network) = algorithm.network {
            let devices = self.devices.as_slice();
            let tuning = network.tuned.then_some((algorithm.final_head, round));
            let clients = evaluate::with_networks(&dataset.clients, devices, &self.engine.tensors(), tuning);
            let scores = evaluate::average(&clients);
            check_finite(&scores, round)?;
            return Ok((scores, clients));
        }
        let (head, numeric) = (self.engine.final_head(), algorithm.numeric);
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

    /// Whether `[stop]` asks for the end; figures count where the round was evaluated.
    pub(super) fn reached(&self, scores: Option<&Scores>) -> bool {
        let stop = &self.scenario.stop;
        let below =
            |value: Option<f64>, limit: Option<f64>| matches!((value, limit), (Some(v), Some(l)) if v <= l);
        let scores = scores.copied().unwrap_or_default();
        below(scores.distance, stop.distance)
            || below(scores.loss, stop.loss)
            || below(stop.accuracy, scores.accuracy)
            || below(stop.simulated_time, Some(self.time))
    }
}
