//! Model checks of the key table. One thread looks up keys and checks frames like a peer session; another
//! withdraws keys like the operator or the end of a round.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use fedspan_protocol::secure::Key;
use loom::future::block_on;
use loom::thread;

use super::{AcceptedKey, ActiveKeys, Entropy, KeyError, KeyState, KeyTable, LookupError};
use crate::Check;
use crate::device_id::DeviceId;
use crate::queue::create_queue;
use crate::sync::AtomicBool;

/// All checks of the key table.
pub(crate) const ALL: &[Check] = &[
    Check { name: "keys: no frame is accepted after revoke has returned", program: revoked_is_revoked },
    Check {
        name: "keys: a frame passed on earlier is rejected after revoke",
        program: frame_is_checked_twice,
    },
    Check { name: "keys: a withdrawn key is never accepted again", program: withdrawn_key_stays_withdrawn },
    Check { name: "keys: a lookup sees all of a revocation, or nothing", program: all_or_nothing },
    Check {
        name: "keys: a lookup sees all of a round's end, or nothing",
        program: round_closed_beside_lookup,
    },
    Check { name: "keys: a rotating device has a valid key at any time", program: rotation_beside_lookup },
    Check { name: "keys: two concurrent changes are both kept", program: concurrent_changes_are_kept },
];

/// Ids of the two devices of the checks.
const DEVICES: [DeviceId; 2] = [DeviceId(7), DeviceId(8)];

/// Source of zeros instead of random bytes.
pub(super) struct Zeros;

impl Entropy for Zeros {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), KeyError> {
        bytes.fill(0);
        Ok(())
    }
}

fn key_table() -> KeyTable {
    let mut table = KeyTable::new();
    for device in DEVICES {
        table.insert(device, Key::new(0, [1; 32]), 1).expect("the device has no key yet");
    }
    table
}

/// Returns a table in which each device has two keys, during the grace period of the first key: it is
/// accepted until a round closes.
fn rotating_table() -> KeyTable {
    let mut table = key_table();
    table.rotate(&DEVICES, 1, &mut Zeros).expect("both devices have one key");
    table
}

/// Returns the first key of a device.
pub(super) fn accepted_key(keys: &ActiveKeys, device: DeviceId) -> Arc<AcceptedKey> {
    keys.lookup(device, 0).expect("the key is accepted")
}

/// Checks that exactly the accepted keys can be looked up. Returns, for each key, whether it can be looked
/// up.
fn check_consistency(keys: &ActiveKeys, known: &[Arc<AcceptedKey>]) -> Vec<bool> {
    keys.read(|table| {
        let agrees = |key: &Arc<AcceptedKey>| {
            let is_listed = table.lookup(key.device(), key.epoch()).is_ok();
            assert_eq!(is_listed, key.is_accepted(), "device {} epoch {}", key.device(), key.epoch());
            is_listed
        };
        known.iter().map(agrees).collect()
    })
}

/// Checks that no frame is accepted after a revocation has returned.
fn revoked_is_revoked() {
    let keys = ActiveKeys::new(key_table());
    let (key, has_returned) = (accepted_key(&keys, DeviceId(7)), Arc::new(AtomicBool::new(false)));
    let operator = thread::spawn({
        let (keys, has_returned) = (keys.clone(), Arc::clone(&has_returned));
        move || {
            super::revoke(&keys, 7);
            has_returned.store(true, Release);
        }
    });
    let was_revoked = has_returned.load(Acquire);
    let (accepted, lookup) = (key.is_accepted(), keys.lookup(DeviceId(7), 0));
    assert!(!was_revoked || !accepted && lookup.is_none());
    // A rejected key must stay rejected.
    assert!(accepted || lookup.is_none(), "a withdrawn key was found by a later lookup");
    operator.join().expect("the operator ends");
}

/// Checks that a frame is checked twice: a session checks it and passes it on with its key, and the server
/// core checks the key again.
fn frame_is_checked_twice() {
    let keys = ActiveKeys::new(key_table());
    let has_returned = Arc::new(AtomicBool::new(false));
    let (sender, mut receiver) = create_queue(1);
    let connection = thread::spawn({
        let keys = keys.clone();
        move || {
            if let Some(key) = keys.lookup(DeviceId(7), 0).filter(|key| key.is_accepted()) {
                assert!(sender.send(key));
            }
        }
    });
    let operator = thread::spawn({
        let (keys, has_returned) = (keys.clone(), Arc::clone(&has_returned));
        move || {
            super::revoke(&keys, 7);
            has_returned.store(true, Release);
        }
    });
    if let Some(key) = block_on(receiver.recv()) {
        let was_revoked = has_returned.load(Acquire);
        assert!(!was_revoked || !key.is_accepted());
    }
    connection.join().expect("the connection ends");
    operator.join().expect("the operator ends");
}

