//! Projection `z = B^T x` of samples onto the representation.
//!
//! Sums run in ascending order of features and stay in registers: the sums of a few columns are computed over
//! all features, then those of the next columns. The functions for four samples load each element of `B` once
//! for the four.

use super::vector::from;
use super::{Four, add_scaled};
use crate::pace::Pace;

/// Projects one sample. `b` is d x k, `x` has d values, `z` receives k.
#[inline(never)]
pub fn project(b: &[f32], x: &[f32], z: &mut [f32], pace: Pace<'_>) {
    let k = z.len();
    z.fill(0.0);
    pace.split(x.len(), k, |rows| {
        project_features(from(b, rows.start * k), x.get(rows).unwrap_or_default(), z);
    });
}

/// Adds the products of some features and their rows of `B` to the projection of one sample.
#[inline(never)]
fn project_features(b: &[f32], x: &[f32], z: &mut [f32]) {
    let k = z.len();
    let (blocks, remainder) = z.as_chunks_mut::<4>();
    let mut first = 0;
    for block in blocks {
        project_four_columns(b, k, first, x, block);
        first += 4;
    }
    let (pairs, remainder) = remainder.as_chunks_mut::<2>();
    for pair in pairs {
        project_two_columns(b, k, first, x, pair);
        first += 2;
    }
    for z in remainder {
        *z = project_column(b, k, first, x, *z);
        first += 1;
    }
}

/// Adds columns `first..first + 4` of `B^T x`. The four sums are written out: in an array they would not stay in
/// registers at `opt-level = "s"`.
#[inline(never)]
fn project_four_columns(b: &[f32], k: usize, first: usize, x: &[f32], z: &mut [f32; 4]) {
    let k = k.max(1);
    let Some(end) = first.checked_add(4).filter(|&end| end <= k) else { return };
    let [mut z0, mut z1, mut z2, mut z3] = *z;
    for (row, &x) in b.chunks_exact(k).zip(x) {
        let Some([b0, b1, b2, b3]) = row.get(first..end).and_then(|b| b.first_chunk()) else { break };
        z0 += x * b0;
        z1 += x * b1;
        z2 += x * b2;
        z3 += x * b3;
    }
    *z = [z0, z1, z2, z3];
}

/// Adds columns `first` and `first + 1` of `B^T x`.
#[inline(never)]
fn project_two_columns(b: &[f32], k: usize, first: usize, x: &[f32], z: &mut [f32; 2]) {
    let k = k.max(1);
    let Some(end) = first.checked_add(2).filter(|&end| end <= k) else { return };
    let [mut z0, mut z1] = *z;
    for (row, &x) in b.chunks_exact(k).zip(x) {
        let Some([b0, b1]) = row.get(first..end).and_then(|b| b.first_chunk()) else { break };
        z0 += x * b0;
        z1 += x * b1;
    }
    *z = [z0, z1];
}

/// Adds column `column` of `B^T x` to `sum`.
#[inline(never)]
fn project_column(b: &[f32], k: usize, column: usize, x: &[f32], mut sum: f32) -> f32 {
    for (row, &x) in b.chunks_exact(k.max(1)).zip(x) {
        let Some(&b) = row.get(column) else { break };
        sum += x * b;
    }
    sum
}

/// Projects four samples of d values each. `z` receives k fours.
#[inline(never)]
pub fn project_four(b: &[f32], x: [&[f32]; 4], z: &mut [Four], pace: Pace<'_>) {
    let k = z.len();
    z.as_flattened_mut().fill(0.0);
    let [x0, ..] = x;
    pace.split(x0.len(), 4 * k, |rows| {
        let x = x.map(|x| x.get(rows.clone()).unwrap_or_default());
        project_features_of_four(from(b, rows.start * k), x, z);
    });
}

/// Adds the products of some features and their rows of `B` to the projections of four samples.
#[inline(never)]
fn project_features_of_four(b: &[f32], x: [&[f32]; 4], z: &mut [Four]) {
    let k = z.len();
    let (blocks, remainder) = z.as_chunks_mut::<4>();
    let mut first = 0;
    for block in blocks {
        four_columns(b, k, first, x, block);
        first += 4;
    }
    let (pairs, remainder) = remainder.as_chunks_mut::<2>();
    for pair in pairs {
        two_columns(b, k, first, x, pair);
        first += 2;
    }
    for four in remainder {
        for (z, x) in four.iter_mut().zip(x) {
            *z = project_column(b, k, first, x, *z);
        }
    }
}

/// Adds columns `first..first + 4` of `B^T x` for four samples.
#[inline(never)]
fn four_columns(b: &[f32], k: usize, first: usize, [x0, x1, x2, x3]: [&[f32]; 4], z: &mut [Four; 4]) {
    let k = k.max(1);
    let Some(end) = first.checked_add(4).filter(|&end| end <= k) else { return };
    let [mut z0, mut z1, mut z2, mut z3] = [load(&z[0]), load(&z[1]), load(&z[2]), load(&z[3])];
    for ((((row, &x0), &x1), &x2), &x3) in b.chunks_exact(k).zip(x0).zip(x1).zip(x2).zip(x3) {
        let Some([b0, b1, b2, b3]) = row.get(first..end).and_then(|b| b.first_chunk()) else { break };
        let x = [x0, x1, x2, x3];
        add_scaled(&mut z0, x, *b0);
        add_scaled(&mut z1, x, *b1);
        add_scaled(&mut z2, x, *b2);
        add_scaled(&mut z3, x, *b3);
    }
    *z = [z0, z1, z2, z3];
}

/// Adds columns `first` and `first + 1` of `B^T x` for four samples.
#[inline(never)]
fn two_columns(b: &[f32], k: usize, first: usize, [x0, x1, x2, x3]: [&[f32]; 4], z: &mut [Four; 2]) {
    let k = k.max(1);
    let Some(end) = first.checked_add(2).filter(|&end| end <= k) else { return };
    let [mut z0, mut z1] = [load(&z[0]), load(&z[1])];
    for ((((row, &x0), &x1), &x2), &x3) in b.chunks_exact(k).zip(x0).zip(x1).zip(x2).zip(x3) {
        let Some([b0, b1]) = row.get(first..end).and_then(|b| b.first_chunk()) else { break };
        let x = [x0, x1, x2, x3];
        add_scaled(&mut z0, x, *b0);
        add_scaled(&mut z1, x, *b1);
    }
    *z = [z0, z1];
}

/// Returns a copy, element by element: as a whole it would be copied to the stack and stay there.
#[inline(always)]
fn load(&[v0, v1, v2, v3]: &Four) -> Four {
    [v0, v1, v2, v3]
}

/// Computes the head's outputs `y = W^T z`. `w` is k x c, `z` has k values, `y` receives c.
#[inline(never)]
pub fn apply_head(w: &[f32], z: &[f32], y: &mut [f32]) {
    y.fill(0.0);
    for (row, &zj) in w.chunks_exact(y.len().max(1)).zip(z) {
        for (out, &wjc) in y.iter_mut().zip(row) {
            *out += zj * wjc;
        }
    }
}
