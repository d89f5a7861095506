//! A data set in an `npz` file: samples, targets, and whose they are.

use std::collections::BTreeMap;
use std::io::Cursor;

use zip::ZipArchive;

use super::{Array, LARGEST, array, basis, matrix, narrowed, open};
use crate::data::{Client, DataError, Dataset, Labels, Layout, Set};

/// Numbers of clients are below it: up to there each is an f64 of its own.
const CLIENTS: f64 = (1u64 << 53) as f64;

/// Reads `x` (clients, m, d) and `y` (clients, m), or `x` (n, d), `y` (n) and `client` (n), which says whose each row is;
/// if there `x_test` and `y_test` of the same layout (with `client_test`), and `b_star` (d, k). Numbered clients are in the
/// order of their numbers; their rows, as many as each has, keep their order. Of `b_star` only the span counts: its columns
/// are made orthonormal. Where `classification`, `y` has class numbers from 0 to 255.
///
/// # Errors
/// [`DataError`] naming the file, the array, and for a value that no f32 can hold, or that is no number of a class or of a
/// client, its place.
pub fn dataset(bytes: &[u8], path: &str, classification: bool) -> Result<Dataset, DataError> {
    let mut archive = open(Cursor::new(bytes), path)?;
    let train = Part::read(&mut archive, path, "", classification)?
        .ok_or_else(|| DataError::new(path, "no array named x"))?;
    let test = Part::read(&mut archive, path, "_test", classification)?;
    if train.shape.contains(&0) {
        return Err(DataError::new(path, format!("x has shape {:?}: there is nothing in it", train.shape)));
    }
    if let Some(test) = test.as_ref().filter(|test| !test.is_like(&train)) {
        let message = format!("x_test {:?} and y_test do not fit x {:?}", test.shape, train.shape);
        return Err(DataError::new(path, message));
    }
    let truth = match array(&mut archive, path, "b_star", LARGEST)? {
        Some(b) => Some(basis(&matrix(&b, path, "b_star", train.d)?, path, "b_star")?),
        None => None,
    };
    let rows = train.rows();
    let mut test_rows = test.as_ref().map(Part::rows).unwrap_or_default();
    if let Some((number, place)) = test_rows.iter().find(|(number, _)| !rows.contains_key(number)) {
        let place = place.first().copied().unwrap_or(0);
        let message = format!("client_test at [{place}]: client {number} has no row in x");
        return Err(DataError::new(path, message));
    }
    let client = |(number, rows): (&u64, &Vec<usize>)| {
        let rows_of_test = test_rows.remove(number);
        let tested = test.as_ref().zip(rows_of_test).map(|(test, rows)| test.set.select(test.d, &rows));
        Client::new(train.set.select(train.d, rows), tested.unwrap_or_else(|| Set::empty(classification)))
    };
    Ok(Dataset {
        features: train.d,
        outputs: 1 + train.highest().max(test.as_ref().map_or(0, Part::highest)),
        classification,
        clients: rows.iter().map(client).collect(),
        truth,
        layout: Layout::default(),
        ..Dataset::default()
    })
}

/// Rows of a file, at most: those of a thousand clients with sixteen thousand samples each.
const ROWS: u64 = 1 << 24;

/// What trains, or what tests.
struct Part {
    /// Of `x`.
    shape: Vec<usize>,
    d: usize,
    /// The rows of all clients.
    set: Set,
    /// Whose each row is; without, all clients have as many as the shape says.
    client: Option<Vec<u64>>,
}

