//! Section `[stop]` of configuration files: criteria that end a campaign before its last round.

use std::ops::RangeInclusive;

use super::algorithm::AlgorithmSection;
use super::model::ModelSection;
use crate::reader::Problem;
use crate::reader::Section;

/// Settings of the section `[stop]`. Training ends when the first of these criteria is met, and at the latest
/// after `rounds` rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StopSection {
    /// Distance at or below which training ends.
    pub distance: Option<f64>,
    /// Accuracy at or above which training ends.
    pub accuracy: Option<f64>,
    /// Loss at or below which training ends.
    pub loss: Option<f64>,
    /// Simulated time at or after which training ends.
    pub simulated_time: Option<f64>,
    /// Change of the representation in a training round below which training ends: the sine of the largest
    /// principal angle between the representations before and after the round. A server can measure only this
    /// criterion.
    pub change: Option<f64>,
}

/// Range of `change`. Below the lower end, rounding errors alone would exceed the change.
const CHANGES: RangeInclusive<f64> = 1e-12..=1.0;

/// Reads the section `[stop]` of a scenario.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub fn read_stop(section: &Section<'_>) -> Result<StopSection, Problem> {
    let stop = StopSection {
        distance: section.optional_number("distance", 0.0..=1.0)?,
        accuracy: section.optional_number("accuracy", 0.0..=1.0)?,
        loss: section.optional_number("loss", 0.0..=f64::MAX)?,
        simulated_time: section.optional_number("simulated_time", 0.0..=f64::MAX)?,
        change: section.optional_number("change", CHANGES)?,
    };
    section.finish()?;
    Ok(stop)
}

/// Reads the section `[stop]` of a server: the change below which training ends. A server has no samples and
/// no ground truth, so it supports no other criterion.
///
/// # Errors
/// [`Problem`] for the first mistake, and for a criterion that only a simulation can measure.
pub fn read_server_stop(section: &Section<'_>) -> Result<Option<f64>, Problem> {
    for (key, why) in [
        ("distance", "only a simulation knows the true representation"),
        ("accuracy", "a server sees no samples, only a simulation does"),
        ("loss", "a server sees no samples, only a simulation does"),
        ("simulated_time", "only a simulation has such a clock"),
    ] {
        if section.has(key) {
            return Err(section.problem(key, format!("{why}; a server can stop by \"change\"")));
        }
    }
    let change = section.optional_number("change", CHANGES)?;
    section.finish()?;
    Ok(change)
}

/// Rejects criteria for heads with a learned prior, which is learned in the last rounds: a campaign that ends before has none.
///
/// # Errors
/// [`Problem`] for the first criterion that is set.
pub fn check_stop_of_prior(
    stop: &StopSection,
    algorithm: &AlgorithmSection,
    section: &Section<'_>,
) -> Result<(), Problem> {
    let StopSection { distance, accuracy, loss, simulated_time, change } = *stop;
    let criteria = [
        ("distance", distance),
        ("accuracy", accuracy),
        ("loss", loss),
        ("simulated_time", simulated_time),
        ("change", change),
    ];
    match criteria.into_iter().find_map(|(key, value)| Some((key, value?))) {
        Some((key, value)) if algorithm.learned_prior().is_some() => {
            let name = algorithm.name();
            let message = format!(
                "found {value}, but {name:?} has learned its prior only after its last round; leave it out"
            );
            Err(section.problem(key, message))
        }
        _ => Ok(()),
    }
}

/// Rejects the criterion `change` for a linear adapter, because its down-projection does not change in the
/// first round.
///
/// # Errors
/// [`Problem`] if the criterion is set.
pub fn check_change(change: Option<f64>, model: &ModelSection, section: &Section<'_>) -> Result<(), Problem> {
    match change {
        Some(change) if model.adapter => {
            let message =
                format!("found {change}, but only one factor of an adapter moves in a round; leave it out");
            Err(section.problem("change", message))
        }
        _ => Ok(()),
    }
}
