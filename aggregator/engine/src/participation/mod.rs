//! Who is asked in a round, and how many answers complete it. Independent of the algorithm: a policy sees when updates
//! come, what is in them, and how the model moves.

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

/// The devices that a round asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cohort {
    /// Who is asked, in ascending order.
    pub devices: Vec<DeviceId>,
    /// How many answers complete the round.
    pub target: usize,
    /// So do fewer, if they are enough.
    pub sample_target: Option<SampleTarget>,
    /// The participation stage.
    pub stage: u16,
    /// How often each device was drawn, where that is not once.
    pub draws: BTreeMap<DeviceId, u32>,
}

impl Cohort {
    /// All of them are waited for, in stage 0.
    #[must_use]
    pub fn new(devices: Vec<DeviceId>) -> Self {
        Self { target: devices.len(), devices, sample_target: None, stage: 0, draws: BTreeMap::new() }
    }

    /// Asks a device, too, whose update counts for nothing itself.
    pub fn add_reference(&mut self, device: DeviceId) {
        if let Err(place) = self.devices.binary_search(&device) {
            self.devices.insert(place, device);
            self.draws.insert(device, 0);
            self.target = self.target.saturating_add(1);
        }
    }
}

/// What completes a round without its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleTarget {
    /// Samples that the answers were computed from, as the devices say.
    pub samples: u64,
    /// Answers.
    pub answers: usize,
}

/// An update that counts in a training round.
#[derive(Clone, Copy, Debug)]
pub struct UpdateArrival<'a> {
    /// Time since the round was opened.
    pub elapsed: Millis,
    /// Samples of this and of all answers before it in the round, as the devices say and as far as that counts.
    pub samples: u64,
    /// What was uploaded.
    pub tensors: &'a [Tensor],
    /// The model that the round began with, in the shape of the first tensor; of a representation, d x k.
    pub model: &'a Matrix,
}

/// A training round that is over.
#[derive(Clone, Copy, Debug)]
pub struct ClosedRound<'a> {
    /// Time since it was opened.
    pub elapsed: Millis,
    /// How many answers it waited for, if it closed with fewer.
    pub short_of: Option<usize>,
    /// The model that it began with.
    pub before: &'a Matrix,
    /// The model that came of it.
    pub model: &'a Matrix,
}

/// A participation policy.
pub trait Participation: Send {
    /// The cohort of round `round` from `fleet` (ascending). The same arguments after the same history give the
    /// same cohort.
    fn cohort(&mut self, round: u32, fleet: &[DeviceId]) -> Cohort;

    /// Takes an update of the round that is open, in order of arrival.
    fn counted(&mut self, _answer: &UpdateArrival<'_>) {}

    /// The round is closed.
    fn closed(&mut self, _closed: &ClosedRound<'_>) {}

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
        Cohort::new(fleet.to_vec())
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
        let target = scale_count(fleet.len(), self.rate).max(1).min(fleet.len());
        let asked = scale_count(target, self.over_select).clamp(target, fleet.len());
        let devices = draw(fleet, asked, self.seed, round.into());
        Cohort { target, ..Cohort::new(devices) }
    }
}

/// The first `n` answers of `cohort` devices, drawn anew each round without replacement; of everyone without a
/// `cohort`.
#[derive(Clone, Copy, Debug)]
pub struct FirstArrivals {
    /// How many answers complete a round.
    pub n: usize,
    /// How many devices are asked.
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

/// `draws` draws of one device each, with replacement: who is drawn twice counts twice (FedPower, Algorithm 3).
#[derive(Clone, Copy, Debug)]
pub struct WithReplacement {
    /// K, how many draws; every device once in expectation would be as many as there are devices.
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

/// `size` devices of `fleet` in ascending order, or all of them.
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
