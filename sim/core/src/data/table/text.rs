//! The text of a table: its encoding, the mark between its columns, its quotes.

use std::borrow::Cow;
use std::collections::HashSet;

/// Marks between columns, in the order in which they are tried.
pub const DELIMITERS: [u8; 4] = [b',', b';', b'\t', b'|'];

/// Columns that a header may have: more than a device has features.
const COLUMNS: usize = 1 << 17;
/// Bytes that a header may have.
const HEADER: usize = 1 << 24;

/// Files of other programs, by their first bytes.
const OTHERS: [(&[u8], &str); 11] = [
    (b"PK\x03\x04", "a zip archive or a workbook: save its sheet as CSV"),
    (b"\xd0\xcf\x11\xe0", "a workbook: save its sheet as CSV"),
    (b"PAR1", "a Parquet file: save it as CSV or npz"),
    (b"\x93NUMPY", "a NumPy file: kind = \"npz\" reads archives of them"),
    (b"\x89HDF", "an HDF5 file: save it as CSV or npz"),
    (b"BZh", "compressed with bzip2: gzip is read"),
    (b"\xfd7zXZ", "compressed with xz: gzip is read"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: gzip is read"),
    (b"7z\xbc\xaf", "a 7z archive: gzip is read"),
    (b"\x1f\x8b", "compressed with gzip twice: once is read"),
    (b"SQLite format 3", "an SQLite database: save its table as CSV"),
];

/// Decodes a file: UTF-8, with a byte order mark or without, or UTF-16 with one.
///
/// # Errors
/// A sentence on the first byte that is no text.
pub fn decode(bytes: &[u8]) -> Result<Cow<'_, str>, String> {
    if let Some((_, what)) = OTHERS.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return Err(format!("no CSV file, but {what}"));
    }
    let text = match bytes {
        [0xff, 0xfe, rest @ ..] => Cow::Owned(utf16(rest, u16::from_le_bytes)?),
        [0xfe, 0xff, rest @ ..] => Cow::Owned(utf16(rest, u16::from_be_bytes)?),
        _ => {
            let rest = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
            if let Some(at) = rest.iter().position(|byte| *byte == 0) {
                return Err(format!(
                    "line {}: a zero byte; text is read as UTF-8, or as UTF-16 with a byte order mark",
                    line_of(rest, at)
                ));
            }
            let text = std::str::from_utf8(rest).map_err(|error| {
                let at = error.valid_up_to();
                let byte = rest.get(at).copied().unwrap_or(0);
                let line = line_of(rest, at);
                format!("line {line}: byte {byte:#04x} is no UTF-8; save the file as UTF-8, or as UTF-16 with a byte order mark")
            })?;
            Cow::Borrowed(text)
        }
    };
    if let Some(at) = text.find('\0') {
        return Err(format!(
            "line {}: a zero character; text is read as UTF-8, or as UTF-16 with a byte order mark",
            line_of(text.as_bytes(), at)
        ));
    }
    if text.trim().is_empty() {
        return Err("empty: a table begins with a line of column names".to_owned());
    }
    Ok(text)
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<String, String> {
    if !bytes.len().is_multiple_of(2) {
        return Err(format!("UTF-16 that ends within a character, after {} bytes", bytes.len()));
    }
    let units = bytes.chunks_exact(2).filter_map(|pair| pair.try_into().ok()).map(unit);
    let mut text = String::with_capacity(bytes.len() / 2);
    for decoded in char::decode_utf16(units) {
        text.push(decoded.map_err(|error| {
            let line = line_of(text.as_bytes(), text.len());
            format!("line {line}: UTF-16 with half a character, {:#06x}", error.unpaired_surrogate())
        })?);
    }
    Ok(text)
}

/// The line of a place, from 1.
fn line_of(bytes: &[u8], at: usize) -> u64 {
    let mut counter = Counter::default();
    counter.count(bytes, at);
    1 + counter.ends
}

/// Counts ends of lines: `\n`, `\r\n`, and `\r` alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counter {
    /// Bytes that are counted.
    upto: usize,
    /// How many lines have ended there.
    pub ends: u64,
}

