//! The solution where directions may have to be left out: by singular values, and of least norm in the units of the features.

use fedspan_engine::linalg::Matrix;

use super::cholesky::dot;
use super::columns::Columns;
use super::{Cut, Fit};

/// Part of a column in a direction of norm 1 from which the column is named.
const NAMED: f64 = 0.1;

/// Solves by singular values.
pub fn solve(columns: &Columns) -> Fit {
    let p = columns.p();
    let (kept, mut cut) = directions(columns);
    cut.directions += columns.faint.len() + columns.further_constants();
    cut.columns.extend(&columns.faint);
    cut.few_samples = columns.is_short();
    let weights = if kept.len() == p && columns.leaves_nothing_out() {
        columns.weights(&whole(columns, &kept))
    } else {
        least_norm(columns, &kept).unwrap_or_else(|| columns.weights(&whole(columns, &kept)))
    };
    cut.columns.sort_unstable();
    cut.columns.dedup();
    Fit { weights, cut }
}

/// A direction that is solved for: its right singular vector, and the answer along it for each output.
struct Direction {
    vector: Vec<f64>,
    answers: Vec<f64>,
}

/// The directions that the numbers have, and those that are left out.
fn directions(columns: &Columns) -> (Vec<Direction>, Cut) {
    let (p, c) = (columns.p(), columns.c);
    let mut cut = Cut::default();
    if p == 0 {
        return (Vec::new(), cut);
    }
    let given = columns.z.len() / p;
    let extra = if columns.ridge.iter().any(|entry| *entry > 0.0) { p } else { 0 };
    let entry = |i: usize, j: usize| match i.checked_sub(given) {
        None => columns.z.get(i * p + j).copied().unwrap_or(0.0),
        Some(own) if own == j => columns.ridge.get(j).copied().unwrap_or(0.0),
        Some(_) => 0.0,
    };
    let z = Matrix::from_fn(given + extra, p, entry);
    let mut y =
        Matrix::from_fn(given + extra, c, |i, output| columns.y.get(i * c + output).copied().unwrap_or(0.0));
    // Of many rows the triangular factor says as much.
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
    let (noise, arithmetic) = (columns.noise() * largest.max(1.0), columns.arithmetic() * largest.max(1.0));
    let mut kept = Vec::new();
    cut.directions = p.saturating_sub(rows.len());
    for mut row in rows {
        let value = row.norm();
        if value > noise {
            row.values.iter_mut().chain(&mut row.targets).for_each(|entry| *entry /= value);
            kept.push(Direction { vector: row.values, answers: row.targets });
            continue;
        }
        cut.directions += 1;
        if value > arithmetic {
            let named = columns.kept.iter().zip(&row.values).filter(|(_, part)| part.abs() >= NAMED * value);
            cut.columns.extend(named.map(|(column, _)| *column));
        }
    }
    (kept, cut)
}

/// A row of a matrix, with the targets that belong to it.
struct Row {
    values: Vec<f64>,
    targets: Vec<f64>,
}

impl Row {
    fn norm(&self) -> f64 {
        dot(&self.values, &self.values).sqrt()
    }
}

/// Times that every pair of rows is rotated, at most. It ends by itself, after a pass without a rotation.
const SWEEPS: usize = 60;

/// Rows shorter than this fraction of the longest are zero.
const NOTHING: f64 = 1e-18;

/// Rotates pairs of rows until all are orthogonal (one-sided Jacobi, Demmel and Veselic 1992): each is a right singular vector
/// then, as long as its singular value.
fn orthogonalise(rows: &mut [Row]) {
    rows.sort_by(|a, b| b.norm().total_cmp(&a.norm()));
    let least = NOTHING * rows.first().map_or(0.0, Row::norm);
    let tolerance = f64::EPSILON * (rows.len() as f64).sqrt().max(2.0);
    for _ in 0..SWEEPS {
        let mut still = true;
        for second in 1..rows.len() {
            let (above, below) = rows.split_at_mut(second);
            let Some(b) = below.first_mut() else { return };
            for a in above {
                let (aa, bb) = (dot(&a.values, &a.values), dot(&b.values, &b.values));
                let ab = dot(&a.values, &b.values);
                let short = aa.min(bb).sqrt() <= least;
                // A NaN is orthogonal to everything.
                let product = tolerance * aa.sqrt() * bb.sqrt();
                if short || ab.is_nan() || product.is_nan() || ab.abs() <= product {
                    continue;
                }
                let cotangent = (bb - aa) / (2.0 * ab);
                let tangent = 1.0 / (cotangent.abs() + cotangent.hypot(1.0));
                let tangent = if cotangent < 0.0 { -tangent } else { tangent };
                let cosine = 1.0 / tangent.hypot(1.0);
                rotate(cosine, cosine * tangent, &mut a.values, &mut b.values);
                rotate(cosine, cosine * tangent, &mut a.targets, &mut b.targets);
                still = false;
            }
        }
        if still {
            return;
        }
    }
}

/// `a, b <- cosine a - sine b, sine a + cosine b`.
fn rotate(cosine: f64, sine: f64, a: &mut [f64], b: &mut [f64]) {
    for (a, b) in a.iter_mut().zip(b) {
        (*a, *b) = (cosine * *a - sine * *b, sine * *a + cosine * *b);
    }
}

