//! Reader and writer of NumPy files: reads `npz` data sets and `npy` matrices, and writes `npy` matrices.

mod archive;
mod tables;
mod values;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use fedspan_engine::linalg::{Matrix, orthonormal};
use npyz::WriterBuilder;

pub use archive::Archive;
pub use tables::{Arrays, table};
pub use values::Values;

use super::{DataError, file};

/// Largest number of elements of an array.
const LARGEST: u64 = 1 << 28;
/// Largest file size in bytes.
pub const LARGEST_FILE: u64 = 1 << 31;

/// Array of numbers with its shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Dimensions of the array.
    pub shape: Vec<usize>,
    /// Values in row-major order.
    pub values: Vec<f64>,
}

impl Array {
    /// First value that satisfies a condition, preceded by its index in every dimension.
    fn first(&self, matches: impl Fn(f64) -> bool) -> Option<(Vec<usize>, f64)> {
        let position = self.values.iter().position(|&value| matches(value))?;
        self.values.get(position).map(|&value| (index(&self.shape, position), value))
    }
}

/// Converts a position among row-major values to an index in every dimension.
fn index(shape: &[usize], flat_index: usize) -> Vec<usize> {
    let mut remaining = flat_index;
    let mut reversed: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&n| {
            let index = remaining % n.max(1);
            remaining /= n.max(1);
            index
        })
        .collect();
    reversed.reverse();
    reversed
}

/// Reads a matrix of `rows` rows from an npy file.
///
/// # Errors
/// [`DataError`] naming the file if the file cannot be read, has another number of rows, or has a value that
/// is not finite.
pub fn read_matrix(path: &str, rows: usize) -> Result<Matrix, DataError> {
    let key = "the array";
    let bytes = file::read(path, LARGEST_FILE)?;
    let max_memory = file::unpack_limit(bytes.len() as u64);
    let values = values::read(bytes.as_slice(), bytes.len() as u64, LARGEST, max_memory);
    let array =
        values.and_then(|values| values.numbers()).map_err(|message| DataError::new(path, message))?;
    matrix(&array, path, key, rows)
}

/// Writes f64 values as an npy file. The file is written under a temporary name and then renamed.
///
/// # Errors
/// [`DataError`] naming the file if the file cannot be written.
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

/// Converts an array to a matrix, and checks that it has `rows` rows, at most as many columns, and finite
/// values.
fn matrix(array: &Array, name: &str, key: &str, rows: usize) -> Result<Matrix, DataError> {
    let data_error = |message: String| DataError::new(name, format!("{key} {message}"));
    let [r, c] = *array.shape.as_slice() else {
        return Err(data_error(format!("has shape {:?}, expected ({rows}, k)", array.shape)));
    };
    if r != rows || c == 0 || c > r {
        return Err(data_error(format!(
            "has shape ({r}, {c}), expected ({rows}, k) with k from 1 to {rows}"
        )));
    }
    if let Some((position, value)) = array.first(|value| !value.is_finite()) {
        return Err(data_error(format!("at {position:?}: found {value:?}, expected a finite number")));
    }
    Ok(Matrix::from_row_slice(r, c, &array.values))
}

/// Orthonormal basis of the span of the columns of `b`. `name` and `key` are for messages.
pub fn basis(b: &Matrix, name: &str, key: &str) -> Result<Matrix, DataError> {
    // Scaling does not change the span, and prevents squares of large values from overflowing.
    let largest = b.amax();
    let scaled = if largest > 0.0 { b / largest } else { b.clone() };
    orthonormal(&scaled).map_err(|error| {
        let (rows, columns) = b.shape();
        DataError::new(name, format!("{key} ({rows}, {columns}): {error}"))
    })
}
