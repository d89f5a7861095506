//! Matrix operations in f64 on top of nalgebra: QR, eigenvectors, products and principal angles. Every
//! operation has a fixed order, and no kernel is selected at run time, so that results are bit-identical on
//! every machine.

use nalgebra::{DMatrix, SymmetricEigen};

use crate::random::Stream;

/// Dense matrix of f64, column-major.
pub type Matrix = DMatrix<f64>;

/// Error of a matrix with linearly dependent (or not finite) columns, which have no orthonormal basis of the
/// same number of columns.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("the columns are dependent: pivot {pivot:e} in column {column}")]
pub struct RankDeficient {
    /// Index of the first column that depends on the columns before it.
    pub column: usize,
    /// Diagonal entry of R in that column, relative to the largest diagonal entry.
    pub pivot: f64,
}

/// Orthonormal factor Q of the thin QR factorisation. R has a positive diagonal, so that Q is unique.
///
/// # Errors
/// [`RankDeficient`] if a diagonal entry of R is below 1e-12 of the largest, or NaN.
pub fn orthonormal(b: &Matrix) -> Result<Matrix, RankDeficient> {
    // nalgebra panics on an empty matrix.
    if b.is_empty() {
        return Ok(b.clone());
    }
    let qr = b.clone().qr();
    // nalgebra keeps the signs in Q: no entry of this diagonal is negative.
    let diagonal = qr.r().diagonal();
    let largest = diagonal.amax();
    for (column, entry) in diagonal.iter().enumerate() {
        let pivot = entry / largest;
        #[allow(clippy::neg_cmp_op_on_partial_ord, reason = "a NaN fails only so")]
        if !(pivot > 1e-12) {
            return Err(RankDeficient { column, pivot });
        }
    }
    Ok(qr.q())
}

/// Sine of the largest principal angle between the spans of two matrices with orthonormal columns:
/// `|(I - Q1 Q1^T) Q2|_2` (FedRep, Definition 1). This formula is accurate for small angles, unlike one with
/// the cosine. NaN if a value is not finite.
#[must_use]
pub fn principal_angle_distance(q1: &Matrix, q2: &Matrix) -> f64 {
    let residual = complement(q1, q2);
    let gram = product_transposed(&residual, &residual);
    // `f64::max` ignores NaN, so without this check the distance of a span with NaN would be 0.
    if gram.iter().any(|v| !v.is_finite()) {
        return f64::NAN;
    }
    let largest = SymmetricEigen::new(gram).eigenvalues.iter().copied().fold(0.0f64, f64::max);
    largest.max(0.0).sqrt()
}

/// Number of sums that [`product_transposed`] computes in parallel, since a single sum is limited by the
/// latency of its additions.
const SUMS: usize = 8;

/// `A^T B` by plain loops, since nalgebra's product selects a kernel by the processor. Every element is
/// summed in the order of the rows.
#[must_use]
pub fn product_transposed(a: &Matrix, b: &Matrix) -> Matrix {
    let mut product = Matrix::zeros(a.ncols(), b.ncols());
    let (rows, columns) = (a.nrows(), a.as_slice());
    if rows == 0 {
        return product;
    }
    for (mut sums, b_column) in product.column_iter_mut().zip(b.column_iter()) {
        for (group, group_values) in columns.chunks(SUMS * rows).enumerate() {
            let mut partial = [0.0; SUMS];
            if let Some(group_columns) = columns_of(group_values, rows) {
                for (row, y) in b_column.iter().take(rows).enumerate() {
                    for (sum, column) in partial.iter_mut().zip(group_columns) {
                        *sum += column[row] * y;
                    }
                }
            } else {
                for (sum, column) in partial.iter_mut().zip(group_values.chunks(rows)) {
                    *sum = column.iter().zip(b_column.iter()).fold(0.0, |sum, (x, y)| sum + x * y);
                }
            }
            for (target, sum) in sums.iter_mut().skip(group * SUMS).zip(partial) {
                *target = sum;
            }
        }
    }
    product
}

/// Splits values into [`SUMS`] columns of `rows` values; `None` if there are fewer columns.
fn columns_of(values: &[f64], rows: usize) -> Option<[&[f64]; SUMS]> {
    let mut columns = values.chunks_exact(rows);
    let mut split: [&[f64]; SUMS] = [&[]; SUMS];
    for target in &mut split {
        *target = columns.next()?;
    }
    Some(split)
}

/// `A B` by plain loops, like [`product_transposed`].
#[must_use]
pub fn product(a: &Matrix, b: &Matrix) -> Matrix {
    let mut product = Matrix::zeros(a.nrows(), b.ncols());
    for (j, mut column) in product.column_iter_mut().enumerate() {
        for (factor, a_column) in b.column(j).iter().zip(a.column_iter()) {
            for (sum, value) in column.iter_mut().zip(a_column.iter()) {
                *sum += value * factor;
            }
        }
    }
    product
}

/// `(I - Q Q^T) A` for an orthonormal `Q`: the part of `A` orthogonal to the span of `Q`.
#[must_use]
pub fn complement(q: &Matrix, a: &Matrix) -> Matrix {
    a - product(q, &product_transposed(q, a))
}

/// Eigenvectors of the `k` largest eigenvalues of a symmetric matrix, as columns in descending order of
/// eigenvalues.
#[must_use]
pub fn top_eigenspace(symmetric: &Matrix, k: usize) -> Matrix {
    let eigen = SymmetricEigen::new(symmetric.clone());
    let mut order: Vec<usize> = (0..symmetric.nrows()).collect();
    order.sort_by(|&a, &b| eigen.eigenvalues[b].total_cmp(&eigen.eigenvalues[a]).then(a.cmp(&b)));
    let columns: Vec<_> = order.iter().take(k).map(|&j| eigen.eigenvectors.column(j).into_owned()).collect();
    Matrix::from_columns(&columns)
}

/// Uniformly random d x k matrix with orthonormal columns.
#[must_use]
pub fn random_basis(d: usize, k: usize, random: &mut Stream) -> Matrix {
    loop {
        let gaussian = Matrix::from_fn(d, k, |_, _| random.normal());
        if let Ok(q) = orthonormal(&gaussian) {
            return q;
        }
    }
}

/// Values of a matrix as f32 in row-major order, as on the wire.
#[must_use]
pub fn to_f32(matrix: &Matrix) -> Vec<f32> {
    let row_major = (0..matrix.nrows()).flat_map(|i| (0..matrix.ncols()).map(move |j| (i, j)));
    #[allow(clippy::cast_possible_truncation, reason = "rounding to the wire's precision is the purpose")]
    row_major.map(|index| matrix[index] as f32).collect()
}

/// Matrix from row-major f32 values.
#[must_use]
pub fn from_f32(rows: usize, cols: usize, values: &[f32]) -> Matrix {
    Matrix::from_row_iterator(rows, cols, values.iter().map(|&v| f64::from(v)))
}
