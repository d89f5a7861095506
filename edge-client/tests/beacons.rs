//! Tests of beacons: an announced round opens by the server's frame for all devices, and by no other unsealed frame.
#![cfg(feature = "beacons")]

use crate::common::problem::*;
use crate::common::server::*;
use crate::common::*;
use crate::malicious_server::{Pair, Sent};
use fedspan_client::Millis;
use fedspan_client::session::{Config, Event, Sleep};
use fedspan_protocol::message::{
    Ack, AckOutcome, Announced, Fault, RECEIVES_BEACONS, RoundId, ToDevice, ToServer,
};
use fedspan_protocol::secure::Key;
use fedspan_protocol::tensor::Encoding;
use proptest::prelude::*;

const LIMIT: u16 = 512;

fn key() -> Key {
    Key::new(3, [0x42; 32])
}

fn connected(problem: &Problem, key: Option<Key>) -> Pair {
    let config = Config { receives_beacons: true, ..session_config(LIMIT) };
    Pair::with_config(problem, config, key, Flash::default())
}

/// Returns the opening message of a round and its body, as one message.
fn beacon(problem: &Problem, round: u32) -> Vec<u8> {
    let server = problem.server(round, gradient_task(), Encoding::F32, LIMIT);
    let opening = server.opening_messages();
    let [(message, body)] = &opening[..] else { panic!("the round does not fit one frame") };
    payload(message, body)
}

fn announced(pair: &Pair, round: u32, beacon: &[u8]) -> ToDevice {
    let tag = pair.channel.as_ref().unwrap().beacon_tag(beacon);
    ToDevice::Announced(Announced { id: RoundId { round, stage: 0 }, tag })
}

fn is_update(sent: &Sent) -> bool {
    matches!(sent[..], [(ToServer::Update(_), _)])
}

#[test]
fn beacon_opens_the_announced_round() {
    let problem = create_problem(20, 2, 1);
    let mut pair = connected(&problem, Some(key()));
    let mut sealed = connected(&problem, Some(key()));
    for round in 1..4 {
        let beacon = beacon(&problem, round);
        assert!(pair.deliver(&announced(&pair, round, &beacon), &[]).is_empty());
        let sent = pair.handle_event(Event::Message(&beacon));
        assert!(is_update(&sent), "{sent:?}");
        // The same round, opened on this device alone.
        let opening = problem.server(round, gradient_task(), Encoding::F32, LIMIT).opening_messages();
        assert_eq!(sent, sealed.deliver(&opening[0].0, &opening[0].1));
        // The beacon again, as a gateway may repeat it, opens nothing.
        assert!(pair.handle_event(Event::Message(&beacon)).is_empty());
        let ack = ToDevice::Ack(Ack { id: RoundId { round, stage: 0 }, outcome: AckOutcome::Counted });
        assert!(pair.deliver(&ack, &[]).is_empty() && sealed.deliver(&ack, &[]).is_empty());
    }
    let counters = pair.session.counters();
    assert_eq!((counters.beacons, counters.beacons_ignored, counters.counted), (3, 3, 3));
    assert_eq!(counters.unsealed, 0);
}

#[test]
fn device_says_whether_it_receives_beacons() {
    let problem = create_problem(20, 2, 1);
    for (receives_beacons, bit) in [(true, RECEIVES_BEACONS), (false, 0)] {
        let config = Config { receives_beacons, ..session_config(LIMIT) };
        let mut bench = Bench::new(config, Heap::new(20, 2, 1), problem.samples.clone(), Flash::default());
        let Some((ToServer::Hello(hello), _)) = bench.handle_event(Event::LinkUp) else { panic!("no hello") };
        assert_eq!(hello.capabilities.roles & RECEIVES_BEACONS, bit);
    }
}

