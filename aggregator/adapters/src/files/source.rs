//! Input files that are read at offsets and never loaded as a whole.

use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use super::{AdapterError, Fault, Header};

/// Name of the adapter file in a PEFT directory.
pub(super) const MODEL: &str = "adapter_model.safetensors";

/// Largest number of files that stay open. Other files are opened again for every block.
const OPEN_MAX: u64 = 512;

/// Number of file descriptors that are reserved for other uses: standard streams, a runtime, outputs, and a
/// file that is opened for a block.
const RESERVED: u64 = 24;

/// Number of input files that may stay open: half of the unreserved file descriptors of the process, at most
/// [`OPEN_MAX`].
pub(super) fn open_file_budget() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from((limit.saturating_sub(RESERVED) / 2).min(OPEN_MAX)).unwrap_or(0)
}

/// Identity (device and inode), length and modification time of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    file: (u64, u64),
    length: u64,
    written: (i64, i64),
}

impl FileStamp {
    fn from_metadata(metadata: &Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino()),
            length: metadata.len(),
            written: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

/// Adapter file of the base or a client.
#[derive(Debug)]
pub(super) struct InputFile {
    /// Path of the safetensors file.
    pub(super) path: PathBuf,
    /// Offset of every tensor in this file, in the order of the base.
    pub(super) offsets: Arc<[u64]>,
    file: Option<File>,
    stamp: FileStamp,
}

impl InputFile {
    /// Opens a file, or the adapter file of a directory, and reads its header. With `keep_open` the file
    /// stays open. Symbolic links are followed, because caches of models use them.
    ///
    /// # Errors
    /// [`AdapterError::File`] if the file cannot be opened or its header is invalid.
    pub(super) fn open(path: &Path, keep_open: bool) -> Result<(Self, Header), AdapterError> {
        let path = if path.is_dir() { path.join(MODEL) } else { path.to_owned() };
        let (file, stamp) = open_regular(&path)?;
        let header =
            Header::read(&file, stamp.length).map_err(|fault| AdapterError::located(&path, fault))?;
        let offsets = header.tensors.iter().map(|tensor| tensor.begin).collect();
        Ok((Self { path, offsets, file: keep_open.then_some(file), stamp }, header))
    }

    /// Device and inode, equal for all names of a file.
    pub(super) fn identity(&self) -> (u64, u64) {
        self.stamp.file
    }

    /// Fills a buffer from an offset of the file.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<(), AdapterError> {
        let mut read_from = |file: &File| {
            file.read_exact_at(buffer, offset).map_err(|error| AdapterError::file(&self.path, error))
        };
        match &self.file {
            Some(file) => read_from(file),
            None => {
                let (file, stamp) = open_regular(&self.path)?;
                self.check_stamp(stamp)?;
                read_from(&file)
            }
        }
    }

    /// Checks that the file has not changed since it was opened.
    pub(super) fn ensure_unchanged(&self) -> Result<(), AdapterError> {
        let metadata = match &self.file {
            Some(file) => file.metadata(),
            None => std::fs::metadata(&self.path),
        };
        let metadata = metadata.map_err(|error| AdapterError::file(&self.path, error))?;
        self.check_stamp(FileStamp::from_metadata(&metadata))
    }

    /// Returns an error if the file has changed since it was opened.
    fn check_stamp(&self, stamp: FileStamp) -> Result<(), AdapterError> {
        if stamp == self.stamp {
            Ok(())
        } else {
            Err(AdapterError::file(&self.path, Fault::ChangedDuringRead))
        }
    }
}

/// Opens a regular file and returns its stamp.
fn open_regular(path: &Path) -> Result<(File, FileStamp), AdapterError> {
    let file_error = |error: std::io::Error| AdapterError::file(path, error);
    // Checked before the file is opened, because opening a pipe would wait for its other end.
    if !std::fs::metadata(path).map_err(file_error)?.is_file() {
        return Err(AdapterError::file(path, Fault::NotRegular));
    }
    let file = File::open(path).map_err(file_error)?;
    let stamp = FileStamp::from_metadata(&file.metadata().map_err(file_error)?);
    Ok((file, stamp))
}
