//! An output that is there whole, or not at all: written beside its place, made durable, renamed.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::config::CONFIG;
use super::source::MODEL;
use super::{AdapterError, Fault, Inputs};
use fedspan_files::{sync_directory, with_suffix};

/// Where an adapter goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    file: PathBuf,
    /// A directory in the layout of PEFT, which gets a configuration as well.
    directory: Option<PathBuf>,
}

impl Output {
    /// A path that ends in `.safetensors` and is no directory is a file; everything else is a directory, to be made if it is
    /// not there.
    #[must_use]
    pub fn named(path: &Path) -> Self {
        let is_file = path.extension().is_some_and(|extension| extension == "safetensors");
        if is_file && !path.is_dir() {
            return Self { file: path.to_owned(), directory: None };
        }
        Self { file: path.join(MODEL), directory: Some(path.to_owned()) }
    }

    /// The adapter's file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Begins to write, if nothing stands in the way.
    pub(super) fn begin(self, inputs: &Inputs) -> Result<Writing, AdapterError> {
        let config = self.directory.as_ref().and(inputs.config.as_deref());
        let config = config.map(|bytes| (self.file.with_file_name(CONFIG), bytes));
        for path in [&self.file].into_iter().chain(config.iter().map(|(path, _)| path)) {
            match std::fs::symlink_metadata(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(AdapterError::file(path, error)),
                Ok(about) if inputs.include((about.dev(), about.ino())) => {
                    return Err(AdapterError::file(path, Fault::OutputIsInput));
                }
                // A link would be replaced, and what it points at would stay.
                Ok(about) if !about.is_file() => return Err(AdapterError::file(path, Fault::NotRegular)),
                Ok(_) => {}
            }
        }
        let made = match &self.directory {
            Some(directory) => match std::fs::create_dir(directory) {
                Ok(()) => Some(directory.clone()),
                Err(_) if directory.is_dir() => None,
                Err(error) => return Err(AdapterError::file(directory, error)),
            },
            None => None,
        };
        // From here on the directory goes with what is dropped.
        let mut writing = Writing { made, files: Vec::new(), done: false };
        if let Some((path, bytes)) = config {
            writing.add(path)?;
            writing.write(bytes, 0)?;
        }
        writing.add(self.file)?;
        Ok(writing)
    }
}

/// An output that is being written. Dropped before [`Self::commit`], it was never there.
#[derive(Debug)]
pub(super) struct Writing {
    /// A directory that was not there.
    made: Option<PathBuf>,
    /// Open files, where they are, and where they go; the last one is the adapter.
    files: Vec<(File, PathBuf, PathBuf)>,
    done: bool,
}

impl Writing {
    fn add(&mut self, path: PathBuf) -> Result<(), AdapterError> {
        let partial = with_suffix(&path, ".partial");
        let file = create(&partial, &path)?;
        self.files.push((file, partial, path));
        Ok(())
    }

    /// Writes to a place of the adapter's file.
    pub(super) fn write(&self, bytes: &[u8], place: u64) -> Result<(), AdapterError> {
        let Some((file, _, path)) = self.files.last() else { return Ok(()) };
        file.write_all_at(bytes, place).map_err(|error| AdapterError::Output { file: path.clone(), error })
    }

    /// Puts everything in its place, the adapter last.
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
        self.done = true;
        for path in self.made.iter().chain(self.files.last().map(|(_, _, path)| path)) {
            sync_directory(path).map_err(|error| AdapterError::NotDurable { file: path.clone(), error })?;
        }
        Ok(())
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        for (_, partial, _) in &self.files {
            drop(std::fs::remove_file(partial));
        }
        if let Some(made) = &self.made {
            drop(std::fs::remove_dir(made));
        }
    }
}

/// A new file, locked as long as it is written to. What a command that was killed has left is not locked, and is removed.
fn create(partial: &Path, path: &Path) -> Result<File, AdapterError> {
    let new = || OpenOptions::new().write(true).create_new(true).open(partial);
    let failed = |error| AdapterError::Output { file: path.to_owned(), error };
    let busy = || AdapterError::file(path, Fault::Busy);
    let file = match new() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let about = std::fs::symlink_metadata(partial).map_err(failed)?;
            if !about.is_file() {
                return Err(AdapterError::file(partial, Fault::NotRegular));
            }
            let left = File::open(partial).map_err(failed)?;
            match left.try_lock() {
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
