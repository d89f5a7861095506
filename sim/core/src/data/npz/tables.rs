//! Reader of a labelled table in an `npz` archive: samples, targets, and the client of each sample.

use std::collections::BTreeMap;

use fedspan_engine::linalg::Matrix;

use super::values::Values;
use super::{Archive, Array, LARGEST, basis, index, matrix};
use crate::data::DataError;
use crate::data::pool::CLIENTS;
use crate::data::table::delimited::merge_warning;
use crate::data::table::names::{CodedNames, Names, is_missing};
use crate::data::table::{CLASSES, FEATURES, Table, Target, narrow};

/// Bound of client and class numbers: 2^53, below which f64 represents every whole number.
const LARGEST_NUMBER: f64 = (1u64 << 53) as f64;
/// Largest number of rows of an array: a thousand clients with sixteen thousand samples each.
const ROWS: u64 = 1 << 24;

/// Names of the arrays in the archive, and the interpretation of their values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrays {
    /// Names of the arrays of samples, of the training part and the test part.
    pub x: [String; 2],
    /// Names of the arrays of targets, of the training part and the test part.
    pub y: [String; 2],
    /// Names of the arrays with the client of each row, of the training part and the test part.
    pub client: [String; 2],
    /// Name of the array with a basis of the true representation.
    pub truth: String,
    /// True if targets are classes.
    pub classification: bool,
    /// True if every row must have a client.
    pub requires_client: bool,
    /// Names of clients or classes that would otherwise be read as marks of a missing value.
    pub not_missing: Vec<String>,
}

impl Default for Arrays {
    fn default() -> Self {
        let with_test_name = |name: &str| [name.to_owned(), format!("{name}_test")];
        Self {
            x: with_test_name("x"),
            y: with_test_name("y"),
            client: with_test_name("client"),
            truth: "b_star".to_owned(),
            classification: false,
            requires_client: true,
            not_missing: Vec::new(),
        }
    }
}

/// Reads a table and the true representation.
///
/// Arrays are `x` (clients, m, d) and `y` (clients, m), or `x` (n, d), `y` (n) and `client` (n), where
/// `client` contains the client of each row. Optional arrays are `x_test` and `y_test` of the same layout
/// (with `client_test`), and `b_star` (d, k), whose columns are made orthonormal since only their span
/// matters. Rows keep their order, and test rows follow the training rows. Clients and classes are sorted by
/// number if they are numbers, and by text otherwise.
///
/// # Errors
/// [`DataError`] naming the file and the array if an array is missing or has the wrong shape, and also the
/// position if a value does not fit an f32 or is not a valid name of a class or client.
pub fn table(bytes: &[u8], path: &str, arrays: &Arrays) -> Result<(Table, Option<Matrix>), DataError> {
    let mut archive = Archive::open(bytes, path)?;
    let data_error = |message: String| DataError::new(path, message);
    let train = Part::read(&mut archive, arrays, 0).map_err(data_error)?;
    let train = train.ok_or_else(|| {
        data_error(format!(
            "no array named {}, there are: {} (data.x)",
            arrays.x[0],
            archive.names().join(", ")
        ))
    })?;
    let test = Part::read(&mut archive, arrays, 1).map_err(data_error)?;
    if train.x.shape.contains(&0) {
        let (name, shape) = (&arrays.x[0], &train.x.shape);
        return Err(data_error(format!("{name} has shape {shape:?}, expected at least one value")));
    }
    if let Some(test) = test.as_ref().filter(|test| !test.is_like(&train)) {
        let [x, x_test] = &arrays.x;
        let (found, expected) = (&test.x.shape, &train.x.shape);
        return Err(data_error(format!(
            "{x_test} {found:?} and {} do not fit {x} {expected:?}",
            arrays.y[1]
        )));
    }
    let truth = match archive.get(&arrays.truth, LARGEST)? {
        Some(b) => {
            let (d, key) = (train.d(), &arrays.truth);
            let b = b.numbers().map_err(|message| data_error(format!("{key}: {message}")))?;
            Some(basis(&matrix(&b, path, key, d)?, path, key)?)
        }
        None => None,
    };
    let mut parts = vec![train];
    parts.extend(test);
    join_parts(parts, path, arrays).map(|table| (table, truth)).map_err(data_error)
}

/// Arrays of the training part or of the test part.
struct Part {
    x: Array,
    y: Values,
    /// Client of each row; `None` if the shape of `x` determines the clients, or rows have no clients.
    client: Option<Values>,
}

