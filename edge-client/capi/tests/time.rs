//! Tests of the clock, the timers and the pauses: a counter of 32 bits that wraps, times of the settings, and calls during a computation.

use fedspan::*;
use fedspan_protocol::message::ToServer;

use crate::interface::{Firmware, Memory, config, counters, fed_rep, frame, opening, run_at, sent, welcome};

const WAIT: fedspan_state = fedspan_state::FEDSPAN_WAIT;
const CLOSED: fedspan_state = fedspan_state::FEDSPAN_CLOSED;

/// Returns the number of hellos that were sent, which must be all that was sent.
fn hellos(firmware: &mut Firmware) -> usize {
    let messages = sent(firmware);
    assert!(messages.iter().all(|(message, _)| matches!(message, ToServer::Hello(_))), "{messages:?}");
    messages.len()
}

/// Lets a device train in a round, and returns for how long it then waits for the acknowledgement.
fn train(client: *mut fedspan_client, firmware: &mut Firmware, now: u32) -> u32 {
    let (open, body) = opening(3, fed_rep());
    firmware.arrived = [frame(&welcome(), &[]), frame(&open, &body)].concat();
    let (state, wait) = run_at(client, now);
    assert_eq!(state, WAIT);
    assert!(matches!(sent(firmware)[0], (ToServer::Update(_), _)));
    wait
}

/// Tests that a device whose counter wraps, at any time while it connects again and waits for an answer, waits no longer than another,
/// and trains.
#[test]
fn counter_wraps_while_a_device_waits_and_reconnects() {
    for before in [0, 1, 100, 400, 600, 1_000, 2_400, 100_000] {
        let mut firmware = Firmware::new(4);
        let settings = config(&mut firmware);
        let mut memory = Memory::new(&settings);
        let (_, client) = memory.start(&settings);
        let mut now = u32::MAX - before;
        firmware.is_lost = true;
        let (state, wait) = run_at(client, now);
        assert!(state == CLOSED && (250..=500).contains(&wait), "{before}: {wait}");
        now = now.wrapping_add(wait);
        firmware.is_lost = false;
        // The server does not answer the first hello.
        firmware.sent.clear();
        assert_eq!(run_at(client, now), (WAIT, 2_000), "{before}");
        assert_eq!(hellos(&mut firmware), 1);
        assert_eq!(run_at(client, now.wrapping_add(1_999)), (WAIT, 1), "{before}");
        assert_eq!(hellos(&mut firmware), 0);
        now = now.wrapping_add(2_000);
        assert_eq!(run_at(client, now), (WAIT, 2_000), "{before}");
        assert_eq!(hellos(&mut firmware), 1);
        assert_eq!(train(client, &mut firmware, now.wrapping_add(10)), 10_000);
        assert_eq!(counters(client).clock_jumps, 0);
    }
}

/// Tests that the times of the session go on when a clock is set back, once or often.
#[test]
fn clock_that_is_set_back_is_counted() {
    let mut firmware = Firmware::new(4);
    let settings = config(&mut firmware);
    let mut memory = Memory::new(&settings);
    let (_, client) = memory.start(&settings);
    let mut now = 3_000_000_000;
    assert_eq!(run_at(client, now), (WAIT, 2_000));
    for jump in 1..=8 {
        now -= 300_000_000;
        assert_eq!(run_at(client, now).0, WAIT);
        assert_eq!(counters(client).clock_jumps, jump);
    }
    hellos(&mut firmware);
    let (_, wait) = run_at(client, now);
    run_at(client, now + wait);
    assert_eq!(hellos(&mut firmware), 1);
}

/// Tests that a device that sleeps for longer than a quarter of a turn of the counter is woken then.
#[test]
fn wait_is_shorter_than_a_turn_of_the_counter() {
    let mut firmware = Firmware::new(4);
    let mut settings = config(&mut firmware);
    settings.sleep_ms = u32::MAX;
    let mut memory = Memory::new(&settings);
    let (_, client) = memory.start(&settings);
    run_at(client, 0);
    firmware.arrived = frame(&welcome(), &[]);
    assert_eq!(run_at(client, 0), (WAIT, 2_000));
    assert_eq!(run_at(client, 2_000), (CLOSED, 1 << 30));
}

/// Tests that each timer of the settings takes the place of its default.
#[test]
fn timers_are_those_of_the_settings() {
    let mut firmware = Firmware::new(4);
    let mut settings = config(&mut firmware);
    settings.timers = fedspan_timers {
        ask_again_ms: 7_000,
        resend_ms: 15_000,
        reconnect_ms: 4_000,
        reconnect_max_ms: 6_000,
        write_ms: 700,
    };
    let mut memory = Memory::new(&settings);
    let (_, client) = memory.start(&settings);
    firmware.is_lost = true;
    for longest in [4_000, 6_000, 6_000] {
        let (state, wait) = run_at(client, 1);
        assert!(state == CLOSED && (longest / 2..=longest).contains(&wait), "{wait}");
    }
    (firmware.is_lost, firmware.is_full) = (false, true);
    assert_eq!(run_at(client, 1), (WAIT, 700));
    assert_eq!(run_at(client, 701).0, CLOSED);
    firmware.is_full = false;
    assert_eq!(run_at(client, 701), (WAIT, 7_000));
    sent(&mut firmware);
    assert_eq!(train(client, &mut firmware, 702), 15_000);
}

/// Trains in 20 rounds with pauses, and returns their number and what was sent.
#[cfg(feature = "pauses")]
fn train_with(change: impl Fn(&mut fedspan_config)) -> (u32, Vec<u8>) {
    let mut firmware = Firmware::new(4);
    let mut settings = config(&mut firmware);
    change(&mut settings);
    let mut memory = Memory::new(&settings);
    let (_, client) = memory.start(&settings);
    run_at(client, 1);
    firmware.arrived = frame(&welcome(), &[]);
    for round in 1..=20 {
        let (open, body) = opening(round, fed_rep());
        firmware.arrived.extend(frame(&open, &body));
        run_at(client, 1);
    }
    // SAFETY: a started client.
    unsafe { fedspan_end(client) };
    (firmware.pauses, firmware.sent)
}

/// Tests that a computation pauses as often as the quota demands, and that its results are the same bits for any quota.
#[cfg(feature = "pauses")]
#[test]
fn computation_pauses_after_each_quota() {
    use crate::interface::pause;

    let (none, without) = train_with(|_| {});
    assert_eq!(none, 0);
    let mut last = u32::MAX;
    for quota in [1, 30, 100, 0, 2_000, u32::MAX] {
        let (pauses, with) = train_with(|settings| {
            settings.platform.pause = Some(pause);
            settings.pause_quota = quota;
        });
        assert!(with == without, "{quota}");
        assert!(pauses < last && (pauses == 0) == (quota == u32::MAX), "{quota}: {pauses}");
        last = pauses;
    }
}

/// Tests that a library without pauses refuses settings with a pause.
#[cfg(not(feature = "pauses"))]
#[test]
fn pause_needs_its_feature() {
    let mut firmware = Firmware::new(4);
    let mut settings = config(&mut firmware);
    settings.platform.pause = Some(crate::interface::pause);
    assert_eq!(Memory::new(&settings).start(&settings).0, fedspan_status::FEDSPAN_NOT_BUILT);
}
