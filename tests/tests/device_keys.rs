//! Tests of the device identity: wrong keys, epochs and devices, and keys that are revoked or rotated during
//! use.

use std::sync::Arc;

use crate::common::{
    Board, DEVICE, OTHER, SECRET, ServerEnd, WELCOME, active_keys, connect_device, count_undecrypted,
    decode_cobs, encode_plain, encrypted_acceptor, exchange_frames, key_protection, key_table, requirements,
    revocable_keys, round_broadcast, run_round,
};
use fedspan_aggregator::connection::{Acceptor, PeerMessage};
use fedspan_aggregator::keys::ActiveKeys;
use fedspan_client::Event;
use fedspan_client::secure::Key;
use fedspan_client::session::Protection;
use fedspan_client::store::NoStore;
use fedspan_engine::DeviceId;
use fedspan_protocol::frame::HEADER_ANSWER;
use fedspan_protocol::message::{Refusal, RoundId, ToDevice, ToServer};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;

/// Tests that no tag verifies if the two ends have different keys, so the device does not join.
#[test]
fn device_with_another_key_does_not_join() {
    let other_key = Protection::Key(Key::new(0, [0x43; 32]));
    let (mut board, mut server) =
        (Board::new(DEVICE, other_key, NoStore, 1), ServerEnd::new(&encrypted_acceptor(&active_keys(), 1)));
    let mut hello = board.link_up();
    for attempt in 1..=5 {
        let (up, down) = exchange_frames(&mut board, &mut server, hello);
        assert_eq!((up.len(), down.len()), (1, 1), "the device confirmed an answer under another key");
        assert_eq!(count_undecrypted(&board), attempt);
        // The device continues to wait and repeats its hello.
        hello = board.wait(2_000);
        assert_eq!(hello, up);
    }
    assert_eq!((server.count_hellos(), server.events.len()), (0, 0));
    assert_eq!((board.session.refusal(), board.last_progress.close), (None, false));
}

#[test]
fn device_with_key_ignores_plain_refusal() {
    let with_keys = encrypted_acceptor(&active_keys(), 1);
    let without_keys = Arc::new(Acceptor::plaintext(requirements(), WELCOME));
    let next_key = Protection::Key(Key::new(1, SECRET));
    for (device, protection, acceptor, refusal) in [
        (DEVICE, next_key, &with_keys, Refusal::UnknownDevice),
        (OTHER, key_protection(), &with_keys, Refusal::UnknownDevice),
        (DEVICE, Protection::Plaintext, &with_keys, Refusal::KeyNeeded),
        (DEVICE, key_protection(), &without_keys, Refusal::NoKeysHere),
    ] {
        let is_plaintext = matches!(protection, Protection::Plaintext);
        let (mut board, mut server) = (Board::new(device, protection, NoStore, 1), ServerEnd::new(acceptor));
        let hello = board.link_up();
        let down = server.receive(&hello);
        assert_eq!(down, [encode_plain(&ToDevice::Refused(refusal))]);
        assert_eq!(server.events, [PeerMessage::Refused(refusal)]);
        assert!(board.receive_all(&down).is_empty());
        assert!(board.last_progress.close);
        // Only a device without a key accepts a plain refusal.
        assert_eq!(board.session.refusal(), is_plaintext.then_some(refusal));
        board.handle_event(Event::LinkDown);
        assert!(board.last_progress.wake.as_u64() <= board.now + 60_000, "the device reconnects");
    }
}

#[test]
fn revocation_applies_from_the_next_frame() {
    for frames_before in 0..3 {
        let (mut table, keys) = revocable_keys();
        let acceptor = encrypted_acceptor(&keys, 1);
        let mut board = Board::with_limit(DEVICE, key_protection(), NoStore, 1, 128);
        let mut server = ServerEnd::new(&acceptor);
        let hello = board.link_up();
        exchange_frames(&mut board, &mut server, hello);
        server.events.clear();
        server.connection.open(&round_broadcast(1));
        let mut down = server.take_frames();
        let update = board.receive_all(&std::mem::take(&mut down));
        assert_eq!(update.len(), 3, "a head and two chunks");
        // The key is revoked after a part of the update has arrived.
        server.receive(&update[..frames_before]);
        assert!(server.events.is_empty());
        table.revoke(&[DeviceId(DEVICE)], 1).unwrap();
        assert!(server.connection.is_revoked());
        server.connection.send(ToDevice::RoundClosed(RoundId { round: 1, stage: 0 }));
        assert!(server.take_frames().is_empty(), "the server sent a frame after the revocation");
        let answers = server.receive(&update[frames_before..]);
        assert!(answers.is_empty());
        assert!(
            !server.events.is_empty() && server.events.iter().all(|event| *event == PeerMessage::Revoked)
        );
        // The device cannot reconnect.
        let mut server = ServerEnd::new(&acceptor);
        let hello = board.reconnect();
        exchange_frames(&mut board, &mut server, hello);
        assert_eq!(server.count_hellos(), 0);
    }
    // A complete update that arrives after the revocation does not count.
    let (mut table, keys) = revocable_keys();
    let (mut board, mut server) = connect_device(&encrypted_acceptor(&keys, 1), NoStore, 1);
    server.connection.open(&round_broadcast(1));
    let down = server.take_frames();
    let update = board.receive_all(&down);
    table.revoke(&[DeviceId(DEVICE)], 1).unwrap();
    server.receive(&update);
    assert_eq!((server.count_updates(), &server.events[..]), (0, &[PeerMessage::Revoked][..]));
    // The handshake starts before the revocation and is confirmed after it.
    let (mut table, keys) = revocable_keys();
    let (mut board, mut server) =
        (Board::new(DEVICE, key_protection(), NoStore, 1), ServerEnd::new(&encrypted_acceptor(&keys, 1)));
    let down = server.receive(&board.link_up());
    let alive = board.receive_all(&down);
    table.revoke(&[DeviceId(DEVICE)], 1).unwrap();
    assert!(server.receive(&alive).is_empty());
    assert_eq!(server.events, [PeerMessage::Revoked]);
}