impl Counter {
    /// Counts on to a place, which is not before the last one.
    pub fn count(&mut self, text: &[u8], place: usize) {
        let mut before = self.upto.checked_sub(1).and_then(|at| text.get(at)).copied();
        for byte in text.get(self.upto..place).unwrap_or_default() {
            // The second of two bytes that end one line ends none.
            self.ends += u64::from(*byte == b'\r' || *byte == b'\n' && before != Some(b'\r'));
            before = Some(*byte);
        }
        self.upto = place.max(self.upto);
    }
}

/// A table's text, and what cuts it into columns.
#[derive(Debug)]
pub struct Lines<'a> {
    /// From the header on, without blanks between a delimiter and a quote.
    pub text: Cow<'a, str>,
    /// The mark between columns.
    pub delimiter: u8,
    /// Lines before the header.
    pub skipped: u64,
}

/// Finds the mark between columns: the one that a first line `sep=` names, or `asked`, or the first of
/// [`DELIMITERS`] with which the header has all of `names`. Where none has, it is the one that makes the most columns.
///
/// # Errors
/// A sentence on a header that is none, or a quote that does not end.
pub fn lines<'a>(text: &'a str, asked: Option<u8>, names: &[&str]) -> Result<Lines<'a>, String> {
    let (said, text, skipped) = match text.strip_prefix("sep=").map(str::as_bytes) {
        Some([mark, b'\r', b'\n', ..]) => (Some(*mark), text.get(7..).unwrap_or_default(), 1),
        Some([mark, b'\n' | b'\r', ..]) => (Some(*mark), text.get(6..).unwrap_or_default(), 1),
        _ => (None, text, 0),
    };
    let first = header(text.trim_start_matches(['\r', '\n']));
    if first.len() > HEADER {
        return Err(format!("a first line of {} bytes, allowed: at most {HEADER}", first.len()));
    }
    let count = |mark: u8| first.bytes().filter(|byte| *byte == mark).count();
    if let Some(most) = DELIMITERS.into_iter().map(count).max().filter(|most| *most >= COLUMNS) {
        return Err(format!("a header of {} columns, allowed: at most {COLUMNS}", most + 1));
    }
    let delimiter = asked.or(said).unwrap_or_else(|| {
        let has = |mark: &u8| {
            let header: HashSet<String> = cells(first, *mark).into_iter().collect();
            names.iter().all(|name| header.contains(*name))
        };
        let most = || DELIMITERS.into_iter().rev().max_by_key(|mark| cells(first, *mark).len());
        DELIMITERS.into_iter().find(has).or_else(most).unwrap_or(b',')
    });
    Ok(Lines { text: tightened(text, delimiter, skipped)?, delimiter, skipped })
}

/// The line of column names, with the lines that names in quotes have; the first line where a quote does not end.
fn header(text: &str) -> &str {
    let mut quoted = false;
    let end = text.bytes().take(HEADER + 1).position(|byte| {
        quoted ^= byte == b'"';
        !quoted && (byte == b'\n' || byte == b'\r')
    });
    let end = end.or_else(|| text.find(['\r', '\n']).filter(|_| quoted));
    end.and_then(|end| text.get(..end)).unwrap_or(text)
}

/// The cells of one line.
fn cells(line: &str, delimiter: u8) -> Vec<String> {
    let text = tightened(line, delimiter, 0).unwrap_or(Cow::Borrowed(line));
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .delimiter(delimiter)
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes());
    let first = reader.records().next().and_then(Result::ok).unwrap_or_default();
    first.iter().map(str::to_owned).collect()
}

