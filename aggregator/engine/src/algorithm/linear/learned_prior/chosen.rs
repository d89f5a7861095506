//! Prior that a fleet has chosen: a description for reports, and its matrices for other programs.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::linalg::Matrix;

use super::plan::{MeanRule, Structure};

/// Prior that a fleet has chosen, and the scores on which the choice is based.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChosenPrior {
    /// Mean of heads: `"zero"`, `"pooled"` (least squares on the samples of the fleet) or `"shrunk"` (with a larger ridge).
    pub mean: String,
    /// Metric of the floor: `"identity"` or `"second moments"` (of the fleet).
    pub metric: String,
    /// Number of columns of the representation whose variance is above the floor; 0 for a prior without representation.
    pub columns: usize,
    /// Variance of all other directions, in units of the noise's.
    pub floor: f64,
    /// Variance of the noise of a target.
    pub noise: f64,
    /// Kind of the scores: `"correct predictions"` (a fraction) or `"evidence"` (the logarithm for a target).
    pub scored_by: String,
    /// Score of the prior, by devices on which it was not learned.
    pub score: f64,
    /// Score of the best prior without representation.
    pub score_without_representation: f64,
}

/// Normal distribution from which the columns of a head, d x C, are drawn. With samples X (m x d) and targets Y (m x C) of a client,
/// its head is `M + S X^T (X S X^T + I)^-1 (Y - X M)`, and the error of a predicted target at x has the variance
/// `noise (1 + x^T S x - x^T S X^T (X S X^T + I)^-1 X S x)`.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadPrior {
    /// Mean M, d x C.
    pub mean: Matrix,
    /// Covariance S of each column, d x d, in units of the variance of the noise.
    pub covariance: Matrix,
    /// Variance of the noise of a target.
    pub noise: f64,
}

impl ChosenPrior {
    pub(super) fn new(structure: Structure, scored_by_predictions: bool) -> Self {
        let Structure { mean, has_metric } = structure;
        Self {
            mean: match mean {
                MeanRule::Zero => "zero",
                MeanRule::Pooled => "pooled",
                MeanRule::Shrunk => "shrunk",
            }
            .to_owned(),
            metric: if has_metric { "second moments" } else { "identity" }.to_owned(),
            columns: 0,
            floor: 0.0,
            noise: 0.0,
            scored_by: if scored_by_predictions { "correct predictions" } else { "evidence" }.to_owned(),
            score: 0.0,
            score_without_representation: 0.0,
        }
    }
}

/// One line for people.
impl fmt::Display for ChosenPrior {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mean, metric, columns, floor, noise, scored_by, score, score_without_representation } =
            self;
        write!(f, "mean {mean}, metric {metric}, ")?;
        match columns {
            0 => f.write_str("no representation, which would not help here")?,
            columns => write!(f, "{columns} columns")?,
        }
        write!(
            f,
            ", floor {floor:.3e} times the noise of {noise:.3e}; {scored_by} {score:.4}, without a representation \
             {score_without_representation:.4}"
        )
    }
}
