//! Reader of the data files that a scenario names: finds them, reads them with a size limit, verifies their
//! checksums and unpacks gzipped files.

use std::borrow::Cow;
use std::fmt::Write;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::DataError;

/// Path of a file that the scenario file `name` refers to as `path`. The path is relative to the directory of
/// the scenario file if the file exists there, and to the current directory otherwise.
#[must_use]
pub fn locate(name: &str, path: &str) -> String {
    let relative = Path::new(name).with_file_name(path);
    if relative.exists() { relative.display().to_string() } else { path.to_owned() }
}

/// Reader of a scenario's data files, which are read in the order of their checksums.
#[derive(Debug)]
pub struct Files<'a> {
    scenario: &'a str,
    /// SHA-256 of each file in hexadecimal; empty if checksums are not verified.
    checksums: &'a [String],
    read: Vec<DataFile>,
}

/// File from which data were read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFile {
    /// Path at which the file was found.
    pub file: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of the content in hexadecimal.
    pub sha256: String,
}

impl DataFile {
    /// Reads the file again. Returns its present size and checksum.
    ///
    /// # Errors
    /// [`DataError`] if it cannot be read.
    pub fn present(&self) -> Result<Self, DataError> {
        let bytes = read(&self.file, u64::MAX)?;
        Ok(Self { file: self.file.clone(), bytes: bytes.len() as u64, sha256: sha256(&bytes) })
    }

    /// Message that the file of a saved run differs from the `present` one; `None` if they are equal.
    #[must_use]
    pub fn difference(&self, present: &Self) -> Option<String> {
        (self != present).then(|| {
            format!(
                "{} has changed since the run was saved: {} bytes and SHA-256 {}, then {} bytes and {}; run the scenario again",
                present.file, present.bytes, present.sha256, self.bytes, self.sha256
            )
        })
    }
}

impl<'a> Files<'a> {
    /// Creates a reader of the files of the scenario file `scenario`, with their checksums.
    #[must_use]
    pub fn new(scenario: &'a str, checksums: &'a [String]) -> Self {
        Self { scenario, checksums, read: Vec::new() }
    }

    /// Path of a file that the scenario refers to as `path`; see [`locate`].
    #[must_use]
    pub fn locate(&self, path: &str) -> String {
        locate(self.scenario, path)
    }

    /// Reads the next file, of at most `largest` bytes. Returns its content and path.
    ///
    /// # Errors
    /// [`DataError`] if the file cannot be read, is larger than `largest`, or has another checksum.
    pub fn read(&mut self, path: &str, largest: u64) -> Result<(Vec<u8>, String), DataError> {
        let path = self.locate(path);
        let bytes = read(&path, largest)?;
        let expected = self.checksums.get(self.read.len());
        let checksum = sha256(&bytes);
        self.read.push(DataFile { file: path.clone(), bytes: bytes.len() as u64, sha256: checksum.clone() });
        if let Some(expected) = expected.filter(|expected| !checksum.eq_ignore_ascii_case(expected)) {
            return Err(DataError::new(
                path,
                format!(
                    "found SHA-256 {checksum}, but data.sha256 lists {expected}; use the right file or fix the list"
                ),
            ));
        }
        Ok((bytes, path))
    }

    /// Checks that the number of files read equals the number of checksums. Returns the files.
    ///
    /// # Errors
    /// [`DataError`] with both numbers if they differ.
    pub fn finish(self) -> Result<Vec<DataFile>, DataError> {
        let (checksums, read) = (self.checksums.len(), self.read.len());
        if checksums == 0 || checksums == read {
            return Ok(self.read);
        }
        Err(DataError::new(
            self.scenario,
            format!("data.sha256 lists {checksums} checksums for {read} files; list one for each"),
        ))
    }
}

/// SHA-256 of `bytes` in hexadecimal.
fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Reads a whole file of at most `largest` bytes. A directory, a pipe, a device or a larger file is rejected
/// before it is opened.
///
/// # Errors
/// [`DataError`] if the file cannot be read, is larger than `largest`, or is not a regular file.
pub fn read(path: &str, largest: u64) -> Result<Vec<u8>, DataError> {
    let data_error = |message: String| DataError::new(path, message);
    let metadata = fs::metadata(path).map_err(|error| data_error(error.to_string()))?;
    if !metadata.is_file() {
        let kind = if metadata.is_dir() { "a directory" } else { "a pipe or a device" };
        return Err(data_error(format!("found {kind}, expected a regular file")));
    }
    let larger = || data_error(format!("found more than {largest} bytes, allowed: at most that"));
    if metadata.len() > largest {
        return Err(larger());
    }
    let file = File::open(path).map_err(|error| data_error(error.to_string()))?;
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
    let read = file.take(largest.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| data_error(error.to_string()))?;
    if bytes.len() as u64 > largest {
        return Err(larger());
    }
    Ok(bytes)
}

/// Size in bytes to which a compressed file of any size may unpack.
const MIN_UNPACK_LIMIT: u64 = 64 << 20;
/// Largest ratio of unpacked to packed size, above [`MIN_UNPACK_LIMIT`]. The maximum of deflate is 1032;
/// nearly empty tables and images compress by less than 100.
const MAX_UNPACK_RATIO: u64 = 200;

/// Largest size in bytes to which a compressed part of `packed` bytes may unpack.
#[must_use]
pub fn unpack_limit(packed: u64) -> u64 {
    packed.saturating_mul(MAX_UNPACK_RATIO).max(MIN_UNPACK_LIMIT)
}

/// Number of bytes that are unpacked at once.
const UNPACK_CHUNK: usize = 1 << 20;

/// Unpacks a gzipped file to at most `largest` bytes; returns any other file unchanged.
///
/// # Errors
/// [`DataError`] if the file is damaged, or unpacks to more than `largest` bytes or to more than
/// [`unpack_limit`] of the packed bytes read so far. No memory beyond this limit is allocated.
pub fn unpack<'a>(bytes: &'a [u8], path: &str, largest: u64) -> Result<Cow<'a, [u8]>, DataError> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(Cow::Borrowed(bytes));
    }
    let mut decoder = MultiGzDecoder::new(bytes);
    let mut plain = Vec::new();
    loop {
        let read = decoder.by_ref().take(UNPACK_CHUNK as u64).read_to_end(&mut plain);
        let read = read.map_err(|error| DataError::new(path, format!("gzip: {error}")))?;
        let packed = bytes.len() - decoder.get_ref().len();
        let max_bytes = largest.min(unpack_limit(packed as u64));
        if plain.len() as u64 > max_bytes {
            let message =
                format!("more than {max_bytes} bytes after decompression of its first {packed} bytes");
            return Err(DataError::new(path, message));
        }
        if read < UNPACK_CHUNK {
            return Ok(Cow::Owned(plain));
        }
    }
}

#[cfg(test)]
mod tests {
    /// Compares with the example in FIPS 180-4.
    #[test]
    fn checksum_matches_standard_example() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(super::sha256(b"abc"), abc);
    }
}
