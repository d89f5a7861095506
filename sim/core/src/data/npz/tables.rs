//! A labelled table in an `npz` archive: samples, targets, and whose they are.

use std::collections::BTreeMap;

use fedspan_engine::linalg::Matrix;

use super::values::Values;
use super::{Archive, Array, LARGEST, basis, index, matrix};
use crate::data::DataError;
use crate::data::table::delimited::remark;
use crate::data::table::names::{Names, is_missing};
use crate::data::table::{CLASSES, CLIENTS, Coded, FEATURES, Table, Target, narrow};

/// Numbers of clients and classes are below it: up to there each is an f64 of its own.
const LARGEST_NUMBER: f64 = (1u64 << 53) as f64;
/// Rows of an array, at most: those of a thousand clients with sixteen thousand samples each.
const ROWS: u64 = 1 << 24;

/// Which arrays mean what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrays {
    /// Samples, and those that test.
    pub x: [String; 2],
    /// Targets.
    pub y: [String; 2],
    /// Whose each row is.
    pub client: [String; 2],
    /// A basis of the true representation.
    pub truth: String,
    /// Targets are classes.
    pub classification: bool,
    /// Rows have to be somebody's.
    pub owned: bool,
    /// Names of clients or classes that look like the mark of a missing value.
    pub not_missing: Vec<String>,
}

impl Default for Arrays {
    fn default() -> Self {
        let both = |name: &str| [name.to_owned(), format!("{name}_test")];
        Self {
            x: both("x"),
            y: both("y"),
            client: both("client"),
            truth: "b_star".to_owned(),
            classification: false,
            owned: true,
            not_missing: Vec::new(),
        }
    }
}

/// Reads `x` (clients, m, d) and `y` (clients, m), or `x` (n, d), `y` (n) and `client` (n), which says whose each row is; if
/// there `x_test` and `y_test` of the same layout (with `client_test`), and `b_star` (d, k), of which only the span counts:
/// its columns are made orthonormal. Rows keep their order, those that test behind the others. Numbered clients and classes
/// are in the order of their numbers, others in that of their texts.
///
/// # Errors
/// [`DataError`] naming the file, the array, and for a value that no f32 can hold, or that is no name of a class or of a
/// client, its place.
pub fn table(bytes: &[u8], path: &str, arrays: &Arrays) -> Result<(Table, Option<Matrix>), DataError> {
    let mut archive = Archive::open(bytes, path)?;
    let wrong = |message: String| DataError::new(path, message);
    let train = Part::read(&mut archive, arrays, 0).map_err(wrong)?;
    let train = train.ok_or_else(|| {
        wrong(format!("no array named {}, there are: {} (data.x)", arrays.x[0], archive.names().join(", ")))
    })?;
    let test = Part::read(&mut archive, arrays, 1).map_err(wrong)?;
    if train.x.shape.contains(&0) {
        let (name, shape) = (&arrays.x[0], &train.x.shape);
        return Err(wrong(format!("{name} has shape {shape:?}: there is nothing in it")));
    }
    if let Some(test) = test.as_ref().filter(|test| !test.is_like(&train)) {
        let [x, x_test] = &arrays.x;
        let (found, expected) = (&test.x.shape, &train.x.shape);
        return Err(wrong(format!("{x_test} {found:?} and {} do not fit {x} {expected:?}", arrays.y[1])));
    }
    let truth = match archive.get(&arrays.truth, LARGEST)? {
        Some(b) => {
            let (d, key) = (train.d(), &arrays.truth);
            let b = b.numbers().map_err(|message| wrong(format!("{key}: {message}")))?;
            Some(basis(&matrix(&b, path, key, d)?, path, key)?)
        }
        None => None,
    };
    let mut parts = vec![train];
    parts.extend(test);
    joined(parts, path, arrays).map(|table| (table, truth)).map_err(wrong)
}

/// What trains, or what tests.
struct Part {
    x: Array,
    y: Values,
    /// Whose each row is; without, all clients have as many as the shape says, or rows are nobody's.
    client: Option<Values>,
}

