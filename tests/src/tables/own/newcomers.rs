//! Table of newcomers with one label per class: accuracy with the ridge that the training clients choose,
//! compared with the best ridge of a grid on other newcomers.

use serde_json::Value;

use super::rounds::mean;
use crate::tables::programs::Programs;

/// A scenario, its changes, and the folds and seeds of its runs.
struct Case {
    name: &'static str,
    scenario: &'static str,
    changes: &'static [&'static str],
    folds: usize,
    first_seed: u32,
    seeds: u32,
}

/// Settings of the case with MNIST digits.
const MNIST: [&str; 7] = [
    "data.kind=\"mnist5k\"",
    "data.partition.clients=30",
    "data.partition.classes=5",
    "split.holdout_clients=10",
    "split.labels_per_class=1",
    "model.k=16",
    "algorithm.rounds=60",
];

/// Rows of the table.
const CASES: [Case; 4] = [
    Case { name: "smartwatch", scenario: "demo", changes: &[], folds: 5, first_seed: 21, seeds: 3 },
    Case {
        name: "smartwatch, programmes",
        scenario: "programmes",
        changes: &[],
        folds: 5,
        first_seed: 21,
        seeds: 3,
    },
    Case {
        name: "digits",
        scenario: "digits",
        changes: &["split.holdout_clients=5", "split.labels_per_class=1"],
        folds: 4,
        first_seed: 11,
        seeds: 10,
    },
    Case {
        name: "MNIST, 5 classes each",
        scenario: "digits",
        changes: &MNIST,
        folds: 3,
        first_seed: 21,
        seeds: 3,
    },
];

/// Ridges to choose from, the same as in the server's grid.
const RIDGES: [&str; 13] =
    ["1e-4", "3e-4", "1e-3", "3e-3", "0.01", "0.03", "0.1", "0.3", "1.0", "3.0", "10.0", "30.0", "100.0"];

/// Returns the table of the newcomers' accuracy (mean over runs), and of the difference with its standard
/// error.
pub fn accuracy_table(programs: &mut Programs) -> Result<String, String> {
    let mut text = "| newcomers, 1 label a class | runs | `\"auto\"` | best on newcomers of other folds | difference (standard error) |\n\
                    | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for case in &CASES {
        let auto = case.accuracies("\"auto\"", programs)?;
        let grid: Vec<Vec<Vec<f64>>> =
            RIDGES.iter().map(|ridge| case.accuracies(ridge, programs)).collect::<Result<_, _>>()?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for (fold, accuracies) in auto.iter().enumerate() {
            let on_others = |ridge: &&Vec<Vec<f64>>| -> f64 {
                let others = ridge.iter().enumerate().filter(|(other, _)| *other != fold);
                others.flat_map(|(_, seeds)| seeds).sum()
            };
            // Chooses the smallest of equally good ridges.
            let best = grid.iter().rev().max_by(|a, b| on_others(a).total_cmp(&on_others(b)));
            ours.extend(accuracies);
            theirs.extend(best.and_then(|best| best.get(fold)).into_iter().flatten());
        }
        let differences: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours - theirs).collect();
        let mean_or_nan = |values: &[f64]| mean(values).unwrap_or(f64::NAN);
        let (runs, middle) = (differences.len(), mean_or_nan(&differences));
        let squares: f64 = differences.iter().map(|difference| (difference - middle).powi(2)).sum();
        let error = (squares / (runs.saturating_sub(1) * runs) as f64).sqrt();
        text += &format!(
            "| {} | {runs} | {:.3} | {:.3} | {middle:+.4} ({error:.4}) |\n",
            case.name,
            mean_or_nan(&ours),
            mean_or_nan(&theirs)
        );
    }
    Ok(text)
}

impl Case {
    /// Returns the newcomers' accuracies with a ridge: for each fold, the accuracies of all seeds.
    fn accuracies(&self, ridge: &str, programs: &mut Programs) -> Result<Vec<Vec<f64>>, String> {
        (0..self.folds).map(|fold| self.fold_accuracies(fold, ridge, programs)).collect()
    }

    /// Returns the newcomers' accuracies of one fold, for all seeds.
    fn fold_accuracies(&self, fold: usize, ridge: &str, programs: &mut Programs) -> Result<Vec<f64>, String> {
        let out = "newcomers";
        let changes = [
            format!("split.fold={fold}"),
            format!("algorithm.final_ridge={ridge}"),
            "evaluate_every=1000".to_owned(),
        ];
        let (first, seeds) = (self.first_seed.to_string(), self.seeds.to_string());
        let mut words = vec!["run", self.scenario, "--seed", &first, "--seeds", &seeds];
        let all_changes = self.changes.iter().copied().chain(changes.iter().map(String::as_str));
        words.extend(all_changes.flat_map(|change| ["--set", change]));
        programs.simulate(&words, out)?;
        let accuracy_of_seed = |seed: u32| {
            let file = format!("{out}/seed-{seed}/summary.json");
            let summary: Value =
                serde_json::from_str(&programs.read(&file)?).map_err(|error| format!("{file}: {error}"))?;
            let accuracy = summary["final"]["accuracy_new_clients"].as_f64();
            accuracy.ok_or_else(|| format!("{file}: no accuracy_new_clients"))
        };
        (self.first_seed..self.first_seed + self.seeds).map(accuracy_of_seed).collect()
    }
}
