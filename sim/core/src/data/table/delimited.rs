//! CSV files and their kin: a header, and a row a sample, cut into columns by commas, semicolons, tabs or bars.

use super::columns::{Header, is_plain};
use super::names::{Merged, Names, is_missing};
use super::number::{Cell, Mark, Numbers};
use super::text::{Counter, DELIMITERS, decode, lines};
use super::{CLASSES, CLIENTS, Coded, FEATURES, Table, Target};
use crate::data::DataError;
use crate::data::file::unpacked;

/// Largest file that is read, and largest that a gzipped one unpacks to.
pub const LARGEST_FILE: u64 = 1 << 30;
/// Values that a table may have.
const LARGEST_VALUES: usize = 1 << 28;

/// Which columns mean what, and how they are written.
#[derive(Clone, Debug, PartialEq)]
pub struct Columns {
    /// Names the client a row belongs to; none where rows are cut into clients in another way.
    pub client: Option<String>,
    /// The target. Where `classification`, its distinct names (in the order of their texts) are the classes.
    pub target: String,
    /// The features: names, ranges ("a..c") and patterns ("mean_*").
    pub features: Vec<String>,
    /// Targets are classes.
    pub classification: bool,
    /// The mark between columns; none where it is to be found out.
    pub delimiter: Option<u8>,
    /// The decimal mark; none where it is to be found out.
    pub decimal: Option<Mark>,
    /// Names of clients or classes that look like the mark of a missing value.
    pub not_missing: Vec<String>,
}

impl Columns {
    /// The number of features, where it is known before a file is read.
    #[must_use]
    pub fn count(&self) -> Option<usize> {
        self.features.iter().all(|entry| is_plain(entry)).then_some(self.features.len())
    }
}

/// Where columns stand in a file, and its numbers.
struct Places {
    client: Option<usize>,
    target: usize,
    features: Vec<usize>,
}

impl Places {
    fn find(header: &[&str], columns: &Columns) -> Result<Self, String> {
        let header = Header::new(header);
        let client = columns.client.as_deref();
        let others: Vec<&str> = client.into_iter().chain([columns.target.as_str()]).collect();
        let client = client.map(|name| header.find(name)).transpose()?;
        let target = header.find(&columns.target)?;
        let features = header.choose(&columns.features, &others)?;
        if features.len() > FEATURES {
            let found = features.len();
            return Err(format!(
                "data.features: {found} columns, allowed: at most {FEATURES}, the constant among them"
            ));
        }
        Ok(Self { client, target, features })
    }
}

/// Parses a file, plain or gzipped. Rows keep their order.
///
/// # Errors
/// [`DataError`] naming the file, the line and the column.
pub fn parse(bytes: &[u8], path: &str, columns: &Columns) -> Result<Table, DataError> {
    let bytes = unpacked(bytes, path, LARGEST_FILE)?;
    read(&bytes, path, columns).map_err(|message| DataError::new(path, message))
}

fn read(bytes: &[u8], path: &str, columns: &Columns) -> Result<Table, String> {
    let text = decode(bytes)?;
    let plain = columns.features.iter().filter(|entry| is_plain(entry));
    let named: Vec<&str> =
        columns.client.iter().chain([&columns.target]).chain(plain).map(String::as_str).collect();
    let lines = lines(&text, columns.delimiter, &named)?;
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .delimiter(lines.delimiter)
        .trim(csv::Trim::All)
        .from_reader(lines.text.as_bytes());
    let mut record = csv::StringRecord::new();
    let mut next =
        |record: &mut csv::StringRecord| reader.read_record(record).map_err(|error| error.to_string());
    if !next(&mut record)? {
        return Err("empty: a table begins with a line of column names".to_owned());
    }
    let header = record.clone();
    let header: Vec<&str> = header.iter().collect();
    let places = Places::find(&header, columns).map_err(|message| {
        if header.len() > 1 {
            return message;
        }
        let one = columns.delimiter.is_some() || lines.skipped > 0;
        let marks: Vec<char> = if one { vec![lines.delimiter] } else { DELIMITERS.to_vec() }
            .into_iter()
            .map(char::from)
            .collect();
        format!("{message}; the header is one column, without any of {marks:?} (data.delimiter)")
    })?;
    let mut rows = Rows::new(columns, &header, &places, lines.delimiter);
    let mut counter = Counter::default();
    while next(&mut record)? {
        let blank = record.len() == 1 && header.len() > 1 && record.get(0) == Some("");
        if !blank {
            counter.count(lines.text.as_bytes(), start(&record, &lines.text));
            rows.append(&record, 1 + lines.skipped + counter.ends)?;
        }
    }
    rows.finish(path)
}

/// The place at which a record begins. Its position may be that of empty lines before it.
fn start(record: &csv::StringRecord, text: &str) -> usize {
    let Some(position) = record.position() else { return 0 };
    let start = usize::try_from(position.byte()).unwrap_or(usize::MAX);
    let before = text.as_bytes().get(start..).unwrap_or_default();
    start + before.iter().take_while(|byte| **byte == b'\n' || **byte == b'\r').count()
}

/// Rows as they are read.
struct Rows<'a> {
    columns: &'a Columns,
    header: &'a [&'a str],
    places: &'a Places,
    numbers: Numbers,
    delimiter: u8,
    x: Vec<f64>,
    /// Of each feature and the target: in which line it is read first, and whether it is true or false there.
    truths: Vec<Option<(u64, bool)>>,
    values: Vec<f64>,
    classes: Named,
    clients: Named,
}

/// Names, and which of them each row has.
#[derive(Default)]
struct Named {
    names: Names,
    of: Vec<u32>,
}