/// Beacons of another round, of another connection, before the announcement, after the round has closed or the link was down, open
/// nothing. Each is counted, and the sealed opening still works.
#[test]
fn other_beacons_open_nothing() {
    let problem = create_problem(20, 2, 1);
    let [first, second] = [1, 2].map(|round| beacon(&problem, round));
    let id = RoundId { round: 1, stage: 0 };
    type Step<'a> = &'a dyn Fn(&mut Pair) -> Sent;
    let hear: Step<'_> = &|pair| pair.handle_event(Event::Message(&first));
    let announce: Step<'_> = &|pair| {
        let announced = announced(pair, 1, &first);
        pair.deliver(&announced, &[])
    };
    let histories: [&[Step<'_>]; 6] = [
        &[hear],
        &[hear, announce],
        &[announce, &|pair| pair.handle_event(Event::Message(&second))],
        &[announce, &|pair| pair.deliver(&ToDevice::RoundClosed(id), &[]), hear],
        // The tag of another message.
        &[
            &|pair| {
                let announced = announced(pair, 1, &second);
                pair.deliver(&announced, &[])
            },
            hear,
        ],
        // The tag is right, but the announcement names another round.
        &[
            &|pair| {
                let ToDevice::Announced(Announced { tag, .. }) = announced(pair, 1, &first) else { panic!() };
                let id = RoundId { round: 2, stage: 0 };
                pair.deliver(&ToDevice::Announced(Announced { id, tag }), &[])
            },
            hear,
        ],
    ];
    for (number, history) in histories.iter().enumerate() {
        let mut pair = connected(&problem, Some(key()));
        for step in *history {
            assert!(step(&mut pair).is_empty(), "{number}");
        }
        let counters = pair.session.counters();
        assert_eq!(counters.beacons_ignored + counters.unexpected, 1, "{number}: {counters:?}");
        let opening = problem.server(5, gradient_task(), Encoding::F32, LIMIT).opening_messages();
        assert!(is_update(&pair.deliver(&opening[0].0, &opening[0].1)), "{number}");
    }
    // A new connection has other keys.
    let mut pair = connected(&problem, Some(key()));
    let old = announced(&pair, 1, &first);
    pair.handle_event(Event::LinkDown);
    assert!(matches!(pair.handle_event(Event::LinkUp)[..], [(ToServer::Hello(_), _)]));
    let welcome = fedspan_protocol::message::Welcome { campaign: 7, idle_milliseconds: 60_000 };
    pair.deliver(&ToDevice::Welcome(welcome), &[]);
    assert!(pair.deliver(&old, &[]).is_empty() && hear(&mut pair).is_empty());
    assert!(announce(&mut pair).is_empty() && is_update(&hear(&mut pair)));
}

/// A device that sleeps between rounds does not leave while a beacon is awaited, until an opening of its own must have come.
#[test]
fn sleeper_awaits_the_opening_after_a_lost_beacon() {
    let problem = create_problem(20, 2, 1);
    let config =
        Config { sleep: Some(Sleep::once_in(60_000)), receives_beacons: true, ..session_config(LIMIT) };
    for is_announced in [false, true] {
        let mut pair = Pair::with_config(&problem, config, Some(key()), Flash::default());
        if is_announced {
            let beacon = beacon(&problem, 1);
            pair.deliver(&announced(&pair, 1, &beacon), &[]);
        }
        let mut left_at = None;
        for now in (0..20_000).step_by(500) {
            let _ = pair.session.handle(Millis::new(1_000 + now), Event::Tick, &mut [0; 1024]);
            if pair.session.has_left() && left_at.is_none() {
                left_at = Some(now);
            }
        }
        assert_eq!(left_at, Some(if is_announced { 12_000 } else { 2_000 }));
    }
}

/// Without a key the device accepts every message, so a beacon opens a round by itself.
#[test]
fn beacon_opens_rounds_in_plaintext() {
    let problem = create_problem(20, 2, 1);
    let mut pair = connected(&problem, None);
    assert!(is_update(&pair.handle_event(Event::Message(&beacon(&problem, 1)))));
    assert!(pair.deliver(&ToDevice::Fault(Fault::Malformed), &[]).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// No changed beacon opens a round: any bit, any length.
    #[test]
    fn changed_beacons_open_nothing(flips in prop::collection::vec(any::<prop::sample::Index>(), 0..3), cut in 0usize..5) {
        let problem = create_problem(20, 2, 1);
        let mut pair = connected(&problem, Some(key()));
        let beacon = beacon(&problem, 1);
        pair.deliver(&announced(&pair, 1, &beacon), &[]);
        let mut changed = beacon.clone();
        for flip in &flips {
            let bit = flip.index(8 * beacon.len());
            changed[bit / 8] ^= 1 << (bit % 8);
        }
        changed.truncate(beacon.len() - cut);
        let sent = pair.handle_event(Event::Message(&changed));
        prop_assert_eq!(is_update(&sent), changed == beacon);
        // The beacon itself still opens the round.
        prop_assert!(changed == beacon || is_update(&pair.handle_event(Event::Message(&beacon))));
    }
}
