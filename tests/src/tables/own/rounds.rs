//! Reader of the result file `rounds.jsonl`.

use serde_json::Value;

use crate::tables::programs::Programs;

/// Rounds of a run. Index 0 is the state before the first round.
pub struct Rounds(Vec<Value>);

impl Rounds {
    /// Reads the rounds of a result directory.
    pub fn read(programs: &Programs, directory: &str) -> Result<Self, String> {
        let file = format!("{directory}/rounds.jsonl");
        let text = programs.read(&file)?;
        let rounds = text.lines().map(serde_json::from_str).collect::<Result<Vec<_>, _>>();
        rounds.map(Self).map_err(|error| format!("{file}: {error}"))
    }

    /// Reads the rounds of the seeds 1 to `seeds`.
    pub fn of_seeds(programs: &Programs, directory: &str, seeds: u32) -> Result<Vec<Self>, String> {
        (1..=seeds).map(|seed| Self::read(programs, &format!("{directory}/seed-{seed}"))).collect()
    }

    /// Returns the values of a metric, each with the round that has it.
    pub fn values_of(&self, name: &str) -> Vec<(usize, f64)> {
        let entry = |(round, value): (usize, &Value)| Some((round, value[name].as_f64()?));
        self.0.iter().enumerate().filter_map(entry).collect()
    }

    /// Returns the sum of a metric over the rounds up to and including `last`.
    pub fn sum(&self, name: &str, last: usize) -> f64 {
        self.0.iter().take(last + 1).filter_map(|value| value[name].as_f64()).sum()
    }

    /// Returns the value of a metric in a round.
    pub fn value_at(&self, round: usize, name: &str) -> Option<f64> {
        self.0.get(round)?[name].as_f64()
    }

    /// Returns the first round whose distance is at most `distance`.
    pub fn first_round_within(&self, distance: f64) -> Option<usize> {
        self.values_of("distance").into_iter().find(|(_, value)| *value <= distance).map(|(round, _)| round)
    }

    /// Returns the index of the last round.
    pub fn last(&self) -> usize {
        self.0.len().saturating_sub(1)
    }
}

/// Returns the median (of an even number of values the mean of the middle two); `None` if there are no
/// values.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        1 => values.get(middle).copied(),
        _ => Some((values.get(middle.checked_sub(1)?)? + values.get(middle)?) / 2.0),
    }
}

/// Returns the mean; `None` if there are no values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}
