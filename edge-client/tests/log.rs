//! Tests of the log: the records of a whole session in their order, without secrets, and silence at the end of a private computation.
#![cfg(feature = "log")]

use std::cell::RefCell;

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::common::problem::*;
use crate::common::server::*;
use crate::common::*;
use crate::malicious_server::Pair;
use fedspan_client::session::Event;
use fedspan_protocol::message::{Ack, AckOutcome, Refusal, Rejection, RoundId, Task as Wire, ToDevice};
use fedspan_protocol::secure::Key;
use fedspan_protocol::tensor::Encoding;

thread_local! {
    /// Records of the test that runs on this thread.
    static RECORDS: RefCell<Vec<(Level, String)>> = const { RefCell::new(Vec::new()) };
}

struct Capture;

impl Log for Capture {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        RECORDS.with_borrow_mut(|records| records.push((record.level(), record.args().to_string())));
    }

    fn flush(&self) {}
}

/// Begins to capture on this thread.
fn capture() {
    // Another test may have set the logger already.
    let _ = log::set_logger(&Capture);
    log::set_max_level(LevelFilter::Trace);
    take();
}

/// Returns the records since the last call, as level and text.
fn take() -> Vec<String> {
    let records = RECORDS.with_borrow_mut(std::mem::take);
    records.into_iter().map(|(level, text)| format!("{level} {text}")).collect()
}

fn id(round: u32) -> RoundId {
    RoundId { round, stage: 0 }
}

/// Opens a round with its first message, which has all its tensors.
fn open(pair: &mut Pair, problem: &Problem, round: u32, task: Wire) {
    let opening = problem.server(round, task, Encoding::F32, 512).opening_messages();
    assert_eq!(opening.len(), 1);
    pair.deliver(&opening[0].0, &opening[0].1);
}

fn acknowledge(pair: &mut Pair, round: u32, outcome: AckOutcome) {
    pair.deliver(&ToDevice::Ack(Ack { id: id(round), outcome }), &[]);
}

#[test]
fn events_of_a_session_are_logged_in_their_order() {
    capture();
    let problem = create_problem(20, 2, 1);
    for key in [None, Some(Key::new(3, [0x42; 32]))] {
        let flash = Flash::default();
        let mut pair = Pair::with_config(&problem, session_config(512), key, flash.clone());
        open(&mut pair, &problem, 1, gradient_task());
        acknowledge(&mut pair, 1, AckOutcome::Counted);
        open(&mut pair, &problem, 1, gradient_task());
        open(&mut pair, &problem, 2, gradient_task());
        acknowledge(&mut pair, 2, AckOutcome::Rejected(Rejection::NoSamples));
        open(&mut pair, &problem, 3, gradient_task());
        pair.deliver(&ToDevice::RoundClosed(id(3)), &[]);
        flash.0.borrow_mut().fail_save = true;
        open(&mut pair, &problem, 4, gradient_task());
        flash.0.borrow_mut().fail_save = false;
        open(&mut pair, &problem, 5, Wire::FitHead { head: EXACT });
        acknowledge(&mut pair, 5, AckOutcome::Counted);
        pair.handle_event(Event::LinkDown);
        let records = take();
        assert_eq!(
            records,
            [
                "INFO connected",
                "INFO welcomed to campaign 7",
                "INFO round 1 stage 0 opened",
                "INFO round 1 stage 0 finished: Counted",
                "WARN round 1 stage 0 declined: RoundRepeated { last: 1 }",
                "INFO round 2 stage 0 opened",
                "INFO round 2 stage 0 finished: Rejected(NoSamples)",
                "INFO round 3 stage 0 opened",
                "INFO round 3 stage 0 closed by the server",
                "INFO round 4 stage 0 opened",
                "ERROR the record cannot be stored",
                "WARN round 4 stage 0 declined: Device",
                "INFO round 5 stage 0 opened",
                "INFO round 5 stage 0 finished: Counted",
                "INFO final head fitted",
                "INFO link lost",
            ]
        );
    }
}

#[test]
fn refusals_and_unusable_stores_are_logged() {
    capture();
    let problem = create_problem(20, 2, 1);
    let mut pair = Pair::unconnected(&problem, session_config(512), None, Flash::default());
    pair.handle_event(Event::LinkUp);
    pair.deliver(&ToDevice::Refused(Refusal::WireVersion { served: 9 }), &[]);
    assert_eq!(take(), ["INFO connected", "ERROR refused: WireVersion { served: 9 }"]);
    let flash = Flash::default();
    flash.0.borrow_mut().fail_load = true;
    let key = Some(Key::new(3, [0x42; 32]));
    let mut pair = Pair::unconnected(&problem, session_config(512), key, flash.clone());
    pair.handle_event(Event::LinkUp);
    let records = take();
    assert_eq!(
        records,
        [
            "ERROR the stored record cannot be read",
            "INFO connected",
            "ERROR no number of a handshake can be stored"
        ]
    );
}

#[cfg(feature = "privacy")]
#[test]
fn end_of_a_private_computation_is_not_logged() {
    use crate::common::priced_task::priced_bench;

    capture();
    let problem = create_problem(20, 2, 1);
    let flash = Flash::default();
    let mut bench = priced_bench(&problem, 512, Some(3), 5_000, &flash);
    bench.connect(7, 60_000);
    take();
    let open =
        |round| problem.server(round, gradient_task(), Encoding::F32, 512).opening_messages().remove(0);
    flash.0.borrow_mut().fail_save = true;
    let (message, body) = open(1);
    bench.receive_message(&message, &body);
    assert_eq!(take(), ["INFO round 1 stage 0 opened"]);
    bench.wake_up();
    assert_eq!(take(), ["WARN round 1 stage 0 declined: Device"]);
    flash.0.borrow_mut().fail_save = false;
    let (message, body) = open(2);
    bench.receive_message(&message, &body);
    assert_eq!(take(), ["WARN round 2 stage 0 declined: Budget { left: 0 }"]);
}
