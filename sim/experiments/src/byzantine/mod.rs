//! Byzantine measurement: final distances under every combination of an attack, an attacking fraction of the
//! fleet, and an aggregation rule, over several seeds. `aggregator/POISON.md` defines the measurement.

pub mod design;
mod design_table;
mod table;

use std::sync::atomic::{AtomicBool, Ordering};

pub use design_table::markdown as design_markdown;
use fedspan_engine::config::Problem;
use serde::Serialize;
pub use table::markdown;

use fedspan_sim_core::evaluate::MetricSet;
use fedspan_sim_core::parallel;
use fedspan_sim_core::progress::Progress;
use fedspan_sim_core::run::{Job, NoProgress, RunError};
use fedspan_sim_core::scenario::Scenario;

/// Name of the measured built-in scenario.
pub const SCENARIO: &str = "byzantine";

/// Named attack, aggregation rule or dropout pattern, expressed as changes of the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Name in tables and on the command line.
    pub name: &'static str,
    /// Changes of the scenario.
    pub changes: &'static [&'static str],
}

/// Creates a variant.
const fn variant(name: &'static str, changes: &'static [&'static str]) -> Variant {
    Variant { name, changes }
}

/// Measured grid: one kind of upload, with the attacks and aggregation rules that apply to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    /// Name on the command line.
    pub name: &'static str,
    /// Changes of the scenario for the whole grid.
    pub changes: &'static [&'static str],
    /// Attacks of the grid.
    pub attacks: &'static [Variant],
    /// Aggregation rules of the grid.
    pub rules: &'static [Variant],
    /// Key that the fraction of the fleet sets.
    pub fraction_key: &'static str,
    /// Fractions of the fleet.
    pub fractions: &'static [f64],
}

/// Rules for vectors, as gradients are.
const VECTOR_RULES: &[Variant] = &[
    variant("mean", &["aggregation.rule=mean"]),
    variant("spectral filter", &["aggregation.rule=spectral-filter"]),
    variant("geometric median", &["aggregation.rule=geometric-median"]),
    variant("trimmed mean", &["aggregation.rule=trimmed-mean"]),
];

/// The grids: one for each kind of upload, one of attacks that know the rule or have time, and one of honest
/// minorities.
pub const GRIDS: [Grid; 4] = [
    Grid {
        name: "gradients",
        changes: &[],
        attacks: &[
            variant("sign x10", &["attack.kind=sign-flip", "attack.strength=10"]),
            variant("sign x1", &["attack.kind=sign-flip", "attack.strength=1"]),
            variant("IPM 0.5", &["attack.kind=inner-product", "attack.strength=0.5"]),
            variant("IPM 1.5", &["attack.kind=inner-product", "attack.strength=1.5"]),
            variant("IPM 5", &["attack.kind=inner-product", "attack.strength=5"]),
            variant("ALIE", &["attack={ kind = \"little-is-enough\" }"]),
            variant("ALIE 1.5", &["attack.kind=little-is-enough", "attack.strength=1.5"]),
            variant("Gauss x10", &["attack.kind=gaussian", "attack.strength=10"]),
            variant("scale 1e6", &["attack.kind=scale", "attack.strength=1e6"]),
            variant("mimic", &["attack={ kind = \"mimic\" }"]),
            variant("opposing", &["attack={ kind = \"opposing\" }"]),
            variant("opposing 0.3", &["attack.kind=opposing", "attack.strength=0.3"]),
            variant("opposing 0.1", &["attack.kind=opposing", "attack.strength=0.1"]),
            variant("opposing rank one", &["attack={ kind = \"opposing-rank-one\" }"]),
            variant("weak heads 1", &["attack.kind=opposing-rank-one", "attack.strength=1"]),
            variant("weak heads 2", &["attack.kind=opposing-rank-one", "attack.strength=2"]),
            variant("poisoned targets", &["attack.kind=poisoned-targets", "attack.strength=1"]),
            variant("NaN", &["attack={ kind = \"nan\" }"]),
            variant("Inf", &["attack={ kind = \"infinite\" }"]),
            variant("n_i = 1e9", &["attack={ kind = \"samples\" }", "algorithm.weighting=samples"]),
            variant(
                "sign x10 and n_i = 1e9",
                &[
                    "attack.kind=sign-flip",
                    "attack.strength=10",
                    "attack.samples=1000000000",
                    "algorithm.weighting=samples",
                ],
            ),
        ],
        rules: VECTOR_RULES,
        fraction_key: "attack.fraction",
        fractions: &[0.05, 0.1, 0.2],
    },
    Grid {
        name: "subspaces",
        changes: &["algorithm.send=representation"],
        attacks: &[
            variant("orthogonal plane", &["attack={ kind = \"orthogonal-plane\" }"]),
            variant("sign x10", &["attack.kind=sign-flip", "attack.strength=10"]),
            variant("IPM 1.5", &["attack.kind=inner-product", "attack.strength=1.5"]),
            variant("ALIE", &["attack={ kind = \"little-is-enough\" }"]),
            variant("mimic", &["attack={ kind = \"mimic\" }"]),
            variant("scale 1e6", &["attack.kind=scale", "attack.strength=1e6"]),
        ],
        rules: &[
            variant("mean", &["aggregation.rule=mean"]),
            variant("projector mean", &["aggregation.rule=projector-mean"]),
            variant("geometric median", &["aggregation.rule=geometric-median"]),
            variant("projector geometric median", &["aggregation.rule=projector-geometric-median"]),
        ],
        fraction_key: "attack.fraction",
        fractions: &[0.2, 0.4, 0.45],
    },
    Grid {
        name: "beyond",
        changes: &[],
        attacks: &[
            variant("search", &["attack={ kind = \"search\" }"]),
            variant("drift", &["attack={ kind = \"drift\" }"]),
        ],
        rules: VECTOR_RULES,
        fraction_key: "attack.fraction",
        fractions: &[0.1, 0.2],
    },
    Grid {
        name: "minorities",
        changes: &[],
        attacks: &[variant("honest minority", &["attack={}"])],
        rules: VECTOR_RULES,
        fraction_key: "data.minority",
        fractions: &[0.1, 0.2],
    },
];

