//! Tests of wake-ups and traffic of the session: reconnecting, keep-alives, and a bounded rate of frames for
//! any input from the server.

use crate::common::server::*;
use crate::common::*;
use fedspan_client::Millis;
use fedspan_client::session::{Config, Event};
use fedspan_protocol::message::{
    Ack, AckOutcome, Chunk, Missing, Refusal, RoundId, RoundOpen, Task as Wire, ToDevice, ToServer, Upload,
    Welcome,
};
use fedspan_protocol::tensor::{Encoding, Role};
use proptest::prelude::*;

const D: usize = 20;
const K: usize = 2;

/// Creates a device that is not connected.
fn offline_bench(limit: u16) -> Bench<Sliced> {
    let mut random = Random(1);
    let samples = Sliced::regression(random.normals(10 * D), random.normals(10), D, 1);
    let config = Config { frame_limit: limit, ..Config::new(1) };
    Bench::new(config, Heap::new(D, K, 1), samples, Flash::default())
}

/// Creates a server with a FedRep round.
fn server_with_round(round: u32, limit: u16) -> Server {
    let b = flat(&Random(2).orthonormal(D, K));
    let task = fed_rep(EXACT, Upload::Gradient, 0.0);
    Server::new(round, task, Encoding::F32, limit.into(), vec![(Role::Representation, D, K, b)])
}

#[test]
fn reconnect_delay_grows_and_is_random() {
    let mut bench = offline_bench(256);
    let mut delays = Vec::new();
    for _ in 0..20 {
        bench.handle_until_idle(Event::LinkDown);
        assert!(bench.last.wake.as_u64() > bench.now);
        delays.push(bench.last.wake.as_u64() - bench.now);
        bench.now = bench.last.wake.as_u64();
    }
    for (attempt, delay) in delays.iter().enumerate() {
        let ceiling = (500u64 << attempt.min(10)).min(60_000);
        assert!((ceiling / 2..=ceiling).contains(delay), "attempt {attempt}: {delay} ms");
    }
    assert!(delays[10..].windows(2).any(|w| w[0] != w[1]), "the delays are constant");
}

/// A link that breaks before the Welcome counts as a failed attempt, because a server that refuses
/// connections or is overloaded must not be flooded.
#[test]
fn links_that_break_before_the_welcome_back_off() {
    for refused in [false, true] {
        let mut bench = offline_bench(256);
        let mut delay = 0;
        for _ in 0..12 {
            bench.handle_until_idle(Event::LinkUp);
            if refused {
                bench.receive_message(&ToDevice::Refused(Refusal::UnknownDevice), &[]);
                assert!(bench.last.close);
            }
            bench.handle_until_idle(Event::LinkDown);
            delay = bench.last.wake.as_u64() - bench.now;
            bench.now = bench.last.wake.as_u64();
        }
        assert!(delay >= 30_000, "after twelve attempts: {delay} ms");
        // A Welcome resets the delay.
        bench.connect(1, 60_000);
        bench.handle_until_idle(Event::LinkDown);
        assert!(bench.last.wake.as_u64() - bench.now <= 500);
    }
}

#[test]
fn retry_after_is_obeyed() {
    for welcomed in [false, true] {
        let mut bench = offline_bench(256);
        if welcomed {
            bench.connect(1, 60_000);
        } else {
            bench.handle_until_idle(Event::LinkUp);
        }
        assert!(bench.receive_message(&ToDevice::RetryAfter { milliseconds: 30_000 }, &[]).is_empty());
        assert!(bench.last.close);
        assert_eq!(bench.last.wake.as_u64(), bench.now + 30_000);
        // The driver closes the link and reports that to the session.
        bench.now += 5;
        bench.handle_until_idle(Event::LinkDown);
        assert!(
            bench.last.wake.as_u64() >= bench.now + 29_995,
            "{} ms",
            bench.last.wake.as_u64() - bench.now
        );
    }
}

