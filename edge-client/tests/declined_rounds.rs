//! Tests of rounds that a device must decline without changing its state: repeated, unsuitable or damaged
//! rounds, and rounds that it cannot compute or store.

use crate::common::problem::*;
use crate::common::server::*;
use crate::common::*;
use fedspan_client::session::Event;
use fedspan_client::{NotReady, Task};
use fedspan_protocol::message::{
    Ack, AckOutcome, Chunk, DeclineReason, Descriptors, HeadSolve, Missing, RoundId, RoundOpen, Task as Wire,
    ToDevice, ToServer, Upload,
};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

#[test]
fn repeated_and_backward_rounds_are_declined_and_change_nothing() {
    let problem = create_problem(20, 2, 1);
    let flash = Flash::default();
    let mut bench = trained_bench(&problem, 256, flash.clone());
    let before = (predict_first_sample(&mut bench, &problem).unwrap(), flash.0.borrow().clone().record);
    for round in [5, 4, 1, 0] {
        let other_basis = flat(&Random(3).orthonormal(20, 2));
        let server = problem.server_of(round, gradient_task(), Encoding::F32, 256, other_basis);
        let (message, body) = &server.opening_messages()[0];
        assert_eq!(
            decline_reason(&bench.receive_message(message, body)),
            DeclineReason::RoundRepeated { last: 5 }
        );
        assert_eq!(
            (predict_first_sample(&mut bench, &problem).unwrap(), flash.0.borrow().clone().record),
            before
        );
        assert_eq!(bench.session.last_round(), 5);
    }
    // The rounds of another campaign are numbered from 1.
    bench.handle_until_idle(Event::LinkDown);
    bench.connect(8, 60_000);
    let (message, body) = &problem.server(1, gradient_task(), Encoding::F32, 256).opening_messages()[0];
    assert!(matches!(bench.receive_message(message, body)[..], [(ToServer::Update(_), _)]));
}

/// Returns rounds that are unsuitable for this device in every possible way, each with the expected reason.
fn unsuitable_rounds() -> Vec<(RoundOpen, DeclineReason)> {
    let inline_tensor = |role, rows, cols| TensorDescriptor::inline(role, Encoding::F32, rows, cols);
    let valid = inline_tensor(Role::Representation, 20, 2);
    let round = |task, tensors: &[TensorDescriptor]| RoundOpen {
        id: RoundId { round: 9, stage: 0 },
        task,
        tensors: tensors.iter().copied().collect::<Descriptors>(),
    };
    let fed_rep =
        |step_size, head| Wire::FedRep { step_size, head, upload: Upload::Gradient, encoding: Encoding::F32 };
    let fed_avg = |step_size, local_steps| Wire::FedAvg {
        step_size,
        head_step_size: 0.1,
        local_steps,
        encoding: Encoding::F32,
    };
    let mut rounds = Vec::new();
    let chunked = |chunk| TensorDescriptor { chunk, ..valid };
    for tensors in [
        vec![],
        vec![inline_tensor(Role::Representation, 2, 20)],
        vec![inline_tensor(Role::Representation, 20, 3)],
        vec![inline_tensor(Role::Representation, 40, 1)],
        vec![inline_tensor(Role::Representation, 0, 0)],
        vec![inline_tensor(Role::Representation, u16::MAX, u16::MAX)],
        vec![inline_tensor(Role::Gradient, 20, 2)],
        vec![inline_tensor(Role::Subspace, 20, 2)],
        vec![inline_tensor(Role::SharedHead, 20, 2)],
        vec![valid, valid],
        vec![valid, inline_tensor(Role::SharedHead, 2, 1)],
        vec![valid; 4],
        // The chunk size would split an i8 block.
        vec![TensorDescriptor { encoding: Encoding::I8, chunk: 7, ..valid }],
    ] {
        rounds.push((round(gradient_task(), &tensors), DeclineReason::Tensors));
    }
    let no_steps = HeadSolve::Gradient { steps: 0, step_size: 0.1 };
    rounds.push((round(fed_rep(0.1, no_steps), &[valid]), DeclineReason::Parameter));
    for invalid in [f32::NAN, f32::INFINITY, -1.0] {
        rounds.push((round(fed_rep(invalid, EXACT), &[valid]), DeclineReason::Parameter));
        let head = HeadSolve::LeastSquares { ridge: invalid };
        rounds.push((round(fed_rep(0.1, head), &[valid]), DeclineReason::Parameter));
        rounds.push((round(Wire::FitHead { head }, &[valid]), DeclineReason::Parameter));
        let head = HeadSolve::Gradient { steps: 1, step_size: invalid };
        rounds.push((round(fed_rep(0.1, head), &[valid]), DeclineReason::Parameter));
    }
    if !cfg!(all(feature = "shared-head", feature = "reveal-moments")) {
        return rounds;
    }
    let mixed = TensorDescriptor { encoding: Encoding::F16, ..inline_tensor(Role::SharedHead, 2, 1) };
    rounds.push((round(fed_avg(0.1, 1), &[valid, mixed]), DeclineReason::Tensors));
    rounds.push((
        round(fed_avg(0.1, 1), &[chunked(16), inline_tensor(Role::SharedHead, 2, 1)]),
        DeclineReason::Tensors,
    ));
    for invalid in [f32::NAN, f32::INFINITY, -1.0] {
        let tensors = [valid, inline_tensor(Role::SharedHead, 2, 1)];
        rounds.push((round(fed_avg(invalid, 1), &tensors), DeclineReason::Parameter));
    }
    rounds.push((
        round(fed_avg(0.1, 0), &[valid, inline_tensor(Role::SharedHead, 2, 1)]),
        DeclineReason::Parameter,
    ));
    rounds.push((round(Wire::MomentRows { first: 19, count: 2 }, &[]), DeclineReason::Parameter));
    rounds.push((round(Wire::MomentRows { first: 0, count: 1 }, &[valid]), DeclineReason::Tensors));
    rounds
}

