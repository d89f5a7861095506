//! Least-squares solution by the normal equations and Cholesky decomposition. Used if a bound shows that the
//! squared condition number is small enough.

use super::columns::Columns;

/// Largest bound of the squared condition number for which the normal equations are solved. The relative
/// error of the solution is at most this number times the unit roundoff of f64, about 1e-10.
const MAX_SQUARED_CONDITION: f64 = 1e6;

/// Computes the weights of the columns of `z`, p x C. Returns `None` if the condition number may be too
/// large, or directions may have to be dropped.
pub fn solve(columns: &Columns) -> Option<Vec<f64>> {
    let (p, c) = (columns.p(), columns.c);
    if columns.z.len().checked_div(p).unwrap_or(0) < p && columns.ridge.iter().all(|entry| *entry == 0.0) {
        return None;
    }
    let (mut gram, mut solution) = (vec![0.0; p * p], vec![0.0; p * c]);
    for (row, targets) in columns.z.chunks_exact(p.max(1)).zip(columns.y.chunks_exact(c)) {
        for (j, (gram, value)) in gram.chunks_exact_mut(p).zip(row).enumerate() {
            if *value == 0.0 {
                continue;
            }
            for (sum, other) in gram.iter_mut().zip(row.iter().take(j + 1)) {
                *sum += value * other;
            }
        }
        for (sums, value) in solution.chunks_exact_mut(c).zip(row) {
            for (sum, target) in sums.iter_mut().zip(targets) {
                *sum += value * target;
            }
        }
    }
    for (j, entry) in columns.ridge.iter().enumerate() {
        *gram.get_mut(j * p + j)? += entry * entry;
    }
    factorise(&mut gram, p)?;
    let trace = inverse_trace(&gram, p)?;
    let min_singular_value = columns.data_noise();
    // The comparisons are false for NaN.
    let trusted =
        trace * p as f64 <= MAX_SQUARED_CONDITION && trace * min_singular_value * min_singular_value <= 0.25;
    if !trusted {
        return None;
    }
    for j in 0..p {
        substitute_forward(&gram, &mut solution, p, c, j)?;
    }
    for j in (0..p).rev() {
        substitute_backward(&gram, &mut solution, p, c, j)?;
    }
    Some(solution)
}

/// Computes the lower Cholesky factor in place; `None` if a pivot is not positive and finite.
fn factorise(gram: &mut [f64], p: usize) -> Option<()> {
    for j in 0..p {
        let (finished_rows, row) = gram.split_at_mut_checked(j * p)?;
        for (i, finished) in finished_rows.chunks_exact(p).enumerate() {
            let (factored, remaining) = row.split_at_mut_checked(i)?;
            let value = remaining.first_mut()?;
            *value = (*value - dot(factored, finished)) / finished.get(i)?;
        }
        let (factored, remaining) = row.split_at_mut_checked(j)?;
        let pivot = remaining.first_mut()?;
        let square = *pivot - dot(factored, factored);
        if !(square > 0.0 && square.is_finite()) {
            return None;
        }
        *pivot = square.sqrt();
    }
    Some(())
}

/// Trace of the inverse of a matrix with this Cholesky factor: the sum of the squared entries of the inverse
/// factor.
fn inverse_trace(factor: &[f64], p: usize) -> Option<f64> {
    let (mut trace, mut column) = (0.0, vec![0.0; p]);
    for first in 0..p {
        for i in first..p {
            let row = factor.get(i * p..i * p + i + 1)?;
            let (pivot, row) = row.split_last()?;
            let right = if i == first { 1.0 } else { -dot(row.get(first..)?, column.get(first..i)?) };
            let value = right / pivot;
            trace += value * value;
            *column.get_mut(i)? = value;
        }
    }
    Some(trace)
}

/// Performs forward substitution for row `j`.
fn substitute_forward(factor: &[f64], solution: &mut [f64], p: usize, c: usize, j: usize) -> Option<()> {
    let (above, current) = solution.split_at_mut_checked(j * c)?;
    let (pivot, row) = factor.get(j * p..j * p + j + 1)?.split_last()?;
    for (entry, solved) in row.iter().zip(above.chunks_exact(c)) {
        for (value, solved) in current.iter_mut().zip(solved) {
            *value -= entry * solved;
        }
    }
    current.iter_mut().take(c).for_each(|value| *value /= pivot);
    Some(())
}

/// Performs backward substitution for row `j`: computes the row and subtracts its contribution from the rows
/// above.
fn substitute_backward(factor: &[f64], solution: &mut [f64], p: usize, c: usize, j: usize) -> Option<()> {
    let (above, current) = solution.split_at_mut_checked(j * c)?;
    let (pivot, row) = factor.get(j * p..j * p + j + 1)?.split_last()?;
    current.iter_mut().take(c).for_each(|value| *value /= pivot);
    for (entry, above_values) in row.iter().zip(above.chunks_exact_mut(c)) {
        for (above_values, value) in above_values.iter_mut().zip(current.iter()) {
            *above_values -= entry * value;
        }
    }
    Some(())
}

/// Inner product of `a` with the first values of `b`. Uses eight partial sums, which vector instructions can
/// add in parallel.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    let ((a, rest_a), (b, rest_b)) =
        (a.as_chunks::<8>(), b.get(..a.len()).unwrap_or_default().as_chunks::<8>());
    for (a, b) in a.iter().zip(b) {
        for ((sum, x), y) in sums.iter_mut().zip(a).zip(b) {
            *sum += x * y;
        }
    }
    sums.iter().sum::<f64>() + rest_a.iter().zip(rest_b).map(|(x, y)| x * y).sum::<f64>()
}
