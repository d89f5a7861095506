//! Parser of the marks of a page: finds the tables, the commands that print them, and their positions.

use std::ops::Range;

use super::recipe::Line;

/// Mark after a table.
const END: &str = "<!-- end of table -->";

/// Cost class of a table, which decides when the table is made and compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Class {
    /// The commands take seconds; the table is always made.
    Quick,
    /// The commands take minutes; the table is made with `--all`.
    Nightly,
    /// The table contains times or memory use of a machine, or needs external data. It is made only on
    /// request and never compared. The string is the date of the measurement.
    Measured(String),
}

impl Class {
    /// Returns the name of the class.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Nightly => "nightly",
            Self::Measured(_) => "measured",
        }
    }
}

/// A table and its marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Line number of the first mark, from 1.
    pub line: usize,
    /// Cost class of the table.
    pub class: Class,
    /// Commands that print the table.
    pub lines: Vec<Line>,
    /// Byte range between the marks.
    pub range: Range<usize>,
    /// Byte range of the date in the first mark, if it has one.
    pub day: Option<Range<usize>>,
}

impl Slot {
    /// Returns all commands in one line.
    #[must_use]
    pub fn commands(&self) -> String {
        self.lines.iter().map(|line| line.text.as_str()).collect::<Vec<_>>().join(" && ")
    }
}

/// Finds the tables of a page.
///
/// # Errors
/// The line number of a faulty mark, and a description of the fault.
pub fn slots(text: &str) -> Result<Vec<Slot>, String> {
    let mut slots = Vec::new();
    let mut position = 0;
    while let Some(begin) = next_mark(text, position) {
        let line = 1 + text[..begin].matches('\n').count();
        let fault = |problem: &str| format!("line {line}: {problem}");
        let length = text[begin..].find("-->").ok_or_else(|| fault("the mark is not closed by -->"))?;
        let mark = &text[begin + BEGIN.len()..begin + length];
        let (head, commands) = mark.split_once(':').ok_or_else(|| fault("no colon before the command"))?;
        let (class, day) = parse_class(head).map_err(|error| fault(&error))?;
        let day = day.map(|offset| begin + BEGIN.len() + offset..begin + BEGIN.len() + offset + DAY);
        let lines = commands.lines().map(str::trim).filter(|line| !line.is_empty());
        let lines = lines.map(Line::parse).collect::<Result<Vec<_>, _>>().map_err(|error| fault(&error))?;
        if lines.is_empty() {
            return Err(fault("the mark names no command"));
        }
        let start = begin + length + "-->".len();
        let start = start + usize::from(text[start..].starts_with('\n'));
        let end = text[start..].find(END).ok_or_else(|| fault(&format!("no {END:?} after it")))? + start;
        if next_mark(text, start).is_some_and(|next| next < end) {
            return Err(fault(&format!("no {END:?} before the next mark")));
        }
        slots.push(Slot { line, class, lines, range: start..end, day });
        position = end + END.len();
    }
    Ok(slots)
}

/// Beginning of a mark before a table.
const BEGIN: &str = "<!-- table";
/// Length of a date in the form 2026-01-31.
const DAY: usize = 10;

/// Returns the position of the next mark at the beginning of a line.
fn next_mark(text: &str, from: usize) -> Option<usize> {
    let mut position = from;
    loop {
        let candidate = text[position..].find(BEGIN)? + position;
        if candidate == 0 || text.as_bytes()[candidate - 1] == b'\n' {
            return Some(candidate);
        }
        position = candidate + BEGIN.len();
    }
}

/// Parses the text between `<!-- table` and the colon; returns the class and the offset of the date.
fn parse_class(head: &str) -> Result<(Class, Option<usize>), String> {
    let unknown_mark = || {
        format!(
            "found \"table{head}:\", allowed: \"table:\", \"table, nightly:\", \"table, measured 2026-01-31:\""
        )
    };
    match head.trim() {
        "" => Ok((Class::Quick, None)),
        ", nightly" => Ok((Class::Nightly, None)),
        words => {
            let day = words.strip_prefix(", measured ").ok_or_else(unknown_mark)?;
            let is_day = day.len() == DAY
                && day.bytes().enumerate().all(|(index, byte)| match index {
                    4 | 7 => byte == b'-',
                    _ => byte.is_ascii_digit(),
                });
            let offset = head.find(day).ok_or_else(unknown_mark)?;
            if is_day { Ok((Class::Measured(day.to_owned()), Some(offset))) } else { Err(unknown_mark()) }
        }
    }
}

/// Replaces the text between the marks, and the date if the mark has one.
#[must_use]
pub fn replace_table(text: &str, slot: &Slot, table: &str, today: &str) -> String {
    let mut page = text.to_owned();
    page.replace_range(slot.range.clone(), table);
    if let Some(day) = &slot.day {
        page.replace_range(day.clone(), today);
    }
    page
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{Class, replace_table, slots};

    const PAGE: &str = "# A page\n<!-- table: fedspan-sim power | table 2 -->\n| a |\n<!-- end of table -->\nText.\n\
                        <!-- table, measured 2026-01-31:\nfedspan-sim live a\nfedspan-sim live b\n-->\n| b |\n<!-- end of table -->\n";

    #[test]
    fn text_between_marks_is_replaced() {
        let parsed = slots(PAGE).unwrap();
        assert_eq!(parsed.len(), 2);
        assert_eq!(
            (parsed[0].line, &parsed[0].class, &PAGE[parsed[0].range.clone()]),
            (2, &Class::Quick, "| a |\n")
        );
        assert_eq!(parsed[1].commands(), "fedspan-sim live a && fedspan-sim live b");
        assert_eq!(replace_table(PAGE, &parsed[0], "| a |\n", "2026-02-01"), PAGE);
        let changed = replace_table(PAGE, &parsed[1], "| c |\n| d |\n", "2026-02-01");
        assert!(changed.contains("measured 2026-02-01:") && changed.contains("-->\n| c |\n| d |\n<!-- end"));
        assert_eq!(slots(&changed).unwrap()[0], parsed[0]);
    }

    #[test]
    fn broken_mark_is_reported_with_its_line() {
        for (from, to, message) in [
            ("table:", "table, sometimes:", "line 2: found \"table, sometimes:\", allowed"),
            ("table:", "table", "line 2: no colon"),
            (
                "| a |\n<!-- end of table -->",
                "| a |",
                "line 2: no \"<!-- end of table -->\" before the next mark",
            ),
            ("2026-01-31", "yesterday", "line 6: found"),
            ("fedspan-sim live a\nfedspan-sim live b\n", "", "line 6: the mark names no command"),
            (" | table 2", " | first", "line 2: found \"first\", allowed"),
        ] {
            let error = slots(&PAGE.replacen(from, to, 1)).unwrap_err();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
