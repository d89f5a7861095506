//! Tests that a round is retried if no device can answer it yet.

use fedspan_aggregator::config::Fleet;
use fedspan_engine::{Action, DeviceId, Engine, Event, Millis};
use fedspan_protocol::message::{Decline, DeclineReason};

const FLEET: &str = "[devices]\nexpected = 1\n[data]\nd = 6\n[model]\nk = 2\n\
    [algorithm]\nname = \"fedrep\"\nrounds = 1\nstep_size = 0.1\n[rounds]\ndeadline = 0\n";

/// Passes an event to the engine and returns the resulting actions.
fn handle_event(engine: &mut Engine, now: u64, event: Event) -> Vec<Action> {
    let mut actions = Vec::new();
    engine.handle(Millis::new(now), event, &mut actions);
    actions
}

#[test]
fn declined_round_is_retried_until_answered() {
    let mut engine = Fleet::parse("fleet.toml", FLEET).unwrap().engine();
    let mut actions = handle_event(&mut engine, 0, Event::Joined(DeviceId(7)));
    let mut now = 0;
    for attempt in 1..=20 {
        let [Action::Open(DeviceId(7), opening)] = actions.as_slice() else { panic!("{actions:?}") };
        assert_eq!(opening.id.round, attempt);
        now += 10;
        let decline = Decline { id: opening.id, reason: DeclineReason::NoSamples };
        assert_eq!(handle_event(&mut engine, now, Event::Declined(DeviceId(7), decline)), []);
        let wake = engine.wake().expect("no time of a retry is set");
        assert!(wake >= Millis::new(now + 1000));
        assert_eq!(handle_event(&mut engine, (wake - Millis::new(1)).as_u64(), Event::Tick), []);
        // A reconnect of the device does not cause an earlier retry.
        assert_eq!(
            handle_event(&mut engine, (wake - Millis::new(1)).as_u64(), Event::Joined(DeviceId(7))),
            []
        );
        now = wake.as_u64();
        actions = handle_event(&mut engine, now, Event::Tick);
    }
    assert_eq!(engine.counters().declined, 20);
}
