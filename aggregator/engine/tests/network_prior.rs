//! Tests of the server side of networks whose last layer has a learned prior: rounds of training are FedAvg's, and those after them are
//! the rounds of the linear model with a learned prior, with the layers of the body.

use fedspan_engine::aggregate::{Rule, UpdateWeight};
use fedspan_engine::algorithm::network::{
    FedAvg, Front, LayerMean, NetworkAlgorithm as _, NetworkParameters, NetworkPrior, NetworkShape,
};
use fedspan_engine::algorithm::{Algorithm, LearnedPrior, LearnedPriorSettings, random_start};
use fedspan_engine::participation::UploadLayout;
use fedspan_engine::random::{Purpose, Stream, stream};
use fedspan_engine::{DeviceId, Request, Tensor, Weighting};
use fedspan_protocol::message::{Descent, HeadSolve, Task};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

const TRAINING_ROUNDS: u32 = 3;
const DEVICES: u64 = 6;
const SETTINGS: LearnedPriorSettings =
    LearnedPriorSettings { second_moments: true, groups: 2, learning_rounds: 1, refining_rounds: 1 };

fn parameters(hidden: [u16; 3], outputs: u16) -> NetworkParameters {
    NetworkParameters {
        shape: NetworkShape { features: 7, front: Front::Nothing, hidden, outputs },
        descent: Descent { step_size: 0.1, momentum: 0.5, batch: 10 },
        head_epochs: 0,
        epochs: 2,
        download_encoding: Encoding::F32,
        upload_encoding: Encoding::F32,
        weighting: Weighting::Uniform,
        rule: Rule::MEAN,
        fleet: 6,
        seed: 4,
        training_rounds: TRAINING_ROUNDS,
        first_device: 1,
    }
}

/// Returns possible values of a tensor that a device sends.
fn values(tensor: &TensorDescriptor, random: &mut Stream) -> Vec<f32> {
    let count = tensor.elements();
    let mut draws = |count: usize| (0..count).map(|_| random.normal() as f32).collect::<Vec<f32>>();
    match tensor.role {
        // The lower triangle of a matrix with a large diagonal.
        Role::SecondMoments => {
            let mut values: Vec<f32> = draws(count).iter().map(|value| 0.1 * value).collect();
            let mut diagonal = 0;
            for row in 1.. {
                match values.get_mut(diagonal) {
                    Some(value) => *value = 4.0 + value.abs(),
                    None => break,
                }
                diagonal += row + 1;
            }
            values
        }
        Role::HeadSums => vec![1.0 + draws(1)[0].abs(), 2.0 + draws(1)[0].abs(), 10.0],
        Role::NewcomerError => vec![0.1 + draws(1)[0].abs(), 5.0],
        Role::PriorEvidence => {
            let mut values = draws(count);
            for prior in values.chunks_exact_mut(3) {
                (prior[0], prior[2]) = (1.0 + prior[0].abs(), prior[2].abs().min(1.0));
            }
            let end = count - 2;
            values[end..].copy_from_slice(&[10.0, 8.0]);
            values
        }
        _ => draws(count),
    }
}

/// Returns the updates of the devices that a request asks for, the same for the same number of the round.
fn updates(request: &Request, round: u32) -> Vec<(DeviceId, Vec<Tensor>)> {
    (1..=DEVICES)
        .map(|device| {
            let mut random = stream(u64::from(round), Purpose::Device, device);
            let tensor = |expected: &TensorDescriptor| Tensor {
                role: expected.role,
                rows: expected.rows,
                cols: expected.cols,
                values: values(expected, &mut random),
            };
            (DeviceId(device), request.expects.iter().map(tensor).collect())
        })
        .collect()
}

