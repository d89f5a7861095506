//! Tests of the session against a fake server: complete rounds at every frame limit, a link that loses,
//! duplicates, reorders and breaks, rounds that must be declined, and state that survives a reset.

use crate::common::problem::*;
use crate::common::server::*;
use crate::common::*;
use fedspan_client::session::{Config, Counters, Event, Sampling};
use fedspan_client::source::{NoRecording, Targets};
use fedspan_client::{NotReady, Task};
use fedspan_protocol::message::{
    Ack, AckOutcome, DeclineReason, Refusal, RoundId, Task as Wire, ToDevice, ToServer, Upload,
};
use fedspan_protocol::tensor::Encoding;
use proptest::prelude::*;

#[test]
fn round_completes_at_every_frame_limit_and_encoding() {
    for (d, k, c) in [(6, 2, 1), (20, 2, 1), (57, 8, 7), (128, 8, 1)] {
        let problem = create_problem(d, k, c);
        for limit in [128, 256, 4096] {
            let mut bench = problem.bench(limit);
            let mut round = 0;
            for down in ALL_ENCODINGS {
                for up in ALL_ENCODINGS {
                    for upload in [Upload::Gradient, Upload::Representation] {
                        round += 1;
                        let task = fed_rep_task(upload, up);
                        let mut server = problem.server(round, task, down, limit);
                        run_link(&mut bench, &mut server, 10_000, |_| Fate::Deliver);
                        let (head, sent) = problem.expected_result(task, down);
                        assert_eq!(server.updates.len(), 1, "{limit} {down:?} {up:?} {:?}", server.declined);
                        assert_eq!(bits(&server.update_values(0)), bits(&sent));
                        assert_eq!(bits(bench.session.task().head()), bits(&head));
                        assert_eq!((server.updates[0].0.samples, server.updates[0].0.skipped), (30, 0));
                        assert_eq!(bench.session.last_round(), round);
                        bench.handle_until_idle(Event::LinkDown);
                    }
                }
            }
            let counters = bench.session.counters();
            assert_eq!(counters, Counters { counted: round, ..Counters::default() });
        }
    }
}

#[test]
fn fit_head_uploads_nothing_and_enables_predict() {
    let problem = create_problem(57, 8, 2);
    for limit in [128, 4096] {
        let mut bench = problem.bench(limit);
        let mut server = problem.server(1, Wire::FitHead { head: EXACT }, Encoding::F32, limit);
        run_link(&mut bench, &mut server, 1000, |_| Fate::Deliver);
        let (update, parts) = &server.updates[0];
        assert!(update.tensors.is_empty() && parts.is_empty());
        let mut out = [0.0; 2];
        bench.session.task_mut().predict(&problem.samples.x[..57], &mut out).unwrap();
    }
}

/// A device with `leave_when_fitted` closes the link once its final head is acknowledged, and not before.
#[test]
fn device_leaves_when_its_head_is_fitted() {
    let problem = create_problem(20, 2, 1);
    for leave in [true, false] {
        let config = Config { leave_when_fitted: leave, ..session_config(256) };
        let mut bench = Bench::new(config, Heap::new(20, 2, 1), problem.samples.clone(), Flash::default());
        bench.connect(7, 60_000);
        let mut round = 0;
        let fit = Wire::FitHead { head: EXACT };
        for (task, outcome, fitted) in [
            (gradient_task(), AckOutcome::Counted, false),
            (fit, AckOutcome::Late, false),
            (fit, AckOutcome::Counted, true),
        ] {
            round += 1;
            let (message, body) =
                problem.server(round, task, Encoding::F32, 256).opening_messages().remove(0);
            assert!(matches!(bench.receive_message(&message, &body)[..], [(ToServer::Update(_), _)]));
            assert!(!bench.last.close);
            bench.receive_message(&ToDevice::Ack(Ack { id: RoundId { round, stage: 0 }, outcome }), &[]);
            assert_eq!((bench.session.is_fitted(), bench.last.close), (fitted, fitted && leave));
        }
        bench.handle_until_idle(Event::LinkDown);
        assert!(!bench.last.close && bench.last.wake.as_u64() > bench.now);
    }
}

