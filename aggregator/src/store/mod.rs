//! What survives anything: the campaign, in a transactional database in the state directory. What [`Store::apply`] has taken
//! is durable when it returns, all of it or nothing.
//!
//! ```text
//!  about        format, campaign, configuration
//!  checkpoint   the last opening or commit: everything that the campaign was then
//!  updates      (round, stage, device) -> what was counted since, and as which
//!  out          devices that will not answer the open round
//!  accounts     device -> what it has spent of its privacy budget
//!  journal      number -> a line of arrivals.jsonl
//! ```

mod error;
mod record;
mod tables;

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use redb::{Database, ReadOnlyDatabase, StorageBackend};

pub use error::StoreError;
pub use record::{Counted, Record, Stored};

/// The database's file in the state directory.
pub const FILE: &str = "campaign.redb";

/// What versions before the first database wrote.
const OLD: &str = "campaign.bin";

/// Bytes of the database that stay in memory.
const CACHE: usize = 8 << 20;

/// A campaign's database, locked for one server.
#[derive(Debug)]
pub struct Store {
    database: Database,
    path: PathBuf,
    /// Held as long as the store lives; none where the database is not a file.
    _lock: Option<File>,
}

impl Store {
    /// Opens (or makes) the database of a state directory.
    ///
    /// # Errors
    /// [`StoreError`] if it cannot be made, another server holds it, or what is there is none.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |error| StoreError::Io { path, error }
        };
        std::fs::create_dir_all(directory).map_err(io(directory))?;
        let path = directory.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(io(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(StoreError::Locked { path }),
            Err(std::fs::TryLockError::Error(error)) => return Err(io(&path)(error)),
        }
        let old = directory.join(OLD);
        if old.exists() {
            return Err(StoreError::Version { path: old, found: 1, expected: tables::FORMAT });
        }
        let path = directory.join(FILE);
        let is_new = !path.exists();
        let database = redb::Builder::new().set_cache_size(CACHE).create(&path);
        let database = database.map_err(|error| StoreError::of(&path, error.into()))?;
        if is_new {
            // The name must survive, too.
            File::open(directory).and_then(|directory| directory.sync_all()).map_err(io(directory))?;
        }
        let store = Self { database, path, _lock: Some(lock) };
        store.check_format()?;
        Ok(store)
    }

    /// The same over any storage: a test's, which fails when it is told to.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn over(storage: impl StorageBackend) -> Result<Self, StoreError> {
        let path = PathBuf::from("storage");
        let database = redb::Builder::new().set_cache_size(CACHE).create_with_backend(storage);
        let database = database.map_err(|error| StoreError::of(&path, error.into()))?;
        let store = Self { database, path, _lock: None };
        store.check_format()?;
        Ok(store)
    }

    /// The state directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    fn check_format(&self) -> Result<(), StoreError> {
        tables::check_format(&self.database).map_err(|error| error.at(&self.path))
    }

    /// Begins a campaign: whatever was there is gone.
    ///
    /// # Errors
    /// [`StoreError`]; what was there is still there then.
    pub fn begin(&self, campaign: u64, configuration: &str) -> Result<(), StoreError> {
        tables::begin(&self.database, campaign, configuration).map_err(|error| error.at(&self.path))
    }

    /// Writes records, in their order, all of them or none; durable when this returns.
    ///
    /// # Errors
    /// [`StoreError`]; nothing of it counts then, and it may be tried again.
    pub fn apply(&self, records: &[Record]) -> Result<(), StoreError> {
        tables::apply(&self.database, records).map_err(|error| error.at(&self.path))
    }

    /// Everything that a restart goes on from, if there is a campaign.
    ///
    /// # Errors
    /// [`StoreError`] if it cannot be read, or not be made sense of.
    pub fn load(&self) -> Result<Option<Stored>, StoreError> {
        tables::load(&self.database).map_err(|error| error.at(&self.path))
    }

    /// Lines of the journal from `first` on.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn journal(&self, first: u64) -> Result<Vec<String>, StoreError> {
        tables::journal(&self.database, first).map_err(|error| error.at(&self.path))
    }
}

/// Reads the campaign of a state directory on which no server runs.
///
/// # Errors
/// As [`Store::load`]; [`StoreError::Locked`] where a server runs.
pub fn read(directory: &Path) -> Result<Option<Stored>, StoreError> {
    let path = directory.join(FILE);
    if !path.exists() {
        return Ok(None);
    }
    let database = ReadOnlyDatabase::open(&path).map_err(|error| StoreError::of(&path, error.into()))?;
    tables::load(&database).map_err(|error| error.at(&path))
}
