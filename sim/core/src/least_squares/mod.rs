//! Least squares on the host, in f64: `min 1/(2m) |X W - Y|^2 + ridge/2 |W|^2`, of least norm where that is not unique. The
//! baselines on features are solved so.
//!
//! Units and offsets of features change nothing that matters. The rank is decided after the part of a constant column has been
//! taken out of all others, and each has been brought to norm 1 (`columns`). Directions whose singular value is then within
//! the roundings of the numbers are left out; the norm that is least is that of `W` in the units of the features as they are
//! given (`rank`). Loops are plain, so the bits are the same on every machine.

mod cholesky;
mod columns;
mod leave_one_out;
mod rank;

use columns::Columns;
pub use leave_one_out::solve_left_out;

/// Unit roundoff of f32: of features that were rounded to it.
pub const ROUNDED: f64 = f32::EPSILON as f64 / 2.0;

/// Unit roundoff of f64.
pub const EXACT: f64 = f64::EPSILON / 2.0;

/// Samples and targets.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    /// Features, row-major, m x d.
    pub x: &'a [f64],
    /// Targets, row-major, m x C.
    pub y: &'a [f64],
    /// `d`.
    pub features: usize,
    /// `C`.
    pub outputs: usize,
    /// The ridge; 0 for none.
    pub ridge: f64,
    /// Unit roundoff of the features: [`EXACT`] or [`ROUNDED`].
    pub roundoff: f64,
}

/// Directions of the features that a fit has left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// How many.
    pub directions: usize,
    /// Columns in whose roundings something was lost: those of directions that the numbers do have, and that are too weak
    /// beside them. Empty where what was left out is exactly a combination of the rest.
    pub columns: Vec<usize>,
    /// Fewer samples than columns: directions are left out whatever the numbers are.
    pub few_samples: bool,
}

impl Cut {
    /// Whether something of the data was lost that more digits would have kept.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        !self.columns.is_empty() && !self.few_samples
    }
}

/// A solution.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fit {
    /// Row-major, d x C.
    pub weights: Vec<f64>,
    /// Directions that were left out.
    pub cut: Cut,
}

/// Solves a problem. All numbers are to be finite.
#[must_use]
pub fn solve(problem: &Problem<'_>) -> Fit {
    let (d, c) = (problem.features, problem.outputs);
    let m = problem.x.len().checked_div(d).unwrap_or(0);
    if m == 0 || c == 0 || problem.y.len() != m * c {
        return Fit { weights: vec![0.0; d * c], cut: Cut::default() };
    }
    let columns = Columns::of(problem, m);
    let plain = columns.leaves_nothing_out().then(|| cholesky::solve(&columns)).flatten();
    match plain {
        Some(solution) => {
            let cut = Cut {
                directions: columns.further_constants(),
                few_samples: columns.is_short(),
                ..Cut::default()
            };
            Fit { weights: columns.weights(&solution), cut }
        }
        None => rank::solve(&columns),
    }
}

/// What a fit answers to one sample.
pub fn predict(weights: &[f64], x: &[f64], out: &mut [f64]) {
    out.fill(0.0);
    for (row, x) in weights.chunks_exact(out.len().max(1)).zip(x) {
        for (value, w) in out.iter_mut().zip(row) {
            *value += x * w;
        }
    }
}
