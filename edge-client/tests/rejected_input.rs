//! Tests of server input that must not change the device: a shape that the device does not support, an
//! earlier round, an invalid representation, an interrupted download. Head, last round, counters and store
//! stay unchanged.

use crate::common::problem::*;
use crate::common::server::*;
use crate::common::*;
use fedspan_client::session::{Counters, Event};
use fedspan_client::store::RecordHeader;
use fedspan_client::{NotReady, Task};
use fedspan_protocol::message::{Chunk, DeclineReason, RoundId, RoundOpen, ToDevice, ToServer};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

/// State that must survive, in the device and in its store.
#[derive(Clone, Debug, PartialEq)]
struct Lasting {
    head: Vec<u32>,
    fitted_on: Option<u32>,
    last_round: u32,
    counters: Counters,
    record: Option<(RecordHeader, Vec<f32>)>,
    saves: usize,
}

/// Returns the present state.
fn lasting_state(bench: &Bench<Sliced>, flash: &Flash) -> Lasting {
    let state = flash.0.borrow();
    Lasting {
        head: bits(bench.session.task().head()),
        fitted_on: bench.session.task().head_fitted_on(),
        last_round: bench.session.last_round(),
        counters: bench.session.counters(),
        record: state.record.clone(),
        saves: state.saves,
    }
}

/// Creates a device that has finished round 5. Returns the device, its store and its state.
fn device_after_round_5(problem: &Problem, limit: u16) -> (Bench<Sliced>, Flash, Lasting) {
    let flash = Flash::default();
    let bench = trained_bench(problem, limit, flash.clone());
    let before = lasting_state(&bench, &flash);
    assert_eq!((before.saves, before.last_round), (1, 5));
    (bench, flash, before)
}

#[test]
fn unsupported_shape_is_declined_before_the_first_chunk() {
    let problem = create_problem(20, 2, 1);
    let (mut bench, flash, mut before) = device_after_round_5(&problem, 256);
    let known = predict_first_sample(&mut bench, &problem);
    assert!(known.is_ok());
    let huge = u16::MAX;
    for (rows, cols) in [(21, 2), (20, 3), (2, 20), (40, 1), (1, 1), (0, 2), (20, 0), (huge, 2), (huge, huge)]
    {
        for chunk in [0, 50] {
            let id = RoundId { round: 9, stage: 0 };
            let inline = TensorDescriptor::inline(Role::Representation, Encoding::F32, rows, cols);
            let tensors = [TensorDescriptor { chunk, ..inline }].into_iter().collect();
            let open = ToDevice::RoundOpen(RoundOpen { id, task: gradient_task(), tensors });
            assert_eq!(
                decline_reason(&bench.receive_message(&open, &[])),
                DeclineReason::Tensors,
                "{rows} x {cols}"
            );
            before.counters.declined += 1;
            assert_eq!(lasting_state(&bench, &flash), before, "{rows} x {cols}");
            assert_eq!(predict_first_sample(&mut bench, &problem), known, "the representation changed");
            // Later chunks of the round are ignored.
            let chunk = ToDevice::Chunk(Chunk { id, tensor: 0, offset: 0 });
            assert!(bench.receive_message(&chunk, &[0; 200]).is_empty());
            before.counters.unexpected += 1;
            assert_eq!(
                (lasting_state(&bench, &flash), predict_first_sample(&mut bench, &problem)),
                (before.clone(), known.clone())
            );
        }
    }
}

#[test]
fn earlier_round_is_declined_before_the_first_chunk() {
    let problem = create_problem(57, 8, 1);
    for limit in [128, 4096] {
        let (mut bench, flash, mut before) = device_after_round_5(&problem, limit);
        let prediction = predict_first_sample(&mut bench, &problem);
        for round in [5, 4, 1, 0] {
            let other_basis = flat(&Random(3).orthonormal(57, 8));
            let server = problem.server_of(round, gradient_task(), Encoding::F32, limit, other_basis);
            for (index, (message, body)) in server.opening_messages().iter().enumerate() {
                let sent = bench.receive_message(message, body);
                if index == 0 {
                    assert_eq!(decline_reason(&sent), DeclineReason::RoundRepeated { last: 5 });
                    before.counters.declined += 1;
                } else {
                    assert!(sent.is_empty());
                    before.counters.unexpected += 1;
                }
                assert_eq!(
                    (lasting_state(&bench, &flash), predict_first_sample(&mut bench, &problem)),
                    (before.clone(), prediction.clone())
                );
            }
        }
    }
}

