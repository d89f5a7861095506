//! Least-squares solution by singular values, for problems that may be rank deficient: drops weak directions
//! and minimises the norm of the weights in the units of the given features.

use fedspan_engine::linalg::Matrix;

use super::cholesky::dot;
use super::columns::Columns;
use super::{DroppedDirections, Fit};

/// Smallest share of a reported column in a dropped direction of norm 1.
const NAMED_SHARE: f64 = 0.1;

/// Solves the least-squares problem by singular values.
pub fn solve(columns: &Columns) -> Fit {
    let p = columns.p();
    let (kept, mut dropped) = split_directions(columns);
    dropped.directions += columns.near_constant.len() + columns.extra_constants();
    dropped.columns.extend(&columns.near_constant);
    dropped.few_samples = columns.is_short();
    let weights = if kept.len() == p && columns.is_complete() {
        columns.weights(&sum_directions(columns, &kept))
    } else {
        least_norm(columns, &kept).unwrap_or_else(|| columns.weights(&sum_directions(columns, &kept)))
    };
    dropped.columns.sort_unstable();
    dropped.columns.dedup();
    Fit { weights, dropped }
}

/// Direction that is kept in the solution: right singular vector, and coefficient for each output.
struct Direction {
    vector: Vec<f64>,
    answers: Vec<f64>,
}

/// Splits the space of columns into directions that are kept and directions that are dropped.
fn split_directions(columns: &Columns) -> (Vec<Direction>, DroppedDirections) {
    let (p, c) = (columns.p(), columns.c);
    let mut dropped = DroppedDirections::default();
    if p == 0 {
        return (Vec::new(), dropped);
    }
    let sample_rows = columns.z.len() / p;
    let ridge_rows = if columns.ridge.iter().any(|entry| *entry > 0.0) { p } else { 0 };
    let entry = |i: usize, j: usize| match i.checked_sub(sample_rows) {
        None => columns.z.get(i * p + j).copied().unwrap_or(0.0),
        Some(ridge_row) if ridge_row == j => columns.ridge.get(j).copied().unwrap_or(0.0),
        Some(_) => 0.0,
    };
    let z = Matrix::from_fn(sample_rows + ridge_rows, p, entry);
    let mut y = Matrix::from_fn(sample_rows + ridge_rows, c, |i, output| {
        columns.y.get(i * c + output).copied().unwrap_or(0.0)
    });
    // With more rows than columns, the triangular factor of the QR decomposition replaces the matrix.
    let z = if z.nrows() > p {
        let qr = z.qr();
        qr.q_tr_mul(&mut y);
        qr.r()
    } else {
        z
    };
    let row = |i: usize| Row {
        values: z.row(i).iter().copied().collect(),
        targets: y.row(i).iter().copied().collect(),
    };
    let mut rows: Vec<Row> = (0..z.nrows()).map(row).collect();
    orthogonalise(&mut rows);
    let largest = rows.iter().fold(0.0f64, |largest, row| largest.max(row.norm()));
    let (noise, arithmetic) =
        (columns.data_noise() * largest.max(1.0), columns.arithmetic_noise() * largest.max(1.0));
    let mut kept = Vec::new();
    dropped.directions = p.saturating_sub(rows.len());
    for mut row in rows {
        let value = row.norm();
        if value > noise {
            row.values.iter_mut().chain(&mut row.targets).for_each(|entry| *entry /= value);
            kept.push(Direction { vector: row.values, answers: row.targets });
            continue;
        }
        dropped.directions += 1;
        if value > arithmetic {
            let reported =
                columns.varying.iter().zip(&row.values).filter(|(_, part)| part.abs() >= NAMED_SHARE * value);
            dropped.columns.extend(reported.map(|(column, _)| *column));
        }
    }
    (kept, dropped)
}

/// Row of a matrix with the targets of the row.
struct Row {
    values: Vec<f64>,
    targets: Vec<f64>,
}

impl Row {
    fn norm(&self) -> f64 {
        dot(&self.values, &self.values).sqrt()
    }
}

/// Largest number of sweeps over all pairs of rows. The iteration usually converges earlier, which is
/// detected by a sweep without a rotation.
const SWEEPS: usize = 60;

/// Fraction of the largest row norm up to which a row is treated as zero.
const ZERO_NORM: f64 = 1e-18;

