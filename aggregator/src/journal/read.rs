//! Reader of journal files.

use std::path::Path;

use super::JournalEntry;
use fedspan_files::regular;

/// Reason why a journal cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file operation failed.
    #[error("{path}: {error}")]
    Io {
        /// Path of the file.
        path: String,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// A line is not a journal entry of this version.
    #[error("{path}: line {line}: {message}")]
    Line {
        /// Path of the file.
        path: String,
        /// Number of the line, from 1.
        line: usize,
        /// Description of the error.
        message: String,
    },
}

/// Reads a journal file.
///
/// # Errors
/// [`JournalError::Io`] if the file cannot be read, [`JournalError::Line`] for the first malformed line.
pub fn read(path: &Path) -> Result<Vec<JournalEntry>, JournalError> {
    let name = path.display().to_string();
    let bytes = regular(path).and_then(|()| std::fs::read(path));
    match bytes {
        Ok(bytes) => parse(&name, &bytes),
        Err(error) => Err(JournalError::Io { path: name, error }),
    }
}

/// Parses the content of a journal file. `name` is the name of the file in errors. Bytes after the last line
/// feed are ignored: they belong to an entry whose writing was interrupted.
///
/// # Errors
/// [`JournalError::Line`] for the first malformed line.
pub fn parse(name: &str, bytes: &[u8]) -> Result<Vec<JournalEntry>, JournalError> {
    let end = bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
    let complete_lines = bytes.get(..end).unwrap_or_default();
    if complete_lines.is_empty() {
        return Ok(Vec::new());
    }
    let lines = complete_lines.split(|byte| *byte == b'\n').enumerate();
    let entries = lines.map(|(index, line)| {
        serde_json::from_slice(line).map_err(|error| JournalError::Line {
            path: name.to_owned(),
            line: index + 1,
            message: error.to_string(),
        })
    });
    entries.collect()
}
