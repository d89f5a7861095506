//! Directory that is written atomically: after a failure, no part of it remains. Only directories that this
//! module created are removed.

use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::ExportError;
use fedspan_files::{make_directories, parent, sync_directory, with_suffix};

/// Number of temporary names to try. A name may be taken by another user or by a directory that a crash has
/// left.
const NAMES: u32 = 16;

/// Directory that is written under a temporary name, and removed on drop unless it was
/// [committed](Self::commit).
#[derive(Debug)]
pub(super) struct AtomicDir {
    target: PathBuf,
    /// Current path of the directory.
    path: Option<PathBuf>,
    /// Parent directories that were created for the directory, outermost first.
    created_parents: Vec<PathBuf>,
}

impl AtomicDir {
    /// Creates a temporary directory for a target path.
    ///
    /// # Errors
    /// [`ExportError::Exists`] if the target exists, [`ExportError::Io`].
    pub(super) fn begin(target: &Path) -> Result<Self, ExportError> {
        // Removes a trailing slash.
        let target: PathBuf = target.components().collect();
        refuse_to_overwrite(&target)?;
        let created_parents =
            make_directories(parent(&target), &DirBuilder::new()).map_err(io_error(&target))?;
        let mut directory = Self { target, path: None, created_parents };
        directory.path = Some(directory.create_partial()?);
        Ok(directory)
    }

    /// Creates a temporary directory with the first name that is free.
    fn create_partial(&self) -> Result<PathBuf, ExportError> {
        let first_path = with_suffix(&self.target, ".partial");
        let numbered_paths = (2..=NAMES).map(|number| with_suffix(&first_path, &format!("-{number}")));
        for path in [first_path.clone()].into_iter().chain(numbered_paths) {
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(io_error(&path)(error)),
            }
        }
        Err(ExportError::Exists { path: first_path })
    }

    /// Writes and syncs a file of the directory.
    pub(super) fn write_file(
        &self,
        name: &str,
        write: impl FnOnce(&File) -> std::io::Result<()>,
    ) -> Result<(), ExportError> {
        let path = self.path.as_ref().unwrap_or(&self.target).join(name);
        let written = File::create_new(&path).and_then(|file| {
            write(&file)?;
            file.sync_all()
        });
        written.map_err(io_error(&path))
    }

    /// Syncs the directory and renames it to its target.
    pub(super) fn commit(mut self) -> Result<(), ExportError> {
        if let Some(partial) = &self.path {
            File::open(partial).and_then(|path| path.sync_all()).map_err(io_error(partial))?;
            std::fs::rename(partial, &self.target).map_err(|error| match error.kind() {
                ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
                    ExportError::Exists { path: self.target.clone() }
                }
                _ => io_error(&self.target)(error),
            })?;
            self.path = Some(self.target.clone());
        }
        sync_directory(&self.target).map_err(io_error(&self.target))?;
        self.path = None;
        self.created_parents.clear();
        Ok(())
    }
}

impl Drop for AtomicDir {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_dir_all(path);
        }
        // `remove_dir` removes a parent directory only if the directory is empty.
        self.created_parents.iter().rev().for_each(|path| drop(std::fs::remove_dir(path)));
    }
}

/// Returns [`ExportError::Exists`] if the target exists.
pub(super) fn refuse_to_overwrite(target: &Path) -> Result<(), ExportError> {
    let target: PathBuf = target.components().collect();
    match target.symlink_metadata() {
        Ok(_) => Err(ExportError::Exists { path: target }),
        Err(_) => Ok(()),
    }
}

/// Returns a function that adds the path to an I/O error.
fn io_error(path: &Path) -> impl Fn(std::io::Error) -> ExportError {
    move |error| ExportError::Io { path: path.to_owned(), error }
}