/// Rotates pairs of rows until all rows are orthogonal (one-sided Jacobi method, Demmel and Veselic 1992).
/// Afterwards each row is a right singular vector times its singular value.
fn orthogonalise(rows: &mut [Row]) {
    rows.sort_by(|a, b| b.norm().total_cmp(&a.norm()));
    let zero_norm = ZERO_NORM * rows.first().map_or(0.0, Row::norm);
    let tolerance = f64::EPSILON * (rows.len() as f64).sqrt().max(2.0);
    for _ in 0..SWEEPS {
        let mut converged = true;
        for second in 1..rows.len() {
            let (earlier_rows, later_rows) = rows.split_at_mut(second);
            let Some(b) = later_rows.first_mut() else { return };
            for a in earlier_rows {
                let (aa, bb) = (dot(&a.values, &a.values), dot(&b.values, &b.values));
                let ab = dot(&a.values, &b.values);
                let is_negligible = aa.min(bb).sqrt() <= zero_norm;
                // A row with NaN is treated as orthogonal to all other rows.
                let threshold = tolerance * aa.sqrt() * bb.sqrt();
                if is_negligible || ab.is_nan() || threshold.is_nan() || ab.abs() <= threshold {
                    continue;
                }
                let cotangent = (bb - aa) / (2.0 * ab);
                let tangent = 1.0 / (cotangent.abs() + cotangent.hypot(1.0));
                let tangent = if cotangent < 0.0 { -tangent } else { tangent };
                let cosine = 1.0 / tangent.hypot(1.0);
                rotate_rows(cosine, cosine * tangent, &mut a.values, &mut b.values);
                rotate_rows(cosine, cosine * tangent, &mut a.targets, &mut b.targets);
                converged = false;
            }
        }
        if converged {
            return;
        }
    }
}

/// Rotates a pair of rows: `a, b <- cosine a - sine b, sine a + cosine b`.
fn rotate_rows(cosine: f64, sine: f64, a: &mut [f64], b: &mut [f64]) {
    for (a, b) in a.iter_mut().zip(b) {
        (*a, *b) = (cosine * *a - sine * *b, sine * *a + cosine * *b);
    }
}

/// Weights of the columns of `z` (p x C), which are summed over the kept directions.
fn sum_directions(columns: &Columns, kept: &[Direction]) -> Vec<f64> {
    let (p, c) = (columns.p(), columns.c);
    let mut solution = vec![0.0; p * c];
    for Direction { vector, answers } in kept {
        for (row, part) in solution.chunks_exact_mut(c.max(1)).zip(vector) {
            for (value, answer) in row.iter_mut().zip(answers) {
                *value += part * answer;
            }
        }
    }
    solution
}

/// Ratio of the largest column norm to the norm of a column at which the column is rescaled: 2^12.
const MAX_NORM_RATIO: f64 = 4096.0;

/// Power of two by which each column is scaled up, so that its norm is smaller than the largest norm by a
/// factor of at most [`MAX_NORM_RATIO`]. If units differ by more, rounding errors of the largest weights
/// would dominate the norm of the weights. All factors are 1 if there are fewer samples than columns.
fn column_scales(columns: &Columns) -> Vec<f64> {
    let (mut sizes, root) = (vec![0.0; columns.d], (columns.m as f64).sqrt());
    let mean = |j: usize| {
        columns.constant.as_ref().and_then(|constant| constant.means.get(j)).copied().unwrap_or(0.0)
    };
    let mut set_size = |j: usize, size: f64| {
        if let Some(stored) = sizes.get_mut(j) {
            *stored = size;
        }
    };
    for (&j, unit) in columns.varying.iter().zip(&columns.unit) {
        set_size(j, (mean(j) * root).hypot(1.0 / unit));
    }
    for &j in &columns.near_constant {
        set_size(j, mean(j).abs() * root);
    }
    if let Some(constant) = &columns.constant {
        set_size(constant.column, constant.value * root);
    }
    let longest = sizes.iter().fold(0.0f64, |longest, size| longest.max(*size));
    let scale = |size: f64| match longest / size {
        quotient if !columns.is_short() && quotient.is_finite() && quotient >= MAX_NORM_RATIO => {
            2f64.powi(quotient.log2().floor() as i32 - 11)
        }
        _ => 1.0,
    };
    sizes.into_iter().map(scale).collect()
}

