//! Input files that are read at offsets and never loaded as a whole.

use std::fs::{File, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};
use sha2::{Digest, Sha256};

use super::limits::{HEADER_MAX, OPEN_MAX};
use super::{AdapterError, Fault, Header};

/// Name of the adapter file in a PEFT directory.
pub(super) const MODEL: &str = "adapter_model.safetensors";

/// Number of file descriptors that are reserved for other uses: standard streams, a runtime, outputs, and a
/// file that is opened for a block.
const RESERVED: u64 = 24;

/// Number of input files that may stay open in a process without connections: half of its unreserved file descriptors,
/// at most [`OPEN_MAX`].
pub(super) fn open_file_budget() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit.saturating_sub(RESERVED) / 2).map_or(OPEN_MAX, |files| files.min(OPEN_MAX))
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
    /// Length of the header, in bytes: the offset of the first tensor.
    header_len: u64,
    /// State of SHA-256 after the header, as it was parsed.
    header_hash: Sha256,
    /// Sum over the blocks that will be read, and over those that were; `None` if reads are not compared.
    block_sums: Option<BlockSums>,
}

/// Sums of the hashes of blocks, in any order: of the blocks of a file whose digest is known, and of the blocks that
/// were read later. Equal sums show that the later reads returned the bytes that the digest covers.
#[derive(Debug, Default)]
struct BlockSums {
    expected: u64,
    read: AtomicU64,
}

/// Hash of a block at an offset of a file.
fn block_hash(offset: u64, bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (offset, bytes).hash(&mut hasher);
    hasher.finish()
}

impl InputFile {
    /// Opens a file, or the adapter file of a directory, and reads its header. With `keep_open` the file
    /// stays open. Symbolic links are followed, because caches of models use them.
    ///
    /// # Errors
    /// [`AdapterError::File`] if the file cannot be opened or its header is invalid.
    pub(super) fn open(path: &Path, keep_open: bool) -> Result<(Self, Header), AdapterError> {
        Self::open_within(path, keep_open, HEADER_MAX)
    }

    /// Opens a file as [`Self::open`] does, with a header of at most `header_max` bytes.
    pub(super) fn open_within(
        path: &Path,
        keep_open: bool,
        header_max: u64,
    ) -> Result<(Self, Header), AdapterError> {
        let path = if path.is_dir() { path.join(MODEL) } else { path.to_owned() };
        let (file, stamp) = open_regular(&path)?;
        let header = Header::read_within(&file, stamp.length, header_max)
            .map_err(|fault| AdapterError::located(&path, fault))?;
        let offsets = header.tensors.iter().map(|tensor| tensor.begin).collect();
        let source = Self {
            path,
            offsets,
            file: keep_open.then_some(file),
            stamp,
            header_len: header.bytes.len() as u64,
            header_hash: Sha256::new_with_prefix(&header.bytes),
            block_sums: None,
        };
        Ok((source, header))
    }

    /// Reads the whole file once, and returns the state of SHA-256 after it. Later reads are compared with the bytes
    /// that were hashed, once [`Self::ensure_as_hashed`] is called. `blocks` are the offsets and lengths of all blocks
    /// behind the header, in ascending order, and whether the block will be read again.
    pub(super) fn hash(
        &mut self,
        blocks: impl Iterator<Item = (u64, usize, bool)>,
    ) -> Result<Sha256, AdapterError> {
        self.block_sums = None;
        let mut hasher = self.header_hash.clone();
        let mut position = self.header_len;
        let mut expected = 0_u64;
        let mut buffer = Vec::new();
        for (offset, length, is_read_again) in blocks {
            buffer.resize(length, 0);
            self.read(&mut buffer, offset)?;
            hasher.update(&buffer);
            position = position.max(offset + length as u64);
            if is_read_again {
                expected = expected.wrapping_add(block_hash(offset, &buffer));
            }
        }
        if position != self.stamp.length {
            return Err(AdapterError::file(&self.path, Fault::ChangedDuringRead));
        }
        self.block_sums = Some(BlockSums { expected, read: AtomicU64::new(0) });
        Ok(hasher)
    }

    /// Checks that the blocks that were read since [`Self::hash`] are those that were to be read, with the bytes that
    /// were hashed.
    pub(super) fn ensure_as_hashed(&self) -> Result<(), AdapterError> {
        match &self.block_sums {
            Some(sums) if sums.expected != sums.read.load(Ordering::Relaxed) => {
                Err(AdapterError::file(&self.path, Fault::ChangedDuringRead))
            }
            Some(_) | None => Ok(()),
        }
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
            Some(file) => read_from(file)?,
            None => {
                let (file, stamp) = open_regular(&self.path)?;
                self.check_stamp(stamp)?;
                read_from(&file)?;
            }
        }
        if let Some(sums) = &self.block_sums {
            sums.read.fetch_add(block_hash(offset, buffer), Ordering::Relaxed);
        }
        Ok(())
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