/// Tasks that are not compiled into the client are neither announced as capabilities nor accepted.
#[test]
fn tasks_that_are_not_compiled_in_are_declined() {
    let problem = create_problem(20, 2, 1);
    let mut bench = problem.bench(256);
    bench.connect(7, 60_000);
    let fed_avg =
        Wire::FedAvg { step_size: 0.1, head_step_size: 0.1, local_steps: 1, encoding: Encoding::F32 };
    let tensors =
        vec![(Role::Representation, 20, 2, problem.b.clone()), (Role::SharedHead, 2, 1, vec![0.0; 2])];
    let moments = Wire::MomentRows { first: 0, count: 1 };
    let capabilities = bench.session.task().capabilities();
    for (task, role, tensors, is_compiled_in) in [
        (fed_avg, Role::SharedHead, tensors, cfg!(feature = "shared-head")),
        (moments, Role::Moment, vec![], cfg!(feature = "reveal-moments")),
    ] {
        assert_eq!(capabilities.tasks & task.bit() != 0, is_compiled_in);
        assert_eq!(capabilities.roles & role.bit() != 0, is_compiled_in);
        if !is_compiled_in {
            let (message, body) =
                Server::new(9, task, Encoding::F32, 4096, tensors).opening_messages().remove(0);
            check_lacking_task(&mut bench, &message, &body, DeclineReason::Task);
        }
    }
    assert_eq!(capabilities.roles & Role::FactoredHead.bit(), 0);
}

