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
