//! Check of the kind of a file (regular file, pipe, socket or device) before it is opened.

use std::fs::FileType;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Checks that a path leads to a regular file or does not exist. Opening a pipe instead would block until its
/// other end is opened.
///
/// # Errors
/// Returns an error that names the kind found, or the error of the operating system.
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

/// Returns the name of a kind of file; `None` for a regular file.
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