/// Checks that the old key stays withdrawn when the device gets a new key.
fn withdrawn_key_stays_withdrawn() {
    let keys = ActiveKeys::new(key_table());
    let key = accepted_key(&keys, DeviceId(7));
    let operator = thread::spawn({
        let keys = keys.clone();
        move || {
            super::revoke(&keys, 7);
            let mut table = keys.read(KeyTable::clone);
            table.add(&[DeviceId(7)], true, 3, &mut Zeros).expect("the key was revoked");
            keys.replace_table(table);
        }
    });
    let (new_key, accepted) = (keys.lookup(DeviceId(7), 1), key.is_accepted());
    assert!(new_key.is_none() || !accepted, "the old key is accepted beside the new one");
    assert!(accepted || !key.is_accepted(), "a withdrawn key was accepted again");
    assert!(accepted || keys.lookup(DeviceId(7), 0).is_none(), "a withdrawn key was found");
    operator.join().expect("the operator ends");
    assert!(keys.lookup(DeviceId(7), 1).is_some_and(|key| key.is_accepted()) && !key.is_accepted());
}

/// Checks that a lookup is consistent with either the state before or the state after a revocation.
fn all_or_nothing() {
    let keys = ActiveKeys::new(rotating_table());
    let known: Vec<_> =
        DEVICES.iter().flat_map(|&device| [0, 1].map(|epoch| keys.lookup(device, epoch))).flatten().collect();
    assert_eq!(known.len(), 4);
    let operator = thread::spawn({
        let keys = keys.clone();
        move || keys.revoke(&DEVICES, 2).expect("both devices have keys")
    });
    let accepted = check_consistency(&keys, &known);
    assert!(accepted == [true; 4] || accepted == [false; 4], "{accepted:?}");
    operator.join().expect("the operator ends");
    assert_eq!(check_consistency(&keys, &known), [false; 4]);
}

/// Checks that a lookup is consistent with either the state before or the state after the end of a round.
fn round_closed_beside_lookup() {
    let keys = ActiveKeys::new(rotating_table());
    let old_keys = DEVICES.map(|device| accepted_key(&keys, device));
    let round = thread::spawn({
        let keys = keys.clone();
        move || assert_eq!(keys.round_closed(), 2)
    });
    let accepted = check_consistency(&keys, &old_keys);
    assert!(accepted == [true; 2] || accepted == [false; 2], "{accepted:?}");
    match keys.find(DeviceId(7), 0) {
        Ok(_) => assert!(accepted[0], "the old key was found again"),
        Err(refusal) => assert_eq!(refusal, LookupError::Epoch { current: 1 }),
    }
    assert!(keys.lookup(DeviceId(7), 1).is_some_and(|key| key.is_accepted()));
    round.join().expect("the round ends");
    assert_eq!(check_consistency(&keys, &old_keys), [false; 2]);
}

/// Checks that a rotating device has a valid key at any time.
fn rotation_beside_lookup() {
    let keys = ActiveKeys::new(key_table());
    let operator = thread::spawn({
        let keys = keys.clone();
        move || {
            let mut table = keys.read(KeyTable::clone);
            table.rotate(&[DeviceId(7)], 2, &mut Zeros).expect("the device has one key");
            keys.replace_table(table);
            assert_eq!(keys.round_closed(), 1);
        }
    });
    let accepted = || {
        keys.read(|table| {
            [0, 1].map(|epoch| table.lookup(DeviceId(7), epoch).is_ok_and(|key| key.is_accepted()))
        })
    };
    let [before, after] = [accepted(), accepted()];
    for epochs in [before, after] {
        assert!(epochs[0] || epochs[1], "the device has no valid key");
    }
    assert!(after[1] || !before[1], "the new key was withdrawn");
    assert!(before[0] || !after[0], "the old key was accepted again");
    operator.join().expect("the operator ends");
    assert_eq!(accepted(), [false, true]);
}

/// Checks a revocation during the end of a round: both changes are kept.
fn concurrent_changes_are_kept() {
    let keys = ActiveKeys::new(rotating_table());
    let operator = thread::spawn({
        let keys = keys.clone();
        move || super::revoke(&keys, 7)
    });
    let withdrawn = keys.round_closed();
    operator.join().expect("the operator ends");
    // Either of the two changes may be the one that withdraws the old key of device 7.
    assert!((1..=2).contains(&withdrawn));
    let state = |device| keys.read(|table| table.get(device).map(|listed| listed.state));
    assert_eq!((state(DeviceId(7)), state(DeviceId(8))), (Some(KeyState::Revoked), Some(KeyState::Active)));
    assert!(
        keys.lookup(DeviceId(7), 0).is_none()
            && keys.lookup(DeviceId(7), 1).is_none()
            && keys.lookup(DeviceId(8), 0).is_none()
    );
}
