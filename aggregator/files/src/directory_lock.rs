//! Lock of a state directory: of the directory itself, and of the file `lock` in it.
//!
//! The lock of the directory cannot be defeated by removing a file. The lock of the file keeps out programs of
//! earlier versions, which lock only the file.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::file_kind::regular;
use crate::file_lock::FileLock;
use crate::private_file::MODE;

/// Name of the lock file in a state directory.
const FILE: &str = "lock";

/// Longest wait for other programs that read the state directory.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between attempts to lock the state directory.
const RETRY: Duration = Duration::from_millis(20);

/// Reason why a state directory cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// A server holds the lock.
    #[error("{}: another server is running on this state directory", path.display())]
    Held {
        /// Path of the directory or of its lock file.
        path: PathBuf,
    },
    /// A file operation failed, or a program reads the directory for a long time.
    #[error("{}: {error}", path.display())]
    Io {
        /// Path of the directory or of its lock file.
        path: PathBuf,
        /// Error of the system.
        error: std::io::Error,
    },
}

/// Lock of a state directory, released on drop.
#[derive(Debug)]
pub struct DirectoryLock {
    /// Lock of the directory; `None` on a file system that cannot lock directories, such as NFS.
    directory: Option<FileLock>,
    /// Lock of the file in it; `None` for a reader of a directory without such a file.
    _file: Option<FileLock>,
}

impl DirectoryLock {
    /// Locks an existing directory for one server. Programs that read the directory hold a shared lock for a short
    /// time: the server calls `on_wait` once and waits for them.
    ///
    /// # Errors
    /// [`LockError::Held`] if another server uses the directory; [`LockError::Io`] if the lock file cannot be opened,
    /// or if other programs still read the directory after ten seconds.
    pub fn exclusive(directory: &Path, on_wait: impl Fn(&Path)) -> Result<Self, LockError> {
        let opened = File::open(directory).map_err(|error| io_error(directory, error))?;
        let directory_lock = lock_exclusive(opened, directory, &on_wait, true)?;
        let path = directory.join(FILE);
        regular(&path).map_err(|error| io_error(&path, error))?;
        let opened = OpenOptions::new().create(true).truncate(false).write(true).mode(MODE).open(&path);
        let opened = opened.map_err(|error| io_error(&path, error))?;
        let file_lock = lock_exclusive(opened, &path, &on_wait, false)?;
        Ok(Self { directory: directory_lock, _file: file_lock })
    }

    /// Locks an existing directory for reading, which prevents a server from starting. Creates no file.
    ///
    /// # Errors
    /// [`LockError::Held`] while a server runs; [`LockError::Io`] if the directory or the file cannot be opened.
    pub fn shared(directory: &Path) -> Result<Self, LockError> {
        let opened = File::open(directory).map_err(|error| io_error(directory, error))?;
        let directory_lock = lock_shared(opened, directory, true)?;
        let path = directory.join(FILE);
        let file_lock = match regular(&path).and_then(|()| File::open(&path)) {
            Ok(opened) => lock_shared(opened, &path, false)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(io_error(&path, error)),
        };
        Ok(Self { directory: directory_lock, _file: file_lock })
    }

    /// Returns false if the file system cannot lock directories, so that only the lock file keeps others out.
    #[must_use]
    pub fn is_of_directory(&self) -> bool {
        self.directory.is_some()
    }
}

/// Locks a file exclusively, and waits for readers. Returns `None` if `is_optional` and the file cannot be locked.
fn lock_exclusive(
    file: File,
    path: &Path,
    on_wait: &dyn Fn(&Path),
    is_optional: bool,
) -> Result<Option<FileLock>, LockError> {
    let began = Instant::now();
    let mut is_first = true;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(FileLock::new(file))),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(_)) if is_optional => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(io_error(path, error)),
        }
        match file.try_lock_shared() {
            Ok(()) => file.unlock().map_err(|error| io_error(path, error))?,
            Err(TryLockError::WouldBlock) => return Err(LockError::Held { path: path.to_owned() }),
            Err(TryLockError::Error(error)) => return Err(io_error(path, error)),
        }
        if began.elapsed() > TIMEOUT {
            let text =
                "a check or an export is still reading this state directory; try again when it has ended";
            return Err(io_error(path, std::io::Error::other(text)));
        }
        if std::mem::take(&mut is_first) {
            on_wait(path);
        }
        std::thread::sleep(RETRY);
    }
}

