//! Tests of supported and declined rounds of a network: layers in the wrong role, order, number or form,
//! parameters out of range, and missing layers. The head is never uploaded without the feature for it.
#![cfg(feature = "network")]

use crate::common::network::*;
use crate::common::problem::{ALL_ENCODINGS, session_config};
use crate::common::server::*;
use crate::common::*;
use fedspan_client::memory::NetworkShape;
use fedspan_client::session::{Counters, Event};
use fedspan_client::{Network, NotReady, Task};
use fedspan_protocol::frame::crc32c_f32;
use fedspan_protocol::message::{
    Baseline, DeclineReason, Descriptors, HeadSolve, RoundId, RoundOpen, Task as Wire, ToServer, Trained,
};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

const SHAPE: NetworkShape = NetworkShape::new(6, &[5, 4], 3, 8);
const SHARED: bool = cfg!(feature = "shared-head");
const ORDINARY_DESCENT: fedspan_protocol::message::Descent = descent(0.1, 0.5, 4);
const TASK: Wire = sgd(ORDINARY_DESCENT, 2, 1, Trained::Shared);

fn new_device() -> Network<NetworkHeap> {
    network(NetworkHeap::new(SHAPE), &draw_parameters(SHAPE, 1))
}

fn round_of(task: Wire, tensors: &[TensorDescriptor]) -> RoundOpen {
    let tensors = tensors.iter().copied().collect::<Descriptors>();
    RoundOpen { id: RoundId { round: 9, stage: 0 }, task, tensors }
}

fn f32_tensor(role: Role, rows: u16, cols: u16) -> TensorDescriptor {
    TensorDescriptor::inline(role, Encoding::F32, rows, cols)
}

/// Returns the descriptor of a layer of `SHAPE` in a role.
fn layer_descriptor(role: Role, layer: usize) -> TensorDescriptor {
    let (inputs, outputs) = SHAPE.layer(layer).matrix();
    f32_tensor(role, inputs as u16 + 1, outputs as u16)
}

#[test]
fn layers_in_another_role_order_number_or_form_are_declined() {
    use Role::{Gradient, Representation as B, SharedHead as W, Subspace};
    let valid = [layer_descriptor(B, 0), layer_descriptor(B, 1)];
    let f16 = |tensor| TensorDescriptor { encoding: Encoding::F16, ..tensor };
    let cases: Vec<Vec<TensorDescriptor>> = vec![
        vec![layer_descriptor(B, 0)],
        vec![layer_descriptor(B, 1)],
        vec![layer_descriptor(B, 1), layer_descriptor(B, 0)],
        vec![layer_descriptor(B, 0), layer_descriptor(B, 0)],
        vec![layer_descriptor(B, 0), layer_descriptor(B, 1), layer_descriptor(B, 1)],
        vec![layer_descriptor(B, 0), layer_descriptor(B, 1), layer_descriptor(B, 2)],
        vec![layer_descriptor(B, 0), layer_descriptor(B, 1), layer_descriptor(W, 2), layer_descriptor(W, 2)],
        vec![
            layer_descriptor(B, 0),
            layer_descriptor(B, 1),
            layer_descriptor(W, 2),
            layer_descriptor(W, 2),
            layer_descriptor(W, 2),
        ],
        vec![layer_descriptor(W, 0), layer_descriptor(W, 1), layer_descriptor(W, 2)],
        vec![layer_descriptor(W, 0), layer_descriptor(W, 1)],
        vec![layer_descriptor(W, 0)],
        vec![layer_descriptor(W, 1)],
        vec![layer_descriptor(B, 2)],
        vec![layer_descriptor(B, 1), layer_descriptor(W, 2)],
        vec![layer_descriptor(W, 1), layer_descriptor(B, 2)],
        vec![layer_descriptor(W, 2), layer_descriptor(W, 1)],
        vec![layer_descriptor(B, 0), layer_descriptor(W, 1)],
        vec![layer_descriptor(Gradient, 0), layer_descriptor(Gradient, 1)],
        vec![layer_descriptor(Subspace, 0), layer_descriptor(Subspace, 1)],
        vec![f16(valid[0]), valid[1]],
        vec![f32_tensor(B, 6, 5), valid[1]],
        vec![f32_tensor(B, 5, 7), valid[1]],
        vec![f32_tensor(B, 0, 0), valid[1]],
        vec![f32_tensor(B, u16::MAX, u16::MAX), valid[1]],
        vec![f32_tensor(W, u16::MAX, u16::MAX)],
    ];
    let mut device = new_device();
    let before = bits(device.parameters());
    for task in [TASK, sgd(ORDINARY_DESCENT, 0, 1, Trained::All), fit_head_task(ORDINARY_DESCENT, 1)] {
        for tensors in &cases {
            let result = device.open(&round_of(task, tensors));
            assert_eq!(result, Err(DeclineReason::Tensors), "{tensors:?}");
            assert!(device.upload().is_empty() && device.tensor_mut(0).is_none());
        }
        assert_eq!(bits(device.parameters()), before);
        device.clone().open(&round_of(task, &valid)).unwrap();
    }
}

