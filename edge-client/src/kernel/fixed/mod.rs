//! Projection, head and gradient in 16-bit fixed point, for cores without floating point: there an f32
//! multiplication and addition take 130 to 220 instructions, and those of integers take two.
//!
//! A block of values (a sample, a representation, a head, the targets or the residuals of one sample) shares
//! one [`Scale`], a power of two taken from its largest magnitude: `value = integer 2^e`, integers of at most
//! 15 bits and a sign. From f32 to integers go shifts of the bits, no arithmetic of floats. Products of two
//! such integers are summed in integers, in the order of features and samples; sums over samples share a
//! scale that rises as they grow ([`Sums`]). Nothing wraps, whatever the samples are.
//!
//! # Error
//!
//! Let `X` be the largest magnitude of a sample, or 2^-110 if that is larger: then two neighbouring integers of
//! its block are `u(X) <= 2^-14 (1 + 2^-15) X` apart, and a value moves by half of that at most. Let `B`, `Z`,
//! `W`, `R` be the same for the representation, the projections of a sample, the head, and the residuals of a
//! sample, and `Y` the largest target of a sample, or 2^-95 if that is larger. Then, against exact arithmetic on
//! the same `x`, `B`, `y` and head, for d features, width k, m samples:
//!
//! ```text
//! |z_j - exact|  <=  zeta_j  =  u(X)/2 |b_j|_1  +  u(B)/2 |x|_1  +  2 d u(X) u(B)  +  2^-23 |z_j|
//! |r_c - exact|  <=  rho_c   =  sum_j |W_jc| (zeta_j + u(Z)/2)  +  u(W)/2 |z|_1  +  3 k u(Z) u(W)
//!                               +  2^-28 Y  +  u(R)/2
//! |S_ic - exact| <=  sum over samples of |x_i| rho_c + u(X)/2 (|r_c| + u(R)/2)
//!                    +  (m + 2) 2^-28 sum over samples of X R  +  2^-23 |S_ic|
//! ```
//!
//! where norms and maxima on the right are those of the computed values; the gradient is `S W^T / m`. In short: with
//! orthonormal columns a projection is off by `2^-15 X (sqrt(d) + d B)` and a little at most, and by some 2^-16 of
//! its sample's length where features are alike; a residual by as much of `|W| |x|`. What is lost is what is small
//! beside the largest value of its sample. `tests/fixed.rs` holds whole rounds to these bounds.
//!
//! The head is the least-squares solution from `Z^T Z`, to which directions that are 2^-10 shorter than the
//! longest add nothing: the projections are not exact enough to tell them from zero. See [`head`].

pub mod head;
pub mod product;
pub mod scale;
pub mod sums;

pub use scale::Scale;
pub use sums::Sums;
