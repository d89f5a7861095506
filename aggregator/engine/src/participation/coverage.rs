//! Measure of how evenly the devices of a stage cover the directions of the representation.
//!
//! A direction in which the heads of the fastest devices have no component is never learnt from these
//! devices. The server does not receive heads, but the rows of a gradient G are multiples of the head, so the
//! mean of `G^T G` is large in the directions of the heads. The *evenness* is the ratio of the smallest
//! eigenvalue of this mean to its average eigenvalue. The ratio of the evenness of the stage to that of the
//! whole fleet estimates by what factor the slowest direction contracts more slowly than in rounds with all
//! devices.

use crate::linalg::Matrix;

/// Sum of `G^T G` over the rounds of a stage, and the evenness of the whole fleet.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Sum of `G^T G` over the updates of the stage, k x k.
    stage: Option<Matrix>,
    /// Evenness and number of devices of the largest fleet of which all devices took part in a round.
    full_fleet: Option<(f64, usize)>,
}

impl Coverage {
    /// Adds the sum of `G^T G` over the `n` updates of a round. `is_complete` is whether every invited
    /// device took part.
    pub fn add(&mut self, gram: Matrix, n: usize, is_complete: bool) {
        // With k or fewer updates, unevenness can be due to chance alone.
        if n <= gram.nrows() {
            return;
        }
        match &mut self.stage {
            Some(sum) if sum.shape() == gram.shape() => *sum += gram,
            _ => self.stage = Some(gram),
        }
        if is_complete && self.full_fleet.is_none_or(|(_, size)| n >= size) {
            self.full_fleet = self.evenness().map(|evenness| (evenness, n));
        }
    }

    /// State for checkpoints: evenness and size of the whole fleet (0 if unknown), then the sum of the stage.
    pub fn state(&self) -> Vec<f64> {
        let (fleet_evenness, fleet_size) = self.full_fleet.unwrap_or_default();
        let sum = self.stage.iter().flat_map(|sum| sum.iter().copied());
        [fleet_evenness, fleet_size as f64].into_iter().chain(sum).collect()
    }

    /// Restores a state that [`Self::state`] returned; `None` if the values are not such a state.
    pub fn restored(state: &[f64]) -> Option<Self> {
        let (&[fleet_evenness, fleet_size], sum) = state.split_first_chunk::<2>()?;
        let k = sum.len().isqrt();
        if k * k != sum.len() {
            return None;
        }
        let stage = (k > 0).then(|| Matrix::from_column_slice(k, k, sum));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let fleet_size = fleet_size as usize;
        Some(Self { stage, full_fleet: (fleet_size > 0).then_some((fleet_evenness, fleet_size)) })
    }

    /// Begins a stage with an empty sum.
    pub fn begin(&mut self) {
        self.stage = None;
    }

    /// Factor, at most 1, by which the contraction in rounds with the first `n` updates is smaller than with
    /// all devices. The factor is 1 if random heads could explain the difference by chance: the smallest
    /// singular value of an n x k matrix of standard normal numbers is near `sqrt n - sqrt k`.
    pub fn factor(&self, n: usize) -> f64 {
        let (Some(stage), Some((fleet_evenness, _))) = (self.evenness(), self.full_fleet) else { return 1.0 };
        let k = self.stage.as_ref().map_or(0, Matrix::nrows);
        let factor = (stage / fleet_evenness).min(1.0);
        if factor.is_nan() || factor > 1.0 - (k as f64 / n as f64).sqrt() { 1.0 } else { factor.max(0.0) }
    }

    /// Ratio of the smallest eigenvalue of the sum to its mean eigenvalue: 1 if all directions are covered
    /// evenly, 0 if one direction is not covered.
    fn evenness(&self) -> Option<f64> {
        let sum = self.stage.as_ref()?;
        let mean = sum.trace() / sum.nrows() as f64;
        let smallest = sum.clone().symmetric_eigenvalues().min();
        (mean > 0.0 && mean.is_finite()).then(|| (smallest / mean).max(0.0))
    }
}
