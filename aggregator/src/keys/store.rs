//! Key store of a server: the key table, its encrypted file, and a lock that excludes a second writer.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use zeroize::Zeroizing;

use super::binary_format::{self, Envelope, FILE_MAX};
use super::corruption::Corruption;
use super::request::{Answer, Request};
use super::text_format;
use super::unlock::{Argon2Cost, Derivation, PASSPHRASE_MIN, Secret, Unlock};
use super::{ActiveKeys, Entropy, KeyError, KeyTable};
use crate::sync::Mutex;
use fedspan_engine::DeviceId;
use fedspan_files::{FileError, FileLock, private_file};

/// Reason why a key store cannot be used, or a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyStoreError {
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The operation was refused and changed nothing.
    #[error(transparent)]
    Refused(#[from] KeyError),
    /// The key store does not exist.
    #[error("{}: no key store; create one with `keys add`", path.display())]
    Missing {
        /// Path of the missing file.
        path: PathBuf,
    },
    /// A server or another command uses the key store.
    #[error("{}: a server or another command is using this key store", path.display())]
    Locked {
        /// Path of the key store.
        path: PathBuf,
    },
    /// The file cannot be decoded or decrypted.
    #[error("{}: {damage}", path.display())]
    Damaged {
        /// Path of the key store.
        path: PathBuf,
        /// Kind of corruption.
        damage: Corruption,
    },
    /// A key file was given for a store that a passphrase opens, or the reverse.
    #[error("{}: it opens with a {}", path.display(), if *.passphrase { "passphrase, not with a key file" } else { "key file, not with a passphrase" })]
    OtherKind {
        /// Path of the key store.
        path: PathBuf,
        /// Whether a passphrase opens the store; otherwise a key file does.
        passphrase: bool,
    },
    /// The passphrase of a new store is too short.
    #[error("found a passphrase of {bytes} bytes, allowed for a new key store: {PASSPHRASE_MIN} or more")]
    ShortPassphrase {
        /// Length of the passphrase in bytes.
        bytes: usize,
    },
    /// The keys were revoked in memory, but the file could not be written.
    #[error(
        "keys were revoked in memory but the key store could not be saved, so a restart would accept them again; repeat the command: {error}"
    )]
    Unwritten {
        /// Error of the write.
        error: Box<KeyStoreError>,
    },
}

impl KeyStoreError {
    /// Returns true if the file contains the change in spite of the error.
    fn is_in_place(&self) -> bool {
        matches!(self, Self::File(FileError::NotDurable { .. }))
    }
}

/// Open key store. Every change is immediately visible through the handles that [`Self::keys`] returns.
pub struct KeyStore {
    path: PathBuf,
    secret: Secret,
    keys: ActiveKeys,
    entropy: Box<dyn Entropy>,
    /// Whether the file may contain revoked keys, or may do so after a power cut.
    unwritten: bool,
    /// Whether training is over. Rotations then revoke the previous key at once, because no further
    /// round would do so.
    rounds_over: bool,
    sync: private_file::Sync,
    /// Lock on the file.
    _lock: FileLock,
}

impl KeyStore {
    /// Returns the key derivation of the store at `path`; `None` if there is no store.
    ///
    /// # Errors
    /// [`KeyStoreError::File`] if the file cannot be read, [`Damaged`](KeyStoreError::Damaged) if it is
    /// corrupt.
    pub fn derivation(path: &Path) -> Result<Option<Derivation>, KeyStoreError> {
        let Some(bytes) = private_file::read(path, FILE_MAX)? else { return Ok(None) };
        let envelope = Envelope::parse(&bytes).map_err(damaged_at(path))?;
        Ok(Some(envelope.derivation))
    }

