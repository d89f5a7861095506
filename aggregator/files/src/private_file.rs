//! Owner-only files for keys and other secrets: permissions are checked when a file is read, and set when a
//! file is created.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use zeroize::Zeroizing;

use crate::file_kind::regular;
use crate::file_lock::FileLock;

/// Permission bits: read and write for the owner.
pub(crate) const MODE: u32 = 0o600;

/// Reason why a file of secrets cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// A file operation failed.
    #[error("{}: {error}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        error: std::io::Error,
    },
    /// The file was replaced, but its directory could not be synced.
    #[error("{}: the change is in place, but may not survive a power cut: {error}", path.display())]
    NotDurable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        error: std::io::Error,
    },
    /// The file exists and would be overwritten.
    #[error("{}: already exists; move it away or choose another name", path.display())]
    Exists {
        /// Path of the file.
        path: PathBuf,
    },
    /// The permissions of the file give other users access.
    #[error("{0}: mode {mode:04o} lets other users read secrets; run chmod 600 {0}", path.display())]
    Exposed {
        /// Path of the file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// The file belongs to another user.
    #[error("{0}: owned by user {owner}, this process is user {user}; run chown {user} {0}", path.display())]
    Foreign {
        /// Path of the file.
        path: PathBuf,
        /// User that owns the file.
        owner: u32,
        /// User of this process.
        user: u32,
    },
    /// Other users may write a directory, and so replace its files.
    #[error("{0}: mode {mode:04o} lets other users replace files; run chmod go-w {0}", path.display())]
    Writable {
        /// Path of the directory.
        path: PathBuf,
        /// Permission bits of the directory.
        mode: u32,
    },
    /// A symbolic link is where a file is expected.
    #[error("{}: a symbolic link, which may lead anywhere; replace it by the file", path.display())]
    Link {
        /// Path of the link.
        path: PathBuf,
    },
    /// The path does not lead to a regular file.
    #[error("{}: not a regular file", path.display())]
    NotRegular {
        /// Path that was given.
        path: PathBuf,
    },
    /// No program writes to a pipe.
    #[error("{}: no program has opened this pipe for writing within {seconds} s; start the one that writes to it first", path.display())]
    NoWriter {
        /// Path of the pipe.
        path: PathBuf,
        /// Time that was waited, in seconds.
        seconds: u64,
    },
    /// The file is longer than allowed.
    #[error("{}: longer than {most} bytes, the most allowed", path.display())]
    TooLong {
        /// Path of the file.
        path: PathBuf,
        /// Largest length allowed, in bytes.
        most: usize,
    },
}

/// Returns the effective user of this process.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Reads an owner-only file of at most `max_len` bytes; `None` if it does not exist. Symbolic links are
/// rejected, since [`replace`] would replace the link instead of the file.
pub fn read(path: &Path, max_len: usize) -> Result<Option<Zeroizing<Vec<u8>>>, FileError> {
    match std::fs::symlink_metadata(path) {
        // The kind is checked before opening, since opening a pipe would block until its other end is opened.
        Ok(metadata) if !metadata.is_file() => Err(FileError::NotRegular { path: path.into() }),
        Ok(_) => {
            let mut file = File::open(path).map_err(|error| io_error(path, error))?;
            let metadata = file.metadata().map_err(|error| io_error(path, error))?;
            check_file(path, &metadata)?;
            read_contents(path, &mut file, &metadata, max_len).map(Some)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error(path, error)),
    }
}

/// Longest wait for a program that writes to a pipe. A password manager may ask for its own passphrase first.
const PIPE_WAIT_MAX: Duration = Duration::from_secs(60);

/// Reads a passphrase or a key of at most `max_len` bytes from an owner-only file or pipe. Root may read
/// another user's pipe, as in `pass show fleet | sudo ...`.
pub fn read_secret(path: &Path, max_len: usize) -> Result<Zeroizing<Vec<u8>>, FileError> {
    read_secret_within(path, max_len, PIPE_WAIT_MAX)
}

/// Reads a secret as [`read_secret`] does, and waits for a writer of a pipe for at most `wait_max`.
fn read_secret_within(
    path: &Path,
    max_len: usize,
    wait_max: Duration,
) -> Result<Zeroizing<Vec<u8>>, FileError> {
    // The rights are checked before opening as well, since opening a pipe waits for its writer.
    let metadata = std::fs::metadata(path).map_err(|error| io_error(path, error))?;
    check_secret(path, &metadata)?;
    let mut file = match metadata.file_type().is_fifo() {
        true => open_pipe(path, wait_max)?,
        false => File::open(path).map_err(|error| io_error(path, error))?,
    };
    let metadata = file.metadata().map_err(|error| io_error(path, error))?;
    check_secret(path, &metadata)?;
    read_contents(path, &mut file, &metadata, max_len)
}