impl<'a> Rows<'a> {
    fn new(columns: &'a Columns, header: &'a [&'a str], places: &'a Places, delimiter: u8) -> Self {
        Self {
            columns,
            header,
            places,
            numbers: Numbers::new(columns.decimal, delimiter),
            delimiter,
            x: Vec::new(),
            truths: vec![None; places.features.len() + 1],
            values: Vec::new(),
            classes: Named::default(),
            clients: Named::default(),
        }
    }

    fn append(&mut self, record: &csv::StringRecord, line: u64) -> Result<(), String> {
        let (found, expected) = (record.len(), self.header.len());
        if found != expected {
            let hint = match self.delimiter {
                _ if found > expected && record.iter().skip(expected).all(str::is_empty) => {
                    "; the line has marks between columns at its end, and the header has fewer"
                }
                b',' if found > expected => "; a decimal comma needs quotes, or another mark between columns",
                _ => "",
            };
            return Err(format!("line {line}: {found} columns, the header has {expected}{hint}"));
        }
        if self.x.len() + self.places.features.len() > LARGEST_VALUES {
            return Err(format!("line {line}: more than {LARGEST_VALUES} values (2^28)"));
        }
        let places = self.places;
        for (which, &at) in places.features.iter().enumerate() {
            let value = self.number(record, at, which, line, "")?;
            self.x.push(value);
        }
        if self.columns.classification {
            named(&mut self.classes, self.columns, record, (places.target, self.header), line, "class")?;
        } else {
            let hint = " (class names, words or numbers, are for task = \"classes\")";
            let value = self.number(record, places.target, places.features.len(), line, hint)?;
            self.values.push(value);
        }
        if let Some(at) = places.client {
            named(&mut self.clients, self.columns, record, (at, self.header), line, "client")?;
        }
        Ok(())
    }

    fn number(
        &mut self,
        record: &csv::StringRecord,
        at: usize,
        which: usize,
        line: u64,
        hint: &str,
    ) -> Result<f64, String> {
        let text = record.get(at).unwrap_or_default();
        let column = self.header.get(at).copied().unwrap_or_default();
        let cell = self.numbers.read(text, line);
        let cell = cell
            .map_err(|expected| format!("line {line}, column {column}: found {text:?}, {expected}{hint}"))?;
        let truth = matches!(cell, Cell::Truth(_));
        match self.truths.get_mut(which) {
            Some(first @ None) => *first = Some((line, truth)),
            Some(Some((first, before))) if *before != truth => {
                let kind = |truth: bool| if truth { "true or false" } else { "a number" };
                return Err(format!(
                    "line {line}, column {column}: found {text:?}, {}, and in line {first} {}: a column has one of both",
                    kind(truth),
                    kind(*before)
                ));
            }
            _ => {}
        }
        Ok(cell.value())
    }

    fn finish(self, path: &str) -> Result<Table, String> {
        let rows = if self.columns.classification { self.classes.of.len() } else { self.values.len() };
        if rows == 0 {
            return Err("no rows after the header".to_owned());
        }
        let semicolons = (self.delimiter == b';').then_some(Mark::Comma);
        let mark = self.numbers.finish()?.or(semicolons);
        let mut warnings = Vec::new();
        let mut finish = |named: Named, kind: &str, column: &str, most: usize| {
            let (coded, merged) =
                named.names.finish(&named.of, mark).map_err(|said| format!("column {column}: {said}"))?;
            warnings.extend(remark(path, kind, &merged));
            let found = coded.names.len();
            if found > most {
                return Err(format!("column {column} has {found} {kind}s, at most {most}"));
            }
            Ok(coded)
        };
        let target = if self.columns.classification {
            Target::Classes(finish(self.classes, "class", &self.columns.target, CLASSES)?)
        } else {
            Target::Values(self.values)
        };
        let clients: Option<Coded> = match &self.columns.client {
            Some(column) => Some(finish(self.clients, "client", column, CLIENTS)?),
            None => None,
        };
        let name = |at: &usize| self.header.get(*at).copied().unwrap_or_default().to_owned();
        let features = self.places.features.iter().map(name).collect();
        Ok(Table { name: path.to_owned(), features, x: self.x, target, clients, tests_from: rows, warnings })
    }
}

/// Reads a name of a client or a class.
fn named(
    named: &mut Named,
    columns: &Columns,
    record: &csv::StringRecord,
    (at, header): (usize, &[&str]),
    line: u64,
    kind: &str,
) -> Result<(), String> {
    let text = record.get(at).unwrap_or_default();
    let column = header.get(at).copied().unwrap_or_default();
    let place = format_args!("line {line}, column {column}");
    if text.is_empty() {
        return Err(format!("{place}: empty, expected the name of a {kind}"));
    }
    if is_missing(text) && !columns.not_missing.iter().any(|name| name == text) {
        return Err(format!(
            "{place}: found {text:?}, which stands for a missing value; where it is the name of a {kind}, say \
             data.not_missing = [{text:?}]"
        ));
    }
    let most = if kind == "class" { CLASSES } else { CLIENTS };
    let (before, place_of) = (named.names.len(), named.names.place(text));
    named.of.push(place_of);
    if named.names.len() > before && named.names.exceed(most) {
        return Err(format!("{place}: more than {most} {kind} names, allowed: at most {most}"));
    }
    Ok(())
}

/// The remark on names that are one value, written in several ways.
pub fn remark(path: &str, kind: &str, merged: &[Merged]) -> Option<String> {
    let first = merged.first()?;
    let more = match merged.len() - 1 {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    Some(format!(
        "{path}: {kind} {:?} is also written {:?}{more}: the same value is the same {kind}",
        first.name, first.also
    ))
}
