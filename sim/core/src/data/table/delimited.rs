//! Reader of delimited text files such as CSV: a header and one row per sample, with columns separated by
//! commas, semicolons, tabs or bars.

use super::columns::{Header, is_plain};
use super::names::{CodedNames, Merged, Names, is_missing};
use super::number::{Cell, DecimalMark, Numbers};
use super::text::{DELIMITERS, LineCounter, Lines, decode, lines};
use super::{CLASSES, FEATURES, Table, Target};
use crate::data::DataError;
use crate::data::file::unpack;
use crate::data::pool::CLIENTS;

/// Largest file size in bytes, plain or unpacked.
pub const LARGEST_FILE: u64 = 1 << 30;
/// Largest number of values of a table.
const LARGEST_VALUES: usize = 1 << 28;

/// Roles of the columns, and the notation of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Columns {
    /// Name of the column with the client of each row; `None` if rows are partitioned among clients.
    pub client: Option<String>,
    /// Name of the column of targets. For classification, its sorted distinct values are the classes.
    pub target: String,
    /// Feature columns: names, ranges ("a..c") and patterns ("mean_*").
    pub features: Vec<String>,
    /// True if targets are classes.
    pub classification: bool,
    /// Delimiter between columns; `None` to detect the delimiter.
    pub delimiter: Option<u8>,
    /// Decimal mark; `None` to detect the mark.
    pub decimal: Option<DecimalMark>,
    /// Names of clients or classes that would otherwise be read as marks of a missing value.
    pub not_missing: Vec<String>,
}

impl Columns {
    /// Number of features, if no entry is a range or a pattern. Otherwise the number depends on the file.
    #[must_use]
    pub fn count(&self) -> Option<usize> {
        self.features.iter().all(|entry| is_plain(entry)).then_some(self.features.len())
    }
}

/// Positions of the columns in a file.
struct ColumnPositions {
    client: Option<usize>,
    target: usize,
    features: Vec<usize>,
}

impl ColumnPositions {
    /// Finds the configured columns in the header of a file.
    fn find(header: &[&str], columns: &Columns) -> Result<Self, String> {
        let header = Header::new(header);
        let client = columns.client.as_deref();
        let other_columns: Vec<&str> = client.into_iter().chain([columns.target.as_str()]).collect();
        let client = client.map(|name| header.find(name)).transpose()?;
        let target = header.find(&columns.target)?;
        let features = header.select(&columns.features, &other_columns)?;
        if features.len() > FEATURES {
            let feature_count = features.len();
            return Err(format!(
                "data.features: found {feature_count} columns, allowed: at most {FEATURES}, including the constant"
            ));
        }
        Ok(Self { client, target, features })
    }
}

/// Parses the content of a file, plain or gzipped. Rows keep their order.
///
/// # Errors
/// [`DataError`] naming the file, the line and the column of the first error.
pub fn parse(bytes: &[u8], path: &str, columns: &Columns) -> Result<Table, DataError> {
    let bytes = unpack(bytes, path, LARGEST_FILE)?;
    read(&bytes, path, columns).map_err(|message| DataError::new(path, message))
}

/// Parses the content of a file. Error messages do not contain the path.
fn read(bytes: &[u8], path: &str, columns: &Columns) -> Result<Table, String> {
    let text = decode(bytes)?;
    let plain = columns.features.iter().filter(|entry| is_plain(entry));
    let named_columns: Vec<&str> =
        columns.client.iter().chain([&columns.target]).chain(plain).map(String::as_str).collect();
    let lines = lines(&text, columns.delimiter, &named_columns)?;
    let mut records = Records::new(&lines)?;
    let header = records.header.clone();
    let header: Vec<&str> = header.iter().collect();
    let positions = ColumnPositions::find(&header, columns).map_err(|message| {
        if header.len() > 1 {
            return message;
        }
        let is_known = columns.delimiter.is_some() || lines.skipped > 0;
        let marks: Vec<char> = if is_known { vec![lines.delimiter] } else { DELIMITERS.to_vec() }
            .into_iter()
            .map(char::from)
            .collect();
        format!("{message}; the header is a single column and contains none of {marks:?} (data.delimiter)")
    })?;
    let mut rows = Rows::new(columns, &header, &positions, lines.delimiter);
    while let Some(line) = records.read()? {
        rows.append(&records.record, line)?;
    }
    rows.finish(path)
}

/// Reader of the records of a file, with their line numbers.
pub(super) struct Records<'a> {
    reader: csv::Reader<&'a [u8]>,
    lines: &'a Lines<'a>,
    counter: LineCounter,
    /// Column names.
    pub header: csv::StringRecord,
    /// Record that was read last.
    pub record: csv::StringRecord,
}

