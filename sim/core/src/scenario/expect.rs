//! Reader of the section `[expect]`: bounds on the results of a run, which a command verifies at its end.

use std::fmt;

use fedspan_engine::config::{Problem, Section};

/// Figures that can be expected, in the order in which they are shown.
pub const EXPECTED: [&str; 18] = [
    "accuracy",
    "accuracy_global",
    "accuracy_last_10",
    "accuracy_tuned",
    "accuracy_worst_decile",
    "accuracy_new_clients",
    "test_mse",
    "test_mse_new_clients",
    "loss",
    "distance",
    "rounds",
    "simulated_time",
    "updates",
    "rejected",
    "bytes_up",
    "bytes_down",
    "bytes_per_update",
    "ram",
];

/// Side of a bound on which a figure must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// At least the bound.
    AtLeast,
    /// At most the bound.
    AtMost,
}

/// Bound on one figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expectation {
    /// Name of the figure.
    pub figure: &'static str,
    /// Side of the bound.
    pub relation: Relation,
    /// The bound.
    pub bound: f64,
}

impl Expectation {
    /// By how much a value misses the bound; `None` if it meets it.
    #[must_use]
    pub fn missed_by(&self, value: f64) -> Option<f64> {
        let missed = match self.relation {
            Relation::AtLeast => self.bound - value,
            Relation::AtMost => value - self.bound,
        };
        // A value that is not a number meets no bound.
        (missed.is_nan() || missed > 0.0).then_some(missed)
    }
}

impl fmt::Display for Expectation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let relation = match self.relation {
            Relation::AtLeast => ">=",
            Relation::AtMost => "<=",
        };
        write!(formatter, "{} {relation} {}", self.figure, self.bound)
    }
}

/// Reads the section.
///
/// # Errors
/// [`Problem`] for the first bound that is not `">= NUMBER"` or `"<= NUMBER"`, and for bounds on accuracies that
/// are not between 0 and 1.
pub fn read_expect(section: &Section<'_>) -> Result<Vec<Expectation>, Problem> {
    let mut expectations = Vec::new();
    for figure in EXPECTED {
        let allowed = "a bound such as \">= 0.9\" or \"<= 0.01\"";
        let Some(text) = section.optional_string(figure, allowed)? else { continue };
        let parsed = |relation, prefix: &str| {
            let bound = text
                .trim()
                .strip_prefix(prefix)?
                .trim()
                .parse()
                .ok()
                .filter(|bound: &f64| bound.is_finite())?;
            Some(Expectation { figure, relation, bound })
        };
        let expectation = parsed(Relation::AtLeast, ">=")
            .or_else(|| parsed(Relation::AtMost, "<="))
            .ok_or_else(|| section.problem(figure, format!("found {text:?}, allowed: {allowed}")))?;
        if figure.starts_with("accuracy") && !(0.0..=1.0).contains(&expectation.bound) {
            let message =
                format!("found {text:?}, allowed: a bound between 0 and 1, such as \">= 0.9\" for 90 %");
            return Err(section.problem(figure, message));
        }
        expectations.push(expectation);
    }
    section.finish()?;
    Ok(expectations)
}
