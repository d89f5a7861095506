//! Error type of the adapter server.

use std::path::{Path, PathBuf};

use crate::files::AdapterError;
use fedspan_files::{FileError, LockError};

/// Reason why the adapter server cannot start or continue. Committed rounds and acknowledged updates remain
/// on disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// An adapter file cannot be used.
    #[error("{0}")]
    Adapter(#[from] AdapterError),
    /// A file or socket operation failed.
    #[error("{}: {error}", path.display())]
    Io {
        /// Path of the file, or the address of the socket.
        path: PathBuf,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// Another server runs on the state directory.
    #[error("{}: another server is running on this state directory", path.display())]
    Locked {
        /// Path of the directory or of its lock file.
        path: PathBuf,
    },
    /// The state directory, or a file in it, is not private.
    #[error(transparent)]
    NotPrivate(FileError),
    /// A file of a committed round is not as it was committed.
    #[error("{}: damaged: {problem}; {remedy}", path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Difference between the file and what was recorded.
        problem: String,
        /// Instruction for the operator.
        remedy: String,
    },
    /// The state directory has updates of a round that is not the next one.
    #[error("{}: it holds updates of a later round than round {open}, which is open: a round was removed; bring it back, or move the updates out of the state directory",
            path.display())]
    ClosedUpdates {
        /// Path of the directory.
        path: PathBuf,
        /// Round that is open.
        open: u32,
    },
    /// The directory is not the state directory of an exchange.
    #[error("{}: no rounds were begun here; give the directory of the key state", path.display())]
    NoExchange {
        /// Path of the directory.
        path: PathBuf,
    },
    /// The state directory was created with another method or base.
    #[error("{}: it was created with {setting} {found}, and the configuration has {expected}; choose another state directory", path.display())]
    SettingChanged {
        /// Path of the state directory.
        path: PathBuf,
        /// Name of the setting that differs.
        setting: &'static str,
        /// Value in the state directory.
        found: String,
        /// Value in the configuration.
        expected: String,
    },
    /// An accepted update belongs to no configured client, or a client has two accepted updates.
    #[error("{}: this accepted update belongs to no client of the configuration, or to a client that has another one; add the client to the configuration, or move the file out of the state directory",
            path.display())]
    UnknownUpdate {
        /// Path of the update.
        path: PathBuf,
    },
}

impl ServerError {
    /// True if a file or an argument is wrong; false if an operation failed.
    #[must_use]
    pub fn is_invalid_input(&self) -> bool {
        match self {
            Self::Adapter(error) => error.is_invalid_input(),
            Self::SettingChanged { .. }
            | Self::UnknownUpdate { .. }
            | Self::ClosedUpdates { .. }
            | Self::NoExchange { .. }
            | Self::NotPrivate(_) => true,
            Self::Io { .. } | Self::Locked { .. } | Self::Damaged { .. } => false,
        }
    }

    /// True if the operation may succeed when it is repeated.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Adapter(error) => error.is_temporary(),
            Self::Io { .. } => true,
            Self::Locked { .. }
            | Self::NotPrivate(_)
            | Self::Damaged { .. }
            | Self::SettingChanged { .. }
            | Self::UnknownUpdate { .. }
            | Self::ClosedUpdates { .. }
            | Self::NoExchange { .. } => false,
        }
    }

    /// Error for a damaged file of a committed round.
    pub(super) fn damaged_round(path: PathBuf, problem: String, round: u32) -> Self {
        let remedy = match round.checked_sub(1) {
            Some(before) => format!(
                "restore the file from a backup, or move round-{round:04} and updates-{:04} out of the state directory: the \
                 server then continues after round {before} and asks the clients again",
                u64::from(round) + 1
            ),
            None => {
                "restore the file from a backup, or move the state directory away to begin again".to_owned()
            }
        };
        Self::Damaged { path, problem, remedy }
    }
}

impl From<LockError> for ServerError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Held { path } => Self::Locked { path },
            LockError::Io { path, error } => Self::Io { path, error },
        }
    }
}

impl From<FileError> for ServerError {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Io { path, error } => Self::Io { path, error },
            error => Self::NotPrivate(error),
        }
    }
}

/// Creates a converter from an I/O error on `path`.
pub(super) fn io_error(path: &Path) -> impl Fn(std::io::Error) -> ServerError {
    move |error| ServerError::Io { path: path.to_owned(), error }
}
