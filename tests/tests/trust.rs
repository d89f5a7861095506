//! Who is who: other keys, epochs and devices, keys that are revoked or rotated while they are in use.

use std::sync::Arc;

use crate::common::{
    Board, DEVICE, Host, OTHER, SECRET, WELCOME, converse, gate, joined, keys, opening, plain, protected,
    requirements, round, table, uncobs, unopened, withdrawable,
};
use fedspan_aggregator::connection::{Acceptor, PeerMessage};
use fedspan_aggregator::keys::ActiveKeys;
use fedspan_client::Event;
use fedspan_client::secure::Key;
use fedspan_client::session::Protection;
use fedspan_client::store::NoStore;
use fedspan_protocol::message::{Refusal, RoundId, ToDevice, ToServer};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;

/// The wrong key, on either side: no tag is right, and nobody joins.
#[test]
fn who_has_another_key_is_nobody() {
    let wrong = Protection::Key(Key::new(0, [0x43; 32]));
    let (mut board, mut host) = (Board::new(DEVICE, wrong, NoStore, 1), Host::new(&gate(&keys(), 1)));
    let mut hello = board.link_up();
    for attempt in 1..=5 {
        let (up, down) = converse(&mut board, &mut host, hello);
        assert_eq!((up.len(), down.len()), (1, 1), "hello and answer, no confirmation");
        assert_eq!(unopened(&board), attempt);
        // It waits on, and says the same hello.
        hello = board.wait(2_000);
        assert_eq!(hello, up);
    }
    assert_eq!((host.joined(), host.said.len()), (0, 0));
    assert_eq!((board.session.refusal(), board.last.close), (None, false));
}

#[test]
fn who_has_a_key_of_another_epoch_or_none_is_refused_in_the_clear_and_does_not_believe_it() {
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
        let (mut board, mut host) = (Board::new(device, protection, NoStore, 1), Host::new(gate));
        let hello = board.link_up();
        let down = host.hear(&hello);
        assert_eq!(down, [plain(&ToDevice::Refused(refusal))]);
        assert_eq!(host.said, [PeerMessage::Refused(refusal)]);
        assert!(board.hear_all(&down).is_empty());
        assert!(board.last.close);
        // Without a key it is all there is to believe.
        assert_eq!(board.session.refusal(), plaintext.then_some(refusal));
        board.event(Event::LinkDown);
        assert!(board.last.wake <= board.now + 60_000, "it comes back");
    }
}

#[test]
fn a_revoked_key_is_not_heard_any_more_from_the_next_frame_on() {
    for after in 0..3 {
        let (mut table, keys) = withdrawable();
        let gate = gate(&keys, 1);
        let mut board = Board::with_limit(DEVICE, protected(), NoStore, 1, 128);
        let mut host = Host::new(&gate);
        let hello = board.link_up();
        converse(&mut board, &mut host, hello);
        host.said.clear();
        host.connection.open(&opening(1));
        let mut down = host.frames();
        let update = board.hear_all(&std::mem::take(&mut down));
        assert_eq!(update.len(), 3, "a head and two chunks");
        // Some of the update has come when the key is revoked; the rest comes later.
        host.hear(&update[..after]);
        assert!(host.said.is_empty());
        table.revoke(&[DEVICE], 1).unwrap();
        assert!(host.connection.is_revoked());
        host.connection.send(ToDevice::RoundClosed(RoundId { round: 1, stage: 0 }));
        assert!(host.frames().is_empty(), "nothing more is said");
        let answers = host.hear(&update[after..]);
        assert!(answers.is_empty());
        assert!(!host.said.is_empty() && host.said.iter().all(|said| *said == PeerMessage::Revoked));
        // Nor does it come back.
        let mut host = Host::new(&gate);
        let hello = board.reconnect();
        converse(&mut board, &mut host, hello);
        assert_eq!(host.joined(), 0);
    }
    // The whole update, in one read with the revocation in between, is counted or not by when it came.
    let (mut table, keys) = withdrawable();
    let (mut board, mut host) = joined(&gate(&keys, 1), NoStore, 1);
    host.connection.open(&opening(1));
    let down = host.frames();
    let update = board.hear_all(&down);
    table.revoke(&[DEVICE], 1).unwrap();
    host.hear(&update);
    assert_eq!((host.updates(), &host.said[..]), (0, &[PeerMessage::Revoked][..]));
    // A handshake that was begun before, and confirmed after.
    let (mut table, keys) = withdrawable();
    let (mut board, mut host) = (Board::new(DEVICE, protected(), NoStore, 1), Host::new(&gate(&keys, 1)));
    let down = host.hear(&board.link_up());
    let alive = board.hear_all(&down);
    table.revoke(&[DEVICE], 1).unwrap();
    assert!(host.hear(&alive).is_empty());
    assert_eq!(host.said, [PeerMessage::Revoked]);
}

