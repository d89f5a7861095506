//! Projection `z = B^T x` of samples onto the representation.
//!
//! Sums run in ascending order of features and stay in registers: the sums of a few columns are computed over
//! all features, then those of the next columns. The functions for four samples load each element of `B` once
//! for the four.

use super::{Four, add_scaled};

/// Projects one sample. `b` is d x k, `x` has d values, `z` receives k.
#[inline(never)]
pub fn project(b: &[f32], x: &[f32], z: &mut [f32]) {
    let k = z.len();
    let (blocks, remainder) = z.as_chunks_mut::<4>();
    let mut first = 0;
    for block in blocks {
        *block = project_four_columns(b, k, first, x);
        first += 4;
    }
    let (pairs, remainder) = remainder.as_chunks_mut::<2>();
    for pair in pairs {
        *pair = project_two_columns(b, k, first, x);
        first += 2;
    }
    for z in remainder {
        *z = project_column(b, k, first, x);
        first += 1;
    }
}

/// Computes columns `first..first + 4` of `B^T x`. The four sums are written out: in an array they would not stay in
/// registers at `opt-level = "s"`.
#[inline(never)]
fn project_four_columns(b: &[f32], k: usize, first: usize, x: &[f32]) -> [f32; 4] {
    let k = k.max(1);
    let Some(end) = first.checked_add(4).filter(|&end| end <= k) else { return [0.0; 4] };
    let [mut z0, mut z1, mut z2, mut z3] = [0.0f32; 4];
    for (row, &x) in b.chunks_exact(k).zip(x) {
        let Some([b0, b1, b2, b3]) = row.get(first..end).and_then(|b| b.first_chunk()) else { break };
        z0 += x * b0;
        z1 += x * b1;
        z2 += x * b2;
        z3 += x * b3;
    }
    [z0, z1, z2, z3]
}

/// Computes columns `first` and `first + 1` of `B^T x`.
#[inline(never)]
fn project_two_columns(b: &[f32], k: usize, first: usize, x: &[f32]) -> [f32; 2] {
    let k = k.max(1);
    let Some(end) = first.checked_add(2).filter(|&end| end <= k) else { return [0.0; 2] };
    let [mut z0, mut z1] = [0.0f32; 2];
    for (row, &x) in b.chunks_exact(k).zip(x) {
        let Some([b0, b1]) = row.get(first..end).and_then(|b| b.first_chunk()) else { break };
        z0 += x * b0;
        z1 += x * b1;
    }
    [z0, z1]
}

/// Computes column `column` of `B^T x`.
#[inline(never)]
fn project_column(b: &[f32], k: usize, column: usize, x: &[f32]) -> f32 {
    let mut sum = 0.0;
    for (row, &x) in b.chunks_exact(k.max(1)).zip(x) {
        let Some(&b) = row.get(column) else { break };
        sum += x * b;
    }
    sum
}

/// Projects four samples of d values each. `z` receives k fours.
#[inline(never)]
pub fn project_four(b: &[f32], x: [&[f32]; 4], z: &mut [Four]) {
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
        *four = x.map(|x| project_column(b, k, first, x));
    }
}

/// Computes columns `first..first + 4` of `B^T x` for four samples.
#[inline(never)]
fn four_columns(b: &[f32], k: usize, first: usize, [x0, x1, x2, x3]: [&[f32]; 4], z: &mut [Four; 4]) {
    let k = k.max(1);
    let Some(end) = first.checked_add(4).filter(|&end| end <= k) else { return };
    let [mut z0, mut z1, mut z2, mut z3] = [[0.0; 4]; 4];
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

/// Computes columns `first` and `first + 1` of `B^T x` for four samples.
#[inline(never)]
fn two_columns(b: &[f32], k: usize, first: usize, [x0, x1, x2, x3]: [&[f32]; 4], z: &mut [Four; 2]) {
    let k = k.max(1);
    let Some(end) = first.checked_add(2).filter(|&end| end <= k) else { return };
    let [mut z0, mut z1] = [[0.0; 4]; 2];
    for ((((row, &x0), &x1), &x2), &x3) in b.chunks_exact(k).zip(x0).zip(x1).zip(x2).zip(x3) {
        let Some([b0, b1]) = row.get(first..end).and_then(|b| b.first_chunk()) else { break };
        let x = [x0, x1, x2, x3];
        add_scaled(&mut z0, x, *b0);
        add_scaled(&mut z1, x, *b1);
    }
    *z = [z0, z1];
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
