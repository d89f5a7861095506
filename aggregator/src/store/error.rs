//! Error types of the store.

use std::path::{Path, PathBuf};

use super::round_key_file::KEY_FILE;
use fedspan_files::{FileError, LockError};

/// Reason why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file operation failed.
    #[error("{}: {error}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// The state directory, or a file in it, is not private.
    #[error(transparent)]
    NotPrivate(FileError),
    /// Another server uses this directory.
    #[error("{}: another server is running on this state directory", path.display())]
    Locked {
        /// Path of the directory or of its lock file.
        path: PathBuf,
    },
    /// Another version wrote the database.
    #[error("{}: format {found}, this version reads format {expected}; finish the campaign with the version that began it, or move \
             the file away to start a new one", path.display())]
    Version {
        /// Path of the file.
        path: PathBuf,
        /// Format of the file.
        found: u32,
        /// Format of this version.
        expected: u32,
    },
    /// The database is missing although other files of a campaign exist.
    #[error("{}: missing, although {} of a campaign is here; restore the database, or move the other file away to start a new campaign", path.display(), beside.display())]
    Missing {
        /// Path of the missing database.
        path: PathBuf,
        /// Path of an existing file of the campaign.
        beside: PathBuf,
    },
    /// The file is corrupt, or not a database of this version.
    #[error("{}: {what}; restore it from a backup, or move the whole directory away to start a new campaign", path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Description of the damage.
        what: String,
    },
    /// The source of randomness failed, so no update can be encrypted.
    #[error("the source of randomness failed: no key for stored updates")]
    NoEntropy,
}

impl From<LockError> for StoreError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Held { path } => Self::Locked { path },
            LockError::Io { path, error } => Self::Io { path, error },
        }
    }
}

impl From<FileError> for StoreError {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Io { path, error } => Self::Io { path, error },
            error => Self::NotPrivate(error),
        }
    }
}

impl StoreError {
    /// Returns true if the error may be temporary, such as a full disk or a failing source of randomness.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::NoEntropy)
    }
}

/// Error of the database, without the path of the file.
#[derive(Debug)]
pub(super) enum DatabaseError {
    Database(redb::Error),
    Version(u32, u32),
    Damaged(String),
    /// The file with the key of the round cannot be used.
    RoundKeyFile(std::io::Error),
    /// The key does not decrypt the stored updates.
    Key(String),
    NoEntropy,
}

impl<E: Into<redb::Error>> From<E> for DatabaseError {
    fn from(error: E) -> Self {
        Self::Database(error.into())
    }
}

impl DatabaseError {
    /// Adds the path of the database to the error.
    pub(super) fn with_path(self, path: &Path) -> StoreError {
        let path = path.to_owned();
        match self {
            Self::Version(found, expected) => StoreError::Version { path, found, expected },
            Self::Damaged(what) => StoreError::Damaged { path, what },
            Self::RoundKeyFile(error) => StoreError::Io { path: path.with_file_name(KEY_FILE), error },
            Self::Key(what) => StoreError::Damaged { path: path.with_file_name(KEY_FILE), what },
            Self::NoEntropy => StoreError::NoEntropy,
            Self::Database(redb::Error::DatabaseAlreadyOpen) => StoreError::Locked { path },
            Self::Database(redb::Error::Io(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
                StoreError::Damaged { path, what: format!("not a database of this version ({error})") }
            }
            Self::Database(redb::Error::Io(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                StoreError::Damaged { path, what: "truncated".to_owned() }
            }
            Self::Database(redb::Error::Io(error)) => StoreError::Io { path, error },
            Self::Database(redb::Error::PreviousIo) => {
                // The database is closed after a failed write; the next write reopens it.
                let what =
                    "a write has failed and the server waits for its disk; try again once it can be written";
                StoreError::Io { path, error: std::io::Error::other(what) }
            }
            Self::Database(error) => StoreError::Damaged { path, what: error.to_string() },
        }
    }
}
