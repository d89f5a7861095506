//! The Byzantine grid: attacks, each by several parts of the fleet, under several rules; figures over seeds.
//! `aggregator/POISON.md` says what is measured.

mod table;

use std::sync::atomic::{AtomicBool, Ordering};

use fedspan_engine::config::Problem;
use serde::Serialize;
pub use table::markdown;

use fedspan_sim_core::evaluate::MetricSet;
use fedspan_sim_core::parallel;
use fedspan_sim_core::progress::Progress;
use fedspan_sim_core::run::{Job, NoProgress, RunError};
use fedspan_sim_core::scenario::Scenario;

/// The scenario that is measured.
pub const SCENARIO: &str = "byzantine";

/// An attack or a rule: its name in tables, and what to change in the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// In tables and on the command line.
    pub name: &'static str,
    /// Changes of the scenario.
    pub changes: &'static [&'static str],
}

const fn choice(name: &'static str, changes: &'static [&'static str]) -> Choice {
    Choice { name, changes }
}

/// What a grid is made of: what devices upload, and which attacks and rules fit that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    /// On the command line.
    pub name: &'static str,
    /// Changes of the scenario for all of it.
    pub changes: &'static [&'static str],
    /// The attacks.
    pub attacks: &'static [Choice],
    /// The rules.
    pub rules: &'static [Choice],
    /// Parts of the fleet that attack.
    pub fractions: &'static [f64],
}

/// What devices upload, with what they can be attacked by and what withstands it.
pub const GRIDS: [Grid; 2] = [
    Grid {
        name: "gradients",
        changes: &[],
        attacks: &[
            choice("sign x10", &["attack.kind=sign-flip", "attack.strength=10"]),
            choice("IPM 0.5", &["attack.kind=inner-product", "attack.strength=0.5"]),
            choice("IPM 1.5", &["attack.kind=inner-product", "attack.strength=1.5"]),
            choice("ALIE", &["attack={ kind = \"little-is-enough\" }"]),
            choice("ALIE 1.5", &["attack.kind=little-is-enough", "attack.strength=1.5"]),
            choice("Gauss x10", &["attack.kind=gaussian", "attack.strength=10"]),
            choice("scale 1e6", &["attack.kind=scale", "attack.strength=1e6"]),
            choice("mimic", &["attack={ kind = \"mimic\" }"]),
            choice("NaN", &["attack={ kind = \"nan\" }"]),
            choice("Inf", &["attack={ kind = \"infinite\" }"]),
            choice("n_i = 1e9", &["attack={ kind = \"samples\" }", "algorithm.weighting=samples"]),
            choice(
                "sign x10 and n_i = 1e9",
                &[
                    "attack.kind=sign-flip",
                    "attack.strength=10",
                    "attack.samples=1000000000",
                    "algorithm.weighting=samples",
                ],
            ),
        ],
        rules: &[
            choice("mean", &["aggregation.rule=mean"]),
            choice("geometric median", &["aggregation.rule=geometric-median"]),
            choice("trimmed mean", &["aggregation.rule=trimmed-mean"]),
        ],
        fractions: &[0.05, 0.1, 0.2],
    },
    Grid {
        name: "subspaces",
        changes: &["algorithm.send=representation"],
        attacks: &[
            choice("orthogonal plane", &["attack={ kind = \"orthogonal-plane\" }"]),
            choice("sign x10", &["attack.kind=sign-flip", "attack.strength=10"]),
            choice("IPM 1.5", &["attack.kind=inner-product", "attack.strength=1.5"]),
            choice("ALIE", &["attack={ kind = \"little-is-enough\" }"]),
            choice("mimic", &["attack={ kind = \"mimic\" }"]),
            choice("scale 1e6", &["attack.kind=scale", "attack.strength=1e6"]),
        ],
        rules: &[
            choice("mean", &["aggregation.rule=mean"]),
            choice("projector mean", &["aggregation.rule=projector-mean"]),
            choice("geometric median", &["aggregation.rule=geometric-median"]),
            choice("projector geometric median", &["aggregation.rule=projector-geometric-median"]),
        ],
        fractions: &[0.2, 0.4, 0.45],
    },
];