#[test]
fn a_rotation_accepts_the_old_key_and_the_new_one_until_a_round_closes() {
    let mut table = table();
    table.rotate(&[DEVICE], 1, &mut ChaCha20Rng::seed_from_u64(3)).unwrap();
    let new = table.export(&[DEVICE]).unwrap()[0].key().clone();
    assert_eq!(new.epoch(), 1);
    let keys = ActiveKeys::new(table);
    let gate = gate(&keys, 1);
    let (mut old, mut old_host) = joined(&gate, NoStore, 1);
    let mut board = Board::new(DEVICE, Protection::Key(new), NoStore, 2);
    let mut host = Host::new(&gate);
    let hello = board.link_up();
    converse(&mut board, &mut host, hello);
    assert_eq!(host.joined(), 1);
    host.said.clear();
    round(&mut old, &mut old_host, 1);
    round(&mut board, &mut host, 1);
    assert_eq!(keys.round_closed(), 1);
    // The old one is gone at once, the new one is not.
    assert!(old_host.connection.is_revoked() && !host.connection.is_revoked());
    old_host.connection.open(&opening(2));
    assert!(old_host.frames().is_empty());
    old_host.hear(&old.wait(30_000));
    assert_eq!(old_host.said, [PeerMessage::Revoked]);
    let mut again = Host::new(&gate);
    assert_eq!(again.hear(&old.reconnect()), [plain(&ToDevice::Refused(Refusal::UnknownDevice))]);
    round(&mut board, &mut host, 2);
    assert_eq!(board.session.counters().counted, 2);
}

/// Another device, with a key of its own, on a connection that is taken: it proves who it is, and is not let in.
#[test]
fn one_devices_connection_never_carries_anothers_messages() {
    let mut table = table();
    table.insert(OTHER, Key::new(0, [0x77; 32]), 0).unwrap();
    let gate = gate(&ActiveKeys::new(table), 1);
    let (mut board, mut host) = joined(&gate, NoStore, 1);
    let mut other = Board::new(OTHER, Protection::Key(Key::new(0, [0x77; 32])), NoStore, 2);
    let hello = other.link_up();
    let answer = host.hear(&hello);
    assert_eq!(uncobs(&answer[0])[0], 0x12);
    assert!(host.said.is_empty(), "it has not shown that it has the key");
    assert!(board.hear_all(&answer).is_empty(), "not for the device that is there");
    let alive = other.hear_all(&answer);
    assert_eq!(alive.len(), 1);
    let down = host.hear(&alive);
    assert!(host.said.contains(&PeerMessage::OtherDevice) && host.joined() == 0);
    assert!(other.hear_all(&down).is_empty());
    host.said.clear();
    // Whatever it says now is under keys that nobody has.
    let before = host.connection.traffic().forged;
    let frames: Vec<_> = (0..5).flat_map(|_| other.wait(30_000)).collect();
    assert_eq!(frames.len(), 5);
    host.hear(&frames);
    assert!(host.said.is_empty(), "{:?}", host.said);
    assert_eq!(host.connection.traffic().forged, before + 5);
    round(&mut board, &mut host, 1);
    assert_eq!(board.session.counters().counted, 1);
    // With the greeting of one and the name of the other: the transcript is another, and so is the key.
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
    let mut host = Host::new(&gate);
    let answer = host.hear(&[forged]);
    let mut other = Board::new(OTHER, Protection::Key(Key::new(0, [0x77; 32])), NoStore, 2);
    assert_eq!(other.link_up(), hello);
    assert!(other.hear_all(&answer).is_empty());
    assert_eq!((unopened(&other), host.joined()), (1, 0));
}
