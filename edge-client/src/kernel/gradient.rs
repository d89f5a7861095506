//! Gradient of `1/(2m) |X B W - Y|^2` with respect to `B`, stored as its factors.
//!
//! `G = (1/m) S W^T` with `S = X^T R` and `R = X B W - Y`. With few outputs this matrix has low rank, so only
//! `S` (d x c) is accumulated, and `G` (d x k) is computed element by element when it is sent.

use super::vector::from_mut;
use super::{Four, add_product, add_products, add_products_to_two};
use crate::pace::Pace;

/// Adds `x r^T` to `S` for one sample. `s` is d x c, `x` has d values, `r` has c.
#[inline(never)]
pub fn accumulate(s: &mut [f32], x: &[f32], r: &[f32], pace: Pace<'_>) {
    pace.split(x.len(), r.len(), |rows| {
        add_rows(from_mut(s, rows.start * r.len()), x.get(rows).unwrap_or_default(), r);
    });
}

/// Adds some rows of `x r^T`.
#[inline(always)]
fn add_rows(s: &mut [f32], x: &[f32], r: &[f32]) {
    if let [r] = *r {
        for (si, &xi) in s.iter_mut().zip(x) {
            *si += xi * r;
        }
    } else if !r.is_empty() {
        for (row, &xi) in s.chunks_exact_mut(r.len()).zip(x) {
            for (si, &rc) in row.iter_mut().zip(r) {
                *si += xi * rc;
            }
        }
    }
}

/// Adds `x r^T` to `S` for four samples of d values each; `r` has c fours.
#[inline(always)]
pub fn accumulate_four(s: &mut [f32], x: [&[f32]; 4], r: &[Four], pace: Pace<'_>) {
    let [x0, ..] = x;
    pace.split(x0.len(), 4 * r.len(), |rows| {
        let x = x.map(|x| x.get(rows.clone()).unwrap_or_default());
        add_rows_of_four(from_mut(s, rows.start * r.len()), x, r);
    });
}

/// Adds some rows of `x r^T` for four samples.
#[inline(never)]
fn add_rows_of_four(s: &mut [f32], x: [&[f32]; 4], r: &[Four]) {
    let [x0, x1, x2, x3] = x;
    if let [r] = *r {
        for ((((s, &x0), &x1), &x2), &x3) in s.iter_mut().zip(x0).zip(x1).zip(x2).zip(x3) {
            *s = add_product(*s, [x0, x1, x2, x3], &r);
        }
        return;
    }
    // Two rows at a time load `r` once for both.
    let c = r.len().max(1);
    let (pairs, last) = s.split_at_mut_checked(x0.len() / 2 * 2 * c).unwrap_or_default();
    let [p0, p1, p2, p3] = x.map(|x| x.as_chunks::<2>().0);
    for ((((rows, [x0, y0]), [x1, y1]), [x2, y2]), [x3, y3]) in
        pairs.chunks_exact_mut(2 * c).zip(p0).zip(p1).zip(p2).zip(p3)
    {
        let rows = rows.split_at_mut_checked(c).unwrap_or_default();
        add_products_to_two(rows, [[*x0, *x1, *x2, *x3], [*y0, *y1, *y2, *y3]], r);
    }
    if let [Some(x0), Some(x1), Some(x2), Some(x3)] = x.map(|x| x.as_chunks::<2>().1.first()) {
        add_products(last.get_mut(..c).unwrap_or_default(), [*x0, *x1, *x2, *x3], r);
    }
}

/// Computes elements `first..first + out.len()` of `G = scale * S W^T`, row-major d x k. `s` is d x c, `w` is
/// k x c. With one output the common factor of a row is multiplied by `scale`, otherwise each element is.
#[inline(never)]
pub fn elements(s: &[f32], w: &[f32], k: usize, c: usize, scale: f32, first: usize, out: &mut [f32]) {
    if k == 0 || c == 0 {
        return;
    }
    let (row, column) = (first / k, first % k);
    let (mut s, mut remaining) = (s.get(row * c..).unwrap_or_default(), out);
    if column > 0 {
        let begun = remaining.len().min(k - column);
        let (begun, after) = remaining.split_at_mut_checked(begun).unwrap_or_default();
        part_of_row(s, w.get(column * c..).unwrap_or_default(), c, scale, begun);
        (s, remaining) = (s.get(c..).unwrap_or_default(), after);
    }
    if c == 1 {
        let (rows, last) = remaining.split_at_mut_checked(remaining.len() / k * k).unwrap_or_default();
        whole_rows(s, w, k, scale, rows);
        (s, remaining) = (s.get(rows.len() / k..).unwrap_or_default(), last);
    }
    for row_part in remaining.chunks_mut(k) {
        part_of_row(s, w, c, scale, row_part);
        s = s.get(c..).unwrap_or_default();
    }
}