impl Part {
    /// Reads the arrays of one part. Returns `None` if the archive has none of these arrays.
    fn read(archive: &mut Archive<'_>, arrays: &Arrays, part: usize) -> Result<Option<Self>, String> {
        let [x_name, y_name, client_name] = [&arrays.x, &arrays.y, &arrays.client].map(|names| &names[part]);
        let mut get =
            |name: &str, max_values: u64| archive.get(name, max_values).map_err(|error| error.message);
        let x = get(x_name, LARGEST)?;
        // An archive of few compressed bytes can contain an array with very many rows.
        if let Some([count @ .., _]) = x.as_ref().map(Values::shape)
            && count
                .iter()
                .try_fold(1usize, |rows, size| rows.checked_mul(*size))
                .is_none_or(|rows| rows as u64 > ROWS)
        {
            return Err(format!(
                "{x_name} has shape {count:?} without its last axis, allowed: at most {ROWS} rows"
            ));
        }
        let (x, y, client) = match (x, get(y_name, ROWS)?, get(client_name, ROWS)?) {
            (Some(x), Some(y), client) => (x, y, client),
            (None, None, None) => return Ok(None),
            (x, ..) => {
                let (missing, key) = if x.is_none() { (x_name, "x") } else { (y_name, "y") };
                let array_names = archive.names().join(", ");
                return Err(format!(
                    "no array named {missing}; {x_name} and {y_name} come together; there are: {array_names} (data.{key} names it)"
                ));
            }
        };
        let rows = match (x.shape(), &client, arrays.requires_client) {
            (&[clients, m, _], None, _) => vec![clients, m],
            (&[n, _], Some(_), _) | (&[n, _], None, false) => vec![n],
            (shape, client, requires_client) => {
                let clients_shape = if client.is_none() { "(clients, m, d), or " } else { "" };
                let client_hint =
                    if requires_client { format!(" with {client_name} (n)") } else { String::new() };
                return Err(format!(
                    "{x_name} has shape {shape:?}, expected {clients_shape}(n, d){client_hint}"
                ));
            }
        };
        let x = x.numbers().map_err(|message| format!("{x_name}: {message}"))?;
        if x.shape.last().is_some_and(|d| *d > FEATURES) {
            let shape = &x.shape;
            return Err(format!(
                "{x_name} has shape {shape:?}, allowed: at most {FEATURES} features, the constant among them"
            ));
        }
        let y = y.squeezed(rows.len());
        let client = client.map(|client| client.squeezed(rows.len()));
        let row_arrays = [(y_name, Some(&y)), (client_name, client.as_ref())];
        for (name, values) in row_arrays.into_iter().filter_map(|(name, values)| Some((name, values?))) {
            if values.shape() != rows {
                let rows: Vec<String> = rows.iter().map(usize::to_string).collect();
                return Err(format!("{name} has shape {:?}, expected ({})", values.shape(), rows.join(", ")));
            }
        }
        check_finite(&x, x_name)?;
        Ok(Some(Self { x, y, client }))
    }

    fn d(&self) -> usize {
        self.x.shape.last().copied().unwrap_or(0)
    }

    fn rows(&self) -> usize {
        self.x.values.len().checked_div(self.d()).unwrap_or(0)
    }

    /// True if rows have as many values as in the training part, and clients are given in the same way.
    fn is_like(&self, train: &Self) -> bool {
        let places = |part: &Self| match *part.x.shape.as_slice() {
            [clients, _, _] => Some(clients),
            _ => None,
        };
        self.d() == train.d()
            && self.client.is_some() == train.client.is_some()
            && places(self) == places(train)
    }
}

/// Joins the training part and the test part into one table.
fn join_parts(parts: Vec<Part>, path: &str, arrays: &Arrays) -> Result<Table, String> {
    let mut warnings = Vec::new();
    let tests_from = parts.first().map_or(0, Part::rows);
    let d = parts.first().map_or(0, Part::d);
    let y: Vec<&Values> = parts.iter().map(|part| &part.y).collect();
    let target = if arrays.classification {
        let (classes, merged) = code_names(&y, &arrays.y, "class", CLASSES, -LARGEST_NUMBER, arrays)?;
        warnings.extend(merged.map(|warning| format!("{path}: {warning}")));
        Target::Classes(classes)
    } else {
        let mut values = Vec::new();
        for (part, name) in y.iter().zip(&arrays.y) {
            let Values::Numbers(numbers) = part else {
                return Err(format!(
                    "{name}: found an array of texts, expected numbers; texts are for task = \"classes\""
                ));
            };
            check_finite(numbers, name)?;
            values.extend_from_slice(&numbers.values);
        }
        Target::Values(values)
    };
    let clients = if parts.iter().all(|part| part.client.is_some()) {
        let owners: Vec<&Values> = parts.iter().filter_map(|part| part.client.as_ref()).collect();
        let (clients, merged) = code_names(&owners, &arrays.client, "client", CLIENTS, 0.0, arrays)?;
        warnings.extend(merged.map(|warning| format!("{path}: {warning}")));
        check_test_clients(&clients, tests_from, &arrays.client[1])?;
        Some(clients)
    } else {
        clients_by_position(&parts, &arrays.x[0])?
    };
    let mut x = Vec::new();
    for part in parts {
        // The first array may be large, so it is moved and not copied.
        if x.is_empty() { x = part.x.values } else { x.extend(part.x.values) }
    }
    let features = (0..d).map(|index| format!("{}[{index}]", arrays.x[0])).collect();
    Ok(Table { name: path.to_owned(), features, x, target, clients, tests_from, warnings })
}

