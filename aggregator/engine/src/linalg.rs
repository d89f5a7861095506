//! The factorisations of the host, in f64, on nalgebra, in fixed order: none of them picks a kernel at run
//! time, so the bits are the same on every machine.

use nalgebra::{DMatrix, SymmetricEigen};

use crate::random::Stream;

/// A dense matrix on the host.
pub type Matrix = DMatrix<f64>;

/// The columns are dependent (or not finite): there is no orthonormal basis of as many columns.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("the columns are dependent: pivot {pivot:e} in column {column}")]
pub struct RankDeficient {
    /// The first such column.
    pub column: usize,
    /// Its diagonal entry of R relative to the largest.
    pub pivot: f64,
}

/// The orthonormal factor of the thin QR factorisation whose R has a positive diagonal: one result, not
/// one up to signs.
///
/// # Errors
/// [`RankDeficient`] where a diagonal entry of R is under 1e-12 of the largest.
pub fn orthonormal(b: &Matrix) -> Result<Matrix, RankDeficient> {
    // Without columns there is nothing to do; nalgebra would panic.
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
/// `|(I - Q1 Q1^T) Q2|_2` (FedRep, Definition 1). Accurate down to rounding, where the cosine is not. NaN
/// if a value is not finite.
#[must_use]
pub fn principal_angle_distance(q1: &Matrix, q2: &Matrix) -> f64 {
    let rest = complement(q1, q2);
    let gram = product_transposed(&rest, &rest);
    // `max` would lose a NaN, and call two spans the same that are none.
    if gram.iter().any(|v| !v.is_finite()) {
        return f64::NAN;
    }
    let largest = SymmetricEigen::new(gram).eigenvalues.iter().copied().fold(0.0f64, f64::max);
    largest.max(0.0).sqrt()
}

/// Sums of [`product_transposed`] that are taken at a time: each alone waits for its own last addition.
const SUMS: usize = 8;

/// `A^T B` by plain loops (nalgebra's product chooses a kernel by processor); every element is summed in the order of
/// the rows.
#[must_use]
pub fn product_transposed(a: &Matrix, b: &Matrix) -> Matrix {
    let mut product = Matrix::zeros(a.ncols(), b.ncols());
    let (rows, columns) = (a.nrows(), a.as_slice());
    if rows == 0 {
        return product;
    }
    for (mut sums, own) in product.column_iter_mut().zip(b.column_iter()) {
        for (at, several) in columns.chunks(SUMS * rows).enumerate() {
            let mut partial = [0.0; SUMS];
            if let Some(together) = whole(several, rows) {
                for (row, y) in own.iter().take(rows).enumerate() {
                    for (sum, column) in partial.iter_mut().zip(together) {
                        *sum += column[row] * y;
                    }
                }
            } else {
                for (sum, column) in partial.iter_mut().zip(several.chunks(rows)) {
                    *sum = column.iter().zip(own.iter()).fold(0.0, |sum, (x, y)| sum + x * y);
                }
            }
            for (place, sum) in sums.iter_mut().skip(at * SUMS).zip(partial) {
                *place = sum;
            }
        }
    }
    product
}

/// As many columns as are taken at a time.
fn whole(values: &[f64], rows: usize) -> Option<[&[f64]; SUMS]> {
    let mut columns = values.chunks_exact(rows);
    let mut whole: [&[f64]; SUMS] = [&[]; SUMS];
    for place in &mut whole {
        *place = columns.next()?;
    }
    Some(whole)
}

/// `A B` by plain loops, like [`product_transposed`].
#[must_use]
pub fn product(a: &Matrix, b: &Matrix) -> Matrix {
    let mut product = Matrix::zeros(a.nrows(), b.ncols());
    for (j, mut column) in product.column_iter_mut().enumerate() {
        for (factor, own) in b.column(j).iter().zip(a.column_iter()) {
            for (sum, value) in column.iter_mut().zip(own.iter()) {
                *sum += value * factor;
            }
        }
    }
    product
}

/// `(I - Q Q^T) A` for an orthonormal `Q`: what of the columns of `A` is outside the span of `Q`.
#[must_use]
pub fn complement(q: &Matrix, a: &Matrix) -> Matrix {
    a - product(q, &product_transposed(q, a))
}

/// The eigenvectors of the `k` largest eigenvalues of a symmetric matrix, as columns, largest first.
#[must_use]
pub fn top_eigenspace(symmetric: &Matrix, k: usize) -> Matrix {
    let eigen = SymmetricEigen::new(symmetric.clone());
    let mut order: Vec<usize> = (0..symmetric.nrows()).collect();
    order.sort_by(|&a, &b| eigen.eigenvalues[b].total_cmp(&eigen.eigenvalues[a]).then(a.cmp(&b)));
    let columns: Vec<_> = order.iter().take(k).map(|&j| eigen.eigenvectors.column(j).into_owned()).collect();
    Matrix::from_columns(&columns)
}

/// A uniformly random d x k basis.
#[must_use]
pub fn random_basis(d: usize, k: usize, random: &mut Stream) -> Matrix {
    loop {
        let gaussian = Matrix::from_fn(d, k, |_, _| random.normal());
        if let Ok(q) = orthonormal(&gaussian) {
            return q;
        }
    }
}

/// Row-major f32 values of a matrix, as they are sent.
#[must_use]
pub fn to_f32(matrix: &Matrix) -> Vec<f32> {
    let row_major = (0..matrix.nrows()).flat_map(|i| (0..matrix.ncols()).map(move |j| (i, j)));
    #[allow(clippy::cast_possible_truncation, reason = "rounding to the wire's precision is the purpose")]
    row_major.map(|at| matrix[at] as f32).collect()
}

/// A matrix from row-major f32 values.
#[must_use]
pub fn from_f32(rows: usize, cols: usize, values: &[f32]) -> Matrix {
    Matrix::from_row_iterator(rows, cols, values.iter().map(|&v| f64::from(v)))
}
