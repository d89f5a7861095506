//! Files that only their owner may read: checked when they are read, made so from the first moment.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::file_kind::regular;

/// Nobody but the owner.
const MODE: u32 = 0o600;

/// A file of secrets cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system refused.
    #[error("{}: {error}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The file was replaced, and the system refused to make that durable.
    #[error("{}: the change is in place, but may not survive a power cut: {error}", path.display())]
    NotDurable {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The file is there, and would be overwritten.
    #[error("{}: it exists; move it away or choose another name", path.display())]
    Exists {
        /// Which file.
        path: PathBuf,
    },
    /// Others than the owner have rights.
    #[error("{0}: others may use it (mode {mode:04o}), and it holds secrets: chmod 600 {0}", path.display())]
    Exposed {
        /// Which file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file is somebody else's.
    #[error("{0}: it belongs to user {owner}, and this is user {user}: chown {user} {0}", path.display())]
    Foreign {
        /// Which file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who wants to read it.
        user: u32,
    },
    /// Not a file.
    #[error("{}: not a regular file", path.display())]
    NotRegular {
        /// What.
        path: PathBuf,
    },
    /// More than such a file may hold.
    #[error("{}: longer than {most} bytes, the most there may be", path.display())]
    TooLong {
        /// Which file.
        path: PathBuf,
        /// The most.
        most: usize,
    },
}

/// Who runs this program: whose rights count when it opens a file.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Reads a file; `None` if there is none. Symbolic links are not followed: they would be replaced.
pub fn read(path: &Path, most: usize) -> Result<Option<Zeroizing<Vec<u8>>>, FileError> {
    match std::fs::symlink_metadata(path) {
        // Before it is opened: that would wait for a pipe's other end.
        Ok(about) if !about.is_file() => Err(FileError::NotRegular { path: path.into() }),
        Ok(_) => {
            let mut file = File::open(path).map_err(|error| io(path, error))?;
            let about = file.metadata().map_err(|error| io(path, error))?;
            check(path, &about)?;
            contents(path, &mut file, &about, most).map(Some)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io(path, error)),
    }
}

/// Reads a passphrase or a key: from a file, or from a pipe. What a pipe says must be its owner's alone, too; root may read
/// another user's, as in `pass show fleet | sudo ...`.
pub fn read_secret(path: &Path, most: usize) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let mut file = File::open(path).map_err(|error| io(path, error))?;
    let about = file.metadata().map_err(|error| io(path, error))?;
    match about.file_type().is_fifo() {
        true => check_rights(path, &about, about.uid() == user() || user() == 0)?,
        false => check(path, &about)?,
    }
    contents(path, &mut file, &about, most)
}

fn check(path: &Path, about: &Metadata) -> Result<(), FileError> {
    if about.is_file() {
        check_rights(path, about, about.uid() == user())
    } else {
        Err(FileError::NotRegular { path: path.to_owned() })
    }
}

fn check_rights(path: &Path, about: &Metadata, own: bool) -> Result<(), FileError> {
    let (path, mode) = (path.to_owned(), about.mode() & 0o7777);
    if !own {
        Err(FileError::Foreign { path, owner: about.uid(), user: user() })
    } else if mode & 0o077 != 0 {
        Err(FileError::Exposed { path, mode })
    } else {
        Ok(())
    }
}

fn contents(
    path: &Path,
    file: &mut File,
    about: &Metadata,
    most: usize,
) -> Result<Zeroizing<Vec<u8>>, FileError> {
    // Room for all of it from the start: a vector that grows leaves secrets behind.
    let expected = usize::try_from(about.len()).unwrap_or(usize::MAX);
    let room = if about.is_file() { expected.min(most) } else { most.min(1 << 16) };
    let mut bytes = Zeroizing::new(Vec::with_capacity(room + 1));
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit).read_to_end(&mut bytes).map_err(|error| io(path, error))?;
    if bytes.len() > most { Err(FileError::TooLong { path: path.into(), most }) } else { Ok(bytes) }
}

