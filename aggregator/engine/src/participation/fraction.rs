//! Participation policy "random fraction": invites a fraction of the devices, drawn for each round.

use toml_edit::Value;

use super::{Cohort, Draws, Participation, PolicySettings, draw, scale_count};
use crate::reader::{Problem, Section};
use crate::types::DeviceId;

/// Settings of the policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FractionSettings {
    /// Participation rate `r`, in (0, 1].
    pub r: f64,
}

impl PolicySettings for FractionSettings {
    const NAME: &'static str = "fraction";
    const SUMMARY: &'static str = "a random fraction of the devices, drawn for each round";
    const FOR_ADAPTER_FILES: bool = true;

    fn read(section: &Section<'_>, _communication: Option<f64>) -> Result<Self, Problem> {
        Ok(Self { r: section.number("r", None, 1e-9..=1.0)? })
    }

    fn write(&self, set: &mut dyn FnMut(&str, Value)) {
        set("r", self.r.into());
    }

    fn least_updates(&self, devices: usize) -> usize {
        wanted(self.r, devices)
    }

    fn start(&self, draws: Draws) -> Box<dyn Participation> {
        let Draws { seed, over_select } = draws;
        Box::new(Fraction { rate: self.r, over_select, seed })
    }
}

/// Policy that waits for `max(1, round(r n))` of `n` devices, drawn for each round without replacement. With
/// `over_select` above 1 it invites more devices than it waits for.
#[derive(Clone, Copy, Debug)]
pub struct Fraction {
    /// Participation rate `r`, in (0, 1].
    pub rate: f64,
    /// Ratio of the number of invited devices to the number of updates that a round waits for, at least 1.
    pub over_select: f64,
    /// Seed of the draws.
    pub seed: u64,
}

impl Participation for Fraction {
    fn cohort(&mut self, round: u32, fleet: &[DeviceId]) -> Cohort {
        let target = wanted(self.rate, fleet.len());
        let invited = scale_count(target, self.over_select).clamp(target, fleet.len());
        let devices = draw(fleet, invited, self.seed, round.into());
        Cohort { target, ..Cohort::new(devices) }
    }
}

/// Number of updates that a round waits for at participation rate `rate` of `devices` devices.
fn wanted(rate: f64, devices: usize) -> usize {
    scale_count(devices, rate).max(1).min(devices)
}
