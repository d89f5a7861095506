//! Groups of rows on a host: one row in each lane of the host's vectors, so that sums over the features of a row are computed
//! in ascending order as on a device, for all rows of the group at once.

use pulp::Simd;

#[cfg(feature = "privacy")]
use crate::kernel::vector::dot;

/// Largest number of lanes on any host.
pub const LANES_MAX: usize = 16;

/// Number of features that are moved into lanes together. Rows are at least as long.
pub const FEATURES: usize = 4;

/// Rows of a group. Groups with fewer rows than lanes repeat the first.
pub type Group<'a> = [&'a [f32]; LANES_MAX];

/// Returns the rows of `x`, m x d.
#[inline(always)]
pub fn group(x: &[f32], d: usize) -> Option<Group<'_>> {
    let first = x.get(..d)?;
    Some(core::array::from_fn(|row| x.get(row * d..(row + 1) * d).unwrap_or(first)))
}

/// Reads one value of every line of the caches, in the order of memory, which is the order in which processors load lines ahead.
/// The rows are then read side by side.
#[inline(always)]
pub fn load(x: &[f32]) {
    /// Number of values of a line.
    const LINE: usize = 16;
    let mut bits = 0;
    for line in x.chunks_exact(LINE) {
        bits |= line.first().map_or(0, |value| value.to_bits());
    }
    core::hint::black_box(bits);
}

/// Returns the number of the row that [`lanes_of`] puts into each lane: the host's cheapest order.
#[inline(always)]
pub fn order<S: Simd>(simd: S) -> [usize; LANES_MAX] {
    #[allow(clippy::cast_precision_loss, reason = "below 16")]
    let numbers: [[f32; FEATURES]; LANES_MAX] = core::array::from_fn(|row| [row as f32; FEATURES]);
    let [lanes, ..] = spread(simd, &numbers);
    let mut order = [0.0; LANES_MAX];
    if let Some(target) = S::as_mut_simd_f32s(&mut order).0.first_mut() {
        *target = lanes;
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the numbers above")]
    order.map(|number| number as usize)
}

/// Returns features `first..first + 4` of a group, one vector for each.
#[inline(always)]
pub fn lanes_of<S: Simd>(simd: S, group: &Group<'_>, first: usize) -> [S::f32s; FEATURES] {
    let mut values = [[0.0; FEATURES]; LANES_MAX];
    for (values, row) in values.iter_mut().zip(group).take(S::F32_LANES) {
        if let Some(four) = row.get(first..).and_then(<[f32]>::first_chunk) {
            *values = *four;
        }
    }
    spread(simd, &values)
}

/// Moves the values of rows into lanes.
#[inline(always)]
fn spread<S: Simd>(simd: S, values: &[[f32; FEATURES]; LANES_MAX]) -> [S::f32s; FEATURES] {
    let vectors = S::as_simd_f32s(values.as_flattened()).0;
    let zeros = [simd.splat_f32s(0.0); FEATURES];
    simd.deinterleave_shfl_f32s(*vectors.first_chunk().unwrap_or(&zeros))
}

/// Returns the squared norms of up to N rows of `x`, each in ascending order of features as on a device. `N` is a multiple of
/// the number of lanes.
#[cfg(feature = "privacy")]
#[inline(always)]
pub fn squared_norms<S: Simd, const N: usize>(simd: S, x: &[f32], d: usize) -> [f32; N] {
    let mut norms = [0.0; N];
    if d < FEATURES {
        for (norm, x) in norms.iter_mut().zip(x.chunks_exact(d.max(1))) {
            *norm = dot(x, x, 1);
        }
        return norms;
    }
    let order = order(simd);
    // Two groups at a time hide the latency of additions.
    for (x, norms) in x.chunks(2 * S::F32_LANES * d).zip(norms.chunks_mut(2 * S::F32_LANES)) {
        let (first, second) = x.split_at_checked(S::F32_LANES * d).unwrap_or((x, &[]));
        let Some(first) = group(first, d) else { break };
        let groups = [first, group(second, d).unwrap_or(first)];
        let mut sums = [simd.splat_f32s(0.0); 2];
        for four in 0..d / FEATURES {
            for (sum, group) in sums.iter_mut().zip(&groups) {
                for x in lanes_of(simd, group, four * FEATURES) {
                    *sum = simd.add_f32s(*sum, simd.mul_f32s(x, x));
                }
            }
        }
        for (sum, group) in sums.iter_mut().zip(&groups) {
            for x in lanes_of(simd, group, d - FEATURES).into_iter().skip(FEATURES - d % FEATURES) {
                *sum = simd.add_f32s(*sum, simd.mul_f32s(x, x));
            }
        }
        for (sum, norms) in sums.iter().zip(norms.chunks_mut(S::F32_LANES)) {
            let mut lanes = [0.0; LANES_MAX];
            if let Some(target) = S::as_mut_simd_f32s(&mut lanes).0.first_mut() {
                *target = *sum;
            }
            for (row, norm) in order.iter().take(S::F32_LANES).zip(lanes) {
                if let Some(target) = norms.get_mut(*row) {
                    *target = norm;
                }
            }
        }
    }
    norms
}
