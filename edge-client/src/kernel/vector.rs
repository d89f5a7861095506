//! Vectors whose elements lie `step` apart: columns of row-major matrices, or rows with a step of one. For
//! the small dense work at the end of a pass; each loop is there once, whoever needs it.

/// `sum of v[i] x[i step]`.
#[inline(never)]
pub fn dot(v: &[f32], x: &[f32], step: usize) -> f32 {
    let (mut sum, mut place) = (0.0, 0);
    for v in v {
        let Some(x) = x.get(place) else { break };
        sum += v * x;
        place += step;
    }
    sum
}

/// `x[i step] -= factor v[i]`.
#[inline(never)]
pub fn subtract(factor: f32, v: &[f32], x: &mut [f32], step: usize) {
    let mut place = 0;
    for v in v {
        let Some(x) = x.get_mut(place) else { break };
        *x -= factor * v;
        place += step;
    }
}

/// `x <- (I - tau v v^T) x`.
#[inline(never)]
pub fn reflect(tau: f32, v: &[f32], x: &mut [f32], step: usize) {
    subtract(tau * dot(v, x, step), v, x, step);
}

/// What starts at `first`; nothing where that is out of range.
pub fn from(values: &[f32], first: usize) -> &[f32] {
    values.get(first..).unwrap_or_default()
}

/// The same, to change.
pub fn from_mut(values: &mut [f32], first: usize) -> &mut [f32] {
    values.get_mut(first..).unwrap_or_default()
}

/// One element, zero where it is out of range.
pub fn at(values: &[f32], index: usize) -> f32 {
    values.get(index).copied().unwrap_or(0.0)
}

/// Changes one element, if it is there.
pub fn set(values: &mut [f32], index: usize, value: f32) {
    if let Some(place) = values.get_mut(index) {
        *place = value;
    }
}