/// Locks a file for reading. Returns `None` if `is_optional` and the file cannot be locked.
fn lock_shared(file: File, path: &Path, is_optional: bool) -> Result<Option<FileLock>, LockError> {
    match file.try_lock_shared() {
        Ok(()) => Ok(Some(FileLock::new(file))),
        Err(TryLockError::WouldBlock) => Err(LockError::Held { path: path.to_owned() }),
        Err(TryLockError::Error(_)) if is_optional => Ok(None),
        Err(TryLockError::Error(error)) => Err(io_error(path, error)),
    }
}

/// Adds the path to an I/O error.
fn io_error(path: &Path, error: std::io::Error) -> LockError {
    LockError::Io { path: path.to_owned(), error }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn is_held(result: Result<DirectoryLock, LockError>) -> bool {
        matches!(result, Err(LockError::Held { .. }))
    }

    #[test]
    fn removing_the_lock_file_does_not_release_the_directory() {
        let root = tempfile::tempdir().unwrap();
        let lock = DirectoryLock::exclusive(root.path(), |_| {}).unwrap();
        assert!(lock.is_of_directory());
        std::fs::remove_file(root.path().join(FILE)).unwrap();
        assert!(is_held(DirectoryLock::exclusive(root.path(), |_| {})));
        assert!(is_held(DirectoryLock::shared(root.path())));
        drop(lock);
        DirectoryLock::exclusive(root.path(), |_| {}).unwrap();
    }

    /// A server of an earlier version locks the file only.
    #[test]
    fn lock_of_an_earlier_version_is_respected() {
        let root = tempfile::tempdir().unwrap();
        let earlier = File::create(root.path().join(FILE)).unwrap();
        earlier.try_lock().unwrap();
        assert!(is_held(DirectoryLock::exclusive(root.path(), |_| {})));
        assert!(is_held(DirectoryLock::shared(root.path())));
        earlier.unlock().unwrap();
        let lock = DirectoryLock::exclusive(root.path(), |_| {}).unwrap();
        assert!(earlier.try_lock().is_err());
        drop(lock);
    }

    #[test]
    fn readers_share_the_directory_and_create_no_file() {
        let root = tempfile::tempdir().unwrap();
        let readers =
            [DirectoryLock::shared(root.path()).unwrap(), DirectoryLock::shared(root.path()).unwrap()];
        assert!(!root.path().join(FILE).exists());
        drop(readers);
    }

    /// A server waits for a program that reads the directory, and says so once.
    #[test]
    fn server_waits_for_readers() {
        let root = tempfile::tempdir().unwrap();
        let reader = DirectoryLock::shared(root.path()).unwrap();
        let (waiting, is_waiting) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| DirectoryLock::exclusive(root.path(), |_| waiting.send(()).unwrap()));
            is_waiting.recv_timeout(TIMEOUT).unwrap();
            std::thread::sleep(3 * RETRY);
            drop(reader);
            server.join().unwrap().unwrap();
        });
        assert!(is_waiting.try_recv().is_err());
    }

    /// Opening a pipe instead of the file would wait for its other end.
    #[test]
    fn lock_file_of_another_kind_is_refused() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join(FILE)).unwrap();
        for result in [DirectoryLock::exclusive(root.path(), |_| {}), DirectoryLock::shared(root.path())] {
            let text = result.unwrap_err().to_string();
            assert!(text.contains("lock: found a directory, allowed: a file"), "{text}");
        }
    }

    #[test]
    fn lock_says_whether_it_is_of_the_directory() {
        assert!(!DirectoryLock { directory: None, _file: None }.is_of_directory());
    }
}