/// Corrects the weights so that they reproduce the coefficients of all kept directions. The correction is
/// computed with columns of norm 1, and removes rounding errors that are due to columns in very different
/// units.
fn refine(columns: &Columns, kept: &[Direction], weights: &mut [f64]) {
    let (c, p) = (columns.c, columns.p());
    let mut normalised = vec![0.0; p * c];
    for ((&j, unit), row) in
        columns.varying.iter().zip(&columns.unit).zip(normalised.chunks_exact_mut(c.max(1)))
    {
        for (value, weight) in row.iter_mut().zip(weights.iter().skip(j * c)) {
            *value = weight / unit;
        }
    }
    let mut change = vec![0.0; p * c];
    for Direction { vector, answers } in kept {
        for (output, answer) in answers.iter().enumerate() {
            let reproduced: f64 = vector
                .iter()
                .zip(normalised.iter().skip(output).step_by(c))
                .map(|(part, value)| part * value)
                .sum();
            for (value, part) in change.iter_mut().skip(output).step_by(c).zip(vector) {
                *value += part * (answer - reproduced);
            }
        }
    }
    for ((&j, unit), row) in columns.varying.iter().zip(&columns.unit).zip(change.chunks_exact(c.max(1))) {
        for (weight, change) in weights.iter_mut().skip(j * c).zip(row) {
            *weight += unit * change;
        }
    }
    columns.set_constant(weights);
}

/// Weights of least norm that reproduce the coefficients of the kept directions and the means of the targets;
/// each is one equation. Returns `None` if the equations have no finite solution.
fn least_norm(columns: &Columns, kept: &[Direction]) -> Option<Vec<f64>> {
    let (d, c) = (columns.d, columns.c);
    let mut equations: Vec<(Vec<f64>, Vec<f64>)> = Vec::with_capacity(kept.len() + 1);
    for Direction { vector, answers } in kept {
        let mut equation = vec![0.0; d];
        for ((&j, unit), part) in columns.varying.iter().zip(&columns.unit).zip(vector) {
            *equation.get_mut(j)? = part / unit;
        }
        equations.push((equation, answers.clone()));
    }
    if let Some(constant) = &columns.constant {
        let mut equation = constant.means.clone();
        *equation.get_mut(constant.column)? = constant.weighted_value;
        equations.push((equation, constant.targets.clone()));
    }
    let scales = column_scales(columns);
    for (equation, answers) in &mut equations {
        equation.iter_mut().zip(&scales).for_each(|(value, scale)| *value *= scale);
        let largest = equation.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
        let norm = largest * equation.iter().map(|value| (value / largest).powi(2)).sum::<f64>().sqrt();
        equation.iter_mut().chain(answers).for_each(|value| *value /= norm);
    }
    if equations.is_empty() {
        return Some(vec![0.0; d * c]);
    }
    // QR decomposition with rows in descending order of size and column pivoting is accurate row by row for
    // any ratio of units (Cox and Higham 1998).
    let mut order: Vec<usize> = (0..d).collect();
    let size = |j: usize| {
        equations
            .iter()
            .fold(0.0f64, |size, (equation, _)| size.max(equation.get(j).map_or(0.0, |v| v.abs())))
    };
    let sizes: Vec<f64> = (0..d).map(size).collect();
    let size_at = |j: usize| sizes.get(j).copied().unwrap_or(0.0);
    order.sort_by(|a, b| size_at(*b).total_cmp(&size_at(*a)));
    let count = equations.len();
    let transposed = Matrix::from_fn(d, count, |row, column| {
        let (j, equation) = (order.get(row), equations.get(column));
        j.zip(equation).and_then(|(&j, (equation, _))| equation.get(j)).copied().unwrap_or(0.0)
    });
    let qr = transposed.col_piv_qr();
    let (q, r) = (qr.q(), qr.r());
    let mut answers = Matrix::from_fn(count, c, |i, output| {
        equations.get(i).and_then(|(_, answers)| answers.get(output)).copied().unwrap_or(0.0)
    });
    qr.p().permute_rows(&mut answers);
    // Solves R^T t = answers by forward substitution.
    for i in 0..count {
        for output in 0..c {
            let solved: f64 = (0..i).map(|above| r[(above, i)] * answers[(above, output)]).sum();
            let value = (answers[(i, output)] - solved) / r[(i, i)];
            if !value.is_finite() {
                return None;
            }
            answers[(i, output)] = value;
        }
    }
    let mut weights = vec![0.0; d * c];
    for (row, &j) in order.iter().enumerate() {
        let basis: Vec<f64> = q.row(row).iter().copied().collect();
        for output in 0..c {
            let column: Vec<f64> = answers.column(output).iter().copied().collect();
            *weights.get_mut(j * c + output)? = scales.get(j)? * dot(&basis, &column);
        }
    }
    refine(columns, kept, &mut weights);
    Some(weights)
}
