//! Participation policy "first arrivals": a round completes with the first `n` updates to arrive.

use toml_edit::Value;

use super::{Cohort, Draws, Participation, PolicySettings, draw, first_fits, read_first, write_size};
use crate::reader::{Problem, Section};
use crate::types::DeviceId;

/// Settings of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstArrivalsSettings {
    /// Number of updates that completes a round.
    pub n: usize,
    /// Number of invited devices; `None` to invite all devices.
    pub cohort: Option<usize>,
}
impl PolicySettings for FirstArrivalsSettings {
    const NAME: &'static str = "first-arrivals";
    const SUMMARY: &'static str = "the first n updates of all devices, or of a cohort drawn for each round";
    const FOR_ADAPTER_FILES: bool = true;

    fn read(section: &Section<'_>, _communication: Option<f64>) -> Result<Self, Problem> {
        let (n, cohort) = read_first(section, "n", None)?;
        Ok(Self { n, cohort })
    }

    fn write(&self, set: &mut dyn FnMut(&str, Value)) {
        write_size(set, "n", self.n);
        self.cohort.into_iter().for_each(|cohort| write_size(set, "cohort", cohort));
    }

    fn fits(&self, devices: usize, fleet_max: usize) -> Result<(), (&'static str, String)> {
        first_fits("n", self.n, self.cohort, devices, fleet_max)
    }

    fn least_updates(&self, devices: usize) -> usize {
        self.n.min(devices)
    }

    fn start(&self, draws: Draws) -> Box<dyn Participation> {
        Box::new(FirstArrivals { n: self.n, cohort: self.cohort, seed: draws.seed })
    }
}

/// Policy that waits for the first `n` updates of `cohort` devices, which are drawn for each round without
/// replacement. With `None` it invites all devices.
#[derive(Clone, Copy, Debug)]
pub struct FirstArrivals {
    /// Number of updates that completes a round.
    pub n: usize,
    /// Number of invited devices; `None` to invite all devices.
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
