//! `z = B^T x`: a sample seen through the representation.

/// Projects one sample. `b` is d x k, `x` has d values, `z` receives k.
///
/// Small widths and blocks of eight columns keep their sums in registers; the order of each sum (over
/// features, ascending) is the same for all widths.
pub fn project(b: &[f32], x: &[f32], z: &mut [f32]) {
    match z.len() {
        0 => {}
        1 => narrow::<1>(b, x, z),
        2 => narrow::<2>(b, x, z),
        4 => narrow::<4>(b, x, z),
        8 => narrow::<8>(b, x, z),
        k => {
            for (block, own) in z.chunks_mut(BLOCK).enumerate() {
                columns(b, k, block * BLOCK, x, own);
            }
        }
    }
}

const BLOCK: usize = 8;

/// All columns at once.
fn narrow<const K: usize>(b: &[f32], x: &[f32], z: &mut [f32]) {
    let mut sum = [0.0f32; K];
    let (rows, _) = b.as_chunks::<K>();
    for (row, &xi) in rows.iter().zip(x) {
        for (s, &bij) in sum.iter_mut().zip(row) {
            *s += xi * bij;
        }
    }
    for (zj, s) in z.iter_mut().zip(sum) {
        *zj = s;
    }
}

/// Columns `first..first + own.len()`, at most eight, of a wider representation.
fn columns(b: &[f32], k: usize, first: usize, x: &[f32], own: &mut [f32]) {
    let mut sum = [0.0f32; BLOCK];
    for (row, &xi) in b.chunks_exact(k).zip(x) {
        let part = row.get(first..).unwrap_or_default();
        match part.first_chunk::<BLOCK>() {
            Some(whole) => {
                for (s, &bij) in sum.iter_mut().zip(whole) {
                    *s += xi * bij;
                }
            }
            None => {
                for (s, &bij) in sum.iter_mut().zip(part) {
                    *s += xi * bij;
                }
            }
        }
    }
    for (zj, s) in own.iter_mut().zip(sum) {
        *zj = s;
    }
}

/// `y = W^T z`: the head's outputs. `w` is k x c, `z` has k values, `y` receives c.
pub fn apply_head(w: &[f32], z: &[f32], y: &mut [f32]) {
    let c = y.len();
    y.fill(0.0);
    if c == 0 {
        return;
    }
    for (row, &zj) in w.chunks_exact(c).zip(z) {
        for (out, &wjc) in y.iter_mut().zip(row) {
            *out += zj * wjc;
        }
    }
}
