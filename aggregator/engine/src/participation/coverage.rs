//! How evenly the devices of a stage cover the directions of the representation.
//!
//! A direction in which no head of the fastest devices points is not learnt from them, however many rounds they make.
//! Heads are not seen; but a gradient's rows are multiples of the head, so the mean of `G^T G` is large where the heads
//! are. Its smallest eigenvalue over the mean one, compared with what the whole fleet has, says by how much the
//! slowest direction contracts more slowly than a round with everyone would make it.

use crate::linalg::Matrix;

/// Sums over the rounds of a stage.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// `G^T G`, k x k.
    stage: Option<Matrix>,
    /// Of the largest fleet of which everybody counted, and how many that were.
    whole: Option<(f64, usize)>,
}

impl Coverage {
    /// Takes the sum of `G^T G` over the `n` updates of a round; `all` if nobody else was asked.
    pub fn add(&mut self, gram: Matrix, n: usize, all: bool) {
        // With so few no evenness can be told from chance, whatever it is.
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

    /// What a restart must not lose: the evenness of all and their number (0 if unknown), and the sum of the stage.
    pub fn state(&self) -> Vec<f64> {
        let (whole, most) = self.whole.unwrap_or_default();
        let sum = self.stage.iter().flat_map(|sum| sum.iter().copied());
        [whole, most as f64].into_iter().chain(sum).collect()
    }

    /// Goes on from [`Self::state`]; none if that is none.
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

    /// Another stage begins.
    pub fn begin(&mut self) {
        self.stage = None;
    }

    /// The factor, at most 1, on the contraction of rounds with the first `n` answers. 1 as long as chance among
    /// random heads explains the difference: the smallest singular value of n x k standard normal numbers is near
    /// `sqrt n - sqrt k`.
    pub fn factor(&self, n: usize) -> f64 {
        let (Some(own), Some((whole, _))) = (self.evenness(), self.whole) else { return 1.0 };
        let k = self.stage.as_ref().map_or(0, Matrix::nrows);
        let factor = (own / whole).min(1.0);
        if factor.is_nan() || factor > 1.0 - (k as f64 / n as f64).sqrt() { 1.0 } else { factor.max(0.0) }
    }

    /// Smallest eigenvalue over the mean one: 1 if all directions are covered alike, 0 if one is not at all.
    fn evenness(&self) -> Option<f64> {
        let sum = self.stage.as_ref()?;
        let mean = sum.trace() / sum.nrows() as f64;
        let least = sum.clone().symmetric_eigenvalues().min();
        (mean > 0.0 && mean.is_finite()).then(|| (least / mean).max(0.0))
    }
}
