//! Keys as text, for hosts that play many devices: a line each, `device epoch key`, the key as 64 hexadecimal digits.

use std::collections::BTreeMap;
use std::path::Path;

use fedspan_protocol::secure::Key;
use zeroize::Zeroizing;

use super::table::DEVICES_MAX;
use fedspan_engine::DeviceId;
use fedspan_files::hex;
use fedspan_files::{FileError, private_file};

/// First line of what is written; a comment to who reads it.
const TITLE: &str = "# fedspan keys 1: device epoch key\n";

/// Longest line that is written: two numbers at their longest, a key, what separates them.
const LINE_MAX: usize = 20 + 1 + 5 + 1 + 64 + 1;

/// Longest file: as many lines as a table has, and a few comments.
const FILE_MAX: usize = DEVICES_MAX * LINE_MAX + (1 << 16);

/// A file of keys cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyTextError {
    /// The file cannot be read, or others can read it.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is none.
    #[error("{}: no such file; `keys export` writes one", path.display())]
    Missing {
        /// Which.
        path: std::path::PathBuf,
    },
    /// A line is not `device epoch key`. What stands there is not told: it may be a key.
    #[error("{}:{line}: {}", path.display(), mistake.what())]
    Line {
        /// Which file.
        path: std::path::PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        mistake: LineMistake,
    },
}

/// What is wrong with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LineMistake {
    /// Not text.
    Encoding,
    /// Not three fields.
    Fields,
    /// The first is no device number.
    Device,
    /// The second is no epoch.
    Epoch,
    /// The third is no key.
    Key,
    /// A device that an earlier line has.
    Twice,
}

impl LineMistake {
    fn what(self) -> &'static str {
        match self {
            Self::Encoding => "not UTF-8",
            Self::Fields => "allowed: three fields, device epoch key",
            Self::Device => "the first field is no device number",
            Self::Epoch => "the second field is no epoch, 0 to 65535",
            Self::Key => "the third field is no key of 64 hexadecimal digits",
            Self::Twice => "an earlier line has this device",
        }
    }
}

/// The text of some keys.
pub(super) fn write<'a>(keys: impl ExactSizeIterator<Item = (DeviceId, &'a Key)>) -> Zeroizing<String> {
    use std::fmt::Write;
    // All of it at once: a string that grows leaves secrets behind.
    let mut text = Zeroizing::new(String::with_capacity(TITLE.len() + keys.len() * LINE_MAX));
    text.push_str(TITLE);
    for (device, key) in keys {
        // A string takes everything.
        let _ = write!(text, "{device} {} ", key.epoch());
        hex::encode(key.expose(), &mut text);
        text.push('\n');
    }
    text
}

/// Reads keys from text. Empty lines and lines that begin with `#` are skipped.
///
/// # Errors
/// The first line that is wrong, from 1, and what is wrong with it.
pub fn parse_keys(text: &str) -> Result<BTreeMap<DeviceId, Key>, (usize, LineMistake)> {
    let mut keys = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |mistake| (number, mistake);
        let mut fields = line.split_ascii_whitespace();
        let (Some(device), Some(epoch), Some(key), None) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(wrong(LineMistake::Fields));
        };
        let device = device.parse().map_err(|_| wrong(LineMistake::Device))?;
        let epoch = epoch.parse().map_err(|_| wrong(LineMistake::Epoch))?;
        let key = hex::decode(key).ok_or(wrong(LineMistake::Key))?;
        if keys.insert(device, Key::new(epoch, *key)).is_some() {
            return Err(wrong(LineMistake::Twice));
        }
    }
    Ok(keys)
}

/// Reads a file that `keys export` has written. Pipes will do.
///
/// # Errors
/// [`KeyTextError`] if it cannot be read, others can read it, or a line is wrong.
pub fn read_keys(path: &Path) -> Result<BTreeMap<DeviceId, Key>, KeyTextError> {
    let bytes = match private_file::read_secret(path, FILE_MAX) {
        Err(FileError::Io { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(KeyTextError::Missing { path: path.to_owned() });
        }
        read => read?,
    };
    let wrong = |line, mistake| KeyTextError::Line { path: path.to_owned(), line, mistake };
    let text = std::str::from_utf8(&bytes).map_err(|_| wrong(1, LineMistake::Encoding))?;
    parse_keys(text).map_err(|(line, mistake)| wrong(line, mistake))
}
