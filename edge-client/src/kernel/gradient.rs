//! The gradient of `1/(2m) |X B W - Y|^2` with respect to `B`, kept as its factors.
//!
//! `G = (1/m) S W^T` with `S = X^T R`, `R = X B W - Y`: for few outputs that is a matrix of low rank, so
//! only `S` (d x c) is accumulated and `G` (d x k) is formed element by element when it is sent.

/// `S += x r^T` for one sample. `s` is d x c, `x` has d values, `r` has c.
pub fn accumulate(s: &mut [f32], x: &[f32], r: &[f32]) {
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

/// Elements `first..first + out.len()` of `G = scale * S W^T`, row-major d x k. `s` is d x c, `w` is k x c.
pub fn elements(s: &[f32], w: &[f32], k: usize, c: usize, scale: f32, first: usize, out: &mut [f32]) {
    if k == 0 || c == 0 {
        return;
    }
    let (mut row, mut column) = (first / k, first % k);
    for place in out {
        let s_row = s.get(row * c..(row + 1) * c).unwrap_or_default();
        let w_row = w.get(column * c..(column + 1) * c).unwrap_or_default();
        let dot = s_row.iter().zip(w_row).fold(0.0f32, |sum, (a, b)| sum + a * b);
        *place = scale * dot;
        column += 1;
        if column == k {
            column = 0;
            row += 1;
        }
    }
}

/// One-pass form: turns `X^T Y` (d x c, in `s`) into `S = (X^T Z) W - X^T Y`, exactly the sum that two
/// passes accumulate, because `X^T (X B W - Y) = (X^T Z) W - X^T Y`. `xz` is d x k, `w` is k x c.
pub fn finish_one_pass(s: &mut [f32], xz: &[f32], w: &[f32], k: usize, c: usize) {
    if k == 0 || c == 0 {
        return;
    }
    for (s_row, xz_row) in s.chunks_exact_mut(c).zip(xz.chunks_exact(k)) {
        for (output, value) in s_row.iter_mut().enumerate() {
            let column = w.iter().skip(output).step_by(c);
            let dot = xz_row.iter().zip(column).fold(0.0f32, |sum, (a, b)| sum + a * b);
            *value = dot - *value;
        }
    }
}
