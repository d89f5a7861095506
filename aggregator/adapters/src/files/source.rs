//! A file that is read in place.

use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use super::{AdapterError, Fault, Header};

/// An adapter's file in a directory that PEFT has written.
pub(super) const MODEL: &str = "adapter_model.safetensors";

/// Files that are kept open at most; others are opened for every block.
const OPEN_MAX: u64 = 512;

/// What a process has open besides: standard streams, a runtime, outputs, one file at a time that is not kept open.
const OTHERS: u64 = 24;

/// How many files may be kept open: half of what the system lets this process have besides.
pub(super) fn open_file_budget() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from((limit.saturating_sub(OTHERS) / 2).min(OPEN_MAX)).unwrap_or(0)
}

/// Which file it is, and when it was last written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    file: (u64, u64),
    length: u64,
    written: (i64, i64),
}

impl FileStamp {
    fn from_metadata(about: &Metadata) -> Self {
        Self {
            file: (about.dev(), about.ino()),
            length: about.len(),
            written: (about.mtime(), about.mtime_nsec()),
        }
    }
}

/// One input.
#[derive(Debug)]
pub(super) struct InputFile {
    /// The file itself.
    pub(super) path: PathBuf,
    /// Where the base's tensors are, in the base's order.
    pub(super) places: Arc<[u64]>,
    file: Option<File>,
    stamp: FileStamp,
}

impl InputFile {
    /// Opens a file, or the adapter in a directory, and reads its header; `keep` leaves it open. Symbolic links are followed:
    /// caches of models are full of them.
    pub(super) fn open(path: &Path, keep: bool) -> Result<(Self, Header), AdapterError> {
        let path = if path.is_dir() { path.join(MODEL) } else { path.to_owned() };
        let (file, stamp) = opened(&path)?;
        let header = Header::read(&file, stamp.length).map_err(|found| AdapterError::found(&path, found))?;
        let places = header.tensors.iter().map(|tensor| tensor.begin).collect();
        Ok((Self { path, places, file: keep.then_some(file), stamp }, header))
    }

    /// Which file it is, whatever it is called.
    pub(super) fn identity(&self) -> (u64, u64) {
        self.stamp.file
    }

    /// Fills a buffer from a place in the file.
    pub(super) fn read(&self, buffer: &mut [u8], place: u64) -> Result<(), AdapterError> {
        let mut read = |file: &File| {
            file.read_exact_at(buffer, place).map_err(|error| AdapterError::file(&self.path, error))
        };
        match &self.file {
            Some(file) => read(file),
            None => {
                let (file, stamp) = opened(&self.path)?;
                self.same(stamp)?;
                read(&file)
            }
        }
    }

    /// Whether it is still what it was when it was opened.
    pub(super) fn ensure_unchanged(&self) -> Result<(), AdapterError> {
        let about = match &self.file {
            Some(file) => file.metadata(),
            None => std::fs::metadata(&self.path),
        };
        let about = about.map_err(|error| AdapterError::file(&self.path, error))?;
        self.same(FileStamp::from_metadata(&about))
    }

    fn same(&self, stamp: FileStamp) -> Result<(), AdapterError> {
        if stamp == self.stamp {
            Ok(())
        } else {
            Err(AdapterError::file(&self.path, Fault::ChangedDuringRead))
        }
    }
}

fn opened(path: &Path) -> Result<(File, FileStamp), AdapterError> {
    let wrong = |error: std::io::Error| AdapterError::file(path, error);
    // Before it is opened: that would wait for a pipe's other end.
    if !std::fs::metadata(path).map_err(wrong)?.is_file() {
        return Err(AdapterError::file(path, Fault::NotRegular));
    }
    let file = File::open(path).map_err(wrong)?;
    let stamp = FileStamp::from_metadata(&file.metadata().map_err(wrong)?);
    Ok((file, stamp))
}
