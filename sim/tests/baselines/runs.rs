//! Complete simulations: equal figures, to the bit, for algorithms that coincide.

use fedspan_sim_core::run::{NoProgress, Outcome, run};
use fedspan_sim_core::scenario::Scenario;

const TEXT: &str = "evaluate_every = 1\n[data]\nkind = \"digits\"\n[data.partition]\nkind = \"shards\"\n\
                    clients = 6\nclasses = 2\n[split]\ntest = 0.2\n[model]\nkind = \"mlp\"\nhidden = [12]\n\
                    [algorithm]\nname = \"fedavg\"\nrounds = 3\ntuning_epochs = 0\n\
                    [participation]\npolicy = \"fraction\"\nr = 0.5\n";

fn outcome(changes: &[&str]) -> Outcome {
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    run(&Scenario::parse("my.toml", TEXT, &changes).unwrap(), 3, &mut NoProgress).unwrap()
}

fn same(ours: &[&str], theirs: &[&str]) {
    let (ours, theirs) = (outcome(ours), outcome(theirs));
    for (a, b) in ours.rounds.iter().zip(&theirs.rounds) {
        assert_eq!((a.round, &a.participants, a.scores), (b.round, &b.participants, b.scores));
    }
    assert_eq!(ours.clients, theirs.clients);
    assert_ne!(ours.rounds[0].scores, ours.rounds.last().unwrap().scores);
}

#[test]
fn fedprox_without_proximal_term_is_fedavg() {
    same(&["algorithm.name=fedprox", "algorithm.pull=0"], &[]);
}

#[test]
fn first_scaffold_run_round_is_fedavg_without_momentum() {
    let once = "algorithm.rounds=1";
    same(&["algorithm.name=scaffold", once], &["algorithm.momentum=0", once]);
}

#[test]
fn zero_coupling_run_is_local_only() {
    let alone = ["algorithm.name=local-only"];
    same(&["algorithm.name=l2gd", "algorithm.part=0"], &alone);
    same(&["algorithm.name=fed-mtl", "algorithm.pull=0"], &alone);
}

#[test]
fn l2gd_learns() {
    let coin = ["algorithm.name=l2gd", "algorithm.l2gd.coin=0.5", "algorithm.rounds=8", "participation.r=1"];
    let ended = outcome(&coin);
    let (first, last) = (ended.rounds[0].scores.unwrap(), ended.scores);
    assert!(last.loss.unwrap() < 0.9 * first.loss.unwrap(), "{first:?} {last:?}");
    assert_eq!(ended.counters.rejected(), 0);
}

#[test]
fn every_algorithm_learns() {
    let names =
        ["fedprox", "scaffold", "perfedavg", "perfedavg-hf", "ditto", "apfl", "l2gd", "fed-mtl", "ditto+ft"];
    for name in names {
        let named = format!("algorithm.name={name}");
        let ended = outcome(&[&named, "algorithm.rounds=8", "participation.r=1"]);
        let (first, last) = (ended.rounds[0].scores.unwrap(), ended.scores);
        assert!(last.loss.unwrap() < 0.9 * first.loss.unwrap(), "{name}: {first:?} {last:?}");
        assert_eq!(ended.counters.rejected(), 0, "{name}");
    }
}
