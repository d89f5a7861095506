//! Error of the encoder experiment, and readers of its input files. The message of an error is one line that
//! names the file or the setting.

use std::path::{Path, PathBuf};

use fedspan_adapters::files::AdapterError;

use fedspan_sim_core::report::files::WriteError;

/// Error of reading an encoder, sentences or adapters, or of training.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncoderError {
    /// A file cannot be read or is malformed.
    #[error("{}: {fault}", file.display())]
    File {
        /// Path of the file.
        file: PathBuf,
        /// Description of the fault.
        fault: String,
    },
    /// A setting does not fit the data or the model.
    #[error("{0}")]
    Setting(String),
    /// The adapters could not be averaged.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// A result file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A client's training loss is not finite.
    #[error(
        "round {round}, client {client}: found a loss of {loss}, allowed: a finite number; a smaller --step-size may help"
    )]
    Diverged {
        /// Number of the round, from 1.
        round: u32,
        /// Index of the client, from 0.
        client: usize,
        /// Mean training loss of the client, in nats.
        loss: f64,
    },
    /// A client's adapter contains values that are not finite, although its training loss is finite.
    #[error(
        "round {round}, client {client}: found {count} adapter values of {of} that are not finite after a loss of {loss}, the \
         first in {tensor}; a smaller --step-size may help"
    )]
    NonFiniteAdapter {
        /// Number of the round, from 1.
        round: u32,
        /// Index of the client, from 0.
        client: usize,
        /// Mean training loss of the client, in nats.
        loss: f64,
        /// Number of values that are not finite.
        count: usize,
        /// Number of values of the adapter.
        of: usize,
        /// Name of the first tensor with a value that is not finite.
        tensor: String,
    },
}

impl EncoderError {
    /// Creates a [`Self::File`] error.
    pub(super) fn file(file: &Path, fault: impl ToString) -> Self {
        Self::File { file: file.to_owned(), fault: fault.to_string() }
    }

    /// True if an input file or an argument is wrong; false if the run itself failed.
    #[must_use]
    pub fn is_wrong_input(&self) -> bool {
        match self {
            Self::File { .. } | Self::Setting(_) => true,
            Self::Adapter(error) => error.is_invalid_input(),
            Self::Write(_) | Self::Diverged { .. } | Self::NonFiniteAdapter { .. } => false,
        }
    }
}

/// Reads a regular file of at most `max_bytes` bytes.
pub(super) fn read(path: &Path, max_bytes: u64) -> Result<Vec<u8>, EncoderError> {
    let bytes = fedspan_sim_core::data::file::read(&path.display().to_string(), max_bytes);
    bytes.map_err(|error| EncoderError::file(path, error.message))
}

/// Reads a UTF-8 file of at most `max_bytes` bytes.
pub(super) fn read_text(path: &Path, max_bytes: u64) -> Result<String, EncoderError> {
    String::from_utf8(read(path, max_bytes)?).map_err(|error| {
        EncoderError::file(path, format!("byte {} is not UTF-8", error.utf8_error().valid_up_to()))
    })
}