/// Settings of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Measured grid, which fixes the kind of upload.
    pub grid: Grid,
    /// Measured attacks.
    pub attacks: Vec<Variant>,
    /// Measured aggregation rules.
    pub rules: Vec<Variant>,
    /// Fractions of the fleet that attack.
    pub fractions: Vec<f64>,
    /// Changes of the scenario that apply to every run.
    pub changes: Vec<String>,
    /// First seed.
    pub seed: u64,
    /// Number of seeds.
    pub seeds: u32,
    /// Number of runs that are computed in parallel.
    pub threads: usize,
}

/// Results of one attack by one fraction of the fleet. The first row of a grid has no attack.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Name of the attack, or "none" for the row without an attack.
    pub attack: &'static str,
    /// Fraction of the fleet that attacks.
    pub fraction: f64,
    /// Results under each aggregation rule.
    pub cells: Vec<Cell>,
}

/// Result of an attack under one aggregation rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// Name of the aggregation rule.
    pub rule: &'static str,
    /// Final distance from the true representation for each seed; 1 if the attack destroyed the model.
    pub distances: Vec<f64>,
    /// Number of rejected updates over all seeds.
    pub rejected: u64,
    /// Number of updates that attackers replaced, over all seeds.
    pub attacks: u64,
    /// Number of updates whose declared sample count was capped, over all seeds.
    pub capped: u64,
}

impl Cell {
    /// Median of the distances over seeds.
    #[must_use]
    pub fn median(&self) -> f64 {
        median(&self.distances)
    }

    /// Largest distance over the seeds; NaN counts as larger than any number.
    #[must_use]
    pub fn worst(&self) -> f64 {
        self.distances.iter().copied().max_by(f64::total_cmp).unwrap_or(f64::NAN)
    }
}

/// Median of distances; NaN without distances.
fn median(distances: &[f64]) -> f64 {
    let mut sorted = distances.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { (at(middle.wrapping_sub(1)) + at(middle)) / 2.0 } else { at(middle) }
}

