//! Files that a scenario names: found, read whole but not without bounds, and checked against their sums.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::Path;

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

/// A whole file of at most `largest` bytes.
fn read(path: &str, largest: u64) -> Result<Vec<u8>, DataError> {
    let wrong = |message: String| DataError::new(path, message);
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    let mut bytes = Vec::new();
    let read = file.take(largest.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| wrong(error.to_string()))?;
    if bytes.len() as u64 > largest {
        return Err(wrong(format!("more than {largest} bytes")));
    }
    Ok(bytes)
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
