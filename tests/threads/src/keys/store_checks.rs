//! Model checks of the key store: a request of the operator during the end of a round, or during another
//! request. The files are on a real disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use loom::sync::atomic::AtomicUsize;
use loom::thread::{Builder, JoinHandle};
use tempfile::TempDir;
use zeroize::Zeroizing;

use super::checks::{Zeros, accepted_key};
use super::{
    ActiveKeys, Argon2Cost, Entropy, KeyError, KeyState, KeyStore, KeyTable, SharedKeyStore, Unlock,
};
use crate::Check;
use crate::device_id::DeviceId;

/// All checks of the key store.
pub(crate) const ALL: &[Check] = &[
    Check {
        name: "key store: two requests are both kept and written",
        program: || with_large_stack(concurrent_requests),
    },
    Check {
        name: "key store: a round's end and a request are both written",
        program: || with_large_stack(round_closed_beside_request),
    },
    Check {
        name: "key store: a key is written before a lookup can find it",
        program: || with_large_stack(key_is_written_first),
    },
];

/// Stack size of a thread, in bytes. File access and encryption need more than loom's default.
const STACK: usize = 1 << 18;

fn spawn_with_large_stack(program: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    Builder::new().stack_size(STACK).spawn(program).expect("loom allows another thread")
}

/// Runs a program in a thread with a large stack, because loom's first thread has a small stack.
fn with_large_stack(program: fn()) {
    spawn_with_large_stack(program).join().expect("the program ends");
}

/// Source of nonces that counts them with an atomic. The store draws a nonce before it writes a file, so loom
/// can order this operation although it cannot observe the file.
#[derive(Clone)]
struct Nonces(Arc<AtomicUsize>);

impl Nonces {
    fn new() -> Self {
        Self(Arc::new(AtomicUsize::new(0)))
    }
}

impl Entropy for Nonces {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), KeyError> {
        self.0.fetch_add(1, Release);
        bytes.fill(0);
        Ok(())
    }
}

fn unlock() -> Unlock {
    Unlock::KeyFile(Zeroizing::new([7; 32]))
}

/// Creates a store of the devices 7 and 8. If `rotating`, each device has two keys, during the grace period
/// of the first key (it is accepted until a round closes).
fn key_store(rotating: bool, nonces: Nonces) -> (TempDir, SharedKeyStore) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("keys");
    let mut store =
        KeyStore::create(&path, &unlock(), Argon2Cost::RECOMMENDED, nonces).expect("the store is created");
    store.add(&[DeviceId(7), DeviceId(8)], false, 1).expect("the devices have no keys yet");
    if rotating {
        store.rotate(&[DeviceId(7), DeviceId(8)], 1).expect("both devices have one key");
    }
    (directory, SharedKeyStore::new(store))
}

fn request_change(key_store: &SharedKeyStore, request: &str) {
    let answer = key_store.answer(request, 2);
    assert!(answer.contains("changed"), "{request}: {}", *answer);
}

/// Returns the accepted epochs and the state of the devices 7 and 8.
fn states(keys: &ActiveKeys) -> [([bool; 2], Option<KeyState>); 2] {
    let state_of = |table: &KeyTable, device| {
        let accepted = |epoch| table.lookup(device, epoch).is_ok_and(|key| key.is_accepted());
        ([0, 1].map(accepted), table.get(device).map(|listed| listed.state))
    };
    keys.read(|table| [7, 8].map(|device| state_of(table, DeviceId(device))))
}

/// Returns the same states, read from the file by a newly opened store.
fn states_in_file(path: &Path) -> [([bool; 2], Option<KeyState>); 2] {
    states(&KeyStore::open(path, &unlock(), Zeros).expect("the file is valid").keys())
}

/// Checks two concurrent requests: both must be kept in memory and in the file.
fn concurrent_requests() {
    let (directory, key_store) = key_store(false, Nonces::new());
    let keys = key_store.keys();
    let key = accepted_key(&keys, DeviceId(7));
    let operator = spawn_with_large_stack({
        let key_store = key_store.clone();
        move || request_change(&key_store, "{\"revoke\":[[7,7]]}")
    });
    request_change(&key_store, "{\"rotate\":{\"these\":[[8,8]]}}");
    operator.join().expect("the operator ends");
    let expected = [([false; 2], Some(KeyState::Revoked)), ([true; 2], Some(KeyState::Rotating))];
    assert!(!key.is_accepted());
    assert_eq!(states(&keys), expected, "the keys in memory differ");
    drop(key_store);
    assert_eq!(states_in_file(&directory.path().join("keys")), expected, "the keys in the file differ");
}

/// Checks the end of a round during a request: both must be kept in memory and in the file.
fn round_closed_beside_request() {
    let (directory, key_store) = key_store(true, Nonces::new());
    let keys = key_store.keys();
    let operator = spawn_with_large_stack({
        let key_store = key_store.clone();
        move || request_change(&key_store, "{\"add\":{\"devices\":[[9,9]],\"again\":false}}")
    });
    let withdrawn = key_store.round_closed().expect("the file is written");
    operator.join().expect("the operator ends");
    assert_eq!(withdrawn, 2);
    let expected = [([false, true], Some(KeyState::Active)); 2];
    assert_eq!(states(&keys), expected, "the keys in memory differ");
    drop(key_store);
    assert_eq!(states_in_file(&directory.path().join("keys")), expected, "the keys in the file differ");
}

/// Checks that a key is written before a lookup can find it. A device that has received its new key can then
/// use it even after a crash of the server.
fn key_is_written_first() {
    let nonces = Nonces::new();
    let (directory, key_store) = key_store(false, nonces.clone());
    let path = directory.path().join("keys");
    let original_file = std::fs::read(&path).expect("the file exists");
    let keys = key_store.keys();
    let operator =
        spawn_with_large_stack(move || request_change(&key_store, "{\"rotate\":{\"these\":[[8,8]]}}"));
    if keys.lookup(DeviceId(8), 1).is_some() {
        nonces.0.load(Acquire);
        assert_ne!(
            std::fs::read(&path).expect("the file exists"),
            original_file,
            "the new key can be found but is not in the file"
        );
    }
    assert!(keys.lookup(DeviceId(8), 0).is_some(), "the old key was rejected during its grace period");
    operator.join().expect("the operator ends");
}
