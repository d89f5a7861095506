//! NumPy files: `npz` data sets, `npy` matrices in and out.

use std::fs::File;
use std::io::{BufReader, BufWriter, Cursor, Read, Seek, Write};
use std::path::Path;

use fedspan_aggregator::linalg::{Matrix, orthonormal};
use npyz::{DType, NpyFile, Order, WriterBuilder};
use zip::ZipArchive;
use zip::result::ZipError;

use super::{Client, DataError, Dataset, Labels, Layout, Set};

/// Largest array that is read, in elements.
const LARGEST: u64 = 1 << 28;
/// Largest file that is read.
pub const LARGEST_FILE: u64 = 1 << 31;

/// An array of numbers with its shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Row-major.
    pub values: Vec<f64>,
}

impl Array {
    /// The first value of a kind, with its index in every dimension.
    fn first(&self, is: impl Fn(f64) -> bool) -> Option<(Vec<usize>, f64)> {
        let place = self.values.iter().position(|&value| is(value))?;
        let mut rest = place;
        let mut at: Vec<usize> = self
            .shape
            .iter()
            .rev()
            .map(|&n| {
                let index = rest % n.max(1);
                rest /= n.max(1);
                index
            })
            .collect();
        at.reverse();
        self.values.get(place).map(|&value| (at, value))
    }
}

/// Reads `x` (clients, m, d), `y` (clients, m), and if there `b_star` (d, k), `x_test`, `y_test`. Of `b_star`
/// only the span counts: its columns are made orthonormal. Where `classification`, `y` has class numbers from 0 to 255.
///
/// # Errors
/// [`DataError`] naming the file, the array, and for a value that no f32 can hold its place.
pub fn dataset(bytes: &[u8], path: &str, classification: bool) -> Result<Dataset, DataError> {
    let mut archive = open(Cursor::new(bytes), path)?;
    let x = required(&mut archive, path, "x")?;
    let y = required(&mut archive, path, "y")?;
    let [clients, m, d] = *x.shape.as_slice() else {
        return Err(DataError::new(path, format!("x has shape {:?}, expected (clients, m, d)", x.shape)));
    };
    if y.shape != [clients, m] {
        return Err(DataError::new(path, format!("y has shape {:?}, expected ({clients}, {m})", y.shape)));
    }
    let test = match (array(&mut archive, path, "x_test")?, array(&mut archive, path, "y_test")?) {
        (Some(x), Some(y)) => {
            let fits = x.shape.len() == 3 && x.shape.first() == Some(&clients) && x.shape.last() == Some(&d);
            if !fits || y.shape.as_slice() != x.shape.get(..2).unwrap_or_default() {
                let message = format!(
                    "x_test {:?} and y_test {:?} do not fit x {:?}",
                    x.shape,
                    y.shape,
                    [clients, m, d]
                );
                return Err(DataError::new(path, message));
            }
            let rows = x.shape.get(1).copied().unwrap_or(0);
            Some((rows, narrowed(&x, path, "x_test")?, targets(&y, path, "y_test", classification)?))
        }
        (None, None) => None,
        _ => return Err(DataError::new(path, "x_test and y_test come together or not at all")),
    };
    let truth = match array(&mut archive, path, "b_star")? {
        Some(b) => Some(basis(&matrix(&b, path, "b_star", d)?, path, "b_star")?),
        None => None,
    };
    let (x, y) = (narrowed(&x, path, "x")?, targets(&y, path, "y", classification)?);
    let cut = |rows: usize, x: &[f32], y: &Labels, client: usize| {
        let range = |width: usize| client * rows * width..(client + 1) * rows * width;
        let y = match y {
            Labels::Classes(y) => Labels::Classes(y.get(range(1)).unwrap_or_default().to_vec()),
            Labels::Values(y) | Labels::Absent(y) => {
                Labels::Values(y.get(range(1)).unwrap_or_default().to_vec())
            }
        };
        Set { x: x.get(range(d)).unwrap_or_default().to_vec(), y }
    };
    let highest = |y: &Labels| match y {
        Labels::Classes(y) => y.iter().copied().max().map_or(0, usize::from),
        Labels::Values(_) | Labels::Absent(_) => 0,
    };
    let outputs = 1 + highest(&y).max(test.as_ref().map_or(0, |(_, _, y)| highest(y)));
    let nothing = Set::empty(classification);
    let client = |client| {
        let test = test.as_ref().map_or_else(|| nothing.clone(), |(rows, x, y)| cut(*rows, x, y, client));
        Client::new(cut(m, &x, &y, client), test)
    };
    Ok(Dataset {
        features: d,
        outputs,
        classification,
        clients: (0..clients).map(client).collect(),
        newcomers: Vec::new(),
        truth,
        layout: Layout::default(),
    })
}

