//! Coverage of the representation's directions by the devices of a stage.
//!
//! A direction in which no head of the fastest devices points is not learnt from them, however many rounds
//! they make. The server does not see heads, but the rows of a gradient are multiples of the head, so the
//! mean of `G^T G` is large in the heads' directions. The ratio of its smallest eigenvalue to the mean one,
//! compared with that of the whole fleet, says how much more slowly the slowest direction contracts than in
//! rounds with all devices.

use crate::linalg::Matrix;

/// Sums over the rounds of a stage.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Sum of `G^T G`, k x k.
    stage: Option<Matrix>,
    /// Evenness of the largest fleet that has taken part completely, and the number of its devices.
    whole: Option<(f64, usize)>,
}

impl Coverage {
    /// Adds the sum of `G^T G` over the `n` updates of a round; `all` if every invited device took part.
    pub fn add(&mut self, gram: Matrix, n: usize, all: bool) {
        // With so few updates, chance alone explains any unevenness.
        if n <= gram.nrows() {
            return;
        }
        match &mut self.stage {
            Some(sum) if sum.shape() == gram.shape() => *sum += gram,
            _ => self.stage = Some(gram),
        }
        if all && self.whole.is_none_or(|(_, most)| n >= most) {
            self.whole = self.evenness().map(|evenness| (evenness, n));
        }
    }

    /// State for checkpoints: evenness and size of the whole fleet (0 if unknown), then the sum of the stage.
    pub fn state(&self) -> Vec<f64> {
        let (whole, most) = self.whole.unwrap_or_default();
        let sum = self.stage.iter().flat_map(|sum| sum.iter().copied());
        [whole, most as f64].into_iter().chain(sum).collect()
    }

    /// Restores [`Self::state`]; `None` if the values are not such a state.
    pub fn restored(state: &[f64]) -> Option<Self> {
        let (&[whole, most], sum) = state.split_first_chunk::<2>()?;
        let k = sum.len().isqrt();
        if k * k != sum.len() {
            return None;
        }
        let stage = (k > 0).then(|| Matrix::from_column_slice(k, k, sum));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let most = most as usize;
        Some(Self { stage, whole: (most > 0).then_some((whole, most)) })
    }

    /// Begins a stage.
    pub fn begin(&mut self) {
        self.stage = None;
    }

    /// Factor, at most 1, by which the contraction of rounds with the first `n` updates is smaller. It is 1
    /// as long as chance among random heads explains the difference: the smallest singular value of n x k
    /// standard normal numbers is near `sqrt n - sqrt k`.
    pub fn factor(&self, n: usize) -> f64 {
        let (Some(own), Some((whole, _))) = (self.evenness(), self.whole) else { return 1.0 };
        let k = self.stage.as_ref().map_or(0, Matrix::nrows);
        let factor = (own / whole).min(1.0);
        if factor.is_nan() || factor > 1.0 - (k as f64 / n as f64).sqrt() { 1.0 } else { factor.max(0.0) }
    }

    /// Ratio of the smallest eigenvalue to the mean one: 1 for even coverage of all directions, 0 if one
    /// direction is not covered.
    fn evenness(&self) -> Option<f64> {
        let sum = self.stage.as_ref()?;
        let mean = sum.trace() / sum.nrows() as f64;
        let least = sum.clone().symmetric_eigenvalues().min();
        (mean > 0.0 && mean.is_finite()).then(|| (least / mean).max(0.0))
    }
}
