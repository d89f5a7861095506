//! One thread looks keys up and judges frames, as connections do; another withdraws them, as the operator and the end
//! of a round do.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use fedspan_protocol::secure::Key;
use loom::future::block_on;
use loom::thread;

use super::{AcceptedKey, Entropy, KeyError, KeyTable, ActiveKeys, LookupError, KeyState};
use crate::Check;
use crate::host::commands;
use crate::sync::AtomicBool;

pub(crate) const ALL: &[Check] = &[
    Check { name: "keys: after revoke has returned no frame is taken", program: revoked_is_revoked },
    Check { name: "keys: nor is one that a connection has let through before", program: judged_again },
    Check { name: "keys: what was withdrawn never counts again", program: for_ever },
    Check { name: "keys: who looks sees all of a revocation, or nothing", program: all_or_nothing },
    Check {
        name: "keys: who looks sees all of a round's end, or nothing",
        program: round_closed_beside_lookup,
    },
    Check { name: "keys: a device that rotates has a key at every moment", program: rotation_beside_lookup },
    Check { name: "keys: of two changes both are kept", program: both_are_kept },
];

/// Devices 7 and 8.
const DEVICES: [u64; 2] = [7, 8];

pub(super) struct Zeros;

impl Entropy for Zeros {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), KeyError> {
        bytes.fill(0);
        Ok(())
    }
}

fn table() -> KeyTable {
    let mut table = KeyTable::new();
    for device in DEVICES {
        table.insert(device, Key::new(0, [1; 32]), 1).expect("it has none");
    }
    table
}

/// Both devices have a second key, and the grace of the first lasts.
fn rotating() -> KeyTable {
    let mut table = table();
    table.rotate(&DEVICES, 1, &mut Zeros).expect("they have one key each");
    table
}

pub(super) fn held(keys: &ActiveKeys, device: u64) -> Arc<AcceptedKey> {
    keys.lookup(device, 0).expect("it is accepted")
}

/// Everything that is accepted can be looked up, and everything that can be looked up is accepted.
fn agree(keys: &ActiveKeys, known: &[Arc<AcceptedKey>]) -> Vec<bool> {
    keys.read(|table| {
        let agrees = |key: &Arc<AcceptedKey>| {
            let found = table.lookup(key.device(), key.epoch()).is_ok();
            assert_eq!(found, key.is_accepted(), "device {} epoch {}", key.device(), key.epoch());
            found
        };
        known.iter().map(agrees).collect()
    })
}

fn revoked_is_revoked() {
    let keys = ActiveKeys::new(table());
    let (key, returned) = (held(&keys, 7), Arc::new(AtomicBool::new(false)));
    let operator = thread::spawn({
        let (keys, returned) = (keys.clone(), Arc::clone(&returned));
        move || {
            super::revoke(&keys, 7);
            returned.store(true, Release);
        }
    });
    let after = returned.load(Acquire);
    let (accepted, found) = (key.is_accepted(), keys.lookup(7, 0));
    assert!(!after || !accepted && found.is_none());
    // Whoever has been refused stays so.
    assert!(accepted || found.is_none(), "withdrawn, and found afterwards");
    operator.join().expect("the operator ends");
}

/// A connection judges a frame and hands it on with its key; the host judges again.
fn judged_again() {
    let keys = ActiveKeys::new(table());
    let returned = Arc::new(AtomicBool::new(false));
    let (sender, mut receiver) = commands(1);
    let connection = thread::spawn({
        let keys = keys.clone();
        move || {
            if let Some(key) = keys.lookup(7, 0).filter(|key| key.is_accepted()) {
                assert!(sender.send(key));
            }
        }
    });
    let operator = thread::spawn({
        let (keys, returned) = (keys.clone(), Arc::clone(&returned));
        move || {
            super::revoke(&keys, 7);
            returned.store(true, Release);
        }
    });
    if let Some(key) = block_on(receiver.recv()) {
        let after = returned.load(Acquire);
        assert!(!after || !key.is_accepted());
    }
    connection.join().expect("the connection ends");
    operator.join().expect("the operator ends");
}