#[test]
fn tasks_and_parameters_out_of_range_are_declined() {
    let valid = [layer_descriptor(Role::Representation, 0), layer_descriptor(Role::Representation, 1)];
    let mut device = new_device();
    let mut check_declined = |task, tensors: &[TensorDescriptor], reason| {
        assert_eq!(device.open(&round_of(task, tensors)), Err(reason), "{task:?}");
    };
    let mut invalid = Vec::new();
    for step in [f32::NAN, f32::INFINITY, -1.0, f32::NEG_INFINITY] {
        invalid.push(descent(step, 0.5, 4));
    }
    for momentum in [f32::NAN, f32::INFINITY, -0.1, 1.0] {
        invalid.push(descent(0.1, momentum, 4));
    }
    for batch in [0, 9, u16::MAX] {
        invalid.push(descent(0.1, 0.5, batch));
    }
    for descent in invalid {
        for trained in [Trained::Shared, Trained::All] {
            check_declined(sgd(descent, 2, 1, trained), &valid, DeclineReason::Parameter);
        }
        check_declined(fit_head_task(descent, 1), &valid, DeclineReason::Parameter);
    }
    for trained in [Trained::Shared, Trained::All] {
        check_declined(sgd(ORDINARY_DESCENT, 0, 0, trained), &valid, DeclineReason::Parameter);
    }
    // The round shares no layer that could be trained.
    check_declined(sgd(ORDINARY_DESCENT, 0, 3, Trained::Shared), &[], DeclineReason::Parameter);
    check_declined(Wire::FitHead { head: EXACT }, &valid, DeclineReason::Parameter);
    let steps = HeadSolve::Gradient { steps: 1, step_size: 0.1 };
    check_declined(Wire::FitHead { head: steps }, &valid, DeclineReason::Parameter);
    let body_tensor = [f32_tensor(Role::Representation, 6, 5)];
    let baseline = Wire::Baseline {
        baseline: Baseline::FedProx { proximal_weight: 0.1 },
        descent: ORDINARY_DESCENT,
        epochs: 1,
        encoding: Encoding::F32,
    };
    for task in [
        fed_rep(EXACT, fedspan_protocol::message::Upload::Gradient, 0.1),
        Wire::PowerStart,
        Wire::MomentRows { first: 0, count: 1 },
        Wire::FedAvg { step_size: 0.1, head_step_size: 0.1, local_steps: 1, encoding: Encoding::F32 },
        baseline,
    ] {
        for tensors in [&valid[..], &body_tensor, &[]] {
            check_declined(task, tensors, DeclineReason::Task);
        }
    }
    // Momentum needs memory for the velocities.
    let mut without_momentum = network(NetworkHeap::without_momentum(SHAPE), &draw_parameters(SHAPE, 1));
    assert_eq!(without_momentum.open(&round_of(TASK, &valid)), Err(DeclineReason::Parameter));
    without_momentum.open(&round_of(sgd(descent(0.1, 0.0, 8), 2, 1, Trained::Shared), &valid)).unwrap();
    // Streamed samples are not supported.
    assert_eq!(without_momentum.streamed_tasks(), 0);
    assert_eq!(without_momentum.begin(), Err(DeclineReason::Task));
    assert_eq!(without_momentum.finish(), Err(DeclineReason::Task));
}