/// Opens a pipe for reading once another program has opened it for writing.
fn open_pipe(path: &Path, wait_max: Duration) -> Result<File, FileError> {
    let (sender, opened) = std::sync::mpsc::channel();
    let pipe = path.to_owned();
    // If no writer comes, the thread waits until the process ends.
    std::thread::spawn(move || drop(sender.send(File::open(pipe))));
    match opened.recv_timeout(wait_max) {
        Ok(file) => file.map_err(|error| io_error(path, error)),
        Err(_) => Err(FileError::NoWriter { path: path.to_owned(), seconds: wait_max.as_secs() }),
    }
}

/// Checks that a path is a regular file or a pipe of this user without access for other users.
fn check_secret(path: &Path, metadata: &Metadata) -> Result<(), FileError> {
    match metadata.file_type().is_fifo() {
        true => check_rights(path, metadata, metadata.uid() == user() || user() == 0),
        false => check_file(path, metadata),
    }
}

/// Checks that a path is a regular file of this user without access for other users.
fn check_file(path: &Path, metadata: &Metadata) -> Result<(), FileError> {
    if metadata.is_file() {
        check_rights(path, metadata, metadata.uid() == user())
    } else {
        Err(FileError::NotRegular { path: path.to_owned() })
    }
}

/// Checks that a file belongs to this user (`is_owned`) and gives other users no access.
fn check_rights(path: &Path, metadata: &Metadata, is_owned: bool) -> Result<(), FileError> {
    let (path, mode) = (path.to_owned(), metadata.mode() & 0o7777);
    if !is_owned {
        Err(FileError::Foreign { path, owner: metadata.uid(), user: user() })
    } else if mode & 0o077 != 0 {
        Err(FileError::Exposed { path, mode })
    } else {
        Ok(())
    }
}

/// Reads a file of at most `max_len` bytes.
fn read_contents(
    path: &Path,
    file: &mut File,
    metadata: &Metadata,
    max_len: usize,
) -> Result<Zeroizing<Vec<u8>>, FileError> {
    // The buffer is allocated at its full length, since a growing vector would leave copies of secrets in
    // memory.
    let file_len = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
    let capacity = if metadata.is_file() { file_len.min(max_len) } else { max_len.min(1 << 16) };
    let mut bytes = Zeroizing::new(Vec::with_capacity(capacity + 1));
    let limit = u64::try_from(max_len).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit).read_to_end(&mut bytes).map_err(|error| io_error(path, error))?;
    if bytes.len() > max_len {
        Err(FileError::TooLong { path: path.into(), most: max_len })
    } else {
        Ok(bytes)
    }
}

/// Creates an owner-only file that is durable on return. After an error the file is removed.
///
/// # Errors
/// [`FileError::Exists`] if the path exists; [`FileError::Io`] if a file operation fails.
pub fn create_private(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    create_partial(path, bytes)?;
    let durable = sync_directory(path).map_err(|error| io_error(parent(path), error));
    durable.inspect_err(|_| drop(std::fs::remove_file(path)))
}

/// Creates an owner-only file as [`create_private`] does, for a caller that renames the file and then syncs its directory: the content is
/// durable on return, the name is not.
///
/// # Errors
/// Same as [`create_private`].
pub fn create_partial(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let mut file = match OpenOptions::new().write(true).create_new(true).mode(MODE).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            return Err(FileError::Exists { path: path.into() });
        }
        Err(error) => return Err(io_error(path, error)),
    };
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    written.map_err(|error| io_error(path, error)).inspect_err(|_| drop(std::fs::remove_file(path)))
}

/// Function that syncs the directory of a file: [`sync_directory`], or a function with simulated errors in
/// tests.
pub type Sync = fn(&Path) -> std::io::Result<()>;

