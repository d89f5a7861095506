//! End of a simulation: newcomers join and fit heads, and all metrics are collected.

use fedspan_engine::linalg::orthonormal;
use fedspan_engine::{DeviceId, Event, Millis};

use super::Simulation;
use crate::evaluate::{self, ClientScore, MetricSet};
use crate::network::JoinTime;
use crate::run::{DataNames, NoProgress, Outcome, PrivacyFigures, RunError};

impl Simulation<'_> {
    /// Computes the final metrics, after training and the final head fit.
    pub(super) fn finish(mut self) -> Result<Outcome, RunError> {
        let (fitted, trained) = (self.devices.traffic(), self.devices.last_traffic());
        let newcomers = match self.replay {
            Some(_) => Vec::new(),
            None if self.metrics == MetricSet::Distance => Vec::new(),
            None => self.fit_newcomers()?,
        };
        let traffic = self.devices.traffic();
        let network = self.scenario.algorithm.network();
        let representation = self.engine.representation().clone();
        let basis = network
            .is_none()
            .then(|| orthonormal(&representation).unwrap_or_else(|_| representation.clone()));
        let last = self.rows.last().map_or(0, |row| row.round);
        let (scores, clients, tuned) = match self.scenario.algorithm.network_with_trained_heads() {
            None => {
                let (scores, clients) = match self.last_scored.take() {
                    Some((model, scores, clients)) if model == self.scored_model() => {
                        (scores.without_new_clients(), clients)
                    }
                    _ => self.scores(last)?,
                };
                (scores, clients, Vec::new())
            }
            Some(network) => {
                let devices: Vec<_> = self.devices.awake().collect();
                let tuned = evaluate::score_own_networks(&self.scored_data().clients, &devices);
                let (scores, clients) = match self.before_tuning.take() {
                    Some((scores, clients)) if !network.tuned => (scores.without_new_clients(), clients),
                    _ => (evaluate::average(&tuned), tuned.clone()),
                };
                (scores, clients, tuned)
            }
        };
        // The last round has metrics even if the run ended early and the round was not evaluated. Heads of newcomers may
        // have another ridge than after the round: the one that the fleet has chosen since.
        if let Some(row) = self.rows.last_mut() {
            let new = evaluate::average(&newcomers);
            let last_scores = row.scores.get_or_insert(scores);
            last_scores.accuracy_new_clients = new.accuracy;
            last_scores.test_mse_new_clients = new.test_mse;
        }
        let privacy = self.privacy();
        let newcomers_global = self.shared_scores(&self.scored_data().newcomers);
        let count = self.dataset.clients.len();
        let honest = self.attackers.as_ref().map(|(attackers, _)| attackers.honest_numbers());
        let mut numbers = honest.unwrap_or_else(|| (0..count).collect());
        numbers.extend(count..count + newcomers.len());
        let energy = self.arrivals.energy.as_ref();
        let energy =
            energy.map_or_else(Vec::new, |meter| meter.devices(self.rows.last().map_or(0.0, |row| row.time)));
        let outcome = Outcome {
            names: DataNames::default(),
            rounds: self.rows,
            scores,
            clients,
            numbers,
            tuned,
            diverged: self.diverged,
            newcomers,
            newcomers_global,
            dropped_users: self.dataset.dropped_users,
            fits: None,
            warnings: Vec::new(),
            step_size: None,
            outputs: self.dataset.outputs,
            prior: self.engine.chosen_prior(),
            head_prior: self.engine.head_prior(),
            ridge: self.engine.chosen_ridge(),
            representation: basis,
            scale: self.engine.scale(),
            layers: if network.is_some() { self.engine.tensors() } else { Vec::new() },
            counters: self.engine.counters(),
            privacy,
            energy,
            updates: self.updates,
            bytes: trained,
            fit_bytes: (fitted.0 - trained.0, fitted.1 - trained.1),
            newcomer_bytes: (traffic.0 - fitted.0, traffic.1 - fitted.1),
            seconds: self.seconds,
            attacks: self.attackers.as_ref().map_or(0, |(attackers, _)| attackers.replaced()),
            interrupted: self.interrupted,
        };
        outcome.check_figures()?;
        Ok(outcome)
    }

    /// Connects the newcomers to the finished campaign, in which they fit their heads, and scores them.
    fn fit_newcomers(&mut self) -> Result<Vec<ClientScore>, RunError> {
        let first = self.devices.len();
        // Average number of training rounds in which a client participated.
        let rounds = self.updates.div_ceil((self.dataset.clients.len() as u64).max(1));
        let epochs_per_newcomer = self.scenario.algorithm.network().map_or(0, |network| network.epochs);
        let epochs = u16::try_from(rounds.saturating_mul(epochs_per_newcomer.into())).unwrap_or(u16::MAX);
        self.devices.connect(&self.dataset.newcomers, JoinTime::AfterTraining { epochs })?;
        let mut actions = Vec::new();
        for id in first..self.devices.len() {
            self.engine.handle(Millis::ZERO, Event::Joined(DeviceId(id as u64)), &mut actions);
        }
        self.run_until_finished(actions, &mut NoProgress)?;
        let shape = self.shape;
        let mut scores = Vec::with_capacity(self.dataset.newcomers.len());
        for (index, client) in (first..).zip(&self.dataset.newcomers) {
            let device = self.devices.wake(index)?;
            scores.push(evaluate::score_device(device.session.task_mut(), client, shape));
        }
        Ok(scores)
    }

    /// Privacy loss of all releases of each device; `None` if the scenario has no section `[privacy]`.
    fn privacy(&self) -> Option<PrivacyFigures> {
        let delta = self.scenario.privacy?.delta;
        let (devices, epsilon) = self.engine.ledger().epsilons(delta);
        Some(PrivacyFigures { epsilon, delta: delta.get(), devices: devices.into_iter().collect() })
    }
}
