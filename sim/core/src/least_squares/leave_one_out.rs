//! Choice of the ridge with the smallest leave-one-out error. The errors of all ridges are computed exactly
//! from one decomposition (Golub, Heath and Wahba 1979, section 2).
//!
//! The columns are prepared by [`super::columns`]. The constant is removed, so its weight is not penalised.
//! Each other column has norm 1, so a ridge has the same effect for features in any units. With
//! `Z = U S V^T`, the ridge `a` and the shares `p_j = s_j^2 / (s_j^2 + a)`, the leverage of sample i is
//! `h_i = 1/m + sum of u_ij^2 p_j`, where `1/m` is due to the constant. The residual of sample i in a fit to
//! all other samples is `r_i / (1 - h_i)`. Devices compare the same ridges, in units of the mean square of
//! their features.

use fedspan_client::kernel::leave_one_out::{LEAST_REMAINDER, RIDGES};
use fedspan_engine::linalg::Matrix;

use super::columns::Columns;
use super::{DroppedDirections, Fit, Problem, solve};

/// Squared singular value, for columns of norm 1, below which a direction is treated as zero.
const ZERO_SQUARE: f64 = 1e-12;

/// Solves a problem with the ridge that has the smallest leave-one-out error. The ridge of `problem` is
/// ignored. Returns `None` if there are fewer than two samples, or if for every ridge the leave-one-out error
/// is undefined because a sample has leverage 1.
#[must_use]
pub fn solve_leave_one_out(problem: &Problem<'_>) -> Option<Fit> {
    let problem = &Problem { ridge: 0.0, ..*problem };
    let (d, c) = (problem.features, problem.outputs);
    let m = problem.x.len().checked_div(d).unwrap_or(0);
    if m < 2 || c == 0 || problem.y.len() != m * c {
        return None;
    }
    let columns = Columns::new(problem, m);
    let directions = Directions::new(&columns)?;
    let mut best = (f64::INFINITY, None);
    for ridge in RIDGES.map(f64::from) {
        let error = directions.error(&columns, ridge);
        if error < best.0 {
            best = (error, Some(ridge));
        }
    }
    let ridge = best.1?;
    if ridge == 0.0 {
        return Some(solve(problem));
    }
    let dropped = DroppedDirections {
        directions: columns.near_constant.len(),
        columns: columns.near_constant.clone(),
        few_samples: false,
    };
    Some(Fit { weights: columns.weights(&directions.solution(&columns, ridge)), dropped })
}

/// Left singular vectors of the columns, and the coordinates of the targets along these vectors.
struct Directions {
    /// Left singular vectors `U`, m x r.
    left: Matrix,
    /// The r squared singular values.
    squares: Vec<f64>,
    /// Coordinates of the targets, `U^T Y`, r x C.
    answers: Matrix,
    /// Columns, m x p.
    z: Matrix,
    /// Targets, m x C.
    y: Matrix,
}

impl Directions {
    /// Decomposes the matrix of inner products of the rows or the columns, depending on which is smaller.
    /// Returns `None` if a product is not finite.
    fn new(columns: &Columns) -> Option<Self> {
        let (m, p) = (columns.m, columns.p());
        if columns.z.len() != m * p || columns.y.len() != m * columns.c {
            return None;
        }
        let z = Matrix::from_row_slice(m, p, &columns.z);
        let y = Matrix::from_row_slice(m, columns.c, &columns.y);
        let products = if m < p { &z * z.transpose() } else { z.transpose() * &z };
        if !products.iter().all(|value| value.is_finite()) {
            return None;
        }
        let eigen = products.symmetric_eigen();
        let kept: Vec<usize> =
            (0..eigen.eigenvalues.len()).filter(|j| eigen.eigenvalues[*j] > ZERO_SQUARE * p as f64).collect();
        let vectors = eigen.eigenvectors.select_columns(&kept);
        let squares: Vec<f64> = kept.iter().map(|j| eigen.eigenvalues[*j]).collect();
        let mut left = if m < p { vectors } else { &z * vectors };
        if m >= p {
            for (mut column, square) in left.column_iter_mut().zip(&squares) {
                column /= square.sqrt();
            }
        }
        let answers = left.transpose() * &y;
        Some(Self { left, squares, answers, z, y })
    }

    /// Sum of squared leave-one-out residuals for a ridge; infinite if the leverage of a sample is too close
    /// to 1.
    fn error(&self, columns: &Columns, ridge: f64) -> f64 {
        let shares: Vec<f64> = self.squares.iter().map(|square| square / (square + ridge)).collect();
        let constant_leverage = if columns.constant.is_some() { 1.0 / columns.m as f64 } else { 0.0 };
        let mut sum = 0.0;
        for i in 0..columns.m {
            let row = self.left.row(i);
            let leverage: f64 = row.iter().zip(&shares).map(|(u, share)| u * u * share).sum();
            let remainder = 1.0 - constant_leverage - leverage;
            // The comparison is false for NaN.
            let is_defined = remainder >= f64::from(LEAST_REMAINDER);
            if !is_defined {
                return f64::INFINITY;
            }
            for output in 0..columns.c {
                let fitted: f64 = row
                    .iter()
                    .zip(&shares)
                    .zip(self.answers.column(output).iter())
                    .map(|((u, share), answer)| u * share * answer)
                    .sum();
                sum += ((self.y[(i, output)] - fitted) / remainder).powi(2);
            }
        }
        sum
    }

