//! Reading of configuration and scenario files, with a limit on their length.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::source::Problem;
use fedspan_files::non_file_kind;

/// Largest length of a file in bytes. It has room for a list of 200,000 devices, and any file of this length
/// is parsed in less than a second.
const LENGTH_MAX: u64 = 2 << 20;

/// Reads a configuration or scenario file.
///
/// # Errors
/// [`Problem`] if the path is not a regular file (reading a pipe could block, and a device file may have no
/// end), or if the file is longer than 2 MiB, cannot be read, or is not UTF-8.
pub fn read_file(path: &Path) -> Result<String, Problem> {
    let problem = |message: String| Problem::new(path.display().to_string(), message);
    let failed = |error: std::io::Error| problem(error.to_string());
    let too_long = |length: u64| problem(format!("found {length} bytes, allowed: at most {LENGTH_MAX}"));
    let about = std::fs::metadata(path).map_err(failed)?;
    if let Some(kind) = non_file_kind(about.file_type()) {
        return Err(problem(format!("found {kind}, allowed: a file of at most {LENGTH_MAX} bytes")));
    }
    if about.len() > LENGTH_MAX {
        return Err(too_long(about.len()));
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(LENGTH_MAX + 1).read_to_end(&mut bytes)).map_err(failed)?;
    // The file may have grown since its length was read, or its file system may report no length.
    if bytes.len() as u64 > LENGTH_MAX {
        return Err(too_long(bytes.len() as u64));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        problem(format!("found invalid UTF-8 at byte {valid}, allowed: text in UTF-8"))
    })
}
