//! Builder of a simulation: sets the seed and the observer of a run, and replaces the algorithm,
//! participation policy or aggregation rule of the scenario.

use std::borrow::Cow;
use std::fmt;

use fedspan_engine::CustomParts;
use fedspan_engine::aggregate::Rule;
use fedspan_engine::algorithm::Algorithm;
use fedspan_engine::participation::Participation;

use super::{Job, NoProgress, Outcome, RunError, Watcher};
use crate::scenario::Scenario;

/// Simulation of a scenario, which is configured by the builder from [`Self::builder`].
#[derive(Clone, Copy, Debug)]
pub struct Simulation;

impl Simulation {
    /// Creates the builder of a simulation of a scenario; [`SimulationBuilder::run`] runs the simulation.
    pub fn builder(scenario: &Scenario) -> SimulationBuilder<'_> {
        SimulationBuilder { scenario, seed: scenario.seed, custom: CustomParts::default(), watcher: None }
    }
}

/// Builder of a simulation. Defaults are the algorithm, policy, rule and seed of the scenario, and no
/// observer.
#[must_use]
pub struct SimulationBuilder<'a> {
    scenario: &'a Scenario,
    seed: u64,
    custom: CustomParts,
    watcher: Option<&'a mut dyn Watcher>,
}

impl fmt::Debug for SimulationBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario, seed, custom, watcher: _ } = self;
        f.debug_struct("SimulationBuilder")
            .field("scenario", scenario)
            .field("seed", seed)
            .field("custom", custom)
            .finish_non_exhaustive()
    }
}

impl<'a> SimulationBuilder<'a> {
    /// Sets the seed of all random choices. The same scenario and seed give the same bits.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Replaces the algorithm; see [`CustomParts::with_algorithm`]. Devices run the client for the scenario's
    /// model, so only tasks of this client are available. The number of rounds and the final heads are those
    /// of the scenario.
    pub fn algorithm(self, name: impl Into<String>, algorithm: Box<dyn Algorithm>) -> Self {
        Self { custom: self.custom.with_algorithm(name, algorithm), ..self }
    }

    /// Replaces the participation policy; see [`CustomParts::with_participation`].
    pub fn participation(self, name: impl Into<String>, participation: Box<dyn Participation>) -> Self {
        Self { custom: self.custom.with_participation(name, participation), ..self }
    }

    /// Replaces the aggregation rule by another rule of FedSpan or by a [`Rule::custom`]. Not allowed
    /// together with [`Self::algorithm`], because a custom algorithm aggregates updates itself.
    pub fn rule(self, rule: Rule) -> Self {
        Self { custom: self.custom.with_rule(rule), ..self }
    }

    /// Sets the observer, which is called after each round and can end the run.
    pub fn watcher(self, watcher: &'a mut dyn Watcher) -> Self {
        Self { watcher: Some(watcher), ..self }
    }

    /// Generates or reads the data and runs the simulation.
    ///
    /// # Errors
    /// [`RunError`] if the data cannot be used, data or custom parts do not fit the scenario, or the campaign
    /// fails.
    pub fn run(self) -> Result<Outcome, RunError> {
        let Self { scenario, seed, custom, watcher } = self;
        let scenario = match custom.rule() {
            Some(rule) => {
                let scenario_with_rule = scenario.clone().with_rule(rule);
                Cow::Owned(scenario_with_rule.map_err(|problem| RunError::Mismatch(problem.to_string()))?)
            }
            None => Cow::Borrowed(scenario),
        };
        Job::prepare(&scenario, seed)?.run_custom(custom, watcher.unwrap_or(&mut NoProgress))
    }
}
