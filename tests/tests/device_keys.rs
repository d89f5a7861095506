//! Tests of the device identity: wrong keys, epochs and devices, and keys that are revoked or rotated during
//! use.

use std::sync::Arc;

use crate::common::{
    Board, DEVICE, OTHER, SECRET, ServerEnd, WELCOME, connected, converse, gate, keys, opening, plain,
    protected, requirements, round, table, uncobs, unopened, withdrawable,
};
use fedspan_aggregator::connection::{Acceptor, PeerMessage};
use fedspan_aggregator::keys::ActiveKeys;
use fedspan_client::Event;
use fedspan_client::secure::Key;
use fedspan_client::session::Protection;
use fedspan_client::store::NoStore;
use fedspan_engine::DeviceId;
use fedspan_protocol::message::{Refusal, RoundId, ToDevice, ToServer};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;

/// Tests that no tag verifies if the two ends have different keys, so the device does not join.
#[test]
fn device_with_another_key_does_not_join() {
    let wrong = Protection::Key(Key::new(0, [0x43; 32]));
    let (mut board, mut server) = (Board::new(DEVICE, wrong, NoStore, 1), ServerEnd::new(&gate(&keys(), 1)));
    let mut hello = board.link_up();
    for attempt in 1..=5 {
        let (up, down) = converse(&mut board, &mut server, hello);
        assert_eq!((up.len(), down.len()), (1, 1), "hello and answer, no confirmation");
        assert_eq!(unopened(&board), attempt);
        // The device continues to wait and repeats its hello.
        hello = board.wait(2_000);
        assert_eq!(hello, up);
    }
    assert_eq!((server.joined(), server.events.len()), (0, 0));
    assert_eq!((board.session.refusal(), board.last.close), (None, false));
}

#[test]
fn device_with_key_ignores_plain_refusal() {
    let with_keys = gate(&keys(), 1);
    let without = Arc::new(Acceptor::plaintext(requirements(), WELCOME));
    let next = Protection::Key(Key::new(1, SECRET));
    for (device, protection, gate, refusal) in [
        (DEVICE, next, &with_keys, Refusal::UnknownDevice),
        (OTHER, protected(), &with_keys, Refusal::UnknownDevice),
        (DEVICE, Protection::Plaintext, &with_keys, Refusal::KeyNeeded),
        (DEVICE, protected(), &without, Refusal::NoKeysHere),
    ] {
        let plaintext = matches!(protection, Protection::Plaintext);
        let (mut board, mut server) = (Board::new(device, protection, NoStore, 1), ServerEnd::new(gate));
        let hello = board.link_up();
        let down = server.receive(&hello);
        assert_eq!(down, [plain(&ToDevice::Refused(refusal))]);
        assert_eq!(server.events, [PeerMessage::Refused(refusal)]);
        assert!(board.receive_all(&down).is_empty());
        assert!(board.last.close);
        // Only a device without a key accepts a plain refusal.
        assert_eq!(board.session.refusal(), plaintext.then_some(refusal));
        board.event(Event::LinkDown);
        assert!(board.last.wake.as_u64() <= board.now + 60_000, "the device reconnects");
    }
}

#[test]
fn revocation_applies_from_the_next_frame() {
    for after in 0..3 {
        let (mut table, keys) = withdrawable();
        let gate = gate(&keys, 1);
        let mut board = Board::with_limit(DEVICE, protected(), NoStore, 1, 128);
        let mut server = ServerEnd::new(&gate);
        let hello = board.link_up();
        converse(&mut board, &mut server, hello);
        server.events.clear();
        server.connection.open(&opening(1));
        let mut down = server.frames();
        let update = board.receive_all(&std::mem::take(&mut down));
        assert_eq!(update.len(), 3, "a head and two chunks");
        // The key is revoked after a part of the update has arrived.
        server.receive(&update[..after]);
        assert!(server.events.is_empty());
        table.revoke(&[DeviceId(DEVICE)], 1).unwrap();
        assert!(server.connection.is_revoked());
        server.connection.send(ToDevice::RoundClosed(RoundId { round: 1, stage: 0 }));
        assert!(server.frames().is_empty(), "nothing is sent after the revocation");
        let answers = server.receive(&update[after..]);
        assert!(answers.is_empty());
        assert!(
            !server.events.is_empty() && server.events.iter().all(|event| *event == PeerMessage::Revoked)
        );
        // The device cannot reconnect.
        let mut server = ServerEnd::new(&gate);
        let hello = board.reconnect();
        converse(&mut board, &mut server, hello);
        assert_eq!(server.joined(), 0);
    }
    // A complete update that arrives after the revocation does not count.
    let (mut table, keys) = withdrawable();
    let (mut board, mut server) = connected(&gate(&keys, 1), NoStore, 1);
    server.connection.open(&opening(1));
    let down = server.frames();
    let update = board.receive_all(&down);
    table.revoke(&[DeviceId(DEVICE)], 1).unwrap();
    server.receive(&update);
    assert_eq!((server.updates(), &server.events[..]), (0, &[PeerMessage::Revoked][..]));
    // The handshake starts before the revocation and is confirmed after it.
    let (mut table, keys) = withdrawable();
    let (mut board, mut server) =
        (Board::new(DEVICE, protected(), NoStore, 1), ServerEnd::new(&gate(&keys, 1)));
    let down = server.receive(&board.link_up());
    let alive = board.receive_all(&down);
    table.revoke(&[DeviceId(DEVICE)], 1).unwrap();
    assert!(server.receive(&alive).is_empty());
    assert_eq!(server.events, [PeerMessage::Revoked]);
}

