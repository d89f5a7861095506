//! FedPower as devices and server do it, against the same on Gram matrices in f64.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use fedspan_sim::power::{Case, Grams};
use fedspan_sim::run::{Job, Outcome, Unwatched};
use fedspan_sim::scenario::Scenario;

fn scenario(name: &str, changes: &[&str]) -> Scenario {
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    Scenario::parse(name, Scenario::built_in(name).unwrap(), &changes).unwrap()
}

fn run(scenario: &Scenario) -> Outcome {
    Job::prepare(scenario, scenario.seed).unwrap().run(&mut Unwatched).unwrap()
}

fn distances(outcome: &Outcome) -> Vec<f64> {
    outcome.rounds.iter().map(|row| row.scores.unwrap().distance.unwrap()).collect()
}

/// The setting of a scenario.
fn case(scenario: &Scenario) -> Case {
    let power = scenario.algorithm.power.unwrap();
    Case {
        rank: scenario.model.k,
        iterations: power.iterations,
        local_steps: power.local_steps,
        decay: power.decay,
        procrustes: power.procrustes,
        participation: 1.0,
        privacy: None,
        one_shot: false,
    }
}

/// Without noise, samples that stream through a device's two buffers give what Gram matrices do, exchange by exchange.
#[test]
fn devices_agree_with_gram_matrices() {
    for changes in [
        &["algorithm.local_steps=1"][..],
        &["algorithm.local_steps=2"],
        &["algorithm.local_steps=4"],
        &["algorithm.local_steps=4", "algorithm.decay=false"],
        &["algorithm.local_steps=3", "algorithm.procrustes=false"],
    ] {
        let all = [changes, &["data.samples=1000"]].concat();
        let mut scenario = scenario("fedpower", &all);
        scenario.privacy = None;
        let devices = distances(&run(&scenario));
        let grams = case(&scenario).run(&Grams::of(&scenario).unwrap(), scenario.seed).unwrap();
        assert_eq!(devices.len(), grams.len(), "{changes:?}");
        for (round, (device, gram)) in devices.iter().zip(&grams).enumerate() {
            assert!((device - gram).abs() < 1e-4, "{changes:?}, exchange {round}: {device} and {gram}");
        }
        assert!(devices[devices.len() - 1] < 0.02, "{changes:?}: {devices:?}");
    }
}

/// Any participation policy goes with it, and any data: digits, whose principal directions are those of all rows.
#[test]
fn policies_and_data_combine() {
    for changes in [
        &["participation.policy=with-replacement", "participation.draws=12"][..],
        &["participation.policy=fraction", "participation.r=0.5"],
        &["participation.policy=doubling", "participation.n0=5", "fleet.speed=exponential"],
        &["aggregation.rule=projector-geometric-median"],
        &["algorithm.upload=f16", "algorithm.download=f16"],
        &["algorithm.reference=7", "fleet.dropout=0.3"],
    ] {
        let mut scenario = scenario("fedpower", &[changes, &["data.samples=1000"]].concat());
        scenario.privacy = None;
        let outcome = run(&scenario);
        let distances = distances(&outcome);
        assert!(distances[distances.len() - 1] < 0.15, "{changes:?}: {distances:?}");
        assert_eq!(outcome.rounds.len(), 10, "nine exchanges and the start");
    }
    let digits = "[data]\nkind = \"digits\"\n[data.partition]\nkind = \"iid\"\nclients = 10\n[model]\nk = 8\n\
                  target = 4\n[algorithm]\nname = \"fedpower\"\niterations = 40\nlocal_steps = 4\n";
    let outcome = run(&Scenario::parse("digits.toml", digits, &[]).unwrap());
    let distances = distances(&outcome);
    assert_eq!(distances.len(), 11);
    assert!(distances[10] < 0.05, "{distances:?}");
    assert!(outcome.scores.accuracy.unwrap() > 0.5, "heads on principal directions: {:?}", outcome.scores);
}

/// A round without alignment of the two tensors costs twice what one with one step does.
#[test]
fn the_basis_is_sent_where_it_is_needed() {
    let bytes = |changes: &[&str]| {
        let mut scenario = scenario("fedpower", &[changes, &["data.samples=50", "data.clients=3"]].concat());
        scenario.privacy = None;
        let rounds = run(&scenario).rounds;
        (rounds[1].bytes_up, rounds[rounds.len() - 1].bytes_up)
    };
    let (first, last) = bytes(&[]);
    let ratio = first as f64 / last as f64;
    assert!((1.95..2.05).contains(&ratio), "{first} and {last}");
    let (alone, _) = bytes(&["algorithm.procrustes=false"]);
    assert_eq!(alone, last);
}