/// The text without blanks between a delimiter and a quote, where a quote would be a letter like others.
///
/// # Errors
/// A sentence on a quote that does not end, with its line.
fn tightened(text: &str, delimiter: u8, skipped: u64) -> Result<Cow<'_, str>, String> {
    if !text.contains('"') {
        return Ok(Cow::Borrowed(text));
    }
    #[derive(Clone, Copy)]
    enum At {
        /// Before a cell, with only blanks so far, which begin there.
        Start(usize),
        Cell,
        /// In quotes that began in this line.
        Quotes(u64),
        /// Behind a quote that ends them, or is the first of two that stand for one.
        Quote(u64),
    }
    let mut at = At::Start(0);
    let mut line = 1 + skipped;
    let mut before = 0;
    let mut dropped: Vec<std::ops::Range<usize>> = Vec::new();
    for (place, byte) in text.bytes().enumerate() {
        let blank = (byte == b' ' || byte == b'\t') && byte != delimiter;
        let ends = byte == delimiter || byte == b'\n' || byte == b'\r';
        at = match (at, byte) {
            (At::Start(from), b'"') => {
                if from < place {
                    dropped.push(from..place);
                }
                At::Quotes(line)
            }
            (At::Start(from), _) if blank => At::Start(from),
            (At::Quotes(from), b'"') => At::Quote(from),
            (At::Quote(from), b'"') | (At::Quotes(from), _) => At::Quotes(from),
            _ if ends => At::Start(place + 1),
            _ => At::Cell,
        };
        line += u64::from(byte == b'\r' || byte == b'\n' && before != b'\r');
        before = byte;
    }
    if let At::Quotes(from) = at {
        return Err(format!("line {from}: a quote that does not end"));
    }
    if dropped.is_empty() {
        return Ok(Cow::Borrowed(text));
    }
    let mut kept = String::with_capacity(text.len());
    let mut from = 0;
    for range in dropped {
        kept.push_str(text.get(from..range.start).unwrap_or_default());
        from = range.end;
    }
    kept.push_str(text.get(from..).unwrap_or_default());
    Ok(Cow::Owned(kept))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn blanks_before_quotes_are_dropped_and_others_kept() {
        for (text, expected) in [
            ("a, \"b, c\" ,d", "a,\"b, c\" ,d"),
            ("  \"a\",\t\"b\"\n \"c\",d e", "\"a\",\"b\"\n\"c\",d e"),
            ("\"a, \"\"b\"\", c\"", "\"a, \"\"b\"\", c\""),
            ("a b\", c", "a b\", c"),
        ] {
            assert_eq!(tightened(text, b',', 0).unwrap(), expected);
        }
        let said = tightened("a,b\n1,\"2\n3,4\n", b',', 1).unwrap_err();
        assert!(said.contains("line 3"), "{said}");
    }

    #[test]
    fn delimiters_are_told_by_the_names() {
        for (text, names, expected) in [
            ("a,b;c\n", &["a", "b;c"][..], b','),
            ("a;b,c\n", &["a", "b,c"], b';'),
            ("a\tb c\td\n", &["b c"], b'\t'),
            ("\"a|b\"|c\n", &["a|b"], b'|'),
            ("sep=|\r\na|b,c,d\n", &[], b'|'),
            ("a;b;c,d\n", &["nowhere"], b';'),
            ("one\n", &["nowhere"], b','),
        ] {
            assert_eq!(lines(text, None, names).unwrap().delimiter, expected, "{text:?}");
        }
    }

    #[test]
    fn encodings_are_told_by_their_marks() {
        let text = "wer,größe\n";
        let units: Vec<u16> = [0xfeff].into_iter().chain(text.encode_utf16()).collect();
        let little: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        let big: Vec<u8> = units.iter().flat_map(|unit| unit.to_be_bytes()).collect();
        for bytes in [text.as_bytes(), &["\u{feff}", text].concat().into_bytes(), &little, &big] {
            assert_eq!(decode(bytes).unwrap(), text);
        }
        for (bytes, said) in [
            (&little[2..], "zero byte"),
            (&little[..little.len() - 1], "within a character"),
            (b"a,b\ngr\xf6\xdfe", "line 2: byte 0xf6"),
            (b"PK\x03\x04...", "workbook"),
            (b" \n\n", "empty"),
            (b"\xff\xfe\x00\xdca\x00", "half a character"),
        ] {
            let found = decode(bytes).unwrap_err();
            assert!(found.contains(said), "{found}");
        }
    }
}
