//! Participation policy "sampling with replacement" (FedPower, Algorithm 3).

use std::collections::BTreeMap;

use toml_edit::Value;

use super::{Cohort, Draws, Participation, PolicySettings, write_size};
use crate::random::{Purpose, stream};
use crate::reader::{Problem, Section};
use crate::types::DeviceId;

/// Settings of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WithReplacementSettings {
    /// Number of draws, K.
    pub draws: usize,
}

impl PolicySettings for WithReplacementSettings {
    const NAME: &'static str = "with-replacement";
    const SUMMARY: &'static str = "draws of one device each; a device drawn twice counts twice";

    fn read(section: &Section<'_>, _communication: Option<f64>) -> Result<Self, Problem> {
        Ok(Self { draws: section.size("draws", None, 1..=1_000_000)? })
    }

    fn write(&self, set: &mut dyn FnMut(&str, Value)) {
        write_size(set, "draws", self.draws);
    }

    /// All draws can be of the same device.
    fn least_updates(&self, devices: usize) -> usize {
        devices.min(1)
    }

    fn start(&self, draws: Draws) -> Box<dyn Participation> {
        Box::new(WithReplacement { draws: self.draws, seed: draws.seed })
    }
}

/// Policy that draws one device `draws` times, with replacement. The update of a device drawn twice counts
/// twice (FedPower, Algorithm 3).
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