    /// Opens the store at `path` exclusively. New keys, salts and nonces are drawn from `entropy`.
    ///
    /// # Errors
    /// [`KeyStoreError`]: [`Missing`](KeyStoreError::Missing), [`Locked`](KeyStoreError::Locked),
    /// [`OtherKind`](KeyStoreError::OtherKind), [`Damaged`](KeyStoreError::Damaged) (also for a wrong
    /// passphrase) and [`File`](KeyStoreError::File) (also for a file that other users can read).
    pub fn open(
        path: &Path,
        unlock: &Unlock,
        entropy: impl Entropy + 'static,
    ) -> Result<Self, KeyStoreError> {
        let missing_error = || KeyStoreError::Missing { path: path.to_owned() };
        // Checked before locking, so that no lock file is created next to a missing store.
        if private_file::read(path, FILE_MAX)?.is_none() {
            return Err(missing_error());
        }
        let lock = acquire_lock(path)?;
        let bytes = private_file::read(path, FILE_MAX)?.ok_or_else(missing_error)?;
        let envelope = Envelope::parse(&bytes).map_err(damaged_at(path))?;
        let Some(secret) = Secret::derive(unlock, envelope.derivation, envelope.salt) else {
            let passphrase = matches!(envelope.derivation, Derivation::Argon2id(_));
            return Err(KeyStoreError::OtherKind { path: path.to_owned(), passphrase });
        };
        let keys = ActiveKeys::new(envelope.open(&secret).map_err(damaged_at(path))?);
        // The process that replaced the file may have ended before the directory was synced.
        let is_volatile = private_file::sync_directory(path).is_err();
        keys.set_volatile(is_volatile);
        let path = path.to_owned();
        Ok(Self {
            path,
            secret,
            keys,
            entropy: Box::new(entropy),
            unwritten: is_volatile,
            rounds_over: false,
            sync: private_file::sync_directory,
            _lock: lock,
        })
    }

    /// Creates an empty store at `path`, and the directory if necessary. `cost` is the cost of one key
    /// derivation from a passphrase.
    ///
    /// # Errors
    /// [`KeyStoreError`]: [`FileError::Exists`], [`Locked`](KeyStoreError::Locked),
    /// [`ShortPassphrase`](KeyStoreError::ShortPassphrase), and [`File`](KeyStoreError::File).
    pub fn create(
        path: &Path,
        unlock: &Unlock,
        cost: Argon2Cost,
        mut entropy: impl Entropy + 'static,
    ) -> Result<Self, KeyStoreError> {
        match unlock {
            Unlock::Passphrase(passphrase) if passphrase.len() < PASSPHRASE_MIN => {
                return Err(KeyStoreError::ShortPassphrase { bytes: passphrase.len() });
            }
            _ => {}
        }
        private_file::make_directory(path)?;
        let lock = acquire_lock(path)?;
        if path.symlink_metadata().is_ok() {
            return Err(FileError::Exists { path: path.to_owned() }.into());
        }
        let secret = Secret::generate(unlock, cost, &mut entropy)?;
        let (path, entropy) = (path.to_owned(), Box::new(entropy));
        let mut store = Self {
            path,
            secret,
            keys: ActiveKeys::default(),
            entropy,
            unwritten: false,
            rounds_over: false,
            sync: private_file::sync_directory,
            _lock: lock,
        };
        store.write(&KeyTable::new())?;
        Ok(store)
    }

    /// Returns the keys, for connections.
    #[must_use]
    pub fn keys(&self) -> ActiveKeys {
        self.keys.clone()
    }

    /// Adds keys as [`KeyTable::add`] does. The keys are durable when the call returns.
    ///
    /// # Errors
    /// [`KeyStoreError::Refused`] or [`File`](KeyStoreError::File). An error changes nothing, except for
    /// [`FileError::NotDurable`].
    pub fn add(&mut self, devices: &[DeviceId], again: bool, now: u64) -> Result<(), KeyStoreError> {
        let mut table = self.keys.read(KeyTable::clone);
        table.add(devices, again, now, &mut *self.entropy)?;
        self.replace_table(table)
    }

    /// Rotates keys as [`KeyTable::rotate`] does. The new keys are durable when the call returns.
    ///
    /// # Errors
    /// [`KeyStoreError::Refused`] or [`File`](KeyStoreError::File). An error changes nothing, except for
    /// [`FileError::NotDurable`].
    pub fn rotate(&mut self, devices: &[DeviceId], now: u64) -> Result<(), KeyStoreError> {
        let mut table = self.keys.read(KeyTable::clone);
        table.rotate(devices, now, &mut *self.entropy)?;
        self.replace_table(table)
    }

