//! Least-squares solver in f64, for baselines on raw features. Solves
//! `min 1/(2m) |X W - Y|^2 + ridge/2 |W|^2`. If the solution is not unique, the solution of least norm is
//! chosen.
//!
//! Units and offsets of the features do not affect predictions. The rank is determined after the part that a
//! constant column explains has been removed from all other columns, and the remainders have been scaled to
//! norm 1 (`columns`). Directions whose singular value is within rounding error are dropped. The least norm
//! is the norm of `W` in the units of the given features (`rank`). Loops are sequential, so results have the
//! same bits on every machine.

mod cholesky;
mod columns;
mod leave_one_out;
mod rank;

use columns::Columns;
pub use leave_one_out::solve_leave_one_out;

/// Unit roundoff of f32, for features that were rounded to f32.
pub const F32_ROUNDOFF: f64 = f32::EPSILON as f64 / 2.0;

/// Unit roundoff of f64.
pub const F64_ROUNDOFF: f64 = f64::EPSILON / 2.0;

/// A least-squares problem.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    /// Features, row-major, m x d.
    pub x: &'a [f64],
    /// Targets, row-major, m x C.
    pub y: &'a [f64],
    /// Number of features, `d`.
    pub features: usize,
    /// Number of outputs, `C`.
    pub outputs: usize,
    /// Ridge; 0 for no ridge.
    pub ridge: f64,
    /// Unit roundoff of the features: [`F64_ROUNDOFF`] or [`F32_ROUNDOFF`].
    pub roundoff: f64,
}

/// Directions of the features that a fit dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DroppedDirections {
    /// Number of directions.
    pub directions: usize,
    /// Columns in dropped directions that may carry information, but whose variation is too small compared
    /// with rounding errors. Empty if every dropped direction is an exact linear dependence between columns.
    pub columns: Vec<usize>,
    /// True if there are fewer samples than columns, so that some directions are undetermined for any values.
    pub few_samples: bool,
}

impl DroppedDirections {
    /// True if the fit lost information that features of higher precision would have preserved.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        !self.columns.is_empty() && !self.few_samples
    }
}

/// Solution of a least-squares problem.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fit {
    /// Weights, row-major, d x C.
    pub weights: Vec<f64>,
    /// Directions that the fit dropped.
    pub dropped: DroppedDirections,
}

/// Solves a problem. All values must be finite.
#[must_use]
pub fn solve(problem: &Problem<'_>) -> Fit {
    let (d, c) = (problem.features, problem.outputs);
    let m = problem.x.len().checked_div(d).unwrap_or(0);
    if m == 0 || c == 0 || problem.y.len() != m * c {
        return Fit { weights: vec![0.0; d * c], dropped: DroppedDirections::default() };
    }
    let columns = Columns::new(problem, m);
    let plain = columns.is_complete().then(|| cholesky::solve(&columns)).flatten();
    match plain {
        Some(solution) => {
            let dropped = DroppedDirections {
                directions: columns.extra_constants(),
                few_samples: columns.is_short(),
                ..DroppedDirections::default()
            };
            Fit { weights: columns.weights(&solution), dropped }
        }
        None => rank::solve(&columns),
    }
}

/// Computes the prediction `out` of a linear model for one sample `x`.
pub fn predict(weights: &[f64], x: &[f64], out: &mut [f64]) {
    out.fill(0.0);
    for (row, x) in weights.chunks_exact(out.len().max(1)).zip(x) {
        for (value, w) in out.iter_mut().zip(row) {
            *value += x * w;
        }
    }
}
