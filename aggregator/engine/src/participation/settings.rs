//! Interface of the settings of a participation policy: the trait [`PolicySettings`].

use std::fmt;

use toml_edit::Value;

use super::Participation;
use crate::reader::{Problem, Section};

/// Settings of a policy that a configuration can name.
pub trait PolicySettings: Copy + fmt::Debug + PartialEq {
    /// Name of the policy in configuration files.
    const NAME: &'static str;
    /// Description of the policy in one line, for lists of policies.
    const SUMMARY: &'static str;
    /// Whether rounds of adapter files support the policy. Such a policy must not depend on the change of the
    /// model, and must not draw a client twice.
    const FOR_ADAPTER_FILES: bool = false;

    /// Reads the policy's own keys from `[participation]`. `communication` is the default communication time
    /// of a round, in mean computation times, if it is known.
    ///
    /// # Errors
    /// [`Problem`] for the first mistake.
    fn read(section: &Section<'_>, communication: Option<f64>) -> Result<Self, Problem>;

    /// Passes each of the policy's own keys, with its value, to `set`, as a campaign stores them.
    fn write(&self, set: &mut dyn FnMut(&str, Value));

    /// Checks the settings against an initial fleet of `devices` devices and a largest possible fleet of
    /// `fleet_max` devices.
    ///
    /// # Errors
    /// Returns the key whose value is too large, and a sentence with the numbers found and allowed.
    fn fits(&self, _devices: usize, _fleet_max: usize) -> Result<(), (&'static str, String)> {
        Ok(())
    }

    /// Smallest number of updates that a round waits for when `devices` devices are present.
    fn least_updates(&self, devices: usize) -> usize;

    /// Checks the settings against a model that is a network or an adapter. `steps_show_round` is false if a round
    /// changes more on the server than the model.
    ///
    /// # Errors
    /// Returns the key whose value is not allowed for such a model, and a sentence with the values allowed.
    fn fits_network(&self, _steps_show_round: bool) -> Result<(), (&'static str, String)> {
        Ok(())
    }

    /// Creates the policy in its initial state.
    fn start(&self, draws: Draws) -> Box<dyn Participation>;
}

/// Settings of a campaign that affect random draws of devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draws {
    /// Seed of the draws.
    pub seed: u64,
    /// Ratio of the number of invited devices to the number of updates that a round waits for, at least 1.
    pub over_select: f64,
}
