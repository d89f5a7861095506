//! File lock that ends when its owner drops it, even if another process has the file open.

use std::fs::File;

/// File that this process has locked. Dropping the value releases the lock.
///
/// Closing a file releases its lock only if no other process has the file open. A child process that this
/// program is starting inherits the file until it executes its own program. So a program that embeds a server
/// could find its state directory locked after the server has ended. Therefore the lock is released
/// explicitly.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Takes over a file that has been locked with [`File::try_lock`] or [`File::try_lock_shared`].
    #[must_use]
    pub fn new(locked: File) -> Self {
        Self(locked)
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // If unlocking fails, closing the file releases the lock.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// A copy of the handle simulates the inherited handle of a child process that is starting.
    #[test]
    fn lock_ends_while_another_handle_is_open() {
        let path = std::env::temp_dir().join(format!("fedspan-file-lock-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        file.try_lock().unwrap();
        let copy = file.try_clone().unwrap();
        let lock = FileLock::new(file);
        assert!(File::open(&path).unwrap().try_lock().is_err());
        drop(lock);
        File::open(&path).unwrap().try_lock().unwrap();
        drop(copy);
        std::fs::remove_file(path).unwrap();
    }
}
