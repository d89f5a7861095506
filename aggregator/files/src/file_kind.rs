//! File kinds, checked before a file is opened.

use std::fs::FileType;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Checks that a path leads to a regular file or to nothing. Opening a pipe would wait for its other end.
///
/// # Errors
/// An error that names the kind that was found, or the error of the system.
pub fn regular(path: &Path) -> std::io::Result<()> {
    let about = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        about => about?,
    };
    match non_file_kind(about.file_type()) {
        None => Ok(()),
        Some(kind) => Err(std::io::Error::other(format!("found {kind}, allowed: a file"))),
    }
}

/// Returns the name of a kind other than a regular file.
#[must_use]
pub fn non_file_kind(kind: FileType) -> Option<&'static str> {
    if kind.is_file() {
        None
    } else if kind.is_dir() {
        Some("a directory")
    } else if kind.is_fifo() {
        Some("a pipe")
    } else if kind.is_socket() {
        Some("a socket")
    } else {
        Some("a device")
    }
}
