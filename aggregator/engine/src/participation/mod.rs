//! Participation policies: the devices invited to a round and the number of updates that completes it.
//! Policies are independent of the algorithm: they observe when updates arrive, what is in them, and how the
//! model moves.

mod adaptive;
mod coverage;
mod doubling;
mod model_motion;
pub mod theory;

pub use doubling::{DoubleBy, Doubling, DrawPer, Schedule};

use std::collections::BTreeMap;

use crate::linalg::Matrix;
use crate::random::{Purpose, stream};
use crate::types::{DeviceId, Millis, Tensor};

/// Devices invited to a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cohort {
    /// Invited devices, in ascending order.
    pub devices: Vec<DeviceId>,
    /// Number of updates that completes the round.
    pub target: usize,
    /// Sample count that completes the round with fewer updates.
    pub sample_target: Option<SampleTarget>,
    /// Participation stage.
    pub stage: u16,
    /// Number of times each device was drawn; devices that are missing here were drawn once.
    pub draws: BTreeMap<DeviceId, u32>,
}

impl Cohort {
    /// Cohort of stage 0 that waits for all `devices`.
    #[must_use]
    pub fn new(devices: Vec<DeviceId>) -> Self {
        Self { target: devices.len(), devices, sample_target: None, stage: 0, draws: BTreeMap::new() }
    }

    /// Adds a device as a reference, whose own update has no weight.
    pub fn add_reference(&mut self, device: DeviceId) {
        if let Err(place) = self.devices.binary_search(&device) {
            self.devices.insert(place, device);
            self.draws.insert(device, 0);
            self.target = self.target.saturating_add(1);
        }
    }
}

/// Alternative to the target of updates that completes a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleTarget {
    /// Samples of the counted updates, as declared and capped.
    pub samples: u64,
    /// Fewest updates.
    pub answers: usize,
}

/// Update that counts in a training round.
#[derive(Clone, Copy, Debug)]
pub struct UpdateArrival<'a> {
    /// Time since the round opened.
    pub elapsed: Millis,
    /// Samples of this update and all before it in the round, as declared and capped.
    pub samples: u64,
    /// Uploaded tensors.
    pub tensors: &'a [Tensor],
    /// Model before the round, in the shape of the first tensor; d x k for a representation.
    pub model: &'a Matrix,
}

/// Closed training round.
#[derive(Clone, Copy, Debug)]
pub struct ClosedRound<'a> {
    /// Duration of the round.
    pub elapsed: Millis,
    /// Number of updates that the round waited for, if it closed with fewer.
    pub short_of: Option<usize>,
    /// Model before the round.
    pub before: &'a Matrix,
    /// Model after the round.
    pub model: &'a Matrix,
}

/// Participation policy.
pub trait Participation: Send {
    /// Draws the cohort of round `round` from `fleet` (ascending). Equal arguments after an equal history
    /// give the same cohort.
    fn cohort(&mut self, round: u32, fleet: &[DeviceId]) -> Cohort;

    /// Observes an update of the open round; called in order of arrival.
    fn counted(&mut self, _answer: &UpdateArrival<'_>) {}

    /// Observes the end of a round.
    fn closed(&mut self, _closed: &ClosedRound<'_>) {}

    /// State for checkpoints.
    fn state(&self) -> Vec<f64> {
        Vec::new()
    }

    /// Restores [`Self::state`]. Returns false, with nothing changed, if the values do not fit.
    fn restore(&mut self, state: &[f64]) -> bool {
        state.is_empty()
    }
}

/// Full participation: all devices in every round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Full;

impl Participation for Full {
    fn cohort(&mut self, _round: u32, fleet: &[DeviceId]) -> Cohort {
        Cohort::new(fleet.to_vec())
    }
}

/// Random participation: `max(1, round(r n))` devices, drawn for each round without replacement. More may be
/// invited than are waited for.
#[derive(Clone, Copy, Debug)]
pub struct Fraction {
    /// Participation rate `r`, in (0, 1].
    pub rate: f64,
    /// Ratio of invited devices to those waited for, at least 1.
    pub over_select: f64,
    /// Seed of the draws.
    pub seed: u64,
}

impl Participation for Fraction {
    fn cohort(&mut self, round: u32, fleet: &[DeviceId]) -> Cohort {
        let target = scale_count(fleet.len(), self.rate).max(1).min(fleet.len());
        let asked = scale_count(target, self.over_select).clamp(target, fleet.len());
        let devices = draw(fleet, asked, self.seed, round.into());
        Cohort { target, ..Cohort::new(devices) }
    }
}

/// First arrivals: the first `n` updates of `cohort` devices, drawn for each round without replacement; of
/// all devices without a `cohort`.
#[derive(Clone, Copy, Debug)]
pub struct FirstArrivals {
    /// Number of updates that completes a round.
    pub n: usize,
    /// Number of invited devices; `None` for all.
    pub cohort: Option<usize>,
    /// Seed of the draws.
    pub seed: u64,
}

impl Participation for FirstArrivals {
    fn cohort(&mut self, round: u32, fleet: &[DeviceId]) -> Cohort {
        let devices = draw(fleet, self.cohort.unwrap_or(fleet.len()), self.seed, round.into());
        Cohort { target: self.n.min(devices.len()), ..Cohort::new(devices) }
    }
}

/// Sampling with replacement: `draws` draws of one device each. A device drawn twice counts twice (FedPower,
/// Algorithm 3).
#[derive(Clone, Copy, Debug)]
pub struct WithReplacement {
    /// Number of draws, K.
    pub draws: usize,
    /// Seed of the draws.
    pub seed: u64,
}

impl Participation for WithReplacement {
    fn cohort(&mut self, round: u32, fleet: &[DeviceId]) -> Cohort {
        let mut random = stream(self.seed, Purpose::Cohort, round.into());
        let mut draws = BTreeMap::new();
        for _ in 0..self.draws {
            if let Some(device) = fleet.get(random.below(fleet.len())) {
                *draws.entry(*device).or_insert(0) += 1;
            }
        }
        Cohort { draws: draws.clone(), ..Cohort::new(draws.into_keys().collect()) }
    }
}

/// Draws `size` devices of `fleet`, in ascending order; all of them if there are no more.
fn draw(fleet: &[DeviceId], size: usize, seed: u64, index: u64) -> Vec<DeviceId> {
    if size >= fleet.len() {
        return fleet.to_vec();
    }
    let mut devices = stream(seed, Purpose::Cohort, index).choose(fleet, size);
    devices.sort_unstable();
    devices
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "fleets are far smaller than 2^52, rates are validated as positive"
)]
fn scale_count(n: usize, factor: f64) -> usize {
    (n as f64 * factor).round() as usize
}
