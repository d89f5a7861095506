//! Text layer of the CSV reader: decodes a file, detects the delimiter, and prepares quotes.

use std::borrow::Cow;
use std::collections::HashSet;

/// Delimiters between columns, in the order in which they are tried.
pub const DELIMITERS: [u8; 4] = [b',', b';', b'\t', b'|'];

/// Largest number of columns in a header, which exceeds the largest number of features.
const COLUMNS: usize = 1 << 17;
/// Largest size of a header in bytes.
const HEADER: usize = 1 << 24;

/// First bytes and names of file formats that are recognised and rejected.
const OTHER_FORMATS: [(&[u8], &str); 11] = [
    (b"PK\x03\x04", "a zip archive or a workbook: save its sheet as CSV"),
    (b"\xd0\xcf\x11\xe0", "a workbook: save its sheet as CSV"),
    (b"PAR1", "a Parquet file: save it as CSV or npz"),
    (b"\x93NUMPY", "a NumPy file: kind = \"npz\" reads archives of them"),
    (b"\x89HDF", "an HDF5 file: save it as CSV or npz"),
    (b"BZh", "compressed with bzip2: use gzip"),
    (b"\xfd7zXZ", "compressed with xz: use gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: use gzip"),
    (b"7z\xbc\xaf", "a 7z archive: use gzip"),
    (b"\x1f\x8b", "compressed with gzip twice: compress it once"),
    (b"SQLite format 3", "an SQLite database: save its table as CSV"),
];

/// Decodes a file: UTF-8 with or without a byte order mark, or UTF-16 with a byte order mark.
///
/// # Errors
/// A one-line message if the file has another format, or naming the first byte that is not valid text.
pub fn decode(bytes: &[u8]) -> Result<Cow<'_, str>, String> {
    if let Some((_, format)) = OTHER_FORMATS.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return Err(format!("not a CSV file, but {format}"));
    }
    let text = match bytes {
        [0xff, 0xfe, content @ ..] => Cow::Owned(utf16(content, u16::from_le_bytes)?),
        [0xfe, 0xff, content @ ..] => Cow::Owned(utf16(content, u16::from_be_bytes)?),
        _ => {
            let content = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
            if let Some(offset) = content.iter().position(|byte| *byte == 0) {
                return Err(format!(
                    "line {}: found a zero byte, expected UTF-8, or UTF-16 with a byte order mark",
                    line_of(content, offset)
                ));
            }
            let text = std::str::from_utf8(content).map_err(|error| {
                let offset = error.valid_up_to();
                let byte = content.get(offset).copied().unwrap_or(0);
                let line = line_of(content, offset);
                format!("line {line}: found byte {byte:#04x}, which is not UTF-8; save the file as UTF-8, or as UTF-16 with a byte order mark")
            })?;
            Cow::Borrowed(text)
        }
    };
    if let Some(offset) = text.find('\0') {
        return Err(format!(
            "line {}: found a zero character, expected UTF-8, or UTF-16 with a byte order mark",
            line_of(text.as_bytes(), offset)
        ));
    }
    if text.trim().is_empty() {
        return Err("found an empty file, expected a line of column names".to_owned());
    }
    Ok(text)
}

/// Decodes UTF-16 without a byte order mark. `unit` makes a code unit from two bytes.
fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<String, String> {
    if !bytes.len().is_multiple_of(2) {
        return Err(format!("found UTF-16 that ends within a character, after {} bytes", bytes.len()));
    }
    let units = bytes.chunks_exact(2).filter_map(|pair| pair.try_into().ok()).map(unit);
    let mut text = String::with_capacity(bytes.len() / 2);
    for decoded in char::decode_utf16(units) {
        text.push(decoded.map_err(|error| {
            let line = line_of(text.as_bytes(), text.len());
            format!("line {line}: found UTF-16 with half a character, {:#06x}", error.unpaired_surrogate())
        })?);
    }
    Ok(text)
}

/// Line number of a byte offset, from 1.
fn line_of(bytes: &[u8], offset: usize) -> u64 {
    let mut counter = LineCounter::default();
    counter.count(bytes, offset);
    1 + counter.ends
}

/// Counter of line ends, which are `\n`, `\r\n`, and `\r` alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct LineCounter {
    /// Number of bytes that were examined so far.
    counted: usize,
    /// Number of line ends in the examined bytes.
    pub ends: u64,
}

