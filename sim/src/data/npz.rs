//! NumPy files: `npz` data sets, `npy` matrices in and out.

mod clients;

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

use fedspan_aggregator::linalg::{Matrix, orthonormal};
use npyz::{DType, NpyFile, Order, WriterBuilder};
use zip::ZipArchive;
use zip::result::ZipError;

pub use clients::dataset;

use super::DataError;

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

/// Reads a matrix of `rows` rows from an npy file.
///
/// # Errors
/// [`DataError`] naming the file.
pub fn read_matrix(path: &str, rows: usize) -> Result<Matrix, DataError> {
    let npy = NpyFile::new(BufReader::new(file(path)?));
    let npy = npy.map_err(|error| DataError::new(path, error.to_string()))?;
    matrix(&numbers(npy, path, "the array", LARGEST)?, path, "the array", rows)
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
    array(archive, name, key, LARGEST)?.ok_or_else(|| DataError::new(name, format!("no array named {key}")))
}

/// An array of at most so many elements.
fn array<R: Read + Seek>(
    archive: &mut ZipArchive<R>,
    name: &str,
    key: &str,
    most: u64,
) -> Result<Option<Array>, DataError> {
    let wrong = |message: String| DataError::new(name, format!("{key}: {message}"));
    let file = match archive.by_name(&format!("{key}.npy")) {
        Ok(file) => file,
        Err(ZipError::FileNotFound) => return Ok(None),
        Err(error) => return Err(wrong(error.to_string())),
    };
    let npy = NpyFile::new(file).map_err(|error| wrong(error.to_string()))?;
    numbers(npy, name, key, most).map(Some)
}

fn numbers<R: Read>(npy: NpyFile<R>, name: &str, key: &str, most: u64) -> Result<Array, DataError> {
    let wrong = |message: String| DataError::new(name, format!("{key}: {message}"));
    let shape: Vec<usize> = npy.shape().iter().filter_map(|&n| usize::try_from(n).ok()).collect();
    let product = npy.shape().iter().try_fold(1u64, |product, &n| product.checked_mul(n));
    if product.is_none_or(|n| n > most) || shape.len() != npy.shape().len() {
        return Err(wrong(format!("shape {:?} is larger than {most} elements", npy.shape())));
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
        "i1" => read_as!(i8),
        "i2" => read_as!(i16),
        "i4" => read_as!(i32),
        "i8" => npy.into_vec::<i64>().map(|v| v.into_iter().map(|n| n as f64).collect()),
        "u1" => read_as!(u8),
        "u2" => read_as!(u16),
        "u4" => read_as!(u32),
        "u8" => npy.into_vec::<u64>().map(|v| v.into_iter().map(|n| n as f64).collect()),
        _ => return Err(wrong(format!("type {text}, expected f32, f64, or integers"))),
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