/// A tick while offline means that the driver is connecting, so the session sets a later time for the next
/// attempt.
#[test]
fn offline_tick_schedules_a_later_attempt() {
    let mut bench = offline_bench(256);
    bench.handle_until_idle(Event::LinkDown);
    for _ in 0..10 {
        bench.now = bench.last.wake.as_u64();
        assert!(bench.handle_until_idle(Event::Tick).is_empty());
        assert!(bench.last.wake.as_u64() > bench.now);
    }
}

#[test]
fn hello_is_repeated_until_answered() {
    let mut bench = offline_bench(256);
    assert_eq!(bench.handle_until_idle(Event::LinkUp).len(), 1);
    for _ in 0..5 {
        assert!(bench.last.wake.as_u64() > bench.now);
        assert!(matches!(bench.wake_up()[..], [(ToServer::Hello(_), _)]));
    }
    bench.receive_message(&ToDevice::Welcome(Welcome { campaign: 1, idle_milliseconds: 60_000 }), &[]);
    bench.now += 3_000;
    assert!(bench.handle_until_idle(Event::Tick).is_empty());
}

/// The device is never silent for as long as the idle limit, in any state of an open connection.
#[test]
fn keep_alive_precedes_the_idle_limit() {
    for idle in [600u32, 1_500, 3_000, 10_000, 60_000, 3_600_000] {
        for frames in 0..5 {
            let mut bench = offline_bench(128);
            bench.connect(1, idle);
            for (message, body) in server_with_round(1, 128).opening_messages().iter().take(frames) {
                bench.receive_message(message, body);
            }
            let mut last = bench.now;
            for _ in 0..50 {
                if !bench.wake_up().is_empty() {
                    assert!(
                        bench.now - last < idle.into(),
                        "{} ms of {idle}, frames: {frames}",
                        bench.now - last
                    );
                    last = bench.now;
                }
            }
            assert!(last > 1_000);
        }
    }
}

/// An input of the session.
#[derive(Clone, Debug)]
enum Step {
    Up,
    Down,
    Welcome(u32),
    Open { round: u32, chunks: usize },
    Missing(Vec<u16>),
    Ack(u32),
    Closed(u32),
    RetryAfter(u32),
    Refused,
    Garbage(Vec<u8>),
    Pass(u64),
}

/// Strategy for inputs of the session.
fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Up),
        1 => Just(Step::Down),
        3 => prop::sample::select(vec![0, 1, 2, 3, 50, 1_000, 60_000, u32::MAX]).prop_map(Step::Welcome),
        4 => (1u32..5, 0usize..5).prop_map(|(round, chunks)| Step::Open { round, chunks }),
        1 => prop::collection::vec(0u16..6, 0..16).prop_map(Step::Missing),
        1 => (1u32..5).prop_map(Step::Ack),
        1 => (1u32..5).prop_map(Step::Closed),
        1 => prop::sample::select(vec![0, 10, 100_000, u32::MAX]).prop_map(Step::RetryAfter),
        1 => Just(Step::Refused),
        1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(Step::Garbage),
        2 => (0u64..20_000).prop_map(Step::Pass),
    ]
}