impl LineCounter {
    /// Counts the line ends up to a byte offset. Offsets must not decrease from call to call.
    pub fn count(&mut self, text: &[u8], end: usize) {
        let mut previous = self.counted.checked_sub(1).and_then(|last| text.get(last)).copied();
        for byte in text.get(self.counted..end).unwrap_or_default() {
            // In `\r\n` only the first byte is counted.
            self.ends += u64::from(*byte == b'\r' || *byte == b'\n' && previous != Some(b'\r'));
            previous = Some(*byte);
        }
        self.counted = end.max(self.counted);
    }
}

/// Text of a table, and its delimiter.
#[derive(Debug)]
pub struct Lines<'a> {
    /// Text from the header on, without blanks between a delimiter and a quote.
    pub text: Cow<'a, str>,
    /// Delimiter between columns.
    pub delimiter: u8,
    /// Number of lines before the header.
    pub skipped: u64,
}

/// Determines the delimiter and prepares the text for the CSV reader. The delimiter is `configured` if given,
/// or the delimiter in a first line `sep=`, or the first of [`DELIMITERS`] with which the header has all of
/// `names`, or the delimiter that gives the most columns.
///
/// # Errors
/// A one-line message if the header is too large, or a quote does not end.
pub fn lines<'a>(text: &'a str, configured: Option<u8>, names: &[&str]) -> Result<Lines<'a>, String> {
    let (declared, text, skipped) = match text.strip_prefix("sep=").map(str::as_bytes) {
        Some([mark, b'\r', b'\n', ..]) => (Some(*mark), text.get(7..).unwrap_or_default(), 1),
        Some([mark, b'\n' | b'\r', ..]) => (Some(*mark), text.get(6..).unwrap_or_default(), 1),
        _ => (None, text, 0),
    };
    let first = header_line(text.trim_start_matches(['\r', '\n']));
    if first.len() > HEADER {
        return Err(format!("found a first line of {} bytes, allowed: at most {HEADER}", first.len()));
    }
    let count = |mark: u8| first.bytes().filter(|byte| *byte == mark).count();
    if let Some(most_columns) =
        DELIMITERS.into_iter().map(count).max().filter(|most_columns| *most_columns >= COLUMNS)
    {
        return Err(format!("found a header of {} columns, allowed: at most {COLUMNS}", most_columns + 1));
    }
    let delimiter = configured.or(declared).unwrap_or_else(|| {
        let splits_all_names = |mark: &u8| {
            let header: HashSet<String> = split_cells(first, *mark).into_iter().collect();
            names.iter().all(|name| header.contains(*name))
        };
        let most_columns = || DELIMITERS.into_iter().rev().max_by_key(|mark| split_cells(first, *mark).len());
        let by_name = DELIMITERS.into_iter().find(splits_all_names).filter(|_| !names.is_empty());
        by_name.or_else(most_columns).unwrap_or(b',')
    });
    Ok(Lines { text: strip_blanks_before_quotes(text, delimiter, skipped)?, delimiter, skipped })
}

/// Header of the file, which may contain line ends within quotes. If a quote does not end, the first line.
fn header_line(text: &str) -> &str {
    let mut quoted = false;
    let end = text.bytes().take(HEADER + 1).position(|byte| {
        quoted ^= byte == b'"';
        !quoted && (byte == b'\n' || byte == b'\r')
    });
    let end = end.or_else(|| text.find(['\r', '\n']).filter(|_| quoted));
    end.and_then(|end| text.get(..end)).unwrap_or(text)
}

/// Splits a line into cells.
fn split_cells(line: &str, delimiter: u8) -> Vec<String> {
    let text = strip_blanks_before_quotes(line, delimiter, 0).unwrap_or(Cow::Borrowed(line));
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .delimiter(delimiter)
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes());
    let first = reader.records().next().and_then(Result::ok).unwrap_or_default();
    first.iter().map(str::to_owned).collect()
}

