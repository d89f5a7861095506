//! Tests that replaced keys are accepted until a round closes, and are revoked when training ends.

use super::*;

/// After a rotation both keys are accepted until a round closes. If no further round will close, the old key
/// is rejected at once.
#[test]
fn rotation_after_training_revokes_old_key_at_once() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("keys");
    let entropy = || ChaCha20Rng::seed_from_u64(1);
    let unlock = Unlock::KeyFile(zeroize::Zeroizing::new([7; 32]));
    let mut store = KeyStore::create(&path, &unlock, Argon2Cost::RECOMMENDED, entropy()).unwrap();
    store.add(&[DeviceId(0), DeviceId(1)], false, 1).unwrap();
    let key_store = SharedKeyStore::new(store);
    let mut core = start_core_with_keys(state.path(), Some((key_store.clone(), Box::new(entropy()))));
    let rotate = || key_store.answer(r#"{"rotate":"all"}"#, 2).to_string();
    assert!(rotate().contains("rotating"));
    let _queues = finish_training(&mut core);
    let keys = key_store.keys();
    assert!(
        keys.lookup(DeviceId(0), 0).is_none() && keys.lookup(DeviceId(0), 1).is_some(),
        "the replaced key outlived the last round"
    );
    assert!(!rotate().contains("rotating"));
    assert!(keys.lookup(DeviceId(0), 1).is_none() && keys.lookup(DeviceId(0), 2).is_some());
    // After a restart the replaced key is revoked at once too, even before a device has joined.
    drop((core, key_store));
    let key_store = SharedKeyStore::new(KeyStore::open(&path, &unlock, entropy()).unwrap());
    let _core = start_core_with_keys(state.path(), Some((key_store.clone(), Box::new(entropy()))));
    assert!(!key_store.answer(r#"{"rotate":"all"}"#, 3).contains("rotating"));
}

/// A key that is sent to a device ends the old one once the device uses it, also after training, and not before.
#[test]
fn sent_key_ends_the_old_one_when_it_is_used() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("keys");
    let entropy = || ChaCha20Rng::seed_from_u64(1);
    let unlock = Unlock::KeyFile(zeroize::Zeroizing::new([7; 32]));
    let mut store = KeyStore::create(&path, &unlock, Argon2Cost::RECOMMENDED, entropy()).unwrap();
    store.add(&[DeviceId(0), DeviceId(1)], false, 1).unwrap();
    let key_store = SharedKeyStore::new(store);
    let mut core = start_core_with_keys(state.path(), Some((key_store.clone(), Box::new(entropy()))));
    let send = |device: u64| {
        key_store.answer(&format!(r#"{{"send":{{"these":[[{device},{device}]]}}}}"#), 2).to_string()
    };
    assert!(send(0).contains("sending"));
    let _queues = finish_training(&mut core);
    let keys = key_store.keys();
    assert!(keys.lookup(DeviceId(0), 0).is_some(), "the device may not have the new key yet");
    assert!(send(1).contains("sending") && send(1).contains("error"));
    assert!(keys.lookup(DeviceId(1), 0).is_some());
    // The device makes a handshake with the new key.
    let new_key = keys.lookup(DeviceId(0), 1).unwrap();
    let (commands, _commands_of_device) = command_queue(16);
    handle_and_flush_under(
        &mut core,
        5,
        Some(&new_key),
        PeerEventKind::Hello(DeviceId(0), Privacy::None, commands),
    );
    assert!(keys.lookup(DeviceId(0), 0).is_none() && keys.lookup(DeviceId(1), 0).is_some());
    drop((core, key_store));
    let keys = KeyStore::open(&path, &unlock, entropy()).unwrap().keys();
    assert!(keys.lookup(DeviceId(0), 0).is_none() && keys.lookup(DeviceId(1), 0).is_some());
    assert!(keys.key_to_send(DeviceId(1), 0).is_some());
}

/// Replaced keys stay accepted until the end of the round is durable. Otherwise a power cut would reopen the
/// round, and devices with an old key could not answer.
#[test]
fn replaced_keys_stay_until_round_is_durable() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("keys");
    let disk = Disk::default();
    let round_key = Slot::default();
    let entropy = || ChaCha20Rng::seed_from_u64(1);
    let unlock = Unlock::KeyFile(Zeroizing::new([7; 32]));
    let configuration = configuration_text(state.path())
        .replace("rounds = 3", "rounds = 1")
        .replace("absence = 0", "absence = 30");
    let fleet = Fleet::parse("fleet.toml", &configuration).unwrap();
    let begin = |keys: KeyStore| {
        let (shared_disk, key_store) = (disk.clone(), SharedKeyStore::new(keys));
        let store = Store::over(move || shared_disk.clone(), round_key.clone(), SysRng).unwrap();
        let nonces: Box<dyn Entropy> = Box::new(entropy());
        (ServerCore::new(&fleet, store, 1, Some((key_store.clone(), nonces)), None).unwrap(), key_store)
    };
    let mut keys = KeyStore::create(&path, &unlock, Argon2Cost::RECOMMENDED, entropy()).unwrap();
    keys.add(&[DeviceId(0), DeviceId(1)], false, 1).unwrap();
    let (mut core, key_store) = begin(keys);
    let [(first, mut queues), (second, _unread), (reconnected, mut reconnected_commands)] =
        [command_queue(16), command_queue(16), command_queue(16)];
    handle_and_flush(&mut core, 0, PeerEventKind::Hello(DeviceId(0), Privacy::None, first));
    handle_and_flush(&mut core, 1, PeerEventKind::Hello(DeviceId(1), Privacy::None, second));
    let round = take_opened_rounds(&mut queues).pop().expect("a round");
    handle_and_flush(&mut core, 0, zero_update(&round));
    assert!(key_store.answer(r#"{"rotate":"all"}"#, 2).contains("rotating"));
    disk.set_full(true);
    handle_and_flush(&mut core, 1, zero_update(&round));
    assert!(core.is_stalled() && core.is_fitting());
    assert!(key_store.keys().lookup(DeviceId(1), 0).is_some(), "the key was revoked before its round closed");
    // Simulates a power cut.
    drop((core, key_store));
    disk.set_full(false);
    let (mut core, key_store) = begin(KeyStore::open(&path, &unlock, entropy()).unwrap());
    assert_eq!(core.engine().open_round().map(|round| round.participants.clone()), Some(vec![DeviceId(0)]));
    let old_key = key_store.keys().lookup(DeviceId(1), 0).expect("the key that it may still have");
    handle_and_flush_under(
        &mut core,
        2,
        Some(&old_key),
        PeerEventKind::Hello(DeviceId(1), Privacy::None, reconnected),
    );
    let round = take_opened_rounds(&mut reconnected_commands).pop().expect("the same round");
    handle_and_flush_under(&mut core, 2, Some(&old_key), zero_update(&round));
    assert_eq!(core.done, 1);
    assert!(
        key_store.keys().lookup(DeviceId(1), 0).is_none()
            && key_store.keys().lookup(DeviceId(1), 1).is_some()
    );
    drop((core, key_store));
    let keys = KeyStore::open(&path, &unlock, entropy()).unwrap().keys();
    assert!(
        keys.lookup(DeviceId(1), 0).is_none()
            && keys.lookup(DeviceId(0), 0).is_none()
            && keys.lookup(DeviceId(0), 1).is_some()
    );
}

/// Replaced keys are revoked at the end of the last round even if no device is connected, because no later
/// round would revoke them.
#[test]
fn last_round_revokes_replaced_keys() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("keys");
    let entropy = || ChaCha20Rng::seed_from_u64(1);
    let unlock = Unlock::KeyFile(Zeroizing::new([7; 32]));
    let mut keys = KeyStore::create(&path, &unlock, Argon2Cost::RECOMMENDED, entropy()).unwrap();
    keys.add(&[DeviceId(0), DeviceId(1)], false, 1).unwrap();
    let key_store = SharedKeyStore::new(keys);
    let configuration = configuration_text(state.path()).replace("rounds = 3", "rounds = 1");
    let fleet = Fleet::parse("fleet.toml", &configuration).unwrap();
    let store = Store::open(state.path(), SysRng).unwrap();
    let nonces: Box<dyn Entropy> = Box::new(entropy());
    let mut core = ServerCore::new(&fleet, store, 1, Some((key_store.clone(), nonces)), None).unwrap();
    let [(first, mut queues), (second, _unread)] = [command_queue(16), command_queue(16)];
    handle_and_flush(&mut core, 0, PeerEventKind::Hello(DeviceId(0), Privacy::None, first));
    handle_and_flush(&mut core, 1, PeerEventKind::Hello(DeviceId(1), Privacy::None, second));
    let round = take_opened_rounds(&mut queues).pop().expect("a round");
    handle_and_flush(&mut core, 0, zero_update(&round));
    handle_and_flush(&mut core, 0, PeerEventKind::Gone(DisconnectReason::Closed));
    // The departure of the last awaited device closes the round.
    handle_and_flush(&mut core, 1, PeerEventKind::Gone(DisconnectReason::Closed));
    assert_eq!((core.done, core.engine().open_round().is_none()), (1, true));
    assert!(!key_store.answer(r#"{"rotate":"all"}"#, 2).contains("rotating"));
}

/// A round does not wait for a device whose keys are revoked, whether the device is connected or not, however long
/// it would wait for absent devices.
#[test]
fn round_goes_on_without_revoked_device() {
    for is_connected in [true, false] {
        let state = tempfile::tempdir().unwrap();
        let entropy = || ChaCha20Rng::seed_from_u64(1);
        let unlock = Unlock::KeyFile(Zeroizing::new([7; 32]));
        let path = state.path().join("keys");
        let mut keys = KeyStore::create(&path, &unlock, Argon2Cost::RECOMMENDED, entropy()).unwrap();
        keys.add(&[DeviceId(0), DeviceId(1)], false, 1).unwrap();
        let key_store = SharedKeyStore::new(keys);
        let configuration = configuration_text(state.path()).replace("absence = 0", "absence = 3600");
        let fleet = Fleet::parse("fleet.toml", &configuration).unwrap();
        let start = |store: &SharedKeyStore| {
            let nonces: Box<dyn Entropy> = Box::new(entropy());
            let rounds = Store::open(state.path(), SysRng).unwrap();
            ServerCore::new(&fleet, rounds, 1, Some((store.clone(), nonces)), None).unwrap()
        };
        let mut core = start(&key_store);
        let [(first, mut commands), (second, _unread)] = [command_queue(16), command_queue(16)];
        handle_and_flush(&mut core, 0, PeerEventKind::Hello(DeviceId(0), Privacy::None, first));
        handle_and_flush(&mut core, 1, PeerEventKind::Hello(DeviceId(1), Privacy::None, second));
        let round = take_opened_rounds(&mut commands).pop().expect("a round");
        handle_and_flush(&mut core, 0, zero_update(&round));
        if !is_connected {
            handle_and_flush(&mut core, 1, PeerEventKind::Gone(DisconnectReason::Closed));
        }
        core.remove_revoked(Millis::ZERO);
        core.flush(Millis::ZERO).unwrap();
        assert_eq!(core.done, 0, "a round went on while no key was revoked");
        assert!(key_store.answer(r#"{"revoke":[[1,1]]}"#, 2).contains("revoked"));
        core.remove_revoked(Millis::ZERO);
        core.flush(Millis::ZERO).unwrap();
        assert_eq!((core.done, core.status().connected), (1, 1));
        assert_eq!(core.status().updates.absent, 1);
        // The next round is opened for the other device alone, and after a restart as well.
        let round = take_opened_rounds(&mut commands).pop().expect("the next round");
        handle_and_flush(&mut core, 0, zero_update(&round));
        assert_eq!(core.done, 2);
        drop(core);
        let mut core = start(&key_store);
        let (again, mut commands) = command_queue(16);
        handle_and_flush(&mut core, 2, PeerEventKind::Hello(DeviceId(0), Privacy::None, again));
        let round = take_opened_rounds(&mut commands).pop().expect("the last round");
        handle_and_flush(&mut core, 2, zero_update(&round));
        assert_eq!(core.done, 3);
    }
}

/// A device with another key cannot say who it is, so the server reports the connection. Test benches without keys do not.
#[test]
fn connection_without_a_key_is_reported() {
    let entropy = || ChaCha20Rng::seed_from_u64(1);
    let unlock = Unlock::KeyFile(Zeroizing::new([7; 32]));
    let log_of = |keys: bool, reason: DisconnectReason| {
        let directory = tempfile::tempdir().unwrap();
        let written = CapturedLog::default();
        let writer = written.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let path = directory.path().join("keys");
            let store = keys.then(|| {
                let store = KeyStore::create(&path, &unlock, Argon2Cost::RECOMMENDED, entropy()).unwrap();
                let nonces: Box<dyn Entropy> = Box::new(entropy());
                (SharedKeyStore::new(store), nonces)
            });
            let mut core = start_core_with_keys(directory.path(), store);
            for peer in 0..100 {
                handle_and_flush(&mut core, peer, PeerEventKind::Gone(reason));
            }
        });
        let log = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        log.lines().filter(|line| line.contains("before a device proved a key")).count()
    };
    assert_eq!(log_of(true, DisconnectReason::Closed), 20, "as many lines as the limit for a kind");
    assert_eq!(log_of(true, DisconnectReason::NoHello), 20);
    assert_eq!(log_of(true, DisconnectReason::Ended), 0);
    assert_eq!(log_of(false, DisconnectReason::Closed), 0);
}
