//! Figures of the papers: our curves, the papers' claims, what we found, and a verdict. A figure is one constant
//! [`Reproduction`] in a file of its paper, and an entry of [`ALL`].

mod fedpower;
mod fedrep;
mod rolora;
mod simulated;
mod srpfl;

use std::sync::atomic::AtomicBool;

use fedspan_engine::reader::Problem;
use fedspan_sim_core::progress::Progress;
use fedspan_sim_core::report::plot::{Axis, Series};
use fedspan_sim_core::report::summary::Summary;
use fedspan_sim_core::report::table::Table;
use fedspan_sim_core::run::RunError;
use serde::Serialize;

use crate::power::PowerError;

/// All figures, in the order of the list.
pub const ALL: [&Reproduction; 10] = [
    &fedrep::FIGURE_3,
    &fedrep::FIGURE_4,
    &srpfl::FIGURE_3,
    &srpfl::FIGURE_4,
    &srpfl::FIGURE_5,
    &srpfl::FIGURE_6,
    &fedpower::MODEL_1,
    &rolora::LINEAR,
    &rolora::TOY,
    &fedrep::TABLE_1,
];

/// A figure of a paper, with its claim and the way in which it is repeated.
pub struct Reproduction {
    /// Name on the command line.
    pub name: &'static str,
    /// Subject of the figure, for lists.
    pub title: &'static str,
    /// Authors, year and figure.
    pub paper: &'static str,
    /// Claim of the paper.
    pub claim: &'static str,
    /// Differences to the paper: what data and settings stand in for what.
    pub stand_ins: &'static str,
    /// Approximate duration on two cores.
    pub duration: &'static str,
    /// Number of seeds by default.
    pub seeds: u32,
    /// Measurement. Returns `None` if it was interrupted.
    pub measure: fn(&Request, &AtomicBool, &dyn Progress) -> Measured,
}

/// Result of a measurement; `None` if it was interrupted.
pub type Measured = Result<Option<Reproduced>, ReproductionError>;

/// Seeds and threads of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// First seed.
    pub seed: u64,
    /// Number of seeds.
    pub seeds: u32,
    /// Number of runs that are computed in parallel.
    pub threads: usize,
}

/// Error that ends a measurement.
#[derive(Debug, thiserror::Error)]
pub enum ReproductionError {
    /// A scenario is not valid.
    #[error(transparent)]
    Scenario(#[from] Problem),
    /// A run has failed.
    #[error("{label}, seed {seed}: {error}")]
    Run {
        /// Label of the curve.
        label: String,
        /// Seed of the run.
        seed: u64,
        /// Error of the run.
        error: RunError,
    },
    /// A measurement of FedPower has failed.
    #[error(transparent)]
    Power(#[from] PowerError),
}

/// Result of a measurement.
#[derive(Clone, Debug, Default)]
pub struct Reproduced {
    /// Curves, in panels with headings.
    pub panels: Vec<(String, Vec<Series>)>,
    /// Horizontal axes, that of the paper first.
    pub axes: Vec<Axis>,
    /// Figures behind the findings.
    pub tables: Vec<Table>,
    /// Parts of the claim, each with what was found.
    pub findings: Vec<Finding>,
    /// Summaries of the runs.
    pub summaries: Vec<Summary>,
    /// Texts of the scenarios, with their labels.
    pub scenarios: Vec<(String, String)>,
}

/// Part of a claim, and what was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Part of the paper's claim.
    pub claim: String,
    /// Our numbers.
    pub found: String,
    /// Whether the numbers agree with the claim.
    pub holds: bool,
}

impl Finding {
    fn new(claim: impl Into<String>, found: String, holds: bool) -> Self {
        Self { claim: claim.into(), found, holds }
    }
}

/// Verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// All parts of the claim hold.
    #[serde(rename = "holds")]
    Holds,
    /// Some parts hold.
    #[serde(rename = "holds in part")]
    HoldsInPart,
    /// No part holds.
    #[serde(rename = "does not hold")]
    DoesNotHold,
}

impl Verdict {
    /// Verdict that follows from the findings.
    #[must_use]
    pub fn of(findings: &[Finding]) -> Self {
        let held = findings.iter().filter(|finding| finding.holds).count();
        match held {
            0 => Self::DoesNotHold,
            held if held == findings.len() => Self::Holds,
            _ => Self::HoldsInPart,
        }
    }

    /// Text of the verdict.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::HoldsInPart => "holds in part",
            Self::DoesNotHold => "does not hold",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_follows_from_all_findings() {
        let finding = |holds| Finding::new("claim", String::new(), holds);
        assert_eq!(Verdict::of(&[finding(true), finding(true)]), Verdict::Holds);
        assert_eq!(Verdict::of(&[finding(true), finding(false)]), Verdict::HoldsInPart);
        assert_eq!(Verdict::of(&[finding(false)]), Verdict::DoesNotHold);
        assert_eq!(Verdict::of(&[]), Verdict::DoesNotHold);
    }

    #[test]
    fn names_are_distinct() {
        for (index, figure) in ALL.iter().enumerate() {
            assert!(ALL.iter().skip(index + 1).all(|other| other.name != figure.name), "{}", figure.name);
        }
    }
}