/// Removes blanks between a delimiter and a quote, since the CSV reader would treat such a quote as an
/// ordinary character.
///
/// # Errors
/// A one-line message with the line of a quote that does not end.
fn strip_blanks_before_quotes(text: &str, delimiter: u8, skipped: u64) -> Result<Cow<'_, str>, String> {
    if !text.contains('"') {
        return Ok(Cow::Borrowed(text));
    }
    #[derive(Clone, Copy)]
    /// Position of the parser relative to cells and quotes.
    enum At {
        /// Before a cell. The blanks before the cell begin at this offset.
        Start(usize),
        Cell,
        /// Within quotes that began in the line of this number.
        Quotes(u64),
        /// After a quote that either ends the cell or is the first of two quotes that encode one quote.
        Quote(u64),
    }
    let mut state = At::Start(0);
    let mut line = 1 + skipped;
    let mut previous = 0;
    let mut dropped: Vec<std::ops::Range<usize>> = Vec::new();
    for (index, byte) in text.bytes().enumerate() {
        let is_blank = (byte == b' ' || byte == b'\t') && byte != delimiter;
        let ends = byte == delimiter || byte == b'\n' || byte == b'\r';
        state = match (state, byte) {
            (At::Start(cell_start), b'"') => {
                if cell_start < index {
                    dropped.push(cell_start..index);
                }
                At::Quotes(line)
            }
            (At::Start(cell_start), _) if is_blank => At::Start(cell_start),
            (At::Quotes(quote_line), b'"') => At::Quote(quote_line),
            (At::Quote(quote_line), b'"') | (At::Quotes(quote_line), _) => At::Quotes(quote_line),
            _ if ends => At::Start(index + 1),
            _ => At::Cell,
        };
        line += u64::from(byte == b'\r' || byte == b'\n' && previous != b'\r');
        previous = byte;
    }
    if let At::Quotes(quote_line) = state {
        return Err(format!("line {quote_line}: found a quote that does not end; close it or double it"));
    }
    if dropped.is_empty() {
        return Ok(Cow::Borrowed(text));
    }
    let mut kept = String::with_capacity(text.len());
    let mut copied_to = 0;
    for range in dropped {
        kept.push_str(text.get(copied_to..range.start).unwrap_or_default());
        copied_to = range.end;
    }
    kept.push_str(text.get(copied_to..).unwrap_or_default());
    Ok(Cow::Owned(kept))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn only_blanks_before_quotes_are_removed() {
        for (text, expected) in [
            ("a, \"b, c\" ,d", "a,\"b, c\" ,d"),
            ("  \"a\",\t\"b\"\n \"c\",d e", "\"a\",\"b\"\n\"c\",d e"),
            ("\"a, \"\"b\"\", c\"", "\"a, \"\"b\"\", c\""),
            ("a b\", c", "a b\", c"),
        ] {
            assert_eq!(strip_blanks_before_quotes(text, b',', 0).unwrap(), expected);
        }
        let message = strip_blanks_before_quotes("a,b\n1,\"2\n3,4\n", b',', 1).unwrap_err();
        assert!(message.contains("line 3"), "{message}");
    }

    #[test]
    fn delimiter_is_detected_by_column_names() {
        for (text, names, expected) in [
            ("a,b;c\n", &["a", "b;c"][..], b','),
            ("a;b,c\n", &["a", "b,c"], b';'),
            ("a\tb c\td\n", &["b c"], b'\t'),
            ("\"a|b\"|c\n", &["a|b"], b'|'),
            ("sep=|\r\na|b,c,d\n", &[], b'|'),
            ("a;b;c,d\n", &["nowhere"], b';'),
            ("one\n", &["nowhere"], b','),
            ("a;b;c\n", &[], b';'),
        ] {
            assert_eq!(lines(text, None, names).unwrap().delimiter, expected, "{text:?}");
        }
    }

    #[test]
    fn encoding_is_detected_by_byte_order_mark() {
        let text = "wer,größe\n";
        let units: Vec<u16> = [0xfeff].into_iter().chain(text.encode_utf16()).collect();
        let little_endian: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        let big_endian: Vec<u8> = units.iter().flat_map(|unit| unit.to_be_bytes()).collect();
        for bytes in [text.as_bytes(), &["\u{feff}", text].concat().into_bytes(), &little_endian, &big_endian]
        {
            assert_eq!(decode(bytes).unwrap(), text);
        }
        for (bytes, message) in [
            (&little_endian[2..], "zero byte"),
            (&little_endian[..little_endian.len() - 1], "within a character"),
            (b"a,b\ngr\xf6\xdfe", "line 2: found byte 0xf6"),
            (b"PK\x03\x04...", "workbook"),
            (b" \n\n", "empty"),
            (b"\xff\xfe\x00\xdca\x00", "half a character"),
        ] {
            let message_text = decode(bytes).unwrap_err();
            assert!(message_text.contains(message), "{message_text}");
        }
    }
}
