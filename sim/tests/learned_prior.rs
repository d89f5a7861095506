//! Tests of simulated fleets that learn a prior of heads.

use fedspan_sim_core::run::{NoProgress, Outcome, run};
use fedspan_sim_core::scenario::Scenario;

fn outcome(name: &str, changes: &[&str]) -> Outcome {
    let learned = ["algorithm.name=\"learned-prior\"", "algorithm.learned-prior.second_moments=true"];
    let changes: Vec<String> = learned.iter().chain(changes).map(|change| (*change).to_owned()).collect();
    let text = Scenario::built_in(name).unwrap();
    let scenario = Scenario::parse(name, text, &changes).unwrap();
    run(&scenario, scenario.seed, &mut NoProgress).unwrap()
}

/// Rounds that choose between priors ask all devices of their group, the others as many as the policy says.
#[test]
fn priors_are_compared_on_the_same_devices() {
    let rate = "participation={ policy = \"fraction\", r = 0.1 }";
    let rounds = ["algorithm.learned-prior.groups=2", "algorithm.learned-prior.refining_rounds=3"];
    let outcome = outcome("digits", &[&[rate][..], &rounds].concat());
    let counts: Vec<usize> =
        outcome.rounds.iter().filter(|row| row.round > 0).map(|row| row.participants.len()).collect();
    // Second moments of all 20, then six structures of two groups.
    assert_eq!(counts[..13], [20, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10]);
    // Learning: four chains of seven rounds, with the policy's part of the other group.
    assert!(counts[13..41].iter().all(|count| *count == 1), "{counts:?}");
    assert_eq!(counts[41..45], [10; 4]);
    // Refinement: three rounds of each chain.
    assert!(counts[45..57].iter().all(|count| *count == 1), "{counts:?}");
    assert_eq!(counts[57..61], [10; 4]);
    assert!(counts[61..].iter().all(|count| *count == 2), "{counts:?}");
    assert_eq!(counts.len(), 66);
}

/// The figures of the shared model are those of the mean head, which newcomers have before they label a sample; without second moments
/// the mean is zero, and there are none.
#[test]
fn mean_heads_have_figures() {
    let short =
        ["split.holdout_clients=5", "data.scale=\"fleet\"", "algorithm.learned-prior.refining_rounds=0"];
    let with_mean = outcome("digits", &short);
    let prior = with_mean.head_prior.expect("a prior");
    assert!(prior.mean.norm() > 0.0);
    let (without_labels, with_labels) = (
        with_mean.newcomers_global.accuracy.expect("figures without labels"),
        with_mean.rounds.last().and_then(|row| row.scores.as_ref()?.accuracy_new_clients).expect("figures"),
    );
    assert!(without_labels > 0.5 && without_labels < with_labels, "{without_labels} {with_labels}");
    assert!(with_mean.scores.accuracy_global.expect("figures") < with_mean.scores.accuracy.expect("figures"));
    let without_moments = [&short[..], &["algorithm.learned-prior.second_moments=false"]].concat();
    let without_mean = outcome("digits", &without_moments);
    assert_eq!(without_mean.newcomers_global.accuracy, None);
    assert_eq!(without_mean.scores.accuracy_global, None);
    assert_eq!(without_mean.head_prior.expect("a prior").mean.norm(), 0.0);
}

/// A start from data has no effect, since the first rounds of a learned prior replace it.
#[test]
fn start_from_data_has_no_effect() {
    let short = ["algorithm.learned-prior.groups=2", "data.clients=6", "data.test_samples=5"];
    let [random, power, moments] = ["random", "power", "moments"].map(|init| {
        let init = format!("model.init=\"{init}\"");
        outcome("linear", &[&short[..], &[&init]].concat()).scores
    });
    assert_eq!(random, power);
    assert_eq!(random, moments);
}

