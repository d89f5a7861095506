//! Database backend: opens and reopens the database, and detects that the database file was replaced.

use std::cell::Cell;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use redb::{Database, StorageBackend};

use super::builder;
use super::error::DatabaseError;

/// Source from which the database is opened: a file, or the storage of a test.
pub(super) struct Backend {
    open: Box<dyn Fn() -> Result<Database, redb::Error> + Send>,
    file: Option<PathBuf>,
    /// Device and inode of the file at the last opening.
    opened: Cell<Option<(u64, u64)>>,
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Backend")
    }
}

impl Backend {
    /// Creates a backend for an existing file.
    pub fn file(path: &Path) -> Self {
        let owned_path = path.to_owned();
        let open = Box::new(move || Ok(builder().open(&owned_path)?));
        Self { open, file: Some(path.to_owned()), opened: Cell::new(None) }
    }

    /// Creates a backend for any other storage.
    pub fn storage<S: StorageBackend>(storage: impl Fn() -> S + Send + 'static) -> Self {
        let open = Box::new(move || Ok(builder().create_with_backend(storage())?));
        Self { open, file: None, opened: Cell::new(None) }
    }

    /// Opens the database.
    pub fn open(&self) -> Result<Database, DatabaseError> {
        let database = (self.open)()?;
        self.opened.set(self.identity().map_err(redb::Error::Io)?);
        Ok(database)
    }

    /// Checks that the path still refers to the opened file, because writes to a removed or replaced file
    /// would be lost.
    pub fn check_same_file(&self) -> std::io::Result<()> {
        if self.identity()? == self.opened.get() {
            return Ok(());
        }
        Err(std::io::Error::other("the file was replaced after it was opened"))
    }

    /// Returns device and inode of the file; `None` for other storage.
    fn identity(&self) -> std::io::Result<Option<(u64, u64)>> {
        let metadata = self.file.as_ref().map(std::fs::metadata).transpose()?;
        Ok(metadata.map(|metadata| (metadata.dev(), metadata.ino())))
    }
}
