//! Measurement of the steps that a model takes from round to round, as matrices.

use fedspan_protocol::tensor::Role;

use super::UploadLayout;
use crate::linalg::{Matrix, complement, from_f32, orthonormal, product, product_transposed};
use crate::types::Tensor;

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
    /// Creates a point from `model`, of which devices upload tensors with this layout, the first of them with
    /// this role. `None` if the model is a rank-deficient representation.
    pub fn new(model: &Matrix, layout: UploadLayout, role: Role) -> Option<Self> {
        let spans = layout == UploadLayout::Representation
            && matches!(role, Role::Representation | Role::Gradient)
            && model.nrows() > model.ncols();
        if spans { orthonormal(model).ok().map(Self::Span) } else { Some(Self::Values(model.clone())) }
    }

    /// Creates a point of the same kind from another model; `None` if that model is rank deficient.
    pub fn with_model(&self, model: &Matrix) -> Option<Self> {
        match self {
            Self::Span(_) => orthonormal(model).ok().map(Self::Span),
            Self::Values(_) => Some(Self::Values(model.clone())),
        }
    }

    /// Step that a device proposes by its upload. `None` if the upload is no part of the model, or is a rank
    /// deficient representation.
    pub fn step_of(&self, tensors: &[Tensor], layout: UploadLayout) -> Option<Matrix> {
        match layout {
            UploadLayout::Layers { offset } => self.step_of_layers(tensors, offset),
            UploadLayout::Representation => {
                let (d, k) = self.shape();
                let tensor = tensors.first().filter(|tensor| tensor.values.len() == d * k)?;
                self.step(&from_f32(d, k, &tensor.values), tensor.role)
            }
            UploadLayout::Other => None,
        }
    }

    /// Shape of the model.
    fn shape(&self) -> (usize, usize) {
        match self {
            Self::Span(model) | Self::Values(model) => model.shape(),
        }
    }

    /// Step that a device proposes by uploading a gradient or a model. `None` if the uploaded model is rank
    /// deficient.
    fn step(&self, upload: &Matrix, role: Role) -> Option<Matrix> {
        match (self, role) {
            (Self::Span(b), Role::Gradient) => Some(complement(b, upload)),
            (Self::Span(b), _) => tangent(b, upload),
            (Self::Values(_), Role::Gradient) => Some(upload.clone()),
            (Self::Values(model), _) => Some(model - upload),
        }
    }

    /// Step that a device proposes by uploading layers of a network, whose values begin at the index `offset` of
    /// the model. Other layers do not change. `None` if the model has fewer values.
    fn step_of_layers(&self, tensors: &[Tensor], offset: usize) -> Option<Matrix> {
        let Self::Values(model) = self else { return None };
        let mut step = Matrix::zeros(model.nrows(), model.ncols());
        let values = tensors.iter().flat_map(|tensor| &tensor.values);
        let mut places = step.iter_mut().zip(model.iter()).skip(offset);
        for value in values {
            let (place, before) = places.next()?;
            *place = before - f64::from(*value);
        }
        Some(step)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn tensor(values: &[f32]) -> Tensor {
        Tensor { role: Role::Representation, rows: 1, cols: values.len() as u16, values: values.to_vec() }
    }

    /// Layers of a network are not a span, although they have the role of a representation and one column.
    #[test]
    fn uploaded_layers_are_a_step_of_their_values() {
        let model = Matrix::from_column_slice(4, 1, &[1.0, 2.0, 3.0, 4.0]);
        let layout = |offset| UploadLayout::Layers { offset };
        let point = ModelPoint::new(&model, layout(0), Role::Representation).unwrap();
        let step =
            |tensors: &[Tensor], layout| point.step_of(tensors, layout).map(|step| step.as_slice().to_vec());
        let [first, second] = [tensor(&[0.5]), tensor(&[1.0, 4.0, 4.5])];
        assert_eq!(step(&[first.clone(), second.clone()], layout(0)), Some(vec![0.5, 1.0, -1.0, -0.5]));
        // A factor of an adapter.
        assert_eq!(step(&[tensor(&[2.0, 6.0])], layout(2)), Some(vec![0.0, 0.0, 1.0, -2.0]));
        assert_eq!(step(&[second], layout(2)), None, "three values for two");
        assert_eq!(step(&[first], UploadLayout::Other), None);
    }
}
