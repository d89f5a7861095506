//! Lines of text that a board prints: bytes are cut into lines, and lines into numbers or names of columns.

use std::fmt;

use fedspan_sim_core::data::table::FEATURES;

/// Largest length of a line in bytes, without its line end.
pub const LONGEST: usize = 65_536;

/// Cuts a stream of bytes into lines, which end in a line feed.
#[derive(Debug, Default)]
pub struct Lines {
    received: Vec<u8>,
    /// Number of bytes of `received` that were returned as lines.
    returned: usize,
    /// Number of bytes after `returned` in which there is no line end.
    searched: usize,
    /// Number of bytes that were discarded of a line that is too long and has not ended yet.
    discarded: usize,
    /// Number of lines that have ended.
    number: u64,
}

impl Lines {
    /// Adds bytes to the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.received.drain(..self.returned);
        self.returned = 0;
        self.received.extend_from_slice(bytes);
    }

    /// Returns the number and the text of the next line, or of a line that is no text. `None` until a line ends.
    pub fn next(&mut self) -> Option<(u64, Result<&str, Refusal>)> {
        let rest = self.received.get(self.returned..).unwrap_or_default();
        let unsearched = rest.get(self.searched..).unwrap_or_default();
        let Some(end) = unsearched.iter().position(|byte| *byte == b'\n').map(|found| self.searched + found)
        else {
            self.searched = rest.len();
            if rest.len() > LONGEST {
                self.discarded += rest.len();
                (self.returned, self.searched) = (self.received.len(), 0);
            }
            return None;
        };
        self.number += 1;
        self.returned += end + 1;
        self.searched = 0;
        let length = end + std::mem::take(&mut self.discarded);
        let line = rest.get(..end).unwrap_or_default();
        Some((self.number, decode(line, length)))
    }

    /// Returns the number of a last line without a line end, if there is one.
    pub fn unfinished(&self) -> Option<u64> {
        (self.discarded > 0 || self.returned < self.received.len()).then_some(self.number + 1)
    }
}

/// Decodes a line of the given length, of which only the end is left if it is too long.
fn decode(line: &[u8], length: usize) -> Result<&str, Refusal> {
    if length > LONGEST {
        return Err(Refusal::Long { length });
    }
    let text = std::str::from_utf8(line).map_err(|_| Refusal::NoText)?;
    let text = text.trim();
    if text.chars().any(|c| c.is_control() && c != '\t') { Err(Refusal::NoText) } else { Ok(text) }
}

/// Reason for which a line is not recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The line is too long.
    Long {
        /// Length in bytes.
        length: usize,
    },
    /// The line has bytes that are not UTF-8, or control characters.
    NoText,
    /// The source ended before the line.
    Cut,
    /// Numbers arrived before the names of their columns.
    Unnamed,
    /// The number of columns is another one.
    Columns {
        /// Number of columns in the line.
        found: usize,
        /// Number of columns in the recording.
        expected: usize,
    },
    /// A cell is not a finite number.
    Number {
        /// Name of the column.
        column: String,
        /// Text of the cell.
        text: String,
    },
    /// A counter is not a whole number from 0 to 2^53.
    Counter {
        /// Text of the cell.
        text: String,
    },
    /// Names differ from those of the recording.
    Names {
        /// Names in the line.
        found: Vec<String>,
        /// Names of the recording.
        expected: Vec<String>,
    },
    /// A name of a column cannot be used.
    Name(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Long { length } => write!(f, "found {length} bytes, allowed: at most {LONGEST}"),
            Self::NoText => f.write_str("found bytes that are no text; is the baud rate right?"),
            Self::Cut => f.write_str("found a part of a line"),
            Self::Unnamed => {
                f.write_str("found numbers before names; give --columns, or print a line of names first")
            }
            Self::Columns { found, expected } => write!(f, "found {found} columns, expected {expected}"),
            Self::Number { column, text } => {
                write!(
                    f,
                    "column {column:?}: found {text:?}, expected a finite number, at most {:?} in size",
                    f32::MAX
                )
            }
            Self::Counter { text } => write!(f, "found the counter {text:?}, expected a whole number"),
            Self::Names { found, expected } => {
                write!(f, "found the columns {}, expected {}", found.join(","), expected.join(","))
            }
            Self::Name(message) => f.write_str(message),
        }
    }
}

/// Content of a line.
#[derive(Clone, Debug, PartialEq)]
pub enum Content<'a> {
    /// Empty line, or a remark that begins with `#`.
    Remark,
    /// Names of columns.
    Names(Vec<String>),
    /// Texts of the cells, which are numbers, and their values.
    Row(Vec<&'a str>, Vec<f64>),
}

