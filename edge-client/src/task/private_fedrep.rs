//! FedRep with differential privacy: the gradient is clipped as a whole to a radius, in integers, and
//! discrete Gaussian noise is added to each integer.
//!
//! A first step searches for a factor with which the squares of the integers `round(factor s_i w_j)` sum to
//! at most the squared radius. A second step recomputes the integers and writes each integer with its noise
//! into the memory's second d x k matrix. Both steps are complete before a byte is sent, so the time of
//! sending does not depend on any record. Both steps compute the integers by [`scaled_elements`] and
//! [`round_element`], so the checked integers are the ones that are sent. Privacy does not depend on the
//! values of sums and factor ([`Clip`]).

use fedspan_protocol::message::{DeclineReason, HeadSolve, RoundId};
use fedspan_protocol::sqrt::sqrtf;

use super::counting_source::CountingSource;
use super::fedrep;
use super::quantise::{halved, square};
use super::sample_pass::count;
use super::{HeadSolver, Usage};
use crate::kernel::gradient::elements;
use crate::kernel::largest;
use crate::memory::{Parts, PartsRef};
use crate::privacy::{Clip, ClipFactor, Clipping, NOISE_WORK, Seed, Variance, noise};

/// Number of elements computed at once.
const PIECE: usize = 16;

/// Number of attempts to shorten a gradient.
const TRIES: u32 = 8;

/// Upper bound on every radius: no element of a clipped gradient has a larger magnitude.
const ELEMENT_MAX: f32 = 32_768.0;

/// Computes the head and `S`. Returns `None` if the samples do not determine a head, so that there is no
/// gradient. `source` counts all samples in both cases; the returned usage is for the firmware.
#[inline(never)]
pub fn run(
    parts: &mut Parts<'_>,
    head: HeadSolve,
    solver: &mut HeadSolver,
    id: RoundId,
    source: &mut CountingSource<'_>,
) -> Result<Option<Usage>, DeclineReason> {
    let result = match fedrep::run(parts, head, solver, id, source) {
        Ok(usage) => Ok(Some(usage)),
        // Every reason that depends on the content of a record.
        Err(DeclineReason::NoSamples | DeclineReason::UpdateNonFinite | DeclineReason::Undetermined) => {
            // The last pass may have been over the selection for the head, or there was no pass.
            source.count_all(id).map(|()| None)
        }
        Err(reason) => Err(reason),
    };
    if !matches!(result, Ok(Some(_))) {
        parts.residual.fill(0.0);
    }
    result
}

/// Returns a factor with which the gradient of `usage` samples is within the radius. Returns `None` if no
/// factor was found, or a value is not finite.
#[inline(never)]
pub fn fit_radius(parts: &PartsRef<'_>, usage: Usage, clip: &Clip) -> Option<ClipFactor> {
    if usage.samples == 0 {
        return None;
    }
    let mut factor = clip.units_in_one() / count(usage);
    let peak = largest_element(parts, factor);
    if !peak.is_finite() {
        return None;
    }
    let mut clipped = peak > ELEMENT_MAX;
    if clipped {
        factor *= ELEMENT_MAX / peak;
    }
    let units = u64::from(clip.units());
    // Margin for rounding, which can lengthen a shortened gradient by less than this step or one of its
    // doublings.
    let mut step = 1.0 / 16_384.0;
    for _ in 0..TRIES {
        let length_squared_units = length_squared(parts, factor);
        if length_squared_units <= units * units {
            return Some(ClipFactor { factor, clipped });
        }
        clipped = true;
        #[allow(clippy::cast_precision_loss, reason = "the resulting factor is checked again")]
        let ratio = units as f32 / sqrtf(length_squared_units as f32);
        factor *= ratio * (1.0 - step);
        step *= 2.0;
    }
    None
}

/// Writes the upload into the second matrix: `(integers + noise)` in units of the grid. The integers are
/// those of the gradient times `factor`, or zeros without a factor. The amount of work is the same in both
/// cases, so the time does not reveal whether there is a gradient.
#[inline(never)]
pub fn add_noise(parts: &mut Parts<'_>, clip: &Clip, factor: Option<f32>, seed: &Seed, variance: &Variance) {
    let (shape, unit) = (parts.shape, clip.unit());
    let Some(second) = parts.extra_matrix.as_deref_mut() else { return };
    let (residual, head) = (&*parts.residual, &*parts.head);
    let (k, c) = (shape.width, shape.outputs);
    for (number, row) in second.chunks_exact_mut(k.max(1)).enumerate() {
        parts.pace.spend(k * (c + 1));
        elements(residual, head, k, c, factor.unwrap_or(0.0), number * k, row);
    }
    for (coordinate, target) in (0..).zip(second) {
        parts.pace.spend(NOISE_WORK);
        let element = if factor.is_some() { round_element(*target) } else { 0 };
        // The element has 17 bits, and the noise 34 bits.
        let noisy = i64::from(element) + noise(seed, coordinate, variance);
        #[allow(clippy::cast_precision_loss, reason = "noisy values may round")]
        let value = noisy as f32 * unit;
        *target = value;
    }
}

/// Writes elements of the [noisy gradient](add_noise) to `out`, starting at element `first`; writes NaN if
/// there is none.
pub fn emit(parts: &PartsRef<'_>, clipping: Option<&Clipping>, first: usize, out: &mut [f32]) {
    let has_noise = clipping.is_some_and(Clipping::has_noise);
    let Some(second) = parts.extra_matrix.filter(|_| has_noise) else { return out.fill(f32::NAN) };
    for (target, &value) in out.iter_mut().zip(second.iter().skip(first)) {
        *target = value;
    }
}

/// Returns the sum of the squares of all integers: fewer than 2^32 terms, each below 2^32.
fn length_squared(parts: &PartsRef<'_>, factor: f32) -> u64 {
    fold_elements(parts, factor, 0, |sum, piece| {
        piece.iter().fold(sum, |sum, &v| sum + square(round_element(v)))
    })
}

/// Returns the largest magnitude of an element.
fn largest_element(parts: &PartsRef<'_>, factor: f32) -> f32 {
    fold_elements(parts, factor, 0.0, |max_magnitude: f32, piece| largest(&[max_magnitude, largest(piece)]))
}

/// Folds over all elements, piece by piece.
fn fold_elements<T>(parts: &PartsRef<'_>, factor: f32, start: T, each: impl Fn(T, &[f32]) -> T) -> T {
    let element_count = parts.shape.features * parts.shape.width;
    let mut piece = [0.0; PIECE];
    (0..element_count).step_by(PIECE).fold(start, |folded, first| {
        let values = piece.get_mut(..PIECE.min(element_count - first)).unwrap_or_default();
        scaled_elements(parts, factor, first, values);
        each(folded, values)
    })
}

/// Computes elements of `factor S W^T`, starting at element `first`. The bits do not depend on the division
/// into pieces.
fn scaled_elements(parts: &PartsRef<'_>, factor: f32, first: usize, out: &mut [f32]) {
    let shape = parts.shape;
    parts.pace.spend(out.len() * (shape.outputs + 4));
    elements(parts.residual, parts.head, shape.width, shape.outputs, factor, first, out);
}

/// Rounds an element to the integer that is sent.
fn round_element(element: f32) -> i32 {
    halved(element * 2.0)
}
