//! Tests of keys that the server sends to a session while a round is announced, while a decline is not sent yet, twice, and with storage
//! that fails.
#![cfg(all(feature = "key-rotation", feature = "beacons"))]

use crate::common::problem::*;
use crate::common::server::*;
use crate::malicious_server::{Pair, Sent};
#[cfg(feature = "reports")]
use fedspan_client::session::About;
use fedspan_client::session::{Config, Event};
#[cfg(feature = "reports")]
use fedspan_protocol::message::DeclineReason;
use fedspan_protocol::message::{Ack, AckOutcome, Announced, NewKey, RoundId, ToDevice, ToServer, Welcome};
use fedspan_protocol::secure::Key;
use fedspan_protocol::tensor::Encoding;

const LIMIT: u16 = 512;
/// Secret bytes of new keys.
const SECRET: [u8; 32] = [0x17; 32];
const ROUND: RoundId = RoundId { round: 1, stage: 0 };

fn key() -> Key {
    Key::new(3, [0x42; 32])
}

fn new_key(epoch: u16) -> ToDevice {
    ToDevice::NewKey(NewKey::from(&Key::new(epoch, SECRET)))
}

fn connected(problem: &Problem, flash: &Flash) -> Pair {
    let config = Config { receives_beacons: true, receives_keys: true, ..session_config(LIMIT) };
    Pair::with_config(problem, config, Some(key()), flash.clone())
}

/// Announces round 1 to the device. Returns the beacon.
fn announce(pair: &mut Pair, problem: &Problem) -> Vec<u8> {
    let server = problem.server(ROUND.round, gradient_task(), Encoding::F32, LIMIT);
    let opening = server.opening_messages();
    let [(message, body)] = &opening[..] else { panic!("the round does not fit one frame") };
    let beacon = payload(message, body);
    let tag = pair.channel.as_ref().unwrap().beacon_tag(&beacon);
    assert!(pair.deliver(&ToDevice::Announced(Announced { id: ROUND, tag }), &[]).is_empty());
    beacon
}

fn is_hello(sent: &Sent) -> bool {
    matches!(sent[..], [(ToServer::Hello(_), _)])
}

fn stored_epoch(flash: &Flash) -> Option<u16> {
    flash.0.borrow().key.as_ref().map(|stored| stored.key.epoch())
}

fn welcome() -> ToDevice {
    ToDevice::Welcome(Welcome { campaign: 7, idle_milliseconds: 60_000 })
}

/// A round that is announced is computed first, and the key is used after it. An announcement that ends without its beacon does not hold
/// the key back.
#[test]
fn key_waits_for_the_announced_round() {
    let problem = create_problem(20, 2, 1);
    for is_closed in [false, true] {
        let flash = Flash::default();
        let mut pair = connected(&problem, &flash);
        let beacon = announce(&mut pair, &problem);
        assert!(pair.deliver(&new_key(4), &[]).is_empty(), "the handshake ends the announcement");
        // The key is stored at once, so that a reset in between loses nothing.
        assert_eq!((pair.session.key_epoch(), stored_epoch(&flash)), (Some(4), Some(4)));
        pair.key = Some(Key::new(4, SECRET));
        let last = if is_closed {
            pair.deliver(&ToDevice::RoundClosed(ROUND), &[])
        } else {
            let sent = pair.handle_event(Event::Message(&beacon));
            assert!(matches!(sent[..], [(ToServer::Update(_), _)]), "{sent:?}");
            assert_eq!(pair.session.counters().beacons, 1);
            let outcome = AckOutcome::Counted;
            pair.deliver(&ToDevice::Ack(Ack { id: ROUND, outcome }), &[])
        };
        assert!(is_hello(&last), "{last:?}");
        let confirmed = pair.deliver(&welcome(), &[]);
        assert!(matches!(confirmed[..], [(ToServer::Alive, _)]), "{confirmed:?}");
        // The beacon of the old connection opens nothing any more.
        assert!(pair.handle_event(Event::Message(&beacon)).is_empty());
        assert_eq!((pair.session.counters().unexpected, pair.session.counters().unopened), (0, 0));
        // The same key again is counted and changes nothing.
        assert!(pair.deliver(&new_key(4), &[]).is_empty());
        assert_eq!(pair.session.counters().unexpected, 1);
    }
}

/// A decline that is not sent yet when the key arrives, because a report is sent first, is sent before the handshake with the new key. A
/// device whose storage fails keeps its key.
#[cfg(feature = "reports")]
#[test]
fn key_waits_for_the_decline() {
    let problem = create_problem(20, 2, 1);
    for fails in [false, true] {
        let flash = Flash::default();
        let config = Config { receives_keys: true, about: Some(About::default()), ..session_config(LIMIT) };
        let mut pair = Pair::unconnected(&problem, config, Some(key()), flash.clone());
        assert!(is_hello(&pair.handle_event(Event::LinkUp)));
        flash.0.borrow_mut().fail_save = fails;
        pair.key = Some(Key::new(4, SECRET));
        // No device computes round 0.
        let declined = problem.server(0, gradient_task(), Encoding::F32, LIMIT).opening_messages().remove(0);
        let sent = pair.deliver_together(&[(welcome(), Vec::new()), declined, (new_key(4), Vec::new())]);
        let [(ToServer::Alive, _), (ToServer::Report(_), _), (ToServer::Decline(decline), _), rest @ ..] =
            &sent[..]
        else {
            panic!("{sent:?} {:?}", pair.session.counters())
        };
        assert_eq!(decline.reason, DeclineReason::RoundRepeated { last: 0 });
        let counters = pair.session.counters();
        assert_eq!((counters.declined, counters.unexpected, counters.storage), (1, 0, u32::from(fails)));
        if fails {
            assert!(rest.is_empty(), "{rest:?}");
            assert_eq!((pair.session.key_epoch(), stored_epoch(&flash)), (Some(3), None));
            continue;
        }
        assert!(matches!(rest, [(ToServer::Hello(_), _)]), "{rest:?}");
        assert_eq!((pair.session.key_epoch(), stored_epoch(&flash)), (Some(4), Some(4)));
        let confirmed = pair.deliver(&welcome(), &[]);
        assert!(matches!(confirmed[0], (ToServer::Alive, _)), "{confirmed:?}");
        let (message, body) =
            problem.server(1, gradient_task(), Encoding::F32, LIMIT).opening_messages().remove(0);
        let sent = pair.deliver(&message, &body);
        assert!(matches!(sent[..], [(ToServer::Update(_), _)]), "{sent:?}");
    }
}
