//! Curves of newcomers: after each round, what clients would have that joined now.

use fedspan_sim_core::run::{NoProgress, Outcome, run};
use fedspan_sim_core::scenario::Scenario;

fn outcome(name: &str, changes: &[&str], rounds: u32) -> Outcome {
    let rounds = format!("algorithm.rounds={rounds}");
    let changes: Vec<String> =
        changes.iter().copied().chain([rounds.as_str(), "evaluate_every=1"]).map(str::to_owned).collect();
    let text = Scenario::built_in(name).unwrap();
    run(&Scenario::parse(name, text, &changes).unwrap(), 5, &mut NoProgress).unwrap()
}

/// Metrics of newcomers after a round.
fn after(outcome: &Outcome, round: u32) -> (Option<f64>, Option<f64>) {
    let row = outcome.rounds.iter().find(|row| row.round == round).unwrap();
    let scores = row.scores.unwrap();
    (scores.accuracy_new_clients, scores.test_mse_new_clients)
}

/// The curve after round r ends a run of r rounds: same frames, same arithmetic.
#[track_caller]
fn check(name: &str, changes: &[&str]) {
    let long = outcome(name, changes, 6);
    for rounds in [1, 3, 5] {
        let short = outcome(name, changes, rounds);
        assert_eq!(after(&long, rounds), after(&short, rounds), "{name} {changes:?}, round {rounds}");
        assert_ne!(after(&long, rounds), (None, None), "{name} {changes:?}");
    }
    assert_ne!(after(&long, 1), after(&long, 6), "{name} {changes:?}: the curve is constant");
}

#[test]
fn linear_models() {
    check("new-clients", &[]);
    check("new-clients", &["algorithm.numeric=i16"]);
    check("new-clients", &["algorithm.name=gd-gd", "model.init=random", "data.scale=fleet"]);
    check("new-clients", &["algorithm.download=f16", "algorithm.upload=i8"]);
}

#[test]
fn networks() {
    for algorithm in ["fedrep", "fedper", "fedavg+ft", "scaffold", "apfl", "l2gd"] {
        check("watch-network", &[&format!("algorithm.name={algorithm}"), "model.hidden=[8]"]);
    }
    check("watch-network", &["data.scale=fleet", "algorithm.download=f16", "model.hidden=[8]"]);
}

/// Newcomers that train a network of their own are scored at the end only.
#[test]
fn newcomers_without_a_body_have_no_curve() {
    for algorithm in ["lg-fedavg", "local-only"] {
        let name = format!("algorithm.name={algorithm}");
        let outcome = outcome("watch-network", &[&name, "model.hidden=[8]"], 4);
        assert_eq!(after(&outcome, 2), (None, None));
        assert!(after(&outcome, 4).0.is_some(), "the last round has the final metrics");
    }
}

/// Methods without rounds have one value, which a report draws as a level line.
#[test]
fn baselines_have_a_level() {
    for (name, scenario, built_in) in [
        ("local-only", "digits", "digits"),
        ("pooled", "digits", "digits"),
        ("pooled", "new-clients", "new-clients"),
    ] {
        let text = Scenario::built_in(built_in).unwrap();
        let changes = [format!("algorithm={{ name = \"{name}\" }}"), "model={ k = 1 }".to_owned()];
        let outcome = run(&Scenario::parse(scenario, text, &changes).unwrap(), 5, &mut NoProgress).unwrap();
        let (accuracy, test_mse) = after(&outcome, 0);
        let scores: Vec<f64> =
            outcome.newcomers.iter().filter_map(|score| score.accuracy.or(score.test_mse)).collect();
        let mean = scores.iter().sum::<f64>() / scores.len() as f64;
        let found = accuracy.or(test_mse);
        assert_eq!(found.is_some(), !scores.is_empty(), "{name} on {scenario}");
        assert!(found.is_none_or(|found| (found - mean).abs() < 1e-12), "{name} on {scenario}");
    }
}