    /// Replaces keys as [`KeyTable::send`] does. The new keys are durable when the call returns.
    ///
    /// # Errors
    /// Same as [`Self::rotate`]. After [`FileError::NotDurable`] no key is sent until the file has been written again
    /// and is durable: when a round closes, or by the next request.
    pub fn send(&mut self, devices: &[DeviceId], now: u64) -> Result<(), KeyStoreError> {
        let mut table = self.keys.read(KeyTable::clone);
        table.send(devices, now, &mut *self.entropy)?;
        self.replace_table(table)
    }

    /// Revokes keys as [`KeyTable::revoke`] does. Connections then reject frames under these keys, even if
    /// writing the file fails.
    ///
    /// # Errors
    /// [`KeyStoreError::Refused`]; [`Unwritten`](KeyStoreError::Unwritten) if the file still contains the
    /// revoked keys; [`FileError::NotDurable`] if the file may contain the revoked keys after a power cut.
    /// The next operation writes the file again.
    pub fn revoke(&mut self, devices: &[DeviceId], now: u64) -> Result<(), KeyStoreError> {
        self.keys.revoke(devices, now)?;
        self.save_revocation()
    }

    /// Revokes replaced keys as [`KeyTable::round_closed`] does, writes the file if a key was revoked, and
    /// returns the number of revoked keys.
    ///
    /// # Errors
    /// [`KeyStoreError::Unwritten`] and [`FileError::NotDurable`], as for [`Self::revoke`].
    pub fn round_closed(&mut self) -> Result<usize, KeyStoreError> {
        let count = self.keys.round_closed();
        if count > 0 || self.unwritten {
            self.save_revocation()?;
        }
        Ok(count)
    }

    /// Revokes a key as [`KeyTable::sent_key_used`] does. The file is written at the end of the round, or now if training is over: until
    /// then, a restart accepts the previous key again until the device has used the new one.
    ///
    /// # Errors
    /// Same as [`Self::round_closed`].
    pub fn sent_key_used(&mut self, device: DeviceId) -> Result<usize, KeyStoreError> {
        let is_revoked = self.keys.sent_key_used(device);
        self.unwritten |= is_revoked;
        if is_revoked && self.rounds_over {
            self.save_revocation()?;
        }
        Ok(is_revoked.into())
    }

    /// Records that no further round will close: revokes replaced keys, and lets later rotations in
    /// [`Self::perform`] revoke the replaced key at once.
    ///
    /// # Errors
    /// Same as [`Self::round_closed`].
    pub fn rounds_over(&mut self) -> Result<usize, KeyStoreError> {
        self.rounds_over = true;
        self.round_closed()
    }

    /// Performs a request of the command line or the control socket.
    ///
    /// # Errors
    /// [`KeyStoreError`], as for the operation.
    pub fn perform(&mut self, request: &Request, now: u64) -> Result<Answer, KeyStoreError> {
        let devices = self.keys.read(|table| request.devices(table))?;
        // After training no round closes that would write the file again. Without it no key is sent.
        if self.unwritten && matches!(request, Request::Send(_)) {
            self.save_revocation()?;
        }
        match request {
            Request::Add { again, .. } => self.add(&devices, *again, now)?,
            Request::Rotate(_) => {
                let rotated = self.rotate(&devices, now);
                if self.rounds_over && rotated.as_ref().err().is_none_or(KeyStoreError::is_in_place) {
                    self.round_closed()?;
                }
                rotated?;
            }
            Request::Send(_) => self.send(&devices, now)?,
            Request::Revoke(_) => self.revoke(&devices, now)?,
            Request::List => return Ok(Answer::Listed(self.keys.read(|table| table.list().collect()))),
            Request::Export(_) => {
                let keys = self.keys.read(|table| table.export(&devices))?;
                return Ok(Answer::Exported(text_format::write(
                    keys.iter().map(|key| (key.device(), key.key())),
                )));
            }
        }
        let rows = |table: &KeyTable| devices.iter().filter_map(|device| table.get(*device)).collect();
        Ok(Answer::Changed(self.keys.read(rows)))
    }

