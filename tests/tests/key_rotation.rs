//! Tests of new keys that the server sends to devices: the device stores the key and uses it, also after a reset, and the server
//! accepts the old key until then.

use crate::common::{
    Board, DEVICE, OTHER, ServerEnd, count_undecrypted, encrypted_acceptor, exchange_frames, key_protection,
    key_table, round_broadcast, run_round,
};
use crate::nor_flash::{Nor, PAGE};
use fedspan_aggregator::connection::PeerMessage;
use fedspan_aggregator::keys::{ActiveKeys, Argon2Cost, KeyStore, KeyTable, Unlock};
use fedspan_client::secure::{Key, check_value};
use fedspan_client::session::{Config, Protection};
use fedspan_client::store::{FlashStore, NoStore, Store, StoredKey, record_len};
use fedspan_client::{Linear, Workspace};
use fedspan_engine::DeviceId;
use fedspan_protocol::message::{Ack, AckOutcome, NewKey, ToDevice};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use zeroize::Zeroizing;

const RECORD: usize = record_len(2, 1).next_multiple_of(4);

type FlashBoard = Board<FlashStore<Nor, RECORD>>;

/// Creates a device with this flash, as after a reset. Its provisioned key has epoch 0.
fn start(flash: &Nor, receives_keys: bool) -> FlashBoard {
    start_with(flash, receives_keys, key_protection())
}

/// Creates a device with this flash and this provisioned key.
fn start_with(flash: &Nor, receives_keys: bool, protection: Protection) -> FlashBoard {
    let store = FlashStore::new(flash.clone(), 0..2 * PAGE as u32).unwrap();
    let config = Config { frame_limit: 256, receives_keys, ..Config::new(DEVICE) };
    Board::with_task(config, protection, Linear::new(Workspace::<20, 2>::new()), store, 1)
}

/// Returns a table in which a new key is to be sent to the device.
fn sending() -> KeyTable {
    let mut table = key_table();
    table.send(&[DeviceId(DEVICE)], 1, &mut ChaCha20Rng::seed_from_u64(3)).unwrap();
    table
}

/// Connects the device to a new end of the server.
fn connect<P: Store>(board: &mut Board<P>, keys: &ActiveKeys, seed: u64) -> ServerEnd {
    let mut server = ServerEnd::new(&encrypted_acceptor(keys, seed));
    let hello = if board.last_progress.sent == 0 { board.link_up() } else { board.reconnect() };
    exchange_frames(board, &mut server, hello);
    server
}

#[test]
fn device_uses_the_key_that_the_server_sends() {
    let keys = ActiveKeys::new(sending());
    let flash = Nor::new(2);
    let mut board = start(&flash, true);
    assert_eq!(board.session.key_epoch(), Some(0));
    let mut server = connect(&mut board, &keys, 1);
    // The device has made a second handshake on the same link.
    assert!(
        matches!(server.events[..], [PeerMessage::Hello(_), PeerMessage::Hello(_)]),
        "{:?}",
        server.events
    );
    assert_eq!((board.session.key_epoch(), board.rejected()), (Some(1), 0));
    // A server does this with the second hello.
    keys.lookup(DeviceId(DEVICE), 1).unwrap().mark_used();
    assert!(keys.has_used_sent_key(DeviceId(DEVICE)));
    server.events.clear();
    run_round(&mut board, &mut server, 1);
    assert_eq!(board.session.counters().counted, 1);

    // After a reset the device uses the stored key. The old one ends with a round, because the new one was used.
    assert_eq!(keys.round_closed(), 1);
    let mut board = start(&flash, true);
    assert_eq!(board.session.key_epoch(), Some(1));
    let mut server = connect(&mut board, &keys, 2);
    assert!(matches!(server.events[..], [PeerMessage::Hello(_)]), "{:?}", server.events);
    server.events.clear();
    run_round(&mut board, &mut server, 2);

    // The stored key is used without the setting, too. A device whose flash is erased has only the old one, which is not accepted any more.
    let mut board = start(&flash, false);
    let server = connect(&mut board, &keys, 3);
    assert!(matches!(server.events[..], [PeerMessage::Hello(_)]), "{:?}", server.events);
    let mut board = start(&Nor::new(2), true);
    let server = connect(&mut board, &keys, 4);
    assert!(
        !server.events.is_empty()
            && server.events.iter().all(|event| matches!(event, PeerMessage::Refused(_))),
        "{:?}",
        server.events
    );
}

