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

use redb::{Database, StorageBackend};

pub use error::StoreError;
pub use record::{Counted, Record, Stored};

/// The database's file in the state directory.
pub const FILE: &str = "campaign.redb";

/// Its name while it is being made.
const PARTIAL: &str = "campaign.partial";

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
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(io(&path))?;
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
        let database = match std::fs::metadata(&path) {
            Ok(about) if about.len() == 0 => {
                return Err(StoreError::Damaged { path, what: "it is empty".to_owned() });
            }
            Ok(_) => open(&path)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                // Under another name until it is one: a crash leaves no half of a database.
                let partial = directory.join(PARTIAL);
                match std::fs::remove_file(&partial) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(io(&partial)(error));
                    }
                    _ => {}
                }
                let database = open(&partial)?;
                std::fs::rename(&partial, &path).map_err(io(&path))?;
                File::open(directory).and_then(|directory| directory.sync_all()).map_err(io(directory))?;
                database
            }
            Err(error) => return Err(io(&path)(error)),
        };
        Self { database, path, _lock: Some(lock) }.checked()
    }

    /// The same over any storage: a test's, which fails when it is told to.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn over(storage: impl StorageBackend) -> Result<Self, StoreError> {
        let path = PathBuf::from("storage");
        let database = redb::Builder::new().set_cache_size(CACHE).create_with_backend(storage);
        let database = database.map_err(|error| StoreError::of(&path, error.into()))?;
        Self { database, path, _lock: None }.checked()
    }

    /// The state directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    /// Every page is looked at: what was changed behind our back is not taken for a crash, after which the last commits might
    /// be rolled back.
    fn checked(mut self) -> Result<Self, StoreError> {
        let damaged = |what: &str| StoreError::Damaged { path: self.path.clone(), what: what.to_owned() };
        match self.database.check_integrity() {
            Ok(true) => {}
            Ok(false) => return Err(damaged("its checksums do not match")),
            Err(error) => return Err(StoreError::of(&self.path, error.into())),
        }
        tables::check_format(&self.database).map_err(|error| error.at(&self.path))?;
        Ok(self)
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

fn open(path: &Path) -> Result<Database, StoreError> {
    let database = redb::Builder::new().set_cache_size(CACHE).create(path);
    database.map_err(|error| StoreError::of(path, error.into()))
}

/// Reads the campaign of a state directory on which no server runs.
///
/// # Errors
/// As [`Store::open`] and [`Store::load`]; [`StoreError::Locked`] where a server runs.
pub fn read(directory: &Path) -> Result<Option<Stored>, StoreError> {
    if [FILE, OLD].into_iter().any(|file| directory.join(file).exists()) {
        Store::open(directory)?.load()
    } else {
        Ok(None)
    }
}
