//! Solvers of heads that a device has, and the statistics of its fits.

use super::{HeadFits, Usage};
use crate::kernel::least_squares::Limits;

/// True if this build has the solver of minimum norm.
pub const MINIMUM_NORM: bool = cfg!(feature = "minimum-norm");

/// True if this build fits heads by gradient steps.
pub const GRADIENT_HEAD: bool = cfg!(feature = "gradient-head");

/// Solver of the heads of one model.
#[derive(Clone, Copy, Debug)]
pub struct HeadSolver {
    /// Statistics of the fits.
    pub fits: HeadFits,
    /// True if fits that need the solver of minimum norm are declined.
    pub full_rank_only: bool,
}

impl HeadSolver {
    /// Solver before the first fit.
    pub const NEW: Self = Self { fits: HeadFits::NONE, full_rank_only: !MINIMUM_NORM };

    /// Returns true if samples that the normal equations cannot be used for are solved by the triangular factor.
    #[inline(always)]
    pub fn has_minimum_norm(&self) -> bool {
        MINIMUM_NORM && !self.full_rank_only
    }

    /// Returns the limits within which the normal equations are used.
    pub fn limits(&self) -> Limits {
        if self.has_minimum_norm() { Limits::WITH_TRIANGULAR } else { Limits::ALONE }
    }

    /// Records a fit.
    pub fn record(&mut self, usage: Usage, width: usize, rank: usize, ridge: f32) {
        self.fits.record(usage, width, rank, ridge);
    }
}

impl Default for HeadSolver {
    fn default() -> Self {
        Self::NEW
    }
}
