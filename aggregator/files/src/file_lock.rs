//! Lock that ends with its owner.

use std::fs::File;

/// File that this process has locked, until the value is dropped.
///
/// Closing a file ends its lock only if no other process has the file open. A child process that this program is
/// just starting has it open until it runs its own code, so that a program that embeds a server could find its state
/// directory locked after the server has ended. Hence the lock is ended explicitly.
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
        // If it fails, closing the file ends the lock.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// A copy of the handle stands for the one that a child process has while it starts.
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
