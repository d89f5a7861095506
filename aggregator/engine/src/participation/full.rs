//! Participation policy "full participation": every round invites all devices and waits for all of them.

use toml_edit::Value;

use super::{Cohort, Draws, Participation, PolicySettings};
use crate::reader::{Problem, Section};
use crate::types::DeviceId;

/// Settings of the policy, which has no keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FullSettings;

impl PolicySettings for FullSettings {
    const NAME: &'static str = "full";
    const SUMMARY: &'static str = "all devices in every round";
    const FOR_ADAPTER_FILES: bool = true;

    fn read(_section: &Section<'_>, _communication: Option<f64>) -> Result<Self, Problem> {
        Ok(Self)
    }

    fn write(&self, _set: &mut dyn FnMut(&str, Value)) {}

    fn least_updates(&self, devices: usize) -> usize {
        devices
    }

    fn start(&self, _draws: Draws) -> Box<dyn Participation> {
        Box::new(Full)
    }
}

/// Policy that invites all devices in every round and waits for all of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Full;

impl Participation for Full {
    fn cohort(&mut self, _round: u32, fleet: &[DeviceId]) -> Cohort {
        Cohort::new(fleet.to_vec())
    }
}