/// Sends a round, with `poison` as the last value of its representation. Returns the answers.
fn send_round(bench: &mut Bench<Sliced>, server: &Server, poison: Option<f32>) -> Vec<(ToServer, Vec<u8>)> {
    let mut sent = Vec::new();
    let mut opening = server.opening_messages();
    // The encoder refuses values that are not finite, so the value is written into the encoded bytes.
    if let (Some(value), Some((_, body))) = (poison, opening.last_mut()) {
        let n = body.len();
        body[n - 4..].copy_from_slice(&value.to_le_bytes());
    }
    for (message, body) in &opening {
        sent.extend(bench.receive_message(message, body));
    }
    sent
}

#[test]
fn invalid_representation_is_declined_without_side_effects() {
    let problem = create_problem(57, 8, 1);
    for limit in [128, 4096] {
        let (mut bench, flash, mut before) = device_after_round_5(&problem, limit);
        let prediction = predict_first_sample(&mut bench, &problem);
        let mut equal_columns = problem.b.clone();
        equal_columns.chunks_mut(8).for_each(|row| row[1] = row[0]);
        let longer: Vec<f32> = problem.b.iter().map(|v| 1.1 * v).collect();
        let valid = || problem.b.clone();
        for (b, poison) in [
            (valid(), Some(f32::NAN)),
            (valid(), Some(f32::INFINITY)),
            (valid(), Some(f32::NEG_INFINITY)),
            (equal_columns, None),
            (longer, None),
            (vec![0.0; 57 * 8], None),
        ] {
            let server = problem.server_of(6, gradient_task(), Encoding::F32, limit, b);
            match decline_reason(&send_round(&mut bench, &server, poison)) {
                DeclineReason::NonFinite => assert!(poison.is_some()),
                DeclineReason::NotOrthonormal { error } => assert!(poison.is_none() && error > 0.1),
                other => panic!("{other:?}"),
            }
            before.counters.declined += 1;
            assert_eq!(lasting_state(&bench, &flash), before);
            assert_eq!(predict_first_sample(&mut bench, &problem), Err(NotReady::NoRepresentation));
        }
        // The correct representation is sent with the same round number. It is the one on which the kept head
        // was fitted.
        let server = problem.server(6, gradient_task(), Encoding::F32, limit);
        assert!(matches!(send_round(&mut bench, &server, None)[0], (ToServer::Update(_), _)));
        assert_eq!(predict_first_sample(&mut bench, &problem), prediction);
        let after = lasting_state(&bench, &flash);
        assert_eq!((after.saves, after.head, after.fitted_on), (2, before.head.clone(), before.fitted_on));
    }
}

/// After every possible frame of a download the server stops sending, and then the link breaks.
#[test]
fn interrupted_download_is_requested_again_and_changes_nothing() {
    let problem = create_problem(57, 8, 1);
    // The representation differs from the one on which the head was fitted.
    let other_basis = flat(&Random(3).orthonormal(57, 8));
    let server = problem.server_of(6, gradient_task(), Encoding::F32, 128, other_basis);
    let opening = server.opening_messages();
    assert!(opening.len() > 20);
    for frames_received in 1..opening.len() {
        let (mut bench, flash, mut before) = device_after_round_5(&problem, 128);
        let prediction = predict_first_sample(&mut bench, &problem);
        for (message, body) in &opening[..frames_received] {
            assert!(bench.receive_message(message, body).is_empty());
        }
        let expected_prediction =
            if frames_received == 1 { prediction } else { Err(NotReady::NoRepresentation) };
        let check_unchanged = |bench: &mut Bench<Sliced>, before: &Lasting| {
            assert_eq!(lasting_state(bench, &flash), *before, "after {frames_received} frames");
            assert_eq!(
                predict_first_sample(bench, &problem),
                expected_prediction,
                "after {frames_received} frames"
            );
        };
        check_unchanged(&mut bench, &before);
        // The device requests the missing chunks repeatedly, as many as one message holds.
        for _ in 0..3 {
            let sent = bench.wake_up();
            let [(ToServer::Missing(missing), _)] = &sent[..] else { panic!("{sent:?}") };
            assert_eq!(missing.id, server.open.id);
            assert_eq!(
                usize::from(missing.chunks[0]),
                frames_received - 1,
                "the request does not start at the first missing chunk"
            );
            before.counters.asked_again += 1;
            check_unchanged(&mut bench, &before);
        }
        // The link breaks and is opened again, and the download starts over.
        bench.handle_until_idle(Event::LinkDown);
        check_unchanged(&mut bench, &before);
        bench.now = bench.now.max(bench.last.wake.as_u64());
        bench.connect(7, 60_000);
        check_unchanged(&mut bench, &before);
        let sent = send_round(&mut bench, &server, None);
        assert!(matches!(sent[0], (ToServer::Update(_), _)), "after {frames_received} frames: {sent:?}");
        assert_eq!(lasting_state(&bench, &flash).saves, 2);
        assert!(predict_first_sample(&mut bench, &problem).is_ok());
    }
}
