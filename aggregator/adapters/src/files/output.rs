//! Atomic output: written to a temporary file next to its path, synced, then renamed.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::config::CONFIG;
use super::source::MODEL;
use super::{AdapterError, Fault, Inputs};
use fedspan_files::{sync_directory, with_suffix};

/// Path of an adapter to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    file: PathBuf,
    /// Directory in PEFT's layout, which gets a copy of the base's configuration. `None` for a single file.
    directory: Option<PathBuf>,
}

impl Output {
    /// Interprets a path: one that ends in `.safetensors` and is no directory is a file, any other is a directory, created if
    /// missing.
    #[must_use]
    pub fn from_path(path: &Path) -> Self {
        let is_file = path.extension().is_some_and(|extension| extension == "safetensors");
        if is_file && !path.is_dir() {
            return Self { file: path.to_owned(), directory: None };
        }
        Self { file: path.join(MODEL), directory: Some(path.to_owned()) }
    }

    /// Path of the adapter file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Creates the temporary files.
    ///
    /// # Errors
    /// [`AdapterError::File`] if the output is an input, no regular file, or being written by another command;
    /// [`AdapterError::Output`].
    pub(super) fn begin(self, inputs: &Inputs) -> Result<OutputWriter, AdapterError> {
        let config = self.directory.as_ref().and(inputs.config.as_deref());
        let config = config.map(|bytes| (self.file.with_file_name(CONFIG), bytes));
        for path in [&self.file].into_iter().chain(config.iter().map(|(path, _)| path)) {
            match std::fs::symlink_metadata(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(AdapterError::file(path, error)),
                Ok(metadata) if inputs.contains((metadata.dev(), metadata.ino())) => {
                    return Err(AdapterError::file(path, Fault::OutputIsInput));
                }
                // A rename would replace a symbolic link and leave its target as it was.
                Ok(metadata) if !metadata.is_file() => {
                    return Err(AdapterError::file(path, Fault::NotRegular));
                }
                Ok(_) => {}
            }
        }
        let created_directory = match &self.directory {
            Some(directory) => match std::fs::create_dir(directory) {
                Ok(()) => Some(directory.clone()),
                Err(_) if directory.is_dir() => None,
                Err(error) => return Err(AdapterError::file(directory, error)),
            },
            None => None,
        };
        // On drop, `OutputWriter` removes the directory again.
        let mut writing = OutputWriter { created_directory, files: Vec::new(), committed: false };
        if let Some((path, bytes)) = config {
            writing.add(path)?;
            writing.write(bytes, 0)?;
        }
        writing.add(self.file)?;
        Ok(writing)
    }
}

/// Output that is being written. Dropping it without [`Self::commit`] removes everything it has created.
#[derive(Debug)]
pub(super) struct OutputWriter {
    /// Directory that this writer has created.
    created_directory: Option<PathBuf>,
    /// Open file, temporary path and final path of each output; the adapter is the last.
    files: Vec<(File, PathBuf, PathBuf)>,
    committed: bool,
}

impl OutputWriter {
    fn add(&mut self, path: PathBuf) -> Result<(), AdapterError> {
        let partial = with_suffix(&path, ".partial");
        let file = create(&partial, &path)?;
        self.files.push((file, partial, path));
        Ok(())
    }

    /// Writes at an offset of the adapter file.
    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> Result<(), AdapterError> {
        let Some((file, _, path)) = self.files.last() else { return Ok(()) };
        file.write_all_at(bytes, offset).map_err(|error| AdapterError::Output { file: path.clone(), error })
    }

    /// Syncs and renames all files, the adapter last.
    pub(super) fn commit(mut self) -> Result<(), AdapterError> {
        let output = |path: &Path| {
            let file = path.to_owned();
            move |error| AdapterError::Output { file, error }
        };
        for (file, _, path) in &mut self.files {
            file.flush().and_then(|()| file.sync_all()).map_err(output(path))?;
        }
        for (_, partial, path) in &self.files {
            std::fs::rename(partial, path).map_err(output(path))?;
        }
        self.committed = true;
        for path in self.created_directory.iter().chain(self.files.last().map(|(_, _, path)| path)) {
            sync_directory(path).map_err(|error| AdapterError::NotDurable { file: path.clone(), error })?;
        }
        Ok(())
    }
}

impl Drop for OutputWriter {
    fn drop(&mut self) {
        if self.committed {
            return;
        }
        for (_, partial, _) in &self.files {
            drop(std::fs::remove_file(partial));
        }
        if let Some(directory) = &self.created_directory {
            drop(std::fs::remove_dir(directory));
        }
    }
}

/// Creates a temporary file, locked while it is written. An unlocked one is left over from a killed command and is removed.
fn create(partial: &Path, path: &Path) -> Result<File, AdapterError> {
    let new = || OpenOptions::new().write(true).create_new(true).open(partial);
    let failed = |error| AdapterError::Output { file: path.to_owned(), error };
    let busy = || AdapterError::file(path, Fault::OutputBusy);
    let file = match new() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let metadata = std::fs::symlink_metadata(partial).map_err(failed)?;
            if !metadata.is_file() {
                return Err(AdapterError::file(partial, Fault::NotRegular));
            }
            let leftover = File::open(partial).map_err(failed)?;
            match leftover.try_lock() {
                Ok(()) => std::fs::remove_file(partial).map_err(failed)?,
                Err(TryLockError::WouldBlock) => return Err(busy()),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            new()
        }
        other => other,
    };
    let file = file.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(busy()),
        Err(TryLockError::Error(error)) => {
            drop(std::fs::remove_file(partial));
            Err(failed(error))
        }
    }
}