/// The firmware's features decide which layers may be uploaded.
#[test]
fn head_is_shared_only_with_its_feature() {
    let layer_count = SHAPE.layers();
    for first in 0..layer_count {
        let result = new_device().open(&round_open(
            SHAPE,
            sgd(ORDINARY_DESCENT, 0, 1, Trained::All),
            first..layer_count,
            Encoding::F32,
        ));
        assert_eq!(result, if SHARED { Ok(()) } else { Err(DeclineReason::Tensors) });
    }
    let capabilities = new_device().capabilities();
    assert_eq!(capabilities.roles & Role::SharedHead.bit() != 0, SHARED);
    let layers = if SHARED { layer_count } else { layer_count - 1 };
    assert_eq!(usize::from(capabilities.tensors), layers);
    assert_eq!(capabilities.total_elements as usize, SHAPE.range(0..layers).len());
    assert_eq!(capabilities.tensor_elements, 7 * 5);
}

/// A round without body tensors needs a valid personal body: zeros, a partial download or a diverged body do
/// not suffice.
#[test]
fn rounds_without_a_body_tensor_need_a_body() {
    let without_tensors =
        || round_open(SHAPE, sgd(ORDINARY_DESCENT, 0, 1, Trained::All), 0..0, Encoding::F32);
    let mut device = Network::new(NetworkHeap::new(SHAPE), 1);
    assert_eq!(device.open(&without_tensors()), Err(DeclineReason::Tensors));
    device.draw(&mut ChaCha8Rng::seed_from_u64(1));
    device.open(&without_tensors()).unwrap();
    device.verify().unwrap();
    device.run(without_tensors().id, &mut labelled_samples(SHAPE, 10, 1)).unwrap();
    // A download ends early.
    device.open(&round_open(SHAPE, TASK, 0..2, Encoding::F32)).unwrap();
    device.tensor_mut(1).unwrap()[..3].fill(7.0);
    assert_eq!(device.open(&without_tensors()), Err(DeclineReason::Tensors));
    let (x, mut out) = ([0.5; 6], [0.0; 3]);
    assert_eq!(device.predict(&x, &mut out), Err(NotReady::NoRepresentation));
    // A complete download makes the body valid again.
    run_round(&mut device, TASK, 0..2, &draw_parameters(SHAPE, 2), &mut labelled_samples(SHAPE, 10, 1))
        .unwrap();
    device.open(&without_tensors()).unwrap();
    device.verify().unwrap();
    // A diverged body is invalid too.
    let diverging_task = sgd(descent(f32::MAX, 0.5, 4), 0, 2, Trained::All);
    let result = run_round(
        &mut device,
        diverging_task,
        0..0,
        &draw_parameters(SHAPE, 2),
        &mut labelled_samples(SHAPE, 10, 1),
    );
    assert_eq!(result.unwrap_err(), DeclineReason::UpdateNonFinite);
    assert_eq!(device.open(&without_tensors()), Err(DeclineReason::Tensors));
}

/// After a reset the head is loaded from the store, and the next round continues with it.
#[test]
fn next_round_continues_from_the_stored_head() {
    let before = new_device();
    let mut after = Network::new(NetworkHeap::new(SHAPE), 1);
    after.head_mut().copy_from_slice(before.head());
    after.restore_head(before.head_fitted_on().unwrap());
    let samples = labelled_samples(SHAPE, 10, 1);
    run_round(
        &mut after,
        fit_head_task(ORDINARY_DESCENT, 0),
        0..2,
        before.parameters(),
        &mut samples.clone(),
    )
    .unwrap();
    assert_eq!(bits(after.parameters()), bits(before.parameters()));
}

/// A shared head whose download was interrupted is not used as a personal head.
#[test]
#[cfg(feature = "shared-head")]
fn half_received_head_becomes_zero() {
    let mut device = new_device();
    device.open(&round_open(SHAPE, sgd(ORDINARY_DESCENT, 0, 1, Trained::All), 0..3, Encoding::F32)).unwrap();
    device.tensor_mut(2).unwrap()[..3].fill(f32::NAN);
    device.open(&round_open(SHAPE, TASK, 0..2, Encoding::F32)).unwrap();
    assert!(device.head().iter().all(|&w| w == 0.0));
    run_round(&mut device, TASK, 0..2, &draw_parameters(SHAPE, 2), &mut labelled_samples(SHAPE, 10, 1))
        .unwrap();
}

