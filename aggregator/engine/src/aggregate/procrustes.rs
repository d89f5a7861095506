//! The orthogonal Procrustes transformation: bases of nearly the same subspace, turned into nearly the same basis.

use crate::linalg::{Matrix, product, product_transposed};

/// The orthogonal `D` (r x r) that minimises `|own D - reference|_F`, both d x r: `W1 W2^T`, where
/// `own^T reference = W1 S W2^T` (Schoenemann 1966). Where that product has no full rank there are several; this is
/// one of them. The identity if a value is not finite.
#[must_use]
pub fn procrustes(own: &Matrix, reference: &Matrix) -> Matrix {
    let between = product_transposed(own, reference);
    let identity = Matrix::identity(between.nrows(), between.ncols());
    // What is not finite would keep the factorisation busy for ever.
    if between.iter().any(|value| !value.is_finite()) {
        return identity;
    }
    let svd = between.svd(true, true);
    match (svd.u, svd.v_t) {
        (Some(u), Some(v_t)) => product(&u, &v_t),
        _ => identity,
    }
}
