//! Fixed-point kernels with 16 bits: projection, head and gradient for cores without floating point. On such
//! cores an f32 multiplication and addition take 130 to 220 instructions, the integer operations two.
//!
//! A block of values (a sample, a representation, a head, the targets or the residuals of one sample) shares
//! one [`Scale`], a power of two chosen by the block's largest magnitude: `value = integer 2^e`, with
//! integers of at most 15 bits and a sign. Floats are converted by shifting bits, without float arithmetic.
//! Products of two such integers are summed as integers, in the order of features and samples; sums over
//! samples share a scale that is raised as the sums grow ([`Sums`]). Sums never overflow, for any samples.
//!
//! # Error
//!
//! Let `X` be the largest magnitude of a sample, but at least 2^-110. Neighbouring integers of its block are
//! then `u(X) <= 2^-14 (1 + 2^-15) X` apart, and a value changes by at most half of that. Let `B`, `Z`, `W`,
//! `R` be the same for the representation, the projections of a sample, the head, and the residuals of a
//! sample, and `Y` the largest target of a sample, but at least 2^-95. Then, compared with exact arithmetic
//! on the same `x`, `B`, `y` and head, for d features, width k, m samples:
//!
//! ```text
//! |z_j - exact|  <=  zeta_j  =  u(X)/2 |b_j|_1  +  u(B)/2 |x|_1  +  2 d u(X) u(B)  +  2^-23 |z_j|
//! |r_c - exact|  <=  rho_c   =  sum_j |W_jc| (zeta_j + u(Z)/2)  +  u(W)/2 |z|_1  +  3 k u(Z) u(W)
//!                               +  2^-28 Y  +  u(R)/2
//! |S_ic - exact| <=  sum over samples of |x_i| rho_c + u(X)/2 (|r_c| + u(R)/2)
//!                    +  (m + 2) 2^-28 sum over samples of X R  +  2^-23 |S_ic|
//! ```
//!
//! where norms and maxima on the right are those of the computed values; the gradient is `S W^T / m`. In
//! short, with orthonormal columns the error of a projection is little more than `2^-15 X (sqrt(d) + d B)`,
//! which is about 2^-16 of the length of the sample if the features have similar size; the error of a
//! residual is the same fraction of `|W| |x|`. Values that are small compared with the largest value of their
//! sample lose precision. `tests/fixed.rs` checks whole rounds against these bounds.
//!
//! The head is the least-squares solution from `Z^T Z` without the directions shorter than 2^-10 times the
//! longest one: the projections are not exact enough to distinguish such directions from zero. See [`head`].

pub mod head;
pub mod product;
pub mod scale;
pub mod sums;

pub use scale::Scale;
pub use sums::Sums;