    /// Weights of the columns for a ridge, p x C, row-major.
    fn solution(&self, columns: &Columns, ridge: f64) -> Vec<f64> {
        let mut answers = self.answers.clone();
        for (mut row, square) in answers.row_iter_mut().zip(&self.squares) {
            row /= square + ridge;
        }
        let weights = self.z.transpose() * (&self.left * answers);
        let entry = |(j, output): (usize, usize)| weights[(j, output)];
        (0..columns.p()).flat_map(|j| (0..columns.c).map(move |output| (j, output))).map(entry).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use fedspan_engine::random::{Purpose, stream};

    use super::*;
    use crate::least_squares::F64_ROUNDOFF;

    /// Creates a random problem whose features have different units and an offset. Appends a constant 1 to
    /// the features if `constant` is true.
    fn random_problem(
        seed: u64,
        m: usize,
        d: usize,
        c: usize,
        constant: bool,
        offset: f64,
    ) -> (Vec<f64>, Vec<f64>) {
        let mut random = stream(seed, Purpose::Test, 1);
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for _ in 0..m {
            let row: Vec<f64> = (0..d).map(|_| random.normal()).collect();
            for output in 0..c {
                let exact: f64 = row.iter().enumerate().map(|(j, x)| x * ((j + output) as f64).cos()).sum();
                y.push(exact + 0.7 * random.normal() + 3.0);
            }
            x.extend(row.iter().enumerate().map(|(j, x)| 10f64.powi(j as i32 - 2) * (x + offset)));
            x.extend(constant.then_some(1.0));
        }
        (x, y)
    }

    /// Compares with fits to all samples but one, for problems with more and with fewer samples than
    /// features.
    #[test]
    fn error_equals_explicit_leave_one_out() {
        for (seed, m, d, constant) in [(1, 12, 3, true), (2, 9, 3, false), (3, 5, 8, true), (4, 30, 6, true)]
        {
            let (c, width) = (2, d + usize::from(constant));
            let (x, y) = random_problem(seed, m, d, c, constant, 2.0);
            let problem =
                Problem { x: &x, y: &y, features: width, outputs: c, ridge: 0.0, roundoff: F64_ROUNDOFF };
            let columns = Columns::new(&problem, m);
            let directions = Directions::new(&columns).unwrap();
            for ridge in [0.01, 0.3, 4.0] {
                let mut expected = 0.0;
                for left_out in 0..m {
                    let kept_samples: Vec<usize> = (0..m).filter(|i| *i != left_out).collect();
                    let z_width = d + 1;
                    let z = Matrix::from_fn(m - 1, z_width, |i, j| match j < d {
                        true => directions.z[(kept_samples[i], j)],
                        false => f64::from(u8::from(constant)),
                    });
                    let mut gram = z.transpose() * &z;
                    (0..d).for_each(|j| gram[(j, j)] += ridge);
                    if !constant {
                        gram[(d, d)] = 1.0;
                    }
                    let targets =
                        Matrix::from_fn(m - 1, c, |i, output| directions.y[(kept_samples[i], output)]);
                    let w = gram.lu().solve(&(z.transpose() * targets)).unwrap();
                    for output in 0..c {
                        let fitted: f64 =
                            (0..d).map(|j| directions.z[(left_out, j)] * w[(j, output)]).sum::<f64>()
                                + w[(d, output)];
                        expected += (directions.y[(left_out, output)] - fitted).powi(2);
                    }
                }
                let computed = directions.error(&columns, ridge);
                assert!(
                    (computed - expected).abs() <= 1e-8 * expected,
                    "{seed} {ridge}: {computed} {expected}"
                );
            }
        }
    }

    /// Units and offsets change predictions by rounding errors only, and a constant does not change the
    /// chosen ridge.
    #[test]
    fn units_and_offsets_leave_predictions_unchanged() {
        for seed in 0..20 {
            let (m, d) = (24, 4);
            let fitted = |offset: f64, scale: f64| {
                let (mut x, y) = random_problem(seed, m, d, 1, true, offset);
                let width = d + 1;
                x.iter_mut().enumerate().for_each(|(i, x)| {
                    if i % width == 1 {
                        *x *= scale
                    }
                });
                let problem =
                    Problem { x: &x, y: &y, features: width, outputs: 1, ridge: 9.0, roundoff: F64_ROUNDOFF };
                let weights = solve_leave_one_out(&problem).unwrap().weights;
                x.chunks(width)
                    .map(|row| row.iter().zip(&weights).map(|(x, w)| x * w).sum())
                    .collect::<Vec<f64>>()
            };
            let plain = fitted(0.0, 1.0);
            for (offset, scale) in [(1e3, 1.0), (1e5, 1.0), (0.0, 1e6), (0.0, 1e-6), (-1e5, 1e-6)] {
                let size = plain.iter().fold(0.0f64, |size, value| size.max(value.abs()));
                for (a, b) in plain.iter().zip(fitted(offset, scale)) {
                    assert!((a - b).abs() <= 1e-7 * size, "{seed} {offset} {scale}: {a} {b}");
                }
            }
        }
    }
}