/// Checks that every client with test rows has training rows.
fn check_test_clients(clients: &CodedNames, tests_from: usize, name: &str) -> Result<(), String> {
    let (train, test) = clients.codes.split_at(tests_from.min(clients.codes.len()));
    let mut trains = vec![false; clients.names.len()];
    for code in train {
        if let Some(trains) = trains.get_mut(*code as usize) {
            *trains = true;
        }
    }
    let untrained = |code: &&u32| trains.get(**code as usize) == Some(&false);
    match (0usize..).zip(test).find(|(_, code)| untrained(code)) {
        None => Ok(()),
        Some((row, code)) => {
            let client = clients.names.get(*code as usize).map_or("", String::as_str);
            Err(format!(
                "{name} at [{row}]: client {client} has no row in x; remove its test rows or add training rows"
            ))
        }
    }
}

/// Names clients by their index in the first axis, if `x` has three axes. Returns `None` otherwise.
fn clients_by_position(parts: &[Part], name: &str) -> Result<Option<CodedNames>, String> {
    let mut codes = Vec::new();
    let mut names = Vec::new();
    for part in parts {
        let &[clients, m, _] = part.x.shape.as_slice() else { return Ok(None) };
        if clients > CLIENTS {
            return Err(format!("{name} has {clients} clients, allowed: at most {CLIENTS}"));
        }
        for client in 0..u32::try_from(clients).unwrap_or(0) {
            codes.extend(std::iter::repeat_n(client, m));
        }
        names = (0..clients).map(|client| client.to_string()).collect();
    }
    Ok(Some(CodedNames { codes, names }))
}

/// Encodes the names of classes or clients, which are whole numbers from `least`, or texts. Returns the codes
/// of all rows, and a warning if texts in different notations are the same name. Fails for more than
/// `max_names` distinct names.
fn code_names(
    parts: &[&Values],
    keys: &[String; 2],
    kind: &str,
    max_names: usize,
    least: f64,
    arrays: &Arrays,
) -> Result<(CodedNames, Option<String>), String> {
    let too_many =
        |key: &String| format!("{key} has more than {max_names} {kind} names, allowed: at most {max_names}");
    let mut numbers: BTreeMap<i64, u32> = BTreeMap::new();
    let mut texts = Names::default();
    let mut codes = Vec::new();
    for (values, key) in parts.iter().zip(keys) {
        match values {
            Values::Numbers(array) => {
                let is_invalid = |value: f64| {
                    value.fract() != 0.0 || value < least || value.abs() >= LARGEST_NUMBER || value.is_nan()
                };
                if let Some((position, value)) = array.first(is_invalid) {
                    let smallest = if least < 0.0 { "-2^53 + 1" } else { "0" };
                    return Err(format!(
                        "{key} at {position:?}: found {value:?}, expected the number of a {kind}, a whole number from {smallest} to \
                         2^53 - 1, or texts"
                    ));
                }
                for value in &array.values {
                    #[allow(clippy::cast_possible_truncation, reason = "a whole number below 2^53")]
                    numbers.insert(*value as i64, 0);
                    if numbers.len() > max_names {
                        return Err(too_many(key));
                    }
                }
            }
            Values::Texts { texts: all_texts, shape } => {
                for (row, text) in all_texts.iter().enumerate() {
                    let text = text.trim();
                    if is_missing(text) && !(arrays.not_missing.iter().any(|name| name == text)) {
                        return Err(format!(
                            "{key} at {:?}: found {text:?}, which stands for a missing value, expected the name of a {kind} \
                             (data.not_missing)",
                            index(shape, row)
                        ));
                    }
                    codes.push(texts.intern(text));
                    if texts.len() > 4 * max_names {
                        return Err(too_many(key));
                    }
                }
            }
        }
    }
    if !texts.is_empty() {
        if !numbers.is_empty() {
            return Err(format!(
                "found texts in one of {} and {} and numbers in the other, allowed: one kind",
                keys[0], keys[1]
            ));
        }
        let (coded, merged) =
            texts.encode(&codes, None).map_err(|message| format!("{}: {message}", keys[0]))?;
        if coded.names.len() > max_names {
            return Err(too_many(&keys[0]));
        }
        return Ok((coded, merge_warning(&keys[0], kind, &merged)));
    }
    for (code, entry) in (0..).zip(numbers.values_mut()) {
        *entry = code;
    }
    for values in parts {
        if let Values::Numbers(array) = values {
            #[allow(clippy::cast_possible_truncation, reason = "a whole number below 2^53")]
            codes.extend(array.values.iter().filter_map(|value| numbers.get(&(*value as i64)).copied()));
        }
    }
    Ok((CodedNames { codes, names: numbers.keys().map(i64::to_string).collect() }, None))
}

/// Checks that all values are finite and fit an f32.
fn check_finite(array: &Array, key: &str) -> Result<(), String> {
    match array.first(|value| !narrow(value).is_finite()) {
        None => Ok(()),
        Some((position, value)) => {
            let expected = format!("expected a finite number, at most {:?} as an f32", f32::MAX);
            Err(format!("{key} at {position:?}: found {value:?}, {expected}"))
        }
    }
}