/// A new file, which nobody else could have read at any moment; durable when this returns. An error leaves none.
///
/// # Errors
/// [`FileError::Exists`] if something is there already, whatever it is; [`FileError::Io`].
pub fn create_private(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let mut file = match OpenOptions::new().write(true).create_new(true).mode(MODE).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            return Err(FileError::Exists { path: path.into() });
        }
        Err(error) => return Err(io(path, error)),
    };
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    let durable = written.map_err(|error| io(path, error));
    let durable = durable.and_then(|()| sync_directory(path).map_err(|error| io(parent(path), error)));
    durable.inspect_err(|_| drop(std::fs::remove_file(path)))
}

/// How a file's directory is made durable: [`sync_directory`], or what a test says instead.
pub type Sync = fn(&Path) -> std::io::Result<()>;

/// Replaces a file, or makes it; a crash leaves the old one or the new one. The caller holds its [`lock`]. After every
/// error but [`FileError::NotDurable`] the old one is in place.
pub fn replace(path: &Path, bytes: &[u8], sync: Sync) -> Result<(), FileError> {
    let partial = beside(path, ".partial");
    match std::fs::remove_file(&partial) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(&partial, error)),
        _ => {}
    }
    create_private(&partial, bytes)?;
    std::fs::rename(&partial, path).map_err(|error| io(path, error))?;
    sync(path).map_err(|error| FileError::NotDurable { path: path.to_owned(), error })
}

/// The lock of a file that is replaced: a file beside it. `None` if somebody else holds it.
pub fn lock(path: &Path) -> Result<Option<File>, FileError> {
    let path = beside(path, ".lock");
    regular(&path).map_err(|error| io(&path, error))?;
    let open = OpenOptions::new().create(true).truncate(false).write(true).mode(MODE).open(&path);
    let lock = open.map_err(|error| io(&path, error))?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        Err(std::fs::TryLockError::Error(error)) => Err(io(&path, error)),
    }
}

/// The directory of a file, for its owner alone if it has to be made.
pub fn make_directory(path: &Path) -> Result<(), FileError> {
    let directory = parent(path);
    let made = make_directories(directory, DirBuilder::new().mode(0o700));
    made.map(drop).map_err(|error| io(directory, error))
}

/// Makes a directory, and those above it that are missing, durable when this returns. Says which it has made, outermost first;
/// an error leaves none of them.
pub fn make_directories(directory: &Path, builder: &DirBuilder) -> std::io::Result<Vec<PathBuf>> {
    let missing = directory.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.is_dir());
    let mut missing: Vec<&Path> = missing.collect();
    let mut made = Vec::new();
    while let Some(path) = missing.pop() {
        let done = match builder.create(path) {
            Ok(()) => {
                made.push(path.to_owned());
                sync_directory(path)
            }
            // Somebody else was faster.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            // A file, which the system says in its own words.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => builder.create(directory),
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            made.iter().rev().for_each(|path| drop(std::fs::remove_dir(path)));
            return Err(error);
        }
    }
    Ok(made)
}

/// A rename must survive, too.
pub fn sync_directory(path: &Path) -> std::io::Result<()> {
    File::open(parent(path)).and_then(|directory| directory.sync_all())
}

/// The directory in which a file lies.
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The same path with something after the file's name.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn io(path: &Path, error: std::io::Error) -> FileError {
    FileError::Io { path: path.to_owned(), error }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn directories_that_were_made_are_named_and_an_error_leaves_none() {
        let scratch = tempfile::tempdir().unwrap();
        let (new, under) = (scratch.path().join("new"), scratch.path().join("new/under"));
        make_directories(&new.join("x".repeat(300)), &DirBuilder::new()).unwrap_err();
        assert!(!new.exists());
        assert_eq!(make_directories(&under, &DirBuilder::new()).unwrap(), [new, under.clone()]);
        assert!(make_directories(&under, &DirBuilder::new()).unwrap().is_empty());
        std::fs::write(under.join("file"), b"x").unwrap();
        for path in ["file", "file/below"] {
            make_directories(&under.join(path), &DirBuilder::new()).unwrap_err();
        }
    }
}