    /// Replaces the table after the file was written, because a key must be durable before it is used.
    fn replace_table(&mut self, table: KeyTable) -> Result<(), KeyStoreError> {
        let written = self.write(&table);
        if written.as_ref().err().is_none_or(KeyStoreError::is_in_place) {
            self.keys.replace_table(table);
        }
        written
    }

    /// Writes the file after keys have been revoked in memory.
    fn save_revocation(&mut self) -> Result<(), KeyStoreError> {
        self.unwritten = true;
        let table = self.keys.read(KeyTable::clone);
        self.write(&table).map_err(|error| match error.is_in_place() {
            true => error,
            false => KeyStoreError::Unwritten { error: Box::new(error) },
        })
    }

    /// Encrypts a table and replaces the file.
    fn write(&mut self, table: &KeyTable) -> Result<(), KeyStoreError> {
        let mut nonce = [0; 24];
        self.entropy.fill(&mut nonce)?;
        let bytes = binary_format::seal(table, &self.secret, nonce).map_err(damaged_at(&self.path))?;
        let replaced = private_file::replace(&self.path, &bytes, self.sync).map_err(KeyStoreError::from);
        match &replaced {
            Ok(()) => {
                self.unwritten = false;
                self.keys.set_volatile(false);
            }
            Err(error) if error.is_in_place() => {
                self.unwritten = true;
                self.keys.set_volatile(true);
            }
            Err(_) => {}
        }
        replaced
    }
}

impl std::fmt::Debug for KeyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let devices = self.keys.read(KeyTable::len);
        f.debug_struct("KeyStore")
            .field("path", &self.path)
            .field("devices", &devices)
            .finish_non_exhaustive()
    }
}

/// Returns a function that adds the path to a corruption.
fn damaged_at(path: &Path) -> impl Fn(Corruption) -> KeyStoreError {
    move |damage| KeyStoreError::Damaged { path: path.to_owned(), damage }
}

/// Locks a key store.
///
/// # Errors
/// [`KeyStoreError::Locked`] if another process holds the lock.
fn acquire_lock(path: &Path) -> Result<FileLock, KeyStoreError> {
    private_file::lock(path)?.ok_or_else(|| KeyStoreError::Locked { path: path.to_owned() })
}

/// Key store shared by the control socket and the server core.
#[derive(Clone, Debug)]
pub struct SharedKeyStore {
    keys: ActiveKeys,
    store: Arc<Mutex<KeyStore>>,
}

impl SharedKeyStore {
    /// Creates a shared key store.
    #[must_use]
    pub fn new(store: KeyStore) -> Self {
        Self { keys: store.keys(), store: Arc::new(Mutex::new(store)) }
    }

    /// Returns the keys, for connections.
    #[must_use]
    pub fn keys(&self) -> ActiveKeys {
        self.keys.clone()
    }

    /// Revokes replaced keys as [`KeyStore::round_closed`] does. Waits for the disk only if the file must be
    /// written.
    ///
    /// # Errors
    /// Same as [`KeyStore::round_closed`]; the campaign can continue.
    pub fn round_closed(&self) -> Result<usize, KeyStoreError> {
        self.with_store(KeyStore::round_closed)
    }

    /// Revokes a key as [`KeyStore::sent_key_used`] does.
    ///
    /// # Errors
    /// Same as [`KeyStore::sent_key_used`].
    pub fn sent_key_used(&self, device: DeviceId) -> Result<usize, KeyStoreError> {
        self.with_store(|store| store.sent_key_used(device))
    }

    /// Records the end of training as [`KeyStore::rounds_over`] does.
    ///
    /// # Errors
    /// Same as [`KeyStore::rounds_over`].
    pub fn rounds_over(&self) -> Result<usize, KeyStoreError> {
        self.with_store(KeyStore::rounds_over)
    }

    /// Performs a request of the control socket. Request and answer are lines of JSON. Waits for the disk.
    #[must_use]
    pub fn answer(&self, request: &str, now: u64) -> Zeroizing<String> {
        let answer = match serde_json::from_str::<Request>(request) {
            Ok(request) => self.with_store(|store| store.perform(&request, now)).map_err(|e| e.to_string()),
            Err(error) => Err(format!("malformed request: {error}")),
        };
        answer.unwrap_or_else(Answer::Error).to_line()
    }

