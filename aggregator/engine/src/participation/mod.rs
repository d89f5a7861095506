//! Participation policies: they choose the devices invited to a round and the number of updates that
//! completes it. A policy is independent of the algorithm. It may observe the arrival times and contents of
//! updates and the change of the model.
//!
//! Each policy has one file with its settings ([`PolicySettings`]) and its state ([`Participation`]);
//! `registry` lists them. A new policy is a file and a line in the registry.

mod adaptive;
mod arrival_times;
mod cohort_bias;
mod contraction;
mod coverage;
mod doubling;
mod estimator;
mod first_arrivals;
mod fraction;
mod full;
mod model_motion;
mod registry;
mod round_steps;
mod settings;
pub mod theory;
mod trials;
mod verified;
mod with_replacement;

pub use doubling::{DoubleBy, Doubling, DoublingSettings, DrawPer, Schedule};
pub use first_arrivals::{FirstArrivals, FirstArrivalsSettings};
pub use fraction::{Fraction, FractionSettings};
pub use full::{Full, FullSettings};
pub use registry::Policy;
pub use settings::{Draws, PolicySettings};
pub use with_replacement::{WithReplacement, WithReplacementSettings};

use std::collections::BTreeMap;

use toml_edit::Value;

use crate::linalg::Matrix;
use crate::random::{Purpose, stream};
use crate::reader::{Problem, Section};
use crate::types::{DeviceId, Millis, Tensor};

/// Devices invited to a round, and the number of updates that completes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cohort {
    /// Invited devices, in ascending order.
    pub devices: Vec<DeviceId>,
    /// Number of updates that completes the round.
    pub target: usize,
    /// Number of samples that completes the round with fewer updates; `None` if samples do not matter.
    pub sample_target: Option<SampleTarget>,
    /// Number of the participation stage, which policies with stages increase.
    pub stage: u16,
    /// Number of times each device was drawn. A device that is not in the map was drawn once.
    pub draws: BTreeMap<DeviceId, u32>,
}

impl Cohort {
    /// Cohort of stage 0 that waits for all `devices`.
    #[must_use]
    pub fn new(devices: Vec<DeviceId>) -> Self {
        Self { target: devices.len(), devices, sample_target: None, stage: 0, draws: BTreeMap::new() }
    }

    /// Adds a device as the reference of an algorithm; its update has no weight. Does nothing if the device
    /// was drawn.
    pub fn add_reference(&mut self, device: DeviceId) {
        if let Err(index) = self.devices.binary_search(&device) {
            self.devices.insert(index, device);
            self.draws.insert(device, 0);
            self.target = self.target.saturating_add(1);
        }
    }
}

/// Number of samples that completes a round, as an alternative to the number of updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleTarget {
    /// Number of samples of the counted updates, as declared by the devices and capped by the server.
    pub samples: u64,
    /// Smallest number of updates with which the samples complete the round.
    pub answers: usize,
}

/// Observation of an update that counts in a training round.
#[derive(Clone, Copy, Debug)]
pub struct UpdateArrival<'a> {
    /// Time from the opening of the round to the arrival.
    pub elapsed: Millis,
    /// Number of samples of this update and all updates before it in the round, as declared by the devices
    /// and capped by the server.
    pub samples: u64,
    /// Uploaded tensors.
    pub tensors: &'a [Tensor],
    /// Model before the round: a representation, d x k, or all shared layers of a network in one column.
    pub model: &'a Matrix,
    /// Place of the tensors' values in the model.
    pub layout: UploadLayout,
}

/// Place in a model of the values that devices upload in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadLayout {
    /// The first tensor is the representation, or a gradient of the same shape.
    Representation,
    /// The tensors are layers of a network, whose values are consecutive in the model's column.
    Layers {
        /// Index of the first uploaded value.
        offset: usize,
    },
    /// The tensors are no part of the model.
    Other,
}

/// Observation of a closed training round.
#[derive(Clone, Copy, Debug)]
pub struct ClosedRound<'a> {
    /// Duration of the round.
    pub elapsed: Millis,
    /// Number of updates that the round waited for, if it closed with fewer; otherwise `None`.
    pub short_of: Option<usize>,
    /// Model before the round.
    pub before: &'a Matrix,
    /// Model after the round.
    pub model: &'a Matrix,
    /// Whether all values of the model were trained since the cycle began, as after every round of most
    /// algorithms. The rounds of a cycle train different values.
    pub ends_cycle: bool,
}

/// Participation policy, with its state.
pub trait Participation: Send {
    /// Draws the cohort of round `round` from `fleet` (ascending). Equal arguments after an equal history
    /// give the same cohort.
    fn cohort(&mut self, round: u32, fleet: &[DeviceId]) -> Cohort;

    /// Observes an update of the open round; called in order of arrival.
    fn counted(&mut self, _answer: &UpdateArrival<'_>) {}

    /// Observes the end of a round.
    fn closed(&mut self, _closed: &ClosedRound<'_>) {}

    /// State that a checkpoint stores.
    fn state(&self) -> Vec<f64> {
        Vec::new()
    }

    /// Whether a policy with a restored state decides the same as this one. False if some estimates are not part of the
    /// state, and are measured again after a restart.
    fn has_whole_state(&self) -> bool {
        true
    }

    /// Restores a state that [`Self::state`] returned. Returns false, and changes nothing, if the values do
    /// not fit.
    fn restore(&mut self, state: &[f64]) -> bool {
        state.is_empty()
    }
}

/// Draws `size` devices of `fleet` and returns them in ascending order. Returns all devices if the fleet has
/// no more than `size`.
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
/// Rounds `n` times `factor` to the nearest integer.
fn scale_count(n: usize, factor: f64) -> usize {
    (n as f64 * factor).round() as usize
}

/// Checks the number of updates that the first rounds wait for against the initial fleet of `devices`
/// devices, and the size of the cohort against the largest possible fleet of `fleet_max` devices.
fn first_fits(
    key: &'static str,
    first: usize,
    cohort: Option<usize>,
    devices: usize,
    fleet_max: usize,
) -> Result<(), (&'static str, String)> {
    let too_large =
        |key, found, max| Err((key, format!("found {found}, allowed: at most the fleet's {max}")));
    match cohort {
        _ if first > devices => too_large(key, first, devices),
        Some(cohort) if cohort > fleet_max => too_large("cohort", cohort, fleet_max),
        _ => Ok(()),
    }
}

/// Reads the number of updates that the first rounds wait for, under `key`, and the size of the cohort.
fn read_first(
    section: &Section<'_>,
    key: &str,
    default: Option<usize>,
) -> Result<(usize, Option<usize>), Problem> {
    let first = section.size(key, default, 1..=1_000_000)?;
    let cohort = section.has("cohort").then(|| section.size("cohort", None, 1..=1_000_000)).transpose()?;
    match cohort.filter(|cohort| first > *cohort) {
        Some(cohort) => Err(section.problem(key, format!("{first} is more than the cohort of {cohort}"))),
        None => Ok((first, cohort)),
    }
}

/// Passes a key with a size to `set`.
fn write_size(set: &mut dyn FnMut(&str, Value), key: &str, size: usize) {
    set(key, i64::try_from(size).unwrap_or(i64::MAX).into());
}
