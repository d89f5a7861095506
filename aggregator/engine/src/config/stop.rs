//! The section `[stop]`: criteria that end a campaign before its last round.

use std::ops::RangeInclusive;

use super::model::ModelSection;
use crate::reader::Problem;
use crate::reader::Section;

/// Section `[stop]`: a campaign ends early when the first of these is met; `rounds` always bounds it.
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
    /// Change of the representation in a training round below which training ends (sine of the largest
    /// principal angle between before and after); the only criterion that a server can measure.
    pub change: Option<f64>,
}

/// Range of `change`; below it, rounding alone moves a representation as much.
const CHANGES: RangeInclusive<f64> = 1e-12..=1.0;

/// Reads `[stop]`.
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

/// Reads `[stop]` of a server, which sees neither data nor truth: the change below which training ends.
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

/// Refuses the criterion `change` for a linear adapter, whose down-projection does not move in the first
/// round.
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
