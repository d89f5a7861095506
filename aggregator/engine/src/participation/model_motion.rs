//! Measurement of the steps that a model takes from round to round, as matrices.

use fedspan_protocol::tensor::Role;

use crate::linalg::{Matrix, complement, orthonormal, product, product_transposed};

/// Model from which steps are measured.
#[derive(Clone, Debug)]
pub enum ModelPoint {
    /// Model of which only the column span matters: an orthonormal basis `b`, d x k with d > k. A step is the
    /// tangent vector `z` with `b^T z = 0` for which `b - z` spans the new subspace.
    Span(Matrix),
    /// Model of which every value matters.
    Values(Matrix),
}

impl ModelPoint {
    /// Creates a point from `model`, for which devices upload tensors of this role. `None` if the model is a
    /// rank-deficient representation.
    pub fn new(model: &Matrix, role: Role) -> Option<Self> {
        let spans = matches!(role, Role::Representation | Role::Gradient) && model.nrows() > model.ncols();
        if spans { orthonormal(model).ok().map(Self::Span) } else { Some(Self::Values(model.clone())) }
    }

    /// Creates a point of the same kind from another model; `None` if that model is rank deficient.
    pub fn with_model(&self, model: &Matrix) -> Option<Self> {
        match self {
            Self::Span(_) => orthonormal(model).ok().map(Self::Span),
            Self::Values(_) => Some(Self::Values(model.clone())),
        }
    }

    /// Step that a device proposes by uploading a gradient or a model. `None` if the uploaded model is rank
    /// deficient.
    pub fn step(&self, upload: &Matrix, role: Role) -> Option<Matrix> {
        match (self, role) {
            (Self::Span(b), Role::Gradient) => Some(complement(b, upload)),
            (Self::Span(b), _) => tangent(b, upload),
            (Self::Values(_), Role::Gradient) => Some(upload.clone()),
            (Self::Values(model), _) => Some(model - upload),
        }
    }

    /// Step from this model to another model; `None` if their kinds differ.
    pub fn step_to(&self, target: &Self) -> Option<Matrix> {
        match (self, target) {
            (Self::Span(b), Self::Span(target)) => tangent(b, target),
            (Self::Values(from), Self::Values(target)) => Some(from - target),
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

    /// Prior of the squared distance to the best model. For a span it is the expected squared distance to a
    /// random subspace, `k (d - k) / d`; otherwise it follows from the first step and the contraction `a`.
    pub fn expected_distance(&self, step: &Matrix, a: f64) -> f64 {
        match self {
            Self::Span(b) => self.degrees_of_freedom() / b.nrows() as f64,
            Self::Values(_) => step.norm_squared() / (a * a),
        }
    }
}

/// Step from the orthonormal `b` to the span of `target`, in tangent coordinates.
fn tangent(b: &Matrix, target: &Matrix) -> Option<Matrix> {
    Some(b - product(target, &product_transposed(b, target).try_inverse()?))
}