/// The session also runs tasks with two tensors in each direction, with no downloaded tensor, and with a
/// subspace.
#[cfg(all(feature = "shared-head", feature = "reveal-moments"))]
#[test]
fn session_runs_every_task() {
    use fedspan_protocol::tensor::Role;
    let problem = create_problem(20, 4, 2);
    for limit in [128, 256, 4096] {
        let mut bench = problem.bench(limit);
        let avg =
            Wire::FedAvg { step_size: 0.01, head_step_size: 0.01, local_steps: 2, encoding: Encoding::I8 };
        let w = Random(9).normals(8);
        let tensors =
            vec![(Role::Representation, 20, 4, problem.b.clone()), (Role::SharedHead, 4, 2, w.clone())];
        let mut server = Server::new(1, avg, Encoding::F16, limit.into(), tensors);
        run_link(&mut bench, &mut server, 1000, |_| Fate::Deliver);
        let roles: Vec<Role> = server.updates[0].0.tensors.iter().map(|t| t.role).collect();
        assert_eq!(roles, [Role::Representation, Role::SharedHead]);
        assert_eq!(server.update_values(0).len(), 88);
        bench.handle_until_idle(Event::LinkDown);
        let tensors = vec![(Role::Subspace, 20, 4, problem.b.clone())];
        let mut server = Server::new(2, Wire::PowerStart, Encoding::F32, limit.into(), tensors);
        run_link(&mut bench, &mut server, 1000, |_| Fate::Deliver);
        assert_eq!(server.updates[0].0.tensors[0].role, Role::Subspace);
        bench.handle_until_idle(Event::LinkDown);
        let moments = Wire::MomentRows { first: 3, count: 4 };
        let mut server = Server::new(3, moments, Encoding::F32, limit.into(), Vec::new());
        run_link(&mut bench, &mut server, 1000, |_| Fate::Deliver);
        assert_eq!(server.update_values(0).len(), 17 + 16 + 15 + 14);
        assert_eq!(bench.session.counters(), Counters { counted: 3, ..Counters::default() });
    }
}

