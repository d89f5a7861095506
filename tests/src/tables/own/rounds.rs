//! What runs have left in `rounds.jsonl`.

use serde_json::Value;

use crate::tables::programs::Programs;

/// The rounds of a run, from the start on.
pub struct Rounds(Vec<Value>);

impl Rounds {
    /// Reads those of a directory of results.
    pub fn read(programs: &Programs, directory: &str) -> Result<Self, String> {
        let file = format!("{directory}/rounds.jsonl");
        let text = programs.read(&file)?;
        let rounds = text.lines().map(serde_json::from_str).collect::<Result<Vec<_>, _>>();
        rounds.map(Self).map_err(|error| format!("{file}: {error}"))
    }

    /// Those of so many seeds, from 1.
    pub fn of_seeds(programs: &Programs, directory: &str, seeds: u32) -> Result<Vec<Self>, String> {
        (1..=seeds).map(|seed| Self::read(programs, &format!("{directory}/seed-{seed}"))).collect()
    }

    /// A figure of every round that has it, with the round.
    pub fn figures(&self, name: &str) -> Vec<(usize, f64)> {
        let of = |(round, value): (usize, &Value)| Some((round, value[name].as_f64()?));
        self.0.iter().enumerate().filter_map(of).collect()
    }

    /// The sum of a figure over the rounds up to one.
    pub fn sum(&self, name: &str, last: usize) -> f64 {
        self.0.iter().take(last + 1).filter_map(|value| value[name].as_f64()).sum()
    }

    /// A figure of one round.
    pub fn at(&self, round: usize, name: &str) -> Option<f64> {
        self.0.get(round)?[name].as_f64()
    }

    /// The first round whose distance is this or less.
    pub fn near(&self, distance: f64) -> Option<usize> {
        self.figures("distance").into_iter().find(|(_, found)| *found <= distance).map(|(round, _)| round)
    }

    /// The last round.
    pub fn last(&self) -> usize {
        self.0.len().saturating_sub(1)
    }
}

/// The middle of some values, or the mean of the two in the middle.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        1 => values.get(middle).copied(),
        _ => Some((values.get(middle.checked_sub(1)?)? + values.get(middle)?) / 2.0),
    }
}

/// The mean of some values; `None` of none.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}
