//! Why an encoder cannot be read, or trained: one line that names the file.

use std::path::{Path, PathBuf};

use fedspan_adapters::files::AdapterError;

use fedspan_sim_core::report::files::WriteError;

/// No encoder, no sentences, no adapter, or no run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncoderError {
    /// A file cannot be read, or is not what it should be.
    #[error("{}: {fault}", file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// What is wrong.
        fault: String,
    },
    /// A setting that does not fit the data or the model.
    #[error("{0}")]
    Setting(String),
    /// Adapters could not be averaged.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// A result could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Training left the numbers.
    #[error("round {round}, client {client}: the loss is not finite; a smaller --step-size may help")]
    Diverged {
        /// From 1.
        round: u32,
        /// From 0.
        client: usize,
    },
}

impl EncoderError {
    /// Of a file.
    pub(super) fn file(file: &Path, fault: impl ToString) -> Self {
        Self::File { file: file.to_owned(), fault: fault.to_string() }
    }

    /// Whether a file or an argument is wrong; otherwise the work failed.
    #[must_use]
    pub fn is_wrong_input(&self) -> bool {
        match self {
            Self::File { .. } | Self::Setting(_) => true,
            Self::Adapter(error) => error.is_invalid_input(),
            Self::Write(_) | Self::Diverged { .. } => false,
        }
    }
}

/// Bytes of a regular file of at most `most` bytes.
pub(super) fn read(path: &Path, most: u64) -> Result<Vec<u8>, EncoderError> {
    let bytes = fedspan_sim_core::data::file::read(&path.display().to_string(), most);
    bytes.map_err(|error| EncoderError::file(path, error.message))
}

/// Text of a file of at most `most` bytes.
pub(super) fn read_text(path: &Path, most: u64) -> Result<String, EncoderError> {
    String::from_utf8(read(path, most)?).map_err(|error| {
        EncoderError::file(path, format!("byte {} is not UTF-8", error.utf8_error().valid_up_to()))
    })
}