#[test]
fn rotation_accepts_both_keys_until_a_round_closes() {
    let mut table = key_table();
    table.rotate(&[DeviceId(DEVICE)], 1, &mut ChaCha20Rng::seed_from_u64(3)).unwrap();
    let new_key = table.export(&[DeviceId(DEVICE)]).unwrap()[0].key().clone();
    assert_eq!(new_key.epoch(), 1);
    let keys = ActiveKeys::new(table);
    let acceptor = encrypted_acceptor(&keys, 1);
    let (mut old_board, mut old_server) = connect_device(&acceptor, NoStore, 1);
    let mut board = Board::new(DEVICE, Protection::Key(new_key), NoStore, 2);
    let mut server = ServerEnd::new(&acceptor);
    let hello = board.link_up();
    exchange_frames(&mut board, &mut server, hello);
    assert_eq!(server.count_hellos(), 1);
    server.events.clear();
    run_round(&mut old_board, &mut old_server, 1);
    run_round(&mut board, &mut server, 1);
    assert_eq!(keys.round_closed(), 1);
    // The old key is withdrawn at once, but the new key remains valid.
    assert!(old_server.connection.is_revoked() && !server.connection.is_revoked());
    old_server.connection.open(&round_broadcast(2));
    assert!(old_server.take_frames().is_empty());
    old_server.receive(&old_board.wait(30_000));
    assert_eq!(old_server.events, [PeerMessage::Revoked]);
    let mut refused_server = ServerEnd::new(&acceptor);
    assert_eq!(
        refused_server.receive(&old_board.reconnect()),
        [encode_plain(&ToDevice::Refused(Refusal::UnknownDevice))]
    );
    run_round(&mut board, &mut server, 2);
    assert_eq!(board.session.counters().counted, 2);
}

/// Tests that another device cannot join on a connection that already belongs to a device.
#[test]
fn connection_never_carries_messages_of_another_device() {
    let mut table = key_table();
    table.insert(DeviceId(OTHER), Key::new(0, [0x77; 32]), 0).unwrap();
    let acceptor = encrypted_acceptor(&ActiveKeys::new(table), 1);
    let (mut board, mut server) = connect_device(&acceptor, NoStore, 1);
    let mut other_board = Board::new(OTHER, Protection::Key(Key::new(0, [0x77; 32])), NoStore, 2);
    let hello = other_board.link_up();
    let answer = server.receive(&hello);
    assert_eq!(decode_cobs(&answer[0])[0], HEADER_ANSWER);
    assert!(server.events.is_empty(), "the server accepted a device that has not proved its key");
    assert!(
        board.receive_all(&answer).is_empty(),
        "the connected device accepted an answer to another hello"
    );
    let alive = other_board.receive_all(&answer);
    assert_eq!(alive.len(), 1);
    let down = server.receive(&alive);
    assert!(server.events.contains(&PeerMessage::OtherDevice) && server.count_hellos() == 0);
    assert!(other_board.receive_all(&down).is_empty());
    server.events.clear();
    // The connection has no keys for further frames of the other device.
    let before = server.connection.traffic().forged;
    let frames: Vec<_> = (0..5).flat_map(|_| other_board.wait(30_000)).collect();
    assert_eq!(frames.len(), 5);
    server.receive(&frames);
    assert!(server.events.is_empty(), "{:?}", server.events);
    assert_eq!(server.connection.traffic().forged, before + 5);
    run_round(&mut board, &mut server, 1);
    assert_eq!(board.session.counters().counted, 1);
    // A hello with the greeting of one device and the id of another has another transcript, and therefore
    // another key.
    let recorded = decode_cobs(&hello[0]);
    let (message, body) =
        fedspan_protocol::message::decode::<ToServer>(&recorded[1..recorded.len() - 4]).unwrap();
    let ToServer::Hello(mut message) = message else { panic!() };
    message.device = DEVICE;
    let mut forged = vec![0; 200];
    let fill = |buffer: &mut [u8]| buffer.copy_from_slice(body);
    let sent =
        fedspan_protocol::frame::encode(&ToServer::Hello(message), body.len(), fill, &mut forged).unwrap();
    forged.truncate(sent);
    let mut server = ServerEnd::new(&acceptor);
    let answer = server.receive(&[forged]);
    let mut other_board = Board::new(OTHER, Protection::Key(Key::new(0, [0x77; 32])), NoStore, 2);
    assert_eq!(other_board.link_up(), hello);
    assert!(other_board.receive_all(&answer).is_empty());
    assert_eq!((count_undecrypted(&other_board), server.count_hellos()), (1, 0));
}
