//! Low-rank adapter of a frozen layer (Hu et al. 2021), `out += scale (x A^T) B^T`: forward and backward
//! pass.

use fedspan_client::kernel::dense;
use fedspan_client::pace::Pace;

/// Adapter of one projection: its two factors in the layout of the adapter files, and their scale.
#[derive(Clone, Copy, Debug)]
pub struct Factors<'a> {
    /// Down factor A, r x d.
    pub down: &'a [f32],
    /// Up factor B, d x r.
    pub up: &'a [f32],
    /// Rank, r.
    pub rank: usize,
    /// Width, d.
    pub hidden: usize,
    /// Scale, alpha / r.
    pub scale: f32,
}

impl Factors<'_> {
    /// Forward pass: adds the adapter's output for `x` to `out` (both n x d). Returns `scale x A^T` (n x r).
    pub fn add(&self, x: &[f32], out: &mut [f32]) -> Vec<f32> {
        let mut low = vec![0.0; x.len() / self.hidden * self.rank];
        dense::backward_product(x, self.down, self.hidden, &mut low, Pace::NONE);
        low.iter_mut().for_each(|value| *value *= self.scale);
        let mut widened = vec![0.0; out.len()];
        dense::backward_product(&low, self.up, self.rank, &mut widened, Pace::NONE);
        out.iter_mut().zip(&widened).for_each(|(out, widened)| *out += widened);
        low
    }

    /// Backward pass from the gradient with respect to `out` (n x d). Adds the gradients of the factors to
    /// `down` and `up` and, if requested, the gradient with respect to `x` to `below`. The argument `low` is
    /// the value that [`Self::add`] returned.
    pub fn backward(
        &self,
        x: &[f32],
        low: &[f32],
        errors: &[f32],
        [down, up]: [&mut [f32]; 2],
        below: Option<&mut [f32]>,
    ) {
        dense::add_product_gradient(errors, low, self.rank, up, Pace::NONE);
        let mut low_errors = vec![0.0; low.len()];
        dense::add_product(errors, self.up, self.rank, &mut low_errors, Pace::NONE);
        low_errors.iter_mut().for_each(|error| *error *= self.scale);
        dense::add_product_gradient(&low_errors, x, self.hidden, down, Pace::NONE);
        if let Some(below) = below {
            dense::add_product(&low_errors, self.down, self.hidden, below, Pace::NONE);
        }
    }
}
