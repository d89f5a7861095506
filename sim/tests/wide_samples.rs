//! Tests that samples wider than the largest supported first layer are refused before the first round, for
//! every kind of network.

use crate::common::{empty_directory, random_numbers, write_npz};
use fedspan_sim_core::run::{NoProgress, Outcome, RunError, run};
use fedspan_sim_core::scenario::Scenario;

/// One model of each kind of network.
const MODELS: [&str; 4] = [
    "kind = \"mlp\"\nhidden = [2]",
    "kind = \"cnn\"\nfilters = [1]\nside = 31\npool = 16",
    "kind = \"lstm\"\ncells = 1",
    "kind = \"lora-mlp\"\nrank = 1\nwidth = 2",
];

/// Trains one round on two clients with two samples of `features` values each.
fn run_round(features: u64, model: &str) -> Result<Outcome, RunError> {
    let folder = empty_directory(&format!("wide-samples-{features}"));
    let x = random_numbers(usize::try_from(4 * features).unwrap(), 1);
    let arrays: [(&str, &[u64], &[f64]); 2] =
        [("x", &[2, 2, features], &x), ("y", &[2, 2], &[0.0, 1.0, 1.0, 0.0])];
    write_npz(&folder.join("data.npz"), &arrays);
    let algorithm = if model.contains("lora") { "rolora" } else { "fedrep" };
    let text = format!(
        "[data]\nkind = \"npz\"\npath = \"data.npz\"\ntask = \"classes\"\n[model]\n{model}\n\
         [algorithm]\nname = \"{algorithm}\"\nrounds = 1\nstep_size = 0.01\n"
    );
    let scenario = Scenario::parse(folder.join("my.toml").to_str().unwrap(), &text, &[]).unwrap();
    run(&scenario, 1, &mut NoProgress)
}

#[test]
fn more_than_65534_values_are_refused() {
    for model in MODELS {
        for features in [65_535, 65_536] {
            let reported = run_round(features, model).expect_err(model).to_string();
            assert!(
                reported.contains(&features.to_string()) && reported.contains("at most 655"),
                "{model}: {reported}"
            );
        }
    }
}

/// Samples of the largest supported width are trained.
#[test]
fn samples_of_65534_values_are_accepted() {
    let outcome = run_round(65_534, MODELS[0]).unwrap();
    assert_eq!(outcome.counters.rejected() + outcome.counters.declined, 0);
    assert_eq!(outcome.layers[0].values.len(), 65_535 * 2);
}
