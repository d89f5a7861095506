//! The end of a run: those come who were not there, and all figures are put together.

use fedspan_engine::Event;
use fedspan_engine::linalg::orthonormal;

use super::Simulation;
use crate::evaluate::{self, ClientScore, Scores};
use crate::network::Joins;
use crate::run::{Named, Outcome, PrivacyFigures, RunError, Unwatched};

impl Simulation<'_> {
    /// Everyone's final figures, once training is over and final heads are fitted.
    pub(super) fn end(mut self) -> Result<Outcome, RunError> {
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
                let tuned = evaluate::as_they_are(&self.seen().clients, self.devices.as_slice());
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
        let newcomers_global = self
            .engine
            .shared_head()
            .map_or_else(Scores::default, |w| evaluate::shared(&self.seen().newcomers, &representation, w));
        let outcome = Outcome {
            named: Named::default(),
            rounds: self.rows,
            scores,
            clients,
            tuned,
            diverged: self.diverged,
            newcomers,
            newcomers_global,
            left_out: self.dataset.left_out,
            fits: None,
            warnings: Vec::new(),
            step_size: None,
            outputs: self.dataset.outputs,
            ridge: self.engine.chosen_ridge(),
            representation: basis,
            scale: self.engine.scale(),
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

    /// What all releases together have cost the records of each device.
    fn privacy(&self) -> Option<PrivacyFigures> {
        let delta = self.scenario.privacy?.delta;
        let (devices, epsilon) = self.engine.ledger().epsilons(delta);
        Some(PrivacyFigures { epsilon, delta: delta.get(), devices: devices.into_iter().collect() })
    }
}
