//! Unlocking of a key store: the passphrase or key file, and the derivation of the encryption key.

use std::fmt;
use std::path::Path;

use argon2::{Algorithm, Argon2, Params, Version};
use zeroize::Zeroizing;

use fedspan_files::hex;
use fedspan_files::{FileError, private_file};

use super::{Entropy, KeyError};

/// Length of the key in a key file, in bytes.
const KEY_FILE: usize = 32;

/// Length of the longest key file, in bytes: hexadecimal digits and a line end.
const KEY_FILE_MAX: usize = 2 * KEY_FILE + 2;

/// Longest passphrase, in bytes.
const PASSPHRASE_MAX: usize = 1024;

/// Shortest passphrase of a new key store, in bytes (NIST SP 800-63B requires 8 characters).
pub const PASSPHRASE_MIN: usize = 8;

/// Length of a salt, in bytes.
pub(super) const SALT: usize = 16;

/// Secret that opens a key store.
pub enum Unlock {
    /// Passphrase, from which Argon2id derives the key.
    Passphrase(Zeroizing<Vec<u8>>),
    /// Key from a key file.
    KeyFile(Zeroizing<[u8; KEY_FILE]>),
}

impl Unlock {
    /// Creates the secret from a passphrase; a line end is removed.
    ///
    /// # Errors
    /// [`UnlockError::Passphrase`] if the passphrase is empty or too long.
    pub fn passphrase(text: &str) -> Result<Self, UnlockError> {
        let passphrase = text.strip_suffix('\n').map_or(text, |line| line.strip_suffix('\r').unwrap_or(line));
        match passphrase.len() {
            1..=PASSPHRASE_MAX => Ok(Self::Passphrase(Zeroizing::new(passphrase.as_bytes().to_vec()))),
            bytes => Err(UnlockError::Passphrase { bytes }),
        }
    }

    /// Reads a passphrase from a pipe or from a file that only its owner can read.
    ///
    /// # Errors
    /// [`UnlockError`] if the file cannot be read, other users can read it, or it contains no passphrase.
    pub fn from_passphrase_file(path: &Path) -> Result<Self, UnlockError> {
        let bytes = private_file::read_secret(path, PASSPHRASE_MAX + 2)?;
        let passphrase =
            std::str::from_utf8(&bytes).map_err(|_| UnlockError::NotText { path: path.into() })?;
        Self::passphrase(passphrase)
    }

    /// Reads a key of 32 bytes, or of 64 hexadecimal digits, from a pipe or from a file that only its owner
    /// can read.
    ///
    /// # Errors
    /// [`UnlockError`] if the file cannot be read, other users can read it, or it contains no key.
    pub fn from_key_file(path: &Path) -> Result<Self, UnlockError> {
        let bytes = private_file::read_secret(path, KEY_FILE_MAX)?;
        let raw: Result<[u8; KEY_FILE], _> = bytes.as_slice().try_into();
        let from_hex = || std::str::from_utf8(&bytes).ok().map(str::trim_ascii_end).and_then(hex::decode);
        let key = raw.ok().map(Zeroizing::new).or_else(from_hex);
        key.map(Self::KeyFile).ok_or_else(|| UnlockError::KeyFile { path: path.into(), bytes: bytes.len() })
    }
}

impl fmt::Debug for Unlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Passphrase(_) => "Passphrase(secret)",
            Self::KeyFile(_) => "KeyFile(secret)",
        })
    }
}

/// Reason why a passphrase or key file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnlockError {
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The passphrase is empty or too long.
    #[error("found a passphrase of {bytes} bytes, allowed: 1 to {PASSPHRASE_MAX}")]
    Passphrase {
        /// Length of the passphrase, in bytes.
        bytes: usize,
    },
    /// The passphrase is not UTF-8.
    #[error("{}: a passphrase is one line of text", path.display())]
    NotText {
        /// Path of the file.
        path: std::path::PathBuf,
    },
    /// The file does not contain a key.
    #[error(
        "{}: found {bytes} bytes, allowed for a key file: {KEY_FILE} random bytes or {} hexadecimal digits",
        path.display(), 2 * KEY_FILE
    )]
    KeyFile {
        /// Path of the file.
        path: std::path::PathBuf,
        /// Number of bytes that were read from the file.
        bytes: usize,
    },
}

