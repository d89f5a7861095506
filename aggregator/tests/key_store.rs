//! Tests of the key store file: content, permissions, and every kind of corruption.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use chacha20poly1305::aead::{AeadInOut, KeyInit};
use fedspan_aggregator::keys::{
    Answer, Argon2Cost, Corruption, Derivation, DeviceRange, DeviceSelector, KeyState, KeyStatus, KeyStore,
    KeyStoreError, KeyTextError, LineMistake, Request, Unlock, UnlockError, read_keys,
};
use fedspan_engine::DeviceId;
use fedspan_files::FileError;
use fedspan_protocol::frame::crc32c;
use proptest::prelude::*;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use tempfile::TempDir;
use zeroize::Zeroizing;

/// Lock of tests that start a program (held for writing) or open a store (held for reading). Between fork and
/// exec the new process has copies of this process's open files, and thus holds their locks.
static FORKS: RwLock<()> = RwLock::new(());

const NOW: u64 = 1_700_000_000;
const SECRET: [u8; 32] = [0x5e; 32];
const HEADER: usize = 68;
const ROW: usize = 99;

fn seeded_entropy(seed: u64) -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(seed)
}

fn key_file() -> Unlock {
    Unlock::KeyFile(Zeroizing::new(SECRET))
}

/// Returns the cost of a derivation that takes almost no time.
fn cheap_cost() -> Argon2Cost {
    Argon2Cost::new(64, 1, 1).unwrap()
}

/// Creates a store with a device in every state: 3 active, 5 rotating, 7 revoked, 9 added again.
fn create_filled_store(path: &Path, unlock: &Unlock) -> KeyStore {
    let mut store = KeyStore::create(path, unlock, cheap_cost(), seeded_entropy(1)).unwrap();
    store.add(&[DeviceId(3), DeviceId(5), DeviceId(7), DeviceId(9)], false, NOW).unwrap();
    store.rotate(&[DeviceId(5)], NOW + 1).unwrap();
    store.revoke(&[DeviceId(7), DeviceId(9)], NOW + 2).unwrap();
    store.add(&[DeviceId(9)], true, NOW + 3).unwrap();
    store
}

/// Key store file in a temporary directory.
struct Store {
    directory: TempDir,
    path: PathBuf,
}

impl Store {
    /// Creates a store with [`create_filled_store`], and closes it.
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        drop(create_filled_store(&path, &key_file()));
        Self { directory, path }
    }

    fn read_bytes(&self) -> Vec<u8> {
        std::fs::read(&self.path).unwrap()
    }

    fn open_store(&self) -> Result<KeyStore, KeyStoreError> {
        KeyStore::open(&self.path, &key_file(), seeded_entropy(2))
    }

    /// Returns the corruption that is reported for these bytes.
    fn corruption_of(&self, bytes: &[u8]) -> Corruption {
        // The file is deleted and created again, because overwriting is much slower on some file systems.
        std::fs::remove_file(&self.path).unwrap();
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600).open(&self.path).unwrap().write_all(bytes).unwrap();
        loop {
            match self.open_store() {
                Err(KeyStoreError::Damaged { damage, .. }) => return damage,
                // Another test is starting a program, which holds a copy of the lock until exec.
                Err(KeyStoreError::Locked { .. }) => std::thread::yield_now(),
                unexpected => panic!("{unexpected:?}"),
            }
        }
    }
}

/// Returns the same bytes with a valid checksum, which an attacker can compute.
fn with_valid_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum_start = bytes.len() - 4;
    let check = crc32c(&bytes[..checksum_start]).to_le_bytes();
    bytes[checksum_start..].copy_from_slice(&check);
    bytes
}

fn list_keys(store: &KeyStore) -> Vec<KeyStatus> {
    store.keys().read(|keys_table| keys_table.list().collect())
}

/// Returns all accepted keys: device, epoch, key.
fn accepted_keys(store: &KeyStore) -> Vec<(u64, u16, [u8; 32])> {
    let keys = store.keys();
    let device_epochs = (0..20).flat_map(|device| (0..4).map(move |epoch| (device, epoch)));
    device_epochs
        .filter_map(|(device, epoch)| {
            keys.lookup(DeviceId(device), epoch).map(|key| (device, epoch, *key.key().expose()))
        })
        .collect()
}

