//! Text format of device keys, for hosts that emulate many devices. Each line is `device epoch key`, with the
//! key as 64 hexadecimal digits.

use std::collections::BTreeMap;
use std::path::Path;

use fedspan_protocol::secure::Key;
use zeroize::Zeroizing;

use super::table::DEVICES_MAX;
use fedspan_engine::DeviceId;
use fedspan_files::hex;
use fedspan_files::{FileError, private_file};

/// First line of a written file; a comment.
const TITLE: &str = "# fedspan keys 1: device epoch key\n";

/// Length of the longest line, in bytes: two numbers, a key and separators.
const LINE_MAX: usize = 20 + 1 + 5 + 1 + 64 + 1;

/// Length of the longest file, in bytes: as many lines as a table has rows, and some comments.
const FILE_MAX: usize = DEVICES_MAX * LINE_MAX + (1 << 16);

/// Reason why a file of keys cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyTextError {
    /// The file cannot be read, or other users can read it.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file does not exist.
    #[error("{}: no such file; create it with `keys export`", path.display())]
    Missing {
        /// Path of the missing file.
        path: std::path::PathBuf,
    },
    /// A line is not `device epoch key`. The error does not contain the text of the line, which may be a key.
    #[error("{}:{line}: {}", path.display(), mistake.describe())]
    Line {
        /// Path of the file.
        path: std::path::PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Kind of mistake.
        mistake: LineMistake,
    },
}

/// Mistake in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LineMistake {
    /// The line is not UTF-8.
    Encoding,
    /// The line does not have three fields.
    Fields,
    /// The first field is not a device number.
    Device,
    /// The second field is not an epoch.
    Epoch,
    /// The third field is not a key.
    Key,
    /// An earlier line has the same device.
    Twice,
}

impl LineMistake {
    /// Returns a description for the error message.
    fn describe(self) -> &'static str {
        match self {
            Self::Encoding => "not UTF-8",
            Self::Fields => "allowed: three fields, device epoch key",
            Self::Device => "the first field is not a device number",
            Self::Epoch => "the second field is not an epoch, 0 to 65535",
            Self::Key => "the third field is not a key of 64 hexadecimal digits",
            Self::Twice => "an earlier line has this device",
        }
    }
}

/// Formats keys as text.
pub(super) fn write<'a>(keys: impl ExactSizeIterator<Item = (DeviceId, &'a Key)>) -> Zeroizing<String> {
    use std::fmt::Write;
    // The string has its full capacity from the start: a growing string would leave copies of secrets in
    // freed memory.
    let mut text = Zeroizing::new(String::with_capacity(TITLE.len() + keys.len() * LINE_MAX));
    text.push_str(TITLE);
    for (device, key) in keys {
        // Writing to a string cannot fail.
        let _ = write!(text, "{device} {} ", key.epoch());
        hex::encode(key.expose(), &mut text);
        text.push('\n');
    }
    text
}

/// Parses keys. Empty lines and lines that begin with `#` are skipped.
///
/// # Errors
/// The number of the first wrong line, from 1, and the mistake in that line.
pub fn parse_keys(text: &str) -> Result<BTreeMap<DeviceId, Key>, (usize, LineMistake)> {
    let mut keys = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line_error = |mistake| (number, mistake);
        let mut fields = line.split_ascii_whitespace();
        let (Some(device), Some(epoch), Some(key), None) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(line_error(LineMistake::Fields));
        };
        let device = device.parse().map_err(|_| line_error(LineMistake::Device))?;
        let epoch = epoch.parse().map_err(|_| line_error(LineMistake::Epoch))?;
        let key = hex::decode(key).ok_or(line_error(LineMistake::Key))?;
        if keys.insert(device, Key::new(epoch, *key)).is_some() {
            return Err(line_error(LineMistake::Twice));
        }
    }
    Ok(keys)
}

/// Reads a file written by `keys export`, or a pipe with its content.
///
/// # Errors
/// [`KeyTextError`] if the file cannot be read, other users can read it, or a line is wrong.
pub fn read_keys(path: &Path) -> Result<BTreeMap<DeviceId, Key>, KeyTextError> {
    let bytes = match private_file::read_secret(path, FILE_MAX) {
        Err(FileError::Io { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(KeyTextError::Missing { path: path.to_owned() });
        }
        bytes => bytes?,
    };
    let line_error = |line, mistake| KeyTextError::Line { path: path.to_owned(), line, mistake };
    let text = std::str::from_utf8(&bytes).map_err(|_| line_error(1, LineMistake::Encoding))?;
    parse_keys(text).map_err(|(line, mistake)| line_error(line, mistake))
}
