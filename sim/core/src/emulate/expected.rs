//! What the simulator says about the same clients, to compare boards with.

use fedspan_engine::linalg::to_f32;
use fedspan_protocol::frame::crc32c_f32;
use fedspan_protocol::tensor::Encoding;

use super::BoardReport;
use crate::run::{Outcome, RunError, Unwatched, run};
use crate::scenario::Scenario;

/// What one client has learnt in the simulator.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// Accuracy on its test windows, for classes.
    pub accuracy: Option<f64>,
    /// Mean squared error on its test samples, for regression.
    pub test_mse: Option<f64>,
    /// CRC-32C of the representation; only where it travels as it is.
    pub representation: Option<String>,
    /// CRC-32C of its head; only where the representation travels as it is.
    pub head: Option<String>,
}

/// Runs the scenario in the simulator: what each of its clients has learnt.
///
/// # Errors
/// [`RunError`].
pub fn expected(scenario: &Scenario) -> Result<(Outcome, Vec<Expected>), RunError> {
    let outcome = run(scenario, scenario.seed, &mut Unwatched)?;
    let as_it_is = scenario.algorithm.download == Encoding::F32;
    let hash = |values: &[f32]| as_it_is.then(|| format!("{:08x}", crc32c_f32(values)));
    // As boards hold them; they were f32.
    #[allow(clippy::cast_possible_truncation, reason = "the same number")]
    let narrow = |head: &[f64]| head.iter().map(|weight| *weight as f32).collect::<Vec<f32>>();
    let representation = outcome.representation.as_ref().and_then(|b| hash(&to_f32(b)));
    let each = outcome.clients.iter().map(|client| Expected {
        accuracy: client.accuracy,
        test_mse: client.test_mse,
        representation: representation.clone(),
        head: hash(&narrow(&client.head)),
    });
    let each = each.collect();
    Ok((outcome, each))
}

impl Expected {
    /// Whether a board has learnt the same: representation and head to the last bit, and as many right answers.
    #[must_use]
    pub fn agrees(&self, report: &BoardReport) -> bool {
        let same = |key: &str, expected: &Option<String>| match expected {
            Some(expected) => report.line.get(key).and_then(|found| found.as_str()) == Some(expected),
            None => true,
        };
        let accurate = match self.accuracy {
            Some(expected) => report.accuracy().is_some_and(|found| (found - expected).abs() < 1e-12),
            None => true,
        };
        accurate && same("representation", &self.representation) && same("head", &self.head)
    }
}

impl BoardReport {
    /// Accuracy of its own model on its own test windows.
    #[must_use]
    pub fn accuracy(&self) -> Option<f64> {
        let number = |key: &str| self.line.get(key)?.as_f64();
        let (right, tested) = (number("right")?, number("tested")?);
        (tested > 0.0).then(|| right / tested)
    }

    /// A number of its line, 0 where it has none of that name.
    #[must_use]
    pub fn number(&self, key: &str) -> u64 {
        self.line.get(key).and_then(serde_json::Value::as_u64).unwrap_or(0)
    }
}
