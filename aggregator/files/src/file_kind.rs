//! What a path leads to, looked at before it is opened.

use std::fs::FileType;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// That a file is a regular one where it is there at all. A pipe is found before it is opened, which would wait for its
/// other end.
///
/// # Errors
/// What it is instead, or what the system says.
pub fn regular(path: &Path) -> std::io::Result<()> {
    let about = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        about => about?,
    };
    match other_than_a_file(about.file_type()) {
        None => Ok(()),
        Some(kind) => Err(std::io::Error::other(format!("found {kind}, allowed: a file"))),
    }
}

/// The words for what is no regular file.
#[must_use]
pub fn other_than_a_file(kind: FileType) -> Option<&'static str> {
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
