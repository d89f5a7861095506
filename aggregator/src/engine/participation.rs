//! Who is asked in a round, and how many answers complete it. Independent of the algorithm.

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

/// A participation policy.
pub trait Participation: Send {
    /// The cohort of round `round` from `fleet` (ascending). The same arguments give the same cohort.
    fn cohort(&mut self, round: u32, fleet: &[DeviceId]) -> Cohort;
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
