//! What survives anything: the campaign, in a transactional database in the state directory. What [`Store::apply`] has taken
//! is durable when it returns, all of it or nothing.
//!
//! ```text
//!  about        format, campaign, configuration
//!  checkpoint   the last opening or commit: everything that the campaign was then
//!  names        further numbers of the round that is open
//!  updates      (round, stage, device) -> what was counted since, and as which
//!  out          devices that will not answer the open round
//!  waits        until when it waits, and for whom, if not as when it was opened
//!  accounts     device -> what it has spent of its privacy budget
//!  rounds       exchange -> a round that was committed, in JSON
//!  journal      number -> a line of arrivals.jsonl
//! ```
//!
//! Updates are encrypted with a key that is erased when their round is over: `encryption`.

mod backend;
mod corruption_guard;
mod encryption;
mod error;
mod offline;
mod read_snapshot;
mod record;
mod round_key_file;
mod tables;

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use redb::{Database, ReadableDatabase, StorageBackend};

use self::backend::Backend;
use self::corruption_guard::catch_corruption;
use self::encryption::UpdateCipher;
use self::error::DatabaseError;
use self::round_key_file::RoundKeyFile;
use crate::journal;
use crate::keys::Entropy;
use fedspan_files::make_directories;
use fedspan_files::regular;

pub use encryption::RoundKeyStorage;
pub use error::StoreError;
pub use offline::OfflineStore;
pub use read_snapshot::ReadSnapshot;
pub use record::{CampaignState, CountedUpdate, Record};
pub use round_key_file::KEY_FILE;

/// The database's file in the state directory.
pub const FILE: &str = "campaign.redb";

/// Its name while it is being made.
const PARTIAL: &str = "campaign.partial";

/// What versions before the first database wrote.
const LEGACY_FILE: &str = "campaign.bin";

/// Bytes of the database that stay in memory.
const CACHE: usize = 8 << 20;

/// How long a server waits for those who read the directory, and between two attempts.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// A campaign's database, locked for one server.
#[derive(Debug)]
pub struct Store {
    /// None after a write that failed: what the database believes of the disk may not be so.
    database: Option<Database>,
    backend: Backend,
    /// Which of all transactions the last one was.
    last: Option<u64>,
    cipher: UpdateCipher,
    path: PathBuf,
    /// Held as long as the store lives; none where the database is not a file.
    _lock: Option<File>,
}

impl Store {
    /// Opens (or makes) the database of a state directory. `entropy` makes the keys of rounds.
    ///
    /// # Errors
    /// [`StoreError`] if it cannot be made, another server holds it, or what is there is none.
    pub fn open(directory: &Path, entropy: impl Entropy + 'static) -> Result<Self, StoreError> {
        // One that is there is its owner's affair.
        make_directories(directory, DirBuilder::new().mode(0o700)).map_err(io(directory))?;
        let path = directory.join("lock");
        regular(&path).map_err(io(&path))?;
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(io(&path))?;
        lock_exclusive(&lock, path)?;
        let old = directory.join(LEGACY_FILE);
        if old.exists() {
            return Err(StoreError::Version { path: old, found: 1, expected: tables::FORMAT });
        }
        let path = directory.join(FILE);
        regular(&path).map_err(io(&path))?;
        match std::fs::metadata(&path) {
            Ok(about) if about.len() == 0 => {
                return Err(StoreError::Damaged { path, what: "it is empty".to_owned() });
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if let Some(beside) = leftover_file(directory)? {
                    return Err(StoreError::Missing { path, beside });
                }
                create_database(directory, &path)?;
            }
            Err(error) => return Err(io(&path)(error)),
        }
        let backend = Backend::file(&path);
        let cipher = UpdateCipher::new(Box::new(RoundKeyFile::new(directory)), Box::new(entropy));
        Self { database: None, backend, last: None, cipher, path, _lock: Some(lock) }.with_database()
    }

    /// The same over any storage: a test's, which fails when it is told to. It is opened anew after every failure.
    ///
    /// # Errors
    /// As [`Self::open`].
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

    fn with_database(mut self) -> Result<Self, StoreError> {
        self.database = Some(self.open_database()?);
        Ok(self)
    }

    /// The state directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    /// Opens the database, and looks at every page: what was changed behind our back is not taken for a crash, after which the
    /// last commits might be rolled back. Nor is another database taken for the one that was written last.
    fn open_database(&mut self) -> Result<Database, StoreError> {
        let open_database = catch_corruption(|| {
            let mut database = self.backend.open()?;
            if !database.check_integrity()? {
                return Err(DatabaseError::Damaged("its checksums do not match".to_owned()));
            }
            tables::check_format(&database)?;
            let last = tables::last_transaction(&database)?;
            // What failed may have been written all the same.
            if self.last.is_some_and(|known| last != known && last != known.saturating_add(1)) {
                return Err(DatabaseError::Damaged("it is not what this server has written last".to_owned()));
            }
            Ok((database, last))
        });
        let (database, last) = open_database.map_err(|error| error.at(&self.path))?;
        self.last = Some(last);
        Ok(database)
    }

    fn database(&self) -> Result<&Database, StoreError> {
        let failed = || DatabaseError::Database(redb::Error::PreviousIo).at(&self.path);
        self.database.as_ref().ok_or_else(failed)
    }

    /// Begins a campaign: whatever was there is gone, but for the journal and what devices have spent.
    ///
    /// # Errors
    /// [`StoreError`]; what was there is still there then.
    pub fn begin(&mut self, campaign: u64, configuration: &str) -> Result<(), StoreError> {
        let with_database = tables::begin(self.database()?, campaign, configuration);
        self.last = Some(with_database.map_err(|error| error.at(&self.path))?);
        self.erase_key()
    }

