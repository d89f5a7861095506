//! Tests of messages that no honest server sends: random, truncated, with flipped bits, or spliced from two
//! messages. Nothing panics, and the next round works as usual.

use crate::common::server::*;
use crate::common::*;
use fedspan_client::session::{Config, Event, Sampling};
use fedspan_protocol::message::{
    Ack, AckOutcome, Fault, HeadSolve, Missing, Refusal, RoundId, Task as Wire, ToDevice, ToServer, Upload,
    Welcome,
};
use fedspan_protocol::tensor::{Encoding, Role};
use proptest::prelude::*;

const D: usize = 20;
const K: usize = 3;

fn random_samples() -> Sliced {
    let mut random = Random(1);
    Sliced::regression(random.normals(12 * D), random.normals(12), D, 1)
}

fn server_with_round(round: u32, task: Wire, encoding: Encoding, limit: usize) -> Server {
    let b = flat(&Random(2).orthonormal(D, K));
    Server::new(round, task, encoding, limit, vec![(Role::Representation, D, K, b)])
}

/// Creates a device that replays samples or streams them.
fn create_bench(stream: bool) -> Bench<Sliced> {
    let sampling = if stream { Sampling::Stream { samples: 4 } } else { Sampling::Replay };
    let config = Config { frame_limit: 128, sampling, ..Config::new(1) };
    Bench::new(config, Heap::streaming(D, K, 1), random_samples(), Flash::default())
}

/// Returns valid messages of every kind.
fn valid_messages() -> Vec<Vec<u8>> {
    let id = RoundId { round: 2, stage: 0 };
    let mut messages = vec![
        payload(&ToDevice::Welcome(Welcome { campaign: 3, idle_milliseconds: 5_000 }), &[]),
        payload(&ToDevice::Refused(Refusal::UnknownDevice), &[]),
        payload(&ToDevice::RoundClosed(id), &[]),
        payload(&ToDevice::RetryAfter { milliseconds: 100 }, &[]),
        payload(&ToDevice::Fault(Fault::Malformed), &[]),
        payload(&ToDevice::Ack(Ack { id, outcome: AckOutcome::Late }), &[]),
    ];
    for chunks in [vec![0], vec![1, 2, 3], vec![2, 200, 3]] {
        let chunks = chunks.into_iter().collect();
        messages.push(payload(&ToDevice::Missing(Missing { id, tensor: 0, chunks }), &[]));
    }
    let head = HeadSolve::Gradient { steps: 3, step_size: 0.1 };
    for task in [fed_rep(EXACT, Upload::Gradient, 0.1), Wire::FitHead { head }] {
        for limit in [128, 4096] {
            for encoding in [Encoding::F32, Encoding::I8] {
                for (message, body) in server_with_round(2, task, encoding, limit).opening_messages() {
                    messages.push(payload(&message, &body));
                }
            }
        }
    }
    messages
}

/// An input of the session. `Honest` is a valid message, and the next three variants are altered valid
/// messages.
#[derive(Clone, Debug)]
enum Input {
    Random(Vec<u8>),
    Honest(usize),
    Cut(usize, usize),
    Flip(usize, usize, u8),
    Splice(usize, usize, usize),
    Tick(u64),
    Up,
    Down,
    Sample(bool),
}