/// Applies an input. Closes the link if the session requests it.
fn apply_step(bench: &mut Bench<Sliced>, step: &Step) {
    let id = |round| RoundId { round, stage: 0 };
    match step {
        Step::Up => drop(bench.handle_until_idle(Event::LinkUp)),
        Step::Down => drop(bench.handle_until_idle(Event::LinkDown)),
        Step::Welcome(idle_milliseconds) => {
            let welcome = Welcome { campaign: 1, idle_milliseconds: *idle_milliseconds };
            bench.receive_message(&ToDevice::Welcome(welcome), &[]);
        }
        Step::Open { round, chunks } => {
            for (message, body) in server_with_round(*round, 128).opening_messages().iter().take(1 + chunks) {
                bench.receive_message(message, body);
            }
        }
        Step::Missing(chunks) => {
            let chunks = chunks.iter().copied().collect();
            bench.receive_message(&ToDevice::Missing(Missing { id: id(1), tensor: 0, chunks }), &[]);
        }
        Step::Ack(round) => {
            bench.receive_message(&ToDevice::Ack(Ack { id: id(*round), outcome: AckOutcome::Counted }), &[]);
        }
        Step::Closed(round) => drop(bench.receive_message(&ToDevice::RoundClosed(id(*round)), &[])),
        Step::RetryAfter(milliseconds) => {
            bench.receive_message(&ToDevice::RetryAfter { milliseconds: *milliseconds }, &[]);
        }
        Step::Refused => drop(bench.receive_message(&ToDevice::Refused(Refusal::UnknownDevice), &[])),
        Step::Garbage(bytes) => drop(bench.handle_until_idle(Event::Message(bytes))),
        Step::Pass(milliseconds) => {
            bench.now += milliseconds;
            bench.handle_until_idle(Event::Tick);
        }
    }
    if bench.last.close {
        bench.handle_until_idle(Event::LinkDown);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3_000) })]

    /// From any reachable state, a tick at `wake` advances time, and a simulated minute takes a bounded
    /// number of ticks and frames: at most 700, for ten per second and repetitions of a small update.
    #[test]
    fn ticks_and_frames_are_bounded(steps in prop::collection::vec(any_step(), 0..25)) {
        let mut bench = offline_bench(128);
        bench.handle_until_idle(Event::Tick);
        for step in &steps {
            apply_step(&mut bench, step);
        }
        let start = bench.now;
        let mut ticks = 0;
        let mut frames = 0;
        while bench.now < start + 60_000 {
            frames += bench.wake_up().len();
            ticks += 1;
            prop_assert!(ticks <= 700 && frames <= 700, "{ticks} ticks, {frames} frames in {} ms", bench.now - start);
            prop_assert!(!bench.last.close);
        }
    }

    /// The session survives a clock that is near its end or stands still.
    #[test]
    fn session_survives_any_clock(steps in prop::collection::vec(any_step(), 0..12), start in prop::sample::select(vec![0, 1 << 40, u64::MAX - 30_000])) {
        let mut bench = offline_bench(128);
        bench.now = start;
        for step in steps.iter().filter(|step| !matches!(step, Step::Pass(_))) {
            apply_step(&mut bench, step);
        }
    }
}

/// A transmit buffer that is too small is an error of the caller, which is counted; the session does not
/// request ticks endlessly.
#[test]
fn short_transmit_buffer_is_counted() {
    let mut bench = offline_bench(128);
    bench.connect(1, 3_000);
    let mut now = bench.now;
    let mut ticks = 0;
    while now < bench.now + 60_000 {
        let progress = bench.session.handle(Millis::new(now), Event::Tick, &mut [0; 3]);
        assert_eq!(progress.sent, 0);
        now = now.max(progress.wake.as_u64());
        ticks += 1;
        assert!(ticks < 700, "the session wakes up too often");
    }
    assert!(bench.session.counters().unsent > 0);
}

/// A request for chunks that do not exist is counted and not answered.
#[test]
fn requests_for_nonexistent_chunks_are_counted() {
    let mut bench = offline_bench(256);
    bench.connect(1, 60_000);
    let (message, body) = server_with_round(1, 256).opening_messages().remove(0);
    bench.receive_message(&message, &body);
    for tensor in [0, 1, 255] {
        let chunks = [0, 7, u16::MAX].into_iter().collect();
        let id = RoundId { round: 1, stage: 0 };
        assert!(bench.receive_message(&ToDevice::Missing(Missing { id, tensor, chunks }), &[]).is_empty());
    }
    assert_eq!(bench.session.counters().unexpected, 9);
    let task = Wire::FitHead { head: EXACT };
    let open = RoundOpen { id: RoundId { round: 2, stage: 0 }, task, tensors: Default::default() };
    bench.receive_message(&ToDevice::RoundOpen(open), &[]);
    let chunk = Chunk { id: RoundId { round: 1, stage: 0 }, tensor: 0, offset: 0 };
    assert!(bench.receive_message(&ToDevice::Chunk(chunk), &[1; 4]).is_empty());
    assert_eq!(bench.session.counters().unexpected, 10);
}
