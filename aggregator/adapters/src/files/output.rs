//! Atomic output of adapters: files are written under temporary names, synced, and then renamed.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::config::CONFIG;
use super::source::MODEL;
use super::{AdapterError, Fault, Inputs};
use fedspan_files::{sync_directory, with_suffix};

/// Path of an adapter that will be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    file: PathBuf,
    /// Directory in PEFT's layout, which gets a copy of the base's configuration. `None` for a single file.
    directory: Option<PathBuf>,
}

impl Output {
    /// Interprets a path. A path that ends in `.safetensors` and is not a directory names a file. Any other
    /// path names a directory, which is created if it is missing.
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
    /// [`AdapterError::File`] if the output is an input, is not a regular file, or is being written by
    /// another command; [`AdapterError::Output`] if a temporary file cannot be created.
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
                // A symbolic link is refused: a rename would replace the link instead of its target.
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
        // From here on, `OutputWriter` removes the directory on drop.
        let mut writer =
            OutputWriter { created_directory, files: Vec::new(), config_hash: None, committed: false };
        if let Some((path, bytes)) = config {
            writer.add_file(path)?;
            writer.write(bytes, 0)?;
            writer.config_hash = Some(Sha256::new_with_prefix(bytes));
        }
        writer.add_file(self.file)?;
        Ok(writer)
    }
}

/// Output that is being written. Dropping the writer without [`Self::commit`] removes all files and
/// directories that it has created.
#[derive(Debug)]
pub(super) struct OutputWriter {
    /// Directory that this writer has created.
    created_directory: Option<PathBuf>,
    /// Open file, temporary path and final path of each output file. The adapter is the last entry.
    files: Vec<(File, PathBuf, PathBuf)>,
    /// State of SHA-256 after the copy of the configuration; `None` if there is none.
    config_hash: Option<Sha256>,
    committed: bool,
}

impl OutputWriter {
    /// Creates the temporary file for an output path.
    fn add_file(&mut self, path: PathBuf) -> Result<(), AdapterError> {
        let partial = with_suffix(&path, ".partial");
        let file = create_locked(&partial, &path)?;
        self.files.push((file, partial, path));
        Ok(())
    }

    /// State of SHA-256 after the bytes of the copied configuration; `None` if there is none.
    pub(super) fn config_hash(&self) -> Option<Sha256> {
        self.config_hash.clone()
    }

    /// Writes bytes at an offset of the last file.
    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> Result<(), AdapterError> {
        let Some((file, _, path)) = self.files.last() else { return Ok(()) };
        file.write_all_at(bytes, offset).map_err(|error| AdapterError::Output { file: path.clone(), error })
    }

    /// Syncs all files and renames them, the adapter last.
    pub(super) fn commit(mut self) -> Result<(), AdapterError> {
        let output_error = |path: &Path| {
            let file = path.to_owned();
            move |error| AdapterError::Output { file, error }
        };
        for (file, _, path) in &mut self.files {
            file.flush().and_then(|()| file.sync_all()).map_err(output_error(path))?;
        }
        for (_, partial, path) in &self.files {
            std::fs::rename(partial, path).map_err(output_error(path))?;
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

/// Creates a temporary file, which is locked while it is written. An existing unlocked file was left by a
/// killed command and is removed.
fn create_locked(partial: &Path, path: &Path) -> Result<File, AdapterError> {
    let open_new = || OpenOptions::new().write(true).create_new(true).open(partial);
    let output_error = |error| AdapterError::Output { file: path.to_owned(), error };
    let busy_error = || AdapterError::file(path, Fault::OutputBusy);
    let file = match open_new() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let metadata = std::fs::symlink_metadata(partial).map_err(output_error)?;
            if !metadata.is_file() {
                return Err(AdapterError::file(partial, Fault::NotRegular));
            }
            let leftover = File::open(partial).map_err(output_error)?;
            match leftover.try_lock() {
                Ok(()) => std::fs::remove_file(partial).map_err(output_error)?,
                Err(TryLockError::WouldBlock) => return Err(busy_error()),
                Err(TryLockError::Error(error)) => return Err(output_error(error)),
            }
            open_new()
        }
        other => other,
    };
    let file = file.map_err(output_error)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(busy_error()),
        Err(TryLockError::Error(error)) => {
            drop(std::fs::remove_file(partial));
            Err(output_error(error))
        }
    }
}
