//! Scoring of the model during a simulation: after rounds that are to be evaluated, and when training ends.

use std::collections::VecDeque;
use std::sync::Arc;

use fedspan_engine::linalg::{Matrix, to_f32};
use fedspan_engine::{Action, Tensor};
use fedspan_protocol::message::HeadSolve;

use super::Simulation;
use crate::data::{Client, Dataset};
use crate::evaluate::{self, ClientScore, MetricSet, Scores};
use crate::fleet::FleetArithmetic;
use crate::run::{RoundRow, RunError, Watcher, check_finite};

/// Parts of a linear model that change while training, or afterwards with the choice of a ridge. Equal models have equal scores.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ScoredModel {
    representation: Matrix,
    shared_head: Option<Matrix>,
    /// Tensors of a learned prior; empty without one.
    prior: Vec<Tensor>,
    /// Solver of the clients' heads.
    head: HeadSolve,
}

impl Simulation<'_> {
    /// Records round 0: the scores of the initial model, and the bytes of the start rounds, which compute the
    /// initial representation.
    pub(super) fn record_initial(
        &mut self,
        queue: &mut VecDeque<Action>,
        watcher: &mut dyn Watcher,
    ) -> Result<(), RunError> {
        self.find_scale();
        let scored = self.scores_with_newcomers(0)?;
        let scores = scored.0;
        self.before_tuning = Some(scored).filter(|_| self.tunes_heads());
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

    /// Scales the data as devices do, if the campaign has found a scale.
    pub(super) fn find_scale(&mut self) {
        if let (None, Some(scale)) = (&self.scaled, self.engine.scale()) {
            let pooled = self.scenario.algorithm.power().is_some().then_some(self.scenario.model.target);
            self.scaled = Some(self.dataset.scaled(&scale, pooled));
            if let Some((_, honest)) = &mut self.attackers {
                *honest = honest.scaled(&scale, pooled);
            }
        }
    }

    /// Data on which the model is scored: the scaled data if the campaign has a scale.
    pub(super) fn scored_data(&self) -> &Dataset {
        self.scaled.as_ref().unwrap_or(self.dataset)
    }

    /// Scores networks before their heads are tuned, if the last round was not evaluated. After a divergence
    /// the previous scores are kept.
    pub(super) fn score_before_tuning(&mut self) -> Result<(), RunError> {
        let Some(row) = self.rows.last() else { return Ok(()) };
        if !self.tunes_heads() || self.before_tuning.is_some() || self.diverged.is_some() {
            return Ok(());
        }
        let scored = self.scores(row.round)?;
        if let Some(row) = self.rows.last_mut() {
            row.scores = Some(scored.0);
        }
        self.before_tuning = Some(scored);
        Ok(())
    }

    /// Computes the metrics after a round, with those of newcomers that would join now.
    pub(super) fn scores_with_newcomers(&self, round: u32) -> Result<(Scores, Vec<ClientScore>), RunError> {
        let (mut scores, clients) = self.scores(round)?;
        let newcomers = self.score_newcomers()?;
        scores.accuracy_new_clients = newcomers.accuracy;
        scores.test_mse_new_clients = newcomers.test_mse;
        check_finite(&scores, round)?;
        Ok((scores, clients))
    }

    /// Metrics of newcomers that would join now. Empty where each of them would train a network of its own, which takes as
    /// long as all rounds so far; those are scored at the end only.
    fn score_newcomers(&self) -> Result<Scores, RunError> {
        let trains_own =
            self.scenario.algorithm.network().is_some_and(|network| !network.method.has_body_for_newcomers());
        let is_scored =
            self.metrics == MetricSet::All && self.diverged.is_none() && self.replay.is_none() && !trains_own;
        let Some(opening) = self.engine.fit_broadcast().filter(|_| is_scored) else {
            return Ok(Scores::default());
        };
        let newcomers = &self.dataset.newcomers;
        Ok(evaluate::average(&self.devices.score_visitors(newcomers, &Arc::new(opening), self.shape)?))
    }

    /// Computes the metrics after a round and checks that they are finite.
    pub(super) fn scores(&self, round: u32) -> Result<(Scores, Vec<ClientScore>), RunError> {
        let dataset = self.attackers.as_ref().map_or(self.scored_data(), |(_, honest)| honest);
        if self.metrics == MetricSet::Distance {
            let scores = evaluate::distance(dataset, self.engine.representation());
            check_finite(&scores, round)?;
            return Ok((scores, Vec::new()));
        }
        let algorithm = &self.scenario.algorithm;
        // A diverged model is not scored; the previous metrics are kept.
        if let (Some(_), Some(before_tuning)) = (self.diverged, &self.before_tuning) {
            return Ok(before_tuning.clone());
        }
        if algorithm.learned_prior().is_some() {
            // The samples are not scaled here: the devices scale them.
            let clients = self.score_under_prior()?;
            let mut scores = evaluate::average(&clients);
            if algorithm.network().is_none() {
                scores.distance = evaluate::distance(dataset, self.engine.representation()).distance;
            }
            scores.accuracy_global = self.shared_scores(&dataset.clients).accuracy;
            check_finite(&scores, round)?;
            return Ok((scores, clients));
        }
        if let Some(network) = algorithm.network() {
            let devices: Vec<_> = self.devices.awake().collect();
            let tuning = network.tuned.then_some((algorithm.final_head, round));
            let clients =
                evaluate::score_shared_layers(&dataset.clients, &devices, &self.engine.tensors(), tuning);
            let scores = evaluate::average(&clients);
            check_finite(&scores, round)?;
            return Ok((scores, clients));
        }
        let (head, arithmetic) = (self.engine.final_head(), FleetArithmetic::of_scenario(self.scenario));
        let (mut scores, clients) = evaluate::representation(
            dataset,
            self.engine.representation(),
            algorithm.download,
            head,
            arithmetic,
        );
        if self.engine.shared_head().is_some() {
            let shared = self.shared_scores(&dataset.clients);
            scores.accuracy_global = shared.accuracy;
            scores.loss = shared.loss;
            scores.test_mse = shared.test_mse.or(scores.test_mse);
        }
        check_finite(&scores, round)?;
        Ok((scores, clients))
    }

    /// True if clients tune the heads of networks after training.
    pub(super) fn tunes_heads(&self) -> bool {
        self.scenario.algorithm.network_with_trained_heads().is_some()
    }

    /// Scores of the model that clients use without a sample of their own: the shared head, or the mean of a learned prior. Empty without
    /// one, and if the mean is zero. The samples are in the fleet's scale.
    pub(super) fn shared_scores(&self, clients: &[Client]) -> Scores {
        let decoded = |matrix| evaluate::decoded(matrix, self.scenario.algorithm.download);
        if let Some(w) = self.engine.shared_head() {
            return evaluate::shared(clients, &decoded(self.engine.representation()), &decoded(w));
        }
        let mean = self.engine.head_prior().map(|prior| prior.mean);
        let Some(mean) = mean.filter(|mean| mean.iter().any(|value| *value != 0.0)) else {
            return Scores::default();
        };
        let Some(network) = self.devices.network() else {
            return evaluate::shared(clients, &Matrix::identity(mean.nrows(), mean.nrows()), &mean);
        };
        let body = self.engine.tensors().into_iter().flat_map(|layer| layer.values);
        let parameters: Vec<f32> = body.chain(to_f32(&mean)).collect();
        evaluate::shared_network(network.shape, &parameters, clients)
    }

    /// Scores the clients with heads under the prior that is published now, on devices like their own.
    fn score_under_prior(&self) -> Result<Vec<ClientScore>, RunError> {
        let Some(opening) = self.engine.fit_broadcast() else { return Ok(Vec::new()) };
        let clients = &self.dataset.clients;
        let honest: Option<Vec<Client>> = self.attackers.as_ref().map(|(attackers, _)| {
            attackers.honest_numbers().iter().filter_map(|number| clients.get(*number).cloned()).collect()
        });
        self.devices.score_visitors(honest.as_ref().unwrap_or(clients), &Arc::new(opening), self.shape)
    }

    /// Linear model that would be scored now.
    pub(super) fn scored_model(&self) -> ScoredModel {
        ScoredModel {
            representation: self.engine.representation().clone(),
            shared_head: self.engine.shared_head().cloned(),
            prior: match self.scenario.algorithm.learned_prior() {
                Some(_) => {
                    self.engine.fit_broadcast().map_or_else(Vec::new, |opening| opening.request.tensors)
                }
                None => Vec::new(),
            },
            head: self.engine.final_head(),
        }
    }

    /// True if a condition of the section `[stop]` is met. Figures are compared only if the round was
    /// evaluated.
    pub(super) fn stop_reached(&self, scores: Option<&Scores>) -> bool {
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
