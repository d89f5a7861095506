//! `[participation]`: who takes part in a round.

use super::reader::Section;
use super::source::Problem;
use crate::participation::{DoubleBy, DrawPer, Schedule};

/// Words of `by`.
pub const DOUBLE_BY: [(&str, DoubleBy); 2] = [("devices", DoubleBy::Devices), ("samples", DoubleBy::Samples)];

/// Words of `draw`.
pub const DRAWS: [(&str, DrawPer); 2] = [("round", DrawPer::Round), ("stage", DrawPer::Stage)];

/// `[participation]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ParticipationSection {
    /// Everyone.
    Full,
    /// A random part.
    Fraction {
        /// The rate `r`.
        r: f64,
    },
    /// The first to answer.
    FirstArrivals {
        /// How many answers complete a round.
        n: usize,
        /// How many are asked; all without it.
        cohort: Option<usize>,
    },
    /// Draws of one device each, with replacement.
    WithReplacement {
        /// K, how many.
        draws: usize,
    },
    /// The fastest few, then twice as many, until all count.
    Doubling {
        /// `n0`, how many answers the first stage waits for.
        n0: usize,
        /// `N`, how many are asked; all without it.
        cohort: Option<usize>,
        /// When they are drawn anew.
        draw: DrawPer,
        /// When a stage ends.
        schedule: Schedule,
        /// What doubles.
        by: DoubleBy,
    },
}

impl ParticipationSection {
    /// Checks it against a fleet that begins with `devices` and may have `most` one day.
    ///
    /// # Errors
    /// The key that asks for more, and in words what is wrong with it.
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

/// How many answers a round waits for at first, under `key`, and how many devices it asks.
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

/// The schedules by name, without their parameters.
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

/// The policies by name, without their parameters.
#[derive(Clone, Copy)]
enum PolicyKind {
    Full,
    Fraction,
    FirstArrivals,
    WithReplacement,
    Doubling,
}

/// Reads `[participation]`; `communication` is what a round takes besides computation, in mean computations, where
/// that is known from elsewhere.
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
