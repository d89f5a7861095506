//! File-system calls of the round store, with a function that tests use to let them fail.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::ServerError;
use super::error::io_error;

/// Function that is called with the path before and after every file-system call. An error before the call replaces
/// the call; an error after it stands for a call that failed although it took effect.
pub type FaultFn = Arc<dyn Fn(&Path) -> std::io::Result<()> + Send + Sync>;

/// Permission bits of the files of a state directory: read and write for the owner.
pub const PRIVATE: u32 = 0o600;

/// File-system calls of the store.
#[derive(Clone, Default)]
pub struct Disk {
    /// Function that lets calls fail that change something.
    fault: Option<FaultFn>,
    /// Function that lets reads of updates fail.
    read_fault: Option<FaultFn>,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Disk").field(&self.fault.as_ref().map(|_| "faults")).finish()
    }
}

impl Disk {
    /// Creates calls that `fault` can let fail, and reads of updates that `read_fault` can let fail.
    #[cfg(test)]
    pub fn with_faults(fault: FaultFn, read_fault: FaultFn) -> Self {
        Self { fault: Some(fault), read_fault: Some(read_fault) }
    }

    /// State of SHA-256 after all bytes of an update.
    ///
    /// # Errors
    /// The error of the system or, in tests, of the fault.
    pub fn hash(&self, path: &Path) -> std::io::Result<Sha256> {
        self.read_fault.as_ref().map_or(Ok(()), |fault| fault(path))?;
        hash_file(path)
    }

    /// Performs an operation that writes at `path`.
    ///
    /// # Errors
    /// The error of the operation or, in tests, of the fault.
    pub fn call<T>(
        &self,
        path: &Path,
        operation: impl FnOnce() -> Result<T, ServerError>,
    ) -> Result<T, ServerError> {
        let fault = || self.fault.as_ref().map_or(Ok(()), |fault| fault(path).map_err(io_error(path)));
        fault()?;
        let done = operation()?;
        fault()?;
        Ok(done)
    }

    /// Creates a directory with its missing parents, for the owner only, and syncs their parents.
    pub fn create_directory(&self, directory: &Path) -> Result<(), ServerError> {
        self.call(directory, || {
            let created = fedspan_files::make_directories(directory, DirBuilder::new().mode(0o700)).map(drop);
            created.map_err(io_error(directory))
        })
    }

    /// Removes an empty directory, if it exists.
    pub fn remove_directory(&self, directory: &Path) -> Result<(), ServerError> {
        self.call(directory, || match std::fs::remove_dir(directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io_error(directory)(error)),
            Ok(()) | Err(_) => Ok(()),
        })
    }

    /// Removes a file, if it exists.
    pub fn remove_file(&self, path: &Path) -> Result<(), ServerError> {
        self.call(path, || match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io_error(path)(error)),
            Ok(()) | Err(_) => Ok(()),
        })
    }

    /// Renames a file or a directory.
    pub fn rename(&self, from: &Path, to: &Path) -> Result<(), ServerError> {
        self.call(to, || std::fs::rename(from, to).map_err(io_error(to)))
    }

    /// Syncs a directory or a file.
    pub fn sync(&self, path: &Path) -> Result<(), ServerError> {
        self.call(path, || File::open(path).and_then(|file| file.sync_all()).map_err(io_error(path)))
    }

    /// Writes a new file for the owner only, and syncs it.
    pub fn write_new(&self, path: &Path, bytes: &[u8]) -> Result<(), ServerError> {
        self.call(path, || {
            let file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(path);
            let written = file.and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
            written.map_err(io_error(path))
        })
    }

    /// Takes the access of other users from a file.
    pub fn make_private(&self, path: &Path) -> Result<(), ServerError> {
        self.call(path, || {
            std::fs::set_permissions(path, Permissions::from_mode(PRIVATE)).map_err(io_error(path))
        })
    }
}

/// State of SHA-256 after all bytes of a file.
pub fn hash_file(path: &Path) -> std::io::Result<Sha256> {
    fedspan_files::regular(path)?;
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut block = vec![0; 1 << 16];
    loop {
        match file.read(&mut block)? {
            0 => return Ok(hasher),
            read => hasher.update(block.get(..read).unwrap_or_default()),
        }
    }
}

/// True if an error says nothing about the file at which it occurred, because the system lacks something for all files,
/// such as space, memory or file descriptors, or the call was interrupted. All other errors of a read, such as an input
/// or output error, are treated as damage of the file.
pub fn is_of_the_system(error: &std::io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::NOSPC
                | Errno::DQUOT
                | Errno::MFILE
                | Errno::NFILE
                | Errno::NOMEM
                | Errno::NOBUFS
                | Errno::INTR
                | Errno::AGAIN
                | Errno::TIMEDOUT
                | Errno::STALE
                | Errno::NETDOWN
                | Errno::NETUNREACH
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
        )
    )
}

/// Reads a file back and compares it with the state of SHA-256 after the bytes that were to be written.
///
/// # Errors
/// [`ServerError::Io`] if the file has other bytes or cannot be read. Writing it again may help.
pub fn verify_written(path: &Path, written: Sha256) -> Result<(), ServerError> {
    let found = hash_file(path).map_err(io_error(path))?;
    compare_written(path, &finish_hex(written), &finish_hex(found))
}

/// Compares the digest of a file that was read back with that of the bytes that were to be written.
///
/// # Errors
/// [`ServerError::Io`] if they differ.
pub fn compare_written(path: &Path, written: &str, found: &str) -> Result<(), ServerError> {
    if found == written {
        return Ok(());
    }
    let text =
        format!("read back SHA-256 {found}, written was {written}; it will be written again, check the disk");
    Err(io_error(path)(std::io::Error::new(std::io::ErrorKind::InvalidData, text)))
}

/// Digest in 64 hexadecimal digits, in lower case.
pub fn hex_text(digest: &[u8; 32]) -> String {
    let mut text = String::new();
    fedspan_files::hex::encode(digest, &mut text);
    text
}

/// Digest of a state of SHA-256, in hexadecimal digits.
pub fn finish_hex(hasher: Sha256) -> String {
    hex_text(&hasher.finalize().into())
}