/// Targets as devices hold them: class numbers, or values.
fn targets(array: &Array, name: &str, key: &str, classification: bool) -> Result<Labels, DataError> {
    if !classification {
        return Ok(Labels::Values(narrowed(array, name, key)?));
    }
    if let Some((at, value)) = array.first(|value| value.fract() != 0.0 || !(0.0..=255.0).contains(&value)) {
        let message = format!("{key} at {at:?}: found {value:?}, expected a class number from 0 to 255");
        return Err(DataError::new(name, message));
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number up to 255")]
    let class = |value: &f64| *value as u8;
    Ok(Labels::Classes(array.values.iter().map(class).collect()))
}

/// Reads a matrix of `rows` rows from an npy file.
///
/// # Errors
/// [`DataError`] naming the file.
pub fn read_matrix(path: &str, rows: usize) -> Result<Matrix, DataError> {
    let npy = NpyFile::new(BufReader::new(file(path)?));
    let npy = npy.map_err(|error| DataError::new(path, error.to_string()))?;
    matrix(&numbers(npy, path, "the array")?, path, "the array", rows)
}

/// Writes f64 values as an npy file, to a temporary file first.
///
/// # Errors
/// [`DataError`] naming the file.
pub fn write(path: &Path, shape: &[u64], values: &[f64]) -> Result<(), DataError> {
    let name = path.display().to_string();
    let failed = |error: std::io::Error| DataError::new(&name, error.to_string());
    let partial = path.with_extension("npy.partial");
    let mut out = BufWriter::new(File::create(&partial).map_err(failed)?);
    let options = npyz::WriteOptions::<f64>::new().default_dtype().shape(shape).writer(&mut out);
    let mut writer = options.begin_nd().map_err(failed)?;
    for value in values {
        writer.push(value).map_err(failed)?;
    }
    writer.finish().map_err(failed)?;
    out.flush().map_err(failed)?;
    std::fs::rename(&partial, path).map_err(failed)
}

pub(super) fn open<R: Read + Seek>(reader: R, name: &str) -> Result<ZipArchive<R>, DataError> {
    ZipArchive::new(reader).map_err(|error| DataError::new(name, format!("not an npz archive: {error}")))
}

pub(super) fn required<R: Read + Seek>(
    archive: &mut ZipArchive<R>,
    name: &str,
    key: &str,
) -> Result<Array, DataError> {
    array(archive, name, key)?.ok_or_else(|| DataError::new(name, format!("no array named {key}")))
}

fn array<R: Read + Seek>(
    archive: &mut ZipArchive<R>,
    name: &str,
    key: &str,
) -> Result<Option<Array>, DataError> {
    let wrong = |message: String| DataError::new(name, format!("{key}: {message}"));
    let file = match archive.by_name(&format!("{key}.npy")) {
        Ok(file) => file,
        Err(ZipError::FileNotFound) => return Ok(None),
        Err(error) => return Err(wrong(error.to_string())),
    };
    let npy = NpyFile::new(file).map_err(|error| wrong(error.to_string()))?;
    numbers(npy, name, key).map(Some)
}

fn numbers<R: Read>(npy: NpyFile<R>, name: &str, key: &str) -> Result<Array, DataError> {
    let wrong = |message: String| DataError::new(name, format!("{key}: {message}"));
    let shape: Vec<usize> = npy.shape().iter().filter_map(|&n| usize::try_from(n).ok()).collect();
    let product = npy.shape().iter().try_fold(1u64, |product, &n| product.checked_mul(n));
    if product.is_none_or(|n| n > LARGEST) || shape.len() != npy.shape().len() {
        return Err(wrong(format!("shape {:?} is larger than {LARGEST} elements", npy.shape())));
    }
    let order = npy.order();
    let DType::Plain(kind) = npy.dtype() else { return Err(wrong("not an array of numbers".to_owned())) };
    let text = kind.to_string();
    macro_rules! read_as {
        ($type:ty) => {
            npy.into_vec::<$type>().map(|v| v.into_iter().map(f64::from).collect())
        };
    }
    let values: std::io::Result<Vec<f64>> = match text.trim_start_matches(['<', '|', '=', '>']) {
        "f8" => npy.into_vec::<f64>(),
        "f4" => read_as!(f32),
        "i2" => read_as!(i16),
        "i4" => read_as!(i32),
        "u1" => read_as!(u8),
        "u4" => read_as!(u32),
        _ => return Err(wrong(format!("type {text}, expected f32 or f64"))),
    };
    let values = values.map_err(|error| wrong(error.to_string()))?;
    let values = if order == Order::C { values } else { row_major(&shape, &values) };
    Ok(Array { shape, values })
}

/// Reorders values whose first index runs fastest.
fn row_major(shape: &[usize], values: &[f64]) -> Vec<f64> {
    let mut strides = vec![1usize; shape.len()];
    for axis in 1..shape.len() {
        strides[axis] = strides[axis - 1] * shape[axis - 1];
    }
    let mut out = Vec::with_capacity(values.len());
    let mut index = vec![0usize; shape.len()];
    for _ in 0..values.len() {
        let place: usize = index.iter().zip(&strides).map(|(i, stride)| i * stride).sum();
        out.push(values.get(place).copied().unwrap_or(f64::NAN));
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    out
}

fn matrix(array: &Array, name: &str, key: &str, rows: usize) -> Result<Matrix, DataError> {
    let wrong = |message: String| DataError::new(name, format!("{key} {message}"));
    let [r, c] = *array.shape.as_slice() else {
        return Err(wrong(format!("has shape {:?}, expected ({rows}, k)", array.shape)));
    };
    if r != rows || c == 0 || c > r {
        return Err(wrong(format!("has shape ({r}, {c}), expected ({rows}, k) with k from 1 to {rows}")));
    }
    if let Some((at, value)) = array.first(|value| !value.is_finite()) {
        return Err(wrong(format!("at {at:?}: found {value:?}, expected a finite number")));
    }
    Ok(Matrix::from_row_slice(r, c, &array.values))
}

/// An orthonormal basis of the span of the columns.
pub(crate) fn basis(b: &Matrix, name: &str, key: &str) -> Result<Matrix, DataError> {
    // The size of the numbers says nothing about the span, and their squares may not be f64 any more.
    let largest = b.amax();
    let scaled = if largest > 0.0 { b / largest } else { b.clone() };
    orthonormal(&scaled).map_err(|error| {
        let (rows, columns) = b.shape();
        DataError::new(name, format!("{key} ({rows}, {columns}): {error}"))
    })
}

/// The values as devices hold them.
fn narrowed(array: &Array, name: &str, key: &str) -> Result<Vec<f32>, DataError> {
    match array.first(|value| !narrow(value).is_finite()) {
        Some((at, value)) => {
            let expected = format!("expected a finite number, at most {:?} as an f32", f32::MAX);
            Err(DataError::new(name, format!("{key} at {at:?}: found {value:?}, {expected}")))
        }
        None => Ok(array.values.iter().map(|&value| narrow(value)).collect()),
    }
}

fn file(path: &str) -> Result<File, DataError> {
    File::open(path).map_err(|error| DataError::new(path, error.to_string()))
}

#[allow(clippy::cast_possible_truncation, reason = "devices hold f32")]
fn narrow(value: f64) -> f32 {
    value as f32
}
