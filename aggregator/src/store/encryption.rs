//! Encryption of stored updates. Each round has its own key, in a small file that is overwritten and removed
//! when the round is over. Deleted rows stay in the database file for a while, and in backups for ever, but
//! without the key they are unreadable. The encryption does not protect against an attacker who searches the
//! raw disk for the overwritten key, because file systems and flash memory keep copies.
//!
//! A row of updates (see `update_row`) consists of a nonce of 24 bytes and the XChaCha20-Poly1305 encryption of
//! the encoded updates. The associated data are the key of the row, (round, stage, device), so that updates
//! cannot be moved to another row.

use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{Tag, XChaCha20Poly1305, XNonce};
use fedspan_protocol::message::RoundId;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::error::DatabaseError;
use super::round_key_file::RoundKeyStorage;
use crate::keys::Entropy;
use fedspan_engine::DeviceId;

const MAGIC: &[u8; 8] = b"FSPLRND1";
const KEY: usize = 32;
/// Length of a nonce, in bytes.
pub(super) const NONCE: usize = 24;
/// Length of a tag, in bytes.
pub(super) const TAG: usize = 16;
const CHECKSUM: usize = 8;
const ENCODED_LEN: usize = MAGIC.len() + ID + KEY + CHECKSUM;
/// Length of the associated data of a row: a round id and a device number.
const ASSOCIATED: usize = ID + 8;
/// Length of an encoded round id, in bytes.
const ID: usize = 6;
/// Number of nonces that are drawn at once, because each request to the operating system costs a system call.
const NONCES: usize = 64;

/// Encryption with the key of the open round, and storage of the key.
pub(super) struct UpdateCipher {
    storage: Box<dyn RoundKeyStorage>,
    entropy: Box<dyn Entropy>,
    /// Round and key in the storage; `None` until the key is read or written.
    current: Option<(RoundId, XChaCha20Poly1305)>,
    /// Nonces that were drawn and not used.
    nonces: Vec<[u8; NONCE]>,
}

impl UpdateCipher {
    pub(super) fn new(storage: Box<dyn RoundKeyStorage>, entropy: Box<dyn Entropy>) -> Self {
        Self { storage, entropy, current: None, nonces: Vec::new() }
    }

    /// Ensures that a key for the updates of `round` is stored.
    pub(super) fn ensure_key(&mut self, round: RoundId) -> Result<(), DatabaseError> {
        if self.current.as_ref().is_some_and(|(key_round, _)| *key_round == round) {
            return Ok(());
        }
        self.current = match Self::read_key(self.storage.as_ref())? {
            Some((key_round, cipher)) if key_round == round => {
                self.storage.sync().map_err(DatabaseError::RoundKeyFile)?;
                Some((key_round, cipher))
            }
            _ => {
                self.storage.erase().map_err(DatabaseError::RoundKeyFile)?;
                let mut key = Zeroizing::new([0; KEY]);
                self.entropy.fill(key.as_mut_slice()).map_err(|_| DatabaseError::NoEntropy)?;
                self.storage.write(&encode_key_file(round, &key)).map_err(DatabaseError::RoundKeyFile)?;
                Some((round, XChaCha20Poly1305::new((&*key).into())))
            }
        };
        Ok(())
    }

    /// Erases the key of a closed round, so that the updates of that round become unreadable.
    pub(super) fn erase_key(&mut self) -> Result<(), DatabaseError> {
        self.current = None;
        self.storage.erase().map_err(DatabaseError::RoundKeyFile)
    }

    /// Encrypts a row of updates in place: fills in the nonce in its first [`NONCE`] bytes and appends the tag.
    /// `device` is the device of the row's key. [`Self::ensure_key`] must have been called for the same round.
    pub(super) fn seal(
        &mut self,
        round: RoundId,
        device: DeviceId,
        row: &mut Vec<u8>,
    ) -> Result<(), DatabaseError> {
        let nonce = self.nonce()?;
        let current = self.current.as_ref().filter(|(key_round, _)| *key_round == round);
        let (_, cipher) = current.ok_or(DatabaseError::NoEntropy)?;
        let too_long = || DatabaseError::Damaged("updates are too long to be encrypted".to_owned());
        let (target, updates) = row.split_first_chunk_mut::<NONCE>().ok_or_else(too_long)?;
        *target = nonce;
        let tag = cipher
            .encrypt_inout_detached(&XNonce::from(nonce), &associated_data(round, device), updates.into())
            .map_err(|_| too_long())?;
        row.extend_from_slice(&tag);
        Ok(())
    }

