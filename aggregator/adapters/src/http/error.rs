//! Error type of the adapter server.

use std::path::{Path, PathBuf};

use crate::files::AdapterError;

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
        /// Path of the lock file.
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
    /// A `round.json` cannot be parsed.
    #[error("{}: {error}", path.display())]
    CorruptRecord {
        /// Path of the record.
        path: PathBuf,
        /// Parse error.
        error: serde_json::Error,
    },
}

impl ServerError {
    /// True if a file or an argument is wrong; false if an operation failed.
    #[must_use]
    pub fn is_invalid_input(&self) -> bool {
        match self {
            Self::Adapter(error) => error.is_invalid_input(),
            Self::SettingChanged { .. } | Self::UnknownUpdate { .. } => true,
            Self::Io { .. } | Self::Locked { .. } | Self::CorruptRecord { .. } => false,
        }
    }
}

/// Creates a converter from an I/O error on `path`.
pub(super) fn io_error(path: &Path) -> impl Fn(std::io::Error) -> ServerError {
    move |error| ServerError::Io { path: path.to_owned(), error }
}