#[test]
fn received_layers_must_be_finite() {
    for non_finite in [f32::NAN, f32::INFINITY] {
        let (mut device, received) = (new_device(), draw_parameters(SHAPE, 2));
        let open = round_open(SHAPE, TASK, 0..2, Encoding::F32);
        receive(&mut device, &open, &layer_tensors(SHAPE, 0..2, &received)).unwrap();
        device.tensor_mut(1).unwrap()[3] = non_finite;
        assert_eq!(device.verify(), Err(DeclineReason::NonFinite));
        assert_eq!(device.predict(&[0.5; 6], &mut [0.0; 3]), Err(NotReady::NoRepresentation));
    }
}

#[test]
fn head_predicts_only_with_its_body() {
    let mut device = new_device();
    let (x, mut out) = ([0.5; 12], [0.0; 6]);
    device.predict(&x, &mut out).unwrap();
    assert_eq!(device.predict(&x, &mut out[..5]), Err(NotReady::Length { expected: 6, got: 5 }));
    assert_eq!(device.predict(&x[..7], &mut out), Err(NotReady::Length { expected: 6, got: 7 }));
    let mut non_finite = x;
    non_finite[8] = f32::NAN;
    assert_eq!(device.predict(&non_finite, &mut out), Err(NotReady::NonFinite { index: 8 }));
    let hash = device.head_fitted_on().unwrap();
    device.draw(&mut ChaCha8Rng::seed_from_u64(1));
    assert_eq!(device.predict(&x, &mut out), Err(NotReady::NoHead));
    device.restore_head(hash);
    assert_eq!(device.predict(&x, &mut out), Err(NotReady::NoHead));
    device.set_parameters(&draw_parameters(SHAPE, 1)).unwrap();
    device.predict(&x, &mut out).unwrap();
    // A record of an earlier version has the CRC-32C of the body.
    let mut earlier = new_device();
    let body = SHAPE.range(0..SHAPE.layers() - 1);
    earlier.restore_head(crc32c_f32(&earlier.parameters()[body]));
    earlier.predict(&x, &mut out).unwrap();
    earlier.restore_head(hash ^ 1);
    assert_eq!(earlier.predict(&x, &mut out), Err(NotReady::NoHead));
    // Predictions in batches of eight equal those of single samples.
    let x = Random(4).normals(20 * 6);
    let mut batch_out = [0.0; 60];
    let mut single_out = [0.0; 3];
    device.predict(&x, &mut batch_out).unwrap();
    for (x, out) in x.chunks(6).zip(batch_out.chunks(3)) {
        device.predict(x, &mut single_out).unwrap();
        assert_eq!(bits(&single_out), bits(out));
    }
}