/// A device that cannot store keys, or whose firmware does not say that it does, keeps its key, however many rounds close.
#[test]
fn device_that_stores_no_keys_keeps_the_old_one() {
    let keys = ActiveKeys::new(sending());
    let mut silent = start(&Nor::new(2), false);
    let config = Config { frame_limit: 256, receives_keys: true, ..Config::new(DEVICE) };
    let mut forgetful =
        Board::with_task(config, key_protection(), Linear::new(Workspace::<20, 2>::new()), NoStore, 1);
    for round in 1..4 {
        let mut server = connect(&mut silent, &keys, 2 * u64::from(round));
        server.events.clear();
        run_round(&mut silent, &mut server, round);
        let mut server = connect(&mut forgetful, &keys, 2 * u64::from(round) + 1);
        server.events.clear();
        run_round(&mut forgetful, &mut server, round);
        assert_eq!(keys.round_closed(), 0);
        // The key is sent at the start of each connection and behind each round.
        assert_eq!(forgetful.session.counters().storage, 2 * round);
    }
    assert_eq!((silent.session.key_epoch(), forgetful.session.key_epoch()), (Some(0), Some(0)));
    assert_eq!((silent.session.counters().counted, forgetful.session.counters().counted), (3, 3));
}

/// A rotation in the middle of a connection: the key comes with the next round, and is used after it. Any frame may be lost.
#[test]
fn key_comes_with_a_round_and_any_frame_may_be_lost() {
    let mut lost_frames = 0;
    for lost in 0..8 {
        let directory = tempfile::tempdir().unwrap();
        let unlock = Unlock::KeyFile(Zeroizing::new([7; 32]));
        let random = ChaCha20Rng::seed_from_u64(3);
        let path = directory.path().join("keys");
        let mut store = KeyStore::create(&path, &unlock, Argon2Cost::RECOMMENDED, random).unwrap();
        store.add(&[DeviceId(DEVICE)], false, 0).unwrap();
        let rotated = store.keys();
        let provisioned = rotated.lookup(DeviceId(DEVICE), 0).unwrap().key().clone();
        let flash = Nor::new(2);
        let mut board = start_with(&flash, true, Protection::Key(provisioned.clone()));
        let mut server = ServerEnd::persistent(&encrypted_acceptor(&rotated, 1));
        let hello = board.link_up();
        exchange_frames(&mut board, &mut server, hello);
        assert!(matches!(server.events[..], [PeerMessage::Hello(_)]), "{:?}", server.events);
        server.events.clear();
        store.send(&[DeviceId(DEVICE)], 1).unwrap();
        server.connection.open(&round_broadcast(1));
        let mut frames = 0;
        let mut carry = |sent: Vec<Vec<u8>>| -> Vec<Vec<u8>> {
            sent.into_iter()
                .filter(|_| {
                    frames += 1;
                    frames != lost + 1
                })
                .collect()
        };
        let mut up = Vec::new();
        let mut counted = 0;
        for _ in 0..200 {
            let down = server.receive(&up);
            for event in std::mem::take(&mut server.events) {
                match event {
                    PeerMessage::Hello(_) if counted == 0 => server.connection.open(&round_broadcast(1)),
                    PeerMessage::Update(update) => {
                        counted += 1;
                        let outcome = if counted == 1 { AckOutcome::Counted } else { AckOutcome::Duplicate };
                        server.connection.send(ToDevice::Ack(Ack { id: update.id, outcome }));
                    }
                    _ => {}
                }
            }
            let down = carry([down, server.take_frames()].concat());
            up = carry(board.receive_all(&down));
            if up.is_empty() && down.is_empty() {
                if counted > 0 && board.session.key_epoch() == Some(1) {
                    break;
                }
                up = carry(board.wait(2_500));
                server.connection.request_missing();
            }
        }
        lost_frames += u32::from(frames > lost);
        assert!(counted > 0, "lost {lost}");
        if board.session.key_epoch() != Some(1) {
            // The frame with the key was lost: the next connection brings it.
            let server = connect(&mut board, &rotated, 9);
            assert!(!server.events.is_empty());
        }
        assert_eq!(board.session.key_epoch(), Some(1), "lost {lost}");
        let board = start_with(&flash, true, Protection::Key(provisioned));
        assert_eq!(board.session.key_epoch(), Some(1), "lost {lost}");
    }
    assert_eq!(lost_frames, 7, "one run loses nothing");
}

