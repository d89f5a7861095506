//! Where a model moves, and what a step is there.

use fedspan_protocol::tensor::Role;

use crate::linalg::{Matrix, complement, orthonormal, product, product_transposed};

/// The place of a model, from which steps are measured.
#[derive(Clone, Debug)]
pub enum ModelPoint {
    /// Only the span of its columns matters: an orthonormal basis, d x k with d > k. Steps from it are tangent to it: the
    /// `z` with `b^T z = 0` for which `b - z` spans where they lead.
    Span(Matrix),
    /// Every number of it matters.
    Values(Matrix),
}

impl ModelPoint {
    /// The place of `model`, of which devices send what has this role. None where it has lost its width.
    pub fn new(model: &Matrix, role: Role) -> Option<Self> {
        let spans = matches!(role, Role::Representation | Role::Gradient) && model.nrows() > model.ncols();
        if spans { orthonormal(model).ok().map(Self::Span) } else { Some(Self::Values(model.clone())) }
    }

    /// Another place of the same kind.
    pub fn with_model(&self, model: &Matrix) -> Option<Self> {
        match self {
            Self::Span(_) => orthonormal(model).ok().map(Self::Span),
            Self::Values(_) => Some(Self::Values(model.clone())),
        }
    }

    /// The step that a device proposes: a gradient, or the model that it would have. None where that has lost its width.
    pub fn step(&self, own: &Matrix, role: Role) -> Option<Matrix> {
        match (self, role) {
            (Self::Span(b), Role::Gradient) => Some(complement(b, own)),
            (Self::Span(b), _) => tangent(b, own),
            (Self::Values(_), Role::Gradient) => Some(own.clone()),
            (Self::Values(model), _) => Some(model - own),
        }
    }

    /// The step from here to there.
    pub fn step_to(&self, to: &Self) -> Option<Matrix> {
        match (self, to) {
            (Self::Span(b), Self::Span(to)) => tangent(b, to),
            (Self::Values(from), Self::Values(to)) => Some(from - to),
            _ => None,
        }
    }

    /// What of a matrix can be a step from here.
    pub fn project(&self, matrix: Matrix) -> Matrix {
        match self {
            Self::Span(b) => complement(b, &matrix),
            Self::Values(_) => matrix,
        }
    }

    /// How many numbers of a step are free.
    pub fn degrees_of_freedom(&self) -> f64 {
        match self {
            Self::Span(b) => ((b.nrows() - b.ncols()) * b.ncols()) as f64,
            Self::Values(model) => model.len() as f64,
        }
    }

    /// The squared distance to expect before anything is known: that of a random subspace, `k (d - k) / d`; of numbers,
    /// what a first step with the contraction `a` says.
    pub fn expected_distance(&self, step: &Matrix, a: f64) -> f64 {
        match self {
            Self::Span(b) => self.degrees_of_freedom() / b.nrows() as f64,
            Self::Values(_) => step.norm_squared() / (a * a),
        }
    }
}

/// The step from the orthonormal `b` to the span of `to`, in tangent coordinates.
fn tangent(b: &Matrix, to: &Matrix) -> Option<Matrix> {
    Some(b - product(to, &product_transposed(b, to).try_inverse()?))
}
