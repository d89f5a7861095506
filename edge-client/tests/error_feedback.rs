//! Tests of error feedback ([`ErrorFeedback`]): nothing of a counted gradient is lost, an update that was not counted changes
//! nothing, and tasks in which values would be lost are declined.

#![cfg(all(feature = "shared-head", feature = "top-k"))]

use crate::common::problem::{Problem, create_problem, fed_rep_task, session_config};
use crate::common::server::*;
use crate::common::*;
use fedspan_client::task::ErrorFeedback;
use fedspan_client::{Linear, ShapeMismatch, Task};
use fedspan_protocol::message::{
    Ack, AckOutcome, DeclineReason, HeadSolve, PrivateTask, Rejection, Task as Wire, ToDevice, ToServer,
    Upload,
};
use fedspan_protocol::tensor::Encoding;
use proptest::prelude::*;

type Device = ErrorFeedback<Linear<Heap>, Vec<f32>>;

fn top_k() -> Wire {
    fed_rep_task(Upload::Gradient, Encoding::I8TopK)
}

fn device(problem: &Problem) -> Device {
    let model = Linear::new(Heap::new(problem.d, problem.k, problem.c));
    ErrorFeedback::new(model, vec![9.0; problem.d * problem.k + 3]).unwrap()
}

fn bench(problem: &Problem, limit: u16) -> Bench<Sliced, Device> {
    let mut bench =
        Bench::with_task(session_config(limit), device(problem), problem.samples.clone(), Flash::default());
    assert!(bench.connect(7, 60_000).is_empty());
    bench
}

/// Runs a round of the task, answers with the outcome if there is one, and returns the frames that the device sent and the values
/// of its update.
fn run_round(
    bench: &mut Bench<Sliced, Device>,
    server: &mut Server,
    outcome: Option<AckOutcome>,
) -> (Vec<(ToServer, Vec<u8>)>, Vec<f32>) {
    let mut frames = Vec::new();
    for (message, body) in server.opening_messages() {
        frames.extend(bench.receive_message(&message, &body));
    }
    for (message, body) in frames.clone() {
        server.handle_message(message, body);
    }
    let reply = match outcome {
        Some(outcome) => ToDevice::Ack(Ack { id: server.open.id, outcome }),
        None => ToDevice::RoundClosed(server.open.id),
    };
    bench.receive_message(&reply, &[]);
    let is_update = matches!(frames.first(), Some((ToServer::Update(_), _)));
    let values = if is_update { server.update_values(0) } else { Vec::new() };
    (frames, values)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// The sum of what was counted and the residual is the sum of the gradients, for any shape, frame limit and outcomes. The
    /// gradients are those that a device without feedback sends in f32.
    #[test]
    fn nothing_of_a_counted_gradient_is_lost(
        (d, k, c) in (1usize..50, 1usize..6, 1usize..4),
        limit in prop::sample::select(vec![128u16, 256, 512]),
        outcomes in prop::collection::vec(0usize..6, 1..8),
    ) {
        let k = k.min(d);
        let problem = create_problem(d, k, c);
        let mut bench = bench(&problem, limit);
        let mut sums = vec![0.0f64; d * k];
        let mut largest = 0.0f64;
        for (round, kind) in (1u32..).zip(outcomes) {
            let b = flat(&Random(u64::from(round)).orthonormal(d, k));
            let mut exact = Server::new(round, fed_rep_task(Upload::Gradient, Encoding::F32), Encoding::F32, 16_384, vec![(
                fedspan_protocol::tensor::Role::Representation, d, k, b.clone(),
            )]);
            let mut other = Bench::new(session_config(16_384), Heap::new(d, k, c), problem.samples.clone(), Flash::default());
            other.connect(7, 60_000);
            for (message, body) in exact.opening_messages() {
                for (message, body) in other.receive_message(&message, &body) {
                    exact.handle_message(message, body);
                }
            }
            let gradient = exact.update_values(0);
            let outcome = match kind {
                0 => Some(AckOutcome::Late),
                1 => Some(AckOutcome::Rejected(Rejection::NonFinite)),
                2 => None,
                3 => Some(AckOutcome::Duplicate),
                _ => Some(AckOutcome::Counted),
            };
            let before = bits(bench.session.task().residual());
            let mut server = problem.server_of(round, top_k(), Encoding::F32, limit, b);
            let (_, sent) = run_round(&mut bench, &mut server, outcome);
            prop_assert_eq!(sent.len(), d * k);
            prop_assert!(sent.iter().filter(|value| **value != 0.0).count() <= d * k / 4 + d * k % 4);
            match kind {
                // A rejection forgets what was left out.
                1 => sums.fill(0.0),
                0 | 2 => prop_assert_eq!(before, bits(bench.session.task().residual())),
                _ => {
                    for ((sum, gradient), sent) in sums.iter_mut().zip(&gradient).zip(&sent) {
                        *sum += f64::from(*gradient) - f64::from(*sent);
                        largest = largest.max(f64::from(gradient.abs())).max(f64::from(sent.abs()));
                    }
                }
            }
            let residual = bench.session.task().residual();
            for (left_out, sum) in residual.iter().zip(&sums) {
                prop_assert!((f64::from(*left_out) - sum).abs() <= 1e-5 * largest, "{left_out} but {sum}, {largest}");
            }
            prop_assert!(residual[d * k..].iter().all(|value| *value == 0.0));
        }
    }
}