impl Part {
    /// Reads the arrays whose names end like this; nothing if there is none of them.
    fn read(
        archive: &mut ZipArchive<Cursor<&[u8]>>,
        path: &str,
        end: &str,
        classification: bool,
    ) -> Result<Option<Self>, DataError> {
        let wrong = |message: String| Err(DataError::new(path, message));
        let names = ["x", "y", "client"].map(|name| format!("{name}{end}"));
        let [x_name, y_name, client_name] = &names;
        let mut read = |name: &str, most: u64| array(archive, path, name, most);
        let x = read(x_name, LARGEST)?;
        // What has few bytes in an archive can have many rows.
        if let Some([count @ .., _]) = x.as_ref().map(|x| x.shape.as_slice())
            && count
                .iter()
                .try_fold(1usize, |rows, size| rows.checked_mul(*size))
                .is_none_or(|rows| rows as u64 > ROWS)
        {
            return wrong(format!(
                "{x_name} has shape {count:?} without its last axis, allowed: at most {ROWS} rows"
            ));
        }
        let (x, y, client) = match (x, read(y_name, ROWS)?, read(client_name, ROWS)?) {
            (Some(x), Some(y), client) => (x, y, client),
            (None, None, None) => return Ok(None),
            (x, ..) => {
                let missing = if x.is_none() { x_name } else { y_name };
                return wrong(format!("no array named {missing}; {x_name} and {y_name} come together"));
            }
        };
        let (rows, d) = match (x.shape.as_slice(), &client) {
            (&[clients, m, d], None) => (vec![clients, m], d),
            (&[n, d], Some(_)) => (vec![n], d),
            (shape, client) => {
                let other = if client.is_none() { "(clients, m, d), or " } else { "" };
                let expected = format!("expected {other}(n, d) with {client_name} (n)");
                return wrong(format!("{x_name} has shape {shape:?}, {expected}"));
            }
        };
        let others = [(y_name, Some(&y)), (client_name, client.as_ref())];
        for (name, array) in others.into_iter().filter_map(|(name, array)| Some((name, array?))) {
            if array.shape != rows {
                let rows: Vec<String> = rows.iter().map(usize::to_string).collect();
                return wrong(format!("{name} has shape {:?}, expected ({})", array.shape, rows.join(", ")));
            }
        }
        let client = client.map(|client| numbers(&client, path, client_name)).transpose()?;
        let wide_y = (!classification).then(|| y.values.clone());
        let (narrow, targets) = (narrowed(&x, path, x_name)?, targets(&y, path, y_name, classification)?);
        let set = Set { x: narrow, y: targets, wide: Some(x.values), wide_y };
        Ok(Some(Self { shape: x.shape, d, set, client }))
    }

    /// Whether rows are as long and say in the same way whose they are.
    fn is_like(&self, train: &Self) -> bool {
        let as_many = self.client.is_some() || self.shape.first() == train.shape.first();
        self.d == train.d && self.client.is_some() == train.client.is_some() && as_many
    }

    /// Each client's rows, by its number, or its place.
    fn rows(&self) -> BTreeMap<u64, Vec<usize>> {
        let mut rows: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        match (&self.client, self.shape.as_slice()) {
            (Some(client), _) => {
                for (row, &number) in client.iter().enumerate() {
                    rows.entry(number).or_default().push(row);
                }
            }
            (None, &[clients, m, _]) => {
                rows.extend((0..).zip((0..clients).map(|place| (place * m..(place + 1) * m).collect())));
            }
            (None, _) => {}
        }
        rows
    }

    /// The highest class; 0 of values.
    fn highest(&self) -> usize {
        match &self.set.y {
            Labels::Classes(classes) => classes.iter().copied().max().map_or(0, usize::from),
            Labels::Values { .. } | Labels::Absent(_) => 0,
        }
    }
}

/// Numbers of clients.
fn numbers(array: &Array, path: &str, name: &str) -> Result<Vec<u64>, DataError> {
    if let Some((at, value)) = array.first(|value| value.fract() != 0.0 || !(0.0..CLIENTS).contains(&value)) {
        let message =
            format!("{name} at {at:?}: found {value:?}, expected a whole number from 0 to 2^53 - 1");
        return Err(DataError::new(path, message));
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number below 2^53")]
    let number = |value: &f64| *value as u64;
    Ok(array.values.iter().map(number).collect())
}

/// Targets as devices hold them: class numbers, or values.
fn targets(array: &Array, path: &str, name: &str, classification: bool) -> Result<Labels, DataError> {
    if !classification {
        return Ok(Labels::values(narrowed(array, path, name)?));
    }
    if let Some((at, value)) = array.first(|value| value.fract() != 0.0 || !(0.0..=255.0).contains(&value)) {
        let message = format!("{name} at {at:?}: found {value:?}, expected a class number from 0 to 255");
        return Err(DataError::new(path, message));
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number up to 255")]
    let class = |value: &f64| *value as u8;
    Ok(Labels::Classes(array.values.iter().map(class).collect()))
}
