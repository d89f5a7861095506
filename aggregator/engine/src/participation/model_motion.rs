//! Steps of a model between rounds.

use fedspan_protocol::tensor::Role;

use crate::linalg::{Matrix, complement, orthonormal, product, product_transposed};

/// Model from which steps are measured.
#[derive(Clone, Debug)]
pub enum ModelPoint {
    /// Model of which only the column span matters: an orthonormal basis, d x k with d > k. Steps are tangent
    /// vectors: the `z` with `b^T z = 0` for which `b - z` spans the new subspace.
    Span(Matrix),
    /// Model of which every value matters.
    Values(Matrix),
}

impl ModelPoint {
    /// Takes `model`, for which devices upload tensors of this role. `None` if it is a rank-deficient
    /// representation.
    pub fn new(model: &Matrix, role: Role) -> Option<Self> {
        let spans = matches!(role, Role::Representation | Role::Gradient) && model.nrows() > model.ncols();
        if spans { orthonormal(model).ok().map(Self::Span) } else { Some(Self::Values(model.clone())) }
    }

    /// Another model of the same kind; `None` if it is rank deficient.
    pub fn with_model(&self, model: &Matrix) -> Option<Self> {
        match self {
            Self::Span(_) => orthonormal(model).ok().map(Self::Span),
            Self::Values(_) => Some(Self::Values(model.clone())),
        }
    }

    /// Step that a device proposes, by a gradient or by a model. `None` if that model is rank deficient.
    pub fn step(&self, own: &Matrix, role: Role) -> Option<Matrix> {
        match (self, role) {
            (Self::Span(b), Role::Gradient) => Some(complement(b, own)),
            (Self::Span(b), _) => tangent(b, own),
            (Self::Values(_), Role::Gradient) => Some(own.clone()),
            (Self::Values(model), _) => Some(model - own),
        }
    }

    /// Step from this model to another.
    pub fn step_to(&self, to: &Self) -> Option<Matrix> {
        match (self, to) {
            (Self::Span(b), Self::Span(to)) => tangent(b, to),
            (Self::Values(from), Self::Values(to)) => Some(from - to),
            _ => None,
        }
    }

    /// Projection of a matrix onto the possible steps.
    pub fn project(&self, matrix: Matrix) -> Matrix {
        match self {
            Self::Span(b) => complement(b, &matrix),
            Self::Values(_) => matrix,
        }
    }

    /// Number of degrees of freedom of a step.
    pub fn degrees_of_freedom(&self) -> f64 {
        match self {
            Self::Span(b) => ((b.nrows() - b.ncols()) * b.ncols()) as f64,
            Self::Values(model) => model.len() as f64,
        }
    }

    /// Prior squared distance: for a span that of a random subspace, `k (d - k) / d`; otherwise the one
    /// implied by a first step with the contraction `a`.
    pub fn expected_distance(&self, step: &Matrix, a: f64) -> f64 {
        match self {
            Self::Span(b) => self.degrees_of_freedom() / b.nrows() as f64,
            Self::Values(_) => step.norm_squared() / (a * a),
        }
    }
}

/// Step from the orthonormal `b` to the span of `to`, in tangent coordinates.
fn tangent(b: &Matrix, to: &Matrix) -> Option<Matrix> {
    Some(b - product(to, &product_transposed(b, to).try_inverse()?))
}