/// Networks: all layers are trained first, then the fleet learns the prior of the last one. The body stays as it was, and heads have a
/// row for the biases.
#[test]
fn heads_of_networks_have_a_prior() {
    let short = [
        "split.holdout_clients=5",
        "split.labels_per_class=1",
        "algorithm.rounds=40",
        "algorithm.learned-prior.groups=2",
        "algorithm.learned-prior.refining_rounds=2",
    ];
    let of_prior = 1 + 6 * 2 + 7 * 4 + 4 + 2 * 4 + 4 + 5;
    let trained = outcome("digits-network", &short);
    let (body, inputs, outputs) = (2, 32, 10);
    assert_eq!(trained.rounds.last().expect("rounds").round, 40 + of_prior);
    // The policy asks 3 of 15 for training, and all of them for their second moments.
    let participants = |round: usize| trained.rounds[round].participants.len();
    assert_eq!((participants(40), participants(41)), (3, 15));
    assert_eq!(trained.layers.len(), body);
    assert!(trained.representation.is_none() && trained.tuned.is_empty());
    let prior = trained.head_prior.as_ref().expect("a prior");
    assert_eq!(prior.mean.shape(), (inputs + 1, outputs));
    assert_eq!(prior.covariance.shape(), (inputs + 1, inputs + 1));
    assert!(trained.clients.iter().all(|client| client.head.len() == (inputs + 1) * outputs));
    let newcomers = |outcome: &Outcome| {
        outcome.rounds.last().and_then(|row| row.scores.as_ref()?.accuracy_new_clients).expect("figures")
    };
    let without_labels = trained.newcomers_global.accuracy.expect("figures without labels");
    let (own, common) = (trained.scores.accuracy.expect("figures"), trained.scores.accuracy_global);
    assert!(without_labels > 0.5 && without_labels < newcomers(&trained), "{without_labels}");
    assert!(common.expect("figures") < own && own > 0.95, "{own} {common:?}");
    // The body is FedAvg's after as many rounds.
    let fedavg = outcome("digits-network", &[&short[..3], &["algorithm.name=\"fedavg\""]].concat());
    for (layer, expected) in trained.layers.iter().zip(&fedavg.layers) {
        assert_eq!((layer.rows, layer.cols, &layer.values), (expected.rows, expected.cols, &expected.values));
    }
    assert!(newcomers(&trained) > newcomers(&fedavg), "{} {}", newcomers(&trained), newcomers(&fedavg));
}

/// Settings that a network with a learned prior cannot have are refused with their key.
#[test]
fn impossible_settings_of_networks_are_refused() {
    let refusal = |changes: &[&str]| {
        let learned = ["algorithm.name=\"learned-prior\"", "algorithm.learned-prior.second_moments=true"];
        let changes: Vec<String> = learned.iter().chain(changes).map(|change| (*change).to_owned()).collect();
        let text = Scenario::built_in("digits-network").unwrap();
        match Scenario::parse("digits-network", text, &changes) {
            Err(problem) => problem.to_string(),
            Ok(scenario) => run(&scenario, 1, &mut NoProgress).expect_err("a refusal").to_string(),
        }
    };
    for (changes, parts) in [
        (&["algorithm.download=i8"][..], &["download", "sends \"f32\" only"][..]),
        (&["algorithm.name=\"learned-prior+ft\""], &["name", "without tuning"]),
        (&["model.hidden=[400]"], &["400 inputs", "at most 65535", "second_moments = false"]),
        (&["model.hidden=[3200, 256]"], &["do not fit 256 chunks", "smaller layers"]),
        (&["stop.accuracy=0.9"], &["stop.accuracy", "only after its last round"]),
        (&["stop.change=0.1"], &["stop.change", "only after its last round"]),
        (&["algorithm.learned-prior.groups=1"], &["groups", "2 to 16"]),
        (&["algorithm.learned-prior.epochs=1"], &["epochs", "unknown key"]),
    ] {
        let message = refusal(changes);
        assert!(parts.iter().all(|part| message.contains(part)), "{changes:?}: {message}");
    }
}

/// A rejection in a round about the prior says why; in a round that trains the network it may be a divergence.
#[test]
fn rejections_in_rounds_of_the_prior_are_no_divergence() {
    let text = Scenario::built_in("digits-network").unwrap();
    let changes =
        ["algorithm.name=\"learned-prior\"", "algorithm.rounds=3", "limits.norm=15"].map(str::to_owned);
    let scenario = Scenario::parse("digits-network", text, &changes).unwrap();
    let message = run(&scenario, 1, &mut NoProgress).expect_err("a rejection").to_string();
    assert!(message.contains("above the bound 1.5e1"), "{message}");
}