    /// Calls `operation` with the locked store.
    fn with_store<T>(&self, operation: impl FnOnce(&mut KeyStore) -> T) -> T {
        // The lock may be poisoned: after a panic, either memory and file agree or `unwritten` is set.
        operation(&mut self.store.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rand_chacha::ChaCha20Rng;
    use rand_core::SeedableRng;

    use super::*;
    use crate::keys::DeviceSelector;

    fn entropy() -> ChaCha20Rng {
        ChaCha20Rng::seed_from_u64(1)
    }

    fn full_disk(_: &Path) -> std::io::Result<()> {
        Err(std::io::Error::other("no space"))
    }

    type Step = fn(&mut KeyStore) -> Result<(), KeyStoreError>;

    /// If only the sync of the directory fails, the change is in memory and in the file, and the error says
    /// so.
    #[test]
    fn unsynced_change_is_in_place_and_reported() {
        let directory = tempfile::tempdir().unwrap();
        let (path, unlock) = (directory.path().join("keys"), Unlock::KeyFile(Zeroizing::new([7; 32])));
        let mut store = KeyStore::create(&path, &unlock, Argon2Cost::RECOMMENDED, entropy()).unwrap();
        let rows = |store: &KeyStore| store.keys().read(|table| table.list().collect::<Vec<_>>());
        let steps: [(&str, Step); 4] = [
            ("add", |store| store.add(&[DeviceId(1), DeviceId(2)], false, 1)),
            ("rotate", |store| store.rotate(&[DeviceId(1)], 2)),
            ("revoke", |store| store.revoke(&[DeviceId(2)], 3)),
            ("the end of a round", |store| store.round_closed().map(|_| ())),
        ];
        for (name, step) in steps {
            let rows_before = rows(&store);
            store.sync = full_disk;
            let message = step(&mut store).unwrap_err().to_string();
            assert!(
                message.contains("the change is in place, but may not survive a power cut"),
                "{name}: {message}"
            );
            assert!(
                message.contains("no space") && !message.contains("could not be saved"),
                "{name}: {message}"
            );
            let rows_after = rows(&store);
            assert_ne!(rows_after, rows_before, "{name}");
            assert!(store.unwritten, "{name}: the store will not be written again");
            drop(store);
            store = KeyStore::open(&path, &unlock, entropy()).unwrap();
            assert_eq!(rows(&store), rows_after, "{name}");
        }
        store.sync = full_disk;
        store.revoke(&[DeviceId(1)], 4).unwrap_err();
        store.sync = private_file::sync_directory;
        store.round_closed().unwrap();
        assert!(!store.unwritten);
    }

    /// A key is sent only once the file that holds it survives a power cut.
    #[test]
    fn new_key_is_sent_only_when_durable() {
        let directory = tempfile::tempdir().unwrap();
        let (path, unlock) = (directory.path().join("keys"), Unlock::KeyFile(Zeroizing::new([7; 32])));
        let mut store = KeyStore::create(&path, &unlock, Argon2Cost::RECOMMENDED, entropy()).unwrap();
        let (device, keys) = (DeviceId(1), store.keys());
        store.add(&[device], false, 1).unwrap();
        let epoch = keys.keys_of(device)[0].epoch();
        store.sync = full_disk;
        store.send(&[device], 2).unwrap_err();
        assert!(keys.key_to_send(device, epoch).is_none(), "a key was sent that a power cut would lose");
        store.perform(&Request::Send(DeviceSelector::All), 3).unwrap_err();
        assert!(keys.key_to_send(device, epoch).is_none());
        store.round_closed().unwrap_err();
        assert!(keys.key_to_send(device, epoch).is_none());
        store.sync = private_file::sync_directory;
        store.round_closed().unwrap();
        let sent = keys.key_to_send(device, epoch).unwrap().epoch();
        drop(store);
        // The file of the sync that failed is synced when it is opened.
        let store = KeyStore::open(&path, &unlock, entropy()).unwrap();
        assert!(store.keys().is_durable());
        assert_eq!(store.keys().key_to_send(device, epoch).unwrap().epoch(), sent);
    }
}