#[test]
fn unsuitable_rounds_are_declined_before_the_first_chunk() {
    let problem = create_problem(20, 2, 1);
    let flash = Flash::default();
    let mut bench = trained_bench(&problem, 256, flash.clone());
    let before = (predict_first_sample(&mut bench, &problem).unwrap(), flash.0.borrow().clone().record);
    for (count, (open, reason)) in unsuitable_rounds().into_iter().enumerate() {
        let sent = bench.receive_message(&ToDevice::RoundOpen(open.clone()), &[]);
        assert_eq!(decline_reason(&sent), reason, "{open:?}");
        assert_eq!(
            predict_first_sample(&mut bench, &problem).as_ref(),
            Ok(&before.0),
            "predict failed after a declined round"
        );
        assert_eq!(flash.0.borrow().record, before.1);
        assert_eq!(bench.session.counters().declined as usize, count + 1);
        // Chunks of a declined round are ignored.
        let chunk = Chunk { id: open.id, tensor: 0, offset: 0 };
        assert!(bench.receive_message(&ToDevice::Chunk(chunk), &[0; 64]).is_empty());
        assert_eq!(predict_first_sample(&mut bench, &problem).as_ref(), Ok(&before.0));
    }
    // A round is also declined if the length of its body differs from that of its descriptors.
    let (message, body) = &problem.server(9, gradient_task(), Encoding::F32, 256).opening_messages()[0];
    for body in [&body[1..], &[]] {
        assert_eq!(decline_reason(&bench.receive_message(message, body)), DeclineReason::Tensors);
        assert_eq!(predict_first_sample(&mut bench, &problem).as_ref(), Ok(&before.0));
    }
    assert!(
        matches!(bench.receive_message(message, body)[..], [(ToServer::Update(_), _)]),
        "a correct round was declined afterwards"
    );
}

/// A pending update stays unchanged while other rounds are declined.
#[test]
fn declined_rounds_do_not_touch_the_update_in_flight() {
    let problem = create_problem(20, 2, 1);
    for limit in [128, 256] {
        let mut bench = problem.bench(limit);
        bench.connect(7, 60_000);
        let server =
            problem.server(8, fed_rep_task(Upload::Representation, Encoding::F32), Encoding::F32, limit);
        let mut first_frames = Vec::new();
        for (message, body) in server.opening_messages() {
            first_frames.extend(bench.receive_message(&message, &body));
        }
        assert!(matches!(first_frames[0].0, ToServer::Update(_)));
        let repeated = problem.server(0, gradient_task(), Encoding::F32, limit).opening_messages().remove(0);
        bench.receive_message(&repeated.0, &repeated.1);
        for (open, reason) in unsuitable_rounds() {
            assert_eq!(
                decline_reason(&bench.receive_message(&ToDevice::RoundOpen(open.clone()), &[])),
                reason
            );
            let mut repeated_frames = Vec::new();
            while repeated_frames.is_empty() || matches!(repeated_frames[..], [(ToServer::Alive, _)]) {
                repeated_frames = bench.wake_up();
            }
            assert_eq!(repeated_frames, first_frames, "after {open:?}");
        }
        let ack = ToDevice::Ack(Ack { id: server.open.id, outcome: AckOutcome::Counted });
        bench.receive_message(&ack, &[]);
        assert_eq!(bench.session.last_round(), 8);
    }
}

