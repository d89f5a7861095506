//! Store of a campaign: a transactional database in the state directory. [`Store::apply`] writes rows, which
//! are durable when the call returns.
//!
//! ```text
//!  about        format, campaign, configuration
//!  checkpoint   state of the engine at the last opening or commit of a round
//!  names        later ids of the open round (`round_aliases`)
//!  updates      (round, stage, device) -> updates counted in the open round by one transaction (`update_row`)
//!  out          devices that will not answer the open round (`excluded`)
//!  waits        deadline override of the open round, if it was extended (`deadline`)
//!  accounts     device -> spent privacy budget
//!  rounds       round id -> committed round, in JSON
//!  journal      number -> line of arrivals.jsonl
//! ```
//!
//! Updates are encrypted with a key that is erased when the round is over; see `encryption`.

mod backend;
mod campaign_state;
mod corruption_guard;
mod encryption;
mod error;
mod offline;
mod read_snapshot;
mod round_key_file;
mod tables;
mod update_row;
mod write;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use redb::backends::FileBackend;
use redb::{Database, ReadableDatabase, StorageBackend};

use self::backend::Backend;
use self::corruption_guard::catch_corruption;
use self::encryption::UpdateCipher;
use self::error::DatabaseError;
use self::round_key_file::RoundKeyFile;
use crate::journal;
use crate::keys::Entropy;
use fedspan_files::{DirectoryLock, open_private_directory, regular};

pub use campaign_state::CampaignState;
pub use error::StoreError;
pub use offline::OfflineStore;
pub use read_snapshot::ReadSnapshot;
pub use round_key_file::{KEY_FILE, RoundKeyStorage};
pub use write::Row;

/// File name of the database in the state directory.
pub const FILE: &str = "campaign.redb";

/// Name of the database file while it is being created.
const PARTIAL: &str = "campaign.partial";

/// File name of the campaign in versions without a database.
const LEGACY_FILE: &str = "campaign.bin";

/// Size of the database's cache, in bytes.
const CACHE: usize = 8 << 20;

/// Permission bits of the files of a state directory.
pub(crate) const PRIVATE: u32 = 0o600;

/// Database of a campaign, locked for one server.
#[derive(Debug)]
pub struct Store {
    /// Open database. `None` after a failed write, because the cache may differ from the disk; the next write
    /// reopens the database.
    database: Option<Database>,
    backend: Backend,
    /// Number of the last transaction.
    last: Option<u64>,
    cipher: UpdateCipher,
    path: PathBuf,
    /// Lock on the state directory; `None` if the database is not a file.
    _lock: Option<DirectoryLock>,
}

impl Store {
    /// Opens the database of a state directory, or creates it. `entropy` supplies the keys of stored updates.
    ///
    /// # Errors
    /// [`StoreError::Locked`] if another server uses the directory; [`StoreError::Version`],
    /// [`StoreError::Missing`], [`StoreError::Damaged`] or [`StoreError::Io`] if the database cannot be
    /// opened.
    pub fn open(directory: &Path, entropy: impl Entropy + 'static) -> Result<Self, StoreError> {
        for file in open_private_directory(directory)? {
            tracing::warn!(file = %file.display(), "other users could read this file, now only its owner can");
        }
        let lock = DirectoryLock::exclusive(directory, |path| {
            tracing::info!(path = %path.display(), "waiting for a check or an export");
        })?;
        let legacy_path = directory.join(LEGACY_FILE);
        if legacy_path.exists() {
            return Err(StoreError::Version { path: legacy_path, found: 1, expected: tables::FORMAT });
        }
        let path = directory.join(FILE);
        regular(&path).map_err(io_error(&path))?;
        match std::fs::metadata(&path) {
            Ok(metadata) if metadata.len() == 0 => {
                return Err(StoreError::Damaged { path, what: "the file is empty".to_owned() });
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if let Some(beside) = leftover_file(directory)? {
                    return Err(StoreError::Missing { path, beside });
                }
                create_database(directory, &path)?;
            }
            Err(error) => return Err(io_error(&path)(error)),
        }
        let backend = Backend::file(&path);
        let cipher = UpdateCipher::new(Box::new(RoundKeyFile::new(directory)), Box::new(entropy));
        Self { database: None, backend, last: None, cipher, path, _lock: Some(lock) }.with_database()
    }

    /// Opens a database in any storage, such as one with injected faults for tests. `storage` is called again
    /// after every failed write.
    ///
    /// # Errors
    /// Same as [`Self::open`].
    pub fn over<S: StorageBackend>(
        storage: impl Fn() -> S + Send + 'static,
        key_storage: impl RoundKeyStorage + 'static,
        entropy: impl Entropy + 'static,
    ) -> Result<Self, StoreError> {
        let backend = Backend::storage(storage);
        let cipher = UpdateCipher::new(Box::new(key_storage), Box::new(entropy));
        Self { database: None, backend, last: None, cipher, path: PathBuf::from("storage"), _lock: None }
            .with_database()
    }

    /// Opens the database and returns the store.
    fn with_database(mut self) -> Result<Self, StoreError> {
        self.database = Some(self.open_database()?);
        Ok(self)
    }

