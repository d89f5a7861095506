//! `[stop]`: what ends a campaign before its last round.

use std::ops::RangeInclusive;

use super::reader::Section;
use super::sections::ModelSection;
use super::source::Problem;

/// `[stop]`: the campaign ends early at the first of these; `rounds` always bounds it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StopSection {
    /// At this distance or below.
    pub distance: Option<f64>,
    /// At this accuracy or above.
    pub accuracy: Option<f64>,
    /// At this loss or below.
    pub loss: Option<f64>,
    /// At this simulated time or above.
    pub simulated_time: Option<f64>,
    /// Where the representation moved less than this in a training round (sine of the largest principal
    /// angle between before and after); the only one that a server can measure.
    pub change: Option<f64>,
}

/// What `change` may be: below, rounding moves a representation as much.
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

/// Reads `[stop]` of a campaign whose data and truth nobody here sees: the largest change that ends it.
///
/// # Errors
/// [`Problem`] for the first mistake, and for a target that only a simulation can measure.
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

/// That nothing ends with the first round of an adapter, in which its down-projection does not move.
///
/// # Errors
/// [`Problem`] if it would.
pub fn check_change(change: Option<f64>, model: &ModelSection, section: &Section<'_>) -> Result<(), Problem> {
    match change {
        Some(change) if model.adapter => {
            let message = format!(
                "found {change}, of an adapter one factor moves and the other does not; leave it out"
            );
            Err(section.problem("change", message))
        }
        _ => Ok(()),
    }
}
