//! Tests of FedPower on devices and server: comparison with the same computation on Gram matrices in f64.

use fedspan_experiments::power::{Case, Grams, PrivacyTarget};
use fedspan_sim_core::run::{Job, NoProgress, Outcome};
use fedspan_sim_core::scenario::Scenario;

fn scenario(name: &str, changes: &[&str]) -> Scenario {
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    Scenario::parse(name, Scenario::built_in(name).unwrap(), &changes).unwrap()
}

fn run(scenario: &Scenario) -> Outcome {
    Job::prepare(scenario, scenario.seed).unwrap().run(&mut NoProgress).unwrap()
}

/// Distances at the start and after each exchange.
fn distances(outcome: &Outcome) -> Vec<f64> {
    outcome.rounds.iter().map(|row| row.scores.unwrap().distance.unwrap()).collect()
}

/// FedPower setting of a scenario, for the computation on Gram matrices.
fn case(scenario: &Scenario) -> Case {
    let power = scenario.algorithm.power().unwrap();
    Case {
        rank: scenario.model.k,
        iterations: power.iterations,
        local_steps: power.local_steps,
        decay: power.decay,
        procrustes: power.procrustes,
        participation: 1.0,
        privacy: scenario.privacy.map(|privacy| PrivacyTarget {
            epsilon: privacy.epsilon.get(),
            delta: privacy.delta.get(),
            calibration: privacy.calibration,
        }),
        one_shot: false,
    }
}

/// Without noise, devices that stream their samples through two buffers reach the same distance as Gram
/// matrices after every exchange.
#[test]
fn devices_agree_with_gram_matrices() {
    for changes in [
        &["algorithm.local_steps=1"][..],
        &["algorithm.local_steps=2"],
        &["algorithm.local_steps=4"],
        &["algorithm.local_steps=4", "algorithm.decay=false"],
        &["algorithm.local_steps=3", "algorithm.procrustes=false"],
    ] {
        let all_changes = [changes, &["data.samples=1000"]].concat();
        let mut scenario = scenario("fedpower", &all_changes);
        scenario.privacy = None;
        let devices = distances(&run(&scenario));
        let grams = case(&scenario).run(&Grams::from_scenario(&scenario).unwrap(), scenario.seed).unwrap();
        assert_eq!(devices.len(), grams.len(), "{changes:?}");
        for (round, (device, gram)) in devices.iter().zip(&grams).enumerate() {
            assert!((device - gram).abs() < 1e-4, "{changes:?}, exchange {round}: {device} and {gram}");
        }
        assert!(devices[devices.len() - 1] < 0.02, "{changes:?}: {devices:?}");
    }
}

/// With noise from the same seeds, the distances are equal as well, although devices add the noise as
/// integers and the Gram matrices as floating-point numbers.
#[test]
fn private_devices_agree_with_gram_matrices() {
    for (changes, close) in [
        (&["privacy.epsilon=10"][..], 1e-4),
        (&["privacy.epsilon=10", "privacy.calibration=paper", "algorithm.local_steps=4"], 1e-4),
        (&["privacy.epsilon=4", "algorithm.local_steps=1"], 1e-4),
        // A single column converges slowly, so early rounding errors influence the distance for many
        // exchanges.
        (&["privacy.epsilon=10", "data.k=1", "model.k=1"], 5e-4),
    ] {
        let scenario = scenario("fedpower", &[changes, &["data.samples=2000"]].concat());
        assert_devices_agree(&scenario, close);
    }
}

/// Compares devices and Gram matrices on Model I of the paper in full size: two million rows, 800 MB. The
/// test takes one to two minutes.
#[test]
#[ignore = "gigabytes"]
fn devices_agree_with_gram_matrices_at_full_size() {
    assert_devices_agree(&scenario("fedpower", &["data.samples=100000"]), 1e-4);
}

/// Checks that the distances of devices and Gram matrices agree at every exchange, and that they differ from
/// the distances of a run without noise.
fn assert_devices_agree(scenario: &Scenario, close: f64) {
    let fleet = Grams::from_scenario(scenario).unwrap();
    let devices = distances(&run(scenario));
    let grams = case(scenario).run(&fleet, scenario.seed).unwrap();
    assert_eq!(devices.len(), grams.len());
    let largest_difference = devices.iter().zip(&grams).map(|(device, gram)| (device - gram).abs());
    let largest_difference = largest_difference.fold(0.0, f64::max);
    println!("devices {devices:?}, apart by {largest_difference:e}");
    assert!(largest_difference < close, "apart by {largest_difference}: {devices:?} and {grams:?}");
    let without_noise = Case { privacy: None, ..case(scenario) }.run(&fleet, scenario.seed).unwrap();
    let last = devices.len() - 1;
    assert!((devices[last] - without_noise[last]).abs() > 1e-3, "the products have no noise");
}