#[test]
fn gradients_in_other_encodings_leave_the_residual() {
    let problem = create_problem(20, 2, 1);
    let mut bench = bench(&problem, 256);
    let counted = Some(AckOutcome::Counted);
    run_round(&mut bench, &mut problem.server(1, top_k(), Encoding::F32, 256), counted);
    let residual = bits(bench.session.task().residual());
    assert!(residual.iter().any(|value| *value != 0));
    for (round, encoding) in (2..).zip([Encoding::F32, Encoding::F16, Encoding::I8]) {
        let task = fed_rep_task(Upload::Gradient, encoding);
        let (_, sent) = run_round(&mut bench, &mut problem.server(round, task, Encoding::F32, 256), counted);
        assert_eq!(bits(&sent), bits(&problem.expected_result(task, Encoding::F32).1));
        assert_eq!(bits(bench.session.task().residual()), residual);
    }
    let fit = Wire::FitHead { head: EXACT };
    run_round(&mut bench, &mut problem.server(5, fit, Encoding::F32, 256), counted);
    assert_eq!(bits(bench.session.task().residual()), residual);
}

#[test]
fn tasks_in_which_values_would_be_lost_are_declined() {
    let problem = create_problem(20, 2, 1);
    let tasks = [
        fed_rep_task(Upload::Representation, Encoding::I8TopK),
        Wire::FedAvg { step_size: 0.1, head_step_size: 0.1, local_steps: 1, encoding: Encoding::I8TopK },
        Wire::AdapterUp { head: HeadSolve::LeastSquares { ridge: 0.1 }, encoding: Encoding::I8TopK },
        Wire::Private12(PrivateTask { encoding: Encoding::I8TopK, ..PrivateTask::default() }),
    ];
    for (round, task) in (1..).zip(tasks) {
        let mut bench = bench(&problem, 256);
        let (frames, _) = run_round(&mut bench, &mut problem.server(round, task, Encoding::F32, 256), None);
        let declined = DeclineReason::Parameter;
        assert!(
            matches!(frames[..], [(ToServer::Decline(d), _)] if d.reason == declined),
            "{task:?}: {frames:?}"
        );
    }
    // A device without the memory announces the encoding neither, nor accepts it.
    let mut plain = problem.bench(256);
    assert!(plain.connect(7, 60_000).is_empty());
    assert_eq!(plain.session.task().capabilities().encodings & Encoding::I8TopK.bit(), 0);
    let (message, body) = &problem.server(1, top_k(), Encoding::F32, 256).opening_messages()[0];
    let frames = plain.receive_message(message, body);
    assert!(matches!(frames[..], [(ToServer::Decline(d), _)] if d.reason == DeclineReason::Parameter));
}

#[test]
fn residual_has_a_value_for_each_element() {
    let model = || Linear::new(Heap::new(20, 2, 1));
    let error = ErrorFeedback::new(model(), [0.0; 39]).unwrap_err();
    assert_eq!(error, ShapeMismatch { expected: 40, got: 39 });
    let mut device = ErrorFeedback::new(model(), [1.0; 40]).unwrap();
    assert_eq!(device.residual(), [0.0; 40]);
    assert_eq!(device.set_residual(&[1.0; 41]), Err(ShapeMismatch { expected: 40, got: 41 }));
    assert_eq!(device.residual(), [0.0; 40]);
    device.set_residual(&[1.0; 40]).unwrap();
    assert_eq!(device.residual(), [1.0; 40]);
}