impl<'a> Records<'a> {
    /// Reads the header.
    ///
    /// # Errors
    /// A one-line message if the file has no header.
    pub fn new(lines: &'a Lines<'a>) -> Result<Self, String> {
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .delimiter(lines.delimiter)
            .trim(csv::Trim::All)
            .from_reader(lines.text.as_bytes());
        let mut header = csv::StringRecord::new();
        if !reader.read_record(&mut header).map_err(|error| error.to_string())? {
            return Err("found an empty file, expected a line of column names".to_owned());
        }
        let (counter, record) = (LineCounter::default(), csv::StringRecord::new());
        Ok(Self { reader, lines, counter, header, record })
    }

    /// Reads the next record that is not blank. Returns its line number, or `None` at the end of the file.
    ///
    /// # Errors
    /// A one-line message if the file cannot be read as a table.
    pub fn read(&mut self) -> Result<Option<u64>, String> {
        while self.reader.read_record(&mut self.record).map_err(|error| error.to_string())? {
            let is_blank = self.record.len() == 1 && self.header.len() > 1 && self.record.get(0) == Some("");
            if !is_blank {
                self.counter.count(self.lines.text.as_bytes(), record_start(&self.record, &self.lines.text));
                return Ok(Some(1 + self.lines.skipped + self.counter.ends));
            }
        }
        Ok(None)
    }

    /// Checks that the record has as many columns as the header.
    ///
    /// # Errors
    /// A one-line message with both numbers.
    pub fn check_width(
        record: &csv::StringRecord,
        expected: usize,
        delimiter: u8,
        line: u64,
    ) -> Result<(), String> {
        let found = record.len();
        if found == expected {
            return Ok(());
        }
        let hint = match delimiter {
            _ if found > expected && record.iter().skip(expected).all(str::is_empty) => {
                "; the line ends in empty columns that the header lacks"
            }
            b',' if found > expected => "; a decimal comma needs quotes or another delimiter",
            _ => "",
        };
        Err(format!("line {line}: found {found} columns, expected {expected} as in the header{hint}"))
    }
}

/// Byte offset at which a record starts. The position from the CSV reader may point to empty lines before the
/// record.
fn record_start(record: &csv::StringRecord, text: &str) -> usize {
    let Some(position) = record.position() else { return 0 };
    let start = usize::try_from(position.byte()).unwrap_or(usize::MAX);
    let line_ends = text.as_bytes().get(start..).unwrap_or_default();
    start + line_ends.iter().take_while(|byte| **byte == b'\n' || **byte == b'\r').count()
}

/// Accumulator of the rows that have been parsed.
struct Rows<'a> {
    columns: &'a Columns,
    header: &'a [&'a str],
    positions: &'a ColumnPositions,
    numbers: Numbers,
    delimiter: u8,
    x: Vec<f64>,
    /// For each feature and the target, the first line with a value, and whether this value is a boolean.
    bools: Vec<Option<(u64, bool)>>,
    values: Vec<f64>,
    classes: NameColumn,
    clients: NameColumn,
}

/// Distinct names of a column, and the code of each row's name.
#[derive(Default)]
struct NameColumn {
    names: Names,
    codes: Vec<u32>,
}

