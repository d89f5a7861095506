//! Conversions between nalgebra's fixed-size matrices and the client's memory, by copying.

use nalgebra::SMatrix;

use crate::error::{NotReady, RepresentationError};
use crate::memory::Workspace;
use crate::task::{Linear, Task};

impl<const D: usize, const K: usize, const C: usize> Linear<Workspace<D, K, C>> {
    /// Returns the verified representation, D x K.
    ///
    /// # Errors
    /// [`NotReady::NoRepresentation`] if no representation is in memory.
    pub fn representation_matrix(&self) -> Result<SMatrix<f32, D, K>, NotReady> {
        let b = self.representation().ok_or(NotReady::NoRepresentation)?;
        Ok(SMatrix::from_row_slice(b))
    }

    /// Returns the head, K x C, whether fitted or not.
    #[must_use]
    pub fn head_matrix(&self) -> SMatrix<f32, K, C> {
        SMatrix::from_row_slice(self.head())
    }

    /// Stores a representation with orthonormal columns without a server.
    ///
    /// # Errors
    /// [`RepresentationError::NonFinite`] if a value is not finite. The model is then unchanged.
    pub fn set_representation_matrix(&mut self, b: &SMatrix<f32, D, K>) -> Result<(), RepresentationError> {
        self.set_representation(b.transpose().as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Recording;
    use fedspan_protocol::message::HeadSolve;

    #[test]
    fn matrices_round_trip() {
        let mut client = Linear::new(Workspace::<3, 2>::new());
        assert_eq!(client.representation_matrix(), Err(NotReady::NoRepresentation));
        let b = SMatrix::<f32, 3, 2>::from_row_slice(&[1.0, 0.0, 0.0, 0.6, 0.0, 0.8]);
        assert_eq!(
            client.set_representation_matrix(&(b * f32::NAN)),
            Err(RepresentationError::NonFinite { index: 0 })
        );
        assert_eq!(client.representation_matrix(), Err(NotReady::NoRepresentation));
        client.set_representation_matrix(&b).ok();
        assert_eq!(client.representation_matrix(), Ok(b));
        let (x, y) = ([1.0, 0.0, 0.0, 0.0, 0.6, 0.8], [3.0, -2.0]);
        let mut samples = Recording::regression(&x, &y, 3, 1);
        client.fit_head(HeadSolve::LeastSquares { ridge: 0.0 }, &mut samples).ok();
        assert!((client.head_matrix() - SMatrix::<f32, 2, 1>::new(3.0, -2.0)).amax() < 1e-5);
    }
}