/// The report contains the spent privacy budget: all of epsilon with tight calibration and full
/// participation, less otherwise.
#[test]
fn privacy_account_is_reported() {
    let epsilon = |changes: &[&str]| {
        let scenario = scenario("fedpower", &[changes, &["data.samples=300", "privacy.epsilon=2"]].concat());
        let outcome = run(&scenario);
        let privacy = outcome.privacy.unwrap();
        assert_eq!(privacy.delta, 1e-4);
        assert_eq!(privacy.devices.len(), 20);
        let max_epsilon = privacy.devices.values().copied().fold(0.0, f64::max);
        assert_eq!(privacy.epsilon, max_epsilon);
        privacy
    };
    let tight_privacy = epsilon(&[]);
    assert!(tight_privacy.epsilon <= 2.0 && tight_privacy.epsilon > 1.999, "{}", tight_privacy.epsilon);
    assert!(tight_privacy.devices.values().all(|each| *each == tight_privacy.epsilon));
    let paper = epsilon(&["privacy.calibration=paper"]);
    assert!(paper.epsilon < 0.5, "{}", paper.epsilon);
    let sampled_epsilon = epsilon(&["participation.policy=with-replacement", "participation.draws=8"]);
    assert!(
        sampled_epsilon.devices.values().any(|each| *each < 1.9),
        "no device spent less: {sampled_epsilon:?}"
    );
    let mut open = scenario("fedpower", &["data.samples=300"]);
    open.privacy = None;
    assert!(run(&open).privacy.is_none());
}

/// Impossible privacy guarantees are refused before anything is computed.
#[test]
fn impossible_privacy_guarantees_are_refused() {
    let reported = |changes: &[&str]| {
        let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
        match Scenario::parse("fedpower", Scenario::built_in("fedpower").unwrap(), &changes) {
            Err(problem) => problem.to_string(),
            Ok(scenario) => Job::prepare(&scenario, 1).unwrap_err().to_string(),
        }
    };
    for (changes, expected) in [
        (&["privacy.epsilon=0"][..], "privacy.epsilon: found 0, allowed: a number from"),
        (&["privacy.epsilon=-3"], "privacy.epsilon: found -3, allowed: a number from"),
        (&["privacy.delta=1"], "privacy.delta: found 1, allowed: a number from"),
        (&["privacy.delta=0"], "privacy.delta: found 0, allowed: a number from"),
        (&["privacy.epsilon=10000", "data.samples=10"], "allowed: 0.5 to 4096 times that"),
        (
            &["privacy.calibration=loose"],
            "privacy.calibration: found \"loose\", allowed: \"tight\", \"paper\"",
        ),
        (&["model.k=101"], "model.k: found 101"),
        (&["participation.policy=with-replacement", "participation.draws=0"], "participation.draws: found 0"),
        (&["algorithm.iterations=0"], "algorithm.iterations: found 0"),
        (&["algorithm.local_steps=11"], "algorithm.local_steps: found 11, allowed: at most the 10"),
    ] {
        let reported = reported(changes);
        assert!(reported.contains(expected), "{changes:?}: {reported}");
    }
    let linear = "[data]\nkind = \"linear-regression\"\nclients = 5\nd = 4\nk = 1\nsamples = 3\n[model]\nk = 1\n\
                  [algorithm]\nname = \"fedrep\"\nrounds = 1\nstep_size = 0.1\n[privacy]\nepsilon = 1.0\ndelta = 1e-5\n";
    let reported = Scenario::parse("my.toml", linear, &[]).unwrap_err().to_string();
    assert!(reported.contains("privacy.clip: missing"), "{reported}");
}

/// FedPower runs with every participation policy and every kind of data.
#[test]
fn policies_and_data_kinds_combine() {
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
        assert_eq!(
            outcome.rounds.len(),
            10,
            "the number of rounds is not that of nine exchanges and the start"
        );
    }
    let digits = "[data]\nkind = \"digits\"\n[data.partition]\nkind = \"iid\"\nclients = 10\n[model]\nk = 8\n\
                  target = 4\n[algorithm]\nname = \"fedpower\"\niterations = 40\nlocal_steps = 4\n";
    let outcome = run(&Scenario::parse("digits.toml", digits, &[]).unwrap());
    let distances = distances(&outcome);
    assert_eq!(distances.len(), 11);
    assert!(distances[10] < 0.05, "{distances:?}");
    assert!(
        outcome.scores.accuracy.unwrap() > 0.5,
        "heads on principal directions are inaccurate: {:?}",
        outcome.scores
    );
}

/// A round that sends only the product, without a basis for alignment, sends half as many bytes as a round
/// that sends both.
#[test]
fn basis_is_sent_only_for_alignment() {
    let bytes = |changes: &[&str]| {
        let mut scenario = scenario("fedpower", &[changes, &["data.samples=50", "data.clients=3"]].concat());
        scenario.privacy = None;
        let rounds = run(&scenario).rounds;
        (rounds[1].bytes_up, rounds[rounds.len() - 1].bytes_up)
    };
    let (first, last) = bytes(&[]);
    let ratio = first as f64 / last as f64;
    assert!((1.95..2.05).contains(&ratio), "{first} and {last}");
    let (without_procrustes, _) = bytes(&["algorithm.procrustes=false"]);
    assert_eq!(without_procrustes, last);
}

/// Every power iteration takes one computation time, and every exchange additionally takes
/// `fleet.communication`.
#[test]
fn run_time_is_iterations_plus_exchanges() {
    for (steps, decay, exchanges) in [(1, "false", 10), (2, "false", 5), (4, "false", 3), (4, "true", 4)] {
        let steps = format!("algorithm.local_steps={steps}");
        let decay = format!("algorithm.decay={decay}");
        let changes = ["data.samples=100", "fleet.communication=7", &steps, &decay];
        let mut scenario = scenario("fedpower", &changes);
        scenario.privacy = None;
        let outcome = run(&scenario);
        let last = outcome.rounds.last().unwrap();
        assert_eq!((last.round, last.time), (exchanges, 10.0 + 7.0 * f64::from(exchanges)), "{changes:?}");
    }
}