/// What to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Of what is uploaded.
    pub grid: Grid,
    /// The attacks.
    pub attacks: Vec<Choice>,
    /// The rules.
    pub rules: Vec<Choice>,
    /// Parts of the fleet that attack.
    pub fractions: Vec<f64>,
    /// Changes of the scenario besides.
    pub changes: Vec<String>,
    /// The first seed.
    pub seed: u64,
    /// How many.
    pub seeds: u32,
    /// Runs at once.
    pub threads: usize,
}

/// One attack by one part of the fleet; the first rows are those without any.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The attack's name, "none" without.
    pub attack: &'static str,
    /// Part of the fleet.
    pub fraction: f64,
    /// By rule.
    pub cells: Vec<Cell>,
}

/// What came of an attack under a rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The rule's name.
    pub rule: &'static str,
    /// The final distance of each seed; 1 where no representation was left.
    pub distances: Vec<f64>,
    /// Updates that were rejected, of all seeds.
    pub rejected: u64,
    /// Updates that attackers replaced, of all seeds.
    pub attacks: u64,
    /// Updates whose declared samples counted for less, of all seeds.
    pub capped: u64,
}

impl Cell {
    /// The median over seeds.
    #[must_use]
    pub fn median(&self) -> f64 {
        let mut sorted = self.distances.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let middle = sorted.len() / 2;
        if sorted.len().is_multiple_of(2) {
            (at(middle.wrapping_sub(1)) + at(middle)) / 2.0
        } else {
            at(middle)
        }
    }

    /// The worst seed; no number is worse than any.
    #[must_use]
    pub fn worst(&self) -> f64 {
        self.distances.iter().copied().max_by(f64::total_cmp).unwrap_or(f64::NAN)
    }
}

/// A grid that cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum ByzantineError {
    /// The changes do not fit the scenario.
    #[error(transparent)]
    Scenario(#[from] Problem),
    /// A run failed where none may.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// One run of the grid.
struct Task {
    row: usize,
    scenario: Scenario,
    seed: u64,
}

/// Measures the grid. `None` if it was stopped.
///
/// # Errors
/// [`ByzantineError`].
pub fn measure(
    settings: &Settings,
    stop: &AtomicBool,
    progress: &dyn Progress,
) -> Result<Option<Vec<Row>>, ByzantineError> {
    let mut rows: Vec<(&'static str, f64, Option<&Choice>)> = vec![("none", 0.0, None)];
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
    let of = tasks.len() as u64;
    let done = parallel::each(settings.threads, &tasks, |task| {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let measured = one(&task.scenario, task.seed)?;
        progress.advance(1, of, rows.get(task.row).map_or("", |row| row.0));
        Ok::<_, RunError>(Some(measured))
    })?;
    let Some(done) = done else { return Ok(None) };
    let mut done = done.into_iter();
    let cell = |rule: &Choice, done: &mut dyn Iterator<Item = Measured>| {
        let mut cell = Cell { rule: rule.name, distances: Vec::new(), rejected: 0, attacks: 0, capped: 0 };
        for one in done.take(settings.seeds as usize) {
            cell.distances.push(one.distance);
            cell.rejected += one.rejected;
            cell.attacks += one.attacks;
            cell.capped += one.capped;
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

/// The scenario of a cell.
fn scenario(
    settings: &Settings,
    attack: Option<&Choice>,
    fraction: f64,
    rule: &Choice,
) -> Result<Scenario, Problem> {
    let mut changes: Vec<String> = Vec::new();
    let mut add = |more: &[&str]| changes.extend(more.iter().map(|change| (*change).to_owned()));
    add(settings.grid.changes);
    match attack {
        Some(attack) => {
            add(attack.changes);
            add(&[&format!("attack.fraction={fraction}")]);
        }
        None => add(&["attack={}"]),
    }
    add(rule.changes);
    changes.extend(settings.changes.iter().cloned());
    Scenario::parse(SCENARIO, Scenario::built_in(SCENARIO).unwrap_or_default(), &changes)
}

/// What one run gives.
struct Measured {
    distance: f64,
    rejected: u64,
    attacks: u64,
    capped: u64,
}

fn one(scenario: &Scenario, seed: u64) -> Result<Measured, RunError> {
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
        // The model is lost, which is what the grid is to show.
        Err(RunError::Failed(_) | RunError::NotFinite { .. }) => {
            Ok(Measured { distance: 1.0, rejected: 0, attacks: 0, capped: 0 })
        }
        Err(error) => Err(error),
    }
}
