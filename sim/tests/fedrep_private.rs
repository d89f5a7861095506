//! Tests of FedRep with differential privacy: refused options, privacy accounting, and learning despite
//! noise.

use fedspan_engine::config::Init;
use fedspan_sim_core::run::{Job, NoProgress, Outcome};
use fedspan_sim_core::scenario::Scenario;

fn parse(changes: &[&str]) -> Result<Scenario, String> {
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    let text = Scenario::built_in("fedrep-private").unwrap();
    Scenario::parse("fedrep-private", text, &changes).map_err(|problem| problem.to_string())
}

fn run(changes: &[&str]) -> Outcome {
    let scenario = parse(&[changes, &["evaluate_every=1000"]].concat()).unwrap();
    Job::prepare(&scenario, scenario.seed).unwrap().run(&mut NoProgress).unwrap()
}

/// Final distance of a run with changes.
fn distance(changes: &[&str]) -> f64 {
    run(changes).scores.distance.unwrap()
}

/// Final distances for seeds 1 to `seeds`, ascending.
fn distances(changes: &[&str], seeds: u32) -> Vec<f64> {
    let distance_of = |seed: u32| distance(&[changes, &[format!("seed={seed}").as_str()]].concat());
    let mut sorted: Vec<f64> = (1..=seeds).map(distance_of).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Every round of initialisation and of training is a release. Together the releases spend epsilon.
#[test]
fn start_and_training_rounds_are_charged() {
    for (changes, releases) in [
        (&["model.power_iterations=3", "algorithm.rounds=7"][..], 10),
        (&["model.init=\"random\"", "algorithm.rounds=7"], 7),
        (&["algorithm.rounds=7", "algorithm.name=\"gd-gd\"", "model.power_iterations=1"], 8),
        (&["algorithm.rounds=7", "data.feature_std=3"], 15),
    ] {
        let changes = [changes, &["data.clients=50", "privacy.epsilon=2"]].concat();
        assert_eq!(parse(&changes).unwrap().releases(), Some(releases));
        let privacy = run(&changes).privacy.unwrap();
        assert!(privacy.epsilon <= 2.0 && privacy.epsilon > 1.999, "{changes:?}: {}", privacy.epsilon);
        assert_eq!(privacy.devices.len(), 50);
        assert!(privacy.devices.values().all(|each| *each == privacy.epsilon));
    }
    // A client spends no privacy budget in rounds for which it is not selected.
    let partial = run(&["data.clients=50", "participation.policy=\"fraction\"", "participation.r=0.5"]);
    assert!(partial.privacy.unwrap().devices.values().all(|each| *each < 9.9));
}

#[test]
fn private_runs_refuse_unprotected_options() {
    for (changes, expected) in [
        (
            &["model.init=\"moments\""][..],
            "model.init: found \"moments\", which reveals records; allowed with",
        ),
        (&["algorithm.name=\"fedavg\""], "algorithm.name: \"fedavg\" adds no noise; allowed with [privacy]"),
        (&["algorithm.name=\"pooled\""], "algorithm.name: \"pooled\" adds no noise; allowed with [privacy]"),
        (
            &["algorithm.numeric=\"i16\""],
            "algorithm.numeric: found \"i16\", in which devices add no noise to gradients",
        ),
        (
            &["algorithm.upload=\"i8-top-k\""],
            "algorithm.upload: found \"i8-top-k\", in which devices send no noisy gradients",
        ),
        (
            &["privacy.calibration=\"paper\""],
            "privacy.calibration: found \"paper\", which is the calibration of FedPower's paper",
        ),
        (&["privacy.clip=0"], "privacy.clip: found 0, allowed: a number from"),
        (&["privacy.clip=nan"], "privacy.clip: found nan, allowed: a number from"),
        (&["privacy.clip=-1"], "privacy.clip: found -1, allowed: a number from"),
    ] {
        let reported = parse(changes).unwrap_err();
        assert!(reported.contains(expected), "{changes:?}: {reported}");
    }
    let power = Scenario::built_in("fedpower").unwrap();
    let reported =
        Scenario::parse("fedpower", power, &["privacy.clip=1.0".to_owned()]).unwrap_err().to_string();
    assert!(
        reported.contains(
            "privacy.clip: applies to gradients only; this algorithm clips products row by row, to 1: leave it out"
        ),
        "{reported}"
    );
    assert_eq!(parse(&[]).unwrap().model.init, Init::NoisyPower { iterations: 8 });
    // The required noise is below the minimum of the device's sampler.
    let scenario = parse(&["privacy.epsilon=10000"]).unwrap();
    let reported = Job::prepare(&scenario, 1).unwrap_err().to_string();
    assert!(reported.contains("allowed: 0.5 to 4096 times that"), "{reported}");
}

/// The noise is averaged over devices, so many devices learn and few devices do not. The same seed has the
/// same result, bit for bit.
#[test]
fn many_devices_learn_despite_noise() {
    let few_records = ["data.clients=1000", "data.samples=20", "privacy.epsilon=80"];
    let many_clients = distances(&few_records, 5);
    assert!(many_clients[2] < 0.2, "{many_clients:?}");
    let few_clients = distances(&["data.clients=50", "data.samples=20", "privacy.epsilon=1"], 5);
    assert!(few_clients[2] > 0.5, "{few_clients:?}");
    assert_eq!(distance(&few_records).to_bits(), distance(&few_records).to_bits());
}

/// Devices learn with all encodings and forms of an update, with partial participation, and with dropouts.
#[test]
fn encodings_and_update_forms_combine() {
    for changes in [
        &["algorithm.upload=\"f16\"", "algorithm.download=\"f16\""][..],
        &["algorithm.upload=\"i8\""],
        &["algorithm.send=\"representation\""],
        &["participation.policy=\"fraction\"", "participation.r=0.8"],
        &["fleet.dropout=0.2"],
    ] {
        let base = ["data.clients=1000", "data.samples=20", "privacy.epsilon=80"];
        let final_distance = distance(&[changes, &base].concat());
        assert!(final_distance < 0.4, "{changes:?}: {final_distance}");
    }
}
