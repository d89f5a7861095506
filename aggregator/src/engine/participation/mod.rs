//! Who is asked in a round, and how many answers complete it. Independent of the algorithm: a policy sees when updates
//! come, what is in them, and how the model moves.

mod adaptive;
mod doubling;
pub mod theory;

pub use doubling::{Doubling, Schedule};

use super::Millis;
use crate::algorithm::Tensor;
use crate::linalg::Matrix;
use crate::random::{Purpose, stream};

/// A device's identity on the host.
pub type DeviceId = u64;

/// The devices that a round asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cohort {
    /// Who is asked, in ascending order.
    pub devices: Vec<DeviceId>,
    /// How many answers complete the round.
    pub target: usize,
    /// The participation stage.
    pub stage: u16,
}

/// An update that counts in a training round.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// Time since the round was opened.
    pub after: Millis,
    /// What was uploaded.
    pub tensors: &'a [Tensor],
    /// The representation that the round began with, d x k.
    pub representation: &'a Matrix,
}

/// A participation policy.
pub trait Participation: Send {
    /// The cohort of round `round` from `fleet` (ascending). The same arguments after the same history give the
    /// same cohort.
    fn cohort(&mut self, round: u32, fleet: &[DeviceId]) -> Cohort;

    /// Takes an update of the round that is open, in order of arrival.
    fn counted(&mut self, _answer: &Answer<'_>) {}

    /// The round is closed: the representation, d x k, was `before` and is `after`.
    fn closed(&mut self, _before: &Matrix, _after: &Matrix) {}

    /// What a restart must not lose.
    fn state(&self) -> Vec<f64> {
        Vec::new()
    }

    /// Goes on from [`Self::state`]. False, with nothing changed, if it does not fit.
    fn restore(&mut self, state: &[f64]) -> bool {
        state.is_empty()
    }
}

/// Everyone, every round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Full;

impl Participation for Full {
    fn cohort(&mut self, _round: u32, fleet: &[DeviceId]) -> Cohort {
        Cohort { devices: fleet.to_vec(), target: fleet.len(), stage: 0 }
    }
}

/// `max(1, round(r n))` devices, drawn anew each round without replacement; more may be asked than are
/// waited for.
#[derive(Clone, Copy, Debug)]
pub struct Fraction {
    /// The participation rate `r`, in (0, 1].
    pub rate: f64,
    /// Asked over waited for, at least 1.
    pub over_select: f64,
    /// Seed of the draws.
    pub seed: u64,
}

impl Participation for Fraction {
    fn cohort(&mut self, round: u32, fleet: &[DeviceId]) -> Cohort {
        let target = scaled(fleet.len(), self.rate).max(1).min(fleet.len());
        let asked = scaled(target, self.over_select).clamp(target, fleet.len());
        let mut devices = stream(self.seed, Purpose::Cohort, round.into()).choose(fleet, asked);
        devices.sort_unstable();
        Cohort { devices, target, stage: 0 }
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "fleets are far smaller than 2^52, rates are validated as positive"
)]
fn scaled(n: usize, factor: f64) -> usize {
    (n as f64 * factor).round() as usize
}