/// Replaces or creates a file atomically: after a crash either the old file or the new file exists. The
/// caller must hold the [`lock`] of the file. After every error except [`FileError::NotDurable`] the old file
/// is unchanged.
pub fn replace(path: &Path, bytes: &[u8], sync: Sync) -> Result<(), FileError> {
    let partial = with_suffix(path, ".partial");
    match std::fs::remove_file(&partial) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io_error(&partial, error)),
        _ => {}
    }
    create_partial(&partial, bytes)?;
    std::fs::rename(&partial, path).map_err(|error| io_error(path, error))?;
    sync(path).map_err(|error| FileError::NotDurable { path: path.to_owned(), error })
}

/// Locks a file before it is replaced, by a lock file in the same directory. `None` if another process holds
/// the lock.
pub fn lock(path: &Path) -> Result<Option<FileLock>, FileError> {
    let path = with_suffix(path, ".lock");
    regular(&path).map_err(|error| io_error(&path, error))?;
    let open = OpenOptions::new().create(true).truncate(false).write(true).mode(MODE).open(&path);
    let lock = open.map_err(|error| io_error(&path, error))?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(FileLock::new(lock))),
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        Err(std::fs::TryLockError::Error(error)) => Err(io_error(&path, error)),
    }
}

/// Creates the directory of a file, and its missing parents, with access for the owner only.
pub fn make_directory(path: &Path) -> Result<(), FileError> {
    let directory = parent(path);
    let created = make_directories(directory, DirBuilder::new().mode(0o700));
    created.map(drop).map_err(|error| io_error(directory, error))
}

/// Creates a directory and its missing parents, durable on return. Returns the created directories, outermost
/// first. After an error the created directories are removed.
pub fn make_directories(directory: &Path, builder: &DirBuilder) -> std::io::Result<Vec<PathBuf>> {
    let missing = directory.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.is_dir());
    let mut missing: Vec<&Path> = missing.collect();
    let mut created = Vec::new();
    while let Some(path) = missing.pop() {
        let result = match builder.create(path) {
            Ok(()) => {
                created.push(path.to_owned());
                sync_directory(path)
            }
            // Another process has created the directory in the meantime.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            // The path is not a directory. Creating the whole path returns the error of the operating system.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => builder.create(directory),
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            created.iter().rev().for_each(|path| drop(std::fs::remove_dir(path)));
            return Err(error);
        }
    }
    Ok(created)
}

/// Syncs the directory of a file, so that a rename survives a power cut.
pub fn sync_directory(path: &Path) -> std::io::Result<()> {
    File::open(parent(path)).and_then(|directory| directory.sync_all())
}

/// Returns the directory of a file.
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Appends a suffix to the file name of a path.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Adds the path to an I/O error.
fn io_error(path: &Path, error: std::io::Error) -> FileError {
    FileError::Io { path: path.to_owned(), error }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn created_directories_are_returned_or_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let outer = scratch.path().join("new");
        let inner = scratch.path().join("new/under");
        make_directories(&outer.join("x".repeat(300)), &DirBuilder::new()).unwrap_err();
        assert!(!outer.exists());
        assert_eq!(make_directories(&inner, &DirBuilder::new()).unwrap(), [outer, inner.clone()]);
        assert!(make_directories(&inner, &DirBuilder::new()).unwrap().is_empty());
        std::fs::write(inner.join("file"), b"x").unwrap();
        for path in ["file", "file/below"] {
            make_directories(&inner.join(path), &DirBuilder::new()).unwrap_err();
        }
    }

    /// A pipe without a writer is reported, and one with a writer is read. Rights are checked before a pipe is
    /// opened.
    #[test]
    fn pipe_without_writer_is_reported() {
        let scratch = tempfile::tempdir().unwrap();
        let make = |name: &str, mode: &str| {
            let pipe = scratch.path().join(name);
            let made = std::process::Command::new("mkfifo").args(["-m", mode]).arg(&pipe).status();
            assert!(made.unwrap().success());
            pipe
        };
        let error = read_secret_within(&make("unused", "600"), 10, Duration::ZERO).unwrap_err();
        assert!(matches!(error, FileError::NoWriter { seconds: 0, .. }), "{error}");
        let pipe = make("written", "600");
        let target = pipe.clone();
        let writer = std::thread::spawn(move || std::fs::write(target, b"secret"));
        assert_eq!(read_secret(&pipe, 10).unwrap().as_slice(), b"secret");
        writer.join().unwrap().unwrap();
        let error = read_secret(&make("exposed", "644"), 10).unwrap_err();
        assert!(matches!(error, FileError::Exposed { mode: 0o644, .. }), "{error}");
    }
}