/// In whole rounds through the session, with and without chunks, the update equals that of the task alone.
#[test]
fn session_rounds_equal_the_task_alone() {
    let shape = NetworkShape::new(20, &[8], 4, 10);
    let (samples, initial) = (labelled_samples(shape, 25, 3), draw_parameters(shape, 1));
    let shared = if SHARED { vec![0..1, 0..2, 1..2, 0..0] } else { vec![0..1, 0..0] };
    for limit in [128, 256, 4096] {
        let device = network(NetworkHeap::new(shape), &initial);
        let mut bench = Bench::with_task(session_config(limit), device, samples.clone(), Flash::default());
        let mut reference = network(NetworkHeap::new(shape), &initial);
        let mut number = 0;
        for (down, up) in ALL_ENCODINGS.into_iter().flat_map(|down| ALL_ENCODINGS.map(|up| (down, up))) {
            for layers in shared.clone() {
                number += 1;
                let task = Wire::Sgd {
                    descent: ORDINARY_DESCENT,
                    head_epochs: 2,
                    epochs: 1,
                    trained: Trained::All,
                    encoding: up,
                };
                let received = draw_parameters(shape, 10 + u64::from(number));
                let opened = round_open(shape, task, layers.clone(), down);
                let layer_values = layer_tensors(shape, layers.clone(), &received);
                let tensors = opened.tensors.iter().zip(&layer_values).map(|(tensor, values)| {
                    (tensor.role, tensor.rows.into(), tensor.cols.into(), values.to_vec())
                });
                let mut server = Server::new(number, task, down, limit.into(), tensors.collect());
                run_link(&mut bench, &mut server, 10_000, |_| Fate::Deliver);
                assert_eq!(
                    server.updates.len(),
                    1,
                    "{limit} {down:?} {up:?} {layers:?} {:?}",
                    server.declined
                );
                assert_eq!((server.updates[0].0.samples, server.updates[0].0.skipped), (25, 0));

                receive(&mut reference, &opened, &layer_values).unwrap();
                reference.run(server.open.id, &mut samples.clone()).unwrap();
                let mut sent = Vec::new();
                for values in reference.upload().iter().enumerate().map(|(i, tensor)| {
                    let mut values = vec![0.0; tensor.elements()];
                    reference.emit(i, 0, &mut values);
                    values
                }) {
                    let mut bytes = vec![0; up.byte_len(values.len())];
                    up.encode(&values, &mut bytes).unwrap();
                    let mut decoded = values.clone();
                    up.decode(&bytes, &mut decoded).unwrap();
                    sent.extend(decoded);
                }
                assert_eq!(bits(&server.update_values(0)), bits(&sent));
                assert_eq!(bits(bench.session.task().parameters()), bits(reference.parameters()));
                bench.handle_until_idle(Event::LinkDown);
            }
        }
        let counters = bench.session.counters();
        assert_eq!(counters, Counters { counted: number, ..Counters::default() });
    }
}

/// If the answer to an update was lost, the device sends the same bytes again and does not recompute them.
#[test]
fn retry_sends_the_same_bytes() {
    let shape = NetworkShape::new(20, &[8], 4, 10);
    let device = network(NetworkHeap::new(shape), &draw_parameters(shape, 1));
    let mut bench =
        Bench::with_task(session_config(128), device, labelled_samples(shape, 25, 3), Flash::default());
    let received = draw_parameters(shape, 2)[shape.range(0..1)].to_vec();
    let server = Server::new(1, TASK, Encoding::I8, 128, vec![(Role::Representation, 21, 8, received)]);
    let mut first_result = None;
    for _ in 0..3 {
        bench.connect(7, 60_000);
        let sent: Vec<_> = server
            .opening_messages()
            .iter()
            .flat_map(|(message, body)| bench.receive_message(message, body))
            .collect();
        assert!(sent.len() > 1 && matches!(sent[0], (ToServer::Update(_), _)), "{sent:?}");
        let layers = bits(bench.session.task().parameters());
        assert_eq!(first_result.get_or_insert((sent.clone(), layers.clone())), &(sent, layers));
        bench.session.task_mut().predict(&[0.5; 40], &mut [0.0; 8]).unwrap();
        bench.handle_until_idle(Event::LinkDown);
    }
}

/// The biases of the forget gates are initially one. The other weights are uniform within one over the root
/// of the number of cells.
#[cfg(feature = "recurrent")]
#[test]
fn drawn_forget_biases_are_one() {
    for shape in with_cells(4) {
        let fedspan_client::kernel::Layer::Lstm(lstm) = shape.layer(0) else { panic!("cells come first") };
        let mut network = Network::new(NetworkHeap::new(shape), 5);
        network.draw(&mut ChaCha8Rng::seed_from_u64(1));
        let biases = lstm.row() * lstm.gates();
        let forget_biases = biases + lstm.cells..biases + 2 * lstm.cells;
        let bound = 1.0 / (lstm.cells as f32).sqrt();
        for (index, value) in network.parameters()[..lstm.layer()].iter().enumerate() {
            let expected = if forget_biases.contains(&index) {
                *value == 1.0
            } else {
                value.abs() <= bound && *value != 1.0
            };
            assert!(expected, "{index}: {value}");
        }
    }
}
