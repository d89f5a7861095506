//! Expected results of emulated boards, which are computed by simulating the scenario.

use std::collections::BTreeSet;

use fedspan_engine::algorithm::decoded_representation;
use fedspan_protocol::frame::crc32c_f32;

use super::{BoardReport, EmulationResult};
use crate::run::{NoProgress, Outcome, RunError, run};
use crate::scenario::Scenario;

/// Expected result of one client.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// Accuracy on the test windows; `None` for regression.
    pub accuracy: Option<f64>,
    /// Mean squared error on the test samples; `None` for classification.
    pub test_mse: Option<f64>,
    /// CRC-32C of the representation that devices decode; `None` without one.
    pub representation: Option<String>,
    /// CRC-32C of the head.
    pub head: String,
    /// CRC-32C of the parameters of all layers of a network; `None` for a linear model.
    pub parameters: Option<String>,
}

/// Simulates the scenario. Returns the outcome of the simulation and the expected result of each client.
///
/// # Errors
/// [`RunError`] if the simulation fails.
pub fn expected(scenario: &Scenario) -> Result<(Outcome, Vec<Expected>), RunError> {
    let outcome = run(scenario, scenario.seed, &mut NoProgress)?;
    let hash = |values: &[f32]| format!("{:08x}", crc32c_f32(values));
    let download = scenario.algorithm.download;
    // The heads in the scores are f32 values that were converted to f64, so the conversion back is exact.
    #[allow(clippy::cast_possible_truncation, reason = "the same number")]
    let narrow_head = |head: &[f64]| head.iter().map(|weight| *weight as f32).collect::<Vec<f32>>();
    // With a learned prior boards keep the representation in the coordinates of the prior's metric.
    let representation =
        outcome.representation.as_ref().filter(|_| scenario.algorithm.learned_prior().is_none());
    let representation = representation.map(|b| hash(&decoded_representation(b, download).values));
    // Boards report their networks after the final epochs on the head.
    let clients = if outcome.tuned.is_empty() { &outcome.clients } else { &outcome.tuned };
    let expected_results = clients.iter().map(|client| Expected {
        accuracy: client.accuracy,
        test_mse: client.test_mse,
        representation: representation.clone(),
        head: hash(&narrow_head(&client.head)),
        parameters: client.parameters.map(|checksum| format!("{checksum:08x}")),
    });
    let expected_results = expected_results.collect();
    Ok((outcome, expected_results))
}

/// True if the same devices counted in each training round of a simulation and of an emulated fleet. Boards are as fast as the host
/// runs them, so a policy that prefers fast devices chooses other devices than in the simulation.
#[must_use]
pub fn has_same_participants(outcome: &Outcome, emulated: &EmulationResult) -> bool {
    // Boards have the numbers of clients from 1, simulated devices from 0.
    let board_numbers = |round: &serde_json::Value| -> Option<BTreeSet<u64>> {
        let participants = round.get("participants")?.as_array()?;
        participants.iter().map(|device| device.as_u64()?.checked_sub(1)).collect()
    };
    let is_training = |round: &&serde_json::Value| {
        round.get("phase").and_then(serde_json::Value::as_str) == Some("training")
    };
    let of_boards = emulated.rounds.iter().filter(is_training).map(board_numbers);
    let simulated = outcome.rounds.iter().filter(|row| row.round > 0);
    simulated.map(|row| Some(row.participants.iter().map(|device| device.0).collect())).eq(of_boards)
}

impl Expected {
    /// True if the result of a board is equal: the representation and the head, or all layers of a network, have
    /// the same bits, and the accuracy is the same.
    #[must_use]
    pub fn agrees(&self, report: &BoardReport) -> bool {
        let matches_report = |key: &str, expected: &str| {
            report.line.get(key).and_then(|reported| reported.as_str()) == Some(expected)
        };
        let accurate = match self.accuracy {
            Some(expected) => report.accuracy().is_some_and(|reported| (reported - expected).abs() < 1e-12),
            None => true,
        };
        let matches_if_expected = |key: &str, expected: &Option<String>| {
            expected.as_ref().is_none_or(|expected| matches_report(key, expected))
        };
        accurate
            && matches_if_expected("representation", &self.representation)
            && matches_if_expected("parameters", &self.parameters)
            && matches_report("head", &self.head)
    }
}

impl BoardReport {
    /// Accuracy of the board's personal model on the board's test windows; `None` if no window was tested.
    #[must_use]
    pub fn accuracy(&self) -> Option<f64> {
        let number = |key: &str| self.line.get(key)?.as_f64();
        let (right, tested) = (number("right")?, number("tested")?);
        (tested > 0.0).then(|| right / tested)
    }

    /// Number under a key of the board's report; 0 if the report has no such number.
    #[must_use]
    pub fn number(&self, key: &str) -> u64 {
        self.line.get(key).and_then(serde_json::Value::as_u64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn participants_are_compared_round_by_round() {
        let changes =
            ["algorithm.rounds=2".to_owned(), "participation={ policy = \"fraction\", r = 0.3 }".to_owned()];
        let text = Scenario::built_in("smallest").unwrap();
        let (outcome, _) = expected(&Scenario::parse("smallest", text, &changes).unwrap()).unwrap();
        let numbers = |row: usize| -> Vec<u64> {
            outcome.rounds[row].participants.iter().map(|device| device.0 + 1).rev().collect()
        };
        let round =
            |phase: &str, participants: Vec<u64>| json!({ "phase": phase, "participants": participants });
        let emulated = |rounds| EmulationResult {
            boards: Vec::new(),
            dead: Vec::new(),
            status: Default::default(),
            rounds,
            seconds: 0.0,
        };
        let (first, second) = (round("training", numbers(1)), round("training", numbers(2)));
        let start = round("start", vec![1]);
        assert!(has_same_participants(&outcome, &emulated(vec![start, first.clone(), second.clone()])));
        for rounds in [
            vec![],
            vec![first.clone()],
            vec![first.clone(), second.clone(), second.clone()],
            vec![first.clone(), round("training", vec![])],
            vec![first.clone(), round("training", vec![0])],
            vec![first, json!({ "phase": "training" })],
        ] {
            assert!(!has_same_participants(&outcome, &emulated(rounds)));
        }
    }
}