/// Also not where the device gets a new key.
fn for_ever() {
    let keys = ActiveKeys::new(table());
    let key = held(&keys, 7);
    let operator = thread::spawn({
        let keys = keys.clone();
        move || {
            super::revoke(&keys, 7);
            let mut table = keys.read(KeyTable::clone);
            table.add(&[7], true, 3, &mut Zeros).expect("it was revoked");
            keys.adopt(table);
        }
    });
    let (new, accepted) = (keys.lookup(7, 1), key.is_accepted());
    assert!(new.is_none() || !accepted, "the new key, and still the old one");
    assert!(accepted || !key.is_accepted(), "withdrawn, and back");
    assert!(accepted || keys.lookup(7, 0).is_none(), "withdrawn, and found");
    operator.join().expect("the operator ends");
    assert!(keys.lookup(7, 1).is_some_and(|key| key.is_accepted()) && !key.is_accepted());
}

fn all_or_nothing() {
    let keys = ActiveKeys::new(rotating());
    let known: Vec<_> =
        DEVICES.iter().flat_map(|&device| [0, 1].map(|epoch| keys.lookup(device, epoch))).flatten().collect();
    assert_eq!(known.len(), 4);
    let operator = thread::spawn({
        let keys = keys.clone();
        move || keys.revoke(&DEVICES, 2).expect("both have keys")
    });
    let found = agree(&keys, &known);
    assert!(found == [true; 4] || found == [false; 4], "{found:?}");
    operator.join().expect("the operator ends");
    assert_eq!(agree(&keys, &known), [false; 4]);
}

fn round_closed_beside_lookup() {
    let keys = ActiveKeys::new(rotating());
    let old = DEVICES.map(|device| held(&keys, device));
    let round = thread::spawn({
        let keys = keys.clone();
        move || assert_eq!(keys.round_closed(), 2)
    });
    let found = agree(&keys, &old);
    assert!(found == [true; 2] || found == [false; 2], "{found:?}");
    match keys.find(7, 0) {
        Ok(_) => assert!(found[0], "gone, and back"),
        Err(refusal) => assert_eq!(refusal, LookupError::Epoch { current: 1 }),
    }
    assert!(keys.lookup(7, 1).is_some_and(|key| key.is_accepted()));
    round.join().expect("the round ends");
    assert_eq!(agree(&keys, &old), [false; 2]);
}

fn rotation_beside_lookup() {
    let keys = ActiveKeys::new(table());
    let operator = thread::spawn({
        let keys = keys.clone();
        move || {
            let mut table = keys.read(KeyTable::clone);
            table.rotate(&[7], 2, &mut Zeros).expect("it has one key");
            keys.adopt(table);
            assert_eq!(keys.round_closed(), 1);
        }
    });
    let accepted =
        || keys.read(|table| [0, 1].map(|epoch| table.lookup(7, epoch).is_ok_and(|key| key.is_accepted())));
    let [before, after] = [accepted(), accepted()];
    for now in [before, after] {
        assert!(now[0] || now[1], "no key at all");
    }
    assert!(after[1] || !before[1], "the new key, and then not");
    assert!(before[0] || !after[0], "the old key is back");
    operator.join().expect("the operator ends");
    assert_eq!(accepted(), [false, true]);
}

/// A revocation while a round closes.
fn both_are_kept() {
    let keys = ActiveKeys::new(rotating());
    let operator = thread::spawn({
        let keys = keys.clone();
        move || super::revoke(&keys, 7)
    });
    let withdrawn = keys.round_closed();
    operator.join().expect("the operator ends");
    // Device 7's old key goes with one or the other.
    assert!((1..=2).contains(&withdrawn));
    let state = |device| keys.read(|table| table.get(device).map(|listed| listed.state));
    assert_eq!((state(7), state(8)), (Some(KeyState::Revoked), Some(KeyState::Active)));
    assert!(keys.lookup(7, 0).is_none() && keys.lookup(7, 1).is_none() && keys.lookup(8, 0).is_none());
}
