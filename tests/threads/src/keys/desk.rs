//! The operator asks for one thing while a round closes, or while another operator asks for something else. The disk is
//! this machine's.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use loom::sync::atomic::AtomicUsize;
use loom::thread::{Builder, JoinHandle};
use tempfile::TempDir;
use zeroize::Zeroizing;

use super::checks::{Zeros, held};
use super::{Argon2Cost, Entropy, SharedKeyStore, KeyError, KeyStore, KeyTable, ActiveKeys, KeyState, Unlock};
use crate::Check;

pub(crate) const ALL: &[Check] = &[
    Check { name: "key store: of two requests both are kept, and written", program: || roomy(both_requests) },
    Check {
        name: "key store: a round's end beside a request, both written",
        program: || roomy(round_closed_beside_request),
    },
    Check {
        name: "key store: a key is written before it can be looked up",
        program: || roomy(written_first),
    },
];

/// Bytes of a thread's stack: files and encryption take more than the checker gives.
const STACK: usize = 1 << 18;

fn spawn(act: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    Builder::new().stack_size(STACK).spawn(act).expect("there are few threads")
}

/// The checker's first thread has no more than the others.
fn roomy(program: fn()) {
    spawn(program).join().expect("it ends");
}

/// Before a file is written a nonce is asked for. The checker sees no files, but this.
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

/// A store of devices 7 and 8, whose first keys are in their grace if they are `rotating`.
fn desk(rotating: bool, nonces: Nonces) -> (TempDir, SharedKeyStore) {
    let directory = tempfile::tempdir().expect("a place for files");
    let path = directory.path().join("keys");
    let mut store = KeyStore::create(&path, &unlock(), Argon2Cost::RECOMMENDED, nonces).expect("there is room");
    store.add(&[7, 8], false, 1).expect("they have none");
    if rotating {
        store.rotate(&[7, 8], 1).expect("they have one each");
    }
    (directory, SharedKeyStore::new(store))
}

fn ask(desk: &SharedKeyStore, request: &str) {
    let answer = desk.answer(request, 2);
    assert!(answer.contains("changed"), "{request}: {}", *answer);
}

/// Devices 7 and 8: which epochs are accepted, and where the device stands.
fn stand(keys: &ActiveKeys) -> [([bool; 2], Option<KeyState>); 2] {
    let of = |table: &KeyTable, device| {
        let accepted = |epoch| table.lookup(device, epoch).is_ok_and(|key| key.is_accepted());
        ([0, 1].map(accepted), table.get(device).map(|listed| listed.state))
    };
    keys.read(|table| [7, 8].map(|device| of(table, device)))
}

/// What a server would know that is started now.
fn written(path: &Path) -> [([bool; 2], Option<KeyState>); 2] {
    stand(&KeyStore::open(path, &unlock(), Zeros).expect("it is whole").keys())
}

fn both_requests() {
    let (directory, desk) = desk(false, Nonces::new());
    let keys = desk.keys();
    let key = held(&keys, 7);
    let operator = spawn({
        let desk = desk.clone();
        move || ask(&desk, "{\"revoke\":[[7,7]]}")
    });
    ask(&desk, "{\"rotate\":{\"these\":[[8,8]]}}");
    operator.join().expect("the operator ends");
    let expected = [([false; 2], Some(KeyState::Revoked)), ([true; 2], Some(KeyState::Rotating))];
    assert!(!key.is_accepted());
    assert_eq!(stand(&keys), expected, "in memory");
    drop(desk);
    assert_eq!(written(&directory.path().join("keys")), expected, "in the file");
}

fn round_closed_beside_request() {
    let (directory, desk) = desk(true, Nonces::new());
    let keys = desk.keys();
    let operator = spawn({
        let desk = desk.clone();
        move || ask(&desk, "{\"add\":{\"devices\":[[9,9]],\"again\":false}}")
    });
    let withdrawn = desk.round_closed().expect("there is room");
    operator.join().expect("the operator ends");
    assert_eq!(withdrawn, 2);
    let expected = [([false, true], Some(KeyState::Active)); 2];
    assert_eq!(stand(&keys), expected, "in memory");
    drop(desk);
    assert_eq!(written(&directory.path().join("keys")), expected, "in the file");
}

/// A device that has heard of its new key can use it whatever becomes of the server.
fn written_first() {
    let nonces = Nonces::new();
    let (directory, desk) = desk(false, nonces.clone());
    let path = directory.path().join("keys");
    let before = std::fs::read(&path).expect("it was written");
    let keys = desk.keys();
    let operator = spawn(move || ask(&desk, "{\"rotate\":{\"these\":[[8,8]]}}"));
    if keys.lookup(8, 1).is_some() {
        nonces.0.load(Acquire);
        assert_ne!(std::fs::read(&path).expect("it is there"), before, "not written yet");
    }
    assert!(keys.lookup(8, 0).is_some(), "its grace lasts");
    operator.join().expect("the operator ends");
}
