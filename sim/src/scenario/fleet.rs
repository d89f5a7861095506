//! `[fleet]`: how long devices take.

use fedspan_aggregator::config::{Problem, Section};

/// How long clients compute in a round, the mean of the fleet being 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// All the same.
    Constant,
    /// Drawn once for each client, exponential.
    Exponential,
    /// Drawn anew in every round, exponential, around a parameter of the client that is uniform on [1/M, 1].
    Dynamic(Reading),
}

/// What the parameter of [`Speed::Dynamic`] is. SRPFL's theory takes it for a rate, its experiments for a mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The mean of the client's times.
    Mean,
    /// Their rate.
    Rate,
}

/// `[fleet]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FleetSection {
    /// How long a client computes.
    pub speed: Speed,
    /// Added to every round, in mean computations.
    pub communication: f64,
}

/// Reads the section.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub fn read_fleet(section: &Section<'_>) -> Result<FleetSection, Problem> {
    let speeds = [
        ("constant", Some(Speed::Constant)),
        ("exponential", Some(Speed::Exponential)),
        ("exponential-dynamic", None),
    ];
    let readings = [("mean", Reading::Mean), ("rate", Reading::Rate)];
    let speed = match section.choice("speed", Some("constant"), &speeds)? {
        Some(speed) => speed,
        None => Speed::Dynamic(section.choice("reading", Some("mean"), &readings)?),
    };
    let fleet =
        FleetSection { speed, communication: section.number("communication", Some(0.0), 0.0..=f64::MAX)? };
    section.finish()?;
    Ok(fleet)
}
