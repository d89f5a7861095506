//! Tests of the automatically chosen ridge parameter of final heads: effect on newcomers, and settings in a
//! scenario.
#![allow(clippy::indexing_slicing)]

use fedspan_client::memory::Shape;
use fedspan_client::{Linear, Task};
use fedspan_engine::Tensor;
use fedspan_engine::linalg::{Matrix, to_f32};
use fedspan_engine::{GRID, RidgeScores};
use fedspan_protocol::message::{Descriptors, HeadSolve, Numeric, RoundId, RoundOpen, Task as Wire};
use fedspan_protocol::tensor::{Encoding, Role};
use fedspan_sim_core::evaluate::{self, ridge};
use fedspan_sim_core::fleet::HeapWorkspace;
use fedspan_sim_core::run::{NoProgress, Outcome, run};
use fedspan_sim_core::scenario::Scenario;

/// Scenario of the tests.
const DIGITS: &str = "seed = 5\nevaluate_every = 100\n[data]\nkind = \"digits\"\n[data.partition]\nclients = 20\nclasses = 3\n\
                      [split]\ntest = 0.25\nholdout_clients = 5\n[model]\nk = 8\n\
                      [algorithm]\nname = \"fedrep\"\nrounds = 10\nstep_size = 0.5\nridge = 0.001\n";

fn scenario(text: &str, changes: &[&str]) -> Scenario {
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    Scenario::parse("test", text, &changes).unwrap_or_else(|problem| panic!("{problem}"))
}

fn outcome(changes: &[&str]) -> Outcome {
    run(&scenario(DIGITS, changes), 5, &mut NoProgress).unwrap()
}

/// Heads of the newcomers, as bits.
fn heads(outcome: &Outcome) -> Vec<Vec<u64>> {
    let bits = |head: &Vec<f64>| head.iter().map(|weight| weight.to_bits()).collect();
    outcome.newcomers.iter().map(|client| bits(&client.head)).collect()
}

/// The head of a newcomer equals, bit for bit, the head of a run in which the chosen ridge is given
/// explicitly.
#[test]
fn newcomers_fit_their_heads_with_the_published_ridge() {
    let auto = outcome(&[]);
    let chosen = auto.ridge.clone().unwrap();
    assert_eq!((chosen.devices, chosen.labels_per_class, chosen.scores.len()), (15, 1, GRID.count.into()));
    let by_hand = outcome(&[&format!("algorithm.final_ridge={:?}", chosen.ridge)]);
    assert_eq!((heads(&auto), &by_hand.ridge), (heads(&by_hand), &None));
    assert_eq!(auto.updates, by_hand.updates);
    assert_eq!(auto.bytes, by_hand.bytes);
    // The bytes of the final fit include those of the ridge scores.
    assert!(auto.fit_bytes.0 > by_hand.fit_bytes.0);
    let fixed_ridge = outcome(&["algorithm.final_ridge=3.0"]);
    assert_ne!(heads(&auto), heads(&fixed_ridge));
}

#[test]
fn ridge_labels_default_to_those_of_newcomers() {
    let labels = |changes: &[&str]| scenario(DIGITS, changes).algorithm.ridge_labels;
    assert_eq!(labels(&[]), Some(1));
    assert_eq!(labels(&["split.labels_per_class=3"]), Some(3));
    assert_eq!(labels(&["split.labels_per_class=0"]), Some(1));
    assert_eq!(labels(&["split.labels_per_class=3", "algorithm.labels_per_class=2"]), Some(2));
    assert_eq!(labels(&["split.labels_per_class=3", "split.holdout_clients=0"]), Some(1));
    assert_eq!(labels(&["algorithm.final_ridge=0.1"]), None);
    assert_eq!(labels(&["algorithm.final_ridge=\"auto\""]), Some(1));
    let head = scenario(DIGITS, &[]).algorithm.final_head;
    assert_eq!(head, HeadSolve::LeaveOneOut { fallback_ridge: 0.03 });
    let head = scenario(DIGITS, &["algorithm.fallback_ridge=0.5"]).algorithm.final_head;
    assert_eq!(head, HeadSolve::LeaveOneOut { fallback_ridge: 0.5 });
}