#[test]
fn streamed_samples_complete_a_round() {
    let problem = create_problem(20, 2, 1);
    for limit in [128, 256] {
        let config = Config { sampling: Sampling::Stream { samples: 30 }, ..session_config(limit) };
        let mut bench = Bench::new(config, Heap::streaming(20, 2, 1), NoRecording, Flash::default());
        let mut server = problem.server(1, gradient_task(), Encoding::F32, limit);
        bench.connect(7, 60_000);
        let (x, target) = problem.samples.get(0);
        bench.handle_until_idle(Event::Sample(x, target));
        assert_eq!(
            bench.session.counters().unexpected,
            1,
            "a sample without an open round was not counted as unexpected"
        );
        let mut sent = Vec::new();
        for (message, body) in server.opening_messages() {
            sent.extend(bench.receive_message(&message, &body));
        }
        assert!(sent.is_empty());
        // Unusable samples do not count towards the thirty.
        bench.handle_until_idle(Event::Sample(&[f32::NAN; 20], target));
        bench.handle_until_idle(Event::Sample(&[1.0; 20], Targets::Classes(&[3])));
        for i in 0..30 {
            assert!(sent.is_empty());
            let (x, target) = problem.samples.get(i);
            sent = bench.handle_until_idle(Event::Sample(x, target));
        }
        for (message, body) in sent {
            server.handle_message(message, body);
        }
        assert_eq!((server.updates[0].0.samples, server.updates[0].0.skipped), (30, 2));
        let (_, expected) = problem.expected_result(gradient_task(), Encoding::F32);
        for (a, b) in server.update_values(0).iter().zip(&expected) {
            assert!((a - b).abs() <= 1e-5, "{a} {b}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// Frames are lost, duplicated and reordered, and the link breaks; the same update arrives.
    #[test]
    fn update_arrives_over_an_unreliable_link(seed in any::<u64>(), limit in prop::sample::select(vec![128u16, 256, 4096])) {
        let problem = create_problem(57, 8, 2);
        let (_, expected) = problem.expected_result(gradient_task(), Encoding::F32);
        let mut bench = problem.bench(limit);
        let mut server = problem.server(1, gradient_task(), Encoding::F32, limit);
        let mut random = Random(seed);
        run_link(&mut bench, &mut server, 20_000, |frame| match random.below(20) {
            0..=1 => Fate::Lose,
            2 => Fate::Twice,
            3..=4 => Fate::Later,
            5 if frame < 400 && random.below(8) == 0 => Fate::CutBefore,
            6 if frame < 400 && random.below(8) == 0 => Fate::CutAfter,
            _ => Fate::Deliver,
        });
        prop_assert!(!server.updates.is_empty(), "{:?}", bench.session.counters());
        for index in 0..server.updates.len() {
            prop_assert_eq!(bits(&server.update_values(index)), bits(&expected));
        }
        // A round that is opened again after its acknowledgement is declined.
        let repeated = DeclineReason::RoundRepeated { last: 1 };
        prop_assert!(server.declined.iter().all(|d| d.reason == repeated), "{:?}", server.declined);
    }
}

#[test]
fn only_lost_chunks_are_requested_again() {
    let problem = create_problem(57, 8, 1);
    let (_, expected) = problem.expected_result(gradient_task(), Encoding::F32);
    let server = problem.server(1, gradient_task(), Encoding::F32, 128);
    let opening = server.opening_messages();
    assert!(opening.len() > 20);
    for lost in [vec![1], vec![21], vec![1, 2, 3], (1..opening.len()).collect()] {
        let (mut bench, mut server) = (problem.bench(128), server.clone());
        bench.connect(7, 60_000);
        let mut chunks: Vec<_> = opening.clone();
        let (message, body) = chunks.remove(0);
        assert!(bench.receive_message(&message, &body).is_empty());
        chunks.reverse();
        for (message, body) in &chunks {
            let ToDevice::Chunk(chunk) = message else { panic!() };
            let index = 1 + chunk.offset as usize / usize::from(server.open.tensors[0].chunk);
            if !lost.contains(&index) {
                assert!(bench.receive_message(message, body).is_empty());
                assert!(bench.receive_message(message, body).is_empty(), "a duplicate was answered");
            }
        }
        let mut sent = bench.wake_up();
        let mut asked = 0;
        while let [(ToServer::Missing(missing), _)] = &sent[..] {
            asked += missing.chunks.len();
            for (message, body) in server.handle_message(ToServer::Missing(missing.clone()), Vec::new()) {
                sent = bench.receive_message(&message, &body);
            }
            if sent.is_empty() {
                sent = bench.wake_up();
            }
        }
        assert_eq!(asked, lost.len(), "the requested chunks are not the lost ones");
        for (message, body) in sent {
            server.handle_message(message, body);
        }
        assert_eq!(bits(&server.update_values(0)), bits(&expected));
    }
}

/// Chunks that arrive after their round has been replaced are ignored.
#[test]
fn chunks_of_another_round_are_ignored() {
    let problem = create_problem(57, 8, 1);
    let other_basis = flat(&Random(5).orthonormal(57, 8));
    let old_opening =
        problem.server_of(1, gradient_task(), Encoding::F32, 128, other_basis).opening_messages();
    let mut server = problem.server(2, gradient_task(), Encoding::F32, 128);
    let mut bench = problem.bench(128);
    bench.connect(7, 60_000);
    bench.receive_message(&old_opening[0].0, &old_opening[0].1);
    let mut sent = Vec::new();
    for (late_chunk, (message, body)) in old_opening[1..].iter().zip(server.opening_messages()) {
        sent.extend(bench.receive_message(&message, &body));
        sent.extend(bench.receive_message(&late_chunk.0, &late_chunk.1));
    }
    let (message, body) = server.opening_messages().pop().unwrap();
    sent.extend(bench.receive_message(&message, &body));
    for (message, body) in sent {
        server.handle_message(message, body);
    }
    let (_, expected) = problem.expected_result(gradient_task(), Encoding::F32);
    assert_eq!(bits(&server.update_values(0)), bits(&expected));
    assert_eq!(bench.session.counters().unexpected as usize, old_opening.len() - 1);
}

/// A round 1 of another campaign is computed, even if an update for a round 1 is pending.
#[test]
fn update_does_not_cross_campaigns() {
    let problem = create_problem(20, 2, 1);
    let mut bench = problem.bench(256);
    bench.connect(7, 60_000);
    let other_basis = flat(&Random(5).orthonormal(20, 2));
    let (message, body) =
        problem.server_of(1, gradient_task(), Encoding::F32, 256, other_basis).opening_messages().remove(0);
    let first = bench.receive_message(&message, &body);
    bench.handle_until_idle(Event::LinkDown);
    bench.connect(8, 60_000);
    let mut server = problem.server(1, gradient_task(), Encoding::F32, 256);
    let (message, body) = server.opening_messages().remove(0);
    let second = bench.receive_message(&message, &body);
    assert_ne!(first, second);
    for (message, body) in second {
        server.handle_message(message, body);
    }
    let (_, expected) = problem.expected_result(gradient_task(), Encoding::F32);
    assert_eq!(bits(&server.update_values(0)), bits(&expected));
}

/// A server that opens another round in between gets no second update for a round whose update was sent, even
/// with another representation, and no update for an earlier round.
#[test]
fn sent_round_is_not_computed_again() {
    let problem = create_problem(20, 2, 1);
    let other_basis = flat(&Random(5).orthonormal(20, 2));
    let open = |round: u32, b: &[f32]| {
        problem.server_of(round, gradient_task(), Encoding::F32, 256, b.to_vec()).opening_messages().remove(0)
    };
    for other_round in [6, 4] {
        let mut bench = problem.bench(256);
        bench.connect(7, 60_000);
        let (message, body) = open(5, &problem.b);
        let first = bench.receive_message(&message, &body);
        assert!(matches!(first[..], [(ToServer::Update(_), _)]));
        // While the update is pending, the same bytes are sent again in reply to any opening of the round.
        let (message, body) = open(5, &other_basis);
        assert_eq!(bench.receive_message(&message, &body), first);
        let (message, body) = open(other_round, &problem.b);
        let second = bench.receive_message(&message, &body);
        let last = other_round.max(5);
        if other_round < 5 {
            assert_eq!(decline_reason(&second), DeclineReason::RoundRepeated { last });
            // The pending update is unchanged.
            let (message, body) = open(5, &other_basis);
            assert_eq!(bench.receive_message(&message, &body), first);
        } else {
            assert!(matches!(second[..], [(ToServer::Update(_), _)]));
            let (message, body) = open(5, &other_basis);
            let answer = bench.receive_message(&message, &body);
            assert_eq!(decline_reason(&answer), DeclineReason::RoundRepeated { last });
        }
    }
    // Another stage of the round counts as the same round.
    let mut bench = problem.bench(256);
    bench.connect(7, 60_000);
    let (message, body) = open(5, &problem.b);
    bench.receive_message(&message, &body);
    let (mut message, body) = open(5, &other_basis);
    let ToDevice::RoundOpen(open) = &mut message else { panic!() };
    open.id.stage = 9;
    assert_eq!(
        decline_reason(&bench.receive_message(&message, &body)),
        DeclineReason::RoundRepeated { last: 5 }
    );
}

/// The link breaks once, before or after any frame. The update that arrives has the same bytes, and a
/// finished round is not computed again.
#[test]
fn update_survives_a_break_at_every_frame() {
    for (limit, shape) in [(128, (57, 8, 1)), (256, (20, 2, 1)), (4096, (57, 8, 1))] {
        let problem = create_problem(shape.0, shape.1, shape.2);
        let uninterrupted = {
            let (mut bench, mut server) =
                (problem.bench(limit), problem.server(1, gradient_task(), Encoding::F32, limit));
            let frames = run_link(&mut bench, &mut server, 10_000, |_| Fate::Deliver);
            (frames, server.updates[0].clone())
        };
        for frame in 0..uninterrupted.0 {
            for fate in [Fate::CutBefore, Fate::CutAfter] {
                let flash = Flash::default();
                let mut bench = problem.bench_with(limit, flash.clone());
                let mut server = problem.server(1, gradient_task(), Encoding::F32, limit);
                run_link(&mut bench, &mut server, 10_000, |i| if i == frame { fate } else { Fate::Deliver });
                let is_last_frame = (frame, fate) == (uninterrupted.0 - 1, Fate::CutAfter);
                assert!(!server.updates.is_empty());
                for update in &server.updates {
                    assert_eq!(*update, uninterrupted.1, "limit {limit}, {fate:?} frame {frame}");
                }
                // After the acknowledgement, the same round is a repetition.
                assert_eq!(server.declined.len(), usize::from(is_last_frame), "{:?}", server.declined);
                assert_eq!(flash.0.borrow().saves, 1, "not computed exactly once, {fate:?} frame {frame}");
                assert_eq!(bench.session.last_round(), 1);
            }
        }
    }
}

#[test]
fn predict_is_not_ready_during_a_download() {
    let problem = create_problem(57, 8, 1);
    let mut bench = trained_bench(&problem, 128, Flash::default());
    let server = problem.server(6, Wire::FitHead { head: EXACT }, Encoding::F32, 128);
    for (i, (message, body)) in server.opening_messages().iter().enumerate() {
        assert_eq!(predict_first_sample(&mut bench, &problem).is_ok(), i < 2, "before frame {i}");
        bench.receive_message(message, body);
    }
    assert!(predict_first_sample(&mut bench, &problem).is_ok());
}

#[test]
fn round_closed_midway_is_dropped() {
    let problem = create_problem(57, 8, 1);
    let opening = problem.server(6, gradient_task(), Encoding::F32, 128).opening_messages();
    for frames in 1..opening.len() {
        let mut bench = trained_bench(&problem, 128, Flash::default());
        let head = bits(bench.session.task().head());
        for (message, body) in &opening[..frames] {
            bench.receive_message(message, body);
        }
        let other_round = RoundId { round: 77, stage: 0 };
        bench.receive_message(&ToDevice::RoundClosed(other_round), &[]);
        assert_eq!(bench.session.counters().closed, 0, "the end of another round closed this round");
        assert!(
            bench.receive_message(&ToDevice::RoundClosed(RoundId { round: 6, stage: 0 }), &[]).is_empty()
        );
        assert_eq!(bench.session.counters().closed, 1);
        assert_eq!(bits(bench.session.task().head()), head);
        for (message, body) in &opening[frames..] {
            assert!(bench.receive_message(message, body).is_empty());
        }
        let mut server = problem.server(7, gradient_task(), Encoding::F32, 128);
        for (message, body) in server.opening_messages() {
            for (message, body) in bench.receive_message(&message, &body) {
                server.handle_message(message, body);
            }
        }
        assert_eq!(server.updates.len(), 1);
    }
    // The round is closed while the update is being sent.
    let mut bench = trained_bench(&problem, 128, Flash::default());
    for (message, body) in &opening[..opening.len() - 1] {
        bench.receive_message(message, body);
    }
    let (message, body) = opening.last().unwrap();
    assert!(bench.handle_event(Event::Message(&payload(message, body))).is_some() && bench.last.again);
    bench.handle_event(Event::Tick);
    let closed = payload(&ToDevice::RoundClosed(RoundId { round: 6, stage: 0 }), &[]);
    assert!(bench.handle_event(Event::Message(&closed)).is_none() && !bench.last.again);
}

#[test]
fn late_and_rejected_updates_are_counted() {
    use fedspan_protocol::message::Rejection;
    let problem = create_problem(20, 2, 1);
    let mut bench = problem.bench(256);
    bench.connect(7, 60_000);
    let outcomes = [AckOutcome::Late, AckOutcome::Rejected(Rejection::NotAsked), AckOutcome::Duplicate];
    for (round, outcome) in (1u32..).zip(outcomes) {
        let (message, body) =
            problem.server(round, gradient_task(), Encoding::F32, 256).opening_messages().remove(0);
        bench.receive_message(&message, &body);
        let id = RoundId { round, stage: 0 };
        let other_stage = Ack { id: RoundId { round, stage: 1 }, outcome };
        bench.receive_message(&ToDevice::Ack(other_stage), &[]);
        assert_eq!(
            bench.session.last_round(),
            round - 1,
            "an acknowledgement of another round had an effect"
        );
        bench.receive_message(&ToDevice::Ack(Ack { id, outcome }), &[]);
        assert_eq!(bench.session.last_round(), round);
    }
    let Counters { counted, late, rejected, unexpected, .. } = bench.session.counters();
    assert_eq!((counted, late, rejected, unexpected), (1, 1, 1, 3));
}

#[test]
fn restored_head_needs_its_own_representation() {
    let problem = create_problem(20, 2, 1);
    let flash = Flash::default();
    let mut before = trained_bench(&problem, 256, flash.clone());
    let expected = predict_first_sample(&mut before, &problem).unwrap();
    let mut bench = problem.bench_with(256, flash.clone());
    assert_eq!(bench.session.last_round(), 5);
    assert_eq!(predict_first_sample(&mut bench, &problem), Err(NotReady::NoRepresentation));
    let other_basis = flat(&Random(3).orthonormal(20, 2));
    bench.session.task_mut().set_representation(&other_basis).unwrap();
    assert_eq!(predict_first_sample(&mut bench, &problem), Err(NotReady::NoHead));
    bench.session.task_mut().set_representation(&problem.b).unwrap();
    assert_eq!(predict_first_sample(&mut bench, &problem), Ok(expected));
    // The same campaign continues after round 5, which was finished before the reset.
    bench.connect(7, 60_000);
    let (message, body) = problem.server(5, gradient_task(), Encoding::F32, 256).opening_messages().remove(0);
    assert_eq!(
        decline_reason(&bench.receive_message(&message, &body)),
        DeclineReason::RoundRepeated { last: 5 }
    );
    let (message, body) = problem.server(6, gradient_task(), Encoding::F32, 256).opening_messages().remove(0);
    assert!(matches!(bench.receive_message(&message, &body)[..], [(ToServer::Update(_), _)]));
    // A record of another shape is not loaded.
    let bench = Bench::new(session_config(256), Heap::new(20, 3, 1), problem.samples.clone(), flash);
    assert_eq!((bench.session.last_round(), bench.session.task().head_fitted_on()), (0, None));
}

#[test]
fn refusal_closes_the_link_and_is_kept() {
    let problem = create_problem(20, 2, 1);
    let mut bench = problem.bench(256);
    bench.handle_until_idle(Event::LinkUp);
    let refusal = Refusal::WireVersion { served: 9 };
    assert!(bench.receive_message(&ToDevice::Refused(refusal), &[]).is_empty());
    assert!(bench.last.close && !bench.last.again);
    assert_eq!(bench.session.refusal(), Some(refusal));
}
