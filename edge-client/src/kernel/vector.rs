//! Operations on strided vectors: columns of row-major matrices, or rows (stride one). Used for the small
//! dense algebra at the end of a pass; each loop exists once, to save flash.

/// Computes `sum of v[i] x[i step]`.
#[inline(never)]
pub fn dot(v: &[f32], x: &[f32], step: usize) -> f32 {
    let (mut sum, mut index) = (0.0, 0);
    for v in v {
        let Some(x) = x.get(index) else { break };
        sum += v * x;
        index += step;
    }
    sum
}

/// Computes `x[i step] -= factor v[i]`.
#[inline(never)]
pub fn subtract(factor: f32, v: &[f32], x: &mut [f32], step: usize) {
    let mut index = 0;
    for v in v {
        let Some(x) = x.get_mut(index) else { break };
        *x -= factor * v;
        index += step;
    }
}

/// Rotates two vectors: `(a, b) <- (cos a + sin b, cos b - sin a)`. Uses the sine and the tangent of half the
/// angle, so that a small angle changes the vectors little (Rutishauser 1966).
#[inline(never)]
pub fn rotate(sine: f32, half: f32, a: &mut [f32], b: &mut [f32]) {
    for (a, b) in a.iter_mut().zip(b) {
        let (x, y) = (*a, *b);
        *a = x + sine * (y - half * x);
        *b = y - sine * (x + half * y);
    }
}

/// Returns the sum of the squares of elements `first`, `first + step`, ... of `values`.
#[inline(never)]
pub fn squares(values: &[f32], first: usize, step: usize) -> f32 {
    let (mut sum, mut index) = (0.0, first);
    while let Some(value) = values.get(index) {
        sum += value * value;
        index += step.max(1);
    }
    sum
}

/// Multiplies elements `first`, `first + step`, ... of `values` by a factor.
#[inline(never)]
pub fn multiply(values: &mut [f32], first: usize, step: usize, factor: f32) {
    let mut index = first;
    while let Some(value) = values.get_mut(index) {
        *value *= factor;
        index += step.max(1);
    }
}

/// Swaps two vectors. Avoids [`slice::swap`] of arrays, which would link a large `memmove`.
#[inline(never)]
pub fn exchange(a: &mut [f32], b: &mut [f32]) {
    for (a, b) in a.iter_mut().zip(b) {
        (*a, *b) = (*b, *a);
    }
}

/// Returns the values from index `first` on; empty if `first` is out of range.
#[cfg_attr(all(feature = "wide", not(target_os = "none")), inline(always))]
pub fn from(values: &[f32], first: usize) -> &[f32] {
    values.get(first..).unwrap_or_default()
}

/// Returns the same values as [`from`], mutable.
pub fn from_mut(values: &mut [f32], first: usize) -> &mut [f32] {
    values.get_mut(first..).unwrap_or_default()
}

/// Returns one element, or zero if the index is out of range.
pub fn at(values: &[f32], index: usize) -> f32 {
    values.get(index).copied().unwrap_or(0.0)
}

/// Writes an element, or nothing if the index is out of range.
pub fn put(values: &mut [f32], index: usize, value: f32) {
    if let Some(target) = values.get_mut(index) {
        *target = value;
    }
}

/// Returns an element and replaces it by zero.
pub fn take(values: &mut [f32], index: usize) -> f32 {
    values.get_mut(index).map(core::mem::take).unwrap_or(0.0)
}

/// Solves a row of a triangular system: `row[i] = (row[i] - sum of v[j] others[j c + i]) / pivot`, c values.
#[inline(never)]
pub fn solve_row(v: &[f32], others: &[f32], row: &mut [f32], pivot: f32) {
    let c = row.len();
    for (output, value) in row.iter_mut().enumerate() {
        *value = (*value - dot(v, from(others, output), c)) / pivot;
    }
}
