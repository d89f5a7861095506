//! Storage of the key of the open round: a trait, and its implementation with a file.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use fedspan_files::regular;
use fedspan_files::{create_partial, sync_directory, with_suffix};

/// File name of the key in the state directory.
pub const KEY_FILE: &str = "round.key";

/// Length of the longest file that is read, in bytes.
const FILE_LEN_MAX: u64 = 4096;

/// Storage of the open round's key. The effect of every method is durable when the method returns.
pub trait RoundKeyStorage: Send {
    /// Reads the stored key; `None` if no key is stored.
    ///
    /// # Errors
    /// Error of the storage.
    fn read(&self) -> std::io::Result<Option<Zeroizing<Vec<u8>>>>;

    /// Stores a key atomically. No other key may be stored.
    ///
    /// # Errors
    /// Error of the storage.
    fn write(&self, key: &[u8]) -> std::io::Result<()>;

    /// Syncs the stored key to disk. Needed because an earlier write may have stored the key before it
    /// failed.
    ///
    /// # Errors
    /// Error of the storage.
    fn sync(&self) -> std::io::Result<()>;

    /// Overwrites and removes the stored key, if there is one, and the remains of an unfinished write.
    ///
    /// # Errors
    /// Error of the storage; the key may still exist, or may be overwritten but not removed.
    fn erase(&self) -> std::io::Result<()>;
}

/// Key in a small file that only its owner can read.
#[derive(Debug)]
pub(super) struct RoundKeyFile {
    path: PathBuf,
}

impl RoundKeyFile {
    pub(super) fn new(directory: &Path) -> Self {
        Self { path: directory.join(KEY_FILE) }
    }

    /// Returns the temporary path to which a key is written first.
    fn partial_path(&self) -> PathBuf {
        with_suffix(&self.path, ".partial")
    }
}

impl RoundKeyStorage for RoundKeyFile {
    fn read(&self) -> std::io::Result<Option<Zeroizing<Vec<u8>>>> {
        regular(&self.path)?;
        match std::fs::metadata(&self.path) {
            // A longer file is not a key; an empty value makes the caller treat it as damaged.
            Ok(metadata) if metadata.len() > FILE_LEN_MAX => Ok(Some(Zeroizing::default())),
            Ok(_) => std::fs::read(&self.path).map(|bytes| Some(Zeroizing::new(bytes))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn write(&self, key: &[u8]) -> std::io::Result<()> {
        let partial = self.partial_path();
        erase(&partial)?;
        create_partial(&partial, key).map_err(std::io::Error::other)?;
        std::fs::rename(&partial, &self.path)?;
        sync_directory(&self.path)
    }

    fn sync(&self) -> std::io::Result<()> {
        File::open(&self.path)?.sync_all()?;
        sync_directory(&self.path)
    }

    fn erase(&self) -> std::io::Result<()> {
        erase(&self.partial_path())?;
        erase(&self.path)
    }
}

/// Overwrites and removes a file. The file system may still keep a copy.
fn erase(path: &Path) -> std::io::Result<()> {
    let mut file: File = match OpenOptions::new().write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let length = usize::try_from(file.metadata()?.len().min(FILE_LEN_MAX)).unwrap_or_default();
    file.write_all(&vec![0; length])?;
    file.sync_data()?;
    std::fs::remove_file(path)
}
