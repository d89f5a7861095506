//! Sensitivity of FedPower's integer sums to the replacement of one record.

/// Number of fraction bits of rows and bases.
pub(crate) const FRACTION: u32 = 15;

/// Exponent g of the finest grid of a product, 2^-g.
pub(crate) const GRID_MAX: u32 = FRACTION;

/// Exponent of the certified bound: the absolute row sums of `Zq^T Zq - 2^30 I` are at most
/// `2^30 / 2^CERTIFIED`.
pub(crate) const CERTIFIED: u32 = 10;

/// Returns the L2 sensitivity of `s A Z` (d x `r`), in units of its grid `2^-g`, rounded up. This is the
/// largest change of FedPower's integer sums when one record is replaced by any other record. Values of `g`
/// above 15 count as 15.
///
/// # Derivation
///
/// A record is a row of integers `q` with `|q|^2 <= 2^30`, which is checked in integers. With the integers
/// `Zq` of the basis the record adds `c_ij = round(q_i p_j / 2^(30 - g))`, where `p_j = round(t_j / 2^15)`
/// and `t = Zq^T q`. Let `u = q / 2^15` and `V = Zq / 2^15`. Then `|u| <= 1`, and `|V|_2^2 <= 1 + 2^-10` by
/// Gershgorin's theorem, since the absolute row sums of `V^T V - I` are at most `2^-10`, which is checked
/// too.
///
/// Without the two roundings a record would add `2^g u u^T V`. For two records `D = u u^T - v v^T` has rank
/// 2, with one eigenvalue in 0..=1 and one in -1..=0. Hence `|D|_2 <= 1` and `|D|_F <= sqrt 2`, and
///
/// ```text
/// |D V|_F <= |D|_F |V|_2 <= sqrt(2 (1 + 2^-10)),  and for one column  |D V|_F <= |D|_2 |V|_2 <= sqrt(1 + 2^-10).
/// ```
///
/// The roundings are `p_j = t_j / 2^15 + e_j` and `c_ij = q_i p_j / 2^(30 - g) + f_ij` with
/// `|e_j|, |f_ij| <= 1/2`. The roundings add `q e^T / 2^(30 - g) + f` to the contribution of a record. The
/// norm of this term is at most `2^15 sqrt(r)/2 / 2^(30 - g) + sqrt(d r)/2`, and twice as much for two
/// records. The total is
///
/// ```text
/// 2^g sqrt(n (1 + 2^-10)) + 2^(g - 15) sqrt r + sqrt(d r),   n = 1 for r = 1, else 2.
/// ```
///
/// Each square root is rounded up to units of 2^-16, and the sum to an integer.
#[must_use]
pub const fn sensitivity(d: u16, r: u16, g: u32) -> u64 {
    let g = if g < GRID_MAX { g } else { GRID_MAX };
    let (d, r) = (d as u128, r as u128);
    let directions = if r <= 1 { 1 } else { 2 };
    // The squares are in units of 2^-32.
    let exact = directions * ((1 << (2 * g + 32)) + (1 << (2 * g + 32 - CERTIFIED)));
    let of_projection = r << (2 * g + 32 - 2 * FRACTION);
    let of_product = (d * r) << 32;
    (root_up(exact) + root_up(of_projection) + root_up(of_product)).div_ceil(1 << 16)
}

/// Returns the square root, rounded up, of a number below 2^64.
const fn root_up(square: u128) -> u64 {
    let root = square.isqrt();
    let up = if root * root < square { root + 1 } else { root };
    #[allow(clippy::cast_possible_truncation, reason = "33 bits")]
    let up = up as u64;
    up
}
