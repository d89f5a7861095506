//! Reader of named arrays in an `npz` archive, with limits on unpacked size and memory.

use std::io::Cursor;

use zip::ZipArchive;
use zip::result::ZipError;

use super::values::{self, Values};
use super::{Array, LARGEST};
use crate::data::DataError;
use crate::data::file::unpack_limit;

/// An `npz` archive in memory.
#[derive(Debug)]
pub struct Archive<'a> {
    zip: ZipArchive<Cursor<&'a [u8]>>,
    name: String,
    /// Size of the file in bytes.
    packed: u64,
    /// Total unpacked size of the arrays read so far, in bytes.
    unpacked: u64,
    /// Total memory of the arrays read so far, in bytes.
    memory: u64,
}

impl<'a> Archive<'a> {
    /// Opens an archive. `name` is the path of the archive, for messages.
    ///
    /// # Errors
    /// [`DataError`] if the bytes are not an npz archive.
    pub fn open(bytes: &'a [u8], name: &str) -> Result<Self, DataError> {
        if bytes.starts_with(b"\x93NUMPY") {
            return Err(DataError::new(
                name,
                "found a single NumPy array, expected an npz archive: save it with numpy.savez",
            ));
        }
        let zip = ZipArchive::new(Cursor::new(bytes))
            .map_err(|error| DataError::new(name, format!("not an npz archive: {error}")))?;
        Ok(Self { zip, name: name.to_owned(), packed: bytes.len() as u64, unpacked: 0, memory: 0 })
    }

    /// Names of the arrays, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let names = self.zip.file_names().filter_map(Result::ok);
        let arrays = names.filter_map(|name| name.strip_suffix(".npy").map(str::to_owned));
        let mut names: Vec<String> = arrays.collect();
        names.sort_unstable();
        names
    }

    /// Reads an array of at most `max_values` elements. Returns `None` if the archive has no array of this
    /// name.
    ///
    /// # Errors
    /// [`DataError`] if the array cannot be read, has more elements, or exceeds the unpacked size allowed for
    /// the size of the file.
    pub fn get(&mut self, key: &str, max_values: u64) -> Result<Option<Values>, DataError> {
        let name = &self.name;
        let data_error = |message: String| DataError::new(name, format!("{key}: {message}"));
        let file = match self.zip.by_name(&format!("{key}.npy")) {
            Ok(file) => file,
            Err(ZipError::FileNotFound) => return Ok(None),
            Err(error) => return Err(data_error(error.to_string())),
        };
        let length = file.size();
        self.unpacked = self.unpacked.saturating_add(length);
        let most_bytes = unpack_limit(self.packed);
        if self.unpacked > most_bytes {
            return Err(data_error(format!(
                "unpacks to {length} bytes from a file of {} bytes, allowed: at most {most_bytes} for all arrays that are \
                 read; save with numpy.savez, which does not compress",
                self.packed
            )));
        }
        let free_memory = most_bytes.saturating_sub(self.memory);
        let values = values::read(file, length, max_values, free_memory).map_err(data_error)?;
        self.memory = self.memory.saturating_add(values.memory());
        Ok(Some(values))
    }

    /// Reads the numbers of an array that must exist.
    ///
    /// # Errors
    /// [`DataError`] as for [`Self::get`], and if the array is missing or contains texts.
    pub fn required(&mut self, key: &str) -> Result<Array, DataError> {
        let values = self.get(key, LARGEST)?;
        let values = values.ok_or_else(|| DataError::new(&self.name, format!("no array named {key}")))?;
        values.numbers().map_err(|message| DataError::new(&self.name, format!("{key}: {message}")))
    }
}
