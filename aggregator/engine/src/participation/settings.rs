//! Interface of the settings of a participation policy.

use std::fmt;

use toml_edit::Value;

use super::Participation;
use crate::reader::{Problem, Section};

/// Settings of a policy that a configuration can name.
pub trait PolicySettings: Copy + fmt::Debug + PartialEq {
    /// Name in files.
    const NAME: &'static str;
    /// Description in one line.
    const SUMMARY: &'static str;
    /// Whether rounds of adapter files support the policy: it must not watch how the model moves, nor draw a
    /// client twice.
    const FOR_ADAPTER_FILES: bool = false;

    /// Reads the policy's own keys from `[participation]`. `communication` is the default communication time of a
    /// round, in mean computation times, if it is known.
    ///
    /// # Errors
    /// [`Problem`] for the first mistake.
    fn read(section: &Section<'_>, communication: Option<f64>) -> Result<Self, Problem>;

    /// Writes the policy's own keys with their values, as a campaign stores them.
    fn write(&self, set: &mut dyn FnMut(&str, Value));

    /// Checks the settings against a fleet of `devices` at first and at most `most` later.
    ///
    /// # Errors
    /// The key whose value is too large, and a sentence with the numbers found and allowed.
    fn fits(&self, _devices: usize, _most: usize) -> Result<(), (&'static str, String)> {
        Ok(())
    }

    /// Checks the settings against a model that is a network or an adapter.
    ///
    /// # Errors
    /// The key whose value fits linear models alone, and a sentence with the values allowed.
    fn fits_network(&self) -> Result<(), (&'static str, String)> {
        Ok(())
    }

    /// Starts the policy for a campaign.
    fn start(&self, draws: Draws) -> Box<dyn Participation>;
}

/// Settings of a campaign that policies which draw devices need.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draws {
    /// Seed of the draws.
    pub seed: u64,
    /// Ratio of invited devices to those waited for, at least 1.
    pub over_select: f64,
}