    /// Returns a new nonce.
    fn nonce(&mut self) -> Result<[u8; NONCE], DatabaseError> {
        if self.nonces.is_empty() {
            self.nonces.resize(NONCES, [0; NONCE]);
            if self.entropy.fill(self.nonces.as_flattened_mut()).is_err() {
                self.nonces.clear();
            }
        }
        self.nonces.pop().ok_or(DatabaseError::NoEntropy)
    }

    /// Returns a decryptor for the updates of a round.
    ///
    /// # Errors
    /// [`DatabaseError::Key`] if the stored key is missing, damaged or of another round.
    pub(super) fn decryptor(&self, round: RoundId) -> Result<UpdateDecryptor, DatabaseError> {
        match Self::read_key(self.storage.as_ref())? {
            Some((key_round, cipher)) if key_round == round => Ok(UpdateDecryptor { round, cipher }),
            Some((RoundId { round: number, stage }, _)) => Err(DatabaseError::Key(format!(
                "key of round {number}, stage {stage}, but updates of round {}, stage {} are stored",
                round.round, round.stage
            ))),
            None => Err(DatabaseError::Key(format!(
                "missing or damaged, although updates of round {}, stage {} are stored, which only this key decrypts",
                round.round, round.stage
            ))),
        }
    }

    /// Reads the stored key; `None` if there is none, or it is damaged.
    fn read_key(
        storage: &dyn RoundKeyStorage,
    ) -> Result<Option<(RoundId, XChaCha20Poly1305)>, DatabaseError> {
        Ok(storage
            .read()
            .map_err(DatabaseError::RoundKeyFile)?
            .as_deref()
            .and_then(|bytes| decode_key_file(bytes)))
    }
}

impl std::fmt::Debug for UpdateCipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UpdateCipher")
    }
}

/// Decryption of the updates of one round.
pub(super) struct UpdateDecryptor {
    round: RoundId,
    cipher: XChaCha20Poly1305,
}

impl UpdateDecryptor {
    /// Decrypts a row of updates. `device` is the device of the row's key.
    pub(super) fn open(&self, device: DeviceId, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, DatabaseError> {
        let plaintext = sealed.split_first_chunk::<NONCE>().and_then(|(nonce, sealed)| {
            let (ciphertext, tag) = sealed.split_last_chunk::<TAG>()?;
            let mut buffer = Zeroizing::new(ciphertext.to_vec());
            let aad = associated_data(self.round, device);
            let nonce = XNonce::from(*nonce);
            self.cipher
                .decrypt_inout_detached(&nonce, &aad, buffer.as_mut_slice().into(), &Tag::from(*tag))
                .ok()?;
            Some(buffer)
        });
        let decryption_error =
            || DatabaseError::Damaged(format!("round.key does not decrypt the update of device {device}"));
        plaintext.ok_or_else(decryption_error)
    }
}

/// Encodes a round id.
fn encode_round_id(round: RoundId) -> [u8; ID] {
    let ([a, b, c, d], [e, f]) = (round.round.to_le_bytes(), round.stage.to_le_bytes());
    [a, b, c, d, e, f]
}

/// Returns the associated data of a row.
fn associated_data(round: RoundId, device: DeviceId) -> [u8; ASSOCIATED] {
    let mut data = [0; ASSOCIATED];
    let bytes = encode_round_id(round).into_iter().chain(device.0.to_le_bytes());
    data.iter_mut().zip(bytes).for_each(|(target, byte)| *target = byte);
    data
}

/// Encodes a key file.
fn encode_key_file(round: RoundId, key: &[u8; KEY]) -> Zeroizing<Vec<u8>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(ENCODED_LEN));
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&encode_round_id(round));
    bytes.extend_from_slice(key);
    let checksum = Sha256::digest(bytes.as_slice());
    bytes.extend(checksum.iter().take(CHECKSUM));
    bytes
}

/// Decodes a key file; `None` if it is incomplete or damaged.
fn decode_key_file(bytes: &[u8]) -> Option<(RoundId, XChaCha20Poly1305)> {
    let (content, checksum) = bytes.split_last_chunk::<CHECKSUM>()?;
    let (magic, id_and_key) = content.split_first_chunk::<{ MAGIC.len() }>()?;
    let ([a, b, c, d, e, f], key) = id_and_key.split_first_chunk::<ID>()?;
    let key: &[u8; KEY] = key.try_into().ok()?;
    if magic != MAGIC || !Sha256::digest(content).iter().take(CHECKSUM).eq(checksum) {
        return None;
    }
    let (round, stage) = (u32::from_le_bytes([*a, *b, *c, *d]), u16::from_le_bytes([*e, *f]));
    Some((RoundId { round, stage }, XChaCha20Poly1305::new(key.into())))
}
