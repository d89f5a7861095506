//! Orthogonal Procrustes transformation: rotates a basis towards another one of nearly the same subspace.

use crate::linalg::{Matrix, product, product_transposed};

/// Orthogonal matrix `D` (r x r) that minimises `|own D - reference|_F`, with `own` and `reference` d x r:
/// `W1 W2^T`, where `own^T reference = W1 S W2^T` (Schoenemann 1966). If that product is rank deficient there
/// are several solutions; this is one of them. Returns the identity if a value is not finite.
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
