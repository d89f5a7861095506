//! Transposition on a host. The functions are not inlined into kernels, because with wide vectors compilers scatter the
//! values of a row, which takes several times as long.

/// Copies four rows of equal length to columns of `out`, whose rows are `stride` values apart.
#[inline(never)]
pub fn transpose_four([a, b, c, d]: [&[f32]; 4], out: &mut [f32], stride: usize) -> Option<()> {
    let mut rows = out.chunks_mut(stride.max(1)).map(|row| row.first_chunk_mut());
    let ((a, a_rest), (b, b_rest), (c, c_rest), (d, d_rest)) =
        (a.as_chunks(), b.as_chunks(), c.as_chunks(), d.as_chunks());
    for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
        let [[a0, a1, a2, a3], [b0, b1, b2, b3], [c0, c1, c2, c3], [d0, d1, d2, d3]] = [*a, *b, *c, *d];
        *rows.next()?? = [a0, b0, c0, d0];
        *rows.next()?? = [a1, b1, c1, d1];
        *rows.next()?? = [a2, b2, c2, d2];
        *rows.next()?? = [a3, b3, c3, d3];
    }
    for (((a, b), c), d) in a_rest.iter().zip(b_rest).zip(c_rest).zip(d_rest) {
        *rows.next()?? = [*a, *b, *c, *d];
    }
    Some(())
}

/// Copies a row to a column of `out`, whose rows are `stride` values apart.
#[inline(never)]
pub fn transpose_one(row: &[f32], out: &mut [f32], stride: usize) {
    for (out, value) in out.iter_mut().step_by(stride.max(1)).zip(row) {
        *out = *value;
    }
}

/// Transposes a matrix with rows of `columns` values.
pub fn transpose(matrix: &[f32], columns: usize, out: &mut [f32]) -> Option<()> {
    let rows = matrix.len() / columns.max(1);
    let mut first = 0;
    while first < rows {
        let out = out.get_mut(first..)?;
        let row = |index: usize| matrix.get((first + index) * columns..)?.get(..columns);
        if rows - first >= 4 {
            transpose_four([row(0)?, row(1)?, row(2)?, row(3)?], out, rows)?;
            first += 4;
        } else {
            transpose_one(row(0)?, out, rows);
            first += 1;
        }
    }
    Some(())
}
