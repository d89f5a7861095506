//! What survives a restart: the last committed round in one file, replaced by write, fsync, rename. A
//! crash leaves the old file or the new one, never a mixture.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use fedspan_protocol::frame::crc32c;
use fedspan_protocol::message::RoundId;
use serde::{Deserialize, Serialize};

use crate::engine::Phase;

const MAGIC: &[u8; 8] = b"FEDSPAN1";
const FILE: &str = "campaign.bin";

/// Kinds of [`Committed::phase`].
const STARTED: u8 = 0;
const TRAINED: u8 = 1;
const NOTHING: u8 = 2;
const LAST_TRAINED: u8 = 3;

/// The last committed round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Committed {
    /// The configuration that it was made under.
    pub configuration: String,
    /// Identifies the campaign on the wire.
    pub campaign: u64,
    /// Round and stage.
    pub id: (u32, u16),
    /// 0 for a round of the start, 1 for training, 3 for the last of training, and its number; 2 where no
    /// round is finished yet.
    pub phase: (u8, u32),
    /// The algorithm's state.
    pub state: Vec<f64>,
}

impl Committed {
    /// Packs what the engine says after a commit.
    #[must_use]
    pub fn new(configuration: String, campaign: u64, id: RoundId, phase: Phase, state: Vec<f64>) -> Self {
        let phase = match phase {
            Phase::Start(number) => (STARTED, number),
            Phase::Train(number) => (TRAINED, number),
            Phase::Waiting => (NOTHING, 0),
            _ => (TRAINED, u32::MAX),
        };
        Self { configuration, campaign, id: (id.round, id.stage), phase, state }
    }

    /// The same, where training ended with this round, or goes on.
    #[must_use]
    pub fn ending_training(mut self, ends: bool) -> Self {
        if let (true, (TRAINED | LAST_TRAINED, number)) = (ends, self.phase) {
            self.phase = (LAST_TRAINED, number);
        }
        self
    }

    /// Whether training has ended, however many rounds it might have had.
    #[must_use]
    pub fn ends_training(&self) -> bool {
        self.phase.0 == LAST_TRAINED
    }

    /// Round and stage.
    #[must_use]
    pub fn round(&self) -> RoundId {
        RoundId { round: self.id.0, stage: self.id.1 }
    }

    /// The phase of the committed round.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.phase {
            (STARTED, number) => Phase::Start(number),
            (NOTHING, _) => Phase::Waiting,
            (_, number) => Phase::Train(number),
        }
    }
}

/// The state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file operation failed.
    #[error("{path}: {error}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// Another server runs on this directory.
    #[error("{path}: another server is running on this state directory")]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The file is not what this version writes.
    #[error("{path}: {what}; move it away to start a new campaign")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// A state directory, locked for one server.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    /// Held as long as the store lives.
    _lock: File,
}

impl Store {
    /// Opens (or makes) a state directory.
    ///
    /// # Errors
    /// [`StoreError`] if it cannot be made or another server holds it.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        std::fs::create_dir_all(directory).map_err(|error| io(directory, error))?;
        let path = directory.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(|error| io(&path, error))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { directory: directory.to_owned(), _lock: lock }),
            Err(std::fs::TryLockError::WouldBlock) => Err(StoreError::Locked { path }),
            Err(std::fs::TryLockError::Error(error)) => Err(io(&path, error)),
        }
    }

    /// Where it is.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Replaces the last committed round; durable when this returns.
    ///
    /// # Errors
    /// [`StoreError`]; the old commit is still there then.
    pub fn commit(&self, committed: &Committed) -> Result<(), StoreError> {
        let path = self.directory.join(FILE);
        let partial = self.directory.join("campaign.partial");
        let failed = |error| io(&partial, error);
        let body = postcard::to_stdvec(committed)
            .map_err(|_| StoreError::Damaged { path: path.clone(), what: "the state cannot be encoded" })?;
        let mut file = File::create(&partial).map_err(failed)?;
        file.write_all(MAGIC).map_err(failed)?;
        file.write_all(&crc32c(&body).to_le_bytes()).map_err(failed)?;
        file.write_all(&body).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        std::fs::rename(&partial, &path).map_err(|error| io(&path, error))?;
        // The rename itself must survive, too.
        File::open(&self.directory).and_then(|d| d.sync_all()).map_err(|error| io(&self.directory, error))
    }

    /// The last committed round, if there is one.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read or is damaged.
    pub fn load(&self) -> Result<Option<Committed>, StoreError> {
        read(&self.directory)
    }
}

/// Reads the last committed round of a directory without locking it: for `status` when no server runs.
///
/// # Errors
/// [`StoreError`] if the file cannot be read or is damaged.
pub fn read(directory: &Path) -> Result<Option<Committed>, StoreError> {
    let path = directory.join(FILE);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(&path, error)),
    };
    let damaged = |what| StoreError::Damaged { path: path.clone(), what };
    let rest =
        bytes.strip_prefix(MAGIC).ok_or_else(|| damaged("not a FedSpan state file of this version"))?;
    let (check, body) = rest.split_at_checked(4).ok_or_else(|| damaged("truncated"))?;
    if crc32c(body).to_le_bytes() != check {
        return Err(damaged("the checksum does not match"));
    }
    let committed: Committed = postcard::from_bytes(body).map_err(|_| damaged("cannot be decoded"))?;
    if committed.state.iter().any(|v| !v.is_finite()) {
        return Err(damaged("holds values that are not finite"));
    }
    Ok(Some(committed))
}

fn io(path: &Path, error: std::io::Error) -> StoreError {
    StoreError::Io { path: path.to_owned(), error }
}
