//! Saving and continuing a simulation between two rounds.

use std::collections::VecDeque;
use std::time::Instant;

use fedspan_engine::{Action, Phase};

use super::Simulation;
use crate::run::saved_run::SavedRun;
use crate::run::{Outcome, RunError, Watcher};

impl Simulation<'_> {
    /// Copies the state of the run, if the policy has a whole state. Must be called when a round has been committed, before
    /// the next round is sent.
    fn saved(&self, is_stopped: bool) -> Result<Option<SavedRun>, RunError> {
        let Some(engine) = self.engine.snapshot() else { return Ok(None) };
        Ok(Some(SavedRun {
            scenario: self.scenario.name.clone(),
            text: self.scenario.resolved(self.seed),
            seed: self.seed,
            files: self.dataset.files.clone(),
            engine,
            devices: self.devices.saved()?,
            rows: self.rows.clone(),
            time: self.time,
            updates: self.updates,
            attacks: self.attackers.as_ref().map_or(0, |(attackers, _)| attackers.replaced()),
            traffic: self.devices.last_traffic(),
            energy: self.arrivals.energy.as_ref().map_or_else(Vec::new, |meter| meter.usages().to_vec()),
            seconds: self.seconds,
            is_stopped,
        }))
    }

    /// Continues a saved run to its end and returns the results.
    ///
    /// # Errors
    /// [`RunError::Mismatch`] if the state belongs to another scenario, and the errors of [`Self::run`].
    pub fn resume(mut self, saved: &SavedRun, watcher: &mut dyn Watcher) -> Result<Outcome, RunError> {
        let began = Instant::now();
        let mut actions = Vec::new();
        self.time = saved.time;
        self.devices.restore(&self.dataset.clients, &saved.devices, saved.traffic)?;
        if !self.engine.restore_snapshot(self.now(), &saved.engine, &mut actions) {
            return Err(RunError::Mismatch("the saved run belongs to another scenario".to_owned()));
        }
        self.rows.clone_from(&saved.rows);
        self.updates = saved.updates;
        if let Some(meter) = &mut self.arrivals.energy {
            meter.restore(&saved.energy);
        }
        if let Some((attackers, _)) = &mut self.attackers {
            attackers.continue_from(saved.attacks);
        }
        self.find_scale();
        self.seconds = saved.seconds + began.elapsed().as_secs_f64();
        if saved.is_stopped {
            let mut queue = VecDeque::from(actions);
            self.end_training(&mut queue)?;
            actions = queue.into();
        } else if !matches!(self.engine.phase(), Phase::Train(_)) {
            self.score_before_tuning()?;
        }
        self.run_until_finished(actions, watcher)?;
        self.finish()
    }

    /// Passes the state of the run to the watcher, if the watcher wants it.
    pub(super) fn offer_state(
        &self,
        is_last: bool,
        is_stopped: bool,
        queue: &VecDeque<Action>,
        watcher: &mut dyn Watcher,
    ) -> Result<(), RunError> {
        debug_assert!(
            !queue.iter().any(|action| matches!(action, Action::Acknowledge(..) | Action::Close(..))),
            "all frames of the committed round are delivered"
        );
        let is_kept = self.diverged.is_none() && self.replay.is_none() && watcher.wants_state(is_last);
        if is_kept && let Some(state) = self.saved(is_stopped)? {
            watcher.keep_state(state);
        }
        Ok(())
    }
}
