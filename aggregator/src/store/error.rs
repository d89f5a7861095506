//! Why a store cannot be used.

use std::path::{Path, PathBuf};

use super::round_key_file::KEY_FILE;

/// The state directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file operation failed.
    #[error("{}: {error}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// Another server runs on this directory.
    #[error("{}: another server is running on this state directory", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// Another version wrote it.
    #[error("{}: it has format {found}, and this version reads format {expected}; finish the campaign with the version that began it, or move \
             it away to start a new one", path.display())]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// What this version writes.
        expected: u32,
    },
    /// A campaign was here, and its database has gone.
    #[error("{}: it is missing, and {} of a campaign is here: put it back, or move that away, too, to start a new campaign", path.display(), beside.display())]
    Missing {
        /// The database's file.
        path: PathBuf,
        /// What is left.
        beside: PathBuf,
    },
    /// The file is not what this version writes.
    #[error("{}: {what}; restore it from a backup, or move the whole directory away to start a new campaign", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The source of randomness failed: no update can be encrypted.
    #[error("no randomness for the key of the stored updates")]
    NoEntropy,
}

impl StoreError {
    /// Whether it may pass by itself, as when a disk is full, or a source of randomness fails.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::NoEntropy)
    }
}

/// The same, of a database that does not know its file.
#[derive(Debug)]
pub(super) enum DatabaseError {
    Database(redb::Error),
    Version(u32, u32),
    Damaged(String),
    /// The file with the key of a round cannot be used.
    RoundKeyFile(std::io::Error),
    /// What is in it does not open the stored updates.
    Key(String),
    NoEntropy,
}

impl<E: Into<redb::Error>> From<E> for DatabaseError {
    fn from(error: E) -> Self {
        Self::Database(error.into())
    }
}

impl DatabaseError {
    pub(super) fn at(self, path: &Path) -> StoreError {
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
                StoreError::Damaged { path, what: "it ends too early".to_owned() }
            }
            Self::Database(redb::Error::Io(error)) => StoreError::Io { path, error },
            Self::Database(redb::Error::PreviousIo) => {
                // It is opened anew with the next write that does not.
                let what =
                    "a write has failed, and the server waits for its disk; try again when that takes writes";
                StoreError::Io { path, error: std::io::Error::other(what) }
            }
            Self::Database(error) => StoreError::Damaged { path, what: error.to_string() },
        }
    }
}
