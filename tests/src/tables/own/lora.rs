//! Tables that compare four ways to average low-rank adapters, on the network of the scenario `mnist-lora`.

use super::rounds::{Rounds, mean, median};
use crate::tables::programs::Programs;

/// A method: its name in tables, its name in scenarios, and its best step size on validation images.
type Method = (&'static str, &'static str, f64);

/// A fleet, a momentum, and the methods with their step sizes.
#[derive(Clone, Copy)]
pub struct Case {
    name: &'static str,
    clients: u32,
    /// Number of digit classes of each client.
    classes: u32,
    momentum: f64,
    methods: [Method; 4],
}

/// Five clients with two classes each, without momentum.
pub const PLAIN_FIVE: Case = Case {
    name: "lora-5",
    clients: 5,
    classes: 2,
    momentum: 0.0,
    methods: [
        ("RoLoRA", "rolora", 0.1),
        ("plain LoRA", "lora", 1.0),
        ("FFA-LoRA", "ffa-lora", 100.0),
        ("FlexLoRA", "flexlora", 0.03),
    ],
};
/// Five clients with two classes each, with momentum.
pub const MOMENTUM_FIVE: Case = Case {
    name: "lora-5-momentum",
    momentum: 0.9,
    methods: [
        ("RoLoRA", "rolora", 0.01),
        ("plain LoRA", "lora", 0.3),
        ("FFA-LoRA", "ffa-lora", 10.0),
        ("FlexLoRA", "flexlora", 0.003),
    ],
    ..PLAIN_FIVE
};
/// Ten clients with one class each, without momentum.
pub const PLAIN_TEN: Case = Case {
    name: "lora-10",
    clients: 10,
    classes: 1,
    methods: [
        ("RoLoRA", "rolora", 1.0),
        ("plain LoRA", "lora", 0.3),
        ("FFA-LoRA", "ffa-lora", 3.0),
        ("FlexLoRA", "flexlora", 0.1),
    ],
    ..PLAIN_FIVE
};
/// Ten clients with one class each, with momentum.
pub const MOMENTUM_TEN: Case = Case {
    name: "lora-10-momentum",
    momentum: 0.9,
    methods: [
        ("RoLoRA", "rolora", 0.03),
        ("plain LoRA", "lora", 0.1),
        ("FFA-LoRA", "ffa-lora", 10.0),
        ("FlexLoRA", "flexlora", 0.01),
    ],
    ..PLAIN_TEN
};

/// Rounds whose accuracy is shown.
const SHOWN: [usize; 6] = [1, 4, 10, 20, 40, 60];
/// Number of seeds of each method.
const SEEDS: u32 = 3;

/// Returns a table with the mean accuracy after some rounds, mean and standard deviation over the last ten
/// rounds of all seeds, and the median interference of a round.
pub fn accuracy_table(case: Case, programs: &mut Programs) -> Result<String, String> {
    let heads: String = SHOWN.iter().map(|round| format!(" {round} |")).collect();
    let mut text = format!(
        "| | step |{heads} last ten | interference |\n| --- | --- |{} --- | --- |\n",
        " --- |".repeat(SHOWN.len())
    );
    for (name, algorithm, step) in case.methods {
        let out = format!("{}-{algorithm}", case.name);
        let changes = [
            format!("algorithm.name={algorithm}"),
            format!("algorithm.step_size={step}"),
            format!("algorithm.momentum={}", case.momentum),
            format!("data.partition.clients={}", case.clients),
            format!("data.partition.classes={}", case.classes),
        ];
        let seeds = SEEDS.to_string();
        let mut words = vec!["run", "mnist-lora", "--seeds", &seeds];
        words.extend(changes.iter().flat_map(|change| ["--set", change.as_str()]));
        programs.simulate(&words, &out)?;
        let runs = Rounds::of_seeds(programs, &out, SEEDS)?;
        let values_of = |name: &str| runs.iter().flat_map(|run| run.values_of(name)).collect::<Vec<_>>();
        let accuracies = values_of("accuracy");
        let between = |from: usize, to: usize| -> Vec<f64> {
            accuracies
                .iter()
                .filter(|(round, _)| (from..=to).contains(round))
                .map(|(_, value)| *value)
                .collect()
        };
        let missing = || format!("{out}/rounds.jsonl: a round lacks accuracy or interference");
        let after = |round| Ok(format!(" {:.2} |", mean(&between(round, round)).ok_or_else(missing)?));
        let cells = SHOWN.into_iter().map(after).collect::<Result<String, String>>()?;
        let last = runs.iter().map(Rounds::last).max().unwrap_or_default();
        let last_accuracies = between(last.saturating_sub(9), last);
        let mean_accuracy = mean(&last_accuracies).ok_or_else(missing)?;
        let squares: f64 =
            last_accuracies.iter().map(|value| (value - mean_accuracy) * (value - mean_accuracy)).sum();
        let deviation = (squares / last_accuracies.len().saturating_sub(1) as f64).sqrt();
        let interference: Vec<f64> = values_of("interference").into_iter().map(|(_, value)| value).collect();
        let interference = median(interference).ok_or_else(missing)?;
        let interference = if interference < 1e-12 { "0".to_owned() } else { format!("{interference:.1e}") };
        text +=
            &format!("| {name} | {step} |{cells} {mean_accuracy:.3} ({deviation:.3}) | {interference} |\n");
    }
    Ok(text)
}