/// Strategy for inputs, most of which are valid messages.
fn any_input() -> impl Strategy<Value = Input> {
    let n = any::<usize>();
    prop_oneof![
        2 => prop::collection::vec(any::<u8>(), 0..130).prop_map(Input::Random),
        8 => n.prop_map(Input::Honest),
        2 => (n, n).prop_map(|(a, b)| Input::Cut(a, b)),
        4 => (n, n, 1u8..).prop_map(|(a, b, c)| Input::Flip(a, b, c)),
        2 => (n, n, n).prop_map(|(a, b, c)| Input::Splice(a, b, c)),
        1 => (0u64..20_000).prop_map(Input::Tick),
        2 => Just(Input::Up),
        1 => Just(Input::Down),
        2 => any::<bool>().prop_map(Input::Sample),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4_000) })]

    #[test]
    fn malformed_input_never_panics_or_affects_the_next_round(inputs in prop::collection::vec(any_input(), 0..60), stream in any::<bool>()) {
        let valid = valid_messages();
        let mut bench = create_bench(stream);
        bench.connect(3, 5_000);
        for input in &inputs {
            let honest_message = |index: usize| valid[index % valid.len()].clone();
            let bytes = match input {
                Input::Random(bytes) => bytes.clone(),
                Input::Honest(index) => honest_message(*index),
                Input::Cut(index, position) => {
                    let mut bytes = honest_message(*index);
                    bytes.truncate(position % bytes.len());
                    bytes
                }
                Input::Flip(index, position, mask) => {
                    let mut bytes = honest_message(*index);
                    let position = position % bytes.len().min(24);
                    bytes[position] ^= mask;
                    bytes
                }
                Input::Splice(first, second, position) => {
                    let (mut bytes, tail) = (honest_message(*first), honest_message(*second));
                    let position = position % bytes.len().min(tail.len());
                    bytes.truncate(position);
                    bytes.extend(&tail[position..]);
                    bytes
                }
                Input::Tick(milliseconds) => {
                    bench.now += milliseconds;
                    bench.handle_until_idle(Event::Tick);
                    continue;
                }
                Input::Up => {
                    bench.connect(3, 5_000);
                    continue;
                }
                Input::Down => {
                    bench.handle_until_idle(Event::LinkDown);
                    continue;
                }
                Input::Sample(is_valid) => {
                    let samples = random_samples();
                    let (x, target) = samples.get(0);
                    bench.handle_until_idle(Event::Sample(if *is_valid { x } else { &x[1..] }, target));
                    continue;
                }
            };
            bench.handle_until_idle(Event::Message(&bytes));
            if bench.last.close {
                bench.handle_until_idle(Event::LinkDown);
            }
            // A prediction is either refused or finite.
            let mut out = [0.0];
            if bench.session.task_mut().predict(&random_samples().x[..D], &mut out).is_ok() {
                prop_assert!(out[0].is_finite());
            }
        }
        // The next round belongs to a new campaign on a new link.
        bench.handle_until_idle(Event::LinkDown);
        bench.connect(0xFEED_BEEF, 60_000);
        let task = fed_rep(EXACT, Upload::Gradient, 0.1);
        let mut server = server_with_round(1, task, Encoding::F32, 128);
        let mut sent = Vec::new();
        for (message, body) in server.opening_messages() {
            sent.extend(bench.receive_message(&message, &body));
        }
        let samples = random_samples();
        for i in 0..if stream { 4 } else { 0 } {
            let (x, target) = samples.get(i);
            sent.extend(bench.handle_until_idle(Event::Sample(x, target)));
        }
        for (message, body) in sent {
            prop_assert!(!matches!(message, ToServer::Decline(_)), "{message:?}");
            server.handle_message(message, body);
        }
        prop_assert_eq!(server.updates.len(), 1);
        let mut reference = fedspan_client::Linear::new(Heap::streaming(D, K, 1));
        let (_, expected) = if stream {
            fed_rep_stream(&mut reference, task, &server.tensors[0], &samples.without(&(4..12).collect::<Vec<_>>())).unwrap()
        } else {
            fed_rep_round(&mut reference, task, &server.tensors[0], &mut samples.clone()).unwrap()
        };
        prop_assert_eq!(bits(&server.update_values(0)), bits(&expected));
    }
}

/// Messages that cannot be decoded are counted as malformed.
#[test]
fn malformed_messages_are_counted() {
    let mut bench = create_bench(false);
    bench.connect(3, 5_000);
    let closed = payload(&ToDevice::RoundClosed(RoundId { round: 2, stage: 0 }), &[]);
    let with_body = [&closed[..], &[0]].concat();
    for (count, bytes) in (1u32..).zip([&[][..], &[0xFF; 20], &with_body, &closed[..1]]) {
        assert!(bench.handle_until_idle(Event::Message(bytes)).is_empty());
        assert_eq!(bench.session.counters().malformed, count);
    }
}