/// Cost of one Argon2id derivation, and thus of one guess at a passphrase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argon2Cost {
    memory: u32,
    passes: u32,
    lanes: u32,
}

impl Argon2Cost {
    /// Second recommended option of RFC 9106, section 4: 64 MiB, 3 passes, 4 lanes.
    pub const RECOMMENDED: Self = Self { memory: 1 << 16, passes: 3, lanes: 4 };

    /// Creates a cost from the memory in KiB, the number of passes over the memory, and the number of lanes.
    /// Returns `None` if Argon2 does not accept the values, or if a derivation would use more than 1 GiB, or
    /// more work than two passes over 1 GiB. The limits are needed because the header of an untrusted file is
    /// used before it can be authenticated.
    #[must_use]
    pub fn new(memory: u32, passes: u32, lanes: u32) -> Option<Self> {
        let total_work = u64::from(memory) * u64::from(passes);
        let is_allowed =
            memory <= 1 << 20 && total_work <= 1 << 21 && passes >= 1 && (1..=16).contains(&lanes);
        (is_allowed && memory >= 8 * lanes).then_some(Self { memory, passes, lanes })
    }

    /// Returns the memory in KiB.
    #[must_use]
    pub fn memory(self) -> u32 {
        self.memory
    }

    /// Returns the number of passes over the memory.
    #[must_use]
    pub fn passes(self) -> u32 {
        self.passes
    }

    /// Returns the number of lanes.
    #[must_use]
    pub fn lanes(self) -> u32 {
        self.lanes
    }
}

impl Default for Argon2Cost {
    fn default() -> Self {
        Self::RECOMMENDED
    }
}

/// Derivation of the key that encrypts a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Derivation {
    /// The key in a key file is used as it is.
    KeyFile,
    /// Argon2id derives the key from a passphrase.
    Argon2id(Argon2Cost),
}

/// Encryption key of one store, with its derivation. The key is zeroised on drop.
pub(super) struct Secret {
    derivation: Derivation,
    salt: [u8; SALT],
    key: Zeroizing<[u8; KEY_FILE]>,
}

impl Secret {
    /// Creates the secret of a new store; a passphrase is combined with a new salt.
    pub(super) fn generate(
        unlock: &Unlock,
        cost: Argon2Cost,
        entropy: &mut dyn Entropy,
    ) -> Result<Self, KeyError> {
        let mut salt = [0; SALT];
        let derivation = match unlock {
            Unlock::Passphrase(_) => {
                entropy.fill(&mut salt)?;
                Derivation::Argon2id(cost)
            }
            Unlock::KeyFile(_) => Derivation::KeyFile,
        };
        Self::derive(unlock, derivation, salt).ok_or(KeyError::NoEntropy)
    }

    /// Derives the secret of an existing store; `None` if the store is opened with the other kind of
    /// [`Unlock`].
    pub(super) fn derive(unlock: &Unlock, derivation: Derivation, salt: [u8; SALT]) -> Option<Self> {
        let key = match (unlock, derivation) {
            (Unlock::KeyFile(key), Derivation::KeyFile) => key.clone(),
            (Unlock::Passphrase(passphrase), Derivation::Argon2id(cost)) => {
                let params = Params::new(cost.memory(), cost.passes(), cost.lanes(), Some(KEY_FILE)).ok()?;
                let mut key = Zeroizing::new([0; KEY_FILE]);
                let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
                argon2.hash_password_into(passphrase, &salt, key.as_mut_slice()).ok()?;
                key
            }
            _ => return None,
        };
        Some(Self { derivation, salt, key })
    }

    pub(super) fn derivation(&self) -> Derivation {
        self.derivation
    }

    pub(super) fn salt(&self) -> &[u8; SALT] {
        &self.salt
    }

    pub(super) fn key(&self) -> &[u8; KEY_FILE] {
        &self.key
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({:?})", self.derivation)
    }
}
