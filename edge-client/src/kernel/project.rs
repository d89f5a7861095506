//! `z = B^T x`: a sample seen through the representation.
//!
//! Sums run over features, ascending, and stay in registers: of a few columns at a time, the first for all
//! features, then the next. An element of `B` is loaded once for four samples where there are four.

use super::Four;

/// Projects one sample. `b` is d x k, `x` has d values, `z` receives k.
#[inline(never)]
pub fn project(b: &[f32], x: &[f32], z: &mut [f32]) {
    let k = z.len();
    let (blocks, rest) = z.as_chunks_mut::<4>();
    let mut first = 0;
    for block in blocks {
        *block = columns(b, k, first, x);
        first += 4;
    }
    for z in rest {
        [*z] = columns(b, k, first, x);
        first += 1;
    }
}

/// Columns `first..first + W` of `B^T x`.
#[inline(never)]
fn columns<const W: usize>(b: &[f32], k: usize, first: usize, x: &[f32]) -> [f32; W] {
    let mut sums = [0.0; W];
    for (row, &x) in b.chunks_exact(k.max(1)).zip(x) {
        let Some(row) = row.get(first..).and_then(<[f32]>::first_chunk::<W>) else { break };
        for (sum, &b) in sums.iter_mut().zip(row) {
            *sum += x * b;
        }
    }
    sums
}

/// Projects four samples of d values each. `z` receives k fours.
#[inline(never)]
pub fn project_four(b: &[f32], x: [&[f32]; 4], z: &mut [Four]) {
    let k = z.len();
    let (blocks, rest) = z.as_chunks_mut::<4>();
    let mut first = 0;
    for block in blocks {
        columns_of_four(b, k, first, x, block);
        first += 4;
    }
    let (pairs, rest) = rest.as_chunks_mut::<2>();
    for pair in pairs {
        columns_of_four(b, k, first, x, pair);
        first += 2;
    }
    for four in rest {
        *four = x.map(|x| columns::<1>(b, k, first, x)[0]);
    }
}

/// Columns `first..first + W` of `B^T x` for four samples, two features at a time.
#[inline(never)]
fn columns_of_four<const W: usize>(b: &[f32], k: usize, first: usize, x: [&[f32]; 4], z: &mut [Four; W]) {
    let mut sums = [[0.0; 4]; W];
    let pairs = b.chunks_exact((2 * k).max(1));
    let last = pairs.remainder();
    let [(x0, last0), (x1, last1), (x2, last2), (x3, last3)] = x.map(<[f32]>::as_chunks::<2>);
    for ((((rows, x0), x1), x2), x3) in pairs.zip(x0).zip(x1).zip(x2).zip(x3) {
        let row = |i: usize| rows.get(i * k + first..).and_then(<[f32]>::first_chunk::<W>);
        let (Some(b0), Some(b1)) = (row(0), row(1)) else { break };
        add_feature(&mut sums, b0, [x0[0], x1[0], x2[0], x3[0]]);
        add_feature(&mut sums, b1, [x0[1], x1[1], x2[1], x3[1]]);
    }
    if let (Some(b), [x0], [x1], [x2], [x3]) =
        (last.get(first..).and_then(<[f32]>::first_chunk::<W>), last0, last1, last2, last3)
    {
        add_feature(&mut sums, b, [*x0, *x1, *x2, *x3]);
    }
    *z = sums;
}

/// `sums[j][s] += b[j] x[s]`.
#[inline(always)]
fn add_feature<const W: usize>(sums: &mut [Four; W], b: &[f32; W], [x0, x1, x2, x3]: Four) {
    for ([s0, s1, s2, s3], &b) in sums.iter_mut().zip(b) {
        *s0 += x0 * b;
        *s1 += x1 * b;
        *s2 += x2 * b;
        *s3 += x3 * b;
    }
}

/// `y = W^T z`: the head's outputs. `w` is k x c, `z` has k values, `y` receives c.
#[inline(never)]
pub fn apply_head(w: &[f32], z: &[f32], y: &mut [f32]) {
    y.fill(0.0);
    for (row, &zj) in w.chunks_exact(y.len().max(1)).zip(z) {
        for (out, &wjc) in y.iter_mut().zip(row) {
            *out += zj * wjc;
        }
    }
}