/// Parses a line. Without known names of columns, only names are accepted.
///
/// # Errors
/// The [`Refusal`] of a line that is none of [`Content`].
pub fn parse<'a>(text: &'a str, names: Option<&[String]>) -> Result<Content<'a>, Refusal> {
    if text.is_empty() || text.starts_with('#') {
        return Ok(Content::Remark);
    }
    let cells: Vec<&str> = text.split(',').map(str::trim).collect();
    let is_name = |cell: &&str| {
        cell.parse::<f64>().is_err() && cell.starts_with(|c: char| c.is_alphabetic() || c == '_')
    };
    if cells.iter().all(is_name) {
        let found: Vec<String> = cells.iter().map(|cell| (*cell).to_owned()).collect();
        check_names(&found).map_err(Refusal::Name)?;
        return match names {
            Some(names) if names != found => Err(Refusal::Names { found, expected: names.to_vec() }),
            _ => Ok(Content::Names(found)),
        };
    }
    let names = names.ok_or(Refusal::Unnamed)?;
    if cells.len() != names.len() {
        return Err(Refusal::Columns { found: cells.len(), expected: names.len() });
    }
    let mut values = Vec::with_capacity(cells.len());
    for (cell, name) in cells.iter().zip(names) {
        let value = cell.parse::<f64>().ok().filter(|value| value.abs() <= f64::from(f32::MAX));
        values.push(value.ok_or_else(|| Refusal::Number { column: name.clone(), text: (*cell).to_owned() })?);
    }
    Ok(Content::Row(cells, values))
}

/// Checks the names of the columns that a board prints.
///
/// # Errors
/// A one-line message about an empty name, one that stands twice, a name of the recorder's own, or too many names.
pub fn check_names(names: &[String]) -> Result<(), String> {
    if names.len() > FEATURES {
        return Err(format!("found {} columns, allowed: at most {FEATURES}", names.len()));
    }
    for (index, name) in names.iter().enumerate() {
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err(format!("found {name:?} as the name of a column, allowed: text in one line"));
        }
        if super::table::OWN_COLUMNS.contains(&name.as_str()) {
            return Err(format!("found a column {name:?}, which the recorder writes itself; rename it"));
        }
        if names.iter().take(index).any(|earlier| earlier == name) {
            return Err(format!("found column {name:?} twice; rename one of them"));
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    type Numbered = (u64, Result<String, Refusal>);

    /// Returns all lines of a stream that arrives in parts, and the number of a line without an end.
    fn lines(parts: &[&[u8]]) -> (Vec<Numbered>, Option<u64>) {
        let mut lines = Lines::default();
        let mut found = Vec::new();
        for part in parts {
            lines.push(part);
            while let Some((number, line)) = lines.next() {
                found.push((number, line.map(str::to_owned)));
            }
        }
        (found, lines.unfinished())
    }

    proptest! {
        /// Lines do not depend on the parts in which bytes arrive.
        #[test]
        fn lines_do_not_depend_on_reads(bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'1'), Just(b'\r'), Just(0xff)], 0..200), size in 1usize..20) {
            let whole = lines(&[&bytes]);
            let parts: Vec<&[u8]> = bytes.chunks(size).collect();
            prop_assert_eq!(&lines(&parts), &whole);
            prop_assert_eq!(whole.0.len(), bytes.iter().filter(|byte| **byte == b'\n').count());
        }

        /// Any text is a row of the right width, or refused.
        #[test]
        fn rows_have_a_finite_number_for_each_column(text in "[-+.,0-9aefinNx ]{0,12}") {
            if let Ok(Content::Row(cells, values)) = parse(&text, Some(&names(&["a", "b"]))) {
                prop_assert_eq!((cells.len(), values.len()), (2, 2));
                #[allow(clippy::cast_possible_truncation, reason = "devices hold f32")]
                let finite = values.iter().all(|value| (*value as f32).is_finite());
                prop_assert!(finite);
            }
        }
    }

    #[test]
    fn long_line_is_discarded_up_to_its_end() {
        let long = vec![b'1'; LONGEST / 2 + 1];
        for parts in [&[&long[..], &long, b"2\n3\n"][..], &[&[&long[..], &long, b"2\n3\n"].concat()]] {
            let (found, unfinished) = lines(parts);
            assert_eq!(found, [(1, Err(Refusal::Long { length: LONGEST + 3 })), (2, Ok("3".to_owned()))]);
            assert_eq!(unfinished, None);
        }
        assert_eq!(lines(&[&long, &long]).1, Some(1));
    }

    #[test]
    fn lines_are_numbers_names_or_remarks() {
        let known = names(&["x", "y"]);
        let parse = |text| parse(text, Some(&known));
        assert_eq!(parse("1, -2.5e3"), Ok(Content::Row(vec!["1", "-2.5e3"], vec![1.0, -2500.0])));
        assert_eq!(parse("x,y"), Ok(Content::Names(known.clone())));
        for remark in ["", "# booted", "#1,2"] {
            assert_eq!(parse(remark), Ok(Content::Remark));
        }
        for (text, refusal) in [
            ("1", "found 1 columns, expected 2"),
            ("1,2,3", "found 3 columns, expected 2"),
            ("1,", "column \"y\": found \"\""),
            ("nan,1", "column \"x\": found \"nan\""),
            ("nan,inf", "column \"x\": found \"nan\""),
            ("1,1e39", "column \"y\": found \"1e39\""),
            ("1;2", "found 1 columns"),
            ("x,z", "found the columns x,z, expected x,y"),
            ("label,y", "writes itself"),
            ("x,x", "twice"),
        ] {
            let refused = parse(text).unwrap_err().to_string();
            assert!(refused.contains(refusal), "{text}: {refused}");
        }
        assert_eq!(super::parse("1,2", None), Err(Refusal::Unnamed));
        assert_eq!(super::parse("u,v", None), Ok(Content::Names(names(&["u", "v"]))));
    }
}
