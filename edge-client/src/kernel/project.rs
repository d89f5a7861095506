//! `z = B^T x`: a sample seen through the representation.

/// Projects one sample. `b` is d x k, `x` has d values, `z` receives k.
///
/// The widths that small models use are unrolled; the order of the sum (over features, ascending) is
/// the same for all of them.
pub fn project(b: &[f32], x: &[f32], z: &mut [f32]) {
    match z.len() {
        1 => fixed::<1>(b, x, z),
        2 => fixed::<2>(b, x, z),
        3 => fixed::<3>(b, x, z),
        4 => fixed::<4>(b, x, z),
        6 => fixed::<6>(b, x, z),
        8 => fixed::<8>(b, x, z),
        12 => fixed::<12>(b, x, z),
        16 => fixed::<16>(b, x, z),
        0 => {}
        k => {
            z.fill(0.0);
            for (row, &xi) in b.chunks_exact(k).zip(x) {
                for (zj, &bij) in z.iter_mut().zip(row) {
                    *zj += xi * bij;
                }
            }
        }
    }
}

fn fixed<const K: usize>(b: &[f32], x: &[f32], z: &mut [f32]) {
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