impl Part {
    /// Reads the arrays of one part; nothing if there is none of them.
    fn read(archive: &mut Archive<'_>, arrays: &Arrays, part: usize) -> Result<Option<Self>, String> {
        let [x_name, y_name, client_name] = [&arrays.x, &arrays.y, &arrays.client].map(|names| &names[part]);
        let mut get = |name: &str, most: u64| archive.get(name, most).map_err(|error| error.message);
        let x = get(x_name, LARGEST)?;
        // What has few bytes in an archive can have many rows.
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
                let there = archive.names().join(", ");
                return Err(format!(
                    "no array named {missing}; {x_name} and {y_name} come together; there are: {there} (data.{key} names it)"
                ));
            }
        };
        let rows = match (x.shape(), &client, arrays.owned) {
            (&[clients, m, _], None, _) => vec![clients, m],
            (&[n, _], Some(_), _) | (&[n, _], None, false) => vec![n],
            (shape, client, owned) => {
                let other = if client.is_none() { "(clients, m, d), or " } else { "" };
                let whose = if owned { format!(" with {client_name} (n)") } else { String::new() };
                return Err(format!("{x_name} has shape {shape:?}, expected {other}(n, d){whose}"));
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
        let others = [(y_name, Some(&y)), (client_name, client.as_ref())];
        for (name, values) in others.into_iter().filter_map(|(name, values)| Some((name, values?))) {
            if values.shape() != rows {
                let rows: Vec<String> = rows.iter().map(usize::to_string).collect();
                return Err(format!("{name} has shape {:?}, expected ({})", values.shape(), rows.join(", ")));
            }
        }
        finite(&x, x_name)?;
        Ok(Some(Self { x, y, client }))
    }

    fn d(&self) -> usize {
        self.x.shape.last().copied().unwrap_or(0)
    }

    fn rows(&self) -> usize {
        self.x.values.len().checked_div(self.d()).unwrap_or(0)
    }

    /// Whether rows are as long and say in the same way whose they are.
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

/// One table of both parts.
fn joined(parts: Vec<Part>, path: &str, arrays: &Arrays) -> Result<Table, String> {
    let mut warnings = Vec::new();
    let tests_from = parts.first().map_or(0, Part::rows);
    let d = parts.first().map_or(0, Part::d);
    let y: Vec<&Values> = parts.iter().map(|part| &part.y).collect();
    let target = if arrays.classification {
        let (classes, remarks) = coded(&y, &arrays.y, "class", CLASSES, -LARGEST_NUMBER, arrays)?;
        warnings.extend(remarks.map(|remark| format!("{path}: {remark}")));
        Target::Classes(classes)
    } else {
        let mut values = Vec::new();
        for (part, name) in y.iter().zip(&arrays.y) {
            let Values::Numbers(numbers) = part else {
                return Err(format!(
                    "{name}: an array of texts, expected numbers; texts are for task = \"classes\""
                ));
            };
            finite(numbers, name)?;
            values.extend_from_slice(&numbers.values);
        }
        Target::Values(values)
    };
    let clients = if parts.iter().all(|part| part.client.is_some()) {
        let whose: Vec<&Values> = parts.iter().filter_map(|part| part.client.as_ref()).collect();
        let (clients, remarks) = coded(&whose, &arrays.client, "client", CLIENTS, 0.0, arrays)?;
        warnings.extend(remarks.map(|remark| format!("{path}: {remark}")));
        known(&clients, tests_from, &arrays.client[1])?;
        Some(clients)
    } else {
        by_place(&parts, &arrays.x[0])?
    };
    let mut x = Vec::new();
    for part in parts {
        // The first is not copied, which may be large.
        if x.is_empty() { x = part.x.values } else { x.extend(part.x.values) }
    }
    let features = (0..d).map(|place| format!("{}[{place}]", arrays.x[0])).collect();
    Ok(Table { name: path.to_owned(), features, x, target, clients, tests_from, warnings })
}

/// That whoever tests trains.
fn known(clients: &Coded, tests_from: usize, name: &str) -> Result<(), String> {
    let (train, test) = clients.of.split_at(tests_from.min(clients.of.len()));
    let mut trains = vec![false; clients.names.len()];
    for code in train {
        if let Some(trains) = trains.get_mut(*code as usize) {
            *trains = true;
        }
    }
    let stranger = |code: &&u32| trains.get(**code as usize) == Some(&false);
    match (0usize..).zip(test).find(|(_, code)| stranger(code)) {
        None => Ok(()),
        Some((place, code)) => {
            let client = clients.names.get(*code as usize).map_or("", String::as_str);
            Err(format!("{name} at [{place}]: client {client} has no row in x"))
        }
    }
}

/// Clients by their places, where the shapes have them.
fn by_place(parts: &[Part], name: &str) -> Result<Option<Coded>, String> {
    let mut of = Vec::new();
    let mut names = Vec::new();
    for part in parts {
        let &[clients, m, _] = part.x.shape.as_slice() else { return Ok(None) };
        if clients > CLIENTS {
            return Err(format!("{name} has {clients} clients, allowed: at most {CLIENTS}"));
        }
        for client in 0..u32::try_from(clients).unwrap_or(0) {
            of.extend(std::iter::repeat_n(client, m));
        }
        names = (0..clients).map(|client| client.to_string()).collect();
    }
    Ok(Some(Coded { of, names }))
}

/// Names of classes or clients, at most `most`: whole numbers from `least`, or texts.
fn coded(
    parts: &[&Values],
    keys: &[String; 2],
    kind: &str,
    most: usize,
    least: f64,
    arrays: &Arrays,
) -> Result<(Coded, Option<String>), String> {
    let many = |key: &String| format!("{key} has more than {most} {kind} names, allowed: at most {most}");
    let mut numbers: BTreeMap<i64, u32> = BTreeMap::new();
    let mut texts = Names::default();
    let mut of = Vec::new();
    for (values, key) in parts.iter().zip(keys) {
        match values {
            Values::Numbers(array) => {
                let bad = |value: f64| {
                    value.fract() != 0.0 || value < least || value.abs() >= LARGEST_NUMBER || value.is_nan()
                };
                if let Some((at, value)) = array.first(bad) {
                    let from = if least < 0.0 { "-2^53 + 1" } else { "0" };
                    return Err(format!(
                        "{key} at {at:?}: found {value:?}, expected the number of a {kind}, a whole number from {from} to \
                         2^53 - 1, or texts"
                    ));
                }
                for value in &array.values {
                    #[allow(clippy::cast_possible_truncation, reason = "a whole number below 2^53")]
                    numbers.insert(*value as i64, 0);
                    if numbers.len() > most {
                        return Err(many(key));
                    }
                }
            }
            Values::Texts { texts: all, shape } => {
                for (place, text) in all.iter().enumerate() {
                    let text = text.trim();
                    if is_missing(text) && !(arrays.not_missing.iter().any(|name| name == text)) {
                        return Err(format!(
                            "{key} at {:?}: found {text:?}, which stands for a missing value, expected the name of a {kind} \
                             (data.not_missing)",
                            index(shape, place)
                        ));
                    }
                    of.push(texts.place(text));
                    if texts.len() > 4 * most {
                        return Err(many(key));
                    }
                }
            }
        }
    }
    if !texts.is_empty() {
        if !numbers.is_empty() {
            return Err(format!("{} has texts and {} numbers, or the other way round", keys[0], keys[1]));
        }
        let (coded, merged) = texts.finish(&of, None).map_err(|said| format!("{}: {said}", keys[0]))?;
        if coded.names.len() > most {
            return Err(many(&keys[0]));
        }
        return Ok((coded, remark(&keys[0], kind, &merged)));
    }
    for (code, place) in (0..).zip(numbers.values_mut()) {
        *place = code;
    }
    for values in parts {
        if let Values::Numbers(array) = values {
            #[allow(clippy::cast_possible_truncation, reason = "a whole number below 2^53")]
            of.extend(array.values.iter().filter_map(|value| numbers.get(&(*value as i64)).copied()));
        }
    }
    Ok((Coded { of, names: numbers.keys().map(i64::to_string).collect() }, None))
}

/// That values are numbers that devices can hold.
fn finite(array: &Array, key: &str) -> Result<(), String> {
    match array.first(|value| !narrow(value).is_finite()) {
        None => Ok(()),
        Some((at, value)) => {
            let expected = format!("expected a finite number, at most {:?} as an f32", f32::MAX);
            Err(format!("{key} at {at:?}: found {value:?}, {expected}"))
        }
    }
}
