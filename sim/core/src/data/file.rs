//! Files that a scenario names: found, read whole but not without bounds, and checked against their sums.

use std::borrow::Cow;
use std::fmt::Write;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use sha2::{Digest, Sha256};

use super::DataError;

/// Where a file is that the scenario called `name` speaks of: beside the scenario file, or else in the current
/// directory.
#[must_use]
pub fn locate(name: &str, path: &str) -> String {
    let beside = Path::new(name).with_file_name(path);
    if beside.exists() { beside.display().to_string() } else { path.to_owned() }
}

/// The files of a scenario, in the order in which they are read.
#[derive(Debug)]
pub struct Files<'a> {
    scenario: &'a str,
    /// SHA-256 of each, in hexadecimal; none for no check.
    sums: &'a [String],
    read: usize,
}

impl<'a> Files<'a> {
    /// Files beside the scenario called `scenario`, with their sums.
    #[must_use]
    pub fn new(scenario: &'a str, sums: &'a [String]) -> Self {
        Self { scenario, sums, read: 0 }
    }

    /// Where a file is.
    #[must_use]
    pub fn locate(&self, path: &str) -> String {
        locate(self.scenario, path)
    }

    /// The next file: at most `largest` bytes, and its path.
    ///
    /// # Errors
    /// [`DataError`] if it cannot be read, is larger, or has another sum.
    pub fn read(&mut self, path: &str, largest: u64) -> Result<(Vec<u8>, String), DataError> {
        let path = self.locate(path);
        let bytes = read(&path, largest)?;
        let expected = self.sums.get(self.read);
        self.read += 1;
        if let Some(expected) = expected {
            let found = sum(&bytes);
            if !found.eq_ignore_ascii_case(expected) {
                return Err(DataError::new(
                    path,
                    format!("its SHA-256 is {found}, data.sha256 says {expected}"),
                ));
            }
        }
        Ok((bytes, path))
    }

    /// That there was a file for every sum.
    ///
    /// # Errors
    /// [`DataError`] with both numbers.
    pub fn finish(&self) -> Result<(), DataError> {
        let (sums, read) = (self.sums.len(), self.read);
        if sums == 0 || sums == read {
            return Ok(());
        }
        Err(DataError::new(self.scenario, format!("data.sha256 has {sums} sums for {read} files")))
    }
}

/// SHA-256 in hexadecimal.
fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Reads a whole file of at most `largest` bytes. A directory, a pipe or a device is refused before it is opened, and so is
/// a file that says that it is larger.
///
/// # Errors
/// [`DataError`] if it cannot be read, is larger, or is no regular file.
pub fn read(path: &str, largest: u64) -> Result<Vec<u8>, DataError> {
    let wrong = |message: String| DataError::new(path, message);
    let about = fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    if !about.is_file() {
        let what = if about.is_dir() { "a directory" } else { "a pipe or a device" };
        return Err(wrong(format!("{what}, expected a regular file")));
    }
    let larger = || wrong(format!("more than {largest} bytes"));
    if about.len() > largest {
        return Err(larger());
    }
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    let mut bytes = Vec::with_capacity(usize::try_from(about.len()).unwrap_or(0));
    let read = file.take(largest.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| wrong(error.to_string()))?;
    if bytes.len() as u64 > largest {
        return Err(larger());
    }
    Ok(bytes)
}

/// Bytes that any compressed file may unpack to.
const UNPACKED: u64 = 64 << 20;
/// How many times its size a larger one may unpack to. Deflate packs nothing by more than 1032; tables of numbers
/// and images that are all but empty are packed by less than 100.
const RATIO: u64 = 200;

/// How many bytes a compressed part of `packed` bytes may unpack to.
#[must_use]
pub fn most_unpacked(packed: u64) -> u64 {
    packed.saturating_mul(RATIO).max(UNPACKED)
}

/// Bytes that are unpacked at once.
const AT_ONCE: usize = 1 << 20;

/// What a gzipped file unpacks to, at most `largest` bytes; any other file as it is.
///
/// # Errors
/// [`DataError`] if it is damaged, or unpacks to more than that; or, so far as it is read, to more than [`most_unpacked`]
/// allows, before memory is taken for the rest.
pub fn unpacked<'a>(bytes: &'a [u8], path: &str, largest: u64) -> Result<Cow<'a, [u8]>, DataError> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(Cow::Borrowed(bytes));
    }
    let mut decoder = MultiGzDecoder::new(bytes);
    let mut plain = Vec::new();
    loop {
        let read = decoder.by_ref().take(AT_ONCE as u64).read_to_end(&mut plain);
        let read = read.map_err(|error| DataError::new(path, format!("gzip: {error}")))?;
        let packed = bytes.len() - decoder.get_ref().len();
        let most = largest.min(most_unpacked(packed as u64));
        if plain.len() as u64 > most {
            let message = format!("more than {most} bytes after decompression of its first {packed} bytes");
            return Err(DataError::new(path, message));
        }
        if read < AT_ONCE {
            return Ok(Cow::Owned(plain));
        }
    }
}

#[cfg(test)]
mod tests {
    /// The examples of FIPS 180-4.
    #[test]
    fn sums_are_those_of_the_standard() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(super::sum(b"abc"), abc);
    }
}