/// Error that ends a measurement.
#[derive(Debug, thiserror::Error)]
pub enum ByzantineError {
    /// The changes do not fit the scenario.
    #[error(transparent)]
    Scenario(#[from] Problem),
    /// A run failed for another reason than a destroyed model.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// One run of the grid, with the row to which its result belongs.
struct Task {
    row: usize,
    scenario: Scenario,
    seed: u64,
}

/// Measures the grid. Returns `None` if `stop` was set before the end.
///
/// # Errors
/// [`ByzantineError::Scenario`] if the scenario rejects a change, [`ByzantineError::Run`] if a run fails.
pub fn measure(
    settings: &Settings,
    stop: &AtomicBool,
    progress: &dyn Progress,
) -> Result<Option<Vec<Row>>, ByzantineError> {
    let mut rows: Vec<(&'static str, f64, Option<&Variant>)> = vec![("none", 0.0, None)];
    for attack in &settings.attacks {
        rows.extend(settings.fractions.iter().map(|fraction| (attack.name, *fraction, Some(attack))));
    }
    let mut tasks = Vec::new();
    for (row, (_, fraction, attack)) in rows.iter().enumerate() {
        for rule in &settings.rules {
            let scenario = scenario(settings, *attack, *fraction, rule)?;
            for seed in (0..u64::from(settings.seeds)).map(|more| settings.seed + more) {
                tasks.push(Task { row, scenario: scenario.clone(), seed });
            }
        }
    }
    let total = tasks.len() as u64;
    let done = parallel::each(settings.threads, &tasks, |task| {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let measured = run_seed(&task.scenario, task.seed)?;
        progress.advance(1, total, rows.get(task.row).map_or("", |row| row.0));
        Ok::<_, RunError>(Some(measured))
    })?;
    let Some(done) = done else { return Ok(None) };
    let mut done = done.into_iter();
    let cell = |rule: &Variant, done: &mut dyn Iterator<Item = Measured>| {
        let mut cell = Cell { rule: rule.name, distances: Vec::new(), rejected: 0, attacks: 0, capped: 0 };
        for measured in done.take(settings.seeds as usize) {
            cell.distances.push(measured.distance);
            cell.rejected += measured.rejected;
            cell.attacks += measured.attacks;
            cell.capped += measured.capped;
        }
        cell
    };
    let rows = rows.iter().map(|(attack, fraction, _)| Row {
        attack,
        fraction: *fraction,
        cells: settings.rules.iter().map(|rule| cell(rule, &mut done)).collect(),
    });
    Ok(Some(rows.collect()))
}

/// Scenario of one cell: the built-in scenario with the changes of grid, attack and rule.
fn scenario(
    settings: &Settings,
    attack: Option<&Variant>,
    fraction: f64,
    rule: &Variant,
) -> Result<Scenario, Problem> {
    let mut changes: Vec<String> = Vec::new();
    let mut add = |more: &[&str]| changes.extend(more.iter().map(|change| (*change).to_owned()));
    add(settings.grid.changes);
    match attack {
        Some(attack) => {
            add(attack.changes);
            add(&[&format!("{}={fraction}", settings.grid.fraction_key)]);
        }
        None => add(&["attack={}"]),
    }
    add(rule.changes);
    changes.extend(settings.changes.iter().cloned());
    Scenario::parse(SCENARIO, Scenario::built_in(SCENARIO).unwrap_or_default(), &changes)
}

/// Results of one run.
struct Measured {
    distance: f64,
    rejected: u64,
    attacks: u64,
    capped: u64,
}

/// Runs a scenario with one seed. A model that the attack destroyed counts as distance 1.
fn run_seed(scenario: &Scenario, seed: u64) -> Result<Measured, RunError> {
    let job = Job::prepare(scenario, seed)?.with_metrics(MetricSet::Distance);
    match job.run(&mut NoProgress) {
        Ok(outcome) => {
            let counters = outcome.counters;
            Ok(Measured {
                distance: outcome.scores.distance.unwrap_or(f64::NAN),
                rejected: counters.rejected(),
                attacks: outcome.attacks,
                capped: counters.capped_samples + counters.capped_to_others,
            })
        }
        // A destroyed model is a result of the measurement, not an error.
        Err(RunError::Failed(_) | RunError::NotFinite { .. }) => {
            Ok(Measured { distance: 1.0, rejected: 0, attacks: 0, capped: 0 })
        }
        Err(error) => Err(error),
    }
}
