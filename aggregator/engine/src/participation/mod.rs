//! Participation policies: the devices invited to a round and the number of updates that completes it.
//! Policies are independent of the algorithm: they observe when updates arrive, what is in them, and how the
//! model moves.
//!
//! Each policy has one file with its settings ([`PolicySettings`]) and its state ([`Participation`]); `registry`
//! lists them. A new policy is a file and a line in the registry.

mod adaptive;
mod coverage;
mod doubling;
mod first_arrivals;
mod fraction;
mod full;
mod model_motion;
mod registry;
mod settings;
pub mod theory;
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

/// Checks the number of updates of the first rounds and the size of the cohort against a fleet of `devices` at
/// first and at most `most` later.
fn first_fits(
    key: &'static str,
    first: usize,
    cohort: Option<usize>,
    devices: usize,
    most: usize,
) -> Result<(), (&'static str, String)> {
    let wrong = |key, found, most| Err((key, format!("found {found}, allowed: at most the fleet's {most}")));
    match cohort {
        _ if first > devices => wrong(key, first, devices),
        Some(cohort) if cohort > most => wrong("cohort", cohort, most),
        _ => Ok(()),
    }
}

/// Reads the number of updates that a round waits for at first, under `key`, and the size of the cohort.
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

fn write_size(set: &mut dyn FnMut(&str, Value), key: &str, size: usize) {
    set(key, i64::try_from(size).unwrap_or(i64::MAX).into());
}
