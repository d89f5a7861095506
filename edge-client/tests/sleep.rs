//! Tests of a device that sleeps between rounds: it leaves when nothing is left to do, at the time that the server names or
//! after its own, and never in the middle of a round.

use crate::common::problem::*;
use crate::common::server::*;
use crate::common::*;
use fedspan_client::Millis;
use fedspan_client::session::{Config, Event, Sleep};
use fedspan_protocol::message::{Ack, AckOutcome, RoundId, ToDevice, ToServer};
use fedspan_protocol::tensor::Encoding;

const HOUR: u64 = 3_600_000;

/// Device that wakes once an hour, or with other settings, connected to a server.
fn connected(problem: &Problem, sleep: Option<Sleep>) -> Bench<Sliced> {
    let config = Config { sleep, ..session_config(256) };
    let mut bench = Bench::new(config, Heap::new(20, 2, 1), problem.samples.clone(), Flash::default());
    bench.connect(7, 60_000);
    bench
}

/// Sends a round to the device, which answers it.
fn answer(problem: &Problem, bench: &mut Bench<Sliced>, round: u32) {
    let (message, body) =
        problem.server(round, gradient_task(), Encoding::F32, 256).opening_messages().remove(0);
    assert!(matches!(bench.receive_message(&message, &body)[..], [(ToServer::Update(_), _)]));
    assert!(!bench.last.close, "the device left before its update was acknowledged");
}

fn acknowledge(bench: &mut Bench<Sliced>, round: u32) {
    let ack = Ack { id: RoundId { round, stage: 0 }, outcome: AckOutcome::Counted };
    assert!(bench.receive_message(&ToDevice::Ack(ack), &[]).is_empty());
}

/// Closes the link as the driver does, and returns the time until the next connection.
fn time_until_connection(bench: &mut Bench<Sliced>) -> u64 {
    let wake = bench.last.wake;
    bench.handle_until_idle(Event::LinkDown);
    assert!(bench.session.has_left());
    assert_eq!(bench.last.wake, wake, "the loss of the link changed the time");
    wake.as_u64() - bench.now
}

#[test]
fn device_leaves_after_its_round_until_the_named_time() {
    let problem = create_problem(20, 2, 1);
    for named in [None, Some(50_000), Some(0)] {
        let mut bench = connected(&problem, Some(Sleep::once_in(HOUR as u32)));
        for round in 1..4 {
            answer(&problem, &mut bench, round);
            if let Some(milliseconds) = named {
                assert!(bench.receive_message(&ToDevice::NextRound { milliseconds }, &[]).is_empty());
                assert!(!bench.last.close, "the device left in the middle of a round");
            }
            acknowledge(&mut bench, round);
            assert!(bench.last.close, "the device stays connected");
            let expected = named.filter(|time| *time > 0).map_or(HOUR, u64::from);
            assert_eq!(time_until_connection(&mut bench), expected, "{named:?}");
            bench.now = bench.last.wake.as_u64();
            bench.connect(7, 60_000);
        }
    }
}

#[test]
fn device_without_a_round_leaves() {
    let problem = create_problem(20, 2, 1);
    let mut bench = connected(&problem, Some(Sleep::once_in(HOUR as u32)));
    assert_eq!(bench.last.wake, Millis::new(bench.now + 2_000));
    bench.now += 1_999;
    bench.handle_until_idle(Event::Tick);
    assert!(!bench.last.close);
    bench.now += 1;
    bench.handle_until_idle(Event::Tick);
    assert!(bench.last.close);
    assert_eq!(bench.session.counters().unasked, 1);
    assert_eq!(time_until_connection(&mut bench), HOUR);
    // A server that names the next round need not be waited for. The name is forgotten with the link.
    bench.connect(7, 60_000);
    assert!(bench.receive_message(&ToDevice::NextRound { milliseconds: 5_000 }, &[]).is_empty());
    assert!(bench.last.close);
    assert_eq!(time_until_connection(&mut bench), 5_000);
    bench.connect(7, 60_000);
    assert!(!bench.last.close, "a time of an earlier link is still obeyed");
}

#[test]
fn device_may_take_part_in_several_rounds() {
    let problem = create_problem(20, 2, 1);
    let sleep = Sleep { rounds: 3, ..Sleep::once_in(HOUR as u32) };
    let mut bench = connected(&problem, Some(sleep));
    for round in 1..=3 {
        bench.now += 1_500;
        answer(&problem, &mut bench, round);
        acknowledge(&mut bench, round);
        assert_eq!(bench.last.close, round == 3);
    }
    assert_eq!(time_until_connection(&mut bench), HOUR);
}

/// A round that is declined or closed counts as one.
#[test]
fn declined_and_closed_rounds_end_the_stay() {
    let problem = create_problem(20, 2, 1);
    let mut bench = connected(&problem, Some(Sleep::once_in(HOUR as u32)));
    let (message, body) =
        create_problem(19, 2, 1).server(1, gradient_task(), Encoding::F32, 256).opening_messages().remove(0);
    let sent = bench.receive_message(&message, &body);
    assert!(matches!(sent[..], [(ToServer::Decline(_), _)]), "{sent:?}");
    assert!(bench.last.close, "the device stays after it has declined");
    assert_eq!(time_until_connection(&mut bench), HOUR);
    bench.connect(7, 60_000);
    answer(&problem, &mut bench, 2);
    bench.receive_message(&ToDevice::RoundClosed(RoundId { round: 2, stage: 0 }), &[]);
    assert!(bench.last.close, "the device stays after the round was closed");
}

