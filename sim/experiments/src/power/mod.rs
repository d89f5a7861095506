//! FedPower measurement: distance after each exchange, over many seeds of the noise, for a base setting and
//! for settings that differ from it in one parameter each. `PRIVATE.md` defines the measurement.

mod case;
mod grams;
mod table;

use std::sync::atomic::{AtomicBool, Ordering};

pub use case::{Case, CaseError, PrivacyTarget};
use fedspan_engine::privacy::fedpower::Calibration;
pub use grams::Grams;
use serde::Serialize;
pub use table::markdown;

use fedspan_sim_core::parallel;
use fedspan_sim_core::progress::Progress;

/// Name of the built-in scenario that is measured by default.
pub const SCENARIO: &str = "fedpower";

/// Error that ends a measurement.
#[derive(Debug, thiserror::Error)]
pub enum PowerError {
    /// The data cannot be used.
    #[error(transparent)]
    Data(#[from] fedspan_sim_core::data::DataError),
    /// A setting cannot be run.
    #[error(transparent)]
    Case(#[from] CaseError),
}

/// Settings of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Base setting. Each measured setting differs from it in one parameter.
    pub base: Case,
    /// Measured numbers of local iterations p.
    pub local_steps: Vec<u16>,
    /// Measured values of epsilon; delta is that of the base setting.
    pub epsilons: Vec<f64>,
    /// Measured participation ratios K / m.
    pub participation: Vec<f64>,
    /// Measured noise calibrations; `None` stands for runs without noise.
    pub calibrations: Vec<Option<Calibration>>,
    /// First seed.
    pub seed: u64,
    /// Number of seeds.
    pub seeds: u32,
    /// Number of runs that are computed in parallel.
    pub threads: usize,
}

/// Results of one setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Name of the setting, which contains the parameter that differs from the base setting.
    pub name: String,
    /// Measured setting.
    pub case: Case,
    /// Standard deviation of the noise in the product of one record; `None` without noise.
    pub noise: Option<f64>,
    /// Total number of iterations after each exchange.
    pub at: Vec<u16>,
    /// Distances at the start and after each exchange, one vector for each seed.
    pub distances: Vec<Vec<f64>>,
}

/// Median and quartiles of a set of distances.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quartiles {
    /// Lower quartile.
    pub q25: f64,
    /// Median.
    pub median: f64,
    /// Upper quartile.
    pub q75: f64,
}

impl Row {
    /// Quartiles over the seeds of the distance after the given number of exchanges.
    #[must_use]
    pub fn after(&self, exchanges: usize) -> Quartiles {
        let mut sorted: Vec<f64> =
            self.distances.iter().map(|run| run.get(exchanges).copied().unwrap_or(f64::NAN)).collect();
        sorted.sort_by(f64::total_cmp);
        Quartiles {
            q25: quantile(&sorted, 0.25),
            median: quantile(&sorted, 0.5),
            q75: quantile(&sorted, 0.75),
        }
    }

    /// Quartiles over the seeds of the distance after the last exchange.
    #[must_use]
    pub fn last(&self) -> Quartiles {
        self.after(self.at.len())
    }
}

/// Quantile of sorted values, by linear interpolation between the two nearest values.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let position = part * sorted.len().saturating_sub(1) as f64;
    let value = |index: f64| sorted.get(index as usize).copied().unwrap_or(f64::NAN);
    let low = value(position.floor());
    low + (value(position.ceil()) - low) * (position - position.floor())
}

/// Measured settings with their names: for each calibration the base setting, and settings that differ from
/// it in one parameter. Equal settings occur only once.
fn cases(settings: &Settings) -> Vec<(String, Case)> {
    let base = settings.base;
    let mut cases: Vec<(String, Case)> = Vec::new();
    let mut add = |name: String, case: Case| {
        if cases.iter().all(|(_, added)| *added != case) {
            cases.push((name, case));
        }
    };
    for &calibration in &settings.calibrations {
        let target = |epsilon| Some(PrivacyTarget { epsilon, calibration: calibration?, ..base.privacy? });
        let label = calibration.map_or("no noise", Calibration::as_str);
        let base = Case { privacy: base.privacy.and_then(|privacy| target(privacy.epsilon)), ..base };
        for &local_steps in &settings.local_steps {
            add(format!("{label}, p = {local_steps}"), Case { local_steps, ..base });
        }
        for &epsilon in settings.epsilons.iter().filter(|_| calibration.is_some()) {
            add(format!("{label}, epsilon = {epsilon}"), Case { privacy: target(epsilon), ..base });
        }
        for &participation in &settings.participation {
            add(format!("{label}, K/m = {participation}"), Case { participation, ..base });
        }
        let without_procrustes = Case { procrustes: !base.procrustes, ..base };
        let with_or_without = if without_procrustes.procrustes { "with" } else { "without" };
        add(format!("{label}, {with_or_without} Procrustes"), without_procrustes);
        add(format!("{label}, one shot"), Case { one_shot: true, ..base });
    }
    cases
}

/// Measures all settings. Returns `None` if `stop` was set before the end.
///
/// # Errors
/// [`PowerError::Case`] if a setting cannot be run.
pub fn measure(
    fleet: &Grams,
    settings: &Settings,
    stop: &AtomicBool,
    progress: &dyn Progress,
) -> Result<Option<Vec<Row>>, PowerError> {
    let cases = cases(settings);
    let tasks: Vec<(usize, u64)> = (0..cases.len())
        .flat_map(|case| (0..u64::from(settings.seeds)).map(move |offset| (case, settings.seed + offset)))
        .collect();
    let total = tasks.len() as u64;
    let results = parallel::each(settings.threads, &tasks, |(index, seed)| {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let Some((name, case)) = cases.get(*index) else { return Ok(None) };
        let distances = case.run(fleet, *seed)?;
        progress.advance(1, total, name);
        Ok::<_, CaseError>(Some(distances))
    })?;
    let Some(results) = results else { return Ok(None) };
    let mut results = results.into_iter();
    let mut rows = Vec::new();
    for (name, case) in cases {
        let distances: Vec<Vec<f64>> = results.by_ref().take(settings.seeds as usize).collect();
        let noise = case.noise().map_err(CaseError::from)?;
        rows.push(Row { name, case, noise, at: case.at(), distances });
    }
    Ok(Some(rows))
}
