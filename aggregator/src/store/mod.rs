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

mod error;
mod round_key_file;
mod read_snapshot;
mod corruption_guard;
mod record;
mod encryption;
mod offline;
mod backend;
mod tables;

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use redb::{Database, ReadableDatabase, StorageBackend};

use self::error::Fault;
use self::round_key_file::KeyFile;
use self::corruption_guard::quietly;
use self::encryption::Sealer;
use self::backend::Source;
use crate::journal;
use crate::keys::Entropy;
use fedspan_files::make_directories;
use fedspan_files::regular;

pub use error::StoreError;
pub use round_key_file::KEY_FILE;
pub use read_snapshot::Past;
pub use record::{Counted, Record, Stored};
pub use encryption::KeyPlace;
pub use offline::Snapshot;

/// The database's file in the state directory.
pub const FILE: &str = "campaign.redb";

/// Its name while it is being made.
const PARTIAL: &str = "campaign.partial";

/// What versions before the first database wrote.
const OLD: &str = "campaign.bin";

/// Bytes of the database that stay in memory.
const CACHE: usize = 8 << 20;

/// How long a server waits for those who read the directory, and between two attempts.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// A campaign's database, locked for one server.
#[derive(Debug)]
pub struct Store {
    /// None after a write that failed: what the database believes of the disk may not be so.
    database: Option<Database>,
    source: Source,
    /// Which of all transactions the last one was.
    last: Option<u64>,
    sealer: Sealer,
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
        lock_alone(&lock, path)?;
        let old = directory.join(OLD);
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
                if let Some(beside) = remains(directory)? {
                    return Err(StoreError::Missing { path, beside });
                }
                make(directory, &path)?;
            }
            Err(error) => return Err(io(&path)(error)),
        }
        let source = Source::file(&path);
        let sealer = Sealer::new(Box::new(KeyFile::new(directory)), Box::new(entropy));
        Self { database: None, source, last: None, sealer, path, _lock: Some(lock) }.begun()
    }

    /// The same over any storage: a test's, which fails when it is told to. It is opened anew after every failure.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn over<S: StorageBackend>(
        storage: impl Fn() -> S + Send + 'static,
        place: impl KeyPlace + 'static,
        entropy: impl Entropy + 'static,
    ) -> Result<Self, StoreError> {
        let source = Source::storage(storage);
        let sealer = Sealer::new(Box::new(place), Box::new(entropy));
        Self { database: None, source, last: None, sealer, path: PathBuf::from("storage"), _lock: None }
            .begun()
    }

    fn begun(mut self) -> Result<Self, StoreError> {
        self.database = Some(self.opened()?);
        Ok(self)
    }

    /// The state directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    /// Opens the database, and looks at every page: what was changed behind our back is not taken for a crash, after which the
    /// last commits might be rolled back. Nor is another database taken for the one that was written last.
    fn opened(&mut self) -> Result<Database, StoreError> {
        let opened = quietly(|| {
            let mut database = self.source.open()?;
            if !database.check_integrity()? {
                return Err(Fault::Damaged("its checksums do not match".to_owned()));
            }
            tables::check_format(&database)?;
            let last = tables::last_transaction(&database)?;
            // What failed may have been written all the same.
            if self.last.is_some_and(|known| last != known && last != known.saturating_add(1)) {
                return Err(Fault::Damaged("it is not what this server has written last".to_owned()));
            }
            Ok((database, last))
        });
        let (database, last) = opened.map_err(|error| error.at(&self.path))?;
        self.last = Some(last);
        Ok(database)
    }

    fn database(&self) -> Result<&Database, StoreError> {
        let failed = || Fault::Database(redb::Error::PreviousIo).at(&self.path);
        self.database.as_ref().ok_or_else(failed)
    }

    /// Begins a campaign: whatever was there is gone, but for the journal and what devices have spent.
    ///
    /// # Errors
    /// [`StoreError`]; what was there is still there then.
    pub fn begin(&mut self, campaign: u64, configuration: &str) -> Result<(), StoreError> {
        let begun = tables::begin(self.database()?, campaign, configuration);
        self.last = Some(begun.map_err(|error| error.at(&self.path))?);
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
            None => self.opened()?,
        };
        self.source.is_there().map_err(io(&self.path))?;
        let written = tables::apply(&database, &mut self.sealer, records, closed);
        self.last = Some(written.map_err(|error| error.at(&self.path))?);
        self.database = Some(database);
        Ok(())
    }

    /// Erases the key of a round of which nothing is stored: a crash may have left it.
    ///
    /// # Errors
    /// [`StoreError`] if it can be neither looked for nor erased.
    pub fn erase_key(&mut self) -> Result<(), StoreError> {
        self.sealer.end().map_err(|error| error.at(&self.path))
    }

    /// Everything that a restart goes on from, if there is a campaign.
    ///
    /// # Errors
    /// [`StoreError`] if it cannot be read, or not be made sense of.
    pub fn load(&self) -> Result<Option<Stored>, StoreError> {
        let database = self.database()?;
        quietly(|| tables::load(database, &self.sealer)).map_err(|error| error.at(&self.path))
    }

    /// The settings of the campaign, if a round of it was ever opened: what another configuration has to agree with.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn settings(&self) -> Result<Option<String>, StoreError> {
        let database = self.database()?;
        quietly(|| tables::settings(database)).map_err(|error| error.at(&self.path))
    }

    /// What is stored now, for whoever reads it while this goes on.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn past(&self) -> Result<Past, StoreError> {
        let read = self.database()?.begin_read().map_err(|error| Fault::from(error).at(&self.path))?;
        Ok(Past::new(read, self.path.clone()))
    }

    /// Lines of the journal from `first` on.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn journal(&self, first: u64) -> Result<Vec<String>, StoreError> {
        let database = self.database()?;
        let lines = quietly(|| tables::numbered(database, first)).map_err(|error| error.at(&self.path))?;
        Ok(lines.into_iter().map(|(_, line)| line).collect())
    }
}

/// What is left of a campaign whose database has gone.
fn remains(directory: &Path) -> Result<Option<PathBuf>, StoreError> {
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
fn lock_alone(lock: &File, path: PathBuf) -> Result<(), StoreError> {
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
        if began.elapsed() > PATIENCE {
            let error = std::io::Error::other("a check or an export is still reading this state directory");
            return Err(StoreError::Io { path, error });
        }
        std::thread::sleep(PAUSE);
    }
}

/// Makes an empty database, under another name until it is one: a crash leaves no half of it.
fn make(directory: &Path, path: &Path) -> Result<(), StoreError> {
    let partial = directory.join(PARTIAL);
    match std::fs::remove_file(&partial) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(&partial)(error)),
        _ => {}
    }
    drop(builder().create(&partial).map_err(|error| Fault::from(error).at(&partial))?);
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
/// As [`Snapshot::of`] and [`Snapshot::load`].
pub fn read(directory: &Path) -> Result<Option<Stored>, StoreError> {
    Snapshot::of(directory)?.map_or(Ok(None), |snapshot| snapshot.load())
}
