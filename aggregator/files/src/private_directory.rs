//! Directories of secrets: only this user may write them, and only this user may read their files.

use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::private_file::{FileError, MODE, make_directories, user};

/// Creates a directory and its missing parents with access for the owner only, or checks an existing one. Returns
/// the files in it from which this call has taken the access of other users, as earlier versions left it.
///
/// The owner chooses who may read the names in an existing directory. Other users may not write it: such a user
/// could replace a file by a link, and this process would write to where the link leads.
///
/// # Errors
/// [`FileError::Foreign`] if the directory or a file in it belongs to another user, [`FileError::Writable`] if other
/// users may write the directory, [`FileError::Link`] if it contains a symbolic link.
pub fn open_private_directory(directory: &Path) -> Result<Vec<PathBuf>, FileError> {
    if directory.symlink_metadata().is_err() {
        let made = make_directories(directory, DirBuilder::new().mode(0o700));
        made.map_err(|error| FileError::Io { path: directory.to_owned(), error })?;
    }
    let mut tightened = Vec::new();
    for path in check_private_directory(directory)? {
        match std::fs::set_permissions(&path, Permissions::from_mode(MODE)) {
            // Another process, such as one that asks for the status, may remove a file at the same time.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(FileError::Io { path, error }),
            Ok(()) => tightened.push(path),
        }
    }
    Ok(tightened)
}

/// Checks an existing directory as [`open_private_directory`] does, and changes nothing. Returns the files in it to which
/// other users have access.
///
/// # Errors
/// [`FileError`] as for [`open_private_directory`].
pub fn check_private_directory(directory: &Path) -> Result<Vec<PathBuf>, FileError> {
    let io_error = |path: &Path| {
        let path = path.to_owned();
        move |error| FileError::Io { path, error }
    };
    let metadata = std::fs::metadata(directory).map_err(io_error(directory))?;
    let foreign = |path: &Path, owner: u32| FileError::Foreign { path: path.to_owned(), owner, user: user() };
    if metadata.uid() != user() {
        return Err(foreign(directory, metadata.uid()));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(FileError::Writable { path: directory.to_owned(), mode });
    }
    let mut exposed = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(io_error(directory))? {
        let path = entry.map_err(io_error(directory))?.path();
        let metadata = match std::fs::symlink_metadata(&path) {
            // Another process, such as one that asks for the status, may remove a file at the same time.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            metadata => metadata.map_err(io_error(&path))?,
        };
        if metadata.is_symlink() {
            return Err(FileError::Link { path });
        }
        if !metadata.is_file() {
            continue;
        }
        if metadata.uid() != user() {
            return Err(foreign(&path, metadata.uid()));
        }
        if metadata.mode() & 0o077 != 0 {
            exposed.push(path);
        }
    }
    Ok(exposed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn new_directory_and_its_parents_are_for_the_owner_only() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("a/state");
        assert_eq!(open_private_directory(&directory).unwrap(), Vec::<PathBuf>::new());
        assert_eq!((mode(&directory), mode(&root.path().join("a"))), (0o700, 0o700));
    }

    #[test]
    fn files_that_others_can_read_are_tightened_once() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "x").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(open_private_directory(root.path()).unwrap(), vec![file.clone()]);
        assert_eq!(mode(&file), 0o600);
        assert_eq!(open_private_directory(root.path()).unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn directories_that_others_can_write_and_links_are_refused() {
        let root = tempfile::tempdir().unwrap();
        for writable in [0o770, 0o702, 0o777] {
            std::fs::set_permissions(root.path(), Permissions::from_mode(writable)).unwrap();
            let message = open_private_directory(root.path()).unwrap_err().to_string();
            assert!(
                message.contains(&format!("mode {writable:04o}")) && message.contains("chmod go-w"),
                "{message}"
            );
        }
        std::fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
        let target = tempfile::NamedTempFile::new().unwrap();
        std::os::unix::fs::symlink(target.path(), root.path().join("probe")).unwrap();
        let message = open_private_directory(root.path()).unwrap_err().to_string();
        assert!(message.contains("probe: a symbolic link"), "{message}");
    }
}