#[test]
fn rotation_accepts_both_keys_until_a_round_closes() {
    let mut table = table();
    table.rotate(&[DeviceId(DEVICE)], 1, &mut ChaCha20Rng::seed_from_u64(3)).unwrap();
    let new = table.export(&[DeviceId(DEVICE)]).unwrap()[0].key().clone();
    assert_eq!(new.epoch(), 1);
    let keys = ActiveKeys::new(table);
    let gate = gate(&keys, 1);
    let (mut old, mut old_server) = connected(&gate, NoStore, 1);
    let mut board = Board::new(DEVICE, Protection::Key(new), NoStore, 2);
    let mut server = ServerEnd::new(&gate);
    let hello = board.link_up();
    converse(&mut board, &mut server, hello);
    assert_eq!(server.joined(), 1);
    server.events.clear();
    round(&mut old, &mut old_server, 1);
    round(&mut board, &mut server, 1);
    assert_eq!(keys.round_closed(), 1);
    // The old key is withdrawn at once, but the new key remains valid.
    assert!(old_server.connection.is_revoked() && !server.connection.is_revoked());
    old_server.connection.open(&opening(2));
    assert!(old_server.frames().is_empty());
    old_server.receive(&old.wait(30_000));
    assert_eq!(old_server.events, [PeerMessage::Revoked]);
    let mut again = ServerEnd::new(&gate);
    assert_eq!(again.receive(&old.reconnect()), [plain(&ToDevice::Refused(Refusal::UnknownDevice))]);
    round(&mut board, &mut server, 2);
    assert_eq!(board.session.counters().counted, 2);
}

/// Tests that another device cannot join on a connection that already belongs to a device.
#[test]
fn connection_never_carries_messages_of_another_device() {
    let mut table = table();
    table.insert(DeviceId(OTHER), Key::new(0, [0x77; 32]), 0).unwrap();
    let gate = gate(&ActiveKeys::new(table), 1);
    let (mut board, mut server) = connected(&gate, NoStore, 1);
    let mut other = Board::new(OTHER, Protection::Key(Key::new(0, [0x77; 32])), NoStore, 2);
    let hello = other.link_up();
    let answer = server.receive(&hello);
    assert_eq!(uncobs(&answer[0])[0], 0x12);
    assert!(server.events.is_empty(), "the device has not proved its key");
    assert!(board.receive_all(&answer).is_empty(), "the connected device ignores an answer to another hello");
    let alive = other.receive_all(&answer);
    assert_eq!(alive.len(), 1);
    let down = server.receive(&alive);
    assert!(server.events.contains(&PeerMessage::OtherDevice) && server.joined() == 0);
    assert!(other.receive_all(&down).is_empty());
    server.events.clear();
    // The connection has no keys for further frames of the other device.
    let before = server.connection.traffic().forged;
    let frames: Vec<_> = (0..5).flat_map(|_| other.wait(30_000)).collect();
    assert_eq!(frames.len(), 5);
    server.receive(&frames);
    assert!(server.events.is_empty(), "{:?}", server.events);
    assert_eq!(server.connection.traffic().forged, before + 5);
    round(&mut board, &mut server, 1);
    assert_eq!(board.session.counters().counted, 1);
    // A hello with the greeting of one device and the id of another has another transcript, and therefore
    // another key.
    let recorded = uncobs(&hello[0]);
    let (message, body) =
        fedspan_protocol::message::decode::<ToServer>(&recorded[1..recorded.len() - 4]).unwrap();
    let ToServer::Hello(mut message) = message else { panic!() };
    message.device = DEVICE;
    let mut forged = vec![0; 200];
    let fill = |place: &mut [u8]| place.copy_from_slice(body);
    let sent =
        fedspan_protocol::frame::encode(&ToServer::Hello(message), body.len(), fill, &mut forged).unwrap();
    forged.truncate(sent);
    let mut server = ServerEnd::new(&gate);
    let answer = server.receive(&[forged]);
    let mut other = Board::new(OTHER, Protection::Key(Key::new(0, [0x77; 32])), NoStore, 2);
    assert_eq!(other.link_up(), hello);
    assert!(other.receive_all(&answer).is_empty());
    assert_eq!((unopened(&other), server.joined()), (1, 0));
}