/// Ridges are not scored for regression, which has no classes, and not in runs with noise.
#[test]
fn ridges_are_not_scored_without_classes_or_with_noise() {
    let regression = "[data]\nkind = \"linear-regression\"\nclients = 9\nd = 5\nk = 2\nsamples = 6\noutputs = 2\n[model]\nk = 2\n\
                      [algorithm]\nname = \"fedrep\"\nrounds = 3\nstep_size = 0.2\n";
    let regression = regression.replace("outputs = 2\n", "");
    let outcome = run(&scenario(&regression, &[]), 1, &mut NoProgress).unwrap();
    assert_eq!((outcome.ridge, outcome.rounds.len()), (None, 4));
    let built_in = Scenario::built_in("fedrep-private").unwrap();
    assert_eq!(scenario(built_in, &["algorithm.final_ridge=\"auto\""]).algorithm.ridge_labels, None);
}

#[test]
fn bad_values_are_refused() {
    for (change, expected_part) in [
        ("algorithm.final_ridge=\"automatic\"", "\"auto\", a number from 0 to 1e6"),
        ("algorithm.final_ridge=-1", "a number from 0 to 1e6"),
        ("algorithm.final_ridge=nan", "a number from 0 to 1e6"),
        ("algorithm.fallback_ridge=\"auto\"", "a number from 0 to 1e6"),
        ("algorithm.fallback_ridge=-0.5", "a number from 0 to 1e6"),
        ("algorithm.labels_per_class=0", "an integer from 1 to 65535"),
        ("algorithm.labels_per_class=\"auto\"", "an integer from 1 to 65535"),
    ] {
        let problem = Scenario::parse("test", DIGITS, &[change.to_owned()]).unwrap_err().to_string();
        assert!(
            problem.contains(expected_part) || problem.contains(&expected_part.replace("1e6", "1000000")),
            "{change}: {problem}"
        );
    }
}

/// With the identity as representation, the ridge scores of the host in f64 equal those of the devices in
/// f32, up to near ties.
#[test]
fn host_ridge_scores_equal_device_scores() {
    let scenario = scenario(DIGITS, &["algorithm.name=\"local-only\""]);
    let data = scenario.dataset(5).unwrap();
    let (d, c) = (data.features, data.outputs);
    for labels in [1, 3] {
        let on_host = ridge::scores(&data.clients, d, c, labels);
        let mut on_devices = RidgeScores::new(labels);
        let shape = Shape { features: d, width: d, outputs: c };
        let identity = to_f32(&Matrix::identity(d, d));
        for client in &data.clients {
            let mut model = Linear::new(HeapWorkspace::new(shape, Numeric::F32));
            let (first, factor, count) = (GRID.first, GRID.factor, GRID.count);
            let task = Wire::RidgeScores { labels_per_class: labels, first, factor, count };
            let side = u16::try_from(d).unwrap();
            let tensor =
                Tensor { role: Role::Representation, rows: side, cols: side, values: identity.clone() };
            let tensors = Descriptors::from_iter([tensor.descriptor(Encoding::F32)]);
            let round = RoundOpen { id: RoundId { round: 1, stage: 0 }, task, tensors };
            model.open(&round).unwrap();
            model.tensor_mut(0).unwrap().copy_from_slice(&identity);
            model.verify().unwrap();
            let usage = model.run(round.id, &mut evaluate::recording(&client.train, shape)).unwrap();
            let mut values = vec![0.0; count.into()];
            model.emit(0, 0, &mut values);
            on_devices.absorb(
                usage.samples,
                &[Tensor { role: Role::RidgeScores, rows: 1, cols: count.into(), values }],
            );
        }
        let (host, devices) = (on_host.chosen(0.0), on_devices.chosen(0.0));
        assert_eq!(host.devices, devices.devices);
        // Scores may differ for near ties and for ridges below the resolution of f32.
        let difference = |(a, b): (&f64, &f64)| (a - b).abs();
        let largest_difference = host.scores.iter().zip(&devices.scores).map(difference).fold(0.0, f64::max);
        assert!(largest_difference < 0.01, "{largest_difference}: {:?} {:?}", host.scores, devices.scores);
    }
}

/// Local-only training uses the ridge that is chosen from the scores of the training clients.
#[test]
fn baselines_use_the_ridge_of_training_clients() {
    let auto = outcome(&["algorithm.name=\"local-only\""]);
    let chosen = auto.ridge.clone().unwrap();
    let by_hand =
        outcome(&["algorithm.name=\"local-only\"", &format!("algorithm.final_ridge={:?}", chosen.ridge)]);
    let accuracies =
        |outcome: &Outcome| outcome.newcomers.iter().map(|client| client.accuracy).collect::<Vec<_>>();
    assert_eq!(accuracies(&auto), accuracies(&by_hand));
}
