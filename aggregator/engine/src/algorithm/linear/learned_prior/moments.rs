//! Second moments of the fleet's samples by group, from which the means and the metric of priors are computed.

use nalgebra::Cholesky;

use super::plan::MeanRule;
use crate::linalg::{Matrix, product_transposed};

/// Ridge of [`MeanRule::Pooled`], relative to the mean square of a feature.
const NEGLIGIBLE_RIDGE: f64 = 0.001;

/// Ridge of [`MeanRule::Shrunk`], relative to the mean square of a feature.
const SHRINKING_RIDGE: f64 = 0.1;

/// Part of its diagonal that is added to a metric, so that no direction has an unbounded variance.
const METRIC_RIDGE: f64 = 0.01;

/// Sums of the second moments of each group's samples.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupMoments {
    features: usize,
    outputs: usize,
    /// For each group the number of samples; the sums of `x x^T`, packed; and the sums of `x y^T`, row-major.
    groups: Vec<Vec<f64>>,
}

/// Number of values of a packed symmetric matrix.
pub const fn packed_len(d: usize) -> usize {
    d * (d + 1) / 2
}

/// Symmetric matrix from its packed lower triangle.
fn unpack(d: usize, packed: &[f64]) -> Matrix {
    Matrix::from_fn(d, d, |i, j| {
        let (row, column) = if i >= j { (i, j) } else { (j, i) };
        packed.get(packed_len(row) + column).copied().unwrap_or(0.0)
    })
}

/// Packed lower triangle of a symmetric matrix.
pub fn pack(matrix: &Matrix) -> Vec<f64> {
    (0..matrix.nrows()).flat_map(|i| (0..=i).map(move |j| (i, j))).map(|index| matrix[index]).collect()
}

impl GroupMoments {
    /// Creates empty sums for samples of `features` values with `outputs` targets.
    pub fn new(groups: usize, features: usize, outputs: usize) -> Self {
        let length = 1 + packed_len(features) + features * outputs;
        Self { features, outputs, groups: vec![vec![0.0; length]; groups] }
    }

    /// Sets the sums of a group: the number of samples, and the means over them.
    pub fn set(&mut self, group: usize, samples: f64, means: &[f64]) {
        let Some((count, sums)) = self.groups.get_mut(group).and_then(|sums| sums.split_first_mut()) else {
            return;
        };
        *count = samples;
        for (sum, mean) in sums.iter_mut().zip(means) {
            *sum = samples * mean;
        }
    }

    /// Means over the samples of all groups but `without`: the matrices of `x x^T` and of `x y^T`. `None` without samples.
    fn means(&self, without: Option<usize>) -> Option<(Matrix, Matrix)> {
        let mut total = vec![0.0; self.groups.first()?.len()];
        for (_, sums) in self.groups.iter().enumerate().filter(|(group, _)| Some(*group) != without) {
            for (total, sum) in total.iter_mut().zip(sums) {
                *total += sum;
            }
        }
        let (count, sums) = total.split_first()?;
        if *count <= 0.0 {
            return None;
        }
        let means: Vec<f64> = sums.iter().map(|sum| sum / count).collect();
        let (squares, products) = means.split_at_checked(packed_len(self.features))?;
        Some((unpack(self.features, squares), Matrix::from_row_slice(self.features, self.outputs, products)))
    }

    /// Prior mean (d x C) from all groups but `without`; `None` for no mean, or without samples.
    pub fn mean(&self, rule: MeanRule, without: Option<usize>) -> Option<Matrix> {
        let ridge = match rule {
            MeanRule::Zero => return None,
            MeanRule::Pooled => NEGLIGIBLE_RIDGE,
            MeanRule::Shrunk => SHRINKING_RIDGE,
        };
        let (mut squares, products) = self.means(without)?;
        let size = squares.trace() / as_f64(self.features.max(1));
        for i in 0..self.features {
            squares[(i, i)] += ridge * size;
        }
        let mean = Cholesky::new(squares)?.solve(&products);
        mean.iter().all(|value| value.is_finite()).then_some(mean)
    }

    /// Metric from all groups but `without`; `None` without samples.
    pub fn metric(&self, without: Option<usize>) -> Option<Metric> {
        let (mut squares, _) = self.means(without)?;
        let size = squares.trace() / as_f64(self.features.max(1));
        for i in 0..self.features {
            squares[(i, i)] += METRIC_RIDGE * squares[(i, i)].max(METRIC_RIDGE * size);
        }
        Metric::new(squares)
    }

    /// Numbers from which [`Self::restore`] restores the sums.
    pub fn state(&self) -> impl Iterator<Item = f64> + '_ {
        self.groups.iter().flatten().copied()
    }

    /// Number of values of [`Self::state`].
    pub fn state_len(&self) -> usize {
        self.groups.iter().map(Vec::len).sum()
    }

    /// Restores the sums.
    pub fn restore(&mut self, state: &[f64]) {
        for (target, value) in self.groups.iter_mut().flatten().zip(state) {
            *target = *value;
        }
    }
}

/// Metric of a prior: a positive definite matrix T with its Cholesky factor.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    matrix: Matrix,
    /// Lower factor L of `T = L L^T`.
    lower: Matrix,
}

impl Metric {
    fn new(matrix: Matrix) -> Option<Self> {
        let lower = Cholesky::new(matrix.clone())?.l();
        lower.iter().all(|value| value.is_finite()).then_some(Self { matrix, lower })
    }

    /// The matrix T.
    pub fn matrix(&self) -> &Matrix {
        &self.matrix
    }

    /// Logarithm of the determinant of T.
    pub fn log_determinant(&self) -> f64 {
        2.0 * self.lower.diagonal().iter().map(|pivot| libm::log(*pivot)).sum::<f64>()
    }

    /// `L A`.
    pub fn times(&self, a: &Matrix) -> Matrix {
        crate::linalg::product(&self.lower, a)
    }

    /// `L^T A`.
    pub fn transposed_times(&self, a: &Matrix) -> Matrix {
        product_transposed(&self.lower, a)
    }

    /// `L^-T A`.
    pub fn inverse_transposed_times(&self, a: &Matrix) -> Matrix {
        self.lower.tr_solve_lower_triangular(a).unwrap_or_else(|| a.clone())
    }
}

#[allow(clippy::cast_precision_loss, reason = "a number of features")]
fn as_f64(number: usize) -> f64 {
    number as f64
}