/// Runs a round in the given order of devices.
fn run_round(server: &mut dyn Algorithm, round: u32, is_reversed: bool) {
    let mut updates = updates(&server.request(), round);
    if is_reversed {
        updates.reverse();
    }
    updates.retain(|(device, _)| server.asks(*device));
    for (device, tensors) in &updates {
        assert!(server.admits(20, tensors), "{:?}", server.request().task);
        server.absorb(*device, UpdateWeight::from_samples(20), tensors);
    }
    server.finish().unwrap();
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn request_bits(request: &Request) -> Vec<(Role, u16, u16, Vec<u32>)> {
    request.tensors.iter().map(|t| (t.role, t.rows, t.cols, bits(&t.values))).collect()
}

/// Checks that a request has the layers before the last one, and the prior of another request in one tensor.
fn check_in_one(own: &Request, linear: &Request, layers: &[Tensor]) {
    assert_eq!((own.task, own.encoding, &own.expects), (linear.task, linear.encoding, &linear.expects));
    let (body, prior) = own.tensors.split_at(layers.len() - 1);
    for (sent, layer) in body.iter().zip(layers) {
        assert_eq!(sent.role, Role::Representation);
        assert_eq!((sent.rows, sent.cols, bits(&sent.values)), (layer.rows, layer.cols, bits(&layer.values)));
    }
    if own.task == Task::PooledMoments {
        assert!(prior.is_empty());
        return;
    }
    let values = |role| linear.tensors.iter().find(|t| t.role == role).map(|t| t.values.clone());
    let basis = values(Role::Representation).unwrap();
    // Five inputs of the last layer, a bias, and three outputs.
    let mean = values(Role::PriorMean).unwrap_or_else(|| vec![0.0; 6 * 3]);
    let variances = values(Role::PriorVariances).unwrap();
    let metric = values(Role::SecondMoments).unwrap_or_default();
    let expected = [basis, mean, variances, metric].concat();
    let [prior] = prior else { panic!("{} tensors", prior.len()) };
    assert_eq!((prior.role, prior.rows, usize::from(prior.cols)), (Role::HeadPrior, 1, expected.len()));
    assert_eq!(bits(&prior.values), bits(&expected));
}

#[test]
fn rounds_are_those_of_fedavg_and_of_the_linear_model() {
    let parameters = parameters([6, 5, 0], 3);
    let mut server = NetworkPrior(SETTINGS).server(parameters);
    let mut network = LayerMean::new(parameters, FedAvg.plan(&parameters));
    let mut linear = LearnedPrior::new(SETTINGS, Rule::MEAN, random_start(6, 3, 4), 3, 1);
    let kinds = server.requests();
    for round in 0..TRAINING_ROUNDS + SETTINGS.prior_rounds() {
        let request = server.request();
        let known = kinds.iter().any(|kind| {
            let sizes = |request: &Request| {
                request.tensors.iter().map(|t| (t.role, t.rows, t.cols)).collect::<Vec<_>>()
            };
            kind.task.kind() == request.task.kind() && sizes(kind) == sizes(&request)
        });
        assert!(known, "devices were not asked whether they can compute {:?}", request.task);
        let layers = network.request().tensors;
        check_in_one(
            &server.fit_request(HeadSolve::LeastSquares { ridge: 1.0 }),
            &linear.fit_request(HeadSolve::LeastSquares { ridge: 1.0 }),
            &layers,
        );
        if round < TRAINING_ROUNDS {
            assert_eq!(request_bits(&request), request_bits(&network.request()));
            assert_eq!((request.task, server.asks_all()), (network.request().task, false));
            assert_eq!(server.upload_layout(), UploadLayout::Layers { offset: 0 });
            run_round(&mut network, round, false);
        } else {
            check_in_one(&request, &linear.request(), &layers);
            assert_eq!(server.asks_all(), linear.asks_all());
            assert_eq!(server.upload_layout(), UploadLayout::Other);
            run_round(&mut linear, round, false);
        }
        // Sums are exact, in any order.
        run_round(&mut *server, round, true);
        assert_eq!(server.representation(), network.representation());
        assert_eq!(server.chosen_prior(), linear.chosen_prior());
    }
    assert!(server.chosen_prior().is_some() && server.head_prior() == linear.head_prior());
}

#[test]
fn restored_servers_continue_with_the_same_bits() {
    let parameters = parameters([5, 0, 0], 3);
    let new = || NetworkPrior(SETTINGS).server(parameters);
    let (mut server, mut restored) = (new(), new());
    for round in 0..TRAINING_ROUNDS + SETTINGS.prior_rounds() {
        let state = server.state();
        for state in [&state[1..], &[&state[..], &[0.0]].concat(), &[]] {
            let mut refuses = new();
            let before = request_bits(&refuses.request());
            assert!(!refuses.restore(state));
            assert_eq!(request_bits(&refuses.request()), before);
        }
        restored = new();
        assert!(restored.restore(&state));
        assert_eq!(request_bits(&restored.request()), request_bits(&server.request()));
        run_round(&mut *server, round, false);
        run_round(&mut *restored, round, false);
        let copy = server.copy().unwrap();
        assert_eq!(request_bits(&copy.request()), request_bits(&server.request()));
    }
    let head = HeadSolve::LeastSquares { ridge: 1.0 };
    assert_eq!(request_bits(&restored.fit_request(head)), request_bits(&server.fit_request(head)));
}

#[test]
fn networks_that_no_round_can_send_are_refused_with_their_size() {
    let check =
        |settings, hidden, outputs| NetworkPrior(settings).check_shape(parameters(hidden, outputs).shape);
    let without = LearnedPriorSettings { second_moments: false, ..SETTINGS };
    // With 342 inputs, 343 x (10 + 10) + 11 values, and 343 x 344 / 2 of the metric.
    assert_eq!(check(SETTINGS, [341, 0, 0], 10), Ok(()));
    let refused = check(SETTINGS, [342, 0, 0], 10).unwrap_err();
    for part in ["342 inputs", "65867 values", "65535", "second_moments = false"] {
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!(check(without, [342, 0, 0], 10), Ok(()));
    let refused = check(without, [4096, 0, 0], 10).unwrap_err();
    assert!(refused.contains("4096 inputs") && !refused.contains("second_moments"), "{refused}");
    assert!(check(SETTINGS, [0, 0, 0], 10).unwrap_err().contains("no layer before its last one"));
}