#[test]
fn keys_are_read_back_and_not_stored_in_plaintext() {
    let _forks = FORKS.read().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state/keys");
    let store = create_filled_store(&path, &key_file());
    let (rows, keys) = (list_keys(&store), accepted_keys(&store));
    assert_eq!(keys.iter().map(|key| (key.0, key.1)).collect::<Vec<_>>(), [(3, 0), (5, 0), (5, 1), (9, 1)]);
    assert_eq!(
        rows.iter().map(|row| row.state).collect::<Vec<_>>(),
        [KeyState::Active, KeyState::Rotating, KeyState::Revoked, KeyState::Active]
    );
    drop(store);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len(), HEADER + 4 * ROW + 16 + 4);
    for (_, _, key) in &keys {
        assert!(!bytes.windows(8).any(|window| window == &key[..8]));
    }
    let mut store = KeyStore::open(&path, &key_file(), seeded_entropy(2)).unwrap();
    assert_eq!((list_keys(&store), accepted_keys(&store)), (rows, keys));
    // The period in which both keys are accepted survives the restart, and does not return after its end.
    assert_eq!(store.round_closed().unwrap(), 1);
    drop(store);
    let store = KeyStore::open(&path, &key_file(), seeded_entropy(3)).unwrap();
    assert_eq!(
        accepted_keys(&store).iter().map(|key| (key.0, key.1)).collect::<Vec<_>>(),
        [(3, 0), (5, 1), (9, 1)]
    );
    assert!(!format!("{store:?} {:?}", key_file()).contains("94, 94"));
}

/// The file can be read by a reader that follows the tables in KEYS.md, uses a RustCrypto crate, and shares
/// no code with the tested reader.
#[test]
fn file_matches_its_specification() {
    let _forks = FORKS.read().unwrap_or_else(PoisonError::into_inner);
    let store = Store::new();
    let bytes = store.read_bytes();
    assert_eq!(bytes[..12], *b"FEDSPKEY\x01\0\0\0");
    assert_eq!(bytes[12..40], [0; 28], "a store with a key file has a cost or a salt");
    assert_eq!(bytes[64..68], (4 * ROW as u32).to_le_bytes());
    assert_eq!(with_valid_checksum(bytes.clone()), bytes);
    let cipher = chacha20poly1305::XChaCha20Poly1305::new(&SECRET.into());
    let nonce: [u8; 24] = bytes[40..64].try_into().unwrap();
    let mut rows = bytes[68..68 + 4 * ROW].to_vec();
    let tag = &bytes[68 + 4 * ROW..bytes.len() - 4];
    let tag: [u8; 16] = tag.try_into().unwrap();
    cipher
        .decrypt_inout_detached(&nonce.into(), &bytes[..68], rows.as_mut_slice().into(), &tag.into())
        .unwrap();
    let opened = store.open_store().unwrap();
    let key = |device, epoch| *opened.keys().lookup(device, epoch).unwrap().key().expose();
    let row = |device: u64, epoch: u16, accepted: u8, times: [u64; 3], keys: [[u8; 32]; 2]| {
        let mut row = device.to_le_bytes().to_vec();
        row.extend_from_slice(&epoch.to_le_bytes());
        row.push(accepted);
        times.iter().for_each(|time| row.extend_from_slice(&time.to_le_bytes()));
        keys.iter().for_each(|key| row.extend_from_slice(key));
        row
    };
    let (no_key, never) = ([0; 32], u64::MAX);
    let expected = [
        row(3, 0, 1, [NOW, never, never], [key(DeviceId(3), 0), no_key]),
        row(5, 1, 2, [NOW, NOW + 1, never], [key(DeviceId(5), 1), key(DeviceId(5), 0)]),
        row(7, 0, 0, [NOW, never, NOW + 2], [no_key, no_key]),
        row(9, 1, 1, [NOW, NOW + 3, never], [key(DeviceId(9), 1), no_key]),
    ];
    assert_eq!(rows, expected.concat());
}

