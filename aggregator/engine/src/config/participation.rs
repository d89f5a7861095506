//! The section `[participation]`: the policy that chooses the participants of a round.

use super::reader::Section;
use super::source::Problem;
use crate::participation::{DoubleBy, DrawPer, Schedule};

/// Values of the key `by`.
pub const DOUBLE_BY: [(&str, DoubleBy); 2] = [("devices", DoubleBy::Devices), ("samples", DoubleBy::Samples)];

/// Values of the key `draw`.
pub const DRAWS: [(&str, DrawPer); 2] = [("round", DrawPer::Round), ("stage", DrawPer::Stage)];

/// Participation policy with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ParticipationSection {
    /// All devices in every round.
    Full,
    /// A random fraction of the devices.
    Fraction {
        /// Participation rate `r`.
        r: f64,
    },
    /// The first devices to answer.
    FirstArrivals {
        /// Number of updates that completes a round.
        n: usize,
        /// Number of invited devices; `None` for all.
        cohort: Option<usize>,
    },
    /// Draws of one device each, with replacement.
    WithReplacement {
        /// Number of draws, K.
        draws: usize,
    },
    /// The fastest few devices, then twice as many per stage, until all count.
    Doubling {
        /// Number of updates that the first stage waits for, `n0`.
        n0: usize,
        /// Number of invited devices, `N`; `None` for all.
        cohort: Option<usize>,
        /// Interval at which the cohort is drawn.
        draw: DrawPer,
        /// Rule that ends a stage.
        schedule: Schedule,
        /// Quantity that doubles.
        by: DoubleBy,
    },
}

impl ParticipationSection {
    /// Checks the policy against a fleet of `devices` at first and at most `most` later.
    ///
    /// # Errors
    /// The key whose value is too large, and a sentence with the numbers found and allowed.
    pub fn fits(&self, devices: usize, most: usize) -> Result<(), (&'static str, String)> {
        let (key, first, cohort) = match *self {
            Self::FirstArrivals { n, cohort } => ("n", n, cohort),
            Self::Doubling { n0, cohort, .. } => ("n0", n0, cohort),
            Self::Full | Self::Fraction { .. } | Self::WithReplacement { .. } => return Ok(()),
        };
        let wrong =
            |key, found, most| Err((key, format!("found {found}, allowed: at most the fleet's {most}")));
        match cohort {
            _ if first > devices => wrong(key, first, devices),
            Some(cohort) if cohort > most => wrong("cohort", cohort, most),
            _ => Ok(()),
        }
    }
}

/// Reads the number of updates that a round waits for at first, under `key`, and the size of the cohort.
fn read_first(
    section: &Section<'_>,
    key: &str,
    default: Option<usize>,
) -> Result<(usize, Option<usize>), Problem> {
    let first = section.size(key, default, 1..=1_000_000)?;
    let cohort = section.has("cohort").then(|| section.size("cohort", None, 1..=1_000_000)).transpose()?;
    match cohort.filter(|cohort| first > *cohort) {
        Some(cohort) => Err(section.problem(key, format!("{first} is more than the cohort of {cohort}"))),
        None => Ok((first, cohort)),
    }
}

/// Schedules by name, without their parameters.
#[derive(Clone, Copy)]
enum ScheduleKind {
    Adaptive,
    Fixed,
    Theorem,
    Optimal,
}

fn read_schedule(section: &Section<'_>, communication: Option<f64>) -> Result<Schedule, Problem> {
    let schedules = [
        ("adaptive", ScheduleKind::Adaptive),
        ("fixed", ScheduleKind::Fixed),
        ("theorem", ScheduleKind::Theorem),
        ("optimal", ScheduleKind::Optimal),
    ];
    let kind = section.choice("schedule", Some("adaptive"), &schedules)?;
    let contraction = || section.number("contraction", Some(0.2), 1e-6..=0.99);
    Ok(match kind {
        ScheduleKind::Adaptive => Schedule::Adaptive,
        ScheduleKind::Fixed => {
            let rounds = section.integer("stage_rounds", Some(10), 1..=1_000_000)?;
            Schedule::Fixed(u32::try_from(rounds).unwrap_or(u32::MAX))
        }
        ScheduleKind::Theorem => Schedule::Theorem { contraction: contraction()? },
        ScheduleKind::Optimal => Schedule::Optimal {
            contraction: contraction()?,
            communication: section.number("communication", communication, 0.0..=1e9)?,
            start: section.number("start", Some(1.0), f64::MIN_POSITIVE..=1.0)?,
            floor: section.number("floor", None, 1e-12..=1.0)?,
        },
    })
}

/// Policies by name, without their parameters.
#[derive(Clone, Copy)]
enum PolicyKind {
    Full,
    Fraction,
    FirstArrivals,
    WithReplacement,
    Doubling,
}

/// Reads `[participation]`. `communication` is the default communication time of a round, in mean computation
/// times, if it is known.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub fn read_participation(
    section: &Section<'_>,
    communication: Option<f64>,
) -> Result<ParticipationSection, Problem> {
    let policies = [
        ("full", PolicyKind::Full),
        ("fraction", PolicyKind::Fraction),
        ("first-arrivals", PolicyKind::FirstArrivals),
        ("with-replacement", PolicyKind::WithReplacement),
        ("doubling", PolicyKind::Doubling),
    ];
    let policy = match section.choice("policy", Some("full"), &policies)? {
        PolicyKind::Full => ParticipationSection::Full,
        PolicyKind::Fraction => ParticipationSection::Fraction { r: section.number("r", None, 1e-9..=1.0)? },
        PolicyKind::FirstArrivals => {
            let (n, cohort) = read_first(section, "n", None)?;
            ParticipationSection::FirstArrivals { n, cohort }
        }
        PolicyKind::WithReplacement => {
            ParticipationSection::WithReplacement { draws: section.size("draws", None, 1..=1_000_000)? }
        }
        PolicyKind::Doubling => {
            let (n0, cohort) = read_first(section, "n0", Some(4))?;
            let by = section.choice("by", Some("devices"), &DOUBLE_BY)?;
            let draw = section.choice("draw", Some("round"), &DRAWS)?;
            let schedule = read_schedule(section, communication)?;
            ParticipationSection::Doubling { n0, cohort, draw, schedule, by }
        }
    };
    section.finish()?;
    Ok(policy)
}