impl<'a> Rows<'a> {
    fn new(
        columns: &'a Columns,
        header: &'a [&'a str],
        positions: &'a ColumnPositions,
        delimiter: u8,
    ) -> Self {
        Self {
            columns,
            header,
            positions,
            numbers: Numbers::new(columns.decimal, delimiter),
            delimiter,
            x: Vec::new(),
            bools: vec![None; positions.features.len() + 1],
            values: Vec::new(),
            classes: NameColumn::default(),
            clients: NameColumn::default(),
        }
    }

    /// Parses a record and appends its values.
    fn append(&mut self, record: &csv::StringRecord, line: u64) -> Result<(), String> {
        Records::check_width(record, self.header.len(), self.delimiter, line)?;
        if self.x.len() + self.positions.features.len() > LARGEST_VALUES {
            return Err(format!(
                "line {line}: found more than {LARGEST_VALUES} values (2^28), allowed: at most that"
            ));
        }
        let positions = self.positions;
        for (index, &column) in positions.features.iter().enumerate() {
            let value = self.number(record, column, index, line, "")?;
            self.x.push(value);
        }
        if self.columns.classification {
            read_name(
                &mut self.classes,
                self.columns,
                record,
                (positions.target, self.header),
                line,
                "class",
            )?;
        } else {
            let hint = " (class names are for task = \"classes\")";
            let value = self.number(record, positions.target, positions.features.len(), line, hint)?;
            self.values.push(value);
        }
        if let Some(column) = positions.client {
            read_name(&mut self.clients, self.columns, record, (column, self.header), line, "client")?;
        }
        Ok(())
    }

    fn number(
        &mut self,
        record: &csv::StringRecord,
        index: usize,
        feature: usize,
        line: u64,
        hint: &str,
    ) -> Result<f64, String> {
        let text = record.get(index).unwrap_or_default();
        let column = self.header.get(index).copied().unwrap_or_default();
        let cell = self.numbers.read(text, line);
        let cell = cell
            .map_err(|expected| format!("line {line}, column {column}: found {text:?}, {expected}{hint}"))?;
        let truth = matches!(cell, Cell::Bool(_));
        match self.bools.get_mut(feature) {
            Some(first @ None) => *first = Some((line, truth)),
            Some(Some((first, was_truth))) if *was_truth != truth => {
                let kind = |truth: bool| if truth { "true or false" } else { "a number" };
                return Err(format!(
                    "line {line}, column {column}: found {text:?}, {}, but line {first} has {}: allowed: one kind in a column",
                    kind(truth),
                    kind(*was_truth)
                ));
            }
            _ => {}
        }
        Ok(cell.value())
    }

    /// Builds the table from all rows, and checks properties of whole columns.
    fn finish(self, path: &str) -> Result<Table, String> {
        let rows = if self.columns.classification { self.classes.codes.len() } else { self.values.len() };
        if rows == 0 {
            return Err("found no rows after the header".to_owned());
        }
        let implied_mark = (self.delimiter == b';').then_some(DecimalMark::Comma);
        let mark = self.numbers.decimal_mark()?.or(implied_mark);
        let mut warnings = Vec::new();
        let mut finish = |named: NameColumn, kind: &str, column: &str, max_names: usize| {
            let (coded, merged) = named
                .names
                .encode(&named.codes, mark)
                .map_err(|message| format!("column {column}: {message}"))?;
            warnings.extend(merge_warning(path, kind, &merged));
            let name_count = coded.names.len();
            if name_count > max_names {
                return Err(format!(
                    "column {column}: found {name_count} {kind}s, allowed: at most {max_names}"
                ));
            }
            Ok(coded)
        };
        let target = if self.columns.classification {
            Target::Classes(finish(self.classes, "class", &self.columns.target, CLASSES)?)
        } else {
            Target::Values(self.values)
        };
        let clients: Option<CodedNames> = match &self.columns.client {
            Some(column) => Some(finish(self.clients, "client", column, CLIENTS)?),
            None => None,
        };
        let name = |index: &usize| self.header.get(*index).copied().unwrap_or_default().to_owned();
        let features = self.positions.features.iter().map(name).collect();
        Ok(Table { name: path.to_owned(), features, x: self.x, target, clients, tests_from: rows, warnings })
    }
}

/// Reads the name of a client or a class from column number `index` of a record, and appends its code.
fn read_name(
    column_names: &mut NameColumn,
    columns: &Columns,
    record: &csv::StringRecord,
    (index, header): (usize, &[&str]),
    line: u64,
    kind: &str,
) -> Result<(), String> {
    let text = record.get(index).unwrap_or_default();
    let column = header.get(index).copied().unwrap_or_default();
    let position = format_args!("line {line}, column {column}");
    if text.is_empty() {
        return Err(format!("{position}: found an empty cell, expected the name of a {kind}"));
    }
    if is_missing(text) && !columns.not_missing.iter().any(|name| name == text) {
        return Err(format!(
            "{position}: found {text:?}, which stands for a missing value; if it is the name of a {kind}, set \
             data.not_missing = [{text:?}]"
        ));
    }
    let max_names = if kind == "class" { CLASSES } else { CLIENTS };
    let (count_before, code) = (column_names.names.len(), column_names.names.intern(text));
    column_names.codes.push(code);
    if column_names.names.len() > count_before && column_names.names.exceeds(max_names) {
        return Err(format!(
            "{position}: found more than {max_names} {kind} names, allowed: at most {max_names}"
        ));
    }
    Ok(())
}

/// Formats a warning about names that are the same value in different notations.
pub fn merge_warning(path: &str, kind: &str, merged: &[Merged]) -> Option<String> {
    let first = merged.first()?;
    let further = match merged.len() - 1 {
        0 => String::new(),
        further => format!(", and {further} more"),
    };
    Some(format!(
        "{path}: {kind} {:?} is also written {:?}{further}: both are read as the same {kind}",
        first.name, first.also
    ))
}