/// Computes rows of `G` for one output and `K` columns, the same bits as [`whole_rows`].
#[cfg(all(feature = "wide", not(target_os = "none")))]
fn narrow_rows<const K: usize>(s: &[f32], w: &[f32], scale: f32, out: &mut [f32]) {
    let Some(w) = w.first_chunk::<K>() else { return };
    for (row, s) in out.as_chunks_mut::<K>().0.iter_mut().zip(s) {
        let common = scale * s;
        *row = w.map(|w| common * w);
    }
}

/// Computes whole rows of `G` for one output: four columns of all rows at a time.
fn whole_rows(s: &[f32], w: &[f32], k: usize, scale: f32, out: &mut [f32]) {
    #[cfg(all(feature = "wide", not(target_os = "none")))]
    match k {
        1 => return narrow_rows::<1>(s, w, scale, out),
        2 => return narrow_rows::<2>(s, w, scale, out),
        3 => return narrow_rows::<3>(s, w, scale, out),
        4 => return narrow_rows::<4>(s, w, scale, out),
        8 => return narrow_rows::<8>(s, w, scale, out),
        _ => {}
    }
    let (fours, last_weights) = w.as_chunks::<4>();
    let mut first = 0;
    for w in fours {
        for (row, s) in out.chunks_exact_mut(k).zip(s) {
            let Some(targets) = row.get_mut(first..).and_then(<[f32]>::first_chunk_mut::<4>) else { break };
            let common = scale * s;
            let [w0, w1, w2, w3] = w;
            *targets = [common * w0, common * w1, common * w2, common * w3];
        }
        first += 4;
    }
    for w in last_weights {
        for (row, s) in out.chunks_exact_mut(k).zip(s) {
            let Some(target) = row.get_mut(first) else { break };
            *target = scale * s * w;
        }
        first += 1;
    }
}

/// Computes a part of one row of `G`, with the length of `out`, starting at the first column of `w`.
fn part_of_row(s: &[f32], w: &[f32], c: usize, scale: f32, out: &mut [f32]) {
    let Some(s) = s.get(..c) else { return };
    if let [s] = s {
        for (target, w) in out.iter_mut().zip(w) {
            *target = scale * s * w;
        }
        return;
    }
    // Four columns at a time load `s` once for all.
    let (fours, remainder) = out.as_chunks_mut::<4>();
    let mut w = w;
    for targets in fours {
        let Some((rows, after)) = w.split_at_checked(4 * c) else { return };
        *targets = scaled_dots(s, rows, scale);
        w = after;
    }
    for (target, w) in remainder.iter_mut().zip(w.chunks_exact(c)) {
        *target = scale * s.iter().zip(w).fold(0.0f32, |sum, (a, b)| sum + a * b);
    }
}

/// Computes `scale` times the dot products of `s` with four rows of the same length.
#[inline(always)]
fn scaled_dots(s: &[f32], rows: &[f32], scale: f32) -> Four {
    let (w0, rows) = rows.split_at_checked(s.len()).unwrap_or_default();
    let (w1, rows) = rows.split_at_checked(s.len()).unwrap_or_default();
    let (w2, w3) = rows.split_at_checked(s.len()).unwrap_or_default();
    let [mut d0, mut d1, mut d2, mut d3] = [0.0f32; 4];
    for ((((s, w0), w1), w2), w3) in s.iter().zip(w0).zip(w1).zip(w2).zip(w3) {
        d0 += s * w0;
        d1 += s * w1;
        d2 += s * w2;
        d3 += s * w3;
    }
    [scale * d0, scale * d1, scale * d2, scale * d3]
}

/// Finishes the accumulation in one pass: turns `X^T Y` (d x c, in `s`) into `S = (X^T Z) W - X^T Y`. This is
/// the sum that the two-pass method accumulates, because `X^T (X B W - Y) = (X^T Z) W - X^T Y`. `xz` is d x
/// k, `w` is k x c.
#[inline(never)]
pub fn finish_one_pass(s: &mut [f32], xz: &[f32], w: &[f32], k: usize, c: usize, pace: Pace<'_>) {
    if k == 0 || c == 0 {
        return;
    }
    for (s_row, xz_row) in s.chunks_exact_mut(c).zip(xz.chunks_exact(k)) {
        pace.spend(k * c);
        for (output, value) in s_row.iter_mut().enumerate() {
            let column = w.iter().skip(output).step_by(c);
            let dot = xz_row.iter().zip(column).fold(0.0f32, |sum, (a, b)| sum + a * b);
            *value = dot - *value;
        }
    }
}
