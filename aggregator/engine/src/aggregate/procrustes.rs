//! Orthogonal Procrustes transformation: the rotation that brings a basis nearest to another basis of nearly
//! the same subspace.

use crate::linalg::{Matrix, product, product_transposed};

/// Orthogonal matrix `D` (r x r) that minimises `|own D - reference|_F`, where `own` and `reference` are d x
/// r. It is `W1 W2^T` with the singular value decomposition `own^T reference = W1 S W2^T` (Schoenemann 1966).
/// If `own^T reference` is rank deficient, `D` is one of several solutions. Returns the identity if a value
/// is not finite.
#[must_use]
pub fn procrustes(own: &Matrix, reference: &Matrix) -> Matrix {
    let between = product_transposed(own, reference);
    let identity = Matrix::identity(between.nrows(), between.ncols());
    // The factorisation does not terminate on values that are not finite.
    if between.iter().any(|value| !value.is_finite()) {
        return identity;
    }
    let svd = between.svd(true, true);
    match (svd.u, svd.v_t) {
        (Some(u), Some(v_t)) => product(&u, &v_t),
        _ => identity,
    }
}
