//! Reads a journal back.

use std::path::Path;

use super::JournalEntry;
use fedspan_files::regular;

/// A journal that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file operation failed.
    #[error("{path}: {error}")]
    Io {
        /// Which file.
        path: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// A line is not what this version writes.
    #[error("{path}: line {line}: {message}")]
    Line {
        /// Which file.
        path: String,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
}

/// Reads a file.
///
/// # Errors
/// [`JournalError`].
pub fn read(path: &Path) -> Result<Vec<JournalEntry>, JournalError> {
    let name = path.display().to_string();
    let bytes = regular(path).and_then(|()| std::fs::read(path));
    match bytes {
        Ok(bytes) => parse(&name, &bytes),
        Err(error) => Err(JournalError::Io { path: name, error }),
    }
}

/// Reads the content of a file that is called `name` in errors. Bytes after the last line feed are a line that was
/// being written when something ended the server, and do not count.
///
/// # Errors
/// [`JournalError::Line`] for the first line that is none.
pub fn parse(name: &str, bytes: &[u8]) -> Result<Vec<JournalEntry>, JournalError> {
    let end = bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
    let whole = bytes.get(..end).unwrap_or_default();
    if whole.is_empty() {
        return Ok(Vec::new());
    }
    let lines = whole.split(|byte| *byte == b'\n').enumerate();
    let read = lines.map(|(index, line)| {
        serde_json::from_slice(line).map_err(|error| JournalError::Line {
            path: name.to_owned(),
            line: index + 1,
            message: error.to_string(),
        })
    });
    read.collect()
}
