//! Profile of a delimited text file: properties of the values of each column.

use std::collections::HashMap;

use super::LARGEST_FILE;
use super::delimited::Records;
use super::names::{Names, is_missing};
use super::number::{Cell, Numbers};
use super::text::{decode, lines};
use crate::data::DataError;
use crate::data::file::unpack;

/// Largest number of distinct texts of a column that are counted.
const COUNTED: usize = 100_001;
/// The same of a column of numbers that are not whole, which are measurements and no names.
const COUNTED_MEASURED: usize = 1001;
/// Largest number of distinct values that are kept as examples.
const EXAMPLES: usize = 8;

/// Columns of a file, with properties of their values.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Number of rows after the header.
    pub rows: usize,
    /// Delimiter between columns.
    pub delimiter: char,
    /// Columns in the order of the file.
    pub columns: Vec<Column>,
}

/// Properties of the values of a column.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Name in the header.
    pub name: String,
    /// Number of cells that are empty or stand for a missing value, and the line of the first.
    pub missing: (usize, u64),
    /// Line and content of the first cell that is neither a number, a boolean nor missing.
    pub text: Option<(u64, String)>,
    /// True if all numbers are whole.
    pub is_whole: bool,
    /// True if every row's value is that of the row before plus 1.
    pub counts_rows: bool,
    /// Number of distinct values, at most 100,001, or 1,001 of numbers that are not whole; a number in two notations
    /// is one value.
    pub distinct: usize,
    /// First distinct values in the order of their texts, at most 8.
    pub examples: Vec<String>,
}

impl Column {
    /// True if all cells are numbers or booleans, except those that are missing.
    #[must_use]
    pub fn is_numeric(&self) -> bool {
        self.text.is_none()
    }
}

/// Column whose cells are being read.
struct Reading {
    column: Column,
    numbers: Numbers,
    distinct: Names,
    /// Number in the row before.
    previous: Option<f64>,
}

impl Reading {
    fn new(name: &str, delimiter: u8) -> Self {
        let column = Column {
            name: name.to_owned(),
            missing: (0, 0),
            text: None,
            is_whole: true,
            counts_rows: true,
            distinct: 0,
            examples: Vec::new(),
        };
        Self { column, numbers: Numbers::new(None, delimiter), distinct: Names::default(), previous: None }
    }

    fn read(&mut self, cell: &str, line: u64) {
        let column = &mut self.column;
        if is_missing(cell) {
            column.missing =
                (column.missing.0 + 1, if column.missing.0 == 0 { line } else { column.missing.1 });
            column.counts_rows = false;
            return;
        }
        match self.numbers.read(cell, line) {
            Ok(Cell::Number(value)) => {
                column.is_whole &= value.fract() == 0.0;
                column.counts_rows &= self.previous.is_none_or(|previous| value == previous + 1.0);
                self.previous = Some(value);
            }
            Ok(Cell::Bool(_)) => column.counts_rows = false,
            Err(_) => {
                column.counts_rows = false;
                column.text.get_or_insert_with(|| (line, cell.to_owned()));
            }
        }
        let is_measured = column.text.is_none() && !column.is_whole;
        if self.distinct.len() < if is_measured { COUNTED_MEASURED } else { COUNTED } {
            self.distinct.intern(cell);
        }
    }
}

impl Reading {
    fn finish(self) -> Column {
        let distinct = self.distinct.len();
        let mark = self.numbers.decimal_mark().ok().flatten();
        let names = self.distinct.encode(&[], mark).map(|(coded, _)| coded.names).unwrap_or_default();
        // Names that cannot be distinguished are counted as texts; a reader of the column as names reports them.
        let distinct = if names.is_empty() { distinct } else { names.len() };
        Column { distinct, examples: names.into_iter().take(EXAMPLES).collect(), ..self.column }
    }
}

/// Profiles the content of a file, plain or gzipped.
///
/// # Errors
/// [`DataError`] if the file is not a table: the line, with what was found and what was expected.
pub fn profile(bytes: &[u8], path: &str) -> Result<Profile, DataError> {
    let bytes = unpack(bytes, path, LARGEST_FILE)?;
    read(&bytes).map_err(|message| DataError::new(path, message))
}

fn read(bytes: &[u8]) -> Result<Profile, String> {
    let text = decode(bytes)?;
    let lines = lines(&text, None, &[])?;
    let mut records = Records::new(&lines)?;
    let mut columns: Vec<Reading> =
        records.header.iter().map(|name| Reading::new(name, lines.delimiter)).collect();
    let mut rows = 0;
    while let Some(line) = records.read()? {
        Records::check_width(&records.record, columns.len(), lines.delimiter, line)?;
        for (column, cell) in columns.iter_mut().zip(&records.record) {
            column.read(cell, line);
        }
        rows += 1;
    }
    if rows == 0 {
        return Err("found no rows after the header".to_owned());
    }
    let columns = columns.into_iter().map(Reading::finish).collect();
    Ok(Profile { rows, delimiter: char::from(lines.delimiter), columns })
}

/// Relations between the columns of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relations {
    /// True if no client has a row whose time is before that of the client's row above it.
    pub is_ordered: bool,
    /// Columns of which each value stands for one class of the target, and the other way round.
    pub copies: Vec<String>,
}