/// A golden file of version 1 must always open, or be refused because of its version.
/// `FEDSPAN_REGENERATE_KEYS=1` rewrites the file.
#[test]
fn version_1_opens() {
    let _forks = FORKS.read().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys");
    if std::env::var_os("FEDSPAN_REGENERATE_KEYS").is_some_and(|value| value == "1") {
        drop(create_filled_store(&path, &Unlock::passphrase("correct horse").unwrap()));
        std::fs::copy(path, Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/keys-version-1.bin"))
            .unwrap();
        return;
    }
    std::fs::write(&path, include_bytes!("data/keys-version-1.bin")).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(KeyStore::derivation(&path).unwrap(), Some(Derivation::Argon2id(cheap_cost())));
    let unlock = Unlock::passphrase("correct horse").unwrap();
    let store = KeyStore::open(&path, &unlock, seeded_entropy(9)).unwrap();
    let second_directory = tempfile::tempdir().unwrap();
    let path = second_directory.path().join("keys");
    let recreated = create_filled_store(&path, &unlock);
    assert_eq!(
        (list_keys(&store), accepted_keys(&store)),
        (list_keys(&recreated), accepted_keys(&recreated))
    );
    // The same random numbers give the same bytes.
    assert_eq!(std::fs::read(&path).unwrap(), include_bytes!("data/keys-version-1.bin"));
}

/// A key that is being sent survives a restart, and ends its predecessor once the device has used it.
#[test]
fn sent_key_survives_a_restart() {
    let _forks = FORKS.read().unwrap_or_else(PoisonError::into_inner);
    let store = Store::new();
    let mut open_store = store.open_store().unwrap();
    open_store.send(&[DeviceId(3)], NOW + 9).unwrap();
    assert_eq!(store.read_bytes()[8..10], [2, 0]);
    drop(open_store);
    let mut open_store = store.open_store().unwrap();
    let state =
        |store: &KeyStore| list_keys(store).into_iter().find(|row| row.device == DeviceId(3)).unwrap().state;
    assert_eq!(state(&open_store), KeyState::Sending);
    let keys = open_store.keys();
    // The keys of another rotation end with the round, the ones that are sent do not.
    assert_eq!(open_store.round_closed().unwrap(), 1);
    assert!(keys.lookup(DeviceId(3), 0).is_some());
    assert_eq!(keys.key_to_send(DeviceId(3), 0).map(|key| key.epoch()), Some(1));
    assert!(keys.key_to_send(DeviceId(3), 1).is_none() && keys.key_to_send(DeviceId(9), 0).is_none());
    assert_eq!(
        (open_store.sent_key_used(DeviceId(3)).unwrap(), keys.has_used_sent_key(DeviceId(3))),
        (0, false)
    );
    keys.lookup(DeviceId(3), 1).unwrap().mark_used();
    assert!(keys.has_used_sent_key(DeviceId(3)));
    assert_eq!(open_store.sent_key_used(DeviceId(3)).unwrap(), 1);
    assert!(keys.lookup(DeviceId(3), 0).is_none() && !keys.has_used_sent_key(DeviceId(3)));
    // The file is written at the end of the round.
    assert_eq!((store.read_bytes()[8..10].to_vec(), open_store.round_closed().unwrap()), (vec![2, 0], 0));
    assert_eq!((state(&open_store), &store.read_bytes()[8..10]), (KeyState::Active, &[1, 0][..]));
}

#[test]
fn every_write_has_a_fresh_nonce() {
    let _forks = FORKS.read().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys");
    let mut store = create_filled_store(&path, &Unlock::passphrase("correct horse").unwrap());
    let mut nonces = std::collections::BTreeSet::new();
    for device in 100..120 {
        store.add(&[DeviceId(device)], false, NOW).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert!(nonces.insert(bytes[40..64].to_vec()), "a nonce was used twice");
    }
    let other_path = directory.path().join("other");
    drop(
        KeyStore::create(
            &other_path,
            &Unlock::passphrase("correct horse").unwrap(),
            cheap_cost(),
            seeded_entropy(8),
        )
        .unwrap(),
    );
    assert_ne!(
        std::fs::read(&path).unwrap()[24..40],
        std::fs::read(&other_path).unwrap()[24..40],
        "a salt was used twice"
    );
}

#[test]
fn every_truncation_is_an_error() {
    let _forks = FORKS.read().unwrap_or_else(PoisonError::into_inner);
    let store = Store::new();
    let bytes = store.read_bytes();
    for length in 0..bytes.len() {
        let damage = store.corruption_of(&bytes[..length]);
        match length {
            0..HEADER => assert_eq!(damage, Corruption::Truncated { needed: HEADER + 20, got: length }),
            _ => assert_eq!(damage, Corruption::Truncated { needed: bytes.len(), got: length }),
        }
    }
    let with_extra_bytes = [&bytes[..], &[0, 0]].concat();
    assert_eq!(store.corruption_of(&with_extra_bytes), Corruption::Trailing { extra: 2 });
}

/// The checksum detects accidental changes, and the authentication tag detects deliberate ones.
#[test]
fn every_bit_flip_is_an_error() {
    let _forks = FORKS.read().unwrap_or_else(PoisonError::into_inner);
    let store = Store::new();
    let bytes = store.read_bytes();
    for (index, bit) in (0..bytes.len()).flat_map(|index| (0..8).map(move |bit| (index, bit))) {
        let mut flipped = bytes.clone();
        flipped[index] ^= 1 << bit;
        let by_accident = store.corruption_of(&flipped);
        match index {
            0..8 => assert_eq!(by_accident, Corruption::NotKeys),
            8..10 => assert!(matches!(by_accident, Corruption::Version { known: 2, .. })),
            64..HEADER => assert!(!matches!(by_accident, Corruption::Secret { .. })),
            _ => assert!(matches!(by_accident, Corruption::Corrupted { .. }), "{index}: {by_accident}"),
        }
        if index >= bytes.len() - 4 {
            // A flipped bit in the checksum is repaired by a valid checksum.
            continue;
        }
        let on_purpose = store.corruption_of(&with_valid_checksum(flipped));
        match index {
            0..10 | 64..HEADER => {}
            10..40 => assert!(matches!(on_purpose, Corruption::Derivation { .. }), "{index}: {on_purpose}"),
            _ => assert_eq!(on_purpose, Corruption::Secret { passphrase: false }, "{index}"),
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_are_an_error(begin in 0..=68usize, tail in prop::collection::vec(any::<u8>(), 0..800)) {
        thread_local!(static STORE: (Store, Vec<u8>) = {
            let store = Store::new();
            let bytes = store.read_bytes();
            (store, bytes)
        });
        // The first `begin` bytes are those of a key store.
        STORE.with(|(store, bytes)| _ = store.corruption_of(&[&bytes[..begin], &tail].concat()));
    }
}

/// Authentic files with invalid rows are refused. Only a program with the secret can write such files, for
/// example a faulty version.
#[test]
fn authentic_but_invalid_rows_are_refused() {
    let _forks = FORKS.read().unwrap_or_else(PoisonError::into_inner);
    let store = Store::new();
    let row = |device: u64, epoch: u16, accepted: u8, revoked: u64, keys: [u8; 2]| {
        let mut row = device.to_le_bytes().to_vec();
        row.extend_from_slice(&epoch.to_le_bytes());
        row.push(accepted);
        [NOW, u64::MAX, revoked].iter().for_each(|time| row.extend_from_slice(&time.to_le_bytes()));
        keys.iter().for_each(|key| row.extend_from_slice(&[*key; 32]));
        row
    };
    let never = u64::MAX;
    let encrypt_rows = |rows: &[Vec<u8>]| {
        let mut file = store.read_bytes()[..64].to_vec();
        let mut rows = rows.concat();
        file.extend_from_slice(&u32::try_from(rows.len()).unwrap().to_le_bytes());
        let nonce: [u8; 24] = file[40..64].try_into().unwrap();
        let cipher = chacha20poly1305::XChaCha20Poly1305::new(&SECRET.into());
        let tag = cipher.encrypt_inout_detached(&nonce.into(), &file, rows.as_mut_slice().into()).unwrap();
        with_valid_checksum([&file[..], &rows, &tag, &[0; 4]].concat())
    };
    let valid_row = || row(3, 1, 1, never, [1, 0]);
    for (invalid_row, reason) in [
        (row(3, 1, 1, never, [1, 0]), "the same device again"),
        (row(2, 1, 1, never, [1, 0]), "an earlier device"),
        (row(4, 1, 3, never, [1, 1]), "a key that is being sent, in version 1"),
        (row(4, 1, 4, never, [1, 1]), "three keys"),
        (row(4, 1, 0, never, [0, 0]), "no key, and not revoked"),
        (row(4, 1, 0, NOW, [1, 0]), "revoked, with a key"),
        (row(4, 1, 0, NOW, [0, 1]), "revoked, with an old key"),
        (row(4, 1, 1, NOW, [1, 0]), "active, and revoked"),
        (row(4, 1, 1, never, [1, 1]), "active, with an old key"),
        (row(4, 1, 2, NOW, [1, 1]), "rotating, and revoked"),
        (row(4, 0, 2, never, [1, 1]), "rotating to the first epoch"),
    ] {
        assert_eq!(
            store.corruption_of(&encrypt_rows(&[valid_row(), invalid_row])),
            Corruption::Row { row: 1 },
            "{reason}"
        );
    }
    let valid_rows = [valid_row(), row(4, 1, 2, never, [1, 1]), row(5, 0, 0, NOW, [0, 0])];
    std::fs::write(&store.path, encrypt_rows(&valid_rows)).unwrap();
    assert_eq!(list_keys(&store.open_store().unwrap()).len(), 3);
}

#[test]
fn excessive_derivation_is_refused() {
    let _forks = FORKS.read().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys");
    let unlock = Unlock::passphrase("correct horse").unwrap();
    drop(create_filled_store(&path, &unlock));
    let bytes = std::fs::read(&path).unwrap();
    for (memory, passes, lanes) in [
        (u32::MAX, 1, 1),
        ((1 << 20) + 1, 1, 1),
        (1 << 20, 3, 4),
        (64, u32::MAX, 1),
        (64, 1, 17),
        (64, 1, u32::MAX),
        (64, 0, 1),
        (64, 1, 0),
        (7, 1, 1),
        (0, 0, 0),
    ] {
        assert_eq!(Argon2Cost::new(memory, passes, lanes), None);
        let mut hostile = bytes.clone();
        for (offset, value) in [(12, memory), (16, passes), (20, lanes)] {
            hostile[offset..offset + 4].copy_from_slice(&u32::to_le_bytes(value));
        }
        std::fs::write(&path, with_valid_checksum(hostile)).unwrap();
        let error = KeyStore::open(&path, &unlock, seeded_entropy(2)).unwrap_err();
        let expected = Corruption::Derivation { kind: 1, memory, passes, lanes };
        assert!(matches!(error, KeyStoreError::Damaged { damage, .. } if damage == expected), "{error}");
    }
    // A length of `u32::MAX` is refused: it is not a multiple of a row, or exceeds the file.
    let mut hostile = bytes;
    hostile[64..68].copy_from_slice(&u32::MAX.to_le_bytes());
    std::fs::write(&path, with_valid_checksum(hostile)).unwrap();
    assert!(KeyStore::open(&path, &unlock, seeded_entropy(2)).is_err());
    assert!(Argon2Cost::new(1 << 20, 2, 4).is_some());
    assert_eq!(Argon2Cost::new(1 << 16, 3, 4), Some(Argon2Cost::RECOMMENDED));
}

#[test]
fn wrong_secrets_are_distinguished() {
    let _forks = FORKS.read().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let (passphrase_path, key_file_path) = (directory.path().join("words"), directory.path().join("file"));
    let passphrase = |text: &str| Unlock::passphrase(text).unwrap();
    drop(create_filled_store(&passphrase_path, &passphrase("correct horse")));
    drop(create_filled_store(&key_file_path, &key_file()));
    let error = |path: &Path, unlock: &Unlock| {
        KeyStore::open(path, unlock, seeded_entropy(2)).unwrap_err().to_string()
    };
    assert!(error(&passphrase_path, &passphrase("correct house")).contains("wrong passphrase, or"));
    let other_key_file = Unlock::KeyFile(Zeroizing::new([0x5f; 32]));
    assert!(error(&key_file_path, &other_key_file).contains("wrong key file, or"));
    assert!(
        error(&passphrase_path, &key_file()).ends_with("it opens with a passphrase, not with a key file")
    );
    assert!(
        error(&key_file_path, &passphrase("x")).ends_with("it opens with a key file, not with a passphrase")
    );
    // A line end is not part of the passphrase.
    for line_end_variant in ["correct horse\n", "correct horse\r\n"] {
        KeyStore::open(&passphrase_path, &passphrase(line_end_variant), seeded_entropy(2)).unwrap();
    }
    let short_passphrase = KeyStore::create(
        &directory.path().join("new"),
        &passphrase("1234567"),
        cheap_cost(),
        seeded_entropy(1),
    );
    assert!(matches!(short_passphrase, Err(KeyStoreError::ShortPassphrase { bytes: 7 })));
    assert!(matches!(Unlock::passphrase("\n"), Err(UnlockError::Passphrase { bytes: 0 })));
    assert!(matches!(Unlock::passphrase(&"x".repeat(1025)), Err(UnlockError::Passphrase { bytes: 1025 })));
}

#[test]
fn exposed_store_is_refused_with_remedy() {
    let _forks = FORKS.read().unwrap_or_else(PoisonError::into_inner);
    let store = Store::new();
    assert_eq!(std::fs::metadata(&store.path).unwrap().mode() & 0o7777, 0o600);
    for mode in [0o640, 0o604, 0o620, 0o610, 0o644, 0o666, 0o777] {
        std::fs::set_permissions(&store.path, Permissions::from_mode(mode)).unwrap();
        let error = store.open_store().unwrap_err();
        assert!(
            matches!(error, KeyStoreError::File(FileError::Exposed { mode: reported, .. }) if reported == mode)
        );
        assert!(error.to_string().ends_with(&format!("chmod 600 {}", store.path.display())), "{error}");
    }
    for mode in [0o600, 0o400, 0o700] {
        std::fs::set_permissions(&store.path, Permissions::from_mode(mode)).unwrap();
        store.open_store().unwrap();
    }
    // The owner can be changed only if the test runs as root.
    if std::os::unix::fs::chown(&store.path, Some(65_534), None).is_ok() {
        let error = store.open_store().unwrap_err();
        assert!(matches!(error, KeyStoreError::File(FileError::Foreign { owner: 65_534, .. })), "{error}");
    }
}

#[test]
fn special_files_are_refused_at_once() {
    let _forks = FORKS.write().unwrap_or_else(PoisonError::into_inner);
    let store = Store::new();
    let link = store.directory.path().join("link");
    std::os::unix::fs::symlink(&store.path, &link).unwrap();
    let fifo = store.directory.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for path in [&link, &fifo, &store.directory.path().to_owned()] {
        let error = KeyStore::open(path, &key_file(), seeded_entropy(2)).unwrap_err();
        assert!(matches!(error, KeyStoreError::File(FileError::NotRegular { .. })), "{error}");
    }
    let missing =
        KeyStore::open(&store.directory.path().join("none"), &key_file(), seeded_entropy(2)).unwrap_err();
    assert!(matches!(missing, KeyStoreError::Missing { .. }), "{missing}");
    let exists = KeyStore::create(&store.path, &key_file(), cheap_cost(), seeded_entropy(2)).unwrap_err();
    assert!(matches!(exists, KeyStoreError::File(FileError::Exists { .. })), "{exists}");
}

#[test]
fn key_store_admits_one_program() {
    let _forks = FORKS.read().unwrap_or_else(PoisonError::into_inner);
    let store = Store::new();
    let first_handle = store.open_store().unwrap();
    assert!(matches!(store.open_store().unwrap_err(), KeyStoreError::Locked { .. }));
    drop(first_handle);
    std::fs::write(store.directory.path().join("keys.partial"), "half a fi").unwrap();
    let mut second_handle = store.open_store().unwrap();
    second_handle.add(&[DeviceId(100)], false, NOW).unwrap();
    drop(second_handle);
    assert!(store.open_store().unwrap().keys().lookup(DeviceId(100), 0).is_some());
    let files: Vec<_> =
        std::fs::read_dir(store.directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(files.len(), 2, "there are other files than the store and its lock: {files:?}");
}

/// On a full disk, new keys are not accepted before they are saved, and revoked keys stay revoked.
#[test]
fn full_disk_keeps_revocations_and_adds_no_keys() {
    let _forks = FORKS.read().unwrap_or_else(PoisonError::into_inner);
    let store = Store::new();
    let mut open_store = store.open_store().unwrap();
    let state_before = (list_keys(&open_store), store.read_bytes());
    let obstacle = store.directory.path().join("keys.partial");
    std::fs::create_dir(&obstacle).unwrap();
    assert!(matches!(open_store.add(&[DeviceId(50)], false, NOW), Err(KeyStoreError::File(_))));
    assert!(matches!(open_store.rotate(&[DeviceId(3)], NOW), Err(KeyStoreError::File(_))));
    assert_eq!((list_keys(&open_store), store.read_bytes()), state_before);
    let key_in_use = open_store.keys().lookup(DeviceId(3), 0).unwrap();
    let error = open_store.revoke(&[DeviceId(3)], NOW).unwrap_err();
    assert!(matches!(error, KeyStoreError::Unwritten { .. }), "{error}");
    assert!(!key_in_use.is_accepted() && open_store.keys().lookup(DeviceId(3), 0).is_none());
    assert_eq!(store.read_bytes(), state_before.1);
    let rotated_key = open_store.keys().lookup(DeviceId(5), 0).unwrap();
    assert!(matches!(open_store.round_closed(), Err(KeyStoreError::Unwritten { .. })));
    assert!(!rotated_key.is_accepted());
    // The disk works again at the end of the next round, and the file is written.
    std::fs::remove_dir(&obstacle).unwrap();
    assert_eq!(open_store.round_closed().unwrap(), 0);
    drop(open_store);
    let reopened = store.open_store().unwrap();
    assert!(
        reopened.keys().lookup(DeviceId(3), 0).is_none() && reopened.keys().lookup(DeviceId(5), 0).is_none()
    );
}

#[test]
fn round_without_rotation_leaves_file_alone() {
    let _forks = FORKS.read().unwrap_or_else(PoisonError::into_inner);
    let store = Store::new();
    let mut open_store = store.open_store().unwrap();
    assert_eq!(open_store.round_closed().unwrap(), 1);
    let bytes_after = store.read_bytes();
    assert_eq!(open_store.round_closed().unwrap(), 0);
    assert_eq!(store.read_bytes(), bytes_after);
}

/// After the last round, a rotation ends the acceptance of the old key at once.
#[test]
fn rotation_after_last_round_ends_old_key() {
    let _forks = FORKS.read().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys");
    let mut store = create_filled_store(&path, &key_file());
    let device = list_keys(&store).iter().find(|row| row.state == KeyState::Active).unwrap().device;
    let rotate = Request::Rotate(DeviceSelector::These(vec![DeviceRange::from((device, device))]));
    let Answer::Changed(rows) = store.perform(&rotate, 9).unwrap() else { panic!() };
    let (epoch, keys) = (rows[0].epoch, store.keys());
    assert!(rows[0].state == KeyState::Rotating && keys.lookup(device, epoch - 1).is_some());
    store.rounds_over().unwrap();
    assert!(keys.lookup(device, epoch - 1).is_none() && keys.lookup(device, epoch).is_some());
    let Answer::Changed(rows) = store.perform(&rotate, 10).unwrap() else { panic!() };
    assert_eq!((rows[0].state, rows[0].epoch), (KeyState::Active, epoch + 1));
    assert!(keys.lookup(device, epoch).is_none());
    drop(store);
    let store = KeyStore::open(&path, &key_file(), seeded_entropy(5)).unwrap();
    assert!(store.keys().lookup(device, epoch).is_none() && store.keys().lookup(device, epoch + 1).is_some());
}

/// A named pipe that other users can read or write is refused, like a file with these permissions.
#[test]
fn named_pipe_permissions_are_checked() {
    let _forks = FORKS.write().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pipe");
    let status = std::process::Command::new("mkfifo").args(["-m", "666"]).arg(&path).status().unwrap();
    assert!(status.success());
    let writer = {
        let path = path.clone();
        std::thread::spawn(move || std::fs::write(path, b"correct horse battery").is_ok())
    };
    // The pipe is refused before it is opened, so the writer goes on waiting for a reader.
    let error = Unlock::from_passphrase_file(&path).unwrap_err();
    assert!(matches!(error, UnlockError::File(FileError::Exposed { mode: 0o666, .. })), "{error}");
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert!(matches!(Unlock::from_passphrase_file(&path), Ok(Unlock::Passphrase(_))));
    let _ = writer.join();
}

#[test]
fn key_and_passphrase_files_are_checked() {
    let _forks = FORKS.read().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    };
    let hex = "5e".repeat(32);
    for (name, bytes) in [
        ("raw", &SECRET[..]),
        ("hex", hex.as_bytes()),
        ("line", format!("{}\r\n", hex.to_uppercase()).as_bytes()),
    ] {
        let Unlock::KeyFile(key) = Unlock::from_key_file(&write(name, bytes)).unwrap() else { panic!() };
        assert_eq!(*key, SECRET, "{name}");
    }
    let too_long = [b'5'; 65];
    for bytes in [&SECRET[..31], &[&SECRET[..], &[0]].concat(), b"", &hex.as_bytes()[..63], &too_long] {
        let error = Unlock::from_key_file(&write("wrong", bytes)).unwrap_err();
        assert!(
            matches!(error, UnlockError::KeyFile { bytes: length, .. } if length == bytes.len()),
            "{error}"
        );
        assert!(!error.to_string().contains("5e5e"));
    }
    assert!(matches!(
        Unlock::from_key_file(&write("wrong", &[b'5'; 67])),
        Err(UnlockError::File(FileError::TooLong { most: 66, .. }))
    ));
    let Unlock::Passphrase(passphrase) =
        Unlock::from_passphrase_file(&write("words", "grüße \n".as_bytes())).unwrap()
    else {
        panic!()
    };
    assert_eq!(*passphrase, "grüße ".as_bytes());
    assert!(matches!(
        Unlock::from_passphrase_file(&write("latin", b"gr\xfc\xdfe")),
        Err(UnlockError::NotText { .. })
    ));
    let exposed = write("open", &SECRET);
    std::fs::set_permissions(&exposed, Permissions::from_mode(0o644)).unwrap();
    for error in
        [Unlock::from_key_file(&exposed).unwrap_err(), Unlock::from_passphrase_file(&exposed).unwrap_err()]
    {
        assert!(matches!(error, UnlockError::File(FileError::Exposed { mode: 0o644, .. })), "{error}");
    }
    assert!(matches!(
        Unlock::from_key_file(directory.path()),
        Err(UnlockError::File(FileError::NotRegular { .. } | FileError::Foreign { .. }))
    ));
    // The same rules apply to files of `keys export`.
    let lines = write("lines", format!("7 2 {hex}\n").as_bytes());
    assert_eq!(read_keys(&lines).unwrap()[&DeviceId(7)].epoch(), 2);
    std::fs::set_permissions(&lines, Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(read_keys(&lines), Err(KeyTextError::File(FileError::Exposed { .. }))));
    let error = read_keys(&write("lines2", b"7 2\n")).unwrap_err();
    assert!(matches!(error, KeyTextError::Line { line: 1, mistake: LineMistake::Fields, .. }), "{error}");
    assert!(matches!(read_keys(&directory.path().join("none")), Err(KeyTextError::Missing { .. })));
}
