//! Tests of fleets that solve the normal equations only (`fleet.head_solver`): such devices decline what does not determine a head,
//! and otherwise give the results of the others.

use crate::common::{empty_directory, exit_code, run_program, stderr_text};
use fedspan_sim_core::run::{NoProgress, Outcome, run};
use fedspan_sim_core::scenario::Scenario;

fn outcome(name: &str, changes: &[&str]) -> Outcome {
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    let scenario = Scenario::parse(name, Scenario::built_in(name).unwrap(), &changes).unwrap();
    run(&scenario, 7, &mut NoProgress).unwrap()
}

const NORMAL: &str = "fleet.head_solver=\"normal-equations\"";

/// With ridges in training and for final heads nothing is declined, and the representation differs by roundings.
#[test]
fn fleets_with_a_ridge_train_alike() {
    for (name, changes) in [
        ("linear", &["algorithm.rounds=30", "algorithm.final_ridge=0.01"][..]),
        ("new-clients", &["algorithm.rounds=30", "algorithm.final_ridge=0.01"]),
        ("linear", &["algorithm.rounds=30", "algorithm.final_ridge=0.01", "algorithm.numeric=i16"]),
    ] {
        let every = outcome(name, changes);
        let lean = outcome(name, &[changes, &[NORMAL]].concat());
        assert_eq!(lean.counters.declined, 0, "{name}");
        assert!(lean.warnings.is_empty(), "{:?}", lean.warnings);
        let (lean, every) = (lean.representation.unwrap(), every.representation.unwrap());
        let difference = (lean - every).amax();
        assert!(difference < 1e-5, "{name}: {difference:e}");
    }
}

/// Clients with fewer samples than columns of the representation decline every round without a ridge, and are counted and named.
#[test]
fn clients_with_too_few_samples_decline() {
    let few = [
        "data.samples=5",
        "data.sizes=log-normal",
        "model.k=3",
        "algorithm.rounds=5",
        "algorithm.final_ridge=0",
    ];
    let every = outcome("linear", &few);
    assert_eq!(every.counters.declined, 0);
    let lean = outcome("linear", &[&few[..], &[NORMAL]].concat());
    assert!(lean.counters.declined > 0);
    let without: Vec<_> = lean.clients.iter().filter(|client| client.undetermined).collect();
    assert!((1..lean.clients.len()).contains(&without.len()), "{} of {}", without.len(), lean.clients.len());
    assert!(without.iter().all(|client| client.head.iter().all(|w| *w == 0.0) && client.loss.is_finite()));
    let warning = lean.warnings.iter().find(|warning| warning.contains("have no head")).unwrap();
    assert!(warning.contains("fleet.head_solver = \"normal-equations\""), "{warning}");
    // A ridge for final heads only leaves declined rounds, which are not hidden.
    let changes = ["algorithm.final_ridge=0.1", NORMAL];
    let lean = outcome("linear", &[&few[..4], &changes].concat());
    assert!(lean.counters.declined > 0 && lean.clients.iter().all(|client| !client.undetermined));
    assert!(
        lean.warnings.iter().any(|warning| warning.contains("rounds were declined")),
        "{:?}",
        lean.warnings
    );
    // A ridge in training and at the end determines every head.
    let ridge = ["algorithm.ridge=0.1", "algorithm.final_ridge=0.1"];
    let lean = outcome("linear", &[&few[..], &ridge, &[NORMAL]].concat());
    assert_eq!(lean.counters.declined, 0);
    assert!(lean.clients.iter().all(|client| !client.undetermined));
}

/// A device without the solver of minimum norm cannot choose a ridge either: its head takes the ridge of the fleet.
#[test]
fn lean_devices_do_not_choose_ridges() {
    let outcome = outcome("demo", &["algorithm.rounds=20", NORMAL]);
    assert!(outcome.scores.accuracy.unwrap() > 0.8);
    assert!(outcome.ridge.is_none_or(|ridge| ridge.devices == 0));
}

#[test]
fn key_is_for_linear_federated_models() {
    let directory = empty_directory("head-solver");
    for (name, change) in [("mnist", NORMAL), ("linear", "fleet.head_solver=\"cholesky\"")] {
        let output = run_program(&directory, &["run", name, "--set", change]);
        assert_eq!(exit_code(&output), 2);
        let text = stderr_text(&output);
        assert!(text.contains("fleet.head_solver"), "{text}");
    }
}
