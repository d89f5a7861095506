//! Atomic directory: appears complete and durable, or not at all. Only directories made here are removed on
//! failure.

use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::ExportError;
use fedspan_files::{beside, make_directories, parent, sync_directory};

/// Temporary names to try, since some may exist: another user's, or left by a crash.
const NAMES: u32 = 16;

/// Directory that is written under a temporary name, and removed on drop unless it was [committed](Self::put).
#[derive(Debug)]
pub(super) struct AtomicDir {
    to: PathBuf,
    /// Current path of the directory.
    made: Option<PathBuf>,
    /// Parent directories that were created for it, outermost first.
    above: Vec<PathBuf>,
}

impl AtomicDir {
    /// Makes a temporary directory for a target that does not exist yet.
    pub(super) fn begin(to: &Path) -> Result<Self, ExportError> {
        // Removes a trailing slash.
        let to: PathBuf = to.components().collect();
        refuse_to_overwrite(&to)?;
        let above = make_directories(parent(&to), &DirBuilder::new()).map_err(io(&to))?;
        let mut whole = Self { to, made: None, above };
        whole.made = Some(whole.partial()?);
        Ok(whole)
    }

    /// Makes the first temporary directory whose name is free.
    fn partial(&self) -> Result<PathBuf, ExportError> {
        let first = beside(&self.to, ".partial");
        let others = (2..=NAMES).map(|number| beside(&first, &format!("-{number}")));
        for path in [first.clone()].into_iter().chain(others) {
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(io(&path)(error)),
            }
        }
        Err(ExportError::Exists { path: first })
    }

    /// Writes and syncs a file of the directory.
    pub(super) fn file(
        &self,
        name: &str,
        write: impl FnOnce(&File) -> std::io::Result<()>,
    ) -> Result<(), ExportError> {
        let path = self.made.as_ref().unwrap_or(&self.to).join(name);
        let written = File::create_new(&path).and_then(|file| {
            write(&file)?;
            file.sync_all()
        });
        written.map_err(io(&path))
    }

    /// Renames the directory to its target and syncs it.
    pub(super) fn put(mut self) -> Result<(), ExportError> {
        if let Some(partial) = &self.made {
            File::open(partial).and_then(|made| made.sync_all()).map_err(io(partial))?;
            std::fs::rename(partial, &self.to).map_err(|error| match error.kind() {
                ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
                    ExportError::Exists { path: self.to.clone() }
                }
                _ => io(&self.to)(error),
            })?;
            self.made = Some(self.to.clone());
        }
        sync_directory(&self.to).map_err(io(&self.to))?;
        self.made = None;
        self.above.clear();
        Ok(())
    }
}

impl Drop for AtomicDir {
    fn drop(&mut self) {
        if let Some(made) = &self.made {
            let _ = std::fs::remove_dir_all(made);
        }
        // Parent directories are removed only while they are empty.
        self.above.iter().rev().for_each(|path| drop(std::fs::remove_dir(path)));
    }
}

/// Refuses a target that exists, before anything else is examined.
pub(super) fn refuse_to_overwrite(to: &Path) -> Result<(), ExportError> {
    let to: PathBuf = to.components().collect();
    match to.symlink_metadata() {
        Ok(_) => Err(ExportError::Exists { path: to }),
        Err(_) => Ok(()),
    }
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> ExportError {
    move |error| ExportError::Io { path: path.to_owned(), error }
}
