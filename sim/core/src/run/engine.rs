//! Construction of the aggregation engine for a run, and conversion of simulated time to the engine's clock.

use fedspan_engine::config::build_custom_engine;
use fedspan_engine::linalg::Matrix;
use fedspan_engine::{CustomParts, Engine, Millis, Settings};

use crate::data::Dataset;
use crate::scenario::Scenario;

/// Ticks of the engine's clock per unit of simulated time.
pub const TICKS: f64 = 1e6;

/// Builds the engine of a scenario in the same way as a server does. `initial` is the initial representation,
/// if the scenario provides one.
#[must_use]
pub fn engine(scenario: &Scenario, dataset: &Dataset, seed: u64, initial: Option<Matrix>) -> Engine {
    custom_engine(scenario, dataset, seed, initial, CustomParts::default())
}

/// Builds the engine of a scenario with a custom algorithm, policy or rule.
pub(super) fn custom_engine(
    scenario: &Scenario,
    dataset: &Dataset,
    seed: u64,
    given: Option<Matrix>,
    custom: CustomParts,
) -> Engine {
    let settings = Settings {
        fleet_size: dataset.clients.len(),
        first_device: 0,
        rounds: scenario.algorithm.rounds,
        final_head: scenario.algorithm.final_head,
        deadline: scenario.deadline.map(|deadline| ticks(deadline, TICKS)),
        min_count: 1,
        every: None,
        norm_bound: scenario.norm,
        samples: scenario.samples,
        absence: Millis::ZERO,
        // A device that dropped out is available again in the next round.
        retry_delay: (scenario.fleet.dropout > 0.0).then_some(Millis::ZERO),
        patience: None,
        stop_change: scenario.stop.change,
    };
    build_custom_engine(
        settings,
        dataset.sizes(),
        &scenario.model,
        &scenario.algorithm,
        scenario.rule,
        scenario.participation,
        1.0,
        seed,
        given,
        custom,
    )
    .with_scale(&scenario.scale, dataset.features)
}

/// Converts a simulated time to the engine's clock, which has `ticks` ticks per unit of simulated time.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates after 10^13 units")]
pub fn ticks(time: f64, ticks: f64) -> Millis {
    Millis::new((time * ticks) as u64)
}