/// Columns whose relations are looked at.
#[derive(Clone, Copy, Debug)]
pub struct Related<'a> {
    /// Column with the client of each row.
    pub client: Option<&'a str>,
    /// Column with the time of each row.
    pub time: Option<&'a str>,
    /// Column of the target.
    pub target: &'a str,
    /// Columns that may be copies of the target.
    pub candidates: &'a [&'a str],
}

/// Finds relations between columns of a file that [`profile`] accepts.
///
/// # Errors
/// [`DataError`] as for [`profile`].
pub fn relations(bytes: &[u8], path: &str, columns: Related<'_>) -> Result<Relations, DataError> {
    let bytes = unpack(bytes, path, LARGEST_FILE)?;
    read_relations(&bytes, columns).map_err(|message| DataError::new(path, message))
}

fn read_relations(bytes: &[u8], columns: Related<'_>) -> Result<Relations, String> {
    let text = decode(bytes)?;
    let lines = lines(&text, None, &[])?;
    let mut records = Records::new(&lines)?;
    let place = |name: &str| records.header.iter().position(|column| column == name);
    let (client, time, target) =
        (columns.client.and_then(place), columns.time.and_then(place), place(columns.target));
    let mut candidates: Vec<Candidate<'_>> = columns
        .candidates
        .iter()
        .filter_map(|name| {
            Some(Candidate { name, place: place(name)?, classes: HashMap::new(), values: HashMap::new() })
        })
        .collect();
    let mut last_times: HashMap<String, String> = HashMap::new();
    let mut is_ordered = true;
    while records.read()?.is_some() {
        let cell =
            |place: Option<usize>| place.and_then(|place| records.record.get(place)).unwrap_or_default();
        if time.is_some() {
            let (client, time) = (cell(client), cell(time));
            match last_times.get_mut(client) {
                Some(last) => {
                    is_ordered &= !is_before(time, last);
                    time.clone_into(last);
                }
                None => drop(last_times.insert(client.to_owned(), time.to_owned())),
            }
        }
        let class = cell(target);
        candidates.retain_mut(|candidate| candidate.stands_for(cell(Some(candidate.place)), class));
    }
    let copies = candidates.into_iter().map(|candidate| candidate.name.to_owned()).collect();
    Ok(Relations { is_ordered, copies })
}

/// Column whose values may stand for classes.
struct Candidate<'a> {
    name: &'a str,
    place: usize,
    /// Class of each value, and value of each class.
    classes: HashMap<String, String>,
    values: HashMap<String, String>,
}

impl Candidate<'_> {
    /// True if the value has had no other class, and the class no other value.
    fn stands_for(&mut self, value: &str, class: &str) -> bool {
        self.classes.entry(value.to_owned()).or_insert_with(|| class.to_owned()) == class
            && self.values.entry(class.to_owned()).or_insert_with(|| value.to_owned()) == value
    }
}

/// True if a time is before another one: as numbers if both are, otherwise as text, which orders dates that begin with the
/// year.
fn is_before(time: &str, other: &str) -> bool {
    match (time.parse::<f64>(), other.parse::<f64>()) {
        (Ok(time), Ok(other)) => time < other,
        _ => time < other,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn columns_are_described() {
        let text = "row;who;x;flag;y\n1;ann;1,5;true;3\n2;ann;NA;false;4\n\n3;bob;2,5;true;3\n";
        let profile = profile(text.as_bytes(), "a.csv").unwrap();
        assert_eq!((profile.rows, profile.delimiter, profile.columns.len()), (3, ';', 5));
        let [row, who, x, flag, y] = profile.columns.as_slice() else { unreachable!("five columns") };
        assert!(row.counts_rows && row.is_whole && row.is_numeric() && row.distinct == 3);
        assert_eq!(
            (who.text.clone(), who.distinct, who.counts_rows),
            (Some((2, "ann".to_owned())), 2, false)
        );
        assert_eq!((x.missing, x.is_whole, x.is_numeric()), ((1, 3), false, true));
        assert!(flag.is_numeric() && !flag.counts_rows);
        assert_eq!((y.distinct, y.examples.as_slice()), (2, &["3".to_owned(), "4".to_owned()][..]));
    }

    #[test]
    fn order_in_time_and_copies_of_the_target_are_found() {
        let text = "who,t,when,code,label\na,1,2024-01-02,7,x\nb,9,2024-01-01,8,y\na,2,2024-01-03,7,x\nb,10,2023-12-31,8,y\n";
        let found = |client, time, candidates| {
            relations(text.as_bytes(), "a.csv", Related { client, time, target: "label", candidates })
                .unwrap()
        };
        assert!(found(Some("who"), Some("t"), &[]).is_ordered);
        assert!(!found(None, Some("t"), &[]).is_ordered);
        assert!(!found(Some("who"), Some("when"), &[]).is_ordered);
        assert_eq!(found(None, None, &["code", "t"]).copies, ["code"]);
    }

    #[test]
    fn file_that_is_no_table_is_an_error_with_its_line() {
        for (text, message) in [
            ("a,b\n", "no rows"),
            ("a,b\n1,2\n1,2,3\n", "line 3: found 3 columns, expected 2"),
            ("PK\u{3}\u{4}", "zip archive"),
            ("", "empty file"),
        ] {
            let error = profile(text.as_bytes(), "a.csv").unwrap_err().to_string();
            assert!(error.starts_with("a.csv: ") && error.contains(message), "{error}");
        }
    }
}