/// The weights of the columns of `z` (p x C), from all directions.
fn whole(columns: &Columns, kept: &[Direction]) -> Vec<f64> {
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

/// Columns shorter than the longest by this factor or more are lifted: 2^12.
const COMPARABLE: f64 = 4096.0;

/// Powers of two by which columns are lifted where the norm of weights counts, to less than that factor below the longest: with
/// as many samples as columns, where some of them depend on others. Weights in units that are farther apart would leave the norm to
/// roundings of the largest of them.
fn lifts(columns: &Columns) -> Vec<f64> {
    let (mut sizes, root) = (vec![0.0; columns.d], (columns.m as f64).sqrt());
    let mean = |j: usize| columns.taken.as_ref().and_then(|taken| taken.means.get(j)).copied().unwrap_or(0.0);
    let mut set = |j: usize, size: f64| {
        if let Some(place) = sizes.get_mut(j) {
            *place = size;
        }
    };
    for (&j, unit) in columns.kept.iter().zip(&columns.unit) {
        set(j, (mean(j) * root).hypot(1.0 / unit));
    }
    for &j in &columns.faint {
        set(j, mean(j).abs() * root);
    }
    if let Some(taken) = &columns.taken {
        set(taken.column, taken.value * root);
    }
    let longest = sizes.iter().fold(0.0f64, |longest, size| longest.max(*size));
    let lift = |size: f64| match longest / size {
        quotient if !columns.is_short() && quotient.is_finite() && quotient >= COMPARABLE => {
            2f64.powi(quotient.log2().floor() as i32 - 11)
        }
        _ => 1.0,
    };
    sizes.into_iter().map(lift).collect()
}

/// Makes weights answer along the kept directions exactly: what units far apart have left of roundings of one weight in another's
/// answers is taken out where each column has norm 1.
fn polish(columns: &Columns, kept: &[Direction], weights: &mut [f64]) {
    let (c, p) = (columns.c, columns.p());
    let mut own = vec![0.0; p * c];
    for ((&j, unit), row) in columns.kept.iter().zip(&columns.unit).zip(own.chunks_exact_mut(c.max(1))) {
        for (value, weight) in row.iter_mut().zip(weights.iter().skip(j * c)) {
            *value = weight / unit;
        }
    }
    let mut change = vec![0.0; p * c];
    for Direction { vector, answers } in kept {
        for (output, answer) in answers.iter().enumerate() {
            let found: f64 =
                vector.iter().zip(own.iter().skip(output).step_by(c)).map(|(part, value)| part * value).sum();
            for (value, part) in change.iter_mut().skip(output).step_by(c).zip(vector) {
                *value += part * (answer - found);
            }
        }
    }
    for ((&j, unit), row) in columns.kept.iter().zip(&columns.unit).zip(change.chunks_exact(c.max(1))) {
        for (weight, change) in weights.iter_mut().skip(j * c).zip(row) {
            *weight += unit * change;
        }
    }
    columns.set_constant(weights);
}

/// The weights of least norm that answer along the kept directions as they do, and in the mean: an equation each. `None` where
/// these are none.
fn least_norm(columns: &Columns, kept: &[Direction]) -> Option<Vec<f64>> {
    let (d, c) = (columns.d, columns.c);
    let mut equations: Vec<(Vec<f64>, Vec<f64>)> = Vec::with_capacity(kept.len() + 1);
    for Direction { vector, answers } in kept {
        let mut equation = vec![0.0; d];
        for ((&j, unit), part) in columns.kept.iter().zip(&columns.unit).zip(vector) {
            *equation.get_mut(j)? = part / unit;
        }
        equations.push((equation, answers.clone()));
    }
    if let Some(taken) = &columns.taken {
        let mut equation = taken.means.clone();
        *equation.get_mut(taken.column)? = taken.weighed;
        equations.push((equation, taken.targets.clone()));
    }
    let lifts = lifts(columns);
    for (equation, answers) in &mut equations {
        equation.iter_mut().zip(&lifts).for_each(|(value, lift)| *value *= lift);
        let largest = equation.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
        let norm = largest * equation.iter().map(|value| (value / largest).powi(2)).sum::<f64>().sqrt();
        equation.iter_mut().chain(answers).for_each(|value| *value /= norm);
    }
    if equations.is_empty() {
        return Some(vec![0.0; d * c]);
    }
    // Rows in descending order, columns by pivots: exact row by row, however far the units are apart (Cox and Higham 1998).
    let mut order: Vec<usize> = (0..d).collect();
    let size = |j: usize| {
        equations
            .iter()
            .fold(0.0f64, |size, (equation, _)| size.max(equation.get(j).map_or(0.0, |v| v.abs())))
    };
    let sizes: Vec<f64> = (0..d).map(size).collect();
    let of = |j: usize| sizes.get(j).copied().unwrap_or(0.0);
    order.sort_by(|a, b| of(*b).total_cmp(&of(*a)));
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
    // R^T t = answers, from the first row on.
    for i in 0..count {
        for output in 0..c {
            let done: f64 = (0..i).map(|above| r[(above, i)] * answers[(above, output)]).sum();
            let value = (answers[(i, output)] - done) / r[(i, i)];
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
            *weights.get_mut(j * c + output)? = lifts.get(j)? * dot(&basis, &column);
        }
    }
    polish(columns, kept, &mut weights);
    Some(weights)
}
