//! What `compare` shows of networks: times to accuracies, spread over folds, clients that come after training.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use common::{code, directory, errors, program, text};
use fedspan_sim::run::{Outcome, Unwatched, run};
use fedspan_sim::scenario::Scenario;
use serde_json::Value;

const SMALL: [&str; 4] = ["--set", "algorithm.rounds=6", "--set", "model.hidden=[8]"];

fn outcome(changes: &[&str]) -> Outcome {
    let small = ["model.hidden=[16]", "algorithm.rounds=6", "evaluate_every=1"];
    let changes: Vec<String> = small.iter().chain(changes).map(|change| (*change).to_owned()).collect();
    let text = Scenario::built_in("digits-network").unwrap();
    run(&Scenario::parse("digits-network", text, &changes).unwrap(), 1, &mut Unwatched).unwrap()
}

fn accuracies(outcome: &Outcome) -> Vec<f64> {
    outcome.rounds.iter().map(|row| row.scores.unwrap().accuracy.unwrap()).collect()
}

/// With no epochs on the heads `+ft` is the method itself; with some it is ahead after every round, and trains the same.
#[test]
fn what_is_tuned_is_scored_after_every_round() {
    let plain = outcome(&["algorithm.name=\"fedavg\""]);
    let none = outcome(&["algorithm.name=\"fedavg+ft\"", "algorithm.tuning_epochs=0"]);
    assert_eq!(accuracies(&plain), accuracies(&none));
    let tuned = outcome(&["algorithm.name=\"fedavg+ft\""]);
    assert_eq!(plain.layers, tuned.layers);
    for (round, (tuned, plain)) in accuracies(&tuned).iter().zip(accuracies(&plain)).enumerate() {
        assert!(*tuned > plain, "round {round}: {tuned}, {plain}");
    }
}

fn reached(place: &str, more: &[&str]) -> Vec<Value> {
    let place = directory(place);
    let words = [
        "compare",
        "srpfl-network,participation.stage_rounds=1",
        "srpfl-network,participation={ policy = \"full\" }",
        "--algorithms",
        "fedavg",
        "--set",
        "data.kind=\"digits\"",
        "--set",
        "evaluate_every=1",
        "--reach",
        "0.5,1",
        "--format",
        "json",
    ];
    let ran = program(&place, &[&words[..], &SMALL, more].concat());
    assert_eq!(code(&ran), 0, "{}", errors(&ran));
    let all: Value = serde_json::from_str(&text(&ran)).unwrap();
    all["reached"].as_array().unwrap().clone()
}

/// Times at a cost of communication are those of a run that has it.
#[test]
fn communication_is_added_as_if_it_had_been_there() {
    let at_once = reached("comparisons-at-once", &["--communication", "0,10"]);
    let with = reached("comparisons-with", &["--set", "fleet.communication=10"]);
    let at_ten: Vec<&Value> = at_once.iter().filter(|one| one["communication"] == 10.0).collect();
    assert_eq!((at_once.len(), at_ten.len(), with.len()), (8, 4, 4));
    for (one, other) in at_ten.iter().zip(&with) {
        for name in ["label", "accuracy", "target"] {
            assert_eq!(one[name], other[name]);
        }
        match (one["time"].as_f64(), other["time"].as_f64()) {
            (Some(a), Some(b)) => assert!((a - b).abs() < 1e-6 * b.max(1.0), "{a}, {b}"),
            (a, b) => assert_eq!(a, b),
        }
    }
    // Only what doubles is compared with what waits.
    assert!(
        at_once.iter().all(|one| !one["label"].as_str().unwrap().contains("full") || one["gain"].is_null())
    );
}

#[test]
fn what_would_be_another_run_at_another_cost_is_refused() {
    let place = directory("comparisons-refused");
    let digits = "data.kind=\"digits\"";
    for (words, says) in [
        (&["compare", "stragglers", "--reach", "0.9", "--communication", "1"][..], "adaptive"),
        (
            &[
                "compare",
                "srpfl-network",
                "--set",
                digits,
                "--reach",
                "0.9",
                "--communication",
                "1",
                "--set",
                "fleet.dropout=0.1",
            ],
            "fleet.dropout",
        ),
        (&["compare", "srpfl-network", "--reach", "1.5"], "above 0 to 1"),
        (&["compare", "srpfl-network", "--communication", "1"], "--reach"),
        (&["compare", "digits-network", "--over", "seed=1"], "--algorithms"),
        (&["compare", "digits-network", "--algorithms", "fedrep", "--over", "seed"], "KEY=VALUE,VALUE"),
        (&["compare", "digits-network", "--algorithms", "fedrep", "--over", "seed=1,,2"], "KEY=VALUE,VALUE"),
    ] {
        let ran = program(&place, words);
        assert_eq!(code(&ran), 2, "{words:?}");
        assert!(errors(&ran).contains(says), "{words:?}: {}", errors(&ran));
    }
}

/// Folds are like seeds: one cell for all of them. Who came after training has a table of their own.
#[test]
fn a_cell_is_over_all_values_of_a_key() {
    let place = directory("comparisons-over");
    let words = [
        "compare",
        "watch-network",
        "watch-network,split.labels_per_class=2",
        "--algorithms",
        "fedrep,lg-fedavg",
        "--over",
        "split.fold=0,1",
        "--seeds",
        "2",
    ];
    let ran = program(&place, &[&words[..], &SMALL].concat());
    assert_eq!(code(&ran), 0, "{}", errors(&ran));
    let shown = text(&ran);
    assert_eq!(shown.matches("4 runs").count(), 2, "{shown}");
    let after = shown.split("came after training").nth(1).unwrap();
    let row = |name: &str| after.lines().find(|line| line.contains(name)).unwrap().to_owned();
    assert_eq!(row("fedrep").matches("+-").count(), 2, "{shown}");
    assert_eq!(row("lg-fedavg").matches("+-").count(), 2, "{shown}");
    assert!(!shown.contains("fold"), "{shown}");
}