    /// Writes records, in their order; durable when this returns. Where updates of a new round follow its opening, the round before
    /// and its key are gone before the first of them is written.
    ///
    /// # Errors
    /// [`StoreError`]: of these records the last ones are not there, and nothing of it counts; the same may be tried again, for
    /// which the database is opened anew.
    pub fn apply(&mut self, records: &[Record]) -> Result<(), StoreError> {
        // What was counted in a round that is closed by the same records is nobody's any more.
        let closed = records.iter().rposition(|record| matches!(record, Record::Checkpoint(_)));
        let counts = |record: &Record| matches!(record, Record::Counted(..));
        let (before, after) = records.split_at(closed.map_or(0, |closed| closed + 1));
        let (first, second) = if after.iter().any(counts) { (before, after) } else { (records, &[][..]) };
        if !first.is_empty() {
            self.write(first, closed.unwrap_or(0))?;
        }
        if closed.is_some() {
            self.erase_key()?;
        }
        if second.is_empty() { Ok(()) } else { self.write(second, 0) }
    }

    /// Writes records in one transaction, but for what those before the checkpoint `closed` say of updates.
    fn write(&mut self, records: &[Record], closed: usize) -> Result<(), StoreError> {
        let database = match self.database.take() {
            Some(database) => database,
            None => self.open_database()?,
        };
        self.backend.check_same_file().map_err(io(&self.path))?;
        let written = tables::apply(&database, &mut self.cipher, records, closed);
        self.last = Some(written.map_err(|error| error.at(&self.path))?);
        self.database = Some(database);
        Ok(())
    }

    /// Erases the key of a round of which nothing is stored: a crash may have left it.
    ///
    /// # Errors
    /// [`StoreError`] if it can be neither looked for nor erased.
    pub fn erase_key(&mut self) -> Result<(), StoreError> {
        self.cipher.end().map_err(|error| error.at(&self.path))
    }

    /// Everything that a restart goes on from, if there is a campaign.
    ///
    /// # Errors
    /// [`StoreError`] if it cannot be read, or not be made sense of.
    pub fn load(&self) -> Result<Option<CampaignState>, StoreError> {
        let database = self.database()?;
        catch_corruption(|| tables::load(database, &self.cipher)).map_err(|error| error.at(&self.path))
    }

    /// The settings of the campaign, if a round of it was ever opened: what another configuration has to agree with.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn settings(&self) -> Result<Option<String>, StoreError> {
        let database = self.database()?;
        catch_corruption(|| tables::settings(database)).map_err(|error| error.at(&self.path))
    }

    /// What is stored now, for whoever reads it while this goes on.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn read_snapshot(&self) -> Result<ReadSnapshot, StoreError> {
        let read =
            self.database()?.begin_read().map_err(|error| DatabaseError::from(error).at(&self.path))?;
        Ok(ReadSnapshot::new(read, self.path.clone()))
    }

    /// Lines of the journal from `first` on.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn journal(&self, first: u64) -> Result<Vec<String>, StoreError> {
        let database = self.database()?;
        let lines = catch_corruption(|| tables::journal_lines(database, first))
            .map_err(|error| error.at(&self.path))?;
        Ok(lines.into_iter().map(|(_, line)| line).collect())
    }
}

/// What is left of a campaign whose database has gone.
fn leftover_file(directory: &Path) -> Result<Option<PathBuf>, StoreError> {
    for name in [journal::FILE, KEY_FILE] {
        let path = directory.join(name);
        match std::fs::metadata(&path) {
            Ok(about) if about.len() > 0 => return Ok(Some(path)),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(&path)(error)),
            _ => {}
        }
    }
    Ok(None)
}

/// Takes the lock. A server that holds it does not let go; `check` and `export`, which share it, are done in a moment.
fn lock_exclusive(lock: &File, path: PathBuf) -> Result<(), StoreError> {
    let began = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(io(&path)(error)),
        }
        match lock.try_lock_shared() {
            Ok(()) => lock.unlock().map_err(io(&path))?,
            Err(TryLockError::WouldBlock) => return Err(StoreError::Locked { path }),
            Err(TryLockError::Error(error)) => return Err(io(&path)(error)),
        }
        if began.elapsed() > LOCK_TIMEOUT {
            let error = std::io::Error::other("a check or an export is still reading this state directory");
            return Err(StoreError::Io { path, error });
        }
        std::thread::sleep(LOCK_RETRY);
    }
}

/// Makes an empty database, under another name until it is one: a crash leaves no half of it.
fn create_database(directory: &Path, path: &Path) -> Result<(), StoreError> {
    let partial = directory.join(PARTIAL);
    match std::fs::remove_file(&partial) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(&partial)(error)),
        _ => {}
    }
    drop(builder().create(&partial).map_err(|error| DatabaseError::from(error).at(&partial))?);
    std::fs::rename(&partial, path).map_err(io(path))?;
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(io(directory))
}

fn builder() -> redb::Builder {
    let mut builder = redb::Builder::new();
    builder.set_cache_size(CACHE);
    builder
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> StoreError {
    move |error| StoreError::Io { path: path.to_owned(), error }
}

/// Reads the campaign of a state directory on which no server runs, and changes nothing there.
///
/// # Errors
/// As [`OfflineStore::of`] and [`OfflineStore::load`].
pub fn read(directory: &Path) -> Result<Option<CampaignState>, StoreError> {
    OfflineStore::open(directory)?.map_or(Ok(None), |snapshot| snapshot.load())
}
