//! Files, read whole but not without bounds.

use std::fs::File;
use std::io::Read;

use super::DataError;

/// A whole file of at most `largest` bytes.
///
/// # Errors
/// [`DataError`] if it cannot be read, or is larger.
pub fn read(path: &str, largest: u64) -> Result<Vec<u8>, DataError> {
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
