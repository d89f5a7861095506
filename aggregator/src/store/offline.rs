//! Reader of a state directory on which no server runs. The database is copied to memory, where an
//! interrupted transaction is rolled back. The directory is not changed and need not be writable.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::{Database, ReadableDatabase, StorageBackend};

use super::corruption_guard::catch_corruption;
use super::encryption::UpdateCipher;
use super::error::DatabaseError;
use super::round_key_file::RoundKeyFile;
use super::{CampaignState, FILE, LEGACY_FILE, StoreError, builder, io_error, leftover_file, tables};
use crate::journal::CommittedRound;
use crate::keys::{Entropy, KeyError};
use fedspan_files::{DirectoryLock, regular};

/// Copy of a state directory's database in memory.
#[derive(Debug)]
pub struct OfflineStore {
    database: Database,
    cipher: UpdateCipher,
    path: PathBuf,
    bytes: u64,
    /// Shared lock on the state directory, which prevents a server from starting.
    _lock: DirectoryLock,
}

impl OfflineStore {
    /// Reads the database of a state directory and verifies every page. Returns `None` if no server has used
    /// the directory.
    ///
    /// # Errors
    /// [`StoreError`] if the database cannot be read; [`StoreError::Locked`] while a server runs.
    pub fn open(directory: &Path) -> Result<Option<Self>, StoreError> {
        let legacy_path = directory.join(LEGACY_FILE);
        if exists(&legacy_path)? {
            return Err(StoreError::Version { path: legacy_path, found: 1, expected: tables::FORMAT });
        }
        let path = directory.join(FILE);
        if !exists(&path)? {
            return leftover_file(directory)?
                .map_or(Ok(None), |beside| Err(StoreError::Missing { path, beside }));
        }
        let lock = DirectoryLock::shared(directory)?;
        let bytes = regular(&path).and_then(|()| std::fs::read(&path)).map_err(io_error(&path))?;
        let length = bytes.len() as u64;
        let opened = catch_corruption(|| {
            if length == 0 {
                return Err(DatabaseError::Damaged("the file is empty".to_owned()));
            }
            let mut database = builder().create_with_backend(MemoryBackend(Mutex::new(bytes)))?;
            if !database.check_integrity()? {
                return Err(DatabaseError::Damaged("checksums do not match".to_owned()));
            }
            tables::check_format(&database)?;
            Ok(database)
        });
        let database = opened.map_err(|error| error.with_path(&path))?;
        let cipher = UpdateCipher::new(Box::new(RoundKeyFile::new(directory)), Box::new(NoEntropy));
        Ok(Some(Self { database, cipher, path, bytes: length, _lock: lock }))
    }

    /// Returns the size of the database file, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Loads the campaign without the updates of the open round, which are encrypted with the round's key.
    ///
    /// # Errors
    /// [`StoreError`] if the database is inconsistent.
    pub fn campaign(&self) -> Result<Option<CampaignState>, StoreError> {
        catch_corruption(|| tables::load_without_updates(&self.database.begin_read()?))
            .map_err(|error| error.with_path(&self.path))
    }

    /// Returns the number of updates counted in the open round.
    ///
    /// # Errors
    /// Same as [`Self::campaign`].
    pub fn count_updates(&self) -> Result<u64, StoreError> {
        catch_corruption(|| tables::count_updates(&self.database.begin_read()?))
            .map_err(|error| error.with_path(&self.path))
    }

    /// Loads the campaign as [`Store::load`](super::Store::load) does.
    ///
    /// # Errors
    /// [`StoreError`] if the database is inconsistent.
    pub fn load(&self) -> Result<Option<CampaignState>, StoreError> {
        catch_corruption(|| tables::load(&self.database, &self.cipher))
            .map_err(|error| error.with_path(&self.path))
    }

    /// Loads the committed rounds, in order.
    ///
    /// # Errors
    /// [`StoreError`] if the rounds cannot be read.
    pub fn rounds(&self) -> Result<Vec<CommittedRound>, StoreError> {
        catch_corruption(|| tables::rounds(&self.database.begin_read()?))
            .map_err(|error| error.with_path(&self.path))
    }

    /// Loads all journal lines with their numbers.
    ///
    /// # Errors
    /// [`StoreError`] if the lines cannot be read.
    pub fn journal(&self) -> Result<Vec<(u64, String)>, StoreError> {
        catch_corruption(|| tables::journal_lines(&self.database, 0))
            .map_err(|error| error.with_path(&self.path))
    }
}

/// Returns true if a file exists. An error names the directory, because it is unknown whether the file
/// exists.
fn exists(path: &Path) -> Result<bool, StoreError> {
    path.try_exists().map_err(io_error(path.parent().unwrap_or(path)))
}

/// Storage backend in memory.
#[derive(Debug)]
struct MemoryBackend(Mutex<Vec<u8>>);

impl MemoryBackend {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Converts a range of the file to indices.
fn byte_range(offset: u64, length: usize) -> std::io::Result<std::ops::Range<usize>> {
    let outside = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    let start = usize::try_from(offset).map_err(|_| outside())?;
    Ok(start..start.checked_add(length).ok_or_else(outside)?)
}

impl StorageBackend for MemoryBackend {
    fn len(&self) -> std::io::Result<u64> {
        Ok(self.bytes().len() as u64)
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        let range = byte_range(offset, buffer.len())?;
        let bytes = self.bytes();
        buffer.copy_from_slice(bytes.get(range).ok_or(std::io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> std::io::Result<()> {
        let range = byte_range(length, 0)?;
        let mut bytes = self.bytes();
        let additional = range.start.saturating_sub(bytes.len());
        // A corrupt header may request any length, so the allocation may fail.
        bytes.try_reserve(additional).map_err(|_| std::io::ErrorKind::OutOfMemory)?;
        bytes.resize(range.start, 0);
        Ok(())
    }

    fn sync_data(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        let range = byte_range(offset, data.len())?;
        let mut bytes = self.bytes();
        bytes.get_mut(range).ok_or(std::io::ErrorKind::UnexpectedEof)?.copy_from_slice(data);
        Ok(())
    }
}

/// Source of randomness that always fails. Reading needs no randomness.
struct NoEntropy;

impl Entropy for NoEntropy {
    fn fill(&mut self, _: &mut [u8]) -> Result<(), KeyError> {
        Err(KeyError::NoEntropy)
    }
}
