//! Reader of the key `data.sha256`: the checksums of the data files.

use fedspan_engine::config::{Problem, Section};

/// Reads the SHA-256 checksums of the data files, in the order in which the files are read.
pub(super) fn read_checksums(section: &Section<'_>) -> Result<Vec<String>, Problem> {
    let allowed = "a list of sums of 64 hexadecimal digits, one for each file";
    let sum = |text: &str| {
        let digits = text.len() == 64 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        digits.then(|| text.to_owned())
    };
    Ok(section.list("sha256", allowed, |value| value.as_str().and_then(sum))?.unwrap_or_default())
}