    /// Returns the state directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    /// Opens the database and verifies every page. Otherwise the database would treat a page that was changed
    /// from outside as the result of a crash, and would roll back the last commits. An older copy of the
    /// database is refused too.
    fn open_database(&mut self) -> Result<Database, StoreError> {
        let opened = catch_corruption(|| {
            let mut database = self.backend.open()?;
            if !database.check_integrity()? {
                return Err(DatabaseError::Damaged("checksums do not match".to_owned()));
            }
            tables::check_format(&database)?;
            let last = tables::last_transaction(&database)?;
            // After a failed write, the transaction may nevertheless be on disk.
            if self.last.is_some_and(|previous| last != previous && last != previous.saturating_add(1)) {
                return Err(DatabaseError::Damaged(
                    "not the database that this server wrote last".to_owned(),
                ));
            }
            Ok((database, last))
        });
        let (database, last) = opened.map_err(|error| error.with_path(&self.path))?;
        self.last = Some(last);
        Ok(database)
    }

    /// Returns the open database; an error after a failed write.
    fn database(&self) -> Result<&Database, StoreError> {
        let failed = || DatabaseError::Database(redb::Error::PreviousIo).with_path(&self.path);
        self.database.as_ref().ok_or_else(failed)
    }

    /// Begins a campaign: removes all rows of the previous campaign except the journal and the privacy
    /// accounts.
    ///
    /// # Errors
    /// [`StoreError`] if the database cannot be written, in which case the previous campaign is unchanged, or
    /// if the key storage fails.
    pub fn begin(&mut self, campaign: u64, configuration: &str) -> Result<(), StoreError> {
        let transaction = write::begin(self.database()?, campaign, configuration);
        self.last = Some(transaction.map_err(|error| error.with_path(&self.path))?);
        self.erase_key()
    }

    /// Erases the stored key of a round. Used if no updates are stored, because a crash may have left a key.
    ///
    /// # Errors
    /// [`StoreError`] if the key storage fails.
    pub fn erase_key(&mut self) -> Result<(), StoreError> {
        self.cipher.erase_key().map_err(|error| error.with_path(&self.path))
    }

    /// Loads the stored campaign; `None` if there is no campaign.
    ///
    /// # Errors
    /// [`StoreError`] if the database cannot be read or is inconsistent.
    pub fn load(&self) -> Result<Option<CampaignState>, StoreError> {
        let database = self.database()?;
        catch_corruption(|| tables::load(database, &self.cipher)).map_err(|error| error.with_path(&self.path))
    }

    /// Loads the settings of the campaign; `None` if no round of the campaign was opened.
    ///
    /// # Errors
    /// Same as [`Self::load`].
    pub fn settings(&self) -> Result<Option<String>, StoreError> {
        let database = self.database()?;
        catch_corruption(|| tables::settings(database)).map_err(|error| error.with_path(&self.path))
    }

    /// Opens a read snapshot of the database.
    ///
    /// # Errors
    /// Same as [`Self::load`].
    pub fn read_snapshot(&self) -> Result<ReadSnapshot, StoreError> {
        let read = self
            .database()?
            .begin_read()
            .map_err(|error| DatabaseError::from(error).with_path(&self.path))?;
        Ok(ReadSnapshot::new(read, self.path.clone()))
    }

    /// Loads the journal lines from number `first` on.
    ///
    /// # Errors
    /// Same as [`Self::load`].
    pub fn journal(&self, first: u64) -> Result<Vec<String>, StoreError> {
        let database = self.database()?;
        let lines = catch_corruption(|| tables::journal_lines(database, first))
            .map_err(|error| error.with_path(&self.path))?;
        Ok(lines.into_iter().map(|(_, line)| line).collect())
    }
}

/// Returns the path of another file of a campaign, if the directory contains one.
fn leftover_file(directory: &Path) -> Result<Option<PathBuf>, StoreError> {
    for name in [journal::FILE, KEY_FILE] {
        let path = directory.join(name);
        match std::fs::metadata(&path) {
            Ok(metadata) if metadata.len() > 0 => return Ok(Some(path)),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io_error(&path)(error)),
            _ => {}
        }
    }
    Ok(None)
}

/// Creates an empty database under a temporary name and renames the file, so that a crash leaves no
/// incomplete database.
fn create_database(directory: &Path, path: &Path) -> Result<(), StoreError> {
    let partial = directory.join(PARTIAL);
    match std::fs::remove_file(&partial) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io_error(&partial)(error)),
        _ => {}
    }
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(PRIVATE).open(&partial);
    let created = FileBackend::new(file.map_err(io_error(&partial))?)
        .and_then(|backend| builder().create_with_backend(backend))
        .map_err(|error| DatabaseError::from(error).with_path(&partial))?;
    drop(created);
    std::fs::rename(&partial, path).map_err(io_error(path))?;
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(io_error(directory))
}

/// Returns a database builder with the cache size of the store.
fn builder() -> redb::Builder {
    let mut builder = redb::Builder::new();
    builder.set_cache_size(CACHE);
    builder
}

/// Returns a function that adds the path to an I/O error.
fn io_error(path: &Path) -> impl Fn(std::io::Error) -> StoreError {
    move |error| StoreError::Io { path: path.to_owned(), error }
}

/// Reads the campaign of a state directory on which no server runs. Changes no files.
///
/// # Errors
/// Same as [`OfflineStore::open`] and [`OfflineStore::load`].
pub fn read(directory: &Path) -> Result<Option<CampaignState>, StoreError> {
    OfflineStore::open(directory)?.map_or(Ok(None), |snapshot| snapshot.load())
}