#[test]
fn invalid_representation_is_declined_and_a_valid_one_recovers() {
    let problem = create_problem(57, 8, 1);
    for limit in [128, 4096] {
        let flash = Flash::default();
        let mut bench = trained_bench(&problem, limit, flash.clone());
        let before = predict_first_sample(&mut bench, &problem).unwrap();
        let head = bits(bench.session.task().head());
        // The NaN is written into the encoded bytes below, because the encoder refuses it.
        let mut non_finite = problem.b.clone();
        non_finite[455] = 0.5;
        let mut equal_columns = problem.b.clone();
        equal_columns.chunks_mut(8).for_each(|row| row[1] = row[0]);
        for (invalid, is_non_finite) in [(non_finite, true), (equal_columns, false)] {
            let server = problem.server_of(6, gradient_task(), Encoding::F32, limit, invalid);
            let mut sent = Vec::new();
            for (message, mut body) in server.opening_messages() {
                let is_last_chunk = matches!(&message, ToDevice::Chunk(c) if c.offset + 22 > 440);
                if is_non_finite && (is_last_chunk || limit == 4096) {
                    let n = body.len();
                    body[n - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
                }
                sent.extend(bench.receive_message(&message, &body));
            }
            match decline_reason(&sent) {
                DeclineReason::NonFinite => assert!(is_non_finite),
                DeclineReason::NotOrthonormal { error } => assert!(!is_non_finite && error > 0.9),
                other => panic!("{other:?}"),
            }
            assert_eq!(predict_first_sample(&mut bench, &problem), Err(NotReady::NoRepresentation));
            assert_eq!(bits(bench.session.task().head()), head);
            assert_eq!(flash.0.borrow().saves, 1);
        }
        // The round is repeated with the previous B, on which the stored head was fitted, so the device can
        // predict again.
        let server = problem.server(6, gradient_task(), Encoding::F32, limit);
        let sent: Vec<_> =
            server.opening_messages().iter().flat_map(|(m, body)| bench.receive_message(m, body)).collect();
        assert!(matches!(sent[0].0, ToServer::Update(_)));
        assert_eq!(predict_first_sample(&mut bench, &problem).unwrap(), before);
    }
}

/// A finite sample is so large that the gradient overflows. Nothing is sent after the first element that is
/// not finite, and the decline is sent once.
#[test]
fn non_finite_update_is_declined_once() {
    let (d, k) = (57, 8);
    let b: Vec<f32> = (0..d * k).map(|i| if i % k == i / k { 1.0 } else { 0.0 }).collect();
    let mut random = Random(1);
    let mut samples = Sliced::regression(random.normals(30 * d), random.normals(30), d, 1);
    samples.x.chunks_mut(d).for_each(|x| x[d - 1] = 3e38);
    let problem = Problem { d, k, c: 1, b, samples };
    for limit in [128, 4096] {
        let mut bench = problem.bench(limit);
        bench.connect(7, 60_000);
        let opening = problem.server(1, gradient_task(), Encoding::F32, limit).opening_messages();
        for (message, body) in &opening[..opening.len() - 1] {
            bench.receive_message(message, body);
        }
        let (message, body) = opening.last().unwrap();
        let mut sent: Vec<_> =
            bench.handle_event(Event::Message(&payload(message, body))).into_iter().collect();
        if limit == 128 {
            // The server requests the last chunks while the update is still being sent.
            let chunks = [20u16, 0, 1, 20].into_iter().collect();
            let missing = Missing { id: RoundId { round: 1, stage: 0 }, tensor: 0, chunks };
            sent.extend(bench.receive_message(&ToDevice::Missing(missing), &[]));
        }
        sent.extend(bench.handle_until_idle(Event::Tick));
        let (last, earlier) = sent.split_last().unwrap();
        assert!(
            matches!(&last.0, ToServer::Decline(d) if d.reason == DeclineReason::UpdateNonFinite),
            "{limit}: {sent:?}"
        );
        assert!(!earlier.iter().any(|(message, _)| matches!(message, ToServer::Decline(_))));
        assert_eq!(bench.session.counters().declined, 1);
    }
}

#[test]
fn round_is_declined_if_the_store_fails() {
    let problem = create_problem(20, 2, 1);
    let flash = Flash::default();
    let mut bench = problem.bench_with(256, flash.clone());
    bench.connect(7, 60_000);
    flash.0.borrow_mut().fail_save = true;
    let (message, body) = problem.server(1, gradient_task(), Encoding::F32, 256).opening_messages().remove(0);
    assert_eq!(decline_reason(&bench.receive_message(&message, &body)), DeclineReason::Device);
    assert_eq!((bench.session.counters().storage, bench.session.last_round()), (1, 0));
    assert!(bench.wake_up().iter().all(|(m, _)| *m == ToServer::Alive), "the update was sent later");
    flash.0.borrow_mut().fail_save = false;
    assert!(
        matches!(bench.receive_message(&message, &body)[..], [(ToServer::Update(_), _)]),
        "the round could not be opened again"
    );
    flash.0.borrow_mut().fail_load = true;
    let restarted = problem.bench_with(256, flash);
    assert_eq!(restarted.session.counters().storage, 1);
    assert_eq!(restarted.session.task().head_fitted_on(), None);
}

#[test]
fn round_is_declined_if_the_source_of_samples_fails() {
    let problem = create_problem(20, 2, 1);
    for failing_pass in [1, 2] {
        let mut bench = problem.bench(256);
        bench.connect(7, 60_000);
        bench.session.source_mut().failing_pass = Some(failing_pass);
        let (message, body) =
            problem.server(1, gradient_task(), Encoding::F32, 256).opening_messages().remove(0);
        assert_eq!(decline_reason(&bench.receive_message(&message, &body)), DeclineReason::Device);
        assert!(matches!(bench.receive_message(&message, &body)[..], [(ToServer::Update(_), _)]));
    }
}