/// Keys of an epoch that is not later, keys in the clear and keys for a device without a key change nothing.
#[test]
fn other_keys_change_nothing() {
    let flash = Nor::new(2);
    let mut board = start(&flash, true);
    let keys = ActiveKeys::new(key_table());
    let mut server = connect(&mut board, &keys, 1);
    let unexpected = |board: &FlashBoard| board.session.counters().unexpected;
    let before = unexpected(&board);
    server.connection.send(ToDevice::NewKey(NewKey::from(&Key::new(0, [7; 32]))));
    let frames = server.take_frames();
    assert!(board.receive_all(&frames).is_empty());
    assert_eq!((unexpected(&board), board.session.key_epoch()), (before + 1, Some(0)));
    let clear = crate::common::encode_plain(&ToDevice::NewKey(NewKey::from(&Key::new(5, [7; 32]))));
    board.receive(&clear);
    assert_eq!((board.session.key_epoch(), board.session.counters().unsealed), (Some(0), 1));
    assert_eq!(count_undecrypted(&board), 0);

    let store = FlashStore::<_, RECORD>::new(Nor::new(2), 0..2 * PAGE as u32).unwrap();
    let config = Config { frame_limit: 256, receives_keys: true, ..Config::new(DEVICE) };
    let mut plain =
        Board::with_task(config, Protection::Plaintext, Linear::new(Workspace::<20, 2>::new()), store, 1);
    plain.link_up();
    plain.receive(&clear);
    assert_eq!(plain.session.key_epoch(), None);
    // A stored key is used as long as the device is provisioned with the same key, under the same number, and its epoch is later.
    let provisioned = Key::new(1, [9; 32]);
    let mut store = FlashStore::<_, RECORD>::new(flash.clone(), 0..2 * PAGE as u32).unwrap();
    let stored = StoredKey { key: Key::new(3, [3; 32]), provisioned: check_value(&provisioned, DEVICE) };
    store.save_key(&stored).unwrap();
    for (key, device, used) in [
        (provisioned.clone(), DEVICE, 3),
        (Key::new(2, [9; 32]), DEVICE, 3),
        (Key::new(3, [9; 32]), DEVICE, 3),
        (Key::new(4, [9; 32]), DEVICE, 4),
        (Key::new(0, [8; 32]), DEVICE, 0),
        (provisioned, OTHER, 1),
    ] {
        let store = FlashStore::<_, RECORD>::new(flash.clone(), 0..2 * PAGE as u32).unwrap();
        let config = Config { device, ..config };
        let model = Linear::new(Workspace::<20, 2>::new());
        let board = Board::with_task(config, Protection::Key(key), model, store, 1);
        assert_eq!(board.session.key_epoch(), Some(used));
    }
}
