//! Why an exchange cannot go on.

use std::path::{Path, PathBuf};

use crate::files::AdapterError;

/// An exchange cannot begin, or not go on; what was committed and acknowledged is safe.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// An adapter cannot be used.
    #[error("{0}")]
    Adapter(#[from] AdapterError),
    /// A file operation failed.
    #[error("{}: {error}", path.display())]
    Io {
        /// Of what.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// Another server runs on the state directory.
    #[error("{}: another server is running on this state directory", path.display())]
    Locked {
        /// The lock.
        path: PathBuf,
    },
    /// The state directory is another exchange's.
    #[error("{}: it was begun with {what} {found}, and the configuration has {expected}; choose another state directory", path.display())]
    SettingChanged {
        /// The directory.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// Its value in the directory.
        found: String,
        /// In the configuration.
        expected: String,
    },
    /// An update that was counted is nobody's.
    #[error("{}: it was counted, and the configuration has no such client, or it has two of one; bring the client back, or move the file away",
            path.display())]
    UnknownUpdate {
        /// The update.
        path: PathBuf,
    },
    /// A record that this version has not written.
    #[error("{}: {error}", path.display())]
    CorruptRecord {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        error: serde_json::Error,
    },
}

impl ServerError {
    /// Whether a file or an argument is wrong; otherwise the work failed.
    #[must_use]
    pub fn is_invalid_input(&self) -> bool {
        match self {
            Self::Adapter(error) => error.is_invalid_input(),
            Self::SettingChanged { .. } | Self::UnknownUpdate { .. } => true,
            Self::Io { .. } | Self::Locked { .. } | Self::CorruptRecord { .. } => false,
        }
    }
}

/// What the system said of a path.
pub(super) fn io(path: &Path) -> impl Fn(std::io::Error) -> ServerError {
    move |error| ServerError::Io { path: path.to_owned(), error }
}
