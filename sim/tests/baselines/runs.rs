//! Tests of complete simulations of the baselines: two algorithms have the same results with settings for
//! which they coincide, and every algorithm decreases the loss.

use fedspan_sim_core::run::{NoProgress, Outcome, run};
use fedspan_sim_core::scenario::Scenario;

/// Scenario of the tests.
const TEXT: &str = "evaluate_every = 1\n[data]\nkind = \"digits\"\n[data.partition]\nkind = \"shards\"\n\
                    clients = 6\nclasses = 2\n[split]\ntest = 0.2\n[model]\nkind = \"mlp\"\nhidden = [12]\n\
                    [algorithm]\nname = \"fedavg\"\nrounds = 3\ntuning_epochs = 0\n\
                    [participation]\npolicy = \"fraction\"\nr = 0.5\n";

fn outcome(changes: &[&str]) -> Outcome {
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    run(&Scenario::parse("my.toml", TEXT, &changes).unwrap(), 3, &mut NoProgress).unwrap()
}

/// Asserts that runs with two lists of changes have the same results, bit for bit.
fn assert_same_results(first_outcome: &[&str], second_outcome: &[&str]) {
    let (first_outcome, second_outcome) = (outcome(first_outcome), outcome(second_outcome));
    for (a, b) in first_outcome.rounds.iter().zip(&second_outcome.rounds) {
        assert_eq!((a.round, &a.participants, a.scores), (b.round, &b.participants, b.scores));
    }
    assert_eq!(first_outcome.clients, second_outcome.clients);
    assert_ne!(first_outcome.rounds[0].scores, first_outcome.rounds.last().unwrap().scores);
}

#[test]
fn fedprox_without_proximal_term_is_fedavg() {
    assert_same_results(&["algorithm.name=fedprox", "algorithm.pull=0"], &[]);
}

#[test]
fn first_scaffold_round_equals_fedavg_without_momentum() {
    let one_round = "algorithm.rounds=1";
    assert_same_results(&["algorithm.name=scaffold", one_round], &["algorithm.momentum=0", one_round]);
}

#[test]
fn zero_coupling_equals_local_only() {
    let local_only = ["algorithm.name=local-only"];
    assert_same_results(&["algorithm.name=l2gd", "algorithm.part=0"], &local_only);
    assert_same_results(&["algorithm.name=fed-mtl", "algorithm.pull=0"], &local_only);
}

#[test]
fn l2gd_learns() {
    let changes =
        ["algorithm.name=l2gd", "algorithm.l2gd.coin=0.5", "algorithm.rounds=8", "participation.r=1"];
    let ended = outcome(&changes);
    let (first, last) = (ended.rounds[0].scores.unwrap(), ended.scores);
    assert!(last.loss.unwrap() < 0.9 * first.loss.unwrap(), "{first:?} {last:?}");
    assert_eq!(ended.counters.rejected(), 0);
}

#[test]
fn every_algorithm_learns() {
    let names =
        ["fedprox", "scaffold", "perfedavg", "perfedavg-hf", "ditto", "apfl", "l2gd", "fed-mtl", "ditto+ft"];
    for name in names {
        let algorithm = format!("algorithm.name={name}");
        let ended = outcome(&[&algorithm, "algorithm.rounds=8", "participation.r=1"]);
        let (first, last) = (ended.rounds[0].scores.unwrap(), ended.scores);
        assert!(last.loss.unwrap() < 0.9 * first.loss.unwrap(), "{name}: {first:?} {last:?}");
        assert_eq!(ended.counters.rejected(), 0, "{name}");
    }
}