/// A device that does not sleep ignores the name of the next round.
#[test]
fn connected_device_stays() {
    let problem = create_problem(20, 2, 1);
    let mut bench = connected(&problem, None);
    for round in 1..4 {
        bench.receive_message(&ToDevice::NextRound { milliseconds: 5_000 }, &[]);
        answer(&problem, &mut bench, round);
        bench.receive_message(&ToDevice::NextRound { milliseconds: u32::MAX }, &[]);
        acknowledge(&mut bench, round);
        bench.now += 10_000;
        bench.handle_until_idle(Event::Tick);
        assert!(!bench.last.close && !bench.session.has_left());
    }
    assert_eq!(bench.session.counters().unexpected, 0);
    // Before the Welcome it has no place.
    bench.handle_until_idle(Event::LinkDown);
    bench.handle_until_idle(Event::LinkUp);
    bench.receive_message(&ToDevice::NextRound { milliseconds: 5_000 }, &[]);
    assert_eq!(bench.session.counters().unexpected, 1);
}

/// A server that does not answer: a link without an end, such as a radio's, would otherwise keep the device awake for ever. It leaves
/// after the third repetition, in every phase that waits for the server, and then tries as rarely as with a lost link.
#[test]
fn device_leaves_a_server_that_does_not_answer() {
    // The larger model has 400 bytes and arrives in chunks.
    let (small, large) = (create_problem(20, 2, 1), create_problem(100, 1, 1));
    for (phase, repetition) in [("greeting", 2_000), ("receiving", 2_000), ("awaiting", 10_000)] {
        let problem = if phase == "receiving" { &large } else { &small };
        let config = Config { sleep: Some(Sleep::once_in(HOUR as u32)), ..session_config(256) };
        let memory = Heap::new(problem.d, problem.k, problem.c);
        let mut bench = Bench::new(config, memory, problem.samples.clone(), Flash::default());
        let server = problem.server(1, gradient_task(), Encoding::F32, 256);
        let opening = server.opening_messages();
        let mut update = Vec::new();
        if phase == "greeting" {
            bench.handle_until_idle(Event::LinkUp);
        } else {
            bench.connect(7, 600_000);
            update = bench.receive_message(&opening[0].0, &opening[0].1);
            assert_eq!(opening.len() > 1, phase == "receiving");
        }
        let began = bench.now;
        let mut repeated = 0;
        while !bench.last.close {
            repeated += usize::from(!bench.wake_up().is_empty());
            assert!(bench.now < began + HOUR, "{phase}: the device waits for ever");
        }
        assert_eq!((repeated, bench.now - began), (3, 4 * repetition), "{phase}");
        assert_eq!(bench.session.counters().unasked, 1, "{phase}");
        assert!(time_until_connection(&mut bench) <= 60_000, "{phase}");
        // The attempts become rare, and the device stays only for the hello and its repetitions.
        for attempt in 2..20 {
            bench.now = bench.last.wake.as_u64();
            let mut hellos = bench.handle_until_idle(Event::LinkUp).len();
            while !bench.last.close {
                hellos += bench.wake_up().len();
            }
            assert_eq!(hellos, 4, "{phase}");
            let pause = time_until_connection(&mut bench);
            assert!(attempt < 10 || (30_000..=60_000).contains(&pause), "{phase}: {pause} ms");
        }
        // A server that answers again gets the same update, and the device sleeps as long as it should.
        bench.now = bench.last.wake.as_u64();
        bench.connect(7, 600_000);
        let mut answers = Vec::new();
        for (message, body) in &opening {
            answers.extend(bench.receive_message(message, body));
        }
        assert!(answers.iter().any(|(message, _)| matches!(message, ToServer::Update(_))), "{phase}");
        assert!(phase != "awaiting" || answers == update);
        acknowledge(&mut bench, 1);
        assert!(bench.last.close && bench.session.counters().counted == 1, "{phase}");
        assert_eq!(time_until_connection(&mut bench), HOUR, "{phase}");
    }
}

/// Each message of the server ends the count of repetitions, so a slow link alone ends no stay; and a device that does not sleep never
/// gives up.
#[test]
fn device_stays_while_the_server_answers() {
    let problem = create_problem(20, 2, 1);
    let mut bench = connected(&problem, Some(Sleep::once_in(HOUR as u32)));
    answer(&problem, &mut bench, 1);
    for _ in 0..10 {
        for _ in 0..3 {
            assert!(matches!(bench.wake_up()[..], [(ToServer::Update(_), _)]));
        }
        // An acknowledgement of another round.
        acknowledge(&mut bench, 9);
        assert!(!bench.last.close);
    }
    let mut awake = connected(&problem, None);
    answer(&problem, &mut awake, 1);
    for _ in 0..100 {
        assert!(!awake.wake_up().is_empty() && !awake.last.close);
    }
}
