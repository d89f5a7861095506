//! Table of a labelled recording: a CSV file to which rows are appended, for `[data]` of kind "csv".

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Columns that the recorder writes: who carried the board, and what happened.
pub const OWN_COLUMNS: [&str; 2] = ["wearer", "label"];

/// File of a recording, locked while this value exists.
#[derive(Debug)]
pub struct Recording {
    path: PathBuf,
    file: File,
    /// Length of the file in bytes, up to the last complete row.
    length: u64,
}

impl Recording {
    /// Opens an existing recording, and returns the names of its columns after [`OWN_COLUMNS`]. `None` if there is no file,
    /// or an empty one.
    ///
    /// # Errors
    /// A one-line message if the file cannot be read, is in use, has other first columns, or ends within a row.
    pub fn open(path: &Path) -> Result<Option<(Self, Vec<String>)>, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        match std::fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
            Ok(metadata) if metadata.len() == 0 => return Ok(None),
            Ok(_) => {}
        }
        let mut recording = Self::lock(path)?;
        let mut reader =
            csv::ReaderBuilder::new().has_headers(false).from_reader(BufReader::new(&recording.file));
        let header = reader.records().next();
        let header = header.transpose().map_err(|error| format!("{}: {error}", path.display()))?;
        let names: Vec<String> = header.unwrap_or_default().iter().map(str::to_owned).collect();
        drop(reader);
        let split = names.split_at_checked(OWN_COLUMNS.len()).filter(|(own, _)| *own == OWN_COLUMNS);
        let Some((_, others)) = split else {
            return Err(format!(
                "{}: found the columns {}, expected {} before those of the board; give another --out",
                path.display(),
                names.join(","),
                OWN_COLUMNS.join(",")
            ));
        };
        let others = others.to_vec();
        recording.length = recording.file.seek(SeekFrom::End(-1)).map_err(failed)? + 1;
        let mut last = [0];
        recording.file.read_exact(&mut last).map_err(failed)?;
        if last != *b"\n" {
            return Err(format!(
                "{}: the last line has no line end, so it may be half a row; complete it or delete it",
                path.display()
            ));
        }
        Ok(Some((recording, others)))
    }

    /// Creates a recording with the given columns after [`OWN_COLUMNS`].
    ///
    /// # Errors
    /// A one-line message if the file cannot be written, or has content.
    pub fn create(path: &Path, columns: &[String]) -> Result<Self, String> {
        let mut recording = Self::lock(path)?;
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        recording.length = recording.file.metadata().map_err(failed)?.len();
        if recording.length > 0 {
            return Err(format!("{}: another program has begun to write this file", path.display()));
        }
        let names = OWN_COLUMNS.into_iter().chain(columns.iter().map(String::as_str));
        recording.append(&cells(names)?)?;
        Ok(recording)
    }

    /// Opens and locks a file.
    fn lock(path: &Path) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), file, length: 0 }),
            Err(TryLockError::WouldBlock) => {
                Err(format!("{}: another recorder writes this file", path.display()))
            }
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// Appends complete rows. If that fails, a part of them is removed again.
    ///
    /// # Errors
    /// A one-line message with the system's error.
    pub fn append(&mut self, rows: &[u8]) -> Result<(), String> {
        if let Err(error) = self.file.write_all(rows) {
            let undone = self.file.set_len(self.length);
            let suffix = undone
                .err()
                .map_or_else(String::new, |error| format!("; the last line may be half a row ({error})"));
            return Err(format!("{}: {error}{suffix}", self.path.display()));
        }
        self.length += rows.len() as u64;
        Ok(())
    }

    /// Waits until all rows are on the disk.
    ///
    /// # Errors
    /// A one-line message with the system's error.
    pub fn sync(&self) -> Result<(), String> {
        self.file.sync_data().map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

/// Returns a line of cells, quoted where that is needed.
///
/// # Errors
/// A one-line message, in theory: memory can always be written.
pub fn cells<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Vec<u8>, String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(texts).map_err(|error| error.to_string())?;
    writer.into_inner().map_err(|error| error.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn rows_are_appended_to_the_same_columns() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r.csv");
        let columns = ["x".to_owned(), "y,z".to_owned()];
        assert!(Recording::open(&path).unwrap().is_none());
        let mut recording = Recording::create(&path, &columns).unwrap();
        recording.append(b"a,b,1,2\n").unwrap();
        assert!(Recording::open(&path).unwrap_err().contains("another recorder"));
        drop(recording);
        let (mut recording, found) = Recording::open(&path).unwrap().unwrap();
        assert_eq!(found, columns);
        recording.append(b"a,c,3,4\n").unwrap();
        recording.sync().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "wearer,label,x,\"y,z\"\na,b,1,2\na,c,3,4\n");
        drop(recording);
        assert!(Recording::create(&path, &columns).unwrap_err().contains("has begun to write"));
    }

    #[test]
    fn other_files_are_refused_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r.csv");
        for (content, message) in [
            ("person,gesture,x\n1,2,3\n", "found the columns person,gesture,x, expected wearer,label"),
            ("wearer\n", "found the columns wearer, expected"),
            ("wearer,label,x\n1,2,3.", "the last line has no line end"),
        ] {
            std::fs::write(&path, content).unwrap();
            let error = Recording::open(&path).unwrap_err();
            assert!(error.contains(message), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
    }
}
